"""Set up JAX and a rank's device, join the ranks, and mark and profile traced steps."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax._src import distributed, xla_bridge
from jax._src.lib import _jax
from jax.experimental import io_callback

from models.precision import AMP, BF16, FP32, TF32
from ranks.worker.context import Context, by_first_interface, interfaces
from ranks.worker.devices import count_visible, device_indices, vendor
from ranks.worker.group import free_port
from ranks.worker.operators import Event, moved, show_clock
from ranks.worker.process import at_end

# JAX's names of accelerators.
PLATFORMS = {"nvidia": "cuda", "amd": "rocm"}
#: precision of float32 products, by the level of the factor precision. With amp and bf16 only routers of
#: experts have such products; PyTorch and TensorFlow compute them in float32, JAX on accelerators in TF32.
MATMUL_PRECISIONS = {FP32: "float32", TF32: "tensorfloat32", AMP: "tensorfloat32", BF16: "tensorfloat32"}


def configure_library(context: Context) -> None:
    """Set JAX's device and the precision of products; call it before JAX uses any device."""
    on_gpu = context.spec["device"] == "cuda"
    platform = PLATFORMS[vendor()]
    jax.config.update("jax_platforms", f"{platform},cpu" if on_gpu else "cpu")
    if on_gpu:
        (index,) = device_indices(context, count_visible())
        jax.config.update(f"jax_{platform}_visible_devices", str(index))
    precision = context.levels.get("precision", FP32)  # A benchmark's levels lack the factor.
    jax.config.update("jax_default_matmul_precision", MATMUL_PRECISIONS[precision])


def join(context: Context) -> str:
    """Join all ranks to one program, and return the transport of its communication.

    On CPUs it is Gloo. By default Gloo listens at the address of the host's name, and JAX has no option for
    the interface. So the client is created here, as in `xla_bridge.make_cpu_client`, with the site's
    interface.
    """
    jax.config.update("jax_enable_preemption_service", False)  # It would handle SIGTERM.
    address, port = context.group.broadcast([context.group.address, free_port(context.group.address)])
    place = f"{address}:{port}"
    on_gpu = context.spec["device"] == "cuda"
    devices = device_indices(context, count_visible()) if on_gpu else [context.local_rank]
    jax.distributed.initialize(place, context.ranks, context.rank, devices, coordinator_bind_address=place)
    # Otherwise other ranks treat the end of rank 0 as a failure.
    at_end.append(jax.distributed.shutdown)

    def client() -> Any:
        gloo = _jax.make_gloo_tcp_collectives(
            distributed.global_state.client, interface=interfaces(context.spec)[0]
        )
        return xla_bridge.make_cpu_client(gloo)

    if on_gpu:
        return "nccl"
    xla_bridge.register_backend_factory("cpu", client, fail_quietly=False)
    return by_first_interface(context.spec, "gloo")


def device_name() -> str:
    """Return the name of the device for the record."""
    (device,) = jax.local_devices()
    return "cpu" if device.platform == "cpu" else device.device_kind


class Marks:
    """Marks in a compiled traced step: times at which arrays were computed, in s of this process's clock.

    A mark is a Python callback that depends on an element of each array and returns 1.0. Computation that
    must not begin before the mark is multiplied by this number.
    """

    def __init__(self, active: bool) -> None:
        self.active = active
        self.stamps: dict[str, float] = {}

    def __call__(self, phase: str, arrays: Any) -> Array:
        """Start a phase when these arrays are computed; return 1.0, available from then on."""
        if not self.active:
            return jnp.float32(1)
        firsts = jnp.stack([array.ravel()[0].astype(jnp.float32) for array in jax.tree.leaves(arrays)])

        def stamp(_: Any) -> np.float32:
            self.stamps[phase] = time.monotonic()
            return np.float32(1)

        return io_callback(stamp, jax.ShapeDtypeStruct((), jnp.float32), firsts)

    def hold_back(self, phase: str, arrays: Any) -> Any:
        """Mark, and return these arrays, available only after the mark."""
        if not self.active:
            return arrays
        factor = self(phase, arrays)
        return jax.tree.map(lambda array: array * factor.astype(array.dtype), arrays)

    def turn(self, phase: str, loss: Array) -> Array:
        """Return the loss; a phase starts when it is computed, and its gradient depends on the mark."""
        if not self.active:
            return loss
        turned = jax.custom_vjp(lambda value: value)
        turned.defvjp(
            lambda value: (value, self(phase, value)), lambda factor, gradient: (gradient * factor,)
        )
        return turned(loss)


class JaxProfiler:
    """JAX's profiler for ranks/worker/operators.py: operators, and kernels on an accelerator."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp()
        self._shown_at = 0.0

    def start(self) -> None:
        """Start profiling."""
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        jax.profiler.start_trace(self._folder, profiler_options=options)
        self._shown_at = show_clock(jax.profiler.TraceAnnotation)

    def stop(self) -> None:
        """Stop profiling quickly, since an epoch is being timed."""
        jax.profiler.stop_trace()

    def events(self) -> list[Event]:
        """Return the events, in microseconds of time.monotonic, after the profiler has stopped."""
        (file,) = Path(self._folder).rglob("*.xplane.pb")
        return moved(list(_events(jax.profiler.ProfileData.from_file(str(file)))), self._shown_at)


def _events(profile: Any) -> Iterator[Event]:
    """Yield the events of a profile, in microseconds of the profiler's clock."""
    lines = ((plane, line) for plane in profile.planes for line in plane.lines)
    for thread, (plane, line) in enumerate(lines):
        yield {"ph": "M", "name": "thread_name", "tid": thread, "args": {"name": f"{plane.name} {line.name}"}}
        for event in line.events:
            spent = {"ts": event.start_ns / 1e3, "dur": event.duration_ns / 1e3}
            yield {"ph": "X", "name": event.name, "tid": thread, **spent}
