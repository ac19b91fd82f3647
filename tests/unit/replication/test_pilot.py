"""The cheapest length of runs that a pilot finds, compared with two-stage sampling and a kept campaign."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.intervals import mean
from analysis.records import read_timing_runs
from analysis.variance import Components
from common.errors import InputError
from common.files import CHECKOUT
from common.notes import codes, find_note
from common.tables import read_table
from declared.replicates import Replicates
from declared.study import load_study
from replication import pilot
from replication.pilot import Aim, Times

CAMPAIGN = CHECKOUT / "docs" / "campaigns" / "prediction-virtual"


def components(block: float = 0.0, run: float = 0.0, epoch: float = 0.0, epochs: float = 4.0) -> Components:
    """Return variance components with these standard deviations."""
    variance = {"cell": 1.0, "session": math.nan, "block": block**2, "run": run**2, "epoch": epoch**2}
    return Components(variance, dict.fromkeys(variance, 10), epochs)


@pytest.mark.parametrize(
    ("fixed_s", "run", "epoch"), [(10.0, 0.02, 0.06), (40.0, 0.02, 0.02), (3.0, 0.03, 0.06)]
)
def test_the_cheapest_length_is_that_of_two_stage_sampling(fixed_s: float, run: float, epoch: float) -> None:
    """Expect sqrt(start-up / epoch) x (sd within runs / sd between runs) if runs are many."""
    times = {"one": Times(fixed_s, 1.0), "two": Times(fixed_s, 1.0)}
    rows = pilot.build_rows(components(run=run, epoch=epoch), times, Aim((0.003,)))
    assert rows.loc[0, "until"] == 0.003
    assert rows.loc[0, "best_epochs"] == pytest.approx(math.sqrt(fixed_s) * epoch / run, rel=0.15)
    assert (rows["best_s"] <= rows["now_s"]).all()


def test_longer_runs_do_not_help_where_only_runs_differ() -> None:
    rows = pilot.build_rows(components(run=0.05, epoch=0.001), {"one": Times(60.0, 1.0)})
    assert (rows["best_epochs"] == 1).all()


@pytest.mark.parametrize(("sd", "until"), [(0.02, 0.02), (0.1, 0.05), (0.001, 0.05)])
def test_one_run_less_has_too_wide_an_interval(sd: float, until: float) -> None:
    n = int(pilot.runs_needed(sd, until, prior_df=0.0))
    drawn = np.linspace(-1, 1, n)
    drawn *= sd / drawn.std(ddof=1)  # logarithms with exactly this spread
    estimate = mean(list(drawn))
    assert math.sinh(estimate.high) <= until
    assert n == pilot.MIN_RUNS or pilot.half_width(sd, np.array([n - 1]), 0.0)[0] > until


def test_unreachable_target_has_no_number_of_runs() -> None:
    rows = pilot.build_rows(components(run=0.5, epoch=0.1), {"one": Times(1.0, 1.0)})
    assert (
        rows.loc[0, ["now_runs", "now_s", "best_runs", "best_s"]].isna().all()
        and rows["now_runs"].notna().any()
    )


def test_times_are_split_by_what_grows_with_epochs() -> None:
    runs = pd.DataFrame(
        {"run_id": ["a", "b"], "cell": "c", "status": "ok", "epoch_time_s": 2.0, "wall_s": [20.0, 24.0]}
    )
    epochs = pd.DataFrame(
        {
            "run_id": ["a"] * 3 + ["b"] * 3,
            "warm_up": [True, False, False] * 2,
            "epoch_time_s": [9.0, 2.0, 2.0] * 2,
            "validation_time_s": [1.0, 0.5, 0.5] * 2,
        }
    )
    assert pilot.mean_times(runs, epochs) == {"c": Times(pytest.approx(17.0), pytest.approx(2.5))}


def test_kept_campaign_has_the_right_length() -> None:
    """Expect two timed epochs: most time is start-up, and runs differ as much as their epochs."""
    result = pilot.table(
        read_timing_runs(CAMPAIGN / "runs.csv"), read_table(CAMPAIGN / "epochs.csv", "epochs"), Aim((0.03,))
    )
    assert result.display["interval (± %)"].tolist()[2] == "3.00 (aim)"
    assert result.data.set_index("until").loc[0.03, ["best_epochs", "best_runs"]].tolist() == [2, 15]
    assert find_note(result.notes, "measured-spread").facts["startup_share"] == pytest.approx(0.71, abs=0.005)


def test_single_runs_are_refused() -> None:
    runs, epochs = read_timing_runs(CAMPAIGN / "runs.csv"), read_table(CAMPAIGN / "epochs.csv", "epochs")
    with pytest.raises(InputError) as refused:
        pilot.table(runs[runs["replicate"] == 1], epochs)
    assert refused.value.code == "too-few-runs"


def test_the_aim_is_judged_by_the_rule_that_stops_its_cells() -> None:
    """Expect more runs than by the width alone if there are few cells."""
    rule = Replicates(3, 12, 0.2)
    study = replace(load_study("quickstart"), replicates=rule, margin=0.1)
    assert Aim.from_study(study) == Aim((0.2,), rule) and Aim.from_study(
        replace(study, replicates=Replicates(5, 5))
    ) == Aim((0.1,))
    for response, until in (("throughput", (0.1,)), ("memory", ())):
        fixed = replace(study, replicates=Replicates(5, 5), response=response)
        assert Aim.from_study(fixed).until == until, "a margin of memory is none of times"
    times = {"one": Times(10.0, 1.0), "two": Times(10.0, 1.0)}
    spread = components(run=0.02, epoch=0.01)
    plain, by_rule = (
        pilot.build_rows(spread, times, aim).set_index("until") for aim in (Aim(), Aim.from_study(study))
    )
    assert (plain.loc[0.2, "now_runs"], by_rule.loc[0.2, "now_runs"]) == (3, 10)
    assert by_rule.drop(index=0.2).equals(plain.drop(index=0.2))


def test_notes_report_unreachable_aims_and_ratios() -> None:
    runs, epochs = read_timing_runs(CAMPAIGN / "runs.csv"), read_table(CAMPAIGN / "epochs.csv", "epochs")
    narrow = pilot.table(runs, epochs, Aim((0.03,), Replicates(3, 12, 0.03)))
    too_few = find_note(narrow.notes, "at-most-too-few")
    assert too_few.facts["at_most"] == 12 < too_few.facts["runs"] < 20
    wide = pilot.table(runs, epochs, Aim((0.2,), Replicates(3, 12, 0.2)))
    assert "aim-by-rule" in codes(wide.notes) and "at-most-too-few" not in codes(wide.notes)
    ratios = Replicates(3, 12, 0.03, {"framework": ("a", "b")})
    result = pilot.table(runs, epochs, Aim.from_study(replace(load_study("quickstart"), replicates=ratios)))
    assert not result.display["interval (± %)"].str.contains("aim").any()
    assert "ratios-asked" in codes(result.notes)
