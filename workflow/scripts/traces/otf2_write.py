"""A trace as an archive of OTF2, the Open Trace Format 2, which Vampir and the tools of Score-P open.

A rank is a location group on its host, in the machine that is the site. Its phases are one location, its exchanges others, as many as
overlap. What went on is a region, those of a step inside one of their own; attributes say which epoch and step.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import otf2
import pandas as pd
from otf2.enums import GroupType, LocationGroupType, LocationType, Paradigm, RegionRole, SystemTreeDomain, Type

from ranks.worker.phases import EXCHANGE
from traces.timeline import NS, STEP, Timeline, steps

NAME = "trace"
ROLES = {  # of the regions; all others are functions
    STEP: RegionRole.LOOP,
    EXCHANGE: RegionRole.COLL_ALL2ALL,
    "wait": RegionRole.THREAD_WAIT,
    "barrier": RegionRole.BARRIER,
    "data": RegionRole.DATA_TRANSFER,
}
KINDS = {  # groups of regions: Vampir gives each a colour
    "computing": ("forward", "backward", "metrics", "optimizer", "validation"),
    "waiting": ("wait", "barrier", "data"),
    "exchanging": (EXCHANGE,),
}


def write(timeline: Timeline, folder: Path) -> Path:
    """Write the archive as `folder`, whole or not at all, in the place of an older one; its anchor, the file to open."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        made = Path(scratch) / folder.name
        with otf2.writer.open(str(made), NAME, timer_resolution=NS) as archive:
            _fill(archive, timeline)
        if folder.exists():
            folder.rename(Path(scratch) / "older")
        made.rename(folder)
    return folder / f"{NAME}.otf2"


def _fill(archive: Any, timeline: Timeline) -> None:
    made = archive.definitions
    archive.creator, archive.description = "Ringside", str(timeline.about.get("run_id", ""))
    machine = made.system_tree_node(str(timeline.about.get("site", "machine")), class_name="machine")
    for name, value in timeline.about.items():
        if value is not None:
            made.system_tree_node_property(machine, name, Type.STRING, str(value))
    hosts = {}
    for host in dict.fromkeys(map(timeline.host, timeline.ranks)):
        hosts[host] = made.system_tree_node(host, class_name="node", parent=machine)
        made.system_tree_node_domain(hosts[host], SystemTreeDomain.SHARED_MEMORY)
    regions = {
        phase: made.region(phase, region_role=ROLES.get(phase, RegionRole.FUNCTION), paradigm=Paradigm.USER)
        for phase in [STEP, *timeline.intervals["phase"].unique()]
    }
    for kind, phases in KINDS.items():
        if there := tuple(regions[phase] for phase in phases if phase in regions):
            made.group(kind, group_type=GroupType.REGIONS, paradigm=Paradigm.USER, members=there)
    told = [
        made.attribute(name, f"training {name}, from 1; 0 is outside of them", Type.UINT64) for name in ("epoch", STEP)
    ]
    for rank in timeline.ranks:
        process = made.location_group(
            timeline.title(rank),
            location_group_type=LocationGroupType.PROCESS,
            system_tree_parent=hosts[timeline.host(rank)],
        )
        for name, track in timeline.tracks(rank):
            location = made.location(f"rank {rank}: {name}", type=LocationType.CPU_THREAD, group=process)
            events = archive.event_writer_from_location(location)
            for mark in marks(track):
                if mark.begins:
                    attributes = dict(zip(told, mark.where, strict=True)) if mark.where else None
                    events.enter(mark.at_ns, regions[mark.region], attributes=attributes)
                else:
                    events.leave(mark.at_ns, regions[mark.region])
    # When the clock stood at its zero: the writer took the time of its first event for it.
    archive._realtime_timestamp = timeline.began


@dataclass(frozen=True)
class Mark:
    """A region begins or ends at a location; `where`: the epoch and step that it is told to be in, None where its step is around it."""

    begins: bool
    at_ns: int
    region: str
    where: tuple[int, int] | None = None


def marks(track: pd.DataFrame) -> Iterator[Mark]:
    """The intervals of a track, those of a step inside of it, as marks in their order."""
    around = (
        {} if (track["phase"] == EXCHANGE).any() else {(row.epoch, row.step): row for row in steps(track).itertuples()}
    )
    inside = None
    for row in track.itertuples():
        step = around.get((row.epoch, row.step))
        if inside is not None and step is not inside:
            yield Mark(False, inside.end_ns, STEP)
        if step is not None and step is not inside:
            yield Mark(True, step.begin_ns, STEP, (step.epoch, step.step))
        inside = step
        yield Mark(True, row.begin_ns, row.phase, None if step else (row.epoch, row.step))
        yield Mark(False, row.end_ns, row.phase)
    if inside is not None:
        yield Mark(False, inside.end_ns, STEP)
