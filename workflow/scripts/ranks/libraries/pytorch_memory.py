"""Count the memory of tensors without content, and replace what reads it, for ranks.memory_estimate.

It is imported before the libraries that train, and changes PyTorch for the rest of the process.
"""

import contextlib
import functools
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.distributed import device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

#: categories of tensors; `framework` has what gathers, sends and receives, and batches sent ahead
CATEGORIES = ("parameters", "gradients", "optimizer", "buffers", "activations", "framework")
ALLOCATING = ("c10d", "fsdp")  # namespaces of operators that allocate what is sent and received
TRAINING = "training"
TRANSIENT = 0  # number of what an operator allocates and frees


class Ledger(FakeTensorMode):
    """Count the bytes of live storages, each from the operator that first returns a tensor with it.

    Attributes:
        stage: TRAINING, or `build` before it.
        live_bytes: Bytes of all live storages.
        peak_bytes: Maximum of `live_bytes` since `begin_step`.
    """

    def __init__(self, block_bytes: int) -> None:
        """Count blocks of this size, to which an allocator rounds up."""
        super().__init__(allow_non_fake_inputs=True)
        self.stage, self.live_bytes, self.peak_bytes = "build", 0, 0
        self._block_bytes, self._depth, self._n_storages = block_bytes, 0, 0
        self._sizes: dict[int, int] = {}  # bytes of live storages by number
        self._at_peak: dict[int, int] = {}
        self._origins: dict[int, str] = {TRANSIENT: "activations"}
        self._gradients: set[int] = set()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, kinds: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See FakeTensorMode. Numbers that depend on content are 0, and nested operators are not counted."""
        self._depth += 1
        try:
            result = super().__torch_dispatch__(func, kinds, args, kwargs or {})
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            result = False if args[0].dtype == torch.bool else 0
        finally:
            self._depth -= 1
        if self._depth == 0 and result is not NotImplemented:
            for tensor in tree_leaves(result):
                if isinstance(tensor, FakeTensor) and tensor.device.type != "meta":
                    self._add(tensor.untyped_storage(), func)
            transient_bytes = 0
            if func is torch.ops.aten.mkldnn_rnn_layer.default:
                self.note_size(result[3].untyped_storage(), lstm_workspace_bytes(args[0], result[0]))
            elif func is torch.ops.aten.mkldnn_rnn_layer_backward.default:
                transient_bytes = lstm_backward_bytes(result)
            self._update_peak(transient_bytes)
        return result

    def _add(self, storage: Any, func: Any) -> None:
        if storage in self._numbers:
            return
        number = self._n_storages = self._n_storages + 1
        self._numbers[storage] = number
        is_message = func.namespace in ALLOCATING or "empty" in func.__name__
        self._origins[number] = "framework" if self.stage != TRAINING or is_message else "activations"
        weakref.finalize(storage, self._resize, number, 0)
        self._resize(number, storage.nbytes())

    def note_size(self, storage: Any, n_bytes: int) -> None:
        """Note a new size of a storage, since FSDP resizes those of gathered parameters."""
        if (number := self._numbers.get(storage)) is not None:
            self._resize(number, n_bytes)
            self._update_peak()

    def _resize(self, number: int, n_bytes: int) -> None:
        allocated = -(-n_bytes // self._block_bytes) * self._block_bytes
        self.live_bytes += allocated - self._sizes.pop(number, 0)
        if allocated:
            self._sizes[number] = allocated

    def _update_peak(self, transient_bytes: int = 0) -> None:
        if self.live_bytes + transient_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes + transient_bytes
            self._at_peak = {**self._sizes, TRANSIENT: transient_bytes}

    def begin_step(self) -> None:
        """Restart the peak, since the first step also computes layouts of DTensors with tensors."""
        self.stage, self.peak_bytes = TRAINING, 0

    def _numbers_of(self, tensors: Iterable[Any]) -> set[int]:
        local = (getattr(tensor, "_local_tensor", tensor) for tensor in tensors if tensor is not None)
        return {self._numbers.get(tensor.untyped_storage(), -1) for tensor in local}

    def mark_gradients(self, trainer: Any) -> None:
        """Remember the storages of gradients, which the optimizer clears."""
        self._gradients |= self._numbers_of(parameter.grad for parameter in _parameters(trainer))

    def by_category(self, trainer: Any) -> dict[str, int]:
        """Return the bytes of each category at the peak."""
        values = [value for state in trainer.optimizer.state.values() for value in state.values()]
        marked = {
            "parameters": self._numbers_of(_parameters(trainer)),
            "buffers": self._numbers_of(trainer.module.buffers()),
            "optimizer": self._numbers_of(value for value in values if isinstance(value, torch.Tensor)),
            "gradients": self._gradients,
        }
        sizes = Counter(dict.fromkeys(CATEGORIES, 0))
        for number, n_bytes in self._at_peak.items():
            name = next(
                (name for name, numbers in marked.items() if number in numbers), self._origins[number]
            )
            sizes[name] += n_bytes
        return dict(sizes)


def lstm_workspace_bytes(inputs: torch.Tensor, outputs: torch.Tensor) -> int:
    """Return the bytes that oneDNN keeps of an LSTM layer for its backward pass.

    Its workspace has no size if tensors have no content. It holds the gates, and the states at all positions
    and the initial one. The formula is fitted to oneDNN 3 for 13 shapes of inputs and outputs [length, N,
    units], within 6 %.
    """
    length, n_samples, units = outputs.shape
    states = 6.5 * max(inputs.shape[-1], units) + 4.7 * units
    return int(outputs.itemsize * n_samples * (4 * units * length + states * (length + 1)))


def lstm_backward_bytes(gradients: Sequence[torch.Tensor]) -> int:
    """Return the bytes that oneDNN allocates and frees in the backward pass of an LSTM layer.

    They hold gradients of gates, and weights and their gradients in the layout of oneDNN. `gradients` are the
    results of the operator.
    """
    inputs, layer_weights, recurrent_weights, *_ = gradients
    length, n_samples, _ = inputs.shape
    gates = length * n_samples * len(recurrent_weights)
    return inputs.itemsize * (gates + 2 * (layer_weights.numel() + recurrent_weights.numel()))


def _parameters(trainer: Any) -> list[Any]:
    """Return the parameters of a trainer's module, and the tensors that its optimizer updates."""
    groups = [group["params"] for group in trainer.optimizer.param_groups]
    return [*trainer.module.parameters(), *(parameter for group in groups for parameter in group)]


class Buckets(nn.Module):
    """Stand-in for DDP with gradients as views of buckets, which live as long as the object.

    Gradients that are only accumulated have separate memory until the last batch of a step.
    """

    def __init__(self, module: nn.Module, **_options: Any) -> None:
        super().__init__()
        self.module, self._synchronizes = module, True
        for parameter in module.parameters():
            move = functools.partial(self._move, torch.zeros_like(parameter))
            parameter.register_post_accumulate_grad_hook(move)

    def _move(self, bucket: torch.Tensor, parameter: nn.Parameter) -> None:
        if self._synchronizes:
            parameter.grad = bucket

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """See DDP."""
        self._synchronizes = False
        yield
        self._synchronizes = True

    def forward(self, *inputs: torch.Tensor) -> Any:
        """See DDP."""
        return self.module(*inputs)


def with_real_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with real tensors inside, since it reads numbers of ranks from tensors."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **named)

    return call


def convert(module: nn.Module, function: Callable[..., Any], recurse: bool = True) -> nn.Module:
    """Apply a function to parameters and buffers, as nn.Module._apply does when it swaps content."""
    for child in module.children() if recurse else ():
        child._apply(function)
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            converted = function(parameter)
        if is_traceable_wrapper_subclass(converted):
            new = nn.Parameter(converted, requires_grad=parameter.requires_grad)
            torch.utils.swap_tensors(parameter, new)
        elif converted is not parameter:
            module._parameters[name] = nn.Parameter(converted, parameter.requires_grad)
    for name, buffer in module._buffers.items():
        module._buffers[name] = None if buffer is None else function(buffer)
    return module


def replace_what_reads_content(ledger: Ledger) -> None:
    """Replace process groups, meshes, DDP and conversions of modules by code that works without content.

    It changes PyTorch for the rest of the process.
    """
    init_process_group, resize = dist.init_process_group, torch.UntypedStorage.resize_

    def join_silently(_backend: str, *, store: Any, rank: int, world_size: int, **_named: Any) -> None:
        init_process_group("fake", store=store, rank=rank, world_size=world_size)

    def resize_and_note(storage: Any, n_bytes: int) -> Any:
        ledger.note_size(storage, n_bytes)
        return resize(storage, n_bytes)

    dist.TCPStore = lambda *_args, **_named: FakeStore()
    dist.init_process_group = join_silently
    torch.UntypedStorage.resize_ = resize_and_note
    nn.Module._apply = convert
    nn.parallel.DistributedDataParallel = Buckets
    device_mesh.init_device_mesh = with_real_tensors(device_mesh.init_device_mesh)
    for name, member in list(vars(device_mesh.DeviceMesh).items()):
        if isinstance(member, types.FunctionType):
            setattr(device_mesh.DeviceMesh, name, with_real_tensors(member))
        elif isinstance(member, property) and member.fget:
            setattr(device_mesh.DeviceMesh, name, property(with_real_tensors(member.fget)))


def let_stages_agree() -> None:
    """Let pipeline stages use the shapes that they are given; PyTorch 2.13 would let ranks vote on them."""
    from torch.distributed.pipelining import schedules, stage

    from ranks.libraries import pytorch_mesh

    def use_given_shapes(_schedule: Any, stages: Iterable[Any], *_args: Any) -> None:
        for rank_stage in stages:
            rank_stage._inference_mode = stage.InferenceMode.STATIC

    shared_tables = pytorch_mesh.shared_tables
    pytorch_mesh.shared_tables = with_real_tensors(lambda *args: list(shared_tables(*args)))
    if hasattr(stage, "InferenceMode"):
        schedules._PipelineSchedule._warmup_p2p = use_given_shapes


def trust_other_ranks() -> None:
    """Skip ZeRO's comparison of its plan with the plans of other ranks."""
    from deepspeed.runtime.zero import partitioned_param_coordinator

    partitioned_param_coordinator.assert_ints_same_as_other_ranks = lambda _numbers: None
