"""A trace, as the programs here pass it on: the phases of all ranks on one clock, and what they are of."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.measured import with_phases
from common.errors import InputError
from common.files import read_json, shown
from ranks.worker.phases import EXCHANGE
from runs.attempts import attempt_folder
from runs.phases import TABLE, read_intervals

NS = 10**9
STEP = "step"
OPERATORS = "operators-*.json"


@dataclass(frozen=True)
class Timeline:
    """`intervals`: rank, epoch, step, phase, start, end (s, of one clock), each rank's in order of their start.

    `hosts` and `devices` are those of each rank, as far as they are known; `about` is what else is known of the run; `began`
    is the clock's zero, in s since 1970. `operators`: by the number of a rank, the file of what the library's profiler told, on that clock.
    """

    intervals: pd.DataFrame
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    began: float = 0.0
    operators: dict[int, Path] = field(default_factory=dict)

    @property
    def ranks(self) -> list[int]:
        """The ranks that have a row."""
        return sorted(int(rank) for rank in self.intervals["rank"].unique())

    def host(self, rank: int) -> str:
        """The host of a rank."""
        return self.hosts[rank] if rank < len(self.hosts) else "unknown host"

    def title(self, rank: int) -> str:
        """What a person reads of a rank: its number, host and device."""
        return ", ".join([f"rank {rank}: {self.host(rank)}", *self.devices[rank : rank + 1]])

    def tracks(self, rank: int) -> Iterator[tuple[str, pd.DataFrame]]:
        """What went on at a rank, as tracks in which no interval overlaps another: its phases, its exchanges one under the other.

        Each is a name and a table as `intervals`, with start and end as `begin_ns` and `end_ns`, too.
        """
        mine = self.intervals[self.intervals["rank"] == rank]
        for name, end in (("begin_ns", "start"), ("end_ns", "end")):
            mine = mine.assign(**{name: np.rint(mine[end] * NS).astype(np.int64)})
        beside = mine["phase"] == EXCHANGE
        yield "phases", _until_steps(mine[~beside]).sort_values(["begin_ns", "end_ns"])
        exchanges = mine[beside].sort_values(["begin_ns", "end_ns"])
        lane = np.array(lanes(exchanges["begin_ns"].tolist(), exchanges["end_ns"].tolist()), dtype=int)
        for number in range(lane.max(initial=-1) + 1):
            yield f"{EXCHANGE} {number + 1}", exchanges[lane == number]


def _until_steps(phases: pd.DataFrame) -> pd.DataFrame:
    """A rank's phases, those before training (epoch 0) until its first step: a program that trains by itself may begin before the rank is
    ready to hear of it."""
    of_steps = phases.loc[phases["step"] > 0, "begin_ns"]
    if of_steps.empty:
        return phases
    before = phases["epoch"] == 0
    ends = phases["end_ns"].mask(before, phases["end_ns"].clip(upper=of_steps.min()))
    return phases.assign(end_ns=ends)[~before | (phases["begin_ns"] < of_steps.min())]


def lanes(begins: list[int], ends: list[int]) -> list[int]:
    """The lane of each interval, in order of their begins: the first one that is free, so that none overlaps another in its lane."""
    free: list[int] = []
    taken = []
    for begin, end in zip(begins, ends, strict=True):
        lane = next((number for number, until in enumerate(free) if until <= begin), len(free))
        free[lane : lane + 1] = [end]
        taken.append(lane)
    return taken


def steps(phases: pd.DataFrame) -> pd.DataFrame:
    """Epoch, step, begin_ns and end_ns of each training step of a track of phases: from its first phase to the end of its last."""
    inside = phases[phases["step"] > 0]
    grouped = inside.groupby(["epoch", "step"], sort=False)
    return grouped.agg(begin_ns=("begin_ns", "min"), end_ns=("end_ns", "max")).reset_index()


def told(runs: pd.DataFrame, records: Path) -> list[tuple[dict[str, Any], Path]]:
    """The successful traced ones of `runs` that have phases: a row of runs.csv, and its attempt in `records`."""
    ok = with_phases(runs).to_dict("records")
    return [(run, attempt_folder(records / run["run_id"] / run["key"], run["attempt"])) for run in ok]


def read(folder: Path) -> Timeline:
    """The trace of a finished attempt. InputError where it has none, or what is there is broken."""
    table = folder / TABLE
    if not table.exists():
        problem = f"has no {TABLE}: nobody traced the run, or it was removed"
        raise InputError("missing-file", problem, file=shown(folder), got=TABLE, hint="trace the run again")
    try:
        record, spec = (read_json(folder / name) for name in ("record.json", "spec.json"))
        hosts = [host for host in spec["hosts"] for _ in range(spec["spec"]["ranks_per_node"])]
        about = {name: record[name] for name in ("study", "run_id", "key", "site", "started_at")}
        measured = record["measured"]
        return Timeline(
            intervals=read_intervals(table),
            hosts=tuple(hosts),
            devices=tuple(measured["devices"]),
            about={**about, **{name: measured[name] for name in ("clock_error_s", "library_version", "transport")}},
            began=pd.Timestamp(record["started_at"]).timestamp(),
            operators={int(file.stem.rpartition("-")[2]): file for file in sorted(folder.glob(OPERATORS))},
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"is no whole attempt at a run ({type(error).__name__}: {error})"
        raise InputError("broken-file", problem, file=shown(folder), hint="repeat the run") from None
