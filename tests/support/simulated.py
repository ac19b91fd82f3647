"""Simulate campaigns with known true values, and compute how many intervals cover them.

Epoch times are log-normal, with block effects.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.adjusted import LOST_CPU_TIME, REFERENCE, adjust_for_speed
from analysis.cell_means import CellMeans, estimate_means

# Standard deviations of the logarithms, [cells].
SPREADS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "equal, 10 %": lambda rng, cells: np.full(cells, 0.1),
    "5 to 20 %": lambda rng, cells: np.exp(rng.uniform(math.log(0.05), math.log(0.2), cells)),
    "half with twice": lambda rng, cells: np.repeat([0.1, 0.2], [cells - cells // 2, cells // 2]),
    "one with three times": lambda rng, cells: np.append(np.full(cells - 1, 0.1), 0.3),
}
# Standard deviation of block effects; correlation of a run with the one before it.
DEPENDENCES = ((0.0, 0.0), (0.1, 0.5))


class Coverage(NamedTuple):
    """Shares of 95 % intervals that cover the true value, and widths.

    Attributes:
        cells: Share for the means of all cells.
        noisiest: Share for the mean of the noisiest cell.
        ratios: Share for ratios.
        width: Median half-width of means (logarithms).
        width_of_ratios: Median half-width of ratios (logarithms).
    """

    cells: float
    noisiest: float
    ratios: float
    width: float
    width_of_ratios: float


def simulated(
    rng: np.random.Generator, cells: int, blocks: int, spreads: str, of_blocks: float, correlation: float
) -> tuple[pd.DataFrame, np.ndarray]:
    """Return runs in random order within complete blocks, and the spread of each cell.

    The true mean epoch time of all cells is 1 s.
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
    """Return the coverage of the intervals of `simulated` runs."""
    return coverage_of_means(estimate_means(runs), spread)


def coverage_of_means(cell_means: CellMeans, spread: np.ndarray, truth: float = 1.0) -> Coverage:
    """Return the coverage of the intervals of means and ratios; `truth` is the true mean of each cell in s."""
    rows = cell_means.cell_statistics.sort_index()
    names, half = rows.index.tolist(), len(rows) // 2
    inside = (rows["low"] < truth) & (rows["high"] > truth)
    ratios = cell_means.ratios(names[:half], names[half : 2 * half])
    return Coverage(
        inside.mean(),
        float(inside.iloc[int(spread.argmax())]),
        ((ratios["low"] < 1) & (ratios["high"] > 1)).mean(),
        float(np.median(np.log(rows["high"] / rows["low"]))) / 2,
        float(np.median(np.log(ratios["high"] / ratios["low"]))) / 2,
    )


class ReferencedCoverage(NamedTuple):
    """Coverage with and without adjustment by the reference benchmark.

    Attributes:
        chosen: Whether means are adjusted.
        plain: Coverage of intervals without adjustment.
        reported: Coverage of the reported intervals: adjusted ones if there are any.
        bias: Bias of the reported means (logarithm).
        plain_bias: Bias of the means without adjustment (logarithm).
    """

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
    """Return runs like those of `simulated` with a reference benchmark, and their true mean.

    The true mean is a function of the covariates that times are adjusted by: the mean epoch time in s of all
    cells at the campaign's mean of the covariates. At the mean of all campaigns it is 1 s.

    Args:
        rng: Source of random numbers.
        cells: Number of cells.
        blocks: Number of blocks.
        spreads: A name of SPREADS.
        of_blocks: Standard deviation of block effects.
        correlation: Of the logarithms of reference and epoch time, within and between blocks.
        of_reference: Standard deviation of block effects on the reference alone.
        lost: Correlation of log epoch time and the CPU time lost, which is independent of the reference; None
            if the CPU time lost is not recorded.
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
    """Return the coverage of the intervals of runs of `beside_reference`.

    Plain intervals have to cover 1 s, adjusted ones the true mean at the campaign's mean covariates.
    """
    result = adjust_for_speed(runs)
    spread = result.plain.cell_statistics.sort_index()["log_sd"].to_numpy()
    plain, plain_bias = (
        coverage_of_means(result.plain, spread),
        float(np.log(result.plain.cell_statistics["mean"]).mean()),
    )
    if result.adjusted_means is None:
        return ReferencedCoverage(False, plain, plain, plain_bias, plain_bias)
    mean = truth(result.adjusted_means.slopes.covariates)
    adjusted, bias = coverage_of_means(result.adjusted_means, spread, mean), plain_bias
    reported = plain
    if result.adjusts_ratios:
        reported = reported._replace(ratios=adjusted.ratios, width_of_ratios=adjusted.width_of_ratios)
    if result.reported_means is not None:
        reported = reported._replace(cells=adjusted.cells, noisiest=adjusted.noisiest, width=adjusted.width)
        bias = float(np.log(result.adjusted_means.cell_statistics["mean"] / mean).mean())
    return ReferencedCoverage(True, plain, reported, bias, plain_bias)
