"""Programs of MPI as phases: an archive that Score-P wrote of known sleeps (score_p/ranks.c), and small ones
with the same definitions.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import otf2
import pytest
from otf2.enums import GroupType, LocationGroupType, LocationType, Paradigm, RegionRole

from common.errors import InputError
from ranks.worker.phases import COMMUNICATION
from traces import otf2_read
from traces.otf2_read import read
from traces.timeline import read_intervals

WRITTEN = Path(__file__).with_name("score_p")
ROLES = {
    "MPI_Allreduce": RegionRole.COLL_ALL2ALL,
    "MPI_Iallreduce": RegionRole.COLL_ALL2ALL,
    "MPI_Wait": RegionRole.POINT2POINT,
    "MPI_Test": RegionRole.POINT2POINT,
    "MPI_Barrier": RegionRole.BARRIER,
    "MPI_Init": RegionRole.FUNCTION,
}
Event = tuple[int, str, str]  # ms, > or < or a request's ! and ?, region or number


def archive(folder: Path, ranks: Sequence[Sequence[Sequence[Event]]]) -> Path:
    """An archive of these events of the threads of these ranks, with a clock of 1 MHz that stood at 5 s."""
    with otf2.writer.open(str(folder), "traces", timer_resolution=10**6) as built:
        know = built.definitions
        machine = know.system_tree_node("machine", class_name="machine")
        mains, reported = [], []
        for rank, threads in enumerate(ranks):
            node = know.system_tree_node(f"node{rank}", class_name="node", parent=machine)
            process = know.location_group(
                f"MPI Rank {rank}", location_group_type=LocationGroupType.PROCESS, system_tree_parent=node
            )
            for thread, events in enumerate(threads):
                location = know.location(
                    f"thread {rank}.{thread}", type=LocationType.CPU_THREAD, group=process
                )
                mains += [location] * (thread == 0)
                reported.append((location, events))
        mains.reverse()  # rank 0 is the process that was defined last
        know.group("", group_type=GroupType.COMM_LOCATIONS, paradigm=Paradigm.MPI, members=tuple(mains))
        all_of = know.group(
            "all", group_type=GroupType.COMM_GROUP, paradigm=Paradigm.MPI, members=tuple(mains)
        )
        world = know.comm("MPI_COMM_WORLD", group=all_of)
        for location, events in reported:
            _put(built.event_writer_from_location(location), know, world, events)
    return folder / "traces.otf2"


def _put(writer: Any, know: Any, world: Any, events: Sequence[Event]) -> None:
    for at, kind, name in events:
        time = 5_000_000 + 1000 * at
        if kind in "<>":
            paradigm = Paradigm.MPI if name in ROLES else Paradigm.USER
            region = know.region(name, region_role=ROLES.get(name, RegionRole.FUNCTION), paradigm=paradigm)
            (writer.enter if kind == ">" else writer.leave)(time, region)
        elif kind == "!":
            writer.non_blocking_collective_request(time, int(name))
        else:
            operation = otf2.enums.CollectiveOp.ALLREDUCE
            writer.non_blocking_collective_complete(time, operation, world, 0, 8, 8, int(name))


def rows(anchor: Path) -> list[tuple[Any, ...]]:
    """Rank, epoch, step, phase, start and end in ms."""
    result = read(anchor).intervals
    result[["start", "end"]] = (1000 * result[["start", "end"]]).round(3)
    return sorted(result.itertuples(index=False, name=None), key=lambda row: (row[0], *row[4:], row[3]))


@pytest.fixture
def owner(tmp_path: Path) -> Callable[..., list[tuple[Any, ...]]]:
    """The rows of one rank with the events of these threads."""
    return lambda *threads: [row[1:] for row in rows(archive(tmp_path / "archive", [threads]))]


def test_the_innermost_region_is_the_phase(owner: Callable[..., Any]) -> None:
    assert owner([
        (0, ">", "epoch"), (0, ">", "step"), (1, ">", "backward"), (2, ">", "helper"),
        (3, ">", "MPI_Allreduce"), (5, "<", "MPI_Allreduce"), (6, "<", "helper"), (7, "<", "backward"),
        (9, "<", "step"), (9, ">", "MPI_Barrier"), (11, "<", "MPI_Barrier"), (12, "<", "epoch"),
    ]) == [
        (1, 1, "other", 0, 1), (1, 1, "backward", 1, 3), (1, 1, "communication", 3, 5), (1, 1, "wait", 3, 5),
        (1, 1, "backward", 5, 7), (1, 1, "other", 7, 9), (1, 0, "barrier", 9, 11),
    ]  # fmt: skip


def test_what_returns_at_once_ends_with_its_request(owner: Callable[..., Any]) -> None:
    assert owner([
        (0, ">", "step"), (1, ">", "MPI_Iallreduce"), (1, "!", "8"), (2, "<", "MPI_Iallreduce"),
        (2, ">", "MPI_Test"), (3, "<", "MPI_Test"), (4, "<", "step"), (4, ">", "step"), (5, ">", "MPI_Wait"),
        (7, "?", "8"), (8, "<", "MPI_Wait"), (8, "<", "step"),
    ]) == [
        (1, 1, "other", 0, 4), (1, 1, "communication", 1, 7), (1, 2, "other", 4, 5), (1, 2, "wait", 5, 8)
    ]  # fmt: skip


def test_another_thread_communicates_beside_the_phases(owner: Callable[..., Any]) -> None:
    assert owner(
        [(0, ">", "user:step"), (1, ">", "user:backward"), (8, "<", "user:backward"), (9, "<", "user:step")],
        [
            (2, ">", "MPI_Allreduce"),
            (6, "<", "MPI_Allreduce"),
            (7, ">", "MPI_Barrier"),
            (8, "<", "MPI_Barrier"),
        ],
    ) == [
        (1, 1, "other", 0, 1),
        (1, 1, "backward", 1, 8),
        (1, 1, "communication", 2, 6),
        (1, 1, "other", 8, 9),
    ]


def test_ranks_are_those_of_mpi_and_times_start_at_zero(tmp_path: Path) -> None:
    anchor = archive(
        tmp_path / "archive",
        [[[(3, ">", "MPI_Init"), (4, "<", "MPI_Init")]], [[(1, ">", "MPI_Init"), (5, "<", "MPI_Init")]]],
    )
    assert rows(anchor) == [(0, 0, 0, "join", 0, 4), (1, 0, 0, "join", 2, 3)]
    assert read(anchor).hosts == ("node1", "node0")


@pytest.mark.parametrize(
    ("resolution", "offset", "reported", "seconds"),
    [
        (10**9, 5, 1_795_602_498 * 10**9, 1_795_602_498.0),
        (10**6, 1_795_602_498_663_790, None, 1_795_602_498.66379),  # as Score-P's timer gettimeofday
        (2_596_142_600, 7_585_661_954_014, None, 0.0),  # as its timer tsc: 49 minutes of uptime
    ],
)
def test_the_time_of_day_of_an_archive(
    resolution: int, offset: int, reported: int | None, seconds: float
) -> None:
    realtime = otf2.enums.Undefined.TIMESTAMP.value if reported is None else reported
    clock = SimpleNamespace(timer_resolution=resolution, global_offset=offset, realtime_timestamp=realtime)
    assert otf2_read.start_time(clock) == pytest.approx(seconds, abs=1e-6)


def test_what_score_p_wrote(tmp_path: Path) -> None:
    shutil.copytree(WRITTEN, tmp_path / "score_p")
    otf2_read.convert(tmp_path / "score_p" / "traces.otf2")
    reported = read_intervals(tmp_path / "score_p" / "phases.csv")
    reported["length"] = reported["end"] - reported["start"]
    assert set(reported["rank"]) == {0, 1}
    training = reported[reported["epoch"] > 0]
    assert set(zip(training["epoch"], training["step"], strict=True)) == {
        (e, s) for e in (1, 2) for s in (0, 1, 2)
    }

    for (rank, _, step), mine in training.groupby(["rank", "epoch", "step"]):
        neighbour = mine["phase"] == COMMUNICATION
        phases = mine[~neighbour].sort_values("start")
        if step == 0:
            assert list(mine["phase"]) == ["barrier"]
            continue
        # One by MPI_Iallreduce, one by the other thread, one inside of backward, one sent, one received.
        assert neighbour.sum() == 5
        assert (phases["start"].to_numpy()[1:] - phases["end"].to_numpy()[:-1] == 0).all(), (
            "phases divide the step's time"
        )
        spent = phases.groupby("phase")["length"].sum()
        assert spent["forward"] >= 0.004 and spent["optimizer"] >= 0.001
        assert spent["backward"] >= (0.012 if rank == 1 else 0.006)
        longest = mine[neighbour].sort_values("length").iloc[-1]
        assert longest["length"] >= 0.012, (
            "MPI_Iallreduce, from its call until both ranks have made it and wait for it"
        )

    waited = (
        training[(training["phase"] == "wait") & (training["step"] > 0)]
        .groupby(["rank", "epoch", "step"])["length"]
        .sum()
    )
    for epoch, step in ((e, s) for e in (1, 2) for s in (1, 2)):
        assert waited[0, epoch, step] > waited[1, epoch, step] + 0.004, "rank 0 waits for rank 1"
    before = reported[reported["epoch"] == 0]
    assert set(before["phase"]) == {"join", "wait", COMMUNICATION}, "MPI_Init_thread and MPI_Bcast"
    assert (tmp_path / "score_p" / "trace.json").exists()


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    empty = archive(tmp_path / "empty", [[[(0, ">", "helper"), (1, "<", "helper")]]])
    for do, code, file in (
        (lambda: read(tmp_path / "traces.otf2"), "missing-file", "traces.otf2"),
        (lambda: otf2_read.convert(Path("traces.json")), "bad-pattern", "traces.json"),
        (lambda: read(empty), "no-phases", "empty/traces.otf2"),
    ):
        with pytest.raises(InputError) as refused:
            do()
        assert refused.value.code == code and refused.value.file.endswith(file)


@pytest.mark.parametrize("part", ["traces.otf2", "traces.def", "traces/0.evt"])
@pytest.mark.parametrize(
    "broken",
    [lambda full: b"", lambda full: full[: len(full) // 2], lambda full: full.replace(b"\x00", b"\xdb")],
    ids=["empty", "half", "other bytes"],
)  # fmt: skip
def test_a_broken_archive_is_one_line_and_nothing_else(
    part: str, broken: Callable[[bytes], bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither the library's own messages, which name lines of its source, nor a part of the trace for the
    whole.
    """
    shutil.copytree(WRITTEN, tmp_path / "broken")
    (tmp_path / "broken" / part).write_bytes(broken((WRITTEN / part).read_bytes()))
    with pytest.raises(InputError) as refused:
        read(tmp_path / "broken" / "traces.otf2")
    assert refused.value.code == "broken-file" and refused.value.file.endswith("broken/traces.otf2")
    assert "traces.def" in refused.value.expected
    assert capfd.readouterr() == ("", "")
