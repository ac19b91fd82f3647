"""Published models of epoch times, Ernest and a log-linear model, to compare the physical model with.

Both are fitted for each framework, device and treatment. Each has a second version that also gets the
collective benchmark, as the physical model does: the time M of one gradient all-reduce by the benchmark's law
(prediction.law) then replaces the textbook formula.

    Ernest       T = S (a + b k) + X (c log2 p + d (p - 1) + e log2 p G / r + f 2 (n - 1) / n G / r)
                 with the benchmark T = S (a + b k) + X (c log2 p + d (p - 1) + e M);  a ... f >= 0
    log-linear   log T = a + b log p + c log B + d log r + e log (S / X), for cells on several nodes;
                 with the benchmark log M instead of log r

S batches of k samples per rank and X all-reduces an epoch, p ranks on n nodes, global batch size B, G bytes
of gradients, links of r bytes/s. Ernest (Venkataraman et al., NSDI 2016, section 3.3) fits serial, parallel,
tree and linear terms and lets the user add others; the terms c to f are latency and bytes of a tree and a
ring (Thakur et al. 2005). Fits minimize relative errors, because predictions are judged by them; a cell's
weight is its number of runs.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from analysis import leave_out
from analysis.measured import factors
from common.notes import Note
from prediction import physics
from prediction.fold import Fold, Method, Prediction, problem_if_missing

Columns = Callable[[pd.DataFrame, np.ndarray], np.ndarray]
Fit = Callable[[np.ndarray, pd.DataFrame, np.ndarray], np.ndarray]


def ernest(with_benchmark: bool) -> Method:
    """Return non-negative least squares of relative errors on the terms of Ernest."""

    def columns(cells: pd.DataFrame, message_s: np.ndarray) -> np.ndarray:
        steps, n_allreduces, ranks = cells["steps"], cells["n_allreduces"], cells["ranks"]
        tree, ring, message = (
            n_allreduces * np.log2(ranks),
            n_allreduces * (ranks - 1),
            n_allreduces * message_s,
        )
        sent = (
            [message, tree, ring]
            if with_benchmark
            else [tree, ring, message, tree / cells["rate"].fillna(1.0)]
        )
        return np.column_stack(
            [np.asarray(term, float) for term in (steps, steps * cells["local_batch"], *sent)]
        )

    def fit(x: np.ndarray, cells: pd.DataFrame, new: np.ndarray) -> np.ndarray:
        root, size = np.sqrt(cells["n"].to_numpy(float)), np.maximum(x.max(axis=0), np.finfo(float).tiny)
        share = x / size / cells["epoch_time_s"].to_numpy()[:, None]
        predicted: np.ndarray = new / size @ nnls(share * root[:, None], root)[0]
        return predicted

    return _fit_method(columns, fit, with_benchmark, with_one_node=True)


def log_linear(with_benchmark: bool) -> Method:
    """Return least squares of logarithms on those of ranks, batch size, link rate and accumulation steps.

    With the collective benchmark, the time of an all-reduce takes the place of the link rate.
    """

    def columns(cells: pd.DataFrame, message_s: np.ndarray) -> np.ndarray:
        network_term = message_s if with_benchmark else cells["rate"].fillna(1.0)
        return np.column_stack(
            [np.ones(len(cells)), *(np.log(x) for x in (cells["ranks"], cells["batch_size"], network_term))]
        )

    def fit(x: np.ndarray, cells: pd.DataFrame, new: np.ndarray) -> np.ndarray:
        return np.exp(
            leave_out.predict(x, np.log(cells["epoch_time_s"].to_numpy()), cells["n"].to_numpy(float), new)
        )

    return _fit_method(columns, fit, with_benchmark, with_one_node=False)


def _fit_method(columns: Columns, fit: Fit, with_benchmark: bool, with_one_node: bool) -> Method:
    """Return the method with these terms; `with_one_node`: cells on one node are used for the fit, too."""

    def predict(fold: Fold) -> Prediction:
        seconds = np.full(len(fold.test), np.nan)
        for own, rows in _prediction_groups(fold):
            test = fold.test.iloc[rows]
            train = own if with_one_node else own[own["nodes"] > 1]
            all_cells = pd.concat([train, test], ignore_index=True)
            x = columns(
                all_cells,
                _benchmark_allreduce_s(fold, all_cells)
                if with_benchmark
                else _ring_allreduce_s(fold, all_cells),
            )
            usable, last = ~np.isnan(x.sum(axis=1)), len(train)
            if usable[:last].any() and usable[last:].any():
                seconds[rows[usable[last:]]] = fit(
                    x[:last][usable[:last]], train[usable[:last]], x[last:][usable[last:]]
                )
        missing = "collective benchmark or the remaining cells" if with_benchmark else "remaining cells"
        text = f"the {missing} of the same treatment do not determine it"
        return Prediction(
            seconds, problem_if_missing(seconds, Note("not-determined", text, with_benchmark=with_benchmark))
        )

    return predict


def _prediction_groups(fold: Fold) -> Iterator[tuple[pd.DataFrame, np.ndarray]]:
    """Yield training cells and rows of test cells for each framework, device and treatment to predict."""
    keys = ["framework", "device", *(name for name in factors() if name not in physics.NOT_COMPUTATION)]
    trained = dict(iter(fold.train.groupby(keys, dropna=False)))
    for levels, rows in fold.test.groupby(keys, dropna=False).indices.items():
        own = trained.get(levels)
        if own is not None:
            yield own, rows


def _ring_allreduce_s(fold: Fold, cells: pd.DataFrame) -> np.ndarray:
    """Return seconds of a gradient all-reduce at the link rate, [cells]; at 1 byte/s if there is no rate."""
    share = 2 * (1 - 1 / cells["nodes"].to_numpy(float))
    return share * _gradient_bytes(fold, cells) / cells["rate"].fillna(1.0).to_numpy()


def _benchmark_allreduce_s(fold: Fold, cells: pd.DataFrame) -> np.ndarray:
    """Return seconds of a gradient all-reduce by the benchmark, [cells]; 0 on one node, NaN if unknown."""
    seconds, size = np.where(cells["nodes"] > 1, np.nan, 0.0), _gradient_bytes(fold, cells)
    for carrier, rows in cells[cells["nodes"] > 1].groupby(["framework", "device"]).groups.items():
        if benchmark_law := fold.base_model.law(carrier):
            group = cells.loc[rows]
            local_law = benchmark_law.at(*(group[name].to_numpy() for name in ("nodes", "ranks", "rate")))
            seconds[rows] = local_law.seconds(size[rows])
    return seconds


def _gradient_bytes(fold: Fold, cells: pd.DataFrame) -> np.ndarray:
    """Return the gradient bytes of each cell, [cells]; NaN for a model that Ringside does not describe."""
    gradients = fold.base_model.gradients
    pairs = zip(cells["model"], cells["dataset"], strict=True)
    return np.array([gradients[pair].total_bytes if pair in gradients else np.nan for pair in pairs], float)
