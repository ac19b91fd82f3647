"""One run from launch to record: `python -m runs.supervise`, called once for every run of the design.

A training that fails is a row, not a crash: whatever becomes of the ranks, a record is written and the exit status is 0.
Another status means that this program itself was stopped or was asked for something impossible.
"""

import argparse
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
from typing import Any

from common.errors import InputError, exit_status
from common.files import utc, write_json
from common.notes import Note
from common.redaction import redact_log
from datasets.check import check_data
from declared.frameworks import Framework
from declared.site import Site, load_site
from declared.study import Study, load_study
from environments.made import read_made
from launchers import launch
from plan.binding import bind, check_bound
from plan.design import Run, design
from plan.identity import Resolved, resolve
from ranks.worker.energy import SCOPES, widest
from runs import attempts, meters, phases, reference, score_p, steps, transport
from runs.epochs import mean_of_timed, read_epochs
from runs.progress import current_session

# Errors of file systems and of a machine's limits. A run that meets one is lost and is tried again, it has not failed.
MACHINE_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EREMOTEIO),
    *(errno.ENOLCK, errno.EMFILE, errno.ENOTCONN, errno.ESHUTDOWN, errno.ENOMEDIUM),
)
_ERROR = re.compile(r"Error|\berror(?::| on rank)")


def supervise(
    wanted: Resolved, results: Path, session: str, usable: Callable[[dict[str, Any]], bool] = lambda record: True
) -> dict[str, Any]:
    """Make, publish and return the record of a run; an attempt that is finished already, and usable, is published as it is."""
    run = wanted.run

    def prepare() -> tuple[dict[str, Any], launch.Launcher]:
        environment = read_made(wanted.environment)
        check_data(wanted.data, run.levels["dataset"])
        ranks = launch.launcher(wanted.site, wanted.spec, run.framework.mpi, environment.get("setup", ()))
        bind(results, wanted.study.name, wanted.site)
        return environment, ranks

    def measure(prepared: tuple[dict[str, Any], launch.Launcher], folder: Path) -> dict[str, Any]:
        environment, _ = prepared
        others = beside(wanted, environment, "idle")
        idle_w = meters.idle_power(results, session, wanted.site, wanted.spec, environment, others)
        return {**attempt_run(wanted, *prepared, folder, idle_w), "session": session}

    published = results / "runs" / run.run_id / wanted.key / "record.json"
    return attempts.settle(published, run.run_id, "record", prepare, measure, usable)


def attempt_run(
    wanted: Resolved,
    environment: dict[str, Any],
    ranks: launch.Launcher,
    folder: Path,
    idle_w: dict[str, float | None] | None = None,
) -> dict[str, Any]:
    """Train once, in the attempt's `folder` (runs/<run_id>/<key>/attempt-<k>), and return the record. `idle_w`: `meters.idle_power`."""
    run, site = wanted.run, wanted.site
    told = job(wanted.spec, run.framework, environment, run.graph.to_json(), wanted.data, ranks.hosts)
    write_json(folder / "spec.json", told)
    look = _reference(wanted, environment, folder)
    if version := wanted.spec.get("scorep"):
        environment = score_p.start(environment, site, version, folder.resolve())
    started_by = _started_by()
    told_beside = _right_before(wanted, folder, look) if site.reference else None
    launched_at = time.time()
    outcome = launch.run(ranks, environment, folder.resolve(), wanted.spec, site, reads=[wanted.data])
    if told_beside and outcome.status == "ok":
        told_beside = reference.after(lambda: look("after"), told_beside)
    if version:
        outcome = score_p.end(folder, outcome)
    told_of_energy = meters.read_after(folder, wanted.spec, site, ranks) if (folder / "result.json").exists() else []
    epochs = read_epochs(folder / "epochs.csv") if (folder / "epochs.csv").exists() else []
    measured = measurement(folder, launched_at, outcome.wall_s, wanted.spec, epochs)
    if measured:
        measured |= {"meters": told_of_energy, "idle_w": idle_w}
    status, reason = judge(outcome, measured, epochs, wanted.spec, site, ranks.hosts, run.graph.gradient_bytes)
    if status == "failed":
        if _started_by() != started_by:
            raise launch.Lost(Note("starter-killed", "what had started it was killed"))
        reason = failure(reason, folder / "log.txt") if reason else None
    return {
        "run_id": run.run_id,
        "key": folder.parent.name,
        "study": wanted.study.name,
        "site": site.name,
        "status": status,
        "reason": reason,
        "job": ranks.job,
        "started_at": utc(launched_at),
        "ended_at": utc(time.time()),
        **wanted.digests,
        "placement": site.placement,
        "timing_scope": run.framework.timing_scope,
        "cores_per_rank": wanted.spec["cores_per_rank"],
        "oversubscribed": oversubscribed(site, wanted.spec),
        "max_foreign_cpu_share": site.max_foreign_cpu_share,
        "wall_s": outcome.wall_s,
        "deployment": environment["deployment"],
        "image": _of_image(environment.get("image")),
        "installed": _of_installed(environment.get("installed")),
        "packages": environment["packages"],
        **({"strategy": wanted.spec["strategy"]} if "strategy" in wanted.spec else {}),
        "reference": told_beside,
        "measured": measured,
    }


def beside(wanted: Resolved, environment: Mapping[str, Any], what: str) -> Callable[[], launch.Launcher]:
    """What makes the launcher of something beside a run: a step of its own, by name."""
    spec = {**wanted.spec, "run_id": f"{what}.{wanted.run.run_id}"}
    return lambda: launch.launcher(wanted.site, spec, setup=environment.get("setup", ()))


def _reference(wanted: Resolved, environment: Mapping[str, Any], folder: Path) -> Callable[[str], reference.Took]:
    """What does the work beside a run, in a folder of this name in the attempt's."""
    modules, ranks = wanted.run.framework.modules, beside(wanted, environment, "reference")
    return lambda name: reference.work(
        folder / f"reference-{name}", wanted.spec, modules, environment, ranks, wanted.site
    )


def _right_before(wanted: Resolved, folder: Path, look: Callable[[str], reference.Took]) -> dict[str, Any]:
    """The reference right before a run, once the machine is quiet where the site wants to wait for that."""
    where = reference.geometry(wanted.spec)

    def say(line: str) -> None:
        print(f"{wanted.run.run_id}: {line}", flush=True)

    said = reference.before(
        lambda: look("before"),
        lambda: list(reference.earlier(folder.parents[3], where, wanted.digests["environment_digest"])),
        wanted.site.wait_for_quiet,
        say,
    )
    return {"geometry": where, **said}


def _started_by() -> tuple[int, str | None]:
    """The two processes above this one: a shell, or the process that has its libraries already, and the Snakemake that called it."""
    parent = os.getppid()
    try:
        above = Path("/proc", str(parent), "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
    except FileNotFoundError:
        above = None
    return parent, above


def _of_image(image: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a record keeps of an image."""
    return {key: image[key] for key in ("sha256", "base", "made_by")} if image else None


def _of_installed(has: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a record keeps of what a site has installed."""
    return {"executable": has["executable"], "modules": has.get("modules", [])} if has else None


def job(
    run_spec: Mapping[str, Any],
    framework: Framework,
    environment: Mapping[str, Any],
    model: Mapping[str, Any],
    data: Path,
    hosts: Sequence[str],
) -> dict[str, Any]:
    """What an attempt's spec.json holds, all that its ranks are told: the run's spec, the model, and where things lie."""
    absent = (environment.get("installed") or {}).get("absent", [])
    return {
        "spec": run_spec,
        "model": model,
        "data": str(data),
        "adapter": str(framework.file.parent),
        "modules": [module for module in framework.modules if module not in absent],
        "hosts": list(hosts),
    }


def oversubscribed(site: Site, run_spec: Mapping[str, Any]) -> bool:
    """Whether a machine has more threads of ranks than cores."""
    ranks = run_spec["ranks"]
    on_a_machine = ranks if site.placement == "emulated" else min(ranks, run_spec["ranks_per_node"])
    if cores := run_spec.get("rank_cores"):
        return bool(sum(cores) * on_a_machine > site.cores * len(cores))
    return bool(on_a_machine * run_spec["cores_per_rank"] > site.cores)


def measurement(
    folder: Path, launched_at: float, wall_s: float, run_spec: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return what the ranks measured about themselves; None where they did not come to an end.

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
    device_memory = [rank["device_memory_peak_bytes"] for rank in ranks if rank["device_memory_peak_bytes"] is not None]
    first_steps = [rank["first_step_s"] for rank in ranks if rank["first_step_s"] is not None]
    return {
        "hosts": list(dict.fromkeys(rank["host"] for rank in ranks)),
        "machines": len({rank["machine"] for rank in ranks}),
        "devices": [rank["device"] for rank in ranks for _ in range(run_spec["replicas_per_rank"])],
        "drivers": sorted({rank["driver"] for rank in ranks if rank["driver"]}),
        "systems": sorted({rank["system"] for rank in ranks}),
        "node_memory_bytes": min(rank["node_memory_bytes"] for rank in ranks),
        "transport": transport.described(result["transport"], run_spec, folder),
        "startup_s": startup_time(result["ready_at"] - launched_at, result["closed_at"] - launched_at, wall_s),
        "import_s": max((rank["import_s"] for rank in ranks if rank["import_s"] is not None), default=None),
        "first_step_s": max(first_steps, default=None),
        "step_time_s": steps.quantiles(folder / "steps.csv", run_spec["levels"]["warmup_epochs"]),
        "memory_peak_bytes": max(rank["memory_peak_bytes"] for rank in ranks),
        "device_memory_peak_bytes": max(device_memory, default=None),
        "weights_finite": _all([rank["weights_finite"] for rank in ranks]),
        **{name: mean_of_timed(epochs, name) for name in ("throttled_s", "sent_bytes")},
        **energies(epochs, run_spec["device"]),
        "foreign_cpu_share": result["foreign_cpu_share"],
        "steal_share": result["steal_share"],
        "paused_s": max(rank["paused_s"] for rank in ranks),
        "shares": result["shares"],
        "told": result["told"],
        "clock_error_s": phases.put_together(folder),
        "python_version": result["python_version"],
        "library_version": result["library_version"],
    }


def startup_time(ready_s: float, closed_s: float, wall_s: float) -> float | None:
    """Return the time from launch until all ranks were ready, s; None where the ranks' clock and the launcher's disagree.

    Args:
        ready_s: When all ranks were ready, by rank 0's clock, s after the launch by the launcher's clock.
        closed_s: The same of the end of the last epoch.
        wall_s: Time from launch to the end of the last rank, s, by the launcher's clock alone.
    """
    return ready_s if 0 <= ready_s <= closed_s <= wall_s else None


def energies(epochs: Sequence[Mapping[str, Any]], device: str) -> dict[str, float | str | None]:
    """Energy of an epoch by scope, and the run's response: that of its widest scope, and which it is."""
    found = {name: mean_of_timed(epochs, name) for name in (f"energy_{scope}_j" for scope in SCOPES)}
    scope = widest(found, device)
    return {**found, "energy_j": found[f"energy_{scope}_j"] if scope else None, "energy_scope": scope}


def _all(answers: Sequence[bool | None]) -> bool | None:
    """Whether all are true; None where one is not known."""
    return None if None in answers else all(answers)


def judge(
    outcome: launch.Outcome,
    measured: dict[str, Any] | None,
    epochs: Sequence[Mapping[str, Any]],
    run_spec: Mapping[str, Any],
    site: Site,
    hosts: Sequence[str],
    gradient_bytes: int,
) -> tuple[str, Note | None]:
    """Status and reason of an attempt. `hosts` are the nodes that it was started on, `gradient_bytes` the size of all gradients."""
    if outcome.status != "ok":
        return outcome.status, outcome.reason
    if measured is None or len(epochs) != run_spec["levels"]["epochs"]:
        planned = run_spec["levels"]["epochs"]
        text = f"ended after {len(epochs)} of {planned} epochs"
        return "failed", Note("ended-early", text, epochs=len(epochs), planned=planned)
    for row in epochs:
        if not all(math.isfinite(row[loss]) for loss in ("train_loss", "validation_loss")):
            text = f"the loss is not finite in epoch {row['epoch']:.0f}"
            return "invalid", Note("loss-not-finite", text, epoch=row["epoch"])
    if measured["weights_finite"] is False:
        return "invalid", Note("weights-not-finite", "weights are not finite after the last epoch")
    shares = measured["foreign_cpu_share"], measured["steal_share"]
    if (paused_s := measured["paused_s"]) > 0:
        return "invalid", Note("paused", f"a rank was stopped for {paused_s:.1f} s", paused_s=paused_s)
    if said := spoiled(measured["hosts"], measured["machines"], hosts, shares, site):
        return "invalid", said
    # Whatever the algorithm, the node that sends most sends at least (n - 1) / n of the gradients of each exchange.
    least_bytes = gradient_bytes * (run_spec["nodes"] - 1) / run_spec["nodes"]
    if said := transport.objection(measured["transport"], run_spec, site, epochs, least_bytes):
        return "invalid", Note(said.code, f"network: {said}", **said.facts)
    return "ok", None


def spoiled(
    found: Sequence[str], machines: int, expected: Sequence[str], shares: tuple[float, float], site: Site
) -> Note | None:
    """Why what was measured is not of the nodes that it was started on, or not of the ranks alone; None where it is.

    `found` are the ranks' hosts, `expected` the hosts that they were started on, `machines` the number of kernels below,
    `shares` those of the processor time that other processes used and that a hypervisor withheld.
    """
    if site.placement != "emulated" and [name.split(".")[0] for name in found] != [
        name.split(".")[0] for name in expected
    ]:
        text = f"misplaced: ranks were on {', '.join(found)}, expected {', '.join(expected)}"
        return Note("misplaced", text, hosts=list(found), expected=list(expected))
    if site.placement == "distinct-nodes" and machines < len(found):
        text = (
            f"misplaced: {', '.join(found)} are {machines} machine{'s' * (machines > 1)}, the site says distinct-nodes"
        )
        return Note("nodes-share-a-machine", text, hosts=list(found), machines=machines)
    for code, share, most, whither in (
        ("foreign-cpu-time", shares[0], site.max_foreign_cpu_share, "went to others"),
        ("cpu-steal", shares[1], site.max_steal_share, "was withheld by the hypervisor"),
    ):
        if share > most:
            text = f"{attempts.DISTURBED}{share:.0%} of the processor time {whither} (more than {most:.0%})"
            return Note(code, text, share=share, limit=most)
    return None


def failure(reason: Note, log: Path) -> Note:
    """Return the reason of a failure together with the last error in the log.

    Raises:
        launch.Lost: If that error is one of the machine, such as a full disk, which says nothing about the training.
    """
    said = with_last_line(reason, log)
    for number in MACHINE_ERRORS:
        if os.strerror(number) in said:
            raise launch.Lost(Note("machine-error", said, error=errno.errorcode[number]))
    return said


def with_last_line(reason: Note, log: Path) -> Note:
    """`reason`, and the last line of the log that names an error; that others noticed the loss of a rank is no cause."""
    lines = (
        [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    )
    lines = [line for line in lines if not line.startswith(("srun: ", "slurmstepd: "))]  # they say that, not why
    errors = [line for line in lines if _ERROR.search(line)]
    telling = [line for line in errors if "a rank is gone" not in line] or errors
    last = redact_log((telling or lines or [""])[-1])
    return Note(reason.code, f"{reason}: {last[:300]}", **reason.facts, last_line=last[:300]) if last else reason


def find(runs: list[Run], run_id: str, study: Study) -> Run:
    """The run with this id."""
    for run in runs:
        if run.run_id == run_id:
            return run
    problem = f"run {run_id} is not in the design any more"
    raise InputError("changed-since-planned", problem, file=study.file.name, got=run_id, hint="start Snakemake again")


def changed_since_planned(what: str, key: str) -> InputError:
    """Return the error of a measurement whose key is not the one that its caller expects."""
    problem = f"files have changed since it was planned (key {key})"
    return InputError("changed-since-planned", problem, key=what, got=key, hint="start Snakemake again")


@contextmanager
def ending_well(what: str, folder: Path) -> Iterator[None]:
    """Where one measurement is made: SIGTERM and SIGINT stop it (status 130), what was lost ends it (75), each with one line."""

    def stop(signum: int, frame: Any) -> None:
        raise launch.Stopped(signal.Signals(signum).name)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    try:
        yield
    except launch.Stopped as stopped:
        print(f"{what}: stopped by {stopped}; it starts anew next time", file=sys.stderr)
        sys.exit(130)
    except launch.Lost as lost:
        print(f"ringside: {what}: lost: {lost}; it has to be tried again", file=sys.stderr)
        sys.exit(os.EX_TEMPFAIL)
    except OSError as error:
        print(f"ringside: {error.filename or folder}: {error.strerror}; correct it, then start again", file=sys.stderr)
        sys.exit(os.EX_TEMPFAIL)


def main(argv: list[str] | None = None) -> None:
    """Train one run of the design and publish its record."""
    parser = argparse.ArgumentParser(prog="runs.supervise", description=main.__doc__)
    parser.add_argument("--study", required=True, help="name of a file in config/studies/")
    parser.add_argument("--site", required=True, help="name of a file in config/sites/")
    parser.add_argument("--run-id", required=True, help="a run of the design")
    parser.add_argument("--key", required=True, help="the key that the caller expects the run to have")
    parser.add_argument("--results", required=True, type=Path, help="results/<study>")
    options = parser.parse_args(argv)
    study, site = load_study(options.study), load_site(options.site)
    wanted = resolve(study, site, find(design(study, site), options.run_id, study))
    if wanted.key != options.key:
        raise changed_since_planned(options.run_id, options.key)
    with ending_well(options.run_id, options.results):
        check_bound(options.results, site)
        supervise(wanted, options.results, current_session())


if __name__ == "__main__":
    sys.exit(exit_status(main))
