"""Other models of the time of an optimizer step, which the law (prediction.law) is compared with.

    Ernest       T = k (a + beta b) + c log2 p + d (p - 1) + e log2 p G / B + f 2 (n - 1) / n G / B
    log-linear   log T = a + e log k + b log p + c log(k b p) + d log B, for cells on several nodes
    by hand      T of a device at the smallest scale, and 2 (n - 1) / n G / B; nothing is fitted to more nodes

k passes of b samples a device, p devices on n nodes, G bytes of gradients, links of B bytes/s per node.
Ernest's coefficients a to f are not negative. Ernest (Venkataraman et al., NSDI 2016, section 3.3) fits
serial, parallel, tree and linear terms, and lets the user add others: c to f are latency and bytes of a tree
and of a ring (Thakur et al. 2005). Fits minimize relative errors, because predictions are judged by them; a
cell's weight is its number of runs.

Each function takes measured cells of one series and cells to predict (`law.LAW_COLUMNS`), and returns
seconds, NaN if the model cannot predict a cell.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from analysis import leave_out
from prediction.law import HIERARCHICAL, Array, Regressors, build_regressors

Model = Callable[[pd.DataFrame, pd.DataFrame], Array]


def predict_by_ernest(measured: pd.DataFrame, cells: pd.DataFrame) -> Array:
    """Return optimizer steps by Ernest."""
    columns, new_columns = _ernest_columns(measured), _ernest_columns(cells)
    is_usable = ~np.isnan(columns).any(axis=1)
    if not is_usable.any():
        return np.full(len(cells), np.nan)
    columns, measured = columns[is_usable], measured[is_usable]
    root_n = np.sqrt(measured["n"].to_numpy(float))
    sizes = np.maximum(columns.max(axis=0), np.finfo(float).tiny)
    shares = columns / sizes / measured["optimizer_step_s"].to_numpy(float)[:, None]
    coefficients = nnls(shares * root_n[:, None], root_n)[0]
    seconds: Array = new_columns / sizes @ coefficients
    return seconds


def predict_log_linear(measured: pd.DataFrame, cells: pd.DataFrame) -> Array:
    """Return optimizer steps by the log-linear model; NaN if cells on several nodes do not determine it."""
    distributed = measured[measured["nodes"] > 1]
    if distributed.empty:
        return np.full(len(cells), np.nan)
    logs = leave_out.predict(
        _log_columns(distributed),
        np.log(distributed["optimizer_step_s"].to_numpy(float)),
        distributed["n"].to_numpy(float),
        _log_columns(cells),
    )
    return np.exp(logs)


def predict_by_hand(measured: pd.DataFrame, cells: pd.DataFrame) -> Array:
    """Return the optimizer steps of the smallest scale, plus the gradients at the rate of the links."""
    base = measured[measured["n_devices"] == measured["n_devices"].min()]
    base_regressors, new_regressors = build_regressors(base), build_regressors(cells)
    estimable = [True, len(np.unique(base_regressors.batch)) > 1, len(np.unique(base_regressors.passes)) > 1]
    shares = (
        _computation_columns(base_regressors)[:, estimable]
        / base["optimizer_step_s"].to_numpy(float)[:, None]
    )
    coefficients = nnls(shares, np.ones(len(base)))[0]
    sent_s = (
        new_regressors.node_regressors[HIERARCHICAL] - base_regressors.node_regressors[HIERARCHICAL].max()
    )
    seconds: Array = _computation_columns(new_regressors)[:, estimable] @ coefficients + sent_s
    return seconds


MODELS: dict[str, Model] = {
    "Ernest": predict_by_ernest,
    "log-linear": predict_log_linear,
    "by hand": predict_by_hand,
}


def _ernest_columns(cells: pd.DataFrame) -> Array:
    k, b, p = (cells[name].to_numpy(float) for name in ("n_passes", "local_batch", "n_devices"))
    # Without a size of gradients, only the terms of latency remain.
    gradients_s = (cells["gradient_bytes"] / cells["rate"].fillna(1.0)).fillna(0.0).to_numpy(float)
    nodes, tree = cells["nodes"].to_numpy(float), np.log2(p)
    ring_s = 2 * (nodes - 1) / nodes * gradients_s
    # On one and two nodes alone, a ring's terms equal a tree's; the fit uses the first of equal columns.
    return np.column_stack([k, k * b, tree, p - 1, ring_s, tree * gradients_s])


def _log_columns(cells: pd.DataFrame) -> Array:
    k, b, p = (cells[name].to_numpy(float) for name in ("n_passes", "local_batch", "n_devices"))
    rate = cells["rate"].fillna(1.0).to_numpy(float)
    return np.column_stack([np.ones(len(cells)), *map(np.log, (k, p, k * b * p, rate))])


def _computation_columns(regressors: Regressors) -> Array:
    """Return samples with the idle turns of a pipeline, passes and updates, [cells, 3]."""
    return np.column_stack(
        [
            regressors.samples * (1 + regressors.idle_turns / regressors.passes),
            regressors.passes,
            regressors.updated,
        ]
    )
