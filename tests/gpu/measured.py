"""What a rank measures besides training, on a CUDA device that computes nothing."""

import json
from pathlib import Path
from typing import Any

from gpu.fake_cuda import FakeCuda
from gpu.trained import be_alone
from ranks.worker.context import from_environment


def run_collectives(folder: str, rank: int, ranks: int) -> dict[str, Any]:
    """Run each collective of an adapter once, and return its result's size and the kernels that still run then."""
    import numpy as np

    from ranks.worker.process import adapter_of

    device = FakeCuda(rank=rank, ranks=ranks)
    be_alone(rank, rank)
    context = from_environment(Path(folder))
    collectives = adapter_of(context).collectives(context)
    seen: dict[str, Any] = {"transport": collectives.transport, "device": collectives.device}
    for name, size in (
        ("all_reduce", 16),
        ("all_gather", 16 // ranks),
        ("reduce_scatter", 16),
        ("all_to_all", 16),
        ("point_to_point", 16),
    ):
        collectives.load(np.zeros(size, np.float32))
        start = len(device.calls)
        collectives.do(name)
        seen[name] = {
            "busy": device.n_busy,
            "calls": [call[1] for call in device.calls[start:] if call[0] in ("collective", "message")],
            "result": str(collectives._result.device),
            "size": len(collectives.result()),
        }
    return seen


def run_reference(folder: str, rank: int, ranks: int) -> dict[str, Any]:
    """Run the reference benchmark, and return its record and the calls of its device."""
    from ranks import reference_work

    device = FakeCuda(rank=rank, ranks=ranks)
    be_alone(rank, rank)
    device.watch_clock(reference_work)
    reference_work.run(Path(folder))
    return {"calls": device.calls, "result": json.loads((Path(folder) / "result.json").read_text())}


def time_parts(folder: str) -> dict[str, Any]:
    """Time the parts of a model's layers, each with one timed call; return the record and how busy the GPU was.

    Busy is it at the beginning and at the end of a repetition: of one that finds the number of calls, and of one that
    counts, in turn.
    """
    from ranks import parts_timed

    device, busy = FakeCuda(), []
    be_alone(0, 0)
    parts_timed.MIN_REPETITION_S, parts_timed.N_REPETITIONS, parts_timed.MIN_REPETITIONS = 0.0, 1, 1
    repetition = parts_timed.Clock._repetition

    def watched(clock: Any, call: Any, count: int) -> float:
        before = device.n_busy
        seconds = repetition(clock, call, count)
        busy.append((before, device.n_busy))
        return seconds

    parts_timed.Clock._repetition = watched  # type: ignore[method-assign]
    parts_timed.run(Path(folder))
    return {
        "repetitions": busy,
        "devices": sorted({index for _, index in device.named("synchronize")}),
        "result": json.loads((Path(folder) / "result.json").read_text()),
        "peak_bytes": device.peak_bytes(),
    }
