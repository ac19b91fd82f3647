"""Kept campaigns are complete and readable, and the pages have their numbers."""

import functools
import itertools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import adjusted, anova, checks, decomposition, effects, strategies, variance
from analysis.intervals import columns
from analysis.measured import successful, timing_runs, with_batch_numbers
from analysis.pooling import pooled
from common.files import CHECKOUT, stored_file
from common.tables import read_results, read_table
from declared.factors import factor_table
from declared.site import load_site
from declared.study import load_study
from network.fit import round_medians
from plan.design import plan_design
from prediction import crossover, hybrid, what_if
from prediction.cells import measured_cells
from prediction.held_out import ALL, evaluate
from prediction.message_times import Network, benchmark_points, rate_text
from prediction.methods import LAW, predict_by_law
from prediction.study import StudyLaw, law_columns
from strategies import simulated
from strategies.measured import load_measurements
from support.pages import WORDS, missing_claims, missing_numbers_on, missing_sentences, on_one_line, section
from traces import bottlenecks, cost, exposed
from traces.cells import Measured
from traces.cells import select_traced as of_traces

CAMPAIGNS = CHECKOUT / "docs" / "campaigns"
FOLDERS = sorted(path.parent for path in CAMPAIGNS.glob("*/runs.csv"))  # without campaigns of others
SLOW, UNSHAPED, SIX = "tf-strategies-virtual", "tf-strategies-unshaped", "prediction-virtual"
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
STOLEN = 0.05  # of CPU time; the page names runs above it


@pytest.mark.parametrize("name", [SLOW, "reference-check-quiet", STRATEGIES])
def test_intervals_of_a_kept_campaign_exclude_1_where_p_is_small(name: str) -> None:
    data = effects.build_rows(timing_runs(read_table(CAMPAIGNS / name / "runs.csv", "runs")))
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
    return read_table(CAMPAIGNS / study / f"{name}.csv", name)


def benchmark_of(study: str) -> Network:
    """Return the collective benchmark of a kept campaign."""
    sizes = measured_cells(records(study), include_meshes=True)["gradient_bytes"]
    return Network(benchmark_points(records(study, "network")), float(sizes.max()))


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


def parts_of_loop(data: pd.DataFrame) -> list[str]:
    """Return the loop's share of the contrast on several nodes, for the small and the large model."""
    multi_node = data[data["nodes"] > 1]
    parts = multi_node.pivot_table(
        index=["model", "batch_size", "nodes"], columns="part", values="difference_s"
    )
    shares = parts["training_loop"] / parts["total"]
    return [percent(shares.loc[model]) for model in (SMALL, LARGE)]


def percent(shares: "pd.Series[float] | np.ndarray") -> str:
    return f"{100 * shares.min():.0f} to {100 * shares.max():.0f} %"


def seconds(values: "pd.Series[float]") -> str:
    return f"{values.abs().min():.1f} to {values.abs().max():.1f} s"


def times(values: "pd.Series[float]") -> str:
    return f"{values.min():.1f} to {values.max():.1f}"


def interval(row: "pd.Series[float]", name: str, star: bool = False) -> str:
    value, low, high = (f"{row[f'{name}{end}']:.2f}".replace("-", "−") for end in ("", "_low", "_high"))
    return f"{value} [{low}, {high}]{' *' if star and row['p_holm'] < 0.05 else ''}"


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
    (example,) = (row for row in of_nodes if row[:3] == ["1 Gbit/s", LARGE, "32"])
    assert (
        missing_numbers_on("README.md", "1 Gbit/s", *(ratio.removesuffix(" *") for ratio in example[3:]))
        == []
    )
    before = on_one_line().partition("## `prediction-virtual`")[0]
    assert (
        len(re.findall(r"−?\d\.\d\d \[", before)) == 2 * len(of_nodes) + 3 * len(of_accumulation) == 16 + 24
    )


def test_the_text_names_the_designs_and_how_runs_spread() -> None:
    slow, unshaped, six = (records(study) for study in (SLOW, UNSHAPED, SIX))
    parameters = [decomposition.gradient_bytes(model, "synthetic") / 4 for model in (SMALL, LARGE)]
    rates = [f"{rate:,.0f}" for rate in sorted(six["bandwidth"].unique())]
    batches, six_batches = (
        [str(size) for size in sorted(runs["batch_size"].unique())] for runs in (slow, six)
    )
    nodes = [str(count) for count in sorted(six["nodes"].unique())]
    spreads = [pooled(runs).spreads for runs in (slow, unshaped, six)]
    table = checks.table(six).data
    outliers = table.loc[table["assumption"] == checks.OUTLIER, "size_percent"]
    assert (unshaped["attempt"] > 1).sum() == (six["attempt"] > 1).sum() == 1, "those that were repeated"
    assert (slow["attempt"] == 1).all()
    assert pooled(slow).p < 0.001 and len(outliers) == 2
    of_two = {
        "MultiWorkerMirroredStrategy": [
            f"{slow['nodes'].min()} to {slow['nodes'].max()}, {slow['cpu_share'].max():g}",
            f"{slow['samples_per_epoch'].max():,}, {parameters[0]:,.0f}, {parameters[1]:,.0f}",
            f"{WORDS[slow['replicate'].max()]}, {', '.join(batches)}, {WORDS[3]} treatments",
            f"batch {unshaped['batch_size'].max()}",
        ],
        f"submit {SLOW}": [str(len(slow))],
        f"submit {UNSHAPED}": [str(len(unshaped))],
        "Bartlett": [percent(spreads[0]), "0.001", percent(spreads[1]), f"{pooled(unshaped).p:.2f}"],
    }
    of_six = {
        "DDP": [
            f"{', '.join(nodes)}, {six['cpu_share'].max():g}, {parameters[0]:,.0f}",
            f"{', '.join(six_batches)}; {'; '.join(rates)}; {WORDS[six['replicate'].max()]}",
        ],
        f"submit {SIX}": [f"{len(six)}, {records(SIX, 'network').groupby(['nodes', 'bandwidth']).ngroups}"],
        "outliers": [
            f"{100 * spreads[2].min():.1f} to {100 * spreads[2].max():.0f} %",
            f"{outliers.iloc[0]:.0f} and {outliers.iloc[1]:.0f} %",
        ],
    }
    assert missing_claims(SLOW, of_two) == missing_claims(SIX, of_six) == []
    by_rate = six.drop_duplicates("cell").set_index("cell")["bandwidth"]
    assert pooled(six).cell_statistics["log_sd"].groupby(by_rate).mean().idxmax() == 1000
    assert missing_numbers_on("docs/explanation/predictions.md", SIX, f"{len(six)}, 38") == []


def test_nodes_and_throttling_in_the_text_are_of_the_tables() -> None:
    slow, unshaped = compared(SLOW), compared(UNSHAPED)
    by_nodes = slow[slow["factor"] == "nodes"]
    of_custom = by_nodes[by_nodes["loop"] == "custom"]
    every = of_custom[(of_custom["model"] == LARGE) & (of_custom["sync_every"] == 1)]
    links = {nodes: times(rows["ratio"]) for nodes, rows in every.groupby("to")}
    less = accumulated(SLOW).query("model == @LARGE")["throttled_difference_s"]
    two = accumulated(UNSHAPED).query("model == @LARGE and nodes == 2").iloc[0]
    assert (by_nodes["throttled_difference_s"] < 0).all() and (less < 0).all()
    claims = {
        "Throttling": [
            seconds(by_nodes["throttled_difference_s"]),
            seconds(less),
            f"{-two['throttled_difference_s']:.1f}",
            f"{-two['difference_s']:.1f} s",
        ],
    }
    faster = of_custom[(of_custom["to"] == 3) & (of_custom["sync_every"] == 4) & (of_custom["ratio"] < 1)]
    faster = faster[faster["p_holm"] < 0.05]
    batches = {model: sorted(rows["batch_size"]) for model, rows in faster.groupby("model")}
    claims["in every batch"] = [links[3], links[2], f"{batches[LARGE][0]}, {batches[LARGE][1]}"]
    assert batches[SMALL] == [32, 64, 96] and len(batches[LARGE]) == 2
    assert missing_claims(SLOW, claims) == []
    assert set(unshaped["within_blocks"]) == {4, 5}, "the run that was repeated is in no block"


def test_accumulation_and_loops_in_the_text_are_of_the_tables() -> None:
    slow, unshaped = (accumulated(study) for study in (SLOW, UNSHAPED))
    of_large = 1 - slow.loc[slow["model"] == LARGE, "share"]
    at = [
        data.query("model == @LARGE and nodes == 2").iloc[-1]
        for data in (slow.query("batch_size == 64"), unshaped)
    ]
    alone = pd.concat([compared(SLOW), compared(UNSHAPED)]).query("nodes == 1")
    accumulation, loop = (alone[alone["factor"] == name] for name in ("sync_every", "training_loop"))
    largest = max(1 - accumulation["ratio_low"].min(), accumulation["ratio_high"].max() - 1)
    runs = records(SLOW)
    stolen = runs["steal_share"] > STOLEN
    every, undisturbed = (
        parts_of_loop(data) for data in (decomposed(SLOW), decomposition.decompose(runs[~stolen]))
    )
    assert (accumulation["p_holm"] >= 0.05).all() and (loop["p_holm"] >= 0.05).all(), "none was resolved"
    assert set(loop["to"]) == {"fit"}
    claims = {
        "all-reduce": [
            percent(slow["share"]),
            WORDS[len(slow)],
            percent(of_large),
            percent(unshaped["share"]),
            f"{-at[0]['network_s']:.1f} to {-at[1]['network_s']:.1f} s",
            f"{-at[0]['difference_s']:.1f} to {-at[1]['difference_s']:.1f} s",
            WORDS[at[1]["within_blocks"]],
            f"{100 * largest:.0f} %",
        ],
        "`fit`": [
            *every,
            *undisturbed,
            f"{100 - 100 * loop['ratio_low'].min():.0f} %",
            f"{100 * loop['ratio_high'].max() - 100:.0f} %",
        ],
    }
    assert missing_claims(SLOW, claims) == []
    shares = 100 * slow["share"]
    errors = f"−{100 - shares.min():.0f} to +{shares.max() - 100:.0f} %"
    assert missing_numbers_on("docs/explanation/predictions.md", SLOW, errors) == []
    assert missing_numbers_on("docs/tutorial/cluster.md", "1 Gbit/s", f"{len(runs)}, 76") == []


def test_accuracies_in_the_text_are_those_of_the_records() -> None:
    points: dict[str, list[float]] = {"sync_every": [], "training_loop": []}
    for study in (SLOW, UNSHAPED):
        means = 100 * records(study).groupby("cell")["validation_accuracy"].mean()
        for factor, rows in compared(study).groupby("factor"):
            if factor in points:
                points[str(factor)] += (
                    means[rows["to_cell"]].to_numpy() - means[rows["from_cell"]].to_numpy()
                ).tolist()
    lower, apart = -np.array(points["sync_every"]), np.abs(points["training_loop"])
    (epochs,) = set(records(SLOW)["epochs"])
    ends = f"{WORDS[epochs]}, {lower.min():.0f} to {lower.max():.0f}"
    assert missing_claims(SLOW, {"accuracy": [ends, f"{apart.max():.1f}"]}) == []


def test_shares_and_noise_in_the_text_are_those_of_the_tables() -> None:
    slow, unshaped, six = (
        100 * anova.analyse_runs(records(name)).rows.set_index("term")["share"]
        for name in (SLOW, UNSHAPED, SIX)
    )
    rows = [checks.table(records(name)).data.set_index("assumption") for name in (SLOW, UNSHAPED)]
    correlations = [row.loc[checks.INDEPENDENT, "statistic"] for row in rows]
    blocks, least = (
        [f"{row.loc[name, 'size_percent']:.0f}" for row in rows]
        for name in ("blocks alike", f"{checks.MIN_DIFFERENCE}, n = 5")
    )
    accumulation, pair = "gradient accumulation steps", "nodes × gradient accumulation steps"
    of_slow = [slow[name] for name in ("model", "batch size", accumulation, "nodes", pair)]
    of_unshaped = [unshaped[name] for name in ("model", accumulation, "nodes", pair)]
    of_two = {
        "tables/anova": [
            *(f"{share:.0f} %" for share in [*of_slow, *of_unshaped]),
            f"{slow['error']:.1f} and {unshaped['error']:.1f} %",
        ],
        "tables/checks": [
            f"{correlations[0]:.2f}, {correlations[1]:.2f}",
            f"{blocks[0]} and {blocks[1]} %",
            f"{least[0]} and {least[1]} %",
        ],
    }
    of_six = [six[name] for name in ("batch size", "nodes", "bandwidth", "batch size × bandwidth")]
    shares = [*(f"{share:.0f} %" for share in of_six), f"{six['error']:.1f} %"]
    assert missing_claims(SLOW, of_two) == missing_claims(SIX, {"tables/anova": shares}) == []


def test_widths_of_intervals_in_the_texts_are_of_the_tables() -> None:
    changes = []
    for study in (SLOW, UNSHAPED):
        own = compared(study)
        groups = effects.build_rows(
            records(study).assign(block=range(len(records(study))))
        )  # each run alone in its block
        assert (own["within_blocks"] > 0).all() and (groups["within_blocks"] == 0).all()
        widths = [np.log(rows["ratio_high"] / rows["ratio_low"]) for rows in (own, groups)]
        changes.append(100 * (float((widths[0] / widths[1]).median()) - 1))
    claims = [f"{-changes[1]:.0f} %", f"{changes[0]:.0f} %"]
    assert changes[1] < 0 < changes[0] and missing_claims(SLOW, {"tables/checks": claims}) == []
    gains = []
    for study in (folder.name for folder in FOLDERS):
        note = variance.longer_runs_note(
            variance.estimate_components(variance.log_times_by_run(records(study), records(study, "epochs")))
        )
        if note:  # absent for runs with one timed epoch
            gains.append(100 * note.facts["narrower"])
    of_gains = f"{WORDS[len(gains)]}; {min(gains):.0f} to {max(gains):.0f} %"
    wider = f"{100 - 100 / np.sqrt(2):.0f} %"
    assert missing_numbers_on("docs/explanation/statistics.md", "`variance`", of_gains, wider) == []


def test_stolen_time_and_spreads_in_the_text_are_of_the_records() -> None:
    runs = records(SLOW)
    stolen = runs["steal_share"] > STOLEN
    assert (runs["epoch_time_s"] > runs.groupby("cell")["epoch_time_s"].transform("median"))[stolen].all()
    claims = [
        f"{100 * STOLEN:.0f} %",
        f"{stolen.sum()}, {len(runs)}, {100 * runs['steal_share'].max():.0f} %",
        WORDS[stolen.sum()],
    ]
    for study, quantiles in ((SLOW, (0.25, 0.75, 0.5)), (UNSHAPED, (0.5,))):
        cvs, own = pooled(records(study)).cell_statistics["cv"], compared(study)
        widths = np.log(own["ratio_high"] / own["ratio_low"])
        reach = [f"{100 * np.expm1(widths.quantile(q) / 2):.0f}" for q in quantiles]
        claims += [percent(cvs), f"{100 * cvs.median():.0f} %", ", ".join(reach)]
    assert missing_claims(SLOW, {"CPU steal": claims}) == []


def test_small_messages_take_as_long_as_the_text_says() -> None:
    benchmarks = records(SIX, "network").query("nodes == 6")
    small = {
        rate: round_medians(benchmark)[1024].median()
        for rate, benchmark in benchmarks.groupby("link_bytes_s")
    }
    ms = [1e3 * value for value in small.values()]
    of_ring = [value * rate / (2 * 5 / 6) / 2**20 for rate, value in small.items()]
    claims = [
        f"{min(ms):.0f} to {max(ms):.0f} ms",
        f"{min(of_ring):.1f} to {max(of_ring):.1f} MiB",
        f"{records(SIX)['cpu_share'].max():g}",
    ]
    assert missing_claims(SIX, {"KiB": claims}) == []


@functools.cache
def replayed() -> pd.DataFrame:
    """Return the predictions of what-if-virtual that were measured."""
    study = what_if.Study(records(WHAT_IF), benchmark_of(WHAT_IF), records(WHAT_IF, "replay_steps"))
    rows = what_if.predict(study)
    return rows[rows["measured_s"].notna()].assign(
        nodes=rows["cell"].str.extract(r"\.n(\d)\.")[0].astype(int)
    )


def signed(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def test_what_a_replay_predicted_is_in_the_text() -> None:
    rows, runs = replayed(), records(WHAT_IF)
    cells = [
        f"| {interval(row, 'predicted_s')} | {interval(row, 'measured_s')} | {signed(row['error'])} |"
        for _, row in rows.iterrows()
    ]
    assert missing_sentences(cells) == [] and len(set(cells)) == 8
    off, accumulated = 100 * rows["error"].abs(), rows["question"] == "accumulation"
    alone = runs[(runs["nodes"] == 1) & (runs["batch_size"] == 32)]
    traced = cost.build_rows(runs).sort_values("cell")
    claims = {
        f"submit {WHAT_IF}": [str(len(runs))],
        "accumulation": [
            WORDS[(~accumulated).sum()],
            f"{off[~accumulated].min():.1f} to {off[~accumulated].max():.1f} %",
            f"{off[~accumulated].mean():.1f} %",
            f"{off[accumulated].min():.0f} and {off[accumulated].max():.0f} %",
            f"{WORDS[len(rows)]}; {off.mean():.1f} %",
            f"{WORDS[(off <= 5).sum()]}; 5 %",
            f"{alone['throttled_s'].mean():.1f} s",
            f"{alone['epoch_time_s'].mean():.1f} s",
        ],
        "tracing": [interval(row, "ratio") for _, row in traced.iterrows()],
    }
    assert (traced["ratio_low"] < cost.MAX_COST_RATIO).all() and (
        traced["ratio_high"] > cost.MAX_COST_RATIO
    ).all()
    assert (rows.loc[accumulated, "error"] > 0).all()
    assert missing_claims(WHAT_IF, claims) == []
    spread = f"{off[accumulated].min():.0f} to {off[accumulated].max():.0f} %"
    misses = f"{off[~accumulated].min():.0f} to {off[~accumulated].max():.0f} %"
    assert missing_numbers_on("docs/how-to/what-if.md", WHAT_IF, spread, misses, "0.3") == []


def test_whether_a_slower_node_pays_is_in_the_text() -> None:
    runs = records(HYBRID)
    rows = hybrid.predict(runs, records(HYBRID, "network")).query("source == 'declared shares'")
    measured = pooled(runs)
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
    by = rows.set_index(["batch_size", "nodes", "shares"])
    two = 100 * by.loc[(384, 2), "error"]
    pays = by.loc[(384, 2), "break_even"]
    ratios = effects.build_rows(runs).query("factor == 'shares'").set_index(["nodes", "batch_size"])
    alone = runs[runs["nodes"] == 1].groupby("batch_size")["epoch_time_s"].mean()
    third = by.loc[(384, 3, "measured")]
    claims = {
        f"submit {HYBRID}": [str(len(runs))],
        "96 samples": [
            f"{by.loc[(96, 2), 'allreduce_s'].iloc[0]:.1f} s",
            f"{two.min():.0f} to {two.max():.0f} %",
            f"{pays['measured']:.2f}, {pays['equal']:.2f}, {0.6 / 0.9:.2f}",
            f"{100 * third['saved']:.0f} %",
            f"{-100 * third['measured_saved']:.0f} %",
        ],
        "384 samples": [interval(ratios.loc[(3, batch)], "ratio") for batch in (384, 96)],
    }
    assert (by["allreduce_s"].loc[96] > alone[96]).all()
    assert (by["measured_saved"].loc[96] < 0).all() and (by["measured_saved"].loc[(384, 2)] > 0).all()
    assert (by["measured_saved"].loc[[(384, 3, "equal"), (384, 3, "measured")]] < 0).all()
    assert (ratios.loc[2, "ratio_low"] < 1).all() and (ratios.loc[2, "ratio_high"] > 1).all()
    assert missing_claims(HYBRID, claims) == []


def by_strategy() -> pd.DataFrame:
    """Return the four-node cells of strategies-virtual with seconds in messages and in computation."""
    cells, network = measured_cells(records(STRATEGIES), include_meshes=True), benchmark_of(STRATEGIES)
    four_nodes = cells[cells["nodes"] == 4].reset_index(drop=True)
    messages_s = law_columns(four_nodes, network)["message_s"] * four_nodes["n_allreduces"]
    predicted = StudyLaw(cells[cells["nodes"] == 1], network).predict(four_nodes).seconds
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
            [
                model,
                str(batch),
                rate_text(rate),
                *times,
                places.loc[places["place"] == 1, "strategy"].item(),
            ]
        )
    assert missing_sentences(["| " + " | ".join(row) + " |" for row in rows]) == [] and len(rows) == 8
    right = (predicted.loc[predicted["place"] == 1, "measured_place"] == 1).sum()
    measured = measured_cells(runs, include_meshes=True)
    _, errors = evaluate(measured, benchmark_of(STRATEGIES), {LAW: predict_by_law})
    off = errors.set_index("left_out")["mape"]
    by_name = {name: 100 * off[f"parallelism {name}"] for name in strategies}
    at = cells.set_index(["model", "batch_size", "bandwidth", "parallelism"])
    throttled = runs[
        (runs["model"] == "gpt-nano")
        & (runs["nodes"] == 4)
        & (runs["parallelism"] == "tensor")
        & (runs["batch_size"] == 32)
    ]
    idle = throttled["throttled_s"] / throttled["epoch_time_s"]
    held_up = cells[
        (cells["model"] == "gpt-nano") & (cells["batch_size"] == 32) & (cells["parallelism"] == "tensor")
    ]
    longer = (held_up["epoch_time_s"] - held_up["computed_s"]) / held_up["messages_s"]
    wide = {name: at.loc[("wide-mlp", 32, 250, name)] for name in ("data", "tensor")}
    claims = {
        f"submit {STRATEGIES}": [str(len(runs))],
        "crossovers": [f"{WORDS[right]} of {WORDS[(predicted['place'] == 1).sum()]}"],
        "data2-tensor2": [*(f"{error:.0f} %" for error in by_name.values()), f"{100 * off[ALL]:.0f} %"],
        "51 MB": [
            f"{wide['data']['messages_s']:.1f}, {wide['data']['epoch_time_s']:.1f} s",
            f"{wide['tensor']['epoch_time_s']:.2f} s",
        ],
        "quota": [
            f"{100 * idle.min():.0f} to {100 * idle.max():.0f} %",
            f"{longer.min():.1f} to {longer.max():.1f}",
        ],
    }
    assert missing_claims(STRATEGIES, claims) == []
    ends = f"{min(by_name.values()):.0f} to {max(by_name.values()):.0f} %"
    assert missing_numbers_on("docs/how-to/strategies.md", "strategies", ends) == []
    assert missing_numbers_on("docs/explanation/predictions.md", STRATEGIES, ends) == []


@functools.cache
def llama_strategies() -> pd.DataFrame:
    """Return the four-node cells of llama-virtual with needs, predicted times and ratios to data parallelism.

    The index is strategy and rate in Mbit/s, strategies by their epoch time on the slow links.
    """
    runs = with_batch_numbers(records(LLAMA))
    ranked = crossover.rank_strategies(runs, benchmark_of(LLAMA)).dropna(subset="measured_s")
    ranked = ranked.assign(bandwidth=(8 * ranked["rate"] / 1e6).astype(int))
    options = ["parallelism", "schedule", "tensor_sharding", "bandwidth"]
    needed = (
        strategies.summarize(runs)
        .query("nodes == 4")
        .assign(bandwidth=lambda cells: cells["bandwidth"].astype(int))
    )
    ratios = compared(LLAMA).query("factor == 'parallelism'").set_index("to_cell")
    needed = needed.join(ratios[["ratio", "ratio_low", "ratio_high"]], on="cell")
    cells = ranked.merge(needed, on=options).sort_values("measured_s")
    return cells.set_index(["strategy", "bandwidth"])


def llama_rows() -> list[str]:
    """Return the page's table, a row for each strategy."""
    cells = llama_strategies()
    rows = []
    for strategy in cells.xs(250, level="bandwidth").index:
        slow, fast = cells.loc[(strategy, 250)], cells.loc[(strategy, 1000)]
        sent = [f"{slow[name] / 1e6:.1f}" for name in ("sent_formula_bytes", "sent_bytes")]
        memory = f"{fast['memory_peak_bytes'] / 1e6:.0f}"
        times = [f"{row['measured_s']:.2f} | {row['predicted_s']:.2f}" for row in (slow, fast)]
        rows.append(f"| {strategy} | {' | '.join([*sent, memory, *times])} |")
    return rows


def test_strategies_of_the_llama_are_in_the_text() -> None:
    cells, effect = llama_strategies(), compared(LLAMA)
    assert missing_sentences(llama_rows()) == [] and len(llama_rows()) == 8
    best = cells.groupby("bandwidth")["measured_s"].idxmin()
    assert {strategy for strategy, _ in best} == {"pipeline, schedule zero-bubble"}
    assert (cells["place"] == 1).eq(cells["measured_place"] == 1).all()
    error = cells["predicted_s"] / cells["measured_s"] - 1
    right, pairs = ranked_pairs(cells)
    faster = [f"{1 / cells.loc[(best[rate][0], rate), 'ratio']:.1f}" for rate in (1000, 250)]
    options = {name: effect[effect["factor"] == name] for name in ("schedule", "tensor_sharding")}
    assert all((rows["p_holm"] > 0.05).all() for rows in options.values())
    claims = {
        f"submit {LLAMA}": [str(len(records(LLAMA)))],
        "four nodes": faster,
        "Predictions": [
            f"{100 * error.abs().mean():.0f} %", f"{100 * error.abs().max():.0f} %", f"{right} of {pairs}",
        ],
        "zero-bubble": [interval(row, "ratio") for _, row in options["schedule"].iterrows()],
        "vocabulary": [interval(row, "ratio") for _, row in options["tensor_sharding"].iterrows()],
        "FSDP": [interval(cells.loc[("sharded", rate)], "ratio") for rate in (250, 1000)],
    }  # fmt: skip
    assert missing_claims(LLAMA, claims) == []


def ranked_pairs(cells: pd.DataFrame) -> tuple[int, int]:
    """Return how many pairs of strategies, at one rate, were predicted in their measured order, and all pairs."""
    right = pairs = 0
    for _, own in cells.groupby("bandwidth"):
        for (_, one), (_, other) in itertools.combinations(own.iterrows(), 2):
            pairs += 1
            right += (one["predicted_s"] < other["predicted_s"]) == (one["measured_s"] < other["measured_s"])
    return right, pairs


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


def verdicts_of(rows: list[list[str]]) -> set[tuple[str, str]]:
    """Return the last cell of each row with the page's text in its place."""
    text, verdicts = on_one_line(), set()
    for row in rows:
        before = f"| {' | '.join(row[1:-1])} |"
        assert before in text, before
        verdicts.add((row[-1], text.partition(before)[2].partition("|")[0].strip()))
    return verdicts


def test_where_a_step_spends_its_time_is_in_the_text() -> None:
    runs, rows = records(PHASES), phase_rows()
    assert (
        missing_sentences(
            [line.rpartition(f"| {row[-1]}")[0] for line, row in zip(lines(rows), rows, strict=True)]
        )
        == []
    )
    assert len(rows) == 8 and len(verdicts_of(rows)) == 2, "one word on the page for each verdict"
    share = traced().estimates("communication", "share")["value"].unstack()
    cell = "{}.small-cnn.digits.b32.n{}.s1.epochs=3.trace=phases"
    hidden = {
        (framework, nodes): 1
        - share.loc[cell.format(framework, nodes), "exposed"]
        / share.loc[cell.format(framework, nodes), "communication"]
        for framework in ("pytorch-ddp", "horovod-pytorch", "horovod-tensorflow", "tensorflow-multiworker")
        for nodes in (2, 4)
    }
    ddp, horovod = (
        traced().wide("step", "step_s").groupby(traced().cell_of).mean()["step"][cell.format(name, 4)]
        for name in ("pytorch-ddp", "horovod-pytorch")
    )
    costs = cost.build_rows(runs)
    widths = [100 * np.expm1(np.log(costs[f"ratio_{end}"] / costs["ratio"]).abs()) for end in ("low", "high")]
    slowest = 100 * share.loc[share.index.str.contains("n2|n4"), "waiting"]
    limits = bottlenecks.summarize(traced(), records(PHASES, "network"))
    of_horovod = limits[
        limits["cell"].str.startswith("horovod-pytorch") & (limits["limit"] == "many small messages")
    ]
    verdicts = [row[-1] for row in rows]
    claims = {
        f"submit {PHASES}": [str(len(runs))],
        "`pytorch-ddp`": [
            f"{100 * hidden['pytorch-ddp', 2]:.0f} and {100 * hidden['pytorch-ddp', 4]:.0f} %",
            f"{horovod / ddp:.1f}",
            f"{slowest.min():.0f} to {slowest.max():.0f} %",
        ],
        "agree": [f"{WORDS[verdicts.count('agree')]} of {WORDS[len(verdicts)]}"],
        "ratios": [
            f"{len(costs)}, {min(w.min() for w in widths):.0f} to {max(w.max() for w in widths):.0f} %",
            f"{WORDS[(costs['ratio'] < 0.85).sum()]}, 15 %, {costs['p'].min():.2f} among {len(costs)}",
        ],
    }
    assert missing_claims(PHASES, claims) == []
    assert set(verdicts) == {"agree", "computing is faster"} and (costs["ratio_low"] <= 1).all()
    assert all(hidden["tensorflow-multiworker", nodes] < 0.001 for nodes in (2, 4))
    assert len(of_horovod) == 2 and of_horovod["evidence"].str.startswith("8.00 all-reduces").all()


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
    pooling = pooled(runs)
    parallel = data[data["ranks"] > 1]
    rows, gained = [], {}
    for levels, estimate in simulated.speedups(data, pooling):
        gained[levels["model"], levels["bandwidth"]] = estimate
    for (model, bandwidth), own in parallel.groupby(["model", "bandwidth"]):
        by_name = own.set_index("parallelism")
        times = [
            f"{1e3 * by_name.loc[name, 'step_s']:.0f} ({1e3 * by_name.loc[name, 'expected_s']:.0f})"
            for name in ("data", "expert", "found", "random1", "random2")
        ]
        rows.append(f"| {model} | {bandwidth} | {' | '.join(times)} | {gained[model, bandwidth].value:.2f} |")
    assert missing_sentences(rows) == [] and len(rows) == 7
    resolved = [estimate for estimate in gained.values() if estimate.low > 1]
    assert all(estimate.high >= 1 for estimate in gained.values()), "slower in none"
    slow, fast = gained["gpt-nano", 100], gained["gpt-nano", 1000]
    right, pairs = simulated.count_correct_orders(data, pooling)
    taus, errors = simulated.rank_correlations(data), parallel["error"].abs()
    random = parallel["parallelism"].str.startswith("random")
    means = (
        runs[runs["nodes"] == 4]
        .groupby(["framework", "parallelism", "model", "bandwidth"])["epoch_time_s"]
        .mean()
    )
    plain = means["pytorch-ddp", "data"] / means["pytorch-strategy", "data"]
    searched = means["pytorch-ddp", "data"] / means["pytorch-strategy", "found"]
    at = parallel.set_index(["model", "bandwidth", "parallelism"])["error"]
    claims = {
        f"submit {SEARCHED}": [str(len(runs))],
        "GPT": [
            f"{WORDS[len(resolved)]} of {WORDS[len(gained)]}",
            *(f"{gain.value:.2f} [{gain.low:.2f}, {gain.high:.2f}]" for gain in (slow, fast)),
        ],
        "`pytorch-ddp`": [
            f"{plain.min():.2f} to {plain.max():.2f}",
            f"{WORDS[(searched > 1).sum()]} of {WORDS[len(searched)]}",
        ],
        "Kendall": [
            f"{pairs}, {right}, {np.mean(taus):.2f}",
            f"{100 * errors.mean():.1f} %",
            f"{100 * errors.median():.1f} %",
            f"{100 * errors[~random].mean():.1f} %",
            f"{100 * errors[random].mean():.1f} %",
            f"{(errors <= 0.1).sum()} of {len(errors)}, {(errors <= 0.3).sum()}",
        ],
    }
    assert missing_claims(SEARCHED, claims) == []
    assert searched["gpt-nano", 1000] == pytest.approx(2 / 3, abs=0.02), "two thirds of the time"
    assert abs(at["wide-mlp", 250, "found"]) < 0.03


QUIET, DISTURBED = "reference-check-quiet", "reference-check-disturbed"


def known_of_the_machine() -> tuple[list[list[str]], dict[str, adjusted.Adjustment]]:
    """Return the page's table on both campaigns of reference-check, and their adjustments."""
    adjustments = {name: adjusted.adjustment(records(name)) for name in (QUIET, DISTURBED)}

    def correlation(adjustment: adjusted.Adjustment, covariate: str) -> str:
        return f"{adjustment.alone[covariate].correlation:.2f}" if covariate in adjustment.alone else "–"

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
                half_width(item.means.half_widths) if item.means else "–",
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
    assert quiet.adjusted is None and disturbed.means and disturbed.adjusts_ratios
    assert disturbed.means.slopes.covariates == ("lost_cpu_time",)
    gains = {name: item.gain for name, item in disturbed.alone.items()}
    means = pd.DataFrame(
        {
            name: np.log(item.cell_statistics["mean"])
            for name, item in (
                ("quiet", quiet.plain),
                ("plain", disturbed.plain),
                ("adjusted", disturbed.means),
            )
        }
    )
    longer = means[["plain", "adjusted"]].sub(means["quiet"], axis="index")
    apart = np.expm1(longer - longer.mean()).abs().max()
    claims = {
        "run reference-check": [str(len(records(QUIET)))],
        "CPU time lost does": [
            f"{100 * disturbed.narrower:.0f} %",
            f"{100 * disturbed.narrower_ratios:.0f} %",
            f"{100 * gains['lost_cpu_time']:.0f} %",
            f"{100 * gains['reference']:.0f} %",
        ],
        "adjusted means": [
            f"{100 * np.expm1(longer['adjusted'].mean()):.0f} %",
            f"{100 * apart['adjusted']:.1f} %",
            f"{100 * apart['plain']:.0f} %",
        ],
    }
    assert missing_claims("reference-check", claims) == []
