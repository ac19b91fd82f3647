"""Shares of time in synthetic studies where they are known."""

import pandas as pd
import pytest

from analysis import shares, speedup
from analysis.records import Records, successful
from declared.models import model_graph
from support.synthetic import all_reduce_time, designed_campaign, write_frames

STARTUP_S, VALIDATION_S, END_S = 6.0, 0.05, 0.7
SLOWER_S = 0.4  # the first epoch, the warm-up


def timed(runs: pd.DataFrame, epochs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Add wall times to a campaign: start-up, a slow first epoch, validations, end of processes."""
    epochs = epochs.copy()
    epochs.loc[epochs["epoch"] == 1, "epoch_time_s"] += SLOWER_S
    epochs["validation_time_s"] = VALIDATION_S
    spent = epochs.groupby("run_id")[["epoch_time_s", "validation_time_s"]].sum().sum(axis=1)
    runs = runs.assign(startup_s=STARTUP_S, wall_s=runs["run_id"].map(spent) + STARTUP_S + END_S)
    return runs, epochs


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return Records(*write_frames(tmp_path_factory.mktemp("shares"), *timed(*designed_campaign(noise=0))))


def one_row_per_cell(records):
    return records.runs.drop_duplicates("cell").set_index("cell")


def known_communication_s(cell):
    size = model_graph(cell["model"], cell["dataset"]).gradient_bytes
    return cell["n_allreduces"] * all_reduce_time(size, cell["nodes"])


def test_communication_is_what_all_reduces_were_made_to_take(records):
    data, cells = shares.epoch_shares(records.runs), one_row_per_cell(records)
    assert set(data.index) == set(cells.index)
    for name, row in data.iterrows():
        expected = known_communication_s(cells.loc[name])
        assert row["communication"] * row["epoch_time_s"] == pytest.approx(expected, abs=1e-9), name
    assert (data.loc[cells.loc[data.index, "nodes"] > 1, "communication"] > 0.01).all()


def test_parts_of_a_run_are_as_constructed_and_add_up(records):
    data, cells = shares.run_time_parts(records), one_row_per_cell(records)
    assert data[list(shares.PARTS)].sum(axis=1).to_numpy() == pytest.approx(data["wall_s"].to_numpy())
    assert (data[list(shares.PARTS)] >= 0).all(axis=None)
    assert data["startup_s"].to_numpy() == pytest.approx(STARTUP_S)
    assert data["warm_up_s"].to_numpy() == pytest.approx(SLOWER_S)
    assert data["validation_s"].to_numpy() == pytest.approx(3 * VALIDATION_S)
    assert data["rest_s"].to_numpy() == pytest.approx(END_S)
    assert (data["training_s"] == 0).all()
    expected = [3 * known_communication_s(cells.loc[name]) for name in data.index]
    assert data["communication_s"].to_numpy() == pytest.approx(expected, abs=1e-9)


def test_one_device_communicates_nothing_and_has_no_interval(records):
    data, cells = shares.epoch_shares(records.runs), one_row_per_cell(records)
    single = data[cells.loc[data.index, "nodes"] == 1]
    assert len(single) and (single["communication"] == 0).all()
    assert single[["communication_low", "communication_high"]].isna().all(axis=None)
    assert (single["alone"] == single.index).all()


def test_without_a_cell_on_one_device_training_is_one_part(tmp_path):
    runs, epochs = timed(*designed_campaign(noise=0, missing={}))
    runs = runs[(runs["nodes"] > 1) | (runs["model"] == "small-cnn")]
    data = shares.run_time_parts(
        Records(*write_frames(tmp_path, runs, epochs[epochs["run_id"].isin(runs["run_id"])]))
    )
    undivided = data.index.str.contains("small-cnn-600")
    assert undivided.any() and data.loc[undivided, "communication"].isna().all()
    assert (data.loc[undivided, "training_s"] > 0).all() and (data.loc[~undivided, "training_s"] == 0).all()
    assert (data.loc[undivided, ["computation_s", "communication_s"]] == 0).all(axis=None)
    assert data[list(shares.PARTS)].sum(axis=1).to_numpy() == pytest.approx(data["wall_s"].to_numpy())


def test_epoch_below_its_computation_has_a_negative_share(tmp_path):
    runs, epochs = timed(*designed_campaign(noise=0))
    cell = next(name for name, nodes in zip(runs["cell"], runs["nodes"], strict=True) if nodes == 2)
    row = runs["cell"] == cell
    runs.loc[row, "epoch_time_s"] *= 0.1
    data = shares.run_time_parts(Records(*write_frames(tmp_path, runs, epochs)))
    assert data.loc[cell, "communication"] < 0
    assert data.loc[cell, "communication_s"] == 0
    assert data.loc[cell, "computation_s"] > 0


def test_parts_of_a_run_are_not_scaled_to_all_samples(tmp_path):
    runs, epochs = timed(*designed_campaign(noise=0))
    trained = 0.99
    for frame in (runs, epochs):
        frame["samples_trained"] = (frame["samples_trained"] * trained).astype(int)
    data = shares.run_time_parts(Records(*write_frames(tmp_path, runs, epochs)))
    full = runs.drop_duplicates("cell").set_index("cell")["wall_s"].reindex(data.index)
    training = data["computation_s"] + data["communication_s"] + data["warm_up_s"]
    assert data["rest_s"].to_numpy() == pytest.approx(
        (END_S + training / trained * (1 - trained)).to_numpy(), rel=0.02
    )
    assert data[list(shares.PARTS)].sum(axis=1).to_numpy() == pytest.approx(full.to_numpy())


def test_the_time_of_a_batch_is_that_of_the_same_local_batch(tmp_path):
    runs, _ = designed_campaign(noise=0)
    runs = runs[
        (runs["sync_every"] == 1) & (runs["training_loop"] == "custom") & (runs["model"] == "small-cnn")
    ].copy()
    runs = runs[(runs["nodes"] != 2) | (runs["batch_size"] == 64)]
    shared = runs["nodes"] == 2
    runs["batch_scope"] = "global"
    runs.loc[shared, "local_batch"] = 32
    runs = Records(*write_frames(tmp_path, runs, pd.DataFrame(EMPTY_EPOCHS))).runs
    own = speedup.one_device_cells_by_local_batch(runs)
    assert (
        runs.set_index("cell").loc[own[runs.loc[runs["nodes"] == 2, "cell"].iloc[0]], "batch_size"].iloc[0]
        == 32
    )


EMPTY_EPOCHS = {name: [] for name in ("run_id", "key", "epoch", "warm_up", "epoch_time_s")}


def test_own_cell_has_the_same_framework(csv):
    runs = Records(*csv).runs
    own, baselines = speedup.one_device_cells_by_local_batch(runs), speedup.baseline_cells(runs)
    ddp = runs[(runs["framework"] == "pytorch-ddp") & (runs["nodes"] == 2) & (runs["batch_size"] == 16)][
        "cell"
    ].iloc[0]
    assert own[ddp].startswith("pytorch-ddp") and ".n1." in own[ddp]
    assert baselines[ddp].startswith("pytorch-single")
    without_own = runs[(runs["framework"] != "pytorch-ddp") | (runs["nodes"] > 1)]
    assert ddp not in speedup.one_device_cells_by_local_batch(without_own)


def test_runs_that_tell_no_wall_time_are_left_out(tmp_path):
    runs, epochs = timed(*designed_campaign(noise=0))
    silent = runs["nodes"] == 3
    runs.loc[silent, ["wall_s", "startup_s"]] = None
    data = shares.run_time_parts(Records(*write_frames(tmp_path, runs, epochs)))
    assert set(data.index) == set(successful(runs)[~silent]["cell"])
    assert set(shares.epoch_shares(runs).index) == set(runs["cell"])
