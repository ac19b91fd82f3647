"""Find cells whose times lie on a lattice: few values, multiples of a step apart.

A time to train is an offset plus the number of evaluations times their interval. Runs of a cell then differ
by whole intervals, far more than they differ otherwise: a second value is no outlier, and no such sample is
normal. Times that were rounded to a coarse unit look the same, and those of machines with two speeds.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_RUNS = 4  # of a cell that can show a lattice
MAX_SPREAD = 0.2  # of the values around a point of the lattice, as a share of the step
CHANCE = 0.001  # with which any cell of a study without a lattice seems to lie on one
CHANCE_OF_OTHERS = 0.05  # of a single cell, where others are on a lattice
MIN_CELL_SHARE = 0.2  # of the cells that are judged; fewer show no property of the study
SPAN = 1.5  # a lattice has at most so many steps for each of its values


@dataclass(frozen=True)
class Lattice:
    """Where the values of a cell lie: `origin` + `place` * `step`.

    Attributes:
        step: Distance of neighbouring points, in the values' unit.
        origin: The smallest point that has a value.
        places: Point of each value in the order of the values, from 0, [n].
        chance: Bound of the probability that values without a lattice lie as near to one.
    """

    step: float
    origin: float
    places: NDArray[np.intp]
    chance: float

    @property
    def n_repeated(self) -> int:
        """Number of points with two values or more."""
        return int((np.bincount(self.places) > 1).sum())

    @property
    def n_points(self) -> int:
        """Number of points with a value."""
        return len(np.unique(self.places))


def find_lattices(groups: Mapping[str, NDArray[np.float64]]) -> dict[str, Lattice]:
    """Return the lattice of each cell that lies on one; {} if the cells as a whole do not show any.

    A cell with one distant run looks like a lattice of two values as well as like an outlier. So such cells
    count only where at least as many have two values that were both measured repeatedly. Where cells of a
    study are on a lattice, less evidence suffices for its others.

    Args:
        groups: Cell -> values of its runs [n].
    """
    judged = {name: fit_lattice(values) for name, values in groups.items() if len(values) >= MIN_RUNS}
    likely = {
        name: lattice
        for name, lattice in judged.items()
        if lattice is not None and lattice.chance * len(judged) < CHANCE
    }
    n_sure = sum(lattice.n_repeated > 1 for lattice in likely.values())
    if not (n_sure and 2 * n_sure >= len(likely) >= MIN_CELL_SHARE * len(judged)):
        return {}
    return {
        name: lattice
        for name, lattice in judged.items()
        if lattice is not None and lattice.chance < CHANCE_OF_OTHERS
    }


def fit_lattice(values: NDArray[np.float64]) -> Lattice | None:
    """Return the lattice that values [n] most probably lie on; None if none has two points or more."""
    return min(_lattices(values), key=lambda lattice: lattice.chance, default=None)


def _lattices(values: NDArray[np.float64]) -> Iterator[Lattice]:
    """Yield lattices whose points are the means of values that lie together, for each number of points."""
    if not np.ptp(values) > 0:
        return
    order = np.argsort(values, kind="stable")
    gaps = np.diff(values[order])
    for n_points in range(2, len(values) // 2 + 1):
        cuts = np.sort(np.argsort(gaps, kind="stable")[len(gaps) - n_points + 1 :])
        cluster = np.zeros(len(values), dtype=np.intp)
        cluster[order[1:]] = np.cumsum(np.isin(np.arange(len(gaps)), cuts))
        centres = np.bincount(cluster, values) / np.bincount(cluster)
        places = np.rint((centres - centres[0]) / np.diff(centres).min())[cluster].astype(np.intp)
        if places.max() > SPAN * n_points:
            continue
        step, origin = np.polyfit(places, values, 1)
        spread = float(np.abs(values - origin - step * places).max() / step)
        if spread < MAX_SPREAD:
            # Two values determine a lattice; each other one is as near to it by chance.
            chance = math.comb(len(gaps), n_points - 1) * max(2 * spread, 1e-12) ** (len(values) - 2)
            yield Lattice(float(step), float(origin), places, min(1.0, chance))
