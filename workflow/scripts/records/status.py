"""Where a campaign stands, in a terminal: `ringside status`."""

import json
import math
import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from common.text import duration, number_of
from plan.campaign import configured, load_campaign
from plan.decisions import BY_CHANCE, NO, in_words
from plan.recorded import STATUSES
from records.standing import Job, Precision, Problem, Standing, UnderWay, observer

WIDTH = 80
INDENT = 11
BAR = 40
MOST = 6  # of a kind, before they are counted
REASON = 150  # characters
PAUSE_S = 10.0
DAY_S = 72_000  # farther away than that, the date is told beside the time
GREEN, YELLOW, RED, PLAIN = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
CLEAR = "\x1b[H\x1b[2J"
COLOURS = {
    "done": GREEN,
    "running": YELLOW,
    "failed": RED,
    "timeout": RED,
    "invalid": RED,
    "broken": RED,
    "disturbed": YELLOW,
}


def text(found: Standing, colour: bool = False) -> str:
    """The standing in lines of at most WIDTH characters; with `colour` the lines' names have some."""
    made = [*_wrapped(f"{found.study} at {found.site}: {_head(found)}"), *([_bar(found)] if found.begun else [])]
    for name, said in _rows(found):
        lines = _wrapped(f"{name:{INDENT - 1}s} {said}", " " * INDENT)
        if colour and name in COLOURS:
            lines[0] = lines[0].replace(name, f"{COLOURS[name]}{name}{PLAIN}", 1)
        made += lines
    return "\n".join(made)


def _wrapped(said: str, indent: str = "") -> list[str]:
    """In lines of at most WIDTH characters; a number stays beside its %."""
    lines = textwrap.wrap(
        said.replace(" %", "\N{NO-BREAK SPACE}%"), WIDTH, subsequent_indent=indent, break_on_hyphens=False
    )
    return [line.replace("\N{NO-BREAK SPACE}%", " %") for line in lines]


def _head(found: Standing) -> str:
    if not found.possible:
        return f"{number_of(found.planned, 'run')}, none of which can run here"
    if not found.begun:
        return f"{number_of(found.planned, 'run')}, not begun; {found.run} starts it"
    done = f"{found.done:,} of {number_of(found.planned, 'run')} done"
    if found.precision and found.precision.open:
        done += f", {found.precision.most:,} at most"
        if not found.left:
            return f"{done}; which cells get more is decided when the campaign goes on"
    if not found.left:
        return f"{done}; nothing is left to run"
    if found.left_s is None:
        return f"{done}; the time left is known when one run has ended"
    return f"{done}; {found.left:,} left, about {duration(found.left_s)} ({_until(found.left_s)})"


def _until(seconds: float) -> str:
    then = datetime.fromtimestamp(time.time() + seconds)
    return f"until {then:%H:%M}" if seconds < DAY_S else f"until {then:%Y-%m-%d %H:%M}"


def _bar(found: Standing) -> str:
    share = found.done / found.possible if found.possible else 1.0
    return f"[{'#' * int(BAR * share):-<{BAR}}] {100 * share:3.0f} %"


def _rows(found: Standing) -> Iterator[tuple[str, str]]:
    """The lines' names, each with what it tells."""
    if found.statuses:
        counts = [f"{found.statuses[status]:,} {status}" for status in STATUSES if status in found.statuses]
        yield "done", ", ".join(counts)
    if found.precision:
        yield from _precise(found.precision, found.done > 0, found.left > 0)
    for each in found.under_way[:MOST]:
        yield "running", _running(each)
    if len(found.under_way) > MOST:
        yield "", f"and {len(found.under_way) - MOST} more"
    for name, counted, what in (
        ("sweeps", found.sweeps, "of the network"),
        ("timings", found.timings, "of parts and messages"),
    ):
        if counted["planned"]:
            bad = counted["done"] - counted["ok"]
            yield name, f"{counted['done']} of {counted['planned']} {what} done" + (f", {bad} not ok" if bad else "")
    yield from _problems(found.problems)
    if found.repeat:
        yield "to repeat", found.repeat
    if found.environments:
        yield "to build", f"{', '.join(found.environments)} (environments)"
    if found.datasets:
        yield "to prepare", f"{', '.join(found.datasets)} (data sets)"
    yield from _workers(found)


def _precise(found: Precision, begun: bool, left: bool) -> Iterator[tuple[str, str]]:
    """How many cells are as precise as they are to be, and those that are not or get another run, the widest first."""
    if not found.block:
        when = "told when the campaign goes on" if begun and not left else "told after the first blocks"
        yield "precision", f"{100 * found.rule['until']:g} % wanted; {when}"
        return
    end = ", which is at_most: no cell gets more runs" if found.block == found.rule["at_most"] else ""
    over = not found.open and not left
    if over and any(cell["refine"] for cell in found.cells.values()):
        end = "; ./ringside run says what was reached after the last one"
    yield "precision", f"{in_words(found.cells, found.rule)} after block {found.block}{end}"
    others = {name: cell for name, cell in found.cells.items() if cell["refine"] or cell["reached"] in (BY_CHANCE, NO)}
    widest = sorted(others, key=lambda name: -(others[name]["half_width"] or math.inf))
    for name in widest[:MOST]:
        cell = others[name]
        what = "ratio within" if found.rule["contrasts"] else "within"
        half = "no interval" if cell["half_width"] is None else f"{what} {100 * cell['half_width']:.2g} %"
        chance = ", perhaps by chance" if cell["reached"] == BY_CHANCE else ""
        yield (
            "",
            f"{name}: n = {cell['n']}, {half}{chance}{', gets another run' if cell['refine'] and not over else ''}",
        )
    if len(widest) > MOST:
        yield "", f"and {len(widest) - MOST} more"


def _running(each: UnderWay) -> str:
    epoch = ""
    if each.epochs:
        epoch = f", epoch {each.epoch} of {each.epochs}" if each.epoch else f", starting, {each.epochs} epochs to go"
    where = f" on {_hosts(each.hosts)}" if each.hosts else ""
    return f"{each.name}{where}{epoch}, since {_clock(each.since)} ({duration(max(0.0, each.seconds))})"


def _hosts(names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - 4
    return ", ".join(distinct[:4]) + (f" and {more} more" if more > 0 else "")


def _clock(date: str) -> str:
    """A date in UTC as the time of this place."""
    return f"{datetime.fromisoformat(date).astimezone():%H:%M:%S}"


def _problems(problems: Sequence[Problem]) -> Iterator[tuple[str, str]]:
    """Each kind of problem with its most frequent reasons."""
    for status in dict.fromkeys(problem.status for problem in problems):
        same = [problem for problem in problems if problem.status == status]
        for place, problem in enumerate(same[:MOST]):
            reason = textwrap.shorten(problem.reason or "no reason given", REASON, placeholder=" ...")
            one = f" ({problem.first})" if problem.count == 1 and status != "not here" else ""
            yield "" if place else status, f"{problem.count:,} x {reason}{one}"
        if len(same) > MOST:
            yield "", f"{sum(problem.count for problem in same[MOST:]):,} x for other reasons"


def _workers(found: Standing) -> Iterator[tuple[str, str]]:
    """Who is at work: Snakemake, the cluster's jobs, or somebody else on this machine."""
    if last := found.last_session:
        began = datetime.fromisoformat(last["started_at"]).astimezone()
        said = f"{number_of(found.sessions, 'session')}, the last since {began:%Y-%m-%d %H:%M}"
        yield "sessions", f"{said}: {number_of(last['ended'], 'run')} ended in it"
    if found.snakemake:
        yield "snakemake", "is running in this checkout"
    elif found.left and found.begun and not found.jobs:
        yield "snakemake", f"is not running in this checkout; to continue: {found.run}"
    if found.machine and not found.under_way:
        yield "machine", f"held by {found.machine}"
    if found.disturbed:
        yield "disturbed", found.disturbed.removeprefix("this machine is disturbed: ")
    if found.queue:
        yield "jobs", found.queue
    elif found.jobs is not None:
        yield from _queue(found.jobs)


def _queue(jobs: Sequence[Job]) -> Iterator[tuple[str, str]]:
    """The running jobs, then the waiting ones: some of each, or how many."""
    if not jobs:
        yield "jobs", "none in the queue"
    running = [job for job in jobs if job.running]
    waiting = [job for job in jobs if not job.running]
    told = [f"{job.number} ({job.what}) runs on {job.where} since {job.since[11:16]}" for job in running[:MOST]]
    if len(running) > MOST:
        told.append(f"and {len(running) - MOST} more run")
    if len(waiting) <= MOST:
        told += [f"{job.number} ({job.what}): {job.state.lower()}, {job.where}" for job in waiting]
    else:
        counts = Counter((job.state.lower(), job.where) for job in waiting).most_common(MOST)
        told += [f"{count:,} {state}, {why}" for (state, why), count in counts]
    for place, said in enumerate(told):
        yield "" if place else "jobs", said


def to_json(found: Standing) -> str:
    """The standing for programs."""
    return json.dumps({**asdict(found), "done": found.done, "begun": found.begun, "ended": found.ended}, indent=2)


def watch(look: Callable[[], Standing], show: Callable[[Standing], str], pause_s: float = PAUSE_S) -> None:
    """Show the standing again and again until nothing is left to run."""
    alone = sys.stdout.isatty()
    while True:
        found = look()
        print(f"{CLEAR if alone else ''}{show(found)}", flush=True)
        if found.ended:
            return
        time.sleep(pause_s)
        if not alone:
            print(flush=True)


def loaded(study: str = "", site: str = "") -> Callable[[], Standing]:
    """Return what looks at the campaign of a study at a site; default: the configured ones."""
    config = configured(study, site)
    # Before a run has bound the results to their site: where `ringside submit` was called, Slurm's.
    if (Path("results") / str(config.get("study")) / "logs" / "submit").is_dir():
        config = configured(study, site, ["slurm.yaml"])
    return observer(load_campaign({**config, "records": "available"}))


def show_status(study: str = "", site: str = "", repeatedly: bool = False, as_json: bool = False) -> None:
    """Print where a campaign stands: done, running, failed with reasons, left and until when, who is at work.

    Args:
        study: A study; default: the configured one.
        site: A site; default: the configured one.
        repeatedly: Look again every PAUSE_S seconds until the campaign has ended.
        as_json: Print JSON, for programs.
    """
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    show = to_json if as_json else lambda found: text(found, colour)
    look = loaded(study, site)
    try:
        if repeatedly:
            watch(look, show)
        else:
            print(show(look()))
    except KeyboardInterrupt:
        print()
