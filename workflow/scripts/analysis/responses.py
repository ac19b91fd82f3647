"""Measure the responses of `declared.responses`: derive columns of runs that runs.csv does not have."""

import math
from collections.abc import Callable

import pandas as pd

from analysis import cost, efficiency, energy
from analysis.records import peak_memory_bytes, successful
from analysis.time_to_accuracy import seconds_to_accuracy
from common.notes import Note
from common.text import number_of
from declared.responses import RESPONSES, Response

COST_COLUMNS = tuple(cost.HEADINGS)
DEVICE_THROUGHPUT, DEVICE_TOKEN_THROUGHPUT, MEMORY, ENERGY, TIME_TO_ACCURACY = (
    RESPONSES[name]
    for name in (
        "throughput_per_device",
        "token_throughput_per_device",
        "memory",
        "energy_per_sample",
        "time_to_accuracy",
    )
)


def with_response(
    runs: pd.DataFrame,
    response: Response,
    load_epochs: Callable[[], pd.DataFrame],
    target: float | None = None,
) -> pd.DataFrame:
    """Return the runs with the column of a response, NaN where a run has none.

    Args:
        runs: Runs of a study.
        response: The response.
        load_epochs: Returns the epochs of the runs.
        target: Validation accuracy of the time to accuracy.
    """
    if response.column in runs:
        return runs
    return runs.assign(**{response.column: _derive(runs, response, load_epochs, target)})


def _derive(
    runs: pd.DataFrame, response: Response, load_epochs: Callable[[], pd.DataFrame], target: float | None
) -> pd.Series:
    """Return the column of a response that runs.csv does not have, computed from other columns.

    Raises:
        ValueError: If there is no rule for it.
    """
    if response in (DEVICE_THROUGHPUT, DEVICE_TOKEN_THROUGHPUT):
        total = runs[response.column.removesuffix("_device")].astype(float)
        return total / runs["n_devices"].astype(float)
    if response == MEMORY:
        return peak_memory_bytes(runs)
    if response == ENERGY:
        scope = energy.choose_scope(runs)
        by_run = energy.energy_of_runs(runs, scope)[ENERGY.column] if scope else pd.Series(dtype=float)
        return by_run.reindex(runs.index)
    if response in efficiency.UTILIZATION:
        utilization = efficiency.model_flop_utilization(runs)
        if response.column in efficiency.SHARES:
            efficiency.check_shares(runs, utilization)
        return utilization[response.column]
    if response.column in COST_COLUMNS:
        return cost.cost_or_carbon(runs, response.column, load_epochs, target)
    if response == TIME_TO_ACCURACY:
        return seconds_to_accuracy(runs, load_epochs(), target or math.nan)
    raise ValueError(f"no rule derives {response.column}")


def response_notes(runs: pd.DataFrame, response: Response) -> list[str]:
    """Return what a caption says about the response: its meaning, whose energy, and which cells lack it.

    Args:
        runs: Runs with the response's column.
        response: The response.
    """
    notes: list[str] = [Note("response", response.meaning, response=response.name)]
    if response == ENERGY and (scope := energy.choose_scope(runs)):
        notes.append(Note("whose-energy", f"Energy: {scope.title}.", scope=scope.scope))
    if response.column in COST_COLUMNS and runs[response.column].notna().any():
        notes += cost.source_notes(runs, response.column)
    ok = successful(runs)
    if response in efficiency.UTILIZATION:
        notes += efficiency.notes(efficiency.model_flop_utilization(ok), response)
    measured = set(ok.loc[ok[response.column].notna(), "cell"])
    if lacking_cells := [cell for cell in dict.fromkeys(ok["cell"]) if cell not in measured]:
        text = f"Without {response.title}: {number_of(len(lacking_cells), 'cell')}."
        notes.append(Note("cells-without-response", text, cells=lacking_cells))
    return notes
