"""Tables of effects and contrasts recover the known costs of a synthetic campaign."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis import decomposition, effects, tables
from analysis.cell_means import estimate_means
from analysis.intervals import Estimate
from analysis.records import read_runs
from common.notes import codes, find_note
from declared.site import load_site
from declared.study import load_study
from plan.design import plan_design
from support.sentences import sentence, sentences
from support.synthetic import (
    SECONDS_PER_ALLREDUCE,
    THROTTLED_PER_ALLREDUCE_S,
    all_reduce_time,
    benchmarks,
    designed_campaign,
    designed_time,
    write_frames,
)

FRAMEWORK = "tensorflow-multiworker"
CELL = "tensorflow-multiworker.small-cnn.synthetic.b32.n2.s4.epochs=3"
AT = {"model": "small-cnn", "batch_size": 32, "nodes": 2}
SMALL_CNN_BYTES = 4 * 544_522


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    def read_designed(**options):
        return read_runs(write_frames(tmp_path_factory.mktemp("designed"), *designed_campaign(**options))[0])

    return read_designed


@pytest.fixture(scope="module")
def measured(read):
    return read()


@pytest.fixture(scope="module")
def exact(read):
    return read(noise=0.0)


@pytest.fixture(scope="module")
def truth():
    runs = plan_design(load_study("tf-strategies-virtual"), load_site("virtual"))
    return {run.cell: designed_time(run.levels, run.geometry) for run in runs}


def at(data, **levels):
    for name, level in levels.items():
        data = data[data[name] == level]
    return data


def single_row(data, **levels):
    (_, row), *rest = at(data, **levels).iterrows()
    assert not rest
    return row


def n_allreduces(nodes, sync_every=1, batch_size=32):
    return -(-(4608 // (batch_size * nodes)) // sync_every)


def test_each_pair_occurs_once_with_base_level_first(exact):
    data = effects.build_rows(exact)
    assert data["factor"].value_counts(sort=False).to_dict() == {
        "nodes": 36,
        "training_loop": 18,
        "sync_every": 18,
        "model": 27,
        "batch_size": 36,
    }
    pairs = {
        factor: list(zip(part["from"], part["to"], strict=True)) for factor, part in data.groupby("factor")
    }
    assert set(pairs["nodes"]) == {(1, 2), (1, 3)}
    assert set(pairs["training_loop"]) == {("custom", "fit")}
    assert set(pairs["sync_every"]) == {(1, 4)}
    assert set(pairs["batch_size"]) == {(32, 64), (32, 96)}
    assert not data[["from_cell", "to_cell"]].duplicated().any()


def test_base_level_is_independent_of_row_order(exact):
    shuffled = exact.sample(frac=1, random_state=1).replace(
        {"training_loop": {"custom": "fit", "fit": "custom"}}
    )
    data = effects.build_rows(shuffled)
    assert set(at(data, factor="training_loop")["from"]) == {"custom"}
    assert set(at(data, factor="nodes")["from"]) == {1}
    words = exact.assign(
        precision=np.where(exact["training_loop"] == "fit", "amp", "fp32"), training_loop="custom"
    )
    assert set(at(effects.build_rows(words), factor="precision")["from"]) == {"fp32"}


def test_without_noise_ratio_and_difference_are_the_true_ones(exact, truth):
    data = effects.build_rows(exact)
    to, base = data["to_cell"].map(truth), data["from_cell"].map(truth)
    assert np.allclose(data["ratio"], to / base)
    assert np.allclose(data["difference_s"], to - base)
    row = single_row(data, factor="sync_every", **AT)
    saved = n_allreduces(2) - n_allreduces(2, 4)
    assert row["difference_s"] == pytest.approx(
        -saved * (SECONDS_PER_ALLREDUCE + all_reduce_time(SMALL_CNN_BYTES, nodes=2))
    )
    assert row["throttled_difference_s"] == pytest.approx(-saved * THROTTLED_PER_ALLREDUCE_S)
    assert (row["from_sent_bytes"], row["to_sent_bytes"]) == (72 * SMALL_CNN_BYTES, 18 * SMALL_CNN_BYTES)


@pytest.mark.simulation
def test_intervals_cover_the_truth_as_often_as_they_say(read, truth):
    hits = []
    for seed in range(4):
        data = effects.build_rows(read(seed=seed))
        to, base = data["to_cell"].map(truth), data["from_cell"].map(truth)
        hits += ((data["ratio_low"] < to / base) & (to / base < data["ratio_high"])).tolist()
        hits += ((data["difference_s_low"] < to - base) & (to - base < data["difference_s_high"])).tolist()
    assert 0.92 < np.mean(hits) < 0.98


def test_p_is_of_the_moderated_paired_test_and_holms_by_factor(measured):
    data = effects.build_rows(measured)
    assert (data["within_blocks"] == 5).all()
    prior, by_block = (
        estimate_means(measured).residual_spread.prior,
        measured.sort_values("block").groupby("cell"),
    )
    times = {cell: np.log(sample.to_numpy(float)) for cell, sample in by_block["epoch_time_s"]}
    for row in data.itertuples():
        difference = times[row.to_cell] - times[row.from_cell]
        variance = (2 * prior.df * prior.variance + 4 * difference.var(ddof=1)) / (prior.df + 4)
        assert row.p == pytest.approx(
            2 * stats.t.sf(abs(difference.mean()) / np.sqrt(variance / 5), prior.df + 4)
        )
    for _, part in data.groupby("factor"):
        assert part["p_holm"].to_numpy() == pytest.approx(multipletests(part["p"], method="holm")[1])
    assert (data["p_holm"] >= data["p"]).all()
    throttled = {cell: sample.to_numpy(float) for cell, sample in by_block["throttled_s"]}
    row = data.iloc[7]
    test = stats.ttest_rel(throttled[row["to_cell"]], throttled[row["from_cell"]])
    assert row[["throttled_difference_s_low", "throttled_difference_s_high"]].tolist() == pytest.approx(
        list(test.confidence_interval())
    )
    assert sentence(effects.table(measured).notes, "cells-compared").facts == {
        "blocks": True,
        "groups": False,
    }


def test_simultaneous_intervals_exclude_1_where_p_is_small(measured):
    data = effects.build_rows(measured)
    excluded = (data["ratio_low_simultaneous"] > 1) | (data["ratio_high_simultaneous"] < 1)
    alone = (data["ratio_low"] > 1) | (data["ratio_high"] < 1)
    assert (excluded == (data["p_holm"] < 0.05)).all() and excluded.sum() < alone.sum()
    widths = [np.log(data[f"ratio_high{end}"] / data[f"ratio_low{end}"]) for end in ("", "_simultaneous")]
    assert (widths[1] > widths[0]).sum() > len(data) / 2 and "df" not in data
    display = effects.table(measured).display["ratio"]
    row = int(np.flatnonzero(excluded)[0])
    bounds = data.loc[row, ["ratio", "ratio_low_simultaneous", "ratio_high_simultaneous"]]
    assert display[row] == tables.ratio(Estimate(*bounds))


def test_intervals_of_a_column_have_equal_decimals() -> None:
    precise, coarse = Estimate(0.192, 0.181, 0.204), Estimate(0.697, 0.592, 0.821)
    assert tables.intervals([coarse])[0] == "0.70 [0.59, 0.82]"
    assert tables.intervals([precise, precise, coarse])[2] == "0.697 [0.592, 0.821]"
    texts = tables.intervals([precise, Estimate(1250, 1130, 1370)])
    assert texts == ["0.192 [0.181, 0.204]", "1250 [1130, 1370]"], "magnitudes differ"


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.75, 0.66, 0.86), "0.75 [0.66, 0.86]"),
        (Estimate(0.75, 0.56, 0.999), "0.75 [0.56, 0.999]"),
        (Estimate(0.75, 0.56, 1.001), "0.75 [0.56, 1.00]"),
        (Estimate(1.4, np.nextafter(1, 2), 1.9), "1.40 [1.00, 1.90]"),
        (Estimate(0.64, 0.40, np.nextafter(1, 0)), "0.64 [0.40, 1.00]"),
        (Estimate(0.75), "0.750"),
    ],
)
def test_a_bound_that_excludes_1_shows_it(estimate, text):
    assert tables.ratio(estimate) == text


def test_margin_separates_equal_from_undecided_cells(measured):
    """The test inverts the 90 % interval: it lies within the margin if p is below 5 % before correction."""
    data = effects.build_rows(measured, 0.1)
    logs = estimate_means(measured)._compare_pairs(data["to_cell"].tolist(), data["from_cell"].tolist())[1]
    half = stats.t.ppf(0.95, logs["df"]) * logs["error"]
    value = logs["first"] - logs["second"]
    inside = (value - half > -np.log(1.1)) & (value + half < np.log(1.1))
    assert inside.any() and not inside.all()
    assert ((data["p_equal"] < 0.05) == inside).all()
    for _, part in data.groupby("factor"):
        assert part["p_equal_holm"].to_numpy() == pytest.approx(
            multipletests(part["p_equal"], method="holm")[1]
        )
    differs, equal = data["p_holm"] < 0.05, data["p_equal_holm"] < 0.05
    expected = {(True, False): "differs", (False, True): "equal", (True, True): "differs within margin"}
    assert data["verdict"].tolist() == [
        expected.get(pair, "open") for pair in zip(differs, equal, strict=True)
    ]
    assert {"differs", "equal"} <= set(data["verdict"])
    assert "open" in set(effects.build_rows(measured, 0.005)["verdict"])


def test_without_a_margin_nothing_is_called_equal(measured):
    plain, with_margin = effects.table(measured), effects.table(measured, 0.1)
    assert not {"p_equal", "p_equal_holm", "verdict"} & set(plain.data)
    assert "p-of-equality" not in codes(plain.notes)
    note = find_note(with_margin.notes, "p-of-equality")
    assert note.facts["margin"] == 0.1
    assert with_margin.display["verdict"].isin(["differs", "differs within margin", "equal", "open"]).all()


def test_of_frameworks_every_pair_is_compared(runs):
    data = at(effects.build_rows(runs), factor="framework", batch_size=32, nodes=1, sync_every=1)
    assert len(data) == 6 * 5 / 2
    assert not data[["from", "to"]].duplicated().any()
    assert (data["from"] != data["to"]).all()
    assert data["from"].value_counts().to_dict()["pytorch-single"] == 5


def test_a_pipeline_is_compared_with_strategies_without_one(measured):
    first = measured[measured["cell"] == measured["cell"].iloc[0]]
    strategies = {
        "data": ("data", 1),
        "tensor": ("tensor", 1),
        "four": ("pipeline", 4),
        "eight": ("pipeline", 8),
    }
    runs = pd.concat(
        [
            first.assign(cell=cell, parallelism=level, microbatches=parts)
            for cell, (level, parts) in strategies.items()
        ],
        ignore_index=True,
    )
    data = effects.build_rows(runs)
    rows = data[["factor", "from_cell", "to_cell", "microbatches"]].to_numpy(object).tolist()
    assert sorted(rows[:3]) == [
        ["parallelism", "data", "eight", 8],
        ["parallelism", "data", "four", 4],
        ["parallelism", "data", "tensor", 1],
    ]
    assert rows[3][0] == "microbatches" and {*rows[3][1:3]} == {"four", "eight"} and len(rows) == 4


def test_cells_that_share_no_session_are_flagged(measured):
    later = measured["nodes"] == 3
    sessions = np.where(later, "2026-11-21T12:00:00Z", "2026-11-20T12:00:00Z")
    table = effects.table(measured.assign(session=sessions))
    data = table.data
    flagged = (data["factor"] == "nodes") & (data["to"] == 3)
    assert ((data["shared_sessions"] == 0) == flagged).all()
    assert find_note(table.notes, "no-shared-session").facts == {"rows": flagged.sum(), "of": len(data)}
    assert "no-shared-session" not in codes(effects.table(measured.assign(session=None)).notes)


def test_a_missing_cell_is_named_and_does_not_count(read):
    runs = read(missing=[CELL])
    table = effects.table(runs)
    row = single_row(table.data, factor="sync_every", **AT)
    assert row[["ratio", "difference_s", "p", "p_holm"]].isna().all()
    assert (row["from_n"], row["to_n"]) == (5, 0)
    assert find_note(table.notes, "cells-without-runs").facts["cells"] == [CELL]
    assert find_note(table.notes, "p-of-ratios").facts["comparisons"]["sync_every"] == 17


def test_parts_add_up_and_multiply_to_the_total(measured):
    data = decomposition.decompose(measured)
    assert data["part"].tolist() == ["training_loop", "sync_every", "total"] * 18
    first, second, total = (data[place::3].reset_index(drop=True) for place in range(3))
    assert np.allclose(first["difference_s"] + second["difference_s"], total["difference_s"])
    assert np.allclose(first["ratio"] * second["ratio"], total["ratio"])
    assert np.allclose(
        first["throttled_difference_s"] + second["throttled_difference_s"], total["throttled_difference_s"]
    )
    assert (total["difference_s_low"] < total["difference_s"]).all()


def test_on_one_node_accumulation_saves_the_optimizer_alone(exact):
    rows = at(decomposition.decompose(exact, benchmarks(FRAMEWORK)), part="sync_every", nodes=1)
    saved = rows["from_n_allreduces"] - rows["to_n_allreduces"]
    assert np.allclose(rows["difference_s"], -saved * SECONDS_PER_ALLREDUCE)
    assert rows["network_s"].isna().all()


def network_rows(seconds, nodes=2):
    """Return rows of network.csv; `seconds` is size -> rounds, each a list of repetitions."""
    return pd.DataFrame(
        [
            {
                "collective": "all_reduce",
                "framework": FRAMEWORK,
                "nodes": nodes,
                "ranks": nodes,
                "device": "site",
                "bandwidth": 0,
                "status": "ok",
                "bytes": size,
                "round": number,
                "repetition": repetition,
                "seconds": value,
            }
            for size, rounds in seconds.items()
            for number, times in enumerate(rounds, start=1)
            for repetition, value in enumerate(times, start=1)
        ]
    )


def test_one_all_reduce_of_a_worked_example():
    # 2000 lies at a third between 1000 and 4000. Round 1: means 0.010 and 0.040, so 0.020. Round 2: 0.012 and
    # 0.048, so 0.024.
    benchmark = network_rows({1000: [[0.008, 0.014, 0.008], [0.012]], 4000: [[0.040], [0.047, 0.049]]})
    estimate = decomposition.all_reduce_s(benchmark, 2000)
    low, high = stats.t.interval(0.95, 1, loc=0.022, scale=0.002)
    assert estimate.value == pytest.approx(0.022)
    assert (estimate.low, estimate.high) == pytest.approx((max(low, 0), high))
    assert decomposition.all_reduce_s(benchmark, 4000).value == pytest.approx(0.044)
    assert decomposition.all_reduce_s(benchmark, 7000).value == pytest.approx(0.077)


@pytest.mark.parametrize("case", ["no rows", "one size", "failed", "size unknown"])
def test_no_time_is_made_up_without_two_sizes(case):
    benchmark = network_rows({1000: [[0.01]], 4000: [[0.04]]})
    match case:
        case "no rows":
            benchmark = benchmark[:0]
        case "one size":
            benchmark = benchmark[:1]
        case "failed":
            benchmark = benchmark.assign(status="failed")
    size = math.nan if case == "size unknown" else 2000
    assert math.isnan(decomposition.all_reduce_s(benchmark, size).value)


def test_the_networks_prediction_of_a_worked_example(exact):
    # small-cnn has 544,522 parameters, 2,178,088 bytes; a network of 1 ms a megabyte takes 2.178088 ms for
    # them. Batch 32 on 2 nodes: 4608 / 64 = 72 batches, so 72 all-reduces, with k = 4 18: 54 saved, 117.616752
    # ms.
    network = network_rows({10**6: [[0.001]] * 3, 4 * 10**6: [[0.004]] * 3})
    row = single_row(decomposition.decompose(exact, network), part="sync_every", **AT)
    assert row["gradient_bytes"] == 2_178_088
    assert (row["from_n_allreduces"], row["to_n_allreduces"]) == (72, 18)
    assert row["network_s"] == pytest.approx(-0.117616752)
    assert row["beyond_network_s"] == pytest.approx(row["difference_s"] + 0.117616752)


def test_gradients_have_the_bytes_of_their_type(exact):
    network = network_rows({10**6: [[0.001]] * 3, 4 * 10**6: [[0.004]] * 3})
    for levels in ({"precision": "bf16"}, {"precision": "amp", "reduce_dtype": "bf16"}):
        row = single_row(decomposition.decompose(exact.assign(**levels), network), part="sync_every", **AT)
        assert row["gradient_bytes"] == SMALL_CNN_BYTES / 2


def test_prediction_interval_is_over_rounds_and_ordered(measured):
    row = single_row(decomposition.decompose(measured, benchmarks(FRAMEWORK)), part="sync_every", **AT)
    assert row["network_s_low"] < row["network_s"] < row["network_s_high"] < 0
    assert row["network_s_low"] == pytest.approx(-54 * row["all_reduce_s_high"])
    widths = [
        row[f"{name}_high"] - row[f"{name}_low"] for name in ("difference_s", "network_s", "beyond_network_s")
    ]
    assert widths[2] > max(widths[:2]), "what is left has the uncertainty of both"


def test_a_difference_of_estimates_of_a_worked_example():
    # Half-widths 3 and 4 (below) make 5; 6 and 8 (above) make 10.
    assert decomposition.subtract(Estimate(10, 7, 16), Estimate(4, -4, 8)) == Estimate(6, 1, 16)


def test_notes_say_what_the_numbers_are_and_what_is_lacking(measured, read):
    def notes(runs, network):
        return decomposition.table(runs, network).notes

    complete = notes(measured, benchmarks(FRAMEWORK))
    assert {decomposition.NETWORK_ALONE, decomposition.ON_ONE_NODE} <= set(complete)
    assert "network-not-predicted" not in codes(complete)
    assert decomposition.NO_BENCHMARK in notes(measured, None) and decomposition.NO_BENCHMARK not in complete
    assert "network alone (s)" not in decomposition.table(measured).display
    partly = find_note(notes(measured, benchmarks(FRAMEWORK, nodes=[2])), "network-not-predicted").facts[
        "cells"
    ]
    assert {name.split(".")[4] for name in partly} == {"n3"} and all(".s4." in name for name in partly)
    assert find_note(notes(read(missing=[CELL]), None), "cells-without-runs").facts["cells"] == [CELL]


def test_the_parts_follow_the_factors_whichever_they_are(exact):
    renamed = exact.assign(
        precision=np.where(exact["training_loop"] == "fit", "amp", "fp32"), training_loop="custom"
    )
    data = decomposition.decompose(renamed.assign(framework="quite-new", baseline="quite-new"))
    assert data["part"].tolist() == ["precision", "sync_every", "total"] * 18
    assert np.allclose(data["difference_s"], decomposition.decompose(exact)["difference_s"])


def test_a_model_without_a_description_has_no_prediction(exact):
    unknown = exact[exact["model"] == "small-cnn"].assign(model="unknown")
    table = decomposition.table(unknown, benchmarks(FRAMEWORK))
    assert table.data.get("network_s") is None
    assert "network-not-predicted" in codes(table.notes)


def test_accumulation_alone_is_the_whole_contrast(exact):
    alone = exact[exact["training_loop"] == "custom"]
    data = decomposition.decompose(alone, benchmarks(FRAMEWORK))
    total = at(decomposition.decompose(exact, benchmarks(FRAMEWORK)), part="sync_every").reset_index(
        drop=True
    )
    pd.testing.assert_frame_equal(
        data, total.assign(**{"from": "no accumulation", "to": "accumulation over 4 batches"})
    )
    table = decomposition.table(alone, benchmarks(FRAMEWORK))
    assert len(table.display) == 18 and (table.display["network alone (s)"] != "").all()
    assert "total-of-parts" not in codes(sentences(table.notes))


def test_a_study_without_accumulation_says_so(runs):
    table = decomposition.table(runs[runs["sync_every"] == 1])
    assert table.data.empty
    assert table.notes == [decomposition.NO_CONTRAST]
