"""Set up TensorFlow and a rank's devices, and mark and profile traced steps."""

import importlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from ranks.libraries import xla
from ranks.worker.context import Context
from ranks.worker.devices import device_indices
from ranks.worker.operators import Event, moved, show_clock, unix_ahead
from ranks.worker.phases import Stamps

# Modules that describe the profiler's files: since TensorFlow 2.20, before, and up to 2.11.
XPLANE = (
    "tensorflow.tsl.profiler.protobuf.xplane_pb2",
    "tsl.profiler.protobuf.xplane_pb2",
    "tensorflow.core.profiler.protobuf.xplane_pb2",
)


def configure_library(context: Context) -> str:
    """Set TensorFlow's threads, visible devices and autotuning; return the device's name for the record."""
    if context.levels.get("autotune") == "none":
        # TensorFlow reads it when it creates a convolution, XLA when it first compiles.
        os.environ.update({"TF_CUDNN_USE_AUTOTUNE": "0", **xla.without_autotuning()})
    cores = context.cores
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    tf.config.threading.set_inter_op_parallelism_threads(cores)
    on_gpu = context.spec["device"] == "cuda"
    gpus = tf.config.list_physical_devices("GPU") if on_gpu else []
    replicas = context.spec["replicas_per_rank"]
    mine = [gpus[index] for index in device_indices(context, len(gpus))] if on_gpu else []
    tf.config.set_visible_devices(mine, "GPU")
    if not on_gpu:
        if replicas > 1:
            (processor,) = tf.config.list_physical_devices("CPU")
            tf.config.set_logical_device_configuration(
                processor, [tf.config.LogicalDeviceConfiguration()] * replicas
            )
        return "cpu"
    for gpu in mine:
        tf.config.experimental.set_memory_growth(gpu, True)
    name: str = tf.config.experimental.get_device_details(mine[0]).get("device_name", "cuda")
    return name


class Marks:
    """Marks in the graph of a traced step: times at which tensors were computed, in s since 1970.

    TensorFlow's threads can run other ready operations before a mark. Therefore operations that need all
    marked tensors anyway depend on the mark (`before`, `turn`). No other operations do, so overlap is
    unchanged. On an accelerator, an operation ends for the graph when it is enqueued, so a mark depends on a
    copy of each tensor's first element to the host.
    """

    def __init__(self, active: bool, on_gpu: bool = False) -> None:
        self.active, self._on_gpu = active, on_gpu
        self.stamps: dict[str, Any] = {}

    def __call__(self, phase: str, tensors: Sequence[Any]) -> None:
        """Start a phase when these tensors are computed."""
        if not self.active:
            return
        # A control dependency on a function's result waits for the function's side effects only.
        identities = [tf.identity(tensor) for tensor in tensors]
        if self._on_gpu:
            firsts = tf.stack([tf.cast(tf.reshape(tensor, [-1])[0], tf.float32) for tensor in tensors])
            with tf.device("CPU:0"):
                identities = [tf.identity(firsts)]
        with tf.device("CPU:0"), tf.control_dependencies(identities):
            self.stamps[phase] = tf.timestamp()

    def before(self, phase: str, tensors: Sequence[Any]) -> list[Any]:
        """Mark, and return these tensors, available only after the mark."""
        self(phase, tensors)
        if not self.active:
            return list(tensors)
        with tf.control_dependencies([self.stamps[phase]]):
            return [tf.identity(tensor) for tensor in tensors]

    def turn(self, phase: str, loss: Any) -> Any:
        """Return the loss; a phase starts when it is computed, and its gradient depends on the mark."""
        if not self.active:
            return loss
        self(phase, [loss])

        @tf.custom_gradient
        def turned(value: Any) -> Any:
            def back(gradient: Any) -> Any:
                with tf.control_dependencies([self.stamps[phase]]):
                    return tf.identity(gradient)

            return tf.identity(value), back

        return turned(loss)


def seconds(stamps: Stamps) -> list[float]:
    """Return marks of graphs (tensors) and stamps (floats) in s of this process's clock."""
    ahead = unix_ahead()
    return [stamp if isinstance(stamp, float) else float(stamp) - ahead for stamp in stamps]


class TensorFlowProfiler:
    """TensorFlow's profiler for ranks/worker/operators.py: operators, and kernels on an accelerator.

    It writes "XSpace" messages (xplane.proto): planes (host, devices) of lines (threads, streams) of events.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp()
        self._shown_at = 0.0

    def start(self) -> None:
        """Start profiling."""
        options = tf.profiler.experimental.ProfilerOptions(python_tracer_level=0)
        tf.profiler.experimental.start(self._folder, options)
        self._shown_at = show_clock(tf.profiler.experimental.Trace)

    def stop(self) -> None:
        """Stop profiling quickly, since an epoch is being timed."""
        tf.profiler.experimental.stop()

    def events(self) -> list[Event]:
        """Return the events, in microseconds of time.monotonic, after the profiler has stopped."""
        for name in XPLANE:
            with suppress(ImportError):
                space = importlib.import_module(name).XSpace()
                break
        else:
            raise RuntimeError(
                "this TensorFlow does not describe its profiler's files; use trace: phases instead of full"
            )
        (file,) = Path(self._folder).rglob("*.xplane.pb")
        space.ParseFromString(file.read_bytes())
        return moved(list(_events(space)), self._shown_at)


def _events(space: Any) -> Iterator[Event]:
    """Yield the events of an XSpace, in microseconds of the profiler's clock."""
    lines = ((plane, line) for plane in space.planes for line in plane.lines)
    for thread, (plane, line) in enumerate(lines):
        place = {"pid": os.getpid(), "tid": thread}
        name = f"{plane.name} {line.display_name or line.name}"
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": name}}
        for event in line.events:
            began_us = (line.timestamp_ns + event.offset_ps / 1e3) / 1e3
            name = plane.event_metadata[event.metadata_id].name
            yield {"ph": "X", "name": name, **place, "ts": began_us, "dur": event.duration_ps / 1e6}
