"""Read the key `replicates` of a study: how often every cell is run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from common.keys import Keys, Rules, key
from common.text import number_of
from declared.factors import as_list

MIN_REPLICATES = 3  # The spread of fewer runs cannot be estimated.
# Degrees of freedom that the pooled spread of all cells needs before any cell can reach an interval target
# (replication.stopping).
MIN_POOLED_DF = 16.0


@dataclass(frozen=True)
class Replicates:
    """How often every cell is run: `at_least` times, then until it reaches the interval target or `at_most`.

    Attributes:
        at_least: Runs of every cell.
        at_most: Runs after which a cell gets no more.
        until: Interval target: half the width of a 95 % interval, as a share of the value. None for a fixed
            number of runs; then at_least = at_most.
        contrasts: Levels by factor. Without contrasts the target is for the mean epoch time of each cell;
            with contrasts, for the ratios of cells that differ only in one of these factors, between these
            levels.
    """

    at_least: int
    at_most: int
    until: float | None = None
    contrasts: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def adaptive(self) -> bool:
        """Whether the number of runs is chosen by an interval target."""
        return self.until is not None

    def known_after(self, cells: int) -> int:
        """Return the runs of each of `cells` cells after which their pooled spread has MIN_POOLED_DF.

        With contrasts, the effects of blocks use up degrees of freedom, too.
        """
        n_free = max(1, cells - 1) if self.contrasts else cells
        return 1 + math.ceil(MIN_POOLED_DF / n_free)

    @property
    def words(self) -> str:
        """The rule as the end of a sentence such as `a cell has ...`."""
        if self.until is None:
            return number_of(self.at_least, "run")
        contrasts = [f"{name} ({', '.join(map(str, levels))})" for name, levels in self.contrasts.items()]
        value = (
            (f"ratios of cells that differ in {' or '.join(contrasts)} alone")
            if contrasts
            else "its mean epoch time"
        )
        return (
            f"{self.at_least} to {self.at_most} runs, until half the 95 % interval of {value} is "
            f"{100 * self.until:g} % or less"
        )


def as_share(percent: str) -> float:
    """Return a percentage, such as 5 %, as a share."""
    return float(percent.rstrip("% ")) / 100


# Levels by factor.
LevelsOf = dict[str, Annotated[list[str | int | float | bool], Rules(unique=True, min_length=2)]]
Names = str | Annotated[list[str], Rules(unique=True, min_length=1)]  # one factor, or a list of factors
Percentage = Annotated[
    str,
    Rules(
        "a percentage up to 50, such as 5 %",
        pattern=r"^([1-9]|[1-4]\d|50|0\.\d*[1-9]|[1-9]\.\d+|[1-4]\d\.\d+) ?%\Z",
    ),
]


@dataclass(frozen=True)
class IntervalTarget(Keys):
    """The key `replicates` of a study with an interval target."""

    at_least: int = key("runs that every cell gets", ge=MIN_REPLICATES)
    at_most: int = key(
        "number of blocks after which no cell gets another run, however wide its interval is", le=1000
    )
    until: Percentage = key(
        "interval target, such as '5 %': half the width of the 95 % interval of a cell's mean epoch time, "
        "relative to it; at most 50 %"
    )
    contrasts: Names | Annotated[LevelsOf, Rules(min_length=1)] = key(
        "reach the target for ratios of cells that differ in one factor alone, instead of for means of "
        "cells: a factor or a list of factors, with all their levels, or FACTOR: [LEVEL, LEVEL, ...]",
        default_factory=dict,
    )


def as_replicates(written: int | IntervalTarget) -> Replicates:
    """Return the key `replicates` as a rule; `declared.study` adds the levels of contrasts without levels."""
    if isinstance(written, int):
        return Replicates(written, written)
    named, contrasts = written.contrasts, dict[str, tuple[Any, ...]]()
    if isinstance(named, dict):
        contrasts = {name: tuple(levels) for name, levels in named.items()}
    else:
        contrasts = dict.fromkeys(as_list(named), ())
    return Replicates(written.at_least, written.at_most, as_share(written.until), contrasts)
