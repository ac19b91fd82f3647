"""Describe a model as a graph of operators, from which every library builds it.

Shapes are those of one sample: (height, width, channels) of images, (units,) of vectors, (length, units) of
sequences, and (length,) of tokens, which are integers below the `vocabulary` of the input operator. An
element of a sequence is a position. Weights are named `<operator>.<weight>` and have a canonical layout:

    conv             kernel [height, width, in, out], bias [out]
    depthwise_conv   kernel [height, width, channels, 1], bias [channels]
    up_conv          kernel [height, width, in, out], bias [out]
    dense            kernel [in, out], perhaps bias [out]; flattened inputs are in row-major order, channels
                     last
    tied_dense       none: uses the transposed table of the embedding that its setting `of` names
    batch_norm       scale, offset, and the running mean and variance, which are not trained [channels]
    layer_norm       scale, offset [units]
    rms_norm         scale [units]
    embedding        table [vocabulary, units]
    positions        table [length, units]
    class_token      token [units]
    add_vector       vector [units]
    attention        query_kernel, key_kernel, value_kernel, output_kernel [in, out], perhaps each with a
                     bias [out]; outputs of the first three, and inputs of the last one, are ordered by head
    experts          router_kernel [units, experts], gate_kernel and up_kernel [experts, units, hidden],
                     down_kernel [experts, hidden, units], and load [experts + 1], which is not trained:
                     the shares of choices that each expert took, and of those dropped, summed over batches
    lstm             kernel [in, 4 units], recurrent_kernel [units, 4 units], bias [4 units];
                     columns in the order input gate, forget gate, candidate, output gate

Standard library only: ranks import it in every framework's environment.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Shape = tuple[int, ...]
# Size of a window. A list, because JSON has no tuples, is [vertical, horizontal].
Size = int | list[int]

BYTES = 4  # size of a float32 number
N_COUNTS, N_CATEGORIES = 13, 26  # fields of a row of Criteo's click logs
NOT_TRAINED = ("mean", "variance", "load")
# Kind of an operator without output that holds a copy of another pipeline stage's weight.
SHARED = "shared"
# Kind of the only operator of a model that is a user-supplied PyTorch module, whose weights only PyTorch
# knows (declared/user_models.py).
MODULE = "module"
# Names of a block's operators: the block, such as stage1_block2, and the operator's own name.
IN_BLOCK = re.compile(r"(.*?(?:block|module)\d+)_")


@dataclass(frozen=True)
class Rotary:
    """Rotary positions (Su et al., arXiv:2104.09864): units i and i + half of a head rotate as a pair.

    Attributes:
        base: The angle of pair i between neighbouring positions is base^(-2 i / units of a head).
        factor: Angles of pairs that turn slowly are divided by it, as in Llama 3.1 and 3.2; 1 divides none.
        original_length: Positions for which Llama 3 was trained first: pairs that turn less than once in
            them are slow, those that turn four times or more are not, and others lie in between.
    """

    base: float
    factor: float = 1.0
    original_length: int = 8192


@dataclass(frozen=True)
class Operator:
    """A node of the graph.

    Attributes:
        inputs: Names of operators.
        shape: Shape of the output for one sample.
        settings: Arguments of the kind, such as kernel or heads.
        weights: Shape of each weight.
        macs: Multiply-accumulate operations of the forward pass for one sample.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    shape: Shape
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Shape] = field(default_factory=dict)
    macs: int = 0

    def __getitem__(self, setting: str) -> Any:
        return self.settings[setting]

    @property
    def key_heads(self) -> int:
        """Heads of keys and values of an attention; each serves the same number of heads of queries."""
        heads: int = self.settings.get("key_heads", self.settings["heads"])
        return heads

    @property
    def head_size(self) -> int:
        """Units of a head of an attention."""
        size: int = self.shape[-1] // self.settings["heads"]
        return size


@dataclass(frozen=True)
class Graph:
    """A model for samples of one shape.

    Operators follow their inputs. The last one returns logits: (classes,), or (length, classes) if each
    position or pixel has a label, such as the next token.
    """

    model: str
    initializer: str
    operators: tuple[Operator, ...]

    @property
    def shape(self) -> Shape:
        """Shape of a sample."""
        return self.operators[0].shape

    @property
    def vocabulary(self) -> int | None:
        """Number of different tokens, None if samples are images."""
        return self.operators[0].settings.get("vocabulary")

    @functools.cached_property
    def by_name(self) -> dict[str, Operator]:
        """Operators by name."""
        return {operator.name: operator for operator in self.operators}

    def weights(self) -> dict[str, Shape]:
        """Return the shape of every weight by its name, trained or not, in the order of the operators."""
        return {
            f"{operator.name}.{weight}": shape
            for operator in self.operators
            for weight, shape in operator.weights.items()
        }

    @property
    def module(self) -> Operator | None:
        """The operator that is a user-supplied PyTorch module, None in a graph of known operators."""
        last = self.operators[-1]
        return last if last.kind == MODULE else None

    @property
    def is_language_model(self) -> bool:
        """Whether it predicts a token at each position: its logits are (length, vocabulary)."""
        return self.vocabulary is not None and len(self.operators[-1].shape) > 1

    @property
    def n_masked(self) -> int:
        """Number of masked positions of a sample, which are its last elements; 0 if no token is masked."""
        n_masked: int = self.operators[0].settings.get("masked", 0)
        return n_masked

    @property
    def head_sizes(self) -> set[int]:
        """Units of a head, of all attention operators; empty if the model has none."""
        return {operator.head_size for operator in self.operators if operator.kind == "attention"}

    @property
    def rotary_operators(self) -> list[Operator]:
        """Attention operators with rotary positions."""
        return [operator for operator in self.operators if "rotary" in operator.settings]

    @property
    def has_convolutions(self) -> bool:
        """Whether an operator is a convolution."""
        return any(operator.kind in ("conv", "depthwise_conv", "up_conv") for operator in self.operators)

    @property
    def statistics(self) -> list[str]:
        """Names of the weights that are not trained."""
        return [name for name in self.weights() if not is_trained(name)]

    @property
    def blocks(self) -> dict[str, list[Operator]]:
        """Operators of each residual block, transformer block or Inception module; {} if there are none."""
        blocks: dict[str, list[Operator]] = {}
        for operator in self.operators:
            if in_block := IN_BLOCK.match(operator.name):
                blocks.setdefault(in_block[1], []).append(operator)
        return blocks

    def block_outputs(self, block: Sequence[Operator]) -> list[Operator]:
        """Return the operators of a block with outputs that operators outside it use or the model returns."""
        in_block = {operator.name for operator in block}
        return [
            operator
            for operator in block
            if operator is self.operators[-1]
            or any(user.name not in in_block for user in self.users(operator.name))
        ]

    def users(self, name: str) -> list[Operator]:
        """Return the operators that have `name` as an input."""
        return [operator for operator in self.operators if name in operator.inputs]

    def flattened(self, operator: Operator) -> Shape | None:
        """Return the shape of the image that a dense operator's input was before `flatten`, or None."""
        below = self.by_name[operator.inputs[0]]
        while below.kind in ("activation", "dropout"):
            below = self.by_name[below.inputs[0]]
        if below.kind != "flatten" or len(shape := self.by_name[below.inputs[0]].shape) < 3:
            return None
        return shape

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(math.prod(shape) for name, shape in self.weights().items() if is_trained(name))

    @property
    def active_parameters(self) -> int:
        """Number of trained parameters that a token uses: of experts only those that it is routed to."""
        idle = sum(
            math.prod(shape) * (operator["experts"] - operator["top"]) // operator["experts"]
            for operator in self.operators
            if operator.kind == "experts"
            for name, shape in operator.weights.items()
            if len(shape) == 3
        )
        return self.parameters - idle

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients in float32, the payload of a gradient all-reduce."""
        return BYTES * self.parameters

    @property
    def activation_bytes(self) -> int:
        """Bytes of all outputs for one sample in float32, which training can keep for the backward pass."""
        return BYTES * sum(math.prod(operator.shape) for operator in self.operators)

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations in the forward pass of one sample."""
        return sum(operator.macs for operator in self.operators)

    @property
    def fewest_samples(self) -> int:
        """Minimum batch size: batch normalization of a single pixel needs two samples for a variance."""
        return 1 + any(op.kind == "batch_norm" and op.shape[:2] == (1, 1) for op in self.operators)

    def to_json(self) -> dict[str, Any]:
        """Return the graph as a JSON object."""
        return asdict(self)


def from_json(raw: Mapping[str, Any]) -> Graph:
    """Return the graph that `Graph.to_json` wrote."""
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
    """Return whether the optimizer updates a weight; the other weights are running statistics."""
    return weight.rpartition(".")[2] not in NOT_TRAINED


def is_kernel(weight: str) -> bool:
    """Return whether a weight is the kernel of a matrix product or convolution; a tied table is not."""
    return weight.endswith("kernel")


def is_decayed(weight: str, level: str) -> bool:
    """Return whether weight decay applies to a weight with this level of the factor decayed_weights."""
    return level == "all" or is_kernel(weight) or (level == "matrices" and weight.endswith("table"))


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Return the size or padding of a window as (vertical, horizontal); a single number means both."""
    vertical, horizontal = (size, size) if isinstance(size, int) else size
    return vertical, horizontal


class Builder:
    """Build a graph operator by operator.

    Each method adds an operator and returns its name; `x` is the name of its input. Methods raise ValueError
    if a sample is too small for the operator or if shapes do not match.
    """

    def __init__(
        self, model: str, shape: Shape, initializer: str, vocabulary: int | None = None, n_masked: int = 0
    ) -> None:
        self.model, self.initializer, self.n_masked = model, initializer, n_masked
        self.input = "input"
        settings = {} if vocabulary is None else {"vocabulary": vocabulary}
        if n_masked:
            settings["masked"] = n_masked
        self._operators = {"input": Operator("input", "input", (), shape, settings)}

    def graph(self) -> Graph:
        """Return the graph of all operators added so far."""
        return Graph(self.model, self.initializer, tuple(self._operators.values()))

    def shape(self, x: str) -> Shape:
        """Return the shape of an operator's output."""
        return self._operators[x].shape

    def conv(
        self,
        x: str,
        filters: int,
        kernel: Size,
        stride: int = 1,
        padding: Size = 0,
        *,
        bias: bool = True,
        name: str = "",
    ) -> str:
        """Add a convolution with zero padding on all sides; a kernel [1, 7] may have padding [0, 3]."""
        channels = self.shape(x)[-1]
        weights: dict[str, Shape] = {"kernel": (*pair(kernel), channels, filters)}
        return self._convolution("conv", x, (filters, weights), kernel, stride, padding, bias, name)

    def depthwise_conv(
        self, x: str, kernel: int, stride: int = 1, padding: int = 0, *, bias: bool = True, name: str = ""
    ) -> str:
        """Add a depthwise convolution: each channel has its own kernel."""
        channels = self.shape(x)[-1]
        weights: dict[str, Shape] = {"kernel": (kernel, kernel, channels, 1)}
        return self._convolution(
            "depthwise_conv", x, (channels, weights), kernel, stride, padding, bias, name
        )

    def up_conv(self, x: str, filters: int, factor: int, *, name: str = "") -> str:
        """Add a transposed convolution whose kernel and stride are `factor`: windows do not overlap."""
        height, width, channels = self._image(x)
        weights: dict[str, Shape] = {"kernel": (factor, factor, channels, filters), "bias": (filters,)}
        shape, macs = (
            (height * factor, width * factor, filters),
            height * width * math.prod(weights["kernel"]),
        )
        return self._add("up_conv", (x,), shape, {"stride": factor}, weights, macs, name)

    def batch_norm(self, x: str, *, epsilon: float = 1e-5, momentum: float = 0.9, name: str = "") -> str:
        """Add batch normalization over the samples of one replica (Ioffe & Szegedy 2015).

        `momentum` is the weight of the old value in running means.
        """
        channels = self.shape(x)[-1:]
        weights = dict.fromkeys(("scale", "offset", "mean", "variance"), channels)
        settings = {"epsilon": epsilon, "momentum": momentum}
        return self._add("batch_norm", (x,), self.shape(x), settings, weights, name=name)

    def activation(self, x: str, function: str, *, name: str = "") -> str:
        """Add an activation.

        `function` is relu, silu, sigmoid, tanh, gelu (Hendrycks & Gimpel 2016), gelu_tanh (its approximation,
        section 2), or softmax over the last axis.
        """
        return self._add("activation", (x,), self.shape(x), {"function": function}, name=name)

    def max_pool(self, x: str, kernel: int, stride: int, padding: int = 0, *, name: str = "") -> str:
        """Add max pooling. Padding is zeros, so a padded input must not be negative."""
        below = self._operators[x]
        if padding and not (below.kind == "activation" and below["function"] in ("relu", "sigmoid")):
            raise ValueError(f"{x}: may be negative; a pooling with padding wants a relu before it")
        return self._pool("max_pool", x, kernel, stride, padding, name)

    def average_pool(self, x: str, kernel: int, stride: int, padding: int = 0, *, name: str = "") -> str:
        """Add average pooling, which includes the zeros of the padding."""
        return self._pool("average_pool", x, kernel, stride, padding, name)

    def global_average_pool(self, x: str, *, name: str = "") -> str:
        """Add the mean of each channel, which turns an image into a vector."""
        return self._add("global_average_pool", (x,), self.shape(x)[-1:], name=name)

    def add(self, x: str, y: str, *, name: str = "") -> str:
        """Add the sum of two outputs of the same shape."""
        if self.shape(x) != self.shape(y):
            raise ValueError(f"cannot add {x} {self.shape(x)} and {y} {self.shape(y)}")
        return self._add("add", (x, y), self.shape(x), name=name)

    def multiply(self, x: str, gate: str, *, name: str = "") -> str:
        """Add the product of two outputs of the same shape, element by element."""
        if self.shape(x) != self.shape(gate):
            raise ValueError(f"cannot multiply {x} {self.shape(x)} by {gate} {self.shape(gate)}")
        return self._add("multiply", (x, gate), self.shape(x), name=name)

    def multiply_channels(self, x: str, gate: str, *, name: str = "") -> str:
        """Add the product of an image with a vector that has one element per channel."""
        if self.shape(x)[-1:] != self.shape(gate):
            raise ValueError(
                f"cannot multiply the channels of {x} {self.shape(x)} by {gate} {self.shape(gate)}"
            )
        return self._add("multiply_channels", (x, gate), self.shape(x), name=name)

    def squeeze_excite(self, x: str, units: int, *, function: str = "relu", name: str = "") -> str:
        """Add squeeze-and-excitation with `units` hidden units (Hu et al. 2018)."""
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
        """Add a reshape of an image into a vector."""
        return self._add("flatten", (x,), (math.prod(self.shape(x)),), name=name)

    def dense(self, x: str, units: int, *, bias: bool = True, name: str = "") -> str:
        """Add a dense layer, for a vector or for each position of a sequence."""
        if len(shape := self.shape(x)) > 2:
            raise ValueError(f"{x} {shape} is an image; flatten it before a dense layer")
        weights: dict[str, Shape] = {"kernel": (shape[-1], units)}
        if bias:
            weights["bias"] = (units,)
        return self._add(
            "dense", (x,), (*shape[:-1], units), {"units": units}, weights, math.prod(shape) * units, name
        )

    def tied_dense(self, x: str, embedding: str, *, name: str = "") -> str:
        """Add a dense layer without bias by the transposed table of an embedding (Press & Wolf 2017)."""
        vocabulary, units = self._operators[embedding].weights["table"]
        if self.shape(x)[-1] != units:
            raise ValueError(
                f"cannot multiply {x} {self.shape(x)} by the table of {embedding}, of {units} units"
            )
        shape, macs = (*self.shape(x)[:-1], vocabulary), math.prod(self.shape(x)) * vocabulary
        return self._add("tied_dense", (x,), shape, {"of": embedding}, macs=macs, name=name)

    def add_vector(self, x: str, *, name: str = "") -> str:
        """Add the sum of each position with a learned vector."""
        return self._add("add_vector", (x,), self.shape(x), weights={"vector": self.shape(x)[-1:]}, name=name)

    def layer_norm(self, x: str, *, epsilon: float = 1e-5, name: str = "") -> str:
        """Add layer normalization of a vector or of each position of a sequence (Ba et al. 2016)."""
        weights = dict.fromkeys(("scale", "offset"), self.shape(x)[-1:])
        return self._add("layer_norm", (x,), self.shape(x), {"epsilon": epsilon}, weights, name=name)

    def rms_norm(self, x: str, *, epsilon: float = 1e-5, name: str = "") -> str:
        """Add a division of each position by the root of its mean square (Zhang & Sennrich 2019)."""
        weights = {"scale": self.shape(x)[-1:]}
        return self._add("rms_norm", (x,), self.shape(x), {"epsilon": epsilon}, weights, name=name)

    def embedding(self, tokens: str, units: int, *, name: str = "") -> str:
        """Add an embedding that maps each token to a vector of `units` elements."""
        vocabulary = self._operators[self.input].settings.get("vocabulary")
        if vocabulary is None or len(shape := self.shape(tokens)) != 1:
            raise ValueError(f"{tokens} {self.shape(tokens)} are not tokens")
        weights: dict[str, Shape] = {"table": (vocabulary, units)}
        return self._add("embedding", (tokens,), (*shape, units), {"units": units}, weights, name=name)

    def positions(self, x: str, *, name: str = "") -> str:
        """Add learned position embeddings to a sequence."""
        return self._add("positions", (x,), self._sequence(x), weights={"table": self.shape(x)}, name=name)

    def class_token(self, x: str, *, name: str = "") -> str:
        """Add a learned class token in front of a sequence (Devlin et al. 2019)."""
        length, units = self._sequence(x)
        return self._add("class_token", (x,), (length + 1, units), weights={"token": (units,)}, name=name)

    def attention(
        self,
        x: str,
        heads: int,
        *,
        to: str = "",
        causal: bool = False,
        key_heads: int = 0,
        rotary: Rotary | None = None,
        bias: bool = True,
        name: str = "",
    ) -> str:
        """Add multi-head attention (Vaswani et al. 2017, section 3.2).

        Queries are the positions of `x`; keys and values are those of `to`, by default of `x`. With `causal`
        a position attends only to itself and earlier ones; `macs` are counted as if it attended to all.

        Args:
            x: Sequence of queries.
            heads: Heads of the queries.
            to: Sequence of keys and values.
            causal: Whether positions attend to no later ones.
            key_heads: Heads of keys and values, a divisor of `heads`, by default as many; consecutive heads
                of queries share one (grouped-query attention, Ainslie et al. 2023).
            rotary: Rotation of queries and keys by their position (models.initial).
            bias: Whether the four projections have a bias.
            name: Name of the operator.
        """
        (length, units), (to_length, to_units) = self._sequence(x), self._sequence(to or x)
        key_heads = key_heads or heads
        if units % heads:
            raise ValueError(f"the {units} units of {x} cannot be divided by {heads} heads")
        if heads % key_heads:
            raise ValueError(f"{heads} heads of queries cannot share {key_heads} heads of keys equally")
        if (causal or rotary) and to:
            problem = "be causal" if causal else "have rotary positions"
            raise ValueError(f"attention to another sequence cannot {problem}")
        if rotary and (units // heads) % 2:
            raise ValueError(f"rotary positions need an even number of units of a head, not {units // heads}")
        key_units = units // heads * key_heads
        sizes = {
            "query": (units, units),
            "key": (to_units, key_units),
            "value": (to_units, key_units),
            "output": (units, units),
        }
        weights: dict[str, Shape] = {}
        for part, kernel in sizes.items():
            weights[f"{part}_kernel"] = kernel
            if bias:
                weights[f"{part}_bias"] = kernel[1:]
        macs = 2 * length * units**2 + 2 * to_length * to_units * key_units + 2 * length * to_length * units
        settings: dict[str, Any] = {"heads": heads, "causal": causal}
        if key_heads != heads:
            settings["key_heads"] = key_heads
        if rotary:
            settings["rotary"] = asdict(rotary)
        return self._add("attention", (x, to) if to else (x,), (length, units), settings, weights, macs, name)

    def lstm(self, x: str, units: int, *, state: str = "", name: str = "") -> str:
        """Add an LSTM layer with forget gates (Gers et al. 2000) that returns its outputs at all positions.

        Its initial state is zero, or `state`: the `final_state` of another LSTM with as many units.
        """
        length, inputs = self._sequence(x)
        if state and self.shape(state) != (2, units):
            raise ValueError(f"{state} {self.shape(state)} is not a state of {units} units")
        weights: dict[str, Shape] = {
            "kernel": (inputs, 4 * units),
            "recurrent_kernel": (units, 4 * units),
            "bias": (4 * units,),
        }
        macs = length * (inputs + units) * 4 * units
        return self._add(
            "lstm", (x, state) if state else (x,), (length, units), {"units": units}, weights, macs, name
        )

    def final_state(self, lstm: str, *, name: str = "") -> str:
        """Add the final state of an LSTM, (2, units): output and cell state at the last position."""
        if (operator := self._operators[lstm]).kind != "lstm":
            raise ValueError(f"{lstm} is not an lstm and has no state")
        return self._add("final_state", (lstm,), (2, operator["units"]), name=name)

    def experts(
        self,
        x: str,
        n_experts: int,
        hidden: int,
        *,
        top: int,
        capacity_factor: float = 1.25,
        balance: float = 0.01,
        name: str = "",
    ) -> str:
        """Add a mixture of experts (Shazeer et al., ICLR 2017), of which each position uses `top`.

        An expert returns down(silu(gate(x)) up(x)). A position's output is the sum over its experts, weighed
        by the softmax of their router logits (Jiang et al., arXiv:2401.04088, section 2.1). In each sequence
        an expert takes the first `capacity` positions that choose it, and drops others: these lack its
        summand (Fedus et al., JMLR 2022, section 2.2). So outputs depend neither on other samples nor on
        later positions. `macs` are those of `top` experts for each position.

        Args:
            x: Sequence.
            n_experts: Number of experts.
            hidden: Hidden units of an expert.
            top: Number of experts that each position chooses, those with the largest router logits.
            capacity_factor: Capacity over the number of positions that an expert takes if all take as many.
            balance: Weight of the auxiliary loss that balances experts (Fedus et al., eq. 4 to 6): the number
                of experts times the sum over experts of the share of choices times the mean probability. It
                is computed in each sequence, and averaged over sequences.
            name: Name of the operator.
        """
        length, units = self._sequence(x)
        if not 1 <= top <= n_experts:
            raise ValueError(f"a position cannot choose {top} of {n_experts} experts")
        weights: dict[str, Shape] = {
            "router_kernel": (units, n_experts),
            "gate_kernel": (n_experts, units, hidden),
            "up_kernel": (n_experts, units, hidden),
            "down_kernel": (n_experts, hidden, units),
            "load": (n_experts + 1,),
        }
        capacity = min(length, math.ceil(capacity_factor * length * top / n_experts))
        settings = {"experts": n_experts, "top": top, "capacity": capacity, "balance": balance}
        macs = length * units * (n_experts + top * 3 * hidden)
        return self._add("experts", (x,), (length, units), settings, weights, macs, name)

    def step(self, x: str, index: int, *, name: str = "") -> str:
        """Add the selection of one position of a sequence, as a vector: 0 is the first, -1 the last."""
        _, units = self._sequence(x)
        return self._add("step", (x,), (units,), {"index": index}, name=name)

    def steps(self, x: str, start: int, stop: int, *, name: str = "") -> str:
        """Add the selection of positions [start, stop) of a sequence or of tokens."""
        length, *units = self.shape(x)
        if not 0 <= start < stop <= length:
            raise ValueError(f"{x} has {length} positions; there is none from {start} up to {stop}")
        return self._add("steps", (x,), (stop - start, *units), {"start": start, "stop": stop}, name=name)

    def gather(self, x: str, positions: str, *, name: str = "") -> str:
        """Add the selection of the positions of a sequence that a sample's elements `positions` name."""
        (_, units), (count,) = self._sequence(x), self.shape(positions)
        return self._add("gather", (x, positions), (count, units), name=name)

    def log_counts(self, x: str, *, name: str = "") -> str:
        """Add log(1 + count) of elements of a sample that are counts."""
        return self._add("log_counts", (x,), self.shape(x), name=name)

    def interactions(self, x: str, vectors: str, *, name: str = "") -> str:
        """Add a vector followed by the products of each pair among it and other vectors (Naumov et al. 2019).

        Pairs (i, j) with i > j are in row-major order; `macs` are counted as if it multiplied all pairs.
        """
        (units,), (count, other_units) = self.shape(x), self._sequence(vectors)
        if units != other_units:
            raise ValueError(f"cannot multiply {x} {self.shape(x)} by {vectors} {self.shape(vectors)}")
        shape, macs = (units + count * (count + 1) // 2,), (count + 1) ** 2 * units
        return self._add("interactions", (x, vectors), shape, macs=macs, name=name)

    def sequence(self, x: str, *, name: str = "") -> str:
        """Add a reshape of an image into the sequence of its pixels, in row-major order."""
        height, width, channels = self._image(x)
        return self._add("sequence", (x,), (height * width, channels), name=name)

    def concatenate(self, *inputs: str, name: str = "") -> str:
        """Add the concatenation of outputs along the last axis (channels or units); other axes must agree."""
        shapes = [self.shape(x) for x in inputs]
        if len({shape[:-1] for shape in shapes}) > 1:
            raise ValueError(f"cannot concatenate {' and '.join(f'{x} {self.shape(x)}' for x in inputs)}")
        return self._add(
            "concatenate", inputs, (*shapes[0][:-1], sum(shape[-1] for shape in shapes)), name=name
        )

    def dropout(self, x: str, rate: float, *, name: str = "") -> str:
        """Add dropout: in training, an element is 0 with probability `rate`, else divided by 1 - `rate`."""
        return self._add("dropout", (x,), self.shape(x), {"rate": rate}, name=name)

    def _convolution(
        self,
        kind: str,
        x: str,
        channels_and_weights: tuple[int, dict[str, Shape]],
        kernel: Size,
        stride: int,
        padding: Size,
        bias: bool,
        name: str,
    ) -> str:
        channels, weights = channels_and_weights
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
        return self._add(
            kind, (x,), shape, {"kernel": kernel, "stride": stride, "padding": padding}, name=name
        )

    def _windows(self, kind: str, x: str, kernel: Size, stride: int, padding: Size) -> Shape:
        height, width, _ = self._image(x)
        sides = zip((height, width), pair(kernel), pair(padding), strict=True)
        sizes = tuple((side + 2 * zeros - window) // stride + 1 for side, window, zeros in sides)
        if min(sizes) < 1:
            window = " x ".join(map(str, pair(kernel)))
            raise ValueError(f"{kind} of {window} on {height} x {width} pixels: nothing is left")
        return sizes

    def _image(self, x: str) -> tuple[int, int, int]:
        """Return the shape of an image, or raise ValueError if `x` is none."""
        if len(shape := self.shape(x)) != 3:
            raise ValueError(f"{x} {shape} is not an image (height, width, channels)")
        height, width, channels = shape
        return height, width, channels

    def _sequence(self, x: str) -> tuple[int, int]:
        """Return the shape of a sequence, or raise ValueError if `x` is none."""
        if len(shape := self.shape(x)) != 2:
            raise ValueError(f"{x} {shape} is not a sequence (length, units)")
        length, units = shape
        return length, units

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
        self._operators[name] = Operator(
            name, kind, tuple(inputs), shape, settings or {}, weights or {}, macs
        )
        return name
