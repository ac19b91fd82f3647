"""Campaigns whose truth is known: log-normal epoch times of cells in blocks, and how often intervals
hold it.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.adjusted import LOST_CPU_TIME, REFERENCE, adjustment
from analysis.pooling import Pooling, pooled

SPREADS: dict[
    str, Callable[[np.random.Generator, int], np.ndarray]
] = {  # standard deviations of the logarithms, [cells]
    "equal, 10 %": lambda rng, cells: np.full(cells, 0.1),
    "5 to 20 %": lambda rng, cells: np.exp(rng.uniform(math.log(0.05), math.log(0.2), cells)),
    "half with twice": lambda rng, cells: np.repeat([0.1, 0.2], [cells - cells // 2, cells // 2]),
    "one with three times": lambda rng, cells: np.append(np.full(cells - 1, 0.1), 0.3),
}
DEPENDENCES = (
    (0.0, 0.0),
    (0.1, 0.5),
)  # standard deviation of blocks; correlation of a run with the one before it


class Coverage(NamedTuple):
    """Which share of the 95 % intervals hold the truth: of all cells' means, of the noisiest cell's, of
    ratios; median half-widths of means and of ratios (logarithms).
    """

    cells: float
    noisiest: float
    ratios: float
    width: float
    width_of_ratios: float


def simulated(
    rng: np.random.Generator, cells: int, blocks: int, spreads: str, of_blocks: float, correlation: float
) -> tuple[pd.DataFrame, np.ndarray]:
    """Runs in random order within complete blocks, whose mean epoch time is 1 s in all cells.

    The cells' spreads.
    """
    spread = SPREADS[spreads](rng, cells)
    noise = rng.standard_normal(cells * blocks)
    for place in range(1, len(noise)):
        noise[place] = correlation * noise[place - 1] + math.sqrt(1 - correlation**2) * noise[place]
    order = rng.permuted(np.tile(np.arange(cells), (blocks, 1)), axis=1)
    log = np.take_along_axis(noise.reshape(blocks, cells), order, axis=1) * spread
    log += of_blocks * rng.standard_normal((blocks, 1)) - (spread**2 + of_blocks**2) / 2
    names = [f"c{place:02}" for place in range(cells)]
    frame = {
        "cell": names * blocks,
        "block": np.repeat(np.arange(blocks), cells),
        "epoch_time_s": np.exp(log).ravel(),
    }
    return pd.DataFrame(frame).assign(status="ok", session=None), spread


def coverage(runs: pd.DataFrame, spread: np.ndarray) -> Coverage:
    """What the intervals of `simulated` runs hold."""
    return pooling_coverage(pooled(runs), spread)


def pooling_coverage(pooling: Pooling, spread: np.ndarray, truth: float = 1.0) -> Coverage:
    """What the intervals of `simulated` runs hold, by this pooling of them; `truth`: all cells' mean."""
    rows = pooling.cell_statistics.sort_index()
    names, half = rows.index.tolist(), len(rows) // 2
    inside = (rows["low"] < truth) & (rows["high"] > truth)
    ratios = pooling.ratios(names[:half], names[half : 2 * half])
    return Coverage(
        inside.mean(),
        float(inside.iloc[int(spread.argmax())]),
        ((ratios["low"] < 1) & (ratios["high"] > 1)).mean(),
        float(np.median(np.log(rows["high"] / rows["low"]))) / 2,
        float(np.median(np.log(ratios["high"] / ratios["low"]))) / 2,
    )


class ReferencedCoverage(NamedTuple):
    """Whether there are adjusted means.

    What plain and what shown intervals hold (adjusted ones where there are any); bias of the
    shown means (logarithm), and of the plain ones."""

    chosen: bool
    plain: Coverage
    reported: Coverage
    bias: float
    plain_bias: float


def beside_reference(
    rng: np.random.Generator,
    cells: int,
    blocks: int,
    spreads: str,
    of_blocks: float,
    correlation: float,
    of_reference: float = 0.0,
    lost: float | None = None,
) -> tuple[pd.DataFrame, Callable[[Sequence[str]], float]]:
    """As `simulated`, with a reference whose logarithm has this correlation with that of epoch time within
    blocks and between them; and, for the covariates that times are adjusted by, the mean epoch time in s of
    all cells at the campaign's mean of them. That at the mean of all campaigns is 1 s. `of_reference`: the
    standard deviation of what blocks add to the reference alone. `lost`: the correlation of log epoch
    time and the CPU time lost, which goes its own way; None where nobody knows that time.
    """
    runs, spread = simulated(rng, cells, blocks, spreads, 0.0, 0.0)
    slopes = {REFERENCE: correlation, LOST_CPU_TIME: lost or 0.0}
    rest = math.sqrt(1 - sum(slope**2 for slope in slopes.values()))
    met, own = (np.repeat(of_blocks * rng.standard_normal(blocks), cells) for _ in range(2))
    moments = {REFERENCE: met + 0.1 * rng.standard_normal(len(runs))}
    own = own + np.log(runs["epoch_time_s"]) + np.tile(spread**2, blocks) / 2
    reference = np.exp(moments[REFERENCE])
    if of_reference:
        reference = reference * np.exp(np.repeat(of_reference * rng.standard_normal(blocks), cells))
    share = math.nan
    if lost is not None:
        met = np.repeat(of_blocks * rng.standard_normal(blocks), cells)
        moments[LOST_CPU_TIME] = met + 0.1 * rng.standard_normal(len(runs))
        share = -np.expm1(-(moments[LOST_CPU_TIME] - moments[LOST_CPU_TIME].min()))
    log = rest * own - rest**2 * (np.tile(spread**2, blocks) + of_blocks**2) / 2
    of_moments = {
        name: slopes[name] * values - slopes[name] ** 2 * (0.01 + of_blocks**2) / 2
        for name, values in moments.items()
    }
    setting = {"reference_kind": "mixed-1", "nodes": 1, "ranks": 1, "cores_per_rank": 1, "device": "site"}
    times = {
        "epoch_time_s": np.exp(log + sum(of_moments.values())),
        "reference_s": reference,
        "throttled_s": math.nan,
    }
    shares = {"steal_share": share, "other_cpu_share": 0.0}

    def truth(covariates: Sequence[str]) -> float:
        return float(np.exp(sum(of_moments[name] for name in covariates)).mean())

    return runs.assign(**times, **shares, **setting, environment_digest="a"), truth


def referenced_coverage(runs: pd.DataFrame, truth: Callable[[Sequence[str]], float]) -> ReferencedCoverage:
    """What the intervals of runs of `beside_reference` hold: plain ones 1, adjusted ones the mean at what the
    campaign met on average.
    """
    result = adjustment(runs)
    spread = result.plain.cell_statistics.sort_index()["log_sd"].to_numpy()
    plain, plain_bias = (
        pooling_coverage(result.plain, spread),
        float(np.log(result.plain.cell_statistics["mean"]).mean()),
    )
    if result.adjusted is None:
        return ReferencedCoverage(False, plain, plain, plain_bias, plain_bias)
    mean = truth(result.adjusted.slopes.covariates)
    adjusted, bias = pooling_coverage(result.adjusted, spread, mean), plain_bias
    reported = plain
    if result.adjusts_ratios:
        reported = reported._replace(ratios=adjusted.ratios, width_of_ratios=adjusted.width_of_ratios)
    if result.means is not None:
        reported = reported._replace(cells=adjusted.cells, noisiest=adjusted.noisiest, width=adjusted.width)
        bias = float(np.log(result.adjusted.cell_statistics["mean"] / mean).mean())
    return ReferencedCoverage(True, plain, reported, bias, plain_bias)
