"""Arithmetic of intervals of time: union, length, and what one set covers of another.

An interval is [start, end), in s; one that ends where it starts covers nothing. All arrays [n]. Groups are numbered from 0 and
have nothing to do with each other.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Intervals:
    """Intervals, each in a group."""

    group: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def where(self, kept: np.ndarray) -> "Intervals":
        """Those that `kept` [n] says."""
        return Intervals(self.group[kept], self.start[kept], self.end[kept])

    def union(self) -> "Intervals":
        """What is in any of them, in intervals without common points, by group and time."""
        some = self.where(self.end > self.start)
        if not len(some.group):
            return some
        order = np.lexsort((some.start, some.group))
        group, start, end = some.group[order], some.start[order], some.end[order]
        new_group = np.r_[True, group[1:] != group[:-1]]
        # The latest end so far in each group: groups are laid one behind the other for one running maximum.
        first = np.flatnonzero(new_group)
        zero = start[first]
        number = np.cumsum(new_group) - 1
        length = float((end - zero[number]).max()) + 1.0
        reached = np.maximum.accumulate((end - zero[number]) + number * length) - number * length + zero[number]
        new = new_group.copy()
        new[1:] |= start[1:] > reached[:-1]
        last = np.r_[np.flatnonzero(new)[1:] - 1, len(group) - 1]
        longest = np.maximum.reduceat(end, np.flatnonzero(new))
        return Intervals(group[last], start[new], longest)

    def seconds(self, groups: int) -> np.ndarray:
        """The sum of their lengths in each of so many groups, [groups]; what lies in two of them counts twice."""
        return np.bincount(self.group, weights=np.maximum(self.end - self.start, 0.0), minlength=groups)


@dataclass(frozen=True)
class Cover:
    """How many seconds from its beginning on a set of intervals covers, at its corners: [2 n], both rising."""

    at: np.ndarray
    seconds: np.ndarray

    @classmethod
    def of(cls, start: np.ndarray, end: np.ndarray) -> "Cover":
        """Of the union of these intervals."""
        one = Intervals(np.zeros(len(start), dtype=int), start, end).union()
        lengths = one.end - one.start
        before = np.cumsum(lengths) - lengths
        return cls(np.column_stack([one.start, one.end]).ravel(), np.column_stack([before, before + lengths]).ravel())

    def within(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Seconds of each interval [n] that the set covers."""
        if not len(self.at):
            return np.zeros(len(start))
        until, since = (np.interp(ends, self.at, self.seconds) for ends in (end, start))
        return np.maximum(until - since, 0.0)
