"""Execute one run from launch to record: `python -m runs.supervise`, called once for every run of the design.

`runs.verdict` decides the status of the run. A training that fails gets a record as well, and the exit status
of this program is 0. Any other exit status means that this program was stopped, that the infrastructure
failed, or that the input was wrong. Then there is no record, and the run is repeated.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from common.errors import print_line
from common.files import format_utc, write_json
from common.notes import Note
from common.options import run_program
from common.redaction import redact_log
from common.run_status import RunStatus
from common.shell import INACCESSIBLE, INACCESSIBLE_STATUS
from datasets.check import check_data
from declared.frameworks import Framework
from declared.records import PROGRAM_REPORT
from declared.site import Site, load_site
from environments.built import read_built
from environments.record import BuiltEnvironment
from launchers import launch
from launchers.protocol import AttemptLost, AttemptStopped, Launcher, Outcome
from plan.binding import bind_results, check_bound
from plan.identity import PlannedRun
from plan.memory import recorded_estimate
from plan.node_check import without_slow_nodes
from plan.plan_files import read_plan
from ranks.worker.energy import SCOPES, widest_scope
from runs import attempts, meters, own_commands, phases, reference, score_p, steps, transport
from runs.epochs import mean_of_timed, read_epochs
from runs.session import current_session, raise_if_halted
from runs.verdict import Measurements, judge_run

WHO_REPEATS = "Snakemake repeats it if its profile has retries; otherwise, run the command again"


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
    with attempts.exclusive(run_folder, planned_run.run_id):
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
        is_orphaned=_ancestors() != ancestors,
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

    They change if one of both ends, since the system then gives its children another parent.
    """
    parent = os.getppid()
    try:
        grandparent = (
            Path("/proc", str(parent), "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        )
    except FileNotFoundError:
        grandparent = None
    return parent, grandparent


def rank_input(
    run_spec: Mapping[str, Any],
    framework: Framework,
    environment: BuiltEnvironment,
    model: Mapping[str, Any] | None,
    data: Path | None,
    hosts: Sequence[str],
) -> dict[str, Any]:
    """Return the content of an attempt's rank_input.json, the input of its ranks."""
    installed = environment.get("installed")
    absent = installed.get("absent", []) if installed else []
    return {
        "spec": run_spec,
        "model": model,
        "data": str(data) if data else None,
        "adapter": str(framework.folder),
        "modules": [module for module in framework.modules if module not in absent],
        "hosts": list(hosts),
        **(
            {"command": own_commands.input_fields(framework.command, run_spec, data, environment)}
            if framework.command
            else {}
        ),
    }


def oversubscribed(site: Site, run_spec: Mapping[str, Any]) -> bool:
    """Return whether the ranks of a machine have more threads than it has cores."""
    n_ranks = run_spec["ranks"]
    n_local_ranks = n_ranks if site.placement == "emulated" else min(n_ranks, run_spec["ranks_per_node"])
    if core_counts := run_spec.get("rank_cores"):
        return bool(sum(core_counts) * n_local_ranks > site.cores * len(core_counts))
    return bool(n_local_ranks * run_spec["cores_per_rank"] > site.cores)


def summarize_ranks(
    attempt_folder: Path,
    launched_at: float,
    wall_s: float,
    run_spec: Mapping[str, Any],
    epochs: Sequence[Mapping[str, Any]],
) -> dict[str, Any] | None:
    """Return what the ranks measured about themselves, or None if they did not finish.

    Args:
        attempt_folder: The attempt's folder.
        launched_at: When the ranks were launched, Unix time in s.
        wall_s: Time from launch to the end of the last rank, s.
        run_spec: The run's specification.
        epochs: The rows of epochs.csv.
    """
    try:
        result = json.loads((attempt_folder / "result.json").read_text())
    except FileNotFoundError:
        return None
    ranks = result["ranks"]
    device_memory = [
        rank["device_memory_peak_bytes"] for rank in ranks if rank["device_memory_peak_bytes"] is not None
    ]
    finite = [rank["weights_finite"] for rank in ranks]
    first_steps = [rank["first_step_s"] for rank in ranks if rank["first_step_s"] is not None]
    return {
        "hosts": list(dict.fromkeys(rank["host"] for rank in ranks)),
        "machines": len({rank["machine"] for rank in ranks}),
        "devices": [rank["device"] for rank in ranks for _ in range(run_spec["replicas_per_rank"])],
        "drivers": sorted({rank["driver"] for rank in ranks if rank["driver"]}),
        "systems": sorted({rank["system"] for rank in ranks}),
        "node_memory_bytes": min(rank["node_memory_bytes"] for rank in ranks),
        "transport": transport.describe_transport(result["transport"], run_spec, attempt_folder),
        "startup_s": startup_time(
            result["ready_at"] - launched_at, result["closed_at"] - launched_at, wall_s
        ),
        "import_s": max((rank["import_s"] for rank in ranks if rank["import_s"] is not None), default=None),
        "first_step_s": max(first_steps, default=None),
        "step_time_s": steps.quantiles(attempt_folder / "steps.csv", run_spec["levels"]["warmup_epochs"]),
        "memory_peak_bytes": max(rank["memory_peak_bytes"] for rank in ranks),
        "device_memory_peak_bytes": max(device_memory, default=None),
        "dropped_token_share": mean_dropped_share([rank["dropped_token_shares"] for rank in ranks]),
        "weights_finite": None if None in finite else all(finite),
        **{name: mean_of_timed(epochs, name) for name in ("throttled_s", "sent_bytes")},
        **epoch_energy(epochs, run_spec["device"]),
        "other_cpu_share": result["other_cpu_share"],
        "steal_share": result["steal_share"],
        "paused_s": max(rank["paused_s"] for rank in ranks),
        "shares": result["shares"],
        PROGRAM_REPORT: result["program_report"],
        "settings": merge_settings([rank["settings"] for rank in ranks]),
        "warnings": list(dict.fromkeys(redact_log(text) for rank in ranks for text in rank["warnings"])),
        "clock_error_s": phases.merge_phases(attempt_folder),
        "python_version": result["python_version"],
        "library_version": result["library_version"],
    }


def mean_dropped_share(shares_by_rank: Sequence[Mapping[str, float]]) -> float | None:
    """Return the mean over operators of the shares that experts dropped, None without experts.

    The ranks of a pipeline stage all report the means over their replicas, so one of them counts.
    """
    shares = {name: share for rank_shares in shares_by_rank for name, share in rank_shares.items()}
    return fmean(shares.values()) if shares else None


def merge_settings(settings_by_rank: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the settings of all ranks; if a value differs between ranks, all of its values are listed."""
    values_by_name: dict[str, list[str]] = {}
    for settings in settings_by_rank:
        for name, value in settings.items():
            values_by_name.setdefault(name, []).append(redact_log(value))
    return {name: "; ".join(dict.fromkeys(values)) for name, values in values_by_name.items()}


def startup_time(ready_s: float, closed_s: float, wall_s: float) -> float | None:
    """Return the time from launch until all ranks were ready, s; None if the clocks of two nodes disagree.

    Args:
        ready_s: When all ranks were ready: rank 0's clock minus the launcher's clock at the launch, s.
        closed_s: When the last epoch ended, in the same way, s.
        wall_s: Time from launch to the end of the last rank, s, by the launcher's clock alone.
    """
    return ready_s if 0 <= ready_s <= closed_s <= wall_s else None


def epoch_energy(epochs: Sequence[Mapping[str, Any]], device: str) -> dict[str, float | str | None]:
    """Return the mean energy of a timed epoch in each scope, J, and the widest scope that has one."""
    energies = {name: mean_of_timed(epochs, name) for name in (f"energy_{scope}_j" for scope in SCOPES)}
    scope = widest_scope(energies, device)
    return {**energies, "energy_j": energies[f"energy_{scope}_j"] if scope else None, "energy_scope": scope}


@contextmanager
def report_interruptions(title: str, path: Path) -> Iterator[None]:
    """Print one line and exit if the attempt inside ends without a record.

    The exit status is 130 if a signal stopped it, INACCESSIBLE_STATUS (79) if a node cannot access a path,
    and EX_TEMPFAIL (75) if it was lost for another reason or an OSError occurred, such as a full disk.

    The signals are SIGTERM, SIGINT and, unless the parent ignores it (nohup), SIGHUP from a closed terminal.
    """

    def stop(signum: int, _frame: object) -> None:
        raise AttemptStopped(signal.Signals(signum).name)

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, stop)
    try:
        yield
    except AttemptStopped as stopped:
        print_line(f"{title}: stopped by {stopped}; {WHO_REPEATS}", to_stderr=True)
        sys.exit(130)
    except AttemptLost as lost:
        if lost.reason.code == INACCESSIBLE:
            print_line(f"ringside: {lost}", to_stderr=True)
            sys.exit(INACCESSIBLE_STATUS)
        print_line(f"ringside: {title}: lost: {lost}; {WHO_REPEATS}", to_stderr=True)
        sys.exit(os.EX_TEMPFAIL)
    except OSError as error:
        print_line(
            f"ringside: {error.filename or path}: {error.strerror or error}; correct it, then start again",
            to_stderr=True,
        )
        sys.exit(os.EX_TEMPFAIL)


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
