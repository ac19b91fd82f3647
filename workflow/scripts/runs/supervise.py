"""Execute one run from launch to record: `python -m runs.supervise`, called once for every run of the design.

A failed training has a record, too, and exit status 0. Another status means that this program was stopped,
that the infrastructure failed, or that its input was wrong.
"""

import errno
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from common.errors import MACHINE_ERRORS, print_line
from common.files import format_utc, write_json
from common.notes import Note
from common.options import run_program
from common.redaction import redact_log
from common.shell import UNSEEN, UNSEEN_STATUS
from datasets.check import check_data
from declared.frameworks import Framework
from declared.site import Site, load_site
from environments.built import read_built
from environments.record import BuiltEnvironment
from launchers import launch
from launchers.log import read_end
from models.graph import BYTES
from models.messages import number_bytes
from plan.binding import bind_results, check_bound
from plan.identity import Planned
from plan.memory import recorded_estimate
from plan.node_check import without_slow_nodes
from plan.plan_files import read_plan
from ranks.worker.energy import SCOPES, widest_scope
from runs import attempts, meters, own_commands, phases, reference, score_p, steps, transport
from runs.epochs import mean_of_timed, read_epochs
from runs.progress import current_session, refuse_stopped

# Codes of colours and cursors (ECMA-48), and titles of xterm.
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07)")
# Of errors that follow from that of another process: those of ranks, and of torchrun.
_CONSEQUENCES = (
    "a rank is gone",
    "torch.distributed.elastic",
    "torch/distributed/elastic",
    "ChildFailedError",
)
_ERROR = re.compile(r"Error|\berror(?::| on rank)")
REPEATED_BY = "it is repeated by Snakemake if its profile has retries, else when you run the command again"


def supervise(
    planned: Planned,
    results: Path,
    session: str,
    usable: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> dict[str, Any]:
    """Return the published record of a run: that of a finished attempt that is `usable`, or of a new one.

    Args:
        planned: The run.
        results: results/<study>.
        session: Name of the session.
        usable: Return whether an existing record needs no new attempt.
    """
    run_folder = results / "runs" / planned.run_id / planned.key
    with attempts.exclusive(run_folder, planned.run_id):
        attempt = attempts.finished(run_folder)
        if attempt is None or not usable(attempts.read_record(attempt)):
            environment = read_built(planned.environment)
            if planned.data:
                check_data(planned.data, planned.spec["levels"]["dataset"])
            bind_results(results, planned.study, planned.site)
            # The attempt begins first: a launcher asks the scheduler, and may find its job lost.
            with attempts.new_attempt(run_folder) as attempt:
                setup = environment.get("setup", ())
                launcher = launch.make_launcher(planned.site, planned.spec, planned.framework.mpi, setup)
                record = run_attempt(planned, environment, launcher, results, attempt, session)
                attempts.finish(attempt, record, "record")
        return attempts.publish(attempt)


def run_attempt(
    planned: Planned,
    environment: BuiltEnvironment,
    launcher: launch.Launcher,
    results: Path,
    folder: Path,
    session: str,
) -> dict[str, Any]:
    """Start all ranks once, in `folder` (runs/<run_id>/<key>/attempt-<k>), and return the record."""
    site, spec, framework = planned.site, planned.spec, planned.framework
    idle_w = meters.idle_power(results, session, site, spec, environment)
    model = planned.graph.to_json() if planned.graph else None
    write_json(
        folder / "spec.json", rank_input(spec, framework, environment, model, planned.data, launcher.hosts)
    )
    scorep_version = spec.get("scorep")
    run_environment = environment
    if scorep_version:
        run_environment = score_p.wrap_program(environment, site, scorep_version, folder.resolve())
    parents = _parent_processes()

    def run_benchmark(moment: str) -> reference.ReferenceTime:
        own_folder = folder / f"reference-{moment}"
        return reference.run_benchmark(own_folder, spec, framework.modules, environment, site)

    machine_speed = speed_before(planned, results, run_benchmark) if site.reference else None
    launched_at = time.time()
    outcome = launch.run(launcher, run_environment, folder.resolve(), spec, site, reads=planned.read_paths)
    if machine_speed and outcome.status == "ok":
        machine_speed = reference.measure_after(lambda: run_benchmark("after"), machine_speed)
    if scorep_version:
        outcome = score_p.end(folder, outcome)
    command, own_times = framework.command, None
    if command and (folder / "result.json").exists():
        own_times = own_commands.read_times(command, spec, folder, outcome.wall_s)
    measured, epochs = read_outcome(planned, launcher, folder, launched_at, outcome.wall_s, idle_w)
    if command and measured and own_times:
        measured |= own_commands.measured_fields(command, environment, own_times, launched_at, outcome.wall_s)
    gradient_bytes = planned.graph.gradient_bytes if planned.graph else 0
    if planned.graph and planned.graph.module and measured:
        gradient_bytes = BYTES * measured["told"]["parameters"]
    gradient_bytes = gradient_bytes * number_bytes(planned.spec["levels"]).reduced // BYTES
    problem = own_times.problem if own_times else None
    status, reason = judge(outcome, measured, epochs, spec, site, launcher.hosts, gradient_bytes, problem)
    if status in ("failed", "oom") and _parent_processes() != parents:
        raise launch.Lost(Note("parent-killed", "its parent process was killed"))
    if status == "failed":
        reason = failure_or_lost(reason, folder / "log.txt") if reason else None
    return {
        **describe_run(planned, run_environment),
        **({"memory_estimate": estimate} if (estimate := recorded_estimate(planned, results)) else {}),
        "session": session,
        "status": status,
        "reason": reason,
        **({"out_of_memory": dict(reason.facts)} if status == "oom" and reason else {}),
        "job": launcher.job,
        "started_at": format_utc(launched_at),
        "ended_at": format_utc(time.time()),
        "wall_s": outcome.wall_s,
        "lost_s": attempts.lost_seconds(folder),
        "reference": machine_speed,
        "measured": measured,
    }


def read_outcome(
    planned: Planned,
    launcher: launch.Launcher,
    folder: Path,
    launched_at: float,
    wall_s: float,
    idle_w: Mapping[str, float | None] | None,
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return what was measured during a run, or None if its ranks did not finish, and its epochs.

    Meters that are read after a run fill a column of its epochs.csv first.
    """
    spec, table = planned.spec, folder / "epochs.csv"
    is_finished = (folder / "result.json").exists()
    metered = meters.read_after(folder, spec, planned.site, launcher) if is_finished else []
    epochs = read_epochs(table) if table.exists() else []
    measured = summarize_ranks(folder, launched_at, wall_s, spec, epochs)
    return (measured | {"meters": metered, "idle_w": idle_w} if measured else measured), epochs


def describe_run(planned: Planned, environment: BuiltEnvironment) -> dict[str, Any]:
    """Return the part of a record that is known before its ranks start: the run and its software."""
    site, spec = planned.site, planned.spec
    image, installed = environment.get("image"), environment.get("installed")
    return {
        "run_id": planned.run_id,
        "key": planned.key,
        "study": planned.study,
        "site": site.name,
        **planned.digests,
        "placement": site.placement,
        "timing_scope": planned.framework.timing_scope,
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


def speed_before(
    planned: Planned, results: Path, run_benchmark: Callable[[str], reference.ReferenceTime]
) -> dict[str, Any]:
    """Return the reference benchmark before a run, after waiting for a quiet machine if configured."""
    geometry = reference.geometry(planned.spec)
    entry = reference.measure_before(
        lambda: run_benchmark("before"),
        lambda: list(reference.earlier_times(results, geometry, planned.digests["environment_digest"])),
        planned.site.wait_for_quiet,
        lambda note: print_line(f"{planned.run_id}: {note}"),
    )
    return {"geometry": geometry, **entry}


def _parent_processes() -> tuple[int, str | None]:
    """Return parent and grandparent of this process: a shell or the prefork server, and Snakemake."""
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
    """Return an attempt's spec.json, the input of its ranks: the run's spec, the model and paths."""
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
    folder: Path,
    launched_at: float,
    wall_s: float,
    run_spec: Mapping[str, Any],
    epochs: Sequence[Mapping[str, Any]],
) -> dict[str, Any] | None:
    """Return what the ranks measured about themselves, or None if they did not finish.

    Args:
        folder: The attempt's folder.
        launched_at: When the ranks were launched, Unix time in s.
        wall_s: Time from launch to the end of the last rank, s.
        run_spec: The run's specification.
        epochs: The rows of epochs.csv.
    """
    try:
        result = json.loads((folder / "result.json").read_text())
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
        "transport": transport.describe_transport(result["transport"], run_spec, folder),
        "startup_s": startup_time(
            result["ready_at"] - launched_at, result["closed_at"] - launched_at, wall_s
        ),
        "import_s": max((rank["import_s"] for rank in ranks if rank["import_s"] is not None), default=None),
        "first_step_s": max(first_steps, default=None),
        "step_time_s": steps.quantiles(folder / "steps.csv", run_spec["levels"]["warmup_epochs"]),
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
        "told": result["program_report"],
        "settings": merge_settings([rank["settings"] for rank in ranks]),
        "warnings": list(dict.fromkeys(redact_log(text) for rank in ranks for text in rank["warnings"])),
        "clock_error_s": phases.merge_phases(folder),
        "python_version": result["python_version"],
        "library_version": result["library_version"],
    }


def mean_dropped_share(shares_by_rank: Sequence[Mapping[str, float]]) -> float | None:
    """Return the mean over operators of the shares that experts dropped, None without experts.

    Ranks of a pipeline stage have the means over all replicas.
    """
    shares = {name: share for own in shares_by_rank for name, share in own.items()}
    return fmean(shares.values()) if shares else None


def merge_settings(settings_by_rank: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the settings of all ranks; a value that differs between ranks lists all of them."""
    values_by_name: dict[str, list[str]] = {}
    for settings in settings_by_rank:
        for name, value in settings.items():
            values_by_name.setdefault(name, []).append(redact_log(value))
    return {name: "; ".join(dict.fromkeys(values)) for name, values in values_by_name.items()}


def startup_time(ready_s: float, closed_s: float, wall_s: float) -> float | None:
    """Return the time from launch until all ranks were ready in s, or None if clocks disagree.

    Args:
        ready_s: When all ranks were ready, by rank 0's clock, s after the launch by the launcher's clock.
        closed_s: When the last epoch ended, on the same clock.
        wall_s: Time from launch to the end of the last rank, s, by the launcher's clock alone.
    """
    return ready_s if 0 <= ready_s <= closed_s <= wall_s else None


def epoch_energy(epochs: Sequence[Mapping[str, Any]], device: str) -> dict[str, float | str | None]:
    """Return the mean energy of a timed epoch by scope, J, and the widest_scope scope with its energy."""
    energies = {name: mean_of_timed(epochs, name) for name in (f"energy_{scope}_j" for scope in SCOPES)}
    scope = widest_scope(energies, device)
    return {**energies, "energy_j": energies[f"energy_{scope}_j"] if scope else None, "energy_scope": scope}


def judge(
    outcome: launch.Outcome,
    measured: dict[str, Any] | None,
    epochs: Sequence[Mapping[str, Any]],
    run_spec: Mapping[str, Any],
    site: Site,
    hosts: Sequence[str],
    gradient_bytes: int,
    log_problem: Note | None = None,
) -> tuple[str, Note | None]:
    """Return status and reason of an attempt; `hosts` are the nodes on which it was started.

    The status is that of the launch (oom, failed, timeout), failed if epochs are missing, or the log of a
    command of the user's own cannot be read, or invalid if

    1. a loss is not finite in some epoch,
    2. weights are not finite after the last epoch,
    3. a rank was stopped,
    4. ranks were on other nodes than `hosts`,
    5. nodes of a site with distinct nodes share a machine,
    6. other processes used too much CPU time,
    7. a hypervisor took too much CPU time,
    8. gradients took another way than the site's network (`transport.wrong_network_reason`), or
    9. the log of a command of the user's own does not fit what was planned.

    The reason is the first that applies. docs/explanation/measurement.md has the same list.
    """
    if outcome.status != "ok":
        return outcome.status, outcome.reason
    if measured and log_problem:
        return "failed" if log_problem.code == own_commands.UNREADABLE else "invalid", log_problem
    if measured is None or len(epochs) != run_spec["levels"]["epochs"]:
        n_planned = run_spec["levels"]["epochs"]
        text = f"ended after {len(epochs)} of {n_planned} epochs"
        return "failed", Note("ended-early", text, epochs=len(epochs), planned=n_planned)
    for row in epochs:
        losses = [row[loss] for loss in ("train_loss", "validation_loss")]
        if not all(math.isfinite(loss) for loss in losses if loss is not None):
            text = f"the loss is not finite in epoch {row['epoch']:.0f}"
            return "invalid", Note("loss-not-finite", text, epoch=row["epoch"])
    if measured["weights_finite"] is False:
        return "invalid", Note("weights-not-finite", "weights are not finite after the last epoch")
    shares = measured["other_cpu_share"], measured["steal_share"]
    # Ranks record no pause below MIN_PAUSE_S (ranks.worker.heartbeat), so any pause counts here.
    if (paused_s := measured["paused_s"]) > 0:
        return "invalid", Note("paused", f"a rank was stopped for {paused_s:.1f} s", paused_s=paused_s)
    if reason := misplaced_or_disturbed_reason(measured["hosts"], measured["machines"], hosts, shares, site):
        return "invalid", reason
    # In an all-reduce by any algorithm, the busiest node sends at least (n - 1) / n of the gradients: of each
    # element, all nodes but one send a partial sum. A ring also sends the sum back, hence the 2 (n - 1) / n
    # of models.collectives. `transport` requires only MIN_SENT_SHARE of this bound.
    min_bytes = gradient_bytes * (run_spec["nodes"] - 1) / run_spec["nodes"]
    # What carries the gradients of a command of the user's own is known from NCCL's log alone.
    if measured["transport"] == transport.UNKNOWN:
        return "ok", None
    if reason := transport.wrong_network_reason(measured["transport"], run_spec, site, epochs, min_bytes):
        return "invalid", Note(reason.code, f"network: {reason}", **reason.facts)
    return "ok", None


def misplaced_or_disturbed_reason(
    hosts: Sequence[str], machines: int, expected: Sequence[str], shares: tuple[float, float], site: Site
) -> Note | None:
    """Return why ranks were misplaced or disturbed, or None; causes 4 to 7 of `judge`, also of benchmarks.

    Args:
        hosts: Hosts of the ranks.
        machines: Number of machines behind these hosts.
        expected: Hosts on which the ranks were started.
        shares: Shares of CPU time of other processes and of CPU steal.
        site: The site.
    """
    if site.placement != "emulated" and _short_names(hosts) != _short_names(expected):
        text = f"misplaced: ranks were on {', '.join(hosts)}, expected {', '.join(expected)}"
        return Note("misplaced", text, hosts=list(hosts), expected=list(expected))
    if site.placement == "distinct-nodes" and machines < len(hosts):
        text = (
            f"misplaced: {', '.join(hosts)} are {machines} machine{'s' * (machines > 1)}, the site says "
            "distinct-nodes"
        )
        return Note("nodes-share-a-machine", text, hosts=list(hosts), machines=machines)
    for code, share, limit, description in (
        ("other-cpu-time", shares[0], site.max_other_cpu_share, "went to other processes"),
        ("cpu-steal", shares[1], site.max_steal_share, "was taken by the hypervisor (steal)"),
    ):
        if share > limit:
            text = f"{attempts.DISTURBED}{share:.0%} of the CPU time {description} (more than {limit:.0%})"
            return Note(code, text, share=share, limit=limit)
    return None


def _short_names(hosts: Sequence[str]) -> list[str]:
    """Return host names without domains."""
    return [host.split(".")[0] for host in hosts]


def failure_or_lost(reason: Note, log: Path) -> Note:
    """Return the reason of a failure together with the last error in the log, or raise Lost.

    Raises:
        launch.Lost: If it is an error of the machine, such as a full disk, and not of the training.
    """
    extended = with_last_line(reason, log)
    for number in (*MACHINE_ERRORS, errno.EADDRINUSE):  # ports are picked at random
        if os.strerror(number) in extended:
            raise launch.Lost(Note("machine-error", extended, error=errno.errorcode[number]))
    return extended


def with_last_line(reason: Note, log: Path) -> Note:
    """Append the last error in the log to `reason`, if possible not one about the loss of another rank."""
    plain = (_TERMINAL.sub("", line) for line in read_end(log).splitlines())
    lines = ["".join(filter(str.isprintable, line)).strip() for line in plain]
    # Lines of Slurm report the failure, not its cause.
    lines = [line for line in lines if line and not line.startswith(("srun: ", "slurmstepd: "))]
    errors = [line for line in lines if _ERROR.search(line)]
    causes = [line for line in errors if not any(text in line for text in _CONSEQUENCES)] or errors
    last = redact_log((causes or lines or [""])[-1])
    return (
        Note(reason.code, f"{reason}: {last[:300]}", **reason.facts, last_line=last[:300]) if last else reason
    )


@contextmanager
def report_interruptions(title: str, folder: Path) -> Iterator[None]:
    """End the program with one line if the measurement inside ends without a record.

    The exit status is 130 if it was stopped, UNSEEN_STATUS (79) if a node does not see a path, and
    EX_TEMPFAIL (75) if it was lost for another reason or an OSError occurred, such as a full disk.

    SIGTERM, SIGINT and SIGHUP stop it. SIGHUP comes from a closed terminal, unless the parent ignores it
    (nohup).
    """

    def stop(signum: int, _frame: object) -> None:
        raise launch.Stopped(signal.Signals(signum).name)

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, stop)
    try:
        yield
    except launch.Stopped as stopped:
        print_line(f"{title}: stopped by {stopped}; {REPEATED_BY}", to_stderr=True)
        sys.exit(130)
    except launch.Lost as lost:
        if lost.reason.code == UNSEEN:
            print_line(f"ringside: {lost}", to_stderr=True)
            sys.exit(UNSEEN_STATUS)
        print_line(f"ringside: {title}: lost: {lost}; {REPEATED_BY}", to_stderr=True)
        sys.exit(os.EX_TEMPFAIL)
    except OSError as error:
        print_line(
            f"ringside: {error.filename or folder}: {error.strerror or error}; correct it, then start again",
            to_stderr=True,
        )
        sys.exit(os.EX_TEMPFAIL)


def main(*, site: str, plan: Path, key: str) -> None:
    """Train one run as it was planned and publish its record.

    Args:
        site: name of a file in config/sites/
        plan: results/STUDY/plan/RUN_ID.json
        key: the key that the caller expects the run to have
    """
    results = plan.parents[1]
    declared_site = without_slow_nodes(load_site(site), results)
    refuse_stopped(results)
    planned = read_plan(plan, key, declared_site)
    with report_interruptions(planned.run_id, results):
        check_bound(results, declared_site)
        supervise(planned, results, current_session())


if __name__ == "__main__":
    sys.exit(run_program(main))
