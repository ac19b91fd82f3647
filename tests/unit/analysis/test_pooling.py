"""One spread for all cells, where they share it, and cells compared within blocks: against published analyses, R's
documented output, scipy, and simulation."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.formula.api import ols

from analysis import cells, conditions, effects, intervals
from analysis.measured import Records
from analysis.pooling import after_blocks, pooled
from declared.figures import Declared
from figures import overview
from published import NPK, PLANT_GROWTH, VASCULAR_GRAFTS
from synthetic import write_frames


def runs_of(groups):
    """Runs of cells with these epoch times, each in a block of its own."""
    rows = [(cell, float(time)) for cell, times in groups.items() for time in times]
    runs = pd.DataFrame(rows, columns=["cell", "epoch_time_s"])
    return runs.assign(status="ok", session=None, block=np.arange(len(runs)) + 1, throttled_s=math.nan)


def in_blocks(groups):
    """Runs of cells with these epoch times by block; NaN is a run that did not succeed."""
    runs = runs_of(groups).assign(block=[number for times in groups.values() for number in range(1, len(times) + 1)])
    return runs[runs["epoch_time_s"].notna()]


def ratio(pooling, to, base):
    return pooling.ratios([to], [base]).iloc[0]


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
    found = ratio(growth, "trt1", "ctrl")
    assert math.log(found["high"] / found["low"]) == pytest.approx(high - low)
    assert found["within_blocks"] == 0
    assert found["value"] == np.exp(PLANT_GROWTH["trt1"]).mean() / np.exp(PLANT_GROWTH["ctrl"]).mean()


def test_unequal_spreads_are_not_pooled():
    rng = np.random.default_rng(2)
    pooling = pooled(runs_of({"a": rng.lognormal(0, 0.01, 8), "b": rng.lognormal(0, 0.3, 8), "c": [1.0]}))
    assert not pooling.holds
    for cell in "ab":
        log = np.log(pooling.samples[cell])
        low, high = stats.t.interval(0.95, 7, loc=0, scale=stats.sem(log))
        estimate = pooling.of(cell)
        assert np.log([estimate.low, estimate.high]) - math.log(estimate.value) == pytest.approx([low, high])
    alone = ratio(pooling, "a", "c")
    assert math.isnan(pooling.of("c").low) and math.isnan(alone["low"]) and math.isnan(alone["within_blocks"])
    found, times = ratio(pooling, "a", "b"), pooling.samples
    test = stats.ttest_ind(np.log(times["a"]), np.log(times["b"]), equal_var=False)
    low, high = test.confidence_interval()
    assert found["value"] == times["a"].mean() / times["b"].mean()
    assert np.log([found["low"], found["high"]]) - math.log(found["value"]) == pytest.approx(
        [(low - high) / 2, (high - low) / 2]
    )
    assert found["p"] == pytest.approx(test.pvalue)


def test_where_cells_share_their_spread_a_single_run_has_an_interval():
    rng = np.random.default_rng(4)
    runs = runs_of({**{cell: rng.lognormal(0, 0.05, 6) for cell in "abcdef"}, "alone": [1.0]})
    pooling = pooled(runs)
    assert pooling.holds and pooling.df == 30
    t = stats.t.ppf(0.975, 30)
    assert math.log(pooling.of("alone").high) == pytest.approx(t * pooling.sd)
    said = conditions.replicates(runs)
    assert "n = 1 to 6 per cell" in said
    assert "a cell with one run takes its interval from the spread of the other cells" in said


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({}, "No run of the study succeeded."),
        ({"a": [1.0], "b": [2.0]}, "n = 1 per cell, too few for an interval."),
        ({"a": [1.0, 1.1, 1.2]}, "because they could not be compared"),
        ({"a": [1.0, 1.1], "b": [2.0]}, "a cell with one run has none"),
        ({"a": [1.0, 1.0], "b": [2.0, 2.0]}, "because they could not be compared"),
        ({"a": [1.0, 1.0, 1.0], "b": [2.0, 2.1, 2.2]}, "because a cell's times are all equal"),
        ({"a": [1.0, 1.1], "b": [2.0, 2.3]}, "most cells have fewer than 3 runs"),
        ({"a": [1.0, 1.1, 1.2], "b": [2.0, 2.3, 2.4]}, "with a pooled s"),
        ({"a": [1.0, 1.1, 1.2], "b": [2.0, 2.02, 2.07]}, "times the smallest (Bartlett's test, p = 0."),
        ({"a": [1.0, 1.001, 1.002, 1.003], "b": [2.0, 2.5, 3.0, 3.5]}, "because cells do not share one (Bartlett"),
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
    assert ratio(pooling, "a", "b")["low"] == ratio(pooling, "a", "b")["high"]


def test_two_runs_are_warned_of_only_where_each_cell_has_its_own_spread():
    assert "Two runs give very wide intervals" in conditions.replicates(runs_of({"a": [1.0, 1.1]}))
    rng = np.random.default_rng(4)
    several = {cell: rng.lognormal(0, 0.05, 6) for cell in "abcd"}
    assert pooled(runs_of({**several, "e": [1.0, 1.05]})).holds
    assert "Two runs give very wide intervals" not in conditions.replicates(runs_of({**several, "e": [1.0, 1.05]}))


@pytest.mark.parametrize("spread", [0.03, 0.2])
@pytest.mark.simulation
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
@pytest.mark.simulation
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
    assert "where s is each cell's own standard deviation" in caption and "p < 0.001" in caption


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


@pytest.mark.simulation
def test_the_interval_of_a_difference_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(11)
    hits = []
    for _ in range(400):
        pooling = pooled(runs_of({cell: place * rng.lognormal(0, 0.1, 3) for place, cell in enumerate("abcdefgh", 1)}))
        rows = pooling.differences(list("abcd"), list("efgh"))
        truth = -4 * math.exp(0.005)
        hits += ((rows["low"] < truth) & (truth < rows["high"])).tolist() if pooling.holds else []
    assert 0.93 < np.mean(hits) < 0.97


def grafts():
    """Montgomery's example as runs, a tenth of the yields being the logarithms of times."""
    return in_blocks({pressure: np.exp(yields / 10) for pressure, yields in VASCULAR_GRAFTS.items()})


def test_cells_in_complete_blocks_are_compared_as_montgomery_does():
    # Example 4.1: SS error 109.89 on 15 degrees of freedom, MS error 7.33
    pooling = pooled(grafts())
    assert (pooling.within.df, pooling.holds_within) == (15, True)
    assert 100 * pooling.within.sd**2 * 15 == pytest.approx(109.89, abs=5e-3)
    assert 100 * pooling.within.sd**2 == pytest.approx(7.33, abs=5e-3)
    names = list(VASCULAR_GRAFTS)
    rows = pooling.ratios(names[1:], [names[0]] * 3)
    assert (rows["within_blocks"] == 6).all() and (rows["n"] == 6).all()
    data = pd.DataFrame(
        [(cell, block, y) for cell, yields in VASCULAR_GRAFTS.items() for block, y in enumerate(yields)],
        columns=["cell", "block", "y"],
    )
    fit = ols("y ~ C(cell) + C(block)", data).fit()
    for row, name in zip(rows.itertuples(), names[1:], strict=True):
        test = fit.t_test(f"C(cell)[T.{name}] = 0")
        assert row.p == pytest.approx(float(test.pvalue))
        assert 10 * math.log(row.high / row.low) == pytest.approx(np.ptp(test.conf_int()[0]))
    # the least significant difference, t(15) sqrt(2 MS / 6) = 3.33
    assert 5 * math.log(rows["high"][0] / rows["low"][0]) == pytest.approx(3.33, abs=5e-3)


def test_what_cells_and_blocks_leave_is_that_of_r_where_blocks_are_incomplete():
    # summary(aov(yield ~ block + N*P*K, npk)), as in R's ?aov: residuals 12 degrees of freedom, sum of squares 185.29
    cell = NPK.groupby(["N", "P", "K"]).ngroup().to_numpy()
    residual, blocks = after_blocks(NPK["y"].to_numpy(), cell, NPK["block"].to_numpy())
    assert (residual**2).sum() == pytest.approx(185.29, abs=5e-3)
    assert 24 - 8 - blocks == 12


def test_missing_runs_leave_the_residuals_and_the_freedom_of_least_squares():
    rng = np.random.default_rng(3)
    table = np.exp(rng.normal(0, 0.05, (6, 5)) + rng.normal(0, 0.2, 5))
    table[rng.random((6, 5)) < 0.2] = math.nan
    runs = in_blocks(dict(zip("abcdef", table, strict=True)))
    pooling = pooled(runs)
    fit = ols("np.log(epoch_time_s) ~ C(cell) + C(block)", runs).fit()
    assert len(runs) < 30
    assert (pooling.within.sd, pooling.within.df) == (pytest.approx(math.sqrt(fit.mse_resid)), fit.df_resid)
    found = np.concatenate(list(pooling.within.groups.values()))
    assert found == pytest.approx(fit.resid[runs.sort_values(["cell", "block"]).index].to_numpy())


def slowed(runs, block=2, factor=1.5):
    """The same runs, one block being slower."""
    return runs.assign(epoch_time_s=runs["epoch_time_s"] * np.where(runs["block"] == block, factor, 1.0))


def unlike(rng, n=6):
    """Cells of unlike spreads."""
    return in_blocks({cell: rng.lognormal(0, 0.01 * 3**place, n) for place, cell in enumerate("abcd")})


@pytest.mark.parametrize("case", ["one spread", "own spreads"])
def test_what_a_block_does_to_all_cells_is_not_in_the_error_of_a_ratio(case):
    runs = grafts() if case == "one spread" else unlike(np.random.default_rng(5))
    names = runs["cell"].unique().tolist()
    widths, p = [], []
    for made in (pooled(runs), pooled(slowed(runs))):
        assert made.holds_within == (case == "one spread")
        rows = made.ratios(names[1:], names[:-1])
        widths.append(np.log(rows["high"] / rows["low"]).to_numpy())
        p.append(rows["p"].to_numpy())
    assert widths[1] == pytest.approx(widths[0])
    assert p[1] == pytest.approx(p[0])
    blocks_in = [made.cells["high"] / made.cells["low"] for made in (pooled(runs), pooled(slowed(runs)))]
    assert (blocks_in[1] > blocks_in[0]).all(), "of a cell's own mean it is"


def test_cells_of_unlike_spreads_are_compared_by_the_paired_test():
    pooling = pooled(unlike(np.random.default_rng(5)))
    times = pooling.samples
    assert not pooling.holds
    row = ratio(pooling, "b", "d")
    test = stats.ttest_rel(np.log(times["b"]), np.log(times["d"]))
    assert (row["p"], row["within_blocks"]) == (pytest.approx(test.pvalue), 6)
    assert math.log(row["high"] / row["low"]) == pytest.approx(np.ptp(test.confidence_interval()))
    difference = pooling.differences(["b"], ["d"]).iloc[0]
    low, high = stats.ttest_rel(times["b"], times["d"]).confidence_interval()
    assert (difference["low"], difference["high"]) == pytest.approx((low, high))


def test_unlike_spreads_are_seen_where_blocks_hide_them():
    rng = np.random.default_rng(6)
    blocks, spread = rng.normal(0, 0.3, 8), np.repeat([0.01, 0.05], 6)
    runs = in_blocks({f"c{place:02}": np.exp(blocks + sd * rng.standard_normal(8)) for place, sd in enumerate(spread)})
    pooling = pooled(runs)
    assert pooling.holds and not pooling.within.holds
    rows = pooling.ratios(["c00", "c06"], ["c01", "c07"])
    quiet, noisy = np.log(rows["high"] / rows["low"])
    assert noisy > 2 * quiet
    said = conditions.ratios(runs, rows["within_blocks"])
    assert (
        "by the paired t test of the two cells, because without the effects of blocks cells do not share one (Bartlett's test, p < 0.001)"
        in said
    )


def test_cells_that_share_too_few_blocks_are_independent_groups():
    rng = np.random.default_rng(7)
    few = pooled(unlike(rng, n=4))
    times = few.samples
    row = ratio(few, "b", "d")
    test = stats.ttest_ind(np.log(times["b"]), np.log(times["d"]), equal_var=False)
    assert (row["p"], row["within_blocks"]) == (pytest.approx(test.pvalue), 0)
    shared = rng.lognormal(0, 0.05, (8, 5))
    shared[0, :3], shared[1, 3:] = math.nan, math.nan
    pooling = pooled(in_blocks(dict(zip("abcdefgh", shared, strict=True))))
    assert pooling.holds_within
    assert pooling.ratios(["a", "a", "b"], ["b", "c", "c"])["within_blocks"].tolist() == [0, 0, 3]
    low, high = (math.log(ratio(pooling, "a", "b")[bound]) for bound in ("low", "high"))
    assert high - low == pytest.approx(2 * stats.t.ppf(0.975, pooling.freedom) * pooling.sd * math.sqrt(1 / 2 + 1 / 3))


def test_the_ratio_and_the_difference_are_those_of_the_blocks_that_both_have():
    table = {cell: place * np.array([1.0, 1.1, 0.9, 1.2, 1.05, 0.97]) for place, cell in enumerate("abcdef", 1)}
    rng = np.random.default_rng(2)
    table = {cell: times * rng.lognormal(0, 0.02, 6) for cell, times in table.items()}
    table["b"][3] = math.nan
    pooling = pooled(in_blocks(table))
    shared = ~np.isnan(table["b"])
    row = ratio(pooling, "b", "a")
    assert (row["value"], row["n"]) == (pytest.approx(table["b"][shared].mean() / table["a"][shared].mean()), 5)
    difference = pooling.differences(["b"], ["a"])["value"][0]
    assert difference == pytest.approx(table["b"][shared].mean() - table["a"][shared].mean())


def test_a_run_of_a_later_session_is_not_in_its_block():
    runs = grafts().assign(session="first")
    runs.loc[(runs["cell"] == "8700") & (runs["block"] == 4), "session"] = "second"
    pooling = pooled(runs)
    assert pooling.ratios(["8700", "8900"], ["8500", "8500"])["within_blocks"].tolist() == [5, 6]


def test_cells_with_several_runs_in_a_block_are_independent_groups():
    runs = grafts().assign(block=1)
    assert pooled(runs).ratios(["8700"], ["8500"])["within_blocks"].tolist() == [0]
    assert pooled(runs).within.df == 0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (grafts(), "within the blocks in which both cells have a run, with a pooled s"),
        (unlike(np.random.default_rng(5)), "both cells have a run, by the paired t test of the two cells."),
        (unlike(np.random.default_rng(5), 4), "with each cell's own s (Welch's t test), because cells share fewer than 5 blocks."),
        (grafts().assign(block=1), "for independent groups, with a pooled s, because"),
    ],
)  # fmt: skip
def test_how_cells_are_compared_is_said(table, said):
    cells_ = table["cell"].unique().tolist()
    rows = pooled(table).ratios(cells_[1:], cells_[:-1])
    assert said in conditions.contrasts(table, rows["within_blocks"])
    assert conditions.contrasts(table, pd.Series([math.nan] * 3)) == ""


CASES = {  # number of cells and of blocks, s.d. of a block, of the runs of each cell
    "one spread": (12, 5, 0.08, np.full(12, 0.05)),
    "one spread, no blocks": (12, 5, 0.0, np.full(12, 0.05)),
    "own spreads": (20, 5, 0.08, np.geomspace(0.01, 0.2, 20)),
    "own spreads, no blocks": (20, 5, 0.0, np.geomspace(0.01, 0.2, 20)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.simulation
def test_intervals_of_comparisons_hold_the_truth_as_often_as_they_say(case):
    cells_, blocks, of_blocks, spread = CASES[case]
    rng = np.random.default_rng(20261123)
    scale = np.geomspace(1, 4, cells_)
    names = [f"c{place:02}" for place in range(cells_)]
    frame = in_blocks({name: np.ones(blocks) for name in names})
    hits: list[list[bool]] = []
    growth = []
    while len(hits) < 2000:
        log = np.log(scale)[:, None] + of_blocks * rng.standard_normal(blocks)
        log = log + spread[:, None] * rng.standard_normal((cells_, blocks)) - (spread[:, None] ** 2 + of_blocks**2) / 2
        pooling = pooled(frame.assign(epoch_time_s=np.exp(log).ravel()))
        to, base = names[: cells_ // 2], names[cells_ // 2 :]
        truth = scale[: cells_ // 2], scale[cells_ // 2 :]
        ratios, seconds = pooling.ratios(to, base), pooling.differences(to, base)
        hits += [
            list(pair)
            for pair in zip(
                (ratios["low"] < truth[0] / truth[1]) & (truth[0] / truth[1] < ratios["high"]),
                (seconds["low"] < truth[0] - truth[1]) & (truth[0] - truth[1] < seconds["high"]),
                strict=True,
            )
        ]
        if pooling.holds_within:  # against the width for groups that are independent
            apart = 2 * stats.t.ppf(0.975, pooling.df) * pooling.sd * math.sqrt(2 / blocks)
            growth.append(math.log(ratios["high"][0] / ratios["low"][0]) / apart)
    covered = np.mean(hits, axis=0)
    assert ((covered > 0.93) & (covered < 0.97)).all(), covered
    if case == "one spread, no blocks":
        df = (cells_ - 1) * (blocks - 1), cells_ * (blocks - 1)
        assert np.mean(growth) == pytest.approx(stats.t.ppf(0.975, df[0]) / stats.t.ppf(0.975, df[1]), rel=0.01)
    if case == "one spread":
        assert np.mean(growth) < 0.65


def blocked(rng, cells, blocks, block_sd, sd):
    """Runs of cells whose times have the median 1, in complete blocks."""
    logs = rng.normal(0, block_sd, blocks) + rng.normal(0, sd, (cells, blocks))
    return in_blocks({f"cell {number}": np.exp(own) for number, own in enumerate(logs)})


def test_the_freedom_of_means_in_blocks_is_that_of_the_mean_squares():
    # the error of a treatment's mean in randomized complete blocks: (MS blocks + (c - 1) MS error) / (c n), Satterthwaite
    runs = blocked(np.random.default_rng(2), cells=4, blocks=5, block_sd=0.1, sd=0.05)
    log = np.log(runs["epoch_time_s"].to_numpy().reshape(4, 5))
    residual = log - log.mean(axis=1, keepdims=True) - log.mean(axis=0) + log.mean()
    of_blocks, error = 4 * ((log.mean(axis=0) - log.mean()) ** 2).sum() / 4, (residual**2).sum() / 12
    found = pooled(runs)
    assert found.sd**2 == pytest.approx((of_blocks + 3 * error) / 4)
    expected = (of_blocks + 3 * error) ** 2 / (of_blocks**2 / 4 + (3 * error) ** 2 / 12)
    assert found.freedom == pytest.approx(expected)
    assert found.freedom < found.df == 16


def test_without_blocks_all_runs_inform_the_error_of_a_mean(growth):
    assert growth.freedom == growth.df


@pytest.mark.parametrize("cells, blocks, block_sd", [(8, 3, 0.2), (8, 5, 0.04), (24, 3, 0.1), (8, 5, 0.0)])
@pytest.mark.simulation
def test_intervals_of_means_hold_the_truth_though_all_cells_share_blocks(cells, blocks, block_sd):
    rng, held = np.random.default_rng(7), []
    for _ in range(120):
        of_cells = pooled(blocked(rng, cells, blocks, block_sd, sd=0.02)).cells
        held.append(((of_cells["low"] <= 1) & (of_cells["high"] >= 1)).mean())
    assert 0.885 < np.mean(held) < 0.985  # 0.84 with the freedom of all runs in the first case
