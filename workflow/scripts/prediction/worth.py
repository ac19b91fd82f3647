"""How many nodes are worth it: the knee of a predicted curve, what limits it, and what to measure next.

With S(N) the speed-up over one node, a doubling of N nodes gains (S(2 N) - S(N)) / N, 1 where scaling is
ideal. The knee is the smallest number of nodes whose doubling gains less than a stated share; more are not
worth it. Bands come from draws of whole curves with the covariance of the law, because predictions on
different numbers of nodes share most errors. What limits the doubling is the part of a step whose node time
(seconds times nodes) grows most.

How far a measurement narrows the band of a prediction is found by adding it to the measured cells, somewhat
off its own prediction, and fitting the law again. Of sets of counts that narrow almost alike the one with the
fewest nodes is proposed, since it costs least.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

import numpy as np
import pandas as pd

from analysis.intervals import Estimate, columns
from prediction.law import BAND, Array, Law, Z
from prediction.study import StudyLaw

SHARE = 0.7  # of the ideal gain of a doubling
N_DRAWS = 999
ENDS = [(1 - BAND) / 2, (1 + BAND) / 2]  # quantiles of a band
JITTER = 1e-10  # added to variances, so that the covariance of few forms has a Cholesky factor
MAX_EXPONENT = 50.0  # of errors that are drawn or expected; a factor of 5e21 has no meaning, and no overflow
MAX_CANDIDATES = 4  # the largest ones, so that the law is fitted at most ten times
MEASURABLE_FACTOR = 4  # times the largest measured number of nodes: what can be measured next by default
ALMOST = 0.9  # of the narrowing of the best set of counts
TYPICAL_DEVIATION = 0.67  # of a measurement from its prediction, in standard deviations: half deviate less
MIN_NARROWING = 0.1  # of the band, for which a measurement is proposed
MIN_NAMED_PART = 0.25  # of the node time that the next doubling adds, for which a sentence names a part


@dataclass(frozen=True)
class Scaling:
    """Joint predictions of one case at growing numbers of nodes.

    Attributes:
        nodes: Numbers of nodes, ascending, [counts].
        epoch_s: Seconds of an epoch, [counts].
        n_updates: Optimizer steps of an epoch, [counts].
        law: The law of the case.
        cells: The cells at `nodes` in the law's columns.
    """

    nodes: Array
    epoch_s: Array
    n_updates: Array
    law: Law
    cells: pd.DataFrame


@dataclass(frozen=True)
class Knee:
    """Where the next doubling of the nodes gains less than a share of the ideal.

    Attributes:
        nodes: Up to how many nodes a doubling gains the share, with its 90 % band; inf: all considered ones.
        gain: What the next doubling gains; that of the last one where `nodes` is inf, NaN without any.
        parts: Shares of the node time that this doubling adds, by part of a step, largest first.
        considered: The largest number of nodes that was considered.
    """

    nodes: Estimate
    gain: Estimate
    parts: dict[str, float]
    considered: int

    @property
    def is_certain(self) -> bool:
        """Whether its band is one number of nodes, so that no measurement is needed."""
        return self.nodes.low == self.nodes.high < math.inf


@dataclass(frozen=True)
class Design:
    """Numbers of nodes to measure next, none where no measurement narrows the band.

    Attributes:
        counts: Numbers of nodes.
        target: The number of nodes whose prediction they are to narrow.
        now: Half width of its 90 % band as a share of the prediction.
        then: The same as expected after the measurements (`expected_width`).
    """

    counts: tuple[int, ...]
    target: int
    now: float
    then: float


def predict_scaling(law: StudyLaw, curve: pd.DataFrame) -> Scaling:
    """Return the joint predictions of one curve of `curves.predict_curves`."""
    curve = curve.sort_values("nodes").reset_index(drop=True)
    nodes, epoch_s, n_updates = (
        curve[name].to_numpy(float) for name in ("nodes", "epoch_time_s", "n_allreduces")
    )
    return Scaling(nodes, epoch_s, n_updates, *law.joint_law(curve))


def knee(scaling: Scaling, share: float = SHARE) -> Knee:
    """Return up to how many nodes a doubling gains at least a share of the ideal."""
    nodes, considered = scaling.nodes, int(scaling.nodes[-1])
    starts = np.flatnonzero(2 * nodes <= considered)
    if not len(starts):
        return Knee(Estimate(math.inf, math.inf, math.inf), Estimate(math.nan), {}, considered)
    units = np.eye(len(nodes))
    between = np.array([np.interp(np.log(2 * nodes[starts]), np.log(nodes), unit) for unit in units])
    speedups = scaling.epoch_s[0] / scaling.epoch_s * nodes[0]
    logs = np.log(np.vstack([speedups, _draw_speedups(scaling, speedups)]))
    gains = (np.exp(logs @ between) - np.exp(logs[:, starts])) / nodes[starts]
    is_below = gains < share
    first = np.where(is_below.any(axis=1), is_below.argmax(axis=1), len(starts))
    last = min(int(first[0]), len(starts) - 1)
    ends = np.append(nodes[starts], math.inf)[first]
    low, high = np.quantile(ends[1:], ENDS, method="inverted_cdf").tolist()  # numbers that were drawn
    gain_low, gain_high = np.quantile(gains[1:, last], ENDS).tolist()
    added = _added_parts(scaling, between[:, last] - units[starts[last]])
    gain = Estimate(float(gains[0, last]), gain_low, gain_high)
    return Knee(Estimate(float(ends[0]), low, high), gain, added, considered)


def _draw_speedups(scaling: Scaling, speedups: Array) -> Array:
    """Return draws of whole curves of speed-up, [draws, counts], none better than ideal scaling."""
    covariance = scaling.law.covariance(scaling.cells) + JITTER * np.eye(len(speedups))
    errors = np.random.default_rng(0).normal(size=(N_DRAWS, len(speedups))) @ _root(covariance).T
    factors = np.exp(np.clip(errors[:, :1] - errors, -MAX_EXPONENT, MAX_EXPONENT))
    draws: Array = np.minimum(speedups * factors, np.maximum(speedups, scaling.nodes))
    return draws


def _root(covariance: Array) -> Array:
    """Return a square root of a covariance, also of one that rounding has made slightly indefinite."""
    try:
        return np.asarray(np.linalg.cholesky(covariance), dtype=float)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        root: Array = vectors * np.sqrt(np.maximum(values, 0.0))
        return root


def _added_parts(scaling: Scaling, contrast: Array) -> dict[str, float]:
    """Return the shares of the node time of an epoch that a contrast of counts adds, by part of a step."""
    node_s = scaling.law.parts(scaling.cells).mul(scaling.nodes * scaling.n_updates, axis=0)
    added = pd.Series(np.maximum(contrast @ node_s.to_numpy(), 0.0), node_s.columns)
    added = added[added > 0].sort_values(ascending=False)
    return (added / added.sum()).to_dict()


def next_counts(scaling: Scaling, target: int, measurable: int | None = None) -> Design:
    """Return one or two powers of two whose measurement narrows the prediction on about `target` nodes most.

    Args:
        scaling: Predictions up to `target` nodes or more.
        target: The number of nodes in question.
        measurable: The largest number of nodes that can be measured; None: MEASURABLE_FACTOR times the
            largest measured one.
    """
    measured = scaling.law.cells["nodes"].astype(int)
    limit = measurable or MEASURABLE_FACTOR * int(measured.max())
    powers = (2**power for power in range(limit.bit_length()))
    counts = [count for count in powers if count in scaling.nodes and count not in set(measured)]
    nearest = float(scaling.nodes[np.abs(np.log(scaling.nodes / target)).argmin()])
    now = expected_width(scaling, (), nearest)
    candidates = counts[-MAX_CANDIDATES:]
    sets = chain(combinations(candidates, 1), combinations(candidates, 2))
    widths = {chosen: expected_width(scaling, chosen, nearest) for chosen in sets}
    narrowest = min(widths.values(), default=now)
    if now - narrowest < MIN_NARROWING * now:
        return Design((), target, now, now)
    almost = [chosen for chosen, width in widths.items() if now - width >= ALMOST * (now - narrowest)]
    best = min(almost, key=sum)
    return Design(best, target, now, widths[best])


def expected_width(scaling: Scaling, counts: Sequence[int], target: float) -> float:
    """Return the half width of the band on `target` nodes that is expected after measurements on `counts`.

    It is that of the mean variance of two laws, fitted as if all of them took longer, or shorter, than
    predicted by TYPICAL_DEVIATION.
    """
    cells, target_cell = (scaling.cells[np.isin(scaling.nodes, nodes)] for nodes in (list(counts), [target]))
    predicted = scaling.law.predict(cells)
    n = max(1.0, float(scaling.law.cells["n"].median()))
    variances = []
    for z in (-TYPICAL_DEVIATION, TYPICAL_DEVIATION):
        step_s = predicted.seconds * np.exp(z * predicted.log_sd)
        measured = pd.concat([scaling.law.cells, cells.assign(step_s=step_s, n=n, sd=math.nan)])
        extended = Law(measured.reset_index(drop=True)) if len(cells) else scaling.law
        variances.append(float(extended.predict(target_cell).log_sd[0]) ** 2)
    return math.exp(min(Z * math.sqrt(sum(variances) / 2), MAX_EXPONENT)) - 1


def explain(own: Knee, design: Design | None, share: float, title: str) -> str:
    """Return the answer in sentences; `title` says for what, as a first clause."""
    if math.isnan(own.gain.value):
        return f"{title}: only one node was considered."
    ends = dict.fromkeys(
        f"≥{own.considered}" if math.isinf(end) else f"{end:.0f}" for end in (own.nodes.low, own.nodes.high)
    )
    gain, low, high = (
        f"{100 * end:.0f}".replace("-", "−") for end in (own.gain.value, own.gain.low, own.gain.high)
    )
    count, doubling = f"up to {own.nodes.value:.0f} nodes are", "next"
    too_little = f", not {100 * share:.0f} %"
    if math.isinf(own.nodes.value):
        count, doubling, too_little = f"all {own.considered} nodes that were considered are", "last", ""
    elif own.nodes.value == 1:
        count = "one node is"
    band = f"{gain} % [{low}, {high}] of the ideal"
    text = (
        f"{title}, {count} worth it (90 % band: {' to '.join(ends)}): "
        f"the {doubling} doubling gains {band}{too_little}"
    )
    named = [name for name, part in own.parts.items() if part >= MIN_NAMED_PART]
    text += f", limited by {' and '.join(named)}." if named else "."
    if design:
        return f"{text} {_explain_design(design)}"
    return f"{text} No further measurement is needed to say so." if own.is_certain else text


def _explain_design(design: Design) -> str:
    now, then = (width_text(width) for width in (design.now, design.then))
    if not design.counts:
        return f"No count that was considered narrows the band on {design.target} nodes ({now})."
    counts = " and ".join(map(str, design.counts)) + (" node" if design.counts == (1,) else " nodes")
    return f"Measure {counts} next to narrow the band on {design.target} nodes from {now} to {then}."


def width_text(half_width: float) -> str:
    """Return the half width of a band, a share of the prediction, as text."""
    return f"±{100 * half_width:.0f} %" if half_width < 1 else f"a factor of {1 + half_width:.1f}"


def describe(own: Knee, design: Design | None) -> dict[str, Any]:
    """Return a knee and a design as columns of the table `projection`."""
    limit, share = next(iter(own.parts.items()), ("", math.nan))
    measure = {"measure_next": "", "target_nodes": math.nan, "band_now": math.nan, "band_then": math.nan}
    if design:
        counts = " ".join(map(str, design.counts))
        measure = dict(zip(measure, (counts, design.target, design.now, design.then), strict=True))
    nodes, gain = columns("worth_nodes", own.nodes), columns("next_gain", own.gain)
    return {**nodes, **gain, "limit": limit, "limit_share": share, **measure}
