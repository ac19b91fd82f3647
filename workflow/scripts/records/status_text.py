"""Show where a campaign stands, in a terminal: `./ringside status`."""

import json
import math
import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from common.run_status import RECORD_STATUSES, RunStatus
from common.text import format_duration, number_of
from declared.configuration import load_config
from declared.study import load_study
from plan.binding import raise_if_other_site
from plan.campaign import imported_note, load_campaign, load_merged_config
from plan.decisions import BY_CHANCE, NO, summarize_target
from records.campaign_status import CampaignStatus, Problem, TargetProgress, UnderWay, campaign_status_reader
from records.job_queue import Job

WIDTH = 80
INDENT = 11
BAR_WIDTH = 40
MAX_LISTED = 6  # shown lines of a kind; the others are counted
MAX_HOSTS = 4  # named nodes of a run under way; the others are counted
MAX_REASON_LENGTH = 150
REFRESH_S = 10.0
DATE_AFTER_S = 72_000  # ends that are farther away are shown with a date
GREEN, YELLOW, RED, RESET = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
CLEAR = "\x1b[H\x1b[2J"
# Names of these fields in --json, kept for programs that read them.
JSON_KEYS = {
    "max_runs": "most",
    "task": "what",
    "nodes": "where",
    "n_planned": "planned",
    "n_executable": "possible",
    "n_left": "left",
    "repeat_command": "repeat",
    "run_command": "run",
    "is_snakemake_running": "snakemake",
    "machine_locked_by": "machine",
    "queue_note": "queue",
    "disturbance": "disturbed",
    "replication": "precision",
}
COLOURS: dict[str, str] = {
    "done": GREEN,
    "running": YELLOW,
    RunStatus.OOM: YELLOW,
    **{status: RED for status in RunStatus if status.suggests_repeat},
    "disturbed": YELLOW,
}


def render(state: CampaignStatus, colour: bool = False) -> str:
    """Return lines of at most WIDTH characters; with `colour`, their names are coloured."""
    lines = [
        *wrap_text(f"{state.study} at {state.site}: {headline(state)}"),
        *([progress_bar(state)] if state.has_begun else []),
    ]
    for name, content in status_lines(state):
        wrapped = wrap_text(f"{name:{INDENT - 1}s} {content}", " " * INDENT)
        if colour and name in COLOURS:
            wrapped[0] = wrapped[0].replace(name, f"{COLOURS[name]}{name}{RESET}", 1)
        lines += wrapped
    return "\n".join(lines)


def wrap_text(text: str, indent: str = "") -> list[str]:
    """Return lines of at most WIDTH characters; a number stays together with its %."""
    lines = textwrap.wrap(
        text.replace(" %", "\N{NO-BREAK SPACE}%"), WIDTH, subsequent_indent=indent, break_on_hyphens=False
    )
    return [line.replace("\N{NO-BREAK SPACE}%", " %") for line in lines]


def headline(state: CampaignStatus) -> str:
    """Return the first line: runs done and left, and when the campaign is expected to end."""
    if not state.n_executable:
        return f"{number_of(state.n_planned, 'run')}, none of which can run here"
    if not state.has_begun:
        return f"{number_of(state.n_planned, 'run')}, not started; start with {state.run_command}"
    n_ok = state.statuses.get(RunStatus.OK, 0)
    usable = f", {n_ok:,} usable" if n_ok < state.done else ""
    done = f"{state.done:,} of {number_of(state.n_planned, 'run')} done{usable}"
    if state.replication and state.replication.open:
        done += f", {state.replication.max_runs:,} at most"
        if not state.n_left:
            return f"{done}; the next {state.run_command} decides which cells get more"
    if not state.n_left:
        return f"{done}; nothing is left to run"
    if state.left_s is None:
        return f"{done}; the time left is unknown until a run has ended"
    left = f"{state.n_left:,} left, about {format_duration(state.left_s)}"
    return f"{done}; {left} ({format_end(state.left_s)})"


def format_end(seconds: float) -> str:
    """Return the local time in `seconds` from now, with its date if that is far away."""
    end = datetime.fromtimestamp(time.time() + seconds)
    return f"until {end:%H:%M}" if seconds < DATE_AFTER_S else f"until {end:%Y-%m-%d %H:%M}"


def progress_bar(state: CampaignStatus) -> str:
    """Return a bar of the share of runs that are done."""
    share = state.done / state.n_executable if state.n_executable else 1.0
    return f"[{'#' * int(BAR_WIDTH * share):-<{BAR_WIDTH}}] {100 * share:3.0f} %"


def status_lines(state: CampaignStatus) -> Iterator[tuple[str, str]]:
    """Yield name and content of each line."""
    if state.statuses:
        counts = [
            f"{state.statuses[status]:,} {status}" for status in RECORD_STATUSES if status in state.statuses
        ]
        yield "done", ", ".join(counts)
    if state.replication:
        yield from target_lines(state.replication)
    yield from first_lines("running", list(map(describe_running, state.under_way)))
    for name, counted, content in (
        ("benchmarks", state.collective_benchmarks, "of collectives"),
        ("timings", state.timings, "of parts and messages"),
    ):
        if counted["planned"]:
            n_not_ok = counted["done"] - counted["ok"]
            yield (
                name,
                f"{counted['done']} of {counted['planned']} {content} done"
                + (f", {n_not_ok} not ok" if n_not_ok else ""),
            )
    yield from problem_lines(state.problems)
    if state.repeat_command:
        yield "to repeat", state.repeat_command
    if state.environments:
        yield "to build", f"{', '.join(state.environments)} (environments)"
    if state.datasets:
        yield "to prepare", f"{', '.join(state.datasets)} (data sets)"
    yield from activity_lines(state)


def first_lines(name: str, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the first MAX_LISTED lines, with the name on the first one, and the number of the others."""
    n_more = len(lines) - MAX_LISTED
    listed = [*lines[:MAX_LISTED], *([f"and {n_more} more"] if n_more > 0 else [])]
    yield from zip([name, *[""] * MAX_LISTED], listed, strict=False)


def target_lines(progress: TargetProgress) -> Iterator[tuple[str, str]]:
    """Yield how many cells meet the interval target, then the other cells, widest interval first."""
    if not progress.block:
        yield "target", f"{100 * progress.rule['until']:g} % intervals; nothing is decided yet"
        return
    limit = ", the limit at_most" if progress.block == progress.rule["at_most"] else ""
    reached = summarize_target(progress.cells, progress.rule)
    yield "target", f"{reached} after block {progress.block}{limit}"
    listed = {
        name: cell
        for name, cell in progress.cells.items()
        if cell["refine"] or cell["reached"] in (BY_CHANCE, NO)
    }
    widest = sorted(listed.items(), key=lambda item: -(item[1]["half_width"] or math.inf))
    yield from first_lines("", [describe_cell(name, cell) for name, cell in widest])


def describe_cell(name: str, cell: Mapping[str, Any]) -> str:
    """Describe a cell that does not meet the interval target: its runs, and half its interval."""
    width = cell["half_width"]
    interval = "no interval" if width is None else f"within {100 * width:.3g} %"
    chance = ", perhaps by chance" if cell["reached"] == BY_CHANCE else ""
    return f"{name}: n = {cell['n']}, {interval}{chance}{', gets another run' if cell['refine'] else ''}"


def describe_running(item: UnderWay) -> str:
    """Return name, nodes, epoch and start of a measurement under way."""
    epoch = f", epoch {item.epoch} of {item.epochs}" if item.epochs else ""
    hosts = list(dict.fromkeys(item.hosts))
    n_others = f" and {len(hosts) - MAX_HOSTS} more" if len(hosts) > MAX_HOSTS else ""
    nodes = f" on {', '.join(hosts[:MAX_HOSTS])}{n_others}" if hosts else ""
    since = f"{datetime.fromisoformat(item.since).astimezone():%H:%M:%S}"
    return f"{item.name}{nodes}{epoch}, since {since} ({format_duration(max(0.0, item.seconds))})"


def problem_lines(problems: Sequence[Problem]) -> Iterator[tuple[str, str]]:
    """Yield the most frequent reasons of each status."""
    for status in dict.fromkeys(problem.status for problem in problems):
        lines = []
        for problem in (problem for problem in problems if problem.status == status):
            reason = textwrap.shorten(
                problem.reason or "no reason given", MAX_REASON_LENGTH, placeholder=" ..."
            )
            lines.append(f"{problem.count:,} x {reason}{f' ({problem.first})' * (problem.count == 1)}")
        yield from first_lines(status, lines)


def activity_lines(state: CampaignStatus) -> Iterator[tuple[str, str]]:
    """Yield what is active: sessions, Snakemake, the process that locks this machine, its load, the queue."""
    if session := state.last_session:
        start = datetime.fromisoformat(session["started_at"]).astimezone()
        sessions = f"{number_of(state.sessions, 'session')}, the last since {start:%Y-%m-%d %H:%M}"
        yield "sessions", f"{sessions}: {number_of(session['ended'], 'run')} ended"
    if state.is_snakemake_running:
        yield "snakemake", "is running in this checkout"
    elif state.n_left and state.has_begun and not state.jobs:
        yield "snakemake", f"is not running in this checkout; to continue: {state.run_command}"
    if state.machine_locked_by and not state.under_way:
        yield "machine", f"held by {state.machine_locked_by}"
    if state.disturbance:
        yield "disturbed", state.disturbance.removeprefix("this machine is disturbed: ")
    if state.queue_note:
        yield "jobs", state.queue_note
    elif state.jobs is not None:
        yield from queue_lines(state.jobs)


def queue_lines(jobs: Sequence[Job]) -> Iterator[tuple[str, str]]:
    """Yield the number of waiting jobs by state and reason, then the running jobs."""
    lines = [
        f"{job.number} ({job.task}) runs on {job.nodes} since {job.since[11:16]}"
        for job in jobs
        if job.is_running
    ]
    waiting = Counter((job.state.lower(), job.nodes) for job in jobs if not job.is_running).most_common()
    counts = [f"{count:,} {state}, {reason}" for (state, reason), count in waiting]
    yield from first_lines("jobs", [*counts, *lines] or ["none in the queue"])


def to_json(state: CampaignStatus) -> str:
    """Return a campaign's status as JSON, under the keys that programs know (JSON_KEYS)."""
    content = asdict(
        state, dict_factory=lambda fields: {JSON_KEYS.get(key, key): value for key, value in fields}
    )
    return json.dumps(
        {**content, "done": state.done, "begun": state.has_begun, "ended": state.is_complete}, indent=2
    )


def watch(
    read: Callable[[], CampaignStatus], show: Callable[[CampaignStatus], str], pause_s: float = REFRESH_S
) -> None:
    """Show a campaign's status every `pause_s` seconds until the campaign has ended."""
    is_terminal = sys.stdout.isatty()
    while True:
        state = read()
        print(f"{CLEAR if is_terminal else ''}{show(state)}", flush=True)
        if state.is_complete:
            return
        time.sleep(pause_s)
        if not is_terminal:
            print(flush=True)


def campaign_reader(study: str = "", site: str = "") -> Callable[[], CampaignStatus]:
    """Return a function that reads where a campaign stands; default: the configured one.

    Raises:
        InputError: If the results belong to another site than `site`.
    """
    config = load_merged_config(study, site)
    if config.get("study"):
        raise_if_other_site(Path("results") / str(config["study"]), site)
    # The first run binds results to their site. Until then, a folder of submissions shows that it is a Slurm
    # site.
    if (Path("results") / str(config.get("study")) / "logs" / "submit").is_dir():
        config = load_merged_config(study, site, ["slurm.yaml"])
    return campaign_status_reader(load_campaign({**config, "records": "available"}))


def show_status(study: str = "", site: str = "", repeatedly: bool = False, as_json: bool = False) -> None:
    """Print where a campaign stands: runs done, running, failed and left, expected end, and active processes.

    Args:
        study: A study; default: the configured one.
        site: A site; default: the configured one.
        repeatedly: Repeat it every REFRESH_S seconds until the campaign has ended.
        as_json: Print JSON, for programs.
    """
    if note := imported_note(load_study(load_config(load_merged_config(study, site)).study)):
        print(json.dumps(note.facts, indent=2) if as_json else note)
        return
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    show = to_json if as_json else lambda state: render(state, colour)
    read = campaign_reader(study, site)
    try:
        if repeatedly:
            watch(read, show)
        else:
            print(show(read()))
    except KeyboardInterrupt:
        print()
