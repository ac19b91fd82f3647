"""Answer a study's question in plain sentences: one per factor, and one on differences that are not shown.

A report or paper opens with at most MAX_OPENING_SENTENCES of them: on the factors that change epoch time
most, and the last one. Factors that define the work, such as the model, come later: a larger model taking
longer is no answer.

A ratio is the mean epoch time after a change over that before it. Cells without a shown difference are never
called equal: the sentence says which difference the interval excludes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from analysis import tables
from analysis.effects import EQUAL, factors_in_order
from analysis.intervals import SIGNIFICANCE_LEVEL, Estimate, holm
from analysis.measured import (
    cell_levels,
    cell_words,
    level_text,
    levels_in_order,
    successful,
    title,
    title_with_unit,
    varying,
)
from analysis.pooling import pooled
from common.notes import Note
from common.text import number_of
from declared.factors import WORK

MAX_OPENING_SENTENCES = 3
ON_AVERAGE = "on average over the other factors"
NO_SUCCESS = Note("no-answer", "No run of the study has succeeded, so its question has no answer yet.")
NOTHING_TESTED = Note(
    "nothing-tested", "No comparison could be tested: that needs two or more runs of each cell."
)
NOTE = (
    "All else is equal in each comparison. In brackets: 95 % intervals, each for its own comparison. The "
    "least and the greatest of many ratios look somewhat further from 1 than they are."
)


class Sentence(NamedTuple):
    """A sentence about one factor, or about all if `subject` is ""; larger weights come first."""

    subject: str
    text: str
    weight: float = 0.0

    def __str__(self) -> str:
        """Return subject and text."""
        return f"{self.subject}: {self.text}" if self.subject else self.text


@dataclass(frozen=True)
class Contrast:
    """A change of one factor.

    Attributes:
        factor: The factor.
        before: Level before the change.
        after: Level after the change.
        context: Levels of the other factors.
        ratio: Mean epoch time after the change over that before it.
        p: Corrected p of the difference; NaN without a test.
        equal: Whether an equivalence test showed equality within the study's margin.
    """

    factor: str
    before: str
    after: str
    context: str
    ratio: Estimate
    p: float
    equal: bool = False

    @property
    def excluded(self) -> float:
        """Largest share by which the slower level may take longer, according to the interval."""
        return max(self.ratio.high, 1 / self.ratio.low) - 1

    @property
    def change(self) -> str:
        """The change and its context, in words."""
        return f"{self.after} instead of {self.before}" + (f"; {self.context}" if self.context else "")


def answer_sentences(runs: pd.DataFrame, effects: pd.DataFrame, anova: pd.DataFrame) -> list[Sentence]:
    """Return the answer of a study.

    Args:
        runs: Runs of the study.
        effects: The table of effects, as in its CSV file.
        anova: The table of the analysis of variance, as in its CSV file.
    """
    if successful(runs).empty:
        return [Sentence("", NO_SUCCESS)]
    if not varying(runs):
        mean = pooled(runs).cell_mean(str(runs["cell"].iloc[0]))
        text = (
            f"The study has one cell, so it compares nothing. A mean epoch takes {tables.interval(mean)} s."
        )
        return [Sentence("", Note("one-cell", text, epoch_time_s=mean))]
    pairs = {
        name: effects[effects["factor"] == name] if len(effects) else effects
        for name in factors_in_order(runs)
    }
    main = _main_effects(runs, [name for name, rows in pairs.items() if rows.empty], anova)
    by_factor = {name: [*_contrasts(runs, name, rows), *main.get(name, [])] for name, rows in pairs.items()}
    answers = [
        Sentence(
            _factor_title(name), _factor_note(contrasts, len(pairs[name])), _factor_weight(name, contrasts)
        )
        for name, contrasts in by_factor.items()
    ]
    has_margin = "verdict" in effects and bool(effects["verdict"].notna().any())
    undecided = _undecided_note(
        [contrast for contrasts in by_factor.values() for contrast in contrasts], has_margin
    )
    return [*answers, *([Sentence("", undecided)] if undecided else [])]


def split_opening(sentences: Sequence[Sentence]) -> tuple[list[Sentence], list[Sentence]]:
    """Split sentences into at most MAX_OPENING_SENTENCES opening ones and the rest, each in order."""
    if len(sentences) <= MAX_OPENING_SENTENCES:
        return list(sentences), []
    factors = [sentence for sentence in sentences if sentence.subject]
    leading = sorted(factors, key=lambda sentence: sentence.weight, reverse=True)[
        : MAX_OPENING_SENTENCES - (len(sentences) - len(factors))
    ]
    first = [sentence for sentence in sentences if sentence in leading or not sentence.subject]
    return first, [sentence for sentence in sentences if sentence not in first]


def _contrasts(runs: pd.DataFrame, factor: str, own: pd.DataFrame) -> Iterator[Contrast]:
    """Yield a contrast for each pair of cells that differ in this factor only and have a ratio."""
    if "ratio" not in own:
        return
    levels, words = cell_levels(runs).set_index("cell")[factor].astype(object), cell_words(runs, but=[factor])
    alone = {name for name, word in words.items() if word == name}  # no other factor varies
    for row in own[own["ratio"].notna()].to_dict("records"):
        before, after = str(row["from_cell"]), str(row["to_cell"])
        yield Contrast(
            factor,
            level_text(levels[before]),
            level_text(levels[after]),
            "" if after in alone else words[after],
            _to_estimate(*(row.get(name) for name in ("ratio", "ratio_low", "ratio_high"))),
            _to_float(row.get("p_holm")),
            row.get("verdict") == EQUAL,
        )


def _main_effects(
    runs: pd.DataFrame, factors: Sequence[str], anova: pd.DataFrame
) -> dict[str, list[Contrast]]:
    """Return the main effects of factors with two levels that can be separated from all others.

    They answer for fractional designs, in which no two cells differ in one factor only.
    """
    titles = {title(name): name for name in factors if _crossed(runs, name)}
    rows = anova[anova["q"].notna() & anova["term"].isin(titles)] if "q" in anova else anova[:0]
    main_effects = {}
    for row, p in zip(rows.to_dict("records"), holm(rows["p"].tolist()) if len(rows) else [], strict=True):
        factor = titles[row["term"]]
        before, after = map(level_text, levels_in_order(runs, factor))
        ratio = _to_estimate(*(math.exp(2 * _to_float(row.get(name))) for name in ("q", "q_low", "q_high")))
        main_effects[factor] = [Contrast(factor, before, after, ON_AVERAGE, ratio, p)]
    return main_effects


def _crossed(runs: pd.DataFrame, factor: str) -> bool:
    """Return whether successful runs have each level of `factor` with each level of every other factor."""
    ok = successful(runs)
    other_factors = varying(runs, but=[factor])
    counts = {name: ok[name].nunique() for name in [factor, *other_factors]}
    return all(
        len(ok[[factor, name]].drop_duplicates()) == counts[factor] * counts[name] for name in other_factors
    )


def _factor_title(factor: str) -> str:
    name = title_with_unit(factor)
    return name[:1].upper() + name[1:]


def _factor_note(contrasts: list[Contrast], pairs: int) -> Note:
    """State the least and the greatest ratio of a factor, and how many comparisons show a difference."""
    if not contrasts:
        why = "no comparison has runs on both sides" if pairs else "no two cells differ in this factor alone"
        return Note("effect-not-known", f"{why}, so its effect is not known.", pairs=pairs)
    ordered = sorted(contrasts, key=lambda contrast: contrast.ratio.value)
    least, greatest = ordered[0], ordered[-1]
    tested, n_shown = _tested(contrasts), len(_tested(contrasts)) - len(_undecided(contrasts))
    facts = {"least": least, "greatest": greatest, "shown": n_shown, "tested": len(tested)}
    if len(contrasts) == 1:
        verdict = f"; {'this difference is shown' if n_shown else 'no difference is shown'}" if tested else ""
        return Note(
            "effect", f"an epoch takes {_ratio_text(least)} times as long ({least.change}){verdict}.", **facts
        )
    counts = f"; {n_shown} of {number_of(len(tested), 'comparison')} show a difference" if tested else ""
    text = (
        f"an epoch takes {_ratio_text(least)} times as long at the least ({least.change}) and "
        f"{_ratio_text(greatest)} times as long at the most ({greatest.change}){counts}."
    )
    return Note("effect", text, **facts)


def _factor_weight(factor: str, contrasts: list[Contrast]) -> float:
    """Return the largest log ratio of a factor; 0 for factors that define the work."""
    return (
        0.0
        if factor in WORK
        else max((abs(math.log(contrast.ratio.value)) for contrast in contrasts), default=0.0)
    )


def _undecided_note(contrasts: list[Contrast], has_margin: bool) -> str:
    """Describe the comparisons without a shown difference; "" without comparisons."""
    if not contrasts:
        return ""
    tested, candidates = (
        _tested(contrasts),
        [contrast for contrast in _undecided(contrasts) if not contrast.equal],
    )
    if not tested:
        return NOTHING_TESTED
    ordered, equal = (
        sorted(candidates, key=lambda contrast: contrast.excluded),
        len(_undecided(contrasts)) - len(candidates),
    )
    return Note(
        "not-told-apart",
        _undecided_text(ordered, equal, len(tested), has_margin),
        tested=len(tested),
        equal=equal,
        open=len(ordered),
        excluded=[contrast.excluded for contrast in (ordered[0], ordered[-1])] if ordered else [],
        none_equal=has_margin and not equal,
    )


def _undecided_text(ordered: list[Contrast], equal: int, tested: int, has_margin: bool) -> str:
    """Describe comparisons without a shown difference.

    Args:
        ordered: Those that are not shown to be equal, from the narrowest to the widest interval.
        equal: Number of those shown to be equal within the margin.
        tested: Number of all tested comparisons.
        has_margin: Whether the study has an equivalence margin.
    """
    equality = (
        (
            f"{equal} of {number_of(tested, 'comparison')} {'is' if equal == 1 else 'are'} shown to be equal "
            "within the study's margin"
        )
        if equal
        else ""
    )
    rule = "at p < 0.05 after Holm's correction"
    if not ordered and equal:
        return f"{equality}, and all others show a difference, {rule}." if equal < tested else f"{equality}."
    if not ordered:
        every = "The one comparison shows" if tested == 1 else f"All {tested} comparisons show"
        return f"{every} a difference, {rule}."
    none = has_margin and not equal
    closest, widest = (
        f"{tables.number(100 * contrast.excluded, 2)} %" for contrast in (ordered[0], ordered[-1])
    )
    if len(ordered) > 1:
        subject = (
            f"{equality}, and {len(ordered)} others" if equal else f"{len(ordered)} of {tested} comparisons"
        )
        proof = f"This is no proof that {f'those {len(ordered)}' if equal else 'they'} are equal"
        return (
            f"{subject} show no difference, {rule}. "
            f"{'None is shown to be equal within the margin' if none else proof}: their intervals exclude "
            f"only that the slower takes more than {closest} longer (in the closest comparison) to {widest} "
            "longer (in the widest)."
        )
    place = f" ({title(ordered[0].factor)}: {ordered[0].change})" if tested > 1 else ""
    subject = (
        f"{equality}, and 1 other"
        if equal
        else f"1 of {tested} comparisons"
        if place
        else "The one comparison"
    )
    proof = (
        "Nor is it shown to be equal within the margin" if none else "This is no proof that the two are equal"
    )
    return (
        f"{subject}{place} shows no difference, {rule}. {proof}: the interval excludes "
        f"only that the slower takes more than {closest} longer."
    )


def _tested(contrasts: list[Contrast]) -> list[Contrast]:
    return [contrast for contrast in contrasts if not math.isnan(contrast.p)]


def _undecided(contrasts: list[Contrast]) -> list[Contrast]:
    return [contrast for contrast in contrasts if contrast.p >= SIGNIFICANCE_LEVEL]


def _ratio_text(contrast: Contrast) -> str:
    return tables.difference(contrast.ratio)


def _to_estimate(value: object, low: object, high: object) -> Estimate:
    return Estimate(_to_float(value), _to_float(low), _to_float(high))


def _to_float(value: object) -> float:
    return math.nan if value is None or pd.isna(value) else float(value)  # type: ignore[arg-type]
