"""Limit processor and memory of a node through control groups, version 1 or 2, whichever is mounted."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from common.errors import InputError

ROOT = Path("/sys/fs/cgroup")
REMOVAL_S = 2.0  # how long killed processes may take to leave a group
FAMILY = "ringside"
# CPU quotas are token buckets. With the usual period of 100 ms, a rank that waited for the network would
# compute at full speed for a while on saved tokens. A period of 5 ms without bursts prevents that.
PERIOD_US = 5000


class Limits:
    """The control groups of one node: one group, or with version 1 one for each controller."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._unified = (ROOT / "cgroup.controllers").is_file()

    @property
    def folders(self) -> list[Path]:
        """The groups of the node that exist."""
        return [family / self._node for family in _families() if (family / self._node).is_dir()]

    def make(
        self,
        cpu_share: float | None,
        memory_bytes: int | None,
        controllers: Sequence[str] = ("cpu", "memory"),
    ) -> None:
        """Create the groups with their limits; with version 1, one for each of `controllers`.

        Raises:
            InputError: If the kernel does not offer them.
        """
        try:
            if self._unified:
                self._make_unified(cpu_share, memory_bytes)
                return
            for controller in controllers:
                folder = ROOT / controller / FAMILY / self._node
                folder.mkdir(parents=True, exist_ok=True)
                if controller == "cpuset":  # files of a new group are empty
                    for group in (folder.parent, folder):
                        for file in ("cpuset.cpus", "cpuset.mems"):
                            (group / file).write_text((group.parent / file).read_text())
            if cpu_share:
                cpu = ROOT / "cpu" / FAMILY / self._node
                (cpu / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (cpu / "cpu.cfs_quota_us").write_text(str(int(cpu_share * PERIOD_US)))
            if memory_bytes:
                limit = ROOT / "memory" / FAMILY / self._node / "memory.limit_in_bytes"
                limit.write_text(str(memory_bytes))
        except OSError as error:
            problem, hint = (
                error.strerror or str(error),
                "the virtual cluster needs cgroups for cpu and memory",
            )
            raise InputError("not-possible-here", problem, file=error.filename, hint=hint) from None

    def _make_unified(self, cpu_share: float | None, memory_bytes: int | None) -> None:
        """Create the group of version 2."""
        for parent in (ROOT, ROOT / FAMILY):
            parent.mkdir(exist_ok=True)
            (parent / "cgroup.subtree_control").write_text("+cpu +memory")
        folder = ROOT / FAMILY / self._node
        folder.mkdir(exist_ok=True)
        if cpu_share:
            (folder / "cpu.max").write_text(f"{int(cpu_share * PERIOD_US)} {PERIOD_US}")
        if memory_bytes:
            (folder / "memory.max").write_text(str(memory_bytes))

    def processes(self) -> set[int]:
        """Return the processes of the node, including those in groups of a scheduler's jobs."""
        processes: set[int] = set()
        for folder in self.folders:
            for file in folder.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    processes.update(map(int, file.read_text().split()))
        return processes

    def kill(self, timeout_s: float = 10) -> None:
        """Kill every process of the node, for at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def remove(self) -> None:
        """Remove the groups, and those that a scheduler created in them."""
        for folder in self.folders:
            remove_group(folder)


def remove_group(group: Path) -> None:
    """Remove a control group and the groups in it; try for REMOVAL_S while killed processes leave them."""
    deadline = time.monotonic() + REMOVAL_S
    while group.is_dir():
        for folder in [*sorted(group.rglob("*"), reverse=True), group]:
            if folder.is_dir():
                with contextlib.suppress(OSError):
                    folder.rmdir()
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def nodes() -> list[str]:
    """Return the nodes that have groups."""
    return sorted({path.name for family in _families() for path in family.iterdir() if path.is_dir()})


def remove_family() -> None:
    """Remove the folders above the nodes' groups."""
    for family in _families():
        with contextlib.suppress(OSError):
            family.rmdir()


def _families() -> list[Path]:
    """Return the folders above the nodes' groups: one, or one for each controller."""
    return [family for family in (ROOT / FAMILY, *sorted(ROOT.glob(f"*/{FAMILY}"))) if family.is_dir()]
