"""The clock of a run: opens and closes epochs at a barrier, gathers what the ranks saw, writes epochs as they end."""

import csv
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from ranks.worker.context import Context
from ranks.worker.energy import SCOPES
from ranks.worker.heartbeat import Heartbeat
from ranks.worker.load import Load
from ranks.worker.node import Node, Reading, machine
from ranks.worker.phases import CLOCKS

COLUMNS = (
    "epoch", "warm_up", "epoch_time_s", "closed_time_s", "imbalance_s", "validation_time_s", "learning_rate", "steps",
    "exchanges", "samples_trained", "train_loss", "train_accuracy", "validation_loss", "validation_accuracy",
    "throttled_s", "sent_bytes", *(f"energy_{scope}_j" for scope in SCOPES), "opened_at",
)  # fmt: skip


@dataclass
class Seen:
    """What one rank saw of some samples.

    The sum of their losses (of a sequence the mean over its positions), how many labels were right, how many
    samples there were.
    """

    loss_sum: float
    correct: int
    samples: int


class Meter:
    """Times the epochs of one run on one rank. Rank 0 writes epochs.csv (and steps.csv), a line as each epoch ends."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.group, self.phases = context.group, context.phases
        self.epoch = 0
        self.first_step_s: float | None = None
        self._step_times: list[float] = []
        self._release = self._last_step = 0.0
        spec = context.spec
        self._node = Node(spec["interface"], context.accelerators) if context.local_rank == 0 else None
        if self._node:
            self._node.meters.sample(context.folder / f"power-{self.group.rank}.csv")
        self._epochs = self._table("epochs.csv", COLUMNS)
        self._steps = (
            self._table("steps.csv", ("epoch", "rank", "step", "step_time_s")) if spec["step_times"] else None
        )
        self._clocks = self._table("clocks.csv", CLOCKS) if self.phases.on else None
        self.phases.enter("barrier")
        self.group.barrier()
        self.ready_at = time.time()
        self._clock_ahead_s = self.ready_at - time.monotonic()
        self.load = Load(self.group)  # from the moment when all ranks are ready
        self.heartbeat = Heartbeat()
        self._compare_clocks()
        self.phases.close_epoch()
        self._epoch_opened = self._read()
        self._opened_at = self.closed_at = time.time()

    def clock_step_s(self) -> float:
        """By how much somebody has set the clock of the day since all ranks were ready, s: epochs themselves go by another clock."""
        return time.time() - time.monotonic() - self._clock_ahead_s

    def open_epoch(self) -> None:
        """All ranks start the next epoch together."""
        self.epoch += 1
        self._epoch_opened = self._read()
        self.group.barrier()
        self._release = self._last_step = time.monotonic()
        self._opened_at = time.time()
        self.phases.open_epoch(self.epoch)

    @property
    def wants_steps(self) -> bool:
        """Whether `step` wants to be called, with the device synchronized: after the first step, or after each one."""
        return self.first_step_s is None or self.context.spec["step_times"]

    def step(self) -> None:
        """One training step has ended and the device is idle."""
        now = time.monotonic()
        if self.first_step_s is None:
            self.first_step_s = now - self._release
        if self.context.spec["step_times"]:
            self._step_times.append(now - self._last_step)
        self._last_step = now

    def close_epoch(self, trained: Seen, validate: Any) -> None:
        """The device has finished this rank's epoch. `validate()` -> Seen is then called and timed apart."""
        own_time_s = time.monotonic() - self._release
        self.phases.leave_steps()
        self.group.barrier()
        closed_time_s = time.monotonic() - self._release
        counted = self._since(self._epoch_opened)
        self.closed_at = time.time()
        start = time.monotonic()
        self.phases.enter("validation")
        validated: Seen = validate()
        validation_time_s = time.monotonic() - start
        gathered = self.group.all_gather(
            [
                own_time_s,
                closed_time_s,
                validation_time_s,
                vars(trained),
                vars(validated),
                self._step_times,
                counted,
            ]
        )
        self._step_times = []
        if self.group.rank == 0:
            self._write(gathered)
        self._compare_clocks()
        self.phases.close_epoch()

    def close_told(self, told: Mapping[str, Any] | None) -> None:
        """An epoch has ended in a program that trains and times by itself; rank 0 knows what it told.

        `told` has columns of epochs.csv; those that it lacks, other than the nodes' own counts, stay empty. Nodes count from
        the end of the epoch before, so validation is in what they count, and what goes on between epochs.
        """
        self.epoch += 1
        self.group.barrier()  # the others come at once, and would read their nodes before the epoch
        counted = self.group.all_gather(self._since(self._epoch_opened))
        self._epoch_opened = self._read()
        self.closed_at = time.time()
        if told is not None:
            self._put({**dict.fromkeys(COLUMNS), **told}, counted)
        self._opened_at = self.closed_at

    def _compare_clocks(self) -> None:
        """In a traced run, tell by how much every rank's clock is ahead of rank 0's."""
        if not self.phases.on:
            return
        at, offsets = time.monotonic(), self.group.clock_offsets()
        if self._clocks is not None:
            rows = ((self.epoch, rank, at, offset, error) for rank, (offset, error) in enumerate(offsets))
            csv.writer(self._clocks, lineterminator="\n").writerows(rows)

    def _read(self) -> Reading | None:
        """The node's counters; one rank of a node reads them."""
        return self._node.read() if self._node else None

    def _since(self, before: Reading | None) -> dict[str, Any] | None:
        return {"machine": machine(), **self._node.since(before)} if self._node and before else None

    def meters(self) -> list[dict[str, Any]] | None:
        """The energy meters of this rank's node; None of a rank that does not read them."""
        return self._node.meters.said() if self._node else None

    def _table(self, name: str, columns: tuple[str, ...]) -> TextIO | None:
        if self.group.rank != 0:
            return None
        table = open(self.context.folder / name, "w", newline="", buffering=1)  # noqa: SIM115 (open for the whole run)
        csv.writer(table, lineterminator="\n").writerow(columns)
        return table

    def _write(self, gathered: list[Any]) -> None:
        spec = self.context.spec
        own, closed, validation, of_training, of_validation, steps, counted = zip(*gathered, strict=True)
        trained, validated = (
            [seen[i] for i in self.context.counting] for seen in (of_training, of_validation)
        )
        samples = sum(seen["samples"] for seen in trained)
        scale = spec["samples_per_epoch"] / samples
        row = {
            "epoch_time_s": max(own) * scale,
            "closed_time_s": max(closed) * scale,
            "imbalance_s": max(own) - min(own),
            "validation_time_s": max(validation),
            "steps": spec["steps"],
            "exchanges": len(self.context.accumulation_groups),
            "samples_trained": samples,
            **_means("train", trained, self.context.positions),
            **_means("validation", validated, self.context.positions),
        }
        self._put(row, counted)
        if self._steps is not None:
            writer = csv.writer(self._steps, lineterminator="\n")
            writer.writerows(
                (self.epoch, rank, i + 1, t) for rank, times in enumerate(steps) for i, t in enumerate(times)
            )

    def _put(self, row: Mapping[str, Any], counted: Sequence[dict[str, Any] | None]) -> None:
        """Write the line of an epoch; `counted` is what every rank's node counted, None of all but one rank of a node."""
        whole = {
            **row,
            "epoch": self.epoch,
            "warm_up": "true" if self.epoch <= self.context.levels["warmup_epochs"] else "false",
            "learning_rate": self.context.learning_rate(
                self.epoch * len(self.context.accumulation_groups) - 1
            ),
            **_node_totals([node for node in counted if node]),
            "opened_at": self._opened_at,
        }
        if self._epochs is not None:
            csv.writer(self._epochs, lineterminator="\n").writerow(whole[column] for column in COLUMNS)


def _means(what: str, seen: Sequence[dict[str, Any]], positions: int) -> dict[str, float]:
    """Mean loss and accuracy of all ranks; a sample has so many labels."""
    samples = sum(part["samples"] for part in seen)
    return {
        f"{what}_loss": sum(part["loss_sum"] for part in seen) / samples,
        f"{what}_accuracy": sum(part["correct"] for part in seen) / (samples * positions),
    }


def _node_totals(nodes: list[dict[str, Any]]) -> dict[str, float | None]:
    """The node that was held back most, the node that sent most, each scope's energy of all machines; None where one does not tell."""
    machines = list({node["machine"]: node for node in nodes}.values())
    energies = (f"energy_{scope}_j" for scope in SCOPES)
    return {
        **{
            name: _unless_untold(max, [node[name] for node in nodes])
            for name in ("throttled_s", "sent_bytes")
        },
        **{name: _unless_untold(sum, [node[name] for node in machines]) for name in energies},
    }


def _unless_untold(combine: Any, values: list[float | None]) -> float | None:
    return None if None in values else combine(values)
