"""The law of prediction: seconds of an optimizer step at places that were not measured.

    T = k (alpha + beta b) + u + w (p - 1) c + a_in C_in + d m + F

k micro-batches of b samples a device, p pipeline stages, c the time of a micro-batch. Computation (alpha,
beta), the update (u), the share of a pipeline's bubble that is not filled (w), what replicas that share a
node send each other (C_in) and what a library adds to each of m messages within layers (d) are common to all
forms of the law. The forms differ in F, the cost of more nodes, which is a sum of some of these terms:

    flat             a 2 (r - 1) / r G / B_out     one ring over all r replicas (NCCL on few nodes)
    hierarchical     a 2 (n - 1) / n G / B_out     each of n nodes sends its sum once
    tree             a log2 n G / B_out            all bytes in each of log2 n turns
    messages         a max(M - h 2/3 c, 0)         M: by the collective benchmark, if there is one; h: the
                                                   share of the last backward pass that overlaps them
    waiting          s log2 n sqrt(k) c            for the slowest of n nodes, or of r replicas
    start-ups        l log2 r

G are the bytes of gradients of a device, C_in = 2 (g - 1) / g G / B_in for g replicas of a node, and B_in and
B_out the nominal rates of a device inside a node and of a node outwards (Thakur, Rabenseifner & Gropp, Int.
J. High Perform. Comput. Appl. 19, 2005, section 4.5). States sharded over all devices are gathered and
reduced in each micro-batch, (2 k + 1) / 2 times the bytes of one all-reduce.

Each form is fitted by non-negative least squares of relative errors, with weak priors, so that one place on
several nodes informs it, and places without any take nominal rates. Predictions are the geometric mean of the
forms, weighted by their left-out errors. The 90 % band has the spread of the forms, their left-out errors,
the uncertainty of the coefficients and a part for each doubling of devices; its constants were set on public
measurements (benchmarks/public_series.py).

Places inside a node follow no law, because links of a node have any topology: places on several nodes are
predicted from whole nodes, as measured.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

Array = NDArray[np.float64]

COLUMNS = (
    "gradient_bytes", "nodes", "devices_per_node", "ranks", "local_batch", "accumulation", "tensor",
    "pipeline", "sharded", "rate_out", "rate_in", "step_s", "n", "sd",
)  # fmt: skip
OPTIONAL = {
    "message_s": math.nan, "hierarchical_s": math.nan, "work": 1.0, "calls": 1.0, "updated": 1.0,
    "n_blocking": 0.0,
}  # fmt: skip

FLAT, HIERARCHICAL, TREE, START_UPS = "flat", "hierarchical", "tree", "start-ups"
WAITING, WAITING_OF_REPLICAS = "waiting", "waiting of replicas"
NOTHING_HIDDEN = "messages"
MESSAGES = {NOTHING_HIDDEN: 0.0, "messages, half hidden": 0.5, "messages, hidden": 0.75}  # name -> h
# Form -> its terms, and its weight before left-out errors: the logarithms alone are one idea, often equal.
FORMS: dict[tuple[str, ...], float] = {
    (FLAT,): 1.0,
    (HIERARCHICAL,): 1.0,
    (WAITING,): 0.5,
    (WAITING_OF_REPLICAS,): 0.5,
    (HIERARCHICAL, TREE, WAITING, START_UPS): 1.0,
    **{(name, WAITING, START_UPS): 1.0 for name in MESSAGES},
}
# What a term of the law is part of, as tables and sentences name it.
COMMON_PARTS = ("calls", "samples", "updates", "bubble", "inside", "blocking")
PARTS = {
    "calls": "constant time of a batch",
    "samples": "computation",
    "updates": "updates",
    "bubble": "pipeline bubble",
    "inside": "communication inside nodes",
    "blocking": "messages within layers",
    **dict.fromkeys((FLAT, HIERARCHICAL, TREE, *MESSAGES), "communication between nodes"),
    **dict.fromkeys((WAITING, WAITING_OF_REPLICAS), "waiting for the slowest rank"),
    START_UPS: "latency of messages",
}
BACKWARD_SHARE = 2 / 3  # of computation: two matrix products for each one in the forward pass

# Priors (mean, standard deviation): alpha, u, d and l in micro-batches, the others as in the formula.
ALPHA, UPDATE, BUBBLE, INSIDE, BLOCKING = (0.05, 0.3), (0.05, 0.3), (0.7, 0.4), (0.3, 1.0), (0.0, 0.1)
NOT_FITTED = 1e-6  # standard deviation of a coefficient that the cells do not separate from others
LINK, MESSAGE, WAIT, START_UP = (0.5, 0.5), (1.0, 0.5), (0.0075, 0.04), (0.0, 0.04)
UNKNOWN_LINK_SHARE = 1.0  # of the smallest place's step that the link takes where its rate is not known
MODEL_ERROR = 0.01  # of a measured place, relative, besides its noise
LEFT_OUT_ERROR = 0.01  # added to a form's left-out errors, so that no form gets all the weight by chance
MIN_CELLS_TO_LEAVE_OUT = 4
BAND = 0.90  # probability
Z = 1.645  # its half width in standard deviations
BAND_FLOOR = 0.005
MAX_LOG_SD = math.log(1000)  # beyond it, coefficients say nothing of a step
BAND_DOUBLING = 0.01  # for each doubling of devices beyond those measured
MIN_BATCHES = 2  # levels of the batch without which another one is not predicted
MISFIT_WARNING = 0.01
MIN_STEP_S = 1e-12  # of a form, which could be 0 where its cells contradict each other
MAX_VARIANCE = 900.0  # of a logarithm; a larger one has no meaning, and bands would overflow
DIGITS = 9  # of batches that are compared


@dataclass(frozen=True)
class Terms:
    """What the coefficients of the law are multiplied by, an array [cells] each.

    Attributes:
        calls: Micro-batches.
        samples: Samples of a device.
        updates: Updates.
        bubble: Idle turns of a pipeline.
        inside: Seconds of bytes inside a node.
        blocking: Messages within layers.
        batch: Samples of a device in a micro-batch, rounded.
        ranks: Devices.
        costs: Costs of more nodes by name, those of waiting in units of sqrt(k) c.
    """

    calls: Array
    samples: Array
    updates: Array
    bubble: Array
    inside: Array
    blocking: Array
    batch: Array
    ranks: Array
    costs: Mapping[str, Array]

    def __getitem__(self, cells: Array) -> "Terms":
        """Return the terms of some cells."""
        names = ("calls", "samples", "updates", "bubble", "inside", "blocking", "batch", "ranks")
        chosen = {name: getattr(self, name)[cells] for name in names}
        return Terms(costs={name: cost[cells] for name, cost in self.costs.items()}, **chosen)

    def columns(self, form: Sequence[str], sample_s: float) -> Array:
        """Return the matrix of a form, [cells, 6 + terms], where a sample takes a device `sample_s`."""
        micro_s = sample_s * self.samples / self.calls
        costs = []
        for name in form:
            cost = self.costs[name]
            if name in MESSAGES:
                cost = np.maximum(cost - MESSAGES[name] * BACKWARD_SHARE * micro_s, 0.0)
            elif name in (WAITING, WAITING_OF_REPLICAS):
                cost = cost * np.sqrt(self.calls) * micro_s
            costs.append(cost)
        common = (self.calls, self.samples, self.updates, self.bubble * micro_s, self.inside, self.blocking)
        return np.column_stack([*common, *costs])


def step_terms(cells: pd.DataFrame) -> Terms:
    """Return the terms of cells with COLUMNS, and OPTIONAL ones where the caller knows better.

    `message_s` is the time of all messages of a step by the collective benchmark. Cells whose model is
    divided unevenly state `work` and `calls`, the shares of the multiplications and of the operators that a
    device does, `updated`, its share of the update, `n_blocking`, its messages within layers, and
    `hierarchical_s`, the time of its messages at the rates of the links.
    """
    values = {name: cells[name].to_numpy(float) for name in COLUMNS if name in cells and name != "sharded"}
    extra = {
        name: cells[name].fillna(default).to_numpy(float) if name in cells else np.full(len(cells), default)
        for name, default in OPTIONAL.items()
    }
    division = values["tensor"] * values["pipeline"]
    per_node = np.minimum(values["devices_per_node"], values["ranks"])
    replicas, on_node = values["ranks"] / division, np.maximum(per_node / division, 1.0)
    spanned, groups = np.ceil(replicas / on_node - 1e-9), np.minimum(division, per_node)
    k, b = values["accumulation"], values["local_batch"]
    gradients = values["gradient_bytes"] / division
    gradients = gradients * np.where(cells["sharded"].to_numpy(bool), (2 * k + 1) / 2, 1.0)
    link_s = np.where(spanned > 1, gradients * groups / values["rate_out"], 0.0)
    factors = {
        FLAT: 2 * (replicas - 1) / replicas, HIERARCHICAL: 2 * (spanned - 1) / spanned, TREE: np.log2(spanned)
    }  # fmt: skip
    links = {name: factor * link_s for name, factor in factors.items()}
    stated = ~np.isnan(extra["hierarchical_s"])
    links |= {name: np.where(stated, extra["hierarchical_s"], links[name]) for name in (FLAT, HIERARCHICAL)}
    inside_s = np.where(on_node > 1, 2 * (on_node - 1) / on_node * gradients / values["rate_in"], 0.0)
    return Terms(
        calls=k * extra["calls"],
        samples=k * b * extra["work"],
        updates=extra["updated"],
        bubble=values["pipeline"] - 1.0,
        inside=np.nan_to_num(inside_s),
        blocking=extra["n_blocking"],
        batch=np.round(b, DIGITS),
        ranks=values["ranks"],
        costs={
            **links,
            **{name: np.where(values["nodes"] > 1, extra["message_s"], 0.0) for name in MESSAGES},
            WAITING: np.log2(values["nodes"]),
            WAITING_OF_REPLICAS: np.log2(np.maximum(replicas, 1.0)),
            START_UPS: np.log2(values["ranks"]),
        },
    )


@dataclass(frozen=True)
class Form:
    """One fitted form of the law.

    Attributes:
        names: Its terms, a key of FORMS.
        sample_s: Seconds of a sample on a device, at the smallest place.
        coefficients: alpha, beta, u, w, a_in, d and those of the terms, [6 + terms].
        covariance: Their covariance.
    """

    names: tuple[str, ...]
    sample_s: float
    coefficients: Array
    covariance: Array

    def columns(self, terms: Terms) -> Array:
        """Return the seconds of each of COMMON_PARTS and of `names`, [cells, 6 + terms]."""
        return terms.columns(self.names, self.sample_s) * self.coefficients

    def predict(self, terms: Terms) -> Array:
        """Return seconds, [cells]."""
        seconds: Array = np.maximum(terms.columns(self.names, self.sample_s) @ self.coefficients, MIN_STEP_S)
        return seconds

    def log_covariance(self, terms: Terms) -> Array:
        """Return the covariance of the logarithms of seconds by that of the coefficients, [cells, cells]."""
        shares = terms.columns(self.names, self.sample_s) / self.predict(terms)[:, None]
        covariance: Array = shares @ self.covariance @ shares.T
        scale = MAX_LOG_SD / np.sqrt(np.maximum(np.diag(covariance), MAX_LOG_SD**2))
        return covariance * np.outer(scale, scale)


def fit_form(names: tuple[str, ...], terms: Terms, seconds: Array, error: Array) -> Form:
    """Return a form by non-negative least squares of relative errors with weak priors.

    Lawson & Hanson, Solving Least Squares Problems, 1974, chapter 23.

    Args:
        names: Its terms.
        terms: Terms of the measured cells.
        seconds: Their steps.
        error: Their relative standard errors.
    """
    base = int(np.argmin(terms.ranks))
    fill = 1.0 + terms.bubble[base] / terms.calls[base]
    sample_s = float(seconds[base] / (terms.samples[base] * fill))
    micro_s = sample_s * terms.samples[base] / terms.calls[base]
    own = {START_UPS: (*START_UP, micro_s), WAITING: (*WAIT, 1.0), WAITING_OF_REPLICAS: (*WAIT, 1.0)}
    own |= dict.fromkeys(MESSAGES, (*MESSAGE, 1.0))
    priors = {
        0: (*ALPHA, micro_s),
        2: (*UPDATE, micro_s),
        3: (*BUBBLE, 1.0),
        4: (*INSIDE, 1.0),
        5: (*BLOCKING, micro_s),
    }
    priors |= {6 + i: own.get(name, (*LINK, 1.0)) for i, name in enumerate(names)}
    if len(np.unique(np.round(terms.calls / terms.updates, DIGITS))) == 1:
        priors[2] = (0.0, NOT_FITTED, micro_s)  # without accumulation, an update is part of a batch
    columns = terms.columns(names, sample_s)
    prior_rows, prior_values = np.zeros((len(priors), columns.shape[1])), np.zeros(len(priors))
    for row, (column, (mean, sd, unit)) in enumerate(priors.items()):
        prior_rows[row, column], prior_values[row] = 1 / (sd * unit), mean / sd
    rows = np.vstack([columns / (seconds * error)[:, None], prior_rows])
    scale = np.maximum(np.abs(rows).max(axis=0), np.finfo(float).tiny)
    rows = rows / scale
    coefficients = nnls(rows, np.concatenate([1 / error, prior_values]))[0] / scale
    residuals = columns @ coefficients / seconds - 1
    misfit = math.sqrt(float(np.sum(residuals**2)) / max(len(seconds) - 1, 1))
    excess = max(1.0, misfit / math.sqrt(float(np.mean(error**2))))
    return Form(
        names, sample_s, coefficients, excess**2 * np.linalg.pinv(rows.T @ rows) / np.outer(scale, scale)
    )


@dataclass(frozen=True)
class Steps:
    """Predicted optimizer steps, an array [cells] each.

    Attributes:
        seconds: NaN where there is no prediction.
        log_sd: Standard deviation of the logarithm, of which the band is Z to both sides.
        unseen_batch: Not predicted: the batch was not measured, and fewer than MIN_BATCHES others were.
        misfit: Root mean square of the relative errors of the law at its own cells.
    """

    seconds: Array
    log_sd: Array
    unseen_batch: NDArray[np.bool_]
    misfit: float = 0.0

    @property
    def low(self) -> Array:
        """The lower end of the 90 % band."""
        return self.seconds * np.exp(-Z * self.log_sd)

    @property
    def high(self) -> Array:
        """The upper end of the 90 % band."""
        return self.seconds * np.exp(Z * self.log_sd)


@dataclass(frozen=True)
class Law:
    """The law of one series: one framework, device, model and treatment, at several places.

    Attributes:
        cells: Measured cells with COLUMNS.
    """

    cells: pd.DataFrame

    @cached_property
    def terms(self) -> Terms:
        """The terms of the measured cells."""
        return step_terms(self.cells)

    @cached_property
    def seconds(self) -> Array:
        """The measured steps."""
        return self.cells["step_s"].to_numpy(float)

    @cached_property
    def error(self) -> Array:
        """Relative standard errors of the measured steps: MODEL_ERROR, and the pooled noise of runs."""
        n, sd = self.cells["n"].to_numpy(float), self.cells["sd"].to_numpy(float)
        repeated = (n > 1) & ~np.isnan(sd)
        cv = 0.0
        if repeated.any():
            squares = (sd[repeated] / self.seconds[repeated]) ** 2
            cv = math.sqrt(float(np.average(squares, weights=n[repeated] - 1)))
        return np.sqrt(MODEL_ERROR**2 + cv**2 / n)

    @cached_property
    def forms(self) -> list[Form]:
        """The fitted forms; a form that lacks a rate or a benchmark is left out."""
        costs = self.terms.costs
        usable = [names for names in FORMS if not any(np.isnan(costs[name]).any() for name in names)]
        return [fit_form(names, self.terms, self.seconds, self.error) for names in usable]

    @cached_property
    def left_out_errors(self) -> Array:
        """Root mean square errors of places but the smallest, each left out once, [forms]; 0: few cells."""
        ranks = self.terms.ranks
        left = np.flatnonzero(ranks > ranks.min())
        if len(ranks) < MIN_CELLS_TO_LEAVE_OUT or not len(left):
            return np.zeros(len(self.forms))
        errors = np.empty((len(self.forms), len(left)))
        for column, cell in enumerate(left):
            is_kept = np.arange(len(ranks)) != cell
            rest, seconds, error = self.terms[is_kept], self.seconds[is_kept], self.error[is_kept]
            for row, form in enumerate(self.forms):
                predicted = fit_form(form.names, rest, seconds, error).predict(self.terms[~is_kept])
                errors[row, column] = math.log(predicted[0] / self.seconds[cell])
        return np.sqrt(np.mean(errors**2, axis=1))

    @cached_property
    def weights(self) -> Array:
        """Weight of each form: inverse square of its left-out errors, and as a likelihood with many cells."""
        power = max(2.0, (self.terms.ranks > self.terms.ranks.min()).sum() / 2)
        logs = np.log([FORMS[form.names] for form in self.forms])
        logs = logs - power / 2 * np.log(self.left_out_errors**2 + LEFT_OUT_ERROR**2)
        weights: Array = np.exp(logs - logs.max())
        return weights

    @cached_property
    def misfit(self) -> float:
        """Root mean square of the relative errors at the measured cells themselves."""
        logs, weights = self._weigh(self.terms)
        return float(np.sqrt(np.mean((np.exp(_average(logs, weights)) / self.seconds - 1) ** 2)))

    def _weigh(self, terms: Terms) -> tuple[Array, Array]:
        """Return the logarithm of the seconds of each form, and its weight, [forms, cells] both.

        Before any place on several nodes is measured, messages that were benchmarked count alone there, or
        else forms with links.
        """
        logs = np.log([form.predict(terms) for form in self.forms])
        weights = self.weights[:, None] * ~np.isnan(logs)
        if not (self.cells["nodes"] > 1).any():
            timed, linked = (
                np.array([[form.names[0] in names] for form in self.forms]) & ~np.isnan(logs)
                for names in ({NOTHING_HIDDEN}, {FLAT, HIERARCHICAL})
            )
            chosen = np.where(timed.any(axis=0), timed, linked) | (terms.costs[WAITING] == 0)
            weights = weights * chosen
        total = weights.sum(axis=0)
        return logs, weights / np.where(total > 0, total, math.nan)

    def covariance(self, cells: pd.DataFrame) -> Array:
        """Return the covariance of the logarithms of predicted steps but for BAND_FLOOR, [cells, cells].

        Forms and coefficients err alike at all places. A form's left-out error is shared by places next to
        each other, half of it by places a doubling apart.
        """
        terms = step_terms(cells)
        logs, weights = self._weigh(terms)
        distances = np.abs(np.subtract.outer(np.log2(terms.ranks), np.log2(terms.ranks)))
        deviations = logs - _average(logs, weights)
        doublings = np.maximum(np.log2(terms.ranks / self.terms.ranks.max()), 0.0)
        covariance = BAND_DOUBLING**2 * np.outer(doublings, doublings)
        for form, own, deviation, error in zip(
            self.forms, np.sqrt(weights), deviations, self.left_out_errors, strict=True
        ):
            shared = np.outer(deviation, deviation) + error**2 * 2.0 ** -(distances**2)
            spread = shared + form.log_covariance(terms)
            covariance += np.nan_to_num(np.outer(own, own) * spread)
        return np.clip(covariance, -MAX_VARIANCE, MAX_VARIANCE)

    def parts(self, cells: pd.DataFrame) -> pd.DataFrame:
        """Return the seconds of each of PARTS in predicted steps, averaged over forms, [cells, parts]."""
        terms = step_terms(cells)
        logs, weights = self._weigh(terms)
        seconds = pd.DataFrame(0.0, index=cells.index, columns=sorted(set(PARTS.values())))
        for form, own in zip(self.forms, weights, strict=True):
            names = [*COMMON_PARTS, *form.names]
            for name, column in zip(names, form.columns(terms).T, strict=True):
                seconds[PARTS[name]] += np.nan_to_num(own * column)
        return seconds.mul(np.exp(_average(logs, weights)) / seconds.sum(axis=1), axis=0)

    def predict(self, cells: pd.DataFrame) -> Steps:
        """Return the steps of cells with COLUMNS, except those of measurements."""
        terms = step_terms(cells)
        logs, weights = self._weigh(terms)
        log_sd = np.sqrt(np.diag(self.covariance(cells)) + BAND_FLOOR**2)
        seen = np.unique(self.terms.batch)
        unseen = ~np.isin(terms.batch, seen) & (len(seen) < MIN_BATCHES)
        seconds = np.where(unseen, np.nan, np.exp(_average(logs, weights)))
        return Steps(seconds, log_sd, unseen, self.misfit)


def _average(logs: Array, weights: Array) -> Array:
    """Return the weighted mean of [forms, cells] over forms; NaN where no form has a weight."""
    mean: Array = np.sum(np.where(weights > 0, weights * logs, 0.0), axis=0) + 0 * weights.sum(axis=0)
    return mean


def predict_steps(measured: pd.DataFrame, cells: pd.DataFrame) -> Steps:
    """Return the steps of cells of one series, each from measured cells whose nodes have as many devices.

    Without such cells, all measured ones are used, with the law of places inside a node. Where the size of
    gradients or the rate of links is not known, a link takes UNKNOWN_LINK_SHARE of the smallest place's step,
    and places on several nodes are predicted only if another one was measured.
    """
    is_blind = _is_blind(measured, cells)
    parts = [(rows, law.predict(own)) for rows, law, own in split_places(measured, cells)]
    steps = join_steps(len(cells), parts)
    return replace(steps, seconds=np.where(is_blind, np.nan, steps.seconds))


def split_places(
    measured: pd.DataFrame, cells: pd.DataFrame
) -> Iterator[tuple[NDArray[np.intp], Law, pd.DataFrame]]:
    """Yield rows of `cells` whose nodes have as many devices, their law, and their cells, all links known."""
    measured, cells = _fill_unknown_links(measured, cells)
    for devices, rows in cells.groupby("devices_per_node").indices.items():
        own = measured[measured["devices_per_node"] == devices]
        yield rows, Law(own if len(own) else measured), cells.iloc[rows]


def _is_blind(measured: pd.DataFrame, cells: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which cells have links of a rate that says nothing, since the measured links have none."""
    linked = measured[measured["nodes"] > 1]
    is_known = linked["rate_out"].notna().any() or linked.get("message_s", pd.Series()).notna().any()
    return ((cells["nodes"] > 1) & cells["rate_out"].notna() & (len(linked) > 0 and not is_known)).to_numpy()


def _fill_unknown_links(measured: pd.DataFrame, cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both with rates that replace unknown ones of the cells that are predicted."""
    links = cells.loc[cells["nodes"] > 1, ["gradient_bytes", "rate_out"]]
    if links.notna().all(axis=None):
        return measured, cells
    base_s = measured.loc[measured["ranks"] == measured["ranks"].min(), "step_s"].mean()
    size = measured["gradient_bytes"].max()
    size = 1.0 if math.isnan(size) else size
    is_informed = (measured["nodes"] > 1).any()
    rate = size / (UNKNOWN_LINK_SHARE * base_s) if is_informed else math.nan
    usual = measured.loc[measured["nodes"] > 1, "rate_out"].max()  # NaN: unknown, and all rates are one
    filled = (
        table.assign(gradient_bytes=size, rate_out=rate * (table["rate_out"] / usual).fillna(1.0))
        for table in (measured, cells)
    )
    return next(filled), next(filled)


def join_steps(count: int, parts: Sequence[tuple[NDArray[np.intp], Steps]]) -> Steps:
    """Return the steps of `count` cells from those of some of their rows; NaN for all others."""
    joined = Steps(np.full(count, np.nan), np.full(count, np.nan), np.zeros(count, bool))
    for rows, steps in parts:
        joined.seconds[rows], joined.log_sd[rows] = steps.seconds, steps.log_sd
        joined.unseen_batch[rows] = steps.unseen_batch
    return replace(joined, misfit=max((steps.misfit for _, steps in parts), default=0.0))
