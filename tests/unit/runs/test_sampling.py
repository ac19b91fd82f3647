"""Which samples a rank sees: disjoint between ranks, the same in total however many ranks and batches share them."""

import numpy as np
import pytest

from runs.worker.sampling import accumulation_groups, epoch_batches, validation_share


@pytest.mark.parametrize(("samples", "batch", "ranks"), [(1536, 16, 1), (1536, 32, 2), (1797, 64, 3)])
def test_an_epoch_sees_no_sample_twice_and_drops_less_than_a_step(samples: int, batch: int, ranks: int) -> None:
    seen = [epoch_batches(5, 1, samples, batch, rank, ranks) for rank in range(ranks)]
    assert {part.shape for part in seen} == {(samples // (batch * ranks), batch)}, "equal numbers of steps on all ranks"
    together = np.concatenate([part.ravel() for part in seen])
    assert len(np.unique(together)) == len(together) > samples - batch * ranks


def test_a_step_sees_the_same_samples_however_they_are_shared_out() -> None:
    one = epoch_batches(5, 3, 1536, 64, 0, 1)
    two = [epoch_batches(5, 3, 1536, 32, rank, 2) for rank in (0, 1)]
    accumulated = epoch_batches(5, 3, 1536, 16, 0, 1).reshape(-1, 64)
    assert np.array_equal(np.concatenate(two, axis=1), one)
    assert np.array_equal(accumulated, one), "four batches of 16 are one of 64"


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first = epoch_batches(5, 1, 1536, 64, 0, 1)
    assert not np.array_equal(first, epoch_batches(5, 2, 1536, 64, 0, 1))
    assert not np.array_equal(first, epoch_batches(6, 1, 1536, 64, 0, 1))
    assert np.array_equal(first, epoch_batches(5, 1, 1536, 64, 0, 1))


@pytest.mark.parametrize(
    ("steps", "every", "groups"), [(8, 4, [4, 4]), (10, 4, [4, 4, 2]), (3, 4, [3]), (2, 1, [1, 1])]
)
def test_a_shorter_last_group_is_flushed(steps: int, every: int, groups: list[int]) -> None:
    assert list(accumulation_groups(steps, every)) == groups


def test_every_validation_sample_is_evaluated_once() -> None:
    parts = [range(261)[validation_share(261, rank, 4)] for rank in range(4)]
    assert [i for part in parts for i in part] == list(range(261))
