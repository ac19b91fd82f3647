"""Write the tables of a study.

One program writes all of them, because reading the runs and importing libraries takes most of the time of
each. The tables of many runs are computed on all cores.
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
from analysis.measured import currency_of, read_runs, timing_runs
from analysis.pooling import pooled
from analysis.responses import with_response
from common.cores import all_cores
from common.errors import InputError
from common.files import write_text
from common.options import run_program
from common.tables import read_table
from common.text import alternatives
from declared.products.tables import TABLES
from declared.responses import EPOCH_TIME, RESPONSES, Response

MIN_PARALLEL_RUNS = 2000  # fewer runs do not justify starting processes


@dataclass(frozen=True)
class Study:
    """Data behind the tables, options, and the output folder.

    `every_run` includes traced runs, `runs` are those that tables of time use.
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

    def write_cells(self) -> None:
        """Write the table, the study's response first."""
        tables.write(cells.table(self.runs_with_response, self.response), self.out / "cells")

    def write_effects(self) -> None:
        """Write the table, with equivalence tests if the study states a margin."""
        table = effects.table(self.runs_with_response, self.margin, self.response)
        tables.write(table, self.out / "effects")

    def write_anova(self) -> None:
        """Write the table, of the study's response."""
        tables.write(anova.table(self.runs_with_response, self.response), self.out / "anova")

    def write_regression(self) -> None:
        """Write the table, and the models' predictions of all cells."""
        fits = regression.fit_all(self.runs)
        tables.write_csv(regression_table.by_cell(fits), self.out / "regression_cells.csv")
        tables.write(regression_table.table(self.runs, fits), self.out / "regression")

    def write_checks(self) -> None:
        """Write the table, and the residuals of the runs."""
        residuals = checks.residuals(self.runs)
        tables.write_csv(checks.residual_columns(residuals), self.out / "residuals.csv")
        tables.write(checks.table(self.runs, residuals), self.out / "checks")

    def write_decomposition(self) -> None:
        """Write the table, with the predicted part of the network if there is a collective benchmark."""
        tables.write(decomposition.table(self.runs, self.network), self.out / "decomposition")

    def write_time_to_accuracy(self) -> None:
        """Write the table; it has rows if the study names a target."""
        table = time_to_accuracy.table(self.runs, self.epochs, self.target_accuracy)
        tables.write(table, self.out / "time_to_accuracy")

    def write_energy(self) -> None:
        """Write the table; it has rows if machines report energy."""
        tables.write(energy.table(self.runs, self.epochs, self.target_accuracy), self.out / "energy")

    def write_cost(self) -> None:
        """Write the table; it has rows if price or carbon intensity is stated."""
        tables.write(cost.table(self.runs, self.epochs, self.target_accuracy), self.out / "cost")

    def write_variance(self) -> None:
        """Write the table, whose innermost part is the spread of epochs within a run."""
        tables.write(variance.table(self.runs, self.epochs), self.out / "variance")

    def write_missing(self) -> None:
        """Write the table of the runs of the design that did not succeed."""
        tables.write(missing.table(self.every_run), self.out / "missing")

    def write_useful_time(self) -> None:
        """Write the table of the node time of all runs."""
        tables.write(useful_time.table(self.every_run, self.epochs), self.out / "useful_time")

    def write_note(self) -> None:
        """Write the study's methods note, which explains once what captions and table notes omit."""
        within_blocks = effects.build_rows(self.runs)["within_blocks"]
        chosen = (
            f"Replicates are chosen by precision: a cell has {self.replicates}." if self.replicates else ""
        )
        paragraphs = [
            NOTE_TITLE,
            chosen,
            *conditions.methods_notes(self.runs, within_blocks),
            conditions.tracing_note(self.every_run),
        ]
        write_text(self.out / NOTE, "\n\n".join(filter(None, paragraphs)) + "\n")

    def write(self, name: str) -> None:
        """Write one of TABLES_LONGEST_FIRST."""
        if name in RUN_TABLES:
            tables.write(RUN_TABLES[name](self.runs), self.out / name)
        else:
            getattr(self, f"write_{name}")()


RUN_TABLES: dict[str, Callable[[pd.DataFrame], tables.Table]] = {
    "scaling": scaling.table,
    "speedup": speedup.table,
    "strategies": strategies.table,
    "settings": settings.table,
    "drift": drift.table,
    "memory": memory.table,
    "adjusted": adjusted.table,
    "efficiency": efficiency.table,
}
NOTE, NOTE_TITLE = "notes.md", "# How the numbers of this study were computed"
TABLES_LONGEST_FIRST = (
    "regression",
    "scaling",
    "effects",
    "decomposition",
    "variance",
    "time_to_accuracy",
    "energy",
    "cost",
    "anova",
    "speedup",
    "strategies",
    "memory",
    "cells",
    "checks",
    "settings",
    "drift",
    "adjusted",
    "efficiency",
    "useful_time",
    "missing",
    "note",
)
_shared_study: list[Study] = []  # inherited by forked workers instead of being pickled


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
        replicates: the rule that chooses replicates by a precision target
        response: the response of the study (declared/responses.py)
        omit: tables to leave out, because the study has nothing that they would show
    """
    if unknown := sorted(set(omit) - set(TABLES)):
        problem, choices = f"'{unknown[0]}' is no table", alternatives(unknown[0], TABLES)
        raise InputError("unknown-name", problem, file="--omit", got=unknown[0], **choices)
    every = read_runs(runs)
    measured = timing_runs(every)
    network_rows = read_table(network, "network") if network else None
    frame = read_table(epochs, "epochs")
    study = Study(
        measured,
        every,
        frame,
        network_rows,
        out,
        margin,
        target_accuracy,
        replicates or "",
        chosen_response(response).with_currency(currency_of(every)),
    )
    names = [name for name in TABLES_LONGEST_FIRST if name not in omit]
    if len(measured) < MIN_PARALLEL_RUNS:
        for name in names:
            study.write(name)
        return
    _ = pooled(measured).cell_statistics, pooled(measured).within.prior  # computed once, before workers fork
    _shared_study[:] = [study]
    with all_cores() as pool:
        list(pool.map(_write_shared, names))


def chosen_response(name: str) -> Response:
    """Return a response by its name.

    Raises:
        InputError: If there is none.
    """
    if name not in RESPONSES:
        problem = f"'{name}' is unknown"
        raise InputError(
            "unknown-name", problem, file="--response", got=name, **alternatives(name, RESPONSES)
        )
    return RESPONSES[name]


def _write_shared(name: str) -> None:
    _shared_study[0].write(name)


if __name__ == "__main__":
    sys.exit(run_program(main))
