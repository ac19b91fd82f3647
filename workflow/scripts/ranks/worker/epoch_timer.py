"""Time the epochs of a run.

Epochs begin and end at a barrier. Rank 0 gathers results and writes each epoch to epochs.csv as it ends.
"""

import csv
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from ranks.worker.context import Context, interfaces
from ranks.worker.devices import node_accelerators
from ranks.worker.energy import SCOPES
from ranks.worker.heartbeat import Heartbeat
from ranks.worker.load import Load
from ranks.worker.node import Node, Reading, machine
from ranks.worker.phases import CLOCKS

COLUMNS = (
    "epoch", "warm_up", "epoch_time_s", "closed_time_s", "imbalance_s", "validation_time_s", "learning_rate",
    "steps", "n_allreduces", "samples_trained", "train_loss", "train_accuracy", "validation_loss",
    "validation_accuracy",
    "throttled_s", "sent_bytes", *(f"energy_{scope}_j" for scope in SCOPES), "opened_at",
)  # fmt: skip


@dataclass
class EpochSums:
    """Loss and accuracy of one rank's samples, as sums.

    Attributes:
        loss_sum: Sum of the losses; the loss of a sequence is the mean over its positions.
        correct: Number of labels that were predicted correctly, None if they were not counted.
        samples: Number of samples.
    """

    loss_sum: float
    correct: int | None
    samples: int


class EpochTimer:
    """Time the epochs of one run on one rank.

    Rank 0 writes a line of epochs.csv (and steps.csv) as each epoch ends.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.group, self.phases = context.group, context.phases
        self.epoch = 0
        self.first_step_s: float | None = None
        self._step_times: list[float] = []
        self._release = self._last_step = 0.0
        spec = context.spec
        devices = node_accelerators(context)
        self._node = Node(interfaces(spec), devices) if context.local_rank == 0 else None
        if self._node:
            self._node.meters.sample(context.folder / f"power-{self.group.rank}.csv")
        self._epochs = self._table("epochs.csv", COLUMNS)
        self._steps = (
            self._table("steps.csv", ("epoch", "rank", "step", "step_time_s")) if spec["step_times"] else None
        )
        self._clocks = self._table("clocks.csv", CLOCKS) if self.phases.is_traced else None
        self.phases.enter("barrier")
        self.group.barrier()
        self.ready_at = time.time()
        self._clock_ahead_s = self.ready_at - time.monotonic()
        self.load = Load(self.group)  # Counting starts when all ranks are ready.
        self.heartbeat = Heartbeat()
        self._compare_clocks()
        self.phases.close_epoch()
        self._epoch_opened = self._read()
        self._opened_at = self.closed_at = time.time()

    def clock_step_s(self) -> float:
        """Return by how many seconds the system's clock was set since all ranks were ready.

        Epoch times come from a monotonic clock, which this does not change.
        """
        return time.time() - time.monotonic() - self._clock_ahead_s

    def open_epoch(self) -> None:
        """Start the next epoch on all ranks at the same time."""
        self.epoch += 1
        self._epoch_opened = self._read()
        self.group.barrier()
        self._release = self._last_step = time.monotonic()
        self._opened_at = time.time()
        self.phases.open_epoch(self.epoch)

    @property
    def wants_steps(self) -> bool:
        """Whether to call `step` after the current step, with the device synchronized."""
        return self.first_step_s is None or self.context.spec["step_times"]

    def step(self) -> None:
        """Record the end of a training step; the device is idle."""
        now = time.monotonic()
        if self.first_step_s is None:
            self.first_step_s = now - self._release
        if self.context.spec["step_times"]:
            self._step_times.append(now - self._last_step)
        self._last_step = now

    def close_epoch(self, trained: EpochSums, validate: Any) -> None:
        """Record the end of this rank's epoch; the device is idle.

        `validate()` -> EpochSums is then called and timed separately.
        """
        own_time_s = time.monotonic() - self._release
        self.phases.leave_steps()
        self.group.barrier()
        closed_time_s = time.monotonic() - self._release
        counted = self._since(self._epoch_opened)
        self.closed_at = time.time()
        start = time.monotonic()
        self.phases.enter("validation")
        validated: EpochSums = validate()
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

    def record_epoch(self, row: Mapping[str, Any] | None) -> None:
        """Record the end of an epoch in a program that has its own training loop and timer.

        Nodes count from the end of the previous epoch, so their counts include validation and the time
        between epochs.

        Args:
            row: On rank 0, the columns of epochs.csv that the program reported; None on other ranks. Missing
                columns stay empty, except those that the nodes count.
        """
        self.epoch += 1
        # Other ranks call this immediately; the barrier delays their reading to the end of the epoch.
        self.group.barrier()
        counted = self.group.all_gather(self._since(self._epoch_opened))
        self._epoch_opened = self._read()
        self.closed_at = time.time()
        if row is not None:
            self._put({**dict.fromkeys(COLUMNS), **row}, counted)
        self._opened_at = self.closed_at

    def _compare_clocks(self) -> None:
        """Record by how much every rank's clock is ahead of rank 0's, in a traced run."""
        if not self.phases.is_traced:
            return
        at, offsets = time.monotonic(), self.group.clock_offsets()
        if self._clocks is not None:
            rows = ((self.epoch, rank, at, offset, error) for rank, (offset, error) in enumerate(offsets))
            csv.writer(self._clocks, lineterminator="\n").writerows(rows)

    def _read(self) -> Reading | None:
        """Return the node's counters on the rank that reads them, None on other ranks."""
        return self._node.read() if self._node else None

    def _since(self, before: Reading | None) -> dict[str, Any] | None:
        return {"machine": machine(), **self._node.since(before)} if self._node and before else None

    def meters(self) -> list[dict[str, Any]] | None:
        """Return the energy meters of this rank's node; None on a rank that does not read them."""
        return self._node.meters.describe() if self._node else None

    def _table(self, name: str, columns: tuple[str, ...]) -> TextIO | None:
        if self.group.rank != 0:
            return None
        table = open(self.context.folder / name, "w", newline="", buffering=1)  # noqa: SIM115 (open for the whole run)
        csv.writer(table, lineterminator="\n").writerow(columns)
        return table

    def _write(self, gathered: list[Any]) -> None:
        spec = self.context.spec
        times, closed, validation, training_sums, validation_sums, steps, counted = zip(
            *gathered, strict=True
        )
        trained, validated = (
            [sums[rank] for rank in self.context.reporters] for sums in (training_sums, validation_sums)
        )
        samples = sum(sums["samples"] for sums in trained)
        scale = spec["samples_per_epoch"] / samples
        row = {
            "epoch_time_s": max(times) * scale,
            "closed_time_s": max(closed) * scale,
            "imbalance_s": max(times) - min(times),
            "validation_time_s": max(validation),
            "steps": spec["steps"],
            "n_allreduces": len(self.context.accumulation_groups),
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
        """Write the line of an epoch.

        `counted` has the node's counters from one rank of each node, and None from the others.
        """
        full_row = {
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
            csv.writer(self._epochs, lineterminator="\n").writerow(full_row[column] for column in COLUMNS)


def _means(split: str, rank_sums: Sequence[dict[str, Any]], positions: int) -> dict[str, float | None]:
    """Return mean loss and accuracy over all ranks; a sample has `positions` labels.

    The accuracy is None if correct labels were not counted.
    """
    samples = sum(sums["samples"] for sums in rank_sums)
    correct = _combine_if_complete(sum, [sums["correct"] for sums in rank_sums])
    return {
        f"{split}_loss": sum(sums["loss_sum"] for sums in rank_sums) / samples,
        f"{split}_accuracy": None if correct is None else correct / (samples * positions),
    }


def _node_totals(nodes: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return the maxima of throttled time and sent bytes over nodes, and the energy of all machines by scope.

    A value is None if a node does not report it.
    """
    machines = list({node["machine"]: node for node in nodes}.values())
    energies = (f"energy_{scope}_j" for scope in SCOPES)
    return {
        **{
            name: _combine_if_complete(max, [node[name] for node in nodes])
            for name in ("throttled_s", "sent_bytes")
        },
        **{name: _combine_if_complete(sum, [node[name] for node in machines]) for name in energies},
    }


def _combine_if_complete(combine: Any, values: list[float | None]) -> float | None:
    return None if None in values else combine(values)
