"""After a block it is decided which cells get another run, from the records of the blocks so far."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import tables
from analysis.measured import read_runs
from common.schemas import check
from declared.figures import Declared
from declared.study import Replicates
from figures import draw
from plan.decisions import BY_CHANCE, NO, NOT_ASKED
from precision import decide, reached
from precision.stopping import looks
from support.synthetic import campaign, write_frames

ALONE = "pytorch-single.small-cnn.digits.b16.n1.s1"
OTHER = "pytorch-single.small-cnn.digits.b32.n1.s1"
FAILED = "pytorch-single.small-cnn.digits.b64.n1.s1"


@pytest.fixture
def runs(tmp_path: Path) -> pd.DataFrame:
    """Three runs of each of three cells: one is noisy, one has no successful run."""
    failures = {f"{FAILED}.r{number}": ("failed", "no memory") for number in (1, 2, 3)}
    made, epochs = campaign(replicates=3, noise=0.001, failures=failures)
    some = made["cell"].isin([ALONE, OTHER, FAILED])
    read = read_runs(write_frames(tmp_path, made[some], epochs)[0])
    noisy = read["cell"] == OTHER
    read.loc[noisy, "epoch_time_s"] = [1.0, 1.5, 0.8]
    return read


def test_a_cell_that_is_not_precise_gets_another_run(runs: pd.DataFrame) -> None:
    said = decide.decision(runs, Replicates(3, 9, 0.1), 3)
    check(said, "decision", Path("block-3.json"))
    assert {cell: (one["n"], one["reached"], one["refine"]) for cell, one in said["cells"].items()} == {
        ALONE: (3, BY_CHANCE, True),
        OTHER: (3, NO, True),
        FAILED: (0, NO, False),
    }
    assert said["cells"][FAILED]["half_width"] is None, "a cell without a successful run gets no more"
    assert said["cells"][ALONE]["expected"] == said["cells"][OTHER]["expected"] == 9
    assert decide.summary(said) == (
        f"precision after block 3: 1 of 3 cells within 10 %, 1 perhaps by chance; another run of 2 cells "
        f"({ALONE}, {OTHER}) in block 4"
    )


def test_after_at_most_runs_or_where_all_are_precise_nothing_is_refined(runs: pd.DataFrame) -> None:
    assert not looks(runs, Replicates(3, 3, 0.1))["refine"].any()
    said = decide.decision(runs, Replicates(3, 9, 0.9, {"batch_size": (16, 32)}), 9)
    assert {cell: one["reached"] for cell, one in said["cells"].items()}[FAILED] == NOT_ASKED
    assert decide.summary(said) == (
        "precision after block 9: ratios of 2 of 2 cells within 90 %, 2 perhaps by chance; no cell gets more runs, as at_most is reached"
    )
    said = decide.decision(runs, Replicates(3, 9, 0.1), 9)
    assert decide.summary(said).endswith(
        f"1 of 3 cells within 10 %, 1 perhaps by chance; no cell gets more runs, as at_most is reached; not precise: {OTHER}, {FAILED}"
    )


def test_contrasts_are_the_widest_ratio_of_a_cell_and_others_need_not_be_precise(runs: pd.DataFrame) -> None:
    found = looks(runs, Replicates(3, 9, 0.001, {"batch_size": (16, 32)}))
    assert found["half_width"][ALONE] == found["half_width"][OTHER] > 0.1
    assert found["refine"].to_dict() == {ALONE: True, OTHER: True, FAILED: False}
    assert found["reached"][FAILED] == NOT_ASKED and np.isnan(found["half_width"][FAILED]), "64 is none of the levels"
    assert not looks(runs, Replicates(3, 9, 0.001, {"sync_every": (1, 4)}))["refine"].any(), (
        "no cell is in such a contrast"
    )


def test_what_was_reached_is_said_once_for_all(runs: pd.DataFrame) -> None:
    assert reached.said(runs, Replicates(3, 3)) == ""
    assert reached.said(runs, Replicates(3, 9, 0.1)) == (
        "Replicates are chosen by precision: a cell has 3 to 9 runs, until half the 95 % interval of its mean epoch time is 10 % or less "
        "(n = 3). This is so far not reached by 2 of 3 cells: batch size 32; batch size 64; by 1 cell perhaps by chance."
    )
    used_up = Replicates(3, 3, 0.1)
    assert reached.said(runs, used_up).startswith("Replicates were chosen") and "This was not" in reached.said(
        runs, used_up
    )
    made = reached.table(runs, used_up)
    assert made.shown["reached"].tolist() == [BY_CHANCE, NO, NO] and made.shown["half width (%)"].tolist()[2] == "–"


def test_a_cell_that_is_in_no_ratio_is_not_asked(runs: pd.DataFrame) -> None:
    made = reached.table(runs, Replicates(3, 3, 0.9, {"batch_size": (16, 32)}))
    assert made.data["reached"].tolist() == [BY_CHANCE, BY_CHANCE, NOT_ASKED]
    assert "reached by all cells in such ratios; by 2 cells perhaps by chance" in " ".join(made.notes)
    assert any(note.startswith("Not asked: the cell is in no ratio") for note in made.notes)


@pytest.mark.slow
def test_captions_say_it_in_few_words(runs: pd.DataFrame, tmp_path: Path) -> None:
    tables.write(reached.table(runs, Replicates(3, 3, 0.1)), tmp_path / "precision")
    asked = Declared("overview", "overview").to_json()
    files = [
        "--runs",
        str(tmp_path / "runs.csv"),
        "--epochs",
        str(tmp_path / "epochs.csv"),
        "--out",
        str(tmp_path / "made"),
    ]
    draw.main(["--asked", asked, *files])
    plain = (tmp_path / "made.caption.md").read_text()
    draw.main(["--asked", asked, *files, "--precision", str(tmp_path / "precision.csv")])
    assert (tmp_path / "made.caption.md").read_text() == (
        f"{plain[:-1]} The number of runs was chosen by precision (half intervals of 10 %): 2 of 3 cells did not reach it, 1 perhaps by chance.\n"
    )
    tables.write(reached.table(runs, Replicates(3, 9, 0.1)), tmp_path / "precision")
    assert reached.in_few_words(tmp_path / "precision.csv") == (
        "The number of runs is chosen by precision (half intervals of 10 %): so far 2 of 3 cells have not reached it, 1 perhaps by chance."
    )
