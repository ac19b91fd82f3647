"""Tables of energy: known energies come out with their intervals, and no two scopes stand in one table."""

import numpy as np
import pandas as pd
import pytest

from analysis import energy, speedup
from analysis.measured import successful
from common.files import CHECKOUT
from common.notes import codes, find_note
from common.tables import read_table
from support.sentences import sentence
from support.synthetic import IDLE_W, WATTS, campaign, designed_campaign, metered, write_frames

TARGET = 0.8


def read(folder, runs, epochs):
    paths = write_frames(folder, runs, epochs)
    return tuple(read_table(path, name) for path, name in zip(paths, ("runs", "epochs"), strict=True))


@pytest.fixture
def frames(tmp_path):
    return read(tmp_path, *metered(*campaign(replicates=5, failures={})))


def test_a_cell_has_the_energy_of_its_runs_for_each_response(frames):
    runs, epochs = frames
    data = energy.summarize(runs, epochs).set_index("cell")
    by_cell = runs.groupby("cell")
    nodes = by_cell["nodes"].first().reindex(data.index)
    samples = by_cell["samples_per_epoch"].first().reindex(data.index).astype(float)
    assert len(data) == runs["cell"].nunique() and (data["n"] == 5).all() and set(data["scope"]) == {"package"}
    assert data["energy_j"].to_numpy() == pytest.approx(
        by_cell["energy_package_j"].mean().reindex(data.index).to_numpy()
    )
    assert data["energy_per_sample_j"].to_numpy() == pytest.approx((data["energy_j"] / samples).to_numpy())
    product = runs["energy_package_j"] * runs["epoch_time_s"]
    assert data["energy_delay_js"].to_numpy() == pytest.approx(
        product.groupby(runs["cell"]).mean().reindex(data.index).to_numpy()
    )
    for name in energy.RESPONSES:
        assert (data[f"{name}_low"] < data[name]).all() and (data[name] < data[f"{name}_high"]).all()
    inside = (data["power_w_low"] <= WATTS * nodes) & (WATTS * nodes <= data["power_w_high"])
    assert inside.mean() > 0.85, "the true power"
    assert (data["idle_w"] == IDLE_W).all(), "nodes of one machine, whose packages are counted once"


def test_the_ratio_to_the_base_is_that_of_energies_with_an_interval_around_it(frames):
    runs, epochs = frames
    data = energy.summarize(runs, epochs).set_index("cell")
    base = speedup.base_cells(runs)
    assert data["base_cell"].dropna().to_dict() == base
    means = runs.groupby("cell")["energy_package_j"].mean()
    for cell, other in base.items():
        row = data.loc[cell]
        assert row["ratio"] == pytest.approx(means[cell] / means[other])
        if cell != other:
            assert row["ratio_low"] < row["ratio"] < row["ratio_high"]


def test_energy_to_an_accuracy_is_that_of_all_epochs_until_then(frames):
    runs, epochs = frames
    accuracies = [0.3, 0.7, 0.5, 0.9, 0.9, 0.9]
    epochs = epochs.assign(validation_accuracy=[accuracies[epoch - 1] for epoch in epochs["epoch"]])
    told = energy.chosen(runs)
    for target, through in ((0.3, 1), (0.6, 2), (0.8, 4)):
        spent = energy.to_accuracy(runs, epochs, told, target)
        expected = epochs[epochs["epoch"] <= through].groupby("run_id")["energy_package_j"].sum()
        assert spent.to_numpy() == pytest.approx(expected.reindex(spent.index).to_numpy())
    assert energy.to_accuracy(runs, epochs, told, 0.95).isna().all()
    broken = epochs.assign(energy_package_j=epochs["energy_package_j"].mask(epochs["epoch"] == 2))
    assert energy.to_accuracy(runs, broken, told, 0.3).notna().all()
    assert energy.to_accuracy(runs, broken, told, 0.8).isna().all(), "one of the epochs until then has no energy"
    one = runs["run_id"].iloc[0]
    slow = epochs.assign(validation_accuracy=epochs["validation_accuracy"].mask(epochs["run_id"] == one, 0.1))
    data = energy.summarize(runs, slow, 0.8).set_index("cell")["energy_to_accuracy_j"]
    assert np.isnan(data[runs["cell"].iloc[0]]) and data.notna().sum() == len(data) - 1


def scopes(runs, by_framework):
    """Runs whose frameworks tell these scopes: framework -> scope -> joules."""
    for framework, told in by_framework.items():
        of = runs["framework"] == framework
        for scope, joules in told.items():
            runs.loc[of, f"energy_{scope}_j"] = joules
        runs.loc[of, "energy_scope"] = next(scope for scope in ("node", "device", "package") if scope in told)
    return runs


@pytest.mark.parametrize(
    ("one", "other", "scope", "others"),
    [
        ({"node": 9.0, "package": 5.0}, {"node": 8.0, "package": 4.0}, "node", 0),
        ({"node": 9.0, "package": 5.0}, {"package": 4.0}, "package", 0),
        ({"device": 9.0, "package": 5.0}, {"device": 9.0, "package": 5.0}, "device", 0),
        ({"device": 9.0, "package": 5.0}, {"package": 4.0}, "package", 4),
        ({"node": 20.0, "device": 9.0, "package": 5.0}, {"node": 6.0, "package": 4.0}, "node", 0),
        ({"node": 20.0, "device": 9.0}, {"package": 4.0}, "node", 4),
    ],
    ids=["widest", "what all have", "never packages of accelerators", "devices and packages", "unlike machines", "nothing in common"],
)  # fmt: skip
def test_one_scope_for_all_cells(one, other, scope, others, tmp_path):
    runs, epochs = campaign(failures={})
    kept = ["pytorch-ddp", "horovod-pytorch"]
    runs = runs[runs["framework"].isin(kept) & (runs["nodes"] == 2)].assign(energy_j=1.0, energy_scope=None)
    runs = scopes(
        runs.assign(**{f"energy_{name}_j": np.nan for name in energy.WIDEST_FIRST}),
        dict(zip(kept, (one, other), strict=True)),
    )
    runs, epochs = read(tmp_path, runs, epochs)
    told = energy.chosen(runs)
    assert told is not None and told.scope == scope and len(told.others) == others
    data = energy.summarize(runs, epochs)
    assert set(data["energy_j"]) <= {one.get(scope), other.get(scope)} - {None} or data["energy_j"].notna().all()
    assert len(data) == 8 - others and set(data["scope"]) == {scope}
    made = energy.table(runs, epochs)
    said = sentence(made.notes, "whose-energy")
    assert said.facts["scope"] == scope and energy.WHOSE[scope] in said
    assert ("cells-of-another-scope" in codes(made.notes)) == bool(others)
    assert not others or find_note(made.notes, "cells-of-another-scope").facts["cells"] == told.others


def test_energy_without_a_scope_is_not_mixed_with_newer_runs(tmp_path):
    runs, epochs = campaign(failures={})
    older = runs.assign(energy_j=40.0)
    told = energy.chosen(read(tmp_path, older, epochs)[0])
    assert told is not None and told.scope is None and told.joules.eq(40.0).all()
    assert told.whose == energy.WHOSE[None]
    newer, _ = metered(older, epochs)
    mixed = pd.concat([older[older["framework"] == "pytorch-ddp"], newer[newer["framework"] != "pytorch-ddp"]])
    told = energy.chosen(read(tmp_path, mixed, epochs)[0])
    assert told is not None and told.scope == "package" and len(told.others) == 8


def test_the_table_says_what_it_has_in_units_that_fit(frames):
    runs, epochs = frames
    made = energy.table(runs, epochs, TARGET)
    assert [name for name in made.shown if "(" in name] == [
        "energy (J)", "per sample (mJ)", "to accuracy (J)", "power (W)", "idle (W)", "energy × time (J s)",
    ]  # fmt: skip
    assert made.shown["energy (J)"].str.fullmatch(r"\d+\.\d \[\d+\.\d, \d+\.\d\]").all()
    assert "ratio to base" in made.shown and not made.shown.isin(["nan"]).any(axis=None)


def test_without_energy_there_are_no_rows_and_the_reason(tmp_path):
    runs, epochs = read(tmp_path, *campaign())
    made = energy.table(runs, epochs, TARGET)
    assert made.shown.empty and made.notes[0] == energy.NOTHING
    for folder in (path for path in (CHECKOUT / "docs" / "campaigns").iterdir() if path.is_dir()):
        kept = read_table(folder / "runs.csv", "runs")
        assert len(successful(kept)) and energy.chosen(kept) is None


def test_energy_of_nodes_of_their_own_is_beside_the_idle_power_of_all(tmp_path):
    runs, epochs = metered(*designed_campaign(), scope="node")
    runs, epochs = read(tmp_path, runs.assign(placement="distinct-nodes"), epochs)
    data = energy.summarize(runs, epochs)
    nodes = data["cell"].map(runs.drop_duplicates("cell").set_index("cell")["nodes"])
    assert (data["idle_w"] == IDLE_W * nodes).all()
