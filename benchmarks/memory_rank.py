"""Measure the memory of one rank in two real steps: `python memory_rank.py FOLDER`, for memory_estimates.py.

PyTorch's profiler sees every allocation of its CPU allocator from before the model is built.
"""

import importlib
import json
import os
from pathlib import Path
from typing import Any

from ranks.memory_estimate import ShapesOnly, take_steps
from ranks.worker.context import Context, interfaces
from ranks.worker.group import Group
from ranks.worker.process import adapter_of, as_rank

STEP = "begin step"


class RealWeights(ShapesOnly):
    """Context of a rank with real weights, and samples of zeros."""

    draw_weights = Context.draw_weights


def measure(folder: Path) -> tuple[Context, dict[str, Any]]:
    """Return the rank's context, and the peak of allocated bytes in its last step."""
    rank_input = json.loads((folder / "rank_input.json").read_text())
    rank = int(os.environ["RINGSIDE_RANK"])
    group = Group(rank, rank_input["spec"]["ranks"], folder, interfaces(rank_input["spec"])[0])
    context = RealWeights(folder, rank_input, rank, rank, group)
    adapter = adapter_of(context)
    for module in rank_input["modules"]:
        importlib.import_module(module)
    import torch

    def begin() -> None:
        with torch.profiler.record_function(STEP):
            pass

    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        trainer = adapter.trainer(context)
        take_steps(trainer, begin, lambda: None)
    allocated = peak_bytes = 0
    events = profile.profiler.kineto_results.events()
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == STEP:
            peak_bytes = 0
        elif event.name() == "[memory]":
            allocated += event.nbytes()
            peak_bytes = max(peak_bytes, allocated)
    return context, {"rank": rank, "peak_bytes": peak_bytes}


def run(folder: Path) -> None:
    """Measure, and write what all ranks measured to the folder's measured.json."""
    context, measured = measure(folder)
    ranks = context.group.all_gather(measured)
    if context.rank == 0:
        (folder / "measured.json").write_text(json.dumps(ranks))


if __name__ == "__main__":
    as_rank(run)
