"""Kept campaigns are complete and readable, and the pages have their numbers."""

import functools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import adjusted, decomposition, effects, strategies
from analysis.cell_means import estimate_means
from analysis.intervals import columns
from analysis.records import read_runs, read_timing_runs, successful, with_batch_numbers
from common.files import CHECKOUT, stored_file
from common.tables import read_results, read_table
from declared.factors import factor_table
from declared.site import load_site
from declared.study import load_study
from plan.design import plan_design
from prediction import crossover, hybrid, what_if
from prediction.inputs import measured_cells
from prediction.law_rows import law_rows
from prediction.message_times import CollectiveBenchmark, benchmark_points, rate_text
from prediction.study_predictor import StudyPredictor
from strategies import simulated
from strategies.measured import load_measurements
from support.pages import CAMPAIGNS as CAMPAIGNS_PAGE
from support.pages import missing_sentences, on_one_line, section
from traces import exposed
from traces.cells import Measured
from traces.cells import select_traced as of_traces

CAMPAIGNS = CHECKOUT / "docs" / "campaigns"
FOLDERS = sorted(path.parent for path in CAMPAIGNS.glob("*/runs.csv"))  # without campaigns of others
QUICKSTART = "quickstart"
SLOW, UNSHAPED = "tf-strategies-virtual", "tf-strategies-unshaped"
WHAT_IF, HYBRID, PHASES, STRATEGIES = (
    "what-if-virtual",
    "hybrid-virtual",
    "phases-virtual",
    "strategies-virtual",
)
SEARCHED, LLAMA = "found-strategies-virtual", "llama-virtual"
SMALL, LARGE = "small-cnn", "small-cnn-600"
OLDER_COLUMNS = {
    "runs": {
        "exchanges": "n_allreduces",
        "foreign_cpu_share": "other_cpu_share",
        "max_foreign_cpu_share": "max_other_cpu_share",
    },
    "epochs": {"exchanges": "n_allreduces"},
}
MAX_KEPT_BYTES = 10**6  # a larger table is kept compressed


@pytest.mark.parametrize("name", [SLOW, "reference-check-quiet", STRATEGIES])
def test_intervals_of_a_kept_campaign_exclude_1_where_p_is_small(name: str) -> None:
    data = effects.build_rows(read_timing_runs(CAMPAIGNS / name / "runs.csv"))
    excluded = (data["ratio_low_simultaneous"] > 1) | (data["ratio_high_simultaneous"] < 1)
    assert (excluded == (data["p_holm"] < 0.05)).all() and excluded.any()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_kept_campaign_is_whole(folder: Path) -> None:
    runs, epochs = (read_table(folder / f"{name}.csv", name) for name in ("runs", "epochs"))
    (site,) = set(runs["site"])
    (name,) = set(runs["study"])
    study = load_study(name)
    assert set(runs["run_id"]) == {run.run_id for run in plan_design(study, load_site(site))}
    assert len(successful(runs)) == len(runs)
    assert max(file.stat().st_size for file in folder.iterdir()) <= MAX_KEPT_BYTES
    assert epochs.groupby("run_id").size().to_dict() == dict.fromkeys(
        runs["run_id"], study.factors["epochs"][0]
    )


@pytest.mark.parametrize("name", ["runs", "epochs", "phases", "trace_steps", "replay_steps"])
def test_older_names_keep_their_numbers(name: str) -> None:
    folder = CAMPAIGNS / WHAT_IF
    stored, read = pd.read_csv(stored_file(folder / f"{name}.csv")), read_table(folder / f"{name}.csv", name)
    for older, column in OLDER_COLUMNS.get(name, {}).items():
        assert (read[column].astype(float) == stored[older].astype(float)).all()
    for column in {"scope", "phase"} & set(stored):
        is_older = stored[column] == "exchange"
        assert is_older.any() and (read.loc[is_older, column] == "communication").all()
        assert (read.loc[~is_older, column] == stored.loc[~is_older, column]).all()


def test_older_baseline_and_site_are_read() -> None:
    file = CAMPAIGNS / "hybrid-virtual" / "runs.csv"
    stored, read = pd.read_csv(file), read_table(file, "runs")
    assert (read["baseline"] == stored["base"]).all()
    assert (set(stored["site"]), set(read["site"])) == ({"virtual-unlike"}, {"virtual-heterogeneous"})


@functools.cache
def records(study: str, name: str = "runs") -> pd.DataFrame:
    file = CAMPAIGNS / study / f"{name}.csv"
    return read_runs(file) if name == "runs" else read_table(file, name)


def benchmark_of(study: str) -> CollectiveBenchmark:
    """Return the collective benchmark of a kept campaign."""
    sizes = measured_cells(records(study), include_meshes=True)["gradient_bytes"]
    return CollectiveBenchmark(benchmark_points(records(study, "network")), float(sizes.max()))


@functools.cache
def compared(study: str) -> pd.DataFrame:
    """Return the table of effects; `loop` is the training loop of a row, if it does not change."""
    rows = effects.build_rows(records(study))
    return rows.assign(loop=rows.get("training_loop", "custom"))


@functools.cache
def decomposed(study: str) -> pd.DataFrame:
    return decomposition.decompose(records(study), records(study, "network"))


def accumulated(study: str) -> pd.DataFrame:
    """Return effects of accumulation on several nodes; `share`: predicted by the network alone."""
    data = decomposed(study)
    data = data[(data["part"] == "sync_every") & (data["nodes"] > 1)]
    effect = compared(study).query("factor == 'sync_every'").set_index(["from_cell", "to_cell"])
    ends = pd.MultiIndex.from_frame(data[["from_cell", "to_cell"]])
    return data.assign(
        share=data["network_s"] / data["difference_s"], p_holm=effect["p_holm"].reindex(ends).to_numpy()
    )


def interval(row: "pd.Series[float]", name: str, star: bool = False) -> str:
    value, low, high = (f"{row[f'{name}{end}']:.2f}".replace("-", "−") for end in ("", "_low", "_high"))
    return f"{value} [{low}, {high}]{' *' if star and row['p_holm'] < 0.05 else ''}"


def simultaneous(row: "pd.Series[float]") -> "pd.Series[float]":
    """Return a row of effects whose interval is the simultaneous one."""
    bounds = {f"ratio{end}": row[f"ratio{end}_simultaneous"] for end in ("_low", "_high")}
    return pd.Series({"ratio": row["ratio"], **bounds})


def p_text(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def lines(cells: list[list[str]]) -> list[str]:
    """Return rows of a table; cells repeated from the row above, from the left, are empty."""
    rows = []
    for before, row in zip([[""] * 9, *cells], cells, strict=False):
        first_change = next(
            place for place, (left, right) in enumerate(zip(before, row, strict=False)) if left != right
        )
        rows.append(
            "| " + " ".join(f"{'' if place < first_change else cell} |" for place, cell in enumerate(row))
        )
    return [" ".join(line.split()) for line in rows]


def test_the_tables_in_the_text_are_those_of_the_records() -> None:
    of_nodes, of_accumulation = [], []
    for study, links in ((SLOW, "1 Gbit/s"), (UNSHAPED, "unshaped")):
        rows = compared(study).query("factor == 'nodes' and to == 3 and loop == 'custom'")
        batches = rows["batch_size"] if "batch_size" in rows else pd.Series(64, index=rows.index)
        for (model, batch), two in rows.groupby(["model", batches]):
            ratios = [
                interval(row, "ratio", star=True) for _, row in two.sort_values("sync_every").iterrows()
            ]
            of_nodes.append([links, model, str(batch), *ratios])
        rows = accumulated(study)
        for _, row in rows[
            (rows["batch_size"] == 64) if "batch_size" in rows else rows["nodes"] > 1
        ].iterrows():
            parts = [
                interval(row, name, star=name == "difference_s") for name in ("difference_s", "network_s")
            ]
            of_accumulation.append(
                [links, row["model"], str(row["nodes"]), *parts, interval(row, "beyond_network_s")]
            )
    assert missing_sentences(lines(of_nodes)) == []
    assert missing_sentences(lines(of_accumulation)) == []
    text = on_one_line().partition("## `tf-strategies-virtual`")[2].partition("## `prediction-virtual`")[0]
    assert len(re.findall(r"−?\d\.\d\d \[", text)) == 2 * len(of_nodes) + 3 * len(of_accumulation) == 16 + 24


def test_accumulation_effects_of_quickstart_are_in_the_text() -> None:
    rows = compared(QUICKSTART).query("factor == 'sync_every'")
    cells = [
        f"| {framework} | {' | '.join(interval(simultaneous(row), 'ratio') for _, row in pair.iterrows())} | "
        f"{p_text(pair['p_holm'].iloc[-1])} |"
        for framework, pair in rows.sort_values("nodes").groupby("framework")
    ]
    assert missing_sentences(cells) == [] and len(cells) == 4
    assert (rows[rows["nodes"] == 2]["p_holm"] < 0.05).all()
    two = [
        interval(simultaneous(row), "ratio")
        for _, row in rows[rows["nodes"] == 2].sort_values("ratio").iterrows()
    ]
    for name in ("README.md", CAMPAIGNS_PAGE):
        assert missing_sentences([two[0], two[-1]], name) == [], name


@functools.cache
def replayed() -> pd.DataFrame:
    """Return the predictions of what-if-virtual that were measured."""
    study = what_if.TracedStudy(records(WHAT_IF), benchmark_of(WHAT_IF), records(WHAT_IF, "replay_steps"))
    rows = what_if.build_rows(study)
    return rows[rows["measured_s"].notna()].assign(
        nodes=rows["cell"].str.extract(r"\.n(\d)\.")[0].astype(int)
    )


def signed(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def test_what_a_replay_predicted_is_in_the_text() -> None:
    rows = replayed()
    cells = [
        f"| {interval(row, 'predicted_s')} | {interval(row, 'measured_s')} | {signed(row['error'])} |"
        for _, row in rows.iterrows()
    ]
    assert missing_sentences(cells) == [] and len(set(cells)) == 8


def test_whether_a_slower_node_pays_is_in_the_text() -> None:
    runs = records(HYBRID)
    rows = hybrid.build_rows(runs, records(HYBRID, "network")).query("source == 'declared shares'")
    measured = estimate_means(runs)
    cells = []
    for cell, own in (
        runs.drop_duplicates("cell")
        .sort_values(["batch_size", "nodes", "shares"])
        .groupby("cell", sort=False)
    ):
        time = interval(pd.Series(columns("s", measured.cell_mean(cell))), "s")
        predicted = rows[rows["cell"] == cell]
        comparisons = [
            [
                f"{row['predicted_s']:.2f}",
                *(f"{100 * row[name]:.0f} %".replace("-", "−") for name in ("saved", "measured_saved")),
            ]
            for _, row in predicted.iterrows()
        ] or [["–", "–", "–"]]
        level = own.iloc[0]
        cells.append([str(level["batch_size"]), str(level["nodes"]), level["shares"], time, *comparisons[0]])
    assert missing_sentences(["| " + " | ".join(row) + " |" for row in cells]) == [] and len(cells) == 10


def by_strategy() -> pd.DataFrame:
    """Return the four-node cells of strategies-virtual with seconds in messages and in computation."""
    cells, network = measured_cells(records(STRATEGIES), include_meshes=True), benchmark_of(STRATEGIES)
    four_nodes = cells[cells["nodes"] == 4].reset_index(drop=True)
    messages_s = law_rows(four_nodes, network)["benchmarked_messages_s"] * four_nodes["n_allreduces"]
    predicted = StudyPredictor(cells[cells["nodes"] == 1], network).predict(four_nodes).seconds
    return four_nodes.assign(messages_s=messages_s, computed_s=predicted - messages_s)


def test_measured_and_predicted_best_strategies_are_in_the_text() -> None:
    runs, cells = records(STRATEGIES), by_strategy()
    strategies = ["data", "sharded", "tensor", "pipeline", "data2-tensor2"]
    predicted = crossover.rank_strategies(runs, benchmark_of(STRATEGIES))
    predicted = predicted[predicted["measured_s"].notna()]
    rows = []
    for (model, batch, rate), own in cells.groupby(["model", "batch_size", "rate"]):
        by_name = own.set_index("parallelism").loc[strategies]
        first = by_name["epoch_time_s"].idxmin()
        times = [
            (
                f"{'**' * (name == first)}{row['epoch_time_s']:.2f}{'**' * (name == first)} "
                f"({row['messages_s']:.2f})"
            )
            for name, row in by_name.iterrows()
        ]
        places = predicted[
            (predicted["model"] == model)
            & (predicted["batch_size"] == batch)
            & (predicted["nodes"] == 4)
            & (predicted["rate"] == rate)
        ]
        rows.append(
            [model, str(batch), rate_text(rate), *times, places.loc[places["place"] == 1, "strategy"].item()]
        )
    assert missing_sentences(["| " + " | ".join(row) + " |" for row in rows]) == [] and len(rows) == 8


def llama_rows() -> list[str]:
    """Return the page's table: bytes, memory and epoch times of each strategy on four nodes."""
    runs = with_batch_numbers(records(LLAMA))
    ranked = crossover.rank_strategies(runs, benchmark_of(LLAMA)).dropna(subset="measured_s")
    ranked = ranked.assign(bandwidth=(8 * ranked["rate"] / 1e6).astype(int))
    needed = strategies.summarize(runs).query("nodes == 4").astype({"bandwidth": int})
    cells = ranked.merge(needed, on=["parallelism", "schedule", "tensor_sharding", "bandwidth"])
    rows = []
    for strategy, own in cells.sort_values("measured_s").groupby("strategy", sort=False):
        slow, fast = (own[own["bandwidth"] == rate].iloc[0] for rate in (250, 1000))
        megabytes = [f"{slow[name] / 1e6:.1f}" for name in ("sent_formula_bytes", "sent_bytes")]
        memory = f"{slow['memory_peak_bytes'] / 1e6:.0f}"
        times = [f"{row['measured_s']:.2f} ({row['predicted_s']:.2f})" for row in (slow, fast)]
        rows.append(f"| {' | '.join([str(strategy), *megabytes, memory, *times])} |")
    return rows


def test_strategies_of_the_llama_are_in_the_text() -> None:
    assert missing_sentences(llama_rows()) == [] and len(llama_rows()) == 8


@functools.cache
def traced() -> Measured:
    return of_traces(records(PHASES), records(PHASES, "phases"))


def phase_rows() -> list[list[str]]:
    """Return the page's table: shares of a step in percent, by framework and nodes."""
    share = traced().estimates("communication", "share")["value"].unstack()
    rows = []
    for _, row in exposed.summarize(traced(), records(PHASES)).iterrows():
        framework, nodes = row["cell"].split(".")[0], row["cell"].split(".n")[1][0]
        seen = [f"{100 * share.loc[row['cell'], name]:.0f}" for name in ("communication", "waiting")]
        intervals = [
            "{:.0f} [{:.0f}, {:.0f}]".format(*(100 * row[f"{name}{end}"] for end in ("", "_low", "_high")))
            for name in ("exposed", "by_times")
        ]
        rows.append([f"`{framework}`", nodes, *seen, *intervals, row["verdict"]])
    return rows


def test_where_a_step_spends_its_time_is_in_the_text() -> None:
    rows = phase_rows()
    assert (
        missing_sentences(
            [line.rpartition(f"| {row[-1]}")[0] for line, row in zip(lines(rows), rows, strict=True)]
        )
        == []
    )
    assert len(rows) == 8


@functools.cache
def simulated_strategies() -> pd.DataFrame:
    """Return the table `simulated` of found-strategies-virtual; `expected_s`: its step time."""
    study, site = load_study(SEARCHED), load_site("virtual-four")
    costs = load_measurements(
        site, *(CAMPAIGNS / SEARCHED / f"{name}.csv" for name in ("costs", "messages", "network"))
    )
    planned = {run.cell: run for run in plan_design(study, site) if run.framework.strategies}
    data, missing = simulated.build_rows(records(SEARCHED), planned, simulated.Simulator(costs, ""))
    assert missing == []
    written = read_results(CAMPAIGNS / SEARCHED / "simulated.csv")
    later = [name for name in data if name not in written]
    assert all(set(data[name]) == {factor_table()[name]["default"]} for name in later), "factors that are new"
    recomputed = data.drop(columns=later).reset_index(drop=True)
    pd.testing.assert_frame_equal(recomputed, written, check_dtype=False, rtol=1e-9)
    return data.assign(expected_s=data["simulated_s"] + data["rest_s"])


def test_how_well_strategies_were_simulated_is_in_the_text() -> None:
    runs, data = records(SEARCHED), simulated_strategies()
    cell_means = estimate_means(runs)
    parallel = data[data["ranks"] > 1]
    rows, gained = [], {}
    for levels, estimate in simulated.speedups(data, cell_means):
        gained[levels["model"], levels["bandwidth"]] = estimate
    for (model, bandwidth), own in parallel.groupby(["model", "bandwidth"]):
        by_name = own.set_index("parallelism")
        times = [
            f"{1e3 * by_name.loc[name, 'step_s']:.0f} ({1e3 * by_name.loc[name, 'expected_s']:.0f})"
            for name in ("data", "expert", "found", "random1", "random2")
        ]
        rows.append(f"| {model} | {bandwidth} | {' | '.join(times)} | {gained[model, bandwidth].value:.2f} |")
    assert missing_sentences(rows) == [] and len(rows) == 7


QUIET, DISTURBED = "reference-check-quiet", "reference-check-disturbed"


def known_of_the_machine() -> tuple[list[list[str]], dict[str, adjusted.SpeedAdjustment]]:
    """Return the page's table on both campaigns of reference-check, and their adjustments."""
    adjustments = {name: adjusted.adjust_for_speed(records(name)) for name in (QUIET, DISTURBED)}

    def correlation(adjustment: adjusted.SpeedAdjustment, covariate: str) -> str:
        return (
            f"{adjustment.slopes_alone[covariate].correlation:.2f}"
            if covariate in adjustment.slopes_alone
            else "–"
        )

    def half_width(widths: "pd.Series[float]") -> str:
        return f"{100 * np.expm1(widths.median()):.1f}"

    rows = []
    for name, item in adjustments.items():
        runs, ratios = successful(records(name)), effects.build_rows(records(name))
        widths = [
            half_width(np.log(ratios[f"{column}_high"] / ratios[f"{column}_low"]) / 2)
            for column in ("ratio", "ratio_adjusted")
        ]
        rows.append(
            [
                f"{100 * (runs['steal_share'] + runs['other_cpu_share']).mean():.1f}",
                *(correlation(item, covariate) for covariate in ("reference", "lost_cpu_time")),
                half_width(item.plain.half_widths),
                half_width(item.reported_means.half_widths) if item.reported_means else "–",
                *(width if width != "nan" else "–" for width in widths),
            ]
        )
    return [list(numbers) for numbers in zip(*rows, strict=True)], adjustments


def test_what_the_reference_brings_is_in_the_text() -> None:
    rows, adjustments = known_of_the_machine()
    header, *table = [line for line in section("`reference-check`").splitlines() if line.startswith("|")]
    written = [[cell.strip() for cell in line.split("|")[2:-1]] for line in table[1:]]
    assert written == rows and header.count("|") == 4
    quiet, disturbed = adjustments[QUIET], adjustments[DISTURBED]
    assert quiet.adjusted_means is None and disturbed.reported_means and disturbed.adjusts_ratios
    assert disturbed.reported_means.slopes.covariates == ("lost_cpu_time",)
