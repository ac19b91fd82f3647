"""The devices that a strategy may use, and the links between them. Standard library only."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from declared.topologies import TopologyKeys


@dataclass(frozen=True)
class Device:
    """`flops`: floating point operations a second that matrix products reach; `memory_bytes_s`: bytes a second that it moves to and from its
    memory; `memory_bytes`: how much it has; `launch_s`: what starting one operator takes, at least. `send_s`, `receive_s`: for how long a
    message keeps it from computing, and for each byte `send_byte_s`, `receive_byte_s`."""

    flops: float
    memory_bytes_s: float
    memory_bytes: float
    launch_s: float = 0.0
    send_s: float = 0.0
    send_byte_s: float = 0.0
    receive_s: float = 0.0
    receive_byte_s: float = 0.0


@dataclass(frozen=True)
class Level:
    """`of` units, each with a link of `bytes_s` each way and `latency_s`, make one unit of the next level. `burst_bytes`: a link is a token
    bucket, which lets so many through at once after a pause. `ring_bytes_s` and `ring_latency_s`: what a sum around a ring reaches in each of its
    2 (n - 1) steps; None: as a message. `ring_channels`: so many sums at once share the latter."""

    of: int
    bytes_s: float
    latency_s: float = 0.0
    burst_bytes: float = 0.0
    ring_bytes_s: float | None = None
    ring_latency_s: float | None = None
    ring_channels: float = 1.0


@dataclass(frozen=True)
class Topology:
    """Devices, numbered from 0, and the levels of links between them, from within a node outwards. A message takes the links of the highest
    level that it crosses: out of the sender's unit, and into the receiver's."""

    device: Device
    levels: tuple[Level, ...]

    @property
    def devices(self) -> int:
        """How many there are."""
        return math.prod(level.of for level in self.levels)

    def unit(self, level: int, device: int) -> int:
        """Which unit of a level's links a device is in: itself on the lowest level, its node on the next."""
        return device // math.prod(below.of for below in self.levels[:level])

    def level_between(self, one: int, other: int) -> int:
        """The level of the link between two devices; 0 for a device and itself."""
        return next(
            level for level in range(len(self.levels)) if self.unit(level + 1, one) == self.unit(level + 1, other)
        )


def of_file(written: "TopologyKeys") -> Topology:
    """What a file of config/topologies/ says, in units without prefixes."""
    device = written.device
    return Topology(
        Device(
            flops=1e12 * device.tflops * device.reached,
            memory_bytes_s=1e9 * device.memory_gb_s,
            memory_bytes=1e9 * device.memory_gb,
            launch_s=device.launch_us / 1e6,
        ),
        tuple(Level(level.of, 1e9 * level.gbit_s / 8, level.latency_us / 1e6) for level in written.levels),
    )
