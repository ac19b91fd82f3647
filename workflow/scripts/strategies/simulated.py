"""Compare simulated with measured step times, cell by cell.

A step is simulated from separate measurements: parts of layers on one rank (costs.csv), messages between two
ranks (messages.csv), and the collective benchmark (network.csv). The time outside layers, such as loading
samples, is the time that one rank takes beyond its simulation. It is added to all cells of the model.
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
from analysis.cell_means import CellMeans, estimate_means
from analysis.intervals import ESTIMATE_COLUMNS, Estimate, columns
from analysis.level_words import level_text, title_with_unit
from analysis.records import read_timing_runs, successful, varying
from common.notes import Note
from common.options import run_program
from declared.factors import factor_names
from declared.mesh import PLAIN, SEARCHED, split_strategy
from declared.site import load_site
from declared.study import load_study
from plan.design import Run, plan_design
from plan.strategies import STRATEGY_SEARCH_FACTORS, missing_strategy_note
from strategies import search
from strategies.measured import Measurements, MissingMeasurement, load_measurements
from strategies.problem import Posed
from strategies.study_search import measured_question

TITLE = "Strategies, simulated and measured"
TARGET_ERROR = 0.10
MIN_STRATEGIES = 3  # The order of a smaller set is not reported.
METHOD = Note(
    "simulation-method",
    "Simulated: from parts of layers timed on one rank (costs.csv), messages between two (messages.csv) and "
    "the collective benchmark (network.csv); nothing was fitted to the cells themselves. The time that one "
    "rank takes beyond its own simulation, for samples and bookkeeping, is added to all cells of a model, "
    "so the error on one rank is 0.",
)
NO_REST = "The study has no cell of {models} on one rank, so simulated times lack the time outside layers."
NO_CELL = Note("no-strategy-cell", "The study has no cell with a parallelization strategy.")
SENT = Note(
    "bytes-sent",
    "Sent: outputs, their gradients, and gradients of weights, by all ranks in a step of the strategy.",
)


class Simulator:
    """Simulates the strategies of runs from measurements.

    Raises MissingMeasurement for a run without a measurement, or without a strategy, with `note` as its text.
    """

    def __init__(self, measurements: Measurements, note: str) -> None:
        self._measurements = measurements
        self._note = note
        self._problems: dict[tuple[object, ...], Posed] = {}

    def simulate(self, run: Run) -> dict[str, Any]:
        """Return `strategies.search.describe_strategy` of a run's strategy."""
        if run.strategy is None:
            raise MissingMeasurement(Note("strategy-not-found-yet", self._note))
        question = tuple(run.levels[name] for name in STRATEGY_SEARCH_FACTORS)
        if question not in self._problems:
            question_of_run = measured_question(run, self._measurements, run.bucket_bytes)
            self._problems[question] = search.build_problem(question_of_run.job())
        return search.describe_strategy(self._problems[question], run.strategy)


def build_rows(
    runs: pd.DataFrame, planned: Mapping[str, Run], simulator: Simulator
) -> tuple[pd.DataFrame, list[Note]]:
    """Return one row per measured or simulated cell with a strategy, and why other cells have none.

    `step_s` with its interval is measured, `simulated_s` is the simulated time of layers, `rest_s` the time
    outside layers, and `error` the relative error of their sum.
    """
    ok = successful(runs)
    steps = (
        (ok["samples_per_epoch"].astype(float) / ok["local_batch"].astype(float)).groupby(ok["cell"]).first()
    )
    cell_means, rows = estimate_means(runs), []
    missing: dict[Note, list[str]] = {}
    for cell, run in planned.items():
        measured = cell in cell_means.values_by_cell
        try:
            simulated = simulator.simulate(run)
        except MissingMeasurement as error:
            missing.setdefault(error.note, []).append(cell)
            if not measured:
                continue
            simulated = {}
        step = scale_estimate(cell_means.cell_mean(cell), steps[cell]) if measured else Estimate(math.nan)
        sent = {
            name: simulated.get(name, math.nan)
            for name in ("sent_activation_bytes", "gradient_bytes", "memory_bytes")
        }
        seconds = simulated.get("seconds") or math.nan
        rows.append(
            {
                "cell": cell,
                **{name: run.levels[name] for name in factor_names(run.levels)},
                "ranks": run.geometry.ranks,
                "n": step.n,
                **columns("step_s", step),
                "simulated_s": seconds,
                **sent,
            }
        )
    data = pd.DataFrame(rows)
    not_simulated = [not_simulated_note(cells, error) for error, cells in missing.items()]
    if data.empty:
        return pd.DataFrame(columns=["cell", "error"]), not_simulated
    rest = data.apply(lambda row: time_outside_layers(data, row), axis=1)
    data.insert(data.columns.get_loc("simulated_s") + 1, "rest_s", rest)
    data["error"] = (data["simulated_s"] + data["rest_s"].fillna(0)) / data["step_s"] - 1
    return data, not_simulated


def not_simulated_note(cells: Sequence[str], reason: Note) -> Note:
    """Return which cells are not simulated, or how many if they are several, and why."""
    subject = f"{cells[0]} is" if len(cells) == 1 else f"{len(cells)} cells are"
    return Note("not-simulated", f"{subject} not simulated: {reason}", cells=list(cells), reason=reason.code)


def scale_estimate(total: Estimate, n_parts: float) -> Estimate:
    """Return an estimate divided by a number of parts."""
    return Estimate(total.value / n_parts, total.low / n_parts, total.high / n_parts, total.n)


# Cells on one rank that agree in these take the same time outside layers.
ONE_RANK_FACTORS = ("framework", "model", "dataset", "batch_size", "optimizer", "device")


def time_outside_layers(data: pd.DataFrame, row: pd.Series) -> float:
    """Return the measured minus the simulated step time of a model on one rank, NaN without such a cell."""
    one_rank = data[data["ranks"] == 1]
    for name in ONE_RANK_FACTORS:
        one_rank = one_rank[one_rank[name] == row[name]]
    return float((one_rank["step_s"] - one_rank["simulated_s"]).mean()) if len(one_rank) else math.nan


def groups(data: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield the measured rows on several ranks in groups that differ in their strategy only."""
    multi_rank = data[(data["ranks"] > 1) & data["error"].notna()]
    names = [name for name in factor_names(data) if name != "parallelism"]
    for levels, group in multi_rank.groupby(names, sort=False, dropna=False):
        yield dict(zip(names, levels, strict=True)), group


def rank_correlations(data: pd.DataFrame) -> list[float]:
    """Return Kendall's tau-b of simulated and measured times for each group with MIN_STRATEGIES or more."""
    correlations = []
    for _, group in groups(data):
        if len(group) >= MIN_STRATEGIES:
            correlations.append(float(kendalltau(group["simulated_s"], group["step_s"]).statistic))
    return correlations


def count_correct_orders(data: pd.DataFrame, cell_means: CellMeans) -> tuple[int, int]:
    """Return how many pairs of cells are simulated in the measured order, and the number of pairs.

    Pairs differ in their strategy only, and their measured times differ beyond the noise.
    """
    pairs = [
        pair
        for _, group in groups(data)
        for pair in combinations(group[["cell", "simulated_s"]].itertuples(index=False), 2)
    ]
    if not pairs:
        return 0, 0
    ratios = cell_means.ratios([second.cell for second, _ in pairs], [first.cell for _, first in pairs])
    is_correct = [
        (low > 1) == (second.simulated_s > first.simulated_s)
        for (second, first), low, high in zip(pairs, ratios["low"], ratios["high"], strict=True)
        if low > 1 or high < 1
    ]
    return sum(is_correct), len(is_correct)


def speedups(data: pd.DataFrame, cell_means: CellMeans) -> list[tuple[dict[str, Any], Estimate]]:
    """Return for each group the speed-up of the searched strategy over data parallelism."""
    results = []
    for levels, group in groups(data):
        cells = group.set_index("parallelism")["cell"]
        if {SEARCHED, PLAIN} <= set(cells.index):
            (row,) = cell_means.ratios(numerator=[cells[PLAIN]], denominator=[cells[SEARCHED]])[
                ESTIMATE_COLUMNS
            ].itertuples(index=False)
            results.append((levels, Estimate(*row)))
    return results


def findings(data: pd.DataFrame, cell_means: CellMeans) -> list[Note]:
    """Return notes on errors, orders, and whether searched strategies are faster."""
    multi_rank = data[(data["ranks"] > 1) & data["error"].notna()]
    if multi_rank.empty:
        return []
    errors = multi_rank["error"].abs()
    within = int((errors <= TARGET_ERROR).sum())
    notes = [
        Note(
            "errors",
            f"Errors on several ranks: {100 * errors.mean():.1f} % on average, {100 * errors.max():.1f} % "
            f"at most; {within} of {len(errors)} within {100 * TARGET_ERROR:g} %.",
            mean=errors.mean(),
            most=errors.max(),
            within=within,
            cells=len(errors),
        )
    ]
    if taus := rank_correlations(data):
        right, resolved = count_correct_orders(data, cell_means)
        notes.append(
            Note(
                "order",
                f"Order: the simulator ranked {right} of {resolved} pairs correctly whose measured times "
                f"differ beyond the noise. Kendall's tau: {sum(taus) / len(taus):.2f} on average over "
                f"{len(taus)} sets, at least {min(taus):.2f}.",
                pairs=resolved,
                right=right,
                taus=taus,
            )
        )
    if gains := speedups(data, cell_means):
        slower = [estimate for _, estimate in gains if estimate.high < 1]
        values = [estimate.value for _, estimate in gains]
        faster = sum(estimate.low > 1 for _, estimate in gains)
        notes.append(
            Note(
                "gains",
                f"Searched strategies are {min(values):.2f} to {max(values):.2f} times as fast as data "
                f"parallelism: faster beyond the noise in {faster} of {len(gains)} sets, slower in "
                f"{len(slower)}.",
                gains=values,
                faster=faster,
                slower=len(slower),
            )
        )
    return notes


def sort_rows(data: pd.DataFrame) -> pd.DataFrame:
    """Return the rows by varying factors, with a cell's strategies together: data, expert, found, random."""
    other_factors = [name for name in varying(data) if name not in ("model", "dataset", "parallelism")]
    keys = {name: data[name] for name in ("model", "dataset", *other_factors)}
    kinds = data["parallelism"].map(split_strategy)
    return data.loc[pd.DataFrame(keys | {"kind": kinds}).sort_values([*keys, "kind"], kind="stable").index]


def table(runs: pd.DataFrame, data: pd.DataFrame, not_simulated: Sequence[str]) -> tables.Table:
    """Return the table of what `build_rows` returned; no rows if no cell was both simulated and measured."""
    if data["error"].isna().all():
        empty = pd.DataFrame(columns=["cell"], dtype=str)
        reasons = not_simulated if len(data) or not_simulated else [NO_CELL]
        return tables.Table(TITLE, data, empty, [*reasons, conditions.measurement_note(runs)])
    rows, factor_names = (
        sort_rows(data),
        ["model", *[name for name in varying(data) if name not in ("model", "dataset")]],
    )
    texts = {title_with_unit(name): rows[name].map(level_text) for name in factor_names}
    texts["simulated (ms)"] = [
        tables.number(1e3 * value) for value in rows["simulated_s"] + rows["rest_s"].fillna(0)
    ]
    texts["measured (ms)"] = [
        tables.interval(Estimate(1e3 * value, 1e3 * low, 1e3 * high))
        for value, low, high in rows[["step_s", "step_s_low", "step_s_high"]].itertuples(index=False)
    ]
    texts["error (%)"] = [
        tables.DASH if math.isnan(value) else f"{100 * value:+.1f}" for value in rows["error"]
    ]
    sent = rows["sent_activation_bytes"] + rows["gradient_bytes"]
    texts["sent (MB)"] = [tables.number(value / 1e6) for value in sent]
    models = sorted(set(data.loc[data["rest_s"].isna(), "model"]))
    notes = [
        *findings(data, estimate_means(runs)),
        METHOD,
        *([Note("no-rest", NO_REST.format(models=", ".join(models)), models=models)] if models else []),
        SENT,
        *not_simulated,
        conditions.measurement_note(runs),
    ]
    words = [title_with_unit(name) for name in ("model", "dataset", "framework", "parallelism")]
    return tables.Table(TITLE, data, pd.DataFrame(texts), notes, words)


def main(*, study: str, site: str, runs: Path, costs: Path, messages: Path, network: Path, out: Path) -> None:
    """Simulate the strategies of a study, and compare them with their measured times.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        runs: runs.csv of the study
        costs: costs.csv of the study
        messages: messages.csv of the study
        network: network.csv of the study
        out: table to write, without its suffix
    """
    declared_site, measured = load_site(site), read_timing_runs(runs)
    cells = {
        run.cell: run for run in plan_design(load_study(study), declared_site) if run.framework.strategies
    }
    simulator = Simulator(
        load_measurements(declared_site, costs, messages, network),
        missing_strategy_note(study, declared_site),
    )
    data, not_simulated = build_rows(measured, cells, simulator)
    for line in not_simulated:
        print(line, flush=True)
    tables.write(table(measured, data, not_simulated), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
