"""Estimate how long a part of a layer takes: from a roofline of the device, or as measured.

In the roofline (Williams, Waterman & Patterson, CACM 2009), an operator takes the longer of two times: its
arithmetic at the device's rate, and its bytes at the memory's bandwidth. A backward pass does twice the
arithmetic of a forward pass, for gradients of weights and of inputs, and moves twice the bytes. Each kind of
product reaches a different share of the peak. Functions that belong to a layer, such as batch normalization,
are separate operators, which only read and write the layer's output (PASSES).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from models.graph import BYTES
from models.operations import FLOPS_PER_MAC
from models.soap import Degrees, Space, region_needed, region_of
from strategies.topology import DeviceRates

# How often the operators of a layer after the first one read or write its output, in a forward and in a
# backward pass. Batch normalization reads its input for the statistics, and again to normalize it; backward,
# it reads its input and the gradient of its output for two sums, and again for the gradient that it writes.
# An activation function reads and writes; backward, it also reads its output.
PASSES = {"batch_norm": (3, 5), "activation": (2, 3), "dropout": (2, 3), "positions": (2, 1)}


@dataclass(frozen=True)
class PartCost:
    """Seconds of one part of a layer: forward pass, backward pass, update of its weights."""

    forward: float
    backward: float
    update: float


def input_bytes(space: Space, layer_index: int, degrees: Degrees) -> int:
    """Return the bytes of all inputs of a part; if parts differ, of a part in the middle."""
    layer = space.layers[layer_index]
    middle = region_of(layer, degrees, math.prod(degrees) // 2)
    total = 0
    for edge in space.edges:
        if edge.target == layer_index and (
            region := region_needed(edge.needed, middle, space.layers[edge.source].shape)
        ):
            total += edge.element_bytes * math.prod(end - first for first, end in region)
    return total


def roofline(
    space: Space, layer_index: int, degrees: Degrees, device: DeviceRates, update_bytes: int
) -> PartCost:
    """Return the cost of a part on `device`; an update moves `update_bytes` per parameter."""
    layer = space.layers[layer_index]
    parameters = layer.part_parameters(degrees)
    reached = device.reached.get(layer.product, 1.0)
    arithmetic_s = FLOPS_PER_MAC * layer.part_macs(degrees) / (reached * device.flops)
    output_s = space.element_bytes * layer.elements / math.prod(degrees) / device.memory_bytes_s
    read_s = (input_bytes(space, layer_index, degrees) + BYTES * parameters) / device.memory_bytes_s
    product_s = max(arithmetic_s, read_s + output_s)
    passes = [PASSES[kind] for kind in layer.fused]
    launches_s = (1 + len(passes)) * device.launch_s
    return PartCost(
        launches_s + product_s + sum(forward for forward, _ in passes) * output_s,
        launches_s + 2 * product_s + sum(backward for _, backward in passes) * output_s,
        update_bytes * parameters / device.memory_bytes_s,
    )


def moved_bytes(space: Space, layer_index: int, degrees: Degrees) -> tuple[int, int]:
    """Return the bytes that a part reads and writes in its forward and in its backward pass."""
    layer = space.layers[layer_index]
    output = space.element_bytes * layer.elements // math.prod(degrees)
    product = input_bytes(space, layer_index, degrees) + BYTES * layer.part_parameters(degrees) + output
    passes = [PASSES[kind] for kind in layer.fused]
    forward, backward = (sum(counts) * output for counts in zip((0, 0), *passes, strict=True))
    return product + forward, 2 * product + backward


# A layer, its degrees, and the seconds of a PartCost.
MeasuredCost = tuple[str, tuple[int, ...], float, float, float]


def measured_costs(measured: Iterable[MeasuredCost]) -> Callable[[Space, int, Degrees], PartCost]:
    """Return a function that looks up measured costs; it raises ValueError for an unmeasured part."""
    costs = {(layer, tuple(degrees)): PartCost(*seconds) for layer, degrees, *seconds in measured}

    def cost(space: Space, layer_index: int, degrees: Degrees) -> PartCost:
        name = space.layers[layer_index].name
        try:
            return costs[name, degrees]
        except KeyError:
            raise ValueError(f"{name}: parts of {degrees} were not measured") from None

    return cost
