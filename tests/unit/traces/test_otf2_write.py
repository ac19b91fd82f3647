"""Our archives of OTF2, read by the library that reads them for everybody, and as phases again."""

import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import otf2
import pandas as pd
from otf2.enums import GroupType, LocationGroupType, RegionRole

from support.debian import require_programs
from support.traced import TIMELINE
from traces import otf2_read, otf2_write


def events(anchor: Path) -> tuple[Any, list[tuple[Any, Any]]]:
    with otf2.reader.open(str(anchor)) as archive:
        return archive.definitions, list(archive.events)


def test_rank_is_a_process_with_a_location_for_each_track(tmp_path: Path) -> None:
    built, reported = events(otf2_write.write(replace(TIMELINE, began=1.8e9), tmp_path / "otf2"))
    assert [
        (group.name, group.location_group_type, group.system_tree_parent.name,
         group.system_tree_parent.parent.class_name)
        for group in built.location_groups
    ] == [
        ("rank 0: alpha, CPU A", LocationGroupType.PROCESS, "alpha", "machine"),
        ("rank 1: beta, CPU B", LocationGroupType.PROCESS, "beta", "machine"),
    ]  # fmt: skip
    assert [location.name for location in built.locations] == [
        "rank 0: phases", "rank 0: communication 1", "rank 1: phases", "rank 1: communication 1", "rank 1: communication 2"
    ]  # fmt: skip
    clock = built.clock_properties
    assert (clock.timer_resolution, clock.global_offset, clock.realtime_timestamp) == (
        10**9,
        0,
        1_800_000_000 * 10**9,
    )
    assert clock.trace_length == 1_200_000_000
    roles = {region.name: region.region_role for region in built.regions}
    assert roles["communication"] == RegionRole.COLL_ALL2ALL and roles["forward"] == RegionRole.FUNCTION
    kinds = {
        group.name: {region.name for region in group.members}
        for group in built.groups
        if group.group_type == GroupType.REGIONS
    }
    assert kinds["communicating"] == {"communication"} and {"forward", "backward"} <= kinds["computing"]
    assert Counter(location.name for location, _ in reported)["rank 0: phases"] == 2 * (6 + 2), (
        "six phases, two steps"
    )


def test_times_never_go_back_and_regions_nest(tmp_path: Path) -> None:
    _, reported = events(otf2_write.write(TIMELINE, tmp_path / "otf2"))
    for location in {location for location, _ in reported}:
        stack: list[Any] = []
        before = 0
        for event in (event for present, event in reported if present == location):
            assert event.time >= before
            before = event.time
            if isinstance(event, otf2.events.Enter):
                stack.append(event.region)
            else:
                assert stack.pop() == event.region
        assert not stack


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    ordered = TIMELINE.intervals.sort_values(["rank", "start", "end"], kind="stable").reset_index(drop=True)
    for _ in range(2):  # the second one takes the place of the first
        anchor = otf2_write.write(TIMELINE, tmp_path / "otf2")
        again = otf2_read.read(anchor)
        pd.testing.assert_frame_equal(
            again.intervals.sort_values(["rank", "start", "end"], kind="stable").reset_index(drop=True),
            ordered, rtol=0, atol=1e-9,
        )  # fmt: skip
        assert again.hosts == ("alpha", "beta")
    assert [path.name for path in tmp_path.iterdir()] == ["otf2"]


def test_the_tools_of_otf2_find_nothing_wrong(tmp_path: Path) -> None:
    require_programs(["otf2-print"], ["otf2-tools"])
    anchor = otf2_write.write(TIMELINE, tmp_path / "otf2")
    done = subprocess.run(["otf2-print", str(anchor)], capture_output=True, text=True, check=True)
    assert done.stdout.count("ENTER") == done.stdout.count("LEAVE") == len(TIMELINE.intervals) + 3
    assert "rror" not in done.stdout + done.stderr
