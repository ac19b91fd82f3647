"""Start the ranks of a program, watch them, and end all of them: nothing outlives a run.

Each `launcher` of a site has a module that starts the ranks. Environment variables and time limits are the
same for all launchers and stand here.
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
from common.shell import (
    UNSEEN_STATUS,
    Program,
    Unanswered,
    capture,
    export_lines,
    find_unseen_path,
    query_with_retries,
    unseen_path_note,
)
from declared.site import Site
from environments import container
from environments.container import Bind
from environments.record import BuiltEnvironment
from launchers.log import read_end
from launchers.oom_evidence import oom_reason
from ranks.worker.devices import HIDING_VARIABLES
from ranks.worker.node import oom_kills

SCRIPTS = CHECKOUT / "workflow" / "scripts"
WORKER = "ranks.worker"
GRACE_S = 10.0  # after the first failure, for other ranks to log their errors
ALARM_S = 30.0  # after the time limit, a rank that nobody can reach ends itself
POLL_S = 0.02
KILLED_S = 60.0  # for a killed process to end
CLIENT_PATIENCE_S = 30  # for a scheduler's client to answer
VARIABLES = ".variables.sh"  # in the attempt's folder while its ranks run; archives leave out hidden files


@dataclass(frozen=True)
class Outcome:
    """How the ranks ended.

    Attributes:
        status: ok, failed, oom (out of memory) or timeout.
        reason: Why they did not end well.
        wall_s: Seconds from launch to the end of the last rank.
    """

    status: str
    reason: Note | None
    wall_s: float


class Stopped(Exception):
    """The supervisor was asked to stop by SIGTERM, SIGINT or SIGHUP."""


class Lost(Exception):
    """The infrastructure failed, not the program: the run gets no record.

    It is repeated by the profile's `retries` (slurm, oar, pbs, flux), else by the next call. This rule holds
    whether ranks failed or reached the time limit. Lost is raised by

    * the constructors of launchers, if the scheduler does not answer or nodes are down,
    * `Flux.start` and `explain`, if the scheduler started no rank,
    * `_reason_or_lost`, if a node does not see a path, or `raise_if_lost` finds that a node or the job is gone,
    * `kill`, if a killed process does not end, and `Pbs.end`, if a node cannot be reached,
    * `runs.supervise`, for errors of the machine (`failure_or_lost`) or if its parent process was killed.

    Anything else that ends ranks is a failure or a timeout of the run.
    """

    def __init__(self, reason: Note) -> None:
        super().__init__(reason)
        self.reason = reason


class Launcher(Protocol):
    """Start the ranks of one spec at one site.

    Attributes:
        hosts: Nodes of the run, in the order of ranks.
        job: The scheduler's job (number; submitted_at and started_at in UTC, or None); None without a
            scheduler.
    """

    hosts: list[str]
    job: dict[str, Any] | None

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """Start all ranks, with output in `log`; return the processes to watch: one per rank or for all."""

    def raise_if_lost(self, log: Path) -> None:
        """Raise Lost if the log or the scheduler reports that a node or the job is gone.

        It is called whenever the ranks did not end well, also at the time limit.
        """

    def explain(self, exit_statuses: Sequence[int | None], log: Path) -> Note:
        """Return the first failure; `exit_statuses` are the exit statuses of the processes.

        Raise Lost if the scheduler started no rank.
        """

    def kill_ranks(self) -> None:
        """End every rank on every node, even if its local process has ended, and wait for it.

        May raise Lost.
        """


def make_launcher(
    site: Site, spec: Mapping[str, Any], mpi: bool = False, setup: Sequence[str] = ()
) -> Launcher:
    """Return the site's launcher for a run.

    Args:
        site: The site.
        spec: The spec of the run.
        mpi: Whether ranks start MPI programs, which need PMIx.
        setup: Shell lines that ranks run after the site's own.
    """
    module = importlib.import_module(f"launchers.{site.launcher}")
    launcher: Launcher = module.launcher_class(replace(site, setup=(*site.setup, *setup)), spec, mpi)
    return launcher


def make_step_launcher(
    site: Site, spec: Mapping[str, Any], environment: BuiltEnvironment, name: str
) -> Launcher:
    """Return the launcher of a measurement before or after a run, whose job step is called after `name`."""
    own_spec = {**spec, "run_id": f"{name}.{spec['run_id']}"}
    return make_launcher(site, own_spec, setup=environment.get("setup", ()))


def scheduler_meters(site: Site, launcher: Launcher) -> list[dict[str, Any]]:
    """Return the scheduler's energy of ended ranks as entries of a record's meters; [] without a meter."""
    module = importlib.import_module(f"launchers.{site.launcher}")
    entries: list[dict[str, Any]] = module.meters(launcher) if hasattr(module, "meters") else []
    return entries


def run(
    launcher: Launcher,
    environment: BuiltEnvironment,
    folder: Path,
    spec: Mapping[str, Any],
    site: Site,
    program: str = WORKER,
    reads: Sequence[Path] = (),
) -> Outcome:
    """Run all ranks of `python -m program folder` to their end, or to the site's time limit.

    Args:
        launcher: The launcher of the run.
        environment: Content of an environment.json.
        folder: The attempt's absolute folder; output goes to its log.txt.
        spec: The spec of the run.
        site: The site.
        program: Module that every rank runs.
        reads: Folders that ranks read, besides the scripts. An image shows them no others.
    """
    python = environment["python"]["executable"]
    command = [python, "-m", program, str(folder)]
    rank_variables = {**variables(site, spec), **environment["variables"]}
    if image := environment.get("image"):
        command = in_image(image["path"], command, rank_variables, site, [SCRIPTS, *reads], folder)
    elif runs_installed_python(environment):
        # Its PYTHONPATH comes from the site's setup lines, which run before the ranks read their variables.
        command = modules_first(command)
        own_variables = variables(site, spec, pythonpath=False)
        rank_variables = {**own_variables, **environment["variables"]}
    kills_before = oom_kills() or 0
    started = time.monotonic()
    with _variables_file(folder / VARIABLES, rank_variables) as file:
        try:
            paths = required_paths(environment, site, folder, reads)
            processes = launcher.start(Program(command, file, paths), folder / "log.txt")
            end, exit_statuses = _wait(processes, started + site.time_limit_s)
            reason = None if end == "ok" else _reason_or_lost(launcher, end, exit_statuses, folder / "log.txt", site)
        finally:
            launcher.kill_ranks()
    wall_s = time.monotonic() - started
    if end == "failed" and reason:
        n_kills = (oom_kills() or 0) - kills_before
        if shortage := oom_reason(folder, reason, spec["device"], n_kills):
            return Outcome("oom", shortage, wall_s)
    return Outcome(end, reason, wall_s)


def runs_installed_python(environment: BuiltEnvironment) -> bool:
    """Return whether ranks run in a Python that the site has installed.

    What a site installs may also be a program, such as LBANN, which ranks start from a Python of ours.
    """
    installed = environment.get("installed")
    return bool(installed and installed["executable"] == environment["python"]["executable"])


def required_paths(
    environment: BuiltEnvironment, site: Site, folder: Path, reads: Sequence[Path]
) -> list[str]:
    """Return the paths that every node must see, without software that the site's setup may provide."""
    if site.launcher == "local":
        return []
    image = environment.get("image")
    software = image["path"] if image else environment["python"]["executable"]
    paths = [SCRIPTS, folder, *reads, *([] if environment.get("installed") else [software])]
    return [str(path) for path in paths]


@contextlib.contextmanager
def _variables_file(file: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """Write the ranks' variables, which may be secrets, to a file of mode 600; remove it at the end."""
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
    """Return `command` inside an image that sees the named variables, `reads` and `writes`."""
    command = modules_first(command)
    variable_names = [name for name in variable_names if name != "PYTHONPATH"]
    binds = [Bind(str(path)) for path in reads] + [Bind(str(writes), writable=True)]
    if site.scratch:
        binds.append(Bind(str(site.scratch), writable=True))
    for bind in site.binds:
        source, _, inside = bind.partition(":")
        binds.append(Bind(source, writable=True, inside=inside or None))
    options = [f"--{site.images.gpu}"] if site.device == "cuda" else []
    return container.inside(image, command, binds, variable_names, options)


def modules_first(command: Sequence[str]) -> list[str]:
    """Prepend our modules to the PYTHONPATH of `command`, which a site's Python may need for its packages."""
    prepend = 'export PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}"; shift; exec "$@"'
    return ["sh", "-c", prepend, "ringside", str(SCRIPTS), *command]


def variables(site: Site, spec: Mapping[str, Any], pythonpath: bool = True) -> dict[str, str]:
    """Return the environment variables of every rank, whatever starts it.

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
        # GPUs are numbered as nvidia-smi and meters count them.
        **({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if spec["device"] != "cpu" else {}),
        **site_variables,
        **({"PYTHONPATH": python_path} if pythonpath else {}),
        **({"RINGSIDE_SCRATCH": str(site.scratch)} if site.scratch else {}),
    }


def cores_per_task(spec: Mapping[str, Any]) -> int:
    """Return how many cores to request per rank.

    For heterogeneous ranks this is the mean: they share out their node's cores themselves.
    """
    core_counts = spec.get("rank_cores")
    return max(1, sum(core_counts) // len(core_counts)) if core_counts else int(spec["cores_per_rank"])


def kept_variables(prefix: str = "\0") -> dict[str, str]:
    """Return the only variables of the caller's environment that every launcher hands on.

    A launcher adds those that its scheduler needs, such as SLURM_JOB_ID, and the scheduler those of its job.

    Args:
        prefix: How the names of the scheduler's variables begin; by default, none is handed on.
    """
    names = ("PATH", "HOME", "USER", "LANG", "LD_LIBRARY_PATH")
    return {name: value for name, value in os.environ.items() if name in names or name.startswith(prefix)}


def local_variables() -> dict[str, str]:
    """Return `kept_variables` and what hides accelerators, for processes that are ranks on this machine.

    Of a rank on another node, the scheduler decides what it sees.
    """
    return {
        **kept_variables(),
        **{name: os.environ[name] for name in HIDING_VARIABLES if name in os.environ},
    }


def spawn(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, with stdout and stderr in `output`."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill the process group of every process, even if the process has ended, and wait for the processes.

    Raises:
        Lost: If one does not end, because it is frozen or waits for a lost device or file system.
    """
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + KILLED_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            text = f"process {process.pid} does not end within {KILLED_S:g} s after it was killed"
            raise Lost(Note("does-not-end", text, process=process.pid, within_s=KILLED_S)) from None


def query_job_field(
    command: Sequence[str], pattern: re.Pattern[str], environment: Mapping[str, str]
) -> str | None:
    """Return a field of a job from the output of a scheduler's client, or None on a node without the client.

    Args:
        command: The client's command line; its last word is the job's number.
        pattern: Pattern whose first group is the field.
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
    """Return what a client that failed printed, as one line of at most 300 characters."""
    return " ".join((result.stderr or result.stdout).split())[:300]


def pkill_command(command: Sequence[str]) -> list[str]:
    """Return the command that kills the ranks that `command` started on a node.

    It matches the last words, which name the attempt's folder. The brackets keep the pattern from matching
    its own command line.
    """
    words = " ".join(command[-3:])
    return ["pkill", "-KILL", "-f", "--", f"[{words[0]}]{re.escape(words[1:])}"]


def outside_of_job_error(site: Site, job_kind: str, hint: str) -> InputError:
    """Return the error of a launcher that needs a job; `job_kind` is for example "a Slurm job"."""
    problem = f"{site.launcher} starts ranks inside {job_kind} only"
    return InputError("outside-of-job", problem, file=site.file, key="launcher", got=site.launcher, hint=hint)


def select_hosts(site: Site, hosts: Sequence[str], needed: int, job: str) -> list[str]:
    """Return the nodes of a run: the first `needed` of a job's `hosts` that the site does not exclude.

    Args:
        site: The site.
        hosts: All nodes of the job.
        needed: Number of nodes of the run.
        job: What names the job's nodes, for the message.

    Raises:
        InputError: If the job has too few nodes.
        Lost: If it has enough, but too few that are not excluded, as when the node check ended after the job
            was submitted.
    """
    usable = site.usable_hosts(hosts)
    if len(usable) < needed <= len(hosts):
        left_out = sorted(set(hosts) - set(usable))
        text = f"{job} has {', '.join(left_out)}, which exclude_nodes leaves out"
        raise Lost(Note("nodes-excluded", text, excluded=left_out, needed=needed))
    if len(usable) < needed:
        problem = f"has {len(hosts)} nodes, the run needs {needed}"
        raise InputError("too-few-nodes", problem, file=job, got=len(hosts), hint="ask for more")
    return usable[:needed]


def job_ended_error(number: str, state: str, prefix: str = "") -> Lost:
    """Return the exception for a scheduler's job that ended during the run.

    `prefix` stands before its state.
    """
    return Lost(
        Note("job-ended", f"job {number} ended during the run ({prefix}{state})", job=number, state=state)
    )


def rank_failure_reason(rank: int, code: int, host: str | None = None) -> Note:
    """Return the reason for a failed rank; `code` is its exit status, or a negative signal."""
    name = f"rank {rank} on {host}" if host else f"rank {rank}"
    return Note("rank-failed", f"{name} {describe_exit(code)}", rank=rank, host=host, exit_status=code)


def starter_failure_reason(program: str, code: int) -> Note:
    """Return the reason where the program that started all ranks, such as srun, failed, but no known rank."""
    return Note("starter-failed", f"{program} {describe_exit(code)}", program=program, exit_status=code)


def describe_exit(code: int) -> str:
    """Describe how a process ended."""
    signal_names = {number.value: number.name for number in signal.Signals}  # real-time signals have none
    return (
        f"was killed by {signal_names.get(-code, f'signal {-code}')}"
        if code < 0
        else f"ended with status {code}"
    )


def _wait(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> tuple[str, Sequence[int | None]]:
    """Wait for all ranks, or for GRACE_S after the first failure.

    Args:
        processes: The processes to watch.
        deadline: When to stop waiting, on the monotonic clock.

    Returns:
        How the ranks ended, which is the status of an Outcome, and the exit statuses of the processes when
        the first one had failed.
    """
    failed_at: float | None = None
    first_codes: Sequence[int | None] = ()
    while True:
        exit_statuses = [process.poll() for process in processes]
        now = time.monotonic()
        if failed_at is None and any(exit_statuses):
            failed_at, first_codes = now, exit_statuses
        if all(code is not None for code in exit_statuses) or (failed_at is not None and now - failed_at > GRACE_S):
            return "failed" if first_codes else "ok", first_codes
        if now > deadline:
            return "timeout", first_codes
        time.sleep(POLL_S)


def _reason_or_lost(launcher: Launcher, end: str, exit_statuses: Sequence[int | None], log: Path, site: Site) -> Note:
    """Return the reason of ranks that ended as failed or timeout.

    Raises:
        Lost: If it was not the program: a node does not see a path, or a node or the job is gone.
    """
    if unseen := find_unseen_path(read_end(log)):
        raise Lost(unseen)
    launcher.raise_if_lost(log)
    if end == "timeout":
        text = f"not finished after the time limit of {site.time_limit_s:g} s"
        return Note("time-limit", text, time_limit_s=site.time_limit_s)
    reason = launcher.explain(exit_statuses, log)
    if reason.facts.get("exit_status") == UNSEEN_STATUS and (host := reason.facts.get("host")):
        raise Lost(unseen_path_note(host, "the checkout, the run's folder or its environment"))
    return reason
