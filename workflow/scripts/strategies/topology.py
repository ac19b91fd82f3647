"""Devices that a strategy may use, and links between them. Standard library only."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from models.graph import BYTES
from models.messages import BFLOAT16_BYTES
from models.precision import AMP, FP32

if TYPE_CHECKING:
    from declared.topologies import TopologyKeys


# Bytes of outputs, their gradients and messages. Weights, gradients of weights and optimizer states have 4
# bytes in both.
NUMBER_BYTES = {FP32: BYTES, AMP: BFLOAT16_BYTES}


@dataclass(frozen=True)
class DeviceRates:
    """Rates and overheads of a device.

    Attributes:
        flops: Floating point operations per second at the peak.
        memory_bytes_s: Bandwidth of its memory.
        memory_bytes: Size of its memory.
        launch_s: Minimum time of one operator.
        reached: Shares of the peak that products reach, by `models.soap.PRODUCTS`; 1 for those left out.
        large_share: Share that dense products reach if all their dimensions are large; None: unknown.
        send_s, send_byte_s: Time that it cannot compute for each sent message, and for each byte of it.
        receive_s, receive_byte_s: The same for received messages.
    """

    flops: float
    memory_bytes_s: float
    memory_bytes: float
    launch_s: float = 0.0
    reached: Mapping[str, float] = field(default_factory=dict)
    send_s: float = 0.0
    send_byte_s: float = 0.0
    receive_s: float = 0.0
    receive_byte_s: float = 0.0
    large_share: float | None = None


@dataclass(frozen=True)
class LinkTier:
    """Links of one kind, such as those between nodes.

    Attributes:
        units: Number of units that they join to one unit of the next tier, such as devices of a node.
        bytes_s: Bandwidth of a link in each direction.
        latency_s: Latency of a message.
        burst_bytes: Bytes that a link passes at once after a pause, as a token bucket.
        ring_bytes_s: Bandwidth of each of the 2 (n - 1) steps of a ring all-reduce; None: as a message.
        ring_latency_s: Latency of these steps; None: as a message.
        ring_channels: Number of concurrent all-reduces that share this latency.
    """

    units: int
    bytes_s: float
    latency_s: float = 0.0
    burst_bytes: float = 0.0
    ring_bytes_s: float | None = None
    ring_latency_s: float | None = None
    ring_channels: float = 1.0


@dataclass(frozen=True)
class Topology:
    """Devices, numbered from 0, and tiers of links from within a node outwards.

    A message uses links of the highest tier that it crosses: out of the sender's unit, and into the
    receiver's.
    """

    device: DeviceRates
    tiers: tuple[LinkTier, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the content of a search's job, in which `of` is the key of a tier's units."""
        tiers = [asdict(tier) for tier in self.tiers]
        return {
            "device": asdict(self.device),
            "levels": [{"of": tier.pop("units"), **tier} for tier in tiers],
        }

    @property
    def devices(self) -> int:
        """Number of devices."""
        return math.prod(tier.units for tier in self.tiers)

    def unit(self, tier: int, device: int) -> int:
        """Return the device's unit at a tier: itself on the lowest tier, its node on the next."""
        return device // math.prod(below.units for below in self.tiers[:tier])

    def tier_between(self, sender: int, receiver: int) -> int:
        """Return the tier of the link between two devices; 0 for a device and itself."""
        return next(
            tier
            for tier in range(len(self.tiers))
            if self.unit(tier + 1, sender) == self.unit(tier + 1, receiver)
        )


def topology_from_json(content: Mapping[str, Any]) -> Topology:
    """Return the topology that `to_json` has written."""
    tiers = tuple(
        LinkTier(units=tier["of"], **{k: v for k, v in tier.items() if k != "of"})
        for tier in content["levels"]
    )
    return Topology(DeviceRates(**content["device"]), tiers)


def read_topology(keys: "TopologyKeys", precision: str = FP32) -> Topology:
    """Return the topology of a file in config/topologies/, in units without prefixes.

    Args:
        keys: Content of the file.
        precision: One of NUMBER_BYTES, whose peak the device has.

    Raises:
        ValueError: If the file states no peak for this precision.
    """
    device = keys.device
    tflops = device.bf16_tflops if precision == AMP else device.tflops
    if tflops is None:
        raise ValueError("device.bf16_tflops is missing")
    reached = asdict(device.reached)
    return Topology(
        DeviceRates(
            flops=1e12 * tflops,
            memory_bytes_s=1e9 * device.memory_gb_s * reached.pop("memory"),
            memory_bytes=1e9 * device.memory_gb,
            launch_s=device.launch_us / 1e6,
            large_share=reached.pop("large"),
            reached=reached,
        ),
        tuple(LinkTier(level.of, 1e9 * level.gbit_s / 8, level.latency_us / 1e6) for level in keys.levels),
    )
