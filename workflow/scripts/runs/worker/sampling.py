"""Which samples a replica trains on, in which order: the same rule in every framework.

An epoch's order is one permutation of the training samples, drawn from (seed, epoch), the same on all ranks. Step i
takes the next `replicas * batch` samples of it, and each replica its own consecutive `batch`. So the samples behind k
exchanged-together batches of b are those of one batch of k * b, and what one step sees does not depend on who sees it.
"""

from collections.abc import Iterator

import numpy as np


def epoch_batches(seed: int, epoch: int, samples: int, batch: int, replica: int, replicas: int) -> np.ndarray:
    """Indices of the samples that `replica` trains on in `epoch`, int64 [steps, batch]; a rest that fills no step is left out."""
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    steps = samples // (batch * replicas)
    return order[: steps * batch * replicas].reshape(steps, replicas, batch)[:, replica]


def accumulation_groups(steps: int, sync_every: int) -> Iterator[int]:
    """How many batches stand behind each exchange of an epoch; the last group may be shorter, nothing carries over."""
    for first in range(0, steps, sync_every):
        yield min(sync_every, steps - first)


def validation_share(samples: int, rank: int, ranks: int) -> slice:
    """The part of the validation samples that `rank` evaluates."""
    return slice(samples * rank // ranks, samples * (rank + 1) // ranks)
