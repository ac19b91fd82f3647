"""Synthetic collective benchmarks with known latency and bandwidth, as rows of network.csv."""

import numpy as np
import pandas as pd
import pytest

from network.gather import bus_bandwidth
from plan.collective_benchmarks import message_sizes

LATENCY_S = 0.8e-3
BANDWIDTH_BYTES_S = 100e6


def benchmark_rows(
    framework="pytorch-ddp", nodes=3, noise=0.03, round_noise=0.0, rounds=5, repetitions=5, seed=1,
    collective="all_reduce", **columns
):  # fmt: skip
    """Return a benchmark whose repetitions and sizes in each round deviate from the line at random."""
    rng = np.random.default_rng(seed)
    rows = []
    for size in message_sizes(64 * 2**20):
        for round_number in range(1, rounds + 1):
            slowdown = np.exp(round_noise * rng.standard_normal())
            for repetition in range(1, repetitions + 1):
                true = LATENCY_S + bus_bandwidth(size, 1, nodes, collective) / BANDWIDTH_BYTES_S
                seconds = true * slowdown * np.exp(noise * rng.standard_normal())
                rows.append(
                    {
                        "study": "small",
                        "site": "local",
                        "collective": collective,
                        "framework": framework,
                        "nodes": nodes,
                        "ranks": nodes,
                        "device": "site",
                        "bandwidth": 0,
                        "key": "0123456789ab",
                        "status": "ok",
                        "reason": None,
                        "placement": "virtual",
                        "transport": "gloo over tcp eth0",
                        "link_bytes_s": 125e6,
                        "bytes": size,
                        "round": round_number,
                        "repetition": repetition,
                        "seconds": seconds,
                        "bus_bandwidth_bytes_s": bus_bandwidth(size, seconds, nodes, collective),
                        **columns,
                    }
                )
    return pd.DataFrame(rows)


def failed_row(
    framework="horovod-pytorch", nodes=2, status="failed", reason="rank 1 ended with status 1: it broke"
):
    """Return a benchmark without repetitions."""
    row = benchmark_rows(framework, nodes, status=status, reason=reason).iloc[:1].copy()
    row[["bytes", "round", "repetition", "seconds", "bus_bandwidth_bytes_s", "transport"]] = None
    return row


@pytest.fixture
def network():
    """Return three successful benchmarks and a failed one."""
    parts = [
        benchmark_rows("pytorch-ddp", 2, seed=1),
        benchmark_rows("pytorch-ddp", 3, seed=2),
        benchmark_rows("tensorflow-multiworker", 2, seed=3),
        failed_row(),
    ]
    return pd.concat([part.astype(object) for part in parts], ignore_index=True)
