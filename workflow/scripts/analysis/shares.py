"""Where the time of an epoch, and of a run, goes: computation, the exchange that it does not hide, and what is around them.

    computation = batches of an epoch x time of a batch,    exchange = epoch time - computation

The time of a batch is measured on one replica, in the cell of the same framework, model, data set, local batch and
treatment (speedup.own_cells). So the exchange is all that more replicas cost: messages that no computation hides, waiting
for the slowest rank, and memory or processors that replicas share. A cell on one replica exchanges nothing.
"""

import numpy as np
import pandas as pd

from analysis.measured import Records, cells, scaled, successful
from analysis.pooling import pooled
from analysis.speedup import own_cells

# The parts of a run's wall time, in the order in which they pass: column of `of_runs` -> name.
PARTS = {
    "startup_s": "start-up",
    "warm_up_s": "warm-up",
    "computation_s": "computation",
    "exchange_s": "exchange",
    "training_s": "training, undivided",
    "validation_s": "validation",
    "rest_s": "the rest",
}


def of_epochs(runs: pd.DataFrame) -> pd.DataFrame:
    """By measured cell, in the order of tables: epoch_time_s, alone, exchange, exchange_low, exchange_high, n, within_blocks.

    `alone`: the cell on one replica that the time of a batch is from, empty where there is none. `exchange`: its share of
    the epoch with its interval, that of the ratio of the two cells' epoch times. Below 0 where computation alone would
    take longer than the epoch did; 0, without an interval, on one replica; NaN where it is not known.
    """
    pooling, own = pooled(runs), own_cells(runs)
    rows = cells(runs).set_index("cell")
    rows = rows[rows.index.isin(list(pooling.samples))]
    alone = pd.Series([own.get(cell, "") for cell in rows.index], index=rows.index, dtype=object)
    batches = scaled(successful(runs), "steps").groupby(successful(runs)["cell"]).mean()
    more = (batches.reindex(rows.index) / batches.reindex(alone).to_numpy()).to_numpy(float)
    ratio = pooling.ratios(alone.tolist(), rows.index.tolist())
    single = (rows["replicas"] == 1).to_numpy(bool)
    data = pd.DataFrame({"epoch_time_s": pooling.cells["mean"].reindex(rows.index), "alone": alone})
    data["exchange"] = np.where(single, 0.0, 1 - more * ratio["value"])
    data["exchange_low"] = np.where(single, np.nan, 1 - more * ratio["high"])
    data["exchange_high"] = np.where(single, np.nan, 1 - more * ratio["low"])
    return data.assign(n=ratio["n"].to_numpy(), within_blocks=ratio["within_blocks"].to_numpy())


def of_runs(records: Records, drawn: pd.DataFrame | None = None) -> pd.DataFrame:
    """By measured cell: mean seconds of its runs in each of PARTS, which add up to wall_s, and the columns of `of_epochs`.

    `drawn`: the runs whose cells are wanted, by default all.

    Epochs have the seconds that passed, not scaled to the data set's samples. Warm-up: what the warm-up epochs, with the
    first step in the first one, took longer than as many timed epochs, at least 0. Computation and exchange are those of
    all epochs, in the shares of the timed ones, at least 0; `training_s` is both where they cannot be told apart. The
    rest: the last barriers of epochs and the end of the processes. Cells whose runs do not tell start-up and wall time are
    left out.
    """
    epochs = records.epochs_of(records.runs if drawn is None else drawn)
    ok = successful(records.runs).set_index("run_id")
    share = (epochs["samples_trained"] / epochs["run_id"].map(ok["samples_per_epoch"])).astype(float)
    seconds = epochs["epoch_time_s"] * share.fillna(1.0)
    warm = epochs["warm_up"].astype(bool)
    timed = seconds[~warm].groupby(epochs["run_id"]).mean()
    warmed = seconds[warm].groupby(epochs["run_id"]).agg(["sum", "count"]).reindex(timed.index, fill_value=0)
    of_run = pd.DataFrame(
        {
            "wall_s": ok["wall_s"],
            "startup_s": ok["startup_s"],
            "epochs_s": seconds.groupby(epochs["run_id"]).sum(),
            "warm_up_s": warmed["sum"] - warmed["count"] * timed,
            "validation_s": epochs["validation_time_s"].astype(float).groupby(epochs["run_id"]).sum(),
        }
    ).dropna()
    means = of_run.groupby(ok["cell"].reindex(of_run.index)).mean()
    data = of_epochs(records.runs)
    data = data[data.index.isin(means.index)]
    means = means.reindex(data.index)
    means["warm_up_s"] = means["warm_up_s"].clip(lower=0)
    training = means["epochs_s"] - means["warm_up_s"]
    exchange = data["exchange"].clip(0, 1)
    means["computation_s"] = (training * (1 - exchange)).fillna(0)
    means["exchange_s"] = (training * exchange).fillna(0)
    means["training_s"] = training.where(exchange.isna(), 0.0)
    around = means["startup_s"] + means["epochs_s"] + means["validation_s"]
    means["rest_s"] = (means["wall_s"] - around).clip(lower=0)
    return data.join(means[["wall_s", *PARTS]])
