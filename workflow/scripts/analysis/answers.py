"""Answer a study's question in sentences that a colleague would say.

Three parts open a report or a paper: which level of the factor that the study asks about is fastest, where
and by how much; the effect of the second factor that it asks about, else of the one that changes the
response most; and what the data cannot tell. Further sentences give the range of every factor. Factors that
define the work, such as the model, never come first on their own: a larger model taking longer is no answer.

The response is epoch time unless the study names another one; "fastest" then becomes "highest" or "lowest".
A ratio is a mean response over another one, with its simultaneous interval, which excludes 1 if and only if
the difference is significant after Holm correction (`intervals.simultaneous_ratios`). Cells without a
significant difference are never called equal: the sentence says which difference the interval allows.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import tables
from analysis.anova import ERROR
from analysis.effects import EQUAL, factors_in_order, margin_text
from analysis.intervals import SIGNIFICANCE_LEVEL, Estimate, holm, p_text, simultaneous_ratios
from analysis.measured import (
    cell_levels,
    combination_text,
    level_text,
    levels_in_order,
    measured_elsewhere,
    out_of_memory_cells,
    successful,
    title,
    to_float,
    varying,
)
from analysis.pooling import measured_response, pooled_response
from common.notes import Note
from common.text import join_words, number_of
from declared.factors import WORK, is_numeric, scale_of
from declared.mesh import NEEDS
from declared.responses import EPOCH_TIME, Response

ON_AVERAGE = "on average over the other factors"
NO_SUCCESS = Note("no-answer", "No run of the study has succeeded, so its question has no answer yet.")
NOT_MEASURED = "No run has measured {}: the answer is about epoch time."
NOTHING_TESTED = Note(
    "nothing-tested", "No comparison could be tested: that needs two or more runs of each cell."
)
_BRACKETS = (
    "Brackets of ratios are simultaneous 95 % intervals, which exclude "
    "1 (100 %) only for differences that are significant (p < 0.05 after Holm correction over a factor's "
    "comparisons); those of means and speed-ups are 95 % intervals of each alone. Extremes among many "
    "comparisons tend to be exaggerated (selection bias)."
)
NOTE = f"All else is equal in each comparison. {_BRACKETS}"
NOTE_ELSEWHERE = f"All else is equal in each comparison as far as the source says. {_BRACKETS}"
MIN_FACTOR = 3.0  # slowdowns from here on are named as factors, not in per cent
MAX_FACTOR = 100.0  # larger ones are named as more than this
MAX_PLACES = 3  # levels without an effect that a sentence names
_NOUNS = {
    "nodes": "number of nodes",
    "sync_every": "number of gradient accumulation steps",
    "devices_per_node": "number of devices per node",
    "replicas": "number of replicas",
}


def _reading_note(runs: pd.DataFrame, contrasts: Sequence["Contrast"], response: Response) -> str:
    """Return how to read the answer.

    Two means can have disjoint intervals of their own without a significant difference: the note says how
    often, and why.
    """
    text = NOTE_ELSEWHERE if measured_elsewhere(runs) else NOTE
    undecided = [
        contrast.cells for contrast in contrasts if contrast.cells and contrast.p >= SIGNIFICANCE_LEVEL
    ]
    if not undecided:
        return text
    pooling = pooled_response(runs, response)
    before, after = (list(cells) for cells in zip(*undecided, strict=True))
    low, high = (pooling.cell_statistics[end] for end in ("low", "high"))
    is_apart = (low[before].to_numpy() > high[after].to_numpy()) | (
        low[after].to_numpy() > high[before].to_numpy()
    )
    pairs = pooling.ratios(before, after)[is_apart]
    if pairs.empty:
        return text
    are, blocks, df = ("is", "are")[len(pairs) > 1], pairs["within_blocks"].max(), pairs["df"].median()
    paired = f" Comparing within {blocks:.0f} blocks leaves {df:.0f} degrees of freedom." if blocks else ""
    return (
        f"{text} {number_of(len(pairs), 'comparison')} {are} not significant although the own intervals of "
        f"both means do not overlap: the correction counts all comparisons of a factor.{paired}"
    )


class FTest(NamedTuple):
    """The F test of a factor's main effect, and the number of pairs of levels that were tested beside it."""

    f: float
    p: float
    n_pairs: int

    @property
    def text(self) -> str:
        """F and p as text."""
        return f"F = {tables.number(self.f)}, {p_text(self.p)}"


class Answer(NamedTuple):
    """The answer of a study: at most three opening notes, one more if memory ran out, and further ones.

    `reading` says how to read them; it is empty if nothing is compared.
    """

    opening: list[Note]
    further: list[Note]
    reading: str = ""


@dataclass(frozen=True)
class Contrast:
    """A change of one factor.

    Attributes:
        factor: The factor.
        before: Level before the change.
        after: Level after the change.
        context: Levels of the other factors, in words.
        ratio: Mean response after the change over that before it, with its simultaneous interval.
        p: Corrected p of the difference; NaN without a test.
        equal: Whether an equivalence test showed equality within the study's margin.
        cells: The cells before and after the change; none for a main effect.
        other_levels: Level of each other varying factor; none for a main effect.
    """

    factor: str
    before: str
    after: str
    context: str
    ratio: Estimate
    p: float
    equal: bool = False
    cells: tuple[str, ...] = ()
    other_levels: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def is_significant(self) -> bool:
        """Return whether the two levels differ."""
        return self.p < SIGNIFICANCE_LEVEL

    @property
    def largest_difference(self) -> float:
        """Return by which share the larger mean may exceed the smaller one, according to the interval."""
        return max(self.ratio.high, 1 / self.ratio.low) - 1

    @property
    def log_distance(self) -> float:
        """Return the distance of the ratio from 1 on the log scale."""
        return abs(math.log(self.ratio.value))

    @property
    def change(self) -> str:
        """The change and its context, in words."""
        return "; ".join(filter(None, (f"{self.after} instead of {self.before}", self.context)))

    def reversed(self) -> "Contrast":
        """Return the opposite change."""
        value, low, high = (1 / end for end in (self.ratio.value, self.ratio.high, self.ratio.low))
        return replace(
            self,
            before=self.after,
            after=self.before,
            ratio=Estimate(value, low, high),
            cells=self.cells[::-1],
        )


@dataclass(frozen=True)
class Ranking:
    """Levels of a factor in one configuration of the others, that with the best mean first.

    Attributes:
        context: Levels of the other factors, in words.
        levels: The levels.
        cells: Their cells.
        lead: The best level in place of the next one, or of the first one to which it was compared; None if
            it was not compared.
        slower: The levels to which the best one is superior by a significant margin.
        scale: Its number of nodes, devices per node or replicas, and that factor's name; None if it is fixed.
    """

    context: str
    levels: Sequence[Any]
    cells: Sequence[str]
    lead: Contrast | None
    slower: Sequence[Any] = ()
    scale: tuple[int, str] | None = None


def answer_sentences(
    runs: pd.DataFrame,
    effects: pd.DataFrame,
    anova: pd.DataFrame,
    asked_factors: Sequence[str] = (),
    margin: float | None = None,
    response: Response = EPOCH_TIME,
) -> Answer:
    """Return the answer of a study, about epoch time if no run has the response.

    Args:
        runs: Runs of the study.
        effects: The table of effects, as in its CSV file.
        anova: The table of the analysis of variance, as in its CSV file.
        asked_factors: The factors that the study asks about, a sentence each; the first one of the table
            without them.
        margin: The study's equivalence margin, if it has one.
        response: The study's response, a column of `runs` if a run has it.
    """
    measured = measured_response(runs, response)
    if measured != response and not successful(runs).empty:
        answer = answer_sentences(runs, effects, anova, asked_factors, margin)
        note = Note("response-not-measured", NOT_MEASURED.format(response.title), response=response.name)
        return answer._replace(opening=[note, *answer.opening])
    if successful(runs).empty:
        return Answer([NO_SUCCESS, *_shortage_notes(runs, asked_factors or ["framework"])], [])
    response = measured
    if not varying(runs):
        mean = pooled_response(runs, response).cell_mean(str(runs["cell"].iloc[0]))
        value = f"{tables.interval(mean.scaled(response.unit_multiplier))} {response.unit}"
        result = "A mean epoch takes" if response == EPOCH_TIME else f"Its mean {response.title} is"
        text = f"The study has one cell, so it compares nothing. {result} {value}."
        return Answer([Note("one-cell", text, **{response.column: mean})], [])
    by_factor = contrasts_by_factor(runs, effects, anova, response)
    n_pairs = Counter(effects["factor"] if len(effects) else ())
    first, *more_factors = [name for name in asked_factors if name in by_factor] or list(by_factor)[:1]
    rankings = rank_levels(runs, first, by_factor[first], response)
    overall = {name: _overall_test(name, contrasts, anova) for name, contrasts in by_factor.items()}
    effects_of = {
        name: _effect_note(name, contrasts, n_pairs[name], overall=overall[name], response=response)
        for name, contrasts in by_factor.items()
    }
    opening = [_best_note(first, rankings, overall[first], response) if rankings else effects_of[first]]
    described = {first} if not rankings or len(by_factor[first]) == 1 else set()
    opening += [
        _asked_effect_note(name, by_factor[name], response) or effects_of[name] for name in more_factors
    ]
    described.update(more_factors)
    strongest = None if more_factors else _strongest_factor(by_factor, described)
    if strongest:
        rank = "most" if strongest == _strongest_factor(by_factor) else "other"
        note = _effect_note(strongest, by_factor[strongest], n_pairs[strongest], rank, response=response)
        opening.append(note)
        described.add(strongest)
    every_contrast = [contrast for contrasts in by_factor.values() for contrast in contrasts]
    if undecided := _undecided_note(every_contrast, margin, response):
        opening.append(undecided)
    opening += _shortage_notes(runs, [first, *more_factors])
    undescribed = [name for name in effects_of if name not in described]
    further = [effects_of[name] for name in undescribed if by_factor[name]]
    for lacks_runs in (True, False):
        if unknown := [
            name for name in undescribed if not by_factor[name] and bool(n_pairs[name]) == lacks_runs
        ]:
            further.append(_unknown_effects_note(unknown, lacks_runs=lacks_runs))
    return Answer(opening, further, _reading_note(runs, every_contrast, response))


def contrasts_by_factor(
    runs: pd.DataFrame, effects: pd.DataFrame, anova: pd.DataFrame, response: Response = EPOCH_TIME
) -> dict[str, list[Contrast]]:
    """Return the contrasts of each varying factor: pairs of cells, or its main effect if there are none."""
    pairs = {
        name: effects[effects["factor"] == name] if len(effects) else effects
        for name in factors_in_order(runs)
    }
    main = _main_effects(runs, [name for name, rows in pairs.items() if rows.empty], anova)
    prefix = "" if response == EPOCH_TIME else "response_"  # as in the table of effects
    return {
        name: [*_contrasts(runs, name, rows, prefix), *main.get(name, [])] for name, rows in pairs.items()
    }


def rank_levels(
    runs: pd.DataFrame, factor: str, contrasts: Sequence[Contrast], response: Response = EPOCH_TIME
) -> list[Ranking]:
    """Return the ranking of a factor's levels in each configuration in which two or more were measured."""
    means = pooled_response(runs, response).cell_statistics["mean"]
    rows = cell_levels(runs).set_index("cell").loc[lambda table: table.index.isin(means.index)]
    # Factors of one strategy only, such as microbatches, make no other configuration (`effects.cell_pairs`).
    other_factors = varying(runs, but=[factor, *(NEEDS if factor == "parallelism" else ())])
    by_cells = {contrast.cells: contrast for contrast in contrasts if contrast.cells}
    by_cells |= {contrast.cells[::-1]: contrast.reversed() for contrast in by_cells.values()}
    rankings = []
    scale_factor = scale_of(other_factors)
    groups = rows.groupby(other_factors, dropna=False, sort=False) if other_factors else [((), rows)]
    for _, group in groups:
        order = means[group.index].sort_values(kind="stable", ascending=not response.is_rate)
        cells = order.index.tolist()
        if group[factor].nunique() > 1:
            leads = [by_cells.get((rival, cells[0])) for rival in cells[1:]]
            levels = group.loc[cells, factor].tolist()
            rankings.append(
                Ranking(
                    _context(group.iloc[0], other_factors),
                    levels,
                    cells,
                    next(filter(None, leads), None),
                    [
                        level
                        for level, lead in zip(levels[1:], leads, strict=True)
                        if lead and lead.is_significant
                    ],
                    (int(group[scale_factor].iloc[0]), scale_factor)
                    if scale_factor in other_factors
                    else None,
                )
            )
    return rankings


def cell_contexts(runs: pd.DataFrame, but: Collection[str] = ()) -> dict[str, str]:
    """Return the levels of the varying factors of each cell in words, except those in `but`."""
    names = varying(runs, but=but)
    return {row["cell"]: _context(row, names) for _, row in cell_levels(runs).iterrows()}


def _contrasts(runs: pd.DataFrame, factor: str, own: pd.DataFrame, prefix: str) -> Iterator[Contrast]:
    """Yield a contrast for each pair of cells that differ in this factor only and have a ratio.

    Columns of the ratio and of its p begin with `prefix`.
    """
    ratio_column = f"{prefix}ratio"
    if ratio_column not in own:
        return
    levels, other_factors = cell_levels(runs).set_index("cell").astype(object), varying(runs, but=[factor])
    for row in own[own[ratio_column].notna()].to_dict("records"):
        before, after = str(row["from_cell"]), str(row["to_cell"])
        low, high = (to_float(row.get(f"{ratio_column}_{end}_simultaneous")) for end in ("low", "high"))
        yield Contrast(
            factor,
            level_text(levels.at[before, factor]),
            level_text(levels.at[after, factor]),
            _context(levels.loc[after], other_factors),
            Estimate(to_float(row[ratio_column]), low, high),
            to_float(row.get(f"{prefix}p_holm")),
            row.get("verdict") == EQUAL,
            (before, after),
            {name: level for name, level in levels.loc[after, other_factors].items() if not pd.isna(level)},
        )


def _main_effects(
    runs: pd.DataFrame, factors: Sequence[str], anova: pd.DataFrame
) -> dict[str, list[Contrast]]:
    """Return the main effects of factors with two levels that can be separated from all others.

    They answer for fractional designs, in which no two cells differ in one factor only.
    """
    titles = {title(name): name for name in factors if _crossed(runs, name)}
    rows = anova[anova["q"].notna() & anova["term"].isin(titles)] if "q" in anova else anova[:0]
    if rows.empty:
        return {}
    ratios = np.exp(2 * rows.reindex(columns=["q", "q_low", "q_high"]).astype(float))
    ratios = ratios.set_axis(["value", "low", "high"], axis="columns").assign(
        df=float(anova.loc[anova["term"] == ERROR, "df"].iloc[0]), p=rows["p"].astype(float)
    )
    ratios[["low", "high"]] = simultaneous_ratios(ratios)
    main_effects = {}
    for term, ratio, p in zip(
        rows["term"], ratios.itertuples(index=False), holm(ratios["p"].tolist()), strict=True
    ):
        before, after = map(level_text, levels_in_order(runs, titles[term]))
        estimate = Estimate(ratio.value, ratio.low, ratio.high)
        main_effects[titles[term]] = [Contrast(titles[term], before, after, ON_AVERAGE, estimate, p)]
    return main_effects


def _crossed(runs: pd.DataFrame, factor: str) -> bool:
    """Return whether successful runs have each level of `factor` with each level of every other factor."""
    ok = successful(runs)
    other_factors = varying(runs, but=[factor])
    counts = {name: ok[name].nunique() for name in [factor, *other_factors]}
    return all(
        len(ok[[factor, name]].drop_duplicates()) == counts[factor] * counts[name] for name in other_factors
    )


def _strongest_factor(by_factor: Mapping[str, Sequence[Contrast]], but: Collection[str] = ()) -> str | None:
    """Return the factor with the largest significant change, else with the largest one; None without any.

    Args:
        by_factor: Contrasts of each factor. Those that define the work are left out.
        but: Factors to leave out, too.
    """
    candidates = {
        name: max((contrast.is_significant, contrast.log_distance) for contrast in contrasts)
        for name, contrasts in by_factor.items()
        if contrasts and name not in (*WORK, *but)
    }
    return max(candidates, key=lambda name: candidates[name], default=None)


def _overall_test(factor: str, contrasts: Sequence[Contrast], anova: pd.DataFrame) -> FTest | None:
    """Return the test of a factor's main effect if it is significant while no pair of levels is."""
    n_pairs = len(_tested(contrasts))
    if n_pairs < 2 or any(contrast.is_significant for contrast in contrasts) or "F" not in anova:
        return None
    rows = anova[(anova["term"] == title(factor)) & (anova["p"].astype(float) < SIGNIFICANCE_LEVEL)]
    return FTest(float(rows["F"].iloc[0]), float(rows["p"].iloc[0]), n_pairs) if len(rows) else None


def _best_note(
    factor: str, rankings: Sequence[Ranking], overall: FTest | None = None, response: Response = EPOCH_TIME
) -> Note:
    """Say which level of a factor is the fastest, or has the best response, where, and by how much.

    Args:
        factor: The factor.
        rankings: Its levels in each configuration.
        overall: The test of its main effect, if that contradicts the comparisons of pairs.
        response: What is compared.
    """
    wins, n = Counter(level_text(ranking.levels[0]) for ranking in rankings), len(rankings)
    count = max(wins.values())
    winners = [level for level in wins if wins[level] == count]
    won = [ranking for ranking in rankings if level_text(ranking.levels[0]) in winners]
    leads = [ranking.lead for ranking in won if ranking.lead]
    significant = [lead for lead in leads if lead.is_significant]
    extreme = max if response.is_rate else min
    best = extreme(significant or leads, key=lambda lead: lead.ratio.value, default=None)
    shared = " each" if len(winners) > 1 else ""
    extent = f" in all {n} configurations" if count == n else f" in {count} of {n} configurations{shared}"
    fastest = _best_words(factor, winners, bool(significant), response)
    text = f"{fastest}{extent if n > 1 else ''}"
    by_scale = _scale_notes(factor, rankings, response) if factor == "framework" and count < n else []
    if best:
        rival = _rival_words(won)
        if significant and len(leads) > 1:
            frequency = "each time" if len(significant) == len(leads) else f"in {len(significant)} of them"
            text += f", {frequency} by a significant margin{rival}"
        elif _tested(every_lead := [ranking.lead for ranking in rankings if ranking.lead]) and not any(
            lead.is_significant for lead in every_lead
        ):
            # What is not resolved comes first: a reader takes the first name for the winner.
            nowhere = f" in any of {n} configurations" if n > 1 else ""
            extent = " in all of them" if count == n else f" in {count} of them{shared}"
            text = f"No {_noun(factor)} {_nobody_words(response)}{nowhere}"
            if not by_scale:
                text += (
                    f"; {fastest if factor == 'framework' else f'{fastest[0].lower()}{fastest[1:]}'}"
                    f"{extent if n > 1 else ''}"
                )
        elif _tested(leads) and not significant:
            text += f", but {'not' if len(leads) == 1 else 'never'} by a significant margin{rival}"
        qualifier = "at best, " if len(leads) > 1 else "in the only comparison, " if len(won) > 1 else ""
        size = f"{qualifier}{_lead_words(best, len(winners) == 1 and not by_scale, response)}"
        text = f"{'. '.join([text, *by_scale])}. {size[0].upper()}{size[1:]}"
    if overall:
        subject = "Frameworks differ" if factor == "framework" else f"The {_noun(factor)} has an effect"
        text += (
            f". {subject} overall ({overall.text}), but no single pair is resolved after correction for "
            f"{overall.n_pairs} comparisons"
        )
    return Note(
        "fastest-level",
        f"{text}.",
        factor=factor,
        levels=winners,
        wins=dict(wins),
        configurations=n,
        significant=len(significant),
        lead=best,
        overall=overall,
        by_scale=by_scale,
    )


def _scale_notes(factor: str, rankings: Sequence[Ranking], response: Response) -> list[Note]:
    """Say which levels are significantly worse than the best on the fewest and on the most nodes.

    Returns:
        Sentences without their full stops; none if the scale does not vary.
    """
    scales = sorted({ranking.scale for ranking in rankings if ranking.scale is not None})
    worse_words = "slower than the fastest" if response == EPOCH_TIME else "worse than the best"
    notes = []
    for scale in (scales[0], scales[-1]) if len(scales) > 1 else ():
        own = [ranking for ranking in rankings if ranking.scale == scale]
        (winner, n_wins), *further = Counter(level_text(ranking.levels[0]) for ranking in own).most_common()
        worse = Counter(level_text(level) for ranking in own for level in ranking.slower).most_common()
        is_one, unit = len(own) == 1, " configurations"
        named = []
        for level, count in worse:
            named.append(level if is_one else f"{level} ({count} of {len(own)}{unit})")
            unit = ""
        place = _place_words({scale[1]: scale[0]})
        text = (
            f"{place[0].upper()}{place[1:]}, {', '.join(named) or f'no {_noun(factor)}'} "
            f"{'are' if len(named) > 1 else 'is'} significantly {worse_words}"
        )
        if not further or further[0][1] < n_wins:
            extent = "" if is_one else f" in {n_wins} of {len(own)}"
            text += f"; {_best_words(factor, [winner], False, response)}{extent}"
        notes.append(Note("worse-at-scale", text, scale=scale, worse=dict(worse), winner=winner))
    return notes


def _nobody_words(response: Response) -> str:
    """Return the predicate of the sentence that no level of a factor is significantly the best."""
    if response == EPOCH_TIME:
        return "is significantly the fastest"
    return f"has a significantly {response.comparative} {response.title} than the others"


def _best_words(factor: str, levels: Sequence[str], is_certain: bool, response: Response) -> str:
    """Return the beginning of a sentence that names the levels with the best response."""
    if response != EPOCH_TIME:
        quantity = response.title if is_certain else f"mean {response.title}"
        if factor == "framework":
            verb = "has" if len(levels) == 1 else "have"
            return f"{' and '.join(levels)} {verb} the {response.superlative} {quantity}"
        names = " and ".join(f"with {_level_words(factor, level)}" for level in levels)
        return f"{quantity[0].upper()}{quantity[1:]} is {response.superlative} {names}"
    if factor != "framework":
        names = " and ".join(f"with {_level_words(factor, level)}" for level in levels)
        return f"{'Epochs are shortest' if is_certain else 'Mean epoch time is lowest'} {names}"
    names, is_single = " and ".join(levels), len(levels) == 1
    if is_certain:
        return f"{names} {'is the fastest framework' if is_single else 'are the fastest frameworks'}"
    return f"{names} {'has' if is_single else 'have'} the shortest mean epoch time"


def _rival_words(rankings: Sequence[Ranking]) -> str:
    """Return with what the fastest levels were compared, as the end of a clause; "" for the only other."""
    if max(len(set(ranking.levels)) for ranking in rankings) == 2:
        return ""
    leads = [(ranking.lead, ranking.cells[1]) for ranking in rankings if ranking.lead]
    if all(lead.cells[0] == next_cell for lead, next_cell in leads):
        return " over the next"
    return f" over {' or '.join(dict.fromkeys(_level_words(lead.factor, lead.before) for lead, _ in leads))}"


def _lead_words(lead: Contrast, is_named: bool, response: Response) -> str:
    """Return how the best level compares to its rival; `is_named` if the sentence names no other best one."""
    context = f" ({lead.context})" if lead.context else ""
    ratio = tables.ratio(lead.ratio)
    if response != EPOCH_TIME:
        after, before = (_level_words(lead.factor, level) for level in (lead.after, lead.before))
        if lead.factor == "framework":
            subject = f"its {response.title}" if is_named else f"the {response.title} of {after}"
            return f"{subject} is {ratio} times that of {before}{context}"
        return f"{'it is' if is_named else f'with {after} it is'} {ratio} times that with {before}{context}"
    if lead.factor == "framework":
        epochs = "its epochs" if is_named else f"epochs of {lead.after}"
        return f"{epochs} take {ratio} times as long as those of {lead.before}{context}"
    after, before = (_level_words(lead.factor, level) for level in (lead.after, lead.before))
    epochs = "they" if is_named else f"epochs with {after}"
    return f"{epochs} take {ratio} times as long as with {before}{context}"


def _level_words(factor: str, level: Any) -> str:
    """Return a level as a sentence has it: `2 nodes`, `accumulation over 4 batches`, `fit training loop`."""
    text = level_text(level)
    if factor == "sync_every":
        return "no accumulation" if text == "1" else f"accumulation over {text} batches"
    if factor == "nodes":
        return number_of(int(level), "node")
    if factor == "devices_per_node":
        return f"{number_of(int(level), 'device')} per node"
    if factor in ("framework", *WORK):
        return text
    if is_numeric(factor):
        return combination_text({factor: int(text) if text.isdecimal() else text})
    return f"no {title(factor)}" if text == "none" else f"{text} {title(factor)}"


def _context(levels: pd.Series | Mapping[str, Any], other_factors: Sequence[str]) -> str:
    return ", ".join(_level_words(name, levels[name]) for name in other_factors if not pd.isna(levels[name]))


def _effect_note(
    factor: str,
    contrasts: Sequence[Contrast],
    n_pairs: int,
    rank: str = "",
    overall: FTest | None = None,
    response: Response = EPOCH_TIME,
) -> Note:
    """Give the range of a factor's ratios, and how many comparisons are significant.

    Args:
        factor: The factor.
        contrasts: Its contrasts.
        n_pairs: Number of pairs of cells that differ in it only, measured or not.
        rank: "most" if it changes the response most, "other" if it does so apart from the first one, else "".
        overall: The test of its main effect, if that contradicts the comparisons of pairs.
        response: What is compared.
    """
    if not contrasts:
        return _unknown_effects_note([factor], lacks_runs=n_pairs > 0)
    ordered = sorted(contrasts, key=lambda contrast: contrast.ratio.value)
    tested, significant = _tested(contrasts), [contrast for contrast in contrasts if contrast.is_significant]
    subject = _subject(factor, contrasts)
    verb, extent, places = _predicate(factor, ordered, response)
    if overall:
        verb = f"has an effect overall ({overall.text}), but no significant one"
    if rank == "other":
        subject = f"Of the other factors, {subject[0].lower()}{subject[1:]}"
    if rank and (significant or not tested):
        text = f"{subject} changes {response.title} most"
        text += f", {extent}" if verb == f"changes {response.title}" else f": it {verb} {extent}"
    else:
        text = f"{subject} {verb} {extent}"
    text += places
    if significant and len(tested) > 1:
        are = "is" if len(significant) == 1 else "are"
        count = _count_of(len(significant), len(tested))
        text += f". {count[0].upper()}{count[1:]} {are} significant after Holm correction"
    elif significant:
        text += ". This difference is significant"
    return Note(
        "effect",
        f"{text}.",
        factor=factor,
        least=ordered[0],
        greatest=ordered[-1],
        significant=len(significant),
        tested=len(tested),
    )


def _unknown_effects_note(factors: Sequence[str], *, lacks_runs: bool) -> Note:
    """Say why effects are not known: cells to compare lack runs, or there are no such cells."""
    nouns = [f"the {_noun(factor)}" for factor in factors]
    subject = f"effect of {nouns[0]} is" if len(nouns) == 1 else f"effects of {join_words(nouns)} are"
    alone = "it" if len(nouns) == 1 else "one of them"
    why = "no comparison has runs on both sides" if lacks_runs else f"no two cells differ in {alone} alone"
    return Note("effect-not-known", f"The {subject} not known: {why}.", factors=tuple(factors))


def _asked_effect_note(
    factor: str, contrasts: Sequence[Contrast], response: Response = EPOCH_TIME
) -> Note | None:
    """Say where a change has a significant effect and how large it is there, and where it has none.

    Args:
        factor: The factor.
        contrasts: Its contrasts.
        response: What is compared.

    Returns:
        The note; None if the contrasts have different levels of the factor, if none is significant, or if all
        are.
    """
    tested = _tested(contrasts)
    significant = [contrast for contrast in tested if contrast.is_significant]
    n_open = len(tested) - len(significant)
    if len({(contrast.before, contrast.after) for contrast in contrasts}) > 1 or not (significant and n_open):
        return None
    common = _common_levels(significant)
    n_alike = sum(common.items() <= contrast.other_levels.items() for contrast in tested)
    ordered = sorted(
        (
            replace(
                contrast,
                context=_context(
                    contrast.other_levels, [name for name in contrast.other_levels if name not in common]
                ),
            )
            for contrast in significant
        ),
        key=lambda contrast: contrast.ratio.value,
    )
    subject = _subject(factor, contrasts)
    place = f"{_place_words(common)}, " if common else ""
    verb, extent, places = _predicate(factor, ordered, response)
    count = f" in {_count_of(len(significant), n_alike)}" if n_alike > 1 else ""
    text = f"{place}{subject[0].lower() if place else subject[0]}{subject[1:]} {verb} {extent}{count}"
    never = _ineffective_levels(tested)
    return Note(
        "effect-by-context",
        f"{text[0].upper()}{text[1:]}{places}. {_open_text(tested, never)}.",
        factor=factor,
        least=ordered[0],
        greatest=ordered[-1],
        significant=len(significant),
        tested=len(tested),
        common=common,
        never=never,
    )


def _common_levels(contrasts: Sequence[Contrast]) -> dict[str, Any]:
    """Return the levels of other factors that all contrasts share."""
    first, *rest = (contrast.other_levels for contrast in contrasts)
    return {name: level for name, level in first.items() if all(levels.get(name) == level for levels in rest)}


def _ineffective_levels(tested: Sequence[Contrast]) -> list[tuple[str, Any]]:
    """Return the levels of other factors at which no comparison is significant."""
    effective = {
        pair for contrast in tested if contrast.is_significant for pair in contrast.other_levels.items()
    }
    pairs = dict.fromkeys(pair for contrast in tested for pair in contrast.other_levels.items())
    return [pair for pair in pairs if pair not in effective]


def _open_text(tested: Sequence[Contrast], never: Sequence[tuple[str, Any]]) -> str:
    """Say how many comparisons are not significant, and at which levels none is; `never` has these."""
    undecided = [contrast.other_levels for contrast in tested if not contrast.is_significant]
    text = f"The other {number_of(len(undecided), 'comparison')}"
    if 0 < len(never) <= MAX_PLACES:
        names = " or ".join(_place_words(dict([pair])) for pair in never)
        count = sum(not levels.items().isdisjoint(never) for levels in undecided)
        text += f", among them all {count} {names}," if count < len(undecided) else f", those {names},"
    return f"{text} {'shows' if len(undecided) == 1 else 'show'} no significant effect"


def _place_words(levels: Mapping[str, Any]) -> str:
    """Return levels as the place of an effect: `on 2 nodes with batch size 16`."""
    words = {name: f"{_article(name, level)}{_level_words(name, level)}" for name, level in levels.items()}
    nodes = [f"on {words.pop('nodes')}"] if "nodes" in words else []
    return " ".join([*nodes, *([f"with {' and '.join(words.values())}"] if words else [])])


def _article(factor: str, level: Any) -> str:
    """Return "the " where a level in words needs it, as in `the fit training loop`."""
    needs_none = is_numeric(factor) or factor in ("framework", "shares", *WORK) or level_text(level) == "none"
    return "" if needs_none else "the "


def _noun(factor: str) -> str:
    return _NOUNS.get(factor, title(factor))


def _subject(factor: str, contrasts: Sequence[Contrast]) -> str:
    """Return the change as the subject of a sentence: what is done, if all contrasts have the same levels."""
    changes = {(contrast.before, contrast.after) for contrast in contrasts}
    if len(changes) > 1:
        return f"The {_noun(factor)}"
    ((before, after),) = changes
    if factor == "sync_every" and before == "1":
        return f"Accumulating gradients over {after} batches"
    if factor == "nodes":
        return f"Training on {number_of(int(after), 'node')} instead of {before}"
    if factor == "batch_size":
        return f"A batch size of {after} instead of {before}"
    return f"Using {_article(factor, after)}{_level_words(factor, after)} instead of {before}"


def _predicate(factor: str, ordered: Sequence[Contrast], response: Response) -> tuple[str, str, str]:
    """Return verb and extent of a factor's effect, and a sentence on where its extremes are.

    This end is "" if the extent has the places of the extremes, which it has if they are short.

    Args:
        factor: The factor.
        ordered: Its contrasts by ratio.
        response: What is compared.
    """
    least, greatest, n = ordered[0], ordered[-1], len(ordered)
    is_one_change = len({(contrast.before, contrast.after) for contrast in ordered}) == 1
    is_apart = n > 1 and any(", " in contrast.context for contrast in (least, greatest))
    places = ""
    if is_apart:
        low, high = (_place_of_change(contrast, is_one_change) for contrast in (least, greatest))
        places = f". The lowest value is for {low}. The highest is for {high}"

    def value(contrast: Contrast, text: str) -> str:
        place = contrast.context if is_one_change else contrast.change
        return f"{text} ({place})" if place and not is_apart else text

    low, high = (value(contrast, tables.ratio(contrast.ratio)) for contrast in (least, greatest))
    is_time = response == EPOCH_TIME
    change = f"changes {response.title}"
    if _tested(ordered) and not any(contrast.is_significant for contrast in ordered):
        means = "epoch times" if is_time else "means"
        if n == 1:
            return "has no significant effect:", f"the ratio of {means} is {low}", ""
        extent = f"in any of {n} comparisons: ratios of {means} are {low} to {high}"
        return "has no significant effect", extent, places
    if factor == "framework" and not is_one_change:
        candidates = [contrast for contrast in ordered if contrast.is_significant] or ordered
        slow = max(
            (contrast if contrast.ratio.value > 1 else contrast.reversed() for contrast in candidates),
            key=lambda contrast: contrast.ratio.value,
        )
        place = "; ".join(filter(None, (f"{slow.after} against {slow.before}", slow.context)))
        return change, f"by up to a factor of {tables.ratio(slow.ratio)} ({place})", ""
    if is_one_change and greatest.ratio.value < 1:
        low, high = (value(contrast, _percent(contrast.ratio)) for contrast in (least, greatest))
        share = " of its time" if is_time else ""
        extent = f"to {low}{share}" if n == 1 else f"to between {low} and {high}{share}"
        return "shortens an epoch" if is_time else f"lowers {response.title}", extent, places
    if is_one_change and least.ratio.value > 1:
        verb = "lengthens an epoch" if is_time else f"raises {response.title}"
        return verb, f"by a factor of {low}" + (f" to {high}" if n > 1 else ""), places
    return change, f"by factors from {low} to {high}", places


def _place_of_change(contrast: Contrast, is_one_change: bool) -> str:
    """Return the context of a change, with the change itself if a sentence has several."""
    if is_one_change:
        return contrast.context
    change = f"{contrast.after} instead of {contrast.before}"
    return f"{change} ({contrast.context})" if contrast.context else change


def _percent(ratio: Estimate) -> str:
    value, _, bounds = tables.ratio(ratio, digits=2, unit=100).partition(" ")
    return f"{value} % {bounds}".strip()


def _shortage_notes(runs: pd.DataFrame, asked_factors: Sequence[str]) -> list[Note]:
    """Say which levels of an asked factor have no epoch time because memory ran out; [] for none.

    The first asked factor counts whose levels differ in that.
    """
    cells = out_of_memory_cells(runs)
    if not cells:
        return []
    rows = cell_levels(runs)
    ran_out = rows[rows["cell"].isin(cells)]
    factor = next((name for name in asked_factors if _differ(rows, ran_out, name)), asked_factors[0])
    counts = {
        level_text(level): (int((ran_out[factor] == level).sum()), int((rows[factor] == level).sum()))
        for level in levels_in_order(ran_out, factor)
    }
    contexts = cell_contexts(runs, but=[factor])
    parts = []
    for level in levels_in_order(ran_out, factor):
        (n, n_cells), own = counts[level_text(level)], ran_out[ran_out[factor] == level]
        place = contexts[own["cell"].iloc[0]] if n == 1 else ""
        if not place and factor != "framework" and rows["framework"].nunique() > 1:
            place = ", ".join(levels_in_order(own, "framework"))
        extent = (f" in {n} of {n_cells} configurations" if n > 1 else "") + (f" ({place})" if place else "")
        words = f"{_article(factor, level)}{_level_words(factor, level)}"
        parts.append(
            f"{words} ran out of memory{extent}" if factor == "framework" else f"with {words}{extent}"
        )
    text = "; ".join(parts) if factor == "framework" else f"Memory ran out {' and '.join(parts)}"
    return [Note("out-of-memory", f"{text}.", factor=factor, levels=counts, cells=cells)]


def _differ(rows: pd.DataFrame, ran_out: pd.DataFrame, factor: str) -> bool:
    """Return whether memory ran out in a larger share of some level's cells than of another's."""
    shares = ran_out.groupby(factor).size().reindex(rows[factor].unique(), fill_value=0)
    return bool((shares / rows.groupby(factor).size()).nunique() > 1)


def _undecided_note(
    contrasts: Sequence[Contrast], margin: float | None, response: Response = EPOCH_TIME
) -> Note | None:
    """Describe the comparisons without a significant difference; None without comparisons."""
    if not contrasts:
        return None
    tested = _tested(contrasts)
    if not tested:
        return NOTHING_TESTED
    undecided = [contrast for contrast in tested if not contrast.is_significant]
    ordered = sorted(
        (contrast for contrast in undecided if not contrast.equal),
        key=lambda contrast: contrast.largest_difference,
    )
    n_equal = len(undecided) - len(ordered)
    return Note(
        "not-told-apart",
        _undecided_text(ordered, n_equal, len(tested), margin, response),
        tested=len(tested),
        equal=n_equal,
        open=len(ordered),
        slowdowns=[contrast.largest_difference for contrast in (ordered[0], ordered[-1])] if ordered else [],
        none_equal=margin is not None and not n_equal,
    )


def _undecided_text(
    ordered: Sequence[Contrast],
    n_equal: int,
    n_tested: int,
    margin: float | None,
    response: Response = EPOCH_TIME,
) -> str:
    """Describe comparisons without a significant difference.

    Args:
        ordered: Those that are not shown to be equal, from the narrowest to the widest interval.
        n_equal: Number of those shown to be equal within the margin.
        n_tested: Number of all tested comparisons.
        margin: The equivalence margin, if the study has one.
        response: What is compared.
    """
    are = "is" if n_equal == 1 else "are"
    within = f"within the study's margin of {margin_text(margin)}" if margin is not None else ""
    equal = f"{n_equal} of {number_of(n_tested, 'comparison')} {are} equal {within}"
    if not ordered:
        rule = "significant after Holm correction"
        if n_equal:
            return f"{equal}." if n_equal == n_tested else f"{equal}, and all others are {rule}."
        if n_tested == 1:
            return f"The one comparison is {rule}."
        return f"{_count_of(n_tested, n_tested).capitalize()} are {rule}."
    n, tightest, widest = (
        len(ordered),
        *(_difference_text(contrast) for contrast in (ordered[0], ordered[-1])),
    )
    none_equal = f", and none is equal {within}" if within and not n_equal else ""
    subject = "The one comparison" if n_tested == 1 else f"{n} of {n_tested} comparisons"
    conclusion = f"{'shows' if n == 1 else 'show'} no significant difference after Holm correction"
    text = f"{subject} {conclusion}{none_equal}"
    if n_equal:
        text = f"{equal}, and {n} {conclusion}"
    difference = "slowdown" if response == EPOCH_TIME else "difference"
    if n > 1:
        return (
            f"{text}. The data are compatible with {difference}s of up to {tightest} in the tightest of them "
            f"and {widest} in the widest."
        )
    place = f" ({title(ordered[0].factor)}: {ordered[0].change})" if n_tested > 1 else ""
    return f"{text}{place}. The data are compatible with a {difference} of up to {tightest}."


def _count_of(n: int, n_tested: int) -> str:
    """Return how many of at least two comparisons as a subject: `3 of 8 comparisons`, `all 8 comparisons`."""
    if n < n_tested:
        return f"{n} of {n_tested} comparisons"
    return "both comparisons" if n == 2 else f"all {n} comparisons"


def _difference_text(contrast: Contrast) -> str:
    share = contrast.largest_difference
    if share < MIN_FACTOR - 1:
        return f"{tables.number(100 * share, 2)} %"
    factor = tables.number(share + 1, 2) if share + 1 < MAX_FACTOR else f"more than {MAX_FACTOR:g}"
    return f"a factor of {factor}"


def _tested(contrasts: Sequence[Contrast]) -> list[Contrast]:
    return [contrast for contrast in contrasts if not math.isnan(contrast.p)]
