"""Generate traces of training steps from known durations, which a replay has to recover."""

from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Truth:
    """Durations of a training step in s.

    Attributes:
        data: Loading of a batch.
        forward: Forward pass of each rank.
        backward: Backward pass of each rank.
        ready: When each bucket is ready, as a share of the backward pass.
        moving: All-reduce of each bucket.
        finish: Between the last all-reduce and the optimizer.
        optimizer: Optimizer step.
        sync_every: Gradient accumulation steps.
    """

    data: float = 0.001
    forward: tuple[float, ...] = (0.010, 0.010)
    backward: tuple[float, ...] = (0.020, 0.020)
    ready: tuple[float, ...] = (0.5, 1.0)
    moving: tuple[float, ...] = (0.008, 0.012)
    finish: float = 0.0005
    optimizer: float = 0.002
    sync_every: int = 1

    def trace(self, steps, starts=None, epoch=2, first=1):
        """Return the rows of a run: rank, epoch, step, phase, start, end."""
        ranks = len(self.forward)
        now = list(starts or [0.0] * ranks)
        rows = []
        for step in range(first, first + steps):
            allreduced = step % self.sync_every == 0
            ready_at = []
            for rank in range(ranks):
                for phase, seconds in (("data", self.data), ("forward", self.forward[rank])):
                    rows.append((rank, epoch, step, phase, now[rank], now[rank] + seconds))
                    now[rank] += seconds
                ready_at.append([now[rank] + share * self.backward[rank] for share in self.ready])
                rows.append((rank, epoch, step, "backward", now[rank], now[rank] + self.backward[rank]))
                now[rank] += self.backward[rank]
            if not allreduced:
                continue
            free = -np.inf
            for bucket, seconds in enumerate(self.moving):
                free = max(free, *(times[bucket] for times in ready_at)) + seconds
                rows += [
                    (rank, epoch, step, "communication", ready_at[rank][bucket], free)
                    for rank in range(ranks)
                ]
            for rank in range(ranks):
                over = max(now[rank], free) + self.finish
                rows += [
                    (rank, epoch, step, "wait", now[rank], over),
                    (rank, epoch, step, "optimizer", over, over + self.optimizer),
                ]
                now[rank] = over + self.optimizer
        return pd.DataFrame(rows, columns=["rank", "epoch", "step", "phase", "start", "end"])

    def step_s(self):
        """Return the time in s of a step that all ranks begin together."""
        before = [self.data + forward for forward in self.forward]
        free = -np.inf
        for share, seconds in zip(self.ready, self.moving, strict=True):
            ready_at = [b + share * backward for b, backward in zip(before, self.backward, strict=True)]
            free = max(free, *ready_at) + seconds
        return (
            max(free, *(b + backward for b, backward in zip(before, self.backward, strict=True)))
            + self.finish
            + self.optimizer
        )
