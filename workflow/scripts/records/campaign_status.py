"""Read the status of a campaign: runs done, under way, left and failed, and how long the rest will take.

Everything comes from files and, under Slurm, from the queue. No lock is taken and nothing is written.
"""

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.files import format_utc, is_locked, node_name, read_json
from common.run_status import RunStatus
from declared.site import JOB_MARGIN_S
from plan.campaign import Campaign
from plan.collective_benchmarks import CollectiveBenchmarks
from plan.decisions import rule_fields
from plan.design import Run
from plan.timings import Timings
from records.job_queue import Job, read_jobs
from records.missing import Situation, describe_missing, holds_lock
from records.next_commands import arguments_for, cluster_commands, repeat_commands, run_command
from records.time_left import RecordCache, estimate_time_left, parse_date
from runs import attempts, machine_lock
from runs.reasons import NO_RECORD_PREFIX
from sites import disturbance

_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
# How `./ringside status` labels the problems of missing runs: of those that were begun without success, or
# have only records under other keys; and of those that the site cannot execute.
BEGUN, NOT_HERE = "to run", "not here"


@dataclass(frozen=True)
class UnderWay:
    """A run, a collective benchmark or a timing that is being measured.

    Attributes:
        since: When its attempt began, in UTC.
        seconds: How long ago that was.
        epoch: The epoch under way, 0 before the first one, None if it is not a run.
        epochs: Number of epochs, None if it is not a run.
    """

    name: str
    hosts: list[str]
    since: str
    seconds: float
    epoch: int | None
    epochs: int | None


@dataclass(frozen=True)
class Problem:
    """Runs that are not ok for the same reason.

    Attributes:
        status: Their status, or BEGUN or NOT_HERE for runs without a record.
        reason: The reason; a number that differs between runs is a range.
        count: Number of runs.
        first: Name of the first run.
    """

    status: str
    reason: str
    count: int
    first: str


@dataclass(frozen=True)
class TargetProgress:
    """Which cells of a campaign have reached its interval target.

    Attributes:
        rule: The rule in the form in which decisions record it.
        max_runs: The largest number of runs that the campaign can have.
        open: Whether decisions about further runs are still to come.
        block: The block after which the last decision was taken, 0 before the first one.
        cells: The cells in that decision (`plan.decisions`).
    """

    rule: Mapping[str, Any]
    max_runs: int
    open: bool
    block: int
    cells: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class CampaignStatus:
    """State of a campaign, as `./ringside status` shows it; times in seconds, dates in UTC.

    Attributes:
        n_planned: Number of runs planned so far.
        n_executable: Number of these that the site can execute.
        statuses: Number of runs that have a record, by status.
        n_left: Number of runs without a record.
        left_s: How long they will take; None while no run has ended.
        repeat_command: The command that repeats runs, "" if there are none to repeat.
        run_command: The command that executes the runs that are left.
        is_snakemake_running: Whether Snakemake runs in this checkout.
        machine_locked_by: The process that has locked this machine, or None.
        jobs: The jobs of the campaign; None if Ringside does not read this queue, or the queue did not
            answer.
        queue_note: Why `jobs` is None, else "".
        disturbance: A sentence about the load of this machine, if it has runs left to execute.
    """

    study: str
    site: str
    n_planned: int
    n_executable: int
    statuses: dict[str, int]
    under_way: list[UnderWay]
    n_left: int
    left_s: float | None
    problems: list[Problem]
    repeat_command: str
    run_command: str
    collective_benchmarks: dict[str, int]
    timings: dict[str, int]
    environments: list[str]
    datasets: list[str]
    sessions: int
    last_session: dict[str, Any] | None
    is_snakemake_running: bool
    machine_locked_by: str | None
    jobs: list[Job] | None
    queue_note: str
    disturbance: str | None = None
    replication: TargetProgress | None = None

    @property
    def done(self) -> int:
        """Number of runs with a record that is not broken."""
        return sum(count for status, count in self.statuses.items() if status != RunStatus.BROKEN)

    @property
    def has_begun(self) -> bool:
        """Whether anything was measured, or is being measured."""
        # Every problem except NOT_HERE comes from a record or an attempt.
        has_attempts = any(problem.status != NOT_HERE for problem in self.problems)
        return bool(
            self.done
            or self.under_way
            or self.collective_benchmarks["done"]
            or self.timings["done"]
            or has_attempts
        )

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do."""
        return not self.n_left and not self.under_way and not (self.replication and self.replication.open)


def read_campaign_status(
    campaign: Campaign, benchmarks: CollectiveBenchmarks, timings: Timings, cache: RecordCache
) -> CampaignStatus:
    """Return the status of a campaign now; `cache` keeps records between calls."""
    now = time.time()
    records = cache.read_all(campaign.record_paths)
    benchmark_records = cache.read_all(benchmarks.record_paths)
    timing_records = cache.read_all(timings.record_paths)
    started: dict[str, Path] = {}
    for folder_name, record_paths, read_records in (
        ("runs", campaign.record_paths, records),
        ("network", benchmarks.record_paths, benchmark_records),
        ("costs", timings.record_paths, timing_records),
    ):
        missing = {name: path for name, path in record_paths.items() if name not in read_records}
        started |= started_measurements(campaign.results / folder_name, missing)
    paths = {**campaign.record_paths, **benchmarks.record_paths, **timings.record_paths}
    labels = {
        **dict.fromkeys(benchmarks.record_paths, "collective benchmark "),
        **dict.fromkeys(timings.record_paths, "timing "),
    }
    jobs, queue_note = read_jobs(campaign, {Path(path).parent.name: name for name, path in paths.items()})
    under_way, not_recorded = split_started(campaign, started, labels, jobs, now)
    arguments = arguments_for(campaign.study.name, campaign.site.name)
    measured = [*records.items(), *benchmark_records.items(), *timing_records.items()]
    not_here = [run for run in campaign.runs if run.run_id not in campaign.record_paths]
    return CampaignStatus(
        study=campaign.study.name,
        site=campaign.site.name,
        n_planned=len(campaign.runs),
        n_executable=len(campaign.record_paths),
        statuses=dict(Counter(record["status"] for record in records.values())),
        under_way=under_way,
        n_left=len(campaign.record_paths) - len(records),
        left_s=estimate_time_left(
            campaign,
            records,
            benchmarks.record_paths,
            benchmark_records,
            {item.name: item.seconds for item in under_way},
        ),
        problems=group_problems(
            [
                *(
                    (record["status"], f"{label}{record['reason'] or ''}", f"{label}{name}")
                    for name, record in measured
                    for label in [labels.get(name, "")]
                    if record["status"] != RunStatus.OK
                ),
                *not_recorded,
                *((NOT_HERE, campaign.not_executable_reason(run) or "", run.run_id) for run in not_here),
            ]
        ),
        repeat_command=repeat_commands([record["status"] for _, record in measured], arguments),
        run_command=cluster_commands(campaign.site.launcher, campaign.study.name, campaign.site.name)
        or run_command(arguments),
        collective_benchmarks=count_measurements(len(benchmarks.record_paths), benchmark_records),
        timings=count_measurements(len(timings.record_paths), timing_records),
        environments=[name for name, stamp in campaign.environments.items() if not os.path.exists(stamp)],
        datasets=[name for name, prepared in campaign.datasets.items() if not os.path.exists(prepared)],
        **read_sessions(campaign.results),
        is_snakemake_running=is_locked(Path(".snakemake") / "ringside.lock"),
        machine_locked_by=machine_lock.machine_locked_by()
        if campaign.site.placement != "distinct-nodes"
        else None,
        jobs=jobs,
        queue_note=queue_note,
        replication=read_target_progress(campaign),
    )


def split_started(
    campaign: Campaign,
    started: Mapping[str, Path],
    labels: Mapping[str, str],
    jobs: Sequence[Job] | None,
    now: float,
) -> tuple[list[UnderWay], list[tuple[str, str, str]]]:
    """Return the measurements under way, and the problems of the others that began: (BEGUN, reason, name).

    Args:
        campaign: The campaign.
        started: Name -> path of the final record, which does not exist.
        labels: Kind of a measurement that is not a run, by name.
        jobs: Jobs in the cluster's queue, None if it was not read.
        now: The current Unix time, s.
    """
    limit_s = campaign.site.longest_run_s + JOB_MARGIN_S
    under_way, problems = [], []
    for name, final_record_path in started.items():
        situation, reason = describe_missing(
            final_record_path, lambda attempt_folder: is_active(attempt_folder, jobs, limit_s, now)
        )
        attempt_folder = attempts.current_attempt(final_record_path.parent)
        if situation == Situation.UNDER_WAY and attempt_folder:
            label = f"{labels.get(name, '')}{name}"
            under_way.append(read_under_way(label, attempt_folder, campaign.by_id.get(name), now))
        elif situation not in (Situation.UNDER_WAY, Situation.NOT_RUN):
            problems.append((BEGUN, reason.removeprefix(NO_RECORD_PREFIX), name))
    return under_way, problems


def read_target_progress(campaign: Campaign) -> TargetProgress | None:
    """Return which cells have reached the interval target, None if the number of replicates is fixed."""
    replicates = campaign.study.replicates
    if not replicates.adaptive:
        return None
    last = campaign.decisions[-1] if campaign.decisions else None
    n_affordable = sum(campaign.not_executable_reason(run) is None for run in campaign.max_runs)
    return TargetProgress(
        rule_fields(replicates),
        n_affordable,
        campaign.can_grow,
        last.block if last else 0,
        dict(last.cells) if last else {},
    )


def count_measurements(planned: int, records: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return how many benchmarks or timings are planned, done, and ok."""
    return {
        "planned": planned,
        "done": len(records),
        "ok": sum(record["status"] == RunStatus.OK for record in records.values()),
    }


def group_problems(problems: Iterable[tuple[str, str, str]]) -> list[Problem]:
    """Group problems with the same status and reason except for numbers; failures first, then by frequency.

    `problems` are status, reason and name of each run.
    """
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for status, reason, name in problems:
        groups.setdefault((status, _NUMBERS.sub("#", reason)), []).append((" ".join(reason.split()), name))
    merged = [
        Problem(status, merge_reasons([reason for reason, _ in group]), len(group), group[0][1])
        for (status, _), group in groups.items()
    ]
    repeatable = [status for status in RunStatus if status.suggests_repeat]
    order: dict[str, int] = {
        status: position for position, status in enumerate((*repeatable, BEGUN, NOT_HERE))
    }
    return sorted(merged, key=lambda problem: (order.get(problem.status, len(order)), -problem.count))


def merge_reasons(reasons: Sequence[str]) -> str:
    """Return one reason for several that differ in numbers only, with ranges such as `6 to 8`."""
    columns = zip(*(_NUMBERS.findall(reason) for reason in reasons), strict=True)
    ends = iter([(min(column, key=float), max(column, key=float)) for column in columns])
    return _NUMBERS.sub(lambda _: " to ".join(dict.fromkeys(next(ends))), reasons[0])


def started_measurements(parent: Path, record_paths: Mapping[str, str]) -> dict[str, Path]:
    """Return the entries of `record_paths` (by name) that have a folder in `parent`."""
    try:
        folders = set(os.listdir(parent))
    except OSError:
        return {}
    return {name: Path(path) for name, path in record_paths.items() if name in folders}


def is_active(attempt_folder: Path, jobs: Sequence[Job] | None, limit_s: float, now: float) -> bool:
    """Return whether an attempt is under way: by its lock, else by the cluster's queue, else by its age."""
    if holds_lock(attempt_folder):
        return True
    supervisor = attempts.read_supervisor(attempt_folder)
    if jobs is not None and supervisor.get("job"):
        return supervisor["job"] in {job.number for job in jobs if job.is_running}
    if supervisor.get("host") == node_name():
        return False
    return now - start_time(attempt_folder) < limit_s


def start_time(attempt_folder: Path) -> float:
    """Return the Unix time at which an attempt began, s."""
    begun_at = attempts.read_supervisor(attempt_folder).get("started_at")
    return parse_date(begun_at) or attempt_folder.stat().st_mtime


def read_under_way(name: str, attempt_folder: Path, run: Run | None, now: float) -> UnderWay:
    """Read nodes, start and epoch of an attempt that is under way."""
    try:
        hosts = [str(host) for host in read_json(attempt_folder / "rank_input.json")["hosts"]]
    except (OSError, ValueError, TypeError, KeyError):
        hosts = []
    since = start_time(attempt_folder)
    if run is None:
        return UnderWay(name, hosts, format_utc(since), now - since, None, None)
    epochs = run.levels["epochs"]
    try:
        n_ended = (attempt_folder / "epochs.csv").read_bytes().count(b"\n") - 1  # without the header
        epoch = min(max(n_ended, 0) + 1, epochs)
    except OSError:
        epoch = 0
    return UnderWay(name, hosts, format_utc(since), now - since, epoch, epochs)


def read_sessions(results: Path) -> dict[str, Any]:
    """Return the number of sessions in which a run ended, and the last one (`runs.session.SessionFile`)."""
    files = sorted((results / "sessions").glob("*.json"))
    last = None
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, IndexError):
        session = read_json(files[-1])
        last = {
            "name": files[-1].stem,
            "started_at": format_utc(session["started"]),
            "ended": len(session["ended"]),
        }
    return {"sessions": len(files), "last_session": last}


def campaign_status_reader(campaign: Campaign) -> Callable[[], CampaignStatus]:
    """Return a function that reads the status of a campaign anew at each call."""
    read_disturbance = disturbance.share_meter(campaign.site)
    benchmarks, timings, cache = CollectiveBenchmarks(campaign), Timings(campaign), RecordCache()

    def read() -> CampaignStatus:
        state = read_campaign_status(campaign.with_current_decisions(), benchmarks, timings, cache)
        if not state.n_left:
            return state
        shares = read_disturbance(bool(state.under_way or state.machine_locked_by))
        return replace(state, disturbance=disturbance.describe(shares, campaign.site, campaign.runs_csv))

    return read
