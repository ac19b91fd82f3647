"""Decide which nodes are slower than the others, by a rule with a known false-positive rate.

All nodes do equal work in rounds. A node is slow in a round if its time exceeds the lower median of the round
by more than a margin. A node is called slow if it is slow in so many rounds that the probability of this, for
a node like the others, is at most FALSE_POSITIVE_RATE divided by the number of verdicts (a sign test with
Bonferroni's correction). Of equal nodes, at most half lie above the lower median of a round, and fewer by a
margin. So at most one in a hundred checks of equal nodes calls any of them slow, whatever the distribution of
times, if disturbances do not last from one round to the next. A node that is disturbed during the whole check
is slow, too.
"""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

FALSE_POSITIVE_RATE = 0.01  # rate for a check as a whole, with all its nodes and tests
MARGIN = 0.1
RATE_TEXT, MARGIN_TEXT = (f"{100 * share:g} %" for share in (FALSE_POSITIVE_RATE, MARGIN))
# A slow node is found even if it looks like the others in this share of rounds.
SPARED_SHARE = 0.25

Unit = TypeVar("Unit", bound=Hashable)  # a node, an accelerator or a rank


@dataclass(frozen=True)
class Verdict:
    """Result of a test of a node.

    Attributes:
        n_rounds: Number of rounds in which the node worked.
        n_slow: Number of these in which it was slow.
        ratio: Median over rounds of its time over the lower median of all nodes.
        p: Probability of `n_slow` or more for a node like the others.
        is_slow: Whether the node is called slow.
    """

    n_rounds: int
    n_slow: int
    ratio: float
    p: float
    is_slow: bool


def binomial_tail(n_rounds: int, n_slow: int) -> float:
    """Return the probability of `n_slow` or more successes in `n_rounds` tosses of a fair coin."""
    return sum(math.comb(n_rounds, k) for k in range(n_slow, n_rounds + 1)) / 2**n_rounds


def rounds_needed(n_tests: int) -> int:
    """Return how many rounds find a node that is slow in all of them except SPARED_SHARE."""
    n_rounds = 1
    while binomial_tail(n_rounds, n_rounds - int(SPARED_SHARE * n_rounds)) > FALSE_POSITIVE_RATE / n_tests:
        n_rounds += 1
    return n_rounds


def judge_units(
    rounds: Sequence[Mapping[Unit, float]], n_tests: int, margin: float = MARGIN
) -> dict[Unit, Verdict]:
    """Return the verdict on each node, accelerator or rank.

    Args:
        rounds: Seconds of each round, by unit; a unit can be absent from a round.
        n_tests: Number of all verdicts, over units and tests.
        margin: Share of the lower median by which a slow unit exceeds it.
    """
    ratios: dict[Unit, list[float]] = {}
    for times in rounds:
        usual = statistics.median_low(times.values())
        for unit, seconds in times.items():
            ratios.setdefault(unit, []).extend([seconds / usual] if len(times) > 1 else [])
    return {unit: _verdict(values, n_tests, margin) for unit, values in ratios.items()}


def _verdict(ratios: Sequence[float], n_tests: int, margin: float) -> Verdict:
    n_slow = sum(ratio > 1 + margin for ratio in ratios)
    p = binomial_tail(len(ratios), n_slow)
    median = statistics.median(ratios) if ratios else math.nan
    return Verdict(len(ratios), n_slow, median, p, bool(ratios) and p <= FALSE_POSITIVE_RATE / n_tests)


def best_meetings(
    cycles: Sequence[Sequence[Sequence[float | None]]], names: Sequence[str]
) -> list[dict[str, float]]:
    """Return the quickest message of each node in each cycle of a tournament, as the rounds of `judge_units`.

    A message is as slow as the slower of its two nodes. A good node is therefore quick with every good
    partner, and a slow one with none.

    Args:
        cycles: Seconds, [cycle][round][node]; None for a node that pauses.
        names: The nodes.
    """
    best = []
    for cycle in cycles:
        by_node = [
            [seconds for seconds in times if seconds is not None] for times in zip(*cycle, strict=True)
        ]
        best.append({name: min(times) for name, times in zip(names, by_node, strict=True) if times})
    return best
