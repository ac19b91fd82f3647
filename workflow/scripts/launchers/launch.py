"""Start the ranks of a program, watch them, and end all of them: nothing outlives a run.

How ranks are started is the launcher's (launchers/, one module for each `launcher` of a site); what they are told and
how long they are given is here, the same for all.
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
from common.files import CHECKOUT, shown
from common.notes import Note
from common.shell import UNSEEN_STATUS, Program, export_lines, not_seen, unseen_path
from declared.site import Site
from environments import container
from environments.container import Bind

SCRIPTS = CHECKOUT / "workflow" / "scripts"
WORKER = "ranks.worker"
GRACE_S = 10.0  # once a rank has failed, the others may still say why they cannot go on
ALARM_S = 30.0  # after its time limit a rank ends itself, where nobody can reach it any more
POLL_S = 0.02
KILLED_S = 60.0  # for a process that was killed to end
CLIENT_PATIENCE_S = 30  # for a scheduler's client to answer
VARIABLES = ".variables.sh"  # in the attempt's folder while its ranks run; hidden, so that no archive takes it
LOG_END_BYTES = 1 << 20  # of a log, where causes are looked for: a rank may write gigabytes


@dataclass(frozen=True)
class Outcome:
    """How the ranks ended: ok, failed or timeout, with the reason; seconds from launch to the last end."""

    status: str
    reason: Note | None
    wall_s: float


class Stopped(Exception):
    """Somebody asked the supervisor to stop: SIGTERM, SIGINT or SIGHUP."""


class Lost(Exception):
    """The infrastructure failed, not the program: a node or the scheduler is gone, as `reason` says. The job has to be tried again."""

    def __init__(self, reason: Note) -> None:
        super().__init__(reason)
        self.reason = reason


class Launcher(Protocol):
    """Starts ranks at one site for one spec.

    `hosts` are the nodes of the run, in the order of ranks; `job` is the scheduler's job (number; submitted_at and
    started_at in UTC, or None), None where there is no scheduler.
    """

    hosts: list[str]
    job: dict[str, Any] | None

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """Start all ranks with their output in `log`; the processes to watch: one a rank, or one for all."""

    def explain(self, codes: Sequence[int | None], log: Path) -> Note:
        """The first failure in words; `codes` are the exit statuses of the processes. May raise Lost."""

    def end(self) -> None:
        """End every rank on every node, whether or not its process here has ended, and wait for it.

        May raise Lost, where only this shows that a node is gone.
        """


def launcher(site: Site, spec: Mapping[str, Any], mpi: bool = False, setup: Sequence[str] = ()) -> Launcher:
    """The site's launcher for a run with this spec; `mpi`: what ranks start are programs of MPI, which are to find each other.

    `setup`: lines that ranks run after the site's own.
    """
    module = importlib.import_module(f"launchers.{site.launcher}")
    made: Launcher = module.launcher(replace(site, setup=(*site.setup, *setup)), spec, mpi)
    return made


def scheduler_meters(site: Site, ranks: Launcher) -> list[dict[str, Any]]:
    """What the scheduler says of the energy of ranks that have ended, as entries of a record's meters; nothing where it has no meter."""
    module = importlib.import_module(f"launchers.{site.launcher}")
    told: list[dict[str, Any]] = module.meters(ranks) if hasattr(module, "meters") else []
    return told


def run(
    ranks: Launcher,
    environment: Mapping[str, Any],
    folder: Path,
    spec: Mapping[str, Any],
    site: Site,
    program: str = WORKER,
    reads: Sequence[Path] = (),
) -> Outcome:
    """Run all ranks of `python -m program folder` to their end, or to the site's time limit.

    `environment` is the content of an environment.json, `folder` the attempt's (absolute); output goes to its log.txt.
    `reads` are the folders that the ranks read beside our programs: an image shows them nothing else.
    """
    command = [environment["python"]["executable"], "-m", program, str(folder)]
    told = {**variables(site, spec), **environment["variables"]}
    if environment.get("image"):
        command = in_image(environment["image"]["path"], command, told, site, [SCRIPTS, *reads], folder)
    elif (has := environment.get("installed")) and has["executable"] == command[0]:
        command = modules_first(command)
        told = {name: value for name, value in told.items() if name != "PYTHONPATH"} | environment["variables"]
    started = time.monotonic()
    with _variables_file(folder / VARIABLES, told) as file:
        try:
            processes = ranks.start(
                Program(command, file, paths_of(environment, site, folder, reads)), folder / "log.txt"
            )
            status, reason = _watch(ranks, processes, folder / "log.txt", started, site.time_limit_s)
        finally:
            ranks.end()
    return Outcome(status, reason, time.monotonic() - started)


def paths_of(environment: Mapping[str, Any], site: Site, folder: Path, reads: Sequence[Path]) -> list[str]:
    """Return what the nodes of a run have to see; what a site has installed may be there behind its setup lines only."""
    if site.launcher == "local":
        return []
    software = environment["image"]["path"] if environment.get("image") else environment["python"]["executable"]
    seen = [SCRIPTS, folder, *reads, *([] if environment.get("installed") else [software])]
    return [str(path) for path in seen]


@contextlib.contextmanager
def _variables_file(file: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """Have ranks read their variables from a file that only its owner reads, as long as they run: values may be secrets."""
    file.unlink(missing_ok=True)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as lines:
            lines.write(export_lines(variables))
        yield file
    finally:
        file.unlink(missing_ok=True)


def forget_variables(folder: Path) -> None:
    """Remove the variables that a supervisor which was killed left below `folder`."""
    for file in folder.rglob(VARIABLES):
        file.unlink(missing_ok=True)


def read_end(log: Path) -> str:
    """Return the end of a log; nothing where there is none."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_END_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def in_image(
    image: str, command: Sequence[str], told: Iterable[str], site: Site, reads: Sequence[Path], writes: Path
) -> list[str]:
    """`command` in an image as the site opens it, seeing the variables `told`, reading `reads` and writing `writes`."""
    command = modules_first(command)
    told = [name for name in told if name != "PYTHONPATH"]
    binds = [Bind(str(path)) for path in reads] + [Bind(str(writes), writable=True)]
    if site.scratch:
        binds.append(Bind(str(site.scratch), writable=True))
    for bind in site.binds:
        source, _, inside = bind.partition(":")
        binds.append(Bind(source, writable=True, inside=inside or None))
    return container.inside(image, command, binds, told, [f"--{site.images.gpu}"] if site.device == "cuda" else [])


def modules_first(command: Sequence[str]) -> list[str]:
    """`command` with our modules before what its PYTHONPATH has, not in its place: what a site brings may find its packages by it."""
    after = 'export PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}"; shift; exec "$@"'
    return ["sh", "-c", after, "ringside", str(SCRIPTS), *command]


def variables(site: Site, spec: Mapping[str, Any]) -> dict[str, str]:
    """What every rank is told, whatever starts it."""
    threads = str(spec["cores_per_rank"])
    own = dict(site.variables)
    return {
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "RINGSIDE_ALARM_S": f"{site.time_limit_s + ALARM_S:.0f}",
        **({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if spec["device"] != "cpu" else {}),  # as drivers and meters count them
        **own,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SCRIPTS), own.get("PYTHONPATH")])),  # ranks run our modules
        **({"RINGSIDE_SCRATCH": str(site.scratch)} if site.scratch else {}),
    }


def cores_per_task(spec: Mapping[str, Any]) -> int:
    """Cores to ask a scheduler for, for each rank: it gives all as many, and unlike ranks divide those of their node by themselves."""
    of_ranks = spec.get("rank_cores")
    return max(1, sum(of_ranks) // len(of_ranks)) if of_ranks else int(spec["cores_per_rank"])


def kept_variables() -> dict[str, str]:
    """What of the caller's environment a program needs to run; nothing else reaches a rank."""
    names = ("PATH", "HOME", "USER", "LANG", "LD_LIBRARY_PATH")
    return {name: value for name, value in os.environ.items() if name in names}


def spawn(command: Sequence[str], environment: Mapping[str, str], out: IO[bytes]) -> subprocess.Popen[bytes]:
    """A process in a session of its own, with its output in `out`."""
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
    )


def kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill the whole process group of every process, whether or not it has ended itself, and wait for the processes.

    Raises:
        Lost: If one does not end: it waits for a device or a file system that is gone, or it is frozen.
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


def told(command: Sequence[str], pattern: re.Pattern[str], environment: Mapping[str, str]) -> str | None:
    """What a scheduler's client says of the job that is the last word of `command`, as the pattern's group finds it; None where the
    client is not on this node. Lost when it does not answer, three times within some seconds."""
    said = ""
    for pause_s in (2, 2, 0):
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=CLIENT_PATIENCE_S,
                env=environment,
            )
        except FileNotFoundError:
            return None
        except subprocess.TimeoutExpired:
            said = "no answer"
        else:
            if found := pattern.search(done.stdout):
                return found[1]
            said = " ".join((done.stderr or done.stdout).split())[:300]
        time.sleep(pause_s)
    program, number = command[0], command[-1]
    text = f"{program} does not tell of job {number}: {said}"
    raise Lost(Note("scheduler-silent", text, program=program, job=number, answer=said))


def pkill(command: Sequence[str]) -> list[str]:
    """What kills the ranks that `command` started on a node: its last words name the attempt's folder, as no other's do.

    The pattern (POSIX, extended) does not match a command line that holds the pattern itself.
    """
    words = " ".join(command[-3:])
    return ["pkill", "-KILL", "-f", "--", f"[{words[0]}]{re.escape(words[1:])}"]


def outside_of_job(site: Site, where: str, hint: str) -> InputError:
    """Return the error of a site whose launcher starts ranks inside a job only; `where`: a Slurm job."""
    problem = f"{site.launcher} starts ranks inside {where} only"
    return InputError("outside-of-job", problem, file=shown(site.file), key="launcher", got=site.launcher, hint=hint)


def too_few_nodes(job: str, n_nodes: int, needed: int) -> InputError:
    """Return the error of a job that has fewer nodes than a run needs; `job`: what lists its nodes."""
    problem = f"has {n_nodes} nodes, the run needs {needed}"
    return InputError("too-few-nodes", problem, file=job, got=n_nodes, hint="ask for more")


def job_ended(number: str, state: str, prefix: str = "") -> Lost:
    """Return that the scheduler's job ended while ranks ran in it; `prefix` stands before its state."""
    return Lost(Note("job-ended", f"job {number} ended under it ({prefix}{state})", job=number, state=state))


def rank_failure(rank: int, code: int, host: str | None = None) -> Note:
    """Return that a rank ended with this `code` of its process: a status, or a negative signal.

    Raises:
        Lost: If its node does not see what it needs.
    """
    if host and code == UNSEEN_STATUS:
        raise Lost(not_seen(host, "the checkout, the run's folder or its environment"))
    where = f"rank {rank} on {host}" if host else f"rank {rank}"
    return Note("rank-failed", f"{where} {ending(code)}", rank=rank, host=host, status=code)


def starter_failure(program: str, code: int) -> Note:
    """Return that the program which starts all ranks ended with this `code`, and no rank is known to have failed."""
    return Note("starter-failed", f"{program} {ending(code)}", program=program, status=code)


def ending(code: int) -> str:
    """The end of a process in words."""
    names = {number.value: number.name for number in signal.Signals}  # real-time signals have none
    return f"was killed by {names.get(-code, f'signal {-code}')}" if code < 0 else f"ended with status {code}"


def _watch(
    ranks: Launcher, processes: list[subprocess.Popen[bytes]], log: Path, started: float, time_limit_s: float
) -> tuple[str, Note | None]:
    failed_at: float | None = None
    first: list[int | None] = []
    while True:
        codes = [process.poll() for process in processes]
        now = time.monotonic()
        if failed_at is None and any(codes):
            failed_at, first = now, codes
        if all(code is not None for code in codes) or (failed_at is not None and now - failed_at > GRACE_S):
            if first and (unseen := unseen_path(read_end(log))):
                raise Lost(unseen)
            return ("failed", ranks.explain(first, log)) if first else ("ok", None)
        if now - started > time_limit_s:
            text = f"not finished after the time limit of {time_limit_s:g} s"
            return "timeout", Note("time-limit", text, time_limit_s=time_limit_s)
        time.sleep(POLL_S)
