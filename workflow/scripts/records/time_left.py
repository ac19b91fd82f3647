"""Estimate how long a campaign will still take, from its records."""

import contextlib
import itertools
import os
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from plan.campaign import Campaign
from plan.collective_benchmarks import CollectiveBenchmarks
from records.record_checks import load_record

RECORD_FIELDS = ("status", "reason", "started_at", "ended_at", "session", "wall_s")

Records = Mapping[str, Mapping[str, Any]]  # name -> RECORD_FIELDS of its record


class RecordCache:
    """Read records, each again only after a change, which makes watching a campaign cheap."""

    def __init__(self) -> None:
        self._cached: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}

    def read(self, path: str) -> dict[str, Any] | None:
        """Return RECORD_FIELDS of a record, None if it does not exist."""
        try:
            file_stat = os.stat(path)
        except OSError:
            return None
        version = (file_stat.st_mtime_ns, file_stat.st_size)
        if path not in self._cached or self._cached[path][0] != version:
            record = load_record(Path(path))
            self._cached[path] = (version, {name: record.get(name) for name in RECORD_FIELDS})
        return self._cached[path][1]

    def read_all(self, paths: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Return name -> RECORD_FIELDS of those records in `paths` that exist."""
        return {name: record for name, path in paths.items() if (record := self.read(path))}


def time_left_estimator(campaign: Campaign) -> Callable[[], float | None]:
    """Return a function that estimates the time left in seconds, without regard to runs under way."""
    cache, benchmark_paths = RecordCache(), CollectiveBenchmarks(campaign).record_paths

    def estimate() -> float | None:
        current = campaign.with_current_decisions()
        return estimate_time_left(
            current,
            cache.read_all(current.record_paths),
            benchmark_paths,
            cache.read_all(benchmark_paths),
            {},
        )

    return estimate


def estimate_time_left(
    campaign: Campaign,
    records: Records,
    benchmarks: Collection[str],
    benchmark_records: Records,
    under_way: Mapping[str, float],
) -> float | None:
    """Return the seconds that the missing runs and benchmarks will take, None while no run has ended.

    A run is expected to take the mean of its cell, or of all runs if its cell has none yet.

    Args:
        campaign: The campaign.
        records: Records of runs that have ended.
        benchmarks: Names of all collective benchmarks.
        benchmark_records: Records of those that have ended.
        under_way: Run -> seconds since its start.
    """
    benchmarks_s = mean_duration(benchmark_records.values()) * (len(benchmarks) - len(benchmark_records))
    left = [campaign.by_id[run_id] for run_id in campaign.record_paths if run_id not in records]
    if not left:
        return benchmarks_s
    durations = {run_id: end - start for run_id, (start, end) in run_spans(records).items()}
    if not durations:
        return None
    cell_durations: dict[str, list[float]] = {}
    for run_id, duration in durations.items():
        cell_durations.setdefault(campaign.by_id[run_id].cell, []).append(duration)
    mean_duration_s, gap_s = statistics.fmean(durations.values()), median_gap(records)
    expected_s = {
        run.run_id: statistics.fmean(cell_durations.get(run.cell, [mean_duration_s])) + gap_s for run in left
    }
    elapsed_s = sum(
        min(run_elapsed_s, expected_s[run_id])
        for run_id, run_elapsed_s in under_way.items()
        if run_id in expected_s
    )
    return (sum(expected_s.values()) - elapsed_s + benchmarks_s) / campaign.site.scheduler.concurrent_runs


def median_gap(records: Records) -> float:
    """Return the median time in seconds from the end of a run to the start of the next one of its session."""
    spans = run_spans(records)
    gaps = []
    for session in {records[run_id]["session"] for run_id in spans}:
        session_spans = sorted(
            span for run_id, span in spans.items() if records[run_id]["session"] == session
        )
        gaps += [start - end for (_, end), (start, _) in itertools.pairwise(session_spans)]
    return max(0.0, statistics.median(gaps)) if gaps else 0.0


def run_spans(records: Records) -> dict[str, tuple[float, float]]:
    """Return run_id -> Unix times of start and end, s, for records that have both."""
    spans = {
        run_id: (parse_date(record["started_at"]), parse_date(record["ended_at"]))
        for run_id, record in records.items()
    }
    return {run_id: (start, end) for run_id, (start, end) in spans.items() if start and end}


def parse_date(date: str | None) -> float | None:
    """Return the Unix time of an ISO 8601 date, s, None if it is not one."""
    with contextlib.suppress(ValueError, TypeError):
        return datetime.fromisoformat(date or "").timestamp()
    return None


def mean_duration(records: Iterable[Mapping[str, Any]]) -> float:
    """Return the mean duration of measurements in seconds, 0 without any."""
    durations = [record["wall_s"] for record in records if isinstance(record["wall_s"], int | float)]
    return statistics.fmean(durations) if durations else 0.0
