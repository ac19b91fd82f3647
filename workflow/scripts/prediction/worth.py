"""How many nodes are worth it: the knee of a predicted curve, what limits it, and what to measure next.

With S(N) the speed-up over one node, a doubling of N nodes gains (S(2 N) - S(N)) / N, 1 with ideal scaling.
The knee is the smallest number of nodes at which doubling gains less than a stated share, by default
MIN_DOUBLING_GAIN. More nodes are not worth it.

The bands of the knee and of gains come from draws of whole curves with the covariance of the law, because
predictions on different numbers of nodes share most errors. They are not the bands of single speed-ups, which
`curves.predict_curves` returns. The doubling is limited by the part of a step that gains most node time
(seconds times nodes).

To find how far a measurement would narrow the band of a prediction, it is added to the measured cells,
somewhat off its own prediction, and the law is fitted again. Of the sets of counts that narrow the band
almost as far as the best one, the one with the fewest nodes is proposed, since it costs least.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis import intervals
from analysis.intervals import Estimate
from prediction.law import BAND_PROBABILITY, Array, OptimizerStepLaw, Z
from prediction.study_predictor import StudyPredictor

MIN_DOUBLING_GAIN = 0.7  # Share of the ideal gain that a doubling of nodes needs to be worth it.
N_DRAWS = 999
BAND_QUANTILES = [(1 - BAND_PROBABILITY) / 2, (1 + BAND_PROBABILITY) / 2]
JITTER = 1e-10  # Added to variances, so that the covariance of few forms has a Cholesky factor.
MAX_CANDIDATES = 4  # The largest numbers of nodes are tried; the law is then fitted 20 times at most.
MEASURABLE_FACTOR = 4  # By default, this many times the measured nodes can be measured next.
NEAR_BEST_SHARE = 0.9  # Fewer nodes are proposed if they narrow the band by this share of the best narrowing.
TYPICAL_DEVIATION = 0.67  # Half of measurements deviate less from predictions, in standard deviations.
MIN_NARROWING = 0.1  # A measurement is proposed if it narrows the band by this share.
MIN_NAMED_PART = 0.25  # A sentence names a part if it is this share of the node time that a doubling adds.


@dataclass(frozen=True)
class Scaling:
    """Joint predictions of one case on growing numbers of nodes.

    Attributes:
        nodes: Numbers of nodes, ascending, [counts].
        epoch_s: Seconds of an epoch, [counts].
        n_optimizer_steps: Optimizer steps of an epoch, [counts].
        law: The law of the curve.
        law_rows: The cells at `nodes` with `law.LAW_COLUMNS`.
    """

    nodes: Array
    epoch_s: Array
    n_optimizer_steps: Array
    law: OptimizerStepLaw
    law_rows: pd.DataFrame

    @property
    def speedups(self) -> Array:
        """Predicted speed-ups over one node, [counts]."""
        speedups: Array = self.epoch_s[0] / self.epoch_s * self.nodes[0]
        return speedups

    @cached_property
    def doubled(self) -> NDArray[np.intp]:
        """Positions in `nodes` of the numbers that can be doubled within the curve, [doublings]."""
        return np.flatnonzero(2 * self.nodes <= self.nodes[-1])

    @cached_property
    def interpolation(self) -> Array:
        """What turns values at `nodes` into values at the doubled numbers, [counts, doublings].

        The doubles of some numbers lie between two others, where values are a line over the logarithm.
        """
        doubles, units = np.log(2 * self.nodes[self.doubled]), np.eye(len(self.nodes))
        return np.array([np.interp(doubles, np.log(self.nodes), unit) for unit in units])

    def gains(self, speedups: Array) -> Array:
        """Return the gain of each doubling relative to the ideal, [curves, counts] -> [curves, doublings]."""
        logs = np.log(speedups)
        gains: Array = np.exp(logs @ self.interpolation) - np.exp(logs[:, self.doubled])
        return gains / self.nodes[self.doubled]


@dataclass(frozen=True)
class Knee:
    """Where the next doubling of the nodes gains less than a share of the ideal.

    Attributes:
        nodes: Up to how many nodes a doubling gains the share, with its 90 % band; inf: all considered ones.
        gain: What the next doubling gains, or the last one if `nodes` is inf; NaN without any doubling.
        parts: Share of each part of a step in the node time that this doubling adds, largest first.
        considered: The largest number of nodes considered.
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
class NextMeasurements:
    """Numbers of nodes to measure next, none if no measurement narrows the band.

    Attributes:
        counts: Numbers of nodes.
        target: The number of nodes for which they narrow the prediction.
        now: Half width of its 90 % band as a share of the prediction.
        then: The same as expected after the measurements (`expected_width`).
    """

    counts: tuple[int, ...]
    target: int
    now: float
    then: float


def joint_scaling(predictor: StudyPredictor, curve: pd.DataFrame) -> Scaling:
    """Return the joint predictions of one curve of `curves.predict_curves`."""
    curve = curve.sort_values("nodes").reset_index(drop=True)
    nodes, epoch_s, n_optimizer_steps = (
        curve[name].to_numpy(float) for name in ("nodes", "epoch_time_s", "n_allreduces")
    )
    return Scaling(nodes, epoch_s, n_optimizer_steps, *predictor.law_of_curve(curve))


def find_knee(scaling: Scaling, share: float = MIN_DOUBLING_GAIN) -> Knee:
    """Return up to how many nodes a doubling gains at least a share of the ideal."""
    considered, doubled = int(scaling.nodes[-1]), scaling.doubled
    if not len(doubled):
        return Knee(Estimate(math.inf, math.inf, math.inf), Estimate(math.nan), {}, considered)
    gains = scaling.gains(np.vstack([scaling.speedups, _draw_speedups(scaling)]))
    # The first curve is the prediction, the others are draws.
    is_below = gains < share
    first_below = np.where(is_below.any(axis=1), is_below.argmax(axis=1), len(doubled))
    knees = np.append(scaling.nodes[doubled], math.inf)[first_below]
    # The ends of the band are drawn knees, because there is no number of nodes between a knee and inf.
    low, high = np.quantile(knees[1:], BAND_QUANTILES, method="inverted_cdf").tolist()
    next_doubling = min(int(first_below[0]), len(doubled) - 1)
    gain = Estimate(
        float(gains[0, next_doubling]), *np.quantile(gains[1:, next_doubling], BAND_QUANTILES).tolist()
    )
    parts = _added_parts(scaling, next_doubling)
    return Knee(Estimate(float(knees[0]), low, high), gain, parts, considered)


def _draw_speedups(scaling: Scaling) -> Array:
    """Return draws of whole curves of speed-up, [draws, counts], none better than ideal scaling.

    A speed-up above it that is itself predicted is kept.
    """
    speedups = scaling.speedups
    covariance = scaling.law.log_covariance(scaling.law_rows) + JITTER * np.eye(len(speedups))
    errors = np.random.default_rng(0).normal(size=(N_DRAWS, len(speedups))) @ _root(covariance).T
    factors = np.exp(errors[:, :1] - errors)  # Errors that one node shares cancel in a speed-up.
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


def _added_parts(scaling: Scaling, doubling: int) -> dict[str, float]:
    """Return the shares of the node time of an epoch that a doubling adds, by part of a step."""
    node_s = scaling.law.parts(scaling.law_rows).mul(scaling.nodes * scaling.n_optimizer_steps, axis=0)
    contrast = scaling.interpolation[:, doubling] - np.eye(len(scaling.nodes))[scaling.doubled[doubling]]
    added = pd.Series(np.maximum(contrast @ node_s.to_numpy(), 0.0), node_s.columns)
    added = added[added > 0].sort_values(ascending=False)
    return (added / added.sum()).to_dict()


def propose_measurements(scaling: Scaling, target: int, measurable: int | None = None) -> NextMeasurements:
    """Return one or two powers of two to measure, which narrow the prediction on about `target` nodes most.

    Args:
        scaling: Predictions up to `target` nodes or more.
        target: The number of nodes in question.
        measurable: The largest number of nodes that can be measured; None: MEASURABLE_FACTOR times the
            largest measured one.
    """
    measured = scaling.law.measured["nodes"].astype(int)
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
        return NextMeasurements((), target, now, now)
    min_narrowing = NEAR_BEST_SHARE * (now - narrowest)
    fewest = min((chosen for chosen, width in widths.items() if now - width >= min_narrowing), key=sum)
    return NextMeasurements(fewest, target, now, widths[fewest])


def expected_width(scaling: Scaling, counts: Sequence[int], target: float) -> float:
    """Return the half width of the band on `target` nodes that is expected after measurements on `counts`.

    It follows from the mean variance of two laws: in one, all measurements take longer than predicted by
    TYPICAL_DEVIATION, in the other shorter.
    """
    rows, target_row = (scaling.law_rows[np.isin(scaling.nodes, nodes)] for nodes in (list(counts), [target]))
    predicted = scaling.law.predict(rows)
    n = max(1.0, float(scaling.law.measured["n"].median()))
    variances = []
    for z in (-TYPICAL_DEVIATION, TYPICAL_DEVIATION):
        step_s = predicted.seconds * np.exp(z * predicted.log_sd)
        measured = pd.concat([scaling.law.measured, rows.assign(optimizer_step_s=step_s, n=n, sd=math.nan)])
        extended = OptimizerStepLaw(measured.reset_index(drop=True)) if len(rows) else scaling.law
        variances.append(float(extended.predict(target_row).log_sd[0]) ** 2)
    return math.exp(Z * math.sqrt(sum(variances) / 2)) - 1


def explain_knee(knee: Knee, proposal: NextMeasurements | None, share: float, title: str) -> str:
    """Return the answer in sentences; `title` names the case as a first clause."""
    if math.isnan(knee.gain.value):
        return f"{title}: only one node was considered."
    ends = dict.fromkeys(
        f"≥{knee.considered}" if math.isinf(end) else f"{end:.0f}"
        for end in (knee.nodes.low, knee.nodes.high)
    )
    gain, low, high = (
        f"{100 * end:.0f}".replace("-", "−") for end in (knee.gain.value, knee.gain.low, knee.gain.high)
    )
    count, doubling = f"up to {knee.nodes.value:.0f} nodes", "next"
    too_little = f", less than the required {100 * share:.0f} %"
    if math.isinf(knee.nodes.value):
        count, doubling, too_little = f"all {knee.considered} nodes that were considered", "last", ""
    elif knee.nodes.value == 1:
        count = "no more than one node"
    band = f"90 % band: {' to '.join(ends)}"
    gains = f"the {doubling} doubling gains {gain} % [{low}, {high}] of the ideal{too_little}"
    if len(ends) > 1 and math.isinf(knee.nodes.high):
        answer = (
            "how many nodes are worth it is open"
            if knee.nodes.low == 1
            else f"at least {knee.nodes.low:.0f} nodes are worth it; whether more are is open"
        )
        text = f"{title}, {answer} ({band}). The best guess is {count}: {gains}"
    else:
        verb = "is" if knee.nodes.value == 1 else "are"
        text = f"{title}, {count} {verb} worth it ({band}): {gains}"
    named = [name for name, part in knee.parts.items() if part >= MIN_NAMED_PART]
    text += f", limited by {' and '.join(named)}." if named else "."
    if proposal:
        return f"{text} {_explain_proposal(proposal)}"
    return f"{text} No further measurement is needed." if knee.is_certain else text


def _explain_proposal(proposal: NextMeasurements) -> str:
    now, then = (band_factor(width) for width in (proposal.now, proposal.then))
    if not proposal.counts:
        return (
            f"No measurement that was considered narrows the band on {proposal.target} nodes "
            f"(a factor of {now})."
        )
    counts = " and ".join(map(str, proposal.counts)) + (" node" if proposal.counts == (1,) else " nodes")
    return (
        f"Measure {counts} next to narrow the band on {proposal.target} nodes "
        f"from a factor of {now} to one of {then}."
    )


def band_factor(half_width: float) -> str:
    """Return the factor between a prediction and the upper end of its band, as text.

    `half_width` is a share of the prediction.
    """
    return f"{1 + half_width:.2f}" if half_width < 1 else f"{1 + half_width:.1f}"


def knee_columns(knee: Knee, proposal: NextMeasurements | None) -> dict[str, Any]:
    """Return a knee and a proposal as columns of the table `projection`."""
    limit, share = next(iter(knee.parts.items()), ("", math.nan))
    measure = {"measure_next": "", "target_nodes": math.nan, "band_now": math.nan, "band_then": math.nan}
    if proposal:
        counts = " ".join(map(str, proposal.counts))
        measure = dict(zip(measure, (counts, proposal.target, proposal.now, proposal.then), strict=True))
    nodes, gain = (
        intervals.columns(name, estimate)
        for name, estimate in (("worth_nodes", knee.nodes), ("next_gain", knee.gain))
    )
    return {**nodes, **gain, "limit": limit, "limit_share": share, **measure}
