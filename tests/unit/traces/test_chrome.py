"""What Perfetto is given of a trace: read back, and held to what its importer asks for."""

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from common.errors import InputError
from support.traced import ROWS, TIMELINE
from traces import chrome
from traces.timeline import Timeline, assign_lanes


def imported(full: Any) -> dict[tuple[int, int], list[tuple[int, int, dict[str, Any]]]]:
    """The intervals of each thread as Perfetto takes them (importers/json: llround of ts and dur x 1000),
    which drops none of them.
    """
    assert set(full) == {"displayTimeUnit", "otherData", "traceEvents"} and full["displayTimeUnit"] in (
        "ms",
        "ns",
    )
    assert all(isinstance(value, str) for value in full["otherData"].values())
    threads: dict[tuple[int, int], list[tuple[int, int, dict[str, Any]]]] = defaultdict(list)
    for event in full["traceEvents"]:
        assert type(event["pid"]) is int and type(event["tid"]) is int and 0 <= event["tid"] < 2**31
        assert event["ph"] in ("M", "X", "i", "s", "t", "f"), event
        if event["ph"] == "X":
            begin, length = (round(event[name] * 1000) for name in ("ts", "dur"))
            assert begin >= 0 and length >= 0
            threads[event["pid"], event["tid"]].append((begin, begin + length, event))
    for (
        thread
    ) in threads.values():  # in the order of the file where they begin together, as Perfetto sorts them
        thread.sort(key=lambda result: result[0])
        stack: list[int] = []
        for begin, end, event in thread:
            while stack and stack[-1] <= begin:
                stack.pop()
            assert not stack or end <= stack[-1], f"{event} begins in another interval and ends after it"
            stack.append(end)
    return dict(threads)


def named(full: Any, column: str) -> dict[tuple[int, int], str]:
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in full["traceEvents"]
        if event["ph"] == "M" and event["name"] == f"{column}_name"
    }


def test_all_ranks_are_in_one_file(tmp_path: Path) -> None:
    full = json.loads(chrome.write(TIMELINE, tmp_path).read_text())
    threads = imported(full)
    assert named(full, "process") == {(0, 0): "rank 0: alpha, CPU A", (1, 0): "rank 1: beta, CPU B"}
    assert named(full, "thread") == {
        (0, 1): "phases", (0, 2): "communication 1", (1, 1): "phases", (1, 2): "communication 1", (1, 3): "communication 2"
    }  # fmt: skip
    result = sorted(
        (rank, event["args"]["epoch"], event["args"]["step"], event["name"], begin, end)
        for (rank, _), thread in threads.items()
        for begin, end, event in thread
        if event["cat"] != "step"
    )
    assert result == sorted((*row[:4], round(row[4] * 1e9), round(row[5] * 1e9)) for row in ROWS)
    assert full["otherData"] == {"run_id": "a.r1", "clock_error_s": "1e-06"}


def test_steps_lie_around_their_phases(tmp_path: Path) -> None:
    full = json.loads(chrome.write(TIMELINE, tmp_path).read_text())
    steps = [result for result in imported(full)[0, 1] if result[2]["cat"] == "step"]
    assert [(begin, end, event["name"]) for begin, end, event in steps] == [
        (500_000_000, 950_000_000, "step 1"),
        (950_000_000, 1_100_000_000, "step 2"),
    ]


def test_a_large_one_is_compressed_in_place_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = chrome.write(TIMELINE, tmp_path)
    text = plain.read_bytes()
    monkeypatch.setattr(chrome, "MIN_COMPRESSED_BYTES", len(text))
    packed = chrome.write(TIMELINE, tmp_path)
    assert packed.name == "trace.json.gz" and gzip.decompress(packed.read_bytes()) == text
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]


def test_no_interval_overlaps_another_in_its_lane() -> None:
    drawn = np.random.default_rng(3)
    for _ in range(50):
        begins = np.sort(drawn.integers(0, 100, 30))
        ends = begins + drawn.integers(0, 30, 30)
        lane = np.array(assign_lanes(begins.tolist(), ends.tolist()))
        for number in set(lane.tolist()):
            mine = lane == number
            assert (begins[mine][1:] >= ends[mine][:-1]).all()
        maximum = max(((begins <= at) & (ends > at)).sum() for at in range(130))
        assert lane.max() + 1 <= maximum + 1, (
            "no more lanes than there are at a time, but for what takes no time"
        )


def test_what_comes_before_training_ends_with_its_begin() -> None:
    """LBANN trains while its rank still gets ready to hear of it."""
    rows = [
        (0, 0, "build", 0.0, 1.0),
        (0, 0, "barrier", 1.0, 1.4),
        (0, 0, "between", 1.4, 1.5),
        (1, 1, "forward", 1.2, 1.6),
        (1, 0, "barrier", 1.6, 1.7),
    ]
    built = pd.DataFrame(
        [(0, *row) for row in rows], columns=["rank", "epoch", "step", "phase", "start", "end"]
    )
    (_, track), *_ = Timeline(built).tracks(0)
    assert list(zip(track["phase"], track["begin_ns"] // 10**6, track["end_ns"] // 10**6, strict=True)) == [
        ("build", 0, 1000), ("barrier", 1000, 1200), ("forward", 1200, 1600), ("barrier", 1600, 1700)
    ]  # fmt: skip


THREAD = {"pid": 4711, "tid": 4711}
NAME = {"ph": "M", "ts": 0}
CPU = {"cat": "cpu_op", "name": "aten::addmm", "ts": 510_000.125, "dur": 1.5}
KERNEL = {"cat": "kernel", "name": "sgemm", "pid": 0, "tid": "stream 7", "ts": 510_001.0, "dur": 2.0}
OPERATORS = {
    "traceEvents": [
        {**NAME, **THREAD, "name": "thread_name", "args": {"name": "thread 4711 (python)"}},
        {**NAME, "name": "process_name", "pid": 4711, "tid": 0, "args": {"name": "python"}},
        {"ph": "X", **THREAD, **CPU},
        {"ph": "s", "id": 5, "cat": "fwdbwd", "name": "fwdbwd", **THREAD, "ts": 510_000.125},
        {"ph": "X", **KERNEL},
    ]
}


def test_operators_come_below_the_phases(tmp_path: Path) -> None:
    file = tmp_path / "operators-1.json"
    file.write_text(json.dumps(OPERATORS))
    timeline = replace(TIMELINE, operators={1: file})
    full = json.loads(chrome.write(timeline, tmp_path).read_text())
    threads = imported(full)
    first, second = chrome.FIRST_PROFILER_THREAD, chrome.FIRST_PROFILER_THREAD + 1
    assert [(*result[:2], result[2]["name"]) for result in threads[1, first]] == [
        (510_000_125, 510_001_625, "aten::addmm")
    ]
    assert [result[:2] for result in threads[1, second]] == [(510_001_000, 510_003_000)]
    names = named(full, "thread")
    assert (names[1, first], names[1, second]) == ("profiler: thread 4711 (python)", "profiler: stream 7")
    assert named(full, "process")[1, 0] == "rank 1: beta, CPU B"
    (arrow,) = (event for event in full["traceEvents"] if event["ph"] == "s")
    assert arrow["id"] == "1.5" and arrow["pid"] == 1, "arrows of two ranks are told apart"


def test_an_operator_that_ends_a_nanosecond_too_late_is_not_lost() -> None:
    outer, inner = {"name": "outer", "ts": 1.0, "dur": 3.0}, {"name": "inner", "ts": 2.001, "dur": 2.0}
    late = {"name": "late", "ts": 3.0, "dur": 7.0}
    reported = list(chrome.nest_intervals([late, inner, outer]))
    assert [(event["name"], event["dur"]) for event in reported] == [
        ("outer", 3.0),
        ("inner", 1.999),
        ("late", 7.0),
    ]


@pytest.mark.parametrize("text", ["{}", "[", '{"traceEvents": 3}'])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "operators-0.json"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        chrome.write(Timeline(TIMELINE.intervals, operators={0: file}), tmp_path)
    assert refused.value.code == "broken-file" and refused.value.file.endswith("operators-0.json")
    assert refused.value.expected == "traceEvents"
