"""Decide which samples a replica trains on, and in which order, by the same rule in every framework.

The order of an epoch is one permutation of the training samples, drawn from (seed, epoch), the same on all
ranks. Each step uses the next `replicas * batch` samples of it, of which each replica trains on `batch`
consecutive ones. With unequal shares (`divide_step`), each rank trains on consecutive samples in
proportion to its share. So k accumulated batches of size b have the same samples as one batch of size k * b,
and the samples of a step do not depend on the number of ranks.
"""

from collections.abc import Iterator, Sequence

import numpy as np


def epoch_batches(seed: int, epoch: int, n_samples: int, step_samples: int, part: slice) -> np.ndarray:
    """Return the samples in `part` of each step's `step_samples`, int64 [steps, part].

    Samples at the end of the order that do not fill a step are left out.
    """
    order = np.random.default_rng([seed, epoch]).permutation(n_samples)
    steps = n_samples // step_samples
    return order[: steps * step_samples].reshape(steps, step_samples)[:, part]


def divide_step(step_samples: int, shares: Sequence[float], fewest: int = 1) -> list[int]:
    """Return the number of samples of each rank in a step, rounded by the largest-remainder method.

    Args:
        step_samples: Samples of a step, over all ranks.
        shares: Share of each rank; they need not add up to 1.
        fewest: Minimum number of samples of a rank.

    Raises:
        ValueError: If the step has fewer than `fewest` samples for each rank.
    """
    if step_samples < fewest * len(shares):
        raise ValueError(f"{step_samples} samples are fewer than {fewest} for each of {len(shares)} ranks")
    free = set(range(len(shares)))
    counts = [fewest] * len(shares)
    while free:
        rest, total = (
            step_samples - sum(counts[rank] for rank in set(range(len(shares))) - free),
            sum(shares[rank] for rank in free),
        )
        exact = {rank: rest * shares[rank] / total for rank in sorted(free)}
        if too_small := {rank for rank, samples in exact.items() if samples < fewest}:
            free -= too_small  # They get the minimum; the other ranks divide the rest.
            continue
        counts = [int(exact.get(rank, samples)) for rank, samples in enumerate(counts)]
        largest = sorted(free, key=lambda rank: counts[rank] - exact[rank])
        for rank in largest[: step_samples - sum(counts)]:
            counts[rank] += 1
        break
    return counts


def accumulation_groups(steps: int, sync_every: int) -> Iterator[int]:
    """Yield the number of batches before each all-reduce of an epoch; the last group can be shorter."""
    for first in range(0, steps, sync_every):
        yield min(sync_every, steps - first)


def validation_share(n_samples: int, step_samples: int, part: slice) -> slice:
    """Return the validation samples of the rank whose part of each step's `step_samples` is `part`."""
    return slice(n_samples * part.start // step_samples, n_samples * part.stop // step_samples)
