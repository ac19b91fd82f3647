"""Moderated variances and comparisons within blocks against limma, R, scipy, books and simulation."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.formula.api import ols

from analysis import cells, conditions, effects
from analysis.cell_means import MAX_PRIOR_DF, after_blocks, estimate_means, estimate_prior
from analysis.records import Records
from declared.figure_specs import FigureSpec
from figures.kinds import overview
from support.published import NPK, PLANT_GROWTH, VASCULAR_GRAFTS, mlperf_runs
from support.simulated import DEPENDENCES, SPREADS, coverage, simulated


def runs_of(groups):
    """Return runs of cells with these epoch times, each in its own block."""
    rows = [(cell, float(time)) for cell, times in groups.items() for time in times]
    runs = pd.DataFrame(rows, columns=["cell", "epoch_time_s"])
    return runs.assign(status="ok", session=None, block=np.arange(len(runs)) + 1, throttled_s=math.nan)


def in_blocks(groups):
    """Return runs of cells with these epoch times by block; NaN is a failed run."""
    runs = runs_of(groups).assign(
        block=[number for times in groups.values() for number in range(1, len(times) + 1)]
    )
    return runs[runs["epoch_time_s"].notna()]


def ratio(cell_means, to, base):
    return cell_means.ratios([to], [base]).iloc[0]


@pytest.fixture(scope="module")
def growth():
    return estimate_means(runs_of({cell: np.exp(weight) for cell, weight in PLANT_GROWTH.items()}))


def test_bartletts_test_is_that_of_r(growth):
    # bartlett.test(weight ~ group, PlantGrowth): K-squared = 2.8786, df = 2, p-value = 0.2371
    assert growth.statistic == pytest.approx(2.8786, abs=5e-5)
    assert growth.p == pytest.approx(0.2371, abs=5e-5)
    assert not growth.differ


def test_the_spread_of_all_cells_is_that_of_r(growth):
    # summary(lm(weight ~ group, PlantGrowth)): residual standard error 0.6234 on 27 degrees of freedom
    assert (growth.sd, growth.df) == (pytest.approx(0.6234, abs=5e-5), 27)


def by_hand(cell_means, cells):
    """Return moderated variances of log times and their df, as in Smyth's section 3."""
    prior = cell_means.prior
    logs = {cell: np.log(cell_means.values_by_cell[cell]) for cell in cells}
    variance = [
        (prior.df * prior.variance + x.var(ddof=1) * (len(x) - 1)) / (prior.df + len(x) - 1)
        for x in logs.values()
    ]
    return np.array(variance), np.array([prior.df + len(x) - 1 for x in logs.values()])


def test_intervals_use_moderated_variances(growth):
    (to, base), df = by_hand(growth, ["trt1", "ctrl"])
    assert growth.prior.df == MAX_PRIOR_DF, (
        "spreads are hardly further apart than nine degrees of freedom make them"
    )
    low, high = stats.t.interval(0.95, df[0], loc=0, scale=math.sqrt(to / 10))
    estimate = growth.cell_mean("trt1")
    assert np.log([estimate.low, estimate.high]) - math.log(estimate.value) == pytest.approx([low, high])
    compared = ratio(growth, "trt1", "ctrl")
    freedom = (to + base) ** 2 / ((to**2 + base**2) / df[0])
    assert math.log(compared["high"] / compared["low"]) == pytest.approx(
        2 * stats.t.ppf(0.975, freedom) * math.sqrt((to + base) / 10)
    )
    assert compared["within_blocks"] == 0
    assert compared["value"] == np.exp(PLANT_GROWTH["trt1"]).mean() / np.exp(PLANT_GROWTH["ctrl"]).mean()


def test_a_noisy_cell_keeps_most_of_its_spread():
    rng = np.random.default_rng(2)
    times = {"a": rng.lognormal(0, 0.01, 8), "b": rng.lognormal(0, 0.3, 8), "c": [1.0]}
    cell_means = estimate_means(runs_of(times))
    assert 0 < cell_means.prior.df < MAX_PRIOR_DF, "spreads are that far apart"
    (quiet, noisy), df = by_hand(cell_means, "ab")
    for cell, variance in (("a", quiet), ("b", noisy)):
        estimate = cell_means.cell_mean(cell)
        assert math.log(estimate.high / estimate.value) == pytest.approx(
            stats.t.ppf(0.975, df[0]) * math.sqrt(variance / 8)
        )
    assert quiet < 0.03**2 and noisy > 0.15**2
    alone = cell_means.cell_mean("c")
    assert math.log(alone.high) == pytest.approx(
        stats.t.ppf(0.975, cell_means.prior.df) * math.sqrt(cell_means.prior.variance)
    )


V = [0.0021, 0.0103, 0.0007, 0.0340, 0.0052, 0.0018, 0.0111, 0.0009]


@pytest.mark.parametrize(
    ("variances", "df", "scale", "of_prior"),
    [  # R 4.2.2, limma 3.54.1: fitFDist(v, df)
        (V, [4] * 8, 0.003214862155, 2.501481498),
        (V, [2] * 8, 0.006250190523, 11.15357952),
        (V, [2, 4, 4, 3, 2, 4, 4, 1], 0.005918199044, 18.81316955),
        ([0.010, 0.011, 0.0092, 0.0125, 0.0088, 0.0101], [4] * 6, 0.01026666667, math.inf),
    ],
)
def test_what_is_typical_of_variances_is_that_of_limma(variances, df, scale, of_prior):
    prior = estimate_prior(np.array(variances), np.array(df, dtype=float), max_df=math.inf)
    assert (prior.variance, prior.df) == (pytest.approx(scale, rel=1e-6), pytest.approx(of_prior, rel=1e-5))


def test_moderated_variances_are_those_of_limma():
    # squeezeVar(v, 4)$var.post
    prior = estimate_prior(np.array(V), np.full(8, 4.0), max_df=math.inf)
    moderated, df = prior.moderated(np.array(V), np.full(8, 4.0))
    assert moderated[:5] == pytest.approx(
        [0.002528949472, 0.007573953447, 0.001667607330, 0.022155245424, 0.004436207072]
    )
    assert df == pytest.approx(np.full(8, 4 + 2.501481498))


def test_prior_is_recovered_and_its_weight_limited():
    rng = np.random.default_rng(3)
    variances = 0.01 * rng.f(4, 6, 20000)
    prior = estimate_prior(variances, np.full(20000, 4.0), max_df=math.inf)
    assert (prior.variance, prior.df) == (pytest.approx(0.01, rel=0.03), pytest.approx(6, rel=0.05))
    assert estimate_prior(variances, np.full(20000, 4.0), 2.5).df == 2.5
    assert (
        estimate_prior(np.array([0.01]), np.array([4.0]), 2).df
        == estimate_prior(np.zeros(3), np.full(3, 2.0), 2).df
        == 0
    )


@pytest.mark.parametrize(
    ("groups", "facts"),
    [
        ({"a": [1.0], "b": [2.0]}, {"most": 1, "too_few": True}),
        ({"a": [1.0, 1.1], "b": [2.0]}, {"moderated": False, "fewest": 1}),
        ({"a": [1.0, 1.0, 1.0], "b": [2.0, 2.1, 2.2]}, {"moderated": True}),
        ({"a": [1.0, 1.1, 1.2], "b": [2.0, 2.3, 2.4]}, {"moderated": True, "prior_df": 2}),
    ],
)
def test_what_an_interval_rests_on_is_said(groups, facts):
    runs = runs_of(groups)
    note = conditions.replicates_note(runs)
    assert {name: note.facts[name] for name in facts} == facts
    assert (conditions.TWO_RUNS in note) == (len(groups["a"]) == 2)
    rows = estimate_means(runs).cell_statistics
    assert not np.isinf(rows[["low", "high"]].to_numpy()).any()


def test_no_run_is_said_apart_from_no_run_yet():
    runs = runs_of({"a": [1.0]})
    assert "block" in conditions.replicates_note(runs.assign(block=1))
    assert "block" not in conditions.replicates_note(runs.assign(block=None))
    assert conditions.replicates_note(runs.assign(status="failed")) == conditions.NO_SUCCESS
    assert conditions.run_counts_note(runs.assign(status="missing")) == conditions.NO_RUN_YET
    assert estimate_means(runs.assign(status="failed")).cell_statistics.empty


def test_times_that_are_all_equal_have_intervals_without_width():
    cell_means = estimate_means(runs_of({"a": [0.1, 0.1, 0.1], "b": [0.3, 0.3]}))
    assert (cell_means.cell_mean("a").low, cell_means.cell_mean("a").high) == (
        cell_means.cell_mean("a").value,
    ) * 2
    assert ratio(cell_means, "a", "b")["low"] == ratio(cell_means, "a", "b")["high"]


STUDIES = 250


@pytest.mark.parametrize("name", SPREADS)
@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.simulation
def test_intervals_have_nominal_coverage_also_of_noisy_cells(name, n):
    """Average over numbers of cells, blocks and autocorrelation.

    Three standard errors are about 1 % for all cells and 3 % for the noisiest.
    """
    rng = np.random.default_rng(20261124)
    studies = [
        coverage(*simulated(rng, cells_, n, name, *dependence))
        for cells_ in (4, 12, 40)
        for dependence in DEPENDENCES
        for _ in range(STUDIES // (2 if cells_ == 40 else 1))
    ]
    of_cells, of_noisiest, of_ratios = np.mean(
        [(study.cells, study.noisiest, study.ratios) for study in studies], axis=0
    )
    assert 0.93 < of_cells < 0.975
    assert 0.93 < of_ratios < 0.975
    assert of_noisiest > (0.85 if name == "one with three times" else 0.88)


@pytest.mark.parametrize("time", ["run_s", "step_s"])
@pytest.mark.simulation
def test_random_halves_of_real_runs_differ_as_often_as_p_says(time):
    """Compare random halves of ten runs of MLPerf: times to train, which lie on a lattice, and step times.

    A share of 5 % has a standard error of 0.5 % at least, because halves of the same runs depend on each other.
    """
    rng, p_values = np.random.default_rng(20261128), []
    for _, runs in mlperf_runs().dropna(subset=time).groupby("benchmark"):
        cells_ = {cell: rows[time].to_numpy() for cell, rows in runs.groupby("cell")}
        for _ in range(60):
            drawn = {cell: rng.permutation(times) for cell, times in cells_.items()}
            halves = [{f"{cell}.{half}": times[half::2] for cell, times in drawn.items()} for half in (0, 1)]
            runs_of_halves = runs_of(halves[0] | halves[1]).assign(block=pd.NA)
            cell_means = estimate_means(runs_of_halves)
            p_values += cell_means.ratios(list(halves[0]), list(halves[1]))["p"].tolist()
    assert 0.03 < np.mean(np.array(p_values) < 0.05) < 0.07


def test_tables_and_figures_show_the_same_intervals(runs, csv):
    table = cells.summarize(runs).dropna(subset=["epoch_time_s_low"])
    drawn, _ = overview.draw(Records(*csv), FigureSpec("overview", "overview"))
    bars = {
        tuple(np.round(line.get_xdata(), 12))
        for ax in drawn.axes
        for line in ax.lines
        if len(line.get_xdata()) == 2
    }
    written = table[["epoch_time_s_low", "epoch_time_s_high"]].round(12).itertuples(index=False, name=None)
    assert set(written) <= bars
    row = effects.build_rows(runs).iloc[0]
    assert row["from_s"] == table.set_index("cell").loc[row["from_cell"], "epoch_time_s_mean"]


def test_a_difference_in_seconds_agrees_with_the_ratio():
    rng = np.random.default_rng(7)
    cell_means = estimate_means(
        runs_of(
            {
                **{cell: place * rng.lognormal(0, 0.05, 6) for place, cell in enumerate("abcdef", 1)},
                "g": [1.0],
            }
        )
    )
    to, base = list("abcdefg"), list("bcdefga")
    ratios, differences = cell_means.ratios(to, base), cell_means.differences(to, base)
    apart = [
        (rows["low"] > centre) | (rows["high"] < centre) for rows, centre in ((ratios, 1), (differences, 0))
    ]
    assert (apart[0] == apart[1]).all() and apart[0].any() and not differences["low"].isna().any()
    # a mean's standard error, mean x s / sqrt(n), is that of the log scale to first order
    a, b = (
        cell_means.cell_statistics.loc[cell, "mean"]
        * cell_means.cell_statistics.loc[cell, "s"]
        / math.sqrt(6)
        for cell in "ab"
    )
    df = (a**2 + b**2) ** 2 / ((a**4 + b**4) / cell_means.cell_statistics.loc["a", "df"])
    half = stats.t.ppf(0.975, min(df, cell_means.max_mean_df)) * math.hypot(a, b)
    assert differences["high"][0] - differences["value"][0] == pytest.approx(half)


def grafts():
    """Return Montgomery's example as runs; log times are a tenth of the yields."""
    return in_blocks({pressure: np.exp(yields / 10) for pressure, yields in VASCULAR_GRAFTS.items()})


def test_what_cells_and_blocks_leave_is_that_of_montgomery():
    # Example 4.1: SS error 109.89 on 15 degrees of freedom, MS error 7.33
    cell_means = estimate_means(grafts())
    assert cell_means.residual_spread.df == 15
    assert 100 * cell_means.residual_spread.sd**2 * 15 == pytest.approx(109.89, abs=5e-3)
    assert 100 * cell_means.residual_spread.sd**2 == pytest.approx(7.33, abs=5e-3)


def test_cells_in_blocks_are_compared_by_moderated_differences():
    cell_means = estimate_means(grafts())
    prior, names = cell_means.residual_spread.prior, list(VASCULAR_GRAFTS)
    rows = cell_means.ratios(names[1:], [names[0]] * 3)
    assert (rows["within_blocks"] == 6).all() and (rows["n"] == 6).all()
    base = np.array(VASCULAR_GRAFTS[names[0]]) / 10
    for row, name in zip(rows.itertuples(), names[1:], strict=True):
        difference = np.array(VASCULAR_GRAFTS[name]) / 10 - base
        variance = (prior.df * 2 * prior.variance + 5 * difference.var(ddof=1)) / (prior.df + 5)
        t = difference.mean() / math.sqrt(variance / 6)
        assert row.p == pytest.approx(2 * stats.t.sf(abs(t), prior.df + 5))
        assert math.log(row.high / row.low) == pytest.approx(
            2 * stats.t.ppf(0.975, prior.df + 5) * math.sqrt(variance / 6)
        )


def test_two_cells_alone_are_compared_by_the_paired_test_itself():
    to, base = (dict(list(VASCULAR_GRAFTS.items())[:2])[name] for name in list(VASCULAR_GRAFTS)[:2])
    row = ratio(
        estimate_means(in_blocks({"a": np.exp(np.array(to) / 10), "b": np.exp(np.array(base) / 10)})),
        "a",
        "b",
    )
    assert row["p"] == pytest.approx(stats.ttest_rel(to, base).pvalue)


def test_residuals_of_incomplete_blocks_equal_those_of_r():
    # summary(aov(yield ~ block + N*P*K, npk)), as in R's ?aov: residuals 12 degrees of freedom, sum of
    # squares 185.29
    cell = NPK.groupby(["N", "P", "K"]).ngroup().to_numpy()
    residual, blocks = after_blocks(NPK["y"].to_numpy(), cell, NPK["block"].to_numpy())
    assert (residual**2).sum() == pytest.approx(185.29, abs=5e-3)
    assert 24 - 8 - blocks == 12


def test_missing_runs_give_least_squares_residuals_and_df():
    rng = np.random.default_rng(3)
    table = np.exp(rng.normal(0, 0.05, (6, 5)) + rng.normal(0, 0.2, 5))
    table[rng.random((6, 5)) < 0.2] = math.nan
    runs = in_blocks(dict(zip("abcdef", table, strict=True)))
    cell_means = estimate_means(runs)
    fit = ols("np.log(epoch_time_s) ~ C(cell) + C(block)", runs).fit()
    assert len(runs) < 30
    assert (cell_means.residual_spread.sd, cell_means.residual_spread.df) == (
        pytest.approx(math.sqrt(fit.mse_resid)),
        fit.df_resid,
    )
    spread = np.concatenate(list(cell_means.residual_spread.spread_values.values()))
    assert spread == pytest.approx(fit.resid[runs.sort_values(["cell", "block"]).index].to_numpy())


def slowed(runs, block=2, factor=3):
    """Slow down one block of the runs."""
    return runs.assign(epoch_time_s=runs["epoch_time_s"] * np.where(runs["block"] == block, factor, 1.0))


def shifted_block(rng, n=6):
    """Return cells with unequal spreads."""
    return in_blocks({cell: rng.lognormal(0, 0.01 * 3**place, n) for place, cell in enumerate("abcd")})


@pytest.mark.parametrize("case", ["alike", "different"])
def test_block_effects_cancel_in_the_error_of_a_ratio(case):
    runs = grafts() if case == "alike" else shifted_block(np.random.default_rng(5))
    names = runs["cell"].unique().tolist()
    widths, p = [], []
    for cell_means in (estimate_means(runs), estimate_means(slowed(runs))):
        rows = cell_means.ratios(names[1:], names[:-1])
        widths.append(np.log(rows["high"] / rows["low"]).to_numpy())
        p.append(rows["p"].to_numpy())
    assert widths[1] == pytest.approx(widths[0])
    assert p[1] == pytest.approx(p[0])
    blocks_in = [
        cell_means.cell_statistics["high"] / cell_means.cell_statistics["low"]
        for cell_means in (estimate_means(runs), estimate_means(slowed(runs)))
    ]
    assert (blocks_in[1] > blocks_in[0]).all(), "of a cell's own mean it is"


def test_difference_in_seconds_uses_differences_within_blocks():
    cell_means = estimate_means(shifted_block(np.random.default_rng(5)))
    times, prior = cell_means.values_by_cell, cell_means.residual_spread.prior
    difference = times["b"] - times["d"]
    typical = prior.variance * (times["b"].mean() ** 2 + times["d"].mean() ** 2)
    variance = (prior.df * typical + 5 * difference.var(ddof=1)) / (prior.df + 5)
    row = cell_means.differences(["b"], ["d"]).iloc[0]
    assert row["high"] - row["value"] == pytest.approx(
        stats.t.ppf(0.975, prior.df + 5) * math.sqrt(variance / 6)
    )


def test_different_spreads_are_seen_where_blocks_hide_them():
    rng = np.random.default_rng(6)
    blocks, spread = rng.normal(0, 0.3, 8), np.repeat([0.01, 0.05], 6)
    runs = in_blocks(
        {f"c{place:02}": np.exp(blocks + sd * rng.standard_normal(8)) for place, sd in enumerate(spread)}
    )
    cell_means = estimate_means(runs)
    assert not cell_means.differ and cell_means.residual_spread.differ
    rows = cell_means.ratios(["c00", "c06"], ["c01", "c07"])
    quiet, noisy = np.log(rows["high"] / rows["low"])
    assert noisy > 1.5 * quiet


def test_cells_that_share_too_few_blocks_are_independent_groups():
    rng = np.random.default_rng(7)
    assert ratio(estimate_means(shifted_block(rng, n=2)), "b", "d")["within_blocks"] == 0
    shared = rng.lognormal(0, 0.05, (8, 5))
    shared[0, :3], shared[1, 3:] = math.nan, math.nan
    cell_means = estimate_means(in_blocks(dict(zip("abcdefgh", shared, strict=True))))
    assert cell_means.ratios(["a", "a", "b"], ["b", "c", "c"])["within_blocks"].tolist() == [0, 0, 3]
    low, high = (math.log(ratio(cell_means, "a", "b")[bound]) for bound in ("low", "high"))
    (s, df), (base_s, base_df) = cell_means.cell_statistics.loc[["a", "b"], ["s", "df"]].to_numpy()
    to, base = s**2 / 2, base_s**2 / 3
    freedom = (to + base) ** 2 / (to**2 / df + base**2 / base_df)
    assert high - low == pytest.approx(
        2 * stats.t.ppf(0.975, min(freedom, cell_means.max_mean_df)) * math.sqrt(to + base)
    )


def test_ratio_and_difference_use_shared_blocks():
    table = {
        cell: place * np.array([1.0, 1.1, 0.9, 1.2, 1.05, 0.97]) for place, cell in enumerate("abcdef", 1)
    }
    rng = np.random.default_rng(2)
    table = {cell: times * rng.lognormal(0, 0.02, 6) for cell, times in table.items()}
    table["b"][3] = math.nan
    cell_means = estimate_means(in_blocks(table))
    shared = ~np.isnan(table["b"])
    row = ratio(cell_means, "b", "a")
    assert (row["value"], row["n"]) == (
        pytest.approx(table["b"][shared].mean() / table["a"][shared].mean()),
        5,
    )
    difference = cell_means.differences(["b"], ["a"])["value"][0]
    assert difference == pytest.approx(table["b"][shared].mean() - table["a"][shared].mean())


def test_a_run_of_a_later_session_is_not_in_its_block():
    runs = grafts().assign(session="first")
    runs.loc[(runs["cell"] == "8700") & (runs["block"] == 4), "session"] = "second"
    cell_means = estimate_means(runs)
    assert cell_means.ratios(["8700", "8900"], ["8500", "8500"])["within_blocks"].tolist() == [5, 6]


def test_several_runs_in_a_block_give_independent_groups():
    runs = grafts().assign(block=1)
    assert estimate_means(runs).ratios(["8700"], ["8500"])["within_blocks"].tolist() == [0]
    assert estimate_means(runs).residual_spread.df == 0


@pytest.mark.parametrize(
    ("table", "facts"),
    [
        (grafts(), {"blocks": True, "groups": False, "moderated": True}),
        (shifted_block(np.random.default_rng(5), 2), {"blocks": False, "groups": True, "moderated": False}),
        (grafts().assign(block=1), {"blocks": False, "groups": True, "moderated": False}),
    ],
)
def test_how_cells_are_compared_is_said(table, facts):
    cells_ = table["cell"].unique().tolist()
    rows = estimate_means(table).ratios(cells_[1:], cells_[:-1])
    assert conditions.contrasts_note(table, rows["within_blocks"]).facts == facts
    assert conditions.contrasts_note(table, pd.Series([math.nan] * 3)) == ""


def blocked(rng, cells, blocks, block_sd, sd):
    """Return runs of cells in complete blocks, with median time 1."""
    logs = rng.normal(0, block_sd, blocks) + rng.normal(0, sd, (cells, blocks))
    return in_blocks({f"cell {number}": np.exp(log_times) for number, log_times in enumerate(logs)})


def test_df_of_means_in_blocks_follows_mean_squares():
    # the error of a treatment's mean in randomized complete blocks: (MS blocks + (c - 1) MS error) / (c n),
    # Satterthwaite
    runs = blocked(np.random.default_rng(2), cells=4, blocks=5, block_sd=0.1, sd=0.05)
    log = np.log(runs["epoch_time_s"].to_numpy().reshape(4, 5))
    residual = log - log.mean(axis=1, keepdims=True) - log.mean(axis=0) + log.mean()
    of_blocks, error = 4 * ((log.mean(axis=0) - log.mean()) ** 2).sum() / 4, (residual**2).sum() / 12
    df = estimate_means(runs)
    assert df.sd**2 == pytest.approx((of_blocks + 3 * error) / 4)
    expected = (of_blocks + 3 * error) ** 2 / (of_blocks**2 / 4 + (3 * error) ** 2 / 12)
    assert df.max_mean_df == pytest.approx(expected)
    assert df.max_mean_df < df.df == 16


def test_without_blocks_all_runs_inform_the_error_of_a_mean(growth):
    assert growth.max_mean_df == growth.df


@pytest.mark.parametrize("cells, blocks, block_sd", [(8, 3, 0.2), (8, 5, 0.04), (24, 3, 0.1), (8, 5, 0.0)])
@pytest.mark.simulation
def test_intervals_of_means_cover_despite_shared_blocks(cells, blocks, block_sd):
    rng, covered = np.random.default_rng(7), []
    for _ in range(120):
        of_cells = estimate_means(blocked(rng, cells, blocks, block_sd, sd=0.02)).cell_statistics
        covered.append(((of_cells["low"] <= 1) & (of_cells["high"] >= 1)).mean())
    assert 0.9 < np.mean(covered) < 0.985  # 0.84 with the freedom of all runs in the first case
