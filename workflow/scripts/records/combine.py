"""Combine the runs of several campaigns in one table, for a study with the key `campaigns`.

The campaign becomes a factor, so that figures and tables compare campaigns like any other levels. Names of
cells, runs and sessions get the campaign as a suffix or prefix, since campaigns share no block.
"""

import sys
from pathlib import Path

import pandas as pd

from common.options import run_program
from common.schemas import schema
from common.tables import read_table, write_table
from declared.factors import is_custom
from declared.imported import CAMPAIGN, UNSTATED, Imported, combined_name
from declared.study import load_study


def combine(imported: Imported, study: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs and the epochs of all campaigns.

    Args:
        imported: The campaigns of the study.
        study: Name of the study.
    """
    all_runs, all_epochs = [], []
    for level, folder in imported.campaigns.items():
        runs, epochs = (read_table(folder / f"{name}.csv", name) for name in ("runs", "epochs"))
        names = {run: combined_name(str(run), level) for run in runs["run_id"]}
        cells = [combined_name(cell, level) for cell in runs["cell"]]
        sessions = level + " " + runs["session"].fillna("")
        runs = runs.assign(run_id=runs["run_id"].map(names), cell=cells, study=study)
        all_runs.append(runs.assign(session=sessions.where(runs["block"].notna()), **{CAMPAIGN: level}))
        epochs = epochs[epochs["run_id"].isin(names)]
        all_epochs.append(epochs.assign(run_id=epochs["run_id"].map(names)))
    combined = [pd.concat(frames, ignore_index=True) for frames in (all_runs, all_epochs)]
    custom = [name for name in combined[0] if is_custom(str(name))]
    stated = {name: combined[0][name].astype(object).fillna(UNSTATED) for name in custom}
    return combined[0].assign(**stated), combined[1]


def write_tables(tables: tuple[pd.DataFrame, pd.DataFrame], runs: Path, epochs: Path) -> None:
    """Write the tables of runs and epochs without empty columns."""
    for frame, name, file in zip(tables, ("runs", "epochs"), (runs, epochs), strict=True):
        filled = [c for c in frame if c in schema(name)["required"] or frame[c].notna().any()]
        write_table(frame[filled], name, file)


def main(*, study: str, runs: Path, epochs: Path) -> None:
    """Write runs.csv and epochs.csv of a study that combines campaigns.

    Args:
        study: name of a file in config/studies/
        runs: table of runs to write
        epochs: table of epochs to write
    """
    if imported := load_study(study).imported:
        write_tables(combine(imported, study), runs, epochs)


if __name__ == "__main__":
    sys.exit(run_program(main))
