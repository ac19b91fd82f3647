"""Time the reference benchmark right before and right after a run, on the cores of its ranks.

The benchmark is a separate program (ranks/reference_work.py), which the site's launcher starts the same way
as ranks. If the benchmark fails, the run does not: its record has the reason instead of a time.
"""

import contextlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.files import read_json, write_json
from common.notes import Note
from common.run_status import RunStatus
from declared.site import Site
from environments.record import BuiltEnvironment
from launchers import launch
from launchers.protocol import AttemptLost
from runs.interruptions import AttemptStopped

PROGRAM = "ranks.reference_work"
TIME_LIMIT_S = 60.0  # usually it takes 0.3 s
PAUSE_S = 10.0  # between two benchmarks while a run waits for a quiet machine
MIN_EARLIER_TIMES = 6  # with fewer times, the usual time is unknown
MIN_MARGIN_SHARE = 0.05  # share of the usual time; a smaller excess is not worth a wait
SIGMAS = 3.0
QUARTILE = 0.6745  # standard deviations from the median of a normal distribution to its quartiles


@dataclass(frozen=True)
class ReferenceTime:
    """Result of one benchmark.

    Attributes:
        kind: Name and version of the benchmark.
        times: Host -> time of the node's slowest rank, s; None if the benchmark failed.
        reason: Why it failed.
        by_rank: Time of each rank, s; empty if the benchmark failed.
    """

    kind: str | None
    times: Mapping[str, float] | None
    reason: Note | None
    by_rank: Sequence[float] = ()

    @property
    def slowest_s(self) -> float | None:
        """Time of the slowest node, for which training would wait, s; None if the benchmark failed."""
        return max(self.times.values()) if self.times else None


@dataclass(frozen=True)
class Band:
    """Usual time of the benchmark, and the largest time that counts as usual, s."""

    usual_s: float
    max_s: float


def usual_band(times: Sequence[float]) -> Band | None:
    """Return the band of usual times in s, or None with too few times.

    Disturbances only add time. The spread is therefore estimated from the faster half: median minus lower
    quartile, which is 0.6745 standard deviations of a normal distribution. The band ends three of these, and
    at least 5 %, above the median.
    """
    if len(times) < MIN_EARLIER_TIMES:
        return None
    lower, median, _ = statistics.quantiles(times, n=4, method="inclusive")
    return Band(median, median + max(SIGMAS * (median - lower) / QUARTILE, MIN_MARGIN_SHARE * median))


def geometry(spec: Mapping[str, Any]) -> str:
    """Return nodes x ranks of a node x cores of a rank, such as 2 x 1 x 4.

    Only times of one geometry are compared.
    """
    cores = spec.get("rank_cores", [spec["cores_per_rank"]])
    return f"{spec['nodes']} x {min(spec['ranks'], spec['ranks_per_node'])} x {'+'.join(map(str, cores))}"


def earlier_times(results: Path, run_geometry: str, environment_digest: str) -> Iterator[tuple[str, float]]:
    """Yield kind and time (s, slowest node) of recorded benchmarks of this geometry and environment.

    The environment counts because its NumPy does the work. `results` is results/<study>.
    """
    for file in (results / "runs").glob("*/*/record.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = read_json(file)
            entry = record["reference"]
            if (entry["geometry"], record["environment_digest"]) == (run_geometry, environment_digest):
                yield from (
                    (entry["kind"], max(entry[moment].values()))
                    for moment in ("before", "after")
                    if entry[moment]
                )


def run_benchmark(
    folder: Path, spec: Mapping[str, Any], modules: Sequence[str], environment: BuiltEnvironment, site: Site
) -> ReferenceTime:
    """Run the benchmark once.

    Its `folder` with the log is kept only if it failed.

    Raises:
        AttemptStopped: If a signal stopped the supervisor.
        AttemptLost: If the infrastructure failed.
    """
    try:
        folder.mkdir()
        launcher = launch.make_step_launcher(site, spec, environment, "reference")
        # Without levels, ranks trace nothing.
        benchmark_spec = {name: value for name, value in spec.items() if name not in ("levels", "steps")}
        write_json(
            folder / "rank_input.json",
            {"spec": benchmark_spec, "modules": list(modules), "hosts": list(launcher.hosts)},
        )
        limited = replace(site, time_limit_s=min(TIME_LIMIT_S, site.time_limit_s))
        outcome = launch.run_ranks(launcher, environment, folder.resolve(), spec, limited, program=PROGRAM)
        if outcome.status != RunStatus.OK:
            failed = outcome.reason or Note(outcome.status, outcome.status)
            return ReferenceTime(None, None, Note(failed.code, f"{folder.name}: {failed}", **failed.facts))
        result = read_json(folder / "result.json")
        times: dict[str, float] = {}
        for host, time_s in result["ranks"]:
            times[host] = max(time_s, times.get(host, 0.0))
        shutil.rmtree(folder, ignore_errors=True)
        return ReferenceTime(result["kind"], times, None, [time_s for _, time_s in result["ranks"]])
    except (AttemptStopped, AttemptLost):
        raise
    except Exception as error:  # a failed benchmark must not fail the run
        text = f"{folder.name}: {type(error).__name__}: {error}"
        return ReferenceTime(None, None, Note("program-error", text, error=type(error).__name__))


def measure_before(
    benchmark: Callable[[], ReferenceTime],
    read_earlier: Callable[[], Sequence[tuple[str, float]]] = tuple,
    wait_s: float = 0.0,
    notify: Callable[[Note], None] = print,
) -> dict[str, Any]:
    """Run the benchmark before a run, and return the record's entry.

    Args:
        benchmark: Runs the benchmark once.
        read_earlier: Returns kinds and times (s) of earlier benchmarks.
        wait_s: Longest time to repeat the benchmark until it takes no longer than usual, s.
        notify: Prints that the run waits; called once.
    """
    result, started = benchmark(), time.monotonic()
    slow_times_s: list[float] = []
    usual = usual_band([time_s for kind, time_s in read_earlier() if kind == result.kind]) if wait_s else None
    while (
        usual
        and result.slowest_s
        and result.slowest_s > usual.max_s
        and (left_s := started + wait_s - time.monotonic()) > 0
    ):
        if not slow_times_s:
            text = (
                f"waiting for a quiet machine, {wait_s:g} s at most: the reference benchmark takes "
                f"{result.slowest_s:.2f} s, usually {usual.usual_s:.2f} s"
            )
            notify(Note("waiting", text, wait_s=wait_s, took_s=result.slowest_s, usual_s=usual.usual_s))
        slow_times_s.append(result.slowest_s)
        time.sleep(min(PAUSE_S, left_s))
        result = benchmark()
    return {
        "kind": result.kind,
        "before": result.times,
        "after": None,
        "ranks": list(result.by_rank) or None,
        "reason": result.reason,
        "waited_s": time.monotonic() - started if slow_times_s else 0.0,
        "seen": slow_times_s,
    }


def measure_after(benchmark: Callable[[], ReferenceTime], before: Mapping[str, Any]) -> dict[str, Any]:
    """Run the benchmark after a run, and return the entry of `measure_before` with its times.

    If a node is gone now, the attempt is not lost, because its training has ended.
    """
    try:
        result = benchmark()
    except AttemptLost as lost:
        result = ReferenceTime(None, None, Note("lost", f"lost: {lost}"))
    if None not in (result.kind, before["kind"]) and result.kind != before["kind"]:
        text = f"is {result.kind}, was {before['kind']}"
        result = ReferenceTime(None, None, Note("other-kind", text, before=before["kind"], after=result.kind))
    reason = "; ".join(filter(None, (before["reason"], result.reason))) or None
    pairs = zip(before["ranks"] or result.by_rank, result.by_rank, strict=False)
    by_rank = [sum(pair) / 2 for pair in pairs] or before["ranks"]
    kind = before["kind"] or result.kind
    return {**before, "kind": kind, "after": result.times, "ranks": by_rank, "reason": reason}
