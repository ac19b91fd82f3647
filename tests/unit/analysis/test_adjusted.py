"""Adjusted epoch times against a published analysis of covariance, statsmodels and simulation."""

import math

import numpy as np
import pandas as pd
import pytest
from statsmodels.formula.api import ols

from analysis import adjusted, cells, effects, tables
from analysis.adjusted import (
    LOST_CPU_TIME,
    NO_BETTER,
    NO_REFERENCE,
    NO_SLOPE,
    REFERENCE,
    SELECTION_DF,
    adjust_for_speed,
    adjusted_times,
)
from analysis.cell_means import CellMeans, estimate_means
from analysis.covariance import fit_slopes, leverages
from analysis.records import read_runs
from common.notes import Note, find_note
from support.published import FIBRES
from support.simulated import beside_reference, referenced_coverage
from support.synthetic import campaign, epoch_time, referenced, write_frames

SETTING = {
    "reference_kind": "mixed-1", "nodes": 1, "ranks": 1, "cores_per_rank": 1, "device": "site",
    "environment_digest": "a",
}  # fmt: skip


def in_blocks(y, x, **setting):
    """Return runs with log times y and log references x [cells, blocks]; NaN in y is a failed run."""
    cell, block = (codes.ravel() for codes in np.indices(y.shape))
    frame = pd.DataFrame(
        {"cell": [f"c{code:02}" for code in cell], "block": block, "session": None, "status": "ok"}
    )
    frame = frame.assign(epoch_time_s=np.exp(y.ravel()), reference_s=np.exp(x.ravel()), throttled_s=math.nan)
    frame = frame.assign(steal_share=math.nan, other_cpu_share=math.nan)
    return frame.assign(**{**SETTING, **setting})[lambda rows: rows["epoch_time_s"].notna()]


def disturbed(cells=6, blocks=4, seed=1, noise=0.02):
    """Return runs whose times mostly depend on machine speed."""
    rng = np.random.default_rng(seed)
    x = 0.2 * rng.standard_normal((cells, blocks))
    return in_blocks(x + noise * rng.standard_normal(x.shape), x)


def test_the_slope_and_adjusted_means_are_those_of_montgomery():
    # Montgomery, 8th ed., Example 15.5: slope 0.9540, MSE 2.54 on 11 degrees of freedom, adjusted means
    # 40.38, 41.42, 38.80
    y, x = (np.array([[row[place] for row in rows] for rows in FIBRES.values()]) / 100 for place in (0, 1))
    runs = in_blocks(y, x).assign(block=1)
    result = adjust_for_speed(runs)
    slope = result.slopes_alone[REFERENCE]
    assert slope.values == pytest.approx(0.9540, abs=5e-5)
    assert slope.df == 11
    assert 1e4 * slope.covariance[0, 0] * 195.60e-4 == pytest.approx(2.54, abs=5e-3), "Exx = 195.60"
    means = 100 * pd.Series(
        {cell: values.mean() for cell, values in result.adjusted_means.spread_values.items()}
    )
    assert (means - means.mean()).tolist() == pytest.approx(np.array([40.38, 41.42, 38.80]) - 40.20, abs=6e-3)
    adjusted_cells, (distances,) = result.adjusted_means.cell_statistics, result.adjusted_means.distances
    error = np.log(adjusted_cells["high"] / adjusted_cells["mean"]) / np.log(
        estimate_means(runs).cell_statistics["high"] / estimate_means(runs).cell_statistics["mean"]
    )
    assert (error < 1).all()
    assert 100 * (distances.by_cell["c00"].mean() - distances.by_cell["c02"].mean()) == pytest.approx(
        25.2 - 21.2
    )


@pytest.mark.parametrize("names", [["x"], ["x", "z"]])
def test_press_errors_equal_those_of_statsmodels(names):
    rng = np.random.default_rng(3)
    cell, block = (codes.ravel()[2:] for codes in np.indices((5, 4)))
    y, x, z = rng.standard_normal((3, len(cell)))
    frame = pd.DataFrame({"y": y, "x": x, "z": x / 2 + z, "cell": cell, "block": block})
    slopes = fit_slopes(y, frame[names], cell, block)
    bare, full = (
        ols(" + ".join(["y ~ C(cell) + C(block)", *covariates]), frame).fit() for covariates in ([], names)
    )
    for fit, error in ((full, slopes.error_with), (bare, slopes.error_without)):
        influence = fit.get_influence()
        assert error == pytest.approx(np.sqrt(np.mean(influence.resid_press**2)))
    assert leverages(cell, block) == pytest.approx(influence.hat_matrix_diag)
    assert (slopes.covariates, slopes.df) == (tuple(names), full.df_resid)
    assert slopes.values == pytest.approx(full.params[names].to_numpy())
    assert slopes.covariance == pytest.approx(full.cov_params().loc[names, names].to_numpy())
    assert abs(slopes.correlation) == pytest.approx(math.sqrt(1 - full.ssr / bare.ssr))
    twice = frame.assign(again=2 * frame["x"])
    assert fit_slopes(y, twice[["x", "again"]], cell, block) is None, "one says what the other does"


def test_adjusted_mean_and_its_interval_follow_the_formula():
    runs = disturbed()
    result = adjust_for_speed(runs)
    adjusted_means, slope = result.adjusted_means, result.slopes_alone[REFERENCE]
    power = runs["reference_s"] ** slope.values[0]
    times = runs["epoch_time_s"] * power.mean() / power
    assert adjusted_means.cell_statistics["mean"].tolist() == pytest.approx(
        times.groupby(runs["cell"]).mean().tolist()
    )
    plain = CellMeans(adjusted_means.spread_values, 1 + SELECTION_DF, adjusted_means.values)
    distance = pd.Series(
        {cell: values.mean() for cell, values in adjusted_means.distances[0].by_cell.items()}
    )
    error = math.sqrt(slope.covariance[0, 0] * slope.df / (slope.df - 1))
    for row, bare in zip(
        adjusted_means.cell_statistics.itertuples(), plain.cell_statistics.itertuples(), strict=True
    ):
        wider = math.hypot(bare.s / 2, error * distance[row.Index]) / (bare.s / 2)
        assert math.log(row.high / row.mean) == pytest.approx(wider * math.log(bare.high / bare.mean))
    with_slope, without_slope = (rows.ratios(["c00"], ["c01"]).iloc[0] for rows in (adjusted_means, plain))
    assert with_slope["value"] == without_slope["value"] and with_slope["high"] > without_slope["high"]


def with_lost_time(runs, share):
    """Lengthen runs by a share of lost CPU time, a third of it to a hypervisor."""
    times = runs["epoch_time_s"] / (1 - share)
    return runs.assign(epoch_time_s=times, steal_share=share / 3, other_cpu_share=2 * share / 3)


def test_lost_cpu_time_is_taken_out_with_or_without_reference():
    runs = disturbed()
    share = np.random.default_rng(5).uniform(0, 0.4, len(runs))
    by_reference, by_both = adjust_for_speed(runs), adjust_for_speed(with_lost_time(runs, share))
    assert by_reference.adjusted_means.slopes.covariates == (REFERENCE,) and set(
        by_both.adjusted_means.slopes.covariates
    ) == {REFERENCE, LOST_CPU_TIME}
    assert (
        by_both.adjusted_means.slopes.values == pytest.approx(1.0, abs=0.1)
        and by_both.adjusted_means.lost_df == SELECTION_DF + 2
    )
    assert by_both.adjusted_means.cell_statistics["mean"].tolist() == pytest.approx(
        [(runs["reference_s"] / (1 - share)).mean()] * 6, rel=0.05
    )
    assert by_both.mean_narrowing > 0.7
    flat = runs.assign(
        **dict(
            zip(
                ("reference_s", "epoch_time_s"),
                np.random.default_rng(0).lognormal(0, 0.02, (2, len(runs))),
                strict=True,
            )
        )
    )
    alone = adjust_for_speed(with_lost_time(flat, share))
    assert (
        alone.adjusted_means.slopes.covariates == (LOST_CPU_TIME,)
        and alone.leading_covariate == LOST_CPU_TIME
    )
    assert adjusted.adjusted_tables_note(alone).facts == {
        "means": True,
        "ratios": True,
        "covariates": (LOST_CPU_TIME,),
    }
    assert LOST_CPU_TIME in adjusted.slopes_note(alone).facts["slopes"]
    unknown = with_lost_time(flat, share)
    unknown.loc[unknown.index[0], "steal_share"] = math.nan
    recorded = adjust_for_speed(unknown)
    assert set(recorded.slopes_alone) == {REFERENCE} and recorded.unused[LOST_CPU_TIME].code == "not-recorded"
    of_cell = with_lost_time(flat, share / 10 + 0.3 * (flat["cell"] == "c00"))
    (unused,) = adjusted.slopes_note(adjust_for_speed(of_cell)).facts["unused"]
    assert (unused.code, unused.facts["covariate"]) == ("cells-differ", LOST_CPU_TIME)
    assert set(adjust_for_speed(with_lost_time(flat, share / 10)).slopes_alone) == {REFERENCE}, (
        "less than 5 % is not notable"
    )
    assert np.isfinite(adjust_for_speed(with_lost_time(flat, share).assign(steal_share=1.0)).covariates).all(
        axis=None
    )


def test_block_effects_without_reference_stay_in_means():
    runs = disturbed()

    def slower(reference):
        times = runs["epoch_time_s"] * np.exp(0.3 * runs["block"])
        return runs.assign(
            epoch_time_s=times, reference_s=runs["reference_s"] * np.exp(reference * runs["block"])
        )

    first, explained, unexplained = (adjust_for_speed(result) for result in (runs, slower(0.3), slower(0.0)))
    slopes = [result.adjusted_means.slopes.values[0] for result in (first, explained, unexplained)]
    assert slopes == pytest.approx([slopes[0]] * 3)
    assert (unexplained.adjusted_means.half_widths > 0.5).all() and (
        explained.adjusted_means.half_widths < 0.1
    ).all()
    ends = [
        result.adjusted_means.ratios(["c01"], ["c00"])["high"][0]
        for result in (first, explained, unexplained)
    ]
    assert ends == pytest.approx([ends[0]] * 3, rel=0.02), "ratios are within blocks"


def test_references_are_compared_within_a_setting_alone():
    runs = disturbed(cells=8)
    larger = runs["cell"] > "c03"
    again = runs.assign(
        nodes=np.where(larger, 2, 1), reference_s=runs["reference_s"] * np.where(larger, 3.0, 1.0)
    )
    first, second = adjust_for_speed(runs.assign(nodes=again["nodes"])), adjust_for_speed(again)
    pd.testing.assert_frame_equal(first.adjusted_means.cell_statistics, second.adjusted_means.cell_statistics)
    alone = adjust_for_speed(runs.assign(nodes=np.where(runs["cell"] == "c00", 2, 1)))
    moved = [
        result.mean()
        for result in (
            alone.adjusted_means.spread_values["c00"],
            np.concatenate(list(alone.adjusted_means.spread_values.values())),
        )
    ]
    plain = [
        result.mean()
        for result in (
            alone.plain.spread_values["c00"],
            np.concatenate(list(alone.plain.spread_values.values())),
        )
    ]
    assert moved[0] - plain[0] == pytest.approx(moved[1] - plain[1]), "beside others it is where it was"
    assert alone.adjusted_means.half_widths["c00"] > 0.5 * alone.plain.half_widths["c00"], (
        "its own moments stay its noise"
    )


def test_a_reference_that_differs_by_cell_is_not_used():
    runs = disturbed(noise=0.01)
    heavy = runs["reference_s"] * np.where(runs["cell"] == "c00", 2.0, 1.0)
    why = adjust_for_speed(runs.assign(reference_s=heavy)).reason_unadjusted
    assert (why.code, why.facts["covariate"]) == ("cells-differ", REFERENCE)
    own = adjust_for_speed(
        runs.assign(reference_s=heavy, environment_digest=np.where(runs["cell"] == "c00", "b", "a"))
    )
    assert own.adjusted_means is not None, "an environment has libraries of its own"


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("none", NO_REFERENCE),
        ("some", Note("some-without-reference", "", lacking=1, runs=24)),
        ("quiet", NO_BETTER),
        ("other way", NO_BETTER),
        ("one cell", NO_SLOPE),
        ("three cells", NO_BETTER),
        ("no blocks", NO_SLOPE),
        ("constant", NO_SLOPE),
        ("one replicate", NO_SLOPE),
        ("nothing", NO_REFERENCE),
    ],
)
def test_nothing_is_adjusted_where_that_is_not_known_to_help(case, why):
    runs = disturbed()
    match case:
        case "none":
            runs = runs.assign(reference_s=math.nan)
        case "some":
            runs.loc[runs.index[3], "reference_s"] = math.nan
        case "quiet":
            runs = runs.assign(reference_s=np.random.default_rng(0).lognormal(0, 0.02, len(runs)))
        case "other way":
            runs = runs.assign(reference_s=1 / runs["reference_s"])
        case "one cell":
            runs = runs[runs["cell"] == "c00"]
        case "three cells":
            runs = runs[(runs["cell"] < "c03") & (runs["block"] < 3)]
        case "no blocks":
            runs = runs.assign(block=np.arange(len(runs)))
        case "constant":
            runs = runs.assign(reference_s=0.3)
        case "one replicate":
            runs = runs[runs["block"] == 0]
        case "nothing":
            runs = runs[:0]
    result = adjust_for_speed(runs)
    assert (result.adjusted_means, result.reason_unadjusted.code, result.reason_unadjusted.facts) == (
        None,
        why.code,
        why.facts,
    )
    assert math.isnan(result.mean_narrowing)


def test_means_and_ratios_are_adjusted_each_where_it_pays(monkeypatch):
    """Blocks change the reference but not epoch times, so adjusting helps ratios and harms means."""
    runs = disturbed()
    runs = runs.assign(reference_s=runs["reference_s"] * np.exp(0.3 * runs["block"]), framework=runs["cell"])
    runs = runs[(runs["cell"] != "c05") | (runs["block"] < 2)]
    result = adjust_for_speed(runs)
    assert (result.reported_means, result.adjusts_ratios) == (None, True) and result.mean_narrowing < -1
    pairs = ["c01", "c05"], ["c00", "c00"]
    ratios, adjusted_ratios = result.ratios(*pairs), result.adjusted_means.ratios(*pairs)
    assert ratios.loc[0].tolist() == adjusted_ratios.loc[0, ["value", "low", "high"]].tolist()
    assert adjusted_ratios["within_blocks"][1] == 0 and ratios.loc[1].isna().all(), (
        "independent groups are compared by means"
    )
    assert adjusted_times(runs).equals(runs["epoch_time_s"])
    facts = adjusted.interval_gain_note(result).facts
    assert (facts["means_adjusted"], facts["ratios_adjusted"], facts["means"]) == (
        False,
        True,
        result.mean_narrowing,
    )
    assert adjusted.summarize(runs, result).empty
    assert (
        adjusted.adjusted_tables_note(result).facts["means"],
        adjusted.adjusted_tables_note(result).facts["ratios"],
    ) == (False, True)
    monkeypatch.setattr(adjusted.SpeedAdjustment, "ratio_narrowing", 0.04)
    again = adjust_for_speed.__wrapped__(runs)  # bypasses the cache
    assert again.reason_unadjusted == NO_BETTER and list(again.slopes_alone) == list(result.slopes_alone)
    of_means = adjust_for_speed(disturbed())
    assert of_means.reported_means is not None and of_means.ratios(*pairs).isna().all(axis=None)
    facts = adjusted.interval_gain_note(of_means).facts
    assert (facts["means_adjusted"], facts["ratios_adjusted"], facts["ratios"]) == (True, False, 0.04)


@pytest.fixture
def of_campaign(tmp_path):
    runs, epochs = campaign()
    return read_runs(write_frames(tmp_path, referenced(runs), epochs)[0])


def test_tables_have_adjusted_numbers_beside_plain_ones(of_campaign):
    table = adjusted.table(of_campaign)
    plain = cells.summarize(of_campaign).dropna(subset="epoch_time_s_mean").set_index("cell")
    assert table.data.set_index("cell")["epoch_time_s"].tolist() == plain["epoch_time_s_mean"].tolist()
    narrower = find_note(table.notes, "intervals-narrower").facts
    assert narrower["means"] == pytest.approx(1 - table.data["width"].median())
    rows = effects.build_rows(of_campaign)
    sizes = [
        np.log(rows[f"{name}_high"] / rows[f"{name}_low"]).median() for name in ("ratio_adjusted", "ratio")
    ]
    assert narrower["ratios"] == pytest.approx(1 - sizes[0] / sizes[1], abs=0.1)
    slope, note = (
        find_note(table.notes, "slopes").facts["slopes"][REFERENCE],
        find_note(table.notes, "slopes"),
    )
    assert slope.low < slope.value < slope.high and tables.interval(slope) in note, (
        "the slope with its interval"
    )
    compared = effects.table(of_campaign)
    assert effects.ADJUSTED_RATIO in compared.display and effects.ADJUSTED in compared.notes
    rows = compared.data
    errors = rows[["ratio", "ratio_adjusted"]].map(math.log).sub(np.log(truth(rows)), axis=0).abs().mean()
    assert errors["ratio_adjusted"] < errors["ratio"] / 3, "nearer to what the campaign is made of"


def truth(rows):
    def time_of(name):
        framework, _, _, batch, nodes, sync = name.split(".")[:6]
        return epoch_time(framework, int(batch[1:]), int(nodes[1:]), int(sync[1:]))

    return [time_of(to) / time_of(base) for to, base in zip(rows["to_cell"], rows["from_cell"], strict=True)]


def test_without_a_reference_every_table_is_what_it_was(runs):
    assert adjusted.table(runs).display.empty
    assert find_note(adjusted.table(runs).notes, "epoch-times-not-adjusted").facts["why"] == NO_REFERENCE
    table = effects.table(runs)
    assert not [name for name in table.data if "adjusted" in name] and effects.ADJUSTED not in table.notes


def test_slope_error_widens_intervals_of_means_and_ratios(monkeypatch):
    """One of five cells always ran at slow times, one at fast ones: coverage needs the slope's error."""
    monkeypatch.setattr(adjusted, "MIN_HOMOGENEITY_P", 0.0)
    rng, covered = np.random.default_rng(8), []
    always = np.array([0.3, -0.3, 0.0, 0.0, 0.0])[:, None]
    for _ in range(60):
        x = always + 0.1 * rng.standard_normal((5, 4))
        adjusted_means = adjust_for_speed(
            in_blocks(x + 0.05 * rng.standard_normal(x.shape), x)
        ).adjusted_means
        if adjusted_means is not None:
            ratio, mean = (
                adjusted_means.ratios(["c00"], ["c01"]).iloc[0],
                adjusted_means.cell_statistics.loc["c00"],
            )
            covered.append([ratio["low"] < 1 < ratio["high"], mean["low"] < 1 < mean["high"]])
    assert len(covered) > 50 and (np.mean(covered, axis=0) > 0.9).all()


STUDIES = 25
CASES = [
    (0.0, 0.0),
    (0.0, 0.1),
    (0.5, 0.0),
    (0.7, 0.05),
    (0.9, 0.0),
    (0.95, 0.1),
    (0.9, 0.1, 0.1),
    (0.0, 0.0, 0.0, 0.0),
    (0.9, 0.0, 0.0, 0.0),
    (0.0, 0.05, 0.0, 0.9),
    (0.6, 0.05, 0.0, 0.7),
]  # correlation; s.d. of blocks; s.d. of blocks in the reference only; correlation with lost CPU time


@pytest.mark.parametrize("spreads", ["equal, 10 %", "5 to 20 %"])
@pytest.mark.simulation
def test_adjusted_intervals_cover_as_often_as_plain_ones(spreads):
    """Average over correlations and blocks; three standard errors are about 2 %."""
    rng = np.random.default_rng(20261126)
    by_case = {
        case: [
            referenced_coverage(*beside_reference(rng, cells_, blocks, spreads, case[1], case[0], *case[2:]))
            for cells_, blocks in ((2, 8), (4, 3), (4, 5), (12, 3))
            for _ in range(STUDIES)
        ]
        for case in CASES
    }
    every = [study for studies in by_case.values() for study in studies]
    plain, adjusted_share = (
        np.mean([(coverage.cells, coverage.ratios) for coverage in coverages], axis=0)
        for coverages in zip(*(study[1:3] for study in every), strict=True)
    )
    assert (
        (adjusted_share > plain - 0.012).all()
        and (adjusted_share > 0.93).all()
        and (adjusted_share < 0.985).all()
    )
    assert abs(np.mean([study.bias - study.plain_bias for study in every])) < 0.003, "no bias"
    quiet, driven = by_case[0.0, 0.0], by_case[0.9, 0.0]
    for name in ("width", "width_of_ratios"):
        wider = np.mean([[getattr(coverage, name) for coverage in study[1:3]] for study in quiet], axis=0)
        assert wider[1] < 1.04 * wider[0], (
            "on a quiet machine hardly anything is lost: three studies of a hundred set this"
        )
    apart = np.mean([study.reported.width / study.plain.width for study in by_case[0.9, 0.1, 0.1]])
    assert apart < 1, "no wider means where blocks move the reference alone"
    assert np.mean([study.reported.width_of_ratios / study.plain.width_of_ratios for study in driven]) < 0.65
    assert (
        np.mean([study.chosen for study in quiet]) < 0.12
        and np.mean([study.chosen for study in driven]) > 0.85
    )
