"""Table of simulated strategies: the time of a step by simulation beside the measured one, cell by cell.

A step is simulated from what was measured without it: parts of layers on one rank (costs.csv), messages between two (messages.csv), and the
network's sweeps (network.csv). What a step takes beside its layers, such as bringing its samples, is what one rank takes beyond its
simulation; it is added to all cells of the model.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import kendalltau

from analysis import conditions, tables
from analysis.intervals import ESTIMATE_COLUMNS, Estimate, columns
from analysis.measured import factors, level_text, read_timed, successful, title_with_unit, varying
from analysis.pooling import Pooling, pooled
from common.notes import Note
from common.options import run_program
from declared.mesh import FOUND, PLAIN, kind_of
from declared.site import load_site
from declared.study import load_study
from plan.design import Run, design
from plan.strategies import ASKED, to_find
from strategies import search
from strategies.found import posed
from strategies.measured import Known, Lacking, known

TITLE = "Strategies, simulated and measured"
AIM = 0.10
FEWEST = 3  # strategies that have an order worth telling
HOW = Note(
    "simulation-method",
    "Simulated: from parts of layers timed on one rank (costs.csv), messages between two (messages.csv) and the network's sweeps (network.csv); nothing "
    "was fitted to the cells themselves. What one rank takes beyond its own simulation, for samples and bookkeeping, is added to all cells of a model, so that its own error is 0.",
)
NO_REST = "The study has no cell of {models} on one rank, so that what a step takes beside its layers is not in simulated times."
NONE = Note("no-strategy-cell", "The study has no cell whose layers are divided each by itself.")
SENT = Note(
    "bytes-sent",
    "Sent: outputs and their gradients, and gradients of weights, of all ranks in a step, by the strategy.",
)


class Simulator:
    """Simulates the strategies of runs from what was measured; `unfound`: what is said of runs that have none yet. Lacking where
    something was not measured or found."""

    def __init__(self, of: Known, unfound: str) -> None:
        self._of = of
        self._unfound = unfound
        self._posed: dict[tuple[Any, ...], Any] = {}

    def of(self, run: Run) -> dict[str, Any]:
        """What `strategies.search.account` tells of a run's strategy."""
        if run.strategy is None:
            raise Lacking(Note("strategy-not-found-yet", self._unfound))
        question = tuple(run.levels[name] for name in ASKED)
        if question not in self._posed:
            self._posed[question] = search.posed_of(posed(run, self._of).job())
        return search.account(self._posed[question], run.strategy)


def compare(runs: pd.DataFrame, planned: Mapping[str, Run], simulator: Simulator) -> tuple[pd.DataFrame, list[Note]]:
    """One row per cell that trains by a strategy and was measured or can be simulated, and what keeps cells from being simulated.

    `step_s` with its interval is measured, `simulated_s` is what a simulation says of its layers, `rest_s` what is added to it; `error`: of
    their sum.
    """
    ok = successful(runs)
    steps = (ok["samples_per_epoch"].astype(float) / ok["local_batch"].astype(float)).groupby(ok["cell"]).first()
    pooling, rows = pooled(runs), []
    lacking: dict[Note, list[str]] = {}
    for cell, run in planned.items():
        measured = cell in pooling.samples
        try:
            told = simulator.of(run)
        except Lacking as why:
            lacking.setdefault(why.note, []).append(cell)
            if not measured:
                continue
            told = {}
        step = _each(pooling.cell_mean(cell), steps[cell]) if measured else Estimate(math.nan)
        sent = {name: told.get(name, math.nan) for name in ("exchanged_bytes", "gradient_bytes", "memory_bytes")}
        seconds = told.get("seconds") or math.nan
        rows.append(
            {
                "cell": cell,
                **{name: run.levels[name] for name in factors()},
                "ranks": run.geometry.ranks,
                "n": step.n,
                **columns("step_s", step),
                "simulated_s": seconds,
                **sent,
            }
        )
    data = pd.DataFrame(rows)
    not_simulated = [_not_simulated(cells, why) for why, cells in lacking.items()]
    if data.empty:
        return pd.DataFrame(columns=["cell", "error"]), not_simulated
    rest = data.apply(lambda row: _rest(data, row), axis=1)
    data.insert(data.columns.get_loc("simulated_s") + 1, "rest_s", rest)
    data["error"] = (data["simulated_s"] + data["rest_s"].fillna(0)) / data["step_s"] - 1
    return data, not_simulated


def _not_simulated(cells: Sequence[str], why: Note) -> Note:
    """Return which cells are not simulated, or how many where they are several, and why."""
    subject = f"{cells[0]} is" if len(cells) == 1 else f"{len(cells)} cells are"
    return Note("not-simulated", f"{subject} not simulated: {why}", cells=list(cells), reason=why.code)


def _each(whole: Estimate, parts: float) -> Estimate:
    return Estimate(whole.value / parts, whole.low / parts, whole.high / parts, whole.n)


OF_MODEL = ("framework", "model", "dataset", "batch_size", "optimizer", "device")


def _rest(data: pd.DataFrame, row: pd.Series) -> float:
    """What a step of this model takes beside its layers: measured on one rank, less its simulation; NaN where there is no such cell."""
    alone = data[data["ranks"] == 1]
    for name in OF_MODEL:
        alone = alone[alone[name] == row[name]]
    return float((alone["step_s"] - alone["simulated_s"]).mean()) if len(alone) else math.nan


def groups(data: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """The measured rows on several ranks that differ in their strategy alone."""
    several = data[(data["ranks"] > 1) & data["error"].notna()]
    names = [name for name in factors() if name != "parallelism"]
    for levels, group in several.groupby(names, sort=False, dropna=False):
        yield dict(zip(names, levels, strict=True)), group


def orders(data: pd.DataFrame) -> list[float]:
    """Kendall's tau-b of simulated and measured times, of each group with FEWEST strategies or more."""
    found = []
    for _, group in groups(data):
        if len(group) >= FEWEST:
            found.append(float(kendalltau(group["simulated_s"], group["step_s"]).statistic))
    return found


def ordered(data: pd.DataFrame, pooling: Pooling) -> tuple[int, int]:
    """Of the pairs of cells that differ in their strategy alone, and whose measured times differ beyond the noise: how many are simulated in
    that order, and how many there are."""
    pairs = [
        pair
        for _, group in groups(data)
        for pair in combinations(group[["cell", "simulated_s"]].itertuples(index=False), 2)
    ]
    if not pairs:
        return 0, 0
    ratios = pooling.ratios([to.cell for to, _ in pairs], [base.cell for _, base in pairs])
    told = [
        (low > 1) == (to.simulated_s > base.simulated_s)
        for (to, base), low, high in zip(pairs, ratios["low"], ratios["high"], strict=True)
        if low > 1 or high < 1
    ]
    return sum(told), len(told)


def gains(data: pd.DataFrame, pooling: Pooling) -> list[tuple[dict[str, Any], Estimate]]:
    """Of each group that has both, how often a step by the strategy that was found fits into one of data parallelism."""
    found = []
    for levels, group in groups(data):
        cells = group.set_index("parallelism")["cell"]
        if {FOUND, PLAIN} <= set(cells.index):
            (row,) = pooling.ratios([cells[PLAIN]], [cells[FOUND]])[ESTIMATE_COLUMNS].itertuples(index=False)
            found.append((levels, Estimate(*row)))
    return found


def findings(data: pd.DataFrame, pooling: Pooling) -> list[Note]:
    """Return what the table shows: errors, orders, and whether what was found is faster."""
    several = data[(data["ranks"] > 1) & data["error"].notna()]
    if several.empty:
        return []
    errors = several["error"].abs()
    within = int((errors <= AIM).sum())
    notes = [
        Note(
            "errors",
            f"Errors on several ranks: {100 * errors.mean():.1f} % on average, {100 * errors.max():.1f} % at most; "
            f"{within} of {len(errors)} within {100 * AIM:g} %.",
            mean=errors.mean(),
            most=errors.max(),
            within=within,
            cells=len(errors),
        )
    ]
    if taus := orders(data):
        right, resolved = ordered(data, pooling)
        notes.append(
            Note(
                "order",
                f"Order: of {resolved} pairs of strategies whose measured times differ beyond the noise, {right} are simulated in that order; Kendall's "
                f"tau {sum(taus) / len(taus):.2f} on average of {len(taus)} sets, {min(taus):.2f} at least.",
                pairs=resolved,
                right=right,
                taus=taus,
            )
        )
    if gained := gains(data, pooling):
        slower = [estimate for _, estimate in gained if estimate.high < 1]
        values = [estimate.value for _, estimate in gained]
        faster = sum(estimate.low > 1 for _, estimate in gained)
        notes.append(
            Note(
                "gains",
                f"What was found, over data parallelism: {min(values):.2f} to {max(values):.2f} times as fast; faster beyond the noise in {faster} of "
                f"{len(gained)} sets, slower in {len(slower)}.",
                gains=values,
                faster=faster,
                slower=len(slower),
            )
        )
    return notes


def in_order(data: pd.DataFrame) -> pd.DataFrame:
    """The rows as a reader scans them: by the factors that vary, the strategies of a cell together: data, expert, found, random."""
    others = [name for name in varying(data) if name not in ("model", "dataset", "parallelism")]
    keys = {name: data[name] for name in ("model", "dataset", *others)}
    kinds = data["parallelism"].map(kind_of)
    return data.loc[pd.DataFrame(keys | {"kind": kinds}).sort_values([*keys, "kind"], kind="stable").index]


def table(runs: pd.DataFrame, data: pd.DataFrame, lacking: Sequence[str]) -> tables.Table:
    """The table of what `compare` found; without rows where no cell was both simulated and measured."""
    if data["error"].isna().all():
        nothing = pd.DataFrame(columns=["cell"], dtype=str)
        why = lacking if len(data) or lacking else [NONE]
        return tables.Table(TITLE, data, nothing, [*why, conditions.setting_note(runs)])
    rows, named = in_order(data), ["model", *[name for name in varying(data) if name not in ("model", "dataset")]]
    shown = {title_with_unit(name): rows[name].map(level_text) for name in named}
    shown["simulated (ms)"] = [tables.number(1e3 * value) for value in rows["simulated_s"] + rows["rest_s"].fillna(0)]
    shown["measured (ms)"] = [
        tables.interval(Estimate(1e3 * value, 1e3 * low, 1e3 * high))
        for value, low, high in rows[["step_s", "step_s_low", "step_s_high"]].itertuples(index=False)
    ]
    shown["error (%)"] = [tables.DASH if math.isnan(value) else f"{100 * value:+.1f}" for value in rows["error"]]
    sent = rows["exchanged_bytes"] + rows["gradient_bytes"]
    shown["sent (MB)"] = [tables.number(value / 1e6) for value in sent]
    without = sorted(set(data.loc[data["rest_s"].isna(), "model"]))
    notes = [
        *findings(data, pooled(runs)),
        HOW,
        *([Note("no-rest", NO_REST.format(models=", ".join(without)), models=without)] if without else []),
        SENT,
        *lacking,
        conditions.setting_note(runs),
    ]
    words = [title_with_unit(name) for name in ("model", "dataset", "framework", "parallelism")]
    return tables.Table(TITLE, data, pd.DataFrame(shown), notes, words)


def main(*, study: str, site: str, runs: Path, costs: Path, messages: Path, network: Path, out: Path) -> None:
    """Simulate the strategies of a study, and hold them against what was measured.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        runs: runs.csv of the study
        costs: costs.csv of the study
        messages: messages.csv of the study
        network: network.csv of the study
        out: table to write, without its suffix
    """
    there, measured = load_site(site), read_timed(runs)
    cells = {run.cell: run for run in design(load_study(study), there) if run.framework.strategies}
    simulator = Simulator(known(there, costs, messages, network), to_find(study, there))
    data, lacking = compare(measured, cells, simulator)
    for line in lacking:
        print(line, flush=True)
    tables.write(table(measured, data, lacking), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
