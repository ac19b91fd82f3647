"""A model as a graph of operators: the one description from which every library builds it.

Shapes are those of one sample: (height, width, channels) of images, (units,) of vectors, (length,) of tokens, which are
integers below the `vocabulary` of the input operator, and (length, units) of sequences. Weights have one canonical
layout, and a name, `<operator>.<weight>`:

    conv             kernel [height, width, in, out], bias [out]
    depthwise_conv   kernel [height, width, channels, 1], bias [channels]
    dense            kernel [in, out], bias [out]; what was flattened counts rows first, channels last
    batch_norm       scale, offset, and what is not trained: mean, variance [channels]
    embedding        table [vocabulary, units]

Standard library only: the workflow plans with it, ranks build with it, whatever environment they live in.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Shape = tuple[int, ...]

BYTES = 4  # of a number: float32
NOT_TRAINED = ("mean", "variance")


@dataclass(frozen=True)
class Operator:
    """One node. `inputs` are the names of the operators whose outputs it takes; `shape` is its own output's."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    shape: Shape
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Shape] = field(default_factory=dict)
    macs: int = 0

    def __getitem__(self, setting: str) -> Any:
        return self.settings[setting]


@dataclass(frozen=True)
class Graph:
    """A model for samples of one shape. Operators stand after their inputs; the last one's output are the logits:
    (classes,), or (length, vocabulary) where each position has a label, the next token."""

    model: str
    initializer: str
    operators: tuple[Operator, ...]

    @property
    def shape(self) -> Shape:
        """Of a sample."""
        return self.operators[0].shape

    @property
    def vocabulary(self) -> int | None:
        """How many different tokens a sample may have; None where samples are images."""
        return self.operators[0].settings.get("vocabulary")

    @functools.cached_property
    def by_name(self) -> dict[str, Operator]:
        """The operators by their names."""
        return {operator.name: operator for operator in self.operators}

    def weights(self) -> dict[str, Shape]:
        """Every weight's name and shape, trained or not, in the order of the operators."""
        return {
            f"{operator.name}.{weight}": shape
            for operator in self.operators
            for weight, shape in operator.weights.items()
        }

    @property
    def statistics(self) -> list[str]:
        """The names of the weights that are not trained."""
        return [name for name in self.weights() if not is_trained(name)]

    def users(self, name: str) -> list[Operator]:
        """The operators that take the output of `name`."""
        return [operator for operator in self.operators if name in operator.inputs]

    def flattened(self, operator: Operator) -> Shape | None:
        """The shape (height, width, channels) that a dense operator's input had before it was flattened, if it was."""
        below = self.by_name[operator.inputs[0]]
        while below.kind in ("activation", "dropout"):
            below = self.by_name[below.inputs[0]]
        return self.by_name[below.inputs[0]].shape if below.kind == "flatten" else None

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(math.prod(shape) for name, shape in self.weights().items() if is_trained(name))

    @property
    def gradient_bytes(self) -> int:
        """Size of all gradients, float32: what one exchange carries."""
        return BYTES * self.parameters

    @property
    def activation_bytes(self) -> int:
        """Size of the outputs of all operators for one sample, float32: what the backward pass may find kept."""
        return BYTES * sum(math.prod(operator.shape) for operator in self.operators)

    @property
    def macs(self) -> int:
        """Multiplications and additions, in pairs, of one sample's forward pass, in convolutions and dense operators."""
        return sum(operator.macs for operator in self.operators)

    @property
    def fewest_samples(self) -> int:
        """Samples that a batch must have: where batch normalization sees one pixel, one sample is one value per channel."""
        return 1 + any(op.kind == "batch_norm" and op.shape[:2] == (1, 1) for op in self.operators)

    def to_json(self) -> dict[str, Any]:
        """The graph as JSON holds it."""
        return asdict(self)


def from_json(raw: Mapping[str, Any]) -> Graph:
    """The inverse of `Graph.to_json`."""
    operators = [
        Operator(
            **{
                **entry,
                "inputs": tuple(entry["inputs"]),
                "shape": tuple(entry["shape"]),
                "weights": {name: tuple(shape) for name, shape in entry["weights"].items()},
            }
        )
        for entry in raw["operators"]
    ]
    return Graph(raw["model"], raw["initializer"], tuple(operators))


def is_trained(weight: str) -> bool:
    """Whether the optimizer changes a weight; else training only keeps its running mean."""
    return weight.rpartition(".")[2] not in NOT_TRAINED


def is_decayed(weight: str) -> bool:
    """Whether weight decay applies to a weight: to kernels alone."""
    return weight.endswith(".kernel")


class Builder:
    """Adds operators, one after the other. Each method returns the new operator's name; `x` is that of its input.

    ValueError when a sample is too small for an operator, or when outputs do not fit each other.
    """

    def __init__(self, model: str, shape: Shape, initializer: str, vocabulary: int | None = None) -> None:
        self.model, self.initializer = model, initializer
        self.input = "input"
        settings = {} if vocabulary is None else {"vocabulary": vocabulary}
        self._operators = {"input": Operator("input", "input", (), shape, settings)}

    def graph(self) -> Graph:
        """What was built."""
        return Graph(self.model, self.initializer, tuple(self._operators.values()))

    def shape(self, x: str) -> Shape:
        """The shape of an operator's output."""
        return self._operators[x].shape

    def conv(
        self, x: str, filters: int, kernel: int, stride: int = 1, padding: int = 0, *, bias: bool = True, name: str = ""
    ) -> str:
        """A convolution with `padding` zeros on all four sides."""
        channels = self.shape(x)[-1]
        weights: dict[str, Shape] = {"kernel": (kernel, kernel, channels, filters)}
        return self._convolution("conv", x, (filters, weights), kernel, stride, padding, bias, name)

    def depthwise_conv(
        self, x: str, kernel: int, stride: int = 1, padding: int = 0, *, bias: bool = True, name: str = ""
    ) -> str:
        """A convolution of every channel with a kernel of its own."""
        channels = self.shape(x)[-1]
        weights: dict[str, Shape] = {"kernel": (kernel, kernel, channels, 1)}
        return self._convolution("depthwise_conv", x, (channels, weights), kernel, stride, padding, bias, name)

    def batch_norm(self, x: str, *, epsilon: float = 1e-5, momentum: float = 0.9, name: str = "") -> str:
        """Ioffe & Szegedy 2015, over the samples of one replica. `momentum` is the share that a running mean keeps."""
        channels = self.shape(x)[-1:]
        weights = dict.fromkeys(("scale", "offset", "mean", "variance"), channels)
        settings = {"epsilon": epsilon, "momentum": momentum}
        return self._add("batch_norm", (x,), self.shape(x), settings, weights, name=name)

    def activation(self, x: str, function: str, *, name: str = "") -> str:
        """relu, silu, sigmoid or tanh of every element."""
        return self._add("activation", (x,), self.shape(x), {"function": function}, name=name)

    def max_pool(self, x: str, kernel: int, stride: int, padding: int = 0, *, name: str = "") -> str:
        """The largest of every window; `padding` adds zeros, so what is padded must not be negative."""
        below = self._operators[x]
        if padding and not (below.kind == "activation" and below["function"] in ("relu", "sigmoid")):
            raise ValueError(f"{x}: may be negative; a pooling with padding wants a relu before it")
        return self._pool("max_pool", x, kernel, stride, padding, name)

    def average_pool(self, x: str, kernel: int, stride: int, *, name: str = "") -> str:
        """The mean of every window."""
        return self._pool("average_pool", x, kernel, stride, 0, name)

    def global_average_pool(self, x: str, *, name: str = "") -> str:
        """The mean of every channel: an image becomes a vector."""
        return self._add("global_average_pool", (x,), self.shape(x)[-1:], name=name)

    def add(self, x: str, y: str, *, name: str = "") -> str:
        """The sum of two outputs of one shape."""
        if self.shape(x) != self.shape(y):
            raise ValueError(f"cannot add {x} {self.shape(x)} and {y} {self.shape(y)}")
        return self._add("add", (x, y), self.shape(x), name=name)

    def multiply_channels(self, x: str, gate: str, *, name: str = "") -> str:
        """Every channel of an image times its element of a vector."""
        if self.shape(x)[-1:] != self.shape(gate):
            raise ValueError(f"cannot multiply the channels of {x} {self.shape(x)} by {gate} {self.shape(gate)}")
        return self._add("multiply_channels", (x, gate), self.shape(x), name=name)

    def squeeze_excite(self, x: str, units: int, *, function: str = "relu", name: str = "") -> str:
        """Hu et al. 2018: channels are weighed by what a dense layer of `units` makes of their means."""
        channels = self.shape(x)[-1]
        prefix = name or f"squeeze_excite{self._next('squeeze_excite')}"
        pooled = self.global_average_pool(x, name=f"{prefix}_squeeze")
        reduced = self.activation(
            self.dense(pooled, units, name=f"{prefix}_reduce"), function, name=f"{prefix}_{function}"
        )
        expanded = self.dense(reduced, channels, name=f"{prefix}_expand")
        return self.multiply_channels(
            x, self.activation(expanded, "sigmoid", name=f"{prefix}_gate"), name=f"{prefix}_scale"
        )

    def flatten(self, x: str, *, name: str = "") -> str:
        """An image as a vector."""
        return self._add("flatten", (x,), (math.prod(self.shape(x)),), name=name)

    def dense(self, x: str, units: int, *, name: str = "") -> str:
        """A fully connected layer with bias."""
        (inputs,) = self.shape(x)
        weights: dict[str, Shape] = {"kernel": (inputs, units), "bias": (units,)}
        return self._add("dense", (x,), (units,), {"units": units}, weights, inputs * units, name)

    def embedding(self, x: str, units: int, *, name: str = "") -> str:
        """A vector of `units` for each token."""
        vocabulary = self._operators[self.input]["vocabulary"]
        weights: dict[str, Shape] = {"table": (vocabulary, units)}
        return self._add("embedding", (x,), (*self.shape(x), units), {"units": units}, weights, name=name)

    def dropout(self, x: str, rate: float, *, name: str = "") -> str:
        """While training, each element is zero with probability `rate`, the others are divided by 1 - `rate`."""
        return self._add("dropout", (x,), self.shape(x), {"rate": rate}, name=name)

    def _convolution(
        self,
        kind: str,
        x: str,
        made: tuple[int, dict[str, Shape]],
        kernel: int,
        stride: int,
        padding: int,
        bias: bool,
        name: str,
    ) -> str:
        channels, weights = made
        height, width = self._windows(kind, x, kernel, stride, padding)
        macs = height * width * math.prod(weights["kernel"])
        if bias:
            weights["bias"] = (channels,)
        settings = {"kernel": kernel, "stride": stride, "padding": padding, "bias": bias}
        if kind == "conv":
            settings["filters"] = channels
        return self._add(kind, (x,), (height, width, channels), settings, weights, macs, name)

    def _pool(self, kind: str, x: str, kernel: int, stride: int, padding: int, name: str) -> str:
        shape = (*self._windows(kind, x, kernel, stride, padding), self.shape(x)[-1])
        return self._add(kind, (x,), shape, {"kernel": kernel, "stride": stride, "padding": padding}, name=name)

    def _windows(self, kind: str, x: str, kernel: int, stride: int, padding: int) -> Shape:
        height, width, _ = self.shape(x)
        sizes = tuple((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        if min(sizes) < 1:
            raise ValueError(f"{kind} of {kernel} x {kernel} on {height} x {width} pixels: nothing is left")
        return sizes

    def _next(self, kind: str) -> int:
        return 1 + sum(operator.name.rstrip("0123456789") == kind for operator in self._operators.values())

    def _add(
        self,
        kind: str,
        inputs: Sequence[str],
        shape: Shape,
        settings: Mapping[str, Any] | None = None,
        weights: Mapping[str, Shape] | None = None,
        macs: int = 0,
        name: str = "",
    ) -> str:
        name = name or f"{kind}{self._next(kind)}"
        if name in self._operators:
            raise ValueError(f"two operators are named {name}")
        self._operators[name] = Operator(name, kind, tuple(inputs), shape, settings or {}, weights or {}, macs)
        return name
