"""What a paper says of how a study was made: text from its study, its site and its records, so that it says what was done.

Every sentence is LaTeX. What captions and the notes of tables say, too, is taken from where they take it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from analysis import conditions, tables
from analysis.effects import compare
from analysis.measured import (
    combination_text,
    distinct_names,
    framework_order,
    level_text,
    levels_in_order,
    one_line,
    successful,
    title_with_unit,
    treatments,
    unsuccessful,
    varying,
)
from common.errors import InputError
from common.files import load_yaml
from common.notes import Note
from common.text import number_of
from declared.datasets import NEXT, TOKENS, class_count, kind, load_dataset, targets
from declared.frameworks import Framework, has_strategies, load_framework
from declared.mesh import EXPERT, FOUND, PLAIN, RANDOM, divides_more, kind_of, mesh_of
from declared.models import model_graph
from declared.site import Site
from declared.study import Study
from models.collectives import ALL_REDUCE, COLLECTIVES, titles
from models.named import models
from network import fit
from plan.cost import fraction_line
from plan.design import InfeasibleCell, geometry
from precision.reached import precision_note
from report.latex import cite, cited, command, dataset_key, items, keys_of, listed, paragraph, published, see, text
from report.setting import node_memory

FEW_REPLICATES = 5
FEW_EPOCHS = 50
DIGEST = 12  # hex digits that name an environment
MOST_REASONS = 10
CONSEQUENCES = {  # of a check that fails, for what is said of the study
    "normal residuals": " Intervals and tests are approximate for cells with few runs.",
    "equal spread in all cells": " So the intervals of cells with few runs are approximate, although their variances are moderated.",
    "no drift over run order": " Drift within a block adds to the spread of the cells.",
    "blocks alike": " Comparisons within blocks remove this difference; intervals of means do not.",
    "sessions alike": " Comparisons within blocks of one session remove this difference; intervals of means do not.",
    "no run depends on the one before it": " Intervals assume that runs are independent.",
}
AXES_DO = {  # what its ranks do
    "sharded": f"Along the axis sharded, ranks have samples of their own, and each keeps a share of the training's state (ZeRO{cite('rajbhandari2020')}).",
    "tensor": (
        "Along the axis tensor, ranks see the same samples; each computes some heads of an attention, and of two dense layers in a row some columns of the first and "
        f"rows of the second{cite('shoeybi2019')}."
    ),
    "pipeline": f"Along the axis pipeline, each rank has a stage of the model, and microbatches pass through the stages{cite('huang2019')}.",
}
OF_LAYERS = {  # what a level says where each layer is divided by itself
    PLAIN: "With data, the samples of every layer are divided.",
    EXPERT: (
        f"With expert, convolutions are divided by samples and dense layers by units{cite('krizhevsky2014')}, and recurrent layers each have a rank of their "
        f"own{cite('wu2016')}."
    ),
    FOUND: f"With found, a search by simulation has chosen, from measured costs of parts and the swept links{cite('jia2019')}.",
    RANDOM: "With random and a number, parts and their ranks are drawn.",
}
SCHEDULES = {
    "gpipe": f"GPipe{cite('huang2019')} (all forward passes, then all backward passes)",
    "1f1b": f"1F1B{cite('narayanan2019')} (backward passes as early as possible)",
}
CLOCKS = {"ranks": "all ranks", "master": "master"}


@dataclass(frozen=True)
class Facts:
    """What a paper is made from. `site` is None where its file is not at hand; `shown` names the paper's tables, `beside` those of
    its supplement.

    `checks` is the table of checks (analysis/checks.py), None where there is none.
    """

    study: Study
    site: Site | None
    runs: pd.DataFrame
    network: pd.DataFrame | None
    checks: pd.DataFrame | None
    shown: Sequence[str]
    beside: Sequence[str] = ()

    @property
    def ok(self) -> pd.DataFrame:
        """The runs that numbers are made of."""
        return successful(self.runs)

    def see(self, name: str, before: str = " (", after: str = ")") -> str:
        """A reference to a table, or to the supplement that has it, in brackets; nothing where neither does."""
        if name not in (*self.shown, *self.beside):
            return ""
        return f"{before}{see('tab', name) if name in self.shown else 'the supplement'}{after}"


def methods(facts: Facts) -> str:
    """Return the section on methods, without its heading."""
    return "\n".join(made for heading, notes in method_notes(facts).items() if (made := paragraph(heading, notes)))


def method_notes(facts: Facts) -> dict[str, list[str]]:
    """Return the sentences of the section on methods by their headings."""
    parts = (
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
    return {heading: [sentence for sentence in sentences if sentence] for heading, sentences in parts}


def threats(facts: Facts) -> str:
    """Return what limits the study's conclusions, as far as its records show it."""
    return items(threat_notes(facts))


def reproducibility(facts: Facts) -> str:
    """How to make the study and this paper again."""
    name, site = facts.study.name, facts.site.name if facts.site else "SITE"
    said = [
        f"The study was planned, run and analysed by Ringside, a Snakemake{cite('koster2012')} workflow. "
        f"Its study file, {command(f'config/studies/{name}.yaml')}, and the site's, "
        f"{command(f'config/sites/{site}.yaml')}, state every choice. A run has a key, made of its settings and of digests of "
        "its environment, its code and its data. After a change, only the runs that depend on it are measured again. The keys of "
        "all runs are in the records.",
        r"\begin{itemize}",
        rf"\item Measure it again: {command(f'./ringside run {name} --site {site}')}"
        + (
            f" (on a cluster: {command(f'./ringside submit {name} --site {site}')} first)"
            if facts.site and facts.site.launcher == "slurm"
            else ""
        )
        + ".",
        r"\item Make figures, tables and this paper from the records, in a folder with runs.csv, epochs.csv and, where the "
        f"network was swept, network.csv: {command(f'./ringside paper {name} --site {site} --records FOLDER')}.",
        r"\end{itemize}",
    ]
    digests = facts.ok["environment_digest"].dropna().nunique()
    if digests:
        said.append(
            f"{see('tab', 'frameworks')} names the environment of each framework by the first digits of its digest, which "
            "covers its lock, with the hash of every package, and its recipe."
        )
    return "\n".join(said) + "\n"


def factor_table(facts: Facts) -> str:
    """The factors that vary, with their levels; nothing where none does."""
    names = varying(facts.runs)
    shown = pd.DataFrame(
        {
            "factor": [title_with_unit(name) for name in names],
            "levels": [", ".join(_level(name, level) for level in levels_in_order(facts.runs, name)) for name in names],
        }
    )
    made = tables.Table("Factors that vary, and their levels", shown, shown, words=["factor", "levels"])
    return tables.latex(made, "tab:factors") if names else ""


def framework_table(facts: Facts) -> str:
    """The frameworks with versions, exchange, clock and environment."""
    rows = []
    for name in framework_order(facts.runs):
        own = facts.ok[facts.ok["framework"] == name]
        found = _framework(name)
        rows.append(
            {
                "framework": name,
                "is": found.title if found else tables.DASH,
                "library": _distinct(own["library_version"]),
                "Python": _distinct(own["python_version"]),
                "exchange": _distinct(own["transport"]),
                "clock": _distinct(own["timing_scope"].map(CLOCKS)),
                "environment": _distinct(own["environment_digest"].str[:DIGEST]),
            }
        )
    shown = pd.DataFrame(rows)
    return tables.latex(tables.Table("Frameworks as they were run", shown, shown, words=list(shown)), "tab:frameworks")


def _distinct(values: pd.Series) -> str:
    """All that a column says, in words; a dash for nothing."""
    return "; ".join(sorted(set(values.dropna().astype(str)))) or tables.DASH


def _level(name: str, level: Any) -> str:
    return f"{level_text(level)} (the site's)" if conditions.SITE_DEFAULTS.get(name) == level else level_text(level)


def _framework(name: str) -> Framework | None:
    """A framework's description; None where this checkout has none."""
    try:
        return load_framework(name)
    except InputError:
        return None


def _design(facts: Facts) -> Iterator[str]:
    study, runs = facts.study, facts.runs
    cells, replicates = runs["cell"].nunique(), runs.groupby("cell").size()
    each = number_of(int(replicates.max()), "replicate") if len(replicates) else "no replicate"
    if len(replicates) and replicates.min() < replicates.max():
        each = f"{replicates.min()} to {each}"
    several = f"of the factors in {see('tab', 'factors')}" if varying(runs) else "of one cell, because no factor varies"
    if study.fraction:
        kind = f"a fraction, {text(study.fraction.name())}, of the combinations of two levels{cite('jain1991')},"
    else:
        kind = f"a full factorial design{cite('jain1991')}"
    yield Note(
        "design",
        f"The study is {kind} {several}: {number_of(cells, 'cell')}, each with {each}, {number_of(len(runs), 'run')} in all.",
        cells=cells,
        replicates=sorted(set(replicates)),
        runs=len(runs),
        fraction=study.fraction.name() if study.fraction else None,
    )
    if study.fraction:
        yield Note("aliases", f"Aliases of effects: {text(fraction_line(study.fraction).partition(': ')[2])}.")
    yield text(conditions.constants_note(runs))
    yield text(precision_note(runs, study.replicates))
    later = " (later blocks those that were not yet precise)" if study.replicates.adaptive else ""
    yield Note(
        "blocks",
        "A replicate is an independent run, in new processes. Replicates form blocks, in a randomized complete block "
        f"design{cite('jain1991')}: a block contains every cell once{later}, in an order that was drawn from the study's seed "
        f"({study.seed}) before the first run. So slow changes of the machine add noise to cells, not "
        f"bias{cite('hoefler2015')}. The runs of a block share the seed of their weights and of the order of samples (common "
        "random numbers).",
        seed=study.seed,
        is_adaptive=study.replicates.adaptive,
    )
    yield _when(facts)


def _when(facts: Facts) -> str:
    """In how many sessions the runs were made, from when to when."""
    started = facts.runs["started_at"].dropna()
    if started.empty:
        return ""
    first, last = (datetime.fromisoformat(date) for date in (started.min(), facts.runs["ended_at"].dropna().max()))
    sessions = facts.runs["session"].dropna().nunique()
    when = f"on {first:%Y-%m-%d}" if first.date() == last.date() else f"from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
    return Note(
        "sessions",
        f"They were made in {number_of(sessions, 'session')} {when} (UTC).",
        sessions=sessions,
        first=first.date(),
        last=last.date(),
    )


def _frameworks(facts: Facts) -> Iterator[str]:
    named = []
    for name in framework_order(facts.runs):
        found = _framework(name)
        keys = keys_of(name, *(found.libraries if found else ()))
        named.append(f"{text(name)} ({text(found.title) if found else 'a framework of its own'}{cite(*keys)})")
    one = len(named) == 1
    yield Note(
        "frameworks",
        f"{'The framework is' if one else 'The study compares'} {listed(named)}, in the versions of {see('tab', 'frameworks')}.",
        frameworks=framework_order(facts.runs),
    )
    bases = facts.runs[facts.runs["base"].isin(facts.runs["framework"])][["framework", "base"]].drop_duplicates()
    own = {base: sorted(set(rows["framework"]) - {base}) for base, rows in bases.groupby("base")}
    said = [f"{text(str(base))} for {text(listed(names))}" for base, names in own.items() if names]
    if said:
        yield Note(
            "speedup-bases", f"Speed-ups are relative to an undistributed framework: {listed(said)}.", frameworks=own
        )
    brought = sorted(set(facts.ok.loc[facts.ok["deployment"] == "installed", "framework"]))
    if facts.site and set(facts.runs["framework"]) - set(brought):
        kind = "images" if facts.site.deployment == "apptainer" else "virtual environments"
        yield Note(
            "locked-software",
            f"Software is installed in {kind}, from locks that list every package with its hash.",
            deployment=facts.site.deployment,
        )
    if brought:
        modules = sorted({name for names in facts.ok["modules"].dropna() for name in names.split("; ")})
        loaded = f" (environment modules: {text(listed(modules))})" if modules else ""
        yield Note(
            "site-software",
            f"The software of {text(listed(brought))} is the site's own{loaded}; the records list its packages.",
            frameworks=brought,
            modules=modules,
        )


def _strategies(facts: Facts) -> Iterator[str]:
    """What the ranks of each strategy divide; nothing where all divide samples alone."""
    yield from _of_layers(facts)
    levels = facts.runs[["parallelism", "ranks"]].drop_duplicates().itertuples(index=False, name=None)
    divided = {level: mesh_of(level, int(ranks)) for level, ranks in levels if divides_more(level, int(ranks))}
    if not divided:
        return
    used = {axis for mesh in divided.values() for axis in mesh.axes}
    yield Note(
        "meshes",
        f"Beside data parallelism, in which every rank has the whole model and samples of its own, ranks divide the training by {text(listed(divided))}. "
        "A name lists axes of a mesh of ranks, with their sizes, from the outermost to that of neighbouring ranks; an axis without a size takes "
        "the ranks that the others leave.",
        strategies=list(divided),
    )
    yield from (Note("axis", AXES_DO[axis], axis=axis) for axis in AXES_DO if axis in used)
    ok = facts.runs
    if "pipeline" in used:
        own = ok[ok["parallelism"].isin([level for level, mesh in divided.items() if mesh.pipeline > 1])]
        schedules = [name for name in SCHEDULES if name in set(own["schedule"])]
        counts = sorted(set(own["microbatches"].astype(int)))
        yield Note(
            "microbatches",
            f"A batch has {listed(map(str, counts))} microbatches, scheduled by {listed(SCHEDULES[name] for name in schedules)}.",
            microbatches=counts,
            schedules=schedules,
        )
    yield Note(
        "same-weights",
        "All strategies start with the same weights and reach those of one rank that has the whole batch, except where dropout or batch normalization "
        "see other samples together.",
    )


def _of_layers(facts: Facts) -> Iterator[str]:
    """How frameworks divide that divide each layer by itself; nothing without one."""
    own = facts.runs[facts.runs["framework"].map(has_strategies).astype(bool)]
    kinds = {kind_of(level)[0] for level in own["parallelism"]}
    if not kinds:
        return
    frameworks = listed(sorted(set(own["framework"])))
    yield Note(
        "layers-divided",
        f"With {text(frameworks)} each layer is divided by itself{cite('jia2019')}: its output is cut along samples, along height, width or "
        "positions, and along channels, units or heads, and each part has a rank.",
        frameworks=sorted(set(own["framework"])),
    )
    yield from (Note("layer-strategy", OF_LAYERS[kind], kind=kind) for kind in OF_LAYERS if kind in kinds)


def _workload(facts: Facts) -> Iterator[str]:
    pairs = list(facts.runs[["model", "dataset"]].drop_duplicates().itertuples(index=False, name=None))
    for name in dict.fromkeys(model for model, _ in pairs):
        sizes = {
            size: dataset
            for model, dataset in pairs
            if model == name and (size := _parameters(name, dataset)) is not None
        }
        found = models().get(name)
        source = f", {text(found.source)}" if found and found.source else ""
        what = f" ({text(found.title)}{source})" if found else ""
        counts = [
            f"{count:,}" + (f" with {text(dataset)}" if len(sizes) > 1 else "") for count, dataset in sizes.items()
        ]
        yield Note(
            "model",
            f"The model {text(name)}{what}"
            + (f" has {listed(counts)} trained parameters." if counts else " is trained."),
            model=name,
            parameters=sorted(sizes),
        )
    yield Note(
        "one-graph",
        "A model is described once, as a graph of operators. Every framework's model is built from this graph, and all begin with "
        "the same weights, drawn once for each seed.",
    )
    for name in dict.fromkeys(dataset for _, dataset in pairs):
        yield _dataset(name)
    yield Note(
        "same-samples",
        "Every framework reads the same samples in the same order. Every replica reads an equal part of each epoch and "
        "makes the same number of steps. Samples that do not fill a step (at most 2~\\% of all) are left out of an epoch, and "
        "the epoch time is scaled to all samples.",
    )


def _parameters(model: str, dataset: str) -> int | None:
    """The trained parameters of a model for a data set's samples; None where one of the two is not known here."""
    try:
        return model_graph(model, dataset).parameters
    except (InputError, KeyError, ValueError):
        return None


def _dataset(name: str) -> str:
    try:
        entry = load_dataset(name)
    except InputError:
        return Note("unknown-dataset", f"The data set {text(name)} is not described here.", dataset=name)
    cited = cite(dataset_key(name)) if published(entry) else ""
    made = "" if cited else ", generated for measurements,"
    if kind(entry) == TOKENS:
        told = (
            "labels are the next tokens, loss and accuracy are means over positions"
            if targets(entry) == NEXT
            else f"each is of one of {class_count(entry)} classes"
        )
        shape = f"sequences of {entry['shape'][0]:,} tokens from a vocabulary of {entry['vocabulary']:,}; {told}"
    else:
        height, width, channels = entry["shape"]
        shape = rf"images of ${height} \times {width} \times {channels}$ in {class_count(entry)} classes"
    return Note(
        "dataset",
        f"The data set {text(name)} ({text(entry['title'])}{cited}){made} has {entry['train_samples']:,} training and "
        f"{entry['validation_samples']:,} validation {shape}; its licence: {text(entry['licence'])}.",
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
            f"The runs were made at the site {text(facts.site.name)}: {text(description)}.",
            site=facts.site.name,
        )
    if hosts := distinct_names(ok, "hosts"):
        yield Note("hosts", f"Host names of the nodes: {text(conditions.join_names(hosts))}.", hosts=hosts)
    if memory := node_memory(ok):
        least_bytes, most_bytes = ok["node_memory_bytes"].min(), ok["node_memory_bytes"].max()
        yield Note("node-memory", f"Memory of a node: {memory}.", least_bytes=least_bytes, most_bytes=most_bytes)
    if below := distinct_names(ok, "systems") + distinct_names(ok, "drivers"):
        yield Note("systems", f"Systems and drivers: {text('; '.join(below))}.", systems=below)
    devices = distinct_names(ok, "devices")
    cores = sorted(set(ok["cores_per_rank"].dropna()))
    if devices and cores:
        unnamed = " (the records do not name its model)" if devices == ["cpu"] else ""
        threads = "thread" if cores == [1] else "threads"
        yield Note(
            "devices",
            f"Training device: {text(listed(devices))}{unnamed}; each rank has {' or '.join(f'{count:.0f}' for count in cores)} {threads} "
            f"for computation.{_cores(facts.site)}",
            devices=devices,
            threads=cores,
            placement=facts.site.placement if facts.site else None,
        )
    yield text(conditions.circumstances_note(facts.runs))


def _cores(site: Site | None) -> str:
    """Whose cores the ranks have, as the site's file says it; nothing where that is not at hand."""
    if site is None:
        return ""
    cores = load_yaml(site.file)["cores"]  # not Site's number, which auto makes of the machine that writes the paper
    count = "the cores" if cores == "auto" else number_of(cores, "core")
    said = {
        "emulated": f"All ranks of a run share {count} of one machine.",
        "virtual": "All nodes share the cores of one machine.",
        "distinct-nodes": f"The ranks of a node share {count} of it.",
    }
    return f" {said[site.placement]}"


def _compared(runs: pd.DataFrame) -> str:
    """What the study puts in an order; nothing where it has one framework, trained in one way."""
    return "frameworks" if runs["framework"].nunique() > 1 else "treatments" if treatments(runs) else ""


def _measurement(facts: Facts) -> Iterator[str]:
    runs = facts.runs
    counts = {name: sorted(runs[name].unique()) for name in ("epochs", "warmup_epochs")}
    epochs, warm_up = (listed(map(level_text, levels)) for levels in counts.values())
    yield Note(
        "epoch-timing",
        "A run starts new processes. All ranks meet at a barrier before and after each epoch; the barrier uses TCP and is the same "
        "for all frameworks. Each rank reads its own monotonic clock at the release of the first barrier and at the end of its own "
        "epoch, when its device is synchronized. The epoch time is that of the slowest rank, always for the same number of samples. "
        "Start-up, imports, the first step and validation are timed separately.",
    )
    masters = sorted(set(facts.ok.loc[facts.ok["timing_scope"] == "master", "framework"]))
    if masters:
        yield Note(
            "master-clock", f"For {text(listed(masters))}, only the master's clock is known.", frameworks=masters
        )
    warm = {"0": "none of them warm-up", "1": "of which the first is warm-up, which does not count"}.get(
        warm_up, f"of which the first {warm_up} are warm-up, which does not count"
    )
    yield Note(
        "epochs",
        f"A run has {epochs} epochs, {warm}; its epoch time is the arithmetic mean "
        "of the others. Runs of the study do not overlap. The processor time that other processes use meanwhile is measured. A run is invalid if this was too much, if its gradients did not use the site's network, if its ranks "
        "were not placed as planned, or if its loss is not finite.",
        **counts,
    )


def _network(facts: Facts) -> Iterator[str]:
    if facts.network is None or facts.network.empty:
        yield Note(
            "network-not-measured",
            "The network was not measured on its own: the study has no exchange between nodes, or no sweep was made.",
        )
        return
    found = fit.measured(facts.network)
    if len(found):
        sizes = sorted(set(found["bytes"]))
        span = (
            fit.bytes_text(sizes[0])
            if len(sizes) == 1
            else f"{fit.bytes_text(sizes[0])} to {fit.bytes_text(sizes[-1])}"
        )
        nodes = listed([str(count) for count in sorted(set(found["nodes"]))])
        others = [name for name in COLLECTIVES if name != ALL_REDUCE and name in set(found["collective"])]
        yield Note(
            "collectives-swept",
            f"In the same campaign, {titles([ALL_REDUCE, *others])} {'were' if others else 'was'} swept through the library of each "
            f"distributed framework{' that has them' if others else ''}, on {nodes} nodes, "
            f"over {number_of(len(sizes), 'message size')} from {span}. Bandwidths are bus bandwidths, "
            rf"$2 (n-1)/n$ times bytes over seconds with $n$ ranks{cite('patarasuk2009')}{facts.see('network')}.",
            collectives=[ALL_REDUCE, *others],
            nodes=sorted(set(found["nodes"])),
            sizes_bytes=sizes,
        )
        for factor in dict.fromkeys(COLLECTIVES[name].factor for name in others):
            own = [name for name in others if COLLECTIVES[name].factor == factor]
            yield Note(
                "bytes-counted",
                f"In {titles(own)}, bytes count ${factor.replace('−', '-')}$ times.",
                collectives=own,
                factor=factor,
            )
        yield text(fit.circumstances(facts.network))
        yield text(fit.link_rates_text(facts.network))
    yield text(fit.shortfall(facts.network))


def _statistics(facts: Facts) -> Iterator[str]:
    yield cited(text(conditions.replicates_note(facts.runs)))
    if len(facts.ok):
        yield cited(text(conditions.contrasts_note(facts.runs, compare(facts.runs)["within_blocks"])))
    yield Note(
        "summaries",
        "Times are summarized by arithmetic means, rates by harmonic means, and a speed-up is reported with its base in "
        f"seconds{cite('hoefler2015')}{facts.see('speedup')}.",
    )
    told = {
        "effects": f"Comparisons of cells are corrected for their number within each factor{cite('holm1979')}",
        "anova": f"Shares of variation are type-II sums of squares of log epoch times{cite('jain1991')}",
        "checks": "Normality, equal spread, drift and outliers are checked on residuals within cells",
        "regression": f"Regressions have standard errors that allow for unequal spread{cite('mackinnon1985')}",
        "adjusted": "Means adjusted by a fixed piece of work beside each run, or by the processor time that others took, are an analysis of covariance; they stand beside plain means",
        "scaling": f"Serial fractions are those of Amdahl's law{cite('amdahl1967')} and of Karp and Flatt{cite('karp1990')}",
        "prediction": "Predictions are compared with cells that were left out of the fit",
    }
    for name, sentence in told.items():
        if name in (*facts.shown, *facts.beside):
            yield Note("table-method", f"{sentence}{facts.see(name)}.", table=name)
    yield Note("table-notes", "The notes of each table say how its numbers are computed.")


def _left_out(facts: Facts) -> Iterator[str]:
    for entry in facts.study.exclude:
        names = combination_text({name: " or ".join(map(level_text, levels)) for name, levels in entry.items()})
        why = _why_excluded(facts, entry)
        yield Note(
            "excluded",
            f"Not part of the design: {text(names)}, {f'because {text(why)}' if why else 'by choice'}.",
            levels=entry,
            reason=why,
        )
    bad = unsuccessful(facts.runs)
    if bad.empty:
        yield Note(
            "all-succeeded",
            f"All {number_of(len(facts.runs), 'run')} of the design succeeded.",
            runs=len(facts.runs),
        )
    else:
        counts = _reasons(bad)
        yield Note(
            "unsuccessful-runs",
            f"Of the {number_of(len(facts.runs), 'run')} of the design, {len(bad):,} did not succeed"
            f"{facts.see('missing')} and are in no mean: {text(_reasons_text(counts))}.",
            runs=len(facts.runs),
            unsuccessful=len(bad),
            reasons=counts,
        )
        yield text(conditions.shortfall_note(facts.runs))
    again = facts.runs[facts.runs["attempt"].fillna(1) > 1]
    if len(again):
        lost = again["unfinished_attempts"].notna().sum()
        yield Note(
            "repeated-runs",
            f"{number_of(len(again), 'run')} {'was' if len(again) == 1 else 'were'} made in more than one attempt ("
            f"{lost} after an attempt that left no record, the others on request); the last attempt counts.",
            runs=len(again),
            without_record=int(lost),
        )
    yield Note(
        "no-value-left-out",
        f"No successful run was left out because of its value{facts.see('checks', ': outliers are listed in ', '')}.",
    )


def _why_excluded(facts: Facts, entry: Mapping[str, list[Any]]) -> str:
    """Why no cell of an excluded entry can be trained; nothing where one could be."""
    if facts.site is None:
        return ""
    why: dict[str, None] = {}
    for levels in facts.study.combinations():
        if all(levels[name] in entry[name] for name in entry):
            try:
                geometry(levels, load_framework(levels["framework"]), facts.site)
                return ""
            except InfeasibleCell as infeasible:
                why[infeasible.reason] = None
    return conditions.join_names(list(why), "; ")


def _reasons(bad: pd.DataFrame) -> dict[tuple[str, str], int]:
    """Return how many runs have each status and reason, the most frequent first."""
    counts = (
        bad.assign(reason=bad["reason"].map(one_line)).groupby(["status", "reason"]).size().sort_values(ascending=False)
    )
    return {(str(status), str(reason)): int(count) for (status, reason), count in counts.items()}


def _reasons_text(counts: Mapping[tuple[str, str], int]) -> str:
    """Render what `_reasons` returns."""
    parts = [f"{count} {status} ({reason})" for (status, reason), count in counts.items()]
    more = sum(list(counts.values())[MOST_REASONS:])
    return "; ".join([*parts[:MOST_REASONS], *([f"{more} for other reasons"] if more else [])])


def _disturbances(ok: pd.DataFrame) -> Iterator[str]:
    """What others took from successful runs."""
    if (most := ok["foreign_cpu_share"].max()) > conditions.NOTABLE_FOREIGN_SHARE:
        yield Note(
            "other-programs",
            f"Beside runs, other programs used up to {100 * most:.2g}~\\% of the processor time, so differences between cells may be theirs.",
            share=most,
        )
    stolen = ok["steal_share"] > conditions.NOTABLE_STEAL_SHARE
    if stolen.any():
        yield Note(
            "cpu-steal",
            f"A hypervisor took more than {100 * conditions.NOTABLE_STEAL_SHARE:.0f}~\\% of the processor time in "
            f"{stolen.sum():,} of {len(ok):,} runs; none was left out for this reason.",
            share=conditions.NOTABLE_STEAL_SHARE,
            runs=int(stolen.sum()),
            successful=len(ok),
        )


def threat_notes(facts: Facts) -> Iterator[str]:
    """Yield what limits the study's conclusions, as far as its records show it, a sentence or two for each limit."""
    ok = facts.ok
    if ok.empty:
        yield Note("no-success", "No run succeeded: nothing can be concluded.")
        return
    placements = set(ok["placement"].dropna())
    if "emulated" in placements:
        yield Note(
            "emulated-nodes",
            "Nodes are groups of processes on one machine that exchange gradients through its memory: the results do not show how "
            "a real network would perform, and ranks compete for caches and memory bandwidth.",
        )
    if "virtual" in placements:
        yield Note(
            "virtual-nodes",
            "Nodes are those of a virtual cluster: they share one machine's memory and caches, their processors are parts of "
            "its cores, and their links are shaped by its kernel. With faster processors, the same network would matter more.",
        )
    where = f" ({text(facts.site.name)})" if facts.site else ""
    compared = _compared(facts.runs)
    other = f"rank {compared} differently" if compared else "give other times"
    yield Note(
        "one-site",
        f"All runs are of one site{where} and one version of each library: other machines, versions and settings may {other}.",
        compared=compared,
    )
    counts = ok.groupby("cell").size()
    if counts.min() < FEW_REPLICATES:
        yield Note(
            "few-replicates",
            f"Some cells have only {number_of(int(counts.min()), 'successful run')}: small differences cannot be detected"
            f"{facts.see('checks', ' (', ' says how small)')}.",
            least=int(counts.min()),
        )
    if facts.checks is not None and {"assumption", "verdict", "p", "run_id"} <= set(facts.checks):
        told = facts.checks[(facts.checks["p"] < 0.05) & facts.checks["run_id"].isna()]
        for row in told.itertuples():
            so = CONSEQUENCES.get(str(row.assumption), "")
            yield Note(
                "failed-check",
                f"Check of the assumption ``{text(str(row.assumption))}'': {text(str(row.verdict))}{facts.see('checks')}.{so}",
                assumption=row.assumption,
                p=row.p,
            )
    if work := conditions.work_note(facts.runs) if "nodes" in varying(facts.runs) else "":
        yield text(work)
    crowded = ok["oversubscribed"].fillna(False).astype(bool)
    if crowded.any():
        yield Note(
            "oversubscribed",
            f"{number_of(int(crowded.sum()), 'run')} had more threads than cores, so ranks competed for cores.",
            runs=int(crowded.sum()),
        )
    yield from _disturbances(ok)
    if facts.network is not None and len(fit.measured(facts.network)):
        yield Note(
            "network-swept-once",
            "Each sweep of the network was made once, in one set of processes: its intervals do not cover changes from day to day.",
        )
    if len(unsuccessful(facts.runs)):
        yield Note(
            "failed-runs",
            f"Failed runs are in no mean{facts.see('missing')}: if slow runs are the ones that failed, means look better than they are.",
        )
    if ok["epochs"].max() < FEW_EPOCHS:
        yield Note(
            "short-training",
            "Training runs are short: accuracies are those after few epochs, not those that training reaches in the end.",
        )
