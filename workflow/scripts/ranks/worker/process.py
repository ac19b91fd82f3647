"""Start, adapter, result and end of a process that is a rank, for all programs of ranks."""

import contextlib
import ctypes
import fcntl
import importlib.metadata
import json
import os
import platform
import resource
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

from ranks.worker import out_of_memory
from ranks.worker.context import Context
from ranks.worker.load import Load
from ranks.worker.node import machine, memory_bytes

PR_SET_PDEATHSIG = 1
TEMPORARY_PREFIX = "ringside-"  # prefix of temporary folders
FAILURE_PAUSE_S = 0.5  # longer than a launcher needs to notice that a rank has ended
# The file in the temporary folder that the rank locks; it has the name of the rank's node.
LOCK_FILE = "held"

#: functions that all ranks call before any of them ends normally
at_end: list[Callable[[], object]] = []


def as_rank(run: Callable[[Path], object]) -> None:
    """Call `run` with the attempt's folder, the program's argument, and end this process.

    The exit status is 1 on failure; a rank that lacked memory leaves a file that says so. The process ends
    without the libraries' clean-up, which can take seconds, or hang after a peer has ended. A failed rank
    pauses before it ends, so that the launcher sees the rank that caused the failure end before ranks that
    fail because they lost their peer.
    """
    bind_to_launcher()
    status = 0
    try:
        with temporary_folder() as temporary:
            os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
            run(Path(sys.argv[1]))
            for leave in at_end:
                leave()
    except BaseException as error:
        out_of_memory.write_report(error, Path(sys.argv[1]), host())
        traceback.print_exc()
        status = 1
        time.sleep(FAILURE_PAUSE_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder for the temporary files of this rank's libraries, and remove it when the rank ends.

    The next rank on the node removes the folder of a killed rank. Therefore a rank holds a lock on its folder
    (flock), and the folder gets its final name only once it is locked.
    """
    parent = Path(os.environ.get("RINGSIDE_SCRATCH") or tempfile.gettempdir())
    for leftover in parent.glob(f"{TEMPORARY_PREFIX}*"):
        _remove_unless_locked(leftover)
    folder = Path(tempfile.mkdtemp(prefix=f".{TEMPORARY_PREFIX}", dir=parent))
    try:
        with open(folder / LOCK_FILE, "wb") as lock:
            lock.write(os.fsencode(os.uname().nodename))
            lock.flush()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:
                # On a file system without locks, other ranks must not judge by the lock.
                (folder / LOCK_FILE).unlink()
            folder = folder.rename(parent / folder.name.removeprefix("."))
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_unless_locked(folder: Path) -> None:
    """Remove a temporary folder if it belongs to this user and to a rank of this node that has ended.

    In a shared folder any user can create an entry of this name, such as a pipe without a writer, or a link.
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
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if the rank lives
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def bind_to_launcher() -> None:
    """Bind to the launcher's cores, and end with the launcher (prctl(2)), or by an alarm.

    The kernel's alarm ends the process even if a library hangs or the node cannot be reached.
    """
    signal.alarm(int(os.environ["RINGSIDE_ALARM_S"]))
    if cores := os.environ.get("RINGSIDE_CORES"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def bind_heterogeneous(context: Context) -> None:
    """Bind this rank to its cores, if ranks have unequal numbers of cores.

    Schedulers give each rank of a node the same number of cores. If the node has fewer cores than its ranks
    need, the last rank gets the remaining ones; if none remain, all ranks share all cores.
    """
    rank_cores, usable = context.spec.get("rank_cores"), sorted(os.sched_getaffinity(0))
    if rank_cores and "RINGSIDE_CORES" not in os.environ and sum(rank_cores[:-1]) < len(usable):
        first = sum(rank_cores[: context.local_rank])
        os.sched_setaffinity(0, usable[first : first + context.cores])


def limit_memory(context: Context) -> None:
    """Limit what this rank can reserve (RLIMIT_DATA) to its share of the node's memory, if it has one."""
    if share := context.spec.get("memory_share"):
        _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
        with contextlib.suppress(ValueError):  # The site's own limit is lower.
            resource.setrlimit(resource.RLIMIT_DATA, (int(share * memory_bytes()), hard_limit))


def adapter_of(context: Context) -> ModuleType:
    """Load and return the adapter.py of the run's framework.

    Before, it binds the rank to its cores and limits its memory. It also sets the variables of the adapter,
    of Gloo and of NCCL, which libraries read when they are imported.
    """
    bind_heterogeneous(context)
    limit_memory(context)
    file = Path(context.rank_input["adapter"]) / "adapter.py"
    adapter = ModuleType("adapter")
    exec(compile(file.read_text(), str(file), "exec"), adapter.__dict__)  # noqa: S102 (our own file)
    os.environ.update(network_variables(context))
    if hasattr(adapter, "environment"):
        os.environ.update(adapter.environment(context))
    return adapter


def network_variables(context: Context) -> dict[str, str]:
    """Return variables that set the interfaces of PyTorch's Gloo and of NCCL.

    NCCL also logs its transport (runs/transport.py).
    """
    gloo = {"GLOO_SOCKET_IFNAME": context.spec["interface"]}
    if context.spec["device"] != "cuda":
        return gloo
    log = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": f"{context.folder}/nccl.%h.%p.log",
    }
    # Without the sign, NCCL treats names as prefixes: eth1 would match eth10, too.
    return {**gloo, "NCCL_SOCKET_IFNAME": f"={context.spec['interface']}", **log}


def host() -> str:
    """Return the scheduler's name of this node, or else its host name."""
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.encode(errors="replace").decode()
    return "".join(sign if sign.isprintable() else "_" for sign in name)


def versions(modules: list[str]) -> str:
    """Return names and versions of the distributions that provide modules, or else the modules' names."""
    providers = importlib.metadata.packages_distributions()
    distributions = sorted({providers.get(name.split(".")[0], [name])[0] for name in modules})
    return ", ".join(f"{name} {_version(name)}".strip() for name in distributions)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def leave_measurement(
    context: Context, load: Load, device: str, measured: dict[str, Any], **of_rank: Any
) -> None:
    """Write result.json of a benchmark: what it `measured`, its ranks and its software; collective.

    Args:
        context: The rank's context.
        load: CPU time since the measurement began.
        device: Name of the rank's device.
        measured: Entries of result.json that all ranks share.
        of_rank: Further entries of this rank.
    """
    other_cpu_share, _ = load.shares()
    mine = {"host": host(), "machine": machine(), "device": device, **of_rank}
    result = {
        "ranks": context.group.all_gather(mine),
        "other_cpu_share": other_cpu_share,
        **measured,
        "python_version": platform.python_version(),
        "library_version": versions(context.rank_input["modules"]),
    }
    leave_result(context, result)


def leave_result(context: Context, result: dict[str, Any]) -> None:
    """Write `result` to the attempt's result.json on rank 0, whole or not at all; collective."""
    if context.rank == 0:
        partial = context.folder / "result.json.partial"
        partial.write_text(json.dumps(result, indent=2) + "\n")
        os.replace(partial, context.folder / "result.json")
    context.group.barrier()
