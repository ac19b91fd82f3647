"""How long a part of a layer takes on a device: from a roofline of what is written of it, or as it was measured.

Williams, Waterman & Patterson (CACM 2009): an operator takes the longer of its arithmetic at the device's rate and of its bytes at the memory's.
A backward pass does the arithmetic of a forward pass twice, for the gradients of weights and of inputs, and moves twice the bytes.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from models.graph import BYTES
from models.soap import Degrees, Space, region_needed, region_of
from strategies.topology import Device

FLOPS = 2  # of a multiplication and an addition


@dataclass(frozen=True)
class Cost:
    """Seconds of one part of a layer: its forward pass, its backward pass, and the update of its weights."""

    forward: float
    backward: float
    update: float


def taken(space: Space, place: int, degrees: Degrees) -> int:
    """Bytes of all inputs that a part of a layer takes; of one in the middle, where parts differ."""
    layer = space.layers[place]
    middle = region_of(layer, degrees, math.prod(degrees) // 2)
    total = 0
    for edge in space.edges:
        if edge.target == place and (found := region_needed(edge.needed, middle, space.layers[edge.source].shape)):
            total += edge.element_bytes * math.prod(end - first for first, end in found)
    return total


def roofline(space: Space, place: int, degrees: Degrees, device: Device, update_bytes: int) -> Cost:
    """The cost of a part on `device`. `update_bytes`: that an update moves for each parameter."""
    layer = space.layers[place]
    parameters = layer.part_parameters(degrees)
    arithmetic = FLOPS * layer.part_macs(degrees) / device.flops
    made = BYTES * layer.elements / math.prod(degrees)
    moved = (taken(space, place, degrees) + made + BYTES * parameters) / device.memory_bytes_s
    once = max(arithmetic, moved)
    updated = update_bytes * parameters / device.memory_bytes_s
    return Cost(device.launch_s + once, device.launch_s + 2 * once, updated)


Measured = tuple[str, tuple[int, ...], float, float, float]  # a layer, its degrees, and the seconds of a Cost


def looked_up(measured: Iterable[Measured]) -> Callable[[Space, int, Degrees], Cost]:
    """Costs that were measured. What it gives raises ValueError for a part that was not."""
    known = {(layer, tuple(degrees)): Cost(*seconds) for layer, degrees, *seconds in measured}

    def cost(space: Space, place: int, degrees: Degrees) -> Cost:
        name = space.layers[place].name
        try:
            return known[name, degrees]
        except KeyError:
            raise ValueError(f"{name}: parts of {degrees} were not measured") from None

    return cost
