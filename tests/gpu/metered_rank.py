"""Sleep through two epochs on each rank, or be idle, and read the node's meters as Ringside's ranks do."""

import time
from pathlib import Path

from ranks.worker import energy, idle
from ranks.worker.context import from_environment
from ranks.worker.epoch_timer import EpochSums, EpochTimer
from ranks.worker.node import driver, machine
from ranks.worker.process import as_rank, host, leave_result

EPOCH_S = 1.02  # A window that the counters can resolve.


def work(folder: Path) -> None:
    """Measure idle power in a folder of that name, else train."""
    energy.POWERCAP, energy.POWER_SAMPLE_S, idle.IDLE_S = folder / "no-powercap", 0.2, EPOCH_S
    (idle.run if "idle" in folder.parts else train)(folder)


def train(folder: Path) -> None:
    """Sleep through two epochs, the first of which no meter can resolve."""
    context = from_environment(folder)
    timer = EpochTimer(context)
    sums = EpochSums(loss_sum=1.0, correct=1, samples=context.spec["samples_per_epoch"] // context.ranks)
    for seconds in (0.05, EPOCH_S):
        timer.open_epoch()
        time.sleep(seconds)
        timer.close_epoch(sums, lambda: sums)
    mine = {"host": host(), "machine": machine(), "meters": timer.meters(), "driver": driver()}
    leave_result(context, {"ranks": context.group.all_gather(mine)})


if __name__ == "__main__":
    as_rank(work)
