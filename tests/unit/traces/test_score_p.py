"""Score-P's events beside a run's phases: on their clock, each all-reduce in the step in which it began."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from common.files import write_json
from environments import scorep
from ranks.worker.phases import COMMUNICATION
from traces import score_p
from traces.otf2_read import read
from traces.timeline import Timeline

WRITTEN = Path(__file__).with_name("score_p")
BEGAN, ZERO = 0.25, 0.05  # of the first phase of rank 0 before Score-P's clock, and on the run's own
STEP_S = 0.001


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """With what Score-P wrote of two ranks, and its clock."""
    shutil.copytree(WRITTEN, tmp_path / scorep.FOLDER)
    write_json(tmp_path / scorep.CLOCK, {"rank_0_began": read(tmp_path / scorep.ANCHOR).began - BEGAN})
    return tmp_path


def phases(steps: dict[int, list[tuple[float, float]]]) -> Timeline:
    """Of two ranks, the first of which began at ZERO, with these steps by epoch, in s from its begin."""
    rows = [
        (rank, epoch, number, "optimizer", ZERO + start, ZERO + end)
        for rank in (0, 1)
        for epoch, of_epoch in steps.items()
        for number, (start, end) in enumerate(of_epoch, start=1)
    ]
    rows += [(0, 0, 0, "interpreter", ZERO, ZERO + 0.1), (1, 0, 0, "interpreter", 0.0, 0.1)]
    return Timeline(
        pd.DataFrame(rows, columns=["rank", "epoch", "step", "phase", "start", "end"]).sort_values(
            ["rank", "start"]
        )
    )


def test_allreduces_get_the_clock_of_phases_and_their_steps(attempt: Path) -> None:
    """A step around each MPI_Allreduce that the main thread of rank 0 made: its begin is that step's, and
    nothing else's.
    """
    reported = read(attempt / scorep.ANCHOR).intervals
    mpi_calls = reported[(reported["phase"] == COMMUNICATION)].assign(
        start=lambda t: t["start"] + BEGAN, end=lambda t: t["end"] + BEGAN
    )
    of_0 = mpi_calls[mpi_calls["rank"] == 0].sort_values("start", ignore_index=True)
    first, later = of_0.loc[3, "start"], of_0.loc[8, "start"]
    own = phases({1: [(first - STEP_S, first + STEP_S)], 2: [(later - STEP_S, later + STEP_S)]})
    result = score_p.add_communication(own, attempt).intervals
    assert len(result) == len(own.intervals) + len(mpi_calls), (
        "what it saw of waiting and joining is not taken"
    )
    mine = result[(result["rank"] == 0) & (result["phase"] == COMMUNICATION)].reset_index(drop=True)
    assert mine["start"].to_numpy() == pytest.approx(of_0["start"] + ZERO, abs=1e-6)
    assert mine["end"].to_numpy() == pytest.approx(of_0["end"] + ZERO, abs=1e-6)
    for number, row in mine.iterrows():
        at = row["start"] - ZERO
        inside = [epoch for epoch, begin in ((1, first), (2, later)) if begin - STEP_S <= at < begin + STEP_S]
        last = 0 if at < first - STEP_S else 1 if at < later - STEP_S else 2
        assert (row["epoch"], row["step"]) == ((inside[0], 1) if inside else (last, 0)), number
    assert set(mine["epoch"]) == {0, 1, 2} and set(mine["step"]) == {0, 1}


def test_without_a_clock_that_was_compared_nothing_is_added(attempt: Path) -> None:
    own = phases({1: [(0.3, 0.4)]})
    (attempt / scorep.CLOCK).unlink()
    assert score_p.add_communication(own, attempt) is own
