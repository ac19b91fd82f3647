"""Define the search space of strategies: layers, dimensions that can be cut, and inputs of each part.

The space is SOAP (Jia, Zaharia & Aiken, MLSys 2019, section 4): the output of a layer is cut into equal parts
along samples (S), along positions, rows and columns (attributes, A), and along channels, units or heads
(parameters, P); each part has its own device (operators, O). A region is a half-open range in each of
DIMENSIONS dimensions, the first of which is samples; an output with fewer dimensions is padded with
dimensions of size 1.

Elementwise functions, dropout, batch normalization and learned positions belong to the layer of their input
if nothing else uses that input. Attention is two layers: its heads, and the output projection. An LSTM is a
chain: each part along positions needs the final state of the part before it. The last layer is the loss.
Standard library only, like models.graph.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from models.graph import BYTES, Graph, Operator, is_trained, pair

DIMENSIONS = 4
LOSS = "loss"
HEADS_SUFFIX = "_heads"  # ending of the name of an attention's heads
READ = -1  # index of samples, which every device has, in place of a layer
# Operators that belong to the layer of their input.
FUSED_KINDS = ("activation", "dropout", "batch_norm", "positions")
SAMPLES, POSITIONS = 0, 1
Degrees = tuple[int, int, int, int]
# Kinds of products, which libraries compute by algorithms of different speed. Convolutions with unit stride
# and windows of 3 x 3 and more have fast algorithms (Winograd).
CONVOLUTION, WIDE_CONVOLUTION, DENSE = "convolution", "wide_convolution", "dense"
ATTENTION, RECURRENT = "attention", "recurrent"
PRODUCTS = (CONVOLUTION, WIDE_CONVOLUTION, DENSE, ATTENTION, RECURRENT)


@dataclass(frozen=True)
class Needed:
    """The range of one dimension of an input that a region of the output needs.

    For the range [first, end) of the output along `dimension` it is [stride first - padding, stride (end - 1)
    - padding + kernel), clipped to the input; without `dimension` it is `fixed`.
    """

    dimension: int | None = None
    stride: int = 1
    padding: int = 0
    kernel: int = 1
    fixed: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Edge:
    """The output of one layer as an input of another.

    Attributes:
        source: Index of the layer, or READ.
        target: Index of the layer that uses it.
        needed: Range of each dimension that is needed.
        element_bytes: Bytes per element.
        first_only: Whether only the first part of a chain needs it: it is the final state of another chain.
    """

    source: int
    target: int
    needed: tuple[Needed, ...]
    element_bytes: int
    first_only: bool = False


@dataclass(frozen=True)
class Layer:
    """Operators that are partitioned together.

    Attributes:
        name: Name of the first operator.
        operators: Names of the operators.
        shape: Shape of the output for a batch.
        cut: Dimensions along which the layer can be cut.
        macs: Multiply-accumulate operations in the forward pass of a batch.
        product: One of PRODUCTS, what these are.
        fused: Kinds of the operators behind the first one.
        repeated: Those of keys and values, which each part along positions repeats.
        parameters: Number of trained parameters.
        divides: The dimension along which a cut divides parameters, too; None if each part has all of them.
        shared: Index of the layer whose parameters it uses.
        cell: Numbers per element of the output.
        chain: Whether parts along positions depend on each other.
        state: Numbers per sample that one part of a chain passes to the next.
    """

    name: str
    operators: tuple[str, ...]
    shape: tuple[int, int, int, int]
    cut: tuple[int, ...]
    macs: int = 0
    product: str = DENSE
    fused: tuple[str, ...] = ()
    repeated: int = 0
    parameters: int = 0
    divides: int | None = None
    shared: int | None = None
    cell: int = 1
    chain: bool = False
    state: int = 0

    @property
    def elements(self) -> int:
        """Numbers in the output for a batch."""
        return math.prod(self.shape) * self.cell

    def part_macs(self, degrees: Degrees) -> int:
        """Return the multiply-accumulate operations in the forward pass of one part."""
        parts = math.prod(degrees)
        return (self.macs - self.repeated) // parts + self.repeated * degrees[POSITIONS] // parts

    def part_parameters(self, degrees: Degrees) -> int:
        """Return the number of parameters of one part."""
        return self.parameters // (1 if self.divides is None else degrees[self.divides])

    def configurations(self, max_parts: int) -> Iterator[Degrees]:
        """Yield all degrees that cut the layer into at most `max_parts` equal parts."""
        choices = [
            [degree for degree in range(1, min(size, max_parts) + 1) if size % degree == 0]
            if dimension in self.cut
            else [1]
            for dimension, size in enumerate(self.shape)
        ]
        for degrees in itertools.product(*choices):
            if math.prod(degrees) <= max_parts:
                yield degrees  # type: ignore[misc]


@dataclass(frozen=True)
class Space:
    """The layers of a model for one batch size, and their inputs.

    Attributes:
        graph: The model.
        batch: Samples per batch.
        element_bytes: Bytes of a number in outputs and their gradients.
        layers: Layers in topological order.
        edges: Edges between layers, sorted by target, then in the order of its inputs.
        reads: Edges from samples.
    """

    graph: Graph
    batch: int
    element_bytes: int
    layers: tuple[Layer, ...]
    edges: tuple[Edge, ...]
    reads: tuple[Edge, ...]

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.graph.model


FULL_RANGE = Needed(fixed=(0, 2**31))


def divide(graph: Graph, batch: int, element_bytes: int = BYTES) -> Space:
    """Return the space of a model for batches of `batch` samples, with outputs of `element_bytes`.

    Raises:
        ValueError: If an operator cannot be divided.
    """
    builder = _SpaceBuilder(graph, batch, element_bytes)
    for operator in graph.operators:
        builder.add(operator)
    last = graph.operators[-1]
    builder.add_loss(last)
    edges, reads = (
        [edge for edge in builder.edges if (edge.source == READ) == read] for read in (False, True)
    )
    return Space(graph, batch, element_bytes, tuple(builder.layers), tuple(edges), tuple(reads))


def part_of(index: int, degrees: Sequence[int]) -> tuple[int, ...]:
    """Return the index of a part in each dimension; the last dimension changes fastest."""
    places = []
    for degree in reversed(degrees):
        index, place = divmod(index, degree)
        places.append(place)
    return tuple(reversed(places))


def region_of(layer: Layer, degrees: Degrees, index: int) -> tuple[tuple[int, int], ...]:
    """Return the region of a layer's output that one of its parts computes."""
    sizes = [size // degree for size, degree in zip(layer.shape, degrees, strict=True)]
    return tuple(
        (place * size, (place + 1) * size) for place, size in zip(part_of(index, degrees), sizes, strict=True)
    )


def region_needed(
    needed: Sequence[Needed], output: Sequence[tuple[int, int]], shape: Sequence[int]
) -> tuple[tuple[int, int], ...] | None:
    """Return the region of an input of this shape that an output region needs, or None if it is empty."""
    region = []
    for rule, size in zip(needed, shape, strict=True):
        first, end = rule.fixed
        if rule.dimension is not None:
            first, end = output[rule.dimension]
            first, end = (
                rule.stride * first - rule.padding,
                rule.stride * (end - 1) - rule.padding + rule.kernel,
            )
        first, end = max(first, 0), min(end, size)
        if first >= end:
            return None
        region.append((first, end))
    return tuple(region)


def _padded(sizes: Sequence[int]) -> tuple[int, int, int, int]:
    first, second, third, fourth = [*sizes, *[1] * (DIMENSIONS - len(sizes))]
    return first, second, third, fourth


def _identity(n_dimensions: int) -> list[Needed]:
    """Return rules by which the input region equals the output region."""
    return [Needed(dimension) for dimension in range(n_dimensions)]


@dataclass
class _SpaceBuilder:
    graph: Graph
    batch: int
    element_bytes: int
    layers: list[Layer] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    layer_of: dict[str, int | None] = field(default_factory=dict)  # layer of each operator; None: samples
    # First position of samples that an operator reads.
    begins: dict[str, int] = field(default_factory=dict)

    def add(self, operator: Operator) -> None:
        inputs = [self.layer_of[name] for name in operator.inputs]
        if operator.kind == "input":
            self.layer_of[operator.name], self.begins[operator.name] = None, 0
        elif operator.kind == "steps" and inputs == [None]:
            self.layer_of[operator.name] = None
            self.begins[operator.name] = self.begins[operator.inputs[0]] + operator["start"]
        elif operator.kind == "final_state":
            self.layer_of[operator.name] = inputs[0]
        elif operator.kind in FUSED_KINDS and inputs[0] is not None and self._is_alone(operator):
            self._join(inputs[0], operator)
        elif operator.kind == "attention":
            self._attention(operator)
        else:
            try:
                add_layer = _ADD[operator.kind]
            except KeyError:
                raise ValueError(f"{operator.name}: no plan knows how to divide {operator.kind}") from None
            add_layer(self, operator)

    def add_loss(self, last: Operator) -> None:
        """Add the loss, which needs all logits of a sample or of a position."""
        places = last.shape[:-1]
        self._layer(
            LOSS,
            (),
            (self.batch, *places),
            range(1 + len(places)),
            [(last.name, [*_identity(1 + len(places)), FULL_RANGE])],
        )

    def _is_alone(self, operator: Operator) -> bool:
        """Return whether an operator is the only user of its input, and can use it however it is cut."""
        needs_all_units = operator.kind == "activation" and operator["function"] == "softmax"
        return self.graph.users(operator.inputs[0]) == [operator] and not needs_all_units

    def _join(self, place: int, operator: Operator) -> None:
        layer = self.layers[place]
        self.layers[place] = replace(
            layer,
            operators=(*layer.operators, operator.name),
            fused=(*layer.fused, operator.kind),
            parameters=layer.parameters + _trained(operator),
        )
        self.layer_of[operator.name] = place

    def _layer(
        self,
        name: str,
        operators: tuple[str, ...],
        sizes: Sequence[int],
        cut: Sequence[int],
        inputs: Sequence[tuple[str, Sequence[Needed]]],
        **attributes: object,
    ) -> None:
        """Add a layer, with edges from its inputs."""
        target = len(self.layers)
        self.layers.append(Layer(name, operators, _padded(sizes), tuple(cut), **attributes))  # type: ignore[arg-type]
        for source, needed in inputs:
            place = self.layer_of[source]
            if place is None:
                begin = self.begins[source]
                rules = [
                    replace(rule, padding=rule.padding - begin) if begin and rule.dimension == 1 else rule
                    for rule in needed
                ]
                rules += [FULL_RANGE] * (DIMENSIONS - len(rules))
                self.edges.append(Edge(READ, target, tuple(rules), BYTES))
                continue
            of_state = source in self.graph.by_name and self.graph.by_name[source].kind == "final_state"
            last = self.layers[place].shape[POSITIONS]
            rules = (
                [Needed(SAMPLES), Needed(fixed=(last - 1, last)), FULL_RANGE] if of_state else list(needed)
            )
            rules += [FULL_RANGE] * (DIMENSIONS - len(rules))
            size = self.element_bytes * self.layers[place].cell * (2 if of_state else 1)
            self.edges.append(Edge(place, target, tuple(rules), size, of_state))
        for operator in operators:
            self.layer_of[operator] = target

    def _sizes(self, operator: Operator) -> tuple[int, ...]:
        return (self.batch, *operator.shape)

    def _windowed(self, operator: Operator) -> None:
        """Add a convolution or a pooling: rows and columns need windows, convolutions all channels."""
        rules = [Needed(SAMPLES)]
        for dimension, kernel, padding in zip(
            (1, 2), pair(operator["kernel"]), pair(operator["padding"]), strict=True
        ):
            rules.append(Needed(dimension, operator["stride"], padding, kernel))
        rules.append(FULL_RANGE if operator.kind == "conv" else Needed(3))
        self._plain(operator, range(4), rules, divides=3)

    def _plain(
        self, operator: Operator, cut: Sequence[int], *needed: Sequence[Needed], divides: int | None = None
    ) -> None:
        rules = needed if len(needed) == len(operator.inputs) else list(needed) * len(operator.inputs)
        self._layer(
            operator.name,
            (operator.name,),
            self._sizes(operator),
            cut,
            list(zip(operator.inputs, rules, strict=True)),
            macs=self.batch * operator.macs,
            product=_product(operator),
            parameters=_trained(operator),
            divides=divides,
        )

    def _elementwise(self, operator: Operator) -> None:
        dimensions = 1 + len(operator.shape)
        self._plain(operator, range(dimensions), _identity(dimensions), divides=dimensions - 1)

    def _all_units(self, operator: Operator) -> None:
        """Add layer normalization or softmax, which need all units."""
        last = len(operator.shape)
        self._plain(operator, range(last), [*_identity(last), FULL_RANGE])

    def _dense(self, operator: Operator) -> None:
        last = len(operator.shape)
        self._plain(operator, range(last + 1), [*_identity(last), FULL_RANGE], divides=last)

    def _tied(self, operator: Operator) -> None:
        last = len(operator.shape)
        self._plain(operator, range(last), [*_identity(last), FULL_RANGE])
        place = next(i for i, layer in enumerate(self.layers) if operator["of"] in layer.operators)
        table = self.layers[place]
        # Each part uses the full table.
        self.layers[place] = replace(table, cut=table.cut[:-1], divides=None)
        shared = math.prod(self.graph.by_name[operator["of"]].weights["table"])
        self.layers[-1] = replace(self.layers[-1], parameters=shared, shared=place)

    def _embedding(self, operator: Operator) -> None:
        self._plain(operator, range(3), _identity(2), divides=2)

    def _gates(self, operator: Operator) -> None:
        self._plain(operator, range(4), _identity(4), [Needed(SAMPLES), Needed(3)], divides=3)

    def _pooled(self, operator: Operator) -> None:
        self._plain(operator, range(2), [Needed(SAMPLES), FULL_RANGE, FULL_RANGE, Needed(1)], divides=1)

    def _flattened(self, operator: Operator) -> None:
        self._plain(operator, (SAMPLES,), [Needed(SAMPLES)])

    def _step(self, operator: Operator) -> None:
        length = self.graph.by_name[operator.inputs[0]].shape[0]
        index = operator["index"] % length
        self._plain(operator, (0, 1), [Needed(SAMPLES), Needed(fixed=(index, index + 1)), Needed(1)])

    def _shifted(self, operator: Operator) -> None:
        """Add positions of another sequence: those from a start, or all after a class token."""
        shift = -operator["start"] if operator.kind == "steps" else 1
        self._plain(
            operator, range(3), [Needed(SAMPLES), Needed(POSITIONS, padding=shift), Needed(2)], divides=2
        )

    def _gathered(self, operator: Operator) -> None:
        x, positions = [Needed(SAMPLES), FULL_RANGE, Needed(2)], _identity(2)
        self._plain(operator, range(3), x, positions, divides=2)

    def _as_sequence(self, operator: Operator) -> None:
        self._plain(operator, (0, 2), [Needed(SAMPLES), FULL_RANGE, FULL_RANGE, Needed(2)])

    def _concatenated(self, operator: Operator) -> None:
        last, offset, rules = len(operator.shape), 0, []
        for name in operator.inputs:
            rules.append([*_identity(last), Needed(last, padding=offset)])
            offset += self.graph.by_name[name].shape[-1]
        self._plain(operator, range(last + 1), *rules, divides=last)

    def _lstm(self, operator: Operator) -> None:
        units = operator["units"]
        inputs: list[tuple[str, Sequence[Needed]]] = [(operator.inputs[0], [*_identity(2), FULL_RANGE])]
        inputs += [(name, ()) for name in operator.inputs[1:]]
        self._layer(
            operator.name,
            (operator.name,),
            self._sizes(operator),
            (SAMPLES, POSITIONS),
            inputs,
            macs=self.batch * operator.macs,
            product=RECURRENT,
            parameters=_trained(operator),
            chain=True,
            state=2 * units,
        )

    def _attention(self, operator: Operator) -> None:
        """Add two layers: the heads with their input projections, and the output projection.

        Heads of queries that share a head of keys are in one part.
        """
        length, units = operator.shape
        heads, x, source = operator.key_heads, operator.inputs[0], operator.inputs[-1]
        kernels = {name: math.prod(shape) for name, shape in operator.weights.items()}
        last = kernels["output_kernel"] + kernels.get("output_bias", 0)
        output_macs = self.batch * length * units**2
        keys = (
            self.batch
            * self.graph.by_name[source].shape[0]
            * (kernels["key_kernel"] + kernels["value_kernel"])
        )
        inputs: list[tuple[str, Sequence[Needed]]] = [(source, [Needed(SAMPLES), FULL_RANGE, FULL_RANGE])]
        if source != x:
            inputs.append((x, [*_identity(2), FULL_RANGE]))
        name = operator.name + HEADS_SUFFIX
        self._layer(
            name,
            (name,),
            (self.batch, length, heads),
            range(3),
            inputs,
            macs=self.batch * operator.macs - output_macs,
            product=ATTENTION,
            repeated=keys,
            parameters=sum(kernels.values()) - last,
            divides=2,
            cell=units // heads,
        )
        self._layer(
            operator.name,
            (operator.name,),
            (self.batch, length, units),
            range(3),
            [(name, [*_identity(2), FULL_RANGE])],
            macs=output_macs,
            parameters=last,
            divides=2,
        )


_ADD = {
    **dict.fromkeys(("conv", "depthwise_conv", "max_pool", "average_pool"), _SpaceBuilder._windowed),
    **dict.fromkeys(
        ("batch_norm", "dropout", "add", "log_counts", "multiply", "positions"), _SpaceBuilder._elementwise
    ),
    "activation": lambda builder, operator: (
        builder._all_units(operator) if operator["function"] == "softmax" else builder._elementwise(operator)
    ),
    "multiply_channels": _SpaceBuilder._gates,
    "global_average_pool": _SpaceBuilder._pooled,
    **dict.fromkeys(("flatten", "interactions", "up_conv"), _SpaceBuilder._flattened),
    "dense": _SpaceBuilder._dense,
    "tied_dense": _SpaceBuilder._tied,
    **dict.fromkeys(("add_vector", "layer_norm", "rms_norm"), _SpaceBuilder._all_units),
    "embedding": _SpaceBuilder._embedding,
    "class_token": _SpaceBuilder._shifted,
    "lstm": _SpaceBuilder._lstm,
    "step": _SpaceBuilder._step,
    "steps": _SpaceBuilder._shifted,
    "gather": _SpaceBuilder._gathered,
    "sequence": _SpaceBuilder._as_sequence,
    "concatenate": _SpaceBuilder._concatenated,
}


def _product(operator: Operator) -> str:
    """Return what the products of an operator are."""
    if operator.kind not in ("conv", "depthwise_conv"):
        return DENSE
    is_wide = operator.kind == "conv" and min(pair(operator["kernel"])) >= 3 and operator["stride"] == 1
    return WIDE_CONVOLUTION if is_wide else CONVOLUTION


def _trained(operator: Operator) -> int:
    return sum(
        math.prod(shape) for name, shape in operator.weights.items() if is_trained(f"{operator.name}.{name}")
    )
