"""The regression tables against numpy, formulas and brute force."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis import regression
from analysis.measured import successful
from synthetic import SECONDS, SECONDS_PER_NODE, SECONDS_PER_SAMPLE, SECONDS_PER_SYNC


def fitted(runs, model="linear"):
    ok = successful(runs)
    return ok, regression.fit(ok, regression.MODELS[model](ok))


def matrix(ok, model):
    columns = regression.MODELS[model](ok)
    return np.column_stack([columns[name] for name in regression.estimable(columns)[0]])


def test_the_known_effects_come_back_exactly_without_noise(read):
    _, fit = fitted(read(noise=0.0))
    effect = fit.terms.set_index("term")["estimate_s"]
    assert effect["nodes"] == pytest.approx(SECONDS_PER_NODE)
    assert effect["batch size"] == pytest.approx(SECONDS_PER_SAMPLE)
    assert effect["batches per exchange"] == pytest.approx(SECONDS_PER_SYNC)
    for name, seconds in SECONDS.items():
        if name != "pytorch-single":
            assert effect[f"framework [{name}]"] == pytest.approx(seconds - SECONDS["pytorch-single"])
    assert fit.statistics["leave-one-cell-out RMSE (s)"] < 1e-9


@pytest.mark.parametrize("model", ["linear", "quadratic"])
def test_coefficients_errors_and_statistics_are_those_of_the_formulas(runs, model):
    ok, fit = fitted(runs, model)
    x, y = matrix(ok, model), ok["epoch_time_s"].to_numpy()
    n, p = x.shape
    beta, (rss,), _, _ = np.linalg.lstsq(x, y, rcond=None)
    variance = rss / (n - p)
    errors = np.sqrt(variance * np.diag(np.linalg.inv(x.T @ x)))
    r2 = 1 - rss / ((y - y.mean()) ** 2).sum()
    assert np.allclose(fit.terms["estimate_s"], beta)
    assert np.allclose(fit.terms["standard_error_s"], errors)
    assert np.allclose(fit.terms["p"], 2 * stats.t.sf(np.abs(beta / errors), n - p))
    assert fit.statistics["R²"] == pytest.approx(r2)
    assert fit.statistics["adjusted R²"] == pytest.approx(1 - (1 - r2) * (n - 1) / (n - p))
    assert fit.statistics["AIC"] == pytest.approx(n * (math.log(2 * math.pi * rss / n) + 1) + 2 * p)
    assert fit.statistics["residual s.d. (s)"] == pytest.approx(math.sqrt(variance))
    assert fit.statistics["n (runs)"] == n == 110


@pytest.mark.parametrize("model", ["linear", "quadratic"])
def test_leave_one_cell_out_agrees_with_brute_force(runs, model):
    ok, fit = fitted(runs, model)
    x, y, cell = matrix(ok, model), ok["epoch_time_s"].to_numpy(), ok["cell"].to_numpy()
    errors, relative, alone = [], [], []
    for name in dict.fromkeys(cell):
        out = cell == name
        if np.linalg.matrix_rank(x[~out]) < x.shape[1]:
            alone.append(name)
            continue
        beta = np.linalg.lstsq(x[~out], y[~out], rcond=None)[0]
        errors.append(y[out].mean() - (x[out] @ beta).mean())
        relative.append(abs(errors[-1]) / y[out].mean())
    assert fit.statistics["leave-one-cell-out RMSE (s)"] == pytest.approx(np.sqrt(np.mean(np.square(errors))))
    assert fit.statistics["leave-one-cell-out mean relative error (%)"] == pytest.approx(100 * np.mean(relative))
    assert fit.unpredicted == alone
    assert bool(alone) == (model == "quadratic")


def test_terms_that_the_design_cannot_estimate_are_left_out_by_name(runs):
    ok, fit = fitted(runs, "quadratic")
    assert fit.aliased == [
        "nodes²",
        "batches per exchange²",
        "framework [tensorflow-multiworker] × nodes",
        "framework [tensorflow-single] × nodes",
        "framework [tensorflow-multiworker] × batches per exchange",
        "framework [tensorflow-single] × batches per exchange",
        "batch size × batches per exchange",
    ]
    x = matrix(ok, "quadratic")
    columns = regression.quadratic_columns(ok)
    for name in fit.aliased:
        assert np.linalg.matrix_rank(np.column_stack([x, columns[name]])) == x.shape[1]
    note = " ".join(regression.table(runs, {"quadratic": fit}).notes)
    assert all(name in note for name in fit.aliased)


def test_a_curve_in_batch_size_is_found_by_the_quadratic_model_only(read):
    runs = read(noise=0.001, failures={})
    runs["epoch_time_s"] += 2e-4 * (runs["batch_size"].astype(float) - 36.5) ** 2
    _, linear = fitted(runs)
    _, quadratic = fitted(runs, "quadratic")
    square = quadratic.terms.set_index("term").loc["batch size²"]
    assert square["estimate_s"] == pytest.approx(2e-4, rel=0.02)
    assert square["p"] < 0.001
    assert quadratic.statistics["AIC"] < linear.statistics["AIC"]


def test_the_base_level_is_stated_and_is_the_first_by_name_without_pytorch_single(runs):
    assert "base level: framework [pytorch-single]" in " ".join(
        regression.table(runs, {"linear": fitted(runs)[1]}).notes
    )
    rest = runs[runs["framework"] != "pytorch-single"]
    assert "base level: framework [horovod-pytorch]" in " ".join(
        regression.table(rest, {"linear": fitted(rest)[1]}).notes
    )


def test_too_few_runs_give_a_table_that_says_so(runs, tmp_path):
    few = runs[(runs["framework"] == "pytorch-ddp") & (runs["nodes"] == 1) & (runs["replicate"] == 1)]
    _, linear = fitted(few)
    _, quadratic = fitted(few, "quadratic")
    notes = " ".join(regression.table(few, {"linear": linear, "quadratic": quadratic}).notes)
    assert linear.problem == ""
    assert "The quadratic model was not fitted: too few runs: 4 for 4 coefficients." in notes


def test_no_successful_run_gives_a_table_that_says_so(read):
    runs = read()
    runs["status"] = "failed"
    _, fit = fitted(runs)
    assert "The linear model was not fitted: no successful run." in regression.table(runs, {"linear": fit}).notes


def test_both_models_stand_side_by_side_and_in_a_file_each(csv, tmp_path):
    regression.main(["--runs", str(csv[0]), "--out", str(tmp_path / "regression")])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "regression.csv",
        "regression.md",
        "regression.tex",
        "regression_linear.csv",
        "regression_quadratic.csv",
    ]
    assert "nodes²,,,,,,,true" in (tmp_path / "regression_quadratic.csv").read_text().splitlines()
    header = (tmp_path / "regression.csv").read_text().splitlines()[0].split(",")
    assert {"linear", "linear_p", "quadratic", "quadratic_p"} <= set(header)
