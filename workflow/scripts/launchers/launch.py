"""Start the ranks of a program, watch them, and end all of them: nothing outlives a run.

`run_ranks` does so with any launcher, and decides how the ranks ended: ok, oom, failed or timeout. Each
`launcher` that a site can name is a module of this package. This module also has what launchers share, such
as the environment variables of ranks.
"""

import contextlib
import importlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

from common.errors import InputError
from common.files import CHECKOUT
from common.notes import Note
from common.run_status import RunStatus
from common.shell import (
    INACCESSIBLE_STATUS,
    Program,
    Unanswered,
    capture,
    export_lines,
    find_inaccessible_path,
    inaccessible_path_note,
    query_with_retries,
)
from declared.site import Site
from environments import container
from environments.container import Bind
from environments.record import BuiltEnvironment
from launchers.log import read_end
from launchers.oom_evidence import find_oom_evidence
from ranks.worker.devices import HIDING_VARIABLES
from ranks.worker.node import oom_kills

SCRIPTS = CHECKOUT / "workflow" / "scripts"
WORKER = "ranks.worker"
GRACE_S = 10.0  # After the first failure, the other ranks have this long to log their errors.
ALARM_S = 30.0  # Ranks that cannot be reached end themselves this long after the time limit.
POLL_S = 0.02
KILL_TIMEOUT_S = 60.0  # time limit for a killed process to end
CLIENT_PATIENCE_S = 30  # time limit for a scheduler's client to answer
VARIABLES = ".variables.sh"  # exists while ranks run; hidden, because archives leave out hidden files


@dataclass(frozen=True)
class Outcome:
    """How the ranks ended.

    Attributes:
        status: OK, OOM, FAILED or TIMEOUT.
        reason: Why the status is not OK; None if it is.
        wall_s: Seconds from launch to the end of the last rank.
    """

    status: RunStatus
    reason: Note | None
    wall_s: float


class Stopped(Exception):
    """The supervisor was asked to stop by SIGTERM, SIGINT or SIGHUP."""


class Lost(Exception):
    """The attempt is lost: the infrastructure failed, not the training program.

    Whoever raises it, the attempt gets no record. Snakemake therefore runs the rule again: at once if its
    profile has `retries`, else when it is called the next time. Whatever else ends ranks is a result of the
    run, such as a failure or a timeout, and has a record. The only other way without a record is a supervisor
    that was stopped (`Stopped`), failed itself, or was killed.

    Launchers raise it before, during and after the ranks (see `Launcher` and `select_hosts`), and
    `runs.verdict` raises it if Snakemake ended or the log shows an error of the machine.
    """

    def __init__(self, reason: Note) -> None:
        super().__init__(reason)
        self.reason = reason


class Launcher(Protocol):
    """Start the ranks of one spec at one site.

    Attributes:
        hosts: Nodes of the run, in the order of ranks.
        job: The scheduler's job as the record has it: `number`, `submitted_at` and `started_at`, both in UTC
            or None. None if the site has no scheduler.
    """

    hosts: list[str]
    job: dict[str, Any] | None

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """Start all ranks with their output in `log`.

        Returns:
            The processes to watch: one for each rank, or a single one such as srun.

        Raises:
            Lost: If the scheduler does not start the ranks.
        """

    def raise_if_lost(self, log: Path) -> None:
        """Raise Lost if the log or the scheduler reports that a node or the job is gone.

        `run_ranks` calls it if ranks failed or reached the time limit, before it asks `explain`.
        """

    def explain(self, exit_statuses: Sequence[int | None], log: Path) -> Note:
        """Return why ranks failed: the first failed rank, or the scheduler's report that memory ran out.

        Args:
            exit_statuses: Exit statuses of the processes of `start`; None for one that still runs.
            log: The log of the ranks.

        Raises:
            Lost: If the scheduler started no rank.
        """

    def kill_ranks(self) -> None:
        """Kill every rank on every node, even if its local process has ended, and wait for the processes.

        Raises:
            Lost: If a process does not end, or a node cannot be reached.
        """


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
    folder: Path,
    spec: Mapping[str, Any],
    site: Site,
    program: str = WORKER,
    reads: Sequence[Path] = (),
) -> Outcome:
    """Run `python -m program folder` on all ranks until they end or the site's time limit; then kill them.

    Args:
        launcher: The launcher of the run.
        environment: Content of an environment.json.
        folder: The attempt's absolute folder; output goes to its log.txt.
        spec: The spec of the run.
        site: The site.
        program: Module that every rank runs.
        reads: Folders that ranks read, besides the scripts. Ranks inside an image cannot access any others.

    Raises:
        Lost: If the infrastructure failed.
    """
    log = folder / "log.txt"
    command, rank_variables = _rank_command(environment, folder, spec, site, program, reads)
    kills_before = oom_kills() or 0
    started = time.monotonic()
    with _variables_file(folder / VARIABLES, rank_variables) as file:
        try:
            paths = required_paths(environment, site, folder, reads)
            processes = launcher.start(Program(command, file, paths), log)
            status, exit_statuses = _wait(processes, started + site.time_limit_s)
            reason = None
            if status != RunStatus.OK:
                reason = _explain_failure(launcher, status, exit_statuses, log, site)
        finally:
            launcher.kill_ranks()
    wall_s = time.monotonic() - started
    # This follows kill_ranks, because that completes the log (PBS gathers the output of ranks there), and the
    # kernel may kill further ranks until then.
    n_oom_kills = (oom_kills() or 0) - kills_before
    return Outcome(*_failed_or_oom(status, reason, folder, spec["device"], n_oom_kills), wall_s)


def _failed_or_oom(
    status: RunStatus, reason: Note | None, folder: Path, device: str, n_oom_kills: int
) -> tuple[RunStatus, Note | None]:
    """Return the status with which a launch ended, and its reason: FAILED becomes OOM if memory ran out.

    Nothing else turns FAILED into OOM. If a scheduler reports that memory ran out, `Launcher.explain` returns
    a reason with the code OOM_CODE, which arrives here with the status FAILED.
    """
    if status != RunStatus.FAILED or reason is None:
        return status, reason
    evidence = find_oom_evidence(folder, reason, device, n_oom_kills)
    return (RunStatus.OOM, evidence) if evidence else (RunStatus.FAILED, reason)


def _rank_command(
    environment: BuiltEnvironment,
    folder: Path,
    spec: Mapping[str, Any],
    site: Site,
    program: str,
    reads: Sequence[Path],
) -> tuple[list[str], dict[str, str]]:
    """Return the command of every rank and its variables; the arguments are those of `run_ranks`."""
    command = [environment["python"]["executable"], "-m", program, str(folder)]
    rank_variables = {**variables(site, spec), **environment["variables"]}
    if image := environment.get("image"):
        command = in_image(image["path"], command, rank_variables, site, [SCRIPTS, *reads], folder)
    elif runs_installed_python(environment):
        # Its PYTHONPATH comes from the site's setup lines, which run before the ranks read their variables.
        command = modules_first(command)
        rank_variables = {**variables(site, spec, pythonpath=False), **environment["variables"]}
    return command, rank_variables


def runs_installed_python(environment: BuiltEnvironment) -> bool:
    """Return whether ranks run in a Python that the site has installed.

    A site can also install a program, such as LBANN. Ranks start it from a Python that Ringside has built.
    """
    installed = environment.get("installed")
    return bool(installed and installed["executable"] == environment["python"]["executable"])


def required_paths(
    environment: BuiltEnvironment, site: Site, folder: Path, reads: Sequence[Path]
) -> list[str]:
    """Return the paths that every node must be able to access.

    Installed software is left out, since the site's setup lines can make it available on the node.
    """
    if site.launcher == "local":
        return []
    image = environment.get("image")
    software = image["path"] if image else environment["python"]["executable"]
    paths = [SCRIPTS, folder, *reads, *([] if environment.get("installed") else [software])]
    return [str(path) for path in paths]


@contextlib.contextmanager
def _variables_file(file: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """Write the ranks' variables, which can be secrets, to a file of mode 600; remove it at the end."""
    file.unlink(missing_ok=True)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as lines:
            lines.write(export_lines(variables))
        yield file
    finally:
        file.unlink(missing_ok=True)


def forget_variables(folder: Path) -> None:
    """Remove the files of variables that a killed supervisor left below `folder`."""
    for file in folder.rglob(VARIABLES):
        file.unlink(missing_ok=True)


def in_image(
    image: str,
    command: Sequence[str],
    variable_names: Iterable[str],
    site: Site,
    reads: Sequence[Path],
    writes: Path,
) -> list[str]:
    """Return the command that runs `command` inside an image.

    Args:
        image: Path of the image.
        command: The command.
        variable_names: Names of the variables that are passed into the image.
        site: The site. Its scratch folder and `binds` are writable inside.
        reads: Folders that the command can read.
        writes: Folder that the command can write.
    """
    command = modules_first(command)
    variable_names = [name for name in variable_names if name != "PYTHONPATH"]
    binds = [Bind(str(path)) for path in reads] + [Bind(str(writes), writable=True)]
    if site.scratch:
        binds.append(Bind(str(site.scratch), writable=True))
    for bind in site.binds:
        source, _, inside = bind.partition(":")
        binds.append(Bind(source, writable=True, inside=inside or None))
    options = [f"--{site.images.gpu}"] if site.device == "cuda" else []
    return container.command_in_image(image, command, binds, variable_names, options)


def modules_first(command: Sequence[str]) -> list[str]:
    """Return `command` with our modules in front of its PYTHONPATH.

    The rest of PYTHONPATH is kept, since a site's Python can need it for its packages.
    """
    prepend = 'export PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}"; shift; exec "$@"'
    return ["sh", "-c", prepend, "ringside", str(SCRIPTS), *command]


def variables(site: Site, spec: Mapping[str, Any], pythonpath: bool = True) -> dict[str, str]:
    """Return the environment variables of every rank, the same for all launchers.

    Args:
        site: The site.
        spec: The spec of the run.
        pythonpath: Whether to set PYTHONPATH, so that ranks run our modules.
    """
    threads = str(spec["cores_per_rank"])
    site_variables = dict(site.variables)
    python_path = os.pathsep.join(filter(None, [str(SCRIPTS), site_variables.pop("PYTHONPATH", None)]))
    return {
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "RINGSIDE_ALARM_S": f"{site.time_limit_s + ALARM_S:.0f}",
        # Libraries then number GPUs the way nvidia-smi and the meters do.
        **({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if spec["device"] != "cpu" else {}),
        **site_variables,
        **({"PYTHONPATH": python_path} if pythonpath else {}),
        **({"RINGSIDE_SCRATCH": str(site.scratch)} if site.scratch else {}),
    }


def cores_per_task(spec: Mapping[str, Any]) -> int:
    """Return how many cores to request for each rank.

    For heterogeneous ranks this is the mean, since they distribute the cores of their node themselves.
    """
    core_counts = spec.get("rank_cores")
    return max(1, sum(core_counts) // len(core_counts)) if core_counts else int(spec["cores_per_rank"])


def kept_variables(prefix: str | None = None) -> dict[str, str]:
    """Return the variables of the caller's environment that launchers pass on.

    Args:
        prefix: How names of the scheduler's variables begin, which are passed on, too; None for no others.
    """
    names = ("PATH", "HOME", "USER", "LANG", "LD_LIBRARY_PATH")
    return {
        name: value
        for name, value in os.environ.items()
        if name in names or (prefix and name.startswith(prefix))
    }


def local_variables() -> dict[str, str]:
    """Return `kept_variables` and the variables that hide accelerators, for ranks on this machine.

    On other nodes the scheduler decides which accelerators a rank sees.
    """
    return {
        **kept_variables(),
        **{name: os.environ[name] for name in HIDING_VARIABLES if name in os.environ},
    }


def spawn(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a process in a new session, so that `kill` reaches its children, with its output in `output`."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill the process group of every process, even of one that has ended, and wait for the processes.

    Raises:
        Lost: If a process does not end, because it is frozen or waits for a lost device or file system.
    """
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + KILL_TIMEOUT_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            text = f"process {process.pid} does not end within {KILL_TIMEOUT_S:g} s after it was killed"
            raise Lost(Note("does-not-end", text, process=process.pid, within_s=KILL_TIMEOUT_S)) from None


def query_job_field(
    command: Sequence[str], pattern: re.Pattern[str], environment: Mapping[str, str]
) -> str | None:
    """Return a field that a scheduler's client prints for a job, None on a node without the client.

    Args:
        command: The client's command line; its last word is the job's number.
        pattern: Pattern with the field as its first group.
        environment: Environment of the client.

    Raises:
        Lost: If there is no answer with the field after three tries, 2 s apart.
    """

    def ask() -> str | None:
        try:
            result = run_client(command, environment)
        except FileNotFoundError:
            return None
        if match := pattern.search(result.stdout):
            return match[1]
        raise Unanswered(client_message(result))

    try:
        return query_with_retries(ask)
    except Unanswered as unanswered:
        answer = str(unanswered)
    program, number = command[0], command[-1]
    text = f"{program} does not describe job {number}: {answer}"
    raise Lost(Note("scheduler-silent", text, program=program, job=number, answer=answer))


def run_client(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a scheduler's client.

    Raises:
        Unanswered: If it does not end within CLIENT_PATIENCE_S.
        FileNotFoundError: If this node does not have it.
    """
    try:
        return capture(command, timeout=CLIENT_PATIENCE_S, env=environment)
    except subprocess.TimeoutExpired:
        raise Unanswered("no answer") from None


def client_message(result: subprocess.CompletedProcess[str]) -> str:
    """Return the message of a failed client in one line of at most 300 characters."""
    return " ".join((result.stderr or result.stdout).split())[:300]


def pkill_command(command: Sequence[str]) -> list[str]:
    """Return the command that kills the ranks that `command` started on a node.

    It matches the last words, which name the attempt's folder. The brackets keep the pattern from matching
    its own command line.
    """
    words = " ".join(command[-3:])
    return ["pkill", "-KILL", "-f", "--", f"[{words[0]}]{re.escape(words[1:])}"]


def outside_of_job_error(site: Site, job_kind: str, hint: str) -> InputError:
    """Return the error of a launcher outside of a job; `job_kind` is a phrase such as "a Slurm job"."""
    problem = f"{site.launcher} starts ranks inside {job_kind} only"
    return InputError("outside-of-job", problem, file=site.file, key="launcher", got=site.launcher, hint=hint)


def select_hosts(site: Site, hosts: Sequence[str], needed: int, job: str) -> list[str]:
    """Return the nodes of a run: the first `needed` of a job's `hosts` that the site does not exclude.

    Args:
        site: The site.
        hosts: All nodes of the job.
        needed: Number of nodes of the run.
        job: The job, or the file with its nodes, for the message.

    Raises:
        InputError: If the job has too few nodes.
        Lost: If it has enough nodes, but too few without the excluded ones. This happens if the node check
            ended after the job was submitted.
    """
    usable = site.usable_hosts(hosts)
    if len(usable) < needed <= len(hosts):
        excluded = sorted(set(hosts) - set(usable))
        text = f"{job} has {', '.join(excluded)}, which exclude_nodes leaves out"
        raise Lost(Note("nodes-excluded", text, excluded=excluded, needed=needed))
    if len(usable) < needed:
        problem = f"has {len(hosts)} nodes, the run needs {needed}"
        raise InputError("too-few-nodes", problem, file=job, got=len(hosts), hint="ask for more")
    return usable[:needed]


def job_ended_error(number: str, state: str, prefix: str = "") -> Lost:
    """Return the exception for a scheduler's job that ended during the run; `prefix` precedes its state."""
    return Lost(
        Note("job-ended", f"job {number} ended during the run ({prefix}{state})", job=number, state=state)
    )


def rank_failure_reason(rank: int, exit_status: int, host: str | None = None) -> Note:
    """Return the reason for a failed rank; `exit_status` is negative if a signal ended it."""
    name = f"rank {rank} on {host}" if host else f"rank {rank}"
    return Note(
        "rank-failed", f"{name} {describe_exit(exit_status)}", rank=rank, host=host, exit_status=exit_status
    )


def starter_failure_reason(program: str, exit_status: int) -> Note:
    """Return the reason if nothing is known except that the starter of the ranks, such as srun, failed."""
    return Note(
        "starter-failed", f"{program} {describe_exit(exit_status)}", program=program, exit_status=exit_status
    )


def describe_exit(exit_status: int) -> str:
    """Return how a process ended, such as `was killed by SIGKILL`."""
    signal_names = {number.value: number.name for number in signal.Signals}  # real-time signals have none
    return (
        f"was killed by {signal_names.get(-exit_status, f'signal {-exit_status}')}"
        if exit_status < 0
        else f"ended with status {exit_status}"
    )


def _wait(
    processes: Sequence[subprocess.Popen[bytes]], deadline: float
) -> tuple[RunStatus, Sequence[int | None]]:
    """Wait until all ranks have ended, for GRACE_S after the first failure, or until the deadline.

    Args:
        processes: The processes to watch.
        deadline: When to stop waiting, on the monotonic clock.

    Returns:
        OK, FAILED or TIMEOUT, and the exit statuses of the processes at the moment of the first failure; ()
        if none failed.
    """
    failed_at: float | None = None
    first_statuses: Sequence[int | None] = ()
    while True:
        exit_statuses = [process.poll() for process in processes]
        now = time.monotonic()
        if failed_at is None and any(exit_statuses):
            failed_at, first_statuses = now, exit_statuses
        if all(status is not None for status in exit_statuses) or (
            failed_at is not None and now - failed_at > GRACE_S
        ):
            return RunStatus.OK if failed_at is None else RunStatus.FAILED, first_statuses
        if now > deadline:
            return RunStatus.TIMEOUT, first_statuses
        time.sleep(POLL_S)


def _explain_failure(
    launcher: Launcher, status: RunStatus, exit_statuses: Sequence[int | None], log: Path, site: Site
) -> Note:
    """Return the reason of `status`, which is FAILED or TIMEOUT.

    Raises:
        Lost: If the infrastructure failed: a node cannot access a path, or a node or the job is gone.
    """
    if inaccessible := find_inaccessible_path(read_end(log)):
        raise Lost(inaccessible)
    launcher.raise_if_lost(log)
    if status == RunStatus.TIMEOUT:
        text = f"not finished after the time limit of {site.time_limit_s:g} s"
        return Note("time-limit", text, time_limit_s=site.time_limit_s)
    reason = launcher.explain(exit_statuses, log)
    if reason.facts.get("exit_status") == INACCESSIBLE_STATUS and (host := reason.facts.get("host")):
        raise Lost(inaccessible_path_note(host, "the checkout, the run's folder or its environment"))
    return reason
