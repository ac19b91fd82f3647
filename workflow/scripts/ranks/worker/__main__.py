"""Train as one rank of a run: `python -m ranks.worker ATTEMPT_FOLDER`, started by a launcher.

It runs in the framework's environment.
"""

import gc
import importlib
import platform
import time
from pathlib import Path
from typing import Any

from ranks.worker.context import from_environment
from ranks.worker.epoch_timer import EpochTimer
from ranks.worker.library_warnings import LibraryWarnings
from ranks.worker.node import driver, machine, memory_bytes, processor, system
from ranks.worker.process import adapter_of, as_rank, host, leave_result
from ranks.worker.trainer import TrainingProgram


def run(folder: Path) -> TrainingProgram:
    """Train, write result.json into the attempt's folder on rank 0, and return the trainer."""
    context = from_environment(folder)
    adapter = adapter_of(context)
    started = time.monotonic()
    # Imports create many objects and drop few: garbage collection takes a tenth of their time.
    gc.disable()
    context.phases.enter("import")
    for module in context.rank_input["modules"]:
        importlib.import_module(module)
    import_s = time.monotonic() - started if context.rank_input["modules"] else None
    context.phases.enter("build")
    library_warnings = LibraryWarnings()
    # PyTorch's optimizer imports another thousand modules.
    trainer: TrainingProgram = adapter.trainer(context)
    gc.enable()
    timer = EpochTimer(context)
    trainer.train(timer)
    other_cpu_share, steal_share = timer.load.shares()
    mine: dict[str, Any] = {
        "host": host(),
        "machine": machine(),
        "device": processor() if trainer.device == "cpu" else trainer.device,
        "system": system(),
        "node_memory_bytes": memory_bytes(),
        "driver": driver() if context.spec["device"] != "cpu" else None,
        "import_s": import_s,
        "first_step_s": timer.first_step_s,
        "paused_s": timer.heartbeat.paused_s,
        "memory_peak_bytes": trainer.memory_peak_bytes(),
        "device_memory_peak_bytes": trainer.device_memory_peak_bytes(),
        "dropped_token_shares": trainer.dropped_token_shares(),
        "meters": timer.meters(),
        "settings": trainer.settings(),
        "warnings": library_warnings.messages,
        "weights_finite": trainer.weights_finite(),  # last, since it takes time and memory
    }
    result = {
        "ready_at": timer.ready_at,
        "closed_at": timer.closed_at,
        "clock_step_s": timer.clock_step_s(),
        "ranks": context.group.all_gather(mine),
        "transport": trainer.transport,
        "other_cpu_share": other_cpu_share,
        "steal_share": steal_share,
        "python_version": platform.python_version(),
        "library_version": trainer.library_version(),
        "shares": trainer.shares,
        "program_report": trainer.program_report(),
    }
    leave_result(context, result)
    return trainer


if __name__ == "__main__":
    as_rank(run)
