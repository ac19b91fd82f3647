"""Read OTF2 archives as phases: those of Score-P for MPI programs, and Ringside's own (`traces.otf2_write`).

An MPI process is a rank. On the thread that its communicator names, user regions with the name of a phase are
phases, of which the innermost counts; regions `epoch` and `step` count epochs and steps. MPI calls that carry
data are all-reduces, on any thread: blocking ones from begin to end, others from the call to the one that
completes them. A thread that waits for MPI is in phase wait, or barrier.
"""

import contextlib
import ctypes
import io
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _otf2
import otf2
import pandas as pd
from otf2.enums import GroupType, LocationGroupType, Paradigm, RegionRole

from common.errors import InputError
from common.files import display_path
from common.text import number_of
from ranks.worker.phases import COMMUNICATION
from runs.phases import INTERVALS, TABLE, write_intervals
from traces import chrome
from traces.timeline import NS, STEP, Timeline

EPOCH = "epoch"
STALL_S = 20.0  # time without an event after which the library hangs
POLL_S = 0.05
MAX_UPTIME_S = 1e9  # 31 years; a larger clock value is a time of day
UNNAMED = "other"  # time of a step outside of its regions
PHASES = (
    "interpreter", "rendezvous", "import", "build", "join", "between", "data", "forward", "backward", "wait",
    "metrics", "optimizer", "barrier", "validation", COMMUNICATION,
)  # fmt: skip
WAIT = "wait"
WAITING_CALLS = ("MPI_Wait", "MPI_Waitall", "MPI_Waitany", "MPI_Waitsome")
JOINING_CALLS = ("MPI_Init", "MPI_Init_thread")
IDLE_CALLS = (
    "MPI_Test", "MPI_Testall", "MPI_Testany", "MPI_Testsome", "MPI_Probe", "MPI_Mprobe",
    "MPI_Start", "MPI_Startall",
)  # fmt: skip
DATA_ROLES = (
    RegionRole.COLL_ALL2ALL, RegionRole.COLL_ALL2ONE, RegionRole.COLL_ONE2ALL, RegionRole.POINT2POINT,
)  # fmt: skip
BEGIN_EVENTS = (otf2.events.NonBlockingCollectiveRequest, otf2.events.MpiIsend, otf2.events.MpiIrecvRequest)
COMPLETE_EVENTS = (
    otf2.events.NonBlockingCollectiveComplete,
    otf2.events.MpiIsendComplete,
    otf2.events.MpiIrecv,
)


@ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_int,
    ctypes.c_char_p, ctypes.c_void_p
)  # fmt: skip
def _quiet(_data: Any, _file: Any, _line: int, _function: Any, code: int, _form: Any, _values: Any) -> int:
    """Replace OTF2's printing of errors, which also raises them as exceptions."""
    return int(code)


_otf2.Config.conf.lib.OTF2_Error_RegisterCallback(_quiet, None)

Position = tuple[int, int]  # epoch and step
Interval = tuple[Position, str, int, int]  # position, phase, begin and end in the archive's ticks


def region_phase(region: Any, has_position: bool) -> str | None:
    """Return the phase of a region, or None.

    `has_position`: whether it was entered with its epoch and step, as in Ringside's own archives.
    """
    name = str(region.name).rpartition(":")[2]  # user:forward, from a program in Python
    if region.paradigm == Paradigm.USER:
        return name if name in (*PHASES, STEP, EPOCH) or has_position else None
    if region.paradigm != Paradigm.MPI:
        return None
    if region.region_role == RegionRole.BARRIER:
        return "barrier"
    if name in WAITING_CALLS:
        return WAIT
    if name in JOINING_CALLS:
        return "join"
    is_instant = (
        name in IDLE_CALLS or name.endswith("_init") or (name.startswith("MPI_I") and name[5:6].islower())
    )
    return COMMUNICATION if region.region_role in DATA_ROLES and not is_instant else None


@dataclass
class _Region:
    """An open region.

    Attributes:
        phase: Its phase.
        position: Epoch and step.
        has_position: Whether epoch and step were recorded.
        entered: When it was entered, in ticks.
        since: When the last region inside it ended.
    """

    phase: str | None
    position: Position
    has_position: bool
    entered: int
    since: int

    def until(self, time: int, last: bool = False) -> Iterator[Interval]:
        """Yield its own time, without regions inside it, as a phase of the main thread."""
        phase = {COMMUNICATION: WAIT, STEP: UNNAMED, EPOCH: None}.get(str(self.phase), self.phase)
        short = last and phase != UNNAMED and time == self.entered
        if phase is not None and (time > self.since or short):
            yield self.position, phase, self.since, time


class _Rank:
    """The open regions of a rank, from events in the order of time; `main`: the location of its phases."""

    def __init__(self, number: int, main: Any) -> None:
        self.number, self.main = number, main
        self.epoch = self.step = 0
        self.stacks: dict[Any, list[_Region]] = {main: []}
        self.begun: dict[int, tuple[Position, int]] = {}

    def intervals(self, location: Any, event: Any) -> Iterator[Interval]:
        """Yield the intervals that an event at a location ends."""
        match event:
            case otf2.events.Enter():
                self._enter(location, event)
            case otf2.events.Leave():
                yield from self._leave(location, event.time)
            case _ if isinstance(event, BEGIN_EVENTS):
                self.begun[event.request_id] = self._position(), event.time
            case _ if isinstance(event, COMPLETE_EVENTS) and event.request_id in self.begun:
                position, begin = self.begun.pop(event.request_id)
                yield position, COMMUNICATION, begin, event.time

    def _position(self) -> Position:
        stack = self.stacks[self.main]
        return stack[-1].position if stack else (self.epoch, 0)

    def _enter(self, location: Any, event: Any) -> None:
        stack = self.stacks.setdefault(location, [])
        attributes = {attribute.name: value for attribute, value in (event.attributes or {}).items()}
        has_position = EPOCH in attributes or bool(stack and stack[-1].has_position)
        phase = region_phase(event.region, has_position)
        position = stack[-1].position if stack else self._position()
        if EPOCH in attributes:
            position = attributes[EPOCH], attributes[STEP]
        elif location == self.main and not has_position and phase in (EPOCH, STEP):
            position = self._count(phase)
        stack.append(_Region(phase, position, has_position, event.time, event.time))

    def _count(self, phase: str | None) -> Position:
        """Return the next epoch or step; a step outside of epochs belongs to the first one."""
        if phase == EPOCH:
            self.epoch, self.step = self.epoch + 1, 0
        else:
            self.epoch, self.step = max(self.epoch, 1), self.step + 1
        return self.epoch, self.step

    def _leave(self, location: Any, time: int) -> Iterator[Interval]:
        stack = self.stacks.get(location)
        if not stack:
            return  # entered before the measurement started
        ended = stack.pop()
        if ended.phase == COMMUNICATION:
            yield ended.position, COMMUNICATION, ended.entered, time
        if location == self.main and ended.phase is not None:
            yield from ended.until(time, last=True)
            around = next((region for region in reversed(stack) if region.phase is not None), None)
            if around is not None:
                yield from around.until(ended.entered)
                around.since = time


def _rank_of_location(definitions: Any) -> dict[Any, _Rank]:
    """Return the rank of each location."""
    groups = [group for group in definitions.groups if group.group_type == GroupType.COMM_LOCATIONS]
    mpi = [group for group in groups if group.paradigm == Paradigm.MPI]
    mains = list(mpi[0].members) if mpi else _main_threads(definitions)
    ranks = {main.group: _Rank(number, main) for number, main in enumerate(mains)}
    return {location: ranks[location.group] for location in definitions.locations if location.group in ranks}


def _main_threads(definitions: Any) -> list[Any]:
    first_locations: dict[Any, Any] = {}
    for location in definitions.locations:
        if location.group.location_group_type == LocationGroupType.PROCESS:
            first_locations.setdefault(location.group, location)
    return list(first_locations.values())


def read(anchor: Path) -> Timeline:
    """Return the trace of an archive.

    It is read in a separate process, because the library may loop or crash on incomplete files.

    Args:
        anchor: The archive's file with the ending .otf2.

    Raises:
        InputError: If it is not an archive, is incomplete, or has no phase.
    """
    if not anchor.is_file():
        expected = "the file of an archive of OTF2, such as traces.otf2"
        raise InputError("missing-file", "no such file", file=anchor, expected=expected)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    events = context.Value("Q", 0, lock=False)
    reader = context.Process(target=_send, args=(anchor, events, sender), daemon=True)
    reader.start()
    sender.close()
    try:
        result = _receive(receiver, lambda: int(events.value))
    finally:
        reader.kill()
        reader.join()
    if result is None:
        raise _broken_archive_error(anchor)
    if isinstance(result, InputError):
        raise result
    return result


def _send(anchor: Path, events: Any, sender: Any) -> None:
    """Send the trace of an archive, or its error, and count events meanwhile."""
    try:
        result: Timeline | InputError | None = _read_archive(anchor, events)
    except InputError as error:
        result = error
    except Exception:  # incomplete definitions give None and dangling numbers
        result = None
    sender.send(result)


def _receive(receiver: Any, progress: Callable[[], int]) -> Timeline | InputError | None:
    """Return what the reader sends; None if it exits without, or makes no progress for STALL_S."""
    n_events, since = -1, time.monotonic()
    while not receiver.poll(POLL_S):
        if progress() != n_events:
            n_events, since = progress(), time.monotonic()
        elif time.monotonic() - since > STALL_S:
            return None
    try:
        result: Timeline | InputError | None = receiver.recv()
    except EOFError:  # it crashed
        return None
    return result


def _broken_archive_error(anchor: Path) -> InputError:
    return InputError(
        "broken-file",
        "is not a complete OTF2 archive",
        file=anchor,
        expected=f"{anchor.stem}.def and the folder {anchor.stem} in the same folder",
        hint="copy all three again, or trace again",
    )


def _read_archive(anchor: Path, events: Any) -> Timeline:
    rows: list[tuple[Any, ...]] = []
    seen: Counter[Any] = Counter()
    try:
        # The library prints errors of its callbacks, which also raise exceptions.
        with contextlib.redirect_stderr(io.StringIO()), otf2.reader.open(str(anchor)) as archive:
            definitions, clock = archive.definitions, archive.definitions.clock_properties
            ranks = _rank_of_location(definitions)
            for location, event in archive.events:
                seen[location] += 1
                events.value += 1
                if seen[location] > location.number_of_events:
                    break
                if location in ranks:
                    rank = ranks[location]
                    rows += [
                        (rank.number, *position, *interval)
                        for position, *interval in rank.intervals(location, event)
                    ]
            is_complete = all(
                seen[location] == location.number_of_events for location in definitions.locations
            )
    except (_otf2.Error, otf2.error.Error):
        is_complete = False
    if not is_complete:
        raise _broken_archive_error(anchor)
    if not rows:
        problem = "has no process with a call of MPI, or with a region that is called like a phase"
        raise InputError("no-phases", problem, file=anchor)
    intervals = pd.DataFrame(rows, columns=list(INTERVALS)).sort_values(
        ["rank", "start", "end"], kind="stable"
    )
    intervals[["start", "end"]] = (intervals[["start", "end"]] - clock.global_offset) / clock.timer_resolution
    mains = sorted({rank.number: rank.main for rank in ranks.values()}.items())
    hosts = tuple(str(main.group.system_tree_parent.name) for _, main in mains)
    return Timeline(intervals, hosts, metadata={"archive": anchor.name}, began=start_time(clock))


def start_time(clock: Any) -> float:
    """Return the time of an archive's first event, in s since 1970, or 0 if unknown.

    Score-P 8.4 records it only with its timer gettimeofday, which counts from then.
    """
    if clock.realtime_timestamp != otf2.enums.Undefined.TIMESTAMP.value:
        return float(clock.realtime_timestamp / NS)
    since = float(clock.global_offset / clock.timer_resolution)
    return since if since > MAX_UPTIME_S else 0.0


def convert(file: Path) -> None:
    """Read a trace that Score-P wrote.

    Write phases.csv, as a traced run has it, and a file for Perfetto into the same folder.

    Args:
        file: The archive's file with the ending .otf2.
    """
    if file.suffix != ".otf2":
        problem, expected = "is no archive of OTF2", "its file with the ending .otf2, such as traces.otf2"
        raise InputError("bad-pattern", problem, file=file, got=str(file), expected=expected)
    timeline, folder = read(file), file.parent
    write_intervals(folder / TABLE, timeline.intervals)
    print(
        f"{display_path(folder / TABLE)}: {len(timeline.intervals)} intervals of "
        f"{number_of(len(timeline.ranks), 'rank')}"
    )
    print(f"{display_path(chrome.write(timeline, folder))}: open it at ui.perfetto.dev")
