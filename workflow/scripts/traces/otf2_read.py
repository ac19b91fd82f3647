"""Archives of OTF2 as phases: those that Score-P wrote of programs of MPI, and our own (`traces.otf2_write`).

A process of MPI is a rank. On the thread that its communicator names, regions of the user that are called like our phases are phases,
the innermost counts, and regions `epoch` and `step` count epochs and steps. Calls of MPI that carry something are exchanges, on whichever
thread: blocking ones from their begin to their end, others from the call to the one that completes them. A thread that waits for MPI
is in phase wait, or barrier.
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
from common.files import shown
from common.text import number_of
from ranks.worker.phases import EXCHANGE
from runs.phases import INTERVALS, TABLE, write_intervals
from traces import chrome
from traces.timeline import NS, STEP, Timeline

EPOCH = "epoch"
STALL_S = 20.0  # without an event, after which the library is taken to hang
LOOK_S = 0.05
NO_UPTIME = 1e9  # s, 31 years: a clock that counts more is that of the day
OTHER = "other"  # of a step, what no region inside of it names
PHASES = (
    "interpreter", "rendezvous", "import", "build", "join", "between", "data", "forward", "backward", "wait", "metrics", "optimizer",
    "barrier", "validation", EXCHANGE,
)  # fmt: skip
WAIT = "wait"
WAITING_CALLS = ("MPI_Wait", "MPI_Waitall", "MPI_Waitany", "MPI_Waitsome")
JOINING_CALLS = ("MPI_Init", "MPI_Init_thread")
IDLE_CALLS = (
    "MPI_Test",
    "MPI_Testall",
    "MPI_Testany",
    "MPI_Testsome",
    "MPI_Probe",
    "MPI_Mprobe",
    "MPI_Start",
    "MPI_Startall",
)
CARRYING = (RegionRole.COLL_ALL2ALL, RegionRole.COLL_ALL2ONE, RegionRole.COLL_ONE2ALL, RegionRole.POINT2POINT)
BEGUN = (otf2.events.NonBlockingCollectiveRequest, otf2.events.MpiIsend, otf2.events.MpiIrecvRequest)
COMPLETED = (otf2.events.NonBlockingCollectiveComplete, otf2.events.MpiIsendComplete, otf2.events.MpiIrecv)


@ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
)  # fmt: skip
def _quiet(data: Any, file: Any, line: int, function: Any, code: int, form: Any, values: Any) -> int:
    """In place of what OTF2's library prints about an error, with its own file and line: the error comes back as an exception."""
    return int(code)


_otf2.Config.conf.lib.OTF2_Error_RegisterCallback(_quiet, None)

Where = tuple[int, int]  # epoch and step
Interval = tuple[Where, str, int, int]  # with the phase, its begin and its end, in the archive's ticks


def phase_of(region: Any, told: bool) -> str | None:
    """The phase that a region is, None where it is none; `told`: whether it was entered with its epoch, as our own archives do."""
    name = str(region.name).rpartition(":")[2]  # user:forward, from a program in Python
    if region.paradigm == Paradigm.USER:
        return name if name in (*PHASES, STEP, EPOCH) or told else None
    if region.paradigm != Paradigm.MPI:
        return None
    if region.region_role == RegionRole.BARRIER:
        return "barrier"
    if name in WAITING_CALLS:
        return WAIT
    if name in JOINING_CALLS:
        return "join"
    returns = name in IDLE_CALLS or name.endswith("_init") or (name.startswith("MPI_I") and name[5:6].islower())
    return EXCHANGE if region.region_role in CARRYING and not returns else None


@dataclass
class _Region:
    """A region that is under way: its phase, epoch and step, when it was entered, and since when nothing was inside of it."""

    phase: str | None
    where: Where
    told: bool
    entered: int
    since: int

    def until(self, time: int, last: bool = False) -> Iterator[Interval]:
        """It alone, as a phase of the main thread, since what was inside of it last."""
        phase = {EXCHANGE: WAIT, STEP: OTHER, EPOCH: None}.get(str(self.phase), self.phase)
        short = last and phase != OTHER and time == self.entered
        if phase is not None and (time > self.since or short):
            yield self.where, phase, self.since, time


class _Rank:
    """A rank as its events come, in the order of time. `main`: the location that its phases are of."""

    def __init__(self, number: int, main: Any) -> None:
        self.number, self.main = number, main
        self.epoch = self.step = 0
        self.stacks: dict[Any, list[_Region]] = {main: []}
        self.begun: dict[int, tuple[Where, int]] = {}

    def intervals(self, location: Any, event: Any) -> Iterator[Interval]:
        """What has ended by an event at a location."""
        match event:
            case otf2.events.Enter():
                self._enter(location, event)
            case otf2.events.Leave():
                yield from self._leave(location, event.time)
            case _ if isinstance(event, BEGUN):
                self.begun[event.request_id] = self._where(), event.time
            case _ if isinstance(event, COMPLETED) and event.request_id in self.begun:
                where, begin = self.begun.pop(event.request_id)
                yield where, EXCHANGE, begin, event.time

    def _where(self) -> Where:
        stack = self.stacks[self.main]
        return stack[-1].where if stack else (self.epoch, 0)

    def _enter(self, location: Any, event: Any) -> None:
        stack = self.stacks.setdefault(location, [])
        attributes = {attribute.name: value for attribute, value in (event.attributes or {}).items()}
        told = EPOCH in attributes or bool(stack and stack[-1].told)
        phase = phase_of(event.region, told)
        where = stack[-1].where if stack else self._where()
        if EPOCH in attributes:
            where = attributes[EPOCH], attributes[STEP]
        elif location == self.main and not told and phase in (EPOCH, STEP):
            where = self._count(phase)
        stack.append(_Region(phase, where, told, event.time, event.time))

    def _count(self, what: str | None) -> Where:
        """The next epoch or step; a step without an epoch is of the first one."""
        if what == EPOCH:
            self.epoch, self.step = self.epoch + 1, 0
        else:
            self.epoch, self.step = max(self.epoch, 1), self.step + 1
        return self.epoch, self.step

    def _leave(self, location: Any, time: int) -> Iterator[Interval]:
        stack = self.stacks.get(location)
        if not stack:
            return  # it was entered before the measurement began
        ended = stack.pop()
        if ended.phase == EXCHANGE:
            yield ended.where, EXCHANGE, ended.entered, time
        if location == self.main and ended.phase is not None:
            yield from ended.until(time, last=True)
            around = next((region for region in reversed(stack) if region.phase is not None), None)
            if around is not None:
                yield from around.until(ended.entered)
                around.since = time


def _ranks(definitions: Any) -> dict[Any, _Rank]:
    """The rank that each location is of."""
    groups = [group for group in definitions.groups if group.group_type == GroupType.COMM_LOCATIONS]
    mpi = [group for group in groups if group.paradigm == Paradigm.MPI]
    mains = list(mpi[0].members) if mpi else _first_of_processes(definitions)
    ranks = {main.group: _Rank(number, main) for number, main in enumerate(mains)}
    return {location: ranks[location.group] for location in definitions.locations if location.group in ranks}


def _first_of_processes(definitions: Any) -> list[Any]:
    first: dict[Any, Any] = {}
    for location in definitions.locations:
        if location.group.location_group_type == LocationGroupType.PROCESS:
            first.setdefault(location.group, location)
    return list(first.values())


def read(anchor: Path) -> Timeline:
    """Return the trace of an archive; `anchor` is its file with the ending .otf2.

    It is read in a process of its own: of files that are not whole the library may read without end, or crash.

    Raises:
        InputError: If it is none, not whole, or tells no phase.
    """
    if not anchor.is_file():
        expected = "the file of an archive of OTF2, such as traces.otf2"
        raise InputError("missing-file", "no such file", file=shown(anchor), expected=expected)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    events = context.Value("Q", 0, lock=False)
    reader = context.Process(target=_send, args=(anchor, events, sender), daemon=True)
    reader.start()
    sender.close()
    try:
        found = _receive(receiver, lambda: int(events.value))
    finally:
        reader.kill()
        reader.join()
    if found is None:
        raise _broken(anchor)
    if isinstance(found, InputError):
        raise found
    return found


def _send(anchor: Path, events: Any, sender: Any) -> None:
    """Send the trace of an archive, or what is wrong with it, and count events meanwhile."""
    try:
        found: Timeline | InputError | None = _read(anchor, events)
    except InputError as error:
        found = error
    except Exception:  # what the library makes of definitions that are not whole: None, numbers that stand for nothing
        found = None
    sender.send(found)


def _receive(receiver: Any, progress: Callable[[], int]) -> Timeline | InputError | None:
    """Return what the reader sends; None where it ends without, or makes no progress for STALL_S."""
    done, since = -1, time.monotonic()
    while not receiver.poll(LOOK_S):
        if progress() != done:
            done, since = progress(), time.monotonic()
        elif time.monotonic() - since > STALL_S:
            return None
    try:
        found: Timeline | InputError | None = receiver.recv()
    except EOFError:  # it crashed
        return None
    return found


def _broken(anchor: Path) -> InputError:
    return InputError(
        "broken-file",
        "is no archive of OTF2, or not whole",
        file=shown(anchor),
        expected=f"beside it {anchor.stem}.def and the folder {anchor.stem}",
        hint="copy all three again, or trace again",
    )


def _read(anchor: Path, events: Any) -> Timeline:
    rows: list[tuple[Any, ...]] = []
    seen: Counter[Any] = Counter()
    try:
        # The library prints what goes wrong in its calls of ours, which ends in an exception, too.
        with contextlib.redirect_stderr(io.StringIO()), otf2.reader.open(str(anchor)) as archive:
            definitions, clock = archive.definitions, archive.definitions.clock_properties
            ranks = _ranks(definitions)
            for location, event in archive.events:
                seen[location] += 1
                events.value += 1
                if seen[location] > location.number_of_events:
                    break
                if location in ranks:
                    rank = ranks[location]
                    rows += [(rank.number, *where, *what) for where, *what in rank.intervals(location, event)]
            whole = all(seen[location] == location.number_of_events for location in definitions.locations)
    except (_otf2.Error, otf2.error.Error):
        whole = False
    if not whole:
        raise _broken(anchor)
    if not rows:
        problem = "has no process with a call of MPI, or with a region that is called like a phase"
        raise InputError("no-phases", problem, file=shown(anchor))
    intervals = pd.DataFrame(rows, columns=list(INTERVALS)).sort_values(["rank", "start", "end"], kind="stable")
    intervals[["start", "end"]] = (intervals[["start", "end"]] - clock.global_offset) / clock.timer_resolution
    mains = sorted({rank.number: rank.main for rank in ranks.values()}.items())
    hosts = tuple(str(main.group.system_tree_parent.name) for _, main in mains)
    return Timeline(intervals, hosts, about={"archive": anchor.name}, began=began(clock))


def began(clock: Any) -> float:
    """When an archive's clock stood at its first event, in s since 1970; 0 where it does not tell. Score-P 8.4 tells it by its timer
    gettimeofday alone, which counts from then."""
    if clock.realtime_timestamp != otf2.enums.Undefined.TIMESTAMP.value:
        return float(clock.realtime_timestamp / NS)
    since = float(clock.global_offset / clock.timer_resolution)
    return since if since > NO_UPTIME else 0.0


def convert(file: Path) -> None:
    """Read a trace that Score-P wrote; write phases.csv, as a traced run has it, and a file for Perfetto beside it.

    Args:
        file: The archive's file with the ending .otf2.
    """
    if file.suffix != ".otf2":
        problem, expected = "is no archive of OTF2", "its file with the ending .otf2, such as traces.otf2"
        raise InputError("bad-pattern", problem, file=file, got=str(file), expected=expected)
    timeline, folder = read(file), file.parent
    write_intervals(folder / TABLE, timeline.intervals)
    print(f"{shown(folder / TABLE)}: {len(timeline.intervals)} intervals of {number_of(len(timeline.ranks), 'rank')}")
    print(f"{shown(chrome.write(timeline, folder))}: open it at ui.perfetto.dev")
