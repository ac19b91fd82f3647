"""Cost and carbon dioxide of an epoch, and of training to the study's target.

    cost = price of a node for an hour x nodes x hours
    carbon dioxide = energy in kWh x carbon intensity of the grid

The site states price, intensity and the power of a node (declared.costs). Energy is what meters measured
(analysis.energy), or else the stated power of a node x nodes x time. Intervals are those of times or measured
energies (analysis.cell_means), because price, power and intensity are taken as exact.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from analysis import conditions, energy, tables
from analysis.cell_means import estimate_column_means, name_bounds
from analysis.level_words import level_texts
from analysis.records import are_times_to_train, cell_levels, currency_of, successful
from analysis.speedup import with_baseline_ratios
from analysis.time_to_accuracy import seconds_to_accuracy
from common.notes import Note
from common.units import CARBON_MASSES, choose_unit

TITLE = "Cost and carbon dioxide of an epoch, with 95 % intervals"
HOUR_S = 3600.0
KWH_J = 3.6e6
STATED = "stated"  # Source of energy without meters.
PER_EPOCH, TO_TARGET = ("cost", "co2_g"), ("cost_to_target", "co2_to_target_g")
HEADINGS = {
    "cost": "cost",
    "co2_g": "CO2e",
    "cost_to_target": "cost to accuracy",
    "co2_to_target_g": "CO2e to accuracy",
}
NOTHING_STATED = Note(
    "no-costs",
    "Neither price nor carbon intensity is known: add costs to the site (docs/how-to/cost.md). Carbon "
    "dioxide also needs meters or node_power_w.",
)
COST_NOTE = (
    "Cost: price of a node for an hour times nodes times the time of training epochs; queues, start-up and "
    "failed runs are in the table useful_time. Whole nodes are paid."
)
METHOD_NOTE = (
    "Ratio: {0} over that of the baseline. Front: no cell of the same model and data set needs less of both "
    "time and {0}. To accuracy: given if all runs of a cell reach it."
)
CURRENCIES_NOTE = Note(
    "several-currencies", "Prices are in several currencies: state costs in one to compare them."
)
TRAININGS_NOTE = Note(
    "whole-trainings", "An epoch is a whole training, until the target that the source chose."
)


def cost_or_carbon(
    runs: pd.DataFrame, column: str, load_epochs: Callable[[], pd.DataFrame], target: float | None
) -> pd.Series:
    """Return cost or carbon dioxide (g) of each run, NaN if unknown; no cost if there are several currencies.

    Args:
        runs: Runs of a study.
        column: One of PER_EPOCH and TO_TARGET.
        load_epochs: Returns the epochs of the runs.
        target: Target accuracy of TO_TARGET.
    """
    is_to_target = column in TO_TARGET
    if is_to_target:
        seconds = seconds_to_accuracy(runs, load_epochs(), np.nan if target is None else target)
    else:
        seconds = runs["epoch_time_s"].astype(float)
    node_s = paid_nodes(runs) * seconds
    if column.startswith("cost"):
        price = runs["price_per_node_hour"].astype(float)
        return (price if currency_of(runs) else np.nan) * node_s / HOUR_S
    meters = energy.choose_scope(runs)
    if meters is None:
        joules = runs["node_power_w"].astype(float) * node_s
    elif is_to_target:
        spent = energy.energy_to_accuracy(runs, load_epochs(), meters, float(target or np.nan))
        joules = runs["run_id"].map(spent).astype(float).where(seconds.notna())
    else:
        joules = meters.joules.reindex(runs.index)
    return joules / KWH_J * runs["grid_g_co2_per_kwh"].astype(float)


def paid_nodes(runs: pd.DataFrame) -> pd.Series:
    """Return how many nodes each run occupies; emulated nodes on one machine count as one."""
    return runs["nodes"].astype(float).where(runs["placement"].ne("emulated").fillna(True), 1.0)


def source_notes(runs: pd.DataFrame, column: str) -> list[str]:
    """Return the notes of a caption on price, or on grid and energy, behind a column of `cost_or_carbon`."""
    if column.startswith("cost"):
        text = f"Price: {_stated(runs, 'price_per_node_hour')} {currency_of(runs)} per node and hour."
        return [Note("price", text, currency=currency_of(runs))]
    meters = energy.choose_scope(runs)
    power = f"stated node power ({_stated(runs, 'node_power_w')} W), not measured"
    grid = f"Grid: {_stated(runs, 'grid_g_co2_per_kwh')} gCO2e/kWh."
    text = f"{grid} Energy: {meters.title if meters else power}."
    return [Note("whose-energy", text, scope=meters.scope if meters else STATED)]


def _stated(runs: pd.DataFrame, column: str) -> str:
    return " or ".join(f"{value:g}" for value in sorted(set(runs[column].dropna().astype(float))))


def pareto_front(points: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Return the points that no other point beats in both `x` and `y`, by ascending `x`."""
    ascending = points.dropna(subset=[x, y]).sort_values([x, y])
    return ascending[ascending[y] < ascending[y].cummin().shift(fill_value=np.inf)]


def summarize(runs: pd.DataFrame, epochs: pd.DataFrame, target: float | None = None) -> pd.DataFrame:
    """Return a row per cell with a cost or carbon dioxide; no rows if neither is known.

    Columns: factors, n, currency, energy_source, epoch_time_s, the columns of `cost_or_carbon` with bounds,
    baseline_cell, the ratio to the baseline with bounds, and front (whether no cell of the same work needs
    less of both time and the first of these columns).
    """
    ok = successful(runs)
    rows = cell_levels(runs).set_index("cell", drop=False)
    rows["n"] = ok.groupby("cell").size().reindex(rows.index)
    rows["currency"] = currency_of(runs) or None
    meters = energy.choose_scope(runs)
    rows["energy_source"] = meters.scope if meters else STATED
    rows["epoch_time_s"] = ok["epoch_time_s"].astype(float).groupby(ok["cell"]).mean().reindex(rows.index)
    compared = None
    for column in (*PER_EPOCH, *(TO_TARGET if target is not None else ())):
        values = ok.assign(value=cost_or_carbon(ok, column, lambda: epochs, target)).dropna(subset="value")
        if values.empty:
            continue
        cell_means = estimate_column_means(values, "value")
        rows = rows.join(name_bounds(cell_means.cell_statistics, column))
        compared = compared or (column, cell_means)
    if compared is None:
        return pd.DataFrame(columns=["cell"])
    column, cell_means = compared
    if "co2_g" not in rows:
        rows["energy_source"] = None
    rows = with_baseline_ratios(rows[rows[column].notna()], runs, cell_means)
    of_work = rows.reset_index(drop=True).groupby(["model", "dataset"])
    on_front = {cell for _, cells in of_work for cell in pareto_front(cells, "epoch_time_s", column)["cell"]}
    return rows.assign(front=rows["cell"].isin(on_front)).reset_index(drop=True)


def _why_empty(runs: pd.DataFrame) -> str:
    """Say why no cell has a cost or carbon dioxide."""
    if successful(runs).empty:
        return conditions.run_counts_note(runs)
    return CURRENCIES_NOTE if runs["currency"].nunique() > 1 else NOTHING_STATED


def table(runs: pd.DataFrame, epochs: pd.DataFrame, target: float | None = None) -> tables.Table:
    """Return the table of a study; it has no rows if neither cost nor carbon dioxide is known."""
    data = summarize(runs, epochs, target)
    if data.empty:
        notes: list[str] = [_why_empty(runs), conditions.measurement_note(runs)]
        return tables.Table(TITLE, data, pd.DataFrame(columns=["cell"], dtype=str), notes)
    display = level_texts(data, runs)
    display["n"] = data["n"].map(str)
    display["epoch time (s)"] = data["epoch_time_s"].map(tables.number)
    for column, heading in HEADINGS.items():
        if column in data:
            unit = choose_unit(data[column], CARBON_MASSES)
            size, name = (unit.size, unit.name) if "co2" in column else (1.0, str(data["currency"].iloc[0]))
            display[f"{heading} ({name})"] = tables.interval_texts(data, column, 1 / size)
    display["ratio to baseline"] = tables.interval_texts(data, "ratio")
    display["front"] = np.where(data["front"], "yes", "")
    notes = [
        conditions.run_counts_note(runs, counted=data["n"]),
        *(note for column in PER_EPOCH if column in data for note in source_notes(runs, column)),
        COST_NOTE if "cost" in data else "",
        METHOD_NOTE.format(next(HEADINGS[column] for column in HEADINGS if column in data)),
        CURRENCIES_NOTE if runs["currency"].nunique() > 1 else "",
        TRAININGS_NOTE if are_times_to_train(runs) else "",
        conditions.measurement_note(runs),
    ]
    return tables.Table(TITLE, data.dropna(axis="columns", how="all"), pd.DataFrame(display), notes)
