"""Processor and memory limits of a node, through the kernel's control groups (version 1 or 2, whichever is mounted)."""

import contextlib
import os
import signal
import time
from pathlib import Path

from common.errors import InputError

ROOT = Path("/sys/fs/cgroup")
FAMILY = "ringside"
# A share is a bucket of tokens: with the usual 100 ms a rank that waited for the network would compute at full speed
# for a while on what it saved. 5 ms and no burst keep it honest.
PERIOD_US = 5000


class Limits:
    """The control groups of one node."""

    def __init__(self, node: str) -> None:
        self._unified = (ROOT / "cgroup.controllers").is_file()
        if self._unified:
            self.folders = [ROOT / FAMILY / node]
        else:
            self.folders = [ROOT / controller / FAMILY / node for controller in ("cpu", "memory")]

    def make(self, cpu_share: float | None, memory_bytes: int | None) -> None:
        """Create the groups with their limits. InputError where the kernel does not offer them."""
        try:
            if self._unified:
                for parent in (ROOT, ROOT / FAMILY):
                    parent.mkdir(exist_ok=True)
                    (parent / "cgroup.subtree_control").write_text("+cpu +memory")
            for folder in self.folders:
                folder.mkdir(parents=True, exist_ok=True)
            if self._unified:
                if cpu_share:
                    (self.folders[0] / "cpu.max").write_text(f"{int(cpu_share * PERIOD_US)} {PERIOD_US}")
                if memory_bytes:
                    (self.folders[0] / "memory.max").write_text(str(memory_bytes))
            else:
                if cpu_share:
                    (self.folders[0] / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                    (self.folders[0] / "cpu.cfs_quota_us").write_text(str(int(cpu_share * PERIOD_US)))
                if memory_bytes:
                    (self.folders[1] / "memory.limit_in_bytes").write_text(str(memory_bytes))
        except OSError as error:
            raise InputError(
                f"{error.filename}: {error.strerror}; the virtual cluster needs cgroups for cpu and memory"
            ) from None

    def processes(self) -> set[int]:
        """The processes of the node."""
        found: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found.update(map(int, (folder / "cgroup.procs").read_text().split()))
        return found

    def kill(self, timeout_s: float = 10) -> None:
        """End every process of the node."""
        deadline = time.monotonic() + timeout_s
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def remove(self) -> None:
        """Remove the groups."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def nodes() -> list[str]:
    """The nodes that have groups."""
    families = [ROOT / FAMILY, ROOT / "cpu" / FAMILY, ROOT / "memory" / FAMILY]
    return sorted({path.name for family in families if family.is_dir() for path in family.iterdir() if path.is_dir()})


def remove_family() -> None:
    """Remove the folders above the nodes' groups."""
    for family in (ROOT / FAMILY, ROOT / "cpu" / FAMILY, ROOT / "memory" / FAMILY):
        with contextlib.suppress(OSError):
            family.rmdir()
