"""Progress that a person can follow: one line as each run ends, with what is done, what is left, and until when.

The lines are printed by the Snakemake that a person started, from the records, wherever the runs ran.
"""

import contextlib
import csv
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.errors import InputError, say
from common.files import write_json
from common.notes import Note
from common.shell import UNSEEN, unseen_path
from common.text import duration
from launchers.launch import read_end
from runs.attempts import DISTURBED, numbered, unfinished
from runs.epochs import mean_of_timed, read_epochs
from sites import slurm

FIRST = 5  # runs, which tell whether a machine is fit for a campaign
MAX_SAME_FAILURES = 3  # runs in a row, after which a campaign stops
STOPPED_STATUS = 3  # exit status where a campaign stopped, or has no usable run
SESSION_VARIABLE = "RINGSIDE_SESSION"


def new_session() -> str:
    """A name for one invocation: its start (UTC) and its process."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}"


def current_session() -> str:
    """The session that this process belongs to."""
    given = os.environ.get(SESSION_VARIABLE, "")
    return given if re.fullmatch(r"[A-Za-z0-9-]+", given) else new_session()


def _session_file(results: Path, session: str) -> Path:
    return results / "sessions" / f"{session}.json"


def refuse_stopped(results: Path) -> None:
    """InputError where this session has stopped its campaign: a run that was submitted before, or is started just now, does not train."""
    try:
        stopped = json.loads(_session_file(results, current_session()).read_text(encoding="utf-8")).get("stopped")
    except (OSError, ValueError, AttributeError):
        return
    if stopped:
        raise InputError("campaign-stopped", "does not begin, since its campaign has stopped", file=results)


class Session:
    """What one invocation has done, kept in results/<study>/sessions/<session>.json."""

    def __init__(
        self,
        results: Path,
        name: str,
        planned: int,
        done: int,
        left_s: Callable[[], float | None] = lambda: None,
        known: Callable[[], tuple[int, bool]] | None = None,
        stop: Callable[[], None] | None = None,
    ) -> None:
        """`planned` runs in all, `done` of them before this session; `left_s`: how long the others will take, where it is known.
        `known`: where it is decided on the way, how many are planned by now, and whether there may be more. `stop` lets no further run begin: it is
        called when the last MAX_SAME_FAILURES runs failed for the same reason; None where the campaign is to go on in spite of that."""
        self._file = _session_file(results, name)
        self._state: dict[str, Any] = {"started": time.time(), "planned": planned, "done_before": done, "ended": []}
        self._running: dict[int, dict[str, str]] = {}
        self._left_s = left_s
        self._known = known or (lambda: (planned, False))
        self._results = results
        self._disturbed: list[bool] = []  # of the runs that have ended
        self._stop = stop
        self._failures: list[str] = []  # reasons of the runs that ended last and failed
        self.stopped: Note | None = None

    def watch(self, event: str, job: int, rule: str | None, wildcards: Mapping[str, str] | None) -> None:
        """Snakemake started (JOB_INFO) or finished (JOB_FINISHED) a job; for a run that has ended a line is printed."""
        if event == "job_info" and rule in ("run", "sweep", "timing"):
            self._running[job] = dict(wildcards or {})
        elif event == "job_finished" and job in self._running:
            run = self._running.pop(job)
            with contextlib.suppress(
                OSError, ValueError, KeyError, TypeError
            ):  # a broken file is the aggregation's to say
                self._tell(run)

    def watch_error(self, told: Mapping[str, Any]) -> bool:
        """Stop the campaign when a job that failed (JOB_ERROR) was on a node that does not see a path; return whether it was."""
        try:
            unseen = unseen_by_job(told) or self._unseen_by_ranks(told["jobid"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if unseen and not self._stop:
            return False
        if unseen and not self.stopped:
            text = f"stopped: {unseen}; all nodes have to see the same there. Finished runs are kept: correct it, then start again"
            self._stop_campaign(Note(UNSEEN, text, **unseen.facts))
        return unseen is not None

    def _unseen_by_ranks(self, job: int) -> Note | None:
        """Return what the last attempt of a job says that a rank's node does not see."""
        wildcards = self._running.get(job, {})
        for kind, folder in (("run_id", "runs"), ("sweep", "network"), ("timing", "costs")):
            if kind in wildcards:
                left = unfinished(self._results / folder / wildcards[kind] / wildcards["key"])
                return unseen_path(left[-1]["reason"]) if left else None
        return None

    def _tell(self, run: dict[str, str]) -> None:
        """Print the line of a run, a sweep or a timing that has ended."""
        if "sweep" in run:
            say(_swept(self._results / "network" / run["sweep"] / run["key"], run["sweep"]))
            return
        if "timing" in run:
            say(_timed(self._results / "costs" / run["timing"] / run["key"], run["timing"]))
            return
        folder = self._results / "runs" / run["run_id"] / run["key"]
        record = json.loads((folder / "record.json").read_text())
        self.add(run["run_id"], record["status"])
        say(self.line(run["run_id"], record["status"], _said(record, folder)))
        for hint in self.hints(str(record["reason"] or "").startswith(DISTURBED)):
            say(f"ringside: {hint}")
        self.count_failure(record["status"], str(record["reason"]))

    def count_failure(self, status: str, reason: str) -> None:
        """Stop the campaign when this run and those right before it failed for the same reason, apart from its numbers."""
        if status != "failed":
            self._failures.clear()
            return
        self._failures.append(re.sub(r"\d+", "", reason))
        last = self._failures[-MAX_SAME_FAILURES:]
        if self._stop and not self.stopped and len(last) == MAX_SAME_FAILURES and len(set(last)) == 1:
            text = (
                f"stopped: the last {MAX_SAME_FAILURES} runs failed for the same reason ({reason}); finished runs are kept. "
                f"Remove the cause, then: ./ringside repeat failed --study {self._results.name}. To go on in spite of it: --keep-going"
            )
            self._stop_campaign(Note("same-failure", text, runs=MAX_SAME_FAILURES, reason=reason))

    def _stop_campaign(self, reason: Note) -> None:
        """Let no further run begin, and have those that were submitted before know it, as far as the disk takes it."""
        self.stopped = reason
        self._state["stopped"] = str(reason)
        with contextlib.suppress(OSError):
            write_json(self._file, self._state)
        if self._stop:
            self._stop()

    def add(self, run_id: str, status: str) -> None:
        """A run has ended. A full disk loses the note in the session's file, not what follows from it."""
        self._state["ended"].append({"run_id": run_id, "status": status, "at": time.time()})
        with contextlib.suppress(OSError):
            write_json(self._file, self._state)

    def hints(self, disturbed: bool) -> Iterator[Note]:
        """What somebody should know at once after a run that was `disturbed` or not, each hint once."""
        self._disturbed.append(disturbed)
        here = f"--study {self._results.name}"
        if disturbed and sum(self._disturbed) == 1:
            text = f"a disturbed run is invalid and does not count; when this campaign has ended and the machine is quiet, repeat such runs: ./ringside repeat invalid {here}"
            yield Note("first-disturbed-run", text)
        if len(self._disturbed) == FIRST and all(self._disturbed):
            text = (
                f"the first {FIRST} runs were all disturbed. Ctrl-C interrupts, and nothing is lost: end other programs, or raise "
                f"max_foreign_cpu_share (other programs) or max_steal_share (a hypervisor) in the site's file; then ./ringside repeat invalid {here}"
            )
            yield Note("all-disturbed", text, runs=FIRST)

    def line(self, run_id: str, status: str, what: str) -> Note:
        """The line to print after `add`."""
        ended = self._state["ended"]
        planned, more = self._known()
        done = min(planned, self._state["done_before"] + len(ended))
        left = planned - done
        failed = sum(entry["status"] != "ok" for entry in ended)
        width, left_s = len(str(planned)), self._left_s() if left else None
        about = "" if left_s is None else f", about {duration(left_s)}"
        tail = f"{left} left{about}" if left else "whether cells get more is decided next" if more else "all runs done"
        text = f"[{done:{width}d}/{planned}] {status:8s}{run_id:58s} {what} | {tail} | {failed} not ok"
        facts = {"done": done, "planned": planned, "open": more, "left_s": left_s, "not_ok": failed}
        return Note("run-ended", text, **facts)


def quiet(session: Session | None, record: logging.LogRecord) -> bool:
    """A filter for Snakemake's log: tells `session` what happens, and keeps what is worth a person's while."""
    event = getattr(record, "event", None)
    name = event.name.lower() if event else None
    if session and name in ("job_info", "job_finished"):
        job = getattr(record, "jobid", None) or getattr(record, "job_id", None)
        session.watch(name, job or 0, getattr(record, "rule_name", None), getattr(record, "wildcards", None))
    told = vars(record)
    if session and name == "job_error" and session.watch_error(told):
        return False
    if session and name == "job_error" and (number := told["aux"].get("external_jobid")):
        say(f"ringside: {told['rule_name']}: job {number} of the cluster failed: {last_word(told)}")
    said = str(record.msg)
    noise = said.startswith(_NOISE) or _TOLD.match(said) or _OF_THE_CACHE.match(said)
    return name not in ("job_finished", "progress") and not noise


def after_nothing(record: logging.LogRecord, act: Callable[[], None]) -> bool:
    """A filter for Snakemake's log that acts where Snakemake ends at once, since nothing is to be done: it calls no hook then."""
    if str(record.msg).startswith("Nothing to be done"):
        say(str(record.msg), to_stderr=True)
        act()
        return False
    return True


class Held:
    """A filter for Snakemake's log that holds its table of jobs back until `release`: what keeps them from being started is said first."""

    def __init__(self) -> None:
        self._record: logging.LogRecord | None = None
        self._released = False

    def __call__(self, record: logging.LogRecord) -> bool:
        """Whether a record is passed on now."""
        event = getattr(record, "event", None)
        if self._released or event is None or event.name != "RUN_INFO":
            return True
        self._record = record
        return False

    def release(self, logger: logging.Logger) -> None:
        """Pass on to `logger` what was held back, and all that follows."""
        self._released = True
        if self._record:
            logger.handle(self._record)


class Interruption:
    """A filter for Snakemake's log that leaves one line of a Ctrl-C, the last one: how to go on."""

    def __init__(self) -> None:
        self._seen = False

    def __call__(self, record: logging.LogRecord) -> bool:
        """Whether a record is worth a person's while."""
        said = str(record.msg)
        if said.startswith("Terminating processes on user request"):
            self._seen = True
            return False
        if self._seen and said.startswith("WorkflowError:\nAt least one job did not complete successfully"):
            say(
                "ringside: interrupted; nothing that was done is lost: say the same again, and it goes on",
                to_stderr=True,
            )
            return False
        return not (self._seen and said.startswith(_OF_AN_INTERRUPTION))


def count_usable(runs_csv: Path) -> Note:
    """Return how many of a study's runs are usable, as the last line of a call says it. Facts: usable, runs."""
    with open(runs_csv, newline="", encoding="utf-8") as table:
        statuses = [row["status"] for row in csv.DictReader(table)]
    usable = statuses.count("ok")
    hint = "" if usable == len(statuses) else "; tables/missing.md has the reasons of the others"
    return Note("usable-runs", f"{usable} of {len(statuses)} runs are usable{hint}", usable=usable, runs=len(statuses))


def unseen_by_job(told: Mapping[str, Any]) -> Note | None:
    """Return what the node of a job of the cluster's does not see, by its log, or by Slurm where even that could not be written."""
    number = told["aux"].get("external_jobid")
    if not number:
        return None
    logs = [*map(Path, told["log"]), *(Path(".snakemake", name, f"{number}.txt") for name in ("oar", "pbs", "flux"))]
    if found := next(filter(None, (unseen_path(read_end(log)) for log in logs)), None):
        return found
    return None if any(log.exists() for log in logs) else slurm.unseen_folder(number)


def last_word(told: Mapping[str, Any]) -> str:
    """Why a job on the cluster failed: the last line of its log that is ours, or that names an error; else the scheduler's word."""
    lines = []
    for log in reversed(told["log"]):
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in Path(log).read_text(errors="replace").splitlines()]
            break
    ours = [line.removeprefix("ringside: ") for line in lines if line.startswith("ringside: ")]
    errors = [line for line in lines if "error" in line.lower() and not line.startswith(("Error in", "RuleException"))]
    return (ours or errors or [str(told["rule_msg"] or "it left no log")])[-1][:300]


# A program that ends with status 2, EX_TEMPFAIL or UNSEEN_STATUS has said why in one line: Snakemake would repeat its whole command.
_TOLD = re.compile(
    r"RuleException:\nCalledProcessError in file .* returned non-zero exit status (?:2|75|79)\.\s*\Z", re.DOTALL
)
# What lies in the cache may have been made from another checkout, whose Snakemake alone knows how; its path has its digest.
_OF_THE_CACHE = re.compile(
    r"\d+ jobs have missing provenance/metadata .*\nRules with missing metadata:(?: (?:environment|dataset|extra_p))+\Z"
)
_OF_AN_INTERRUPTION = ("RuleException:", "Complete log", "Elapsed time")
_NOISE = (
    "Select jobs to execute",
    "Updating checkpoint dependencies",
    "DAG of jobs will be updated after completion",
    "Execute ",
    # Slurm's executor, before every job of a site that needs neither:
    "No job memory information",
    "No SLURM account given",
    "No account was given",
    "Unable to guess SLURM account",
)


def _said(record: Mapping[str, Any], folder: Path) -> str:
    if record["reason"]:
        return str(record["reason"])
    epoch_s = mean_of_timed(read_epochs(numbered(folder, record["attempt"]) / "epochs.csv"), "epoch_time_s")
    return f"{epoch_s:.3f} s/epoch, run {record['wall_s']:.1f} s"


def _swept(folder: Path, name: str) -> str:
    sweep = json.loads((folder / "sweep.json").read_text())
    said = (
        sweep["reason"] or f"{len(sweep['sizes'])} message sizes in {sweep['wall_s']:.1f} s over {sweep['transport']}"
    )
    return f"sweep {name}: {sweep['status']}: {said}"


def _timed(folder: Path, name: str) -> str:
    timing = json.loads((folder / "timing.json").read_text())
    what = f"{len(timing['parts'])} parts" if timing["parts"] else f"{len(timing['messages'])} message sizes"
    said = timing["reason"] or f"{what} in {timing['wall_s']:.1f} s"
    return f"timing {name}: {timing['status']}: {said}"
