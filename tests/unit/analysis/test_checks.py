"""Checks detect simulated violations and agree with R's documented output and statsmodels."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm
from statsmodels.stats.diagnostic import normal_ad
from statsmodels.stats.power import TTestIndPower

from analysis import checks, study
from analysis.cell_means import estimate_means
from common.notes import codes
from support.published import PLANT_GROWTH, mlperf_runs


def table_of(runs):
    return checks.table(runs).data.set_index("assumption")


def verdict(runs, assumption):
    """Return the table's row of an assumption."""
    (row,) = (
        row
        for row in checks.run_checks(checks.residuals(runs), estimate_means(runs))
        if row.assumption == assumption
    )
    return row.verdict


def growth_runs(runs):
    """Return runs of three cells whose log epoch times are PlantGrowth's weights."""
    rows = [(cell, weight) for cell, weights in PLANT_GROWTH.items() for weight in weights]
    frame = pd.concat([runs[runs["status"] == "ok"][:1]] * len(rows), ignore_index=True)
    return frame.assign(
        cell=[cell for cell, _ in rows],
        run_id=[f"{cell}.r{number}" for number, (cell, _) in enumerate(rows)],
        epoch_time_s=np.exp([weight for _, weight in rows]),
        order_key=np.arange(len(rows)) + 1.0,
    )


@pytest.mark.parametrize(("n", "half", "least"), [(5, 1.24, 1.46), (3, 2.48, 2.27), (2, 8.98, 4.30)])
def test_what_n_runs_can_tell_apart(n, half, least):
    # t(4) = 2.776 / sqrt(5); t(8) = 2.306 sqrt(2 / 5): any table of Student's t
    assert checks.half_width(n, n - 1) == pytest.approx(half, abs=0.006)
    assert checks.significant_difference(n, 2 * n - 2) == pytest.approx(least, abs=0.006)
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n)
    x = (x - x.mean()) / x.std(ddof=1)
    beyond, within = (
        stats.ttest_ind(x, x + checks.significant_difference(n, 2 * n - 2) * factor).pvalue
        for factor in (1.001, 0.999)
    )
    assert beyond < 0.05 < within


@pytest.mark.parametrize(("n", "detectable"), [(3, 3.07), (5, 2.02), (10, 1.32)])
def test_what_n_runs_find_four_times_in_five(n, detectable):
    # statsmodels' power of the two-sample t test
    detected = checks.detectable_difference(n, 2 * n - 2)
    assert detected == pytest.approx(detectable, abs=0.006)
    assert detected == pytest.approx(TTestIndPower().solve_power(nobs1=n, alpha=0.05, power=0.8), rel=1e-4)
    assert checks.significant_difference(n, 2 * n - 2) < checks.detectable_difference(n, 100 * n) < detected


def test_the_shapiro_wilk_test_is_that_of_r(runs):
    # shapiro.test(residuals(lm(weight ~ group, PlantGrowth))): W = 0.96607, p-value = 0.4379; equal n, so
    # studentizing inside keeps W; from outside it stretches the tails a little.
    data = checks.residuals(growth_runs(runs))
    assert stats.shapiro(data["residual"]).statistic == pytest.approx(0.96607, abs=5e-6)
    assert table_of(growth_runs(runs)).loc[checks.NORMAL, "statistic"] == pytest.approx(0.966, abs=0.004)
    assert verdict(growth_runs(runs), checks.NORMAL).code == "nothing-against"


def test_residuals_and_outliers_are_those_of_statsmodels(runs):
    data = checks.residuals(runs)
    ok = runs[runs["status"] == "ok"]
    fit = ols(
        "np.log(epoch_time_s) ~ C(cell)", ok.assign(epoch_time_s=ok["epoch_time_s"].astype(float))
    ).fit()
    expected = fit.outlier_test().set_axis(ok["run_id"]).loc[data["run_id"]]
    assert data["studentized"].to_numpy() == pytest.approx(expected["student_resid"].to_numpy())
    assert not data[checks.OUTLIER].any()
    assert data["p_outlier"].to_numpy() == pytest.approx(expected["bonf(p)"].to_numpy())


def test_outliers_are_judged_one_after_the_other(read):
    runs = read(failures={})
    for run_id, factor in (
        ("pytorch-ddp.small-cnn.digits.b64.n2.s1.r2", 1.5),
        ("pytorch-single.small-cnn.digits.b16.n1.s1.r1", 0.8),
    ):
        runs.loc[runs["run_id"] == run_id, "epoch_time_s"] *= factor
    data = checks.residuals(runs)
    outliers = data[data[checks.OUTLIER]].sort_values("p_outlier")
    assert outliers["run_id"].tolist() == [
        "pytorch-ddp.small-cnn.digits.b64.n2.s1.r2",
        "pytorch-single.small-cnn.digits.b16.n1.s1.r1",
    ], "not those that share a cell with one"
    rest = runs[runs["run_id"] != outliers["run_id"].iloc[0]]
    fit = ols(
        "np.log(epoch_time_s) ~ C(cell)", rest.assign(epoch_time_s=rest["epoch_time_s"].astype(float))
    ).fit()
    second = fit.outlier_test().set_axis(rest["run_id"]).loc[outliers["run_id"].iloc[1]]
    assert outliers["p_outlier"].iloc[1] == pytest.approx(second["bonf(p)"])


def test_of_two_runs_both_are_outliers(read):
    runs = read(failures={}, replicates=2)
    late = runs["run_id"] == "pytorch-ddp.small-cnn.digits.b64.n2.s1.r2"
    runs.loc[late, "epoch_time_s"] *= 2
    outliers = checks.residuals(runs)[lambda data: data[checks.OUTLIER]]
    assert set(outliers["cell"]) == set(runs.loc[late, "cell"]) and len(outliers) == 2


def test_an_outlier_is_listed_with_its_size_and_kept(read):
    runs = read(failures={})
    late = runs["run_id"] == "pytorch-ddp.small-cnn.digits.b64.n2.s1.r2"
    runs.loc[late, "epoch_time_s"] *= 1.5
    runs.loc[late, ["other_cpu_share", "steal_share"]] = [0.031, 0.12]
    table = checks.table(runs)
    row = table.data.set_index("run_id").loc["pytorch-ddp.small-cnn.digits.b64.n2.s1.r2"]
    assert row["size_percent"] == pytest.approx(50, abs=6)
    assert (row["other_cpu_share"], row["steal_share"], row["p"] < 0.001) == (0.031, 0.12, True)
    assert verdict(runs, checks.NO_OUTLIERS).startswith("1 of 114")
    holds = {name: holds for name, holds, _ in checks.judge_assumptions(table.data)}
    assert holds[checks.NO_OUTLIERS] is False
    assert estimate_means(runs).cell_statistics.loc[runs.loc[late, "cell"].iloc[0], "n"] == 3
    none = read(failures={})
    assert checks.judge_assumptions(checks.table(none).data)[-1][:2] == (checks.NO_OUTLIERS, True)


def test_very_many_runs_get_the_test_of_anderson_and_darling(runs):
    rng = np.random.default_rng(8)
    runs_of_many = pd.concat([runs[runs["status"] == "ok"][:1]] * 6000, ignore_index=True)
    runs_of_many["cell"] = [f"c{number // 5}" for number in range(6000)]
    runs_of_many["epoch_time_s"] = np.exp(rng.normal(0, 0.05, 6000))
    row = table_of(runs_of_many).loc[checks.NORMAL]
    assert row["test"] == "Anderson-Darling, n = 6000"
    data = checks.residuals(runs_of_many)
    assert (row["statistic"], row["p"]) == pytest.approx(normal_ad(data["studentized"].to_numpy()))


def test_a_drift_is_found_with_its_slope(read):
    runs = read(failures={}, noise=0.005)
    order = runs["order_key"].rank()
    runs["epoch_time_s"] *= np.exp(0.001 * order)
    row = table_of(runs).loc[checks.NO_DRIFT]
    in_block = runs["block"].value_counts().max()
    assert row["size_percent"] == pytest.approx(100 * math.expm1(0.001 * in_block), abs=1)
    finding = verdict(runs, checks.NO_DRIFT)
    assert row["p"] < 0.001 and finding.code == "drift"
    data = runs.assign(order=order, log=np.log(runs["epoch_time_s"].astype(float)))
    fit = ols("log ~ C(cell) + C(block) + order", data.astype({"block": str})).fit()
    assert row["statistic"] == pytest.approx(fit.tvalues["order"])
    assert not checks.residuals(runs)["by_clock"].any(), "in planned order"
    short = runs[runs["framework"] == "pytorch-ddp"]
    row = table_of(short).loc[checks.NO_DRIFT]
    assert len(short) < 100
    ranked = (
        np.log(short["epoch_time_s"].astype(float))
        .to_frame("log")
        .assign(order=short["order_key"].rank(), cell=short["cell"], block=short["block"].astype(str))
    )
    slope = ols("log ~ C(cell) + C(block) + order", ranked).fit().params["order"]
    in_block = short["block"].value_counts().max()
    assert row["size_percent"] == pytest.approx(100 * math.expm1(in_block * slope))
    still = read(failures={}, noise=0.005)
    assert table_of(still).loc[checks.NO_DRIFT, "p"] > 0.05
    assert verdict(still, checks.NO_DRIFT).code == "no-drift"


def test_the_order_is_that_of_the_clock_where_runs_have_one(read):
    runs = read(failures={})
    started = [f"2026-11-20T12:{minute:02d}:00.000Z" for minute in range(60)] + [
        f"2026-11-20T13:{m:02d}:00.000Z" for m in range(54)
    ]
    data = checks.residuals(runs.assign(started_at=started[::-1]))
    assert data["run_id"].tolist() == runs["run_id"].tolist()[::-1]
    assert data["order"].tolist() == list(range(1, 115))


@pytest.mark.parametrize("column", ["block", "session"])
def test_blocks_and_sessions_that_differ_are_found(column, read):
    runs = read(failures={}, noise=0.005)
    rng = np.random.default_rng(9)
    group = runs["block"] if column == "block" else pd.Series(rng.integers(1, 4, len(runs)))
    runs["session"] = "only" if column == "block" else [f"s{number}" for number in group]
    runs["epoch_time_s"] *= np.exp(0.01 * (group == 2))
    row = table_of(runs).loc[f"{column}s alike"]
    finding = verdict(runs, f"{column}s alike")
    assert row["p"] < 0.001 and finding.code == "levels-differ" and row["size_percent"] > 0
    assert f"{column} {'2' if column == 'block' else 's2'}, " in finding
    data = runs.assign(group=group.astype(str).tolist(), log=np.log(runs["epoch_time_s"].astype(float)))
    table = anova_lm(ols("log ~ C(cell)", data).fit(), ols("log ~ C(cell) + C(group)", data).fit())
    assert row["statistic"] == pytest.approx(table["F"].iloc[1])
    assert row["p"] == pytest.approx(table["Pr(>F)"].iloc[1])


def test_sessions_that_are_blocks_are_not_tested_twice(read):
    runs = read(failures={})
    as_blocks = runs.assign(session="s" + runs["block"].astype(str))
    assert verdict(as_blocks, "sessions alike").code == "sessions-are-blocks"
    for session in (runs, runs.assign(session=None)):
        assert verdict(session, "sessions alike").code == "nothing-to-compare"


def test_runs_that_follow_their_neighbours_are_found(read):
    runs = read(failures={}, noise=0.001).sort_values("order_key", ignore_index=True)
    runs["epoch_time_s"] *= np.exp(0.05 * np.sin(np.arange(len(runs)) / 5))
    row = table_of(runs).loc[checks.INDEPENDENT]
    assert row["statistic"] > 0.6 and row["p"] < 0.001
    assert verdict(runs, checks.INDEPENDENT).code == "neighbours-alike"
    runs["epoch_time_s"] *= np.exp(0.5 * (-1.0) ** np.arange(len(runs)))
    assert verdict(runs, checks.INDEPENDENT).code == "neighbours-alternate"


def test_unequal_spreads_are_told_with_their_range(read):
    runs = read(failures={})
    runs.loc[runs["nodes"] == 2, "epoch_time_s"] *= np.exp(0.3 * (runs["replicate"] - 2)[runs["nodes"] == 2])
    row = table_of(runs).loc[checks.EQUAL_SPREAD]
    assert row["p"] < 0.001 and verdict(runs, checks.EQUAL_SPREAD).code == "unequal-spread"
    assert verdict(runs, checks.NORMAL).code == "not-normal"


def test_the_resolution_is_in_percent_of_the_epoch_time(read):
    runs = read(failures={})
    spread = np.log(runs["epoch_time_s"].astype(float)).groupby(runs["cell"]).transform("std")
    runs = runs[spread > spread.max() / 3]
    row = table_of(runs).loc[f"{checks.MIN_DIFFERENCE}, n = 3"]
    cell_means = estimate_means(runs)
    within = cell_means.residual_spread
    assert cell_means.df == 2 * runs["cell"].nunique() and within.df == cell_means.df - 2
    assert row["statistic"] == pytest.approx(stats.t.ppf(0.975, within.prior.df + 2) * math.sqrt(2 / 3))
    assert row["size_percent"] == pytest.approx(100 * math.expm1(row["statistic"] * within.sd))
    assert " after blocks" in row["verdict"]
    mean = table_of(runs).loc[f"{checks.HALF_INTERVAL}, n = 3"]
    assert mean["statistic"] == pytest.approx(stats.t.ppf(0.975, cell_means.mean_df(3)) / math.sqrt(3))
    assert mean["size_percent"] == pytest.approx(100 * math.expm1(mean["statistic"] * cell_means.sd))


def test_resolution_by_cell_has_the_spreads_of_intervals(read):
    runs = read(failures={})
    cell_means = estimate_means(runs)
    assert cell_means.moderated_spreads == pytest.approx(cell_means.cell_statistics["s"].to_numpy())
    (check,) = (
        check
        for check in checks.run_checks(checks.residuals(runs), cell_means)
        if check.assumption == f"{checks.HALF_INTERVAL}, n = 3"
    )
    upper = cell_means.cell_statistics["high"] / cell_means.cell_statistics["mean"]
    assert check.verdict.facts["range_percent"] == pytest.approx(
        [100 * (upper.min() - 1), 100 * (upper.max() - 1)]
    )


@pytest.mark.parametrize("case", ["no run", "one replicate", "all equal", "one cell", "two replicates"])
def test_little_is_said_by_its_reason(case, read):
    runs = read(replicates={"one replicate": 1, "two replicates": 2}.get(case, 3), failures={})
    match case:
        case "no run":
            runs = runs.assign(status="failed")
        case "all equal":
            runs = runs.assign(epoch_time_s=2.0)
        case "one cell":
            runs = runs[runs["cell"] == runs["cell"].iloc[0]]
    data = checks.table(runs).data
    if case in ("no run", "one replicate", "all equal"):
        verdict = [row.verdict for row in checks.run_checks(checks.residuals(runs), estimate_means(runs))]
        assert codes(verdict) == ["no-successful-run" if case == "no run" else "runs-do-not-differ"]
        assert data["verdict"].tolist() == verdict
        assert [name for name, _, _ in checks.judge_assumptions(data)] == [checks.ALL], (
            "a report's mark has this name alone"
        )
    else:
        assert len(data) >= 9
        assert not np.isinf(data["statistic"]).any()


def test_the_residuals_stand_beside_the_table(csv, runs, tmp_path):
    study.main(runs=csv[0], epochs=csv[1], out=tmp_path)
    residuals = pd.read_csv(tmp_path / "residuals.csv")
    assert len(residuals) == 110
    assert (residuals["fitted_log"] + residuals["residual"]).to_numpy() == pytest.approx(
        np.log(runs.set_index("run_id").loc[residuals["run_id"], "epoch_time_s"].to_numpy(float))
    )
    assert residuals.groupby("cell")["residual"].sum().abs().max() < 1e-9
    assert residuals["normal_quantile"].median() == pytest.approx(0, abs=1e-9)
    assert residuals["studentized"].corr(residuals["normal_quantile"]) > 0.97


def runs_to_train(runs, benchmark="llama2_70b_lora"):
    """Return runs whose epoch times are MLPerf's times to train."""
    measured = mlperf_runs().query("benchmark == @benchmark").reset_index(drop=True)
    frame = pd.concat([runs[runs["status"] == "ok"][:1]] * len(measured), ignore_index=True)
    return frame.assign(
        cell=measured["cell"],
        run_id=[f"{cell}.r{number}" for number, cell in enumerate(measured["cell"])],
        replicate=measured.groupby("cell").cumcount() + 1,
        block=np.arange(len(measured)) + 1,
        order_key=np.arange(len(measured)) + 1.0,
        session=None,
        epoch_time_s=measured["run_s"],
    )


def test_the_second_value_of_a_lattice_is_no_outlier(runs):
    trained = runs_to_train(runs)
    data = checks.residuals(trained)
    listed = [
        row for row in checks.run_checks(data, estimate_means(trained)) if row.assumption == checks.OUTLIER
    ]
    outliers, cells = {row.run_id: row.size_percent for row in listed}, data.groupby("cell")
    assert data["step_s"].notna().all()
    steps = 100 * (cells["step_s"].first() / np.exp(cells["fitted_log"].first())).min()
    assert 0 < len(outliers) < 10 and max(map(abs, outliers.values())) < steps, "runs apart from their value"
    normal = verdict(trained, checks.NORMAL)
    assert normal.code == "lattice" and len(normal.facts["cells"]) == 15
    assert set(normal.facts["points"].values()) == {2, 3, 4, 5}
    assert cells["step_s"].first().to_dict() == normal.facts["steps_s"]
    assert codes(checks.table(trained).notes).count("lattices") == 1


def test_a_run_apart_from_its_value_is_an_outlier(runs):
    trained = runs_to_train(runs)
    data = checks.residuals(trained).set_index("run_id")
    late = data.index[(data["cell"] == "Nebius nebius_b200_n4") & (data["place"] == 1)][0]
    assert not data.loc[late, "outlier"]
    trained.loc[trained["run_id"] == late, "epoch_time_s"] += 0.15 * data.loc[late, "step_s"]
    assert checks.residuals(trained).set_index("run_id").loc[late, "outlier"]


def test_checks_without_a_lattice_do_not_name_one(runs):
    data = checks.residuals(runs)
    assert data["step_s"].isna().all() and (data["place"] == 0).all() and checks.lattice_note(data) is None
    assert "lattices" not in codes(checks.table(runs).notes)
