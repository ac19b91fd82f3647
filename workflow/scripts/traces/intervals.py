"""Arithmetic of time intervals: union, length, and the part of one set that another one covers.

An interval is [start, end) in s; one with equal ends covers nothing. All arrays are [n]. Groups are numbered
from 0 and are independent of each other.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Intervals:
    """Intervals, each in a group."""

    group: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def select(self, mask: np.ndarray) -> "Intervals":
        """Return the intervals where `mask` [n] is true."""
        return Intervals(self.group[mask], self.start[mask], self.end[mask])

    def union(self) -> "Intervals":
        """Return the union as disjoint intervals, by group and time."""
        nonempty = self.select(self.end > self.start)
        if not len(nonempty.group):
            return nonempty
        order = np.lexsort((nonempty.start, nonempty.group))
        group, start, end = nonempty.group[order], nonempty.start[order], nonempty.end[order]
        new_group = np.r_[True, group[1:] != group[:-1]]
        # Groups are laid one after the other, so that one running maximum gives the latest end so far in
        # each.
        first = np.flatnonzero(new_group)
        zero = start[first]
        number = np.cumsum(new_group) - 1
        length = float((end - zero[number]).max()) + 1.0
        reached = (
            np.maximum.accumulate((end - zero[number]) + number * length) - number * length + zero[number]
        )
        new = new_group.copy()
        new[1:] |= start[1:] > reached[:-1]
        last = np.r_[np.flatnonzero(new)[1:] - 1, len(group) - 1]
        longest = np.maximum.reduceat(end, np.flatnonzero(new))
        return Intervals(group[last], start[new], longest)

    def seconds(self, groups: int) -> np.ndarray:
        """Return the sum of lengths in each group, [groups]; overlaps count twice."""
        return np.bincount(self.group, weights=np.maximum(self.end - self.start, 0.0), minlength=groups)


@dataclass(frozen=True)
class Cover:
    """Seconds covered by a set of intervals from its beginning, at their ends: [2 n], both increasing."""

    at: np.ndarray
    seconds: np.ndarray

    @classmethod
    def from_intervals(cls, start: np.ndarray, end: np.ndarray) -> "Cover":
        """Return the cover of the union of these intervals."""
        union = Intervals(np.zeros(len(start), dtype=int), start, end).union()
        lengths = union.end - union.start
        before = np.cumsum(lengths) - lengths
        return cls(
            np.column_stack([union.start, union.end]).ravel(),
            np.column_stack([before, before + lengths]).ravel(),
        )

    def within(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the covered seconds of each interval, [n]."""
        if not len(self.at):
            return np.zeros(len(start))
        until, since = (np.interp(ends, self.at, self.seconds) for ends in (end, start))
        return np.maximum(until - since, 0.0)
