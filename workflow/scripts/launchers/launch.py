"""Start the ranks of a program, watch them, and end all of them: nothing outlives a run.

`run_ranks` does so with any launcher, and decides how the ranks ended: ok, oom, failed or timeout. Each
`launcher` that a site can name is a module of this package.
"""

import importlib
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.notes import Note
from common.run_status import RunStatus
from common.shell import INACCESSIBLE_STATUS, Program, find_inaccessible_path, inaccessible_path_note
from declared.site import Site
from environments.record import BuiltEnvironment
from launchers.log import read_end
from launchers.oom_evidence import find_oom_evidence
from launchers.protocol import GRACE_S, AttemptLost, Launcher, Outcome
from launchers.rank_command import WORKER, rank_command, required_paths
from launchers.variables import VARIABLES, variables_file
from ranks.worker.node import oom_kills

POLL_S = 0.02
# From Popen, and from a shell or the guard.
TERMINATED_EXIT_STATUSES = (-signal.SIGTERM, 128 + signal.SIGTERM)


def make_launcher(
    site: Site, spec: Mapping[str, Any], mpi: bool = False, setup: Sequence[str] = ()
) -> Launcher:
    """Return the site's launcher for a run.

    Args:
        site: The site.
        spec: The spec of the run.
        mpi: Whether ranks start MPI programs, which need PMIx.
        setup: Shell lines of the environment, which run after the site's setup lines.
    """
    module = importlib.import_module(f"launchers.{site.launcher}")
    launcher: Launcher = module.launcher_class(replace(site, setup=(*site.setup, *setup)), spec, mpi)
    return launcher


def make_step_launcher(
    site: Site, spec: Mapping[str, Any], environment: BuiltEnvironment, name: str
) -> Launcher:
    """Return the launcher of a measurement before or after a run, with `name` in the name of its job step."""
    step_spec = {**spec, "run_id": f"{name}.{spec['run_id']}"}
    return make_launcher(site, step_spec, setup=environment.get("setup", ()))


def scheduler_meters(site: Site, launcher: Launcher) -> list[dict[str, Any]]:
    """Return the energy of ended ranks as the scheduler metered it, as entries of a record's meters."""
    module = importlib.import_module(f"launchers.{site.launcher}")
    entries: list[dict[str, Any]] = module.meters(launcher) if hasattr(module, "meters") else []
    return entries


def run_ranks(
    launcher: Launcher,
    environment: BuiltEnvironment,
    launch_folder: Path,
    spec: Mapping[str, Any],
    site: Site,
    program: str = WORKER,
    reads: Sequence[Path] = (),
) -> Outcome:
    """Run `python -m program launch_folder` on all ranks, until they end or the time limit is reached.

    Whatever happens, all ranks are killed at the end.

    Args:
        launcher: The launcher of the run.
        environment: Content of an environment.json.
        launch_folder: Absolute folder of the launch, such as an attempt's. Output goes to its log.txt.
        spec: The spec of the run.
        site: The site.
        program: Module that every rank runs.
        reads: Folders that ranks read, besides the scripts. Ranks inside an image cannot access any others.

    Raises:
        AttemptLost: If the infrastructure failed.
    """
    log = launch_folder / "log.txt"
    command, variables = rank_command(environment, launch_folder, spec, site, program, reads)
    kills_before = oom_kills() or 0
    started = time.monotonic()
    with variables_file(launch_folder / VARIABLES, variables) as file:
        try:
            paths = required_paths(environment, site, launch_folder, reads)
            processes = launcher.start(Program(command, file, paths), log)
            status, exit_statuses = _wait(processes, started + site.time_limit_s)
            reason = None
            if status != RunStatus.OK:
                if inaccessible := find_inaccessible_path(read_end(log)):
                    raise AttemptLost(inaccessible)
                launcher.raise_if_lost(log)
                reason = _explain_end(launcher, status, exit_statuses, log, site)
                _raise_if_lost_by_exit_status(launcher, reason)
        finally:
            launcher.kill_ranks()
    wall_s = time.monotonic() - started
    # This follows kill_ranks, because that completes the log (PBS gathers the output of ranks there), and the
    # kernel may kill further ranks until then.
    n_oom_kills = (oom_kills() or 0) - kills_before
    if status == RunStatus.FAILED and reason:
        evidence = find_oom_evidence(launch_folder, reason, spec["device"], n_oom_kills)
        status, reason = (RunStatus.OOM, evidence) if evidence else (status, reason)
    return Outcome(status, reason, wall_s)


def _wait(
    processes: Sequence[subprocess.Popen[bytes]], deadline: float
) -> tuple[RunStatus, Sequence[int | None]]:
    """Wait until all ranks have ended, for GRACE_S after the first failure, or until the deadline.

    A failure before the deadline is a failure, even if the deadline passes during GRACE_S.

    Args:
        processes: The processes to watch.
        deadline: When to stop waiting, on the monotonic clock.

    Returns:
        OK, FAILED or TIMEOUT, and the exit statuses of the processes at the moment of the first failure; ()
        if none failed.
    """
    failed_at: float | None = None
    first_exit_statuses: Sequence[int | None] = ()
    while True:
        exit_statuses = [process.poll() for process in processes]
        now = time.monotonic()
        if failed_at is None and any(exit_statuses):
            failed_at, first_exit_statuses = now, exit_statuses
        have_ended = all(exit_status is not None for exit_status in exit_statuses)
        if failed_at is not None and (have_ended or now - failed_at > GRACE_S):
            return RunStatus.FAILED, first_exit_statuses
        if have_ended:
            return RunStatus.OK, ()
        if failed_at is None and now > deadline:
            return RunStatus.TIMEOUT, ()
        time.sleep(POLL_S)


def _explain_end(
    launcher: Launcher, status: RunStatus, exit_statuses: Sequence[int | None], log: Path, site: Site
) -> Note:
    """Return the reason of `status`, which is FAILED or TIMEOUT."""
    if status == RunStatus.TIMEOUT:
        text = f"not finished after the time limit of {site.time_limit_s:g} s"
        return Note("time-limit", text, time_limit_s=site.time_limit_s)
    return launcher.explain(exit_statuses, log)


def _raise_if_lost_by_exit_status(launcher: Launcher, reason: Note) -> None:
    """Raise AttemptLost if the first failed rank could not access a path, or the scheduler terminated it."""
    exit_status = reason.facts.get("exit_status")
    if exit_status == INACCESSIBLE_STATUS and (host := reason.facts.get("host")):
        raise AttemptLost(inaccessible_path_note(host, "the checkout, the run's folder or its environment"))
    if launcher.job and exit_status in TERMINATED_EXIT_STATUSES:
        # Nothing of ours sends SIGTERM to ranks, but a scheduler does before it preempts the job. For the
        # grace time it grants, Slurm still reports the job as running.
        raise AttemptLost(Note("ranks-terminated", f"{reason}: the scheduler ends the job", **reason.facts))
