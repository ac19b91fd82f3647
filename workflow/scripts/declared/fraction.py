"""Two-level fractional factorials: which cells of a screening study are run, and which effects they cannot tell apart.

Of k factors p are basic and have every combination; each other one is generated: its level is the product of basic ones,
levels being -1 (the first in the study) and +1 (Jain 1991, ch. 19; Box, Hunter & Hunter 2005, ch. 6). A factor is here
the set of basic factors that its level is the product of, as the bits of a number: effects multiply by exclusive or.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from common.errors import CodedValueError

ROMAN = {3: "III", 4: "IV", 5: "V", 6: "VI", 7: "VII", 8: "VIII", 9: "IX", 10: "X"}
TRIES = 500  # of a search, before more basic factors are taken


@dataclass(frozen=True)
class Fraction:
    """A regular fraction: each factor that varies, in the study's order -> the set of basic factors it is the product of."""

    factors: Mapping[str, int]
    basic: int

    @property
    def cells(self) -> int:
        """How many cells it has."""
        return 1 << self.basic

    @functools.cached_property
    def resolution(self) -> int:
        """The smallest number of factors whose product is the same in all cells."""
        return next(
            length
            for length in range(1, len(self.factors) + 1)
            for some in itertools.combinations(self.factors.values(), length)
            if functools.reduce(int.__xor__, some) == 0
        )

    def signs(self) -> Iterator[dict[str, int]]:
        """The cells: factor -> 0 for its first level, 1 for its second."""
        for cell in range(self.cells):
            yield {name: 1 - ((product & ~cell).bit_count() & 1) for name, product in self.factors.items()}

    def aliases(self) -> list[list[tuple[str, ...]]]:
        """Main effects and two-way interactions that the cells cannot tell apart: lists of effects, each of its factors."""
        same: dict[int, list[tuple[str, ...]]] = {}
        for length in (1, 2):
            for names in itertools.combinations(self.factors, length):
                product = functools.reduce(int.__xor__, (self.factors[name] for name in names))
                same.setdefault(product, []).append(names)
        return [effects for effects in same.values() if len(effects) > 1]

    def name(self) -> str:
        """Such as 2^(7-4) of resolution III."""
        k = len(self.factors)
        return f"2^({k}-{k - self.basic}) of resolution {ROMAN.get(self.resolution, self.resolution)}"


def of_resolution(names: Sequence[str], resolution: int) -> Fraction:
    """The smallest fraction of these factors with at least this resolution, and among those of its size the highest found.

    ValueError where only all combinations have it.
    """
    for basic in range(resolution - 1, len(names)):
        found = None
        for wanted in range(resolution, len(names) + 1):
            better = _generators(len(names) - basic, basic, wanted)
            if better is None:
                break
            found = better
        if found is not None:
            products = [*(1 << place for place in range(basic)), *found]
            return Fraction(dict(zip(names, products, strict=True)), basic)
    problem = f"{len(names)} factors have no fraction of resolution {ROMAN[resolution]}"
    raise CodedValueError("no-such-fraction", problem)


def generated(names: Sequence[str], generators: Mapping[str, Sequence[str]]) -> Fraction:
    """The fraction in which each factor of `generators` is the product of the basic ones named. ValueError for bad ones."""
    basic = {name: 1 << place for place, name in enumerate(name for name in names if name not in generators)}
    for name, product in generators.items():
        if unknown := [each for each in (name, *product) if each not in names]:
            raise CodedValueError("factor-does-not-vary", f"{name}: '{unknown[0]}' does not vary")
        if made := [each for each in product if each in generators]:
            problem = f"{name}: '{made[0]}' is itself generated; expected factors without a generator"
            raise CodedValueError("generated-by-generated", problem)
    products = {name: sum(basic[each] for each in product) for name, product in generators.items()}
    every = {name: (basic | products)[name] for name in names}
    if clash := [name for name in products if list(every.values()).count(every[name]) > 1]:
        problem = f"{clash[0]}: two factors would always change together; expected another product"
        raise CodedValueError("confounded-factors", problem)
    return Fraction(every, len(basic))


def _generators(count: int, basic: int, resolution: int) -> list[int] | None:
    """`count` products of basic factors so that no fewer than `resolution` factors have a constant product; None if not found."""
    candidates = sorted(
        (product for product in range(1, 1 << basic) if product.bit_count() >= resolution - 1),
        key=lambda product: (product.bit_count(), [-(product >> place & 1) for place in range(basic)]),
    )
    tries = iter(range(TRIES))

    def search(chosen: list[int], first: int) -> list[int] | None:
        if len(chosen) == count:
            return chosen
        columns = [*(1 << place for place in range(basic)), *chosen]
        taken = {
            functools.reduce(int.__xor__, some)
            for length in range(1, resolution - 1)
            for some in itertools.combinations(columns, length)
        }
        for place in range(first, len(candidates)):
            if candidates[place] in taken:
                continue
            if next(tries, None) is None:
                return None
            if found := search([*chosen, candidates[place]], place + 1):
                return found
        return None

    return search([], 0)
