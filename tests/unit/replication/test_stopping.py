"""The stopping rule: by hand, compared with the analysis, and by simulation compared with a naive rule."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from analysis.cell_means import estimate_means
from declared.factors import factor_names
from declared.replicates import MIN_POOLED_DF, Replicates
from plan.decisions import BY_CHANCE, NO, NOT_ASKED, YES
from replication.stopping import expected_runs, judge_cells, runs_to_target
from support.adaptive import campaign, chosen, chosen_of_pairs, naive
from support.simulated import SPREADS

BATCHES = (32, 64)
RULE = Replicates(3, 12, 0.1)
PAIRS = Replicates(3, 12, 0.1, {"batch_size": BATCHES})


def runs_of(log):
    """Return rows of runs.csv from logarithms of epoch times [cells, blocks], NaN for no run.

    Cells form pairs that differ only in batch size.
    """
    measured = zip(*np.nonzero(~np.isnan(log)), strict=True)
    rows = [
        (f"c{cell:02}", block, math.exp(log[cell, block]), BATCHES[cell % 2], cell // 2 + 1)
        for cell, block in measured
    ]
    runs = pd.DataFrame(rows, columns=["cell", "block", "epoch_time_s", "batch_size", "nodes"])
    constant = {name: "constant" for name in factor_names() if name not in runs}
    return runs.assign(**constant, status="ok", session=None)


def studies(
    seed, cells, until, refine, number=1, at_most=12, of_blocks=0.0, correlation=0.0, spreads="equal, 10 %"
):
    rng = np.random.default_rng(seed)
    spread = np.stack([SPREADS[spreads](rng, cells) for _ in range(number)])
    return campaign(rng, spread, 3, at_most, refine(until), of_blocks, correlation)


@pytest.mark.parametrize("cells", [1, 2, 6, 12])
@pytest.mark.parametrize("of_blocks", [0.0, 0.1])
def test_simulated_intervals_are_the_reported_ones(cells, of_blocks):
    report = studies(
        cells + 1, cells, 0.08, naive, at_most=9, of_blocks=of_blocks, correlation=0.5, spreads="5 to 20 %"
    )
    cell_means = estimate_means(runs_of(report.log[0]))
    assert cell_means.cell_statistics["n"].tolist() == report.n[0].tolist()
    half = (cell_means.cell_statistics["high"] - cell_means.cell_statistics["low"]) / (
        2 * cell_means.cell_statistics["mean"]
    )
    assert half.to_numpy() == pytest.approx(report.half()[0], rel=1e-6)
    assert (
        (cell_means.cell_statistics["low"] < 1) & (cell_means.cell_statistics["high"] > 1)
    ).tolist() == report.covered[0].tolist()
    if cells > 1:
        names, to = cell_means.cell_statistics.index, np.arange(cells - 1)
        rows, ratios = (
            cell_means.ratios(names[to].tolist(), names[to + 1].tolist()),
            report.ratios(to, to + 1),
        )
        assert ((rows["high"] - rows["low"]) / (2 * rows["value"])).to_numpy() == pytest.approx(
            ratios.half[0], rel=1e-6
        )
        assert (rows["p"] < 0.05).tolist() == ratios.differ[0].tolist()


@pytest.mark.parametrize(("rule", "refine"), [(RULE, chosen), (PAIRS, chosen_of_pairs)])
def test_simulated_rule_is_the_one_that_decides(rule, refine):
    refined = []
    for seed in range(12):
        report = studies(
            seed, 8, rule.until, refine, at_most=3 + seed % 6, of_blocks=0.03, spreads="5 to 20 %"
        )
        verdicts = judge_cells(runs_of(report.log[0]), rule)
        assert verdicts["refine"].tolist() == refine(rule.until)(report)[0].tolist()
        refined += verdicts["refine"].tolist()
    assert {True, False} == set(refined)


def narrow(cells, blocks, spread=0.01):
    """Return runs with the same standard deviation around 1 s."""
    log = spread * np.random.default_rng(5).standard_normal((cells, blocks))
    return runs_of(log)


def test_narrow_interval_with_few_df_does_not_stop_a_cell():
    unsure = judge_cells(narrow(2, 4), RULE)
    assert (
        (unsure["reached"] == BY_CHANCE).all()
        and unsure["refine"].all()
        and (unsure["pooled_df"] < MIN_POOLED_DF).all()
    )
    sure = judge_cells(narrow(12, 4), RULE)
    assert (sure["reached"] == YES).all() and not sure["refine"].any()


def test_cells_are_refined_until_narrow_or_at_most():
    runs = narrow(12, 8)
    runs.loc[runs["cell"] == "c03", "epoch_time_s"] **= 30
    runs.loc[runs["cell"] == "c05", "status"] = "failed"
    verdicts = judge_cells(runs, RULE)
    assert verdicts.index[verdicts["refine"]].tolist() == ["c03"]
    assert verdicts.loc["c05", "n"] == 0 and verdicts.loc["c05", "reached"] == NO
    assert not judge_cells(runs, Replicates(3, 8, 0.1))["refine"].any()


def test_both_cells_of_a_wide_contrast_are_refined():
    runs = narrow(13, 8)
    runs.loc[runs["cell"] == "c03", "epoch_time_s"] **= 30
    verdicts = judge_cells(runs, PAIRS)
    assert verdicts.index[verdicts["refine"]].tolist() == ["c02", "c03"]
    assert math.isnan(verdicts.loc["c12", "half_width"]) and verdicts.loc["c12", "reached"] == NOT_ASKED


def test_expected_runs_are_those_that_campaigns_need():
    """Check the number expected from the standard deviation at the start, and from the runs in the middle."""
    for cells, until in ((30, 0.3), (8, 0.1), (8, 0.06), (4, 0.2), (2, 0.1)):
        rule = Replicates(3, 30, until)
        needs = studies(7, cells, until, chosen, number=2000 // cells, at_most=30).n.mean()
        assert runs_to_target(0.1, rule, cells) == pytest.approx(needs, rel=0.1, abs=1)
    rule = Replicates(3, 30, 0.06)
    needs = studies(7, 8, rule.until, chosen, number=250, at_most=30).n.mean()
    begun = [
        judge_cells(runs_of(log[:, :6]), rule) for log in studies(8, 8, 0.0, naive, number=20, at_most=6).log
    ]
    assert np.mean([expected_runs(verdicts, rule).mean() for verdicts in begun]) == pytest.approx(
        needs, rel=0.1
    )
    assert runs_to_target(math.nan, rule, 8) == 30 and runs_to_target(0.1, Replicates(5, 5), 8) == 5


def coverage(seed, cells, until, refine, number, **options):
    """Return the share of intervals of cell means that cover the true value."""
    return studies(seed, cells, until, refine, number, **options).covered.mean()


def test_rule_covers_the_true_value_and_naive_rule_does_not():
    """Expect about six runs per cell; three standard errors of the coverage are 0.8 %."""
    until = math.exp(1.96 * 0.1 / math.sqrt(6)) - 1
    assert coverage(11, 4, until, naive, 1500) < 0.93
    assert coverage(11, 4, until, chosen, 1500) > 0.94


@pytest.mark.simulation
@pytest.mark.parametrize("at_most", [6, 12, 30])
@pytest.mark.parametrize("cells", [1, 4, 12])
def test_intervals_cover_the_true_value_at_any_target(cells, at_most):
    """Use cells that need 4 or 12 runs at a known standard deviation; check the average and each case."""
    shares = [
        coverage(cells, cells, math.exp(1.96 * math.hypot(0.1, of_blocks) / math.sqrt(n)) - 1, chosen, 8000 // cells,
             at_most=at_most, of_blocks=of_blocks, spreads=spreads)
        for n in (4, 12)
        for of_blocks in (0.0, 0.1)
        for spreads in (("equal, 10 %",) if cells == 1 else ("equal, 10 %", "5 to 20 %"))
    ]  # fmt: skip
    assert 0.94 < np.mean(shares) < 0.965
    assert min(shares) > 0.925


@pytest.mark.simulation
@pytest.mark.parametrize("refine", [chosen, chosen_of_pairs])
def test_ratios_cover_the_true_value(refine):
    shares = []
    for n, of_blocks in itertools.product((4, 12), (0.0, 0.1)):
        report = studies(
            3, 8, math.exp(1.96 * 0.1 / math.sqrt(n)) - 1, refine, 1000, at_most=30, of_blocks=of_blocks
        )
        ratios = report.ratios(np.arange(0, 8, 2), np.arange(1, 8, 2))
        shares.append((ratios.covered.mean(), ratios.differ.mean()))
    covered, differ = np.mean(shares, axis=0)
    assert covered > 0.94 and differ < 0.06
