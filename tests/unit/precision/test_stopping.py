"""The stopping rule: by hand, on arrays against the formulas of the analysis, and by simulation against one that stops when intervals
are narrow enough."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from analysis.measured import factors
from analysis.pooling import pooled
from declared.study import KNOWN_OF_ALL, Replicates
from plan.decisions import BY_CHANCE, NO, NOT_ASKED, YES
from precision.stopping import expected, looks, needed
from support.adaptive import campaign, chosen, chosen_of_pairs, naive
from support.simulated import SPREADS

BATCHES = (32, 64)
RULE = Replicates(3, 12, 0.1)
PAIRS = Replicates(3, 12, 0.1, {"batch_size": BATCHES})


def runs_of(log):
    """Rows of runs.csv of logarithms of epoch times [cells, blocks], NaN where there is no run; the first and the second cell differ in their
    batch size alone, the third and the fourth too, and so on."""
    there = zip(*np.nonzero(~np.isnan(log)), strict=True)
    rows = [
        (f"c{cell:02}", block, math.exp(log[cell, block]), BATCHES[cell % 2], cell // 2 + 1) for cell, block in there
    ]
    runs = pd.DataFrame(rows, columns=["cell", "block", "epoch_time_s", "batch_size", "nodes"])
    held = {name: "held" for name in factors() if name not in runs}
    return runs.assign(**held, status="ok", session=None)


def studies(seed, cells, until, refine, number=1, at_most=12, of_blocks=0.0, correlation=0.0, spreads="equal, 10 %"):
    rng = np.random.default_rng(seed)
    spread = np.stack([SPREADS[spreads](rng, cells) for _ in range(number)])
    return campaign(rng, spread, 3, at_most, refine(until), of_blocks, correlation)


@pytest.mark.parametrize("cells", [1, 2, 6, 12])
@pytest.mark.parametrize("of_blocks", [0.0, 0.1])
def test_on_arrays_the_intervals_are_those_that_are_reported(cells, of_blocks):
    report = studies(
        cells + 1, cells, 0.08, naive, at_most=9, of_blocks=of_blocks, correlation=0.5, spreads="5 to 20 %"
    )
    pooling = pooled(runs_of(report.log[0]))
    assert pooling.cells["n"].tolist() == report.n[0].tolist()
    half = (pooling.cells["high"] - pooling.cells["low"]) / (2 * pooling.cells["mean"])
    assert half.to_numpy() == pytest.approx(report.half()[0], rel=1e-6)
    assert ((pooling.cells["low"] < 1) & (pooling.cells["high"] > 1)).tolist() == report.held[0].tolist()
    if cells > 1:
        names, to = pooling.cells.index, np.arange(cells - 1)
        rows, found = pooling.ratios(names[to].tolist(), names[to + 1].tolist()), report.ratios(to, to + 1)
        assert ((rows["high"] - rows["low"]) / (2 * rows["value"])).to_numpy() == pytest.approx(found.half[0], rel=1e-6)
        assert (rows["p"] < 0.05).tolist() == found.differ[0].tolist()


@pytest.mark.parametrize(("rule", "refine"), [(RULE, chosen), (PAIRS, chosen_of_pairs)])
def test_on_arrays_the_rule_is_the_one_that_decides(rule, refine):
    refined = []
    for seed in range(12):
        report = studies(seed, 8, rule.until, refine, at_most=3 + seed % 6, of_blocks=0.03, spreads="5 to 20 %")
        found = looks(runs_of(report.log[0]), rule)
        assert found["refine"].tolist() == refine(rule.until)(report)[0].tolist()
        refined += found["refine"].tolist()
    assert {True, False} == set(refined)


def narrow(cells, blocks, spread=0.01):
    """Runs that spread alike around 1 s."""
    log = spread * np.random.default_rng(5).standard_normal((cells, blocks))
    return runs_of(log)


def test_a_narrow_interval_does_not_stop_a_cell_of_whose_spread_little_is_known():
    few = looks(narrow(2, 4), RULE)
    assert (few["reached"] == BY_CHANCE).all() and few["refine"].all() and (few["known"] < KNOWN_OF_ALL).all()
    many = looks(narrow(12, 4), RULE)
    assert (many["reached"] == YES).all() and not many["refine"].any()


def test_a_cell_is_refined_until_its_interval_is_narrow_and_never_beyond_at_most_or_without_a_success():
    runs = narrow(12, 8)
    runs.loc[runs["cell"] == "c03", "epoch_time_s"] **= 30
    runs.loc[runs["cell"] == "c05", "status"] = "failed"
    found = looks(runs, RULE)
    assert found.index[found["refine"]].tolist() == ["c03"]
    assert found.loc["c05", "n"] == 0 and found.loc["c05", "reached"] == NO
    assert not looks(runs, Replicates(3, 8, 0.1))["refine"].any()


def test_of_contrasts_the_cells_of_a_wide_one_are_refined_and_cells_in_none_are_not():
    runs = narrow(13, 8)
    runs.loc[runs["cell"] == "c03", "epoch_time_s"] **= 30
    found = looks(runs, PAIRS)
    assert found.index[found["refine"]].tolist() == ["c02", "c03"]
    assert math.isnan(found.loc["c12", "half_width"]) and found.loc["c12", "reached"] == NOT_ASKED


def test_what_is_expected_is_what_campaigns_need():
    """At the start from the spread, in the middle from what is there; of 8 cells that spread alike, and of 2."""
    for cells, until in ((30, 0.3), (8, 0.1), (8, 0.06), (4, 0.2), (2, 0.1)):
        rule = Replicates(3, 30, until)
        needs = studies(7, cells, until, chosen, number=2000 // cells, at_most=30).n.mean()
        assert needed(0.1, rule, cells) == pytest.approx(needs, rel=0.1, abs=1)
    rule = Replicates(3, 30, 0.06)
    needs = studies(7, 8, rule.until, chosen, number=250, at_most=30).n.mean()
    begun = [looks(runs_of(log[:, :6]), rule) for log in studies(8, 8, 0.0, naive, number=20, at_most=6).log]
    assert np.mean([expected(found, rule).mean() for found in begun]) == pytest.approx(needs, rel=0.1)
    assert needed(math.nan, rule, 8) == 30 and needed(0.1, Replicates(5, 5), 8) == 5


def held(seed, cells, until, refine, number, **options):
    """Which share of the intervals of cells' means hold the truth."""
    return studies(seed, cells, until, refine, number, **options).held.mean()


def test_intervals_hold_the_truth_where_stopping_when_they_are_narrow_makes_them_fail():
    """About six runs of cells that know their spread; three standard errors are 0.8 %."""
    wanted = math.exp(1.96 * 0.1 / math.sqrt(6)) - 1
    assert held(11, 4, wanted, naive, 1500) < 0.93
    assert held(11, 4, wanted, chosen, 1500) > 0.94


@pytest.mark.simulation
@pytest.mark.parametrize("at_most", [6, 12, 30])
@pytest.mark.parametrize("cells", [1, 4, 12])
def test_intervals_hold_the_truth_however_precise_a_study_is_to_be(cells, at_most):
    """Cells that would need 4 or 12 runs if they knew their spread; on average over all and in each."""
    found = [
        held(cells, cells, math.exp(1.96 * math.hypot(0.1, of_blocks) / math.sqrt(n)) - 1, chosen, 8000 // cells,
             at_most=at_most, of_blocks=of_blocks, spreads=spreads)
        for n in (4, 12)
        for of_blocks in (0.0, 0.1)
        for spreads in (("equal, 10 %",) if cells == 1 else ("equal, 10 %", "5 to 20 %"))
    ]  # fmt: skip
    assert 0.94 < np.mean(found) < 0.965
    assert min(found) > 0.925


@pytest.mark.simulation
@pytest.mark.parametrize("refine", [chosen, chosen_of_pairs])
def test_ratios_hold_the_truth_and_equal_cells_do_not_differ_more_often(refine):
    found = []
    for n, of_blocks in itertools.product((4, 12), (0.0, 0.1)):
        report = studies(3, 8, math.exp(1.96 * 0.1 / math.sqrt(n)) - 1, refine, 1000, at_most=30, of_blocks=of_blocks)
        ratios = report.ratios(np.arange(0, 8, 2), np.arange(1, 8, 2))
        found.append((ratios.held.mean(), ratios.differ.mean()))
    hold, differ = np.mean(found, axis=0)
    assert hold > 0.94 and differ < 0.06
