"""The timer of a program with its own loop: nodes count whole epochs, whichever rank waits for another."""

import time
from pathlib import Path

import pytest

from ranks.worker import epoch_timer
from ranks.worker.energy import Meters
from ranks.worker.group import Group
from ranks.worker.node import Reading
from ranks.worker.phases import Untraced
from runs.epochs import read_epochs
from support.ranks import on_ranks

EPOCH_S = 0.2


class Clock:
    """A node that draws one watt."""

    def __init__(self, interfaces: list[str], devices: list[str]) -> None:
        assert (interfaces, devices) == (["ib0", "ib1"], ["5"])
        self.meters = Meters([])

    def read(self) -> Reading:
        return Reading(0.0, 0, {"package": time.monotonic()})

    def since(self, before: Reading) -> dict[str, float | None]:
        empty = dict.fromkeys(("throttled_s", "sent_bytes", "energy_device_j", "energy_node_j"))
        return {**empty, "energy_package_j": time.monotonic() - (before.joules["package"] or 0.0)}


class Context:
    """The part of a context that the timer uses: two nodes with one rank each."""

    local_rank = 0
    accumulation_groups = (1,)
    phases = Untraced()
    accelerators = (0,)
    reporters = (0, 1)

    def __init__(self, group: Group, folder: Path) -> None:
        self.group, self.folder = group, folder
        self.rank = group.rank
        self.spec = {
            "interface": "ib0,ib1", "step_times": False, "ranks": 2, "ranks_per_node": 1,
            "replicas_per_rank": 1,
        }  # fmt: skip
        self.levels = {"warmup_epochs": 0, "trace": "none"}

    def learning_rate(self, batch: int) -> float:
        return 0.1


def test_every_node_counts_the_epoch_that_rank_0_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.setattr(epoch_timer, "Node", Clock)
    machines = iter(["one", "other"] * 3)
    monkeypatch.setattr(epoch_timer, "machine", lambda: next(machines))

    def work(group: Group) -> None:
        rank_timer = epoch_timer.EpochTimer(Context(group, tmp_path))  # type: ignore[arg-type]
        for _ in range(2):
            if group.rank == 0:
                time.sleep(EPOCH_S)  # reads what the program prints
            rank_timer.record_epoch({"train_loss": 1.0, "validation_loss": 1.0} if group.rank == 0 else None)

    began = time.time()
    on_ranks(2, tmp_path, work)
    rows = read_epochs(tmp_path / "epochs.csv")
    for row in rows:
        assert row["energy_package_j"] > 1.8 * EPOCH_S, "of both machines"
    opened = [row["opened_at"] for row in rows]
    assert began <= opened[0] and EPOCH_S <= opened[1] - opened[0] < 3 * EPOCH_S, (
        "when each began, by the clock on the wall"
    )
