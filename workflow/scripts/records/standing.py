"""Where a campaign stands: what is done, under way, left, what went wrong, and how long the rest will take.

All of it is read from files, and from the cluster's queue where there is one; no lock is taken and nothing is written.
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

from common.files import held, node_name, read_json, utc
from common.notes import Note
from declared.site import JOB_MARGIN_S
from plan.campaign import Campaign
from plan.decisions import rule_of
from plan.design import Run
from plan.sweeps import Sweeps
from plan.timings import Timings
from records.time_left import Reader, left_s, seconds
from records.ways import REPEATABLE, named_for, repeat_commands, run_command, ways_to_run
from runs import attempts
from runs.submit import is_of
from sites import disturbance, slurm

PATIENCE_S = 5.0  # with the cluster's queue
NOT_READ = {  # by launcher: the scheduler whose queue is not read here, and the command that shows it
    "oar": ("OAR", "oarstat"),
    "pbs": ("PBS", "qstat"),
    "flux": ("Flux", "flux jobs"),
}
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class UnderWay:
    """A run, a sweep or a timing that somebody is at. `epoch` is the one that has begun, of `epochs`; 0 before the first, None of others."""

    name: str
    hosts: list[str]
    since: str
    seconds: float
    epoch: int | None
    epochs: int | None


@dataclass(frozen=True)
class Problem:
    """Runs that are not ok for the same reason: how many, the reason with the least and the greatest of its numbers, and the name of
    the first run."""

    status: str
    reason: str
    count: int
    first: str


@dataclass(frozen=True)
class Job:
    """A job in the cluster's queue: the block or the run that it makes, its state, its nodes or why it waits."""

    number: str
    what: str
    state: str
    since: str
    where: str

    @property
    def running(self) -> bool:
        """Whether it has its nodes."""
        return self.state == "RUNNING"


@dataclass(frozen=True)
class Precision:
    """How far cells are, where replicates are chosen by precision. `rule`: as decisions have it; `most`: runs that the campaign may have;
    `open`: whether some are still to be decided; `block`: after which it was decided the last time, 0 before; `cells`: what was decided then
    (plan.decisions)."""

    rule: Mapping[str, Any]
    most: int
    open: bool
    block: int
    cells: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Standing:
    """All that `./ringside status` tells; times in seconds, dates in UTC. `possible` are the runs that the site can make, of those that are known now.

    `left_s` is None while no run has ended. `jobs` is None where the site has no queue that is asked, or it did not answer;
    then `queue` says why. `disturbed` is a sentence about this machine where runs are left that it makes.
    """

    study: str
    site: str
    planned: int
    possible: int
    statuses: dict[str, int]
    under_way: list[UnderWay]
    left: int
    left_s: float | None
    problems: list[Problem]
    repeat: str
    run: str
    sweeps: dict[str, int]
    timings: dict[str, int]
    environments: list[str]
    datasets: list[str]
    sessions: int
    last_session: dict[str, Any] | None
    snakemake: bool
    machine: str | None
    jobs: list[Job] | None
    queue: str
    disturbed: str | None = None
    precision: Precision | None = None

    @property
    def done(self) -> int:
        """Runs with a record that is not broken."""
        return sum(count for status, count in self.statuses.items() if status != "broken")

    @property
    def begun(self) -> bool:
        """Whether anything was measured, or is just being."""
        stopped = any(problem.status != "not here" for problem in self.problems)
        return bool(self.done or self.under_way or self.sweeps["done"] or self.timings["done"] or stopped)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return not self.left and not self.under_way and not (self.precision and self.precision.open)


def standing(campaign: Campaign, sweeps: Sweeps, timings: Timings, reader: Reader) -> Standing:
    """Where `campaign` stands now."""
    now = time.time()
    records, swept = reader.read_all(campaign.records), reader.read_all(sweeps.outputs)
    timed = reader.read_all(timings.outputs)
    left = [campaign.by_id[run_id] for run_id in campaign.records if run_id not in records]
    opened = {
        **_begun(campaign.results / "runs", {run.run_id: campaign.records[run.run_id] for run in left}),
        **_begun(campaign.results / "network", {n: path for n, path in sweeps.outputs.items() if n not in swept}),
        **_begun(campaign.results / "costs", {n: path for n, path in timings.outputs.items() if n not in timed}),
    }
    every = {**campaign.records, **sweeps.outputs, **timings.outputs}
    kinds = {**dict.fromkeys(sweeps.outputs, "sweep "), **dict.fromkeys(timings.outputs, "timing ")}
    jobs, queue = _jobs(campaign, {Path(path).parent.name: name for name, path in every.items()})
    under_way, stopped = [], []
    for name, published in opened.items():
        folder = published.parent
        attempt = attempts.under_way(folder)
        if attempt and _alive(folder, attempt, jobs, campaign.site.longest_run_s + JOB_MARGIN_S, now):
            under_way.append(_told(f"{kinds.get(name, '')}{name}", attempt, campaign.by_id.get(name), now))
        elif (why := attempts.why_absent(published)) != attempts.NOT_RUN:
            stopped.append(("to run", why.removeprefix("absent: "), name))
    named = named_for(campaign.study.name, campaign.site.name)
    others = [(f"{kinds[name]}{name}", said) for name, said in (*swept.items(), *timed.items())]
    not_ok = [*records.items(), *others]
    not_here = [run for run in campaign.runs if run.run_id not in campaign.records]
    return Standing(
        study=campaign.study.name,
        site=campaign.site.name,
        planned=len(campaign.runs),
        possible=len(campaign.records),
        statuses=dict(Counter(said["status"] for said in records.values())),
        under_way=under_way,
        left=len(left),
        left_s=left_s(campaign, records, sweeps.outputs, swept, {each.name: each.seconds for each in under_way}),
        problems=grouped(
            [
                *((said["status"], said["reason"] or "", name) for name, said in not_ok if said["status"] != "ok"),
                *stopped,
                *(("not here", campaign.lacks(run) or "", run.run_id) for run in not_here),
            ]
        ),
        repeat=repeat_commands([said["status"] for _, said in not_ok], named),
        run=ways_to_run(campaign.site.launcher, campaign.study.name, campaign.site.name) or run_command(named),
        sweeps=_counted(len(sweeps.outputs), swept),
        timings=_counted(len(timings.outputs), timed),
        environments=[name for name, stamp in campaign.environments.items() if not os.path.exists(stamp)],
        datasets=[name for name, prepared in campaign.datasets.items() if not os.path.exists(prepared)],
        **_sessions(campaign.results),
        snakemake=held(Path(".snakemake") / "ringside.lock"),
        machine=attempts.machine_holder() if campaign.site.placement != "distinct-nodes" else None,
        jobs=jobs,
        queue=queue,
        precision=_precision(campaign),
    )


def _precision(campaign: Campaign) -> Precision | None:
    """None where the number of replicates is fixed."""
    rule = campaign.study.replicates
    if not rule.adaptive:
        return None
    last = campaign.decisions[-1:]
    most = sum(campaign.lacks(run) is None for run in campaign.most)
    return Precision(
        rule_of(rule), most, campaign.open, last[0].block if last else 0, dict(last[0].cells) if last else {}
    )


def _counted(planned: int, records: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """How many sweeps or timings there are to be, are done, and are ok."""
    return {
        "planned": planned,
        "done": len(records),
        "ok": sum(said["status"] == "ok" for said in records.values()),
    }


def grouped(problems: Iterable[tuple[str, str, str]]) -> list[Problem]:
    """Statuses, reasons and names, those alike but for numbers together: worst first, then the most."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for status, reason, name in problems:
        found.setdefault((status, _NUMBERS.sub("#", reason)), []).append((" ".join(reason.split()), name))
    made = [
        Problem(status, _of_all([reason for reason, _ in same]), len(same), same[0][1])
        for (status, _), same in found.items()
    ]
    rank = {status: place for place, status in enumerate((*REPEATABLE, "to run", "not here"))}
    return sorted(made, key=lambda problem: (rank.get(problem.status, len(rank)), -problem.count))


def _of_all(reasons: Sequence[str]) -> str:
    """One reason for many that are alike but for numbers: each that differs as `6 to 8`, its least and its greatest."""
    columns = zip(*(_NUMBERS.findall(reason) for reason in reasons), strict=True)
    ends = iter([(min(column, key=float), max(column, key=float)) for column in columns])
    return _NUMBERS.sub(lambda _: " to ".join(dict.fromkeys(next(ends))), reasons[0])


def _begun(parent: Path, records: Mapping[str, str]) -> dict[str, Path]:
    """Of runs or sweeps without a record, those with a folder in `parent`: name -> where the record will be."""
    try:
        there = set(os.listdir(parent))
    except OSError:
        return {}
    return {name: Path(path) for name, path in records.items() if name in there}


def _alive(folder: Path, attempt: Path, jobs: Sequence[Job] | None, limit_s: float, now: float) -> bool:
    """Whether somebody is still at an attempt: by its lock on this machine, by the cluster's queue, or since it is young."""
    if held(folder / attempts.LOCKED):
        return True
    holder = attempts.holder(attempt)
    if jobs is not None and holder.get("job"):
        return holder["job"] in {job.number for job in jobs if job.running}
    if holder.get("host") == node_name():
        return False
    return now - _since(attempt) < limit_s


def _since(attempt: Path) -> float:
    """When an attempt began, in seconds since the epoch."""
    return seconds(attempts.holder(attempt).get("started_at")) or attempt.stat().st_mtime


def _told(name: str, attempt: Path, run: Run | None, now: float) -> UnderWay:
    try:
        hosts = [str(host) for host in read_json(attempt / "spec.json")["hosts"]]
    except (OSError, ValueError, TypeError, KeyError):
        hosts = []
    since = _since(attempt)
    if run is None:
        return UnderWay(name, hosts, utc(since), now - since, None, None)
    epochs = run.levels["epochs"]
    try:
        ended = (attempt / "epochs.csv").read_bytes().count(b"\n") - 1  # its header
        begun = min(max(ended, 0) + 1, epochs)
    except OSError:
        begun = 0
    return UnderWay(name, hosts, utc(since), now - since, begun, epochs)


def _jobs(campaign: Campaign, keys: Mapping[str, str]) -> tuple[list[Job] | None, str]:
    """The campaign's jobs in Slurm's queue; None, and why, where it does not answer. `keys`: key -> run or sweep."""
    if unread := NOT_READ.get(campaign.site.launcher):
        scheduler, see = unread
        return None, Note("queue-not-read", f"{scheduler}'s queue is not read; see {see}", scheduler=scheduler, see=see)
    if campaign.site.launcher != "slurm":
        return None, ""
    wanted = ("squeue", "--me", "--noheader", "--format=%i|%j|%T|%S|%R|%k")
    try:
        rows = [line.split("|", 5) for line in slurm.ask(*wanted, patience_s=PATIENCE_S).splitlines()]
    except slurm.Unanswered as unanswered:
        answer = str(unanswered)
        return None, Note("queue-unanswered", f"the queue does not answer: {answer}", answer=answer)
    made = []
    for number, name, state, since, where, comment in (row for row in rows if len(row) == 6):
        run = keys.get(comment.rpartition("_")[2])  # Snakemake's own comment: rule_run_wildcards_<run_id>_<key>
        if is_of(campaign, name, comment) or run:
            what = run or comment.removeprefix(f"{campaign.study.name} ")
            made.append(Job(number, what, state, since, where.strip("()")))
    return made, ""


def _sessions(results: Path) -> dict[str, Any]:
    """How many sessions the campaign had in which a run ended, and what the last one has done (runs/progress.py)."""
    files = sorted((results / "sessions").glob("*.json"))
    last = None
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, IndexError):
        said = read_json(files[-1])
        last = {"name": files[-1].stem, "started_at": utc(said["started"]), "ended": len(said["ended"])}
    return {"sessions": len(files), "last_session": last}


def observer(campaign: Campaign) -> Callable[[], Standing]:
    """`standing` of a campaign, to be asked again and again."""
    disturbed = disturbance.looks(campaign.site)
    sweeps, timings, reader = Sweeps(campaign), Timings(campaign), Reader()

    def look() -> Standing:
        found = standing(campaign.now(), sweeps, timings, reader)
        if not found.left:
            return found
        shares = disturbed(bool(found.under_way or found.machine))
        return replace(found, disturbed=disturbance.told(shares, campaign.site, campaign.runs_csv))

    return look
