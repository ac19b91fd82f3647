"""Set up PyTorch and a rank's device, and read the device's clock and profiler."""

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ranks.worker.context import Context
from ranks.worker.devices import device_indices
from ranks.worker.operators import Event, moved, show_clock
from ranks.worker.phases import Untraced

#: switches of fused attention kernels; the one of flash attention also applies to CPUs
FUSED_ATTENTION = (
    torch.backends.cuda.enable_flash_sdp,
    torch.backends.cuda.enable_mem_efficient_sdp,
    torch.backends.cuda.enable_cudnn_sdp,
)


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
