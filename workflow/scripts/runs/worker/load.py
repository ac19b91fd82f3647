"""Whose the processor time of the machines is while ranks work: theirs, others', or a hypervisor's."""

import contextlib
import os
import resource
import time
from pathlib import Path

from runs.worker.group import Group
from runs.worker.node import busy_seconds, machine, stolen_seconds


def own_cpu_s() -> float:
    """Processor seconds of this process, its threads, its ended children, and of what opens its image."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    used = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return used + (_siblings_cpu_s() if "APPTAINER_CONTAINER" in os.environ else 0.0)


def _siblings_cpu_s() -> float:
    """Processor seconds of the other children of this process's parent: in a container, of the file system that it reads.

    Apptainer's runtime is the parent of both (proc(5): the parent is field 4 of stat, user and system time 14 and 15).
    """
    used = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getppid() and int(stat.parent.name) != os.getpid():
                used += int(fields[11]) + int(fields[12])
    return used / os.sysconf("SC_CLK_TCK")


class Load:
    """The processor time that is used from now on."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._opened, self._before = time.monotonic(), self._now()

    def shares(self) -> tuple[float, float]:
        """Shares of a machine's processor time that others used and that a hypervisor kept; collective.

        Each is that of the machine where it is largest. Nodes with one kernel (virtual, emulated) are one machine.
        """
        used = [now - before for now, before in zip(self._now(), self._before, strict=True)]
        capacity = (time.monotonic() - self._opened) * (os.cpu_count() or 1)
        seen = self._group.all_gather([machine(), capacity, *used])
        foreign, stolen = [0.0], [0.0]
        for here in {row[0] for row in seen}:
            capacities, own, busy, steal = zip(*(row[1:] for row in seen if row[0] == here), strict=True)
            foreign.append((max(busy) - sum(own)) / max(capacities))
            stolen.append(max(steal) / max(capacities))
        return max(foreign), max(stolen)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return own_cpu_s(), busy_seconds(), stolen_seconds()
