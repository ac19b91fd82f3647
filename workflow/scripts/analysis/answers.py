"""What a study has found, in plain sentences made of its tables: one for each of its factors, and one on what it cannot tell apart.

At most OPENING sentences open a report or a paper: on the factors that change epoch time most, and the last one. The others come after; what
is trained is among them, since that a larger model takes longer is no answer.

A ratio is the mean epoch time after a change over that before it. What is not told apart is never called equal: the sentence says
which difference its interval excludes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from analysis import tables
from analysis.effects import EQUAL, in_order
from analysis.intervals import LEVEL, Estimate, holm
from analysis.measured import (
    cell_words,
    cells,
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

OPENING = 3
ON_AVERAGE = "on average over the other factors"
NO_SUCCESS = Note("no-answer", "No run of the study has succeeded, so its question has no answer yet.")
NOTHING_TESTED = Note("nothing-tested", "No comparison could be tested: that needs two or more runs of each cell.")
NOTE = (
    "All else is equal in each comparison. In brackets: 95 % intervals, each for its own comparison. The least and the greatest of many "
    "ratios look somewhat further from 1 than they are."
)


class Sentence(NamedTuple):
    """What is said, and of what: a factor; nothing for what is said of all. `weight`: the greater, the sooner it is said."""

    subject: str
    text: str
    weight: float = 0.0

    def __str__(self) -> str:
        """Both."""
        return f"{self.subject}: {self.text}" if self.subject else self.text


@dataclass(frozen=True)
class Contrast:
    """One change of a factor: the levels before and after, `where` the other factors stand, ratio, p (NaN without a test).

    `equal`: an equivalence test has shown that they are, within the study's margin.
    """

    factor: str
    before: str
    after: str
    where: str
    ratio: Estimate
    p: float
    equal: bool = False

    @property
    def excluded(self) -> float:
        """The slower of the two takes longer by this share at most, as far as the interval says."""
        return max(self.ratio.high, 1 / self.ratio.low) - 1

    @property
    def said(self) -> str:
        """Which change, and where."""
        return f"{self.after} instead of {self.before}" + (f"; {self.where}" if self.where else "")


def sentences(runs: pd.DataFrame, effects: pd.DataFrame, anova: pd.DataFrame) -> list[Sentence]:
    """The answer of a study; `effects`, `anova`: the tables of these names, as they stand in their CSV files."""
    if successful(runs).empty:
        return [Sentence("", NO_SUCCESS)]
    if not varying(runs):
        mean = pooled(runs).of(str(runs["cell"].iloc[0]))
        text = f"The study has one cell, so it compares nothing. A mean epoch takes {tables.interval(mean)} s."
        return [Sentence("", Note("one-cell", text, epoch_time_s=mean))]
    pairs = {name: effects[effects["factor"] == name] if len(effects) else effects for name in in_order(runs)}
    main = _main(runs, [name for name, own in pairs.items() if own.empty], anova)
    found = {name: [*_contrasts(runs, name, own), *main.get(name, [])] for name, own in pairs.items()}
    said = [
        Sentence(_named(name), _of_factor(some, len(pairs[name])), _weight(name, some)) for name, some in found.items()
    ]
    has_margin = "verdict" in effects and bool(effects["verdict"].notna().any())
    last = _not_told_apart([one for some in found.values() for one in some], has_margin)
    return [*said, *([Sentence("", last)] if last else [])]


def opening(said: Sequence[Sentence]) -> tuple[list[Sentence], list[Sentence]]:
    """Those of the `sentences` that come first, at most OPENING, and those that come after; each in their order."""
    if len(said) <= OPENING:
        return list(said), []
    factors = [one for one in said if one.subject]
    most = sorted(factors, key=lambda one: one.weight, reverse=True)[: OPENING - (len(said) - len(factors))]
    first = [one for one in said if one in most or not one.subject]
    return first, [one for one in said if one not in first]


def _contrasts(runs: pd.DataFrame, factor: str, own: pd.DataFrame) -> Iterator[Contrast]:
    """The pairs of cells that differ in this factor alone and have a ratio."""
    if "ratio" not in own:
        return
    levels, words = cells(runs).set_index("cell")[factor].astype(object), cell_words(runs, but=[factor])
    alone = {name for name, word in words.items() if word == name}  # no other factor varies
    for row in own[own["ratio"].notna()].to_dict("records"):
        before, after = str(row["from_cell"]), str(row["to_cell"])
        yield Contrast(
            factor,
            level_text(levels[before]),
            level_text(levels[after]),
            "" if after in alone else words[after],
            _estimate(*(row.get(name) for name in ("ratio", "ratio_low", "ratio_high"))),
            _number(row.get("p_holm")),
            row.get("verdict") == EQUAL,
        )


def _main(runs: pd.DataFrame, factors: Sequence[str], anova: pd.DataFrame) -> dict[str, list[Contrast]]:
    """The main effects of those `factors` that have two levels and can be told from the others: of a fraction of a design, where no two
    cells differ in one alone."""
    titles = {title(name): name for name in factors if _crossed(runs, name)}
    rows = anova[anova["q"].notna() & anova["term"].isin(titles)] if "q" in anova else anova[:0]
    found = {}
    for row, p in zip(rows.to_dict("records"), holm(rows["p"].tolist()) if len(rows) else [], strict=True):
        factor = titles[row["term"]]
        before, after = map(level_text, levels_in_order(runs, factor))
        ratio = _estimate(*(math.exp(2 * _number(row.get(name))) for name in ("q", "q_low", "q_high")))
        found[factor] = [Contrast(factor, before, after, ON_AVERAGE, ratio, p)]
    return found


def _crossed(runs: pd.DataFrame, factor: str) -> bool:
    """Whether each level of `factor` occurs with each level of every other factor, in runs that succeeded."""
    ok = successful(runs)
    others = varying(runs, but=[factor])
    counts = {name: ok[name].nunique() for name in [factor, *others]}
    return all(len(ok[[factor, name]].drop_duplicates()) == counts[factor] * counts[name] for name in others)


def _named(factor: str) -> str:
    name = title_with_unit(factor)
    return name[:1].upper() + name[1:]


def _of_factor(found: list[Contrast], pairs: int) -> Note:
    """Least and greatest ratio of a factor's contrasts, and how many of them show a difference."""
    if not found:
        why = "no comparison has runs on both sides" if pairs else "no two cells differ in this factor alone"
        return Note("effect-not-known", f"{why}, so its effect is not known.", pairs=pairs)
    ordered = sorted(found, key=lambda one: one.ratio.value)
    least, greatest = ordered[0], ordered[-1]
    tested, shown = _tested(found), len(_tested(found)) - len(_open(found))
    facts = {"least": least, "greatest": greatest, "shown": shown, "tested": len(tested)}
    if len(found) == 1:
        told = f"; {'this difference is shown' if shown else 'no difference is shown'}" if tested else ""
        return Note("effect", f"an epoch takes {_ratio(least)} times as long ({least.said}){told}.", **facts)
    counts = f"; {shown} of {number_of(len(tested), 'comparison')} show a difference" if tested else ""
    text = (
        f"an epoch takes {_ratio(least)} times as long at the least ({least.said}) and {_ratio(greatest)} times as long "
        f"at the most ({greatest.said}){counts}."
    )
    return Note("effect", text, **facts)


def _weight(factor: str, found: list[Contrast]) -> float:
    """The greatest logarithm of a factor's ratios; 0 for one that is no answer."""
    return 0.0 if factor in WORK else max((abs(math.log(one.ratio.value)) for one in found), default=0.0)


def _not_told_apart(found: list[Contrast], has_margin: bool) -> str:
    """What shows no difference: what is equal within the study's margin, and which difference can be excluded of the others."""
    if not found:
        return ""
    tested, undecided = _tested(found), [one for one in _open(found) if not one.equal]
    if not tested:
        return NOTHING_TESTED
    left, equal = sorted(undecided, key=lambda one: one.excluded), len(_open(found)) - len(undecided)
    return Note(
        "not-told-apart",
        _open_in_words(left, equal, len(tested), has_margin),
        tested=len(tested),
        equal=equal,
        open=len(left),
        excluded=[one.excluded for one in (left[0], left[-1])] if left else [],
        none_equal=has_margin and not equal,
    )


def _open_in_words(left: list[Contrast], equal: int, tested: int, has_margin: bool) -> str:
    """What shows no difference: `left` are those that are not `equal` either, from the closest to the widest."""
    said = (
        f"{equal} of {number_of(tested, 'comparison')} {'is' if equal == 1 else 'are'} shown to be equal within the study's margin"
        if equal
        else ""
    )
    rule = "at p < 0.05 after Holm's correction"
    if not left and equal:
        return f"{said}, and all others show a difference, {rule}." if equal < tested else f"{said}."
    if not left:
        every = "The one comparison shows" if tested == 1 else f"All {tested} comparisons show"
        return f"{every} a difference, {rule}."
    none = has_margin and not equal
    closest, widest = (f"{tables.number(100 * one.excluded, 2)} %" for one in (left[0], left[-1]))
    if len(left) > 1:
        shown = f"{said}, and {len(left)} others" if equal else f"{len(left)} of {tested} comparisons"
        proof = f"This is no proof that {f'those {len(left)}' if equal else 'they'} are equal"
        return (
            f"{shown} show no difference, {rule}. {'None is shown to be equal within the margin' if none else proof}: their intervals "
            f"exclude only that the slower takes more than {closest} longer (in the closest comparison) to {widest} longer (in the widest)."
        )
    where = f" ({title(left[0].factor)}: {left[0].said})" if tested > 1 else ""
    shown = f"{said}, and 1 other" if equal else f"1 of {tested} comparisons" if where else "The one comparison"
    proof = "Nor is it shown to be equal within the margin" if none else "This is no proof that the two are equal"
    return (
        f"{shown}{where} shows no difference, {rule}. {proof}: the interval excludes "
        f"only that the slower takes more than {closest} longer."
    )


def _tested(found: list[Contrast]) -> list[Contrast]:
    return [one for one in found if not math.isnan(one.p)]


def _open(found: list[Contrast]) -> list[Contrast]:
    return [one for one in found if one.p >= LEVEL]


def _ratio(one: Contrast) -> str:
    return tables.difference(one.ratio)


def _estimate(value: object, low: object, high: object) -> Estimate:
    return Estimate(_number(value), _number(low), _number(high))


def _number(value: object) -> float:
    return math.nan if value is None or pd.isna(value) else float(value)  # type: ignore[arg-type]
