"""Count the cores that this process may use, and distribute work among them."""

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path, PurePosixPath


def all_cores() -> ProcessPoolExecutor:
    """Return a pool with one forked process per usable core; forked processes share this one's memory."""
    return ProcessPoolExecutor(usable_cores(), multiprocessing.get_context("fork"))


def usable_cores(proc: Path = Path("/proc/self")) -> int:
    """Return how many cores this process may use: those of its CPU affinity, or fewer under a cgroup quota.

    A quota limits CPU time per period (cgroups(7)); `docker run --cpus` sets one. With a quota of 1.5 cores,
    one is used: with two, the process would be throttled in every period.

    Args:
        proc: The process's folder in proc(5), with `cgroup` and `mountinfo`.
    """
    return max(1, min(len(os.sched_getaffinity(0)), *(int(quota + 1e-9) for quota in _quotas(proc)), 1 << 20))


def _quotas(proc: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of the process's control groups and their parents (versions 1 and 2)."""
    for folder, version in _groups(proc):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota.strip() != "max" and int(quota) > 0:
                yield int(quota) / int(period)


def _groups(proc: Path) -> Iterator[tuple[Path, int]]:
    """Yield folder and version of each control group that can limit CPU time, innermost first."""
    try:
        lines = [line.split(":", 2) for line in (proc / "cgroup").read_text(errors="replace").splitlines()]
        mounts = [line.split() for line in (proc / "mountinfo").read_text(errors="replace").splitlines()]
    except OSError:
        return
    groups = {
        2 if not names else 1: path for _, names, path in lines if not names or "cpu" in names.split(",")
    }
    # Fields: ID, parent, device, root, mount point, options, optional fields, "-", type, source, options.
    for fields in mounts:
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        version = 2 if kind == "cgroup2" else 1 if kind == "cgroup" and "cpu" in options else 0
        if version in groups:
            path, root = PurePosixPath(groups[version]), PurePosixPath(fields[3])
            inside = path.relative_to(root) if path.is_relative_to(root) else PurePosixPath()
            for part in (inside, *inside.parents):
                yield Path(fields[4].replace("\\040", " ")) / part, version
