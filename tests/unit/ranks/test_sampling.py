"""Samples of a rank: disjoint between ranks, and the same in total for every number of ranks and batches."""

import numpy as np
import pytest

from ranks.worker.sampling import accumulation_groups, divide_step, epoch_batches, validation_share

ALL = slice(None)


def parts(*samples: int) -> list[slice]:
    """Return consecutive parts with these numbers of samples."""
    ends = np.cumsum(samples).tolist()
    return [slice(end - own, end) for end, own in zip(ends, samples, strict=True)]


@pytest.mark.parametrize(("samples", "batch", "ranks"), [(1536, 16, 1), (1536, 32, 2), (1797, 64, 3)])
def test_epoch_repeats_no_sample_and_drops_less_than_a_step(samples: int, batch: int, ranks: int) -> None:
    seen = [epoch_batches(5, 1, samples, batch * ranks, part) for part in parts(*[batch] * ranks)]
    assert {part.shape for part in seen} == {(samples // (batch * ranks), batch)}, (
        "equal numbers of steps on all ranks"
    )
    together = np.concatenate([part.ravel() for part in seen])
    assert len(np.unique(together)) == len(together) > samples - batch * ranks


def test_samples_of_a_step_do_not_depend_on_the_partition() -> None:
    reference = epoch_batches(5, 3, 1536, 64, ALL)
    accumulated = epoch_batches(5, 3, 1536, 16, ALL).reshape(-1, 64)
    for samples in ([32, 32], [50, 14], [1, 40, 23]):
        together = [epoch_batches(5, 3, 1536, 64, part) for part in parts(*samples)]
        assert np.array_equal(np.concatenate(together, axis=1), reference)
    assert np.array_equal(accumulated, reference), "four batches of 16 are one of 64"


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first = epoch_batches(5, 1, 1536, 64, ALL)
    assert not np.array_equal(first, epoch_batches(5, 2, 1536, 64, ALL))
    assert not np.array_equal(first, epoch_batches(6, 1, 1536, 64, ALL))
    assert np.array_equal(first, epoch_batches(5, 1, 1536, 64, ALL))


@pytest.mark.parametrize(
    ("steps", "every", "groups"), [(8, 4, [4, 4]), (10, 4, [4, 4, 2]), (3, 4, [3]), (2, 1, [1, 1])]
)
def test_a_shorter_last_group_is_flushed(steps: int, every: int, groups: list[int]) -> None:
    assert list(accumulation_groups(steps, every)) == groups


def test_every_validation_sample_is_evaluated_once() -> None:
    for samples in ([16] * 4, [1, 60, 3]):
        shares = [range(261)[validation_share(261, 64, part)] for part in parts(*samples)]
        assert [i for share in shares for i in share] == list(range(261))


@pytest.mark.parametrize(
    ("block", "shares", "fewest", "samples"),
    [
        (96, [0.6, 0.3, 0.1], 1, [57, 29, 10]),  # 57.6, 28.8, 9.6: the largest remainders are rounded up
        (96, [300.0, 200.0], 1, [58, 38]),
        (7, [1.0, 1.0], 1, [4, 3]),
        (64, [1e9, 1.0], 1, [63, 1]),
        (64, [1e9, 1.0, 2.0], 2, [60, 2, 2]),
        (10, [0.9, 0.05, 0.05], 2, [6, 2, 2]),
        (5, [3.0], 1, [5]),
        (3, [0.1, 0.8, 0.1], 1, [1, 1, 1]),
    ],
)
def test_block_is_divided_by_largest_remainder(
    block: int, shares: list[float], fewest: int, samples: list[int]
) -> None:
    assert divide_step(block, shares, fewest) == samples


def test_divided_block_is_complete_and_closest_to_the_shares() -> None:
    random = np.random.default_rng(4)
    for _ in range(300):
        ranks = int(random.integers(1, 6))
        block, shares = int(random.integers(ranks, 200)), random.uniform(0.01, 1, ranks)
        samples = divide_step(block, shares.tolist())
        exact = block * shares / shares.sum()
        assert sum(samples) == block and min(samples) >= 1
        if exact.min() >= 1:
            assert (np.abs(samples - exact) < 1).all()


def test_a_block_that_is_too_small_for_all_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="3 samples are fewer than 2 for each of 2 ranks"):
        divide_step(3, [0.5, 0.5], 2)
