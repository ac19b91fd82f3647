"""What of a model can be divided, and how: layers, their dimensions, and which region of its inputs a region of an output needs.

The space is that of Jia, Zaharia & Aiken (MLSys 2019, section 4): a layer's output is cut into equal parts along its samples (S), along
positions, rows and columns (attributes, A), and along channels, units or heads (parameters, P); each part has a device of its own
(operators, O). A region is a half-open range in each of DIMENSIONS dimensions, of which the first is samples; dimensions that an output
lacks have size 1.

Operators without a choice of their own are part of the layer before them: functions of single elements, dropout, batch normalization and
learned positions that alone use what it makes. Attention is two layers: its heads, and the product behind them. An LSTM is a chain: each
part along its positions needs the state that the part before leaves. Behind the last operator stands the loss.
Standard library only, as models.graph.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from models.graph import BYTES, Graph, Operator, is_trained, pair

DIMENSIONS = 4
LOSS = "loss"
READ = -1  # in place of a layer: samples, which every device has
FOLLOWS = (
    "activation",
    "dropout",
    "batch_norm",
    "positions",
)  # part of the layer before them, where that alone makes what they take
SAMPLES, POSITIONS = 0, 1
Degrees = tuple[int, int, int, int]


@dataclass(frozen=True)
class Needed:
    """Of one dimension of an input: of an output's range [first, end) in dimension `of` the range [`stride` first - `padding`,
    `stride` (end - 1) - `padding` + `kernel`), as far as there is such; without `of` the range `fixed`."""

    of: int | None = None
    stride: int = 1
    padding: int = 0
    kernel: int = 1
    fixed: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Edge:
    """That the layer `target` takes what the layer `source` makes, both by their place; or READ.
    `needed`: of each dimension of the latter; `element_bytes`: at one place of it; `first_only`: the first part along a chain takes the
    state in which the source ends."""

    source: int
    target: int
    needed: tuple[Needed, ...]
    element_bytes: int
    first_only: bool = False


@dataclass(frozen=True)
class Layer:
    """What has one configuration.

    `shape` of its output for a whole batch, `cell` numbers at each place of it; `cut`: dimensions along which it can be cut; `divides`: the
    dimension that cuts its `parameters`, too (None: each part has all); `shared`: the layer whose parameters it uses. `macs`: multiplications and
    additions, in pairs, of a batch's forward pass; `repeated` of them are those of keys and values, which each part along positions makes anew.
    `chain`: whether parts along positions follow each other, with `state` numbers of each sample between them.
    """

    name: str
    operators: tuple[str, ...]
    shape: tuple[int, int, int, int]
    cut: tuple[int, ...]
    macs: int = 0
    repeated: int = 0
    parameters: int = 0
    divides: int | None = None
    shared: int | None = None
    cell: int = 1
    chain: bool = False
    state: int = 0

    @property
    def elements(self) -> int:
        """Numbers of its output for a whole batch."""
        return math.prod(self.shape) * self.cell

    def part_macs(self, degrees: Degrees) -> int:
        """Multiplications and additions, in pairs, of one part's forward pass."""
        parts = math.prod(degrees)
        return (self.macs - self.repeated) // parts + self.repeated * degrees[POSITIONS] // parts

    def part_parameters(self, degrees: Degrees) -> int:
        """Parameters that one part has."""
        return self.parameters // (1 if self.divides is None else degrees[self.divides])

    def configurations(self, most_parts: int) -> Iterator[Degrees]:
        """All degrees by which it can be cut into equal parts, `most_parts` of them at most."""
        choices = [
            [degree for degree in range(1, min(size, most_parts) + 1) if size % degree == 0]
            if dimension in self.cut
            else [1]
            for dimension, size in enumerate(self.shape)
        ]
        for degrees in itertools.product(*choices):
            if math.prod(degrees) <= most_parts:
                yield degrees  # type: ignore[misc]


@dataclass(frozen=True)
class Space:
    """A model's layers for batches of so many samples, each after all that it takes from; the edges between them, by target, for each
    in the order of its inputs; and what layers read of samples."""

    model: str
    batch: int
    layers: tuple[Layer, ...]
    edges: tuple[Edge, ...]
    reads: tuple[Edge, ...]


WHOLE = Needed(fixed=(0, 2**31))


def divide(graph: Graph, batch: int) -> Space:
    """The layers of a model. ValueError for an operator that has no place among them."""
    made = _Made(graph, batch)
    for operator in graph.operators:
        made.add(operator)
    last = graph.operators[-1]
    made.loss(last)
    edges, reads = ([edge for edge in made.edges if (edge.source == READ) == read] for read in (False, True))
    return Space(graph.model, batch, tuple(made.layers), tuple(edges), tuple(reads))


def part_of(index: int, degrees: Sequence[int]) -> tuple[int, ...]:
    """The place of a part in each dimension; the last dimension changes fastest."""
    places = []
    for degree in reversed(degrees):
        index, place = divmod(index, degree)
        places.append(place)
    return tuple(reversed(places))


def region_of(layer: Layer, degrees: Degrees, index: int) -> tuple[tuple[int, int], ...]:
    """The region of a layer's output that one of its parts makes."""
    sizes = [size // degree for size, degree in zip(layer.shape, degrees, strict=True)]
    return tuple((place * size, (place + 1) * size) for place, size in zip(part_of(index, degrees), sizes, strict=True))


def region_needed(
    needed: Sequence[Needed], of: Sequence[tuple[int, int]], shape: Sequence[int]
) -> tuple[tuple[int, int], ...] | None:
    """What a region `of` an output needs of an input of this shape; None where that is nothing."""
    found = []
    for one, size in zip(needed, shape, strict=True):
        first, end = one.fixed
        if one.of is not None:
            first, end = of[one.of]
            first, end = one.stride * first - one.padding, one.stride * (end - 1) - one.padding + one.kernel
        first, end = max(first, 0), min(end, size)
        if first >= end:
            return None
        found.append((first, end))
    return tuple(found)


def _padded(sizes: Sequence[int]) -> tuple[int, int, int, int]:
    first, second, third, fourth = [*sizes, *[1] * (DIMENSIONS - len(sizes))]
    return first, second, third, fourth


def _same(dimensions: int) -> list[Needed]:
    """That each of so many dimensions is needed as the output has it."""
    return [Needed(of) for of in range(dimensions)]


@dataclass
class _Made:
    graph: Graph
    batch: int
    layers: list[Layer] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    of: dict[str, int | None] = field(default_factory=dict)  # operator -> its layer; None: samples
    begins: dict[str, int] = field(
        default_factory=dict
    )  # operator -> the first of the samples' positions that it takes

    def add(self, operator: Operator) -> None:
        inputs = [self.of[name] for name in operator.inputs]
        if operator.kind == "input":
            self.of[operator.name], self.begins[operator.name] = None, 0
        elif operator.kind == "steps" and inputs == [None]:
            self.of[operator.name] = None
            self.begins[operator.name] = self.begins[operator.inputs[0]] + operator["start"]
        elif operator.kind == "final_state":
            self.of[operator.name] = inputs[0]
        elif operator.kind in FOLLOWS and inputs[0] is not None and self._is_alone(operator):
            self._join(inputs[0], operator)
        elif operator.kind == "attention":
            self._attention(operator)
        else:
            try:
                added = _ADD[operator.kind]
            except KeyError:
                raise ValueError(f"{operator.name}: no plan knows how to divide {operator.kind}") from None
            added(self, operator)

    def loss(self, last: Operator) -> None:
        """The loss of the logits: it needs all classes of a sample, or of a position."""
        places = last.shape[:-1]
        self._layer(
            LOSS, (), (self.batch, *places), range(1 + len(places)), [(last.name, [*_same(1 + len(places)), WHOLE])]
        )

    def _is_alone(self, operator: Operator) -> bool:
        """Whether nothing but this operator uses what it takes, and can do so wherever that is cut."""
        (user, *others) = self.graph.users(operator.inputs[0])
        whole_units = operator.kind == "activation" and operator["function"] == "softmax"
        return user is operator and not others and not whole_units

    def _join(self, place: int, operator: Operator) -> None:
        layer = self.layers[place]
        self.layers[place] = replace(
            layer, operators=(*layer.operators, operator.name), parameters=layer.parameters + _trained(operator)
        )
        self.of[operator.name] = place

    def _layer(
        self,
        name: str,
        operators: tuple[str, ...],
        sizes: Sequence[int],
        cut: Sequence[int],
        takes: Sequence[tuple[str, Sequence[Needed]]],
        **more: object,
    ) -> None:
        """Add a layer, with edges from the operators that it `takes` from."""
        target = len(self.layers)
        self.layers.append(Layer(name, operators, _padded(sizes), tuple(cut), **more))  # type: ignore[arg-type]
        for source, needed in takes:
            place = self.of[source]
            if place is None:
                begin = self.begins[source]
                rules = [
                    replace(rule, padding=rule.padding - begin) if begin and rule.of == 1 else rule for rule in needed
                ]
                rules += [WHOLE] * (DIMENSIONS - len(rules))
                self.edges.append(Edge(READ, target, tuple(rules), BYTES))
                continue
            of_state = source in self.graph.by_name and self.graph.by_name[source].kind == "final_state"
            last = self.layers[place].shape[POSITIONS]
            rules = [Needed(SAMPLES), Needed(fixed=(last - 1, last)), WHOLE] if of_state else list(needed)
            rules += [WHOLE] * (DIMENSIONS - len(rules))
            size = BYTES * self.layers[place].cell * (2 if of_state else 1)
            self.edges.append(Edge(place, target, tuple(rules), size, of_state))
        for operator in operators:
            self.of[operator] = target

    def _sizes(self, operator: Operator) -> tuple[int, ...]:
        return (self.batch, *operator.shape)

    def _windowed(self, operator: Operator) -> None:
        """A convolution or a pooling: rows and columns need windows, convolutions all channels."""
        rules = [Needed(SAMPLES)]
        for of, kernel, padding in zip((1, 2), pair(operator["kernel"]), pair(operator["padding"]), strict=True):
            rules.append(Needed(of, operator["stride"], padding, kernel))
        rules.append(WHOLE if operator.kind == "conv" else Needed(3))
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
            parameters=_trained(operator),
            divides=divides,
        )

    def _elementwise(self, operator: Operator) -> None:
        dimensions = 1 + len(operator.shape)
        self._plain(operator, range(dimensions), _same(dimensions), divides=dimensions - 1)

    def _whole_units(self, operator: Operator) -> None:
        """Layer norm and softmax: as elementwise, but with all units."""
        last = len(operator.shape)
        self._plain(operator, range(last), [*_same(last), WHOLE])

    def _dense(self, operator: Operator) -> None:
        last = len(operator.shape)
        self._plain(operator, range(last + 1), [*_same(last), WHOLE], divides=last)

    def _tied(self, operator: Operator) -> None:
        last = len(operator.shape)
        self._plain(operator, range(last), [*_same(last), WHOLE])
        place = next(i for i, layer in enumerate(self.layers) if operator["of"] in layer.operators)
        table = self.layers[place]
        self.layers[place] = replace(table, cut=table.cut[:-1], divides=None)  # the whole table is wherever it is used
        shared = math.prod(self.graph.by_name[operator["of"]].weights["table"])
        self.layers[-1] = replace(self.layers[-1], parameters=shared, shared=place)

    def _embedding(self, operator: Operator) -> None:
        self._plain(operator, range(3), _same(2), divides=2)

    def _gates(self, operator: Operator) -> None:
        self._plain(operator, range(4), _same(4), [Needed(SAMPLES), Needed(3)], divides=3)

    def _pooled(self, operator: Operator) -> None:
        self._plain(operator, range(2), [Needed(SAMPLES), WHOLE, WHOLE, Needed(1)], divides=1)

    def _flattened(self, operator: Operator) -> None:
        self._plain(operator, (SAMPLES,), [Needed(SAMPLES)])

    def _step(self, operator: Operator) -> None:
        length = self.graph.by_name[operator.inputs[0]].shape[0]
        at = operator["index"] % length
        self._plain(operator, (0, 1), [Needed(SAMPLES), Needed(fixed=(at, at + 1)), Needed(1)])

    def _shifted(self, operator: Operator) -> None:
        """Positions of another sequence: those from a start, or all behind a class token."""
        before = -operator["start"] if operator.kind == "steps" else 1
        self._plain(operator, range(3), [Needed(SAMPLES), Needed(POSITIONS, padding=before), Needed(2)], divides=2)

    def _as_sequence(self, operator: Operator) -> None:
        self._plain(operator, (0, 2), [Needed(SAMPLES), WHOLE, WHOLE, Needed(2)])

    def _concatenated(self, operator: Operator) -> None:
        last, at, rules = len(operator.shape), 0, []
        for name in operator.inputs:
            rules.append([*_same(last), Needed(last, padding=at)])
            at += self.graph.by_name[name].shape[-1]
        self._plain(operator, range(last + 1), *rules, divides=last)

    def _lstm(self, operator: Operator) -> None:
        units = operator["units"]
        takes: list[tuple[str, Sequence[Needed]]] = [(operator.inputs[0], [*_same(2), WHOLE])]
        takes += [(name, ()) for name in operator.inputs[1:]]
        self._layer(
            operator.name,
            (operator.name,),
            self._sizes(operator),
            (SAMPLES, POSITIONS),
            takes,
            macs=self.batch * operator.macs,
            parameters=_trained(operator),
            chain=True,
            state=2 * units,
        )

    def _attention(self, operator: Operator) -> None:
        """The heads, with what makes queries, keys and values; and the product of all heads behind them."""
        length, units = operator.shape
        heads, x, asked = operator["heads"], operator.inputs[0], operator.inputs[-1]
        kernels = {name: math.prod(shape) for name, shape in operator.weights.items()}
        last = kernels["output_kernel"] + kernels["output_bias"]
        product = self.batch * length * units**2
        keys = self.batch * self.graph.by_name[asked].shape[0] * (kernels["key_kernel"] + kernels["value_kernel"])
        takes: list[tuple[str, Sequence[Needed]]] = [(asked, [Needed(SAMPLES), WHOLE, WHOLE])]
        if asked != x:
            takes.append((x, [*_same(2), WHOLE]))
        name = f"{operator.name}_heads"
        self._layer(
            name,
            (name,),
            (self.batch, length, heads),
            range(3),
            takes,
            macs=self.batch * operator.macs - product,
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
            [(name, [*_same(2), WHOLE])],
            macs=product,
            parameters=last,
            divides=2,
        )


_ADD = {
    **dict.fromkeys(("conv", "depthwise_conv", "max_pool", "average_pool"), _Made._windowed),
    **dict.fromkeys(("batch_norm", "dropout", "add", "positions"), _Made._elementwise),
    "activation": lambda made, operator: (
        made._whole_units(operator) if operator["function"] == "softmax" else made._elementwise(operator)
    ),
    "multiply_channels": _Made._gates,
    "global_average_pool": _Made._pooled,
    "flatten": _Made._flattened,
    "dense": _Made._dense,
    "tied_dense": _Made._tied,
    "layer_norm": _Made._whole_units,
    "embedding": _Made._embedding,
    "class_token": _Made._shifted,
    "lstm": _Made._lstm,
    "step": _Made._step,
    "steps": _Made._shifted,
    "sequence": _Made._as_sequence,
    "concatenate": _Made._concatenated,
}


def _trained(operator: Operator) -> int:
    return sum(math.prod(shape) for name, shape in operator.weights.items() if is_trained(f"{operator.name}.{name}"))
