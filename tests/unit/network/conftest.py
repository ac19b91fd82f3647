"""Synthetic collective benchmarks with known latency and bandwidth, as rows of network.csv."""

import numpy as np
import pandas as pd
import pytest

from network.bus import bus_bandwidth
from plan.collective_benchmarks import message_sizes
from support import benchmarked

LATENCY_S = 0.8e-3
BANDWIDTH_BYTES_S = 100e6


def benchmark_rows(
    framework="pytorch-ddp", nodes=3, noise=0.03, round_noise=0.0, rounds=5, repetitions=5, seed=1,
    collective="all_reduce", **columns
):  # fmt: skip
    """Return a benchmark whose repetitions and sizes in each round deviate from the line at random."""
    rng = np.random.default_rng(seed)

    def repetitions_s(size):
        true = LATENCY_S + bus_bandwidth(size, 1, nodes, collective) / BANDWIDTH_BYTES_S
        slowdown = np.exp(round_noise * rng.standard_normal())
        return [true * slowdown * np.exp(noise * rng.standard_normal()) for _ in range(repetitions)]

    sizes = message_sizes(64 * 2**20)
    return benchmarked.benchmark_rows(
        repetitions_s, sizes, rounds, nodes, collective, framework=framework, **columns
    )


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
