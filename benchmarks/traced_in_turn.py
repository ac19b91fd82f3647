"""Train like the worker with every other epoch traced, to measure the cost of tracing.

The attempt's epochs.csv has epoch times, `cpu_s` in its result.json the CPU time of rank 0 in each epoch.
TensorFlow has a graph of its own for traced steps. In PyTorch an untraced trainer trains a second model.
"""

import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ranks.worker.context import from_environment
from ranks.worker.epoch_timer import EpochTimer
from ranks.worker.phases import Untraced
from ranks.worker.process import adapter_of, as_rank, leave_result
from traced_epochs import is_traced

NEVER = 10**9


class InTurn(EpochTimer):
    """A meter that traces every other epoch."""

    def open_epoch(self) -> None:
        """See EpochTimer."""
        phases: Any = self.phases
        phases.every = 1 if is_traced(self.epoch + 1) else NEVER
        super().open_epoch()
        phases.is_traced = is_traced(self.epoch)


def call_once(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `make` with its first result cached, since a process may call it only once."""
    results: list[Any] = []

    def again(context: Any) -> Any:
        if not results:
            results.append(make(context))
        return results[0]

    return again


def train(folder: Path) -> None:
    context = from_environment(folder)
    adapter = adapter_of(context)
    for module in context.rank_input["modules"]:
        importlib.import_module(module)
    on_torch = "torch" in sys.modules
    if on_torch:
        from ranks.libraries.pytorch import collectives, trainer

        trainer.configure_library = call_once(trainer.configure_library)
        collectives.join = call_once(collectives.join)
    traced = adapter.trainer(context)
    trains = {True: traced.train_epoch, False: traced.train_epoch}
    if on_torch:
        trains[False] = adapter.trainer(replace(context, phases=Untraced())).train_epoch
    cpu_s = []

    def train_epoch(epoch: int, timer: EpochTimer) -> Any:
        began = time.process_time()
        seen = trains[is_traced(epoch)](epoch, timer)
        cpu_s.append(time.process_time() - began)
        return seen

    traced.train_epoch = train_epoch
    timer = InTurn(context)
    traced.train(timer)
    other_cpu_share, _ = timer.load.shares()
    leave_result(context, {"other_cpu_share": other_cpu_share, "cpu_s": cpu_s})


if __name__ == "__main__":
    as_rank(train)
