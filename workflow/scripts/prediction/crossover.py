"""Table `crossover`: the predicted fastest strategy at each link rate.

The law predicts the epoch time of every planned cell on several nodes, at the study's link rates and at
others, from runs on one node and the collective benchmark. Nothing is fitted to runs on several nodes.
Measured epoch times are listed with the predictions.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.level_words import combination_text, level_text, title
from analysis.records import read_timing_runs, varying, with_batch_numbers
from common.notes import Note
from common.options import run_program
from declared.factors import PARALLELISM_OPTIONS
from prediction.held_out import EMULATED
from prediction.inputs import PARALLELISM_FACTORS, measured_cells, planned_cells
from prediction.message_times import CollectiveBenchmark, rate_text, read_benchmark
from prediction.question import GIGABIT_BYTES, RATES
from prediction.study_predictor import StudyPredictor

TITLE = "Which strategy is fastest, by the rate of the links"
NOTHING_TO_COMPARE = Note(
    "nothing-to-compare",
    "No strategies to compare: needs runs on one node, strategies on several nodes, and collective "
    "benchmarks.",
)
PREDICTED = Note(
    "predicted",
    "Predicted: computation on one node, partitioned by operator, and messages by the laws of the "
    "collective benchmark. Nothing is fitted to runs on several nodes, so the table exists before these "
    "runs. It assumes no overlapped communication and no random waiting. Measured: means of cells; a "
    "strategy without a run may be faster.",
)
EXTRAPOLATED = Note(
    "extrapolated", "*: extrapolated, because the collective benchmark did not run at this rate."
)
STRATEGY_COLUMNS = ("framework", *PARALLELISM_FACTORS)


def rank_strategies(runs: pd.DataFrame, benchmark: CollectiveBenchmark) -> pd.DataFrame:
    """Return a row for each case, link rate and strategy that can be predicted.

    A case is a combination of the levels that vary besides strategies. Columns: the varying factors, `rate`
    in bytes/s, `benchmarked` (whether the benchmark ran at this rate), `strategy` as text, `predicted_s`, its
    rank `place` (1: fastest), `measured_s` (NaN without a run at this rate) and its rank `measured_place`.

    Args:
        runs: runs.csv of the study.
        benchmark: The collective benchmark of the study.
    """
    measured, cells = measured_cells(runs, include_meshes=True), planned_cells(runs)
    factors = varying(cells, exclude=["bandwidth"])
    case = varying(cells, exclude=["bandwidth", *STRATEGY_COLUMNS])
    cells["strategy"] = _strategy_labels(cells)
    predictor = StudyPredictor(measured[measured["nodes"] == 1], benchmark.smooth())
    study_rates = cells["rate"].dropna().unique().tolist()
    rates = sorted({*study_rates, *(GIGABIT_BYTES * rate for rate in RATES)}) if study_rates else [np.nan]
    rows = cells.drop(columns=["rate", "cell", "bandwidth"]).drop_duplicates()
    rows = rows.merge(pd.DataFrame({"rate": rates}), how="cross")
    rows = rows.assign(
        predicted_s=predictor.predict(rows).seconds, benchmarked=rows["rate"].isin(benchmark.rates)
    ).dropna(subset="predicted_s")
    distributed = measured[measured["nodes"] > 1]
    times = distributed.assign(strategy=_strategy_labels(distributed), measured_s=distributed["epoch_time_s"])
    keys = [*case, "strategy", "rate"]
    rows = rows.merge(times[[*keys, "measured_s"]], on=keys, how="left")
    groups = rows.groupby([*case, "rate"], dropna=False)
    rows = rows.assign(place=groups["predicted_s"].rank(), measured_place=groups["measured_s"].rank())
    columns = [*case, *(name for name in factors if name not in case), "rate", "benchmarked", "strategy"]
    rows = rows.sort_values([*case, "rate", "place"]).reset_index(drop=True)
    return rows[[*columns, "predicted_s", "place", "measured_s", "measured_place"]]


def _strategy_labels(cells: pd.DataFrame) -> pd.Series:
    """Return each cell's strategy as text: framework, parallelism, and factors that vary within these."""
    has_frameworks = cells.loc[cells["nodes"] > 1, "framework"].nunique() > 1
    named = ["framework", "parallelism"] if has_frameworks else ["parallelism"]
    varies = cells.groupby(named)[list(PARALLELISM_OPTIONS)].transform("nunique") > 1
    labels = []
    for row, is_varied in zip(cells.to_dict("records"), varies.to_dict("records"), strict=True):
        levels = {name: row[name] for name in PARALLELISM_OPTIONS if is_varied[name]}
        texts = [*(level_text(row[name]) for name in named), combination_text(levels)]
        labels.append(", ".join(filter(None, texts)))
    return pd.Series(labels, index=cells.index, dtype=object)


def table(runs: pd.DataFrame, benchmark: CollectiveBenchmark) -> tables.Table:
    """Return the table of a study."""
    rows = rank_strategies(runs, benchmark)
    site_notes = [EMULATED if conditions.is_emulated(runs) else "", conditions.measurement_note(runs)]
    if rows.empty:
        empty = pd.DataFrame(columns=["strategy"], dtype=str)
        return tables.Table(TITLE, empty, empty, [NOTHING_TO_COMPARE, *filter(None, site_notes)])
    case = [name for name in rows.loc[:, :"rate"] if name not in STRATEGY_COLUMNS]
    groups = rows.groupby(case, dropna=False, sort=False)
    display = [_table_row(dict(zip(case, levels, strict=True)), strategies) for levels, strategies in groups]
    first_levels = [levels[0] for levels, _ in groups]
    group_starts = [row for row in range(1, len(display)) if first_levels[row] != first_levels[row - 1]]
    text_columns = [title(name) for name in case[:-1]] + ["fastest", "next", "fastest, measured"]
    notes = [PREDICTED, "" if rows["benchmarked"].all() else EXTRAPOLATED, *site_notes]
    return tables.Table(
        TITLE, rows, pd.DataFrame(display), list(filter(None, notes)), text_columns, group_starts
    )


def _table_row(levels: dict[str, object], strategies: pd.DataFrame) -> dict[str, str]:
    """Return the displayed row of one case and rate, from its rows of `rank_strategies`, fastest first."""
    missing = {"strategy": tables.DASH, "predicted_s": np.nan, "measured_s": np.nan}
    first, second = [*strategies.to_dict("records"), missing][:2]
    timed = strategies.dropna(subset="measured_s").sort_values("measured_s")
    fastest = [*timed.to_dict("records"), missing][0]
    return {
        **{title(name): level_text(level) for name, level in levels.items() if name != "rate"},
        "links": rate_text(float(str(levels["rate"]))) + ("" if first["benchmarked"] else "*"),
        "fastest": first["strategy"],
        "predicted (s)": tables.number(first["predicted_s"]),
        "next": second["strategy"],
        "it takes more (%)": tables.percent(second["predicted_s"] / first["predicted_s"] - 1),
        "fastest, measured": fastest["strategy"],
        "measured (s)": tables.number(fastest["measured_s"]),
    }


def main(*, runs: Path, out: Path, network: Path | None = None) -> None:
    """Write the table of the fastest strategies by link rate.

    Args:
        runs: runs.csv of the study
        out: files to write, without their suffix
        network: network.csv of the study, if there is a collective benchmark
    """
    measured = with_batch_numbers(read_timing_runs(runs))
    benchmark = read_benchmark(network, measured_cells(measured, include_meshes=True))
    tables.write(table(measured, benchmark), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
