"""A trace as JSON for Perfetto (ui.perfetto.dev) and chrome://tracing: the phases of all ranks, and the operators below them.

The format: "Trace Event Format" (Google, 2016). What Perfetto asks beyond it (trace_processor, importers/json): times are in
microseconds and rounded to nanoseconds; on one thread intervals either contain each other or do not touch, or it drops one; pid
and tid are whole numbers. A rank is a process, its phases are thread 1, and exchanges that overlap lie on threads of their own.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from common.errors import InputError
from common.files import read_json, shown, written_whole
from ranks.worker.phases import EXCHANGE
from traces.timeline import STEP, Timeline, steps

UNIT_NS = 1000  # the format's microsecond
OPERATORS_FROM = 1000  # threads of the library's profiler, above all of ours
ROUNDED_NS = 2  # by which two ends that were one may differ, once both were rounded
LARGE = 2**22  # bytes of JSON, from which on it is compressed

Event = dict[str, Any]


def events(timeline: Timeline) -> Iterator[Event]:
    """All events of a trace: the names of processes and threads first."""
    for rank in timeline.ranks:
        yield _named("process", rank, None, name=timeline.title(rank))
        yield _named("process_sort", rank, None, sort_index=rank)
        for thread, (name, track) in enumerate(timeline.tracks(rank), start=1):
            yield _named("thread", rank, thread, name=name)
            yield _named("thread_sort", rank, thread, sort_index=thread)
            yield from _steps(rank, thread, track)
            for row in track.itertuples():
                kind = EXCHANGE if row.phase == EXCHANGE else "phase"
                yield _complete(rank, thread, row.phase, kind, row.begin_ns, row.end_ns, epoch=row.epoch, step=row.step)
        if rank in timeline.operators:
            yield from operators(timeline, rank)


def _steps(rank: int, thread: int, track: pd.DataFrame) -> Iterator[Event]:
    if thread == 1:
        for row in steps(track).itertuples():
            yield _complete(
                rank, thread, f"{STEP} {row.step}", STEP, row.begin_ns, row.end_ns, epoch=row.epoch, step=row.step
            )


def _named(what: str, rank: int, thread: int | None, **args: Any) -> Event:
    """A metadata event: the name of a process or a thread, or its place among others."""
    name = f"{what}_index" if "sort_index" in args else f"{what}_name"
    return {"name": name, "ph": "M", "pid": rank, "tid": thread or 0, "ts": 0, "args": args}


def _complete(rank: int, thread: int, name: str, kind: str, begin_ns: int, end_ns: int, **args: int) -> Event:
    times = {"ts": begin_ns / UNIT_NS, "dur": (end_ns - begin_ns) / UNIT_NS}
    return {"name": name, "cat": kind, "ph": "X", "pid": rank, "tid": thread, **times, "args": args}


def operators(timeline: Timeline, rank: int) -> Iterator[Event]:
    """What the library's profiler told of a rank, whose times are those of the phases; its threads are named and numbered after ours.

    InputError where its file is none of the format.
    """
    file = timeline.operators[rank]
    try:
        yield from _below(read_json(file)["traceEvents"], rank)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"is no trace of a profiler ({type(error).__name__}: {error})"
        hint = "repeat the run, or remove the file"
        raise InputError("broken-file", problem, file=shown(file), expected="traceEvents", hint=hint) from None


def _below(told: Iterable[Event], rank: int) -> Iterator[Event]:
    """A profiler's events as those of a rank. How it names and sorts processes is left out."""
    threads: dict[tuple[Any, Any], int] = {}
    names = {}
    intervals: dict[int, list[Event]] = {}
    for event in told:
        place = event.get("pid"), event.get("tid")
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                names[place] = str(event["args"]["name"])
            continue
        thread = threads.setdefault(place, OPERATORS_FROM + len(threads))
        # An arrow from one interval to another is told by its number, which another rank has, too.
        arrow = {"id": f"{rank}.{event['id']}"} if event["ph"] in "stf" else {}
        moved = {**event, "pid": rank, "tid": thread, **arrow}
        if event["ph"] == "X":
            intervals.setdefault(thread, []).append(moved)
        else:
            yield moved
    for mine in intervals.values():
        yield from nested(mine)
    for place, thread in threads.items():
        yield _named("thread", rank, thread, name=f"profiler: {names.get(place, place[1])}")
        yield _named("thread_sort", rank, thread, sort_index=thread)


def nested(intervals: list[Event]) -> Iterator[Event]:
    """Intervals of one thread, the outer one first; one that ends after the one around it by what was rounded ends with it."""
    ends: list[int] = []
    for event in sorted(intervals, key=lambda event: (event["ts"], -event["dur"])):
        begin, length = (round(event[name] * UNIT_NS) for name in ("ts", "dur"))
        while ends and ends[-1] <= begin:
            ends.pop()
        if ends and 0 < begin + length - ends[-1] <= ROUNDED_NS:
            length = ends[-1] - begin
        ends.append(begin + length)
        yield {**event, "dur": length / UNIT_NS}


def write(timeline: Timeline, folder: Path, name: str = "trace.json") -> Path:
    """Write the trace into `folder`, whole or not at all, compressed where it is large; the file. InputError as `operators`."""
    made = list(events(timeline))
    whole = {"displayTimeUnit": "ms", "otherData": _texts(timeline.about), "traceEvents": made}
    text = json.dumps(whole, allow_nan=False, separators=(",", ":")).encode()
    plain, packed = folder / name, folder / f"{name}.gz"
    large = len(text) >= LARGE
    file, other = (packed, plain) if large else (plain, packed)
    with written_whole(file) as partial:
        partial.write_bytes(gzip.compress(text, mtime=0) if large else text)
    other.unlink(missing_ok=True)  # of an earlier trace
    return file


def _texts(about: dict[str, Any]) -> dict[str, str]:
    """What the format takes of other data: texts."""
    return {name: str(value) for name, value in about.items() if value is not None}
