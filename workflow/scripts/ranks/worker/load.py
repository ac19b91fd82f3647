"""Split CPU time during training between ranks, other processes and the hypervisor."""

import contextlib
import os
import resource
import time
from pathlib import Path

from ranks.worker.group import Group
from ranks.worker.node import busy_seconds, machine, stolen_seconds


def own_cpu_s() -> float:
    """Return the CPU seconds of this process, its threads and its descendants.

    In a container, the process that serves the image's file system counts too; Apptainer's runtime is the
    parent of both.
    """
    usages = (resource.getrusage(target) for target in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    used = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    processes = _processes()
    mine = _below(os.getpid(), processes)
    if "APPTAINER_CONTAINER" in os.environ:
        mine |= {number for number, (parent, _) in processes.items() if parent == os.getppid()} - {
            os.getpid()
        }
    return used + sum(processes[number][1] for number in mine)


def _processes() -> dict[int, tuple[int, float]]:
    """Return the parent of every living process, and the CPU seconds of the process and its ended children.

    proc(5): in stat the parent is field 4, and times are fields 14 to 17, in ticks. The process's name before
    them may hold any bytes.
    """
    processes = {}
    # A glob of */stat looks at each file, and fails with ESRCH if a process ends meanwhile.
    for number in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = Path("/proc", number, "stat").read_bytes().rpartition(b")")[2].split()
            processes[int(number)] = (int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"))
    return processes


def _below(process: int, processes: dict[int, tuple[int, float]]) -> set[int]:
    """Return all living descendants of a process."""
    children = {number for number, (parent, _) in processes.items() if parent == process}
    return children.union(*(_below(child, processes) for child in children))


class Load:
    """CPU time used since this object was created."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._opened, self._before = time.monotonic(), self._now()

    def shares(self) -> tuple[float, float]:
        """Return the shares of CPU time that other processes used and that the hypervisor stole; collective.

        Each is the maximum over machines. Nodes that share a kernel (virtual or emulated) are one machine.
        """
        used = [now - before for now, before in zip(self._now(), self._before, strict=True)]
        capacity = (time.monotonic() - self._opened) * (os.cpu_count() or 1)
        rows = self._group.all_gather([machine(), capacity, *used])
        other_shares, stolen = [0.0], [0.0]
        for name in {row[0] for row in rows}:
            capacities, used_by_ranks, busy, steal = zip(
                *(row[1:] for row in rows if row[0] == name), strict=True
            )
            other_shares.append((max(busy) - sum(used_by_ranks)) / max(capacities))
            stolen.append(max(steal) / max(capacities))
        return max(other_shares), max(stolen)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return own_cpu_s(), busy_seconds(), stolen_seconds()
