"""What a figure draws of a study: the cells that its filter leaves, its series, its panels; and its caption.

Intervals stand on all runs of the study (analysis.pooling), so that figures and tables have the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from analysis.measured import (
    level_text,
    levels_in_order,
    scale_factor,
    series_factors,
    successful,
    title,
    treatment_text,
    varying,
)
from analysis.pooling import Pooling, pooled
from figures import panels, style
from figures.declared import KINDS, Declared
from figures.panels import Series, combinations
from plan.factors import NOT_TREATMENTS


@dataclass(frozen=True)
class View:
    """`runs`: those of the `study` that are drawn; `colour`: the factors that tell series apart, `facet`: panels."""

    study: pd.DataFrame
    runs: pd.DataFrame
    asked: Declared
    colour: list[str]
    facet: list[str]

    @cached_property
    def ok(self) -> pd.DataFrame:
        """The successful ones of `runs`."""
        return successful(self.runs)

    @cached_property
    def pooling(self) -> Pooling:
        """The means of all cells of the study, with their intervals."""
        return pooled(self.study)

    @cached_property
    def series(self) -> list[Series]:
        """The series. A treatment keeps the look that it has by default in the study, as a framework does."""
        own = [one for one in _looks(self.study, self.colour) if len(one.of(self.runs))]
        if len(own) < len(combinations(self.runs, self.colour)):  # the looks are not enough for all of the study
            own = _looks(self.runs, self.colour)
        usual = series_factors(self.study)
        if usual == ["framework"] or not set(self.colour) <= set(usual):
            return own
        known = _looks(self.study, usual)
        found = [[other.look for other in known if len(other.of(one.of(self.runs)))] for one in own]
        if any(len(looks) != 1 for looks in found) or len({looks[0] for looks in found}) < len(own):
            return own
        return [replace(one, look=looks[0]) for one, looks in zip(own, found, strict=True)]

    @cached_property
    def panels(self) -> list[dict[str, Any]]:
        """The levels of each panel, in order."""
        return sorted(combinations(self.runs, self.facet), key=_rank(self.runs, self.facet))

    @property
    def told_apart(self) -> str:
        """What the series are, in words: `framework`, or `treatment (training loop, batches per exchange)`."""
        names = [title(name) for name in self.colour]
        return " and ".join(names) if set(self.colour) <= set(NOT_TREATMENTS) else f"treatment ({', '.join(names)})"

    def caption(self, what: str, *more: str, of_time: bool = True) -> str:
        """One paragraph. `what` begins with a sentence that says what is shown; then the series, and what all captions say."""
        if self.colour != ["framework"]:
            what = f"{what} Series differ in {self.told_apart}."
        return panels.caption(self.runs, what, self._filtered(of_time), *more, of_time=of_time, pooling=self.pooling)

    def _filtered(self, of_time: bool) -> str:
        held = [f"{title(name)} {', '.join(map(level_text, levels))}" for name, levels in self.asked.filter.items()]
        intervals = "; intervals of epoch time stand on all of it" if of_time else ""
        return f"Of the study only {'; '.join(held)}{intervals}." if held else ""


def view(runs: pd.DataFrame, asked: Declared) -> View:
    """What `asked` draws of the runs of a study. Series are by default those of analysis.measured.series_factors.

    What varies and has no place makes panels, so that nothing is averaged over.
    """
    drawn = runs
    for name, levels in asked.filter.items():
        drawn = drawn[drawn[name].isin(list(levels))]
    of = KINDS[asked.kind]
    varied = varying(drawn)
    own = [asked.x] if asked.x and not of.x else [scale_factor(drawn)] if of.along_scale else []
    facet = [name for name in asked.facet or () if name in varied]
    colour = [name for name in asked.colour or () if name in varied]
    if not colour:
        colour = ["framework"] if asked.colour else series_factors(drawn, but=[*own, *facet])
    left = [name for name in varied if name not in (*own, *colour, *facet)]
    return View(runs, drawn, asked, colour, [*facet, *left])


def _rank(runs: pd.DataFrame, names: Sequence[str]) -> Callable[[dict[str, Any]], list[int]]:
    """A key that sorts combinations of levels as tables list them."""
    place = {name: {level: rank for rank, level in enumerate(levels_in_order(runs, name))} for name in names}
    return lambda levels: [place[name].get(levels[name], -1) for name in names]


def _looks(runs: pd.DataFrame, names: Sequence[str]) -> list[Series]:
    """A series for each combination of the levels of `names` that occurs, as many as there are looks."""
    combined = sorted(combinations(runs, names), key=_rank(runs, names))
    if list(names) == ["framework"]:
        return [Series(levels["framework"], levels, style.look(levels["framework"])) for levels in combined]
    if "framework" not in names:
        return [
            Series(treatment_text(levels), levels, look)
            for levels, look in zip(combined, style.TREATMENT_LOOKS, strict=False)
        ]
    texts = [treatment_text({name: levels[name] for name in names if name != "framework"}) for levels in combined]
    number = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return [
        Series(f"{levels['framework']}, {text}", levels, style.variant(levels["framework"], number[text]))
        for levels, text in zip(combined, texts, strict=True)
        if number[text] < len(style.VARIANTS)
    ]
