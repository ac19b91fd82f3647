"""Follow a campaign in Snakemake's log: print a line for each ended run, and halt if runs cannot succeed.

The Snakemake that the user started prints these lines (`CampaignProgress`), wherever the runs are executed:
the result from the record, the number of runs left and the expected time. `FailureWatch` halts the campaign
if several runs in a row fail for the same reason, or if a node cannot access a path. Filters of the log keep
only the lines that help the user.
"""

import contextlib
import csv
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from common.errors import print_line
from common.notes import Note
from common.run_status import RunStatus
from common.shell import INACCESSIBLE, find_inaccessible_path
from common.text import format_duration
from launchers.log import read_end
from plan.scheduling import JOB_OPTIONS
from runs.attempts import attempt_path, attempts_without_record
from runs.epochs import mean_of_timed, read_epochs
from runs.reasons import is_disturbed
from runs.session import SessionFile
from runs.usable import usable_runs_note
from sites import slurm

N_FIRST_RUNS = 5  # if all of these are disturbed, a hint says what to do about the machine
MAX_SAME_FAILURES = 3  # failures in a row for the same reason that halt a campaign
HALTED_STATUS = 3  # exit status if a campaign was halted, or has no usable run
LAUNCHING_RULES = {"run", "collective_benchmark", "timing", "batch_search"}  # rules whose jobs start ranks
# Wildcard of these rules -> folder of their records in results/<study>.
FOLDERS = {"run_id": "runs", "benchmark": "network", "timing": "costs", "search": "largest"}
# The message of Snakemake's executor for Slurm if sbatch refuses a job.
_REFUSED_BY_SLURM = re.compile(r"SLURM sbatch failed\. The error message was '(.*?)'\.(?:\n|\Z)", re.DOTALL)
# A program that exits with status 2, EX_TEMPFAIL or INACCESSIBLE_STATUS has printed why in one line.
# Snakemake's message would only repeat its command.
_EXPLAINED_FAILURE = re.compile(
    r"RuleException:\nCalledProcessError in file .* returned non-zero exit status (?:2|75|79)\.\s*\Z",
    re.DOTALL,
)
# Files of the shared cache can come from another checkout, and its Snakemake has their metadata. They need
# none, since their path has a digest.
_CACHE_METADATA = re.compile(
    r"\d+ jobs have missing provenance/metadata .*\nRules with missing metadata:"
    r"(?: (?:environment|dataset|extra_p))+\Z"
)
# Snakemake's last lines, which would hide the outcome above them: the path of its log, and the elapsed time.
CLOSING_LINES = ("Complete log", "Elapsed time")
_INTERRUPTION_NOISE = ("RuleException:", *CLOSING_LINES)
_NOISE = (
    "Select jobs to execute",
    "Updating checkpoint dependencies",
    "DAG of jobs will be updated after completion",
    "Execute ",
    # Slurm's executor prints these before every job, also if the site needs neither memory nor account.
    "No job memory information",
    "No SLURM account given",
    "No account was given",
    "Unable to guess SLURM account",
)


class FailureWatch:
    """Halts a campaign if its runs cannot succeed: after equal failures, or if a node cannot access a path.

    Attributes:
        halted: Why the campaign was halted, or None.
    """

    def __init__(self, study: str, session: SessionFile, stop_scheduling: Callable[[], None] | None) -> None:
        """Watch a session.

        Args:
            study: Name of the study, for the command that repeats its runs.
            session: The file of the session, which then has the reason.
            stop_scheduling: Keeps Snakemake from starting further runs; None if nothing halts the campaign.
        """
        self._study, self._session, self._stop_scheduling = study, session, stop_scheduling
        self._same_failures: list[str] = []  # reasons of the latest failures in a row
        self.halted: Note | None = None

    def add_result(self, status: str, reason: str) -> None:
        """Add the result of a run; halt the campaign after MAX_SAME_FAILURES in a row for the same reason.

        Reasons that differ only in numbers are the same.
        """
        if status != RunStatus.FAILED:
            self._same_failures.clear()
            return
        self._same_failures.append(re.sub(r"\d+", "", reason))
        latest = self._same_failures[-MAX_SAME_FAILURES:]
        if len(latest) == MAX_SAME_FAILURES and len(set(latest)) == 1:
            text = (
                f"halted: the last {MAX_SAME_FAILURES} runs failed for the same reason ({reason}). Completed "
                f"runs are kept. Remove the cause, then: ./ringside repeat failed --study {self._study}. To "
                "continue anyway: --keep-going"
            )
            self._halt(Note("same-failure", text, runs=MAX_SAME_FAILURES, reason=reason))

    def halt_because_inaccessible(self, path: Note) -> bool:
        """Halt the campaign because a node cannot access a path.

        Returns:
            Whether the campaign is halted, so that the job's error needs no other message.
        """
        text = (
            f"halted: {path}; all nodes must share this path. Completed runs are kept. Correct it, then "
            "start again"
        )
        self._halt(Note(INACCESSIBLE, text, **path.facts))
        return self.halted is not None

    def _halt(self, reason: Note) -> None:
        if self._stop_scheduling and not self.halted:
            self.halted = reason
            self._session.halt(reason)
            self._stop_scheduling()


class CampaignProgress:
    """Follows the jobs of one session in Snakemake's log, and prints a line for each run that has ended.

    Attributes:
        failures: The watch that halts the campaign.
    """

    def __init__(
        self,
        results: Path,
        session: str,
        n_planned: int,
        n_done: int,
        left_s: Callable[[], float | None] = lambda: None,
        count_planned: Callable[[], tuple[int, bool]] | None = None,
        stop_scheduling: Callable[[], None] | None = None,
    ) -> None:
        """Begin a session.

        Args:
            results: results/<study>.
            session: Name of the session.
            n_planned: Number of planned runs.
            n_done: Number of them that have a record from an earlier session.
            left_s: Returns the expected time of the remaining runs in s, or None.
            count_planned: For a study with an interval target: returns the number of runs planned so far, and
                whether more can follow.
            stop_scheduling: See FailureWatch.
        """
        self._results = results
        self._session = SessionFile(results, session, n_planned, n_done)
        self.failures = FailureWatch(results.name, self._session, stop_scheduling)
        self._running: dict[int, dict[str, str]] = {}  # wildcards of the jobs that start ranks
        self._left_s = left_s
        self._count_planned = count_planned or (lambda: (n_planned, False))
        self._disturbed: list[bool] = []  # one entry for each ended run
        self._refusals: set[str] = set()  # messages of Slurm that were printed

    def follow_job(self, event: str, job: int, rule: str | None, wildcards: Mapping[str, str] | None) -> None:
        """Remember a job that starts (JOB_INFO); print the line of its run when it ends (JOB_FINISHED)."""
        if event == "job_info" and rule in LAUNCHING_RULES:
            self._running[job] = dict(wildcards or {})
        elif event == "job_finished" and job in self._running:
            ended = self._running.pop(job)
            # The aggregation reports broken files.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                self._print_end(ended)

    def halt_if_inaccessible(self, event: Mapping[str, Any]) -> bool:
        """Halt the campaign if a failed job (JOB_ERROR) ran on a node that cannot access a path.

        Returns:
            Whether that was the cause, so that the error needs no other message.
        """
        try:
            path = inaccessible_to_job(event) or self._inaccessible_to_ranks(event["jobid"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return path is not None and self.failures.halt_because_inaccessible(path)

    def print_refusal(self, event: Mapping[str, Any]) -> None:
        """Print why Slurm refused a job (JOB_ERROR), once for all jobs refused for the same reason."""
        refusal = _REFUSED_BY_SLURM.search(str(event.get("rule_msg")))
        if refusal and refusal[1] not in self._refusals:
            self._refusals.add(refusal[1])
            message = "; ".join(refusal[1].split("\n"))[:300]
            advice = "./ringside doctor names the key of the site to correct"
            print_line(f"ringside: {event['rule_name']}: Slurm refuses the job: {message}; {advice}")

    def _inaccessible_to_ranks(self, job: int) -> Note | None:
        """Return the path that the node of a rank could not access in the last attempt of a job, or None."""
        wildcards = self._running.get(job, {})
        for kind, folder in FOLDERS.items():
            if kind in wildcards:
                run_folder = self._results / folder / wildcards[kind] / wildcards["key"]
                unfinished = attempts_without_record(run_folder)
                return find_inaccessible_path(unfinished[-1]["reason"]) if unfinished else None
        return None

    def _print_end(self, wildcards: Mapping[str, str]) -> None:
        """Print the line of the run, collective benchmark, timing or batch search that a job has executed."""
        for wildcard, describe in _DESCRIBE.items():
            if name := wildcards.get(wildcard):
                print_line(describe(self._results / FOLDERS[wildcard] / name / wildcards["key"], name))
                return
        run_id = wildcards["run_id"]
        folder = self._results / "runs" / run_id / wildcards["key"]
        record = json.loads((folder / "record.json").read_text())
        print_line(self.end_run(run_id, record["status"], _result_text(record, folder)))
        for hint in self.count_disturbed(is_disturbed(record["reason"])):
            print_line(f"ringside: {hint}")
        self.failures.add_result(record["status"], str(record["reason"]))

    def count_disturbed(self, disturbed: bool) -> Iterator[Note]:
        """Count whether the last run was disturbed, and yield hints about it, each once per session."""
        self._disturbed.append(disturbed)
        repeat = f"./ringside repeat invalid --study {self._results.name}"
        if disturbed and sum(self._disturbed) == 1:
            text = (
                "a disturbed run is invalid and does not count; when this campaign has ended and the machine "
                f"is quiet, repeat such runs: {repeat}"
            )
            yield Note("first-disturbed-run", text)
        if len(self._disturbed) == N_FIRST_RUNS and all(self._disturbed):
            text = (
                f"the first {N_FIRST_RUNS} runs were all disturbed. Interrupt with Ctrl-C (completed runs "
                "are kept), end other programs, or raise max_other_cpu_share (other programs) or "
                f"max_steal_share (hypervisor) in the site's file; then {repeat}"
            )
            yield Note("all-disturbed", text, runs=N_FIRST_RUNS)

    def end_run(self, run_id: str, status: str, result: str) -> Note:
        """Count a run that has ended, and return its line."""
        self._session.add_run(run_id, status)
        ended = self._session.ended
        n_planned, may_grow = self._count_planned()
        n_done = min(n_planned, self._session.n_done_before + len(ended))
        left = n_planned - n_done
        n_not_ok = sum(entry["status"] != RunStatus.OK for entry in ended)
        width, left_s = len(str(n_planned)), self._left_s() if left else None
        time_left = "" if left_s is None else f", about {format_duration(left_s)}"
        tail = (
            f"{left} left{time_left}"
            if left
            else "more replicates are decided next"
            if may_grow
            else "all runs done"
        )
        text = (
            f"[{n_done:{width}d}/{n_planned}] {status:8s}{run_id:58s} {result} | {tail} | {n_not_ok} not ok"
        )
        facts = {"done": n_done, "planned": n_planned, "open": may_grow, "left_s": left_s, "not_ok": n_not_ok}
        return Note("run-ended", text, **facts)


def filter_log(progress: CampaignProgress | None, record: logging.LogRecord) -> bool:
    """Filter Snakemake's log: pass events to `progress`, and return whether a line helps the user."""
    event = getattr(record, "event", None)
    name = event.name.lower() if event else None
    if progress and name in ("job_info", "job_finished"):
        job = getattr(record, "jobid", None) or getattr(record, "job_id", None)
        progress.follow_job(
            name, job or 0, getattr(record, "rule_name", None), getattr(record, "wildcards", None)
        )
    fields = vars(record)
    if progress and name == "job_error" and progress.halt_if_inaccessible(fields):
        return False
    if progress and name == "job_error" and (number := fields["aux"].get("external_jobid")):
        print_line(f"ringside: {fields['rule_name']}: cluster job {number} failed: {failure_cause(fields)}")
    elif progress and name == "job_error":
        progress.print_refusal(fields)
    message = str(record.msg)
    is_noise = (
        message.startswith(_NOISE) or _EXPLAINED_FAILURE.match(message) or _CACHE_METADATA.match(message)
    )
    return name not in ("job_finished", "progress") and not is_noise


def print_planned_search(record: logging.LogRecord) -> bool:
    """Filter Snakemake's log of a dry run: print the name of each planned search for the largest batch."""
    event = getattr(record, "event", None)
    if event and event.name == "JOB_INFO" and vars(record)["rule_name"] == "batch_search":
        print_line(f"batch search {vars(record)['wildcards']['search']}")
    return True


def act_if_nothing_to_do(record: logging.LogRecord, act: Callable[[], None]) -> bool:
    """Filter Snakemake's log: call `act` if nothing is to do, since Snakemake calls no hook then."""
    if str(record.msg).startswith("Nothing to be done"):
        print_line(str(record.msg), to_stderr=True)
        act()
        return False
    return True


class Interruption:
    """A filter for Snakemake's log that reduces the output after Ctrl-C to one line: how to resume."""

    def __init__(self) -> None:
        self._is_interrupted = False

    def __call__(self, record: logging.LogRecord) -> bool:
        """Return whether a record is printed."""
        message = str(record.msg)
        if message.startswith("Terminating processes on user request"):
            self._is_interrupted = True
            return False
        if self._is_interrupted and message.startswith(
            "WorkflowError:\nAt least one job did not complete successfully"
        ):
            print_line(
                "ringside: interrupted. Completed runs are kept. Rerun the command to resume.", to_stderr=True
            )
            return False
        return not (self._is_interrupted and message.startswith(_INTERRUPTION_NOISE))


def count_usable(runs_csv: Path) -> Note:
    """Return the last line of a session: how many runs are usable, and why the others are not."""
    with open(runs_csv, newline="", encoding="utf-8") as table:
        note = usable_runs_note((row["status"], row["reason"]) for row in csv.DictReader(table))
    hint = "; see tables/missing.md" if note.facts["causes"] else ""
    return Note(note.code, f"{note}{hint}", **note.facts)


def inaccessible_to_job(event: Mapping[str, Any]) -> Note | None:
    """Return the path that the node of a job cannot access, from the job's log or from Slurm, or None."""
    number = event["aux"].get("external_jobid")
    if not number:
        return None
    # For launchers in JOB_OPTIONS, profiles/LAUNCHER/submit sends the output of jobs to .snakemake/LAUNCHER/.
    logs = [*map(Path, event["log"]), *(Path(".snakemake", name, f"{number}.txt") for name in JOB_OPTIONS)]
    if path := next(filter(None, (find_inaccessible_path(read_end(log)) for log in logs)), None):
        return path
    return None if any(log.exists() for log in logs) else slurm.inaccessible_folder_reason(number)


def failure_cause(event: Mapping[str, Any]) -> str:
    """Return why a cluster job failed: the last line of Ringside or of an error, or Snakemake's message."""
    lines = []
    for log in reversed(event["log"]):
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in Path(log).read_text(errors="replace").splitlines()]
            break
    ringside_lines = [line.removeprefix("ringside: ") for line in lines if line.startswith("ringside: ")]
    errors = [
        line
        for line in lines
        if "error" in line.lower() and not line.startswith(("Error in", "RuleException"))
    ]
    return (ringside_lines or errors or [str(event["rule_msg"] or "it left no log")])[-1][:300]


def _result_text(record: Mapping[str, Any], folder: Path) -> str:
    """Return why a run is not ok, or its mean epoch time."""
    if record["reason"]:
        return str(record["reason"])
    epoch_s = mean_of_timed(
        read_epochs(attempt_path(folder, record["attempt"]) / "epochs.csv"), "epoch_time_s"
    )
    return f"{epoch_s:.3f} s/epoch, run {record['wall_s']:.1f} s"


def _benchmark_line(folder: Path, name: str) -> str:
    benchmark = json.loads((folder / "collective_benchmark.json").read_text())
    n_sizes, wall_s = len(benchmark["sizes"]), benchmark["wall_s"]
    measured = f"{n_sizes} message sizes in {wall_s:.1f} s over {benchmark['transport']}"
    return f"collective benchmark {name}: {benchmark['status']}: {benchmark['reason'] or measured}"


def _timing_line(folder: Path, name: str) -> str:
    timing = json.loads((folder / "timing.json").read_text())
    count = f"{len(timing['parts'])} parts" if timing["parts"] else f"{len(timing['messages'])} message sizes"
    measured = f"{count} in {timing['wall_s']:.1f} s"
    return f"timing {name}: {timing['status']}: {timing['reason'] or measured}"


def _search_line(folder: Path, name: str) -> str:
    search = json.loads((folder / "batch_search.json").read_text())
    n_trials, wall_s = len(search["trials"]), search["wall_s"]
    result = f"batch size {search['batch_size']} after {n_trials} trials in {wall_s:.0f} s"
    return f"batch search {name}: {search['status']}: {search['reason'] or result}"


# Wildcard of a job that executes no run -> function that returns its line.
_DESCRIBE = {"benchmark": _benchmark_line, "timing": _timing_line, "search": _search_line}
