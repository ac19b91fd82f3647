"""Other models of the time of an optimizer step, which the law (prediction.law) is compared with.

    Ernest       T = k (a + beta b) + c log2 p + d (p - 1) + e log2 p G / B + f 2 (n - 1) / n G / B
    log-linear   log T = a + e log k + b log p + c log(k b p) + d log B, for cells on several nodes
    by hand      T of a device at the smallest place, and 2 (n - 1) / n G / B; nothing is fitted to more nodes

k micro-batches of b samples a device, p ranks on n nodes, G bytes of gradients, links of B bytes/s a node; a
... f are not negative. Ernest (Venkataraman et al., NSDI 2016, section 3.3) fits serial, parallel, tree and
linear terms and lets the user add others: c to f are latency and bytes of a tree and of a ring (Thakur et al.
2005). Fits minimize relative errors, because predictions are judged by them; a cell's weight is its number of
runs.

Each function takes measured cells of one series and cells to predict (prediction.law.COLUMNS), and returns
seconds, NaN where the model gives none.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from analysis import leave_out
from prediction.law import HIERARCHICAL, Array, step_terms

Model = Callable[[pd.DataFrame, pd.DataFrame], Array]


def predict_by_ernest(measured: pd.DataFrame, cells: pd.DataFrame) -> Array:
    """Return steps by Ernest."""
    columns, new = _ernest_columns(measured), _ernest_columns(cells)
    usable = ~np.isnan(columns).any(axis=1)
    if not usable.any():
        return np.full(len(cells), np.nan)
    columns, own = columns[usable], measured[usable]
    root = np.sqrt(own["n"].to_numpy(float))
    size = np.maximum(columns.max(axis=0), np.finfo(float).tiny)
    shares = columns / size / own["step_s"].to_numpy(float)[:, None]
    coefficients = nnls(shares * root[:, None], root)[0]
    seconds: Array = new / size @ coefficients
    return seconds


def predict_log_linear(measured: pd.DataFrame, cells: pd.DataFrame) -> Array:
    """Return steps by the log-linear model; NaN where measured cells on several nodes do not determine it."""
    own = measured[measured["nodes"] > 1]
    if own.empty:
        return np.full(len(cells), np.nan)
    times = np.log(own["step_s"].to_numpy(float))
    logs = leave_out.predict(_log_columns(own), times, own["n"].to_numpy(float), _log_columns(cells))
    return np.exp(logs)


def predict_by_hand(measured: pd.DataFrame, cells: pd.DataFrame) -> Array:
    """Return steps by hand: those of the smallest place, and the gradients at the rate of the links."""
    base = measured[measured["ranks"] == measured["ranks"].min()]
    terms, new = step_terms(base), step_terms(cells)
    columns, new_columns = (
        np.column_stack([own.samples * (1 + own.bubble / own.calls), own.calls, own.updates])
        for own in (terms, new)
    )
    varies = [True, len(np.unique(terms.batch)) > 1, len(np.unique(terms.calls)) > 1]
    coefficients = nnls(columns[:, varies] / base["step_s"].to_numpy(float)[:, None], np.ones(len(base)))[0]
    sent_s = new.costs[HIERARCHICAL] - terms.costs[HIERARCHICAL].max()
    seconds: Array = new_columns[:, varies] @ coefficients + sent_s
    return seconds


MODELS: dict[str, Model] = {
    "Ernest": predict_by_ernest,
    "log-linear": predict_log_linear,
    "by hand": predict_by_hand,
}


def _ernest_columns(cells: pd.DataFrame) -> Array:
    k, b, p = (cells[name].to_numpy(float) for name in ("accumulation", "local_batch", "ranks"))
    # Without a size of gradients, the terms of latency remain.
    gradients_s = (cells["gradient_bytes"] / cells["rate_out"].fillna(1.0)).fillna(0.0).to_numpy(float)
    nodes, tree = cells["nodes"].to_numpy(float), np.log2(p)
    ring_s = 2 * (nodes - 1) / nodes * gradients_s
    # Between one and two nodes a ring's terms equal a tree's; the first of them is fitted.
    return np.column_stack([k, k * b, tree, p - 1, ring_s, tree * gradients_s])


def _log_columns(cells: pd.DataFrame) -> Array:
    k, b, p = (cells[name].to_numpy(float) for name in ("accumulation", "local_batch", "ranks"))
    rate = cells["rate_out"].fillna(1.0).to_numpy(float)
    return np.column_stack([np.ones(len(cells)), *map(np.log, (k, p, k * b * p, rate))])
