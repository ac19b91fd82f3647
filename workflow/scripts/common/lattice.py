"""Find cells whose times lie on a lattice: a few values whose distances are multiples of one step.

A time to train, for example, is an offset plus a number of evaluations times the interval between them. Runs
of a cell then differ by whole intervals, much more than by noise. So a second value is not an outlier, and
the sample is not normally distributed. Times that were rounded to a coarse unit, and times on machines with
two speeds, look the same.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_RUNS = 4  # cells with fewer runs are not examined
MAX_SPREAD = 0.2  # largest distance of a value from its lattice point, as a share of the step
MAX_CHANCE = 0.001  # probability that any cell of a study without a lattice seems to have one
MAX_CHANCE_OF_OTHERS = 0.05  # the same for one cell of a study in which other cells have a lattice
MIN_CELL_SHARE = 0.2  # share of the examined cells from which a lattice is a property of the study
MAX_STEPS_PER_POINT = 1.5  # steps between the smallest and the largest value, per distinct value


@dataclass(frozen=True)
class Lattice:
    """The lattice of a cell's values, `origin` + `indices` * `step`.

    Attributes:
        step: Distance between neighbouring points, in the unit of the values.
        origin: The smallest point that has a value.
        indices: The index of each value's point, from 0 at the origin, [n].
        chance: Upper bound of the probability that random values lie as close to a lattice.
    """

    step: float
    origin: float
    indices: NDArray[np.intp]
    chance: float

    @property
    def n_repeated(self) -> int:
        """Number of points with at least two values."""
        return int((np.bincount(self.indices) > 1).sum())


def find_lattices(groups: Mapping[str, NDArray[np.float64]]) -> dict[str, Lattice]:
    """Return the lattice of each cell whose values lie on one; {} if the study as a whole shows none.

    One distant run can be an outlier or the second point of a lattice. So cells with such runs count only if
    at least as many cells have two points that were both measured repeatedly. Once a study shows lattices,
    weaker evidence is enough for its other cells.

    Args:
        groups: Cell -> values of its runs [n].
    """
    judged = {name: fit_lattice(values) for name, values in groups.items() if len(values) >= MIN_RUNS}
    likely = {
        name: lattice
        for name, lattice in judged.items()
        if lattice is not None and lattice.chance * len(judged) < MAX_CHANCE
    }
    n_sure = sum(lattice.n_repeated > 1 for lattice in likely.values())
    if not (n_sure and 2 * n_sure >= len(likely) >= MIN_CELL_SHARE * len(judged)):
        return {}
    return {
        name: lattice
        for name, lattice in judged.items()
        if lattice is not None and lattice.chance < MAX_CHANCE_OF_OTHERS
    }


def fit_lattice(values: NDArray[np.float64]) -> Lattice | None:
    """Return the lattice that fits values [n] with the smallest chance, or None if none fits."""
    return min(_lattices(values), key=lambda lattice: lattice.chance, default=None)


def _lattices(values: NDArray[np.float64]) -> Iterator[Lattice]:
    """Yield the lattice for each number of points; the widest gaps separate the values of two points."""
    if not np.ptp(values) > 0:
        return
    order = np.argsort(values, kind="stable")
    gaps = np.diff(values[order])
    for n_points in range(2, len(values) // 2 + 1):
        cuts = np.sort(np.argsort(gaps, kind="stable")[len(gaps) - n_points + 1 :])
        cluster = np.zeros(len(values), dtype=np.intp)
        cluster[order[1:]] = np.cumsum(np.isin(np.arange(len(gaps)), cuts))
        centres = np.bincount(cluster, values) / np.bincount(cluster)
        indices = np.rint((centres - centres[0]) / np.diff(centres).min())[cluster].astype(np.intp)
        if indices.max() > MAX_STEPS_PER_POINT * n_points:
            continue
        step, origin = np.polyfit(indices, values, 1)
        spread = float(np.abs(values - origin - step * indices).max() / step)
        if spread < MAX_SPREAD:
            # Two values determine the lattice; each of the others is this close with probability 2 * spread.
            # The binomial coefficient counts the ways to choose the separating gaps.
            chance = math.comb(len(gaps), n_points - 1) * max(2 * spread, 1e-12) ** (len(values) - 2)
            yield Lattice(float(step), float(origin), indices, min(1.0, chance))
