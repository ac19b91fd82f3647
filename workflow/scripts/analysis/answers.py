"""Answer a study's question in sentences that a colleague would say.

These notes, by their codes, open a report or a paper:

    response-not-measured   no run has the study's response, so the answer is about epoch time
    fastest-level           which level of the first factor in question is best, where and by how much
    means                   the range of means at the levels of the factors that explain most
    effect                  the effect of each further factor in question, or without one of the factor that
                            changes the response most; effect-not-known if no cells show it
    not-told-apart          what the data cannot resolve; nothing-tested if no comparison has a test
    out-of-memory           with which levels of the first factor in question memory ran out

Without a ranking, an effect takes the place of fastest-level. A study without a successful run has no-answer
and out-of-memory, a study of one cell only one-cell. Further notes give the range of every other factor.
Factors that define the work, such as the model, come first only if the study asks about them: that a larger
model takes longer is not an answer.

A ratio is one mean response over another, with its simultaneous interval. The interval excludes 1 if and only
if the difference is significant after Holm correction (`intervals.simultaneous_ratios`). Cells without a
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
from analysis.cell_means import estimate_response_means, measured_response
from analysis.effects import EQUAL, factors_in_order, margin_text
from analysis.intervals import SIGNIFICANCE_LEVEL, Estimate, holm, p_text, simultaneous_ratios
from analysis.measured import (
    cell_levels,
    level_text,
    levels_in_order,
    measured_elsewhere,
    out_of_memory_cells,
    successful,
    title,
    to_float,
    treatment_text,
    varying,
)
from common.notes import Note
from common.text import join_words, number_of
from declared.factors import MODEL_AND_DATASET, NODES_AND_DEVICES
from declared.mesh import REQUIRED_AXIS
from declared.responses import EPOCH_TIME, Response

ON_AVERAGE = "on average over the other factors"
NO_SUCCESS = Note("no-answer", "No run of the study has succeeded, so its question has no answer yet.")
NOT_MEASURED = "No run has measured {}: the answer is about epoch time."
NOTHING_TESTED = Note(
    "nothing-tested", "No comparison could be tested: that needs two or more runs of each cell."
)
NOTE = (
    "Compared cells differ in one factor{}. {}Brackets after ratios are simultaneous 95 % intervals, which "
    "exclude 1 only for significant differences (p < 0.05 after Holm correction over a factor's "
    "comparisons). Brackets after means and speed-ups are 95 % intervals of each alone. Extremes among many "
    "comparisons tend to be exaggerated (selection bias)."
)
ACCUMULATION = "sync_every"
UNEQUAL_TRAINING = (
    "With {}, the effective batch grows, so epochs are not equal training. "  # and accuracies can differ
)
OWN_SETTINGS = "Frameworks keep their own settings (table `settings`). "
MAX_MEANS = 8  # ranges of means in a sentence
MAX_GROUPS = 3  # of comparisons, by the levels of the factor on which an effect depends
MIN_FACTOR = 3.0  # larger ratios are given as factors, smaller ones in per cent


class Answer(NamedTuple):
    """The answer of a study.

    Attributes:
        opening: Notes that open a report, in the order of the module's docstring.
        further: The effects of all other factors, and how accumulation changes the accuracy.
        reading: How to read the numbers; "" if nothing is compared.
    """

    opening: list[Note]
    further: list[Note]
    reading: str = ""


@dataclass(frozen=True)
class Contrast:
    """A change of one factor, and the ratio of mean responses that it makes.

    Attributes:
        factor: The factor that changes.
        before: Level before the change.
        after: Level after the change.
        context: Levels of the other factors, in words.
        ratio: Mean response after the change over that before it, with its simultaneous interval.
        p: p of the difference after Holm correction; NaN without a test.
        equal: Whether an equivalence test showed equality within the study's margin.
        cells: The cells before and after the change; () for a main effect.
        other_levels: Levels of the other factors; {} for a main effect.
    """

    factor: str
    before: Any
    after: Any
    context: str
    ratio: Estimate
    p: float
    equal: bool = False
    cells: tuple[str, ...] = ()
    other_levels: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def is_significant(self) -> bool:
        """Whether the two levels differ after Holm correction."""
        return self.p < SIGNIFICANCE_LEVEL

    @property
    def largest_difference(self) -> float:
        """The largest share by which one mean can exceed the other, according to the interval."""
        return max(self.ratio.high, 1 / self.ratio.low) - 1

    @property
    def change(self) -> str:
        """The change in words: `4 nodes instead of 1 node`."""
        after, before = (treatment_text({self.factor: level}) for level in (self.after, self.before))
        return f"{after} instead of {before}"

    def reversed(self) -> "Contrast":
        """Return the change from `after` to `before`."""
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
    """The levels of a factor in one configuration of the other factors, best mean first.

    Attributes:
        context: Levels of the other factors, in words.
        levels: The levels.
        cells: Their cells, in the same order.
        lead: The change to the best level from the next best level with which it was compared; None if it
            was compared with none.
    """

    context: str
    levels: Sequence[Any]
    cells: Sequence[str]
    lead: Contrast | None


def answer_sentences(
    runs: pd.DataFrame,
    effects: pd.DataFrame,
    anova: pd.DataFrame,
    question_factors: Sequence[str] = (),
    margin: float | None = None,
    response: Response = EPOCH_TIME,
) -> Answer:
    """Return the answer of a study, about epoch time if no run has the response.

    Args:
        runs: Runs of the study.
        effects: The table of effects, as in its CSV file.
        anova: The table of the analysis of variance, as in its CSV file.
        question_factors: The factors that the study asks about; without any, the first varying factor in the
            order of the table of effects is taken.
        margin: The study's equivalence margin, if it has one.
        response: The study's response, a column of `runs` if a run has it.
    """
    measured = measured_response(runs, response)
    if successful(runs).empty:
        return Answer([NO_SUCCESS, *_out_of_memory_notes(runs, question_factors or ["framework"])], [])
    if measured != response:
        answer = answer_sentences(runs, effects, anova, question_factors, margin)
        note = Note("response-not-measured", NOT_MEASURED.format(response.title), response=response.name)
        return answer._replace(opening=[note, *answer.opening])
    response = measured
    if not varying(runs):
        mean = estimate_response_means(runs, response).cell_mean(str(runs["cell"].iloc[0]))
        value = f"{tables.interval(mean.times(response.unit_multiplier))} {response.unit}"
        text = f"The study has one cell, so it compares nothing. Its mean {response.title} is {value}."
        return Answer([Note("one-cell", text, **{response.column: mean})], [])
    by_factor = contrasts_by_factor(runs, effects, anova, response)
    first, *more_factors = [name for name in question_factors if name in by_factor] or list(by_factor)[:1]
    rankings = rank_levels(runs, first, by_factor[first], response)
    effect_notes = {name: _effect_note(name, own, anova, response) for name, own in by_factor.items()}
    opening = [_best_note(first, rankings, response) if rankings else effect_notes[first]]
    opening += filter(None, [_means_note(runs, anova, response)])
    # The note on the best level has the only contrast of a factor, but not the range of several.
    described = {first} if not rankings or len(by_factor[first]) == 1 else set()
    opening += [effect_notes[name] for name in more_factors]
    described.update(more_factors)
    strongest = None if more_factors else _strongest_factor(by_factor, described)
    if strongest:
        rank = " most" if strongest == _strongest_factor(by_factor) else " most of the other factors"
        opening.append(_effect_note(strongest, by_factor[strongest], anova, response, rank))
        described.add(strongest)
    every_contrast = [contrast for contrasts in by_factor.values() for contrast in contrasts]
    if every_contrast:
        opening.append(_undecided_note(every_contrast, margin))
    opening += _out_of_memory_notes(runs, [first, *more_factors])
    further = [effect_notes[name] for name in by_factor if name not in described and by_factor[name]]
    if unknown := [name for name in by_factor if name not in described and not by_factor[name]]:
        further.append(_unknown_effects_note(unknown))
    if accuracy := _accuracy_note(runs, by_factor.get(ACCUMULATION, []), anova):
        further.append(accuracy)
    source = " as far as the source says" if measured_elsewhere(runs) else ""
    reading = NOTE.format(source, _differences_of_cells(runs))
    return Answer(opening, further, reading)


def _differences_of_cells(runs: pd.DataFrame) -> str:
    """Return what else differs between cells that differ in one factor; "" if nothing does."""
    grows_with = [
        name
        for name, is_factor in (
            ("accumulation", ACCUMULATION in varying(runs)),
            ("more nodes", runs["nodes"].nunique() > 1 and set(runs["batch_scope"].dropna()) == {"local"}),
        )
        if is_factor
    ]
    text = UNEQUAL_TRAINING.format(" or ".join(grows_with)) if grows_with else ""
    return text + (OWN_SETTINGS if runs["framework"].nunique() > 1 else "")


def _accuracy_note(runs: pd.DataFrame, contrasts: Sequence[Contrast], anova: pd.DataFrame) -> Note | None:
    """Say how the final accuracy differs between cells that accumulation compares; None if it does not."""
    pairs = [contrast for contrast in contrasts if contrast.cells]
    accuracy = 100 * successful(runs).groupby("cell")["validation_accuracy"].mean().astype(float)
    pairs = [pair for pair in pairs if accuracy.reindex(pair.cells).notna().all()]
    if not pairs:
        return None
    moderator = _moderator(pairs, anova)
    texts, ranges = [], []
    for level, group in (_groups(pairs, moderator) if moderator else {None: pairs}).items():
        for after in (False, True):
            values = accuracy[[pair.cells[after] for pair in group]]
            changed = {ACCUMULATION: group[0].after if after else group[0].before}
            words = treatment_text(changed | ({moderator: level} if moderator else {}))
            ends = dict.fromkeys(f"{value:.1f}" for value in (values.min(), values.max()))
            texts.append((" to ".join(ends), words))
            ranges.append((words, values.min(), values.max()))
    if len({values for values, _ in texts}) == 1:
        return None
    accuracies = "; ".join(f"{values} % with {words}" for values, words in texts)
    levels = cell_levels(runs).set_index("cell").loc[[cell for pair in pairs for cell in pair.cells]]
    shared = {
        name: levels[name].iloc[0]
        for name in varying(runs, but=[ACCUMULATION, *filter(None, [moderator])])
        if levels[name].nunique(dropna=False) == 1
    }
    scope = f"With {treatment_text(shared)}" if shared else "In the cells compared"
    text = f"{scope}, mean validation accuracy after the last epoch is {accuracies}."
    return Note("accuracy-of-accumulation", text, ranges=ranges, shared=shared)


def contrasts_by_factor(
    runs: pd.DataFrame, effects: pd.DataFrame, anova: pd.DataFrame, response: Response = EPOCH_TIME
) -> dict[str, list[Contrast]]:
    """Return the contrasts of each varying factor: between pairs of cells, or else its main effect."""
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
    """Return a ranking of a factor's levels for each configuration in which two or more were measured."""
    means = estimate_response_means(runs, response).cell_statistics["mean"]
    rows = cell_levels(runs).set_index("cell").loc[lambda table: table.index.isin(means.index)]
    # Factors of one strategy only, such as microbatches, do not distinguish configurations
    # (`effects.cell_pairs`).
    other_factors = varying(runs, but=[factor, *(REQUIRED_AXIS if factor == "parallelism" else ())])
    by_cells = {contrast.cells: contrast for contrast in contrasts if contrast.cells}
    by_cells |= {contrast.cells[::-1]: contrast.reversed() for contrast in by_cells.values()}
    rankings = []
    groups = rows.groupby(other_factors, dropna=False, sort=False) if other_factors else [((), rows)]
    for _, group in groups:
        if group[factor].nunique() > 1:
            order = means[group.index].sort_values(kind="stable", ascending=not response.is_rate)
            best, *rivals = order.index
            leads = [by_cells[rival, best] for rival in rivals if (rival, best) in by_cells]
            levels = group.loc[order.index, factor].tolist()
            context = _context(group.iloc[0], other_factors)
            rankings.append(Ranking(context, levels, [best, *rivals], next(iter(leads), None)))
    return rankings


def _context(levels: pd.Series | Mapping[str, Any], other_factors: Sequence[str]) -> str:
    return treatment_text({name: levels[name] for name in other_factors if not pd.isna(levels[name])})


def _contrasts(runs: pd.DataFrame, factor: str, pairs: pd.DataFrame, prefix: str) -> Iterator[Contrast]:
    """Yield a contrast for each pair of cells that differ in this factor only and have a ratio.

    Columns of the ratio and of its p begin with `prefix`.
    """
    ratio_column = f"{prefix}ratio"
    if ratio_column not in pairs:
        return
    levels, other_factors = cell_levels(runs).set_index("cell").astype(object), varying(runs, but=[factor])
    for row in pairs[pairs[ratio_column].notna()].to_dict("records"):
        before, after = str(row["from_cell"]), str(row["to_cell"])
        low, high = (to_float(row.get(f"{ratio_column}_{end}_simultaneous")) for end in ("low", "high"))
        yield Contrast(
            factor,
            levels.at[before, factor],
            levels.at[after, factor],
            _context(levels.loc[after], other_factors),
            Estimate(to_float(row[ratio_column]), low, high),
            to_float(row.get(f"{prefix}p_holm")),
            row.get("verdict") == EQUAL,
            (before, after),
            {name: levels.at[after, name] for name in other_factors if not pd.isna(levels.at[after, name])},
        )


def _main_effects(
    runs: pd.DataFrame, factors: Sequence[str], anova: pd.DataFrame
) -> dict[str, list[Contrast]]:
    """Return the main effects of factors with two levels that can be separated from all other effects.

    Fractional designs need them, because no two of their cells differ in one factor only.
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
        factor, estimate = titles[term], Estimate(ratio.value, ratio.low, ratio.high)
        before, after = levels_in_order(runs, factor)
        main_effects[factor] = [Contrast(factor, before, after, ON_AVERAGE, estimate, p)]
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
    """Return the factor with the largest significant change, or else the largest change; None without any.

    Factors that define the work and factors in `but` are left out.
    """
    candidates = {
        name: max((contrast.is_significant, abs(math.log(contrast.ratio.value))) for contrast in contrasts)
        for name, contrasts in by_factor.items()
        if contrasts and name not in (*MODEL_AND_DATASET, *but)
    }
    return max(candidates, key=lambda name: candidates[name], default=None)


def _best_note(factor: str, rankings: Sequence[Ranking], response: Response) -> Note:
    """Say which level of a factor has the best mean response, where, and by how much."""
    wins, n = Counter(ranking.levels[0] for ranking in rankings), len(rankings)
    count = max(wins.values())
    winners = [level for level in wins if wins[level] == count]
    every_lead = [ranking.lead for ranking in rankings if ranking.lead]
    leads = [lead for lead in every_lead if lead.after in winners]
    tested, significant = _tested(leads), [lead for lead in leads if lead.is_significant]
    extreme = max if response.is_rate else min
    best = extreme(significant or leads, key=lambda lead: lead.ratio.value, default=None)
    names = " and ".join(treatment_text({factor: level}) for level in winners)
    extent = f" in {count} of {n} configurations{' each' if len(winners) > 1 else ''}" if n > 1 else ""
    text = f"mean {response.title} is {response.superlative} with {names}{extent}"
    if _tested(every_lead) and not any(lead.is_significant for lead in every_lead):
        # A reader takes the first name for the winner, so the reservation comes before it.
        text = f"No lead is significant: {text}"
    else:
        text = f"{text[0].upper()}{text[1:]}"
        if tested:
            are = "is" if len(significant) == 1 else "are"
            text += f"; {len(significant)} of {number_of(len(tested), 'lead')} {are} significant"
    if best:
        after, before = (treatment_text({factor: level}) for level in (best.after, best.before))
        text += f". {'At best, with' if len(leads) > 1 else 'With'} {after} it is {tables.ratio(best.ratio)} "
        text += f"times that with {before}" + (f" ({best.context})" if best.context else "")
    return Note(
        "fastest-level",
        f"{text}.",
        factor=factor,
        levels=winners,
        wins=dict(wins),
        configurations=n,
        significant=len(significant),
        lead=best,
    )


def _means_note(runs: pd.DataFrame, anova: pd.DataFrame, response: Response) -> Note | None:
    """State the range of means over frameworks at each combination of the factors that explain most.

    Factors that explain least are left out until MAX_MEANS combinations remain.
    """
    means = (
        estimate_response_means(runs, response).cell_statistics["mean"].dropna() * response.unit_multiplier
    )
    rows = cell_levels(runs).set_index("cell").loc[lambda table: table.index.isin(means.index)]
    shares = anova.set_index("term")["share"].astype(float) if "share" in anova else pd.Series(dtype=float)
    names = [name for name in factors_in_order(runs) if name != "framework"]
    while names and len(rows[names].drop_duplicates()) > MAX_MEANS:
        names.remove(min(names, key=lambda name: shares.get(title(name), 0.0)))
    if not names or rows.empty:
        return None
    ranges, texts = [], []
    for _, group in rows.groupby(names, dropna=False, sort=True):
        low, high = means[group.index].min(), means[group.index].max()
        values = " to ".join(dict.fromkeys((tables.number(low), tables.number(high))))
        ranges.append((_context(group.iloc[0], names), len(group), low, high))
        texts.append(f"{values} {response.unit} with {ranges[-1][0]}")
    text = f"Mean {response.title} is {'; '.join(texts)}."
    return Note("means", text, ranges=ranges, factors=names)


def _effect_note(
    factor: str,
    contrasts: Sequence[Contrast],
    anova: pd.DataFrame,
    response: Response = EPOCH_TIME,
    rank: str = "",
) -> Note:
    """State the range of a factor's ratios, and how many comparisons are significant.

    If the effect depends on another factor, each of that factor's levels has its own range.

    Args:
        factor: The factor.
        contrasts: Its contrasts.
        anova: The table of the analysis of variance.
        response: What is compared.
        rank: Words after the verb if the factor changes the response most, such as " most".
    """
    if not contrasts:
        return _unknown_effects_note([factor])
    ordered = sorted(contrasts, key=lambda contrast: contrast.ratio.value)
    tested, significant = _tested(contrasts), [contrast for contrast in contrasts if contrast.is_significant]
    is_one_change = len({contrast.change for contrast in contrasts}) == 1
    subject = f"using {ordered[0].change}" if is_one_change else f"the choice of {title(factor)}"
    moderator = _moderator(contrasts, anova) if significant else None
    overall: dict[str, float] = {}
    if moderator:
        text = _moderated_effect_text(ordered, moderator, f"{subject} changes {response.title}{rank} by")
    elif tested and not significant:
        overall_text, overall = _overall_effect(factor, anova)
        ratios = _range_text(ordered, noun="ratio")
        text = f"{_nothing_significant_text(ordered, response)}: {ratios}{overall_text}"
    else:
        text = f"{subject[0].upper()}{subject[1:]} changes {response.title}{rank} by {_range_text(ordered)}"
        if significant:
            text += f". {_count_significant(len(significant), len(tested))}"
    return Note(
        "effect",
        f"{text}.",
        factor=factor,
        least=ordered[0],
        greatest=ordered[-1],
        significant=len(significant),
        tested=len(tested),
        moderator=moderator,
        overall=overall,
    )


def _range_text(ordered: Sequence[Contrast], omitted_factor: str = "", noun: str = "factor") -> str:
    """Return the smallest and the largest ratio of ordered contrasts, with their contexts.

    Args:
        ordered: The contrasts, from the smallest ratio.
        omitted_factor: A factor that their contexts leave out.
        noun: What a ratio is called.
    """
    is_one_change = len({contrast.change for contrast in ordered}) == 1
    values = []
    for contrast in (ordered[0], ordered[-1]):
        levels = {name: level for name, level in contrast.other_levels.items() if name != omitted_factor}
        context = treatment_text(levels) if omitted_factor else contrast.context
        words = "; ".join(filter(None, ("" if is_one_change else contrast.change, context)))
        values.append(f"{tables.ratio(contrast.ratio)}{f' ({words})' if words else ''}")
    return f"{noun}s from {values[0]} to {values[1]}" if len(ordered) > 1 else f"a {noun} of {values[0]}"


def _moderated_effect_text(ordered: Sequence[Contrast], moderator: str, clause: str) -> str:
    """Return the effect at each level of the factor on which it depends, the most significant level first."""
    groups = sorted(
        _groups(ordered, moderator).items(),
        key=lambda group: -sum(contrast.is_significant for contrast in group[1]),
    )
    preposition = "on" if moderator in NODES_AND_DEVICES else "with"
    parts: list[str] = []
    for level, contrasts in groups:
        phrase = f"{preposition} {treatment_text({moderator: level})}"
        n, n_tested = sum(contrast.is_significant for contrast in contrasts), len(_tested(contrasts))
        extent = _range_text(contrasts, moderator)
        if n:
            words = clause if not parts else "it does so by"
            parts.append(f"{phrase}, {words} {extent}: {_count_significant(n, n_tested)}")
        else:
            parts.append(f"{phrase}, none of {number_of(n_tested, 'comparison')} is significant: {extent}")
    return ". ".join(f"{part[0].upper()}{part[1:]}" for part in parts)


def _groups(contrasts: Sequence[Contrast], factor: str) -> dict[Any, list[Contrast]]:
    """Return contrasts by the level of another factor."""
    groups: dict[Any, list[Contrast]] = {}
    for contrast in contrasts:
        groups.setdefault(contrast.other_levels[factor], []).append(contrast)
    return groups


def _moderator(contrasts: Sequence[Contrast], anova: pd.DataFrame) -> str | None:
    """Return the factor on which the effect of another one depends most; None if it depends on none.

    An effect depends on a factor if their interaction is significant, or if all comparisons at some of its
    levels are significant and none at the others.
    """
    shares = _significant_terms(anova)["share"]
    candidates = {}
    for name in set.intersection(*(set(contrast.other_levels) for contrast in contrasts)):
        groups = _groups(contrasts, name)
        verdicts = {frozenset(contrast.is_significant for contrast in group) for group in groups.values()}
        is_separate = verdicts == {frozenset({True}), frozenset({False})}
        titles = (title(contrasts[0].factor), title(name))
        share = max(shares.get(" × ".join(pair), 0.0) for pair in (titles, titles[::-1]))
        if 1 < len(groups) <= MAX_GROUPS and (is_separate or share):
            candidates[name] = (is_separate, share)
    return max(sorted(candidates), key=lambda name: candidates[name], default=None)


def _significant_terms(anova: pd.DataFrame) -> pd.DataFrame:
    """Return p and share of the significant terms of the analysis of variance."""
    if not {"term", "p", "share"} <= set(anova):
        return pd.DataFrame({"p": [], "share": []}, dtype=float)
    terms = anova.set_index("term")[["p", "share"]].astype(float)
    return terms[terms["p"] < SIGNIFICANCE_LEVEL]


def _nothing_significant_text(contrasts: Sequence[Contrast], response: Response) -> str:
    factor, n = contrasts[0].factor, number_of(len(_tested(contrasts)), "comparison")
    if factor == "framework":
        return f"No single pair of frameworks differs significantly in {response.title} ({n}, Holm)"
    is_one_change = len({contrast.change for contrast in contrasts}) == 1
    subject = contrasts[0].change if is_one_change else f"levels of {title(factor)}"
    return f"No single comparison of {subject} is significant for {response.title} ({n}, Holm)"


def _overall_effect(factor: str, anova: pd.DataFrame) -> tuple[str, dict[str, float]]:
    """Return what the analysis of variance shows of a factor over all cells, in words and in numbers.

    The main effect is preferred to interactions; "" and {} if neither is significant. Many small differences
    can be significant together though no pair is.
    """
    terms = _significant_terms(anova)
    terms = terms[[title(factor) in term.split(" × ") for term in terms.index]]
    if terms.empty:
        return "", {}
    is_main = title(factor) in terms.index
    term = title(factor) if is_main else str(terms["share"].idxmax())
    p, share = (float(terms.at[term, name]) for name in ("p", "share"))
    numbers = f"{p_text(p)}, {100 * share:.1f} % of the variation"
    if not is_main:
        words = f"over all cells together the interaction {term} is significant"
    elif factor == "framework":
        words = "over all cells together frameworks do differ"
    else:
        words = f"over all cells together {title(factor)} does have an effect"
    return f"; {words} ({numbers})", {"p": p, "share": share}


def _count_significant(n: int, n_tested: int) -> str:
    are = "is" if n == 1 else "are"
    return f"{n} of {number_of(n_tested, 'comparison')} {are} significant after Holm correction"


def _unknown_effects_note(factors: Sequence[str]) -> Note:
    """Say that effects are not known, because no measured cells show them."""
    nouns = [title(factor) for factor in factors]
    subject = f"effect of {nouns[0]} is" if len(nouns) == 1 else f"effects of {join_words(nouns)} are"
    text = f"The {subject} not known: no two measured cells differ in one factor alone."
    return Note("effect-not-known", text, factors=tuple(factors))


def _out_of_memory_notes(runs: pd.DataFrame, question_factors: Sequence[str]) -> list[Note]:
    """Say which levels of the first factor in question ran out of memory, and in how many cells."""
    cells = out_of_memory_cells(runs)
    if not cells:
        return []
    rows, factor = cell_levels(runs), question_factors[0]
    ran_out = rows.loc[rows["cell"].isin(cells), factor]
    counts = {
        level_text(level): (int((ran_out == level).sum()), int((rows[factor] == level).sum()))
        for level in levels_in_order(rows[rows["cell"].isin(cells)], factor)
    }
    parts = [
        f"with {title(factor)} {level} in {n} of {number_of(n_cells, 'cell')}"
        for level, (n, n_cells) in counts.items()
    ]
    return [
        Note(
            "out-of-memory", f"Memory ran out {join_words(parts)}.", factor=factor, levels=counts, cells=cells
        )
    ]


def _undecided_note(contrasts: Sequence[Contrast], margin: float | None) -> Note:
    """Say how many comparisons are significant, and which differences the others allow."""
    tested = _tested(contrasts)
    if not tested:
        return NOTHING_TESTED
    undecided = [contrast for contrast in tested if not contrast.is_significant]
    slowdowns = sorted(contrast.largest_difference for contrast in undecided if not contrast.equal)
    n_equal = len(undecided) - len(slowdowns)
    text = _count_significant(len(tested) - len(undecided), len(tested))
    if margin is not None and undecided:
        text += (
            f"; an equivalence test shows {n_equal} of the others to be equal within the study's margin of "
        )
        text += margin_text(margin)
    if slowdowns:
        narrowest, widest = map(_difference_text, (slowdowns[0], slowdowns[-1]))
        text += (
            f". In the open comparison, a difference of up to {widest} remains possible"
            if len(slowdowns) == 1
            else f". In the {len(slowdowns)} open comparisons, differences from {narrowest} (narrowest "
            f"interval) to {widest} (widest) remain possible"
        )
    return Note(
        "not-told-apart",
        f"{text}.",
        tested=len(tested),
        equal=n_equal,
        open=len(slowdowns),
        slowdowns=[slowdowns[0], slowdowns[-1]] if slowdowns else [],
    )


def _difference_text(share: float) -> str:
    if share < MIN_FACTOR - 1:
        return f"{tables.number(100 * share, 2)} %"
    return f"a factor of {tables.number(share + 1, 2)}"


def _tested(contrasts: Sequence[Contrast]) -> list[Contrast]:
    return [contrast for contrast in contrasts if not math.isnan(contrast.p)]
