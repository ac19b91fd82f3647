"""Table of time to accuracy: how long each cell trains until validation reaches the study's target.

As in MLPerf (Mattson et al., MLSys 2020), time counts from the start of the first epoch to the end of the
first epoch whose validation accuracy reaches the target. It includes warm-up epochs, but not validations.
"""

import math

import pandas as pd

from analysis import conditions, intervals, tables
from analysis.intervals import Estimate
from analysis.level_words import level_texts
from analysis.records import cell_levels, successful
from common.notes import Note
from common.text import number_of

TITLE = "Time to a validation accuracy of {:.4g} %"
NO_ACCURACY_RECORDED = "no accuracy was recorded"
NO_TARGET = Note(
    "no-target",
    "The study names no target; add target_accuracy: 0.9 (a share) to the study to fill this table.",
)
NO_ACCURACY = Note("no-accuracy", "No successful run records its validation accuracy.")
METHOD_NOTE = (
    "Time: training from the start of the first epoch to the end of the first one with that accuracy, "
    "including warm-up epochs, without validations. It is given, as a mean with a 95 % t interval, if all n "
    "runs of a cell reach the target."
)


def accuracy_of_runs(runs: pd.DataFrame, epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return a row per successful run that records validation accuracy.

    Columns: run_id, cell; time_to_accuracy_s and epochs_needed, NaN if the run never reaches `target` (a
    share); best, its highest validation accuracy.
    """
    ok = successful(runs).set_index("run_id")
    all_epochs = epochs[epochs["run_id"].isin(ok.index)].sort_values(["run_id", "epoch"])
    # Epochs without validation take time, too.
    spent = all_epochs.groupby("run_id", sort=False)["epoch_time_s"].cumsum()
    validated = all_epochs.dropna(subset="validation_accuracy")
    by_run = validated.groupby("run_id", sort=False)
    reached = validated["validation_accuracy"] >= target
    first = validated[reached].drop_duplicates("run_id").set_index("run_id")
    rows = pd.DataFrame({"best": by_run["validation_accuracy"].max()})
    rows["time_to_accuracy_s"] = (
        spent[validated.index][reached].groupby(validated["run_id"][reached]).first().reindex(rows.index)
    )
    rows["epochs_needed"] = first["epoch"].astype(float).reindex(rows.index)
    rows["cell"] = ok["cell"].reindex(rows.index)
    in_order = [run for run in ok.index if run in rows.index]
    return rows.loc[in_order].reset_index()[["run_id", "cell", "time_to_accuracy_s", "epochs_needed", "best"]]


def seconds_to_accuracy(runs: pd.DataFrame, epochs: pd.DataFrame, target: float) -> pd.Series:
    """Return the time to accuracy of each run, s; NaN for all runs of a cell if one never reaches it."""
    accuracies = accuracy_of_runs(runs, epochs, target)
    missed = set(accuracies.loc[accuracies["time_to_accuracy_s"].isna(), "cell"])
    reached = accuracies[~accuracies["cell"].isin(missed)].set_index("run_id")["time_to_accuracy_s"]
    return runs["run_id"].map(reached).astype(float)


def summarize(runs: pd.DataFrame, epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return a row per cell with a successful run.

    Columns: factors, n (runs that record accuracy), reached (runs that reach the target), time_to_accuracy_s
    with bounds, epochs_needed and best (means over runs). Time and epochs are NaN if a run never reaches the
    target; all values are NaN if n is 0.
    """
    run_accuracies = accuracy_of_runs(runs, epochs, target)
    by_cell = run_accuracies.groupby("cell")
    rows = cell_levels(runs).set_index("cell", drop=False)
    rows = rows[rows.index.isin(set(successful(runs)["cell"]))]
    rows["n"] = by_cell.size().reindex(rows.index, fill_value=0)
    rows["reached"] = by_cell["time_to_accuracy_s"].count().reindex(rows.index, fill_value=0)
    times = intervals.means(
        run_accuracies["time_to_accuracy_s"], run_accuracies["cell"], minimum=0.0
    ).reindex(rows.index)
    all_reached = (rows["n"] == rows["reached"]) & (rows["n"] > 0)
    for part, name in (("value", ""), ("low", "_low"), ("high", "_high")):
        rows[f"time_to_accuracy_s{name}"] = times[part].where(all_reached)
    rows["epochs_needed"] = by_cell["epochs_needed"].mean().reindex(rows.index).where(all_reached)
    rows["best"] = by_cell["best"].mean().reindex(rows.index)
    return rows.reset_index(drop=True)


def table(runs: pd.DataFrame, epochs: pd.DataFrame, target: float | None) -> tables.Table:
    """Return the table of a study; it has no rows without a target or without recorded accuracies."""
    if target is None:
        return tables.Table("Time to a validation accuracy", *_empty_data(), [NO_TARGET])
    heading, data = TITLE.format(100 * target), summarize(runs, epochs, target)
    if not data["n"].any():
        return tables.Table(heading, *_empty_data(), [NO_ACCURACY, conditions.measurement_note(runs)])
    display = level_texts(data, runs)
    display["n"] = data["n"].map(str)
    display["time (s)"] = [
        NO_ACCURACY_RECORDED
        if not row[0]
        else tables.interval(Estimate(*row[2:]))
        if row[0] == row[1]
        else f"not reached by {row[0] - row[1]} of {row[0]}"
        for row in data[
            ["n", "reached", "time_to_accuracy_s", "time_to_accuracy_s_low", "time_to_accuracy_s_high"]
        ].itertuples(index=False, name=None)
    ]
    display["epochs"] = [
        tables.DASH if math.isnan(value) else f"{value:.3g}" for value in data["epochs_needed"]
    ]
    display["best accuracy (%)"] = data["best"].map(tables.percent)
    never = int((data["reached"] < data["n"]).sum())
    notes = [
        conditions.run_counts_note(runs, counted=data["n"]),
        runs_without_accuracy_note(runs, data),
        _not_reached_note(never, len(data)),
        METHOD_NOTE,
        conditions.measurement_note(runs),
    ]
    return tables.Table(heading, data, pd.DataFrame(display), notes)


def _not_reached_note(cells: int, n_cells: int) -> str:
    text = f"{number_of(cells, 'cell')} of {n_cells} did not reach the target in all runs."
    return Note("target-not-reached", text, cells=cells, of=n_cells) if cells else ""


def runs_without_accuracy_note(runs: pd.DataFrame, data: pd.DataFrame) -> str:
    """Say how many successful runs record no accuracy; "" if there are none. `data` is from `summarize`."""
    ok = len(successful(runs))
    n_without = ok - int(data["n"].sum())
    text = f"Without a validation accuracy: {n_without} of {number_of(ok, 'successful run')}."
    return Note("runs-without-accuracy", text, runs=n_without, of=ok) if n_without else ""


def _empty_data() -> tuple[pd.DataFrame, pd.DataFrame]:
    columns = ["cell", "n", "reached", "time_to_accuracy_s"]
    return pd.DataFrame(columns=columns, dtype=float), pd.DataFrame(columns=["cell"], dtype=str)
