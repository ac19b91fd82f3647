"""One run from launch to record: `python -m runs.supervise`, called once for every run of the design.

A training that fails is a row, not a crash: whatever becomes of the ranks, a record is written and the exit status is 0.
Another status means that this program itself was stopped or was asked for something impossible.
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
from functools import partial
from pathlib import Path
from typing import Any

from common.errors import MACHINE_ERRORS, say
from common.files import utc, write_json
from common.notes import Note
from common.options import run_program
from common.redaction import redact_log
from common.shell import UNSEEN, UNSEEN_STATUS
from datasets.check import check_data
from declared.frameworks import Framework
from declared.site import Site, load_site
from environments.built import read_built
from launchers import launch
from plan.binding import bind_results, check_bound
from plan.identity import Planned
from plan.specs import read_spec
from ranks.worker.energy import SCOPES, widest
from runs import attempts, meters, phases, reference, score_p, steps, transport
from runs.epochs import mean_of_timed, read_epochs
from runs.progress import current_session, refuse_stopped

_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07)")  # ECMA-48, and xterm's titles
_ERROR = re.compile(r"Error|\berror(?::| on rank)")


def supervise(
    planned: Planned, results: Path, session: str, usable: Callable[[dict[str, Any]], bool] = lambda record: True
) -> dict[str, Any]:
    """Return the published record of a run: that of a finished attempt that is `usable`, or of a new one.

    Args:
        planned: The run.
        results: results/<study>.
        session: Which call of Snakemake this belongs to.
        usable: Whether a record that is there needs no other attempt.
    """
    folder = results / "runs" / planned.run_id / planned.key
    with attempts.exclusive(folder, planned.run_id):
        done = attempts.finished(folder)
        if done is None or not usable(attempts.read_record(done)):
            environment = read_built(planned.environment)
            check_data(planned.data, planned.spec["levels"]["dataset"])
            setup = environment.get("setup", ())
            ranks = launch.launcher(planned.site, planned.spec, planned.framework.mpi, setup)
            bind_results(results, planned.study, planned.site)
            with attempts.new_attempt(folder) as done:
                record = measure(planned, environment, ranks, results, done, session)
                attempts.finish(done, record, "record")
        return attempts.publish(done)


def measure(
    planned: Planned, environment: dict[str, Any], ranks: launch.Launcher, results: Path, folder: Path, session: str
) -> dict[str, Any]:
    """Train once, in the attempt's `folder` (runs/<run_id>/<key>/attempt-<k>), and return the record."""
    site, spec, framework, graph = planned.site, planned.spec, planned.framework, planned.graph

    def launcher_of(what: str) -> launch.Launcher:
        """Return the launcher of something that is measured before or after the run, a step of its own."""
        beside = {**spec, "run_id": f"{what}.{planned.run_id}"}
        return launch.launcher(site, beside, setup=environment.get("setup", ()))

    def do_reference_work(when: str) -> reference.Took:
        made, start = folder / f"reference-{when}", partial(launcher_of, "reference")
        return reference.work(made, spec, framework.modules, environment, start, site)

    idle_w = meters.idle_power(results, session, site, spec, environment, partial(launcher_of, "idle"))
    write_json(folder / "spec.json", job(spec, framework, environment, graph.to_json(), planned.data, ranks.hosts))
    scorep_version = spec.get("scorep")
    traced = score_p.start(environment, site, scorep_version, folder.resolve()) if scorep_version else environment
    started_by = _started_by()
    machine_speed = speed_before(planned, results, do_reference_work) if site.reference else None
    launched_at = time.time()
    outcome = launch.run(ranks, traced, folder.resolve(), spec, site, reads=[planned.data])
    if machine_speed and outcome.status == "ok":
        machine_speed = reference.after(partial(do_reference_work, "after"), machine_speed)
    if scorep_version:
        outcome = score_p.end(folder, outcome)
    metered = meters.read_after(folder, spec, site, ranks) if (folder / "result.json").exists() else []
    epochs = read_epochs(folder / "epochs.csv") if (folder / "epochs.csv").exists() else []
    measured = measurement(folder, launched_at, outcome.wall_s, spec, epochs)
    if measured:
        measured |= {"meters": metered, "idle_w": idle_w}
    status, reason = judge(outcome, measured, epochs, spec, site, ranks.hosts, graph.gradient_bytes)
    if status == "failed":
        if _started_by() != started_by:
            raise launch.Lost(Note("starter-killed", "what had started it was killed"))
        reason = failure(reason, folder / "log.txt") if reason else None
    image, installed = environment.get("image"), environment.get("installed")
    return {
        "run_id": planned.run_id,
        "key": planned.key,
        "study": planned.study,
        "site": site.name,
        "session": session,
        "status": status,
        "reason": reason,
        "job": ranks.job,
        "started_at": utc(launched_at),
        "ended_at": utc(time.time()),
        **planned.digests,
        "placement": site.placement,
        "timing_scope": framework.timing_scope,
        "cores_per_rank": spec["cores_per_rank"],
        "oversubscribed": oversubscribed(site, spec),
        "max_foreign_cpu_share": site.max_foreign_cpu_share,
        "wall_s": outcome.wall_s,
        "deployment": environment["deployment"],
        "image": {name: image[name] for name in ("sha256", "base", "made_by")} if image else None,
        "installed": {"executable": installed["executable"], "modules": installed.get("modules", [])}
        if installed
        else None,
        "packages": traced["packages"],
        **({"strategy": spec["strategy"]} if "strategy" in spec else {}),
        "reference": machine_speed,
        "measured": measured,
    }


def speed_before(planned: Planned, results: Path, do_reference_work: Callable[[str], reference.Took]) -> dict[str, Any]:
    """Return the machine's speed right before a run, once the machine is quiet where the site wants to wait for that."""
    where = reference.geometry(planned.spec)

    said = reference.before(
        lambda: do_reference_work("before"),
        lambda: list(reference.earlier(results, where, planned.digests["environment_digest"])),
        planned.site.wait_for_quiet,
        lambda note: say(f"{planned.run_id}: {note}"),
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
    finite = [rank["weights_finite"] for rank in ranks]
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
        "weights_finite": None if None in finite else all(finite),
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
    for number in (*MACHINE_ERRORS, errno.EADDRINUSE):  # ports are picked at random
        if os.strerror(number) in said:
            raise launch.Lost(Note("machine-error", said, error=errno.errorcode[number]))
    return said


def with_last_line(reason: Note, log: Path) -> Note:
    """`reason`, and the last line of the log that names an error; that others noticed the loss of a rank is no cause."""
    lines = list(filter(None, (_plain(line) for line in launch.read_end(log).splitlines())))
    lines = [line for line in lines if not line.startswith(("srun: ", "slurmstepd: "))]  # they say that, not why
    errors = [line for line in lines if _ERROR.search(line)]
    telling = [line for line in errors if "a rank is gone" not in line] or errors
    last = redact_log((telling or lines or [""])[-1])
    return Note(reason.code, f"{reason}: {last[:300]}", **reason.facts, last_line=last[:300]) if last else reason


def _plain(line: str) -> str:
    """Return a line of a log as a terminal may show it: without what colours it or moves a cursor."""
    return "".join(sign for sign in _TERMINAL.sub("", line) if sign.isprintable()).strip()


@contextmanager
def ending_well(what: str, folder: Path) -> Iterator[None]:
    """Where one measurement is made: SIGTERM, SIGINT and SIGHUP stop it (status 130), what was lost ends it (75), each with one line.

    SIGHUP comes from a terminal that is closed, unless who started it ignores it (nohup).
    """

    def stop(signum: int, frame: Any) -> None:
        raise launch.Stopped(signal.Signals(signum).name)

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, stop)
    try:
        yield
    except launch.Stopped as stopped:
        say(f"{what}: stopped by {stopped}; it starts anew next time", to_stderr=True)
        sys.exit(130)
    except launch.Lost as lost:
        if lost.reason.code == UNSEEN:
            say(f"ringside: {lost}", to_stderr=True)
            sys.exit(UNSEEN_STATUS)
        say(f"ringside: {what}: lost: {lost}; it has to be tried again", to_stderr=True)
        sys.exit(os.EX_TEMPFAIL)
    except OSError as error:
        say(
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
    results, described = plan.parents[1], load_site(site)
    refuse_stopped(results)
    planned = read_spec(plan, key, described)
    with ending_well(planned.run_id, results):
        check_bound(results, described)
        supervise(planned, results, current_session())


if __name__ == "__main__":
    sys.exit(run_program(main))
