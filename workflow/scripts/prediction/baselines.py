"""What others predict epoch times with, as strong as it can be made: Ernest and a log-linear model.

Both are fitted for each framework, device and treatment. Each has a sibling that gets what the physical model gets beside
runs, the sweep of the network: the seconds M of one all-reduce of the gradients by the sweep's law (prediction.law) then stand
in place of what textbooks say of them.

    Ernest       T = S (a + b k) + X (c log2 p + d (p - 1) + e log2 p G / r + f 2 (n - 1) / n G / r),     a ... f >= 0
                 with the sweep T = S (a + b k) + X (c log2 p + d (p - 1) + e M)
    log-linear   log T = a + b log p + c log B + d log r + e log (S / X),     of cells on several nodes; with the sweep log M for log r

S batches of k samples a rank and X exchanges an epoch, p ranks on n nodes, B samples in a batch of all ranks, G bytes of gradients,
links of r bytes/s. Ernest (Venkataraman et al., NSDI 2016, section 3.3) fits serial, parallel, tree and linear terms and lets the
user add others; those of c to f are what a tree and a ring cost in start-ups and in bytes (Thakur et al. 2005). The errors that
are made small are relative ones, as predictions are judged by them; cells count as often as they have runs.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from analysis import leave_out
from analysis.measured import factors
from common.notes import Note
from prediction import physics
from prediction.fold import Fold, Method, Prediction, unless_all

Columns = Callable[[pd.DataFrame, np.ndarray], np.ndarray]
Fit = Callable[[np.ndarray, pd.DataFrame, np.ndarray], np.ndarray]


def ernest(swept: bool) -> Method:
    """Non-negative least squares of relative errors on the terms of Ernest; `swept`: with the sweep's seconds of a message."""

    def columns(cells: pd.DataFrame, message_s: np.ndarray) -> np.ndarray:
        steps, exchanges, ranks = cells["steps"], cells["exchanges"], cells["ranks"]
        tree, ring, message = exchanges * np.log2(ranks), exchanges * (ranks - 1), exchanges * message_s
        sent = [message, tree, ring] if swept else [tree, ring, message, tree / cells["rate"].fillna(1.0)]
        return np.column_stack([np.asarray(term, float) for term in (steps, steps * cells["local_batch"], *sent)])

    def fit(x: np.ndarray, cells: pd.DataFrame, new: np.ndarray) -> np.ndarray:
        root, size = np.sqrt(cells["n"].to_numpy(float)), np.maximum(x.max(axis=0), np.finfo(float).tiny)
        share = x / size / cells["epoch_time_s"].to_numpy()[:, None]
        predicted: np.ndarray = new / size @ nnls(share * root[:, None], root)[0]
        return predicted

    return _method(columns, fit, swept, alone=True)


def log_linear(swept: bool) -> Method:
    """Least squares of logarithms on those of ranks, batch size, rate and batches an exchange; `swept`: of the sweep's seconds in place of the rate."""

    def columns(cells: pd.DataFrame, message_s: np.ndarray) -> np.ndarray:
        known = message_s if swept else cells["rate"].fillna(1.0)
        return np.column_stack(
            [np.ones(len(cells)), *(np.log(x) for x in (cells["ranks"], cells["batch_size"], known))]
        )

    def fit(x: np.ndarray, cells: pd.DataFrame, new: np.ndarray) -> np.ndarray:
        return np.exp(leave_out.predict(x, np.log(cells["epoch_time_s"].to_numpy()), cells["n"].to_numpy(float), new))

    return _method(columns, fit, swept, alone=False)


def _method(columns: Columns, fit: Fit, swept: bool, alone: bool) -> Method:
    """The method of these terms; `alone`: cells on one node are fitted, too."""

    def predict(fold: Fold) -> Prediction:
        seconds = np.full(len(fold.test), np.nan)
        for own, rows in _groups(fold):
            test = fold.test.iloc[rows]
            train = own if alone else own[own["nodes"] > 1]
            both = pd.concat([train, test], ignore_index=True)
            x = columns(both, _swept_s(fold, both) if swept else _ring_s(fold, both))
            usable, last = ~np.isnan(x.sum(axis=1)), len(train)
            if usable[:last].any() and usable[last:].any():
                seconds[rows[usable[last:]]] = fit(
                    x[:last][usable[:last]], train[usable[:last]], x[last:][usable[last:]]
                )
        lacking = "the sweep of the network, or cells" if swept else "cells"
        text = f"{lacking} of the same treatment that are left do not determine it"
        return Prediction(seconds, unless_all(seconds, Note("not-determined", text, swept=swept)))

    return predict


def _groups(fold: Fold) -> Iterator[tuple[pd.DataFrame, np.ndarray]]:
    """For each framework, device and treatment that is to be predicted: its cells to fit, and its rows of the test cells."""
    keys = ["framework", "device", *(name for name in factors() if name not in physics.NOT_COMPUTATION)]
    trained = dict(iter(fold.train.groupby(keys, dropna=False)))
    for levels, rows in fold.test.groupby(keys, dropna=False).indices.items():
        own = trained.get(levels)
        if own is not None:
            yield own, rows


def _ring_s(fold: Fold, cells: pd.DataFrame) -> np.ndarray:
    """Seconds of one all-reduce of the gradients at the link's rate, [cells]; where the site names none, at 1 byte/s."""
    share = 2 * (1 - 1 / cells["nodes"].to_numpy(float))
    return share * _gradient_bytes(fold, cells) / cells["rate"].fillna(1.0).to_numpy()


def _swept_s(fold: Fold, cells: pd.DataFrame) -> np.ndarray:
    """Seconds of one all-reduce of the gradients by the law of the sweep, [cells]; 0 on one node, NaN without a sweep."""
    seconds, size = np.where(cells["nodes"] > 1, np.nan, 0.0), _gradient_bytes(fold, cells)
    for carrier, rows in cells[cells["nodes"] > 1].groupby(["framework", "device"]).groups.items():
        if found := fold.plain.law(carrier):
            here = cells.loc[rows]
            place = found.at(*(here[name].to_numpy() for name in ("nodes", "ranks", "rate")))
            seconds[rows] = place.seconds(size[rows])
    return seconds


def _gradient_bytes(fold: Fold, cells: pd.DataFrame) -> np.ndarray:
    known = fold.plain.gradients
    pairs = zip(cells["model"], cells["dataset"], strict=True)
    return np.array([known[pair].total_bytes if pair in known else np.nan for pair in pairs], float)
