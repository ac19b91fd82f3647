"""Choose units for numbers that people read, so that no number needs an exponent."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

MIB = 2**20  # bytes
GBIT_BYTES = 1e9 / 8


class Unit(NamedTuple):
    """A unit: its size, its name, and the smallest value that it is used for (`size` by default)."""

    size: float
    name: str
    at_least: float | None = None


# The units of each quantity, largest first. Sizes are in s, J, g and bytes/s.
TIMES = (Unit(1.0, "s"), Unit(1e-3, "ms"), Unit(1e-6, "µs"))
ENERGIES = (Unit(1e6, "MJ"), Unit(1e3, "kJ"), Unit(1.0, "J"), Unit(1e-3, "mJ"), Unit(1e-6, "µJ"))
CARBON_MASSES = (Unit(1e3, "kg"), Unit(1.0, "g"), Unit(1e-3, "mg"))
DATA_RATES = (Unit(1e9, "GB/s"), Unit(1e6, "MB/s"))
LINK_RATES = (Unit(GBIT_BYTES, "Gbit/s", 1e9), Unit(1e6, "MB/s"))


def choose_unit(values: ArrayLike, units: tuple[Unit, ...]) -> Unit:
    """Return the first of `units` (largest first) that suits the largest value; the last without values."""
    numbers = np.asarray(values, dtype=float)
    largest = float(np.nanmax(numbers)) if np.isfinite(numbers).any() else 0.0
    for unit in units:
        if largest >= (unit.size if unit.at_least is None else unit.at_least):
            return unit
    return units[-1]


def in_one_unit(
    values: Iterable[float], units: tuple[Unit, ...], digits: int = 6, between: str = " to "
) -> str:
    """Return values in the unit that suits the largest, such as `31.2 to 125 MB/s`; equal texts appear once.

    Args:
        values: One value or more.
        units: Units of the quantity, such as LINK_RATES.
        digits: Largest number of significant digits.
        between: Separator of the values.
    """
    numbers = list(values)
    unit = choose_unit(numbers, units)
    texts = dict.fromkeys(_format_significant(number / unit.size, digits) for number in numbers)
    return f"{between.join(texts)} {unit.name}"


def _format_significant(number: float, digits: int) -> str:
    """Return a number with at most `digits` significant digits, but with all digits of its integer part."""
    return f"{number:.{digits}g}" if abs(number) < 10**digits else f"{number:.0f}"
