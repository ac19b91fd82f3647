"""A CUDA device that computes nothing, for tests of what PyTorch is asked to do on one.

PyTorch's build for CPUs gets a device guard (fake_cuda.cpp), and its fake tensors hold shape, dtype and device of
all that is on `cuda`. Mixtures of devices, and of dtypes in products, are refused as a kernel refuses them. PyTorch's
own autograd engine runs backward passes in threads of the device, so hooks, DDP's reducer and FSDP work. Memory is
counted to the byte. Tensors on the CPU are real. A number that is read from the device is 1, unless it was copied to
the device and nothing has written to it since.

In a program (a module of this folder), which uses a process of its own, since PyTorch stays patched:

    from gpu.fake_cuda import FakeCuda, torch  # before any other module that imports PyTorch

    def train(rank: int, ranks: int) -> list[int]:
        device = FakeCuda(rank=rank, ranks=ranks)  # 8 GPUs; a process group of any size
        ...                                        # any training on cuda
        return [device.memory_bytes(), device.peak_bytes()]

In a test, with the fixtures of conftest.py (`attempt` plans a run, whose folder gpu.trained can train):

    def test_memory(on_fake_cuda, attempt):
        memory, peak = on_fake_cuda("gpu.my_program", "train", 0, 4)
        seen = on_fake_cuda("gpu.trained", "main", attempt("pytorch-fsdp", ranks=4, batch_size=64), 0, 4)

The process group is PyTorch's `fake` one, in which a rank hears nobody: a single process can be any rank of any
world. DeviceMesh, FSDP2, DTensor and pipelines use it unchanged. `python -m gpu.call` needs RINGSIDE_FAKE_CUDA, the
path of the compiled guard.
"""

import ctypes
import functools
import itertools
import os
import sys
import threading
import time
import types
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# It registers itself with PyTorch, which looks for a device once, while it is imported.
if "torch" in sys.modules:
    raise RuntimeError("gpu.fake_cuda has to be imported before torch")
LIBRARY = ctypes.CDLL(os.environ["RINGSIDE_FAKE_CUDA"])

import torch  # noqa: E402
import torch._subclasses.fake_tensor as fake_tensors  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.utils  # noqa: E402
from torch._C._distributed_c10d import _create_work_from_future  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.cuda import _sanitizer as sanitizer  # noqa: E402
from torch.distributed.tensor._sharding_prop import ShardingPropagator  # noqa: E402
from torch.nn.attention import SDPBackend  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map_only  # noqa: E402

__all__ = ["FakeCuda", "torch"]

DEVICE_NAME = "Fake GPU"
DEVICE_BYTES = 80 * 2**30
ANSWERED = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.item.default,
    torch.ops.aten._fused_sdp_choice.default,
}
COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
MAX_KEPT_NUMBERS = 4096
#: operators whose fake kernels accept tensors of several dtypes, which those of a GPU refuse
ONE_DTYPE = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.convolution}
INIT_PROCESS_GROUP, NEW_GROUP = dist.init_process_group, dist.new_group
RESIZE, SWAP_TENSORS = torch.UntypedStorage.resize_, torch.utils.swap_tensors


class FakeCuda:
    """Eight GPUs without a kernel, of which this process sees `n_visible`; patches PyTorch until it ends.

    Attributes:
        calls: What PyTorch was asked to do, in order: name and arguments.
        n_busy: Kernels and copies since the CPU last waited for the device.
        product_dtypes: Of matrix products and convolutions; attention is two products, as in a build without fused ones.
        loss_dtypes: Of the logits that losses are computed from.
        races: Accesses to one memory by two streams that no event orders, one line each, if `find_races`.
    """

    def __init__(self, n_visible: int = 8, rank: int = 0, ranks: int = 1, find_races: bool = False) -> None:
        self.n_visible, self.rank, self.ranks = n_visible, rank, ranks
        self.calls: list[tuple[Any, ...]] = []
        self.races: list[str] = []
        self.n_busy = 0
        self.product_dtypes: set[torch.dtype] = set()
        self.loss_dtypes: set[torch.dtype] = set()
        self.order = sanitizer.EventHandler() if find_races else None
        self.memory = Memory(self.order)
        self.mode = FakeCudaMode(self)
        self._local = threading.local()
        Stream.fake = Event.fake = self
        self._default = [Stream(torch.device("cuda", index), number=0) for index in range(n_visible)]
        self.host = HostCopies()
        patch(self)
        self.enter_thread()

    def note(self, name: str, *details: Any) -> None:
        """Append a call to `calls`."""
        self.calls.append((name, *details))

    def named(self, *names: str) -> list[tuple[Any, ...]]:
        """Return the calls with one of these names."""
        return [call for call in self.calls if call[0] in names]

    def watch(self, owner: Any, name: str, label: str | None = None) -> None:
        """Note each call of a function or method, with the device's kernels at that moment."""
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def watched(*args: Any, **named: Any) -> Any:
            self.note(label or name, self.n_busy)
            return inner(*args, **named)

        setattr(owner, name, watched)

    def watch_clock(self, module: Any) -> None:
        """Note when a module reads the monotonic clock, with the kernels that are then still running."""

        def monotonic() -> float:
            self.note("clock", self.n_busy)
            return time.monotonic()

        module.time = types.SimpleNamespace(time=time.time, monotonic=monotonic)

    def memory_bytes(self, index: int | None = None) -> int:
        """Return the bytes of all storages that live on a device, by default the current one."""
        return self.memory.living[self.index(index)]

    def peak_bytes(self, index: int | None = None) -> int:
        """Return the most bytes that lived at once since the peak was last reset."""
        return self.memory.peak[self.index(index)]

    def reset_peak(self, index: int | None = None) -> None:
        """Set the peak to what lives now."""
        self.memory.peak[self.index(index)] = self.memory_bytes(index)

    def index(self, device: Any = None) -> int:
        """Return the number of a device, of the current one for None."""
        if device is None or (isinstance(device, torch.device) and device.index is None):
            return LIBRARY.fake_cuda_get_device()
        return device.index if isinstance(device, torch.device) else int(str(device).removeprefix("cuda:"))

    def set_device(self, device: Any) -> None:
        """Make a device the current one of this thread, and its tensors on cuda fake from now on."""
        index = self.index(device)
        if not 0 <= index < self.n_visible:
            raise RuntimeError(f"CUDA error: invalid device ordinal {index} of {self.n_visible}")
        self.note("set_device", index)
        LIBRARY.fake_cuda_set_device(index)
        self.enter_thread()

    def enter_thread(self) -> None:
        """Fake tensors on cuda in this thread."""
        if not getattr(self._local, "entered", False):
            self._local.entered = True
            self.mode.__enter__()

    def synchronize(self, device: Any = None) -> None:
        """Wait for a device, which never has anything left to do."""
        self.note("synchronize", self.index(device))
        self.n_busy = 0
        self.host.reading.clear()
        if self.order:
            self.order._handle_device_synchronization()

    @property
    def stream(self) -> "Stream":
        """The current stream of this thread on its current device."""
        return self.current_stream()

    def current_stream(self, device: Any = None) -> "Stream":
        """Return this thread's current stream of a device."""
        index = self.index(device)
        streams: dict[int, Stream] = self._local.__dict__.setdefault("streams", {})
        return streams.get(index, self._default[index])

    def default_stream(self, device: Any = None) -> "Stream":
        """Return the default stream of a device."""
        return self._default[self.index(device)]

    @contextmanager
    def on_stream(self, stream: "Stream | None") -> Iterator[None]:
        """Make a stream the current one of this thread, as torch.cuda.stream does."""
        if stream is None:
            yield
            return
        streams = self._local.__dict__.setdefault("streams", {})
        device = LIBRARY.fake_cuda_get_device()
        before = self.current_stream(stream.device)
        LIBRARY.fake_cuda_set_device(stream.device.index)
        streams[stream.device.index] = stream
        try:
            yield
        finally:
            streams[stream.device.index] = before
            LIBRARY.fake_cuda_set_device(device)

    def join(self, backend: str | None = None, **named: Any) -> None:
        """Create the fake process group in place of one of `backend`."""
        self.note("init_process_group", backend, str(named.get("device_id")))
        rank, ranks = named.get("rank", self.rank), named.get("world_size", self.ranks)
        # It makes its own store.
        INIT_PROCESS_GROUP("fake", rank=rank, world_size=ranks)

    def launched(self, func: Any, args: Any, named: Any, result: Any) -> None:
        """Count a kernel, and compare its memory accesses with those of other streams."""
        self.n_busy += 1
        if self.order:
            accesses = Accesses()
            is_factory = bool(sanitizer.FACTORY_FUNCTION_REGEX.match(func._schema.name))
            accesses.parse_inputs(func._schema, args, named, is_factory=is_factory)
            accesses.parse_outputs(func._schema, result, is_factory=is_factory)
            faults = self.order._handle_kernel_launch(
                self.stream.cuda_stream,
                accesses.dataptrs_read - accesses.dataptrs_written,
                accesses.dataptrs_written,
                accesses.outputs,
                func._schema,
                accesses.tensor_aliases,
            )
            self.races += [
                f"{fault.current_access.operator.name} on stream {fault.current_access.stream} after "
                f"{fault.previous_access.operator.name} on stream {fault.previous_access.stream}"
                for fault in faults
            ]


class HostCopies:
    """Copies that can still read pinned memory, until the CPU has waited for an event after them."""

    def __init__(self) -> None:
        self.pinned: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self.reading: dict[int, list[tuple[int, set[int]]]] = {}  # storage -> stream, events behind the copy

    def start(self, source: torch.Tensor, stream: "Stream") -> bool:
        """Add a copy of `source`; return whether its memory is pinned, since otherwise the CPU waits for the copy."""
        storage = source.untyped_storage()
        if storage not in self.pinned:
            return False
        self.reading.setdefault(storage._cdata, []).append((stream.cuda_stream, set()))
        return True

    def record(self, event: int, stream: int) -> None:
        """Note that an event comes after all copies of a stream so far, and no longer after other copies."""
        for copies in self.reading.values():
            for copy_stream, events in copies:
                events.discard(event)
                if copy_stream == stream:
                    events.add(event)

    def wait(self, event: int) -> None:
        """Forget the copies before an event."""
        for copies in self.reading.values():
            copies[:] = [copy for copy in copies if event not in copy[1]]

    def is_read(self, memory: torch.Tensor) -> bool:
        """Return whether a copy can still read this memory."""
        return bool(self.reading.get(memory.untyped_storage()._cdata))


class Memory:
    """Bytes of the storages that live on each device, each counted from the first operation that returns it.

    The sanitizer `order` hears of storages that are freed, since others get their numbers. PyTorch's allocator
    hands memory of one stream to no other one.
    """

    def __init__(self, order: sanitizer.EventHandler | None) -> None:
        self.order = order
        self.living: defaultdict[int, int] = defaultdict(int)
        self.peak: defaultdict[int, int] = defaultdict(int)
        self._of_thread = threading.local()
        self._sizes: dict[int, tuple[int, int]] = {}  # number of a storage -> device, bytes

    def add(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor unless it is counted already."""
        storage = tensor.untyped_storage()
        number = storage._cdata
        if number not in self._sizes and not getattr(self._of_thread, "is_planning", False):
            self._sizes[number] = (tensor.device.index, 0)
            weakref.finalize(storage, self._free, number).atexit = False
            self.resize(storage)

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Count no new storages: PyTorch itself uses fake tensors to derive shapes."""
        self._of_thread.is_planning = True
        try:
            yield
        finally:
            self._of_thread.is_planning = False

    def resize(self, storage: torch.UntypedStorage) -> None:
        """Count a storage with its present size, if it is on a device."""
        if storage._cdata in self._sizes:
            index, before = self._sizes[storage._cdata]
            self._sizes[storage._cdata] = (index, storage.nbytes())
            self.living[index] += storage.nbytes() - before
            self.peak[index] = max(self.peak[index], self.living[index])
            if not storage.nbytes() and before:
                self._forget(storage._cdata)

    def _free(self, number: int) -> None:
        index, size = self._sizes.pop(number)
        self.living[index] -= size
        self._forget(number)

    def _forget(self, number: int) -> None:
        if self.order:
            self.order._handle_memory_deallocation(number)


class FakeCudaMode(FakeTensorMode):
    """Fake tensors on cuda, real tensors on the CPU."""

    avoid_device_init = True  # A CPU tensor is made and then moved.

    def __init__(self, device: FakeCuda) -> None:
        self._of_thread = threading.local()
        super().__init__(allow_non_fake_inputs=True)
        self.device_calls = device
        self._lock = threading.RLock()

    # Two threads use the mode: the batches' reader, and training or the autograd engine.
    @property
    def in_kernel_invocation(self) -> bool:
        """Whether this thread is computing the shapes of a kernel."""
        return getattr(self._of_thread, "invoked", False)

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, value: bool) -> None:
        self._of_thread.invoked = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute shapes on the device, and anything else for real."""
        named = kwargs or {}
        if self._is_nested:  # An operation is made of others; only the outer one is a kernel.
            return super().__torch_dispatch__(func, types, *self._as_fake((args, named)))
        leaves = tree_leaves((args, named))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not any(isinstance(leaf, FakeTensor) or _is_cuda(leaf) for leaf in leaves):
            if any(_has_own_dispatch(tensor) for tensor in tensors):
                return NotImplemented
            return self._on_host(func, args, named)
        if any(_has_own_dispatch(tensor) and not isinstance(tensor, FakeTensor) for tensor in tensors):
            return NotImplemented
        with self._lock:
            self._is_nested = True
            try:
                return self._on_device(func, types, args, named)
            finally:
                self._is_nested = False

    @property
    def _is_nested(self) -> bool:
        return getattr(self._of_thread, "is_nested", False)

    @_is_nested.setter
    def _is_nested(self, value: bool) -> None:
        self._of_thread.is_nested = value

    def _on_host(self, func: Any, args: Any, named: Any) -> Any:
        if is_pinned := named.get("pin_memory"):
            named = {**named, "pin_memory": False}
        result = func(*args, **named)
        if is_pinned:
            self.device_calls.note("pin", result.nbytes)
            self.device_calls.host.pinned.add(result.untyped_storage())
        return result

    def _on_device(self, func: Any, types: Any, args: Any, named: Any) -> Any:
        device = self.device_calls
        if func in ANSWERED:
            return self._answer(func, args)
        if func.namespace == "c10d":
            return self._communicate(func, args)
        self._note_dtypes(func, args)
        if func is torch.ops.aten.copy_.default:
            if not isinstance(args[0], FakeTensor):
                return args[0].copy_(self._read(args[1]))
            if not isinstance(args[1], FakeTensor):
                is_async = bool((*args[2:], named.get("non_blocking"))[0])
                is_async &= device.host.start(args[1], device.stream)
                device.note("to_device", args[1].nbytes, is_async, device.stream.cuda_stream)
        result = super().__torch_dispatch__(func, types, *self._as_fake((args, named)))
        if func.namespace == "prim":  # It is asked about a tensor.
            return result
        for tensor in tree_leaves(result):
            if isinstance(tensor, FakeTensor) and tensor.device.type == "cuda":
                device.memory.add(tensor)
        device.launched(func, args, named, result)
        for tensor in written(func, args, named):
            tensor.value = None
        if func in COPIES:
            self._keep_value(result, args[func is torch.ops.aten.copy_.default])
            if result.device.type == "cpu":
                return self._read(args[0])
        return result

    def _note_dtypes(self, func: Any, args: Any) -> None:
        """Note the data types of products, and of the logits of losses."""
        if dtype := product_dtype(func, args):
            self.device_calls.product_dtypes.add(dtype)
        if func is torch.ops.aten._log_softmax.default:
            self.device_calls.loss_dtypes.add(args[0].dtype)

    def _answer(self, func: Any, args: Any) -> Any:
        """Return a number of the device, or the kernel of attention, since the build for CPUs lacks fused ones."""
        if func is torch.ops.aten._fused_sdp_choice.default:
            return SDPBackend.MATH.value
        return self._read(args[0]).flatten()[0].item()

    def _communicate(self, func: Any, args: Any) -> Any:
        """Note a collective or a message; its result is this rank's input."""
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        n_bytes = sum(tensor.nbytes for tensor in tensors)
        device, name = self.device_calls, func._schema.name.removeprefix("c10d::")
        if name in ("send", "recv_"):
            device.note("message", name, n_bytes, args[2])
        else:
            device.note("collective", name, n_bytes, str(tensors[0].dtype) if tensors else None)
        device.n_busy += 1
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result(args[0])  # which DDP puts into its buckets
        work = _create_work_from_future(done).boxed()
        return (args[0], work) if len(func._schema.returns) > 1 else work

    def _keep_value(self, copy: FakeTensor, source: torch.Tensor) -> None:
        """Keep the value of a small copy of a CPU tensor, since DDP and pipelines agree on settings by these."""
        is_kept = not isinstance(source, FakeTensor) and source.numel() <= MAX_KEPT_NUMBERS
        copy.value = source.detach().clone() if is_kept and source.shape == copy.shape else None

    def _read(self, tensor: FakeTensor) -> torch.Tensor:
        """Return a device's tensor on the CPU, which waits for it: its value, or ones."""
        self.device_calls.note("to_host", tensor.nbytes)
        self.device_calls.n_busy = 0
        value = getattr(tensor, "value", None)
        return torch.ones(tensor.shape, dtype=tensor.dtype) if value is None else value.to(tensor.dtype)

    def _as_fake(self, arguments: Any) -> Any:
        """Return arguments with fake tensors in place of the real ones that a device's operation reads."""

        def fake(tensor: torch.Tensor) -> FakeTensor:
            if isinstance(tensor, FakeTensor):
                return tensor
            shape = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            return FakeTensor(self, shape, tensor.device)

        return tree_map_only(torch.Tensor, fake, arguments)


def product_dtype(func: Any, args: Any) -> torch.dtype | None:
    """Return the dtype of a product's tensors, None for other operators than ONE_DTYPE; raise if they have several."""
    if getattr(func, "overloadpacket", None) not in ONE_DTYPE:
        return None
    dtypes = {leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)}
    if len(dtypes) > 1:
        raise RuntimeError(f"{func}: expected tensors of one dtype, but got {dtypes}")
    return dtypes.pop()


def written(func: Any, args: Any, named: Any) -> Iterator[Any]:
    """Yield the tensors that an operation writes to."""
    if func._schema.is_mutable:
        for argument, value in sanitizer.zip_arguments(func._schema, args, named):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from tree_leaves(value)


def _is_cuda(argument: Any) -> bool:
    return isinstance(argument, torch.device) and argument.type == "cuda"


def _has_own_dispatch(tensor: torch.Tensor) -> bool:
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


class Accesses(sanitizer.ArgumentHandler):
    """Storages that an operation reads and writes, since a fake tensor has no data pointer."""

    def _handle_argument(
        self,
        value: Any,
        is_write: bool,
        metadata_only: bool,
        name: str | None = None,
        is_output: bool = False,
    ) -> None:
        if not isinstance(value, FakeTensor) or value.device.type != "cuda":
            return
        number = value.untyped_storage()._cdata
        if is_write:
            self.dataptrs_written.add(number)
        elif not metadata_only:
            self.dataptrs_read.add(number)
        self.tensor_aliases.setdefault(number, []).append(name or "")
        if is_output:
            self.outputs.add(number)


class Stream:
    """A stream of a device; torch.cuda.Stream."""

    fake: FakeCuda
    _numbers = itertools.count(1)

    def __init__(self, device: Any = None, priority: int = 0, number: int | None = None) -> None:
        self.device = torch.device("cuda", self.fake.index(device))
        self.priority = priority
        self.cuda_stream = self.stream_id = next(self._numbers) if number is None else number
        if number is None:
            self.fake.note("Stream", self.cuda_stream)
        if self.fake.order and number != 0:
            self.fake.order._handle_stream_creation(self.cuda_stream)

    def wait_event(self, event: "Event") -> None:
        """Let the stream's next work wait for an event, if it was recorded."""
        self.fake.note("wait_event", self.cuda_stream, event.number)
        if self.fake.order and event.is_recorded:
            self.fake.order._handle_event_wait(event.number, self.cuda_stream)

    def wait_stream(self, stream: "Stream") -> None:
        """Let the stream's next work wait for all work of another stream so far."""
        event = Event()
        event.record(stream)
        self.wait_event(event)

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Record an event after the stream's work so far."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Wait for the stream."""
        self.fake.note("stream.synchronize", self.cuda_stream)
        if self.fake.order:
            self.fake.order._handle_stream_synchronization(self.cuda_stream)

    def query(self) -> bool:
        """Return whether the stream is idle."""
        return True


class Event:
    """A point in a stream; torch.cuda.Event. It keeps the CPU's time at which it was recorded."""

    fake: FakeCuda
    _numbers = itertools.count(1)

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self.number, self.enable_timing, self.blocking = next(self._numbers), enable_timing, blocking
        self.recorded_at: float | None = None
        if self.fake.order:
            self.fake.order._handle_event_creation(self.number)

    @property
    def is_recorded(self) -> bool:
        """Whether the event was recorded; otherwise it delays nothing."""
        return self.recorded_at is not None

    def record(self, stream: Stream | None = None) -> None:
        """Record the event behind a stream's work so far, by default the current one's."""
        stream = stream or self.fake.stream
        self.recorded_at = time.monotonic()
        self.fake.note("record", self.number, stream.cuda_stream)
        self.fake.host.record(self.number, stream.cuda_stream)
        if self.fake.order:
            self.fake.order._handle_event_record(self.number, stream.cuda_stream)

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream's next work wait for the event."""
        (stream or self.fake.stream).wait_event(self)

    def synchronize(self) -> None:
        """Wait for the event."""
        self.fake.note("event.synchronize", self.number)
        self.fake.host.wait(self.number)
        if self.fake.order and self.is_recorded:
            self.fake.order._handle_event_synchronization(self.number)

    def query(self) -> bool:
        """Return whether the event has happened."""
        return True

    def elapsed_time(self, end: "Event") -> float:
        """Return the ms between two recorded events with clocks."""
        if (
            not (self.enable_timing and end.enable_timing)
            or self.recorded_at is None
            or end.recorded_at is None
        ):
            raise RuntimeError("CUDA error: both events have to be recorded, and made with enable_timing")
        return 1e3 * (end.recorded_at - self.recorded_at)


def patch(device: FakeCuda) -> None:
    """Replace the parts of PyTorch that need a driver."""
    properties = types.SimpleNamespace(
        name=DEVICE_NAME, total_memory=DEVICE_BYTES, major=9, minor=0, multi_processor_count=132
    )
    cuda: Any = torch.cuda
    for name, function in {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: True,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "device_count": lambda: device.n_visible,
        "current_device": device.index,
        "set_device": device.set_device,
        "synchronize": device.synchronize,
        "current_stream": device.current_stream,
        "default_stream": device.default_stream,
        "stream": device.on_stream,
        "set_stream": lambda stream: device.on_stream(stream).__enter__(),
        "Stream": Stream,
        "Event": Event,
        "get_device_name": lambda _device=None: DEVICE_NAME,
        "get_device_properties": lambda _device=None: properties,
        "get_device_capability": lambda _device=None: (9, 0),
        "is_bf16_supported": lambda *_, **__: True,
        "manual_seed": lambda seed: device.note("manual_seed", seed),
        "manual_seed_all": lambda seed: device.note("manual_seed", seed),
        "memory_allocated": lambda index=None: device.memory_bytes(device.index(index)),
        "memory_reserved": lambda index=None: device.memory_bytes(device.index(index)),
        "max_memory_allocated": lambda index=None: device.peak_bytes(device.index(index)),
        "max_memory_reserved": lambda index=None: device.peak_bytes(device.index(index)),
        "reset_peak_memory_stats": lambda index=None: (
            device.note("reset_peak_memory_stats", device.index(index)),
            device.reset_peak(device.index(index)),
        ),
        "mem_get_info": lambda index=None: (
            DEVICE_BYTES - device.memory_bytes(device.index(index)),
            DEVICE_BYTES,
        ),
        "empty_cache": lambda: None,
        "get_rng_state": lambda _device=None: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda _state, _device=None: None,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _exchange_device,
    }.items():
        setattr(cuda, name, function)
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, lambda *_: 0)
    torch.Tensor.record_stream = lambda _self, stream: device.note("record_stream", stream.cuda_stream)
    # The sanitizer would keep the stack of every operation, which takes longer than the operation.
    no_stack = types.SimpleNamespace(extract=lambda *_, **__: [])
    sanitizer.traceback = types.SimpleNamespace(walk_stack=lambda _: (), StackSummary=no_stack)
    fake_tensors.init_gpu_context = lambda _device: None
    # A fake parameter that is converted is swapped with the result, although PyTorch's own records refer to it weakly.
    torch.utils.weakref = types.SimpleNamespace(getweakrefs=lambda _tensor: [])
    torch.utils.swap_tensors = swap_tensors

    def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        RESIZE(storage, size)
        device.memory.resize(storage)
        return storage

    derive_shapes = ShardingPropagator._propagate_tensor_meta_non_cached

    def derive_uncounted(propagator: Any, operation: Any) -> Any:
        with device.memory.planning():
            return derive_shapes(propagator, operation)

    ShardingPropagator._propagate_tensor_meta_non_cached = derive_uncounted  # of DTensor
    # FSDP frees and allocates gathered parameters in this way, without any dispatch.
    torch.UntypedStorage.resize_ = resize

    def new_group(ranks: Any = None, timeout: Any = None, backend: str | None = None, **named: Any) -> Any:
        device.note("new_group", backend, None if ranks is None else list(ranks))
        return NEW_GROUP(ranks, **{name: value for name, value in named.items() if name != "device_id"})

    for module in (dist, dist.distributed_c10d):
        module.init_process_group, module.new_group = device.join, new_group
    # DDP compares sizes of parameters with rank 0, which does not exist.
    torch.nn.parallel.distributed._verify_param_shape_across_processes = lambda *_: None
    # DDP logs times of backward passes, by a timer of the CUDA build.
    dist.Logger.set_runtime_stats_and_log = lambda _self: None
    dist.TCPStore = lambda *_, **__: None


def swap_tensors(parameter: torch.Tensor, converted: torch.Tensor) -> None:
    """Swap a parameter with a converted one, except for what libraries have attached to it."""
    attached = {name: value for name, value in vars(parameter).items() if name not in vars(converted)}
    SWAP_TENSORS(parameter, converted)
    vars(parameter).update(attached)


def _exchange_device(index: int) -> int:
    before = LIBRARY.fake_cuda_get_device()
    if index >= 0:
        LIBRARY.fake_cuda_set_device(index)
    return before
