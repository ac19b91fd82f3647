"""Write the tables of a study.

One program writes all tables, because reading the runs and importing libraries would take most of the time of
a program per table. The tables of many runs are computed on all cores.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from analysis import (
    adjusted,
    anova,
    cells,
    checks,
    conditions,
    cost,
    decomposition,
    drift,
    effects,
    efficiency,
    energy,
    memory,
    missing,
    regression,
    regression_table,
    scaling,
    settings,
    speedup,
    strategies,
    tables,
    time_to_accuracy,
    useful_time,
    variance,
)
from analysis.cell_means import estimate_means
from analysis.records import currency_of, read_runs, timing_runs
from analysis.responses import with_response
from common.cores import all_cores
from common.errors import InputError
from common.files import write_text
from common.options import run_program
from common.tables import read_table
from common.text import alternatives
from declared.products.tables import TABLES
from declared.responses import EPOCH_TIME, RESPONSES, Response

NOTE = "note"
MIN_PARALLEL_RUNS = 2000  # For fewer runs, starting processes costs more than it saves.


@dataclass(frozen=True)
class TableInputs:
    """The data behind the tables, options of the study, and the output folder.

    `every_run` includes traced runs. `runs` are the runs that tables of time use.
    """

    runs: pd.DataFrame
    every_run: pd.DataFrame
    epochs: pd.DataFrame
    network: pd.DataFrame | None
    out: Path
    margin: float | None = None
    target_accuracy: float | None = None
    replicates: str = ""
    response: Response = EPOCH_TIME

    @cached_property
    def runs_with_response(self) -> pd.DataFrame:
        """The runs with the column of the study's response."""
        return with_response(self.runs, self.response, lambda: self.epochs, self.target_accuracy)

    def regression_table(self) -> tables.Table:
        """Return the table, and write the predictions of all cells to regression_cells.csv."""
        fits = regression.fit_all(self.runs)
        tables.write_csv(regression_table.by_cell(fits), self.out / "regression_cells.csv")
        return regression_table.table(self.runs, fits)

    def checks_table(self) -> tables.Table:
        """Return the table, and write the residuals of the runs to residuals.csv."""
        residuals = checks.residuals(self.runs)
        tables.write_csv(checks.residual_columns(residuals), self.out / "residuals.csv")
        return checks.table(self.runs, residuals)

    def write_note(self) -> None:
        """Write the study's methods note, which explains once what captions and table notes omit."""
        within_blocks = effects.build_rows(self.runs)["within_blocks"]
        chosen = (
            f"Replicates are chosen by an interval target: a cell has {self.replicates}."
            if self.replicates
            else ""
        )
        paragraphs = [
            "# How the numbers of this study were computed",
            chosen,
            *conditions.methods_notes(self.runs, within_blocks),
            conditions.tracing_note(self.every_run),
        ]
        write_text(self.out / "notes.md", "\n\n".join(filter(None, paragraphs)) + "\n")

    def write(self, name: str) -> None:
        """Write the table of MAKERS with this name, or the methods note."""
        if name == NOTE:
            self.write_note()
        else:
            tables.write(MAKERS[name](self), self.out / name)


# The slowest tables come first, so that no process ends long after the others.
MAKERS: dict[str, Callable[[TableInputs], tables.Table]] = {
    "regression": TableInputs.regression_table,
    "scaling": lambda inputs: scaling.table(inputs.runs),
    "effects": lambda inputs: effects.table(inputs.runs_with_response, inputs.margin, inputs.response),
    "decomposition": lambda inputs: decomposition.table(inputs.runs, inputs.network),
    "variance": lambda inputs: variance.table(inputs.runs, inputs.epochs),
    "time_to_accuracy": lambda inputs: time_to_accuracy.table(
        inputs.runs, inputs.epochs, inputs.target_accuracy
    ),
    "energy": lambda inputs: energy.table(inputs.runs, inputs.epochs, inputs.target_accuracy),
    "cost": lambda inputs: cost.table(inputs.runs, inputs.epochs, inputs.target_accuracy),
    "anova": lambda inputs: anova.table(inputs.runs_with_response, inputs.response),
    "speedup": lambda inputs: speedup.table(inputs.runs),
    "strategies": lambda inputs: strategies.table(inputs.runs),
    "memory": lambda inputs: memory.table(inputs.runs),
    "cells": lambda inputs: cells.table(inputs.runs_with_response, inputs.response),
    "checks": TableInputs.checks_table,
    "settings": lambda inputs: settings.table(inputs.runs),
    "drift": lambda inputs: drift.table(inputs.runs),
    "adjusted": lambda inputs: adjusted.table(inputs.runs),
    "efficiency": lambda inputs: efficiency.table(inputs.runs),
    "useful_time": lambda inputs: useful_time.table(inputs.every_run, inputs.epochs),
    "missing": lambda inputs: missing.table(inputs.every_run),
}
_shared_inputs: list[TableInputs] = []  # Forked workers inherit it, so it is not pickled.


def main(
    *,
    runs: Path,
    epochs: Path,
    network: Path | None = None,
    out: Path,
    margin: float | None = None,
    target_accuracy: float | None = None,
    replicates: str | None = None,
    response: str = EPOCH_TIME.name,
    omit: Sequence[str] = (),
) -> None:
    """Write every table as .csv, .md and .tex, and residuals of runs and predictions of all cells as .csv.

    Args:
        runs: runs.csv of the study
        epochs: epochs.csv of the study
        network: network.csv, if there is a collective benchmark
        out: folder of the tables
        margin: share by which equal epoch times may differ
        target_accuracy: validation accuracy of the table of time to accuracy
        replicates: the rule that chooses replicates by an interval target
        response: the response of the study (declared/responses.py)
        omit: tables to leave out, because the study has nothing that they would show
    """
    if unknown := sorted(set(omit) - set(TABLES)):
        problem, choices = f"'{unknown[0]}' is not a table", alternatives(unknown[0], TABLES)
        raise InputError("unknown-name", problem, file="--omit", got=unknown[0], **choices)
    if response not in RESPONSES:
        problem, choices = f"'{response}' is unknown", alternatives(response, RESPONSES)
        raise InputError("unknown-name", problem, file="--response", got=response, **choices)
    every = read_runs(runs)
    measured = timing_runs(every)
    inputs = TableInputs(
        measured,
        every,
        read_table(epochs, "epochs"),
        read_table(network, "network") if network else None,
        out,
        margin,
        target_accuracy,
        replicates or "",
        RESPONSES[response].with_currency(currency_of(every)),
    )
    names = [name for name in (*MAKERS, NOTE) if name not in omit]
    if len(measured) < MIN_PARALLEL_RUNS:
        for name in names:
            inputs.write(name)
        return
    # These are cached before workers fork, so that they are computed once.
    _ = estimate_means(measured).cell_statistics, estimate_means(measured).residual_spread.prior
    _shared_inputs[:] = [inputs]
    with all_cores() as pool:
        list(pool.map(_write_shared, names))


def _write_shared(name: str) -> None:
    _shared_inputs[0].write(name)


if __name__ == "__main__":
    sys.exit(run_program(main))
