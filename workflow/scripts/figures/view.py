"""What a figure draws of a study: the cells that its filter leaves, its series, its panels; and its caption.

Intervals stand on all runs of the study (analysis.pooling), so that figures and tables have the same.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any

import pandas as pd

from analysis.measured import (
    combination_text,
    factors,
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
from common.notes import Note
from declared.factors import NOT_TREATMENTS, OF_STRATEGIES, implied, treatments_of
from declared.figures import Declared
from declared.products.figures import KINDS
from figures import panels, style
from figures.panels import Caption, Series, combinations

Row = tuple[Series, dict[str, Any], str]
Levels = Sequence[dict[str, Any]]  # of panels
MOST_NAMED = 4  # levels of a factor, in a caption


@dataclass(frozen=True)
class View:
    """`runs`: those of the `study` that are drawn; `colour`: the factors that tell series apart, `facet`: panels.

    `unseen`: the sentence on panels that a page does not hold.
    """

    study: pd.DataFrame
    runs: pd.DataFrame
    asked: Declared
    colour: list[str]
    facet: list[str]
    unseen: str = ""

    def on_a_page(self, height_in: float, across: int = panels.PANELS_IN_PAGE, shown: Levels | None = None) -> "View":
        """What a printed page holds of it, in panels of this height; `shown`: those that are worth drawing, by default all.

        Where these are more, as many levels of one factor as fit are drawn, then of another, the last one first; of its levels
        those with the most panels that have a successful run. What all panels share then is in the caption and not above them.
        """
        every = list(self.panels if shown is None else shown)
        fitting = _fitting(every, self.ok, panels.most(height_in, across))
        kept, there = ({name: _levels(some, name) for name in self.facet} for some in (fitting, every))
        only = {name: levels for name, levels in kept.items() if len(levels) < len(there[name])}
        if not only:
            return self
        runs = self.runs
        for name, levels in only.items():
            runs = runs[runs[name].isin(levels)]
        facet = [name for name in self.facet if name not in only or len(only[name]) > 1]
        at_levels = ", ".join(
            _few_words(
                name, levels, there[name], " or ".join([combination_text({name: first}), *map(level_text, more)])
            )
            for name, levels in only.items()
            for first, *more in [levels]
        )
        text = f"{len(fitting)} of {len(every)} panels are drawn, those at {at_levels}; a `filter` shows others."
        unseen = Note("panels-left-out", text, drawn=len(fitting), panels=len(every), levels=only)
        return replace(self, runs=runs, facet=facet, unseen=unseen)

    @cached_property
    def ok(self) -> pd.DataFrame:
        """The successful ones of `runs`."""
        return successful(self.runs)

    @cached_property
    def pooling(self) -> Pooling:
        """The means of all cells of the study, with their intervals."""
        return pooled(self.study)

    def times(self, levels: Mapping[str, Any]) -> tuple[pd.Series, pd.DataFrame]:
        """Epoch times of the successful runs at these levels, and their cells' means with intervals: what sets an axis."""
        ok = panels.at(self.ok, levels)
        return ok["epoch_time_s"], self.pooling.cells.loc[list(set(ok["cell"]))]

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
    def cells(self) -> pd.DataFrame:
        """A row for each planned cell: cell, every factor."""
        return self.runs.drop_duplicates("cell")[["cell", *factors()]]

    @cached_property
    def panels(self) -> list[dict[str, Any]]:
        """The levels of each panel, in order."""
        return sorted(combinations(self.runs, self.facet), key=_rank(self.runs, self.facet))

    @cached_property
    def rows(self) -> list[Row]:
        """For each row of a figure with all cells, from the top: its series, its nodes or devices where they vary, its label."""
        along = scale_factor(self.runs)
        own = [along] if along in varying(self.runs, but=[*self.colour, *self.facet]) else []
        return [
            (one, levels, ", ".join(text for text in (one.name, combination_text(levels)) if text))
            for one in self.series
            for levels in combinations(one.of(self.runs), own)
        ]

    @property
    def told_apart(self) -> str:
        """What the series are, in words: `framework`, or `treatment (training loop, batches per exchange)`."""
        names = [title(name) for name in self.colour]
        return " and ".join(names) if set(self.colour) <= set(NOT_TREATMENTS) else f"treatment ({', '.join(names)})"

    def caption(
        self,
        what: str | Sequence[str],
        *more: str,
        notes: Sequence[str] = (),
        with_intervals: bool = True,
        counted: pd.Series | None = None,
    ) -> Caption:
        """As `panels.caption`. `what` begins with a sentence that says what is shown; then the series, and what all captions say."""
        heading = [*([what] if isinstance(what, str) else what), self.unseen]
        said = [self._series_text, self._filtered, *more]
        return panels.caption(self.runs, heading, *said, notes=notes, with_intervals=with_intervals, counted=counted)

    @property
    def _series_text(self) -> str:
        """What the series differ in, unless it is the framework alone."""
        if self.colour == ["framework"]:
            return ""
        return Note("series", f"Series: {', '.join(title(name) for name in self.colour)}.", factors=self.colour)

    @property
    def _filtered(self) -> str:
        held = [
            _few_words(
                name, levels, levels_in_order(self.study, name), f"{title(name)} {', '.join(map(level_text, levels))}"
            )
            for name, levels in self.asked.filter.items()
        ]
        levels = {name: list(levels) for name, levels in self.asked.filter.items()}
        return Note("filtered", f"Shown: only {'; '.join(held)}.", levels=levels) if held else ""


def filtered(runs: pd.DataFrame, asked: Declared) -> pd.DataFrame:
    """The runs that the filter of `asked` leaves, or the rows of a table, which has no column for what does not vary in it."""
    for name, levels in asked.filter.items():
        if name in runs:
            runs = runs[runs[name].isin(list(levels))]
    return runs


def view(runs: pd.DataFrame, asked: Declared) -> View:
    """What `asked` draws of the runs of a study. Series are by default those of analysis.measured.series_factors.

    What varies and has no place makes panels, so that nothing is averaged over.
    """
    drawn = filtered(runs, asked)
    of = KINDS[asked.kind]
    without = implied(drawn[["parallelism", *OF_STRATEGIES]].drop_duplicates().to_dict("records"))
    varied = varying(drawn, but=without)
    own = [asked.x] if asked.x and not of.x else [scale_factor(drawn)] if of.along_scale else list(of.along)
    facet = [name for name in asked.facet or () if name in varied]
    colour = [name for name in asked.colour or () if name in varied]
    if not colour:
        colour = ["framework"] if asked.colour else series_factors(drawn, but=[*own, *facet, *without])
    left = [name for name in varied if name not in (*own, *colour, *facet)]
    treated = treatments_of(left)  # in the order that they have as series
    return View(runs, drawn, asked, colour, [*facet, *(name for name in left if name not in treated), *treated])


def _fitting(shown: Levels, ok: pd.DataFrame, most: int) -> Levels:
    """At most so many of the panels `shown`: see `View.on_a_page`; `ok`: the successful runs."""
    names = list(shown[0]) if len(shown) > most else []
    measured = set(ok[names].drop_duplicates().itertuples(index=False, name=None))
    for name in reversed(names):
        if len(shown) > most:
            sizes = Counter(one[name] for one in shown)
            with_runs = Counter(one[name] for one in shown if tuple(one.values()) in measured)
            kept: list[Any] = []
            for level, _ in (with_runs or sizes).most_common():
                if not kept or sum(sizes[other] for other in [*kept, level]) <= most:
                    kept.append(level)
            shown = [one for one in shown if one[name] in kept]
    return shown


def _levels(shown: Levels, name: str) -> list[Any]:
    return list(dict.fromkeys(one[name] for one in shown))


def _few_words(name: str, levels: Sequence[Any], there: Sequence[Any], each: str) -> str:
    """`each`, the names of these levels of a factor, where they are few; else from which to which, or how many of all `there`."""
    if len(levels) <= MOST_NAMED:
        return each
    place = next((place for place, level in enumerate(there) if level == levels[0]), 0)
    in_a_row = list(there[place : place + len(levels)]) == list(levels)
    if in_a_row and all(isinstance(level, Real) for level in levels):
        return f"{title(name)} {level_text(levels[0])} to {level_text(levels[-1])}"
    return f"{len(levels)} of {len(there)} levels of {title(name)}"


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
