"""Simulated steps of sharded meshes against the public series of MPT on A100 and H100.

`reached.large` of both devices and two numbers of `mesh_costs` were chosen on this series, so that these are
errors of a fit. MPT-1B on 32 A100 is left out, a slip of the source (docs/campaigns/public/public-mpt-fsdp.md).
"""

import itertools

import numpy as np
import pandas as pd
import pytest

from common.files import CHECKOUT
from models.mesh import Mesh
from models.named import graph
from models.precision import AMP
from strategies.mesh_costs import StepSimulator
from strategies.question import choose_topology
from strategies.topology import NUMBER_BYTES

SERIES = CHECKOUT / "docs" / "campaigns" / "public" / "public-mpt-fsdp" / "measured.csv"
TOKENS, VOCABULARY = 2048, 50368
LEVELS = {
    "optimizer": "adam",
    "momentum": 0.9,
    "microbatches": 1,
    "schedule": "1f1b",
    "sharding": "parameters",
    "tensor_sharding": "layers",
    "precision": AMP,
    "reduce_dtype": "bf16",
}
SLIP = ("mpt-1b", 32)


@pytest.fixture(scope="module")
def series() -> pd.DataFrame:
    """Return the measured cells with their steps, simulated and measured, in seconds."""
    rows = pd.read_csv(SERIES)
    rows = rows[[(row.model, row.sharded_parallel) != SLIP for row in rows.itertuples()]].copy()
    tokens = rows["batch_size"] * rows["sync_every"] * rows["sharded_parallel"] * TOKENS
    rows["measured_s"] = tokens / rows["tokens_per_s"]
    rows["simulated_s"] = [simulated(row) for row in rows.itertuples()]
    rows["ratio"] = rows["simulated_s"] / rows["measured_s"]
    return rows


def simulated(row) -> float:
    rates = [row.inside_bandwidth_gbit_s, row.bandwidth_gbit_s]
    topology = choose_topology(row.gpu[:4], row.sharded_parallel, row.devices_per_node, rates, AMP)
    model = graph(row.model, (TOKENS,), VOCABULARY, VOCABULARY, "next")
    checkpointing = "blocks" if row.checkpointing == "on" else "none"
    levels = {**LEVELS, "sync_every": row.sync_every, "checkpointing": checkpointing}
    simulator = StepSimulator(model, topology, NUMBER_BYTES[AMP])
    return simulator.simulate(Mesh(sharded=row.sharded_parallel), row.batch_size, levels).seconds


def test_models_have_their_published_parameters(series: pd.DataFrame) -> None:
    for row in series.drop_duplicates("model").itertuples():
        assert graph(row.model, (TOKENS,), VOCABULARY, VOCABULARY, "next").parameters == row.parameters


@pytest.mark.parametrize(("gpu", "error"), [("a100-40gb", 0.03), ("h100-80gb", 0.05)])
def test_steps_are_those_measured(series: pd.DataFrame, gpu: str, error: float) -> None:
    ratios = series.loc[series["gpu"] == gpu, "ratio"]
    assert (ratios - 1).abs().mean() < error and ratios.between(0.82, 1.1).all(), ratios.describe()


def test_configurations_are_ranked_as_measured(series: pd.DataFrame) -> None:
    """Pairs of configurations of a model are in the right order if their times per token differ by 5 %."""
    correct = []
    for _, points in series.groupby(["gpu", "model"]):
        measured = points["devices_per_node"] * points["nodes"] / points["tokens_per_s"]
        pairs = itertools.combinations(
            zip(np.log(measured), np.log(measured * points["ratio"]), strict=True), 2
        )
        correct += [
            (first - second) * (simulated_first - simulated_second) > 0
            for (first, simulated_first), (second, simulated_second) in pairs
            if abs(first - second) > np.log(1.05)
        ]
    assert len(correct) >= 20 and np.mean(correct) > 0.85, (sum(correct), len(correct))
