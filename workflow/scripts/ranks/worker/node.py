"""Counters of a node: CPU time, throttling, bytes on the network, energy; read at an epoch's barriers.

Every reading is a total since an arbitrary start; only differences are meaningful. A field that the machine
does not report is None: nothing is estimated.
"""

import contextlib
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ranks.worker.energy import SCOPES, Meters

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
MEMORY = Path("/proc/meminfo")
VMSTAT = Path("/proc/vmstat")
MODULES = Path("/sys/module")
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
AMD_GPUS = Path("/sys/bus/pci/drivers/amdgpu")
# Unlike /sys, it shows the network namespace of the reading process.
NETWORK = Path("/proc/net/dev")


@dataclass(frozen=True)
class Reading:
    """Totals of one node: seconds over all its processors, bytes, joules by scope.

    `at` is the time of the reading on the node's monotonic clock.
    """

    throttled_s: float | None
    sent_bytes: int | None
    joules: dict[str, float | None] = field(default_factory=dict)
    at: float = field(default_factory=time.monotonic)


class Node:
    """Counters of this node. `devices` names the accelerators that the run uses on it (devices.py)."""

    def __init__(self, interfaces: Sequence[str], devices: Sequence[str]) -> None:
        self._interfaces = interfaces
        self._throttling = _throttling_files()
        self.meters = Meters(devices)

    def read(self) -> Reading:
        """Return all totals as of now."""
        return Reading(self._throttled_s(), sent_bytes(self._interfaces), self.meters.read())

    def since(self, before: Reading) -> dict[str, float | None]:
        """Return the increase since `before`, as columns of epochs.csv.

        None if one of the two readings is missing.
        """
        now = self.read()
        joules = self.meters.between(before.joules, now.joules, now.at - before.at, "an epoch")
        return {
            "throttled_s": _difference(now.throttled_s, before.throttled_s),
            "sent_bytes": _difference(now.sent_bytes, before.sent_bytes),
            **{f"energy_{scope}_j": joules.get(scope) for scope in SCOPES},
        }

    def _throttled_s(self) -> float | None:
        """Return for how long CPU quotas throttled the control groups of this process, summed over groups."""
        seconds = [value for file in self._throttling if (value := _throttled(file)) is not None]
        return sum(seconds) if seconds else None


def _difference(now: float | None, then: float | None) -> float | None:
    return None if now is None or then is None else now - then


def machine() -> str:
    """Return the boot id of the kernel, which nodes on one machine (those of the virtual cluster) share."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model of this node's processor, such as `AMD EPYC 7R13 Processor`.

    If the kernel reports no model, return the architecture.
    """
    for line in cpuinfo.read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return " ".join(value.split())
    return platform.machine()


def accelerator(number: int) -> str:
    """Return the model of this node's accelerator, such as `NVIDIA H100 80GB HBM3`; `cuda` if it is unknown.

    Accelerators are counted by PCI address. AMD's driver names those of servers only.
    """
    for folder in sorted(NVIDIA_GPUS.glob("*"))[number : number + 1]:
        for line in (folder / "information").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Model" and value.strip():
                return value.strip()
    for folder in sorted(AMD_GPUS.glob("*:*"))[number : number + 1]:
        with contextlib.suppress(OSError):
            return (folder / "product_name").read_text(errors="replace").strip() or "cuda"
    return "cuda"


def driver() -> str | None:
    """Return the accelerators' driver in this node's kernel, such as `nvidia 580.65.06`."""
    for name in ("nvidia", "amdgpu"):
        with contextlib.suppress(OSError):
            return f"{name} {(MODULES / name / 'version').read_text().strip()}"
    return None


def system() -> str:
    """Return distribution and kernel, such as `Debian GNU/Linux 12 (bookworm), Linux 6.1.0`.

    In a container, the distribution is that of the image.
    """
    kernel = f"{platform.system()} {platform.release()}"
    with contextlib.suppress(OSError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel}"
    return kernel


def memory_bytes() -> int:
    """Return this node's memory, or the limit of its control groups if that is smaller."""
    total = next(line for line in MEMORY.read_text().splitlines() if line.startswith("MemTotal:"))
    limits = [group / name for group in _groups("memory") for name in ("memory.max", "memory.limit_in_bytes")]
    return min(
        [1024 * int(total.split()[1]), *(limit for file in limits if (limit := _number(file)) is not None)]
    )


def oom_kills() -> int | None:
    """Return how many processes of this control group the kernel has killed for lack of memory.

    Version 2 also counts processes of the groups below. Outside of all groups, the number is the machine's
    (proc(5), /proc/vmstat). It is None if the kernel does not count.
    """
    files = [group / name for group in _groups("memory") for name in ("memory.events", "memory.oom_control")]
    counts = [count for file in (*files, VMSTAT) if (count := _fields(file).get("oom_kill")) is not None]
    return counts[0] if counts else None


def busy_seconds() -> float:
    """Return the CPU seconds of all processes of this machine, over all cores.

    The source is the exact accounting of control groups if the machine has it, else /proc/stat. The latter
    samples at clock ticks, and was observed to report 50 % too much under a quota with periods of 5 ms. Time
    in interrupts does not count: most of it handles the run's own network traffic.
    """
    if (exact := _number(CGROUPS / "cpuacct" / "cpuacct.usage")) is not None:
        return exact / 1e9
    groups = [_fields(file).get("usage_usec") for file in CGROUPS.glob("*/cpu.stat")]
    if used := [used for used in groups if used is not None]:
        return sum(used) / 1e6
    return sum(_ticks()[:3])


def stolen_seconds() -> float:
    """Return the CPU seconds that a hypervisor stole, over all cores (proc(5), /proc/stat)."""
    return _ticks()[7]


def _ticks() -> list[float]:
    with open("/proc/stat") as stat:
        return [int(field) / os.sysconf("SC_CLK_TCK") for field in stat.readline().split()[1:9]]


def sent_bytes(interfaces: Sequence[str]) -> int | None:
    """Return the bytes sent through all interfaces since they came up (proc(5), /proc/net/dev).

    None if the node lacks one of them.
    """
    sent = {}
    for line in NETWORK.read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() in interfaces:
            sent[name.strip()] = int(counts.split()[8])
    return sum(sent.values()) if len(sent) == len(interfaces) else None


def _throttling_files() -> list[Path]:
    """Return cpu.stat of the control group of this process and of all its ancestors."""
    return [file for group in _groups("cpu") if (file := group / "cpu.stat").is_file()]


def _groups(controller: str) -> list[Path]:
    """Return this process's control group of both versions, and its ancestors."""
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
    """Return the numbers of a file with lines `name number`; {} if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}
    return {}


def _number(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return None
