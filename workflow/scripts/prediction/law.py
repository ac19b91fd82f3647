"""The law of an optimizer step: its seconds at scales that were not measured.

A scale is a number of nodes and of devices in each. In an optimizer step, each device makes k passes of b
samples: one for each accumulated batch, times the microbatches of a pipeline of p stages.

    T = k fixed_s + k b sample_s + update_s + w (p - 1) c + a_in C_in + v m + F

c is the time of a pass at the smallest measured scale, scaled to the samples of the pass. It is set before
the fit, so that the formula is linear in its coefficients: the optimizer step of the first measured cell of
that scale, divided by the number of its passes plus the idle turns of its pipeline. All of that step counts
as computation, including updates, constant times, and communication if that scale has several devices. F is
the cost of more nodes. The law has several forms (FORMS), which differ in F, a sum of terms. Each term has
one coefficient, which is fitted:

    term          coefficient    multiplied by           meaning of the coefficient
    FIXED         fixed_s        k                       constant seconds of a pass
    SAMPLE        sample_s       k b                     seconds of a sample
    UPDATE        update_s       1                       seconds of an update
    BUBBLE        w              (p - 1) c               the share of the pipeline's bubble that is not filled
    INSIDE        a_in           C_in                    relative to the nominal rate inside a node
    BLOCKING      v              m                       what a library adds to a message within layers
                                                         terms of F:
    FLAT          a              ring(replicas) G / B    one ring over all replicas (NCCL on few nodes)
    HIERARCHICAL  a              ring(spanned) G / B     each node that an all-reduce spans sends its sum once
    TREE          a              log2(spanned) G / B     all bytes in each of log2(spanned) rounds
    MESSAGES      a              max(M - h 2/3 c, 0)     M: seconds from the collective benchmark, if there is
                                                         one; h: share of the backward pass that overlaps them
    WAITING       s              log2(nodes) sqrt(k) c   waiting for the slowest node
    WAITING_OF_REPLICAS  s       log2(replicas) sqrt(k) c    waiting for the slowest replica
    LATENCY       l              log2(devices)           latency of messages

In a mesh of tensor or pipeline stages, calls, work and updates are shared, and k, k b and 1 are multiplied by
the shares of a device (`Regressors`). ring(x) = 2 (x - 1) / x. `replicas` are the devices divided by the
tensor and pipeline sizes, `spanned` the nodes that one all-reduce spans. G are the gradient bytes of a
device, C_in = ring(g) G / B_in the time of the bytes that the g replicas of a node send each other, and B and
B_in the nominal rates of a node outwards and of a device inside a node (Thakur, Rabenseifner & Gropp, Int. J.
High Perform. Comput. Appl. 19, 2005, section 4.5). Sharded parameters are gathered k + 1 times in an
optimizer step and their gradients reduced once (models.messages.count_gathers); each of these takes half the
bytes of an all-reduce.

Each form is fitted by non-negative least squares of relative errors. Weak priors (PRIORS) let one scale on
several nodes inform it; if there is none, links have nominal rates. A prediction T is the geometric mean of
the forms, weighted by their leave-one-out errors within the measured cells. The ends of its 90 % band are
T exp(-+1.645 log_sd) with

    log_sd^2 = sum over forms f of p_f (d_f^2 + e_f^2 + v_f) + (0.01 D)^2 + 0.005^2

where p_f is the weight of a form (all weights sum to 1), d_f its distance from the mean of log T, e_f its
leave-one-out error (0 with fewer than four cells), v_f the variance that the errors of its coefficients add,
which grows with the misfit, and D the number of doublings beyond the measured devices. The noise of single
runs is not included. PRIORS, FORMS and the constants of the band were set on public measurements
(benchmarks/public_series.py).

Assumes that ranks are equal, that each node has the full rate of its link, whatever the other nodes send, and
that step time changes smoothly with the number of nodes. The law does not describe scales inside a node,
because the links of a node can have any topology: predictions for several nodes use only measurements with
the same number of devices per node, if there are any.

A slower link is not a new term. If nodes share an oversubscribed uplink, write one function that lowers a
rate to the share of each node, depending on the number of nodes, and call it where rates enter: on
`cells["rate"]` at the start of `law_rows.law_rows`, on `link_bytes_s` at the start of
`message_times.fit_message_times`, and in `what_if.TracedCell.rate`. All messages, those of the benchmark and
those of meshes included, take their rate from there. If the share depends on more than the number of nodes,
network.csv needs the column too (`network.gather.planned_columns`, `message_times.benchmark_points`).

To add a term of F:

1. Name it next to FLAT, and add it to PARTS and PRIORS, and to FORMS: to each form that needs it (a form is a
   tuple of terms). If it takes bytes at the nominal rates of links, add it to NOMINAL_LINKS too, so that its
   forms predict several nodes from one node alone.
2. Return what its coefficient is multiplied by from `build_regressors` (`node_regressors`): 0 where it does
   not apply; NaN excludes all forms with it. Multiply a term in proportion to c by it in
   `Regressors.design_matrix`.
3. If it depends on a rate that can be unknown, let `_fill_unknown_links` fill it in.
4. Add the numbers of a cell that it needs to LAW_COLUMNS, or to OPTIONAL_LAW_COLUMNS with a default. They
   come from `law_rows.law_rows`, which takes them from `inputs.measured_cells` and `inputs.planned_cells`
   (`CELL_COLUMNS` and `_add_plan_columns`). These read runs.csv, which only has the columns in
   config/schemas/runs.schema.yaml. `records.run_rows.planned_row` fills them from the site or the levels
   (declared/site.py).
5. Cells that are not measured by Ringside need the numbers as well: `numbers_predictor.predictor_of_numbers`,
   with an option in `question.ScalingQuestion`, and importers/cells.py.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import ndtri

from models.messages import count_gathers

Array = NDArray[np.float64]

LAW_COLUMNS = (
    "gradient_bytes", "nodes", "devices_per_node", "n_devices", "local_batch", "n_passes", "tensor",
    "pipeline", "sharded", "rate", "inside_rate", "optimizer_step_s", "n", "sd",
)  # fmt: skip
OPTIONAL_LAW_COLUMNS = {
    "benchmarked_messages_s": math.nan, "nominal_messages_s": math.nan, "work": 1.0, "calls": 1.0,
    "updated": 1.0, "n_blocking": 0.0,
}  # fmt: skip

# Terms of F.
FLAT, HIERARCHICAL, TREE, LATENCY = "flat", "hierarchical", "tree", "latency"
WAITING, WAITING_OF_REPLICAS = "waiting", "waiting of replicas"
FULL_MESSAGES = "messages"  # Messages that nothing overlaps.
NOMINAL_LINKS = {FLAT, HIERARCHICAL, TREE}  # Terms of bytes at the nominal rates of links.
# The overlap h of each term of benchmarked messages.
MESSAGES = {FULL_MESSAGES: 0.0, "messages, half hidden": 0.5, "messages, hidden": 0.75}
# Terms of each form, and its weight before leave-one-out errors. The two forms of waiting alone count half,
# because they are one idea and often predict the same.
FORMS: dict[tuple[str, ...], float] = {
    (FLAT,): 1.0,
    (HIERARCHICAL,): 1.0,
    (WAITING,): 0.5,
    (WAITING_OF_REPLICAS,): 0.5,
    (HIERARCHICAL, TREE, WAITING, LATENCY): 1.0,
    **{(name, WAITING, LATENCY): 1.0 for name in MESSAGES},
}
# Terms that all forms have, in the order of the first columns of `Regressors.design_matrix`.
COMMON_TERMS = FIXED, SAMPLE, UPDATE, BUBBLE, INSIDE, BLOCKING = (
    "fixed", "sample", "update", "bubble", "inside", "blocking",
)  # fmt: skip
# The part of an optimizer step that each term belongs to, as tables and sentences name it.
PARTS = {
    FIXED: "constant time of a batch",
    SAMPLE: "computation",
    UPDATE: "updates",
    BUBBLE: "pipeline bubble",
    INSIDE: "communication inside nodes",
    BLOCKING: "messages within layers",
    **dict.fromkeys((FLAT, HIERARCHICAL, TREE, *MESSAGES), "communication between nodes"),
    **dict.fromkeys((WAITING, WAITING_OF_REPLICAS), "waiting for the slowest rank"),
    LATENCY: "latency of messages",
}
# Share of the backward pass in computation: it has two matrix products for each one of the forward pass.
BACKWARD_SHARE = 2 / 3


class CoefficientPrior(NamedTuple):
    """Mean and standard deviation of a coefficient; with `relative_to_pass`, both are multiples of c."""

    mean: float
    sd: float
    relative_to_pass: bool = False


# SAMPLE has none, because every cell informs it.
PRIORS = {
    FIXED: CoefficientPrior(0.05, 0.3, relative_to_pass=True),
    UPDATE: CoefficientPrior(0.05, 0.3, relative_to_pass=True),
    BUBBLE: CoefficientPrior(0.7, 0.4),
    INSIDE: CoefficientPrior(0.3, 1.0),
    BLOCKING: CoefficientPrior(0.0, 0.1, relative_to_pass=True),
    **dict.fromkeys((FLAT, HIERARCHICAL, TREE), CoefficientPrior(0.5, 0.5)),
    **dict.fromkeys(MESSAGES, CoefficientPrior(1.0, 0.5)),
    **dict.fromkeys((WAITING, WAITING_OF_REPLICAS), CoefficientPrior(0.0075, 0.04)),
    LATENCY: CoefficientPrior(0.0, 0.04, relative_to_pass=True),
}
PINNED_SD = 1e-6  # Prior sd, as a multiple of c, of coefficients that the cells cannot separate from others.
# Seconds of G / B relative to the optimizer step of the smallest scale, if a size or rate is unknown. An
# all-reduce among two to many replicas takes one to two times as long, and the mean of its prior halves that.
UNKNOWN_LINK_SHARE = 1.0
MODEL_ERROR = 0.01  # Relative error of the law at a measured scale, besides the noise of runs.
MIN_LEAVE_ONE_OUT_ERROR = (
    0.01  # Added to leave-one-out errors, so that no form gets all the weight by chance.
)
MIN_CELLS_FOR_LEAVE_ONE_OUT = 4
BAND_PROBABILITY = 0.90
Z = round(float(ndtri((1 + BAND_PROBABILITY) / 2)), 3)  # Half width of the band in standard deviations.
EXTRA_LOG_SD = 0.005  # Error of each prediction by itself, which no other prediction shares.
DOUBLING_LOG_SD = 0.01  # Error for each doubling of devices beyond those measured; the errors add up.
MAX_FORM_LOG_SD = math.log(1000)  # Beyond a factor of 1000, coefficients say nothing about T.
MAX_LOG_SD = 30.0  # The band of a prediction is no wider than this, so that its ends are finite numbers.
MIN_BATCH_SIZES = 2  # Other batch sizes are predicted only if this many were measured.
MISFIT_WARNING = 0.01
MIN_STEP_S = 1e-12  # A form can predict 0 if its cells contradict each other.
ROUNDING_DIGITS = 9  # Batch sizes and numbers of passes are rounded before they are compared.


@dataclass(frozen=True)
class Regressors:
    """What the coefficients of the law are multiplied by, or depends on, an array [cells] each.

    Attributes:
        passes: Multiplies the fixed time of a pass: k, times the share of the operators that a device runs.
        samples: Samples of a device in an optimizer step, times its share of the multiplications.
        updated: Share of the parameters that a device updates; 1 without a mesh.
        idle_turns: Turns that a device of a pipeline idles, p - 1.
        inside_s: Seconds of the bytes inside a node, C_in.
        n_blocking: Messages within layers, m.
        batch: Samples of a device in a pass, rounded.
        nodes: Nodes.
        n_devices: Devices.
        node_regressors: Those of the terms of F, without what depends on c: WAITING and WAITING_OF_REPLICAS
            lack the factor sqrt(k) c, MESSAGES lack the overlap.
    """

    passes: Array
    samples: Array
    updated: Array
    idle_turns: Array
    inside_s: Array
    n_blocking: Array
    batch: Array
    nodes: Array
    n_devices: Array
    node_regressors: Mapping[str, Array]

    def __getitem__(self, cells: Array) -> "Regressors":
        """Return the regressors of some cells."""
        names = [field.name for field in fields(self) if field.name != "node_regressors"]
        chosen = {name: getattr(self, name)[cells] for name in names}
        node_regressors = {term: values[cells] for term, values in self.node_regressors.items()}
        return Regressors(node_regressors=node_regressors, **chosen)

    def design_matrix(self, terms: Sequence[str], base_sample_s: float) -> Array:
        """Return the matrix that the coefficients of a form are multiplied by, [cells, COMMON_TERMS + terms].

        Args:
            terms: Terms of F, a key of FORMS.
            base_sample_s: c / b, the time of a pass at the smallest measured scale per sample.
        """
        pass_s = base_sample_s * self.samples / self.passes
        columns = []
        for term in terms:
            column = self.node_regressors[term]
            if term in MESSAGES:
                column = np.maximum(column - MESSAGES[term] * BACKWARD_SHARE * pass_s, 0.0)
            elif term in (WAITING, WAITING_OF_REPLICAS):
                column = column * np.sqrt(self.passes) * pass_s
            columns.append(column)
        common = (
            self.passes, self.samples, self.updated, self.idle_turns * pass_s, self.inside_s, self.n_blocking,
        )  # fmt: skip
        return np.column_stack([*common, *columns])


def build_regressors(rows: pd.DataFrame) -> Regressors:
    """Return the regressors of rows with LAW_COLUMNS, and any of OPTIONAL_LAW_COLUMNS.

    `benchmarked_messages_s` is the time of all messages of an optimizer step by the collective benchmark.
    Rows that use the formula of meshes (prediction.mesh_step) also state `work` and `calls`, the shares of
    the multiplications and of the operators that a device does; `updated`, its share of the update;
    `n_blocking`, its messages within layers; and `nominal_messages_s`, all messages at the rates of links.
    """
    values = {name: rows[name].to_numpy(float) for name in LAW_COLUMNS if name in rows and name != "sharded"}
    extra = {
        name: rows[name].fillna(default).to_numpy(float) if name in rows else np.full(len(rows), default)
        for name, default in OPTIONAL_LAW_COLUMNS.items()
    }
    division = values["tensor"] * values["pipeline"]
    per_node = np.minimum(values["devices_per_node"], values["n_devices"])
    replicas, on_node = values["n_devices"] / division, np.maximum(per_node / division, 1.0)
    # One all-reduce sums the gradients of devices with the same part of the model. Devices of a node with
    # other parts send at the same time, and share its link.
    spanned, groups = np.ceil(replicas / on_node - 1e-9), np.minimum(division, per_node)
    k, b = values["n_passes"], values["local_batch"]
    gradients = values["gradient_bytes"] / division
    # A gather or a reduction sends half as many bytes as an all-reduce.
    gradients = gradients * np.where(rows["sharded"].to_numpy(bool), (count_gathers(k) + 1) / 2, 1.0)
    link_s = np.where(spanned > 1, gradients * groups / values["rate"], 0.0)
    factors = {
        FLAT: 2 * (replicas - 1) / replicas, HIERARCHICAL: 2 * (spanned - 1) / spanned, TREE: np.log2(spanned)
    }  # fmt: skip
    links = {name: factor * link_s for name, factor in factors.items()}
    # The formula of meshes knows one time at nominal rates, whatever the algorithm.
    messages_s = extra["nominal_messages_s"]
    links |= {name: np.where(np.isnan(messages_s), links[name], messages_s) for name in (FLAT, HIERARCHICAL)}
    inside_s = np.where(on_node > 1, 2 * (on_node - 1) / on_node * gradients / values["inside_rate"], 0.0)
    return Regressors(
        passes=k * extra["calls"],
        samples=k * b * extra["work"],
        updated=extra["updated"],
        idle_turns=values["pipeline"] - 1.0,
        inside_s=np.nan_to_num(inside_s),
        n_blocking=extra["n_blocking"],
        batch=np.round(b, ROUNDING_DIGITS),
        nodes=values["nodes"],
        n_devices=values["n_devices"],
        node_regressors={
            **links,
            **{
                name: np.where(values["nodes"] > 1, extra["benchmarked_messages_s"], 0.0) for name in MESSAGES
            },
            WAITING: np.log2(values["nodes"]),
            WAITING_OF_REPLICAS: np.log2(np.maximum(replicas, 1.0)),
            LATENCY: np.log2(values["n_devices"]),
        },
    )


@dataclass(frozen=True)
class Form:
    """One fitted form of the law.

    Attributes:
        terms: Terms of F, a key of FORMS.
        base_sample_s: c / b, the time of a pass at the smallest measured scale per sample.
        coefficients: Fitted coefficients, [COMMON_TERMS + terms].
        coefficient_covariance: Their covariance.
    """

    terms: tuple[str, ...]
    base_sample_s: float
    coefficients: Array
    coefficient_covariance: Array

    def term_seconds(self, regressors: Regressors) -> Array:
        """Return the seconds of each term, [cells, COMMON_TERMS + terms]."""
        return regressors.design_matrix(self.terms, self.base_sample_s) * self.coefficients

    def predict(self, regressors: Regressors) -> Array:
        """Return seconds, [cells]."""
        columns = regressors.design_matrix(self.terms, self.base_sample_s)
        seconds: Array = np.maximum(columns @ self.coefficients, MIN_STEP_S)
        return seconds

    def log_covariance(self, regressors: Regressors) -> Array:
        """Return the covariance of log seconds due to errors of coefficients, [cells, cells].

        No standard deviation exceeds MAX_FORM_LOG_SD.
        """
        shares = regressors.design_matrix(self.terms, self.base_sample_s) / self.predict(regressors)[:, None]
        covariance: Array = shares @ self.coefficient_covariance @ shares.T
        shrinkage = MAX_FORM_LOG_SD / np.sqrt(np.maximum(np.diag(covariance), MAX_FORM_LOG_SD**2))
        return covariance * np.outer(shrinkage, shrinkage)


def fit_form(terms: tuple[str, ...], regressors: Regressors, seconds: Array, error: Array) -> Form:
    """Fit a form by non-negative least squares of relative errors with weak priors.

    Lawson & Hanson, Solving Least Squares Problems, 1974, chapter 23. Each prior is one more row.

    Args:
        terms: Terms of F, a key of FORMS.
        regressors: Those of the measured cells.
        seconds: Measured optimizer steps, [cells].
        error: Relative standard errors of these steps, [cells].
    """
    # If several cells have the smallest scale, the first one sets c: they differ in the samples of a pass.
    base = int(np.argmin(regressors.n_devices))
    # Its step is assumed to include its whole pipeline bubble (w = 1).
    bubble_factor = 1.0 + regressors.idle_turns[base] / regressors.passes[base]
    base_sample_s = float(seconds[base] / (regressors.samples[base] * bubble_factor))
    columns = regressors.design_matrix(terms, base_sample_s)
    base_pass_s = base_sample_s * regressors.samples[base] / regressors.passes[base]
    prior_rows, prior_values = _prior_rows(terms, base_pass_s, regressors)
    rows = np.vstack([columns / (seconds * error)[:, None], prior_rows])
    sizes = np.maximum(np.abs(rows).max(axis=0), np.finfo(float).tiny)
    rows = rows / sizes
    coefficients = nnls(rows, np.concatenate([1 / error, prior_values]))[0] / sizes
    residuals = columns @ coefficients / seconds - 1
    misfit = math.sqrt(float(np.sum(residuals**2)) / max(len(seconds) - 1, 1))
    # If the cells scatter more than their errors explain, coefficients are as much less certain.
    excess = max(1.0, misfit / math.sqrt(float(np.mean(error**2))))
    covariance = excess**2 * np.linalg.pinv(rows.T @ rows) / np.outer(sizes, sizes)
    return Form(terms, base_sample_s, coefficients, covariance)


def _prior_rows(terms: Sequence[str], base_pass_s: float, regressors: Regressors) -> tuple[Array, Array]:
    """Return the priors of a form as rows of its least squares, [priors, COMMON_TERMS + terms], [priors].

    `base_pass_s` is c at the smallest measured scale.
    """
    priors = dict(PRIORS)
    if len(np.unique(np.round(regressors.passes / regressors.updated, ROUNDING_DIGITS))) == 1:
        # Without accumulation, the update cannot be told from the fixed time of a pass, which includes it.
        priors[UPDATE] = CoefficientPrior(0.0, PINNED_SD, relative_to_pass=True)
    all_terms = [*COMMON_TERMS, *terms]
    with_prior = [term for term in all_terms if term in priors]
    rows, values = np.zeros((len(with_prior), len(all_terms))), np.zeros(len(with_prior))
    for row, term in enumerate(with_prior):
        prior = priors[term]
        unit = base_pass_s if prior.relative_to_pass else 1.0
        rows[row, all_terms.index(term)], values[row] = 1 / (prior.sd * unit), prior.mean / prior.sd
    return rows, values


@dataclass(frozen=True)
class OptimizerStepPrediction:
    """Predicted optimizer steps, an array [cells] each.

    Attributes:
        seconds: Seconds of a step; NaN without a prediction.
        log_sd: Standard deviation of the logarithm; the 90 % band is Z of these to both sides.
        unseen_batch: True for a cell without a prediction, because its batch size was not measured and fewer
            than MIN_BATCH_SIZES batch sizes were.
        misfit: Root mean square of the relative errors of the law at the cells it was fitted to.
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
class OptimizerStepLaw:
    """The law of one series (prediction.study_predictor), fitted to its cells at several scales.

    Attributes:
        measured: Rows of the measured cells with LAW_COLUMNS; the column `n` is the number of runs.
    """

    measured: pd.DataFrame

    @cached_property
    def regressors(self) -> Regressors:
        """The regressors of the measured cells."""
        return build_regressors(self.measured)

    @cached_property
    def seconds(self) -> Array:
        """The measured optimizer steps, [measured]."""
        return self.measured["optimizer_step_s"].to_numpy(float)

    @cached_property
    def error(self) -> Array:
        """Relative standard errors of the measured steps: MODEL_ERROR, and the noise of runs.

        All cells share one coefficient of variation, pooled over cells with several runs, so that a cell with
        one run has an error as well. `analysis.cell_means` moderates the variance of each cell instead.
        """
        n, sd = (self.measured[name].to_numpy(float) for name in ("n", "sd"))
        is_repeated = (n > 1) & ~np.isnan(sd)
        cv = 0.0
        if is_repeated.any():
            squares = (sd[is_repeated] / self.seconds[is_repeated]) ** 2
            cv = math.sqrt(float(np.average(squares, weights=n[is_repeated] - 1)))
        return np.sqrt(MODEL_ERROR**2 + cv**2 / n)

    @cached_property
    def forms(self) -> list[Form]:
        """The fitted forms, except those that lack a rate or a benchmark."""
        applicable = {term for term, x in self.regressors.node_regressors.items() if not np.isnan(x).any()}
        usable = [terms for terms in FORMS if applicable.issuperset(terms)]
        return [fit_form(terms, self.regressors, self.seconds, self.error) for terms in usable]

    @cached_property
    def leave_one_out_errors(self) -> Array:
        """Root mean square log error of each form, [forms]; 0 with few cells (MIN_CELLS_FOR_LEAVE_ONE_OUT).

        Each measured cell beyond the smallest scale is left out of one fit, which predicts it. The folds of
        the table `prediction` (`held_out.make_folds`) are something else: they hide cells from the law.
        """
        n_devices = self.regressors.n_devices
        larger = np.flatnonzero(n_devices > n_devices.min())
        if len(n_devices) < MIN_CELLS_FOR_LEAVE_ONE_OUT or not len(larger):
            return np.zeros(len(self.forms))
        errors = np.empty((len(self.forms), len(larger)))
        for column, cell in enumerate(larger):
            is_kept = np.arange(len(n_devices)) != cell
            remaining, seconds, error = self.regressors[is_kept], self.seconds[is_kept], self.error[is_kept]
            for row, form in enumerate(self.forms):
                predicted = fit_form(form.terms, remaining, seconds, error).predict(self.regressors[~is_kept])
                errors[row, column] = math.log(predicted[0] / self.seconds[cell])
        return np.sqrt(np.mean(errors**2, axis=1))

    @cached_property
    def form_weights(self) -> Array:
        """Weight of each form, [forms], the largest 1.

        It is the weight in FORMS times (e^2 + MIN_LEAVE_ONE_OUT_ERROR^2)^(-q / 2) with the leave-one-out
        error e. q is half the number of cells beyond the smallest scale, at least 2: more cells choose more
        sharply.
        """
        n_devices = self.regressors.n_devices
        power = max(2.0, (n_devices > n_devices.min()).sum() / 2)
        logs = np.log([FORMS[form.terms] for form in self.forms])
        logs = logs - power / 2 * np.log(self.leave_one_out_errors**2 + MIN_LEAVE_ONE_OUT_ERROR**2)
        weights: Array = np.exp(logs - logs.max())
        return weights

    @cached_property
    def misfit(self) -> float:
        """Root mean square of the relative errors at the cells that the law was fitted to."""
        logs, weights = self._predict_by_form(self.regressors)
        return float(np.sqrt(np.mean((np.exp(_average(logs, weights)) / self.seconds - 1) ** 2)))

    def _predict_by_form(self, regressors: Regressors) -> tuple[Array, Array]:
        """Return log seconds by each form, and its weight for each cell, both [forms, cells].

        The weights of a cell add up to 1; if no form predicts it, they are NaN.
        """
        logs = np.log([form.predict(regressors) for form in self.forms])
        is_usable = ~np.isnan(logs)
        if not (self.regressors.nodes > 1).any():
            is_usable &= self._usable_from_one_node(is_usable) | (regressors.nodes == 1)
        weights = self.form_weights[:, None] * is_usable
        total = weights.sum(axis=0)
        return logs, weights / np.where(total > 0, total, math.nan)

    def _usable_from_one_node(self, is_usable: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which forms predict several nodes before any such cell is measured, [forms, cells].

        Waiting and overlap are unknown then. Messages take the time of the benchmark in full or, without one,
        their bytes at the nominal rates of links.
        """
        timed, linked = (
            np.array([not terms.isdisjoint(form.terms) for form in self.forms])[:, None] & is_usable
            for terms in ({FULL_MESSAGES}, NOMINAL_LINKS)
        )
        chosen: NDArray[np.bool_] = np.where(timed.any(axis=0), timed, linked)
        return chosen

    def log_covariance(self, rows: pd.DataFrame) -> Array:
        """Return the covariance of log predictions, [cells, cells], excluding EXTRA_LOG_SD.

        It adds, weighted over forms: the deviation of each form from their mean, which is one error at all
        scales; the errors of the form's coefficients, which reach all scales through its terms; and its
        leave-one-out error, whose correlation is 2^-(x^2) between scales that are x doublings apart. To these
        it adds DOUBLING_LOG_SD for each doubling beyond the largest measured number of devices.
        """
        regressors = build_regressors(rows)
        logs, weights = self._predict_by_form(regressors)
        log_devices = np.log2(regressors.n_devices)
        distances = np.abs(np.subtract.outer(log_devices, log_devices))
        deviations = logs - _average(logs, weights)
        doublings = np.maximum(np.log2(regressors.n_devices / self.regressors.n_devices.max()), 0.0)
        covariance = DOUBLING_LOG_SD**2 * np.outer(doublings, doublings)
        for form, root_weights, deviation, left_out_error in zip(
            self.forms, np.sqrt(weights), deviations, self.leave_one_out_errors, strict=True
        ):
            shared = np.outer(deviation, deviation) + left_out_error**2 * 2.0 ** -(distances**2)
            spread = shared + form.log_covariance(regressors)
            covariance += np.nan_to_num(np.outer(root_weights, root_weights) * spread)
        return np.clip(covariance, -(MAX_LOG_SD**2), MAX_LOG_SD**2)

    def parts(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the seconds of each of PARTS in optimizer steps, averaged over forms, [cells, parts]."""
        regressors = build_regressors(rows)
        logs, weights = self._predict_by_form(regressors)
        seconds = pd.DataFrame(0.0, index=rows.index, columns=sorted(set(PARTS.values())))
        for form, cell_weights in zip(self.forms, weights, strict=True):
            terms = [*COMMON_TERMS, *form.terms]
            for term, term_s in zip(terms, form.term_seconds(regressors).T, strict=True):
                seconds[PARTS[term]] += np.nan_to_num(cell_weights * term_s)
        return seconds.mul(np.exp(_average(logs, weights)) / seconds.sum(axis=1), axis=0)

    def predict(self, rows: pd.DataFrame) -> OptimizerStepPrediction:
        """Predict optimizer steps with 90 % bands, from `log_covariance` and EXTRA_LOG_SD.

        Args:
            rows: Rows with LAW_COLUMNS except optimizer_step_s, n and sd.
        """
        regressors = build_regressors(rows)
        logs, weights = self._predict_by_form(regressors)
        log_sd = np.sqrt(np.diag(self.log_covariance(rows)) + EXTRA_LOG_SD**2)
        seen = np.unique(self.regressors.batch)
        unseen = ~np.isin(regressors.batch, seen) & (len(seen) < MIN_BATCH_SIZES)
        seconds = np.where(unseen, np.nan, np.exp(_average(logs, weights)))
        return OptimizerStepPrediction(seconds, log_sd, unseen, self.misfit)


def _average(logs: Array, weights: Array) -> Array:
    """Return the weighted mean of [forms, cells] over forms; NaN if no form has a weight."""
    mean = np.sum(np.where(weights > 0, weights * logs, 0.0), axis=0)
    average: Array = np.where(weights.sum(axis=0) > 0, mean, np.nan)
    return average


def predict_optimizer_steps(measured: pd.DataFrame, rows: pd.DataFrame) -> OptimizerStepPrediction:
    """Predict optimizer steps of one series.

    Each is predicted from measured cells with the same number of devices per node. If there are none, all
    measured cells are used, although scales inside a node follow no law. If the size of gradients or the rate
    of links is unknown, G / B is UNKNOWN_LINK_SHARE times the optimizer step of the smallest scale, and
    several nodes are predicted only if a cell on several nodes was measured.

    Args:
        measured: Measured cells with LAW_COLUMNS.
        rows: Rows to predict, with LAW_COLUMNS except optimizer_step_s, n and sd.
    """
    parts = [
        (positions, law.predict(part)) for positions, law, part in split_by_devices_per_node(measured, rows)
    ]
    steps = join_steps(len(rows), parts)
    return replace(steps, seconds=np.where(_has_unrelated_rate(measured, rows), np.nan, steps.seconds))


def split_by_devices_per_node(
    measured: pd.DataFrame, rows: pd.DataFrame
) -> Iterator[tuple[NDArray[np.intp], OptimizerStepLaw, pd.DataFrame]]:
    """Yield each group of `rows` with the same number of devices per node: positions, law, and rows.

    In the laws and the rows, unknown sizes and link rates are filled in where `_fill_unknown_links` can.
    """
    measured, rows = _fill_unknown_links(measured, rows)
    for devices_per_node, positions in rows.groupby("devices_per_node").indices.items():
        same_nodes = measured[measured["devices_per_node"] == devices_per_node]
        yield positions, OptimizerStepLaw(same_nodes if len(same_nodes) else measured), rows.iloc[positions]


def _has_unrelated_rate(measured: pd.DataFrame, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which cells have a known link rate that no measured cell can be scaled to, [cells].

    These are cells on several nodes, if the measured ones on several nodes have neither rate nor benchmark.
    """
    linked = measured[measured["nodes"] > 1]
    is_known = linked["rate"].notna().any() or linked.get("benchmarked_messages_s", pd.Series()).notna().any()
    return ((rows["nodes"] > 1) & rows["rate"].notna() & (len(linked) > 0 and not is_known)).to_numpy()


def _fill_unknown_links(measured: pd.DataFrame, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Fill in sizes and link rates in both tables if any predicted cell lacks one, and return the tables.

    All cells then get the largest measured size, and a rate at which this size takes UNKNOWN_LINK_SHARE of
    the mean optimizer step of the smallest scale. Known rates keep their ratio to the fastest measured one.
    Without a measured cell on several nodes, rates stay unknown.
    """
    links = rows.loc[rows["nodes"] > 1, ["gradient_bytes", "rate"]]
    if links.notna().all(axis=None):
        return measured, rows
    base_s = measured.loc[measured["n_devices"] == measured["n_devices"].min(), "optimizer_step_s"].mean()
    size = measured["gradient_bytes"].max()
    size = 1.0 if math.isnan(size) else size
    is_informed = (measured["nodes"] > 1).any()
    rate = size / (UNKNOWN_LINK_SHARE * base_s) if is_informed else math.nan
    fastest = measured.loc[measured["nodes"] > 1, "rate"].max()

    def fill(table: pd.DataFrame) -> pd.DataFrame:
        # NaN, because the cell's rate or all measured rates are unknown, counts as the fastest measured rate.
        relative_rate = (table["rate"] / fastest).fillna(1.0)
        return table.assign(gradient_bytes=size, rate=rate * relative_rate)

    return fill(measured), fill(rows)


def join_steps(
    count: int, parts: Sequence[tuple[NDArray[np.intp], OptimizerStepPrediction]]
) -> OptimizerStepPrediction:
    """Join predictions of some of `count` cells, each with the positions of its cells; NaN for the rest."""
    joined = OptimizerStepPrediction(np.full(count, np.nan), np.full(count, np.nan), np.zeros(count, bool))
    for positions, steps in parts:
        joined.seconds[positions], joined.log_sd[positions] = steps.seconds, steps.log_sd
        joined.unseen_batch[positions] = steps.unseen_batch
    return replace(joined, misfit=max((steps.misfit for _, steps in parts), default=0.0))
