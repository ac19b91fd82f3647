"""Work shared by all cores that this process may use."""

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path, PurePosixPath


def all_cores() -> ProcessPoolExecutor:
    """A pool with a process for each core, which have all that this one has read."""
    return ProcessPoolExecutor(usable_cores(), multiprocessing.get_context("fork"))


def usable_cores(proc: Path = Path("/proc/self")) -> int:
    """Return how many cores this process may use: those it may be put on, or fewer where a control group has a quota.

    A quota is processor time in each period, as `docker run --cpus` sets it (cgroups(7)). Of 1.5 cores one is used: with two the
    process would be halted in every period.

    Args:
        proc: The folder of the process in proc(5), with `cgroup` and `mountinfo`.
    """
    return max(1, min(len(os.sched_getaffinity(0)), *(int(quota + 1e-9) for quota in _quotas(proc)), 1 << 20))


def _quotas(proc: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of the process's control groups and of all groups around them; versions 1 and 2."""
    for folder, version in _groups(proc):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota.strip() != "max" and int(quota) > 0:
                yield int(quota) / int(period)


def _groups(proc: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folder of each control group that can limit processor time, and its version, from the innermost to the mount's."""
    try:
        lines = [line.split(":", 2) for line in (proc / "cgroup").read_text(errors="replace").splitlines()]
        mounts = [line.split() for line in (proc / "mountinfo").read_text(errors="replace").splitlines()]
    except OSError:
        return
    own = {2 if not names else 1: path for _, names, path in lines if not names or "cpu" in names.split(",")}
    for fields in (
        mounts
    ):  # ID, parent, device, root, mount point, options, optional fields, "-", type, source, options
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        version = 2 if kind == "cgroup2" else 1 if kind == "cgroup" and "cpu" in options else 0
        if version in own:
            path, root = PurePosixPath(own[version]), PurePosixPath(fields[3])
            inside = path.relative_to(root) if path.is_relative_to(root) else PurePosixPath()
            for part in (inside, *inside.parents):
                yield Path(fields[4].replace("\\040", " ")) / part, version
