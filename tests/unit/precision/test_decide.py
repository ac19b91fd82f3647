"""After a block it is decided which cells get another run, from the records of the blocks so far."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import tables
from analysis.measured import read_runs
from common.notes import codes, find_note
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
    facts = {"block": 3, "refined": [ALONE, OTHER], "not_precise": [OTHER, FAILED], "used_up": False}
    assert decide.summary(said).facts == facts


def test_nothing_is_refined_after_at_most_runs(runs: pd.DataFrame) -> None:
    assert not looks(runs, Replicates(3, 3, 0.1))["refine"].any()
    said = decide.decision(runs, Replicates(3, 9, 0.9, {"batch_size": (16, 32)}), 9)
    assert {cell: one["reached"] for cell, one in said["cells"].items()}[FAILED] == NOT_ASKED
    assert decide.summary(said).facts == {"block": 9, "refined": [], "not_precise": [], "used_up": True}
    said = decide.decision(runs, Replicates(3, 9, 0.1), 9)
    assert decide.summary(said).facts == {"block": 9, "refined": [], "not_precise": [OTHER, FAILED], "used_up": True}


def test_decisions_read_like_this() -> None:
    cell = {"n": 3, "half_width": 0.2, "reached": NO, "refine": True}
    cells, rule = {"a": cell, "b": {**cell, "reached": BY_CHANCE}}, {"until": 0.1, "at_most": 9, "contrasts": {}}
    over = {name: {**cell, "refine": False} for name, cell in cells.items()}
    said = [
        {"block": 3, "cells": cells, "rule": rule},
        {"block": 8, "cells": over, "rule": rule},
        {"block": 9, "cells": {"b": over["b"]}, "rule": {**rule, "contrasts": {"batch_size": [16, 32]}}},
    ]
    assert list(map(decide.summary, said)) == [
        "precision after block 3: 1 of 2 cells within 10 %, 1 perhaps by chance; another run of 2 cells (a, b) in block 4",
        "precision after block 8: 1 of 2 cells within 10 %, 1 perhaps by chance; no cell gets more runs; not precise: a",
        "precision after block 9: ratios of 1 of 1 cell within 10 %, 1 perhaps by chance; no cell gets more runs, as at_most is reached",
    ]


def test_contrasts_are_the_widest_ratio_of_a_cell(runs: pd.DataFrame) -> None:
    found = looks(runs, Replicates(3, 9, 0.001, {"batch_size": (16, 32)}))
    assert found["half_width"][ALONE] == found["half_width"][OTHER] > 0.1
    assert found["refine"].to_dict() == {ALONE: True, OTHER: True, FAILED: False}
    assert found["reached"][FAILED] == NOT_ASKED and np.isnan(found["half_width"][FAILED]), "64 is none of the levels"
    assert not looks(runs, Replicates(3, 9, 0.001, {"sync_every": (1, 4)}))["refine"].any(), (
        "no cell is in such a contrast"
    )


def test_what_was_reached_is_said_once_for_all(runs: pd.DataFrame) -> None:
    assert reached.said(runs, Replicates(3, 3)) == ""
    facts = {"n": [3, 3], "asked": 3, "not_reached": ["batch size 32", "batch size 64"], "by_chance": ["batch size 16"]}
    open_ = find_note([reached.said(runs, Replicates(3, 9, 0.1))], "chosen-by-precision")
    assert open_.facts == {**facts, "goes_on": True, "not_asked": []}
    used_up = Replicates(3, 3, 0.1)
    made = reached.table(runs, used_up)
    told = find_note(made.notes, "chosen-by-precision")
    assert told.facts == {**facts, "goes_on": False, "not_asked": []} and told == reached.said(runs, used_up)
    assert made.shown["reached"].tolist() == [BY_CHANCE, NO, NO] and made.shown["half width (%)"].tolist()[2] == "–"
    assert codes(made.notes) == ["half-width", "chosen-by-precision", "by-chance"]


def test_a_cell_that_is_in_no_ratio_is_not_asked(runs: pd.DataFrame) -> None:
    made = reached.table(runs, Replicates(3, 3, 0.9, {"batch_size": (16, 32)}))
    assert made.data["reached"].tolist() == [BY_CHANCE, BY_CHANCE, NOT_ASKED]
    facts = find_note(made.notes, "chosen-by-precision").facts
    assert (facts["asked"], facts["not_reached"], facts["not_asked"]) == (2, [], ["batch size 64"])
    assert len(facts["by_chance"]) == 2 and codes(made.notes)[2:] == ["by-chance", "not-asked"]


def test_precision_reads_like_this(runs: pd.DataFrame, tmp_path: Path) -> None:
    """In notes, and in few words in captions."""
    tables.write(reached.table(runs, Replicates(3, 3, 0.1)), tmp_path / "ended")
    tables.write(reached.table(runs, Replicates(3, 9, 0.1)), tmp_path / "open")
    for told, text in (
        (
            reached.said(runs, Replicates(3, 9, 0.1)),
            "Replicates are chosen by precision: a cell has 3 to 9 runs, until half the 95 % interval of its mean epoch time is 10 % or less "
            "(n = 3). This is so far not reached by 2 of 3 cells: batch size 32; batch size 64; by 1 cell perhaps by chance.",
        ),
        (
            reached.in_few_words(tmp_path / "ended.csv"),
            "The number of runs was chosen by precision (half intervals of 10 %): 2 of 3 cells did not reach it, 1 perhaps by chance.",
        ),
        (
            reached.in_few_words(tmp_path / "open.csv"),
            "The number of runs is chosen by precision (half intervals of 10 %): so far 2 of 3 cells have not reached it, 1 perhaps by chance.",
        ),
    ):
        assert told == text


@pytest.mark.slow
def test_captions_say_it_in_few_words(runs: pd.DataFrame, tmp_path: Path) -> None:
    tables.write(reached.table(runs, Replicates(3, 3, 0.1)), tmp_path / "precision")
    told = reached.in_few_words(tmp_path / "precision.csv")
    assert told.facts == {"wanted": 0.1, "asked": 3, "not_reached": 2, "by_chance": 1, "goes_on": False}
    asked = Declared("overview", "overview").to_json()
    options = ["--figure", asked, "--out", str(tmp_path / "made"), "--inputs"]
    files = [f"{name}={tmp_path / name}.csv" for name in ("runs", "epochs")]
    draw.main([*options, *files])
    plain = (tmp_path / "made.caption.md").read_text()
    draw.main([*options, *files, f"precision={tmp_path / 'precision.csv'}"])
    assert (tmp_path / "made.caption.md").read_text() == f"{plain[:-1]} {told}\n"
