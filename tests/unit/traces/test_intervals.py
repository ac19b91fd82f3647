"""Unions, lengths and covers of intervals are those of a slow and obvious twin, which counts seconds one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.intervals import Cover, Intervals

SECONDS = 30
interval = st.tuples(st.integers(0, 3), st.integers(0, SECONDS), st.integers(0, SECONDS))
several = st.lists(interval, max_size=25)


def of(entries) -> Intervals:
    group, one, other = (np.array([entry[i] for entry in entries], dtype=int) for i in range(3))
    return Intervals(group, np.minimum(one, other).astype(float), np.maximum(one, other).astype(float))


def counted(some: Intervals) -> np.ndarray:
    """Whether each second of each group is in any of them, [4, SECONDS]."""
    found = np.zeros((4, SECONDS), dtype=bool)
    for group, start, end in zip(some.group, some.start, some.end, strict=True):
        found[group, int(start) : int(end)] = True
    return found


@pytest.mark.parametrize(
    ("entries", "known"),
    [
        ([], []),
        ([(0, 1, 3), (0, 2, 5)], [(0, 1, 5)]),
        ([(0, 1, 3), (0, 3, 5)], [(0, 1, 5)]),  # one goes on where the other ends
        ([(0, 1, 9), (0, 2, 3), (0, 4, 10)], [(0, 1, 10)]),  # one lies within another
        ([(0, 4, 5), (0, 1, 2)], [(0, 1, 2), (0, 4, 5)]),
        ([(1, 1, 3), (0, 2, 5)], [(0, 2, 5), (1, 1, 3)]),  # groups have nothing to do with each other
        ([(0, 2, 2)], []),  # nothing
    ],
)
def test_unions_that_are_known(entries, known):
    union = of(entries).union()
    assert list(zip(union.group, union.start, union.end, strict=True)) == known


@given(several)
def test_a_union_has_the_seconds_that_are_in_any_and_no_two_touch(entries):
    some = of(entries)
    union = some.union()
    assert (counted(union) == counted(some)).all()
    assert union.seconds(4) == pytest.approx(counted(some).sum(axis=1))
    same = union.group[1:] == union.group[:-1]
    assert (union.start[1:][same] > union.end[:-1][same]).all()


@given(several)
def test_a_union_of_a_union_is_itself(entries):
    once = of(entries).union()
    twice = once.union()
    assert (once.start == twice.start).all() and (once.end == twice.end).all()


@given(several, several)
def test_a_cover_has_the_seconds_that_both_have(entries, others):
    covering = of([(0, *ends) for _, *ends in others])
    asked = of(entries)
    both = [
        counted(of([(0, start, end)]))[0] & counted(covering)[0]
        for start, end in zip(asked.start, asked.end, strict=True)
    ]
    found = Cover.of(covering.start, covering.end).within(asked.start, asked.end)
    assert found == pytest.approx([seconds.sum() for seconds in both])


def test_large_times_keep_microseconds():
    """Ten days since the start, 10,000 groups of a step: lengths stay exact to a microsecond."""
    start = 864_000 + np.arange(10_000) * 0.02
    some = Intervals(
        np.repeat(np.arange(10_000), 2),
        np.repeat(start, 2) + np.tile([0, 0.005], 10_000),
        np.repeat(start, 2) + np.tile([0.007, 0.011], 10_000),
    )
    assert some.union().seconds(10_000) == pytest.approx(np.full(10_000, 0.011), abs=1e-6)
