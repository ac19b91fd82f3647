"""Table of energy: of an epoch, of a sample, and of training to the study's target.

All energies of a study have one scope (`choose_scope`), because the energy of accelerators, of processor
packages and of whole machines are different quantities. Intervals are computed like those of epoch times
(analysis.cell_means), because noise is a share of energy, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis import conditions, tables
from analysis.cell_means import estimate_column_means, name_bounds
from analysis.level_words import level_texts
from analysis.records import cell_levels, scale_to_dataset, successful
from analysis.speedup import with_baseline_ratios
from common.notes import Note
from common.text import number_of
from common.units import ENERGIES, choose_unit

TITLE = "Energy of an epoch over replicates with 95 % intervals"
WIDEST_FIRST = ("node", "package", "device")
SCOPE_TITLES = {
    "node": "whole machines, by wattmeters",
    "package": "processor packages (RAPL) of all machines",
    "device": "the accelerators that train",
}
WHY_NO_ENERGY = (
    "The machines do not report it, or epochs are too short for their meters (measured.meters of a "
    "record.json)."
)
NO_ENERGY = Note("no-energy", f"No record has energy. {WHY_NO_ENERGY}")
METHOD_NOTE = (
    "Energy is for the same samples as epoch time. Power: energy over epoch time, of all machines. Energy × "
    "time: product for an epoch, the lower the better if both matter. Ratio: energy over that of the "
    "baseline."
)
IDLE = "Idle: mean power of the same machines (or accelerators) before the session's first run."
TO_ACCURACY = (
    "To accuracy: all epochs through the first one with a validation accuracy of {:.4g} %, including "
    "warm-up, without validations."
)
COLUMNS = ("energy_j", "energy_per_sample_j", "power_w", "energy_delay_js")


@dataclass(frozen=True)
class EnergyScope:
    """The scope of a study's energies, and their values.

    Attributes:
        scope: Name of the scope.
        column: Column in runs.csv and epochs.csv.
        joules: Energy of an epoch by successful run (index of `runs`), NaN if a run does not record this
            scope.
        other_cells: Cells that record another scope only.
    """

    scope: str
    column: str
    joules: pd.Series
    other_cells: Sequence[str]

    @property
    def title(self) -> str:
        """Title of the scope."""
        return SCOPE_TITLES[self.scope]


def choose_scope(runs: pd.DataFrame) -> EnergyScope | None:
    """Return the widest scope that all successful runs with energy have, or else that of the most cells.

    Processor packages are never the energy of a run on accelerators, nor are accelerators the energy of a run
    that also trains on processors. An energy of 0 is a counter that stands still, and does not count.

    Returns:
        The scope; None if no run records energy.
    """
    ok = successful(runs)
    accelerated = (
        ok["energy_device_j"].notna() | ok["energy_scope"].eq("device").fillna(False) | ok["drivers"].notna()
    )
    by_scope: dict[str, tuple[str, pd.Series]] = {}
    for name in WIDEST_FIRST:
        column = f"energy_{name}_j"
        values = ok[column].astype(float)
        excluded = {"package": accelerated, "device": ok["device"].eq("hybrid")}.get(name)
        by_scope[name] = column, values if excluded is None else values.mask(excluded)
    by_scope = {scope: (column, values.where(values > 0)) for scope, (column, values) in by_scope.items()}
    has_energy = pd.concat([values for _, values in by_scope.values()], axis=1).notna().any(axis=1)
    if not has_energy.any():
        return None
    counts = {scope: ok.loc[values.notna(), "cell"].nunique() for scope, (_, values) in by_scope.items()}
    complete = [scope for scope, (_, values) in by_scope.items() if values[has_energy].notna().all()]
    scope = complete[0] if complete else max(counts, key=lambda name: counts[name])
    column, values = by_scope[scope]
    covered = set(ok.loc[values.notna(), "cell"])
    other_cells = [cell for cell in dict.fromkeys(ok.loc[has_energy, "cell"]) if cell not in covered]
    return EnergyScope(scope, column, scale_to_dataset(ok.assign(joules=values), "joules"), other_cells)


def energy_of_runs(runs: pd.DataFrame, scope: EnergyScope) -> pd.DataFrame:
    """Return a row per successful run that records energy of the scope.

    Columns: run_id, cell, session, block, COLUMNS, and idle_w, the mean power of the same machines (or
    accelerators) when idle.
    """
    ok = successful(runs).loc[scope.joules.dropna().index]
    energy, seconds = scope.joules[ok.index], ok["epoch_time_s"].astype(float)
    energies = ok[["run_id", "cell", "session", "block"]].assign(
        energy_j=energy,
        energy_per_sample_j=energy / ok["samples_per_epoch"].astype(float),
        power_w=energy / seconds,
        energy_delay_js=energy * seconds,
    )
    machines = ok["nodes"].where(ok["placement"].eq("distinct-nodes"), 1)
    idle = ok[f"idle_{scope.scope}_w"].astype(float)
    units = ok["n_devices"] if scope.scope == "device" else machines  # Hybrid runs have no device energy.
    return energies.assign(idle_w=idle * units.astype(float))


def energy_to_accuracy(
    runs: pd.DataFrame, epochs: pd.DataFrame, scope: EnergyScope, target: float
) -> pd.Series:
    """Return by run_id the energy (J) of all epochs through the first one that reaches the `target` accuracy.

    Runs without any accuracy are left out. The energy is NaN if no epoch reaches the target, or if an epoch
    before it has no energy.
    """
    ok = successful(runs).set_index("run_id")
    all_epochs = epochs[epochs["run_id"].isin(ok.index)].sort_values(["run_id", "epoch"])
    samples = all_epochs["run_id"].map(ok["samples_per_epoch"]).astype(float)
    joules = all_epochs[scope.column].astype(float) * (
        samples / all_epochs["samples_trained"].astype(float)
    ).fillna(1.0)
    spent = joules.groupby(all_epochs["run_id"], sort=False).cumsum().where(joules.notna())
    is_complete = joules.isna().groupby(all_epochs["run_id"], sort=False).cumsum() == 0
    validated = all_epochs.assign(spent=spent.where(is_complete)).dropna(subset="validation_accuracy")
    reached = (
        validated[validated["validation_accuracy"] >= target]
        .drop_duplicates("run_id")
        .set_index("run_id")["spent"]
    )
    return reached.reindex(validated["run_id"].drop_duplicates())


def summarize(runs: pd.DataFrame, epochs: pd.DataFrame, target: float | None = None) -> pd.DataFrame:
    """Return a row per cell with energy of the study's scope; no rows without energy.

    Columns: factors, scope, n, COLUMNS with bounds, idle_w, baseline_cell, and the ratio to the baseline
    with bounds. With a target also energy_to_accuracy_j with bounds, for cells whose runs all reach it.
    """
    scope = choose_scope(runs)
    if scope is None:
        return pd.DataFrame(columns=["cell"])
    energies = energy_of_runs(runs, scope)
    rows = cell_levels(runs).set_index("cell", drop=False)
    rows = rows[rows.index.isin(set(energies["cell"]))]
    rows["scope"] = scope.scope
    rows["n"] = energies.groupby("cell").size().reindex(rows.index)
    for column in COLUMNS:
        rows = rows.join(name_bounds(estimate_column_means(energies, column).cell_statistics, column))
    rows["idle_w"] = energies.groupby("cell")["idle_w"].mean().reindex(rows.index)
    rows = with_baseline_ratios(rows, runs, estimate_column_means(energies, "energy_j"))
    if target is not None:
        rows = _with_accuracy(rows, energies, energy_to_accuracy(runs, epochs, scope, target))
    return rows.reset_index(drop=True)


def _with_accuracy(rows: pd.DataFrame, energies: pd.DataFrame, spent: pd.Series) -> pd.DataFrame:
    """Add the energy to the target, for cells whose runs all reach it."""
    reached = energies.assign(spent=energies["run_id"].map(spent)).dropna(subset="spent")
    is_complete = reached.groupby("cell").size().reindex(rows.index, fill_value=0) == rows["n"]
    means = name_bounds(estimate_column_means(reached, "spent").cell_statistics, "energy_to_accuracy_j")
    return rows.join(means.reindex(rows.index).where(is_complete, axis=0))


def table(runs: pd.DataFrame, epochs: pd.DataFrame, target: float | None = None) -> tables.Table:
    """Return the table of a study; it has no rows without energy."""
    data = summarize(runs, epochs, target)
    scope = choose_scope(runs)
    if scope is None:
        return tables.Table(
            TITLE,
            data,
            pd.DataFrame(columns=["cell"], dtype=str),
            [NO_ENERGY, conditions.measurement_note(runs)],
        )
    display = level_texts(data, runs)
    display["n"] = data["n"].map(str)
    for name, heading in (
        ("energy_j", "energy"),
        ("energy_per_sample_j", "per sample"),
        ("energy_to_accuracy_j", "to accuracy"),
    ):
        if name in data and data[name].notna().any():
            unit = choose_unit(data[name], ENERGIES)
            texts = tables.interval_texts(data, name, 1 / unit.size)
            display[f"{heading} ({unit.name})"] = [
                "not by all runs" if text == tables.DASH else text for text in texts
            ]
    display["power (W)"] = tables.interval_texts(data, "power_w")
    if data["idle_w"].notna().any():
        display["idle (W)"] = data["idle_w"].map(tables.number)
    unit = choose_unit(data["energy_delay_js"], ENERGIES)
    display[f"energy × time ({unit.name} s)"] = tables.interval_texts(data, "energy_delay_js", 1 / unit.size)
    display["ratio to baseline"] = tables.interval_texts(data, "ratio")
    without_energy = [
        cell for cell in dict.fromkeys(successful(runs)["cell"]) if cell not in set(data["cell"])
    ]
    notes = [
        conditions.paragraph(
            "energy",
            [
                Note("whose-energy", f"Energy: {scope.title}.", scope=scope.scope),
                conditions.run_counts_note(runs, counted=data["n"]),
            ],
        ),
        METHOD_NOTE,
        cells_without_energy_note(without_energy),
        other_scope_note(scope),
        IDLE if data["idle_w"].notna().any() else "",
        "" if target is None else TO_ACCURACY.format(100 * target),
        conditions.measurement_note(runs),
    ]
    return tables.Table(TITLE, data.dropna(axis="columns", how="all"), pd.DataFrame(display), notes)


def cells_without_energy_note(cells: Sequence[str]) -> str:
    """Say how many cells have no energy; "" if all do."""
    text = f"Without energy: {number_of(len(cells), 'cell')}."
    return Note("n-cells-without-energy", text, cells=cells) if cells else ""


def other_scope_note(scope: EnergyScope) -> str:
    """Name the cells that record energy of another scope; "" if there are none."""
    if not scope.other_cells:
        return ""
    text = f"Left out, because their energy has another scope: {conditions.join_names(scope.other_cells)}."
    return Note("cells-of-another-scope", text, cells=scope.other_cells)
