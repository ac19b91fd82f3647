"""Generate costs.csv, messages.csv and network.csv of known costs of parts, messages and links."""

import math
from dataclasses import replace
from typing import Any

import pandas as pd

from common.schemas import schema
from declared.factors import factor_table
from declared.replicates import Replicates
from declared.site import load_site
from declared.study import Study, load_study
from models.soap import divide
from network.bus import bus_bandwidth
from plan.collective_benchmarks import message_sizes
from plan.design import Run, plan_design
from support.benchmarked import benchmark_rows

FRAMEWORK, DATASET = "pytorch-strategy", "synthetic-28x28x1-10-512"
LATENCY_S, BANDWIDTH_BYTES_S = {"point_to_point": 2e-4, "all_reduce": 9e-4}, 11e6
MEMORY = 3e9


def study_of(**factors: list[object]) -> Study:
    """Return a study of lenet-5 on four nodes with data parallelism and a searched strategy.

    `factors` have other levels than that.
    """
    defaults = {name: [entry.get("default")] for name, entry in factor_table().items()}
    levels: dict[str, list[Any]] = {
        "framework": [FRAMEWORK], "model": ["lenet-5"], "dataset": [DATASET], "nodes": [4], "batch_size": [64],
        "batch_scope": ["global"], "sync_every": [1], "epochs": [2], "parallelism": ["data", "found"],
    }  # fmt: skip
    levels = defaults | levels | factors
    return replace(load_study("quickstart"), factors=levels, exclude=(), replicates=Replicates(1, 1))


def run_of(nodes: int = 4, ranks_per_node: int = 1, **factors: list[object]) -> Run:
    """Return the run of a study of strategies with these levels."""
    site = replace(load_site("local"), nodes=4, ranks_per_node=ranks_per_node)
    (run,) = plan_design(study_of(nodes=[nodes], **{"parallelism": ["found"], **factors}), site)
    return run


def network_rows(nodes: int = 4, bandwidth: int = 0, **changes: Any) -> pd.DataFrame:
    """Return rows of network.csv for both collectives, whose times are linear in bytes."""
    columns = {"framework": FRAMEWORK, "bandwidth": bandwidth, "placement": "emulated", "link_bytes_s": None}

    def rows(collective: str) -> pd.DataFrame:
        def repetitions_s(size: int) -> list[float]:
            return [LATENCY_S[collective] + bus_bandwidth(size, 1, nodes, collective) / BANDWIDTH_BYTES_S]

        return benchmark_rows(repetitions_s, message_sizes(2**20), 3, nodes, collective, **columns | changes)

    return pd.concat([rows("point_to_point"), rows("all_reduce")], ignore_index=True)


def timed(run: Run, **changes: Any) -> pd.DataFrame:
    """Return rows of costs.csv: a part takes its layer's index in seconds, divided by the number of parts."""
    space = divide(run.graph, run.geometry.local_batch)
    head = {"study": "s", "framework": FRAMEWORK, "model": "lenet-5", "dataset": DATASET, "batch_size": 64}
    head |= {"device": "site", "optimizer": "sgd", "devices": 4, "status": "ok", "reason": None, "n": 5}
    rows = [
        {**head, "layer": layer.name, "degrees": "x".join(map(str, degrees)), "parts": math.prod(degrees),
         "forward_s": (1 + place) / math.prod(degrees), "backward_s": 2 * (1 + place) / math.prod(degrees), "update_s": 0.5,
         "forward_spread": 0.01, "backward_spread": 0.02, "update_spread": 0.0, "memory_bytes": int(MEMORY), **changes}
        for place, layer in enumerate(space.layers) for degrees in layer.configurations(4)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(schema("costs")["properties"]))


def handled() -> pd.DataFrame:
    """Return rows of messages.csv whose times are linear in bytes."""
    head = {"study": "s", "framework": FRAMEWORK, "device": "site", "status": "ok", "reason": None, "n": 5}
    rows = [
        {**head, "bytes": size, "send_s": 5e-5 + 1e-9 * size, "receive_s": 8e-5 + 2e-9 * size, "seconds": 1.0}
        for size in message_sizes(2**20)
    ]
    return pd.DataFrame(rows, columns=list(schema("messages")["properties"]))
