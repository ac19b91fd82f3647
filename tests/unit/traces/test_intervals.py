"""Unions, lengths and covers of intervals are those of a slow and obvious twin, which counts seconds one by
one.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.intervals import Cover, Intervals

SECONDS = 30
interval = st.tuples(st.integers(0, 3), st.integers(0, SECONDS), st.integers(0, SECONDS))
interval_lists = st.lists(interval, max_size=25)


def own(entries) -> Intervals:
    group, item, second = (np.array([entry[i] for entry in entries], dtype=int) for i in range(3))
    return Intervals(group, np.minimum(item, second).astype(float), np.maximum(item, second).astype(float))


def counted(subset: Intervals) -> np.ndarray:
    """Whether each second of each group is in any of them, [4, SECONDS]."""
    result = np.zeros((4, SECONDS), dtype=bool)
    for group, start, end in zip(subset.group, subset.start, subset.end, strict=True):
        result[group, int(start) : int(end)] = True
    return result


@given(interval_lists)
def test_union_has_all_seconds_and_disjoint_intervals(entries):
    subset = own(entries)
    union = subset.union()
    assert (counted(union) == counted(subset)).all()
    assert union.seconds(4) == pytest.approx(counted(subset).sum(axis=1))
    equal = union.group[1:] == union.group[:-1]
    assert (union.start[1:][equal] > union.end[:-1][equal]).all()


@given(interval_lists, interval_lists)
def test_a_cover_has_the_seconds_that_both_have(entries, rest):
    covering = own([(0, *ends) for _, *ends in rest])
    request = own(entries)
    pair = [
        counted(own([(0, start, end)]))[0] & counted(covering)[0]
        for start, end in zip(request.start, request.end, strict=True)
    ]
    result = Cover.from_intervals(covering.start, covering.end).within(request.start, request.end)
    assert result == pytest.approx([seconds.sum() for seconds in pair])


def test_large_times_keep_microseconds():
    """Ten days since the start, 10,000 groups of a step: lengths stay exact to a microsecond."""
    start = 864_000 + np.arange(10_000) * 0.02
    subset = Intervals(
        np.repeat(np.arange(10_000), 2),
        np.repeat(start, 2) + np.tile([0, 0.005], 10_000),
        np.repeat(start, 2) + np.tile([0.007, 0.011], 10_000),
    )
    assert subset.union().seconds(10_000) == pytest.approx(np.full(10_000, 0.011), abs=1e-6)
