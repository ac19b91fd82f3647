"""How long a campaign will still take, by its records: what `./ringside status` tells, and the line that is printed as each run ends."""

import contextlib
import itertools
import os
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from plan.campaign import Campaign
from plan.recorded import record_of
from plan.sweeps import Sweeps

KEPT = ("status", "reason", "started_at", "ended_at", "session", "wall_s")

Records = Mapping[str, Mapping[str, Any]]  # name of a run or a sweep -> KEPT of its record


class Reader:
    """Reads records, each one again only when it has changed: who watches a campaign takes little of its processors."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}

    def read(self, path: str) -> dict[str, Any] | None:
        """What is wanted of a record; None where there is none."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        mark = (found.st_mtime_ns, found.st_size)
        if path not in self._known or self._known[path][0] != mark:
            said = record_of(Path(path))
            self._known[path] = (mark, {name: said.get(name) for name in KEPT})
        return self._known[path][1]

    def read_all(self, paths: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Name -> what is wanted of the record, of those `paths` where there is one."""
        return {name: said for name, path in paths.items() if (said := self.read(path))}


def observer(campaign: Campaign) -> Callable[[], float | None]:
    """`left_s` of a campaign of which nothing is under way, to be asked again and again."""
    reader, outputs = Reader(), Sweeps(campaign).outputs

    def now() -> float | None:
        known = campaign.now()
        return left_s(known, reader.read_all(known.records), outputs, reader.read_all(outputs), {})

    return now


def left_s(
    campaign: Campaign, records: Records, sweeps: Collection[str], swept: Records, under_way: Mapping[str, float]
) -> float | None:
    """How long the runs and `sweeps` without a record will take, by those that have ended: of the same cell, else of all.

    Seconds; None while no run has ended. `under_way`: run -> seconds that it has taken already.
    """
    sweeps_s = _mean_s(swept.values()) * (len(sweeps) - len(swept))
    left = [campaign.by_id[run_id] for run_id in campaign.records if run_id not in records]
    if not left:
        return sweeps_s
    lasted = {run_id: end - start for run_id, (start, end) in _spans(records).items()}
    if not lasted:
        return None
    of_cell: dict[str, list[float]] = {}
    for run_id, lasts in lasted.items():
        of_cell.setdefault(campaign.by_id[run_id].cell, []).append(lasts)
    usual, gap = statistics.fmean(lasted.values()), _gap_s(records)
    expected = {run.run_id: statistics.fmean(of_cell.get(run.cell, [usual])) + gap for run in left}
    gone = sum(min(taken, expected[run_id]) for run_id, taken in under_way.items() if run_id in expected)
    return (sum(expected.values()) - gone + sweeps_s) / campaign.site.scheduler.concurrent_runs


def _gap_s(records: Records) -> float:
    """The usual time from one run's end to the next one's start in a session."""
    spans = _spans(records)
    gaps = []
    for session in {records[run_id]["session"] for run_id in spans}:
        own = sorted(span for run_id, span in spans.items() if records[run_id]["session"] == session)
        gaps += [start - end for (_, end), (start, _) in itertools.pairwise(own)]
    return max(0.0, statistics.median(gaps)) if gaps else 0.0


def _spans(records: Records) -> dict[str, tuple[float, float]]:
    """run_id -> start and end in seconds since the epoch."""
    made = {run_id: (seconds(said["started_at"]), seconds(said["ended_at"])) for run_id, said in records.items()}
    return {run_id: (start, end) for run_id, (start, end) in made.items() if start and end}


def seconds(date: Any) -> float | None:
    """A date in ISO 8601 in seconds since the epoch; None where it is none."""
    with contextlib.suppress(ValueError, TypeError):
        return datetime.fromisoformat(date).timestamp()
    return None


def _mean_s(records: Iterable[Mapping[str, Any]]) -> float:
    """The mean of what measurements took; 0 without any."""
    took = [said["wall_s"] for said in records if isinstance(said["wall_s"], int | float)]
    return statistics.fmean(took) if took else 0.0
