"""Draft the abstract, discussion and conclusion of a paper from the study's records.

A draft says only what records and tables show, and the paper marks it as a draft. The author adds what the
numbers mean for readers, and related work.
"""

import re
from collections.abc import Iterator

import pandas as pd

from analysis import conditions
from analysis.answers import Answer
from analysis.evidence import Evidence
from analysis.records import distinct_names, framework_order, levels_in_order
from analysis.speedup import accumulates_as_baseline
from common.notes import Note
from common.text import end_sentence, join_words, number_of
from report.facts import Facts
from report.findings import variation_note
from report.latex import to_latex
from report.threats import MIN_EPOCHS

EFFECTS = ("effect", "effect-not-known")  # codes of notes on the effect of a factor
# Codes of notes that an abstract repeats, and of those that it repeats with all their sentences.
WHOLE_NOTES = ("response-not-measured", "no-answer", "one-cell", "differences")
SHORT_ANSWER = (*WHOLE_NOTES, "means", *EFFECTS, "recovered", "best-level")
MAX_NAMES = 4  # Most frameworks, models or data sets that an abstract names.
NEAR_IDEAL_LOSS = 0.05  # A smaller loss of efficiency needs no explanation.
_INTERVAL = re.compile(r" \[[^\]]*\d[^\]]*\]")
_CELLS = re.compile(r" \([a-z][^()]*\)")
_PLACES = {
    "emulated": "nodes emulated on one machine",
    "virtual": "the nodes of a virtual cluster on one machine",
}


def draft_texts(facts: Facts, answer: Answer, evidence: Evidence) -> dict[str, str]:
    """Return the drafted parts in LaTeX by file name, each marked as a draft."""
    parts = {
        "abstract.tex": abstract(facts, answer),
        "discussion.tex": discussion(answer, evidence),
        "conclusion.tex": conclusion(facts, answer),
    }
    return {name: "\\drafted\n" + "\n\n".join(map(to_latex, notes)) + "\n" for name, notes in parts.items()}


def abstract(facts: Facts, answer: Answer) -> Iterator[str]:
    """Yield the abstract: the question, how it was measured, the answer, and its limits."""
    answers = _main_sentences(answer)
    limits = _limits(facts)
    limits_text = [f"These results are limited to {join_words(limits)}."] if limits else []
    yield " ".join([end_sentence(facts.study.question), _measured_note(facts), *answers, *limits_text])


def discussion(answer: Answer, evidence: Evidence) -> Iterator[str]:
    """Yield the main sources of variation, the cost of more devices, and what the data leave open."""
    yield from filter(None, (variation_note(evidence), _cost_of_scaling_note(evidence)))
    for note in answer.main:
        if note.code == "open-comparisons" and note.facts["open"]:
            text = (
                f"Of {number_of(note.facts['tested'], 'comparison')}, {note.facts['open']} stay open. That "
                "is no evidence that two configurations are equally fast: more replicates narrow the "
                "intervals, by half with four times as many."
            )
            yield Note("more-runs", text, **note.facts)


def conclusion(facts: Facts, answer: Answer) -> Iterator[str]:
    """Yield a short answer, its limits, and what would test it."""
    yield " ".join(_INTERVAL.sub("", note) for note in _main_sentences(answer, details=False))
    if limits := _limits(facts):
        text = (
            f"This holds for {join_words(limits)}. A repetition at another site tests whether it holds "
            "elsewhere: the study file, the records and the commands under Reproducibility are all that it "
            "needs."
        )
        yield Note("next-step", text, limits=limits)


def _main_sentences(answer: Answer, details: bool = True) -> list[str]:
    """Return the first sentences of the notes that answer the question, in their order.

    Args:
        answer: The answer.
        details: Whether to include the means.
    """
    notes = [note for note in answer.main if note.code in SHORT_ANSWER]
    if not details:
        notes = [note for note in notes if note.code != "means"]
    # The answer may have several effects, the most important one first.
    later_effects = [note for note in notes if note.code in EFFECTS][1:]
    return [
        note if note.code in WHOLE_NOTES else _shorten(note) for note in notes if note not in later_effects
    ]


def _shorten(note: Note) -> str:
    """Return the first sentence of a note, of effects the first two, without the cells in round brackets.

    It ends at a semicolon, unless that separates the best level from the number of its significant leads.
    """
    if note.code in EFFECTS:
        return end_sentence(". ".join(_CELLS.sub("", note).split(". ")[:2]))
    sentence = note.partition(". ")[0]
    if note.code != "best-level":
        sentence = sentence.partition("; ")[0]
    return end_sentence(_CELLS.sub("", sentence))


def _measured_note(facts: Facts) -> Note:
    """Return how many runs of which cells were measured, and on which machine."""
    runs, runs_per_cell = facts.runs, facts.runs.groupby("cell").size()
    names = {
        "framework": framework_order(runs),
        "model": list(map(str, levels_in_order(runs, "model"))),
        "data set": list(map(str, levels_in_order(runs, "dataset"))),
    }
    listed = [
        join_words(levels) if len(levels) <= MAX_NAMES else number_of(len(levels), noun)
        for noun, levels in names.items()
    ]
    nodes = [f"{level:g}" for level in levels_in_order(runs, "nodes")]
    placements = set(facts.ok["placement"].dropna())
    nouns = f"node{'s' * (nodes != ['1'])}"
    place = (
        f"{placements.pop()} {nouns} of one machine"
        if len(placements) == 1 and placements <= set(_PLACES)
        else nouns
    )
    devices = [name for name in distinct_names(facts.ok, "devices") if name != "cpu"]
    least, largest = int(runs_per_cell.min()), int(runs_per_cell.max())
    usable = conditions.usable_runs_note(runs)
    n_discarded, n_runs = len(runs) - usable.facts["usable"], number_of(len(runs), "run")
    discarded = f" {n_discarded} of {n_runs} could not be used{_causes_text(usable)}." if n_discarded else ""
    imported = facts.study.imported is not None
    text = (
        f"The study compares {'published measurements of ' * imported}"
        f"{number_of(len(runs_per_cell), 'configuration')} of {listed[0]} ({listed[1]}; data: {listed[2]}) "
        f"on {join_words(nodes)} {place}{f' ({join_words(devices)})' if devices else ''}, "
        f"{f'{least} to ' * (least < largest)}{number_of(largest, 'run')} each"
        f"{'' if imported else ', in random order within blocks'}.{discarded}"
    )
    return Note(
        "measured", text, runs=len(runs), cells=len(runs_per_cell), nodes=nodes, discarded=n_discarded
    )


def _causes_text(usable: Note) -> str:
    """Return why runs could not be used, as the note on usable runs counts the causes."""
    causes = usable.facts["causes"]
    if len(causes) == 1:
        return f" ({next(iter(causes))})"
    return f" ({', '.join(f'{n} {cause}' for cause, n in causes.items())})" if causes else ""


def _limits(facts: Facts) -> list[str]:
    """Return the limits of the results, in a few words each; empty without a successful run."""
    ok = facts.ok
    if ok.empty:
        return []
    if facts.study.imported:
        return ["what the source measured and states"]
    limits = ["one site and one version of each library"] if facts.runs["site"].nunique() == 1 else []
    limits += [words for place, words in _PLACES.items() if place in set(ok["placement"].dropna())]
    epochs = ok["epochs"].max()
    return [*limits, *([f"trainings of at most {epochs:g} epochs"] if epochs < MIN_EPOCHS else [])]


def _cost_of_scaling_note(evidence: Evidence) -> Note | None:
    """Return what the best cell on the most devices loses, and how many are slower than the baseline."""
    rows = evidence.table("speedup", "n_devices", "speedup", "efficiency", "cell")
    rows = rows[rows["n_devices"] > rows.get("baseline_n_devices", 1)]
    if rows.empty:
        return None
    largest = rows[rows["n_devices"] == rows["n_devices"].max()]
    # Against a baseline without accumulation, a speed-up includes what accumulation saves.
    is_alike = accumulates_as_baseline(evidence.tables["speedup"])[largest.index]
    compared = largest[is_alike] if is_alike.any() else largest
    best = compared.loc[compared["efficiency"].astype(float).idxmax()]
    efficiency, n_devices = float(best["efficiency"]), int(best["n_devices"])
    words = evidence.cell(best["cell"], compared["cell"])
    subject = f"{'On' if len(compared) == len(largest) else 'Without accumulation, on'} {n_devices} devices"
    text = f"{subject} the best configuration ({words}) has an efficiency of {100 * efficiency:.1f} %."
    if 1 - efficiency > NEAR_IDEAL_LOSS:
        text += (
            " The rest of its devices' time goes to communication, waiting, contention, and what the "
            "framework adds to one device's work."
        )
    bounds = compared.get("speedup_high", pd.Series(dtype=float))
    n_slower = int((pd.to_numeric(bounds, errors="coerce") < 1).sum())
    if n_longer := int((compared["speedup"].astype(float) < 1).sum()):
        text += (
            f" In {n_longer} of these {len(compared)} configurations the speed-up is below 1, in "
            f"{n_slower} of them with the whole uncorrected interval: communication, waiting, contention and "
            "what the framework adds to one device's work cost more than the added devices save."
        )
    return Note(
        "cost-of-scaling", text, devices=n_devices, efficiency=efficiency, slower=n_slower, longer=n_longer
    )
