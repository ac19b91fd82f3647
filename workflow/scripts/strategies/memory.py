"""Count the memory of parts of layers, as the executor (ranks.libraries.pytorch_strategy) uses it.

From the forward to the backward pass of its parts, a device keeps their weights, gradients and optimizer
state, their inputs (`engine.received_bytes`), their outputs, and what autograd keeps of operators within a
part. The last two are counted here, operator by operator, as PyTorch keeps them on CPUs. Messages in flight,
the batch itself, and what an operator allocates and frees are not counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from models.graph import BYTES, NOT_TRAINED, Operator, pair
from models.layout import dimensions
from models.soap import HEADS_SUFFIX, LOSS, POSITIONS, SAMPLES, Degrees, Layer, Space

INDEX_BYTES = 8
#: Autograd keeps the input of these activations, and the result of others.
INPUT_KEEPERS = ("gelu", "gelu_tanh", "silu")
#: These operators return a view of their input, or the input itself.
VIEWS = ("flatten", "step", "steps")


@dataclass(frozen=True)
class Tensor:
    """Sizes of a part's output: elements, rows and size of its last dimension, bytes of an element."""

    elements: int
    rows: int
    channels: int
    element_bytes: int

    @property
    def n_bytes(self) -> int:
        """Bytes of all elements."""
        return self.elements * self.element_bytes


@dataclass(frozen=True)
class Saved:
    """What autograd keeps of an operator: its input, its result, and bytes of other tensors."""

    keeps_input: bool = False
    keeps_result: bool = False
    extra_bytes: int = 0


def kept_bytes(space: Space, layer_index: int, degrees: Degrees) -> int:
    """Return the bytes of a part's output, and of what its backward pass needs beyond its inputs."""
    layer = space.layers[layer_index]
    sizes = [size // degree for size, degree in zip(layer.shape, degrees, strict=True)]
    if layer.name == LOSS:
        return _loss_bytes(space, degrees, sizes)
    if layer.chain:
        first_bytes = _lstm_bytes(space, layer, sizes)
    elif layer.name.endswith(HEADS_SUFFIX):
        first_bytes = _heads_bytes(space, layer, sizes)
    else:
        first_bytes = _first_bytes(space, space.graph.by_name[layer.operators[0]], sizes)
    channels = sizes[dimensions(layer, space.graph)] * layer.cell
    elements = math.prod(sizes) * layer.cell
    output = Tensor(elements, elements // channels, channels, space.element_bytes)
    operators = [space.graph.by_name[name] for name in layer.operators if name in space.graph.by_name]
    saved = [_saved_by(operator, output) for operator in operators]
    total = first_bytes + sum(tensors.extra_bytes for tensors in saved)
    # A result is kept by its own operator, by the next one, or as the part's output.
    for number, tensors in enumerate(saved):
        is_needed = number == len(saved) - 1 or tensors.keeps_result or saved[number + 1].keeps_input
        if is_needed and operators[number].kind not in VIEWS:
            total += output.n_bytes
    return total if saved else total + output.n_bytes


def buffer_bytes(space: Space, layer_index: int, degrees: Degrees) -> int:
    """Return the bytes that a shard has besides trained weights: running statistics, an LSTM's zeros."""
    layer = space.layers[layer_index]
    operators = [space.graph.by_name[name] for name in layer.operators if name in space.graph.by_name]
    numbers = sum(
        math.prod(shape)
        for operator in operators
        for name, shape in operator.weights.items()
        if name in NOT_TRAINED
    )
    return BYTES * (numbers // (1 if layer.divides is None else degrees[layer.divides]) + 2 * layer.state)


def _saved_by(operator: Operator, output: Tensor) -> Saved:
    """Return what autograd keeps of an operator, except the inputs of its part."""
    match operator.kind:
        case "activation":
            keeps_input = operator["function"] in INPUT_KEEPERS
            return Saved(keeps_input, not keeps_input)
        case "dropout":
            return Saved(extra_bytes=output.n_bytes)  # The mask.
        case "batch_norm":
            return Saved(keeps_input=True, extra_bytes=2 * BYTES * output.channels)  # Mean and deviation.
        case "layer_norm":
            return Saved(keeps_input=True, extra_bytes=2 * BYTES * output.rows)
        case "rms_norm":
            return Saved(keeps_input=True, extra_bytes=BYTES * output.rows + output.n_bytes)
        case "max_pool":
            return Saved(keeps_input=True, extra_bytes=INDEX_BYTES * output.elements)
    return Saved()


def _first_bytes(space: Space, operator: Operator, sizes: Sequence[int]) -> int:
    """Return the bytes of an input that a layer's first operator has padded or joined, and of indices."""
    if operator.kind == "interactions":
        n_vectors, units = space.graph.by_name[operator.inputs[1]].shape
        n_pairs = n_vectors * (n_vectors + 1) // 2
        return space.element_bytes * sizes[SAMPLES] * (n_vectors + 1) * units + 2 * INDEX_BYTES * n_pairs
    padding = pair(operator.settings.get("padding", 0))
    if not any(padding):
        return 0
    samples, *region = sizes
    window = pair(operator["kernel"])
    for axis in range(2):
        region[axis] = operator["stride"] * (region[axis] - 1) + window[axis]
    return space.element_bytes * samples * region[0] * region[1] * _input_channels(operator, region[2])


def _input_channels(operator: Operator, channels: int) -> int:
    """Return the channels that a part of a convolution or a pooling reads for `channels` of its output."""
    return int(operator.weights["kernel"][2]) if operator.kind == "conv" else channels


def _heads_bytes(space: Space, layer: Layer, sizes: Sequence[int]) -> int:
    """Return the bytes of queries, keys and values, and of what the fused attention keeps.

    A part with some of the positions has a copy of these, and a mask. Rotated queries make it keep a result
    in another order than the output.
    """
    operator = space.graph.by_name[layer.name.removesuffix(HEADS_SUFFIX)]
    samples, length, heads = sizes[:3]  # The heads are those of keys.
    source = space.graph.by_name[operator.inputs[-1]].shape[0]
    queries = heads * operator["heads"] // operator.key_heads
    query_elements = samples * length * queries * operator.head_size
    elements = query_elements + 2 * samples * source * heads * operator.head_size
    sums = samples * queries * length  # Logarithms of sums of exponentials.
    if length < layer.shape[POSITIONS]:
        is_copied = operator.inputs[0] == operator.inputs[-1] and samples > 1 and length > 1
        elements += samples * length * operator.shape[-1] if is_copied else 0
        elements += length * source if operator["causal"] else 0
    if "rotary" in operator.settings:
        sums += layer.shape[POSITIONS] * operator.head_size  # Cosines and sines.
        elements += query_elements if queries > 1 and length > 1 else 0
    return BYTES * sums + space.element_bytes * elements


def _lstm_bytes(space: Space, layer: Layer, sizes: Sequence[int]) -> int:
    """Return the bytes that oneDNN keeps of an LSTM, and of its initial and final states."""
    samples, length, units = sizes[:3]
    inputs = space.graph.by_name[space.graph.by_name[layer.operators[0]].inputs[0]].shape[-1]
    states = 6.5 * max(inputs, units) + 4.7 * units
    workspace = int(space.element_bytes * samples * (4 * units * length + states * (length + 1)))
    copies = samples * length * (inputs + units)  # Inputs and outputs, positions first.
    return workspace + space.element_bytes * (copies + 6 * samples * units)


def _loss_bytes(space: Space, degrees: Degrees, sizes: Sequence[int]) -> int:
    """Return the bytes of logarithms of probabilities, of labels if they are copied, and of two numbers."""
    rows = math.prod(sizes)
    classes = space.graph.operators[-1].shape[-1]
    is_copied = degrees[POSITIONS] > 1 and sizes[SAMPLES] > 1 and sizes[POSITIONS] > 1
    return BYTES * (rows * classes + 2) + (INDEX_BYTES * rows if is_copied else 0)
