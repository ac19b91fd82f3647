"""The search for the largest size that fits, over made-up memories."""

from bisect import bisect_right
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from runs.bisection import MARGIN, find_largest


class Memory:
    """A memory of this size, which counts what is tried."""

    def __init__(self, size: int) -> None:
        self.size, self.tried = size, Counter[int]()

    def fits(self, size: int) -> bool:
        self.tried[size] += 1
        return size <= self.size


SIZES = st.lists(st.integers(1, 1 << 20), min_size=1, max_size=600, unique=True).map(sorted)


@given(sizes=SIZES, memory=st.integers(0, 1 << 20))
def test_largest_size_less_the_margin_is_found(sizes: list[int], memory: int) -> None:
    counted = Memory(memory)
    result = find_largest(sizes, counted.fits)
    below = sizes[: bisect_right(sizes, memory)]
    assert max(counted.tried.values()) == 1
    if not below:
        assert (result.chosen, result.largest) == (None, None)
    elif len(below) == len(sizes):
        assert (result.chosen, result.largest) == (sizes[-1], sizes[-1])
    else:
        with_margin = [size for size in below if size <= (1 - MARGIN) * below[-1]]
        assert result.largest == below[-1]
        assert result.chosen == (with_margin or below)[-1] and result.chosen in counted.tried


@given(sizes=SIZES, seed=st.randoms(use_true_random=False), share=st.floats(0, 1))
def test_search_over_irregular_sizes_ends_with_a_fitting_one(
    sizes: list[int], seed: object, share: float
) -> None:
    answers = {size: seed.random() < share for size in sizes}  # type: ignore[attr-defined]
    result = find_largest(sizes, answers.__getitem__)
    if result.chosen is None:
        assert not answers[sizes[0]]
        return
    assert result.largest is not None and result.chosen <= result.largest
    assert answers[result.chosen] and answers[result.largest]
    if result.largest < sizes[-1]:
        above = sizes[sizes.index(result.largest) + 1]
        assert not answers[above]


@given(sizes=SIZES, memory=st.integers(0, 1 << 20), estimated=st.integers(1, 1 << 20))
def test_estimate_does_not_change_the_result(sizes: list[int], memory: int, estimated: int) -> None:
    counted = Memory(memory)
    assert find_largest(sizes, counted.fits, estimated) == find_largest(sizes, Memory(memory).fits)
    assert max(counted.tried.values()) == 1


def test_good_estimate_saves_most_trials() -> None:
    for estimated, max_trials in ((50_010, 12), (40_000, 30)):  # steps away from the estimate grow
        memory = Memory(50_000)
        assert find_largest(range(1, 1 << 20), memory.fits, estimated).largest == 50_000
        assert memory.tried.total() <= max_trials


def test_search_tries_few_of_many_sizes() -> None:
    memory = Memory(50_000)
    result = find_largest(range(1, 1 << 20), memory.fits)
    assert (result.largest, result.chosen) == (50_000, 47_500)
    n_doublings, n_halvings = 13, 15  # 16 to 65 536, then the 32 768 sizes between the last two
    assert memory.tried.total() == n_doublings + n_halvings + 1, "what is chosen is tried, too"
