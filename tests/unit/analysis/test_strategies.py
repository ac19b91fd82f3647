"""Table of strategies: formulas and measurements, if parallelism varies."""

import pandas as pd
import pytest

from analysis import scaling, speedup
from analysis.strategies import BY_LAYER, PARALLELISM_CONSTANT, summarize, table
from common.notes import codes
from models.graph import BYTES
from support.synthetic import designed_campaign


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    frame, _ = designed_campaign()
    frame = frame[(frame["framework"] == frame["framework"].iloc[-1]) & (frame["nodes"] == 2)]
    cell = frame["cell"].iloc[0]
    frame = frame[frame["cell"] == cell].assign(
        model="small-cnn", dataset="digits", local_batch=32, sync_every=1
    )
    frame = frame.assign(
        status="ok", n_allreduces=10.0, sent_bytes=5e7, memory_peak_bytes=3e8, placement="virtual"
    )
    frame = frame.assign(device_memory_peak_bytes=float("nan"))
    tensor = frame.assign(cell="tensor", parallelism="tensor", replicas=1, local_batch=64, sent_bytes=2e7)
    return pd.concat([frame, tensor], ignore_index=True)


def test_formulas_stand_beside_measured_bytes(runs: pd.DataFrame) -> None:
    data = summarize(runs).set_index("parallelism")
    assert data["sent_bytes"].to_dict() == {"data": 5e6, "tensor": 2e6} and (data["ranks"] == 2).all()
    assert data.at["data", "all_reduce_bytes"] == data.at["data", "sent_formula_bytes"] == BYTES * 544_522
    assert data.at["tensor", "all_reduce_bytes"] == 64 * BYTES * (10 + 4096)
    assert data.at["tensor", "parameters_bytes"] < data.at["data", "parameters_bytes"] / 1.8
    result = table(runs)
    assert (
        list(result.display["sent, measured (MB)"]) == ["5", "2"]
        and "point-to-point (MB)" not in result.display
    )
    parallel = summarize(runs.assign(nodes=1)).set_index("parallelism")
    assert parallel["sent_formula_bytes"].isna().all(), "several ranks of a node share its interface"


def test_cells_divided_by_layer_are_in_another_table(runs: pd.DataFrame) -> None:
    by_layer = runs[runs["parallelism"] == "data"].assign(cell="by layer", framework="pytorch-strategy")
    result = table(pd.concat([runs, by_layer], ignore_index=True))
    assert "by layer" not in set(result.data["cell"]) and len(result.data) == 2
    assert BY_LAYER in result.notes


def test_where_parallelism_does_not_vary_there_is_no_row(runs: pd.DataFrame) -> None:
    result = table(runs[runs["parallelism"] == "data"])
    assert result.data.empty and result.notes == [PARALLELISM_CONSTANT]


def test_ranks_that_share_a_replica_count_as_devices(runs: pd.DataFrame) -> None:
    larger = [runs.assign(cell=runs["cell"] + f".{n}", nodes=n, ranks=n, n_devices=n) for n in (4, 8)]
    runs = pd.concat([runs, *larger], ignore_index=True)
    plain = runs[runs["parallelism"] == "data"]
    for module in (speedup, scaling):
        assert "replicas-are-devices" in codes(module.table(runs).notes)
        assert "replicas-are-devices" not in codes(module.table(plain).notes)
