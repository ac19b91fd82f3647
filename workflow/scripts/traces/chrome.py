"""Write a trace as JSON for Perfetto (ui.perfetto.dev) and chrome://tracing.

The format is "Trace Event Format" (Google, 2016). Perfetto also requires (trace_processor, importers/json):
times in microseconds, rounded to nanoseconds; intervals of one thread that either contain each other or do
not touch, or it drops one; integers for pid and tid. A rank is a process, its phases are thread 1, and
overlapping all-reduces have threads of their own.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import read_json, written_whole
from ranks.worker.phases import COMMUNICATION
from traces.timeline import STEP, Timeline, step_bounds

UNIT_NS = 1000  # the format's microsecond
FIRST_PROFILER_THREAD = 1000  # above the threads of phases
MAX_ROUNDING_NS = 2  # difference of two equal ends after rounding
MIN_COMPRESSED_BYTES = 2**22  # larger JSON is compressed

Event = dict[str, Any]


def events(timeline: Timeline) -> Iterator[Event]:
    """Yield all events of a trace, names of processes and threads first."""
    for rank in timeline.ranks:
        yield _metadata_event("process", rank, None, name=timeline.title(rank))
        yield _metadata_event("process_sort", rank, None, sort_index=rank)
        for thread, (name, track) in enumerate(timeline.tracks(rank), start=1):
            yield _metadata_event("thread", rank, thread, name=name)
            yield _metadata_event("thread_sort", rank, thread, sort_index=thread)
            for row in step_bounds(track).itertuples() if thread == 1 else ():
                yield _interval_event(rank, thread, f"{STEP} {row.step}", STEP, row)
            for row in track.itertuples():
                kind = COMMUNICATION if row.phase == COMMUNICATION else "phase"
                yield _interval_event(rank, thread, row.phase, kind, row)
        if rank in timeline.operators:
            yield from operator_events(timeline, rank)


def _metadata_event(subject: str, rank: int, thread: int | None, **args: Any) -> Event:
    """Return a metadata event: the name or sort index of a process or thread."""
    name = f"{subject}_index" if "sort_index" in args else f"{subject}_name"
    return {"name": name, "ph": "M", "pid": rank, "tid": thread or 0, "ts": 0, "args": args}


def _interval_event(rank: int, thread: int, name: str, kind: str, row: Any) -> Event:
    """Return the event of a row with begin_ns, end_ns, epoch and step."""
    times = {"ts": row.begin_ns / UNIT_NS, "dur": (row.end_ns - row.begin_ns) / UNIT_NS}
    args = {"epoch": row.epoch, "step": row.step}
    return {"name": name, "cat": kind, "ph": "X", "pid": rank, "tid": thread, **times, "args": args}


def operator_events(timeline: Timeline, rank: int) -> Iterator[Event]:
    """Yield the events of a rank from the library's profiler, on threads after those of phases.

    Raises:
        InputError: If the profiler's file is broken.
    """
    file = timeline.operators[rank]
    try:
        yield from _profiler_events(read_json(file)["traceEvents"], rank)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"is no trace of a profiler ({type(error).__name__}: {error})"
        hint = "repeat the run, or remove the file"
        raise InputError("broken-file", problem, file=file, expected="traceEvents", hint=hint) from None


def _profiler_events(profiled: Iterable[Event], rank: int) -> Iterator[Event]:
    """Yield a profiler's events as those of a rank, without its names and order of processes."""
    threads: dict[tuple[object, object], int] = {}
    names = {}
    intervals: dict[int, list[Event]] = {}
    for event in profiled:
        place = event.get("pid"), event.get("tid")
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                names[place] = str(event["args"]["name"])
            continue
        thread = threads.setdefault(place, FIRST_PROFILER_THREAD + len(threads))
        # Arrows between intervals are identified by a number that other ranks use, too.
        arrow = {"id": f"{rank}.{event['id']}"} if event["ph"] in "stf" else {}
        moved = {**event, "pid": rank, "tid": thread, **arrow}
        if event["ph"] == "X":
            intervals.setdefault(thread, []).append(moved)
        else:
            yield moved
    for thread_intervals in intervals.values():
        yield from nest_intervals(thread_intervals)
    for place, thread in threads.items():
        yield _metadata_event("thread", rank, thread, name=f"profiler: {names.get(place, place[1])}")
        yield _metadata_event("thread_sort", rank, thread, sort_index=thread)


def nest_intervals(intervals: list[Event]) -> Iterator[Event]:
    """Yield intervals of one thread, outer ones first; ends that exceed the outer one by rounding are cut."""
    ends: list[int] = []
    for event in sorted(intervals, key=lambda event: (event["ts"], -event["dur"])):
        begin, length = (round(event[name] * UNIT_NS) for name in ("ts", "dur"))
        while ends and ends[-1] <= begin:
            ends.pop()
        if ends and 0 < begin + length - ends[-1] <= MAX_ROUNDING_NS:
            length = ends[-1] - begin
        ends.append(begin + length)
        yield {**event, "dur": length / UNIT_NS}


def write(timeline: Timeline, folder: Path, name: str = "trace.json") -> Path:
    """Write the trace into `folder`, compressed if it is large, and return the file.

    Raises:
        InputError: If a profiler's file is broken.
    """
    trace_events = list(events(timeline))
    document = {
        "displayTimeUnit": "ms",
        # The format accepts texts only.
        "otherData": {name: str(value) for name, value in timeline.metadata.items() if value is not None},
        "traceEvents": trace_events,
    }
    text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    plain, packed = folder / name, folder / f"{name}.gz"
    large = len(text) >= MIN_COMPRESSED_BYTES
    file, outdated = (packed, plain) if large else (plain, packed)
    with written_whole(file) as partial:
        partial.write_bytes(gzip.compress(text, mtime=0) if large else text)
    outdated.unlink(missing_ok=True)  # from an earlier trace
    return file
