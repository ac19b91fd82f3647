"""Build two-level fractional factorial designs of screening studies, and list the effects they confound.

Of k factors p are basic and occur in every combination. Every other factor is generated: its level is the
product of basic ones, with levels -1 (the first in the study) and +1 (Jain 1991, ch. 19; Box, Hunter & Hunter
2005, ch. 6). A factor is stored as the set of basic factors in its product, as bits of an integer, so that
effects multiply by exclusive or.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from common.errors import CodedValueError

ROMAN = {3: "III", 4: "IV", 5: "V", 6: "VI", 7: "VII", 8: "VIII", 9: "IX", 10: "X"}
MAX_CANDIDATES = 500  # candidates of a search, before one more basic factor is tried


@dataclass(frozen=True)
class Fraction:
    """A regular fraction of a two-level factorial design.

    Attributes:
        factors: The bit set of basic factors of each factor, in the study's order.
        basic: Number of basic factors.
    """

    factors: Mapping[str, int]
    basic: int

    @property
    def cells(self) -> int:
        """Number of cells."""
        return 1 << self.basic

    @functools.cached_property
    def resolution(self) -> int:
        """Smallest number of factors whose product is constant over all cells."""
        return next(
            length
            for length in range(1, len(self.factors) + 1)
            for subset in itertools.combinations(self.factors.values(), length)
            if functools.reduce(int.__xor__, subset) == 0
        )

    def signs(self) -> Iterator[dict[str, int]]:
        """Yield the cells, with 0 for the first level of a factor and 1 for the second."""
        for cell in range(self.cells):
            yield {name: 1 - ((product & ~cell).bit_count() & 1) for name, product in self.factors.items()}

    def aliases(self) -> list[list[tuple[str, ...]]]:
        """Return groups of confounded main effects and two-way interactions, each effect as its factors."""
        groups: dict[int, list[tuple[str, ...]]] = {}
        for length in (1, 2):
            for names in itertools.combinations(self.factors, length):
                product = functools.reduce(int.__xor__, (self.factors[name] for name in names))
                groups.setdefault(product, []).append(names)
        return [effects for effects in groups.values() if len(effects) > 1]

    def name(self) -> str:
        """Return the name of the design, such as 2^(7-4) of resolution III."""
        k = len(self.factors)
        return f"2^({k}-{k - self.basic}) of resolution {ROMAN.get(self.resolution, self.resolution)}"


def smallest_fraction(names: Sequence[str], resolution: int) -> Fraction:
    """Return the smallest fraction of at least this resolution, with the highest resolution of its size.

    Raises:
        ValueError: If only the full factorial has this resolution.
    """
    for basic in range(resolution - 1, len(names)):
        best = None
        for target in range(resolution, len(names) + 1):
            better = _generators(len(names) - basic, basic, target)
            if better is None:
                break
            best = better
        if best is not None:
            products = [*(1 << place for place in range(basic)), *best]
            return Fraction(dict(zip(names, products, strict=True)), basic)
    problem = f"{len(names)} factors have no fraction of resolution {ROMAN[resolution]}"
    raise CodedValueError("no-such-fraction", problem)


def _generators(count: int, basic: int, resolution: int) -> list[int] | None:
    """Return `count` generators that give at least this resolution, None if the search finds none."""
    candidates = sorted(
        (product for product in range(1, 1 << basic) if product.bit_count() >= resolution - 1),
        key=lambda product: (product.bit_count(), [-(product >> place & 1) for place in range(basic)]),
    )
    attempts = iter(range(MAX_CANDIDATES))

    def search(chosen: list[int], first: int) -> list[int] | None:
        if len(chosen) == count:
            return chosen
        columns = [*(1 << place for place in range(basic)), *chosen]
        used = {
            functools.reduce(int.__xor__, subset)
            for length in range(1, resolution - 1)
            for subset in itertools.combinations(columns, length)
        }
        for place in range(first, len(candidates)):
            if candidates[place] in used:
                continue
            if next(attempts, None) is None:
                return None
            if generators := search([*chosen, candidates[place]], place + 1):
                return generators
        return None

    return search([], 0)
