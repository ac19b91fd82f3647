"""Draft the abstract, discussion and conclusion of a paper from the study's records.

A draft says only what the records and tables show, and the paper marks it as a draft: what the numbers mean
for a reader's own work, and what others have found, remain with the author.
"""

import re
from collections.abc import Iterator, Mapping

import pandas as pd

from analysis.anova import ERROR, TOTAL
from analysis.answers import Answer
from analysis.measured import distinct_names, framework_order, levels_in_order, out_of_memory_cells
from common.notes import Note
from common.text import end_sentence, number_of
from report.findings import Evidence
from report.latex import join_words, to_latex
from report.methods import MIN_EPOCHS, Facts

MAX_NAMES = 4  # frameworks, models and data sets that an abstract lists
MIN_SHARE = 0.05  # of the variation, below which a discussion names no factor
MAX_TERMS = 3
NEAR_IDEAL_LOSS = 0.05  # of efficiency
PART_FILES = ("abstract.tex", "discussion.tex", "conclusion.tex")
_INTERVAL = re.compile(r" [\[(][^\])]*\d[^\])]*[\])]")
_PLACES = {
    "emulated": "nodes emulated on one machine",
    "virtual": "the nodes of a virtual cluster on one machine",
}


def draft_texts(facts: Facts, answer: Answer, evidence: Evidence) -> dict[str, str]:
    """Return the drafted parts by file name, each marked as a draft."""
    parts = (abstract(facts, answer), discussion(facts, answer, evidence), conclusion(facts, answer))
    return {
        name: "\\drafted\n" + "\n\n".join(map(to_latex, notes)) + "\n"
        for name, notes in zip(PART_FILES, map(list, parts), strict=True)
    }


def abstract(facts: Facts, answer: Answer) -> Iterator[str]:
    """Yield the abstract: the question, how it was measured, the answer, and its limits."""
    answers = [answer.opening[0], *map(_first_sentence, answer.opening[1:2])]
    sentences = [end_sentence(facts.study.question), _measured_note(facts), *answers]
    limits = _limits(facts)
    yield " ".join([*sentences, *([f"These results are limited to {join_words(limits)}."] if limits else [])])


def discussion(facts: Facts, answer: Answer, evidence: Evidence) -> Iterator[str]:
    """Yield what decides the response, what more devices cost, and what the data leave open."""
    notes = [_variation_note(evidence), _scaling_note(evidence)]
    yield from filter(None, notes)
    still_open = next((note for note in answer.opening if note.code == "not-told-apart"), None)
    if still_open and still_open.facts["open"]:
        yield Note(
            "more-runs",
            f"{still_open.facts['open']} of {number_of(still_open.facts['tested'], 'comparison')} remain "
            "open. They are no evidence that two configurations are equally fast: more replicates narrow the "
            "intervals, by half with four times as many.",
            **still_open.facts,
        )
    if ran_out := out_of_memory_cells(facts.runs):
        yield Note(
            "memory-limits",
            f"Memory decides before time does in {number_of(len(ran_out), 'configuration')}, which did not "
            "fit.",
            cells=ran_out,
        )


def conclusion(facts: Facts, answer: Answer) -> Iterator[str]:
    """Yield the answer in short, where it holds, and what would test it."""
    yield " ".join(_INTERVAL.sub("", _first_sentence(note)) for note in answer.opening[:2])
    if facts.ok.empty:
        return
    limits = _limits(facts)
    yield Note(
        "next-step",
        (f"This holds for {join_words(limits)}. " if limits else "")
        + "A repetition at another site tests whether it holds elsewhere: the study file, the records and "
        "the commands under Reproducibility are all that it needs.",
        limits=limits,
    )


def _first_sentence(note: str) -> str:
    return end_sentence(note.partition(". ")[0])


def _measured_note(facts: Facts) -> Note:
    """Say how many runs of which configurations were measured, and on what."""
    runs, n_runs = facts.runs, facts.runs.groupby("cell").size()
    names = {
        "framework": framework_order(runs),
        "model": [str(name) for name in levels_in_order(runs, "model")],
        "data set": [str(name) for name in levels_in_order(runs, "dataset")],
    }
    listed = {
        noun: join_words(own) if len(own) <= MAX_NAMES else number_of(len(own), noun)
        for noun, own in names.items()
    }
    nodes = [f"{level:g}" for level in levels_in_order(runs, "nodes")]
    places = set(facts.ok["placement"].dropna())
    where = _PLACES.get(places.pop(), "") if len(places) == 1 else ""
    devices = distinct_names(facts.ok, "devices")
    least, most = int(n_runs.min()), int(n_runs.max())
    each = f"{f'{least} to ' * (least < most)}{number_of(most, 'run')} each"
    source = "published measurements of " if facts.study.imported else ""
    text = (
        f"The study compares {source}{number_of(len(n_runs), 'configuration')} of {listed['framework']} "
        f"({listed['model']}; data: {listed['data set']}) on {join_words(nodes)} "
        f"node{'s' * (nodes != ['1'])}"
        + (f" with {join_words(devices)}" if devices and devices != ["cpu"] else "")
        + (f", {where}" if where else "")
        + f", with {each}"
        + ("." if facts.study.imported else ", in random order within blocks.")
    )
    return Note("measured", text, runs=len(runs), cells=len(n_runs), nodes=nodes)


def _limits(facts: Facts) -> list[str]:
    """Return what the results are limited to, in a few words each."""
    ok, placements = facts.ok, set(facts.ok["placement"].dropna())
    sites = facts.runs["site"].nunique()
    return [
        *([] if facts.study.imported or sites > 1 else ["one site and one version of each library"]),
        *(["numbers as their source states them"] if facts.study.imported else []),
        *(words for place, words in _PLACES.items() if place in placements),
        *(
            [f"trainings of at most {ok['epochs'].max():g} epochs"]
            if len(ok) and ok["epochs"].max() < MIN_EPOCHS and not facts.study.imported
            else []
        ),
    ]


def _variation_note(evidence: Evidence) -> Note | None:
    """Say which factors explain the differences between runs, and how large scatter is beside them."""
    rows = evidence.table("anova", "term", "share")
    terms = rows[~rows["term"].isin([ERROR, TOTAL])].sort_values("share", ascending=False, kind="stable")
    named: Mapping[str, float] = dict(
        terms.loc[terms["share"] >= MIN_SHARE, ["term", "share"]].head(MAX_TERMS).itertuples(index=False)
    )
    if not named:
        return None
    parts = join_words([f"{term} ({100 * share:.0f} %)" for term, share in named.items()])
    scatter = rows.loc[rows["term"] == ERROR, "share"].astype(float)
    beside = (
        f" Runs of the same configuration differ much less: they account for {100 * scatter.iloc[0]:.1f} %."
        if len(scatter) and scatter.iloc[0] < min(named.values())
        else " Runs of the same configuration differ as much, so small differences cannot be trusted."
        if len(scatter)
        else ""
    )
    return Note(
        "what-decides",
        f"Most of the variation of {evidence.response.title} comes from {parts}.{beside}",
        shares=named,
        scatter=float(scatter.iloc[0]) if len(scatter) else None,
    )


def _scaling_note(evidence: Evidence) -> Note | None:
    """Say what the best configuration loses at the most devices, and whether more of them pay at all."""
    rows = evidence.table("speedup", "replicas", "speedup", "efficiency", "cell")
    rows = rows[rows["replicas"] > rows.get("baseline_replicas", 1)]
    if rows.empty:
        return None
    largest = rows[rows["replicas"] == rows["replicas"].max()]
    best = largest.loc[largest["efficiency"].astype(float).idxmax()]
    lost, n_devices = 1 - float(best["efficiency"]), int(best["replicas"])
    is_slower = pd.to_numeric(largest.get("speedup_high", pd.Series(dtype=float)), errors="coerce") < 1
    n_slower = int(is_slower.sum())
    subject = f"On {n_devices} devices the best configuration ({evidence.cell(best['cell'])})"
    text = (
        f"{subject} reaches an efficiency of {100 * (1 - lost):.0f} %: the rest of its devices' time goes to "
        "communication, waiting, and what the framework adds to one device's work."
        if lost > NEAR_IDEAL_LOSS
        else f"{subject} scales almost ideally, with an efficiency of {100 * (1 - lost):.0f} %."
    )
    if n_slower:
        text += (
            f" In {n_slower} of {number_of(len(largest), 'configuration')} more devices make an epoch longer "
            "than one device does: there the network decides, and fewer or larger messages help more than "
            "devices."
        )
    return Note("cost-of-scaling", text, devices=n_devices, lost=lost, slower=n_slower)
