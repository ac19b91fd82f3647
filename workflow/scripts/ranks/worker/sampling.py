"""Which samples a replica trains on, in which order: the same rule in every framework.

An epoch's order is one permutation of the training samples, drawn from (seed, epoch), the same on all ranks. Step i
takes the next `replicas * batch` samples of it, its block, and each replica its own consecutive `batch`; where shares are
unequal (`divided`), each rank as many consecutive ones as its share is. So the samples behind k
exchanged-together batches of b are those of one batch of k * b, and what one step sees does not depend on who sees it.
"""

from collections.abc import Iterator, Sequence

import numpy as np


def epoch_batches(seed: int, epoch: int, samples: int, block: int, part: slice) -> np.ndarray:
    """Indices of the samples in `part` of each step's `block`, int64 [steps, part]; a rest that fills no step is left out."""
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    steps = samples // block
    return order[: steps * block].reshape(steps, block)[:, part]


def divided(block: int, shares: Sequence[float], fewest: int = 1) -> list[int]:
    """Samples of each rank in a block, by largest remainder; none has fewer than `fewest`. `shares` need not add up to 1.

    ValueError where the block has fewer than `fewest` for each.
    """
    if block < fewest * len(shares):
        raise ValueError(f"{block} samples are fewer than {fewest} for each of {len(shares)} ranks")
    free = set(range(len(shares)))
    found = [fewest] * len(shares)
    while free:
        rest, total = (
            block - sum(found[rank] for rank in set(range(len(shares))) - free),
            sum(shares[rank] for rank in free),
        )
        exact = {rank: rest * shares[rank] / total for rank in sorted(free)}
        if few := {rank for rank, samples in exact.items() if samples < fewest}:
            free -= few  # they have the fewest, the others divide what is left
            continue
        found = [int(exact.get(rank, samples)) for rank, samples in enumerate(found)]
        largest = sorted(free, key=lambda rank: found[rank] - exact[rank])
        for rank in largest[: block - sum(found)]:
            found[rank] += 1
        break
    return found


def accumulation_groups(steps: int, sync_every: int) -> Iterator[int]:
    """How many batches stand behind each exchange of an epoch; the last group may be shorter, nothing carries over."""
    for first in range(0, steps, sync_every):
        yield min(sync_every, steps - first)


def validation_share(samples: int, block: int, part: slice) -> slice:
    """The part of the validation samples that a rank evaluates whose part of each step's `block` this is."""
    return slice(samples * part.start // block, samples * part.stop // block)
