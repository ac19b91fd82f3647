"""Time to accuracy of runs and cells, and frameworks with their own algorithm."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from analysis import conditions, time_to_accuracy
from analysis.records import read_runs, successful
from common.notes import codes, find_note
from common.tables import read_table
from declared import frameworks
from support.sentences import sentence
from support.synthetic import campaign, write_frames


@pytest.fixture
def frames(tmp_path):
    paths = write_frames(tmp_path, *campaign(failures={}))
    return read_runs(paths[0]), read_table(paths[1], "epochs")


def learning(runs, epochs, accuracies):
    """Return runs and epochs with these accuracies; each epoch takes 2 s, the first 5 s."""
    epochs = epochs[epochs["epoch"] <= len(accuracies)].copy()
    epochs["validation_accuracy"] = [accuracies[epoch - 1] for epoch in epochs["epoch"]]
    epochs["epoch_time_s"] = [5.0 if epoch == 1 else 2.0 for epoch in epochs["epoch"]]
    return runs, epochs


def test_time_ends_with_the_first_epoch_that_reaches_the_target(frames):
    runs, epochs = learning(*frames, [0.3, 0.7, 0.5, 0.9])
    for target, seconds, needed in ((0.3, 5.0, 1), (0.6, 7.0, 2), (0.7, 7.0, 2), (0.8, 11.0, 4)):
        rows = time_to_accuracy.accuracy_of_runs(runs, epochs, target)
        assert len(rows) == len(successful(runs))
        assert set(rows["time_to_accuracy_s"]) == {seconds} and set(rows["epochs_needed"]) == {needed}
    rows = time_to_accuracy.accuracy_of_runs(runs, epochs, 0.95)
    assert rows["time_to_accuracy_s"].isna().all() and set(rows["best"]) == {0.9}


def test_epochs_without_validation_count_in_time_to_accuracy(frames):
    runs, epochs = learning(*frames, [0.3, None, 0.7])
    assert set(time_to_accuracy.accuracy_of_runs(runs, epochs, 0.6)["time_to_accuracy_s"]) == {9.0}


def test_a_cell_of_which_a_run_never_arrives_has_no_mean_time(frames):
    runs, epochs = learning(*frames, [0.3, 0.7, 0.5, 0.9])
    slow = runs.iloc[0]
    own = epochs["run_id"] == slow["run_id"]
    epochs.loc[own, "validation_accuracy"] = 0.5
    data = time_to_accuracy.summarize(runs, epochs, 0.6).set_index("cell")
    row, rest = data.loc[slow["cell"]], data.drop(slow["cell"])
    assert (row["n"], row["reached"]) == (3, 2) and math.isnan(row["time_to_accuracy_s"])
    assert (rest["reached"] == rest["n"]).all() and set(rest["time_to_accuracy_s"]) == {7.0}
    table = time_to_accuracy.table(runs, epochs, 0.6)
    assert table.title == time_to_accuracy.TITLE.format(60)
    assert table.display["time (s)"].str.fullmatch("not reached by 1 of 3").sum() == 1
    assert find_note(table.notes, "target-not-reached").facts == {"cells": 1, "of": len(data)}


def test_a_run_without_an_accuracy_is_counted_apart(frames):
    runs, epochs = learning(*frames, [0.3, 0.7, 0.5, 0.9])
    first, second = runs["cell"].unique()[:2]
    untold = runs["cell"].eq(second) | runs["run_id"].eq(runs.loc[runs["cell"] == first, "run_id"].iloc[0])
    epochs.loc[epochs["run_id"].isin(runs.loc[untold, "run_id"]), "validation_accuracy"] = math.nan
    data = time_to_accuracy.summarize(runs, epochs, 0.6).set_index("cell")
    assert set(data.index) == set(successful(runs)["cell"])
    assert data["n"].drop([first, second]).eq(3).all() and data.loc[[first, second], "n"].tolist() == [2, 0]
    assert (
        data.loc[second, ["time_to_accuracy_s", "epochs_needed", "best"]].isna().all()
        and data.loc[second, "reached"] == 0
    )
    table = time_to_accuracy.table(runs, epochs, 0.6)
    assert table.display["time (s)"].eq(time_to_accuracy.NO_ACCURACY_RECORDED).sum() == 1
    assert codes(table.notes)[:2] == ["runs-per-cell", "runs-without-accuracy"]
    assert table.notes[0].facts == {"fewest": 0, "most": 3, "too_few": False}
    assert table.notes[1].facts == {"runs": 4, "of": 114}
    assert "target-not-reached" not in codes(table.notes)


@pytest.mark.parametrize("case", ["not asked for", "no accuracy", "no run"])
def test_without_a_target_or_an_accuracy_there_are_no_rows(frames, case):
    runs, epochs = frames
    if case == "no accuracy":
        epochs = epochs.assign(validation_accuracy=math.nan)
    if case == "no run":
        runs = runs.assign(status="failed", epoch_time_s=None)
    table = time_to_accuracy.table(runs, epochs, None if case == "not asked for" else 0.5)
    assert table.display.empty and table.notes and "nan" not in " ".join(table.notes)
    assert table.notes[0] == (
        time_to_accuracy.NO_TARGET if case == "not asked for" else time_to_accuracy.NO_ACCURACY
    )


def test_an_own_algorithm_is_told_with_accuracies_everywhere(frames, monkeypatch):
    runs, _ = frames
    assert conditions.algorithms_note(runs) == ""
    own = replace(frameworks.load_framework("pytorch-ddp"), algorithm="own")
    load_framework = frameworks.load_framework
    monkeypatch.setattr(
        frameworks, "load_framework", lambda name: own if name == "pytorch-ddp" else load_framework(name)
    )
    runs.loc[runs["framework"] == "pytorch-ddp", "validation_accuracy"] = 0.75
    runs.loc[runs["framework"] != "pytorch-ddp", "validation_accuracy"] = 0.5
    note = conditions.algorithms_note(runs)
    assert note == "Own algorithm: pytorch-ddp; validation accuracy 75 %, of the others 50 %."
    assert note.facts["frameworks"] == ["pytorch-ddp"]
    assert (note.facts["accuracy"], note.facts["accuracy_of_others"]) == ([0.75, 0.75], [0.5, 0.5])
    for render in (conditions.measurement_note, conditions.circumstances_note):
        assert sentence([render(runs)], "own-algorithm") == note
    alone = conditions.algorithms_note(runs[runs["framework"] == "pytorch-ddp"]).facts
    assert (alone["accuracy"], alone["accuracy_of_others"]) == ([0.75, 0.75], [])
    dropped = runs.assign(framework=pd.Series("gone-framework", index=runs.index))
    assert conditions.algorithms_note(dropped) == ""
