"""The runs and tables of a study from which its answer and the findings of its figures are computed."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import pandas as pd

from analysis.level_words import cell_words
from analysis.records import cell_levels
from declared.factors import SIZE_FACTORS
from declared.responses import EPOCH_TIME, Response


@dataclass(frozen=True)
class Evidence:
    """Runs and tables of a study.

    Attributes:
        runs: The runs that tables and figures use: untraced ones, or all if every run is traced.
        tables: Values of the study's tables, by name.
        response: The response of the answer and of the table `anova`: that of the study, or epoch time if no
            run has it (`cell_means.measured_response`).
        load_epochs: Returns the epochs of the runs, which some responses are derived from.
    """

    runs: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]
    response: Response = EPOCH_TIME
    load_epochs: Callable[[], pd.DataFrame] = pd.DataFrame

    def table(self, name: str, *columns: str) -> pd.DataFrame:
        """Return the rows of a table with a value in each of these columns; empty without table or column."""
        data = self.tables.get(name, pd.DataFrame())
        if not set(columns) <= set(data):
            return pd.DataFrame(columns=[*columns])
        return data.dropna(subset=list(columns))

    def cell(self, name: object, compared: Collection[object] = ()) -> str:
        """Return the words that distinguish a cell, without sizes and accumulation that `compared` share."""
        cells = cell_levels(self.runs).set_index("cell").reindex(map(str, compared))
        shared = [factor for factor in (*SIZE_FACTORS, "sync_every") if cells[factor].nunique() == 1]
        return cell_words(self.runs, exclude=shared).get(str(name), str(name))
