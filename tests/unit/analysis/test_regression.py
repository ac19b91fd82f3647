"""Regressions against certified and published results, and brute force on a synthetic campaign."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from statsmodels.datasets import longley
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.oneway import anova_oneway

from analysis import leave_out, regression, regression_table, terms
from analysis.records import successful
from common.notes import codes, find_note
from support.synthetic import (
    SECONDS,
    SECONDS_PER_NODE,
    SECONDS_PER_SAMPLE,
    SECONDS_PER_SYNC,
    designed_campaign,
)

TIME, RATE = regression.REGRESSED
MODELS = list(terms.MODELS)


def fitted(runs, model="linear", response=TIME):
    return regression.fit_all(runs)[response, model]


def matrix(runs, model):
    """Return the estimable terms per run, from their definition."""
    columns = terms.MODELS[model](runs)
    return np.column_stack([columns[name] for name in terms.split_estimable(columns)[0]])


def fit(y, cell=None, **columns):
    """Fit plain arrays; each run is its own cell by default."""
    y = np.asarray(y, dtype=float)
    named = {"intercept": np.ones(len(y))} | {name: np.asarray(x, dtype=float) for name, x in columns.items()}
    cell = np.arange(len(y)) if cell is None else cell
    return regression.fit(y, named, np.asarray(cell).astype(str), np.zeros(len(y)))


def notes_of(runs, fits=None):
    return regression_table.table(runs, regression.fit_all(runs) if fits is None else fits).notes


def estimates(fit, column="estimate"):
    return fit.terms.set_index("term")[column]


@pytest.fixture(scope="module")
def of_longley():
    data = longley.load_pandas()
    return fit(data.endog, **{name: data.exog[name] for name in data.exog})


def test_longley_has_the_certified_values(of_longley):
    # NIST Statistical Reference Datasets, linear regression, Longley: certified to 15 digits.
    certified = {
        "intercept": (-3482258.63459582, 890420.383607373),
        "GNPDEFL": (15.0618722713733, 84.9149257747669),
        "GNP": (-0.358191792925910e-01, 0.334910077722432e-01),
        "UNEMP": (-2.02022980381683, 0.488399681651699),
        "ARMED": (-1.03322686717359, 0.214274163161675),
        "POP": (-0.511041056535807e-01, 0.226073200069370),
        "YEAR": (1829.15146461355, 455.478499142212),
    }
    for name, (estimate, error) in certified.items():
        assert estimates(of_longley)[name] == pytest.approx(estimate, rel=1e-7)
        assert estimates(of_longley, "standard_error_equal_variances")[name] == pytest.approx(error, rel=1e-7)
    assert of_longley.statistics["residual s.d."] == pytest.approx(304.854073561965, rel=1e-9)
    assert of_longley.statistics["R²"] == pytest.approx(0.995479004577296, rel=1e-10)


def test_longley_has_the_robust_errors_of_r(of_longley):
    # HC3 as the test suite of statsmodels keeps them (regression/tests/results/results_regression.py,
    # Longley).
    published = {
        "GNPDEFL": 91.11939,
        "GNP": 0.05562,
        "UNEMP": 0.82213,
        "ARMED": 0.29879,
        "POP": 0.32491,
        "YEAR": 922.80784,
        "intercept": 1799477,
    }
    for name, error in published.items():
        assert estimates(of_longley, "standard_error")[name] == pytest.approx(error, rel=1e-4)


def test_longley_has_the_variance_inflation_factors_of_r(of_longley):
    # car::vif(lm(Employed ~ ., data = longley)) in R.
    published = [135.53244, 1788.51348, 33.61889, 3.58893, 399.15102, 758.98060]
    assert of_longley.terms["vif"][1:].to_numpy() == pytest.approx(published, rel=1e-6)
    assert of_longley.statistics["largest VIF"] == pytest.approx(1788.51348)


def test_the_lack_of_fit_of_a_published_example():
    # Kutner, Nachtsheim, Neter & Li, Applied Linear Statistical Models (5th ed., 2005), section 3.7, the
    # bank's branches.
    deposit = [125, 100, 200, 75, 150, 175, 75, 175, 125, 200, 100]
    accounts = [160, 112, 124, 28, 152, 156, 42, 124, 150, 104, 136]
    bank = fit(accounts, cell=deposit, deposit=deposit)
    assert estimates(bank).to_numpy() == pytest.approx([50.72251, 0.48670], abs=1e-5)
    statistics = bank.statistics
    assert (statistics["lack of fit: F"], statistics["lack of fit: p"]) == (
        pytest.approx(14.80, abs=5e-3),
        pytest.approx(0.006, abs=5e-4),
    )
    assert (statistics["lack of fit: d.f."], statistics["pure error: d.f."]) == (4, 5)


@pytest.mark.parametrize("response", regression.REGRESSED)
@pytest.mark.parametrize("model", MODELS)
def test_estimates_and_robust_errors_are_those_of_statsmodels(runs, model, response):
    ok = successful(runs)
    expected = OLS(ok[response.column].to_numpy(), matrix(ok, model)).fit()
    robust = expected.get_robustcov_results("HC3", use_t=True)
    result = fitted(runs, model, response)
    assert np.allclose(result.terms["estimate"], expected.params)
    assert np.allclose(result.terms["standard_error"], robust.bse)
    assert np.allclose(result.terms["p"], robust.pvalues)
    assert np.allclose(result.terms[["low", "high"]], robust.conf_int())
    clustered = expected.get_robustcov_results("cluster", groups=pd.factorize(ok["cell"])[0], use_t=True)
    assert np.allclose(result.terms["standard_error_by_cell"], clustered.bse)
    assert np.allclose(result.terms["p_by_cell"], clustered.pvalues)
    assert result.statistics["adjusted R²"] == pytest.approx(expected.rsquared_adj)
    n, k = len(ok), len(expected.params) + 1  # the variance is a parameter, too, as in R's AIC
    assert result.statistics["AICc"] == pytest.approx(expected.aic + 2 + 2 * k * (k + 1) / (n - k - 1))


def test_the_known_effects_come_back_exactly_without_noise(read):
    result = fitted(read(noise=0.0))
    effect = estimates(result)
    assert effect["nodes"] == pytest.approx(SECONDS_PER_NODE)
    assert effect["batch size"] == pytest.approx(SECONDS_PER_SAMPLE)
    assert effect["gradient accumulation steps"] == pytest.approx(SECONDS_PER_SYNC)
    for name, seconds in SECONDS.items():
        if name != "pytorch-single":
            assert effect[name] == pytest.approx(seconds - SECONDS["pytorch-single"])
    assert result.statistics["without cell: RMSE"] < 1e-9
    assert math.isnan(result.statistics["lack of fit: F"]), "replicates that do not differ show no error"


def brute_force(runs, model, group):
    """Refit without each group; NaN if the terms of a cell are not spanned."""
    x, y, cell = matrix(runs, model), runs["epoch_time_s"].to_numpy(), runs["cell"].to_numpy()
    predicted = {}
    for name in dict.fromkeys(cell):
        mine = cell == name
        rest = runs[group].to_numpy() != runs[group].to_numpy()[mine][0]
        row = x[mine][:1]
        predictable = rest.any() and np.linalg.matrix_rank(
            np.vstack([x[rest], row])
        ) == np.linalg.matrix_rank(x[rest])
        predicted[name] = (
            float((row @ np.linalg.lstsq(x[rest], y[rest], rcond=None)[0])[0]) if predictable else math.nan
        )
    return predicted


@pytest.mark.parametrize(("column", "group"), [("without_cell", "cell"), ("without_level", "nodes")])
@pytest.mark.parametrize("model", MODELS)
def test_predictions_of_what_was_left_out_agree_with_refitting(runs, model, column, group):
    ok = successful(runs)
    result = fitted(runs, model)
    expected = brute_force(ok, model, group)
    assert result.cells[column].to_numpy() == pytest.approx(
        [expected[cell] for cell in result.cells["cell"]], nan_ok=True
    )
    assert result.cells[column].isna().any() == (model == "quadratic" or column == "without_level")


@pytest.mark.parametrize("left_out", ["cell", "level"])
def test_errors_of_what_was_left_out_have_their_definitions(left_out):
    result = fitted(designed_campaign()[0])
    predicted, measured = result.cells[f"without_{left_out}"], result.cells["measured"]
    relative = predicted / measured - 1
    worst = relative.abs().idxmax()
    errors = {
        name.partition(": ")[2]: value
        for name, value in result.statistics.items()
        if f"without {left_out}" in name
    }
    assert errors == {
        "cells predicted": 54,
        "RMSE": pytest.approx(np.sqrt(((predicted - measured) ** 2).mean())),
        "MAPE (%)": pytest.approx(100 * relative.abs().mean()),
        "worst (%)": pytest.approx(100 * relative[worst]),
    }


def test_a_parabola_does_not_predict_the_third_of_three_counts():
    runs = designed_campaign()[0]
    result = fitted(runs, "quadratic")
    assert result.statistics["without level: cells predicted"] == 0
    assert result.statistics["without cell: cells predicted"] == 54


def test_terms_that_cannot_be_estimated_are_refused_by_name(runs):
    result = fitted(runs, "quadratic")
    assert result.refused == [
        "nodes²",
        "gradient accumulation steps²",
        "tensorflow-single × nodes",
        "tensorflow-multiworker × nodes",
        "tensorflow-single × gradient accumulation steps",
        "tensorflow-multiworker × gradient accumulation steps",
        "batch size × gradient accumulation steps",
    ]
    ok = successful(runs)
    x, columns = matrix(ok, "quadratic"), terms.quadratic_columns(ok)
    for name in result.refused:
        assert np.linalg.matrix_rank(np.column_stack([x, columns[name]])) == x.shape[1]
    notes = notes_of(runs, {(TIME, "quadratic"): result})
    assert find_note(notes, "terms-left-out").facts == {"model": "quadratic", "terms": result.refused}


def test_only_the_quadratic_model_finds_a_curve_in_batch_size(read):
    runs = read(noise=0.001, failures={})
    runs["epoch_time_s"] += 2e-4 * (runs["batch_size"].astype(float) - 36.5) ** 2
    linear, quadratic = (fitted(runs, model) for model in MODELS)
    square = quadratic.terms.set_index("term").loc["batch size²"]
    assert square["estimate"] == pytest.approx(2e-4, rel=0.02)
    assert square["p"] < 0.001
    assert quadratic.statistics["AICc"] < linear.statistics["AICc"]
    assert linear.statistics["lack of fit: p"] < 0.001 < quadratic.statistics["lack of fit: p"]
    notes = notes_of(runs, {(TIME, "linear"): linear, (TIME, "quadratic"): quadratic})
    assert find_note(notes, "models-misfit").facts["models"] == ["epoch time, linear"]


def heteroscedastic(rng, n, spread, curve=0.0):
    """Return runs of cells on a line, or off it by `curve`, and the columns of the line."""
    cell = np.repeat(np.arange(len(n)), n)
    y = (
        3
        + 0.5 * cell
        + curve * (cell - cell.mean()) ** 2
        + np.repeat(spread, n) * rng.standard_normal(len(cell))
    )
    x = np.column_stack([np.ones(len(cell)), cell])
    residual = OLS(y, x).fit().resid
    return pd.DataFrame({"cell": cell, "measured": y, "residual": residual}), x


def test_lack_of_fit_of_an_intercept_equals_brown_forsythe():
    rng = np.random.default_rng(4)
    runs, _ = heteroscedastic(rng, [4, 6, 5, 9], [0.1, 2.0, 0.5, 1.0])
    runs["residual"] = runs["measured"] - runs["measured"].mean()
    statistics = regression.lack_of_fit(runs, np.ones((len(runs), 1)))
    expected = anova_oneway(runs["measured"], runs["cell"], use_var="bf")
    assert statistics["lack of fit: own spreads"] == 1
    assert statistics["lack of fit: F"] == pytest.approx(expected.statistic)
    assert (statistics["lack of fit: d.f."], statistics["pure error: d.f."]) == pytest.approx(expected.df)
    assert statistics["lack of fit: p"] == pytest.approx(expected.pvalue)


@pytest.mark.parametrize(
    ("n", "spread"),
    [
        ([5] * 6, [0.1, 0.1, 0.1, 0.1, 0.1, 1.0]),
        ([3] * 12, np.geomspace(0.05, 1, 12)),
        ([3, 3, 9, 9, 9, 9], [1.0, 1.0, 0.1, 0.1, 0.1, 0.1]),
        ([5] * 30, np.geomspace(0.02, 1, 30)),
    ],
    ids=["one noisy", "growing", "few runs of noisy cells", "many cells"],
)
@pytest.mark.simulation
def test_lack_of_fit_has_nominal_size_with_unequal_spreads(n, spread):
    rng = np.random.default_rng(20261124)
    claimed = [
        regression.lack_of_fit(*heteroscedastic(rng, n, spread))["lack of fit: p"] < 0.05 for _ in range(1000)
    ]
    assert np.mean(claimed) < 0.075, "three standard errors above 5 % are 7.1 %"
    curved = [
        regression.lack_of_fit(*heteroscedastic(rng, n, spread, curve=0.5))["lack of fit: p"] < 0.05
        for _ in range(100)
    ]
    assert np.mean(curved) > 0.9


def test_run_of_leverage_one_leaves_other_errors_unchanged():
    # One run alone at a level: leverage 1. HC3 would divide zero by zero, and lose all errors with it.
    rng = np.random.default_rng(1)
    x, alone = np.arange(10.0), np.eye(10)[9]
    y = 1 + 2 * x + rng.standard_normal(10)
    result = fit(y, x=x, alone=alone)
    assert result.unsure == ["alone"]
    expected = OLS(y[:9], np.column_stack([np.ones(9), x[:9]])).fit().HC3_se
    assert estimates(result, "standard_error")[["intercept", "x"]].to_numpy() == pytest.approx(expected)
    assert np.isnan(estimates(result, "p")["alone"])


def test_the_base_level_is_that_of_the_other_tables(runs):
    def base_levels(runs):
        return find_note(notes_of(runs), "base-levels").facts["levels"]

    assert base_levels(runs) == {"framework": "pytorch-single"}
    assert base_levels(runs[runs["framework"] != "pytorch-single"]) == {"framework": "tensorflow-single"}
    assert base_levels(designed_campaign()[0]) == {"model": "small-cnn", "training_loop": "custom"}


def test_a_level_that_leaves_it_to_the_site_is_no_number(runs):
    devices = runs.assign(devices_per_node=np.where(runs["batch_size"] == 16, 0, runs["batch_size"] // 16))
    assert not terms.is_treated_as_number(devices, "devices_per_node")
    assert {"devices per node 2", "devices per node 4"} <= set(terms.linear_columns(devices))
    assert terms.is_treated_as_number(runs, "nodes")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((-0.1123, 0.0123, 0.0201, 0.0004), "−0.112 (0.012; 0.020)***"),
        ((0.1123, 0.0996, 0.05, 0.3), "0.11 (0.10; 0.05)"),
        ((-0.004, 0.0096, math.nan, math.nan), "−0.0040 (0.0096)"),
        ((4497.6, 110.6, 1020.0, 0.009), "4498 (111; 1020)**"),
        ((-0.0001, 0.12, 0.12, 0.9), "0.00 (0.12; 0.12)"),
        ((3.2, math.nan, math.nan, math.nan), "3.20"),
        ((3.2, 0.0, 0.0, 0.0), "3.20"),
        ((math.nan, math.nan, math.nan, math.nan), "–"),
        ((22.0, 283.0, math.nan, math.nan, True, True), "22 (283; –)"),
    ],
)
def test_an_estimate_has_the_decimals_that_its_error_allows(numbers, text):
    assert regression_table.coefficient_text(*numbers) == text
    without_stars = (*numbers[:4], False, *numbers[5:])
    assert regression_table.coefficient_text(*without_stars) == text.rstrip("*")


def test_exactly_fitted_cells_give_no_error_by_cell():
    # The intercept fits the only cell of the base level exactly, whatever its runs measured.
    is_other, level = np.repeat([0, 1, 1, 1, 1, 1], 3), np.repeat([0, 1, 2, 3, 4, 5], 3)
    times = level**2 + np.tile([0.1, 0.3, 0.0], 6)
    result = fit(times, cell=level, is_other=is_other, level=level)
    by_cell = estimates(result, "standard_error_by_cell")
    assert result.exact == ["intercept"] == by_cell.index[by_cell.isna()].tolist()
    assert math.isnan(estimates(result, "p_by_cell")["intercept"])
    assert estimates(result, "standard_error")["intercept"] > 0


def test_stars_are_those_of_the_larger_p(runs):
    fits = regression.fit_all(runs)
    key, fit = next(iter(fits.items()))
    changed_terms = fit.terms.assign(p=0.2, p_by_cell=1e-9)
    changed = replace(fit, terms=changed_terms, statistics=fit.statistics | {"lack of fit: p": math.nan})
    texts = regression_table.table(runs, {key: changed}).display.iloc[: len(changed_terms), 1]
    assert not texts.str.contains("*", regex=False).any()


def degenerate(case, read):
    runs = read(replicates=1 if case == "one replicate" else 2 if case == "two replicates" else 3)
    match case:
        case "one cell":
            runs = runs[runs["cell"] == runs["cell"].iloc[0]]
        case "one run":
            runs = runs.iloc[:1]
        case "no successful run":
            runs = runs.assign(status="failed", epoch_time_s=None)
        case "one framework":
            runs = runs[runs["framework"] == "horovod-pytorch"]
        case "all times equal":
            runs = runs.assign(epoch_time_s=0.5, throughput_samples_s=3072.0)
        case "one node count":
            runs = runs[runs["nodes"] == 1]
        case "a cell with one run":
            runs = runs.drop(runs.index[1:3])
    return runs


@pytest.mark.parametrize(
    ("case", "code", "facts"),
    [
        ("one cell", "factors", {"factors": []}),
        ("one run", "model-not-fitted", {"model": "linear", "problem": "too-few-runs"}),
        ("no successful run", "model-not-fitted", {"model": "linear", "problem": "no-successful-run"}),
        ("one framework", "lack-of-fit-test", {}),
        ("all times equal", "model-not-fitted", {"model": "linear", "problem": "all-values-the-same"}),
        ("one node count", "leave-one-out", {"levels": ""}),
        ("one replicate", "lack-of-fit-test", {}),
        ("two replicates", "leave-one-out", {"levels": "node count"}),
        ("a cell with one run", "leave-one-out", {"levels": "node count"}),
    ],
)
def test_a_poor_study_gives_a_table_that_says_so(case, code, facts, read):
    runs = degenerate(case, read)
    fits = regression.fit_all(runs)
    table = regression_table.table(runs, fits)
    notes = next(note.facts for note in table.notes if code in codes([note]))
    assert {name: getattr(notes[name], "code", notes[name]) for name in facts} == facts
    display = table.display.to_string()
    assert "nan" not in display and "inf" not in display
    assert len(regression_table.by_cell(fits)) == sum(len(part.cells) for part in fits.values())


def test_what_is_not_spanned_is_not_predicted():
    x = np.array([[1.0, 0.0], [1.0, 0.0]])
    new = np.array([[2.0, 0.0], [1.0, 1.0]])
    assert leave_out.predict(x, np.array([3.0, 5.0]), np.array([1.0, 3.0]), new) == pytest.approx(
        [9.0, math.nan], nan_ok=True
    )
