"""A trace in memory: the phases of all ranks on one clock, and metadata of the run."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.records import with_phases
from common.errors import InputError
from common.files import read_json
from ranks.worker.phases import COMMUNICATION
from runs.attempts import attempt_path
from runs.phases import TABLE, read_intervals

NS = 10**9
STEP = "step"
OPERATORS = "operators-*.json"


@dataclass(frozen=True)
class Timeline:
    """A trace.

    Attributes:
        intervals: rank, epoch, step, phase, start, end (s, on one clock), each rank's in order of their
            start.
        hosts: Host of each rank, if known.
        devices: Device of each rank, if known.
        metadata: Other facts of the run.
        began: The clock's zero, in s since 1970.
        operators: The file of the library's profiler by rank, on the same clock.
    """

    intervals: pd.DataFrame
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    began: float = 0.0
    operators: dict[int, Path] = field(default_factory=dict)

    @property
    def ranks(self) -> list[int]:
        """The ranks that have intervals."""
        return sorted(int(rank) for rank in self.intervals["rank"].unique())

    def host(self, rank: int) -> str:
        """Return the host of a rank."""
        return self.hosts[rank] if rank < len(self.hosts) else "unknown host"

    def title(self, rank: int) -> str:
        """Return a rank's label: its number, host and device."""
        return ", ".join([f"rank {rank}: {self.host(rank)}", *self.devices[rank : rank + 1]])

    def tracks(self, rank: int) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield tracks of a rank without overlapping intervals: its phases, then its all-reduces.

        Each is a name and a table like `intervals`, with `begin_ns` and `end_ns` in addition.
        """
        rows = self.intervals[self.intervals["rank"] == rank]
        for name, end in (("begin_ns", "start"), ("end_ns", "end")):
            rows = rows.assign(**{name: np.rint(rows[end] * NS).astype(np.int64)})
        is_communication = rows["phase"] == COMMUNICATION
        yield "phases", _until_steps(rows[~is_communication]).sort_values(["begin_ns", "end_ns"])
        communication = rows[is_communication].sort_values(["begin_ns", "end_ns"])
        lane = np.array(
            assign_lanes(communication["begin_ns"].tolist(), communication["end_ns"].tolist()), dtype=int
        )
        for number in range(lane.max(initial=-1) + 1):
            yield f"{COMMUNICATION} {number + 1}", communication[lane == number]


def _until_steps(phases: pd.DataFrame) -> pd.DataFrame:
    """Return a rank's phases, those before training (epoch 0) cut at its first step.

    A program with its own training loop may begin before the rank learns that it is ready.
    """
    of_steps = phases.loc[phases["step"] > 0, "begin_ns"]
    if of_steps.empty:
        return phases
    before = phases["epoch"] == 0
    ends = phases["end_ns"].mask(before, phases["end_ns"].clip(upper=of_steps.min()))
    return phases.assign(end_ns=ends)[~before | (phases["begin_ns"] < of_steps.min())]


def assign_lanes(begins: list[int], ends: list[int]) -> list[int]:
    """Return the first free lane of each interval, in order of begins, so that none overlap in a lane."""
    free: list[int] = []
    assigned = []
    for begin, end in zip(begins, ends, strict=True):
        lane = next((number for number, until in enumerate(free) if until <= begin), len(free))
        free[lane : lane + 1] = [end]
        assigned.append(lane)
    return assigned


def step_bounds(phases: pd.DataFrame) -> pd.DataFrame:
    """Return epoch, step, begin_ns and end_ns of each training step from its first to its last phase."""
    inside = phases[phases["step"] > 0]
    grouped = inside.groupby(["epoch", "step"], sort=False)
    return grouped.agg(begin_ns=("begin_ns", "min"), end_ns=("end_ns", "max")).reset_index()


def traced_attempts(runs: pd.DataFrame, records: Path) -> list[tuple[dict[str, Any], Path]]:
    """Return the rows of runs.csv of successful traced runs with phases, each with its attempt."""
    ok = with_phases(runs).to_dict("records")
    return [(run, attempt_path(records / run["run_id"] / run["key"], run["attempt"])) for run in ok]


def read(folder: Path) -> Timeline:
    """Return the trace of a finished attempt.

    Raises:
        InputError: If it has no trace, or the attempt is broken.
    """
    table = folder / TABLE
    if not table.exists():
        problem = f"has no {TABLE}: the run was not traced, or the file was removed"
        raise InputError("missing-file", problem, file=folder, got=TABLE, hint="trace the run again")
    try:
        record, rank_input = (read_json(folder / name) for name in ("record.json", "rank_input.json"))
        hosts = [host for host in rank_input["hosts"] for _ in range(rank_input["spec"]["ranks_per_node"])]
        metadata = {name: record[name] for name in ("study", "run_id", "key", "site", "started_at")}
        measured = record["measured"]
        return Timeline(
            intervals=read_intervals(table),
            hosts=tuple(hosts),
            devices=tuple(measured["devices"]),
            metadata={
                **metadata,
                **{name: measured[name] for name in ("clock_error_s", "library_version", "transport")},
            },
            began=pd.Timestamp(record["started_at"]).timestamp(),
            operators={int(file.stem.rpartition("-")[2]): file for file in sorted(folder.glob(OPERATORS))},
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"is not a complete attempt of a run ({type(error).__name__}: {error})"
        raise InputError("broken-file", problem, file=folder, hint="repeat the run") from None
