"""Table `crossover`: the predicted fastest strategy at each link rate.

The epoch time of every planned cell on several nodes is predicted at the study's link rates and at others,
by the law of prediction from runs on one node and the collective benchmark. Nothing is fitted to runs on
several nodes. Measured epoch times stand beside predictions where there are some.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.measured import (
    combination_text,
    level_text,
    read_timing_runs,
    title,
    varying,
    with_batch_numbers,
)
from common.notes import Note
from common.options import run_program
from prediction.cells import STRATEGY_FACTORS, measured_cells, planned_cells
from prediction.held_out import EMULATED
from prediction.message_times import Network, rate_text, read_benchmark
from prediction.question import RATES
from prediction.study import StudyLaw

TITLE = "Which strategy is fastest, by the rate of the links"
NOTHING_TO_COMPARE = Note(
    "nothing-to-compare",
    (
        "No strategies to compare: needs runs on one node, strategies on several nodes, and collective "
        "benchmarks."
    ),
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
GIGABIT = 1e9 / 8
STRATEGY_COLUMNS = ("framework", *STRATEGY_FACTORS)


def rank_strategies(runs: pd.DataFrame, network: Network) -> pd.DataFrame:
    """Return a row for each case, link rate and strategy that can be predicted.

    A case is a combination of the levels that vary besides strategies. Columns: the varying factors, `rate`
    in bytes/s, `benchmarked` (whether the benchmark ran at this rate), `strategy` as text, `predicted_s`,
    `place` (1: fastest), `measured_s` (NaN without a run at this rate) and `measured_place`.

    Args:
        runs: runs.csv of the study.
        network: The collective benchmark.
    """
    measured, cells = measured_cells(runs, include_meshes=True), planned_cells(runs)
    case, strategy_factors = (
        varying(cells, but=but) for but in (["bandwidth", *STRATEGY_COLUMNS], ["bandwidth"])
    )
    cells["strategy"] = _strategy_labels(cells)
    one_node = measured[measured["nodes"] == 1]
    law = StudyLaw(one_node, network.smooth())
    study_rates = cells["rate"].dropna().unique().tolist()
    rates = sorted({*study_rates, *(GIGABIT * rate for rate in RATES)}) if study_rates else [np.nan]
    at_rates = cells.drop(columns=["rate", "cell", "bandwidth"]).drop_duplicates()
    candidates = at_rates.merge(pd.DataFrame({"rate": rates}), how="cross")
    distributed = measured[measured["nodes"] > 1]
    times = distributed.assign(strategy=_strategy_labels(distributed))[
        [*case, "strategy", "rate", "epoch_time_s"]
    ]
    candidates = candidates.assign(
        predicted_s=law.predict(candidates).seconds, benchmarked=candidates["rate"].isin(network.rates)
    )
    candidates = candidates.dropna(subset="predicted_s")
    candidates = candidates.merge(
        times.rename(columns={"epoch_time_s": "measured_s"}), on=[*case, "strategy", "rate"], how="left"
    )
    groups = candidates.groupby([*case, "rate"], dropna=False, sort=True)
    candidates["place"], candidates["measured_place"] = (
        groups["predicted_s"].rank(),
        groups["measured_s"].rank(),
    )
    candidates = candidates.sort_values([*case, "rate", "place"]).reset_index(drop=True)
    columns = [*case, *(name for name in strategy_factors if name not in case)]
    return candidates[
        [*columns, "rate", "benchmarked", "strategy", "predicted_s", "place", "measured_s", "measured_place"]
    ]


def _strategy_labels(cells: pd.DataFrame) -> pd.Series:
    """Return each cell's strategy as text: framework, parallelism, and factors that vary within these."""
    always_named = [
        *(["framework"] if cells.loc[cells["nodes"] > 1, "framework"].nunique() > 1 else []),
        "parallelism",
    ]
    optional = [name for name in STRATEGY_FACTORS if name != "parallelism"]
    varies = cells.groupby(always_named)[optional].transform("nunique") > 1
    return pd.Series(
        [
            ", ".join(
                [
                    *(level_text(row[name]) for name in always_named),
                    *([combination_text(levels)] if levels else []),
                ]
            )
            for row, varies_in_row in zip(cells.to_dict("records"), varies.to_dict("records"), strict=True)
            for levels in [{name: row[name] for name in optional if varies_in_row[name]}]
        ],
        index=cells.index,
        dtype=object,
    )


def table(runs: pd.DataFrame, network: Network) -> tables.Table:
    """Return the table of a study."""
    rows = rank_strategies(runs, network)
    site_notes = [EMULATED if conditions.is_emulated(runs) else "", conditions.setting_note(runs)]
    if rows.empty:
        empty = pd.DataFrame(columns=["strategy"], dtype=str)
        return tables.Table(TITLE, empty, empty, [NOTHING_TO_COMPARE, *filter(None, site_notes)])
    case = [
        *(name for name in rows.columns[: rows.columns.get_loc("rate")] if name not in STRATEGY_COLUMNS),
        "rate",
    ]
    shown_rows: list[tuple[object, dict[str, str]]] = []
    group_starts: list[int] = []
    for levels, own in rows.groupby(case, dropna=False, sort=False):
        case_levels = dict(zip(case, levels if isinstance(levels, tuple) else (levels,), strict=True))
        if not shown_rows or case_levels[case[0]] != shown_rows[-1][0]:
            group_starts.append(len(shown_rows))
        shown_rows.append((case_levels[case[0]], _table_row(case_levels, own)))
    text_columns = [title(name) for name in case[:-1]] + ["fastest", "next", "fastest, measured"]
    notes = [PREDICTED, *([EXTRAPOLATED] if not rows["benchmarked"].all() else []), *filter(None, site_notes)]
    return tables.Table(
        TITLE, rows, pd.DataFrame([row for _, row in shown_rows]), notes, text_columns, group_starts[1:]
    )


def _table_row(levels: dict[str, object], own: pd.DataFrame) -> dict[str, str]:
    """Return the displayed row of one case and rate."""
    (first, *slower), measured = (
        own.to_dict("records"),
        own.dropna(subset="measured_s").sort_values("measured_s"),
    )
    case_columns = {title(name): level_text(level) for name, level in levels.items() if name != "rate"}
    return {
        **case_columns,
        "links": rate_text(float(str(levels["rate"]))) + ("" if first["benchmarked"] else "*"),
        "fastest": first["strategy"],
        "predicted (s)": tables.number(first["predicted_s"]),
        "next": slower[0]["strategy"] if slower else tables.DASH,
        "it takes more (%)": tables.percent(slower[0]["predicted_s"] / first["predicted_s"] - 1)
        if slower
        else tables.DASH,
        "fastest, measured": measured["strategy"].iloc[0] if len(measured) else tables.DASH,
        "measured (s)": tables.number(measured["measured_s"].iloc[0]) if len(measured) else tables.DASH,
    }


def main(*, runs: Path, out: Path, network: Path | None = None) -> None:
    """Write the table of strategies by links.

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
