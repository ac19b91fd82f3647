"""Phases of ranks: marks become intervals that divide a rank's time; clocks of different ranks become one."""

import csv
import itertools
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from common.program_sources import SCRIPTS
from ranks.worker import phases
from ranks.worker.group import Group
from ranks.worker.operators import CLOCK, RAW, Event, moved
from ranks.worker.phases import (
    MAX_TRACED_STEPS,
    WINDOW_STEPS,
    Phases,
    ProfiledPhases,
    Untraced,
    process_start,
)
from runs.phases import NAMES, damage_reason, merge_phases
from support.ranks import on_ranks
from support.traces_made import attempt


def rows(folder: Path, rank: int = 0) -> list[tuple[int, int, str, float, float]]:
    with open(folder / f"phases-{rank}.csv", newline="") as table:
        return [
            (int(row["epoch"]), int(row["step"]), row["phase"], float(row["start"]), float(row["end"]))
            for row in csv.DictReader(table)
        ]


@pytest.fixture
def ticking(tmp_path: Path) -> Phases:
    """Marks with a clock that is one second later whenever it is read, from 1e6 on."""
    phases_of_rank = Phases(tmp_path, 0, steps=2)
    seconds = itertools.count(1_000_000)
    phases_of_rank.use_clock(lambda: float(next(seconds)), list)
    phases_of_rank._entered = [(0, 0, "interpreter", 999_999.0)]
    return phases_of_rank


def test_phases_divide_the_time_of_a_rank(ticking: Phases, tmp_path: Path) -> None:
    ticking.enter("import")
    ticking.close_epoch()
    ticking.open_epoch(1)
    for _ in range(2):
        ticking.step()
        for phase in ("data", "forward", "optimizer"):
            ticking.enter(phase)
    ticking.leave_steps()
    ticking.enter("validation")
    ticking.close_epoch()
    ticking.open_epoch(2)
    ticking.close_epoch()
    intervals = rows(tmp_path)
    assert [row[:3] for row in intervals] == [
        (0, 0, "interpreter"), (0, 0, "import"), (0, 0, "between"),
        (1, 1, "data"), (1, 1, "forward"), (1, 1, "optimizer"), (1, 2, "data"), (1, 2, "forward"),
        (1, 2, "optimizer"), (1, 0, "barrier"), (1, 0, "validation"), (1, 0, "between"),
    ]  # fmt: skip
    ends = {end for *_, end in intervals}
    gaps = [start for *_, start, _ in intervals if start not in ends]
    assert gaps == [999_999.0, 1_000_003.0], (
        "of none but the first phase, and the first of an epoch, begins what is nobody's"
    )


def test_overlapping_communication_ends_on_its_own(ticking: Phases, tmp_path: Path) -> None:
    ticking.open_epoch(1)
    ticking.step()
    ticking.enter("backward")
    first = ticking.begin()
    last = ticking.begin()
    first()
    ticking.close_epoch()
    last()  # in the next epoch, which a library may do
    ticking.put("communication", 5.0, 6.0)
    ticking.open_epoch(2)
    ticking.close_epoch()
    allreduces = [row for row in rows(tmp_path) if row[2] == "communication"]
    assert allreduces == [
        (1, 1, "communication", 1_000_002.0, 1_000_004.0),
        (1, 1, "communication", 1_000_003.0, 1_000_006.0),
        (1, 1, "communication", 5.0, 6.0),
    ]


def test_some_steps_of_a_long_epoch_are_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "MAX_TRACED_STEPS", 2)
    phases_of_rank = Phases(tmp_path, 0, steps=6)
    phases_of_rank.open_epoch(1)
    for _ in range(6):
        phases_of_rank.step()
        phases_of_rank.enter("data")
        phases_of_rank.put("communication", 0.0, 1.0)
        phases_of_rank.begin()()
    phases_of_rank.leave_steps()
    phases_of_rank.close_epoch()
    phases_of_rank.open_epoch(2)
    phases_of_rank.close_epoch()
    steps = [(row[1], row[2]) for row in rows(tmp_path) if row[1]]
    assert sorted(steps) == sorted(
        (step, phase) for step in (1, 4) for phase in ("data", "communication", "communication")
    )
    spent = [end - start for *_, start, end in rows(tmp_path) if end != 1.0]
    assert max(spent[1:]) < 1, "what is not traced is in no phase"


def test_stamps_of_another_clock_are_converted_at_the_end(tmp_path: Path) -> None:
    converted: list[Sequence[Any]] = []

    def seconds(stamps: Sequence[Any]) -> list[float]:
        converted.append(stamps)
        return [stamp if isinstance(stamp, float) else 100.0 + int(stamp) for stamp in stamps]

    phases_of_rank, marks = Phases(tmp_path, 0, steps=1), itertools.count(0, 10)
    phases_of_rank._entered = [(0, 0, "interpreter", 0.0)]
    phases_of_rank.use_clock(lambda: str(next(marks)), seconds)
    phases_of_rank.open_epoch(1)
    phases_of_rank.step()
    phases_of_rank.enter("data")
    phases_of_rank.enter("forward", at="15")
    assert not converted
    phases_of_rank.close_epoch()
    phases_of_rank.open_epoch(2)
    phases_of_rank.close_epoch()
    assert [row[2:] for row in rows(tmp_path)][1:3] == [("data", 110.0, 115.0), ("forward", 115.0, 120.0)]
    assert isinstance(converted[1][0], float), "the last stamp of the epoch before"


def test_an_untraced_run_keeps_nothing(tmp_path: Path) -> None:
    phases_of_rank = Untraced()
    phases_of_rank.open_epoch(1)
    phases_of_rank.step()
    phases_of_rank.enter("data")
    phases_of_rank.begin()()
    phases_of_rank.put("communication", 0.0, 1.0)
    phases_of_rank.leave_steps()
    phases_of_rank.close_epoch()
    assert not phases_of_rank.is_traced
    assert not list(tmp_path.iterdir())


def test_process_knows_its_start_time() -> None:
    assert 0 < time.monotonic() - process_start() < 24 * 3600


def test_clocks_of_one_machine_differ_by_no_more_than_the_error(tmp_path: Path) -> None:
    clocks: list[tuple[float, float]] = []

    def work(group: Group) -> None:
        offsets = group.clock_offsets()
        assert bool(offsets) == (group.rank == 0)
        clocks.extend(offsets)

    on_ranks(3, tmp_path, work)
    assert clocks[0] == (0.0, 0.0)
    assert len(clocks) == 3
    assert all(0 < error < 1 and abs(offset) <= error for offset, error in clocks[1:])


def test_drifting_clocks_are_aligned_to_rank_0(tmp_path: Path) -> None:
    """Rank 1's clock is 1000 s ahead, and goes 1 % too fast."""

    def rank_1_clock(at: float) -> float:
        return 1000 + 1.01 * at

    for rank, clock in ((0, float), (1, rank_1_clock)):
        with open(tmp_path / f"phases-{rank}.csv", "w") as table:
            table.write("epoch,step,phase,start,end\n")
            table.write(f"0,0,import,{clock(10)},{clock(20)}\n1,1,data,{clock(25)},{clock(25.5)}\n")
    (tmp_path / "clocks.csv").write_text(
        "epoch,rank,at,offset_s,error_s\n"
        + "".join(
            f"{i},{0},{at},0,0\n{i},1,{at},{rank_1_clock(at) - at},{1e-5 * (1 + i)}\n"
            for i, at in enumerate((10, 30))
        )
    )
    assert merge_phases(tmp_path) == pytest.approx(2e-5)
    merged = pd.read_csv(tmp_path / "phases.csv")
    assert merged.columns.tolist() == ["rank", "epoch", "step", "phase", "start", "end"]
    for rank in (0, 1):
        table = merged[merged["rank"] == rank]
        assert table[["start", "end"]].to_numpy().ravel() == pytest.approx([0, 10, 15, 15.5], abs=1e-6)
    assert not list(tmp_path.glob("phases-*.csv"))
    assert merge_phases(tmp_path) is None, "without tables to merge"


def test_profiler_events_are_moved_to_the_clock_of_phases(tmp_path: Path) -> None:
    """Rank 1's clock is 1000 s ahead, its process started half a second later than rank 0's."""
    for rank, ahead in ((0, 0), (1, 1000)):
        (tmp_path / f"phases-{rank}.csv").write_text(
            f"epoch,step,phase,start,end\n0,0,import,{ahead + 10 + rank / 2},{ahead + 20}\n"
        )
    (tmp_path / "clocks.csv").write_text("epoch,rank,at,offset_s,error_s\n0,0,10,0,0\n0,1,10,1000,1e-5\n")
    event = {"name": "conv", "ph": "X", "ts": 1015e6, "dur": 7.0}
    (tmp_path / RAW.format(1)).write_text(
        json.dumps({"traceEvents": [event, {"ph": "M", "name": "thread_name"}]})
    )
    merge_phases(tmp_path)
    trace = json.loads((tmp_path / "operators-1.json").read_text())
    assert trace["traceEvents"] == [{**event, "ts": 5e6}, {"ph": "M", "name": "thread_name"}]
    assert trace["process_start_ns"] == 500_000_000
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "clocks.csv",
        "operators-1.json",
        "phases.csv",
    ]


def test_phase_continues_after_a_wait(ticking: Phases, tmp_path: Path) -> None:
    ticking.open_epoch(1)
    ticking.step()
    for phase in ("data", "forward"):
        ticking.enter(phase)
        go_on = ticking.waits()
        go_on()
    ticking.leave_steps()
    ticking.close_epoch()
    assert [row[2] for row in rows(tmp_path) if row[1]] == ["data", "forward", "wait", "forward"]


def test_no_phase_has_a_negative_length(tmp_path: Path) -> None:
    phases_of_rank = Phases(tmp_path, 0, steps=1)
    phases_of_rank.open_epoch(1)
    phases_of_rank.step()
    now = time.monotonic()
    phases_of_rank.enter("forward", now)
    phases_of_rank.enter("backward", now - 1e-3)
    phases_of_rank.leave_steps()
    phases_of_rank.close_epoch()
    assert all(start <= end for *_, start, end in rows(tmp_path))


class Watching:
    """A profiler that remembers the calls that it got."""

    def __init__(self, phases: Phases) -> None:
        self.phases = phases
        self.calls: list[tuple[str, int, int]] = []

    def start(self) -> None:
        self.calls.append(("start", self.phases.epoch, self.phases.number))

    def stop(self) -> None:
        self.calls.append(("stop", self.phases.epoch, self.phases.number))

    def events(self) -> list[Event]:
        return [{"ph": "X", "name": "seen", "ts": 1.0, "dur": 2.0}]


@pytest.mark.parametrize(("steps", "stopped"), [(10, WINDOW_STEPS), (2, 2)])
def test_profilers_watch_the_first_steps_of_the_last_epoch(tmp_path: Path, steps: int, stopped: int) -> None:
    phases = ProfiledPhases(tmp_path, 0, steps=10 * MAX_TRACED_STEPS, last=2)
    profiler = Watching(phases)
    phases.use_profiler(profiler)
    phases.close_epoch()
    for epoch in (1, 2):
        phases.open_epoch(epoch)
        for _ in range(steps):
            phases.step()
            phases.enter("forward")
        phases.leave_steps()
        phases.close_epoch()
    assert profiler.calls == [("start", 1, 0), ("stop", 2, stopped)]
    assert json.loads((tmp_path / RAW.format(0)).read_text())["traceEvents"] == profiler.events()
    watched = [row[1] for row in rows(tmp_path) if row[0] == 2 and row[2] == "forward"]
    assert watched == list(range(1, min(steps, WINDOW_STEPS) + 1)), (
        "all of them are traced, of however long an epoch"
    )


def test_clock_of_a_profiler_follows_from_its_marks() -> None:
    clock_events = [{"name": CLOCK, "ph": "X", "ts": ts, "dur": 1} for ts in (5.0, 10.0)]
    name = {"name": "thread_name", "ph": "M"}
    (*_, event, metadata) = moved(
        [*clock_events, {"name": "conv", "ph": "X", "ts": 12.5, "dur": 1}, name], shown_at=3.0
    )
    assert event["ts"] == 3e6 + 2.5 and metadata == name


RANKS, EPOCHS, STEPS = 2, 3, 4


@pytest.fixture
def traced_attempt(tmp_path: Path) -> Path:
    """An attempt whose phases are those of its run."""
    table = attempt([0.0, 1.0], epochs=EPOCHS, steps=STEPS)
    table = table[(table["phase"] != "between") | (table["epoch"] < EPOCHS)]  # the last one never ends
    table.to_csv(tmp_path / "phases.csv", index=False, float_format="%.7f")
    rows = [f"{epoch},{rank},{10.0 * epoch},0.5,1e-5" for epoch in range(EPOCHS + 1) for rank in range(RANKS)]
    (tmp_path / "clocks.csv").write_text("\n".join(["epoch,rank,at,offset_s,error_s", *rows, ""]))
    return tmp_path


def drop_rows(file: Path, query: str) -> None:
    pd.read_csv(file).query(query).to_csv(file, index=False)


def replace_text(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def cut_lines(file: Path, lines: int) -> None:
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-lines]))


def test_phases_of_all_ranks_epochs_and_steps_are_whole(traced_attempt: Path) -> None:
    assert damage_reason(traced_attempt, RANKS, EPOCHS, STEPS) is None


def test_thinned_trace_is_complete(traced_attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `trace: full` has them."""
    monkeypatch.setattr("runs.phases.MAX_TRACED_STEPS", 4)
    traced = attempt([0.0, 1.0], epochs=EPOCHS, steps=12, every=3)
    fully = attempt([0.0, 1.0], epochs=EPOCHS, steps=12).query(f"epoch == {EPOCHS} and step in (2, 3)")
    pd.concat([traced, fully]).to_csv(traced_attempt / "phases.csv", index=False)
    assert damage_reason(traced_attempt, RANKS, EPOCHS, 12) is None


@pytest.mark.parametrize(
    ("damage", "code", "facts"),
    [
        (lambda folder: drop_rows(folder / "phases.csv", "rank != 1"), "rank-missing", {"rank": 1}),
        (lambda folder: cut_lines(folder / "phases.csv", 1), "phase-missing",
         {"phase": "validation", "rank": 1, "epoch": 3}),
        (lambda folder: cut_lines(folder / "phases.csv", 4), "phase-missing",
         {"phase": "metrics", "rank": 1, "epoch": 3, "step": 4}),
        (lambda folder: drop_rows(folder / "phases.csv", "epoch < 3"), "phase-missing",
         {"phase": "data", "rank": 0, "epoch": 3, "step": 1}),
        (lambda folder: drop_rows(folder / "phases.csv", "step < 4"), "step-missing", {"step": 4}),
        (lambda folder: drop_rows(folder / "phases.csv", "epoch > 0 or rank > 0"), "start-missing",
         {"rank": 0}),
        (lambda folder: replace_text(folder / "phases.csv", ",forward,", ",forwart,"), "unknown-phase",
         {"phase": "forwart"}),
        (lambda folder: replace_text(folder / "phases.csv", "\n1,", "\n7,"), "unknown-rank",
         {"got": 7, "most": 2}),
        (lambda folder: replace_text(folder / "phases.csv", "\n1,3,", "\n1,9,"), "unknown-epoch",
         {"got": 9, "most": 3}),
        (lambda folder: replace_text(folder / "phases.csv", "\n1,3,4,", "\n1,3,5,"), "unknown-step",
         {"got": 5, "most": 4}),
        (lambda folder: replace_text(folder / "phases.csv", ",0.4000000\n", ",nan\n"), "bad-interval",
         {"line": 2}),
        (lambda folder: replace_text(folder / "phases.csv", ",0.4000000\n", ",-1\n"), "bad-interval",
         {"line": 2}),
        (lambda folder: replace_text(folder / "phases.csv", "rank,epoch", "rank,epok"), "broken-file", {}),
        (lambda folder: (folder / "phases.csv").write_bytes(b"\xff\x00"), "broken-file", {}),
        (lambda folder: (folder / "phases.csv").unlink(), "missing-file", {"parts": []}),
        (lambda folder: (folder / "clocks.csv").unlink(), "missing-file", {"file": "clocks.csv"}),
        (lambda folder: drop_rows(folder / "clocks.csv", "rank == 0"), "rank-missing",
         {"file": "clocks.csv", "rank": 1}),
        (lambda folder: replace_text(folder / "clocks.csv", "\n3,1,", "\n3,5,"), "unknown-rank",
         {"file": "clocks.csv", "got": 5, "most": 2}),
        (lambda folder: replace_text(folder / "clocks.csv", "1e-5\n", "nan\n"), "not-finite",
         {"file": "clocks.csv"}),
    ],
)  # fmt: skip
def test_damaged_phases_are_reported(
    traced_attempt: Path, damage: Callable[[Path], object], code: str, facts: dict[str, object]
) -> None:
    damage(traced_attempt)
    reason = damage_reason(traced_attempt, RANKS, EPOCHS, STEPS)
    assert reason is not None and reason.code == code and "\n" not in reason
    assert reason.facts.items() >= ({"file": "phases.csv"} | facts).items()
    assert reason.startswith(f"{reason.facts['file']}: ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("phases-1.csv", "epoch,step,phase,start,end\n0,0,import,1,2\n0,0,bu"),
        ("phases-1.csv", ""),
        ("clocks.csv", None),
        ("clocks.csv", "epoch,rank,at,offset_s,error_s\n0,0,10,0,0\n0,1,10,0,nan\n"),
        (RAW.format(1), "{"),
    ],
)
def test_phases_that_cannot_be_merged_stay_as_they_are(tmp_path: Path, name: str, text: str | None) -> None:
    for rank in (0, 1):
        (tmp_path / f"phases-{rank}.csv").write_text("epoch,step,phase,start,end\n0,0,import,1,2\n")
    (tmp_path / "clocks.csv").write_text("epoch,rank,at,offset_s,error_s\n0,0,10,0,0\n0,1,10,0,1e-5\n")
    (tmp_path / name).unlink() if text is None else (tmp_path / name).write_text(text)
    merge_phases(tmp_path)
    assert damage_reason(tmp_path, 2, 1, 1), "whatever it has become"
    if not (tmp_path / "phases.csv").exists():
        reason = damage_reason(tmp_path, 2, 1, 1)
        assert reason is not None and reason.code == "missing-file"
        assert reason.facts == {"file": "phases.csv", "parts": ["phases-0.csv", "phases-1.csv"]}


def test_all_marked_phases_have_a_place_in_the_order() -> None:
    marks = re.compile(r"""phases\.(?:enter|begin|put)\(\s*"(\w+)\"""")
    marked = {name for file in (SCRIPTS / "ranks").rglob("*.py") for name in marks.findall(file.read_text())}
    assert {"speeds", "join", "optimizer"} <= marked <= NAMES
