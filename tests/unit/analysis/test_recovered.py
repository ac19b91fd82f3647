"""The share of the time beyond computation that accumulation recovers, with Fieller's interval."""

import pandas as pd
import pytest
from scipy import stats

from analysis.cell_means import MIN_SHARED_BLOCKS
from analysis.records import read_timing_runs
from analysis.recovered import recovered_shares
from common.files import CHECKOUT

FRAMEWORKS = ("horovod-pytorch", "horovod-tensorflow", "pytorch-ddp", "tensorflow-multiworker")


def pair(framework: str, nodes: int = 2) -> tuple[str, str]:
    """Return the cells without and with accumulation."""
    cells = [f"{framework}.small-cnn.digits.b16.n{nodes}.s{steps}" for steps in (1, 4)]
    return cells[0], cells[1]


def beyond_computation(runs: pd.DataFrame, cell: str) -> "pd.Series[float]":
    """Return the time beyond computation by block: a replica on two nodes has half of the batches of one."""
    seconds = runs.pivot(index="block", columns="cell", values="epoch_time_s")
    return seconds[cell] - seconds[cell.replace(".n2.", ".n1.")] / 2


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return read_timing_runs(CHECKOUT / "docs" / "campaigns" / "quickstart" / "runs.csv")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bounds_are_the_ratios_that_a_t_test_just_accepts(runs: pd.DataFrame, framework: str) -> None:
    (share,) = recovered_shares(runs, [pair(framework)])
    before, after = (beyond_computation(runs, cell) for cell in pair(framework))
    assert share is not None and share.low < share.value < share.high
    assert share.value == pytest.approx(1 - after.mean() / before.mean())
    for bound in (share.low, share.high):
        assert stats.ttest_1samp(after - (1 - bound) * before, 0).pvalue == pytest.approx(0.05)


def test_share_needs_cells_on_one_device_and_blocks(runs: pd.DataFrame) -> None:
    cells = pair("pytorch-ddp")
    assert recovered_shares(runs, [pair("pytorch-ddp", nodes=1)]) == [None], "one device"
    assert recovered_shares(runs[runs["n_devices"] > 1], [cells]) == [None], "no computation on one device"
    first_blocks = runs["block"] < MIN_SHARED_BLOCKS  # blocks count from 1
    assert recovered_shares(runs[first_blocks], [cells]) == [None], "too few blocks"
    assert recovered_shares(runs[runs["block"] <= MIN_SHARED_BLOCKS], [cells]) != [None]


def test_there_is_no_share_of_a_time_that_may_be_0(runs: pd.DataFrame) -> None:
    before, _ = pair("pytorch-ddp")
    is_before = runs["cell"] == before
    beyond = runs.loc[is_before, "block"].map(beyond_computation(runs, before))
    small = runs.copy()
    small.loc[is_before, "epoch_time_s"] -= beyond - 0.001 * (runs.loc[is_before, "block"] - 2)
    assert recovered_shares(small, [pair("pytorch-ddp")]) == [None]
