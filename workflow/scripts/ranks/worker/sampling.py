"""Decide which samples a replica trains on, and in which order, by the same rule in every framework.

The order of an epoch is one permutation of the training samples, drawn from (seed, epoch), the same on all
ranks. Each step uses the next `replicas * batch` samples of it, its block, of which each replica trains on
`batch` consecutive ones. With unequal shares (`divide_block`), each rank trains on consecutive samples in
proportion to its share. So k accumulated batches of size b have the same samples as one batch of size k * b,
and the samples of a step do not depend on the number of ranks.
"""

from collections.abc import Iterator, Sequence

import numpy as np


def epoch_batches(seed: int, epoch: int, samples: int, block: int, part: slice) -> np.ndarray:
    """Return the samples in `part` of each step's `block`, int64 [steps, part].

    Samples at the end of the order that do not fill a step are left out.
    """
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    steps = samples // block
    return order[: steps * block].reshape(steps, block)[:, part]


def divide_block(block: int, shares: Sequence[float], fewest: int = 1) -> list[int]:
    """Return the number of samples of each rank in a block, rounded by the largest-remainder method.

    Args:
        block: Samples of a step, over all ranks.
        shares: Share of each rank; they need not add up to 1.
        fewest: Minimum number of samples of a rank.

    Raises:
        ValueError: If the block has fewer than `fewest` samples for each rank.
    """
    if block < fewest * len(shares):
        raise ValueError(f"{block} samples are fewer than {fewest} for each of {len(shares)} ranks")
    free = set(range(len(shares)))
    counts = [fewest] * len(shares)
    while free:
        rest, total = (
            block - sum(counts[rank] for rank in set(range(len(shares))) - free),
            sum(shares[rank] for rank in free),
        )
        exact = {rank: rest * shares[rank] / total for rank in sorted(free)}
        if too_small := {rank for rank, samples in exact.items() if samples < fewest}:
            free -= too_small  # They get the minimum; the other ranks divide the rest.
            continue
        counts = [int(exact.get(rank, samples)) for rank, samples in enumerate(counts)]
        largest = sorted(free, key=lambda rank: counts[rank] - exact[rank])
        for rank in largest[: block - sum(counts)]:
            counts[rank] += 1
        break
    return counts


def accumulation_groups(steps: int, sync_every: int) -> Iterator[int]:
    """Yield the number of batches before each all-reduce of an epoch; the last group can be shorter."""
    for first in range(0, steps, sync_every):
        yield min(sync_every, steps - first)


def validation_share(samples: int, block: int, part: slice) -> slice:
    """Return the validation samples of the rank whose part of each step's `block` is `part`."""
    return slice(samples * part.start // block, samples * part.stop // block)
