"""Describe the design: factors, exclusions with reasons, replicates, seeds and the order of runs."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml

from analysis.level_words import combination_text, level_text, title, title_with_unit
from analysis.records import measured_elsewhere
from common.notes import Note
from common.text import number_of
from declared.datasets import find_dataset
from declared.factors import factor_rules, is_custom
from declared.frameworks import describe_framework
from declared.imported import CAMPAIGN
from declared.models import find_graph
from declared.replicates import Replicates
from declared.study import Study
from replication.reached import target_note
from report.elsewhere import COMBINED, NOT_PLANNED, model_size
from report.page_table import PageTable

_SENTENCE_END = re.compile(r"(?<!al)[.;] (?![^()]*\))")  # Not within parentheses.
_COMMENT = re.compile(r"(?:^|\s)#\s*(.+)$")


@dataclass(frozen=True)
class Exclusion:
    """An exclusion: its levels in words, and the comment in the study file, None without one."""

    levels: str
    reason: str | None


def factors(study: Study) -> list[PageTable]:
    """Return two tables of factors: those that vary, and those with one level."""
    header = ["factor", "levels", "meaning"]
    rows = {
        name: [title_with_unit(name), ", ".join(map(level_text, levels)), _meaning(study, name)]
        for name, levels in study.factors.items()
        if not (study.imported and is_unstated(name, levels))
    }
    varies = {name: len(study.factors[name]) > 1 for name in rows}
    captions = {
        True: "Factors that vary, with their levels.",
        False: "Factors that have one level in all cells.",
    }
    return [
        PageTable(caption, header, [rows[name] for name in rows if varies[name] is varying], tuple(header))
        for varying, caption in captions.items()
    ]


def is_unstated(name: str, levels: Sequence[Any]) -> bool:
    """Return whether a factor of imported measurements has a default that the source did not state."""
    return list(levels) == [factor_rules(name).get("default")] or name in ("epochs", "warmup_epochs")


def _meaning(study: Study, name: str) -> str:
    """Return the meaning of a factor, or of the levels of frameworks, data sets and models."""
    levels = study.factors[name]
    match name:
        case "framework":
            return "; ".join(describe_framework(level).title for level in levels)
        case "dataset":
            titles = [(find_dataset(level) or {"title": level})["title"] for level in levels]
            return "; ".join(map(str, titles))
        case "model":
            pairs = [(model, data) for model in levels for data in study.factors["dataset"]]
            sizes = dict.fromkeys(_size(model, data) or model_size(study, model) for model, data in pairs)
            return "; ".join([*filter(None, sizes), *_sizes_by_commands(study)])
    return "factor of this study" if is_custom(name) else _describe_levels(name, levels)


def _describe_levels(name: str, levels: Sequence[Any]) -> str:
    """Return the meaning of a factor and of these levels, without the options that the study does not use.

    Descriptions begin with the meaning. What a level means follows its name and a colon.
    """
    rules = factor_rules(name)
    names = set(map(level_text, levels))
    unused = set(map(str, rules.get("enum", ()))) - names
    meaning, *parts = _SENTENCE_END.split(str(rules["description"]))
    relevant = [part for part in parts if names & set(part.partition(": ")[0].split(", "))]
    return "; ".join([meaning] * (meaning.partition(": ")[0] not in unused) + relevant)


def _sizes_by_commands(study: Study) -> list[str]:
    """Return the sizes of models as user-supplied commands state them."""
    return [
        f"{model} of {framework}: {parameters:,} parameters"
        for framework in study.factors["framework"]
        if (command := describe_framework(framework).command)
        for model, parameters in command.models.items()
        if model in study.factors["model"]
    ]


def _size(model: str, dataset: str) -> str:
    """Return the size of a model for a data set; "" if they do not fit or are not registered."""
    graph = find_graph(model, dataset)
    return f"{model} for {dataset}: {graph.parameters:,} parameters" if graph else ""


def exclusions(study: Study) -> list[Exclusion]:
    """Return the exclusions of a study. The reason is a comment next to the entry or right above it."""
    if not study.exclude:
        return []
    text = study.file.read_text(encoding="utf-8")
    tree: Any = yaml.compose(text)
    entries = next(value for key, value in tree.value if key.value == "exclude").value
    lines = text.splitlines()
    return [
        Exclusion(
            " with ".join(_levels_text(name, levels) for name, levels in exclusion.items()),
            _comment(lines, node),
        )
        for exclusion, node in zip(study.exclude, entries, strict=True)
    ]


def _levels_text(name: str, levels: Sequence[Any]) -> str:
    """Return levels of a factor as alternatives in a sentence, such as `1 or 2 nodes`."""
    *first, last = levels
    words = combination_text({name: last})
    if words.startswith(level_text(last)):
        return " or ".join([*map(level_text, first), words])
    return f"{title(name)} {' or '.join(map(level_text, levels))}"


def _comment(lines: list[str], node: Any) -> str | None:
    first = node.start_mark.line
    last = node.end_mark.line if node.flow_style else max(first, node.end_mark.line - 1)
    above = first
    while above and lines[above - 1].strip().startswith("#"):
        above -= 1
    comments = [match[1].strip() for line in lines[above : last + 1] if (match := _COMMENT.search(line))]
    return " ".join(comments) or None


def replication(runs: pd.DataFrame, rule: Replicates) -> Note:
    """Return how many runs a cell has, how that was decided, and how runs are distributed over blocks."""
    per_cell = runs.groupby("cell")["replicate"].nunique()
    fewest, max_replicates = int(per_cell.min()), int(per_cell.max())
    n = (
        number_of(max_replicates, "replicate")
        if fewest == max_replicates
        else f"{fewest} to {max_replicates} replicates"
    )
    counts = {"runs": len(runs), "cells": len(per_cell), "replicates": sorted(set(per_cell))}
    if measured_elsewhere(runs) or CAMPAIGN in runs:
        text = f"{number_of(len(runs), 'run')}: {number_of(len(per_cell), 'cell')}, each with {n}."
        planning = COMBINED if CAMPAIGN in runs else NOT_PLANNED
        return Note("replication-elsewhere", f"{text} {planning}", **counts)
    return Note(
        "replication",
        f"{number_of(len(runs), 'run')}: {number_of(len(per_cell), 'cell')}, each with {n}, which are new "
        f"processes. Runs are in {number_of(runs['block'].nunique(), 'block')} (a block contains every cell "
        f"once{', later ones those that were not yet precise' if rule.adaptive else ''}), in random order "
        f"within each block. {target_note(runs, rule)}".rstrip(),
        **counts,
        blocks=runs["block"].nunique(),
        is_adaptive=rule.adaptive,
    )


def kept_order(runs: pd.DataFrame) -> Note:
    """Return whether the runs started in the planned order, according to their clocks."""
    if measured_elsewhere(runs) or CAMPAIGN in runs:
        return Note("order-not-planned", "")
    started = runs[runs["started_at"].notna()].sort_values("order_key")["started_at"].tolist()
    if len(started) < 2:
        return Note("order-unknown", "Start times were not recorded, so only the planned order is known.")
    earlier = sum(after < before for before, after in itertools.pairwise(started))
    if not earlier:
        recorded = "" if len(started) == len(runs) else " with a record"
        text = f"All {len(started)} runs{recorded} started in the planned order."
        return Note("order-kept", text, runs=len(started))
    return Note(
        "order-changed",
        f"Of {len(started)} runs with a record, {earlier} started before the run that was planned right "
        "before it.",
        runs=len(started),
        earlier=earlier,
    )


def seeds(runs: pd.DataFrame) -> list[tuple[int, int]]:
    """Return pairs of replicate and seed; several for a replicate whose runs have different seeds."""
    rows = runs[["replicate", "seed"]].dropna().drop_duplicates().sort_values(["replicate", "seed"])
    return [(int(replicate), int(seed)) for replicate, seed in rows.itertuples(index=False, name=None)]
