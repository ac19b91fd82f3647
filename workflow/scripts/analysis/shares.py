"""Split the time of an epoch and of a run into computation, exposed communication, and the rest.

    computation = batches of an epoch x time of a batch, communication = epoch time - computation

The time of a batch is measured on one device, in the cell of the same framework, model, data set, local
batch and treatment (speedup.one_device_cells_by_local_batch). So communication is the total cost of more
devices: exposed communication, waiting for the slowest rank, and contention for memory or processors that
devices share. A cell on one device has none.
"""

import numpy as np
import pandas as pd

from analysis.cell_means import estimate_means
from analysis.records import Records, cell_levels, count_steps, scale_to_dataset, successful
from analysis.speedup import one_device_cells_by_local_batch

# Parts of a run's wall time, in temporal order: column of `run_time_parts` -> name.
PARTS = {
    "startup_s": "start-up",
    "warm_up_s": "warm-up",
    "computation_s": "computation (estimated)",
    "communication_s": "rest: communication, waiting, contention (estimated)",
    "training_s": "training, undivided",
    "validation_s": "validation",
    "rest_s": "other",
}


def epoch_shares(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the communication share of each measured cell's epoch, in the order of tables.

    Returns:
        By cell: epoch_time_s; alone, the cell on one device that gives the time of a batch, or "";
        communication with communication_low and communication_high; n; within_blocks. The interval is that of
        the ratio of the two cells' epoch times. The share is negative if computation alone would take longer
        than the epoch; 0 without an interval on one device; NaN if unknown.
    """
    cell_means = estimate_means(runs)
    rows = cell_levels(runs).set_index("cell")
    rows = rows[rows.index.isin(list(cell_means.values_by_cell))]
    alone, batch_ratio = (
        computation_cells(runs).reindex(rows.index)[name] for name in ("alone", "batch_ratio")
    )
    ratio = cell_means.ratios(numerator=alone.tolist(), denominator=rows.index.tolist())
    single = (rows["n_devices"] == 1).to_numpy(bool)
    data = pd.DataFrame(
        {"epoch_time_s": cell_means.cell_statistics["mean"].reindex(rows.index), "alone": alone}
    )
    data["communication"] = np.where(single, 0.0, 1 - batch_ratio.to_numpy() * ratio["value"])
    data["communication_low"] = np.where(single, np.nan, 1 - batch_ratio.to_numpy() * ratio["high"])
    data["communication_high"] = np.where(single, np.nan, 1 - batch_ratio.to_numpy() * ratio["low"])
    return data.assign(n=ratio["n"].to_numpy(), within_blocks=ratio["within_blocks"].to_numpy())


def computation_cells(runs: pd.DataFrame) -> pd.DataFrame:
    """Return how to estimate the computation of each measured cell's epoch, by cell.

    Returns:
        alone: the cell on one device whose epoch is scaled, "" without one. batch_ratio: batches of an epoch
        of one replica over those of that cell; NaN without one.
    """
    ok = count_steps(successful(runs))
    batches = scale_to_dataset(ok, "steps").groupby(ok["cell"]).mean().astype(float)
    alone = pd.Series(one_device_cells_by_local_batch(runs), dtype=object).reindex(batches.index).fillna("")
    return pd.DataFrame({"alone": alone, "batch_ratio": batches / batches.reindex(alone).to_numpy()})


def run_seconds(runs: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return seconds of successful runs by run_id: wall_s, startup_s, epochs_s, warm_up_s, validation_s.

    Epochs count the seconds that passed, not scaled to the data set's samples. Warm-up is what the warm-up
    epochs, including the first step, took longer than as many timed epochs. NaN where a run lacks a time.
    """
    ok = successful(runs).set_index("run_id")
    epochs = epochs[epochs["run_id"].isin(ok.index)]
    samples = epochs["run_id"].map(ok["samples_per_epoch"]).astype(float)
    share = (epochs["samples_trained"] / samples).astype(float)
    seconds = epochs["epoch_time_s"] * share.fillna(1.0)
    is_warm_up = epochs["warm_up"].astype(bool)
    timed = seconds[~is_warm_up].groupby(epochs["run_id"]).mean()
    warmed = (
        seconds[is_warm_up].groupby(epochs["run_id"]).agg(["sum", "count"]).reindex(timed.index, fill_value=0)
    )
    return pd.DataFrame(
        {
            "wall_s": ok["wall_s"],
            "startup_s": ok["startup_s"],
            "epochs_s": seconds.groupby(epochs["run_id"]).sum(),
            "warm_up_s": warmed["sum"] - warmed["count"] * timed,
            "validation_s": epochs["validation_time_s"].astype(float).groupby(epochs["run_id"]).sum(),
        }
    )


def run_time_parts(records: Records, selected: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the mean seconds of each part of a run by measured cell, which add up to wall_s.

    Times are those of `run_seconds`, warm-up at least 0. Computation and communication split all epochs in
    the shares of the timed ones; `training_s` is both where they cannot be separated. The rest is the last
    barriers of epochs and the end of the processes. Cells whose runs lack start-up or wall time are left out.

    Args:
        records: The records of a study.
        selected: Runs whose cells are returned; None for all.

    Returns:
        By cell: wall_s, the columns of PARTS, and those of `epoch_shares`.
    """
    epochs = records.epochs_of(records.runs if selected is None else selected)
    of_run = run_seconds(records.runs, epochs).dropna()
    ok = successful(records.runs).set_index("run_id")
    means = of_run.groupby(ok["cell"].reindex(of_run.index)).mean()
    data = epoch_shares(records.runs)
    data = data[data.index.isin(means.index)]
    means = means.reindex(data.index)
    means["warm_up_s"] = means["warm_up_s"].clip(lower=0)
    training = means["epochs_s"] - means["warm_up_s"]
    communication = data["communication"].clip(0, 1)
    means["computation_s"] = (training * (1 - communication)).fillna(0)
    means["communication_s"] = (training * communication).fillna(0)
    means["training_s"] = training.where(communication.isna(), 0.0)
    accounted = means["startup_s"] + means["epochs_s"] + means["validation_s"]
    means["rest_s"] = (means["wall_s"] - accounted).clip(lower=0)
    return data.join(means[["wall_s", *PARTS]])
