"""Answer a study's question in plain sentences.

The main notes come first in a report or a paper. By their codes, in this order:

    response-not-measured   no run has the study's response, so the answer is about epoch time
    means                   the range of means, for each number of nodes if it varies
    effect                  the effect of each further answer factor; effect-not-known if no cells show it
    recovered               the share of the time beyond computation that accumulation recovers
    saved-all-reduces       how long the all-reduces that accumulation saves take in the collective benchmark
    accuracy-of-accumulation    the final accuracy with and without accumulation, if they differ
    differences             how many comparisons of the first answer factor are significant; the largest
    best-level              which of its levels is best, at how many settings of the others; its largest lead.
                            If its levels cannot be ranked, its effect takes this place
    effect                  if there is one answer factor only: of the factor with the largest effect
    warm-up                 the framework whose runs spend much more time in warm-up than the others
    open-comparisons        what the data cannot resolve; nothing-tested if no comparison has a test
    out-of-memory           with which levels of the first answer factor memory ran out

A study without a successful run has only no-answer and out-of-memory, and a study of one cell only one-cell.
Further notes state the effects of the other factors. Factors that define the work, such as the model, come
first only if the study asks about them: that a larger model takes longer is not an answer.

Cells without a significant difference are never called equal: the sentence says which difference the interval
allows.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from analysis import intervals, tables
from analysis.cell_means import estimate_means, estimate_response_means
from analysis.contrasts import (
    Contrast,
    Ranking,
    contrasts_by_factor,
    group_by_other_level,
    rank_levels,
    select_significant,
    select_tested,
    shared_levels,
)
from analysis.decomposition import ACCUMULATION
from analysis.effects import margin_text
from analysis.evidence import Evidence
from analysis.intervals import SIGNIFICANCE_LEVEL, Estimate, p_text
from analysis.level_words import cell_words, context_text, level_text, setting_text, title, treatment_text
from analysis.records import (
    cell_levels,
    levels_in_order,
    measured_elsewhere,
    out_of_memory_cells,
    successful,
    varying,
)
from analysis.recovered import recovered_shares
from common.notes import Note
from common.text import join_words, number_of
from declared.factors import MODEL_AND_DATASET, SIZE_FACTORS
from declared.responses import EPOCH_TIME, Response

NO_SUCCESS = Note("no-answer", "No run of the study has succeeded, so its question has no answer yet.")
NOT_MEASURED = "No run has measured {}: the answer is about epoch time."
NOTHING_TESTED = Note(
    "nothing-tested", "No comparison could be tested: that needs two or more runs of each cell."
)
READING = (
    "Compared cells differ in one factor{}. {}Brackets after a ratio of two levels are simultaneous 95 % "
    "intervals, which exclude 1 only for significant differences (p < 0.05 after Holm correction over a "
    "factor's comparisons){}. All other brackets, such as those of means and speed-ups{}, are uncorrected "
    "95 % intervals of each number alone. Extremes among many comparisons tend to be exaggerated (selection "
    "bias)."
)
ENDS_AT_ONE = "; where one ends at 1, p is stated"
RATIOS_OF_PARTS = " and the ratios in table `decomposition`"
COMPUTATION = (
    " Time beyond computation is epoch time minus that of the cell on one device (with the same "
    "accumulation, if that was measured), scaled to the batches of a replica: communication, waiting and "
    "contention."
)
ACCURACY = "accuracy-of-accumulation"  # Code of a note.
UNEQUAL_TRAINING = (
    "With {}, the effective batch grows, so epochs are not equal training. "  # and accuracies can differ
)
OWN_SETTINGS = "Frameworks keep their own settings (table `settings`). "
MAX_RANGES = 4  # Most ranges of means in a sentence, one for each number of nodes.
MAX_GROUPS = 3  # Most groups of comparisons, one for each level of the factor that an effect depends on.
MIN_FACTOR = 3.0  # Larger ratios are given as factors, smaller ones in per cent.
# Shares of warm-up of a framework that stands out: of node time, and relative to the other frameworks.
MIN_WARM_UP_SHARE, MIN_WARM_UP_RATIO = 0.1, 2.0


class Answer(NamedTuple):
    """The answer of a study.

    Attributes:
        main: The main notes, in the order of the module's docstring.
        further: The effects of all other factors, and how accumulation changes the accuracy.
        reading: How to read the numbers; "" if nothing is compared.
    """

    main: list[Note]
    further: list[Note]
    reading: str = ""


@dataclass(frozen=True)
class Question:
    """What a study asks.

    Attributes:
        factors: The answer factors; without any, the first varying factor in the order of the table of
            effects is taken.
        margin: The equivalence margin, if the study has one.
        response: The response, which the answer is about if a run has it.
    """

    factors: Sequence[str] = ()
    margin: float | None = None
    response: Response = EPOCH_TIME


def answer_sentences(evidence: Evidence, question: Question) -> Answer:
    """Return the answer to the question of a study.

    Its tables are `effects` and `anova`, `useful_time` for the note on warm-up, and `decomposition` for that
    on all-reduces.
    """
    runs, response = evidence.runs, evidence.response
    if successful(runs).empty:
        return Answer([NO_SUCCESS, *_out_of_memory_notes(runs, question.factors or ["framework"])], [])
    main: list[Note] = []
    if response != question.response:
        text = NOT_MEASURED.format(question.response.title)
        main.append(Note("response-not-measured", text, response=question.response.name))
    if not varying(runs):
        return Answer([*main, _one_cell_note(runs, response)], [])
    anova = evidence.table("anova")
    by_factor = contrasts_by_factor(runs, evidence.table("effects"), anova, response)
    factors = [name for name in question.factors if name in by_factor] or list(by_factor)[:1]
    notes, described = _main_notes(evidence, by_factor, factors)
    main += notes
    if response == EPOCH_TIME:
        main += filter(None, [_warm_up_note(evidence)])
    every_contrast = [contrast for contrasts in by_factor.values() for contrast in contrasts]
    if every_contrast:
        main.append(_open_comparisons_note(every_contrast, question.margin))
    main += _out_of_memory_notes(runs, factors)
    further = [
        _effect_note(name, contrasts, anova, response)
        for name, contrasts in by_factor.items()
        if name not in described and contrasts
    ]
    if unknown := [name for name in by_factor if name not in described and not by_factor[name]]:
        further.append(_unknown_effects_note(unknown))
    codes = {note.code for note in main}
    if ACCURACY not in codes:
        further += filter(None, [_accuracy_note(runs, by_factor.get(ACCUMULATION, []), anova)])
    return Answer(main, further, _reading(evidence, every_contrast, "recovered" in codes))


def _one_cell_note(runs: pd.DataFrame, response: Response) -> Note:
    """Return the mean of the only cell."""
    mean = estimate_response_means(runs, response).cell_mean(str(runs["cell"].iloc[0]))
    value = f"{tables.interval(mean.times(response.unit_multiplier))} {response.unit}"
    text = f"The study has one cell, so it compares nothing. Its mean {response.title} is {value}."
    return Note("one-cell", text, **{response.column: mean})


def _main_notes(
    evidence: Evidence, by_factor: Mapping[str, Sequence[Contrast]], answer_factors: Sequence[str]
) -> tuple[list[Note], set[str]]:
    """Return the notes on means, effects and the best level, and the factors whose effect they describe."""
    runs, anova, response = evidence.runs, evidence.table("anova"), evidence.response
    first, *more_factors = answer_factors
    contrasts = by_factor[first]
    rankings, differences = rank_levels(runs, first, contrasts, response), None
    notes: list[Note] = [_means_note(runs, rankings, response)]
    for name in more_factors:
        notes.append(_effect_note(name, by_factor[name], anova, response))
    if ACCUMULATION in answer_factors and response == EPOCH_TIME:
        pairs = by_factor[ACCUMULATION]
        recovered, saved = _recovered_note(runs, pairs), _saved_all_reduces_note(evidence)
        notes += filter(None, [recovered, saved, _accuracy_note(runs, pairs, anova)])
    if rankings:
        notes += filter(None, [differences := _differences_note(first, contrasts, anova, response)])
        notes.append(_best_level_note(first, rankings, response))
    else:
        notes.append(_effect_note(first, contrasts, anova, response))
    # The note on the best level has the only contrast of a factor, but not the range of several.
    is_described = not rankings or differences or len(contrasts) == 1
    described = {*more_factors, *([first] if is_described else [])}
    strongest = None if more_factors else _strongest_factor(by_factor, described)
    if strongest:
        scope = "" if strongest == _strongest_factor(by_factor) else "Of the other factors, "
        lead_in = _capitalize(f"{scope}the largest effect is that of {title(strongest)}: ")
        notes.append(_effect_note(strongest, by_factor[strongest], anova, response, lead_in))
        described.add(strongest)
    return notes, described


def _reading(evidence: Evidence, contrasts: Sequence[Contrast], has_recovered: bool) -> str:
    """Return how to read the numbers of an answer."""
    runs = evidence.runs
    source = " as far as the source says" if measured_elsewhere(runs) else ""
    ends_at_one = any(contrast.ends_at_one for contrast in select_significant(contrasts))
    ratios_of_parts = "" if evidence.table("decomposition").empty else RATIOS_OF_PARTS
    text = READING.format(source, _differences_of_cells(runs), ENDS_AT_ONE * ends_at_one, ratios_of_parts)
    return text + COMPUTATION * has_recovered + _shared_blocks_text(runs, evidence.table("effects"))


def _shared_blocks_text(runs: pd.DataFrame, effects: pd.DataFrame) -> str:
    """Say by how much ratios differ from quotients of means if pairs of cells compare fewer runs; else ""."""
    if not {"from_n", "to_n", "ratio"} <= set(effects):
        return ""
    statistics, compared = estimate_means(runs).cell_statistics, effects.dropna(subset="ratio")
    n, mean = (
        {end: compared[f"{end}_cell"].map(statistics[name]) for end in ("from", "to")}
        for name in ("n", "mean")
    )
    is_partial = (compared["from_n"] < n["from"]) | (compared["to_n"] < n["to"])
    if not is_partial.any():
        return ""
    difference = (compared["ratio"] * mean["from"] / mean["to"] - 1).abs().max()
    return (
        f" Cells are compared over the blocks in which both have a run. In {int(is_partial.sum())} of "
        f"{number_of(len(compared), 'comparison')} these are not all runs (n in table `effects`), so ratios "
        f"differ by up to {100 * difference:.1f} % from quotients of the means."
    )


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
    ok = successful(runs)
    # The intervals of the table of cells.
    estimates = intervals.means(ok["validation_accuracy"], ok["cell"], 0, 1)
    accuracy = 100 * estimates[["value", "low", "high"]]
    pairs = [pair for pair in pairs if set(pair.cells) <= set(accuracy.index)]
    if not pairs:
        return None
    moderator = _moderator(pairs, anova)
    clauses, ranges = [], []
    for level, group in (group_by_other_level(pairs, moderator) if moderator else {None: pairs}).items():
        texts = []
        for after in (False, True):
            cells = accuracy.loc[[pair.cells[after] for pair in group]].sort_values("value")
            changed = {ACCUMULATION: group[0].after if after else group[0].before}
            ends = dict.fromkeys(tables.interval(Estimate(*cells.iloc[at])) for at in (0, -1))
            texts.append(f"{' to '.join(ends)} % {setting_text(changed)}")
            ranges.append((" to ".join(ends), cells["value"].min(), cells["value"].max()))
        place = f" {setting_text({moderator: level})}" if moderator else ""
        clauses.append(f"{' and '.join(texts)}{place}")
    if len({values for values, *_ in ranges}) == 1:
        return None
    levels = cell_levels(runs).set_index("cell").loc[[cell for pair in pairs for cell in pair.cells]]
    shared = {
        name: levels[name].iloc[0]
        for name in varying(runs, exclude=[ACCUMULATION, *filter(None, [moderator])])
        if levels[name].nunique(dropna=False) == 1
    }
    scope = _capitalize(setting_text(shared)) if shared else "In the cells compared"
    before, after = (accuracy.loc[[pair.cells[end] for pair in pairs]].reset_index() for end in (0, 1))
    n_overlapping = int(((before["low"] <= after["high"]) & (after["low"] <= before["high"])).sum())
    overlap = {0: "No intervals", len(pairs): "Intervals"}.get(
        n_overlapping, f"In {n_overlapping} of {len(pairs)} pairs, the intervals"
    )
    text = (
        f"{scope}, mean validation accuracy after the last epoch is {'; '.join(clauses)}. {overlap} of cells "
        "with and without accumulation overlap; differences of accuracy are not tested."
    )
    return Note(ACCURACY, text, ranges=ranges, shared=shared, overlapping=n_overlapping, pairs=len(pairs))


def _strongest_factor(
    by_factor: Mapping[str, Sequence[Contrast]], exclude: Collection[str] = ()
) -> str | None:
    """Return the factor with the largest significant change, or else the largest change; None without any.

    Factors that define the work and factors in `exclude` are left out.
    """
    candidates = {
        name: max((contrast.is_significant, abs(math.log(contrast.ratio.value))) for contrast in contrasts)
        for name, contrasts in by_factor.items()
        if contrasts and name not in (*MODEL_AND_DATASET, *exclude)
    }
    return max(candidates, key=lambda name: candidates[name], default=None)


def _differences_note(
    factor: str, contrasts: Sequence[Contrast], anova: pd.DataFrame, response: Response
) -> Note | None:
    """Say how many comparisons of a factor's levels are significant, and name the largest difference.

    None without a test, or for a single comparison, which the note on the best level has.
    """
    n_tested, differing = len(select_tested(contrasts)), select_significant(contrasts)
    if n_tested < 2:
        return None
    nouns = {"framework": "frameworks"}.get(factor, f"levels of {title(factor)}")
    largest = max(differing, key=lambda contrast: abs(math.log(contrast.ratio.value)), default=None)
    if largest is None:
        text = f"None of {number_of(n_tested, 'comparison')} of {nouns} is significant"
        text += f"{_overall_effect(factor, anova)[0]}."
    else:
        largest = largest if largest.ratio.value > 1 else largest.reversed()
        context = f" ({largest.context})" if largest.context else ""
        moderator = _moderator(contrasts, anova)
        groups = group_by_other_level(select_tested(contrasts), moderator) if moderator else {}
        counts = [
            f"{len(select_significant(group))} of {len(group)} {setting_text({str(moderator): level})}"
            for level, group in sorted(groups.items(), key=lambda group: -len(select_significant(group[1])))
        ]
        are = "is" if len(differing) == 1 else "are"
        text = (
            f"Of {number_of(n_tested, 'comparison')} of {nouns}, {len(differing)} {are} significant"
            f"{f' ({join_words(counts)})' if counts else ''}"
            f"{': ' if len(differing) == 1 else '. The largest difference: '}"
            f"mean {response.title} {setting_text({factor: largest.after})} is {_ratio_text(largest)} "
            f"times that {setting_text({factor: largest.before})}{context}."
        )
    return Note(
        "differences", text, factor=factor, significant=len(differing), tested=n_tested, largest=largest
    )


def _level(contrast: Contrast, level: Any) -> str:
    return treatment_text({contrast.factor: level})


def _best_level_note(factor: str, rankings: Sequence[Ranking], response: Response) -> Note:
    """Say which level of a factor has the best mean response, at how many settings, and its largest lead."""
    wins, n = Counter(ranking.levels[0] for ranking in rankings), len(rankings)
    count = max(wins.values())
    winners = [level for level in wins if wins[level] == count]
    leads = [ranking.lead for ranking in rankings if ranking.lead and ranking.levels[0] in winners]
    other_leads = [ranking.lead for ranking in rankings if ranking.lead and ranking.levels[0] not in winners]
    n_tested, differing = len(select_tested(leads)), select_significant(leads)
    extreme = max if response.is_rate else min
    best = extreme(differing or leads, key=lambda lead: lead.ratio.value, default=None)
    names = " and ".join(treatment_text({factor: level}) for level in winners)
    region = _where_best(rankings, winners[0]) if len(winners) == 1 and 1 < count < n else {}
    region_text = f"{setting_text(region)}, " if region else ""
    of_settings = f"all {count} settings" if region or count == n else f"{count} of {n} settings"
    extent = f" at {of_settings} of the other factors" if n > 1 else ""
    extent += " each" if n > 1 and len(winners) > 1 else ""
    text = f"{region_text}mean {response.title} is {response.superlative} with {names}{extent}"
    if select_tested([*leads, *other_leads]) and not select_significant([*leads, *other_leads]):
        # A reader takes the first name for the winner, so the reservation comes before it.
        text = f"No lead over the second is significant: {text}"
        other_leads = []
    elif n_tested:
        are = "is" if len(differing) == 1 else "are"
        text += f"; {len(differing)} of {number_of(n_tested, 'lead')} over the second {are} significant"
    text = _capitalize(text)
    if best:
        after, before = (_level(best, level) for level in (best.after, best.before))
        context = treatment_text(
            {name: best.other_levels[name] for name in best.other_levels if name not in region}
        )
        text += f". {'In the largest lead, it' if len(leads) > 1 else 'It'} is {_ratio_text(best)} times "
        text += f"that with {before}"
        text += f" with {after}" if len(winners) > 1 else ""
        text += f" ({context})" if context else ""
    if n_others := len(select_tested(other_leads)):
        n_significant = len(select_significant(other_leads))
        settings = f"the other {number_of(n - count * len(winners), 'setting')}"
        for name, level in region.items():
            further_levels = {ranking.other_levels[name] for ranking in rankings} - {level}
            if len(further_levels) == 1:
                settings = f"{settings.replace('other ', '')} {setting_text({name: further_levels.pop()})}"
        text += f". At {settings}, "
        are = "are" if n_significant > 1 else "is"
        counted = f"{n_significant} of {number_of(n_others, 'lead')}" if n_significant else "no lead"
        text += f"{counted} {are} significant"
    return Note(
        "best-level",
        f"{text}.",
        factor=factor,
        levels=winners,
        wins=dict(wins),
        settings=n,
        significant=len(differing),
        lead=best,
    )


def _where_best(rankings: Sequence[Ranking], winner: Any) -> dict[str, Any]:
    """Return the level of another factor at whose settings alone a level is best; {} without one."""
    is_first = [ranking.levels[0] == winner for ranking in rankings]
    for name in rankings[0].other_levels:
        levels = [ranking.other_levels[name] for ranking in rankings]
        chosen = {level for level, first in zip(levels, is_first, strict=True) if first}
        if len(chosen) == 1 and [level in chosen for level in levels] == is_first:
            return {name: chosen.pop()}
    return {}


def _warm_up_note(evidence: Evidence) -> Note | None:
    """Name the framework whose runs spend much more of their time in warm-up; None without one."""
    useful_time = evidence.table("useful_time", "cell", "node_s", "warm_up_s")
    times = useful_time.set_index("cell")[["warm_up_s", "node_s"]].astype(float)
    frameworks = evidence.runs.drop_duplicates("cell").set_index("cell")["framework"]
    by_framework = (times["warm_up_s"] / times["node_s"]).groupby(frameworks).agg(["min", "max"])
    if len(by_framework) < 2:
        return None
    *_, (_, rival_share), (least, largest) = by_framework.sort_values("max").itertuples(
        index=False, name=None
    )
    if least < max(MIN_WARM_UP_SHARE, MIN_WARM_UP_RATIO * rival_share):
        return None
    framework = str(by_framework["max"].idxmax())
    shares = " to ".join(dict.fromkeys(f"{100 * share:.0f}" for share in (least, largest)))
    text = (
        f"Epoch time leaves out warm-up, which takes {shares} % of the node time of runs with {framework}, "
        f"and at most {100 * rival_share:.0f} % with any other framework."
    )
    return Note("warm-up", text, factor="framework", framework=framework, shares=(least, largest))


def _means_note(runs: pd.DataFrame, rankings: Sequence[Ranking], response: Response) -> Note:
    """State the range of means, for each number of nodes if there are at most MAX_RANGES, and the best cell.

    If the lead of the best cell in its ranking is not significant, the note says so.
    """
    cell_means = estimate_response_means(runs, response)
    means = response.unit_multiplier * cell_means.cell_statistics["mean"].dropna()
    rows = cell_levels(runs).set_index("cell").loc[lambda table: table.index.isin(means.index)]
    sizes = [name for name in SIZE_FACTORS if name in varying(runs)][:1]
    if not sizes or rows[sizes[0]].nunique() > MAX_RANGES:
        sizes = []
    # The decimals are those of the table of means, which gives each with its interval.
    estimates = [cell_means.cell_mean(cell).times(response.unit_multiplier) for cell in means.index]
    printed = {
        cell: text.partition(" [")[0]
        for cell, text in zip(means.index, tables.intervals(estimates), strict=True)
    }
    ranges, texts = [], []
    for _, group in rows.groupby(sizes, sort=True) if sizes else [((), rows)]:
        ends = means[group.index].idxmin(), means[group.index].idxmax()
        low, high = means[list(ends)]
        values = " to ".join(dict.fromkeys(printed[cell] for cell in ends))
        context = context_text(group.iloc[0], sizes)
        ranges.append((context, len(group), low, high))
        texts.append(f"{values} {response.unit}{f' on {context}' if context else ''}")
    text = f"Mean {response.title} is {join_words(texts)}"
    if len(means) > 1:
        best = means.idxmax() if response.is_rate else means.idxmin()
        text += f"; it is {response.superlative} with {cell_words(runs)[best]}"
        leads = [ranking.lead for ranking in rankings if ranking.cells[0] == best and ranking.lead]
        if open_leads := [lead for lead in select_tested(leads) if not lead.is_significant]:
            text += f" (its lead over {_level(open_leads[0], open_leads[0].before)} is not significant)"
    return Note("means", f"{text}.", ranges=ranges, factors=sizes)


def _recovered_note(runs: pd.DataFrame, contrasts: Sequence[Contrast]) -> Note | None:
    """State which share of the time beyond computation accumulation recovers, where it can be estimated."""
    pairs = [contrast for contrast in contrasts if contrast.cells and contrast.before == 1]
    shares = recovered_shares(runs, [(pair.cells[0], pair.cells[1]) for pair in pairs])
    estimated = [(pair, share) for pair, share in zip(pairs, shares, strict=True) if share]
    if not estimated:
        return None
    estimated.sort(key=lambda entry: entry[1].value)
    shared = shared_levels([pair for pair, _ in estimated])
    values = []
    for pair, share in (estimated[0], estimated[-1])[: len(estimated)]:
        levels = {name: level for name, level in pair.other_levels.items() if name not in shared}
        levels |= {} if len({pair.after for pair, _ in estimated}) == 1 else {pair.factor: pair.after}
        words = f" ({treatment_text(levels)})" if levels else ""
        values.append(f"{_percent_interval(share)}{words}")
    phrase = _capitalize(setting_text(shared)) if shared else "On several devices"
    extent = " to ".join(values)
    text = (
        f"{phrase}, of the time that an epoch takes beyond computation (all-reduces, waiting and contention "
        f"together), accumulation recovers {extent}."
    )
    return Note("recovered", text, shares={pair.cells: share for pair, share in estimated})


def _saved_all_reduces_note(evidence: Evidence) -> Note | None:
    """State how long the all-reduces that accumulation saves take in the collective benchmark, if it ran.

    The note names the cells whose epochs become shorter by the least and by the most, each beside its time in
    the benchmark.
    """
    rows = evidence.table("decomposition", "network_s", "difference_s", "from_cell")
    if rows.empty:
        return None
    rows = rows.sort_values("difference_s", ascending=False, kind="stable")
    levels = cell_levels(evidence.runs).set_index("cell").loc[rows["from_cell"]]
    names = varying(evidence.runs, exclude=[ACCUMULATION])
    differing = [name for name in names if levels[name].nunique() > 1]
    savings = []
    for at in (0, -1)[: len(rows)]:
        row, words = rows.iloc[at], treatment_text(dict(levels.iloc[at][differing]))
        benchmarked = f"{words}; " * bool(words) + f"in the benchmark {_seconds_saved(row, 'network_s')}"
        savings.append(f"{_seconds_saved(row, 'difference_s')} ({benchmarked})")
    network_s = [float(-rows["network_s"].max()), float(-rows["network_s"].min())]
    shortest, longest = tables.equal_decimals(network_s, 3)
    text = (
        "In the collective benchmark, the all-reduces that accumulation saves in an epoch take "
        f"{f'{shortest} to {longest}' if len(rows) > 1 else shortest} s; measured epochs are shorter by "
        f"{' to '.join(savings)}."
    )
    differences_s = (-rows["difference_s"].iloc[[0, -1]]).tolist()
    return Note("saved-all-reduces", text, network_s=network_s, difference_s=differences_s)


def _seconds_saved(row: pd.Series, column: str) -> str:
    """Return a difference in seconds, negative in the table, as a time saved with its interval."""
    estimate = intervals.estimate_of(row, column).times(-1)
    return f"{tables.interval(Estimate(estimate.value, estimate.high, estimate.low))} s"


def _effect_note(
    factor: str,
    contrasts: Sequence[Contrast],
    anova: pd.DataFrame,
    response: Response = EPOCH_TIME,
    lead_in: str = "",
) -> Note:
    """State the range of a factor's ratios, and how many comparisons are significant.

    If the effect depends on another factor, each of that factor's levels has its own range.

    Args:
        factor: The factor.
        contrasts: Its contrasts.
        anova: The table of the analysis of variance.
        response: What is compared.
        lead_in: Words before an effect of which a comparison is significant or none is tested.
    """
    if not contrasts:
        return _unknown_effects_note([factor])
    ordered = sorted(contrasts, key=lambda contrast: contrast.ratio.value)
    n_tested, n_significant = len(select_tested(contrasts)), len(select_significant(contrasts))
    moderator = _moderator(contrasts, anova) if n_significant else None
    overall: dict[str, float] = {}
    if moderator:
        text = _moderated_effect_text(ordered, moderator, response)
    elif n_tested and not n_significant:
        overall_text, overall = _overall_effect(factor, anova)
        ratios = "ratios" if len(ordered) > 1 else "ratio"
        text = (
            f"{_nothing_significant_text(ordered, response)}: {ratios} {_range_text(ordered)}{overall_text}"
        )
        lead_in = ""
    else:
        phrase, extent = _where_and_range(ordered, {})
        text = f"{phrase}{_change_clause(ordered, response)} {extent}"
        if n_significant:
            text += f". {_count_significant(n_significant, n_tested)}"
    return Note(
        "effect",
        f"{lead_in}{text}." if lead_in else f"{_capitalize(text)}.",
        factor=factor,
        least=ordered[0],
        greatest=ordered[-1],
        significant=n_significant,
        tested=n_tested,
        moderator=moderator,
        overall=overall,
    )


def _percent_interval(share: Estimate) -> str:
    """Return a share in per cent with its interval: `64 % [39 %, 85 %]`."""
    value, low, high = (f"{100 * part:.0f} %" for part in (share.value, share.low, share.high))
    return f"{value} [{low}, {high}]"


def _change_clause(contrasts: Sequence[Contrast], response: Response) -> str:
    """Return subject and verb of an effect, such as `using 2 nodes instead of 1 node multiplies ... by`."""
    first = contrasts[0]
    if len({contrast.change for contrast in contrasts}) > 1:
        subject = f"the choice of {title(first.factor)}"
    elif first.factor == ACCUMULATION and first.before == 1:
        subject = _level(first, first.after)
    else:
        subject = f"using {first.change}"
    return f"{subject} multiplies {response.title} by"


def _where_and_range(ordered: Sequence[Contrast], levels: Mapping[str, Any]) -> tuple[str, str]:
    """Return the levels that ordered contrasts share, as a phrase, and their range of ratios.

    Args:
        ordered: The contrasts, from the smallest ratio.
        levels: Levels that the phrase states in any case.
    """
    stated = {**levels, **(shared_levels(ordered) if len(ordered) > 1 else {})}
    return f"{setting_text(stated)}, " if stated else "", _range_text(ordered, stated)


def _range_text(ordered: Sequence[Contrast], stated: Collection[str] = ()) -> str:
    """Return the smallest and the largest ratio of ordered contrasts, with the levels not yet stated."""
    is_one_change = len({contrast.change for contrast in ordered}) == 1
    ends = (ordered[0], ordered[-1])[: len(ordered)]
    values = []
    for contrast in ends:
        levels = {name: level for name, level in contrast.other_levels.items() if name not in stated}
        context = treatment_text(levels) if contrast.other_levels else contrast.context
        words = "; ".join(
            filter(None, ("" if is_one_change else contrast.change, context, _p_words(contrast)))
        )
        values.append(f"{tables.ratio(contrast.ratio)}{f' ({words})' if words else ''}")
    return " to ".join(values)


def _ratio_text(contrast: Contrast) -> str:
    """Return the ratio of a contrast with its interval, and with `_p_words`."""
    words = _p_words(contrast)
    return f"{tables.ratio(contrast.ratio)}{f' ({words})' if words else ''}"


def _p_words(contrast: Contrast) -> str:
    """Return p if the difference is significant although its interval seems to include 1; else ""."""
    return p_text(contrast.p) if contrast.is_significant and contrast.ends_at_one else ""


def _moderated_effect_text(ordered: Sequence[Contrast], moderator: str, response: Response) -> str:
    """Return the effect at each level of the factor on which it depends, the most significant level first.

    The text begins with a small letter.
    """
    groups = sorted(
        group_by_other_level(ordered, moderator).items(), key=lambda group: -len(select_significant(group[1]))
    )
    parts: list[str] = []
    for level, contrasts in groups:
        phrase, extent = _where_and_range(contrasts, {moderator: level})
        if select_significant(contrasts):
            clause = "the ratio is" if parts else _change_clause(contrasts, response)
            parts.append(f"{phrase}{clause} {extent}, {_count_by_direction(contrasts)}")
        else:
            n_tested = len(select_tested(contrasts))
            parts.append(
                f"{phrase}none of {number_of(n_tested, 'comparison')} is significant: ratios {extent}"
            )
    return ". ".join([parts[0], *map(_capitalize, parts[1:])])


def _count_by_direction(contrasts: Sequence[Contrast]) -> str:
    """Return how many of the tested ratios are significantly below or above 1."""
    n, significant = len(select_tested(contrasts)), select_significant(contrasts)
    n_above = sum(contrast.ratio.value > 1 for contrast in significant)
    n_below = len(significant) - n_above
    if n_below and n_above:
        return f"{n_below} of {n} significantly below 1 and {n_above} above"
    side = "above" if n_above else "below"
    count = "" if n == 1 else f"all {n} " if len(significant) == n else f"{len(significant)} of {n} "
    is_barely = all(round(contrast.p, 2) >= SIGNIFICANCE_LEVEL for contrast in significant)
    return f"{count}significantly {side} 1{', but barely' * is_barely}"


def _capitalize(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _moderator(contrasts: Sequence[Contrast], anova: pd.DataFrame) -> str | None:
    """Return the factor on which the effect of another one depends most; None if it depends on none.

    An effect depends on a factor if their interaction is significant, or if all comparisons at some of its
    levels are significant and none at the others.
    """
    shares = _significant_terms(anova)["share"]
    candidates = {}
    for name in set.intersection(*(set(contrast.other_levels) for contrast in contrasts)):
        groups = group_by_other_level(contrasts, name)
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
    factor, n = contrasts[0].factor, number_of(len(select_tested(contrasts)), "comparison")
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


def _out_of_memory_notes(runs: pd.DataFrame, answer_factors: Sequence[str]) -> list[Note]:
    """Say which levels of the first answer factor ran out of memory, and in how many cells."""
    cells = out_of_memory_cells(runs)
    if not cells:
        return []
    rows, factor = cell_levels(runs), answer_factors[0]
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


def _open_comparisons_note(contrasts: Sequence[Contrast], margin: float | None) -> Note:
    """Say how many comparisons of all factors are significant, and which differences the others allow."""
    compared = select_tested(contrasts)
    if not compared:
        return NOTHING_TESTED
    undecided = [contrast for contrast in compared if not contrast.is_significant]
    slowdowns = sorted(contrast.largest_difference for contrast in undecided if not contrast.equal)
    n_equal = len(undecided) - len(slowdowns)
    text = f"Over all factors, {_count_significant(len(compared) - len(undecided), len(compared))}"
    if margin is not None and undecided:
        text += f"; an equivalence test shows {n_equal or 'none'} of the others to be equal within "
        text += margin_text(margin)
    if slowdowns:
        narrowest, widest = map(_difference_text, (slowdowns[0], slowdowns[-1]))
        text += (
            f". The open comparison excludes only differences above {widest}"
            if len(slowdowns) == 1
            else f". Of the {len(slowdowns)} open comparisons, the most precise one excludes differences "
            f"above {narrowest}, the least precise one only those above {widest}"
        )
    return Note(
        "open-comparisons",
        f"{text}.",
        tested=len(compared),
        equal=n_equal,
        open=len(slowdowns),
        slowdowns=[slowdowns[0], slowdowns[-1]] if slowdowns else [],
    )


def _difference_text(share: float) -> str:
    if share < MIN_FACTOR - 1:
        return f"{tables.number(100 * share, 2)} %"
    return f"a factor of {tables.number(share + 1, 2)}"
