"""Estimate how long a part of a layer takes: from a roofline of the device, or as measured.

Williams, Waterman & Patterson (CACM 2009): an operator takes the longer of its arithmetic at the device's
rate and its bytes at the memory's bandwidth. A backward pass does twice the arithmetic of a forward pass, for
gradients of weights and of inputs, and moves twice the bytes.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from models.graph import BYTES
from models.operations import FLOPS_PER_MAC
from models.soap import Degrees, Space, region_needed, region_of
from strategies.topology import Device


@dataclass(frozen=True)
class Cost:
    """Seconds of one part of a layer: forward pass, backward pass, update of its weights."""

    forward: float
    backward: float
    update: float


def input_bytes(space: Space, place: int, degrees: Degrees) -> int:
    """Return the bytes of all inputs of a part; where parts differ, of one in the middle."""
    layer = space.layers[place]
    middle = region_of(layer, degrees, math.prod(degrees) // 2)
    total = 0
    for edge in space.edges:
        if edge.target == place and (
            region := region_needed(edge.needed, middle, space.layers[edge.source].shape)
        ):
            total += edge.element_bytes * math.prod(end - first for first, end in region)
    return total


def roofline(space: Space, place: int, degrees: Degrees, device: Device, update_bytes: int) -> Cost:
    """Return the cost of a part on `device`; an update moves `update_bytes` per parameter."""
    layer = space.layers[place]
    parameters = layer.part_parameters(degrees)
    arithmetic_s = FLOPS_PER_MAC * layer.part_macs(degrees) / device.flops
    output_bytes = BYTES * layer.elements / math.prod(degrees)
    memory_s = (
        input_bytes(space, place, degrees) + output_bytes + BYTES * parameters
    ) / device.memory_bytes_s
    forward_s = max(arithmetic_s, memory_s)
    update_s = update_bytes * parameters / device.memory_bytes_s
    return Cost(device.launch_s + forward_s, device.launch_s + 2 * forward_s, update_s)


Measured = tuple[str, tuple[int, ...], float, float, float]  # layer, degrees, seconds of a Cost


def measured_costs(measured: Iterable[Measured]) -> Callable[[Space, int, Degrees], Cost]:
    """Return a function that looks up measured costs; it raises ValueError for an unmeasured part."""
    costs = {(layer, tuple(degrees)): Cost(*seconds) for layer, degrees, *seconds in measured}

    def cost(space: Space, place: int, degrees: Degrees) -> Cost:
        name = space.layers[place].name
        try:
            return costs[name, degrees]
        except KeyError:
            raise ValueError(f"{name}: parts of {degrees} were not measured") from None

    return cost
