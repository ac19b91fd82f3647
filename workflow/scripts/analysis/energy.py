"""Table of energy: what an epoch, a sample, and training to the study's target take, each cell against its base; energy times delay.

All energies of a study are of one scope (`chosen`), since energy of accelerators, of processor packages and of whole machines are
different quantities. Intervals are made as those of epoch times (analysis.pooling): noise is a share of energy, too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.intervals import Estimate
from analysis.measured import cells, level_text, scaled, successful, title, varying
from analysis.pooling import Pooling, Values
from analysis.speedup import base_cells
from common.notes import Note
from common.text import number_of

TITLE = "Energy of an epoch over replicates with 95 % intervals"
WIDEST_FIRST = ("node", "package", "device")
WHOSE = {
    "node": "whole machines, by wattmeters",
    "package": "processor packages (RAPL) of all machines",
    "device": "the accelerators that train",
    None: "processor packages and accelerators together, as recorded before these were kept apart",
}
WHY_NOT = "The machines do not report it, or epochs are too short for their meters (measured.meters of a record.json)."
NOTHING = Note("no-energy", f"No record has energy. {WHY_NOT}")
UNITS = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"))
HOW = (
    "Energy is for the same samples as epoch time. Power: energy over epoch time, of all machines. Energy × time: that of an epoch, the lower the "
    "better for who wants both. Ratio: energy over that of the base cell."
)
RESPONSES = ("energy_j", "energy_per_sample_j", "power_w", "energy_delay_js")


@dataclass(frozen=True)
class Told:
    """The energy that a study's numbers are of. `scope`: None for campaigns of before scopes; `column`: of runs.csv and epochs.csv;
    `joules`: of an epoch, by successful run (index of `runs`), NaN where a run does not tell this scope; `others`: cells that tell another
    scope only."""

    scope: str | None
    column: str
    joules: pd.Series
    others: Sequence[str]

    @property
    def whose(self) -> str:
        """Whose energy it is, in words."""
        return WHOSE[self.scope]


def chosen(runs: pd.DataFrame) -> Told | None:
    """The widest scope that all successful runs have that tell any energy; where there is none, the one of most cells. None without energy.

    A package alone is never the energy of a run on accelerators, nor accelerators that of one on processors, too. A counter that stands still tells nothing.
    """
    ok = successful(runs)
    accelerated = ok["energy_device_j"].notna() | ok["energy_scope"].eq("device").fillna(False) | ok["drivers"].notna()
    found: dict[str | None, tuple[str, pd.Series]] = {}
    for name in WIDEST_FIRST:
        column = f"energy_{name}_j"
        values = ok[column].astype(float)
        lacks = {"package": accelerated, "device": ok["device"].eq("hybrid")}.get(name)
        found[name] = column, values if lacks is None else values.mask(lacks)
    older = ok["energy_scope"].isna() & ok["energy_j"].notna()
    found[None] = "energy_j", ok["energy_j"].astype(float).where(older)
    found = {scope: (column, values.where(values > 0)) for scope, (column, values) in found.items()}
    any_told = pd.concat([values for _, values in found.values()], axis=1).notna().any(axis=1)
    if not any_told.any():
        return None
    counts = {scope: ok.loc[values.notna(), "cell"].nunique() for scope, (_, values) in found.items()}
    whole = [scope for scope, (_, values) in found.items() if values[any_told].notna().all()]
    scope = whole[0] if whole else max(counts, key=lambda one: counts[one])
    column, values = found[scope]
    with_it = set(ok.loc[values.notna(), "cell"])
    others = [cell for cell in dict.fromkeys(ok.loc[any_told, "cell"]) if cell not in with_it]
    return Told(scope, column, scaled(ok.assign(joules=values), "joules"), others)


def of_runs(runs: pd.DataFrame, told: Told) -> pd.DataFrame:
    """A row per successful run that tells its energy: run_id, cell, session, block, RESPONSES, and idle_w, the mean power of the same
    machines without the training."""
    ok = successful(runs).loc[told.joules.dropna().index]
    energy, seconds = told.joules[ok.index], ok["epoch_time_s"].astype(float)
    made = ok[["run_id", "cell", "session", "block"]].assign(
        energy_j=energy,
        energy_per_sample_j=energy / ok["samples_per_epoch"].astype(float),
        power_w=energy / seconds,
        energy_delay_js=energy * seconds,
    )
    machines = ok["nodes"].where(ok["placement"].eq("distinct-nodes"), 1)
    idle = ok[f"idle_{told.scope}_w"].astype(float) if told.scope else pd.Series(math.nan, index=ok.index)
    units = ok["replicas"] if told.scope == "device" else machines  # hybrid runs tell no energy of devices (`chosen`)
    return made.assign(idle_w=idle * units.astype(float))


def to_accuracy(runs: pd.DataFrame, epochs: pd.DataFrame, told: Told, target: float) -> pd.Series:
    """By run_id, for the runs that tell their accuracy: energy of all epochs through the first one that reaches `target`, J; NaN where
    none does, or one of them has no energy."""
    ok = successful(runs).set_index("run_id")
    every = epochs[epochs["run_id"].isin(ok.index)].sort_values(["run_id", "epoch"])
    samples = every["run_id"].map(ok["samples_per_epoch"]).astype(float)
    joules = every[told.column].astype(float) * (samples / every["samples_trained"].astype(float)).fillna(1.0)
    spent = joules.groupby(every["run_id"], sort=False).cumsum().where(joules.notna())
    known = joules.isna().groupby(every["run_id"], sort=False).cumsum() == 0
    seen = every.assign(spent=spent.where(known)).dropna(subset="validation_accuracy")
    reached = seen[seen["validation_accuracy"] >= target].drop_duplicates("run_id").set_index("run_id")["spent"]
    return reached.reindex(seen["run_id"].drop_duplicates())


def pooling(found: pd.DataFrame, response: str) -> Pooling:
    """How runs spread in a response that is positive, and what it says of cells and of pairs of them."""
    values = Values.of(found, response)
    return Pooling(values.log.groups, 0, values)


def summarize(runs: pd.DataFrame, epochs: pd.DataFrame, target: float | None = None) -> pd.DataFrame:
    """A row per cell whose runs tell energy of the study's scope: factors, scope, n, RESPONSES with bounds, idle_w, the base cell and the
    ratio to it with bounds; with a target energy_to_accuracy_j with bounds, where all runs reach it. No rows without energy."""
    told = chosen(runs)
    if told is None:
        return pd.DataFrame(columns=["cell"])
    found = of_runs(runs, told)
    rows = cells(runs).set_index("cell", drop=False)
    rows = rows[rows.index.isin(set(found["cell"]))]
    rows["scope"] = told.scope
    rows["n"] = found.groupby("cell").size().reindex(rows.index)
    for response in RESPONSES:
        of_cells = pooling(found, response).cells.reindex(rows.index)
        for part, end in (("mean", ""), ("low", "_low"), ("high", "_high")):
            rows[f"{response}{end}"] = of_cells[part]
    rows["idle_w"] = found.groupby("cell")["idle_w"].mean().reindex(rows.index)
    base = {cell: other for cell, other in base_cells(runs).items() if {cell, other} <= set(rows.index)}
    rows["base_cell"] = rows["cell"].map(base)
    ratios = pooling(found, "energy_j").ratios(list(base), list(base.values())).set_index(pd.Index(list(base)))
    own = rows["cell"] == rows["base_cell"]
    for part, end in (("value", ""), ("low", "_low"), ("high", "_high")):
        rows[f"ratio{end}"] = ratios[part].reindex(rows.index).mask(own, math.nan if end else 1.0)
    if target is not None:
        rows = _with_accuracy(rows, found, to_accuracy(runs, epochs, told, target))
    return rows.reset_index(drop=True)


def _with_accuracy(rows: pd.DataFrame, found: pd.DataFrame, spent: pd.Series) -> pd.DataFrame:
    """`rows` with the energy to the target, of cells all of whose runs have one."""
    of = found.assign(spent=found["run_id"].map(spent)).dropna(subset="spent")
    whole = of.groupby("cell").size().reindex(rows.index, fill_value=0) == rows["n"]
    of_cells = pooling(of, "spent").cells.reindex(rows.index)[["mean", "low", "high"]].where(whole, axis=0)
    return rows.assign(
        **{
            f"energy_to_accuracy_j{end}": of_cells[part]
            for part, end in (("mean", ""), ("low", "_low"), ("high", "_high"))
        }
    )


def unit_of(values: pd.Series) -> tuple[float, str]:
    """The unit in which the largest of some joules is 1 or more."""
    most = float(np.nanmax(values.astype(float)))
    return next((each for each in UNITS if most >= each[0]), UNITS[-1])


def table(runs: pd.DataFrame, epochs: pd.DataFrame, target: float | None = None) -> tables.Table:
    """The table of a study; without rows where nothing tells its energy."""
    data = summarize(runs, epochs, target)
    told = chosen(runs)
    if told is None:
        return tables.Table(TITLE, data, pd.DataFrame(columns=["cell"], dtype=str), [NOTHING, conditions.setting(runs)])
    shown = {title(name): data[name].map(level_text) for name in ["framework", *varying(runs, but=["framework"])]}
    shown["n"] = data["n"].map(str)
    for name, heading in (
        ("energy_j", "energy"),
        ("energy_per_sample_j", "per sample"),
        ("energy_to_accuracy_j", "to accuracy"),
    ):
        if name in data and data[name].notna().any():
            unit, unit_name = unit_of(data[name])
            texts = _texts(data, name, unit)
            shown[f"{heading} ({unit_name})"] = ["not by all runs" if text == tables.DASH else text for text in texts]
    shown["power (W)"] = _texts(data, "power_w")
    if data["idle_w"].notna().any():
        shown["idle (W)"] = data["idle_w"].map(tables.number)
    unit, unit_name = unit_of(data["energy_delay_js"])
    shown[f"energy × time ({unit_name} s)"] = _texts(data, "energy_delay_js", unit)
    shown["ratio to base"] = _texts(data, "ratio")
    untold = [cell for cell in dict.fromkeys(successful(runs)["cell"]) if cell not in set(data["cell"])]
    notes = [
        conditions.paragraph("energy", [_whose(told), conditions.counts(runs, counted=data["n"])]),
        HOW,
        without(untold),
        mixed(told),
        IDLE if data["idle_w"].notna().any() else "",
        f"To accuracy: all epochs through the first one with a validation accuracy of {100 * target:.4g} %, warm-up too, validations not."
        if target is not None
        else "",
        conditions.setting(runs),
    ]
    words = [title(name) for name in ("framework", "model", "dataset")]
    listed = data.dropna(axis="columns", how="all")
    return tables.Table(TITLE, listed, pd.DataFrame(shown), [note for note in notes if note], words)


IDLE = "Idle: mean power of the same machines (or accelerators) before the session's first run."


def _whose(told: Told) -> Note:
    return Note("whose-energy", f"Energy: {told.whose}.", scope=told.scope)


def without(untold: Sequence[str]) -> str:
    """The cells without energy, in a sentence; empty for none."""
    return (
        Note("n-cells-without-energy", f"Without energy: {number_of(len(untold), 'cell')}.", cells=untold)
        if untold
        else ""
    )


def mixed(told: Told) -> str:
    """That cells tell energy of another scope, in a sentence; empty for none."""
    if not told.others:
        return ""
    text = f"Of another scope, and so left out: {conditions.named(told.others)}."
    return Note("cells-of-another-scope", text, cells=told.others)


def _texts(data: pd.DataFrame, name: str, unit: float = 1.0) -> list[str]:
    bounds = data[[name, f"{name}_low", f"{name}_high"]].astype(float) / unit
    return [tables.interval(Estimate(*row)) for row in bounds.itertuples(index=False)]
