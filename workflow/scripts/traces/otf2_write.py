"""Write a trace as an OTF2 (Open Trace Format 2) archive, for Vampir and the tools of Score-P.

A rank is a location group on its host; the site is the machine. Phases are one location, and overlapping
all-reduces have locations of their own. Phases are regions, inside a region for their step; attributes give
epoch and step.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import otf2
import pandas as pd
from otf2.enums import (
    GroupType,
    LocationGroupType,
    LocationType,
    Paradigm,
    RegionRole,
    SystemTreeDomain,
    Type,
)

from ranks.worker.phases import COMMUNICATION
from traces.timeline import NS, STEP, Timeline, step_bounds

NAME = "trace"
ROLES = {  # other regions are functions
    STEP: RegionRole.LOOP,
    COMMUNICATION: RegionRole.COLL_ALL2ALL,
    "wait": RegionRole.THREAD_WAIT,
    "barrier": RegionRole.BARRIER,
    "data": RegionRole.DATA_TRANSFER,
}
KINDS = {  # groups of regions: Vampir gives each a colour
    "computing": ("forward", "backward", "metrics", "optimizer", "validation"),
    "waiting": ("wait", "barrier", "data"),
    "communicating": (COMMUNICATION,),
}


def write(timeline: Timeline, folder: Path) -> Path:
    """Write the archive as `folder`, in place of an older one, and return its anchor, the file to open."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        new_folder = Path(scratch) / folder.name
        with otf2.writer.open(str(new_folder), NAME, timer_resolution=NS) as archive:
            _fill(archive, timeline)
        if folder.exists():
            folder.rename(Path(scratch) / "older")
        new_folder.rename(folder)
    return folder / f"{NAME}.otf2"


def _fill(archive: Any, timeline: Timeline) -> None:
    definitions = archive.definitions
    archive.creator, archive.description = "Ringside", str(timeline.metadata.get("run_id", ""))
    machine = definitions.system_tree_node(
        str(timeline.metadata.get("site", "machine")), class_name="machine"
    )
    for name, value in timeline.metadata.items():
        if value is not None:
            definitions.system_tree_node_property(machine, name, Type.STRING, str(value))
    hosts = {}
    for host in dict.fromkeys(map(timeline.host, timeline.ranks)):
        hosts[host] = definitions.system_tree_node(host, class_name="node", parent=machine)
        definitions.system_tree_node_domain(hosts[host], SystemTreeDomain.SHARED_MEMORY)
    regions = {
        phase: definitions.region(
            phase, region_role=ROLES.get(phase, RegionRole.FUNCTION), paradigm=Paradigm.USER
        )
        for phase in [STEP, *timeline.intervals["phase"].unique()]
    }
    for kind, phases in KINDS.items():
        if members := tuple(regions[phase] for phase in phases if phase in regions):
            definitions.group(kind, group_type=GroupType.REGIONS, paradigm=Paradigm.USER, members=members)
    position_attributes = [
        definitions.attribute(name, f"training {name}, from 1; 0 outside", Type.UINT64)
        for name in ("epoch", STEP)
    ]
    for rank in timeline.ranks:
        process = definitions.location_group(
            timeline.title(rank),
            location_group_type=LocationGroupType.PROCESS,
            system_tree_parent=hosts[timeline.host(rank)],
        )
        for name, track in timeline.tracks(rank):
            location = definitions.location(
                f"rank {rank}: {name}", type=LocationType.CPU_THREAD, group=process
            )
            events = archive.event_writer_from_location(location)
            for mark in marks(track):
                if mark.begins:
                    attributes = (
                        dict(zip(position_attributes, mark.position, strict=True)) if mark.position else None
                    )
                    events.enter(mark.at_ns, regions[mark.region], attributes=attributes)
                else:
                    events.leave(mark.at_ns, regions[mark.region])
    # The zero of the clock; the writer assumes the time of its first event.
    archive._realtime_timestamp = timeline.began


@dataclass(frozen=True)
class Mark:
    """A region begins or ends at a location; `position`: epoch and step, None inside a step's region."""

    begins: bool
    at_ns: int
    region: str
    position: tuple[int, int] | None = None


def marks(track: pd.DataFrame) -> Iterator[Mark]:
    """Yield the begins and ends of a track's intervals in order, inside regions of steps."""
    is_communication = (track["phase"] == COMMUNICATION).any()
    bounds = () if is_communication else step_bounds(track).itertuples()
    step_rows = {(row.epoch, row.step): row for row in bounds}
    open_step = None
    for row in track.itertuples():
        step = step_rows.get((row.epoch, row.step))
        if open_step is not None and step is not open_step:
            yield Mark(False, open_step.end_ns, STEP)
        if step is not None and step is not open_step:
            yield Mark(True, step.begin_ns, STEP, (step.epoch, step.step))
        open_step = step
        yield Mark(True, row.begin_ns, row.phase, None if step else (row.epoch, row.step))
        yield Mark(False, row.end_ns, row.phase)
    if open_step is not None:
        yield Mark(False, open_step.end_ns, STEP)
