"""Estimate which share of an epoch's time beyond computation accumulation recovers.

    beyond = epoch time - computation, recovered = 1 - beyond (with accumulation) / beyond (without)

Computation is the epoch time of the cell on one device, scaled to the batches of one replica
(analysis.shares). So the time beyond it is the cost of more devices: communication, waiting and contention.

Both times beyond computation are computed in each block in which all four cells have a run: two on several
devices, two on one. The interval of the ratio of their means is Fieller's (J. R. Stat. Soc. B 16, 1954). It
has no bounds if the time without accumulation may be 0.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy

from analysis.cell_means import MIN_SHARED_BLOCKS, Values
from analysis.intervals import CONFIDENCE, Estimate
from analysis.records import successful
from analysis.shares import computation_cells
from declared.responses import EPOCH_TIME


def recovered_shares(runs: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> list[Estimate | None]:
    """Return the recovered share of each pair of cells on several devices, without and with accumulation.

    None if a cell has one device or no counterpart on one, if the cells share fewer than MIN_SHARED_BLOCKS
    blocks, or if the time beyond computation without accumulation may be 0.
    """
    blocks = Values.from_runs(successful(runs), EPOCH_TIME.column).blocks
    computation = computation_cells(runs)
    is_parallel = runs.drop_duplicates("cell").set_index("cell")["n_devices"] > 1
    beyond = {}
    for cell in {cell for pair in pairs for cell in pair}:
        row = computation.loc[cell] if cell in computation.index else None
        if row is not None and is_parallel[cell] and row["alone"] in blocks.index and cell in blocks.index:
            beyond[cell] = blocks.loc[cell] - row["batch_ratio"] * blocks.loc[row["alone"]]
    estimates = []
    for before, after in pairs:
        share = Estimate(math.nan)
        if before in beyond and after in beyond:
            shared = pd.concat([beyond[before], beyond[after]], axis="columns").dropna().to_numpy(float)
            if len(shared) >= MIN_SHARED_BLOCKS:
                share = _ratio_of_means(shared[:, 1], shared[:, 0])
        recovered = Estimate(1 - share.value, 1 - share.high, 1 - share.low, share.n)
        estimates.append(None if math.isnan(share.low) else recovered)
    return estimates


def _ratio_of_means(numerator: np.ndarray, denominator: np.ndarray) -> Estimate:
    """Return the ratio of the means of pairs [n] with Fieller's interval; no bounds if it is infinite."""
    n = len(numerator)
    top, bottom = float(numerator.mean()), float(denominator.mean())
    (var_top, covariance), (_, var_bottom) = np.cov(numerator, denominator) / n
    t_squared = float(scipy.special.stdtrit(n - 1, (1 + CONFIDENCE) / 2)) ** 2
    # Fieller's bounds r solve (top - r bottom)^2 = t^2 (var_top - 2 r covariance + r^2 var_bottom).
    a = bottom**2 - t_squared * var_bottom
    half_b = top * bottom - t_squared * covariance
    c = top**2 - t_squared * var_top
    if bottom <= 0 or a <= 0:
        return Estimate(top / bottom, n=n)
    root = math.sqrt(max(0.0, half_b**2 - a * c))
    return Estimate(top / bottom, (half_b - root) / a, (half_b + root) / a, n)
