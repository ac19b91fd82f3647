"""FSDP2 (Zhao et al., VLDB 2023), used as PyTorch's FSDP2 tutorial and torchtitan use it.

The model is built on the meta device. Each of its blocks becomes a unit: FSDP gathers the unit's parameters
before use. Layers outside all blocks, such as embedding and head, belong to the root. Then each rank
allocates and loads its shards. Each unit prefetches the next one, in the forward and in the backward pass.

In mixed precision, FSDP itself casts (MixedPrecisionPolicy) in place of autocast. Parameters are gathered in
bfloat16; gradients are reduced in the type of `reduce_dtype`, by default in float32, as in torchtitan.
Weights, reduced gradients and optimizer state stay in float32, as with autocast. Batch normalization has
separate units in float32, since its kernels do not take bfloat16 parameters with float32 running statistics.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from models.graph import Graph
from models.precision import BF16, COMPUTES_IN_BFLOAT16, FP32
from ranks.libraries.channels_first import channels_first
from ranks.libraries.pytorch.layers import LSTM
from ranks.libraries.pytorch.model import Checkpointed, rotary_buffers, tensors
from ranks.libraries.pytorch.optimizer import make_optimizer, norm_over_ranks
from ranks.libraries.pytorch.trainer import PyTorchTrainer
from ranks.libraries.pytorch.user_model import own_units
from ranks.worker.context import Context
from ranks.worker.epoch_timer import EpochSums

REDUCE_DTYPES = {FP32: torch.float32, BF16: torch.bfloat16}  # types by level of reduce_dtype
UNIT_BYTES = 25 * 2**20  # size of units in a model without blocks, that of DDP's buckets
#: functions of torch.distributed that FSDP2 calls, in PyTorch 2.6 to 2.13, and experts
FSDP_COLLECTIVES = (
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_gather_single",
    "reduce_scatter_single",
    "all_reduce",
    "all_to_all_single",
)


def units(module: nn.Module, graph: Graph) -> Iterator[list[nn.Module]]:
    """Yield the layers of each unit, in the order of the forward pass.

    A unit is a block of the model. In a model without blocks, it is consecutive layers of UNIT_BYTES or more.
    Remaining layers, and a table that another layer uses, belong to the root module. Layers without weights
    are in no unit: an activation at the start of one would overwrite FSDP's output in place.
    """
    if graph.module:
        yield from own_units(module, graph.module)
        return
    if blocks := [block for block in module.children() if isinstance(block, Checkpointed)]:
        # The backward pass gathers such a unit's parameters once, before it recomputes the unit.
        yield from ([block] for block in blocks if any(True for _ in block.parameters()))
        return
    if graph.blocks:
        for operators in graph.blocks.values():
            if layers := [module.get_submodule(op.name) for op in operators if op.weights]:
                yield layers
        return
    tied = {operator["of"] for operator in graph.operators if operator.kind == "tied_dense"}
    layers, unit_bytes = [], 0
    for name, layer in module.named_children():
        layer_bytes = sum(weight.nbytes for weight in layer.parameters())
        if name in tied or not layer_bytes:
            continue
        if unit_bytes >= UNIT_BYTES:
            yield layers
            layers, unit_bytes = [], 0
        layers.append(layer)
        unit_bytes += layer_bytes


def shard_of(tensor: torch.Tensor, parameter: DTensor) -> torch.Tensor:
    """Return this rank's shard of a tensor that is sharded as `parameter` is.

    The tensor axis, a mesh's last one, partitions first, and FSDP shards the result. If there are more ranks
    than rows, the last ranks have none.
    """
    mesh, shard = parameter.device_mesh, tensor
    for axis in reversed(range(mesh.ndim)):
        if (placement := parameter.placements[axis]).is_replicate():
            continue
        shards, number = shard.chunk(mesh.size(axis), placement.dim), mesh.get_local_rank(axis)
        shard = shards[number] if number < len(shards) else shard.narrow(placement.dim, 0, 0)
    return shard


def mark_calls(context: Context, on_gpu: bool) -> None:
    """Mark every collective of FSDP, and the rank's waits for it.

    On CPUs a collective returns when it is done. On an accelerator it is marked on the stream that runs it;
    the rank waits when its own stream waits for an event.
    """
    phases = context.phases

    def marked(collective: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Any:
            end, go_on = phases.begin(), None if on_gpu else phases.waits()
            work = collective(*args, **named)
            end()
            if go_on:
                go_on()
            return work

        return called

    for name in FSDP_COLLECTIVES:
        if hasattr(dist, name):
            setattr(dist, name, marked(getattr(dist, name)))
    if on_gpu:
        wait_event, default_stream = torch.cuda.Stream.wait_event, torch.cuda.default_stream()

        def wait(stream: torch.cuda.Stream, event: Any) -> None:
            go_on = phases.waits() if stream == default_stream else None
            wait_event(stream, event)
            if go_on:
                go_on()

        torch.cuda.Stream.wait_event = wait


class ShardedTrainer(PyTorchTrainer):
    """A trainer whose model is sharded and loaded in `distribute`."""

    #: whether parameters are freed after the forward pass and gathered again (ZeRO stage 3 instead of 2)
    regathers = True
    #: a module of each unit and the root
    sharded: Sequence[Any] = ()
    _local_shards: list[tuple[DTensor, torch.Tensor]]

    def make_module(self) -> nn.Module:
        """Return the model on the meta device, without memory; `load_shards` allocates and loads it.

        A user's module draws its weights at once on the CPU, and FSDP moves each unit to the device as it
        shards it.
        """
        return self.make_graph_module(self.graph)

    def make_graph_module(self, graph: Graph) -> nn.Module:
        """Return the module of a graph without memory, or a user's module with its weights."""
        if graph.module:
            return self.build_module(graph)
        with torch.device("meta"):
            module = self.build_module(graph)
        for operator in graph.operators:
            # A dense layer of sequences returns a view. If an activation changed it in place, FSDP would not
            # gather the unit again in the backward pass.
            if operator.kind == "activation" and len(operator.shape) == 2:
                module.get_submodule(operator.name).inplace = False
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
        return module

    @property
    def roots(self) -> list[tuple[nn.Module, Graph]]:
        """Modules that this rank calls separately, with their graphs; by default only the model (a hook)."""
        return [(self.module, self.graph)]

    def shard(self, mesh: DeviceMesh) -> None:
        """Replace all parameters by this rank's shards on a mesh of one axis, or of two.

        With two axes, the outer one replicates the shards.
        """
        for root, graph in self.roots:
            self._shard_root(root, graph, mesh)

    @property
    def policy(self) -> MixedPrecisionPolicy:
        """Data types in which parameters are gathered and gradients reduced."""
        reduce_dtype = self.context.levels["reduce_dtype"]
        return MixedPrecisionPolicy(
            torch.bfloat16 if self.is_mixed else None,
            REDUCE_DTYPES.get(reduce_dtype, torch.float32 if self.is_mixed else None),
        )

    def _shard_root(self, root: nn.Module, graph: Graph, mesh: DeviceMesh) -> None:
        last = self.context.graph.operators[-1].name
        has_norms = self.context.levels["precision"] in COMPUTES_IN_BFLOAT16
        single, mixed, mixed_root = MixedPrecisionPolicy(), self.policy, self.policy
        if self.is_mixed and graph.operators[-1].name == last:
            mixed_root = replace(mixed, output_dtype=torch.float32)  # The loss takes logits in float32.

        def shard_unit(layers: list[nn.Module], policy: MixedPrecisionPolicy) -> list[nn.Module]:
            """Shard layers as one unit and return one of them, which represents the unit."""
            if layers:
                fully_shard(layers, mesh=mesh, mp_policy=policy, reshard_after_forward=self.regathers)
            return layers[:1]

        def is_norm(layer: nn.Module) -> bool:
            return has_norms and isinstance(layer, _BatchNorm) and not isinstance(layer, FSDPModule)

        blocks = []
        for layers in units(root, graph):
            norms = [part for layer in layers for part in layer.modules() if is_norm(part)]
            products = [layer for layer in layers if layer not in norms]
            unit_of_norms = shard_unit(norms, single)  # first, since FSDP leaves out layers that have a unit
            blocks.append(shard_unit(products, mixed) + unit_of_norms)
        norms_of_root = shard_unit([layer for layer in root.modules() if is_norm(layer)], single)
        # The root is not freed after the forward pass, since the backward pass begins with it.
        fully_shard(root, mesh=mesh, mp_policy=mixed_root, reshard_after_forward=False)
        self.sharded = [*self.sharded, *(unit for block in blocks for unit in block), *norms_of_root, root]
        for (block, *_), following in pairwise([[root], *blocks]):
            block.set_modules_to_forward_prefetch(following)
        for (block, *_), following in pairwise([[root], *reversed(blocks)]):
            block.set_modules_to_backward_prefetch(following)

    @torch.no_grad()
    def load_shards(self) -> None:
        """Allocate this rank's part of the model, and load the initial weights one after the other.

        A user's module has its weights already.
        """
        if self.graph.module:
            return
        self.module.to_empty(device=self.torch_device)
        tables = rotary_buffers(self.graph)
        for name, buffer in self.module.named_buffers():
            buffer.copy_(tables.get(name.rpartition(".")[2], torch.zeros(())))
        weight_tensors = tensors(self.module, self.graph)
        for name, weight in self.context.draw_weights(weight_tensors):
            operator = self.graph.by_name[name.rpartition(".")[0]]
            value = self.rank_experts(torch.from_numpy(channels_first(weight, operator, self.graph)))
            tensor = weight_tensors[name]
            if isinstance(tensor, DTensor):
                tensor.to_local().copy_(shard_of(value, tensor))
            else:
                tensor.copy_(value)
        if self.is_mixed:
            for layer in self.module.modules():
                if isinstance(layer, LSTM) and layer.bias_hh_l0 is not None:
                    layer.bias_hh_l0 = layer.bias_hh_l0.bfloat16()

    def rank_experts(self, weight: torch.Tensor) -> torch.Tensor:
        """Return this rank's experts of a weight, or all of a weight that has none (a hook)."""
        return weight

    def make_shard_optimizer(self) -> None:
        """Create the optimizer of this rank's shards, after they are loaded.

        It gets plain tensors that share memory with the shards. Since optimizers are elementwise, the result
        is the same without the overhead of DTensor in every operation.
        """
        self._local_shards = []

        def local_shard(parameter: nn.Parameter) -> torch.Tensor:
            if not isinstance(parameter, DTensor):
                return parameter
            self._local_shards.append((parameter, parameter.detach().to_local().requires_grad_()))
            return self._local_shards[-1][1]

        levels, rate = self.context.levels, self.context.learning_rate(0)
        self.optimizer = make_optimizer(self.module, self.graph, levels, rate, local_shard)

    def clip_and_update(self) -> None:
        """Clip the gradients, update the weights and clear the gradients."""
        for parameter, shard in self._local_shards:
            if parameter.grad is not None:
                gradient, parameter.grad = parameter.grad, None
                if gradient.placements != parameter.placements:  # a norm that has some of the positions
                    gradient = gradient.redistribute(placements=parameter.placements)
                shard.grad = gradient.to_local()
        super().clip_and_update()

    def gradient_norm(self, weights: list[torch.Tensor]) -> torch.Tensor:
        """Return the L2 norm of all ranks' gradients; `weights` are what this rank updates."""
        parameters = {id(shard): parameter for parameter, shard in self._local_shards}
        copies = [self.n_copies(parameters.get(id(weight), weight)) for weight in weights]
        return norm_over_ranks(weights, copies, self.torch_device)

    def n_copies(self, parameter: torch.Tensor) -> int:
        """Return the number of ranks that have the same shard of a parameter (a hook)."""
        copies = self.context.ranks // self.context.mesh.pipeline
        if isinstance(parameter, DTensor):
            for axis, placement in enumerate(parameter.placements):
                copies //= 1 if placement.is_replicate() else parameter.device_mesh.size(axis)
        return copies

    def gradient_sync(self, is_last_batch: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context manager of one batch's forward and backward pass."""
        for root, _ in self.roots:
            if isinstance(root, FSDPModule):
                root.set_requires_gradient_sync(is_last_batch)
                root.set_reshard_after_backward(is_last_batch)
        return contextlib.nullcontext()

    def settings(self) -> dict[str, str]:
        """Return the settings of this rank by name, after the last epoch."""
        settings = super().settings()
        if self.sharded:
            state = self.sharded[-1]._get_fsdp_state()
            dtype, reduced = state._mp_policy.param_dtype, state._mp_policy.reduce_dtype
            n_roots = len(self.roots)
            roots = "the root module" if n_roots == 1 else f"{n_roots} root modules"
            settings["sharding units"] = f"{len(self.sharded) - n_roots} and {roots}"
            if dtype is not None:
                settings["mixed precision"] = f"MixedPrecisionPolicy, {str(dtype).removeprefix('torch.')}"
            if reduced is not None:
                settings["gradients"] = f"reduced in {str(reduced).removeprefix('torch.')}"
        return settings

    def validate(self) -> EpochSums:
        """Evaluate this rank's share of the validation split.

        All ranks gather the parameters of each unit, as in training.
        """
        sums = super().validate()
        self.keep_pace()
        for unit in self.sharded:
            unit.reshard()
        return sums

    @torch.no_grad()
    def weights_finite(self) -> bool:
        """Return whether all weights are finite.

        Each rank checks its own shards.
        """
        local_tensors = (
            t.to_local() if isinstance(t, DTensor) else t for t in tensors(self.module, self.graph).values()
        )
        return all(bool(tensor.isfinite().all()) for tensor in local_tensors)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return autocast to bfloat16 for `precision: amp`, else a context without effect.

        FSDP casts instead.
        """
        return contextlib.nullcontext()
