"""Traces of training steps made from known durations, by plain loops: what a replay must find again."""

from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Truth:
    """A step, in s: what each rank does [ranks], when buckets are ready as shares of the backward pass, and
    how long each moves.
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
        """Rows of a run: rank, epoch, step, phase, start, end."""
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
        """How long a step of ranks that begin together takes, by arithmetic."""
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
