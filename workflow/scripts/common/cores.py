"""Share work among all cores that this process may use."""

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path, PurePosixPath


def all_cores() -> ProcessPoolExecutor:
    """Return a pool with one forked process per core, which shares the memory of this one."""
    return ProcessPoolExecutor(usable_cores(), multiprocessing.get_context("fork"))


def usable_cores(proc: Path = Path("/proc/self")) -> int:
    """Return how many cores this process may use: its CPU affinity, or less under a control group's quota.

    A quota is CPU time per period, as `docker run --cpus` sets it (cgroups(7)). With a quota of 1.5 cores,
    one is used: with two, the process would be throttled in every period.

    Args:
        proc: The folder of the process in proc(5), with `cgroup` and `mountinfo`.
    """
    return max(1, min(len(os.sched_getaffinity(0)), *(int(quota + 1e-9) for quota in _quotas(proc)), 1 << 20))


def _quotas(proc: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of the process's control groups and of all groups around them.

    Versions 1 and 2.
    """
    for folder, version in _groups(proc):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota.strip() != "max" and int(quota) > 0:
                yield int(quota) / int(period)


def _groups(proc: Path) -> Iterator[tuple[Path, int]]:
    """Yield folder and version of each control group that can limit CPU time, the innermost first."""
    try:
        lines = [line.split(":", 2) for line in (proc / "cgroup").read_text(errors="replace").splitlines()]
        mounts = [line.split() for line in (proc / "mountinfo").read_text(errors="replace").splitlines()]
    except OSError:
        return
    own = {2 if not names else 1: path for _, names, path in lines if not names or "cpu" in names.split(",")}
    # Fields: ID, parent, device, root, mount point, options, optional fields, "-", type, source, options.
    for fields in mounts:
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        version = 2 if kind == "cgroup2" else 1 if kind == "cgroup" and "cpu" in options else 0
        if version in own:
            path, root = PurePosixPath(own[version]), PurePosixPath(fields[3])
            inside = path.relative_to(root) if path.is_relative_to(root) else PurePosixPath()
            for part in (inside, *inside.parents):
                yield Path(fields[4].replace("\\040", " ")) / part, version
