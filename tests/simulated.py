"""Campaigns whose truth is known: log-normal epoch times of cells in blocks, and how often intervals hold it."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.pooling import pooled

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
    made = pooled(runs)
    rows = made.cells.sort_index()
    names, half = rows.index.tolist(), len(rows) // 2
    held = (rows["low"] < 1) & (rows["high"] > 1)
    ratios = made.ratios(names[:half], names[half : 2 * half])
    return Coverage(
        held.mean(),
        float(held.iloc[int(spread.argmax())]),
        ((ratios["low"] < 1) & (ratios["high"] > 1)).mean(),
        float(np.median(np.log(rows["high"] / rows["low"]))) / 2,
        float(np.median(np.log(ratios["high"] / ratios["low"]))) / 2,
    )
