"""Intervals against scipy, published numbers and simulation."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from analysis import intervals
from support.published import SLEEP


def differences(groups, to, base):
    return intervals.difference_intervals(intervals.welch(groups, to, base))


def single(to, base):
    """Return the difference of two groups."""
    row = differences({"one": np.array(to, float), "other": np.array(base, float)}, ["one"], ["other"]).iloc[
        0
    ]
    return intervals.Estimate(row["value"], row["low"], row["high"], int(row["n"]))


def test_the_interval_of_the_mean_is_that_of_scipy():
    x = np.random.default_rng(1).normal(10, 2, 7)
    low, high = stats.t.interval(0.95, 6, loc=x.mean(), scale=stats.sem(x))
    estimate = intervals.mean(x)
    assert (estimate.low, estimate.high) == pytest.approx((low, high))


@pytest.mark.parametrize("summary", [intervals.mean, intervals.harmonic_mean])
def test_one_value_has_no_interval_and_none_has_no_mean(summary):
    assert summary([4.0]).value == 4
    assert math.isnan(summary([4.0]).low)
    assert math.isnan(summary([]).value)
    assert summary([4.0, math.nan]).n == 1


def test_an_interval_is_cut_at_what_the_quantity_can_be():
    accuracies = pd.Series([0.9, 1.0, 0.98, 0.1, 0.0, 0.02])
    rows = intervals.means(accuracies, pd.Series(list("aaabbb")), minimum=0, maximum=1)
    assert rows.at["a", "high"] == 1 and rows.at["b", "low"] == 0
    assert rows.at["a", "low"] > 0 and intervals.mean(accuracies[3:], minimum=0).low == 0


def test_the_harmonic_mean_is_work_over_time():
    times = np.array([2.0, 2.5, 4.0])
    rates = 100 / times
    estimate, time = intervals.harmonic_mean(rates), intervals.mean(times)
    assert estimate.value == pytest.approx(stats.hmean(rates))
    factor = np.exp((time.high - time.value) / time.value)
    assert (estimate.low, estimate.high) == pytest.approx(
        (100 / time.value / factor, 100 / time.value * factor)
    )


def test_interval_of_a_harmonic_mean_always_has_an_upper_end():
    rates = [1.0, 2.0, 100.0]
    assert intervals.mean([1 / rate for rate in rates]).low < 0
    assert stats.hmean(rates) < intervals.harmonic_mean(rates).high < np.inf


def test_many_pairs_at_once_are_each_that_of_scipy():
    rng = np.random.default_rng(4)
    groups = {name: rng.lognormal(1, 0.2, n) for name, n in (("a", 5), ("b", 4), ("c", 5), ("d", 1))}
    to, base = ["a", "b", "c", "d", "a", "b"], ["b", "c", "a", "a", "absent", "a"]
    rows = differences(groups, to, base)
    for row, to_cell, base_cell in zip(rows.itertuples(), to, base, strict=True):
        if "d" in (to_cell, base_cell) or "absent" in (to_cell, base_cell):
            assert math.isnan(row.p) and math.isnan(row.low)
            continue
        expected = stats.ttest_ind(groups[to_cell], groups[base_cell], equal_var=False).pvalue
        assert row.p == pytest.approx(expected)
    assert rows["n"].tolist() == [4, 4, 5, 1, 0, 4]
    assert math.isnan(rows["value"][4]) and not math.isnan(rows["value"][3])


def test_the_paired_test_is_that_of_r():
    # t.test(extra ~ group, sleep, paired = TRUE), as in R's ?t.test: t = -4.0621, df = 9, p-value = 0.002833
    pairs = intervals.paired(*(hours[None] for hours in SLEEP))
    assert (pairs["first"] - pairs["second"])[0] / pairs["error"][0] == pytest.approx(-4.0621, abs=5e-5)
    assert pairs["df"][0] == 9
    row = intervals.difference_intervals(pairs).iloc[0]
    assert row["p"] == pytest.approx(0.002833, abs=5e-7)
    assert (row["value"], row["low"], row["high"]) == pytest.approx((-1.58, -2.4598858, -0.7001142), abs=5e-7)


def test_pairs_are_compared_over_the_blocks_that_both_have():
    rng = np.random.default_rng(8)
    to, base = rng.normal(3, 1, (4, 6)), rng.normal(2, 1, (4, 6))
    to[1, 2] = base[1, 5] = to[2, :5] = to[3] = math.nan
    rows = intervals.difference_intervals(intervals.paired(to, base))
    assert rows["n"].tolist() == [6, 4, 1, 0]
    for place in (0, 1):
        complete = ~np.isnan(to[place] + base[place])
        test = stats.ttest_rel(to[place][complete], base[place][complete])
        low, high = test.confidence_interval()
        assert rows.loc[place, ["low", "high", "p"]].tolist() == pytest.approx([low, high, test.pvalue])
    assert rows["low"].isna().tolist() == [False, False, True, True]
    assert rows["value"][2] == to[2, 5] - base[2, 5] and math.isnan(rows["value"][3])
    constant = intervals.difference_intervals(
        intervals.paired(np.full((2, 5), 0.1), np.array([[0.1] * 5, [0.3] * 5]))
    )
    assert constant["p"].tolist() == [1, 0] and (constant["low"] == constant["high"]).all()


def test_means_of_many_groups_are_the_mean_of_each():
    rng = np.random.default_rng(6)
    groups = pd.Series(list("aaabbbbbc"))
    values = pd.Series(rng.normal(1, 0.3, 9)).where(groups.index != 1)
    rows = intervals.means(values, groups, minimum=0, maximum=1.2)
    for name, row in rows.iterrows():
        expected = intervals.mean(values[groups == name], minimum=0)
        high = np.minimum(expected.high, 1.2)
        assert row.tolist() == pytest.approx(
            [expected.value, expected.low, high, expected.n, expected.cv], nan_ok=True
        )


def test_a_difference_of_groups_too_small_or_without_spread():
    assert math.isnan(single([], [1.0, 2.0]).value)
    alone = single([3.0], [1.0, 2.0])
    assert alone.value == 1.5
    assert math.isnan(alone.low)
    constant = single([3.0, 3.0], [1.0, 1.0])
    assert (constant.low, constant.high) == (2.0, 2.0)
    equal = {"x": np.array([3.0, 3.0]), "y": np.array([1.0, 1.0])}
    assert differences(equal, ["x", "x"], ["y", "x"])["p"].tolist() == [0, 1]


@pytest.mark.parametrize(
    "p", [[0.01, 0.04, 0.03, 0.005], [0.5, 0.5, 0.9, 1e-9, 0.5], [0.02], [0.3, 0.001, 0.001]]
)
def test_holm_is_that_of_statsmodels(p):
    assert intervals.holm(p) == pytest.approx(multipletests(p, method="holm")[1].tolist())


def test_holm_of_a_worked_example_leaves_what_is_absent():
    # Three tests: 0.01 x 3, 0.02 x 2, and 0.03 x 1 lifted to the one before it.
    assert intervals.holm([0.03, math.nan, 0.01, 0.02]) == pytest.approx(
        [0.04, math.nan, 0.03, 0.04], nan_ok=True
    )
    assert intervals.holm([]) == []


def test_the_bootstrap_of_single_values_is_that_of_scipy():
    x = np.random.default_rng(3).lognormal(size=40)
    estimate = intervals.bootstrap_mean(x, np.arange(40))
    expected = stats.bootstrap(
        (x,), np.mean, n_resamples=20_000, rng=np.random.default_rng(9)
    ).confidence_interval
    assert estimate.value == pytest.approx(x.mean())
    assert [estimate.low, estimate.high] == pytest.approx([expected.low, expected.high], rel=0.03)
    assert intervals.bootstrap_mean(x, np.arange(40)) == estimate


def test_what_is_like_within_a_cluster_counts_once():
    """Repeating each value four times adds no information."""
    x = np.random.default_rng(3).lognormal(size=30)
    distinct, again = (intervals.bootstrap_mean(np.repeat(x, n), np.repeat(np.arange(30), n)) for n in (1, 4))
    assert [again.value, again.low, again.high, again.n] == pytest.approx(
        [distinct.value, distinct.low, distinct.high, 30]
    )


def test_few_clusters_and_equal_ones_are_not_resampled():
    small = intervals.bootstrap_mean(np.arange(10.0), np.arange(10) % 5)
    assert (small.value, small.n) == (4.5, 5) and math.isnan(small.low)
    assert intervals.bootstrap_mean(np.full(8, 2.0), np.arange(8)) == intervals.Estimate(2.0, 2.0, 2.0, 8)
    assert math.isnan(intervals.bootstrap_mean(np.array([]), np.array([])).value)


@pytest.mark.parametrize("shift", [0.0, 0.03, 0.08, -0.2])
def test_the_equivalence_test_is_that_of_statsmodels(shift):
    to, base = np.random.default_rng(4).normal([[0.0], [shift]], 0.05, (2, 8))
    difference = base - to
    p = intervals.equivalence_p(np.array([difference.mean()]), stats.sem(difference), 7, -0.1, 0.1)
    assert p == pytest.approx(ttost_paired(base, to, -0.1, 0.1)[0])


def test_without_an_error_a_difference_is_inside_or_outside():
    p = intervals.equivalence_p(np.array([0.0, 0.05, 0.1, -0.3]), np.zeros(4), 3, -0.1, 0.1)
    assert p.tolist() == [0, 0, 1, 1]


def random_family(rng, m, df):
    """Return ratios with their own intervals and p; effects and estimates have errors of 1."""
    log = rng.normal(rng.choice([-3, 0, 3], m), 1)
    error = np.sqrt(rng.chisquare(df, m) / df)
    p, half = 2 * stats.t.sf(np.abs(log) / error, df), stats.t.ppf(0.975, df) * error
    value = np.exp(log + rng.normal(0, 0.05, m))  # ratios of arithmetic means are not quite what is tested
    return pd.DataFrame(
        {"value": value, "low": value * np.exp(-half), "high": value * np.exp(half), "df": df, "p": p}
    )


def test_simultaneous_intervals_exclude_1_where_holm_rejects():
    rng, seen = np.random.default_rng(1), set()
    for m in (1, 2, 3, 8, 30) * 20:
        ratios = random_family(rng, m, rng.choice([2.0, 4.5, 8.0, 1e9]))
        bounds = intervals.simultaneous_ratios(ratios)
        rejected = multipletests(ratios["p"], method="holm")[1] < 0.05
        assert (((bounds["low"] > 1) | (bounds["high"] < 1)) == rejected).all()
        assert ((bounds["low"] <= ratios["value"]) & (ratios["value"] <= bounds["high"])).all()
        seen |= {(bool(row), bool(p * m < 0.05)) for row, p in zip(rejected, ratios["p"], strict=True)}
    assert seen == {(False, False), (True, False), (True, True)}, "some are rejected by steps alone"


def test_simultaneous_intervals_are_bonferronis():
    ratios = pd.DataFrame({"value": [0.5, 2.0, 1.1], "p": [1e-6, 1e-6, 0.9], "df": [5.0, 9.0, math.inf]})
    half = 0.2 * stats.t.ppf(1 - 0.05 / 6, ratios["df"]) / stats.t.ppf(0.975, ratios["df"])
    ratios = ratios.assign(low=ratios["value"] * math.exp(-0.2), high=ratios["value"] * math.exp(0.2))
    without_p = pd.DataFrame(
        {"value": [1.5], "p": [math.nan], "df": [math.nan], "low": [math.nan], "high": [math.nan]}
    )
    bounds = intervals.simultaneous_ratios(pd.concat([ratios, without_p], ignore_index=True))
    assert bounds["low"][:3].tolist() == pytest.approx((ratios["value"] * np.exp(-half)).tolist())
    assert bounds["high"][:3].tolist() == pytest.approx((ratios["value"] * np.exp(half)).tolist())
    assert bounds.loc[3].isna().all(), "a ratio without p does not count"


def test_all_simultaneous_intervals_cover_together():
    """95 % of studies without a true difference; 90 % in the worst case (`simultaneous_ratios`)."""
    rng, studies, m, df = np.random.default_rng(2), 500, 6, 8.0
    for truth, at_least in ((np.zeros(m), 0.93), (np.r_[0.0, np.full(m - 1, 20.0)], 0.87)):
        covered = 0
        for _ in range(studies):
            log, error = rng.normal(truth, 1), np.sqrt(rng.chisquare(df, m) / df)
            p, half = 2 * stats.t.sf(np.abs(log) / error, df), stats.t.ppf(0.975, df) * error
            ratios = pd.DataFrame(
                {"value": np.exp(log), "low": np.exp(log - half), "high": np.exp(log + half)}
            )
            bounds = intervals.simultaneous_ratios(ratios.assign(df=df, p=p))
            covered += ((bounds["low"] <= np.exp(truth)) & (np.exp(truth) <= bounds["high"])).all()
        assert covered / studies > at_least
