"""Table of time to accuracy: how long each cell trains until validation reaches the study's target, and which cells never do.

The comparison for frameworks that train with algorithms of their own, as in MLPerf (Mattson et al., MLSys 2020): time counts from the
start of the first epoch until the end of the first one whose validation accuracy is the target or more; warm-up epochs are in it,
validations are not.
"""

import math

import pandas as pd

from analysis import conditions, intervals, tables
from analysis.intervals import Estimate
from analysis.measured import cells, level_text, successful, title, varying
from common.notes import Note
from common.text import number_of

TITLE = "Time to a validation accuracy of {:.4g} %"
NOT_TOLD = "no accuracy was recorded"
UNASKED = Note(
    "no-target",
    "The study names no target; say target_accuracy: 0.9 (a share) in the study, and this table has the time to reach it.",
)
NO_ACCURACY = Note("no-accuracy", "No successful run tells its validation accuracy.")
HOW = (
    "Time: training from the start of the first epoch until the end of the first one with that accuracy; warm-up epochs are in it, validations "
    "are not. It has a mean and a 95 % t interval where all n runs of a cell reach the target."
)


def of_runs(runs: pd.DataFrame, epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    """A row per successful run: run_id, cell, time_to_accuracy_s and epochs_needed, missing where it never reaches `target`
    (a share), and best, its greatest validation accuracy; runs that tell no accuracy are left out."""
    ok = successful(runs).set_index("run_id")
    every = epochs[epochs["run_id"].isin(ok.index)].sort_values(["run_id", "epoch"])
    spent = every.groupby("run_id", sort=False)["epoch_time_s"].cumsum()  # epochs without a validation, too
    told = every.dropna(subset="validation_accuracy")
    by_run = told.groupby("run_id", sort=False)
    reached = told["validation_accuracy"] >= target
    first = told[reached].drop_duplicates("run_id").set_index("run_id")
    made = pd.DataFrame({"best": by_run["validation_accuracy"].max()})
    made["time_to_accuracy_s"] = spent[told.index][reached].groupby(told["run_id"][reached]).first().reindex(made.index)
    made["epochs_needed"] = first["epoch"].astype(float).reindex(made.index)
    made["cell"] = ok["cell"].reindex(made.index)
    in_order = [run for run in ok.index if run in made.index]
    return made.loc[in_order].reset_index()[["run_id", "cell", "time_to_accuracy_s", "epochs_needed", "best"]]


def summarize(runs: pd.DataFrame, epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    """A row per cell with a successful run: the factors, n (those that tell their accuracy), reached, time_to_accuracy_s with bounds,
    epochs_needed (means of the runs), best (mean of the runs' greatest accuracies). Time is missing where a run never reaches the
    target, and all is where n is 0."""
    found = of_runs(runs, epochs, target)
    by_cell = found.groupby("cell")
    rows = cells(runs).set_index("cell", drop=False)
    rows = rows[rows.index.isin(set(successful(runs)["cell"]))]
    rows["n"] = by_cell.size().reindex(rows.index, fill_value=0)
    rows["reached"] = by_cell["time_to_accuracy_s"].count().reindex(rows.index, fill_value=0)
    times = intervals.means(found["time_to_accuracy_s"], found["cell"], minimum=0.0).reindex(rows.index)
    whole = (rows["n"] == rows["reached"]) & (rows["n"] > 0)
    for part, name in (("value", ""), ("low", "_low"), ("high", "_high")):
        rows[f"time_to_accuracy_s{name}"] = times[part].where(whole)
    rows["epochs_needed"] = by_cell["epochs_needed"].mean().reindex(rows.index).where(whole)
    rows["best"] = by_cell["best"].mean().reindex(rows.index)
    return rows.reset_index(drop=True)


def table(runs: pd.DataFrame, epochs: pd.DataFrame, target: float | None) -> tables.Table:
    """The table of a study; without rows where it names no target or no run tells an accuracy."""
    if target is None:
        return tables.Table("Time to a validation accuracy", *_nothing(), [UNASKED])
    heading, data = TITLE.format(100 * target), summarize(runs, epochs, target)
    if not data["n"].any():
        return tables.Table(heading, *_nothing(), [NO_ACCURACY, conditions.setting(runs)])
    named = ["framework", *varying(runs, but=["framework"])]
    shown = {title(name): data[name].map(level_text) for name in named}
    shown["n"] = data["n"].map(str)
    shown["time (s)"] = [
        NOT_TOLD
        if not row[0]
        else tables.interval(Estimate(*row[2:]))
        if row[0] == row[1]
        else f"not reached by {row[0] - row[1]} of {row[0]}"
        for row in data[
            ["n", "reached", "time_to_accuracy_s", "time_to_accuracy_s_low", "time_to_accuracy_s_high"]
        ].itertuples(index=False, name=None)
    ]
    shown["epochs"] = [tables.DASH if math.isnan(value) else f"{value:.3g}" for value in data["epochs_needed"]]
    shown["best accuracy (%)"] = data["best"].map(tables.percent)
    never = int((data["reached"] < data["n"]).sum())
    notes = [
        conditions.counts(runs, counted=data["n"]),
        untold(runs, data),
        _never(never, len(data)),
        HOW,
        conditions.setting(runs),
    ]
    words = [title(name) for name in ("framework", "model", "dataset")]
    return tables.Table(heading, data, pd.DataFrame(shown), [note for note in notes if note], words)


def _never(cells: int, of: int) -> str:
    text = f"{number_of(cells, 'cell')} of {of} did not reach the target in all runs."
    return Note("target-not-reached", text, cells=cells, of=of) if cells else ""


def untold(runs: pd.DataFrame, data: pd.DataFrame) -> str:
    """How many successful runs are in no n of `data` (`summarize` of the runs); empty for none."""
    ok = len(successful(runs))
    without = ok - int(data["n"].sum())
    text = f"Without a validation accuracy: {without} of {number_of(ok, 'successful run')}."
    return Note("runs-without-accuracy", text, runs=without, of=ok) if without else ""


def _nothing() -> tuple[pd.DataFrame, pd.DataFrame]:
    columns = ["cell", "n", "reached", "time_to_accuracy_s"]
    return pd.DataFrame(columns=columns, dtype=float), pd.DataFrame(columns=["cell"], dtype=str)
