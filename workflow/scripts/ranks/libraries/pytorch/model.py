"""Build a model as a PyTorch module from its graph, and copy weights into it and out of it."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter, getitem
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
    set_checkpoint_early_stop,
)

from models.graph import SHARED, Graph, Operator
from models.initial import rotary_tables
from ranks.libraries.channels_first import canonical, channels_first
from ranks.libraries.pytorch.layers import (
    LSTM,
    AddVector,
    Attention,
    ClassToken,
    Experts,
    Positions,
    gather_positions,
    join_products,
    log_counts,
)
from ranks.libraries.pytorch.user_model import build_user_module, own_tensors
from ranks.worker.trainer import NONE

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, "tanh"),
    "softmax": partial(nn.Softmax, -1),
}
#: operators whose output a ReLU can overwrite, since their backward pass does not need it
OVERWRITABLE = ("conv", "depthwise_conv", "dense", "batch_norm", "add")
#: names of a module's weights, by their names in a graph
WEIGHTS = {
    "kernel": "weight",
    "bias": "bias",
    "scale": "weight",
    "offset": "bias",
    "mean": "running_mean",
    "variance": "running_var",
    "table": "weight",
    "vector": "vector",
    "token": "weight",
    "load": "load",
    "router_kernel": "router",
    **{f"{part}_kernel": f"feed_forwards.{part}" for part in ("gate", "up", "down")},
    **{
        f"{part}_{weight}": f"{part}.{name}"
        for part in ("query", "key", "value", "output")
        for weight, name in (("kernel", "weight"), ("bias", "bias"))
    },
}
FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "gather": gather_positions,
    "interactions": join_products,
    "log_counts": log_counts,
}
LSTM_WEIGHTS = {"kernel": "weight_ih_l0", "recurrent_kernel": "weight_hh_l0", "bias": "bias_ih_l0"}
#: operators with results that `checkpointing: selective` keeps: products, attention, sums over a tensor axis
SELECTED = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops._c10d_functional.all_reduce.default,
]


def build(graph: Graph, checkpointing: str = NONE) -> nn.Module:
    """Return the model as a PyTorch module: user-supplied, or generated from the graph's operators.

    It maps images [N, C, H, W] or tokens [N, length] to logits [N, classes] or [N, positions, vocabulary].
    A generated forward method (torch.fx) is the sequence of calls that a person would write.

    Args:
        graph: The model.
        checkpointing: Level of the factor: what the backward pass recomputes.
    """
    if graph.module:
        return build_user_module(graph.module)
    root, calls = nn.Module(), fx.Graph()
    nodes = {graph.operators[0].name: calls.placeholder("images" if graph.vocabulary is None else "tokens")}
    tables = {}
    for name, table in rotary_buffers(graph).items():
        root.register_buffer(name, table)
        tables[name] = calls.get_attr(name)
    blocks = (
        {} if checkpointing == NONE else {operators[0].name: operators for operators in graph.blocks.values()}
    )
    in_blocks = {operator.name for operators in blocks.values() for operator in operators}
    for operator in graph.operators[1:]:
        if operator.name in blocks:
            nodes |= _add_checkpointed_block(blocks[operator.name], nodes, graph, root, calls, checkpointing)
        if operator.name in in_blocks:
            continue
        if operator.kind == SHARED:  # Two stages of a pipeline have this table.
            root.add_module(operator.name, nn.Embedding(*operator.weights["table"]))
            continue
        nodes[operator.name] = _add_call(
            operator, tuple(nodes[name] for name in operator.inputs), graph, root, calls, tables
        )
    calls.output(nodes[graph.operators[-1].name])
    module = fx.GraphModule(root, calls, graph.model)
    for name, layer in root.named_children():
        module.add_module(name, layer)  # A table that stages share is not in `calls`.
    for block in module.children():
        if isinstance(block, Checkpointed):
            for name, layer in block.layers.named_children():
                object.__setattr__(module, name, layer)  # Names of weights stay as they are.
    return module


class Checkpointed(nn.Module):
    """A block that the backward pass recomputes from its inputs (Chen et al. 2016).

    Selective checkpointing also keeps the results of SELECTED, as in torchtitan (Korthikanti et al. 2023).
    """

    #: PyTorch's `use_reentrant`: the block has its own backward pass; selective checkpointing excludes it
    is_reentrant = False

    def __init__(self, layers: fx.GraphModule, is_selective: bool) -> None:
        super().__init__()
        self.layers = layers
        self._contexts = (
            partial(create_selective_checkpoint_contexts, SELECTED) if is_selective else noop_context_fn
        )

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the block's outputs.

        The block is always recomputed to its end, as in torchtitan: libraries that gather parameters layer by
        layer would miss the end of a forward pass that stops early.
        """
        if self.is_reentrant:
            return checkpoint(self.layers, *inputs, use_reentrant=True)
        with set_checkpoint_early_stop(False):
            return checkpoint(self.layers, *inputs, use_reentrant=False, context_fn=self._contexts)


def _add_checkpointed_block(
    operators: Sequence[Operator],
    nodes: dict[str, fx.Node],
    graph: Graph,
    root: nn.Module,
    calls: fx.Graph,
    checkpointing: str,
) -> dict[str, fx.Node]:
    """Add a block to `root` and `calls` as one call, and return its outputs by operator."""
    in_block = {operator.name for operator in operators}
    inputs = list(dict.fromkeys(name for op in operators for name in op.inputs if name not in in_block))
    outputs = [operator.name for operator in graph.block_outputs(operators)]
    # The model keeps the tables of rotary positions: a copy in the block would stay on the CPU.
    tables = list(dict.fromkeys(_rotary_buffer(op) for op in operators if "rotary" in op.settings))
    block, block_root = fx.Graph(), nn.Module()
    within = {name: block.placeholder(f"input{i}") for i, name in enumerate(inputs)}
    own_tables = {name: block.placeholder(name) for name in tables}
    for operator in operators:
        below = tuple(within[name] for name in operator.inputs)
        within[operator.name] = _add_call(operator, below, graph, block_root, block, own_tables)
    block.output(tuple(within[name] for name in outputs))
    name = f"{operators[0].name}_checkpointed"
    layers = fx.GraphModule(block_root, block, name)
    root.add_module(name, Checkpointed(layers, checkpointing == "selective"))
    arguments = (*(nodes[name] for name in inputs), *(calls.get_attr(table) for table in tables))
    results = calls.call_module(name, arguments)
    return {output: calls.call_function(getitem, (results, i)) for i, output in enumerate(outputs)}


def rotary_buffers(graph: Graph) -> dict[str, torch.Tensor]:
    """Return the tables of rotary positions by the names of their buffers; equal layers share a table."""
    return {
        _rotary_buffer(operator): torch.tensor(rotary_tables(operator)) for operator in graph.rotary_operators
    }


def _rotary_buffer(operator: Operator) -> str:
    sizes = (*operator["rotary"].values(), operator.shape[0], operator.head_size)
    return re.sub(r"\W", "_", "_".join(map(str, ("rotary", *sizes))))


def _add_call(
    operator: Operator,
    inputs: tuple[fx.Node, ...],
    graph: Graph,
    root: nn.Module,
    calls: fx.Graph,
    tables: Mapping[str, fx.Node],
) -> fx.Node:
    """Add the call that computes an operator's output, and its module, if any, to `root`; return the call."""
    match operator.kind:
        case "add" | "multiply":
            return calls.call_function(torch.add if operator.kind == "add" else torch.mul, inputs)
        case "multiply_channels":
            gate = calls.call_method("view", (inputs[1], -1, operator.shape[-1], 1, 1))
            return calls.call_function(torch.mul, (inputs[0], gate))
        case "concatenate":
            return calls.call_function(torch.cat, (inputs, 1 if len(operator.shape) == 3 else -1))
        case "step":
            return calls.call_method("select", (*inputs, 1, operator["index"]))
        case "steps":
            return calls.call_method(
                "narrow", (*inputs, 1, operator["start"], operator["stop"] - operator["start"])
            )
        case "sequence":
            return calls.call_method("transpose", (calls.call_method("flatten", (*inputs, 2)), 1, 2))
        case "tied_dense":
            return calls.call_function(
                nn.functional.linear, (*inputs, calls.get_attr(f"{operator['of']}.weight"))
            )
        case "log_counts":
            (user,) = graph.users(operator.name)
            return calls.call_function(log_counts, (*inputs, calls.get_attr(f"{user.name}.weight")))
        case "gather" | "interactions":
            return calls.call_function(FUNCTIONS[operator.kind], inputs)
        case "final_state":
            (outputs,) = inputs
            return calls.call_function(getitem, (outputs.args[0], 1))
        case "lstm":
            root.add_module(operator.name, _operator_module(operator, graph))
            return calls.call_function(getitem, (calls.call_module(operator.name, inputs), 0))
    root.add_module(operator.name, _operator_module(operator, graph))
    if "rotary" in operator.settings:
        return calls.call_module(operator.name, inputs, {"rotary": tables[_rotary_buffer(operator)]})
    return calls.call_module(operator.name, inputs)


def _operator_module(operator: Operator, graph: Graph) -> nn.Module:
    below = graph.by_name[operator.inputs[0]]
    channels = below.shape[-1]
    match operator.kind:
        case "conv" | "depthwise_conv":
            return nn.Conv2d(
                channels,
                operator.shape[-1],
                operator["kernel"],
                operator["stride"],
                operator["padding"],
                groups=channels if operator.kind == "depthwise_conv" else 1,
                bias=operator["bias"],
            )
        case "up_conv":
            return nn.ConvTranspose2d(channels, operator.shape[-1], operator["stride"], operator["stride"])
        case "batch_norm":
            return nn.BatchNorm2d(channels, operator["epsilon"], 1 - operator["momentum"])
        case "activation" if operator["function"] == "relu":
            return nn.ReLU(inplace=len(graph.users(below.name)) == 1 and below.kind in OVERWRITABLE)
        case "activation":
            return ACTIVATIONS[operator["function"]]()
        case "max_pool":
            return nn.MaxPool2d(operator["kernel"], operator["stride"], operator["padding"])
        case "average_pool":
            return nn.AvgPool2d(operator["kernel"], operator["stride"], operator["padding"])
        case "global_average_pool":
            return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        case "flatten":
            return nn.Flatten()
        case "dense":
            return nn.Linear(channels, operator["units"], bias="bias" in operator.weights)
        case "dropout":
            return nn.Dropout(operator["rate"])
    return _module_of_sequences(operator, channels)


def _module_of_sequences(operator: Operator, units: int) -> nn.Module:
    """Return the module of an operator whose input has this many units."""
    match operator.kind:
        case "layer_norm":
            return nn.LayerNorm(units, operator["epsilon"])
        case "rms_norm":
            return nn.RMSNorm(units, operator["epsilon"])
        case "embedding":
            return nn.Embedding(*operator.weights["table"])
        case "add_vector":
            return AddVector(units)
        case "positions":
            return Positions(*operator.shape)
        case "class_token":
            return ClassToken(units)
        case "attention":
            return Attention(operator)
        case "experts":
            return Experts(operator)
        case "lstm":
            return LSTM(units, operator["units"])
    raise ValueError(f"PyTorch has no operator {operator.kind}")


def make_bfloat16(module: nn.Module, float32_buffers: Collection[str]) -> None:
    """Make weights and buffers bfloat16, in place.

    Buffers named in `float32_buffers` stay in float32, and so does batch normalization: its running
    statistics would not move, since their changes are smaller than the resolution of bfloat16.
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            continue
        for parameter in layer.parameters(recurse=False):
            parameter.data = parameter.data.bfloat16()
        for name, buffer in list(layer.named_buffers(recurse=False)):
            if name not in float32_buffers and buffer.is_floating_point():
                setattr(layer, name, buffer.bfloat16())


def tensors(module: nn.Module, graph: Graph) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a graph's weights, by their names in it."""
    if graph.module:
        return own_tensors(module)
    tensors_by_name = {}
    for name in graph.weights():
        operator, _, weight = name.rpartition(".")
        names = LSTM_WEIGHTS if graph.by_name[operator].kind == "lstm" else WEIGHTS
        tensors_by_name[name] = attrgetter(names[weight])(module.get_submodule(operator))
    return tensors_by_name


@torch.no_grad()
def load(module: nn.Module, graph: Graph, weights: dict[str, np.ndarray]) -> None:
    """Copy these canonical weights, all or some, into a module that was built from `graph`."""
    weight_tensors = tensors(module, graph)
    for name, weight in weights.items():
        weight_tensors[name].copy_(
            torch.from_numpy(channels_first(weight, graph.by_name[name.rpartition(".")[0]], graph))
        )


def gather_array(tensor: torch.Tensor) -> np.ndarray:
    """Return all of a tensor as float32 in host memory; collective if it is sharded (a DTensor)."""
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().float().cpu().numpy()


def canonical_weights(module: nn.Module, graph: Graph) -> dict[str, np.ndarray]:
    """Return the canonical weights of a module that was built from `graph`; the inverse of `load`.

    Sharded weights are gathered one after the other, which is collective.
    """
    return {
        name: canonical(gather_array(tensor), graph.by_name[name.rpartition(".")[0]], graph)
        for name, tensor in tensors(module, graph).items()
    }
