"""Whose the processor time of the machines is while ranks work: theirs, others', or a hypervisor's."""

import os
import resource
import time

from runs.worker.group import Group
from runs.worker.node import busy_seconds, machine, stolen_seconds


def own_cpu_s() -> float:
    """Processor seconds of this process, its threads and its ended children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


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
        seen = self._group.all_gather([machine(), *used])
        capacity = (time.monotonic() - self._opened) * (os.cpu_count() or 1)
        foreign, stolen = [0.0], [0.0]
        for here in {row[0] for row in seen}:
            own, busy, steal = zip(*(row[1:] for row in seen if row[0] == here), strict=True)
            foreign.append((max(busy) - sum(own)) / capacity)
            stolen.append(max(steal) / capacity)
        return max(foreign), max(stolen)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return own_cpu_s(), busy_seconds(), stolen_seconds()
