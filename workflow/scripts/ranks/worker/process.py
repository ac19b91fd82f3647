"""What all programs have in common whose processes are ranks: start, adapter, result and end."""

import contextlib
import ctypes
import fcntl
import importlib.metadata
import json
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ranks.worker.context import Context

PR_SET_PDEATHSIG = 1
TEMPORARY = "ringside-"  # prefix of a rank's temporary folder
PAUSE_S = 0.5  # longer than a launcher needs to see that a rank has ended
LOCK_FILE = "held"  # file in the temporary folder that names the rank's node, and that the rank locks

#: functions that libraries need all ranks to call before a rank ends normally
at_end: list[Callable[[], object]] = []


def as_rank(run: Callable[[Path], object]) -> None:
    """Call `run` with the attempt's folder, the program's argument, and end this process.

    With status 1 on failure.

    The clean-up of libraries can take seconds, or hang once a peer has ended; everything is on disk by then.
    A rank that fails pauses before it ends, so that the first end that a launcher sees is the cause, and not
    a rank that misses another.
    """
    bind_to_launcher()
    status = 0
    try:
        with temporary_folder() as temporary:
            os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
            run(Path(sys.argv[1]))
            for leave in at_end:
                leave()
    except BaseException:
        traceback.print_exc()
        status = 1
        time.sleep(PAUSE_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder for the temporary files of this rank's libraries, and remove it when the rank ends.

    A killed rank cannot remove its folder: the next rank on that node does. So a rank locks its folder
    (flock) as long as it lives, and the folder gets its final name only once it is locked.
    """
    parent = Path(os.environ.get("RINGSIDE_SCRATCH") or tempfile.gettempdir())
    for leftover in parent.glob(f"{TEMPORARY}*"):
        _remove_unless_held(leftover)
    folder = Path(tempfile.mkdtemp(prefix=f".{TEMPORARY}", dir=parent))
    try:
        with open(folder / LOCK_FILE, "wb") as lock:
            lock.write(os.fsencode(os.uname().nodename))
            lock.flush()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:  # a file system without locks, which cannot show that this rank lives
                (folder / LOCK_FILE).unlink()
            folder = folder.rename(parent / folder.name.removeprefix("."))
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_unless_held(folder: Path) -> None:
    """Remove the temporary folder of a dead rank of this node; keep all else, and the folders of other users.

    Any user can create an entry of this name in a shared folder, such as a pipe without a writer, or a link.
    """
    with contextlib.suppress(OSError):
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW)
        try:
            status, node = os.fstat(lock), os.fsencode(os.uname().nodename)
            if (
                stat.S_ISREG(status.st_mode)
                and status.st_uid == os.getuid()
                and os.read(lock, len(node) + 1) == node
            ):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a lock may be visible on one node only
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def bind_to_launcher() -> None:
    """Bind to the launcher's cores, and end with the launcher (prctl(2)), or by an alarm.

    The alarm ends the process from within the kernel, even if a library hangs and nobody can reach this node.
    """
    signal.alarm(int(os.environ["RINGSIDE_ALARM_S"]))
    if cores := os.environ.get("RINGSIDE_CORES"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def bind_unlike(context: Context) -> None:
    """Bind this rank to its own cores of those of the node, if ranks are heterogeneous.

    Schedulers give each rank equally many. If the node has fewer cores than all ranks need, the last rank
    gets what remains, or all ranks share all cores.
    """
    rank_cores, usable = context.spec.get("rank_cores"), sorted(os.sched_getaffinity(0))
    if rank_cores and "RINGSIDE_CORES" not in os.environ and sum(rank_cores[:-1]) < len(usable):
        first = sum(rank_cores[: context.local_rank])
        os.sched_setaffinity(0, usable[first : first + context.cores])


def adapter_of(context: Context) -> ModuleType:
    """Return the adapter.py of the run's framework, after binding cores and setting variables.

    The framework and NCCL read these variables when a library is imported.
    """
    bind_unlike(context)
    file = Path(context.job["adapter"]) / "adapter.py"
    adapter = ModuleType("adapter")
    exec(compile(file.read_text(), str(file), "exec"), adapter.__dict__)  # noqa: S102 (our own file)
    os.environ.update(nccl_variables(context))
    os.environ.update(adapter.environment(context))
    return adapter


def nccl_variables(context: Context) -> dict[str, str]:
    """Return variables that set NCCL's interface and let it log its transport (runs/transport.py)."""
    if context.spec["device"] != "cuda":
        return {}
    log = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": f"{context.folder}/nccl.%h.%p.log",
    }
    return {"NCCL_SOCKET_IFNAME": context.spec["interface"], **log}


def host() -> str:
    """Return the name of this node, the scheduler's where there is one."""
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.encode(errors="replace").decode()
    return "".join(sign if sign.isprintable() else "_" for sign in name)


def versions(modules: list[str]) -> str:
    """Return names and versions of the distributions of the framework's modules.

    A module without one by its name.
    """
    providers = importlib.metadata.packages_distributions()
    distributions = sorted({providers.get(name.split(".")[0], [name])[0] for name in modules})
    return ", ".join(f"{name} {_version(name)}".strip() for name in distributions)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def leave_result(context: Context, result: dict[str, Any]) -> None:
    """Write `result` to the attempt's result.json on rank 0, whole or not at all.

    All ranks return when it is there.
    """
    if context.rank == 0:
        partial = context.folder / "result.json.partial"
        partial.write_text(json.dumps(result, indent=2) + "\n")
        os.replace(partial, context.folder / "result.json")
    context.group.barrier()
