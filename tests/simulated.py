"""Campaigns whose truth is known: log-normal epoch times of cells in blocks, and how often intervals hold it."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.adjusted import adjustment
from analysis.pooling import Pooling, pooled

SPREADS: dict[
    str, Callable[[np.random.Generator, int], np.ndarray]
] = {  # standard deviations of the logarithms, [cells]
    "equal, 10 %": lambda rng, cells: np.full(cells, 0.1),
    "5 to 20 %": lambda rng, cells: np.exp(rng.uniform(math.log(0.05), math.log(0.2), cells)),
    "half with twice": lambda rng, cells: np.repeat([0.1, 0.2], [cells - cells // 2, cells // 2]),
    "one with three times": lambda rng, cells: np.append(np.full(cells - 1, 0.1), 0.3),
}
DEPENDENCES = ((0.0, 0.0), (0.1, 0.5))  # standard deviation of blocks; correlation of a run with the one before it


class Coverage(NamedTuple):
    """Which share of the 95 % intervals hold the truth: of all cells' means, of the noisiest cell's, of ratios; median half-widths of
    means and of ratios (logarithms)."""

    cells: float
    noisiest: float
    ratios: float
    width: float
    width_of_ratios: float


def simulated(
    rng: np.random.Generator, cells: int, blocks: int, spreads: str, of_blocks: float, correlation: float
) -> tuple[pd.DataFrame, np.ndarray]:
    """Runs in random order within complete blocks, whose mean epoch time is 1 s in all cells; the cells' spreads."""
    spread = SPREADS[spreads](rng, cells)
    noise = rng.standard_normal(cells * blocks)
    for place in range(1, len(noise)):
        noise[place] = correlation * noise[place - 1] + math.sqrt(1 - correlation**2) * noise[place]
    order = rng.permuted(np.tile(np.arange(cells), (blocks, 1)), axis=1)
    log = np.take_along_axis(noise.reshape(blocks, cells), order, axis=1) * spread
    log += of_blocks * rng.standard_normal((blocks, 1)) - (spread**2 + of_blocks**2) / 2
    names = [f"c{place:02}" for place in range(cells)]
    frame = {"cell": names * blocks, "block": np.repeat(np.arange(blocks), cells), "epoch_time_s": np.exp(log).ravel()}
    return pd.DataFrame(frame).assign(status="ok", session=None), spread


def coverage(runs: pd.DataFrame, spread: np.ndarray) -> Coverage:
    """What the intervals of `simulated` runs hold."""
    return held(pooled(runs), spread)


def held(made: Pooling, spread: np.ndarray) -> Coverage:
    """What the intervals of `simulated` runs hold, by this pooling of them."""
    rows = made.cells.sort_index()
    names, half = rows.index.tolist(), len(rows) // 2
    inside = (rows["low"] < 1) & (rows["high"] > 1)
    ratios = made.ratios(names[:half], names[half : 2 * half])
    return Coverage(
        inside.mean(),
        float(inside.iloc[int(spread.argmax())]),
        ((ratios["low"] < 1) & (ratios["high"] > 1)).mean(),
        float(np.median(np.log(rows["high"] / rows["low"]))) / 2,
        float(np.median(np.log(ratios["high"] / ratios["low"]))) / 2,
    )


class ReferencedCoverage(NamedTuple):
    """Whether there are adjusted means; what plain and what shown intervals hold (adjusted ones where there are any); bias of the
    shown means (logarithm), and of the plain ones."""

    chosen: bool
    plain: Coverage
    shown: Coverage
    bias: float
    plain_bias: float


def beside_reference(
    rng: np.random.Generator, cells: int, blocks: int, spreads: str, of_blocks: float, correlation: float
) -> pd.DataFrame:
    """As `simulated`, with a reference whose logarithm has this correlation with that of epoch time beside cells and blocks."""
    runs, spread = simulated(rng, cells, blocks, spreads, 0.0, 0.0)
    moment = 0.1 * rng.standard_normal(len(runs))
    of_block = np.repeat(of_blocks * rng.standard_normal(blocks), cells)
    own = np.log(runs["epoch_time_s"]) + np.tile(spread**2, blocks) / 2
    log = correlation * moment + math.sqrt(1 - correlation**2) * own + of_block
    variance = (correlation * 0.1) ** 2 + (1 - correlation**2) * np.tile(spread**2, blocks) + of_blocks**2
    setting = {
        "reference_kind": "mixed-1",
        "nodes": 1,
        "ranks": 1,
        "cores_per_rank": 1,
        "device": "site",
        "framework": "a",
    }
    times = {
        "epoch_time_s": np.exp(log - variance / 2),
        "reference_s": np.exp(moment + of_block),
        "throttled_s": math.nan,
    }
    return runs.assign(**times, **setting)


def referenced_coverage(runs: pd.DataFrame) -> ReferencedCoverage:
    """What the intervals of runs of `beside_reference` hold."""
    found = adjustment(runs)
    shown = found.adjusted or found.plain
    spread = found.plain.cells.sort_index()["log_sd"].to_numpy()
    plain, adjusted = (held(pooling, spread) for pooling in (found.plain, shown))
    biases = (float(np.log(pooling.cells["mean"]).mean()) for pooling in (shown, found.plain))
    return ReferencedCoverage(found.adjusted is not None, plain, adjusted, *biases)
