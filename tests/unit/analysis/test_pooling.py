"""One spread for all cells, where they share it: against R's documented output, scipy, and simulation."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.formula.api import ols

from analysis import cells, conditions, effects, intervals
from analysis.measured import Records
from analysis.pooling import pooled
from figures import overview
from figures.declared import Declared
from published import PLANT_GROWTH
from synthetic import write_frames


def runs_of(groups):
    """Runs of cells with these epoch times."""
    rows = [(cell, float(time)) for cell, times in groups.items() for time in times]
    return pd.DataFrame(rows, columns=["cell", "epoch_time_s"]).assign(status="ok")


@pytest.fixture(scope="module")
def growth():
    return pooled(runs_of({cell: np.exp(weight) for cell, weight in PLANT_GROWTH.items()}))


def test_bartletts_test_is_that_of_r(growth):
    # bartlett.test(weight ~ group, PlantGrowth): K-squared = 2.8786, df = 2, p-value = 0.2371
    assert growth.statistic == pytest.approx(2.8786, abs=5e-5)
    assert growth.p == pytest.approx(0.2371, abs=5e-5)
    assert growth.holds


def test_pairwise_tests_with_the_pooled_spread_are_those_of_r(growth):
    # pairwise.t.test(weight, group), which pools s.d. and corrects by Holm: 0.194, 0.175, 0.013
    rows = growth.ratios(["trt1", "trt2", "trt2"], ["ctrl", "ctrl", "trt1"])
    assert intervals.holm(rows["p"].tolist()) == pytest.approx([0.194, 0.175, 0.013], abs=5e-4)
    # summary(lm(weight ~ group, PlantGrowth)): residual standard error 0.6234 on 27 degrees of freedom
    assert (growth.sd, growth.df) == (pytest.approx(0.6234, abs=5e-5), 27)


def test_intervals_of_means_and_ratios_are_those_of_the_fit_to_all_cells(growth):
    data = pd.DataFrame([(cell, x) for cell, weight in PLANT_GROWTH.items() for x in weight], columns=["cell", "y"])
    fit = ols("y ~ C(cell) - 1", data).fit()
    half = (fit.conf_int()[1] - fit.params).to_numpy()
    assert np.log(growth.cells["high"] / growth.cells["mean"]).to_numpy() == pytest.approx(half)
    low, high = fit.t_test([[-1, 1, 0]]).conf_int()[0]
    ratio = growth.ratio("trt1", "ctrl")
    assert math.log(ratio.high / ratio.low) == pytest.approx(high - low)
    assert ratio.value == np.exp(PLANT_GROWTH["trt1"]).mean() / np.exp(PLANT_GROWTH["ctrl"]).mean()


def test_unequal_spreads_are_not_pooled():
    rng = np.random.default_rng(2)
    pooling = pooled(runs_of({"a": rng.lognormal(0, 0.01, 8), "b": rng.lognormal(0, 0.3, 8), "c": [1.0]}))
    assert not pooling.holds
    for cell in "ab":
        log = np.log(pooling.samples[cell])
        low, high = stats.t.interval(0.95, 7, loc=0, scale=stats.sem(log))
        estimate = pooling.of(cell)
        assert np.log([estimate.low, estimate.high]) - math.log(estimate.value) == pytest.approx([low, high])
    assert math.isnan(pooling.of("c").low) and math.isnan(pooling.ratio("a", "c").low)
    own = intervals.ratios(pooling.samples, ["a"], ["b"])
    pd.testing.assert_frame_equal(pooling.ratios(["a"], ["b"]), own)


def test_where_cells_share_their_spread_a_single_run_has_an_interval():
    rng = np.random.default_rng(4)
    runs = runs_of({**{cell: rng.lognormal(0, 0.05, 6) for cell in "abcdef"}, "alone": [1.0]})
    pooling = pooled(runs)
    assert pooling.holds and pooling.df == 30
    t = stats.t.ppf(0.975, 30)
    assert math.log(pooling.of("alone").high) == pytest.approx(t * pooling.sd)
    said = conditions.replicates(runs)
    assert "n = 1 to 6 per cell" in said
    assert "a cell with one run has its interval from the spread of the others" in said


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({}, "No run of the study succeeded."),
        ({"a": [1.0], "b": [2.0]}, "n = 1 per cell, too few for an interval."),
        ({"a": [1.0, 1.1, 1.2]}, "since they could not be compared"),
        ({"a": [1.0, 1.1], "b": [2.0]}, "a cell with one run has none"),
        ({"a": [1.0, 1.0], "b": [2.0, 2.0]}, "since they could not be compared"),
        ({"a": [1.0, 1.0, 1.0], "b": [2.0, 2.1, 2.2]}, "as s, since a cell's times are all equal"),
        ({"a": [1.0, 1.1], "b": [2.0, 2.3]}, "most cells have fewer than 3 runs"),
        ({"a": [1.0, 1.1, 1.2], "b": [2.0, 2.3, 2.4]}, "one s for all cells"),
        ({"a": [1.0, 1.1, 1.2], "b": [2.0, 2.02, 2.07]}, "times the smallest (Bartlett's test, p = 0."),
        ({"a": [1.0, 1.001, 1.002, 1.003], "b": [2.0, 2.5, 3.0, 3.5]}, "since cells do not share one (Bartlett"),
    ],
)
def test_little_is_said_and_never_pooled_in_silence(groups, said):
    runs = runs_of(groups) if groups else runs_of({"a": [1.0]}).assign(status="failed")
    assert said in conditions.replicates(runs)
    rows = pooled(runs).cells
    assert not np.isinf(rows[["low", "high"]].to_numpy()).any()


def test_times_that_are_all_equal_have_intervals_without_width():
    pooling = pooled(runs_of({"a": [0.1, 0.1, 0.1], "b": [0.3, 0.3]}))
    assert (pooling.of("a").low, pooling.of("a").high) == (pooling.of("a").value,) * 2
    assert pooling.ratio("a", "b").low == pooling.ratio("a", "b").high


def test_two_runs_are_warned_of_only_where_each_cell_has_its_own_spread():
    assert "Two runs tell little" in conditions.replicates(runs_of({"a": [1.0, 1.1]}))
    rng = np.random.default_rng(4)
    several = {cell: rng.lognormal(0, 0.05, 6) for cell in "abcd"}
    assert pooled(runs_of({**several, "e": [1.0, 1.05]})).holds
    assert "Two runs tell little" not in conditions.replicates(runs_of({**several, "e": [1.0, 1.05]}))


@pytest.mark.parametrize("spread", [0.03, 0.2])
def test_intervals_hold_the_truth_as_often_as_they_say(spread):
    rng = np.random.default_rng(20261121)
    truth = math.exp(spread**2 / 2)  # the mean of these log-normal times
    hits, ratios = [], []
    for _ in range(300):
        pooling = pooled(runs_of({cell: rng.lognormal(0, spread, 3) for cell in "abcdefgh"}))
        hits += ((pooling.cells["low"] < truth) & (truth < pooling.cells["high"])).tolist()
        rows = pooling.ratios(list("abcd"), list("efgh"))
        ratios += ((rows["low"] < 1) & (rows["high"] > 1)).tolist()
    assert 0.93 < np.mean(hits) < 0.97
    assert 0.93 < np.mean(ratios) < 0.97


@pytest.mark.parametrize(
    ("spreads", "n"),
    [([1] * 5 + [3], 3), ([1] * 11 + [2], 5), ([1] * 3 + [2] * 3, 3), ([1, 5], 2)],
    ids=["one noisy of six", "one noisy of twelve", "half noisy", "two runs"],
)
def test_the_interval_of_the_noisiest_cell_holds_though_spreads_are_unequal(spreads, n):
    # with Bartlett's test alone: 75, 79, 88 and 85 %; three standard errors of 400 studies are 5 %
    rng = np.random.default_rng(20261122)
    runs = runs_of({f"c{place:02}": [1.0] * n for place in range(len(spreads))})
    sd = 0.02 * np.repeat(spreads, n)
    hits = []
    for _ in range(400):
        estimate = pooled(runs.assign(epoch_time_s=np.exp(sd * rng.standard_normal(len(sd))))).of(
            f"c{len(spreads) - 1:02}"
        )
        hits.append(estimate.low < 1 < estimate.high)
    assert np.mean(hits) > 0.85


def test_tables_and_figures_show_the_same_intervals(runs, csv):
    table = cells.summarize(runs).dropna(subset=["epoch_time_s_low"])
    drawn, _ = overview.draw(Records(*csv), Declared("overview", "overview"))
    bars = {
        tuple(np.round(line.get_xdata(), 12)) for ax in drawn.axes for line in ax.lines if len(line.get_xdata()) == 2
    }
    shown = table[["epoch_time_s_low", "epoch_time_s_high"]].round(12).itertuples(index=False, name=None)
    assert set(shown) <= bars
    row = effects.compare(runs).iloc[0]
    assert row["from_s"] == table.set_index("cell").loc[row["from_cell"], "epoch_time_s_mean"]


def test_a_caption_says_what_was_done(tmp_path, runs):
    from synthetic import campaign

    frame, epochs = campaign(failures={})
    noisy = frame["nodes"] == 2
    frame.loc[noisy, "epoch_time_s"] *= np.exp(0.4 * (frame.loc[noisy, "replicate"] - 2))
    _, caption = overview.draw(Records(*write_frames(tmp_path, frame, epochs)), Declared("overview", "overview"))
    assert "with each cell's own standard deviation" in caption and "p < 0.001" in caption


def test_a_difference_in_seconds_agrees_with_the_ratio():
    rng = np.random.default_rng(7)
    pooling = pooled(
        runs_of({**{cell: place * rng.lognormal(0, 0.05, 6) for place, cell in enumerate("abcdef", 1)}, "g": [1.0]})
    )
    assert pooling.holds
    to, base = list("abcdefg"), list("bcdefga")
    ratios, differences = pooling.ratios(to, base), pooling.differences(to, base)
    apart = [(rows["low"] > centre) | (rows["high"] < centre) for rows, centre in ((ratios, 1), (differences, 0))]
    assert (apart[0] == apart[1]).all() and apart[0].any() and not differences["low"].isna().any()
    # a mean's standard error, mean x s / sqrt(n), is that of the log scale to first order
    means = pooling.cells["mean"]
    half = stats.t.ppf(0.975, 30) * pooling.sd * math.hypot(means["a"], means["b"]) / math.sqrt(6)
    assert differences["high"][0] - differences["value"][0] == pytest.approx(half)


def test_the_interval_of_a_difference_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(11)
    hits = []
    for _ in range(400):
        pooling = pooled(runs_of({cell: place * rng.lognormal(0, 0.1, 3) for place, cell in enumerate("abcdefgh", 1)}))
        rows = pooling.differences(list("abcd"), list("efgh"))
        truth = -4 * math.exp(0.005)
        hits += ((rows["low"] < truth) & (truth < rows["high"])).tolist() if pooling.holds else []
    assert 0.93 < np.mean(hits) < 0.97
