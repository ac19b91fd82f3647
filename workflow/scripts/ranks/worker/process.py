"""What every program has in common whose processes are ranks: how one begins, whose adapter it uses, what it leaves."""

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
TEMPORARY = "ringside-"  # what the name of a rank's temporary folder begins with
PAUSE_S = 0.5  # longer than a launcher needs to see that a rank has ended
HELD = "held"  # the file in it that names the rank's node, and that the rank holds

#: what libraries want called, by all ranks, before a rank ends that has done its work
at_end: list[Callable[[], object]] = []


def as_rank(run: Callable[[Path], object]) -> None:
    """Call `run` with the attempt's folder, the program's argument, and end this process: with status 1 where it fails.

    Libraries' own ends can take seconds, or hang once a peer is gone; everything is on disk by then. A rank that fails
    pauses before it ends, so that the first end that a launcher sees is the cause, not a rank that misses another.
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
    """A folder of this rank's own for whatever libraries leave in temporary files, removed when the rank ends.

    One that is killed cannot remove its own: the next rank on that node does. So a folder is held (flock) as long as its
    rank lives, and has its name only once it is held.
    """
    parent = Path(os.environ.get("RINGSIDE_SCRATCH") or tempfile.gettempdir())
    for left in parent.glob(f"{TEMPORARY}*"):
        _remove_unless_held(left)
    folder = Path(tempfile.mkdtemp(prefix=f".{TEMPORARY}", dir=parent))
    try:
        with open(folder / HELD, "wb") as held:
            held.write(os.fsencode(os.uname().nodename))
            held.flush()
            try:
                fcntl.flock(held, fcntl.LOCK_EX)
            except OSError:  # a file system without locks: nobody could tell that this rank lives
                (folder / HELD).unlink()
            folder = folder.rename(parent / folder.name.removeprefix("."))
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_unless_held(folder: Path) -> None:
    """Remove the temporary folder of a dead rank of this node. Leave anything else, and whatever belongs to another user.

    Anybody may put something of this name into the folder of all users: a pipe that nobody writes to, or a link.
    """
    with contextlib.suppress(OSError):
        held = os.open(folder / HELD, os.O_RDWR | os.O_NOFOLLOW)
        try:
            status, node = os.fstat(held), os.fsencode(os.uname().nodename)
            if (
                stat.S_ISREG(status.st_mode)
                and status.st_uid == os.getuid()
                and os.read(held, len(node) + 1) == node
            ):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # may be known to one node only
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(held)


def bind_to_launcher() -> None:
    """Take the launcher's cores; end when the launcher does (prctl(2)), and by an alarm where nobody can reach this node.

    The alarm's default action ends the process from within the kernel, whatever a library hangs in.
    """
    signal.alarm(int(os.environ["RINGSIDE_ALARM_S"]))
    if cores := os.environ.get("RINGSIDE_CORES"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def bind_unlike(context: Context) -> None:
    """Take this rank's own cores of those that all ranks of the node were given, where ranks are unlike: schedulers give each as many.

    Where these are fewer than the node has, the last rank has what the others leave, or all share all.
    """
    of_ranks, usable = context.spec.get("rank_cores"), sorted(os.sched_getaffinity(0))
    if of_ranks and "RINGSIDE_CORES" not in os.environ and sum(of_ranks[:-1]) < len(usable):
        first = sum(of_ranks[: context.local_rank])
        os.sched_setaffinity(0, usable[first : first + context.cores])


def adapter_of(context: Context) -> ModuleType:
    """The adapter.py of the run's framework, with the cores and the variables set that it and NCCL want before a library is imported."""
    bind_unlike(context)
    file = Path(context.job["adapter"]) / "adapter.py"
    adapter = ModuleType("adapter")
    exec(compile(file.read_text(), str(file), "exec"), adapter.__dict__)  # noqa: S102 (our own file)
    os.environ.update(nccl_variables(context))
    os.environ.update(adapter.environment(context))
    return adapter


def nccl_variables(context: Context) -> dict[str, str]:
    """NCCL on the site's interface, saying in a file of the attempt which transport it took (runs/transport.py)."""
    if context.spec["device"] != "cuda":
        return {}
    log = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": f"{context.folder}/nccl.%h.%p.log",
    }
    return {"NCCL_SOCKET_IFNAME": context.spec["interface"], **log}


def host() -> str:
    """This node, by the scheduler's name for it where there is one."""
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.encode(errors="replace").decode()
    return "".join(sign if sign.isprintable() else "_" for sign in name)


def versions(modules: list[str]) -> str:
    """Names and versions of the distributions that the framework's modules come from; of one that is no distribution the name."""
    providers = importlib.metadata.packages_distributions()
    found = sorted({providers.get(name.split(".")[0], [name])[0] for name in modules})
    return ", ".join(f"{name} {_version(name)}".strip() for name in found)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def leave_result(context: Context, result: dict[str, Any]) -> None:
    """Rank 0 writes `result` to the attempt's result.json, whole or not at all; all ranks return when it is there."""
    if context.rank == 0:
        partial = context.folder / "result.json.partial"
        partial.write_text(json.dumps(result, indent=2) + "\n")
        os.replace(partial, context.folder / "result.json")
    context.group.barrier()
