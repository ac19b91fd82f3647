"""Rows of network.csv, of collective benchmarks with made-up times."""

from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from common.schemas import schema
from network.bus import bus_bandwidth


def benchmark_rows(
    repetitions_s: Callable[[int], Iterable[float]],
    sizes: Iterable[int],
    rounds: int = 5,
    nodes: int = 2,
    collective: str = "all_reduce",
    **columns: Any,
) -> pd.DataFrame:
    """Return a successful benchmark of one rank on each of some nodes.

    Args:
        repetitions_s: Returns the times of the repetitions of a size in a round.
        sizes: Sizes of messages in bytes.
        rounds: Number of rounds.
        nodes: Number of nodes.
        collective: The collective.
        columns: Other values of columns.
    """
    head = {
        "study": "small", "site": "local", "collective": collective, "framework": "pytorch-ddp", "nodes": nodes,
        "ranks": nodes, "device": "site", "bandwidth": 0, "key": "0123456789ab", "status": "ok", "reason": None,
        "placement": "virtual", "transport": "gloo over tcp eth0", "link_bytes_s": 125e6,
    }  # fmt: skip
    rows = [
        {
            **head,
            "bytes": size,
            "round": round_number,
            "repetition": repetition,
            "seconds": seconds,
            "bus_bandwidth_bytes_s": bus_bandwidth(size, seconds, nodes, collective),
            **columns,
        }
        for size in sizes
        for round_number in range(1, rounds + 1)
        for repetition, seconds in enumerate(repetitions_s(size), start=1)
    ]
    return pd.DataFrame(rows, columns=list(schema("network")["properties"]))
