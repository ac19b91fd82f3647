"""Make the tables of a study, from its runs alone.

One program for all of them: each by itself would spend most of its time on reading the runs and on its libraries. Those of
many runs are made on all cores.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis import (
    adjusted,
    anova,
    cells,
    checks,
    conditions,
    decomposition,
    drift,
    effects,
    energy,
    missing,
    regression,
    regression_table,
    scaling,
    speedup,
    strategies,
    tables,
    time_to_accuracy,
    variance,
)
from analysis.measured import read_runs, timed
from analysis.pooling import pooled
from common.cores import all_cores
from common.files import write_text
from common.options import run_program
from common.tables import read_table

MANY = 2000  # runs, from which on a second process is worth its start


@dataclass(frozen=True)
class Study:
    """What all tables are made from, and the folder that they go to. `every_run`: with those that were traced."""

    runs: pd.DataFrame
    every_run: pd.DataFrame
    epochs: pd.DataFrame
    network: pd.DataFrame | None
    out: Path
    margin: float | None = None
    target_accuracy: float | None = None
    replicates: str = ""

    def effects(self) -> None:
        """The table, with equivalence tests where the study states a margin."""
        tables.write(effects.table(self.runs, self.margin), self.out / "effects")

    def regression(self) -> None:
        """The table, and what the models predict of all cells."""
        fits = regression.fit_all(self.runs)
        tables.write_csv(regression_table.by_cell(fits), self.out / "regression_cells.csv")
        tables.write(regression_table.table(self.runs, fits), self.out / "regression")

    def checks(self) -> None:
        """The table, and the residuals of the runs."""
        residuals = checks.residuals(self.runs)
        tables.write_csv(checks.listed(residuals), self.out / "residuals.csv")
        tables.write(checks.table(self.runs, residuals), self.out / "checks")

    def decomposition(self) -> None:
        """The table, with what the network explains where it was swept."""
        tables.write(decomposition.table(self.runs, self.network), self.out / "decomposition")

    def time_to_accuracy(self) -> None:
        """The table, with rows where the study names a target."""
        made = time_to_accuracy.table(self.runs, self.epochs, self.target_accuracy)
        tables.write(made, self.out / "time_to_accuracy")

    def energy(self) -> None:
        """The table, with rows where machines tell their energy."""
        tables.write(energy.table(self.runs, self.epochs, self.target_accuracy), self.out / "energy")

    def variance(self) -> None:
        """The table, which alone looks into runs."""
        tables.write(variance.table(self.runs, self.epochs), self.out / "variance")

    def missing(self) -> None:
        """The table, of all runs of the design."""
        tables.write(missing.table(self.every_run), self.out / "missing")

    def note(self) -> None:
        """The study's methods note, which says once what captions and the notes of tables do not."""
        within_blocks = effects.compare(self.runs)["within_blocks"]
        chosen = f"Replicates are chosen by precision: a cell has {self.replicates}." if self.replicates else ""
        said = [NOTE_TITLE, chosen, *conditions.methods(self.runs, within_blocks), conditions.tracing(self.every_run)]
        write_text(self.out / NOTE, "\n\n".join(filter(None, said)) + "\n")

    def make(self, name: str) -> None:
        """One of LONGEST_FIRST."""
        if name in OTHERS:
            tables.write(OTHERS[name](self.runs), self.out / name)
        else:
            getattr(self, name)()


OTHERS: dict[str, Callable[[pd.DataFrame], tables.Table]] = {
    "scaling": scaling.table,
    "cells": cells.table,
    "anova": anova.table,
    "speedup": speedup.table,
    "strategies": strategies.table,
    "drift": drift.table,
    "adjusted": adjusted.table,
}
NOTE, NOTE_TITLE = "notes.md", "# How the numbers of this study were made"
REFERENCED = ("drift", "adjusted")  # that need the reference beside runs
LONGEST_FIRST = (
    "regression",
    "scaling",
    "effects",
    "decomposition",
    "variance",
    "time_to_accuracy",
    "energy",
    "anova",
    "speedup",
    "strategies",
    "cells",
    "checks",
    *REFERENCED,
    "missing",
    "note",
)
_read: list[Study] = []  # which the processes of a pool find, and need not be sent


def main(
    *,
    runs: Path,
    epochs: Path,
    network: Path | None = None,
    out: Path,
    margin: float | None = None,
    target_accuracy: float | None = None,
    replicates: str | None = None,
    reference: bool = False,
) -> None:
    """Write every table as .csv, .md and .tex; the residuals of the runs, and the regression's predictions of all cells, as .csv.

    Args:
        runs: runs.csv of the study
        epochs: epochs.csv of the study
        network: network.csv, where the network was swept
        out: where the tables go
        margin: share by which epoch times may differ and be called equal
        target_accuracy: validation accuracy to which time is told
        replicates: the rule, where a study says a precision
        reference: runs have a reference beside them, or will: make its tables, too
    """
    every = read_runs(runs)
    measured = timed(every)
    sweeps = read_table(network, "network") if network else None
    frame = read_table(epochs, "epochs")
    study = Study(measured, every, frame, sweeps, out, margin, target_accuracy, replicates or "")
    asked = [name for name in LONGEST_FIRST if reference or name not in REFERENCED]
    if len(measured) < MANY:
        for name in asked:
            study.make(name)
        return
    _ = pooled(measured).cells, pooled(measured).within.prior  # once for all
    _read[:] = [study]
    with all_cores() as pool:
        list(pool.map(_make, asked))


def _make(name: str) -> None:
    _read[0].make(name)


if __name__ == "__main__":
    sys.exit(run_program(main))
