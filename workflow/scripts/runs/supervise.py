"""Execute one run from launch to record: `python -m runs.supervise`, called once for every run of the design.

`runs.verdict` decides the status of the run. A training that fails gets a record as well, and the exit status
of this program is 0. Any other exit status means that this program was stopped, that the infrastructure
failed, or that the input was wrong. Then there is no record, so the next Snakemake that is asked for the run
executes it (docs/architecture.md, "Who repeats a run").
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import print_line
from common.files import format_utc, write_json
from common.notes import Note
from common.options import run_program
from common.run_status import RunStatus
from datasets.check import check_data
from declared.site import Site, load_site
from environments.built import read_built
from environments.record import BuiltEnvironment
from launchers import launch
from launchers.protocol import Launcher, Outcome
from plan.binding import bind_results, check_bound
from plan.identity import PlannedRun
from plan.memory import recorded_estimate
from plan.node_check import without_slow_nodes
from plan.plan_files import read_plan
from runs import attempts, meters, own_commands, reference, score_p
from runs.epochs import read_epochs
from runs.interruptions import report_interruptions
from runs.rank_input import rank_input
from runs.rank_summary import summarize_ranks
from runs.session import current_session, raise_if_halted
from runs.verdict import Measurements, judge_run


def supervise(
    planned_run: PlannedRun,
    results: Path,
    session: str,
    is_final: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> dict[str, Any]:
    """Return the final record of a run, after a new attempt unless the latest record is final.

    The run and this machine are locked while this runs.

    Args:
        planned_run: The run.
        results: results/<study>.
        session: Name of the session.
        is_final: Returns whether to keep the record of an earlier attempt. By default every record is kept,
            even that of a failed run: Ringside does not repeat failures by itself.

    Raises:
        InputError: If the environment or the data are not the planned ones, or the results belong to another
            site.
        AttemptLost: If the infrastructure failed.
    """
    run_folder = results / "runs" / planned_run.run_id / planned_run.key
    with attempts.lock_run_and_machine(run_folder, planned_run.run_id):
        attempt_folder = attempts.latest_recorded_attempt(run_folder)
        if attempt_folder is None or not is_final(attempts.read_attempt_record(attempt_folder)):
            environment = read_built(planned_run.environment)
            if planned_run.data:
                check_data(planned_run.data, planned_run.spec["levels"]["dataset"])
            bind_results(results, planned_run.study, planned_run.site)
            # The attempt begins before the launcher asks the scheduler, because the job can already be gone.
            with attempts.new_attempt(run_folder) as attempt_folder:
                setup = environment.get("setup", ())
                launcher = launch.make_launcher(
                    planned_run.site, planned_run.spec, planned_run.framework.mpi, setup
                )
                record = run_attempt(planned_run, environment, launcher, results, attempt_folder, session)
                attempts.write_record(attempt_folder, record, "record")
        return attempts.copy_final_record(attempt_folder)


@dataclass(frozen=True)
class Execution:
    """One launch of all ranks, with the reference benchmarks before and after it.

    Attributes:
        launched_at: Unix time of the launch, s.
        outcome: How the ranks ended.
        trace_problem: Why Score-P left no trace; None if it did, or was not used.
        reference_entry: The record's entry `reference`; None if the site runs no reference benchmark.
    """

    launched_at: float
    outcome: Outcome
    trace_problem: Note | None
    reference_entry: dict[str, Any] | None


def run_attempt(
    planned_run: PlannedRun,
    environment: BuiltEnvironment,
    launcher: Launcher,
    results: Path,
    attempt_folder: Path,
    session: str,
) -> dict[str, Any]:
    """Launch all ranks once, in runs/<run_id>/<key>/attempt-<k>, and return the record.

    Raises:
        AttemptLost: If the infrastructure failed.
    """
    site, spec = planned_run.site, planned_run.spec
    idle_w = meters.idle_power(results, session, site, spec, environment)
    model = planned_run.graph.to_json() if planned_run.graph else None
    content = rank_input(spec, planned_run.framework, environment, model, planned_run.data, launcher.hosts)
    write_json(attempt_folder / "rank_input.json", content)
    run_environment = environment
    if version := spec.get("scorep"):
        run_environment = score_p.wrap_program(environment, site, version, attempt_folder.resolve())
    ancestors = _ancestors()
    execution = execute(planned_run, environment, run_environment, launcher, results, attempt_folder)
    measurements = read_measurements(planned_run, environment, launcher, attempt_folder, execution, idle_w)
    status, reason = judge_run(
        planned_run,
        execution.outcome,
        execution.trace_problem,
        measurements,
        launcher.hosts,
        attempt_folder / "log.txt",
        has_snakemake_ended=_ancestors() != ancestors,
    )
    return {
        **describe_run(planned_run, run_environment),
        **({"memory_estimate": estimate} if (estimate := recorded_estimate(planned_run, results)) else {}),
        "session": session,
        "status": status,
        "reason": reason,
        **({"out_of_memory": dict(reason.facts)} if status == RunStatus.OOM and reason else {}),
        "job": launcher.job,
        "started_at": format_utc(execution.launched_at),
        "ended_at": format_utc(time.time()),
        "wall_s": execution.outcome.wall_s,
        "lost_s": attempts.earlier_attempts_s(attempt_folder),
        "reference": execution.reference_entry,
        "measured": measurements.measured,
    }


def execute(
    planned_run: PlannedRun,
    environment: BuiltEnvironment,
    run_environment: BuiltEnvironment,
    launcher: Launcher,
    results: Path,
    attempt_folder: Path,
) -> Execution:
    """Launch the ranks of an attempt, and run the site's reference benchmark before and after them.

    Args:
        planned_run: The run.
        environment: The environment of the reference benchmark.
        run_environment: The environment of the ranks. Score-P can wrap its program.
        launcher: The launcher of the run.
        results: results/<study>.
        attempt_folder: The attempt's folder.
    """
    site, spec = planned_run.site, planned_run.spec

    def run_benchmark(moment: str) -> reference.ReferenceTime:
        benchmark_folder = attempt_folder / f"reference-{moment}"
        return reference.run_benchmark(
            benchmark_folder, spec, planned_run.framework.modules, environment, site
        )

    reference_entry = reference_before(planned_run, results, run_benchmark) if site.reference else None
    launched_at = time.time()
    outcome = launch.run_ranks(
        launcher, run_environment, attempt_folder.resolve(), spec, site, reads=planned_run.read_paths
    )
    if reference_entry and outcome.status == RunStatus.OK:
        reference_entry = reference.measure_after(lambda: run_benchmark("after"), reference_entry)
    trace_problem = score_p.finish_trace(attempt_folder, outcome.status) if spec.get("scorep") else None
    return Execution(launched_at, outcome, trace_problem, reference_entry)


def read_measurements(
    planned_run: PlannedRun,
    environment: BuiltEnvironment,
    launcher: Launcher,
    attempt_folder: Path,
    execution: Execution,
    idle_w: Mapping[str, float | None] | None,
) -> Measurements:
    """Read what was measured during a run.

    The log of a user-supplied command becomes epochs.csv. The meters that are read after a run then fill a
    column of this table.
    """
    spec, command, table = planned_run.spec, planned_run.framework.command, attempt_folder / "epochs.csv"
    launched_at, wall_s = execution.launched_at, execution.outcome.wall_s
    is_finished = (attempt_folder / "result.json").exists()
    times = (
        own_commands.read_times(command, spec, attempt_folder, wall_s) if command and is_finished else None
    )
    metered = meters.read_after(attempt_folder, spec, planned_run.site, launcher) if is_finished else []
    epochs = read_epochs(table) if table.exists() else []
    measured = summarize_ranks(attempt_folder, launched_at, wall_s, spec, epochs)
    if measured:
        measured |= {"meters": metered, "idle_w": idle_w}
    if measured and command and times:
        measured |= own_commands.measured_fields(command, environment, times, launched_at, wall_s)
    return Measurements(measured, epochs, times.problem if times else None)


def describe_run(planned_run: PlannedRun, environment: BuiltEnvironment) -> dict[str, Any]:
    """Return the fields of a record that describe the run and its software."""
    site, spec = planned_run.site, planned_run.spec
    image, installed = environment.get("image"), environment.get("installed")
    return {
        "run_id": planned_run.run_id,
        "key": planned_run.key,
        "study": planned_run.study,
        "site": site.name,
        **planned_run.digests,
        "placement": site.placement,
        "timing_scope": planned_run.framework.timing_scope,
        "cores_per_rank": spec["cores_per_rank"],
        "node_cores": site.cores,
        "oversubscribed": oversubscribed(site, spec),
        "max_other_cpu_share": site.max_other_cpu_share,
        "deployment": environment["deployment"],
        "image": {name: image[name] for name in ("sha256", "base", "made_by")} if image else None,
        "installed": {"executable": installed["executable"], "modules": installed.get("modules", [])}
        if installed
        else None,
        "packages": environment["packages"],
        **({"exclude_nodes": dict(site.exclude_nodes)} if site.exclude_nodes else {}),
        **({"strategy": spec["strategy"]} if "strategy" in spec else {}),
        **({name: spec[name] for name in ("batch_search", "local_batch")} if "batch_search" in spec else {}),
    }


def reference_before(
    planned_run: PlannedRun, results: Path, run_benchmark: Callable[[str], reference.ReferenceTime]
) -> dict[str, Any]:
    """Return the record's entry `reference` as measured before a run, on a quiet machine if configured."""
    geometry = reference.geometry(planned_run.spec)
    entry = reference.measure_before(
        lambda: run_benchmark("before"),
        lambda: list(reference.earlier_times(results, geometry, planned_run.digests["environment_digest"])),
        planned_run.site.wait_for_quiet,
        lambda note: print_line(f"{planned_run.run_id}: {note}"),
    )
    return {"geometry": geometry, **entry}


def _ancestors() -> tuple[int, str | None]:
    """Return the ids of the parent (a shell or the prefork server) and the grandparent (Snakemake).

    They change if either ends, because the system then gives its children another parent.
    """
    parent = os.getppid()
    try:
        grandparent = (
            Path("/proc", str(parent), "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        )
    except FileNotFoundError:
        grandparent = None
    return parent, grandparent


def oversubscribed(site: Site, run_spec: Mapping[str, Any]) -> bool:
    """Return whether the ranks of a machine have more threads than it has cores."""
    n_ranks = run_spec["ranks"]
    n_local_ranks = n_ranks if site.placement == "emulated" else min(n_ranks, run_spec["ranks_per_node"])
    if core_counts := run_spec.get("rank_cores"):
        return bool(sum(core_counts) * n_local_ranks > site.cores * len(core_counts))
    return bool(n_local_ranks * run_spec["cores_per_rank"] > site.cores)


def main(*, site: str, plan: Path, key: str) -> None:
    """Train one run as planned and write its record.

    Args:
        site: name of a file in config/sites/
        plan: results/STUDY/plan/RUN_ID.json
        key: the key that the caller expects
    """
    results = plan.parents[1]
    declared_site = without_slow_nodes(load_site(site), results)
    raise_if_halted(results)
    planned_run = read_plan(plan, key, declared_site)
    with report_interruptions(planned_run.run_id, results):
        check_bound(results, declared_site)
        supervise(planned_run, results, current_session())


if __name__ == "__main__":
    sys.exit(run_program(main))
