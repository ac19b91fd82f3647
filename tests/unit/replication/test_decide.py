"""Decisions which cells get another run, from the records of the blocks so far."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import tables
from analysis.records import read_runs
from common.notes import codes, find_note
from common.schemas import check
from declared.figure_specs import FigureSpec
from declared.replicates import Replicates
from figures import draw
from plan.decisions import BY_CHANCE, NO, NOT_ASKED
from replication import decide, reached
from replication.stopping import judge_cells
from support.synthetic import campaign, write_frames

ALONE = "pytorch-single.small-cnn.digits.b16.n1.s1"
NOISY = "pytorch-single.small-cnn.digits.b32.n1.s1"
FAILED = "pytorch-single.small-cnn.digits.b64.n1.s1"


@pytest.fixture
def runs(tmp_path: Path) -> pd.DataFrame:
    """Three runs of each of three cells: one is noisy, one has no successful run."""
    failures = {f"{FAILED}.r{number}": ("failed", "no memory") for number in (1, 2, 3)}
    rows, epochs = campaign(replicates=3, noise=0.001, failures=failures)
    chosen = rows["cell"].isin([ALONE, NOISY, FAILED])
    read = read_runs(write_frames(tmp_path, rows[chosen], epochs)[0])
    noisy = read["cell"] == NOISY
    read.loc[noisy, "epoch_time_s"] = [1.0, 1.5, 0.8]
    return read


def test_a_cell_that_is_not_precise_gets_another_run(runs: pd.DataFrame) -> None:
    decision = decide.decide(runs, Replicates(3, 9, 0.1), 3)
    check(decision, "decision", Path("block-3.json"))
    assert {
        name: (cell["n"], cell["reached"], cell["refine"]) for name, cell in decision["cells"].items()
    } == {ALONE: (3, BY_CHANCE, True), NOISY: (3, NO, True), FAILED: (0, NO, False)}
    assert decision["cells"][FAILED]["half_width"] is None, "a cell without a successful run gets no more"
    assert decision["cells"][ALONE]["expected"] == decision["cells"][NOISY]["expected"] == 9
    facts = {"block": 3, "refined": [ALONE, NOISY], "not_precise": [NOISY, FAILED], "used_up": False}
    assert decide.summarize_decision(decision).facts == facts


def test_nothing_is_refined_after_at_most_runs(runs: pd.DataFrame) -> None:
    assert not judge_cells(runs, Replicates(3, 3, 0.1))["refine"].any()
    decision = decide.decide(runs, Replicates(3, 9, 0.9, {"batch_size": (16, 32)}), 9)
    assert {name: cell["reached"] for name, cell in decision["cells"].items()}[FAILED] == NOT_ASKED
    assert decide.summarize_decision(decision).facts == {
        "block": 9,
        "refined": [],
        "not_precise": [],
        "used_up": True,
    }
    decision = decide.decide(runs, Replicates(3, 9, 0.1), 9)
    assert decide.summarize_decision(decision).facts == {
        "block": 9,
        "refined": [],
        "not_precise": [NOISY, FAILED],
        "used_up": True,
    }


def test_contrasts_are_the_widest_ratio_of_a_cell(runs: pd.DataFrame) -> None:
    verdicts = judge_cells(runs, Replicates(3, 9, 0.001, {"batch_size": (16, 32)}))
    assert verdicts["half_width"][ALONE] == verdicts["half_width"][NOISY] > 0.1
    assert verdicts["refine"].to_dict() == {ALONE: True, NOISY: True, FAILED: False}
    assert verdicts["reached"][FAILED] == NOT_ASKED and np.isnan(verdicts["half_width"][FAILED]), (
        "64 is none of the levels"
    )
    assert not judge_cells(runs, Replicates(3, 9, 0.001, {"sync_every": (1, 4)}))["refine"].any(), (
        "no cell is in such a contrast"
    )


def test_note_has_the_cells_that_missed_the_target(runs: pd.DataFrame) -> None:
    assert reached.target_note(runs, Replicates(3, 3)) == ""
    facts = {
        "n": [3, 3],
        "asked": 3,
        "not_reached": ["batch size 32", "batch size 64"],
        "by_chance": ["batch size 16"],
    }
    open_ = find_note([reached.target_note(runs, Replicates(3, 9, 0.1))], "chosen-by-precision")
    assert open_.facts == {**facts, "goes_on": True, "not_asked": []}
    used_up = Replicates(3, 3, 0.1)
    table = reached.table(runs, used_up)
    note = find_note(table.notes, "chosen-by-precision")
    assert note.facts == {**facts, "goes_on": False, "not_asked": []} and note == reached.target_note(
        runs, used_up
    )
    assert (
        table.display["reached"].tolist() == [BY_CHANCE, NO, NO]
        and table.display["half width (%)"].tolist()[2] == "–"
    )
    assert codes(table.notes) == ["half-width", "chosen-by-precision"]


def test_a_cell_that_is_in_no_ratio_is_not_asked(runs: pd.DataFrame) -> None:
    table = reached.table(runs, Replicates(3, 3, 0.9, {"batch_size": (16, 32)}))
    assert table.data["reached"].tolist() == [BY_CHANCE, BY_CHANCE, NOT_ASKED]
    facts = find_note(table.notes, "chosen-by-precision").facts
    assert (facts["asked"], facts["not_reached"], facts["not_asked"]) == (2, [], ["batch size 64"])
    assert len(facts["by_chance"]) == 2


@pytest.mark.slow
def test_captions_have_a_short_note(runs: pd.DataFrame, tmp_path: Path) -> None:
    tables.write(reached.table(runs, Replicates(3, 3, 0.1)), tmp_path / "replication")
    note = reached.caption_note(tmp_path / "replication.csv")
    assert note.facts == {"wanted": 0.1, "asked": 3, "not_reached": 2, "by_chance": 1, "goes_on": False}
    figure = FigureSpec("overview", "overview").to_json()
    files = [f"{name}={tmp_path / name}.csv" for name in ("runs", "epochs")]
    draw.main(figure=figure, inputs=files, out=tmp_path / "made")
    plain = (tmp_path / "made.caption.md").read_text()
    draw.main(
        figure=figure, inputs=[*files, f"replication={tmp_path / 'replication.csv'}"], out=tmp_path / "made"
    )
    below, *endnotes = plain[:-1].split("\n\n")
    expected = "\n\n".join([f"{below} {note}", *endnotes])
    assert (tmp_path / "made.caption.md").read_text() == f"{expected}\n"
