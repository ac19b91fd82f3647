"""Tables of energy recover known energies with intervals, and never mix two scopes."""

import numpy as np
import pytest

from analysis import energy, speedup
from analysis.records import read_runs, successful
from common.files import CHECKOUT
from common.notes import codes, find_note
from common.tables import read_table
from support.sentences import sentence
from support.synthetic import IDLE_W, WATTS, campaign, designed_campaign, metered, write_frames

TARGET = 0.8


def read(folder, runs, epochs):
    paths = write_frames(folder, runs, epochs)
    return read_runs(paths[0]), read_table(paths[1], "epochs")


@pytest.fixture
def frames(tmp_path):
    return read(tmp_path, *metered(*campaign(replicates=5, failures={})))


def test_a_cell_has_the_energy_of_its_runs_for_each_response(frames):
    runs, epochs = frames
    data = energy.summarize(runs, epochs).set_index("cell")
    by_cell = runs.groupby("cell")
    nodes = by_cell["nodes"].first().reindex(data.index)
    samples = by_cell["samples_per_epoch"].first().reindex(data.index).astype(float)
    assert (
        len(data) == runs["cell"].nunique() and (data["n"] == 5).all() and set(data["scope"]) == {"package"}
    )
    assert data["energy_j"].to_numpy() == pytest.approx(
        by_cell["energy_package_j"].mean().reindex(data.index).to_numpy()
    )
    assert data["energy_per_sample_j"].to_numpy() == pytest.approx((data["energy_j"] / samples).to_numpy())
    product = runs["energy_package_j"] * runs["epoch_time_s"]
    assert data["energy_delay_js"].to_numpy() == pytest.approx(
        product.groupby(runs["cell"]).mean().reindex(data.index).to_numpy()
    )
    for name in energy.COLUMNS:
        assert (data[f"{name}_low"] < data[name]).all() and (data[name] < data[f"{name}_high"]).all()
    inside = (data["power_w_low"] <= WATTS * nodes) & (WATTS * nodes <= data["power_w_high"])
    assert inside.mean() > 0.85, "the true power"
    assert (data["idle_w"] == IDLE_W).all(), "nodes of one machine, whose packages are counted once"


def test_ratio_to_baseline_is_of_energies_with_interval(frames):
    runs, epochs = frames
    data = energy.summarize(runs, epochs).set_index("cell")
    baselines = speedup.baseline_cells(runs)
    assert data["baseline_cell"].dropna().to_dict() == baselines
    means = runs.groupby("cell")["energy_package_j"].mean()
    for cell, baseline_cell in baselines.items():
        row = data.loc[cell]
        assert row["ratio"] == pytest.approx(means[cell] / means[baseline_cell])
        if cell != baseline_cell:
            assert row["ratio_low"] < row["ratio"] < row["ratio_high"]


def test_energy_to_an_accuracy_is_that_of_all_epochs_until_then(frames):
    runs, epochs = frames
    accuracies = [0.3, 0.7, 0.5, 0.9, 0.9, 0.9]
    epochs = epochs.assign(validation_accuracy=[accuracies[epoch - 1] for epoch in epochs["epoch"]])
    scope = energy.choose_scope(runs)
    for target, through in ((0.3, 1), (0.6, 2), (0.8, 4)):
        spent = energy.energy_to_accuracy(runs, epochs, scope, target)
        expected = epochs[epochs["epoch"] <= through].groupby("run_id")["energy_package_j"].sum()
        assert spent.to_numpy() == pytest.approx(expected.reindex(spent.index).to_numpy())
    assert energy.energy_to_accuracy(runs, epochs, scope, 0.95).isna().all()
    broken = epochs.assign(energy_package_j=epochs["energy_package_j"].mask(epochs["epoch"] == 2))
    assert energy.energy_to_accuracy(runs, broken, scope, 0.3).notna().all()
    assert energy.energy_to_accuracy(runs, broken, scope, 0.8).isna().all(), (
        "one of the epochs until then has no energy"
    )
    run = runs["run_id"].iloc[0]
    slow = epochs.assign(validation_accuracy=epochs["validation_accuracy"].mask(epochs["run_id"] == run, 0.1))
    data = energy.summarize(runs, slow, 0.8).set_index("cell")["energy_to_accuracy_j"]
    assert np.isnan(data[runs["cell"].iloc[0]]) and data.notna().sum() == len(data) - 1


def scopes(runs, by_framework):
    """Return runs whose frameworks record these scopes: framework -> scope -> joules."""
    for framework, column in by_framework.items():
        values = runs["framework"] == framework
        for scope, joules in column.items():
            runs.loc[values, f"energy_{scope}_j"] = joules
        runs.loc[values, "energy_scope"] = next(
            scope for scope in ("node", "device", "package") if scope in column
        )
    return runs


@pytest.mark.parametrize(
    ("first", "second", "scope", "n_other_cells"),
    [
        ({"node": 9.0, "package": 5.0}, {"node": 8.0, "package": 4.0}, "node", 0),
        ({"node": 9.0, "package": 5.0}, {"package": 4.0}, "package", 0),
        ({"device": 9.0, "package": 5.0}, {"device": 9.0, "package": 5.0}, "device", 0),
        ({"device": 9.0, "package": 5.0}, {"package": 4.0}, "package", 4),
        ({"node": 20.0, "device": 9.0, "package": 5.0}, {"node": 6.0, "package": 4.0}, "node", 0),
        ({"node": 20.0, "device": 9.0}, {"package": 4.0}, "node", 4),
    ],
    ids=["widest", "what all have", "never packages of accelerators", "devices and packages", "different machines", "nothing in common"],
)  # fmt: skip
def test_one_scope_for_all_cells(first, second, scope, n_other_cells, tmp_path):
    runs, epochs = campaign(failures={})
    cells = ["pytorch-ddp", "horovod-pytorch"]
    runs = runs[runs["framework"].isin(cells) & (runs["nodes"] == 2)].assign(energy_j=1.0, energy_scope=None)
    runs = scopes(
        runs.assign(**{f"energy_{name}_j": np.nan for name in energy.WIDEST_FIRST}),
        dict(zip(cells, (first, second), strict=True)),
    )
    runs, epochs = read(tmp_path, runs, epochs)
    chosen = energy.choose_scope(runs)
    assert chosen is not None and chosen.scope == scope and len(chosen.other_cells) == n_other_cells
    data = energy.summarize(runs, epochs)
    assert (
        set(data["energy_j"]) <= {first.get(scope), second.get(scope)} - {None}
        or data["energy_j"].notna().all()
    )
    assert len(data) == 8 - n_other_cells and set(data["scope"]) == {scope}
    table = energy.table(runs, epochs)
    note = sentence(table.notes, "whose-energy")
    assert note.facts["scope"] == scope and energy.SCOPE_TITLES[scope] in note
    assert ("cells-of-another-scope" in codes(table.notes)) == bool(n_other_cells)
    assert (
        not n_other_cells
        or find_note(table.notes, "cells-of-another-scope").facts["cells"] == chosen.other_cells
    )


def test_the_table_says_what_it_has_in_units_that_fit(frames):
    runs, epochs = frames
    table = energy.table(runs, epochs, TARGET)
    assert [name for name in table.display if "(" in name] == [
        "energy (J)", "per sample (mJ)", "to accuracy (J)", "power (W)", "idle (W)", "energy × time (J s)",
    ]  # fmt: skip
    assert table.display["energy (J)"].str.fullmatch(r"\d+\.\d \[\d+\.\d, \d+\.\d\]").all()
    assert "ratio to baseline" in table.display and not table.display.isin(["nan"]).any(axis=None)


def test_without_energy_there_are_no_rows_and_the_reason(tmp_path):
    runs, epochs = read(tmp_path, *campaign())
    table = energy.table(runs, epochs, TARGET)
    assert table.display.empty and table.notes[0] == energy.NO_ENERGY
    for file in (CHECKOUT / "docs" / "campaigns").glob("**/runs.csv"):
        columns = read_table(file, "runs")
        assert len(successful(columns)) and energy.choose_scope(columns) is None


def test_idle_power_is_that_of_all_machines(tmp_path):
    runs, epochs = metered(*designed_campaign(), scope="node")
    runs, epochs = read(tmp_path, runs.assign(placement="distinct-nodes"), epochs)
    data = energy.summarize(runs, epochs)
    nodes = data["cell"].map(runs.drop_duplicates("cell").set_index("cell")["nodes"])
    assert (data["idle_w"] == IDLE_W * nodes).all()
