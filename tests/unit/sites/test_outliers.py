"""Slow nodes are found, equal ones are not: false-positive rate and power of the rule, by simulation."""

import numpy as np
import pytest

from ranks.node_check import partners
from sites.outliers import (
    FALSE_POSITIVE_RATE,
    SPARED_SHARE,
    best_meetings,
    binomial_tail,
    judge_units,
    rounds_needed,
)

NAMES = [f"node{i}" for i in range(1, 6)]


def checks(ratio: float, n_checks: int, seed: int) -> list[set[str]]:
    """Return the nodes that are called slow in each of many checks whose first node takes `ratio` times as long."""
    draw, n_rounds = np.random.default_rng(seed), rounds_needed(len(NAMES))
    times = draw.lognormal(0.0, 0.15, (n_checks, n_rounds, len(NAMES))) * [ratio, 1, 1, 1, 1]
    named = []
    for rounds in times:
        verdicts = judge_units([dict(zip(NAMES, row, strict=True)) for row in rounds], len(NAMES), margin=0.0)
        named.append({name for name, verdict in verdicts.items() if verdict.is_slow})
    return named


def test_equal_nodes_are_rarely_named() -> None:
    """Without a margin, which makes the rule stricter: at most 1 % of checks, with 3 standard errors."""
    n_checks = 1500
    n_wrong = sum(bool(named) for named in checks(1.0, n_checks, seed=1))
    assert n_wrong <= n_checks * FALSE_POSITIVE_RATE + 3 * (n_checks * FALSE_POSITIVE_RATE) ** 0.5


def test_slow_node_is_named_in_noise() -> None:
    """A node with 70 % of its CPU time is found in noise of 15 %; the false-positive rate stays the same."""
    named = checks(1 / 0.7, 100, seed=2)
    assert sum(NAMES[0] in names for names in named) >= 95


@pytest.mark.parametrize("n_tests", [2, 9, 300, 3000])
def test_rounds_suffice_for_the_corrected_level(n_tests: int) -> None:
    n_rounds = rounds_needed(n_tests)
    n_slow = n_rounds - int(SPARED_SHARE * n_rounds)
    assert binomial_tail(n_rounds, n_slow) <= FALSE_POSITIVE_RATE / n_tests
    assert n_rounds < 80


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [([1.0, 1.05], []), ([1.0, 1.15], ["node2"]), ([1.0, 1.0, 1.05], []), ([1.0, 1.0, 1.15], ["node3"])],
)
def test_slow_is_a_tenth_more_than_the_lower_median(seconds: list[float], slow: list[str]) -> None:
    verdicts = judge_units([dict(zip(NAMES, seconds, strict=False))] * 20, len(seconds))
    assert [name for name, verdict in verdicts.items() if verdict.is_slow] == slow


def test_single_node_has_no_verdict() -> None:
    (verdict,) = judge_units([{"node1": 1.0}] * 20, 1).values()
    assert verdict.n_rounds == 0 and not verdict.is_slow


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 9, 33])
def test_no_two_nodes_meet_twice(nodes: int) -> None:
    """Each node meets at least two others, where there are as many, in about log2(nodes) rounds."""
    met = [[meeting[rank] for meeting in partners(nodes) if rank in meeting] for rank in range(nodes)]
    assert all(len(set(ranks)) == len(ranks) >= min(2, nodes - 1) for ranks in met)
    assert len(partners(nodes)) <= np.log2(nodes) + 2
    for meeting in partners(nodes):
        assert all(meeting[partner] == rank for rank, partner in meeting.items())


@pytest.mark.parametrize("nodes", [3, 4, 5])
def test_only_the_node_with_a_slow_link_is_named(nodes: int) -> None:
    """A message is as slow as the slower node; those that met the slow node met another one, too."""
    cycle = [
        [2.0 if 1 in (rank, meeting.get(rank)) else 1.0 if rank in meeting else None for rank in range(nodes)]
        for meeting in partners(nodes)
    ]
    verdicts = judge_units(best_meetings([cycle] * rounds_needed(nodes), NAMES[:nodes]), nodes)
    assert [name for name, verdict in verdicts.items() if verdict.is_slow] == ["node2"]


def test_two_nodes_share_the_blame_for_their_link() -> None:
    verdicts = judge_units(best_meetings([[[2.0, 2.0]]] * 20, NAMES[:2]), 2)
    assert {verdict.ratio for verdict in verdicts.values()} == {1.0}
