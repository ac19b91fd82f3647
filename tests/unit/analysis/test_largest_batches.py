"""A level of the batch size that is a word: read, ordered, compared, and replaced by its numbers."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis import cells, conditions, effects
from analysis.batch_scaling import batch_scaling
from analysis.records import levels_in_order, read_runs, with_batch_numbers
from analysis.terms import is_treated_as_number
from common.errors import InputError
from common.tables import write_table

LARGEST_NUMBER = 64  # the batch size of the synthetic campaign that is called largest


@pytest.fixture
def runs(csv: Any, tmp_path: Path) -> pd.DataFrame:
    """Return the synthetic campaign, in which one batch size was found by a search, through a file."""
    frame = read_runs(csv[0])
    levels = frame["batch_size"].astype(object).where(frame["batch_size"] != LARGEST_NUMBER, "largest")
    write_table(frame.drop(columns="n_devices").assign(batch_size=levels), "runs", tmp_path / "runs.csv")
    return read_runs(tmp_path / "runs.csv")


def test_words_stand_behind_numbers(runs: pd.DataFrame) -> None:
    levels = levels_in_order(runs, "batch_size")
    assert levels[-1] == "largest" and levels[:-1] == sorted(levels[:-1]) and len(levels) > 1
    assert runs["batch_size"].sort_values().iloc[-1] == "largest"
    assert not is_treated_as_number(runs, "batch_size") and is_treated_as_number(runs, "nodes")


def test_another_word_is_refused(csv: Any, tmp_path: Path) -> None:
    frame = read_runs(csv[0])
    with pytest.raises(InputError) as error:
        write_table(frame.drop(columns="n_devices").assign(batch_size="huge"), "runs", tmp_path / "runs.csv")
    assert error.value.key == "batch_size"


def test_predictions_take_the_numbers(csv: Any, runs: pd.DataFrame) -> None:
    numbers, plain = with_batch_numbers(runs)["batch_size"], read_runs(csv[0])["batch_size"]
    pd.testing.assert_series_equal(numbers, plain)


def test_the_kind_of_scaling_names_the_numbers(csv: Any, runs: pd.DataFrame) -> None:
    assert batch_scaling(runs, "nodes") == batch_scaling(read_runs(csv[0]), "nodes") is not None


def test_tables_show_level_and_number(runs: pd.DataFrame) -> None:
    texts = set(cells.table(runs).display["batch size"])
    assert f"largest ({LARGEST_NUMBER})" in texts
    note = conditions.largest_batches_note(runs)
    assert set(note.facts["sizes"]) == set(runs["framework"])
    assert all(ends == [LARGEST_NUMBER] * 2 for ends in note.facts["sizes"].values())


def test_cells_without_runs_claim_no_number(runs: pd.DataFrame) -> None:
    """Before a search, and where no batch fits, `local_batch` is the smallest one."""
    is_missing = (runs["batch_size"] == "largest") & (runs["framework"] == "pytorch-ddp")
    runs.loc[is_missing, ["status", "local_batch", "epoch_time_s"]] = ["missing", 1, None]
    display = cells.table(runs).display
    assert set(display.loc[display["framework"] == "pytorch-ddp", "batch size"]) >= {"largest"}
    assert not display["batch size"].str.contains(r"\(1\)").any()
    note = conditions.largest_batches_note(runs)
    assert "pytorch-ddp" not in note.facts["sizes"] and note.facts["sizes"]
    runs.loc[is_missing, "status"] = "oom"
    assert "largest (1)" in set(cells.table(runs).display["batch size"]), "the number that did not fit"


def test_frameworks_are_compared_at_largest(runs: pd.DataFrame) -> None:
    compared = effects.build_rows(runs)
    frameworks = compared[(compared["factor"] == "framework") & (compared["batch_size"] == "largest")]
    assert len(frameworks) > 0 and (frameworks["ratio"] > 0).all()
