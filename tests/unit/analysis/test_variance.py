"""Variance components of simulated campaigns are recovered and advise on longer runs."""

import math

import numpy as np
import pandas as pd
import pytest
from statsmodels.regression.mixed_linear_model import MixedLM

from analysis import variance
from analysis.records import read_runs, successful
from common.files import CHECKOUT
from common.notes import codes
from common.tables import read_table

CAMPAIGNS = CHECKOUT / "docs" / "campaigns" / "prediction-virtual"


def simulated(rng, *, cells=8, sessions=2, blocks=20, epochs=4, sd=None):
    """Return runs and epochs in complete blocks with these s.d. of logarithms by part."""
    sd = {"cell": 0.3, "session": 0.0, "block": 0.1, "run": 0.05, "epoch": 0.08} | (sd or {})
    of_cell = sd["cell"] * rng.standard_normal(cells)
    runs, rows = [], []
    for session in range(sessions):
        of_session = sd["session"] * rng.standard_normal()
        for block in range(blocks):
            of_block = sd["block"] * rng.standard_normal()
            for cell in range(cells):
                name, of_run = f"c{cell}.{session}.{block}", sd["run"] * rng.standard_normal()
                mean = of_cell[cell] + of_session + of_block + of_run
                times = np.exp(mean + sd["epoch"] * rng.standard_normal(epochs))
                runs.append(
                    {
                        "run_id": name,
                        "cell": f"c{cell}",
                        "session": f"s{session}",
                        "block": block,
                        "status": "ok",
                    }
                )
                rows.append({"run_id": name, "epoch": 1, "warm_up": True, "epoch_time_s": 99.0})
                rows += [
                    {"run_id": name, "epoch": 2 + i, "warm_up": False, "epoch_time_s": t}
                    for i, t in enumerate(times)
                ]
                runs[-1]["epoch_time_s"] = times.mean()
    return pd.DataFrame(runs), pd.DataFrame(rows)


def test_components_of_many_blocks_are_recovered():
    runs, epochs = simulated(np.random.default_rng(1), cells=20, sessions=1, blocks=200)
    moments = variance.estimate_components(variance.log_times_by_run(runs, epochs))
    sd = {part: math.sqrt(value) for part, value in moments.variance.items()}
    assert sd["epoch"] == pytest.approx(0.08, rel=0.02)
    assert sd["run"] == pytest.approx(0.05, rel=0.05)
    assert sd["block"] == pytest.approx(0.1, rel=0.12)
    assert math.isnan(sd["session"])
    assert moments.df == {"cell": 19, "session": 0, "block": 199, "run": 19 * 199, "epoch": 20 * 200 * 3}


def test_components_are_right_on_average():
    """A study has few cells and sessions, so the mean over 300 studies shows whether there is a bias."""
    rng, sd = np.random.default_rng(2), {"session": 0.2}
    moments = []
    for _ in range(300):
        runs, epochs = simulated(rng, cells=4, sessions=4, blocks=3, epochs=2, sd=sd)
        moments.append(variance.estimate_components(variance.log_times_by_run(runs, epochs)).variance)
    mean = pd.DataFrame(moments).mean()
    expected = {"cell": 0.3**2, "session": 0.2**2, "block": 0.1**2, "run": 0.05**2, "epoch": 0.08**2}
    assert mean.to_dict() == pytest.approx(expected, rel=0.1)


def test_what_the_epochs_make_is_not_ascribed_to_runs():
    runs, epochs = simulated(np.random.default_rng(3), blocks=100, sd={"run": 0.0})
    moments = variance.estimate_components(variance.log_times_by_run(runs, epochs))
    assert moments.variance["run"] < 0.01**2
    advice = variance.longer_runs_note(moments)
    assert advice.facts["epochs"] == 4 and "8 instead of 4" in advice
    assert 0.2 < advice.facts["narrower"] < 0.3  # 1 - 1 / sqrt(2) = 29 %, less the part of runs


def test_mixed_model_agrees_in_a_complete_design():
    runs, epochs = read_runs(CAMPAIGNS / "runs.csv"), read_table(CAMPAIGNS / "epochs.csv", "epochs")
    log_times = variance.log_times_by_run(runs, epochs)
    moments, model = variance.estimate_components(log_times), variance.fit_mixed_model(runs, log_times)
    assert model is not None and model.pairs > 50
    assert model.largest_disagreement < 0.02  # a repeated run shares no block with the others
    assert math.sqrt(model.run) == pytest.approx(math.sqrt(moments.mean_variance), rel=0.1)
    fit = MixedLM.from_formula(
        "mean ~ 0 + C(cell)", log_times, groups=log_times["session"] + log_times["block"].astype(str)
    ).fit()
    assert model.run == pytest.approx(fit.scale, rel=1e-4)


@pytest.mark.parametrize("case", ["no run", "one run of each cell", "one epoch", "one cell", "one block"])
def test_a_study_that_is_too_small_has_a_table_in_words(case):
    runs, epochs = read_runs(CAMPAIGNS / "runs.csv"), read_table(CAMPAIGNS / "epochs.csv", "epochs")
    if case == "no run":
        runs = runs.assign(status="failed", epoch_time_s=None)
    elif case == "one run of each cell":
        runs = runs.drop_duplicates("cell")
    elif case == "one epoch":
        epochs = epochs[epochs["epoch"] == 2]
    elif case == "one cell":
        runs = runs[runs["cell"] == runs["cell"].iloc[0]]
    else:
        runs = runs[runs["block"] == 1]
    table = variance.table(runs, epochs)
    text = " ".join([*table.notes, *table.display.astype(str).to_numpy().ravel()])
    assert "nan" not in text
    if case in ("no run", "one run of each cell"):
        assert table.display.empty and table.notes[0] == variance.SINGLE_RUNS
    if case == "one epoch":
        assert "epoch" not in table.data["part"].tolist() and "longer-runs" not in codes(table.notes)
    if len(successful(runs)) and case in ("one cell", "one epoch"):
        assert "run" in table.data["part"].tolist()
