"""What a node counts by itself: processor time, throttling, bytes on the network, energy (energy.py). Read at an epoch's barriers.

Every reading is a total since some start that is the node's own; only differences mean something. A field is None where
the machine does not tell, and then stays None: nothing is estimated.
"""

import contextlib
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path

from ranks.worker.energy import SCOPES, Meters

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
MEMORY = Path("/proc/meminfo")
MODULES = Path("/sys/module")
NETWORK = Path("/proc/net/dev")  # unlike /sys, it shows the network namespace of who reads it


@dataclass(frozen=True)
class Reading:
    """Totals of one node: seconds over all its processors, bytes, joules by scope; `at`: when they were read, on its monotonic clock."""

    throttled_s: float | None
    sent_bytes: int | None
    joules: dict[str, float | None] = field(default_factory=dict)
    at: float = field(default_factory=time.monotonic)


class Node:
    """The counters of this node. `devices` are the numbers of the accelerators that the run uses on it."""

    def __init__(self, interface: str, devices: list[int]) -> None:
        self._interface = interface
        self._throttling = _throttling_files()
        self.meters = Meters(devices)

    def read(self) -> Reading:
        """All totals, now."""
        return Reading(self._throttled_s(), sent_bytes(self._interface), self.meters.read())

    def since(self, before: Reading) -> dict[str, float | None]:
        """What was added since `before`, as columns of epochs.csv; None where one of the two readings does not tell."""
        now = self.read()
        joules = self.meters.between(before.joules, now.joules, now.at - before.at, "an epoch")
        return {
            "throttled_s": _difference(now.throttled_s, before.throttled_s),
            "sent_bytes": _difference(now.sent_bytes, before.sent_bytes),
            **{f"energy_{scope}_j": joules.get(scope) for scope in SCOPES},
        }

    def _throttled_s(self) -> float | None:
        """How long the quotas of the control groups above this process held it back, all groups together."""
        found = [value for file in self._throttling if (value := _throttled(file)) is not None]
        return sum(found) if found else None


def _difference(now: float | None, then: float | None) -> float | None:
    return None if now is None or then is None else now - then


def machine() -> str:
    """What two nodes share that are one machine (nodes of the virtual cluster): the kernel's boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """This node's processor by its model, such as `AMD EPYC 7R13 Processor`; by its architecture where the kernel tells no model."""
    for line in cpuinfo.read_text(errors="replace").splitlines():
        name, _, said = line.partition(":")
        if name.strip() == "model name" and said.strip():
            return " ".join(said.split())
    return platform.machine()


def accelerator(number: int, gpus: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """The model of this node's accelerator, as the driver tells it to everyone, such as `NVIDIA H100 80GB HBM3`; else `cuda`."""
    for folder in sorted(gpus.glob("*"))[number : number + 1]:
        for line in (folder / "information").read_text(errors="replace").splitlines():
            name, _, said = line.partition(":")
            if name.strip() == "Model" and said.strip():
                return said.strip()
    return "cuda"


def driver() -> str | None:
    """The accelerators' driver in this node's kernel, such as `nvidia 580.65.06`; an image brings everything but that."""
    for name in ("nvidia", "amdgpu"):
        with contextlib.suppress(OSError):
            return f"{name} {(MODULES / name / 'version').read_text().strip()}"
    return None


def system() -> str:
    """What this rank runs on, such as `Debian GNU/Linux 12 (bookworm), Linux 6.1.0`: distribution (the image's, in one) and kernel."""
    kernel = f"{platform.system()} {platform.release()}"
    with contextlib.suppress(OSError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel}"
    return kernel


def memory_bytes() -> int:
    """This node's memory; where control groups leave its ranks less, what they leave."""
    total = next(line for line in MEMORY.read_text().splitlines() if line.startswith("MemTotal:"))
    limits = [group / name for group in _groups("memory") for name in ("memory.max", "memory.limit_in_bytes")]
    return min(
        [1024 * int(total.split()[1]), *(limit for file in limits if (limit := _number(file)) is not None)]
    )


def busy_seconds() -> float:
    """Processor seconds that all processes of this machine have used, over all cores.

    From the control groups' exact accounting where there is one. /proc/stat samples at the clock's ticks, and was seen
    to count half as much again under a quota of 5 ms periods; it is the fall-back. Time in interrupts is not counted: it
    is the network's, and mostly the run's own.
    """
    if (exact := _number(CGROUPS / "cpuacct" / "cpuacct.usage")) is not None:
        return exact / 1e9
    groups = [_fields(file).get("usage_usec") for file in CGROUPS.glob("*/cpu.stat")]
    if used := [used for used in groups if used is not None]:
        return sum(used) / 1e6
    return sum(_ticks()[:3])


def stolen_seconds() -> float:
    """Processor seconds that a hypervisor kept, over all cores (proc(5), /proc/stat)."""
    return _ticks()[7]


def _ticks() -> list[float]:
    with open("/proc/stat") as stat:
        return [int(field) / os.sysconf("SC_CLK_TCK") for field in stat.readline().split()[1:9]]


def sent_bytes(interface: str) -> int | None:
    """Bytes that left through the interface since it came up (proc(5), /proc/net/dev)."""
    for line in NETWORK.read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == interface:
            return int(counts.split()[8])
    return None


def _throttling_files() -> list[Path]:
    """cpu.stat of the control group of this process and of all above it."""
    return [file for group in _groups("cpu") if (file := group / "cpu.stat").is_file()]


def _groups(controller: str) -> list[Path]:
    """The control group of this process and all above it, of version 2 and of this controller's version 1."""
    groups: list[Path] = []
    for line in OWN_GROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / (controllers if controllers else "")
        group = root / path.lstrip("/")
        groups += [folder for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return groups


def _throttled(file: Path) -> float | None:
    fields = _fields(file)
    if not fields.get("nr_periods"):
        return None  # no quota
    if "throttled_usec" in fields:
        return fields["throttled_usec"] / 1e6
    return fields["throttled_time"] / 1e9 if "throttled_time" in fields else None


def _fields(file: Path) -> dict[str, int]:
    """A file of lines `name number`; empty where it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}
    return {}


def _number(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return None
