"""Train with PyTorch: model, data and step. Adapters add the communication of gradients."""

import contextlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, getitem
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
    set_checkpoint_early_stop,
)

from models.graph import SHARED, Graph, Operator, is_decayed
from models.initial import rotary_tables
from models.precision import AMP, BF16, FP32, TF32
from ranks.libraries.ahead import N_SLOTS, Prefetcher
from ranks.libraries.channels_first import canonical, channels_first
from ranks.libraries.pytorch_layers import (
    LSTM,
    AddVector,
    Attention,
    ClassToken,
    Experts,
    Positions,
    attention_kernel,
    gather_positions,
    join_products,
    log_counts,
)
from ranks.libraries.pytorch_streams import Streams
from ranks.libraries.pytorch_user_model import (
    build_user_module,
    count_parameters,
    count_sample_flops,
    module_statistics,
    own_tensors,
)
from ranks.worker.batches import Batch
from ranks.worker.collectives import Collectives
from ranks.worker.context import Context
from ranks.worker.devices import device_indices
from ranks.worker.epoch_timer import EpochSums, EpochTimer
from ranks.worker.group import free_port
from ranks.worker.operators import Event, moved, show_clock
from ranks.worker.phases import Untraced
from ranks.worker.trainer import CLIP_EPSILON, HEURISTIC, NONE, ON_DEMAND, RECOMPUTED, TIMED, UNFUSED, Trainer

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
#: switches of fused attention kernels; the one of flash attention also applies to CPUs
FUSED_ATTENTION = (
    torch.backends.cuda.enable_flash_sdp,
    torch.backends.cuda.enable_mem_efficient_sdp,
    torch.backends.cuda.enable_cudnn_sdp,
)


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


def scale_auxiliary_losses(module: nn.Module, n_batches: int) -> None:
    """Scale the auxiliary losses of experts for gradients that are means over `n_batches` batches."""
    for layer in module.modules():
        if isinstance(layer, Experts):
            layer.loss_share = 1 / n_batches


def make_optimizer(
    module: nn.Module,
    graph: Graph,
    levels: dict[str, Any],
    rate: float,
    shard: Callable[[nn.Parameter], torch.Tensor] = lambda parameter: parameter,
) -> torch.optim.Optimizer:
    """Return the optimizer of a module; it updates `shard(parameter)` of each parameter."""
    weight_tensors = tensors(module, graph)
    trained = {
        name: shard(tensor) for name, tensor in weight_tensors.items() if isinstance(tensor, nn.Parameter)
    }
    return optimizer_of({name: [tensor] for name, tensor in trained.items()}, levels, rate)


def adam_settings(levels: dict[str, Any]) -> dict[str, Any]:
    """Return betas and epsilon of Adam as PyTorch's arguments."""
    return {"betas": (levels["adam_beta1"], levels["adam_beta2"]), "eps": levels["adam_epsilon"]}


def optimizer_of(
    weights: Mapping[str, Sequence[torch.Tensor]], levels: dict[str, Any], rate: float
) -> torch.optim.Optimizer:
    """Return SGD with momentum, Adam (Kingma & Ba 2015) or AdamW (Loshchilov & Hutter 2019).

    Args:
        weights: Tensors to update, by the names of weights in the graph; {} if this rank has none.
        levels: Levels of the factors.
        rate: Learning rate.
    """
    decay, level = levels["weight_decay"], levels["decayed_weights"]
    tensors_by_decay: dict[float, list[torch.Tensor]] = {decay: [], 0.0: []}
    for name, weight_tensors in weights.items():
        tensors_by_decay[decay if is_decayed(name, level) else 0.0] += weight_tensors
    groups: list[dict[str, Any]] = [
        {"params": weight_tensors, "weight_decay": group_decay}
        for group_decay, weight_tensors in tensors_by_decay.items()
        if weight_tensors
    ]
    if not groups:  # PyTorch refuses an optimizer without parameters.
        groups = [{"params": [torch.zeros(0, requires_grad=True)]}]
    match levels["optimizer"]:
        case "adam":
            return torch.optim.Adam(groups, rate, **adam_settings(levels))
        case "adamw":
            return torch.optim.AdamW(groups, rate, **adam_settings(levels))
    return torch.optim.SGD(groups, rate, momentum=levels["momentum"])


def optimizer_implementation(optimizer: Any) -> str:
    """Return name and implementation of an optimizer: fused, foreach (kernels of many tensors) or for-loop.

    Libraries that wrap PyTorch's optimizer keep it as the attribute `optimizer`, or derive from its class.
    """
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    kind = next(base for base in type(optimizer).__mro__ if base.__module__.startswith("torch."))
    if kind is torch.optim.Optimizer:  # A class of another library has its own kernels.
        return f"{type(optimizer).__module__.partition('.')[0]} {type(optimizer).__name__}"
    group = max(optimizer.param_groups, key=lambda group: len(group["params"]))
    fused, foreach = group.get("fused"), group.get("foreach")
    if fused is None and foreach is None:
        fused, foreach = _default_to_fused_or_foreach(group["params"], False)
    return f"torch.optim.{kind.__name__}, {'fused' if fused else 'foreach' if foreach else 'for-loop'}"


def configure_library(context: Context) -> torch.device:
    """Set PyTorch's threads, kernels and current device, and return the rank's device."""
    torch.set_num_threads(context.cores)
    torch.set_num_interop_threads(1)
    # Benchmarks and timings have only some of the factors.
    torch.backends.cudnn.benchmark = context.levels.get("autotune") != "none"
    for enable in FUSED_ATTENTION:  # Without them, PyTorch computes two matrix products and a softmax.
        enable(context.levels.get("attention") != "unfused")
    # Otherwise PyTorch computes these two products of bfloat16 in float32, since version 2.5.
    if hasattr(torch.backends.cuda, "allow_fp16_bf16_reduction_math_sdp"):
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    if context.local_rank not in context.accelerators:
        return torch.device("cpu")
    (index,) = device_indices(context, torch.cuda.device_count())
    # Device meshes, for example, use the current device.
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def join(context: Context) -> str:
    """Create PyTorch's group of all ranks, and return its backend.

    NCCL gets the rank's device, so that it creates its communicator here and not in the first step, and a
    rank with a wrong device fails at once.
    """
    backend = "nccl" if context.spec["device"] == "cuda" else "gloo"
    address, port = context.group.broadcast([context.group.address, free_port(context.group.address)])
    store = dist.TCPStore(address, port, context.ranks, context.rank == 0, wait_for_workers=False)
    device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else None
    dist.init_process_group(
        backend, store=store, rank=context.rank, world_size=context.ranks, device_id=device
    )
    return backend


def use_device_clock(phases: Untraced, device: torch.device) -> None:
    """Let a traced run take its stamps as events of the device's stream, if the device is an accelerator.

    The time between two events is a float32 in ms. The reference event is renewed every epoch, so the
    resolution is a microsecond in epochs of up to 16 s, and 60 microseconds in one of ten minutes.
    """
    if device.type != "cuda" or not phases.is_traced:
        return

    def origin() -> tuple[torch.cuda.Event, float]:
        event = stamp()
        torch.cuda.synchronize(device)
        return event, time.monotonic()

    def stamp() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event

    def seconds(stamps: Sequence[Any]) -> list[float]:
        first, zero = origins.pop()
        last, now = origin()
        origins.append((last, now))
        # Seconds of this rank's clock per ms of the device's.
        rate = (now - zero) / first.elapsed_time(last)
        return [s if isinstance(s, float) else zero + rate * first.elapsed_time(s) for s in stamps]

    origins = [origin()]
    phases.use_clock(stamp, seconds)


class TorchProfiler:
    """torch.profiler for ranks/worker/operators.py: operators, and kernels on an accelerator."""

    def __init__(self, device: torch.device) -> None:
        kinds = torch.profiler.ProfilerActivity
        on_gpu = device.type == "cuda"
        self._profile = torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA] if on_gpu else [kinds.CPU])
        self._shown_at = 0.0

    def start(self) -> None:
        """Start profiling."""
        self._profile.start()
        self._shown_at = show_clock(torch.profiler.record_function)

    def stop(self) -> None:
        """Stop profiling quickly, since an epoch is being timed."""
        self._profile.stop()

    def events(self) -> list[Event]:
        """Return the events, in microseconds of time.monotonic, after the profiler has stopped.

        Spans of the profiler itself are left out.
        """
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "profile.json"
            self._profile.export_chrome_trace(str(file))
            events = json.loads(file.read_text())["traceEvents"]
        return moved(
            [event for event in events if event["ph"] in "XMstf" and event.get("cat") != "Trace"],
            self._shown_at,
        )


def device_name(device: torch.device) -> str:
    """Return the name of the device for the record."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, reduction: str = "mean", label_smoothing: float = 0.0
) -> torch.Tensor:
    """Return the loss of logits [N, classes] and labels [N], or [N, length, vocabulary] and [N, length].

    Logits of fewer than 32 bits become float32.
    """
    precise = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    return nn.functional.cross_entropy(
        precise, labels.flatten(), reduction=reduction, label_smoothing=label_smoothing
    )


def norm_over_ranks(
    weights: Sequence[torch.Tensor], n_copies: Sequence[int], device: torch.device
) -> torch.Tensor:
    """Return the L2 norm of the gradients of all ranks' weights, each counted once; collective.

    Args:
        weights: This rank's weights, or its shards of them, with gradients.
        n_copies: For each weight, the number of ranks that have the same gradient.
        device: The rank's device.
    """
    square = torch.zeros((), device=device)
    if weights:
        norms = torch.stack(torch._foreach_norm([weight.grad for weight in weights], 2, torch.float32))
        square += (norms.square() / torch.tensor(n_copies, device=device)).sum()
    dist.all_reduce(square)
    return square.sqrt()


class PyTorchTrainer(Trainer):
    """The training loop of every PyTorch framework, on one device; adapters override the hooks.

    Attributes:
        graph: What this rank trains: the whole model (`context.graph`), or its stages in a pipeline.
        module: The module of `graph`, which has the weights.
        model: What a training step calls: `module`, or what wraps or compiles it.
    """

    #: data type of weights and of normalized images
    dtype = torch.float32

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        levels, graph = context.levels, self.rank_graph(context)
        self.graph = graph
        self.torch_device = configure_library(context)
        self.set_precision(levels["precision"])
        self.device = device_name(self.torch_device)
        channels_last = levels["memory_format"] == "channels-last"
        self._memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.sample_flops = count_sample_flops(graph, graph.module) if graph.module else None
        torch.manual_seed(context.spec["seed"])  # A user-supplied module draws its weights from it.
        self.module = self.make_module()
        self.n_parameters = count_parameters(self.module) if graph.module else graph.parameters
        # Dropout draws from this generator, which layers built with memory have advanced.
        torch.manual_seed(context.spec["seed"] + context.replica)
        self.optimizer = make_optimizer(self.module, graph, levels, context.learning_rate(0))
        self.loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = partial(
            cross_entropy, label_smoothing=levels["label_smoothing"]
        )
        if context.graph.vocabulary is None:
            self._mean = torch.tensor(context.manifest["mean"], device=self.torch_device).view(1, -1, 1, 1)
            self._std = torch.tensor(context.manifest["std"], device=self.torch_device).view(1, -1, 1, 1)
        self._ahead = Prefetcher(Streams(self.torch_device)) if self.torch_device.type == "cuda" else None
        self._updates = 0
        self.model: nn.Module = self.module
        use_device_clock(context.phases, self.torch_device)
        context.phases.use_profiler(TorchProfiler(self.torch_device))
        context.phases.enter("join")
        self.distribute()
        context.phases.enter("build")
        if levels["compiler"] == "torch-compile":
            self.model = torch.compile(self.model)
        # Weights may still be on their way to the device, and to other ranks, when the first epoch begins.
        synchronize(self.torch_device)

    def set_precision(self, level: str) -> None:
        """Set `dtype` and PyTorch's switch for TF32 products by the level of `precision`.

        `amp` sets nothing here: it acts in `autocast`, in each forward pass.

        Raises:
            ValueError: If PyTorch's trainers do not have the level.
        """
        if level not in (FP32, TF32, AMP, BF16):
            raise ValueError(f"PyTorch cannot train with precision {level}")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = level == TF32
        if level == BF16:
            self.dtype = torch.bfloat16

    def rank_graph(self, context: Context) -> Graph:
        """Return the graph that this rank trains: the model, or its stages in a pipeline (a hook)."""
        return context.graph

    def build_module(self, graph: Graph) -> nn.Module:
        """Return the module of a graph with weights of the run's data type, before they have values."""
        module = build(graph, self.context.levels["checkpointing"])
        if self.dtype != torch.float32:
            # An expert's load sums small shares, which bfloat16 would round away.
            make_bfloat16(module, [*rotary_buffers(graph), "load"])
        return module

    def make_module(self) -> nn.Module:
        """Return the model with its initial weights on the device (a hook)."""
        module = self.build_module(self.graph)
        load(module, self.graph, dict(self.context.draw_weights(self.graph.weights())))
        return module.to(self.torch_device, memory_format=self._memory_format)

    def distribute(self) -> None:
        """Wrap `model` and `optimizer` so that optimizer steps average gradients over ranks (a hook)."""

    def gradient_sync(
        self,
        is_last_batch: bool,  # noqa: ARG002 (adapters use it)
    ) -> contextlib.AbstractContextManager[None]:
        """Return the context manager of one batch's forward and backward pass (a hook).

        Args:
            is_last_batch: Whether an optimizer step follows; other batches need no all-reduce.
        """
        return contextlib.nullcontext()

    def train_epoch(self, epoch: int, timer: EpochTimer) -> EpochSums:
        """Train this rank's batches of `epoch`; the device is idle on return.

        Each optimizer step uses the mean of the gradients of `sync_every` batches.
        """
        loss_sum = torch.zeros((), device=self.torch_device)
        counts = self.context.counts_correct
        correct = torch.zeros((), dtype=torch.int64, device=self.torch_device)
        batches, phases = self._batches(epoch), self.context.phases
        self.model.train()
        for n_batches in self.context.accumulation_groups:
            for i in range(n_batches):
                phases.step()
                phases.enter("data")
                inputs, labels = next(batches)
                with self.gradient_sync(i == n_batches - 1):
                    loss, logits = self.propagate(inputs, labels, n_batches)
                phases.enter("metrics")
                loss_sum += loss * len(labels)
                if counts and logits is not None:
                    correct += (logits.argmax(-1) == labels).sum()
                # Otherwise the next batch would find its predecessor's logits in memory.
                del logits
                if i == n_batches - 1:
                    phases.enter("optimizer")
                    self._optimizer_step()
                if timer.wants_steps:
                    synchronize(self.torch_device)
                    timer.step()
        synchronize(self.torch_device)
        samples = self.context.spec["steps"] * self.context.spec["local_batch"]
        return EpochSums(loss_sum.item(), int(correct) if counts else None, samples)

    def propagate(
        self, inputs: torch.Tensor, labels: torch.Tensor, n_batches: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run forward and backward pass of one of `n_batches` batches before an optimizer step (a hook).

        Returns:
            The batch's loss, 0 if another rank has it, and its logits, None if another rank has them or
            nothing needs them.
        """
        phases = self.context.phases
        scale_auxiliary_losses(self.module, n_batches)
        phases.enter("forward")
        with self.autocast():
            logits = self.model(inputs)
            loss = self.loss(logits, labels)
        phases.enter("backward")
        self.backward(loss / n_batches if n_batches > 1 else loss)
        return loss.detach(), logits

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a batch's loss to the accumulated ones (a hook)."""
        loss.backward()

    def clip_and_update(self) -> None:
        """Clip the gradients, update the weights and clear the gradients (a hook)."""
        if limit := self.context.levels["clip_norm"]:
            updated = (weight for group in self.optimizer.param_groups for weight in group["params"])
            weights = [weight for weight in updated if weight.grad is not None]
            factor = limit / (self.gradient_norm(weights) + CLIP_EPSILON)
            torch._foreach_mul_([weight.grad for weight in weights], factor.clamp(max=1.0))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def gradient_norm(self, weights: list[torch.Tensor]) -> torch.Tensor:
        """Return the L2 norm of all ranks' gradients; `weights` are what this rank updates (a hook)."""
        norms = torch._foreach_norm([weight.grad for weight in weights], 2, torch.float32)
        return torch.linalg.vector_norm(torch.stack(norms))

    @torch.no_grad()
    def validate(self) -> EpochSums:
        """Evaluate this rank's share of the validation split."""
        self.module.eval()
        loss_sum, correct, samples = 0.0, 0, 0
        for inputs, expected in self._ready(self.context.validation()):
            with self.autocast():
                if (logits := self.predict(inputs)) is None:
                    continue
                loss_sum += cross_entropy(logits, expected, "sum").item() / self.context.positions
            correct += int((logits.argmax(-1) == expected).sum())
            samples += len(expected)
        return EpochSums(loss_sum, correct, samples)

    @torch.no_grad()
    def keep_pace(self) -> None:
        """Run forward passes of one sample until ranks with more validation batches are done, too.

        Libraries need them if gathering the parameters of a layer is collective.
        """
        dtype = torch.uint8 if self.context.graph.vocabulary is None else torch.int64
        sample = torch.zeros((1, *self.context.graph.shape), dtype=dtype, device=self.torch_device)
        for _ in range(self.context.missing_validation_batches):
            with self.autocast():
                self.predict(self._normalized(sample))

    def predict(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """Return the logits of a validation batch, None if another rank has them (a hook)."""
        return self.module(inputs)

    def weights(self) -> dict[str, np.ndarray]:
        """Return all weights of the model in the canonical layout (models/graph.py)."""
        return canonical_weights(self.module, self.context.graph)

    def statistics(self) -> dict[str, np.ndarray]:
        """Return the untrained weights of this rank, such as running statistics."""
        tensors_by_name = tensors(self.module, self.graph)
        names = module_statistics(self.module) if self.graph.module else self.graph.statistics
        return {name: tensors_by_name[name].float().cpu().numpy() for name in names}

    def set_statistics(self, statistics: dict[str, np.ndarray]) -> None:
        """Replace the untrained weights."""
        load(self.module, self.graph, statistics)

    def settings(self) -> dict[str, str]:
        """Return the settings of this rank by name, after the last epoch."""
        graph, device = self.context.graph, self.torch_device
        on_gpu, is_autocast = device.type == "cuda", isinstance(self.autocast(), torch.autocast)
        settings = {
            "optimizer implementation": optimizer_implementation(self.optimizer),
            "compiler": "torch.compile" if hasattr(self.model, "_orig_mod") else NONE,
            "mixed precision": "autocast to bfloat16" if is_autocast else NONE,
            "float32 products": "TF32" if torch.backends.cuda.matmul.allow_tf32 else "float32",
            "input pipeline": f"a thread copies up to {N_SLOTS} batches ahead" if self._ahead else ON_DEMAND,
            "threads": str(torch.get_num_threads()),
        }
        if self.context.levels["precision"] == BF16:
            settings["weights"] = "bfloat16"
        if any(isinstance(layer, Checkpointed) for layer in self.module.modules()):
            settings["activations"] = RECOMPUTED[self.context.levels["checkpointing"]]
        if graph.vocabulary is None:
            is_last = self._memory_format == torch.channels_last
            settings["memory format"] = "channels last" if is_last else "channels first"
        if on_gpu and (graph.has_convolutions or graph.module):
            settings["convolution algorithms"] = TIMED if torch.backends.cudnn.benchmark else HEURISTIC
        dtype = torch.bfloat16 if self.context.levels["precision"] == AMP else self.dtype
        kernels = {
            attention_kernel(operator, graph.by_name[operator.inputs[-1]].shape[0], dtype, device)
            for operator in graph.operators
            if operator.kind == "attention"
        }
        if kernels:
            settings["attention"] = ", ".join(sorted(kernels)).replace("unfused", UNFUSED)
        return settings

    def program_report(self) -> dict[str, Any] | None:
        """Return what only ranks can report (`measured.told` in record.json), None if there is nothing.

        Only ranks know the size of a user-supplied module.
        """
        if not self.graph.module:
            return None
        return {"parameters": self.n_parameters, "sample_flops": self.sample_flops}

    def reset_device_memory_peak(self) -> None:
        """Restart the peak of device memory at its present use."""
        if self.torch_device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.torch_device)

    def read_device_memory_peak(self) -> int | None:
        """Return the peak of device memory in bytes, None if the library does not report it.

        It counts tensors, without memory that the allocator caches for later ones.
        """
        return (
            torch.cuda.max_memory_allocated(self.torch_device) if self.torch_device.type == "cuda" else None
        )

    def _optimizer_step(self) -> None:
        """Set the learning rate of the next optimizer step, and take it."""
        rate = self.context.learning_rate(self._updates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.clip_and_update()
        self._updates += 1

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return autocast to bfloat16 for `precision: amp`, else a context without effect (a hook)."""
        if self.context.levels["precision"] == AMP:
            return torch.autocast(self.torch_device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def _batches(self, epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return self._ready(self.context.epoch(epoch))

    def _ready(self, batches: Iterable[Batch]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Return an iterator over the model's inputs and labels; an accelerator gets them ahead of time."""
        if self._ahead is None:
            return ((self._normalized(inputs), torch.from_numpy(labels)) for inputs, labels in batches)
        return self._ahead.batches(batches, lambda inputs, labels: (self._normalized(inputs), labels.clone()))

    def _normalized(self, inputs: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Return images, uint8 [N, H, W, C], as normalized float [N, C, H, W]; copy tokens."""
        if self.context.graph.vocabulary is not None:
            return torch.as_tensor(inputs).clone()
        bytes_ = torch.as_tensor(inputs).permute(0, 3, 1, 2)
        # The strides of images with one channel fit both formats, and `contiguous` would keep them. Then the
        # first kernel and its gradient would have different strides, of which DDP warns.
        images = (bytes_.to(torch.float32, memory_format=self._memory_format) - self._mean) / self._std
        return images.to(self.dtype)


class PyTorchCollectives(Collectives):
    """Collectives of PyTorch tensors.

    Adapters join the ranks and define a method for each collective, with its name: loaded tensor -> result.
    """

    def __init__(self, context: Context) -> None:
        self.torch_device = configure_library(context)
        self.device = device_name(self.torch_device)
        self._loaded = self._result = torch.empty(0)

    def load(self, values: np.ndarray) -> None:
        """Copy this rank's message, float32, to the device."""
        self._loaded = torch.tensor(values, device=self.torch_device)

    def do(self, collective: str) -> None:
        """Run this collective once on the loaded message, and return when the device is idle."""
        self._result = getattr(self, collective)(self._loaded)
        synchronize(self.torch_device)

    def result(self) -> np.ndarray:
        """Return the result of the last `do`, float32."""
        return self._result.cpu().numpy()


class TorchDistributed(PyTorchCollectives):
    """Collectives of all ranks by torch.distributed, or by another `library` with the same functions.

    `start` creates the library's group and returns its transport. Results of the same size share a buffer.
    """

    def __init__(self, context: Context, start: Callable[[Context], str] = join, library: Any = dist) -> None:
        super().__init__(context)
        self.transport, self._library = start(context), library
        self._ranks, self._rank = context.ranks, context.rank
        self._buffer = torch.empty(0)

    def all_reduce(self, summand: torch.Tensor) -> torch.Tensor:
        """Sum in place."""
        self._library.all_reduce(summand)
        return summand

    def all_gather(self, share: torch.Tensor) -> torch.Tensor:
        """Gather shares as FSDP gathers parameters."""
        self._library.all_gather_into_tensor(self._received(len(share) * self._ranks), share)
        return self._buffer

    def reduce_scatter(self, summand: torch.Tensor) -> torch.Tensor:
        """Reduce and scatter a sum as FSDP does with gradients."""
        self._library.reduce_scatter_tensor(self._received(len(summand) // self._ranks), summand)
        return self._buffer

    def all_to_all(self, shares: torch.Tensor) -> torch.Tensor:
        """Send and receive equal shares."""
        self._library.all_to_all_single(self._received(len(shares)), shares)
        return self._buffer

    def point_to_point(self, message: torch.Tensor) -> torch.Tensor:
        """Send and receive at once, as the ranks of a pipeline do."""
        after, before = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks
        calls = [
            dist.P2POp(dist.isend, message, after),
            dist.P2POp(dist.irecv, self._received(len(message)), before),
        ]
        for call in dist.batch_isend_irecv(calls):
            call.wait()
        return self._buffer

    def _received(self, elements: int) -> torch.Tensor:
        if len(self._buffer) != elements:
            self._buffer = torch.empty(elements, device=self.torch_device)
        return self._buffer
