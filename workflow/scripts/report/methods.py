"""Write a paper's text on how a study was made, from its study file, its site and its records.

Every sentence is LaTeX. Statements that captions and table notes make, too, come from the same functions.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from analysis import checks, conditions, tables
from analysis.effects import build_rows
from analysis.intervals import SIGNIFICANCE_LEVEL
from analysis.measured import (
    OUT_OF_MEMORY,
    OUT_OF_MEMORY_MARK,
    combination_text,
    distinct_names,
    framework_order,
    level_text,
    levels_in_order,
    missing_cells,
    one_line,
    out_of_memory_cells,
    successful,
    title_with_unit,
    treatments,
    unsuccessful,
    varying,
)
from analysis.pooling import measured_response
from analysis.settings import names_differing
from common.errors import InputError
from common.files import load_yaml
from common.notes import Note
from common.text import end_sentence, join_words, number_of
from declared.datasets import NEXT, PIXEL, ROWS, TOKENS, class_count, kind, load_dataset, targets
from declared.factors import UNTRACED, Levels, matches
from declared.factors import factor_table as factor_rules
from declared.frameworks import Framework, has_strategies, load_framework
from declared.imported import Imported
from declared.mesh import EXPERT, PLAIN, RANDOM, SEARCHED, divides_more, kind_of, mesh_of
from declared.models import find_graph
from declared.own_models import is_own_model
from declared.records import WARNING_SEPARATOR
from declared.responses import RESPONSES
from declared.site import Site
from declared.study import Study
from models.collectives import ALL_REDUCE, COLLECTIVES, titles
from models.division import SEQUENCE, VOCABULARY
from models.graph import N_CATEGORIES, N_COUNTS
from models.named import MASKED_SHARE, models
from models.pipelines import INTERLEAVED, ZERO_BUBBLE, ZERO_BUBBLE_V
from network import fit
from plan.cost import fraction_line
from plan.design import DuplicateCell, InfeasibleCell, distinct_geometry
from precision.reached import precision_note
from report import elsewhere
from report.latex import (
    cite,
    cited,
    command,
    dataset_key,
    items,
    keys_of,
    paragraph,
    published,
    see,
    to_latex,
)
from report.setting import node_memory

MEANS = "means"  # the paper's short table of cells
# Constant factors that a paper names, besides those whose level is not the default.
NAMED_CONSTANTS = (
    "framework",
    "nodes",
    "batch_size",
    "batch_scope",
    "optimizer",
    "learning_rate",
    "momentum",
)
NAMED_ELSEWHERE = ("model", "dataset", "epochs", "warmup_epochs")
MIN_REPLICATES = 5
MIN_EPOCHS = 50
DIGEST_DIGITS = 12  # hex digits of an environment's digest
MAX_REASONS = 10
MAX_WARNINGS = 5  # of libraries, each in a sentence of its own
CONSEQUENCES = {  # of a failed check, for the study's conclusions
    "normal residuals": " Intervals and tests are approximate for cells with few runs.",
    "equal spread in all cells": (
        " So the intervals of cells with few runs are approximate, although their variances are moderated."
    ),
    "no drift over run order": " Drift within a block adds to the spread of the cells.",
    "blocks alike": " Comparisons within blocks remove this difference; intervals of means do not.",
    "sessions alike": (
        " Comparisons within blocks of one session remove this difference; intervals of means do not."
    ),
    "no run depends on the one before it": " Intervals assume that runs are independent.",
}
LATTICE_CONSEQUENCE = (
    " Intervals and tests hold for such runs: of their random halves, 4 to 6~\\% differ with $p$ below 5~\\%."
)
AXIS_DESCRIPTIONS = {
    "sharded": (
        "Along the axis sharded, ranks have their own samples, and each keeps a shard of the training state "
        f"(ZeRO{cite('rajbhandari2020')})."
    ),
    "experts": (
        "Along the axis experts, ranks have their own samples and different experts; positions are sent to "
        "the ranks of their experts, and back."
    ),
    "tensor": (
        "Along the axis tensor, ranks see the same samples; each computes some heads of an attention, and of "
        f"two dense layers in a row some columns of the first and rows of the second{cite('shoeybi2019')}."
    ),
    "pipeline": (
        "Along the axis pipeline, each rank has a stage of the model, and microbatches pass through the "
        f"stages{cite('huang2019')}."
    ),
}
TENSOR_SHARDINGS = {
    VOCABULARY: (
        "With the tensor sharding vocabulary, ranks of the axis tensor also divide embedding, last layer and "
        f"loss, by tokens of the vocabulary{cite('shoeybi2019')}."
    ),
    SEQUENCE: (
        "With the tensor sharding sequence, ranks of the axis tensor also divide embedding, last layer and "
        "loss, by tokens of the vocabulary, and what lies between layers, by "
        f"positions{cite('korthikanti2023')}."
    ),
}
LAYER_STRATEGIES = {  # meaning of a level with strategies per layer
    PLAIN: "With data, every layer is partitioned by samples.",
    EXPERT: (
        "With expert, convolutions are partitioned by samples and dense layers by "
        f"units{cite('krizhevsky2014')}, and recurrent layers each have a rank of their own{cite('wu2016')}."
    ),
    SEARCHED: (
        "With found, a search by simulation has chosen, from measured costs of parts and "
        f"links{cite('jia2019')}."
    ),
    RANDOM: "With random and a number, parts and their ranks are drawn at random.",
}
SCHEDULES = {
    "gpipe": f"GPipe{cite('huang2019')} (all forward passes, then all backward passes)",
    "1f1b": f"1F1B{cite('narayanan2019')} (backward passes as early as possible)",
    INTERLEAVED: f"interleaved 1F1B{cite('narayanan2021')} (two stages on each rank)",
    ZERO_BUBBLE: f"ZB-H1{cite('qi2024')} (gradients of weights where a rank would idle)",
    ZERO_BUBBLE_V: f"ZB-V{cite('qi2024')} (the same with two stages on each rank)",
}
_LEVEL = re.compile(r"\b(?P<factor>[a-z_]+)=(?P<level>[\w./-]+)")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*[A-Za-z_])")
CLOCKS = {"ranks": "all ranks", "master": "master"}


@dataclass(frozen=True)
class Facts:
    """What a paper is based on.

    Attributes:
        study: The study.
        site: The site, None if its file is not available.
        runs: All runs of the design.
        network: Rows of network.csv; None without a collective benchmark.
        checks: The table `checks` (analysis/checks.py); None without one.
        paper_tables: Names of the paper's tables.
        supplement_tables: Names of the supplement's tables.
    """

    study: Study
    site: Site | None
    runs: pd.DataFrame
    network: pd.DataFrame | None
    checks: pd.DataFrame | None
    paper_tables: Sequence[str]
    supplement_tables: Sequence[str] = ()

    @property
    def anonymous(self) -> bool:
        """Return whether nothing may say who made the study, or where."""
        return self.study.anonymous

    @property
    def ok(self) -> pd.DataFrame:
        """Return the successful runs."""
        return successful(self.runs)

    def see(self, name: str, before: str = " (", after: str = ")") -> str:
        """Return a reference to a table, or to the supplement that has it, in brackets.

        Empty if neither does. The short table of means stands for that of cells where the paper has it.
        """
        if name == MEANS and MEANS not in self.paper_tables:
            name = "cells"
        if name not in (*self.paper_tables, *self.supplement_tables):
            return ""
        if name in self.paper_tables:
            return f"{before}{see('tab', name)}{after}"
        is_bare = (before, after) == (" (", ")")
        return f"{before}{'see ' * is_bare}the supplement{after}"

    def see_here(self, name: str) -> str:
        """Return a reference to a table of the paper in brackets; empty if it is not in the paper."""
        return self.see(name) if name in self.paper_tables else ""


def methods(facts: Facts) -> str:
    """Return the section on methods, without its heading."""
    return "\n".join(
        section for heading, notes in method_notes(facts).items() if (section := paragraph(heading, notes))
    )


def method_notes(facts: Facts) -> dict[str, list[str]]:
    """Return the sentences of the section on methods by their headings."""
    parts = (
        _parts_elsewhere(facts, facts.study.imported)
        if facts.study.imported
        else (
            ("Design", _design(facts)),
            ("Frameworks", _frameworks(facts)),
            ("Strategies", _strategies(facts)),
            ("Models and data", _workload(facts)),
            ("Machine", _machine(facts)),
            ("Measurement", _measurement(facts)),
            ("Network", _network(facts)),
            ("Statistics", _statistics(facts)),
            ("What was left out, and what failed", _left_out(facts)),
        )
    )
    return {heading: [sentence for sentence in sentences if sentence] for heading, sentences in parts}


def _parts_elsewhere(facts: Facts, imported: Imported) -> tuple[tuple[str, Iterator[str]], ...]:
    """Return the headings and sentences for measurements that were made elsewhere.

    They say nothing of random order, blocks, reference benchmarks and digests, since there are none.
    """
    return (
        ("Source", _source(imported)),
        ("Measurements", _cells_elsewhere(facts)),
        ("Frameworks", _frameworks_elsewhere(facts)),
        ("Strategies", _strategies(facts)),
        ("Models", _models(facts)),
        ("Machine", _machine(facts)),
        ("Times", iter([to_latex(elsewhere.epoch_note(imported, facts.runs))])),
        ("Network", _network_elsewhere(facts)),
        ("Statistics", _statistics(facts)),
        ("What failed", _left_out(facts)),
    )


def _source(imported: Imported) -> Iterator[str]:
    yield to_latex(elsewhere.source_note(imported))
    yield to_latex(elsewhere.planning_note(imported))
    if citation := imported.description.stated.citation:
        yield Note("citation", f"The source asks to cite: {to_latex(end_sentence(citation))}")
    yield from map(to_latex, elsewhere.accepted_notes(imported))


def _cells_elsewhere(facts: Facts) -> Iterator[str]:
    runs = facts.runs
    cells, replicates = runs["cell"].nunique(), runs.groupby("cell").size()
    smallest, largest = int(replicates.min()), int(replicates.max())
    per_cell = (
        number_of(largest, "run") if smallest == largest else f"{smallest} to {number_of(largest, 'run')}"
    )
    scope = f" of the factors in {see('tab', 'factors')}" if varying(runs) else ""
    yield Note(
        "cells-elsewhere",
        f"The source has {number_of(cells, 'cell')}{scope}, each with {per_cell}, "
        f"{number_of(len(runs), 'run')} in all.",
        cells=cells,
        replicates=sorted(set(replicates)),
        runs=len(runs),
    )
    yield _constants_note(runs)


def _frameworks_elsewhere(facts: Facts) -> Iterator[str]:
    names = framework_order(facts.runs)
    verb = "The framework is" if len(names) == 1 else "The source compares"
    yield Note("frameworks", f"{verb} {to_latex(join_words(names))}.", frameworks=names)


def _network_elsewhere(facts: Facts) -> Iterator[str]:
    if facts.network is None or facts.network.empty:
        return
    yield to_latex(fit.circumstances(facts.network))
    yield to_latex(fit.link_rates_text(facts.network))


def threats(facts: Facts) -> str:
    """Return what limits the study's conclusions, as far as its records show it."""
    return items(threat_notes(facts))


def reproducibility(facts: Facts) -> str:
    """Return how to reproduce the study and this paper."""
    name, site = facts.study.name, facts.site.name if facts.site else "SITE"
    if facts.study.imported:
        folder = command(str(facts.study.imported.folder))
        if facts.study.imported.campaigns:
            folders = [command(str(path)) for path in facts.study.imported.campaigns.values()]
            return (
                f"Ringside, a Snakemake{cite('koster2012')} workflow, put together the tables of runs in "
                f"{join_words(folders)}. {command(f'./ringside paper {name}')} makes figures, tables and "
                "this paper from them.\n"
            )
        return (
            "The measurements were made elsewhere, and were analysed by Ringside, a "
            f"Snakemake{cite('koster2012')} workflow. The folder {folder} has them as tables, with the "
            "SHA-256 of the files from which they were imported. "
            f"{command(f'./ringside paper {name}')} makes figures, tables and this paper from them.\n"
        )
    parts = [
        f"The study was planned, run and analysed by Ringside, a Snakemake{cite('koster2012')} workflow. "
        f"Its study file, {command(f'config/studies/{name}.yaml')}, and the site's, "
        f"{command(f'config/sites/{site}.yaml')}, state every choice. A run has a key, made of its settings "
        "and of digests of its environment, its code and its data. After a change, only the runs that "
        "depend on it are repeated. The keys of all runs are in the records.",
        r"\begin{itemize}",
        rf"\item Measure it again: {command(f'./ringside run {name} --site {site}')}"
        + (
            f" (on a cluster: {command(f'./ringside submit {name} --site {site}')} first)"
            if facts.site and facts.site.launcher == "slurm"
            else ""
        )
        + ".",
        r"\item Make figures, tables and this paper from the records, in a folder with runs.csv, epochs.csv "
        "and, where the collective benchmark was run, network.csv: "
        f"{command(f'./ringside paper {name} --site {site} --records FOLDER')}.",
        r"\end{itemize}",
    ]
    digests = facts.ok["environment_digest"].dropna().nunique()
    if digests:
        parts.append(
            f"{see('tab', 'frameworks')} names the environment of each framework by the first digits of its "
            "digest, which covers its lock, with the hash of every package, and its recipe."
        )
    return "\n".join(parts) + "\n"


def factor_table(facts: Facts) -> str:
    """Return the factors that vary, with their levels; empty if none does."""
    names = varying(facts.runs)
    frame = pd.DataFrame(
        {
            "factor": [title_with_unit(name) for name in names],
            "levels": [
                ", ".join(_level_text(name, level) for level in levels_in_order(facts.runs, name))
                for name in names
            ],
        }
    )
    table = tables.Table(
        "Factors that vary, and their levels", frame, frame, left_aligned=["factor", "levels"]
    )
    return tables.latex(table, "tab:factors", wrap_to_column=True) if names else ""


def constant_table(facts: Facts) -> str:
    """Return all factors that are the same in all cells; empty if every factor varies."""
    levels = _constant_levels(facts.runs)
    frame = pd.DataFrame(
        {
            "factor": [title_with_unit(name) for name in levels],
            "level": [_level_text(name, level) for name, level in levels.items()],
        }
    )
    table = tables.Table("Factors that are the same in all cells", frame, frame, left_aligned=list(frame))
    return tables.latex(table, "tab:constants") if levels else ""


def framework_table(facts: Facts) -> str:
    """Return the frameworks with versions, transport, clock and environment."""
    rows = []
    for name in framework_order(facts.runs):
        framework_runs = facts.ok[facts.ok["framework"] == name]
        description = _find_framework(name)
        rows.append(
            {
                "framework": name,
                "description": description.title if description else tables.DASH,
                "library": _distinct(framework_runs["library_version"]),
                "Python": _distinct(framework_runs["python_version"]),
                "transport": _distinct(framework_runs["transport"]),
                "clock": _distinct(framework_runs["timing_scope"].map(CLOCKS)),
                "environment": _distinct(framework_runs["environment_digest"].str[:DIGEST_DIGITS]),
            }
        )
    frame = pd.DataFrame(rows)
    if facts.study.imported:
        frame = frame.drop(columns="description")
        frame = frame[[name for name in frame if name == "framework" or (frame[name] != tables.DASH).any()]]
        return (
            ""
            if list(frame) == ["framework"]
            else tables.latex(
                tables.Table("Frameworks", frame, frame, left_aligned=list(frame)), "tab:frameworks"
            )
        )
    return tables.latex(
        tables.Table("Frameworks as they were run", frame, frame, left_aligned=list(frame)), "tab:frameworks"
    )


def _distinct(values: pd.Series) -> str:
    """Return all distinct values of a column in words; a dash for none."""
    return "; ".join(sorted(set(values.dropna().astype(str)))) or tables.DASH


def _level_text(name: str, level: Any) -> str:
    return (
        f"{level_text(level)} (the site's)"
        if conditions.SITE_DEFAULTS.get(name) == level
        else level_text(level)
    )


def _find_framework(name: str) -> Framework | None:
    """Return a framework's description; None if this checkout has none."""
    try:
        return load_framework(name)
    except InputError:
        return None


def _design(facts: Facts) -> Iterator[str]:
    study, runs = facts.study, facts.runs
    cells, replicates = runs["cell"].nunique(), runs.groupby("cell").size()
    per_cell = number_of(int(replicates.max()), "replicate") if len(replicates) else "no replicate"
    if len(replicates) and replicates.min() < replicates.max():
        per_cell = f"{replicates.min()} to {per_cell}"
    scope = (
        f"of the factors in {see('tab', 'factors')}"
        if varying(runs)
        else "of one cell, because no factor varies"
    )
    if study.fraction:
        kind = (
            f"a fraction, {to_latex(study.fraction.name())}, of the combinations of two "
            f"levels{cite('jain1991')},"
        )
    elif cells < (combinations := sum(levels["trace"] == UNTRACED for levels in study.combinations())):
        kind = (
            f"a factorial design{cite('jain1991')}, of which {cells} of "
            f"{number_of(combinations, 'combination')} are run,"
        )
    else:
        kind = f"a full factorial design{cite('jain1991')}"
    yield Note(
        "design",
        f"The study is {kind} {scope}: {number_of(cells, 'cell')}, each with {per_cell}, "
        f"{number_of(len(runs), 'run')} in all.",
        cells=cells,
        replicates=sorted(set(replicates)),
        runs=len(runs),
        fraction=study.fraction.name() if study.fraction else None,
    )
    if study.fraction:
        yield Note(
            "aliases", f"Aliases of effects: {to_latex(fraction_line(study.fraction).partition(': ')[2])}."
        )
    yield _constants_note(runs)
    yield to_latex(precision_note(runs, study.replicates))
    later_blocks = " (later blocks those that were not yet precise)" if study.replicates.adaptive else ""
    yield Note(
        "blocks",
        "A replicate is an independent run, in new processes. Replicates form blocks, in a randomized "
        f"complete block design{cite('jain1991')}: a block contains every cell once{later_blocks}, in an "
        f"order drawn from the study's seed ({study.seed}) before the first run. So slow changes of the "
        f"machine add noise to cells, not bias{cite('hoefler2015')}. The runs of a block share the seed of "
        "their weights and of the order of samples (common random numbers).",
        seed=study.seed,
        is_adaptive=study.replicates.adaptive,
    )
    yield _sessions_note(facts)


def _constants_note(runs: pd.DataFrame) -> str:
    """Name the constant factors that matter for a reader; the supplement lists all."""
    levels = _constant_levels(runs)
    defaults = {name: rules.get("default") for name, rules in factor_rules().items()}
    named = {
        name: level
        for name, level in levels.items()
        if name not in NAMED_ELSEWHERE and (name in NAMED_CONSTANTS or level != defaults.get(name))
    }
    if str(levels.get("optimizer")).startswith("adam"):
        named.pop("momentum", None)
    if not named:
        return ""
    text = f"In all cells: {combination_text(named)} (the supplement lists all constant factors)."
    return Note("constants", to_latex(text), levels=named)


def _constant_levels(runs: pd.DataFrame) -> Mapping[str, Any]:
    note = conditions.constants_note(runs)
    levels: Mapping[str, Any] = note.facts["levels"] if isinstance(note, Note) else {}
    return levels


def _sessions_note(facts: Facts) -> str:
    """Return the number and the period of sessions."""
    started = facts.runs["started_at"].dropna()
    if started.empty:
        return ""
    first, last = (
        datetime.fromisoformat(date) for date in (started.min(), facts.runs["ended_at"].dropna().max())
    )
    sessions = facts.runs["session"].dropna().nunique()
    period = (
        f"on {first:%Y-%m-%d}" if first.date() == last.date() else f"from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
    )
    return Note(
        "sessions",
        f"The runs were measured in {number_of(sessions, 'session')} {period} (UTC).",
        sessions=sessions,
        first=first.date(),
        last=last.date(),
    )


def _frameworks(facts: Facts) -> Iterator[str]:
    names = []
    for name in framework_order(facts.runs):
        description = _find_framework(name)
        keys = keys_of(name, *(description.libraries if description else ()))
        names.append(
            f"{to_latex(name)} "
            f"({to_latex(description.title) if description else 'a framework of its own'}{cite(*keys)})"
        )
    is_single = len(names) == 1
    yield Note(
        "frameworks",
        f"{'The framework is' if is_single else 'The study compares'} {join_words(names)}, in the "
        f"versions of {see('tab', 'frameworks')}.",
        frameworks=framework_order(facts.runs),
    )
    if reference := facts.see("settings", before="", after=""):
        differing = names_differing(facts.runs)
        text = f"differ in {number_of(len(differing), 'setting')}" if differing else "are configured alike"
        yield Note(
            "framework-settings",
            f"As their trainers reported at run time, the frameworks {text} ({reference}).",
            settings=differing,
        )
    pairs = facts.runs[facts.runs["baseline"].isin(facts.runs["framework"])][
        ["framework", "baseline"]
    ].drop_duplicates()
    users = {
        baseline: sorted(set(rows["framework"]) - {baseline}) for baseline, rows in pairs.groupby("baseline")
    }
    baseline_texts = [
        f"{to_latex(str(baseline))} for {to_latex(join_words(own))}" for baseline, own in users.items() if own
    ]
    if baseline_texts:
        yield Note(
            "speedup-baselines",
            f"Speed-ups are relative to a single-device baseline: {join_words(baseline_texts)}.",
            frameworks=users,
        )
    installed = sorted(set(facts.ok.loc[facts.ok["deployment"] == "installed", "framework"]))
    if facts.site and set(facts.runs["framework"]) - set(installed):
        kind = "images" if facts.site.deployment == "apptainer" else "virtual environments"
        yield Note(
            "locked-software",
            f"Software is installed in {kind}, from locks that list every package with its hash.",
            deployment=facts.site.deployment,
        )
    if installed:
        modules = sorted({name for users in facts.ok["modules"].dropna() for name in users.split("; ")})
        loaded = f" (environment modules: {to_latex(join_words(modules))})" if modules else ""
        yield Note(
            "site-software",
            f"The software of {to_latex(join_words(installed))} is the site's own{loaded}; the records "
            "list its packages.",
            frameworks=installed,
            modules=modules,
        )


def _strategies(facts: Facts) -> Iterator[str]:
    """Yield what the ranks of each strategy partition; nothing for data parallelism alone."""
    yield from _layer_strategies(facts)
    levels = facts.runs[["parallelism", "ranks"]].drop_duplicates().itertuples(index=False, name=None)
    meshes = {level: mesh_of(level, int(ranks)) for level, ranks in levels if divides_more(level, int(ranks))}
    if not meshes:
        return
    axes = {axis for mesh in meshes.values() for axis in mesh.axes}
    yield Note(
        "meshes",
        "Besides data parallelism, in which every rank has the whole model and its own samples, training is "
        f"partitioned by {to_latex(join_words(meshes))}. A name lists the axes of a device mesh with their "
        "sizes, from the outermost axis to that of neighbouring ranks; an axis without a size takes the "
        "remaining ranks.",
        strategies=list(meshes),
    )
    yield from (
        Note("axis", AXIS_DESCRIPTIONS[axis], axis=axis) for axis in AXIS_DESCRIPTIONS if axis in axes
    )

    def runs_along(axis: str) -> pd.DataFrame:
        levels = [level for level, mesh in meshes.items() if axis in mesh.axes]
        return facts.runs[facts.runs["parallelism"].isin(levels)]

    shardings = set(runs_along("tensor")["tensor_sharding"])
    yield from (
        Note("tensor-sharding", text, level=level)
        for level, text in TENSOR_SHARDINGS.items()
        if level in shardings
    )
    if "pipeline" in axes:
        pipeline_runs = runs_along("pipeline")
        schedules = [name for name in SCHEDULES if name in set(pipeline_runs["schedule"])]
        counts = sorted(set(pipeline_runs["microbatches"].astype(int)))
        yield Note(
            "microbatches",
            f"A batch has {join_words(map(str, counts))} microbatches, scheduled by "
            f"{join_words(SCHEDULES[name] for name in schedules)}.",
            microbatches=counts,
            schedules=schedules,
        )
    if not facts.study.imported:
        yield Note(
            "same-weights",
            "All strategies start with the same weights and reach those of one rank that has the whole "
            "batch, except where dropout or batch normalization see other samples together.",
        )


def _layer_strategies(facts: Facts) -> Iterator[str]:
    """Yield how frameworks with strategies per layer partition the layers; nothing without one."""
    strategy_runs = facts.runs[facts.runs["framework"].map(has_strategies).astype(bool)]
    kinds = {kind_of(level)[0] for level in strategy_runs["parallelism"]}
    if not kinds:
        return
    frameworks = join_words(sorted(set(strategy_runs["framework"])))
    yield Note(
        "layers-divided",
        f"With {to_latex(frameworks)} each layer is partitioned separately{cite('jia2019')}: its output is "
        "split along samples, along height, width or positions, and along channels, units or heads, and "
        "each part is assigned to a rank.",
        frameworks=sorted(set(strategy_runs["framework"])),
    )
    yield from (
        Note("layer-strategy", LAYER_STRATEGIES[kind], kind=kind)
        for kind in LAYER_STRATEGIES
        if kind in kinds
    )


def _models(facts: Facts) -> Iterator[str]:
    """Yield a sentence on each model, with its trained parameters if they are known."""
    pairs = list(facts.runs[["model", "dataset"]].drop_duplicates().itertuples(index=False, name=None))
    for name in dict.fromkeys(model for model, _ in pairs):
        sizes = {
            size: dataset
            for model, dataset in pairs
            if model == name and (size := _parameters(name, dataset)) is not None
        }
        description = models().get(name)
        source = f", {to_latex(description.source)}" if description and description.source else ""
        explanation = f" ({to_latex(description.title)}{source})" if description else ""
        counts = [
            f"{count:,}" + (f" with {to_latex(dataset)}" if len(sizes) > 1 else "")
            for count, dataset in sizes.items()
        ]
        if (
            not counts
            and (stated := facts.runs.loc[facts.runs["model"] == name, "parameters"].dropna()).any()
        ):
            counts = [f"{count:,.0f}" for count in sorted(set(stated))]
        yield Note(
            "model",
            f"The model {to_latex(name)}{explanation}"
            + (f" has {join_words(counts)} trained parameters." if counts else " is trained."),
            model=name,
            parameters=sorted(sizes),
        )
        if description and description.is_masked:
            yield Note(
                "masked-tokens",
                rf"It masks {100 * MASKED_SHARE:.0f}~\% of the tokens of each sequence, drawn anew in every "
                "epoch, and predicts those in place of the next ones; loss and accuracy are means over them.",
                model=name,
            )


def _workload(facts: Facts) -> Iterator[str]:
    yield from _models(facts)
    are_own = [is_own_model(name) for name in set(facts.runs["model"])]
    if not all(are_own):
        yield Note(
            "one-graph",
            "A model is described once, as a graph of operators. Every framework's model is built from this "
            "graph, and all start with the same weights, drawn once for each seed.",
        )
    if any(are_own):
        yield Note(
            "one-module",
            "Every rank builds a PyTorch module of the user's own by the same Python code, which draws the "
            "same weights in every framework, once for each seed.",
        )
    for name in dict.fromkeys(facts.runs["dataset"]):
        yield _dataset(name)
    yield Note(
        "same-samples",
        "Every framework reads the same samples in the same order. Every replica reads an equal share of "
        f"each epoch and makes the same number of steps. {_dropped_samples_sentence(facts.ok)}",
    )


def _dropped_samples_sentence(ok: pd.DataFrame) -> str:
    """Return how many samples of an epoch were left out because they do not fill a step."""
    dropped_share = float(
        (1 - ok["samples_trained"].astype(float) / ok["samples_per_epoch"].astype(float)).max()
    )
    if dropped_share == 0:
        return "No sample is left out of an epoch."
    extent = "" if math.isnan(dropped_share) else f" (at most {100 * dropped_share:.2g}~\\% of all)"
    return (
        f"Samples that do not fill a step{extent} are left out of an epoch, and the epoch time is scaled to "
        "all samples."
    )


def _parameters(model: str, dataset: str) -> int | None:
    """Return the trained parameters of a model for a data set's samples.

    None if one of them is unknown here.
    """
    graph = find_graph(model, dataset)
    return graph.parameters if graph else None


def _dataset(name: str) -> str:
    try:
        entry = load_dataset(name)
    except InputError:
        return Note("unknown-dataset", f"The data set {to_latex(name)} is not described here.", dataset=name)
    citation = cite(dataset_key(name)) if published(entry) else ""
    origin = "" if citation else ", generated for measurements,"
    if kind(entry) == TOKENS:
        targets_text = (
            "labels are the next tokens, loss and accuracy are means over positions"
            if targets(entry) == NEXT
            else f"each is of one of {class_count(entry)} classes"
        )
        shape = (
            f"sequences of {entry['shape'][0]:,} tokens from a vocabulary of {entry['vocabulary']:,}; "
            f"{targets_text}"
        )
    elif kind(entry) == ROWS:
        shape = (
            f"rows of {N_COUNTS} counts and {N_CATEGORIES} categories, which have "
            f"{entry['vocabulary']:,} values together; labels are clicks"
        )
    else:
        height, width, channels = entry["shape"]
        place = ", one for each pixel" * (targets(entry) == PIXEL)
        shape = (
            rf"images of ${height} \times {width} \times {channels}$ in {class_count(entry)} classes{place}"
        )
    return Note(
        "dataset",
        f"The data set {to_latex(name)} ({to_latex(entry['title'])}{citation}){origin} has "
        f"{entry['train_samples']:,} training and {entry['validation_samples']:,} validation {shape}; its "
        f"licence: {to_latex(entry['licence'])}.",
        dataset=name,
        train_samples=entry["train_samples"],
        validation_samples=entry["validation_samples"],
        shape=entry["shape"],
    )


def _machine(facts: Facts) -> Iterator[str]:
    ok = facts.ok
    if facts.site:
        description = load_yaml(facts.site.file)["description"]
        yield Note(
            "site",
            f"The runs were measured at the site {to_latex(facts.site.name)}: "
            f"{to_latex(end_sentence(description))}",
            site=facts.site.name,
        )
    hosts = [] if facts.anonymous else distinct_names(ok, "hosts")
    if hosts:
        yield Note(
            "hosts", f"Host names of the nodes: {to_latex(conditions.join_names(hosts))}.", hosts=hosts
        )
    if memory := node_memory(ok):
        least_bytes, most_bytes = ok["node_memory_bytes"].min(), ok["node_memory_bytes"].max()
        yield Note(
            "node-memory", f"A node has {memory} of memory.", least_bytes=least_bytes, most_bytes=most_bytes
        )
    if below := distinct_names(ok, "systems") + distinct_names(ok, "drivers"):
        yield Note("systems", f"Nodes run {to_latex('; '.join(below))}.", systems=below)
    devices = distinct_names(ok, "devices")
    cores = sorted(set(ok["cores_per_rank"].dropna()))
    if devices and cores:
        unnamed = " (the records do not name its model)" if devices == ["cpu"] else ""
        threads = "thread" if cores == [1] else "threads"
        yield Note(
            "devices",
            f"Ranks train on {to_latex(join_words(devices))}{unnamed}, each with "
            f"{' or '.join(f'{count:.0f}' for count in cores)} {threads} for "
            f"computation.{_cores_sentence(facts)}",
            devices=devices,
            threads=cores,
            node_cores=_recorded_cores(ok),
        )
    if devices and facts.study.imported:
        yield Note("devices", f"Devices: {to_latex(join_words(devices))}.", devices=devices)
    yield to_latex(conditions.circumstances_note(facts.runs))


def _recorded_cores(ok: pd.DataFrame) -> list[int]:
    """Return the distinct numbers of cores of the runs' nodes; empty if not recorded."""
    return sorted({int(count) for count in ok["node_cores"].dropna()})


def _cores_sentence(facts: Facts) -> str:
    """Return whose cores the ranks use, and how many by the records, else by the site's file.

    Empty if nodes were not alike.
    """
    placements = set(facts.ok["placement"].dropna())
    if len(placements) != 1:
        return ""
    counts = _recorded_cores(facts.ok)
    if not counts and facts.site:
        # Site.cores resolves auto on the machine that writes the paper.
        declared = load_yaml(facts.site.file)["cores"]
        counts = [] if declared == "auto" else [declared]
    number = f"{' or '.join(map(str, counts))} {'core' if counts == [1] else 'cores'}"
    count = number if counts else "the cores"
    by_placement = {
        "emulated": f"All ranks of a run share {count} of one machine.",
        "virtual": "All nodes share the cores of one machine.",
        "distinct-nodes": f"The ranks of a node share {count} of it.",
    }
    return f" {by_placement[placements.pop()]}"


def _measurement(facts: Facts) -> Iterator[str]:
    runs = facts.runs
    counts = {name: sorted(runs[name].unique()) for name in ("epochs", "warmup_epochs")}
    epochs, warm_up = (join_words(map(level_text, levels)) for levels in counts.values())
    yield Note(
        "epoch-timing",
        "A run starts new processes. All ranks meet at a barrier before and after each epoch; the barrier "
        "uses TCP and is the same for all frameworks. Each rank reads its own monotonic clock at the "
        "release of the first barrier and at the end of its own epoch, when its device is synchronized. The "
        "epoch time is that of the slowest rank, always for the same number of samples. Start-up, imports, "
        "the first step and validation are timed separately.",
    )
    master_timed = sorted(set(facts.ok.loc[facts.ok["timing_scope"] == "master", "framework"]))
    if master_timed:
        yield Note(
            "master-clock",
            f"For {to_latex(join_words(master_timed))}, only the master's clock is known.",
            frameworks=master_timed,
        )
    warm_up_text = {
        "0": "none of them warm-up",
        "1": "of which the first is warm-up, which does not count",
    }.get(warm_up, f"of which the first {warm_up} are warm-up, which does not count")
    yield Note(
        "epochs",
        f"A run has {epochs} epochs, {warm_up_text}; its epoch time is the arithmetic mean of the others. "
        "Runs of the study do not overlap. CPU time of other processes is measured. A run is invalid if "
        f"{_load_condition(facts.ok)}its gradients did not use the site's network, if its ranks were not "
        "placed as planned, or if its loss is not finite.",
        **counts,
    )


def _load_condition(ok: pd.DataFrame) -> str:
    """Return the limit of background load as a condition; empty where no load makes a run invalid."""
    return "" if (ok["max_other_cpu_share"] >= 1).all() else "it exceeds the site's limit, if "


def _network(facts: Facts) -> Iterator[str]:
    if facts.network is None or facts.network.empty:
        yield Note(
            "network-not-measured",
            "The network was not measured separately: the study has no gradient all-reduce between "
            "nodes, or no collective benchmark was run.",
        )
        return
    benchmarks = fit.measured(facts.network)
    if len(benchmarks):
        sizes = sorted(set(benchmarks["bytes"]))
        span = (
            fit.bytes_text(sizes[0])
            if len(sizes) == 1
            else f"{fit.bytes_text(sizes[0])} to {fit.bytes_text(sizes[-1])}"
        )
        nodes = join_words([str(count) for count in sorted(set(benchmarks["nodes"]))])
        collectives = [
            name for name in COLLECTIVES if name != ALL_REDUCE and name in set(benchmarks["collective"])
        ]
        yield Note(
            "collectives-benchmarked",
            f"In the same campaign, {titles([ALL_REDUCE, *collectives])} {'were' if collectives else 'was'} "
            "timed through the library of each "
            f"distributed framework{' that has them' if collectives else ''}, on {nodes} nodes, "
            f"over {number_of(len(sizes), 'message size')} from {span}. Bandwidths are bus bandwidths, "
            "$2 (n-1)/n$ times bytes over seconds with $n$ ranks"
            f"{cite('patarasuk2009')}{facts.see_here('network')}.",
            collectives=[ALL_REDUCE, *collectives],
            nodes=sorted(set(benchmarks["nodes"])),
            sizes_bytes=sizes,
        )
        for factor in dict.fromkeys(COLLECTIVES[name].factor for name in collectives):
            names = [name for name in collectives if COLLECTIVES[name].factor == factor]
            yield Note(
                "bytes-counted",
                f"In {titles(names)}, bytes count ${factor.replace('−', '-')}$ times.",
                collectives=names,
                factor=factor,
            )
        yield to_latex(fit.circumstances(facts.network))
        yield to_latex(fit.link_rates_text(facts.network))
    yield to_latex(fit.shortfall(facts.network))


def _statistics(facts: Facts) -> Iterator[str]:
    yield cited(to_latex(conditions.replicates_note(facts.runs)))
    if len(facts.ok):
        yield cited(to_latex(conditions.contrasts_note(facts.runs, build_rows(facts.runs)["within_blocks"])))
    yield Note(
        "summaries",
        "Times are summarized by arithmetic means, rates by harmonic means, and a speed-up is reported with "
        f"its baseline in seconds{cite('hoefler2015')}{facts.see_here('speedup')}.",
    )
    compared = measured_response(facts.runs, RESPONSES[facts.study.response])
    by_table = {
        "effects": (
            f"Comparisons of cells are corrected for their number within each factor{cite('holm1979')}"
        ),
        "anova": (
            "Shares of variation are type-II sums of squares of the logarithm of "
            f"{compared.title}{cite('jain1991')}, which need not add up to 100~\\%"
        ),
        "checks": (
            f"Normality, equal spread{'' if facts.study.imported else ', drift'} and outliers are checked on "
            "residuals within cells"
        ),
        "regression": (
            f"Regressions have standard errors that allow for unequal spread{cite('mackinnon1985')}"
        ),
        "adjusted": (
            "Means adjusted for machine speed, by the reference benchmark around each run or by CPU time of "
            "others, are an analysis of covariance; they complement plain means"
        ),
        "scaling": (
            f"Serial fractions are those of Amdahl's law{cite('amdahl1967')} and of Karp and "
            f"Flatt{cite('karp1990')}"
        ),
        "prediction": "Predictions are compared with cells that were left out of the fit",
    }
    for name, sentence in by_table.items():
        if name in (*facts.paper_tables, *facts.supplement_tables):
            yield Note("table-method", f"{sentence}{facts.see_here(name)}.", table=name)
    elsewhere = (
        "; tables that the text does not name are in the supplement" if facts.supplement_tables else ""
    )
    yield Note("table-notes", f"The notes of each table say how its numbers are computed{elsewhere}.")


def _left_out(facts: Facts) -> Iterator[str]:
    trained = _trained_cells(facts)
    for entry in facts.study.exclude:
        names = combination_text(
            {name: " or ".join(map(level_text, levels)) for name, levels in entry.items()}
        )
        reason = _exclusion_reason(facts, entry, trained)
        yield Note(
            "excluded",
            f"Not part of the design: {to_latex(names)}, "
            f"{f'because {to_latex(reason)}' if reason else 'by choice'}.",
            levels=entry,
            reason=reason,
        )
    failed, origin = unsuccessful(facts.runs), "source" if facts.study.imported else "design"
    if failed.empty:
        yield Note(
            "all-succeeded",
            f"All {number_of(len(facts.runs), 'run')} of the {origin} succeeded.",
            runs=len(facts.runs),
        )
    else:
        counts = _reasons(failed)
        yield Note(
            "unsuccessful-runs",
            f"Of the {number_of(len(facts.runs), 'run')} of the {origin}, {len(failed):,} did not succeed"
            f"{facts.see('missing')} and are in no mean: {to_latex(_reasons_text(counts))}.",
            runs=len(facts.runs),
            unsuccessful=len(failed),
            reasons=counts,
        )
        yield to_latex(_missing_cells_note(facts.runs))
    yield _repeats_note(facts.runs)
    yield Note(
        "no-value-left-out",
        "No successful run was left out because of its "
        f"value{facts.see('checks', ': outliers are listed in ', '')}.",
    )


def _missing_cells_note(runs: pd.DataFrame) -> Note:
    """Name the cells without a successful run, apart from those whose memory ran out."""
    missing, ran_out = missing_cells(runs), out_of_memory_cells(runs)
    shortage = (
        "Memory ran out in every run of the following cells, which tables and figures mark as "
        f"{OUT_OF_MEMORY_MARK}: {conditions.join_names(ran_out)}."
        if ran_out
        else ""
    )
    if not missing:
        every = "Every other cell has" if ran_out else "Every cell has"
        text = f"{shortage} {every} a successful run.".strip()
        return Note("no-cell-missing", text, out_of_memory=ran_out)
    text = f"{shortage} Without a successful run: {conditions.join_names(missing)}.".strip()
    return Note("missing-cells", text, cells=missing, out_of_memory=ran_out)


def _repeats_note(runs: pd.DataFrame) -> str:
    """Say how many runs were repeated, and by how much the limit of other CPU time changed meanwhile."""
    is_repeated = runs["attempt"].fillna(1) > 1
    limits = [
        sorted(set(part["max_other_cpu_share"].dropna())) for part in (runs[~is_repeated], runs[is_repeated])
    ]
    facts: dict[str, Any] = {"runs": int(is_repeated.sum())}
    if not facts["runs"]:
        return _limits_note(runs)
    n_without_record = int(runs.loc[is_repeated, "unfinished_attempts"].notna().sum())
    changed, limits_note = "", ""
    if [len(part) for part in limits] == [1, 1] and limits[0] != limits[1]:
        facts["limits"] = old, new = limits[0][0], limits[1][0]
        changed = (
            " after the site's limit of other processes' CPU time was "
            f"{'raised' if new > old else 'lowered'} "
            f"from {100 * old:.3g} to {100 * new:.3g}~\\%"
        )
    else:
        limits_note = _limits_note(runs)
    unrecorded = f" ({n_without_record} after an attempt that left no record)" if n_without_record else ""
    verb = "was" if facts["runs"] == 1 else "were"
    text = f"{number_of(facts['runs'], 'run')} {verb} repeated{changed}{unrecorded}; the last attempt counts."
    note = Note("repeated-runs", text, without_record=n_without_record, **facts)
    return Note(note.code, f"{note} {limits_note}", **note.facts) if limits_note else note


def _limits_note(runs: pd.DataFrame) -> str:
    """Say for how many runs each limit of other CPU time held; empty if it was the same for all."""
    counts = runs["max_other_cpu_share"].value_counts().sort_index()
    if len(counts) < 2:
        return ""
    parts = [f"{100 * limit:.3g}~\\% for {number_of(int(n), 'run')}" for limit, n in counts.items()]
    return Note(
        "changed-limit",
        f"The site's limit of other processes' CPU time changed during the campaign: {join_words(parts)}.",
        limits=[float(limit) for limit in counts.index],
    )


def _trained_cells(facts: Facts) -> dict[tuple[object, ...], Levels]:
    """Return the cells of the design by their effective levels."""
    trained: dict[tuple[object, ...], Levels] = {}
    if facts.site is None:
        return trained
    for levels in facts.study.cells():
        with contextlib.suppress(InfeasibleCell):  # which an earlier version may have trained
            distinct_geometry(facts.study.name, levels, facts.site, trained)
    return trained


def _exclusion_reason(
    facts: Facts, entry: Mapping[str, list[Any]], trained: Mapping[tuple[object, ...], Levels]
) -> str:
    """Return why no cell of an excluded entry could be in the design as well; empty if one could be.

    Args:
        facts: What the paper is based on.
        entry: The excluded levels by factor.
        trained: The cells of the design, as of `_trained_cells`.
    """
    if facts.site is None:
        return ""
    frameworks: dict[str, list[str]] = {}  # by what is wrong with them; "" for reasons that name none
    for levels in facts.study.combinations():
        if matches(levels, entry):
            framework = levels["framework"]
            try:
                distinct_geometry(facts.study.name, levels, facts.site, dict(trained))
                return ""
            except DuplicateCell as duplicate:
                explanation = _name_levels(duplicate.explanation)
                frameworks.setdefault(f"its cells train the same as others: {explanation}", [])
            except InfeasibleCell as infeasible:
                begins = infeasible.reason.startswith(f"{framework} ")
                reason = _name_levels(infeasible.reason.removeprefix(framework if begins else ""))
                frameworks.setdefault(reason, []).extend([framework] if begins else [])
    reasons = [f"{join_words(dict.fromkeys(names))}{reason}" for reason, names in frameworks.items()]
    return conditions.join_names(reasons, "; ")


def _name_levels(reason: str) -> str:
    """Replace levels such as `nodes=2` by words."""

    def words(level: re.Match[str]) -> str:
        if level["factor"] not in factor_rules():
            return level[0]
        value = level["level"]
        return combination_text({level["factor"]: int(value) if value.isdecimal() else value})

    return _LEVEL.sub(words, reason)


def _reasons(bad: pd.DataFrame) -> dict[tuple[str, str], int]:
    """Return how many runs have each status and reason, the most frequent first."""
    counts = (
        bad.assign(reason=bad["reason"].map(one_line))
        .groupby(["status", "reason"])
        .size()
        .sort_values(ascending=False)
    )
    return {(str(status), str(reason)): int(count) for (status, reason), count in counts.items()}


def _reasons_text(counts: Mapping[tuple[str, str], int]) -> str:
    """Render what `_reasons` returns; reasons that differ only in numbers become one with their ranges."""
    reasons_by_pattern: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for (status, reason), count in counts.items():
        reasons_by_pattern.setdefault((status, _NUMBER.sub("#", reason)), []).append((reason, count))
    merged = {
        (status, _merge_numbers([reason for reason, _ in group])): sum(count for _, count in group)
        for (status, _), group in reasons_by_pattern.items()
    }
    ordered = sorted(merged.items(), key=lambda entry: -entry[1])
    parts = [f"{count} {status} ({reason})" for (status, reason), count in ordered]
    n_left_out = sum(count for _, count in ordered[MAX_REASONS:])
    return "; ".join([*parts[:MAX_REASONS], *([f"{n_left_out} for other reasons"] if n_left_out else [])])


def _merge_numbers(texts: Sequence[str]) -> str:
    """Return texts that differ only in their numbers as one, with the range of each number."""
    columns = iter(list(zip(*map(_NUMBER.findall, texts), strict=True)))

    def span(_: re.Match[str]) -> str:
        numbers = sorted(set(next(columns)), key=float)
        return numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"

    return _NUMBER.sub(span, texts[0])


def _disturbances(ok: pd.DataFrame) -> Iterator[str]:
    """Yield how much CPU time successful runs lost to others."""
    if (largest := ok["other_cpu_share"].max()) > conditions.NOTABLE_OTHER_SHARE:
        yield Note(
            "other-programs",
            f"Other processes used up to {100 * largest:.2g}~\\% of the CPU time during runs that count, "
            "which may explain differences between cells.",
            share=largest,
        )
    affected = ok["steal_share"] > conditions.NOTABLE_STEAL_SHARE
    if affected.any():
        yield Note(
            "cpu-steal",
            f"CPU steal was more than {100 * conditions.NOTABLE_STEAL_SHARE:.0f}~\\% in "
            f"{affected.sum():,} of {len(ok):,} runs; none was left out for this reason.",
            share=conditions.NOTABLE_STEAL_SHARE,
            runs=int(affected.sum()),
            successful=len(ok),
        )


def _warning_notes(ok: pd.DataFrame) -> Iterator[str]:
    """Yield what libraries warned of in successful runs, the most frequent warning first."""
    warnings = ok[["framework", "warnings"]].dropna()
    warnings = warnings.assign(warnings=warnings["warnings"].str.split(WARNING_SEPARATOR, regex=False))
    by_text = warnings.explode("warnings").groupby("warnings")["framework"]
    counts = by_text.size().sort_values(ascending=False, kind="stable")
    for text, count in counts.head(MAX_WARNINGS).items():
        frameworks = sorted(by_text.get_group(text).unique())
        yield Note(
            "library-warning",
            f"A library warned in {number_of(count, 'run')} of {join_words(map(to_latex, frameworks))}: "
            f"``{to_latex(str(text))}''.",
            warning=text,
            runs=count,
            frameworks=frameworks,
        )
    if (n_more := len(counts) - MAX_WARNINGS) > 0:
        yield Note(
            "more-library-warnings",
            f"Libraries gave {number_of(n_more, 'further warning')}, which are in the records.",
            warnings=n_more,
        )


def _origin_threats(facts: Facts) -> Iterator[str]:
    """Yield what follows from where the runs were measured."""
    if facts.study.imported and facts.study.imported.campaigns:
        yield elsewhere.COMBINED
        return
    if facts.study.imported:
        yield Note(
            "measured-elsewhere",
            "All runs were measured elsewhere: their order, what else used the machines, code and "
            "environment are not known, and runs of a cell may share an allocation, so that intervals may "
            "be too narrow.",
        )
        yield from map(to_latex, elsewhere.accepted_notes(facts.study.imported))
        return
    has_frameworks, has_treatments = facts.runs["framework"].nunique() > 1, bool(treatments(facts.runs))
    compared = "frameworks" if has_frameworks else "treatments" if has_treatments else ""
    site_text = f" ({to_latex(facts.site.name)})" if facts.site else ""
    outcome = f"rank {compared} differently" if compared else "give other times"
    yield Note(
        "one-site",
        f"All runs were measured at one site{site_text} and one version of each library: other machines, "
        f"versions and settings may {outcome}.",
        compared=compared,
    )


def _failed_checks(facts: Facts) -> Iterator[str]:
    """Yield the assumptions that are in doubt, with what this means for the study's conclusions."""
    if facts.checks is None or not {"assumption", "verdict", "p", "run_id"} <= set(facts.checks):
        return
    failed = facts.checks[(facts.checks["p"] < SIGNIFICANCE_LEVEL) & facts.checks["run_id"].isna()]
    for row in failed.itertuples():
        consequence = CONSEQUENCES.get(str(row.assumption), "")
        if row.assumption == checks.NORMAL and checks.lattice_note(checks.residuals(facts.runs)):
            consequence = LATTICE_CONSEQUENCE
        yield Note(
            "failed-check",
            f"The assumption ``{to_latex(str(row.assumption))}'' is in doubt: "
            f"{to_latex(str(row.verdict))}{facts.see('checks')}.{consequence}",
            assumption=row.assumption,
            p=row.p,
        )


def threat_notes(facts: Facts) -> Iterator[str]:
    """Yield what limits the study's conclusions, as far as its records show it."""
    ok = facts.ok
    if ok.empty:
        yield Note("no-success", "No run succeeded: nothing can be concluded.")
        return
    placements = set(ok["placement"].dropna())
    if "emulated" in placements:
        yield Note(
            "emulated-nodes",
            "Nodes are groups of processes on one machine that communicate through its memory: the results "
            "do not show how a real network would perform, and ranks compete for caches and memory "
            "bandwidth.",
        )
    if "virtual" in placements:
        yield Note(
            "virtual-nodes",
            "Nodes are those of a virtual cluster: they share one machine's memory and caches, their "
            "processors are parts of its cores, and their links are shaped by its kernel. With faster "
            "processors, the same network would matter more.",
        )
    yield from _origin_threats(facts)
    for note in (conditions.one_allocation_note(facts.runs), conditions.single_run_steps_note(facts.runs)):
        if note:
            yield Note(note.code, to_latex(note), **note.facts)
    counts = ok.groupby("cell").size()
    if counts.min() < MIN_REPLICATES:
        n_runs = number_of(int(counts.min()), "successful run")
        subject = "Each cell has" if counts.nunique() == 1 else "Some cells have"
        yield Note(
            "few-replicates",
            f"{subject} only {n_runs}: small differences "
            f"cannot be detected{facts.see('checks', ' (', ' says how small)')}.",
            least=int(counts.min()),
        )
    yield from _failed_checks(facts)
    if work := conditions.work_note(facts.runs) if "nodes" in varying(facts.runs) else "":
        yield to_latex(work)
    oversubscribed = ok["oversubscribed"].fillna(False).astype(bool)
    if oversubscribed.any():
        yield Note(
            "oversubscribed",
            f"{number_of(int(oversubscribed.sum()), 'run')} had more threads than cores, so ranks "
            "competed for cores.",
            runs=int(oversubscribed.sum()),
        )
    yield from _disturbances(ok)
    yield from _warning_notes(ok)
    if facts.network is not None and len(fit.measured(facts.network)):
        yield Note(
            "network-benchmarked-once",
            "Each collective benchmark was run once, in one set of processes: its intervals do not cover "
            "changes from day to day.",
        )
    if (unsuccessful(facts.runs)["status"] != OUT_OF_MEMORY).any():
        yield Note(
            "failed-runs",
            f"Failed runs are in no mean{facts.see('missing')}: if mostly slow runs failed, means are "
            "too optimistic.",
        )
    if ok["epochs"].max() < MIN_EPOCHS and not facts.study.imported:
        yield Note(
            "short-training",
            "Training runs are short: accuracies are those after a few epochs, not those at convergence.",
        )
