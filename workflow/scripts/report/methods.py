"""Collect the facts of a paper's section on methods, from study file, site and records.

The words of the sentences are in methods.yaml. Statements that captions and table notes also make come from
the same functions.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import pandas as pd

from analysis import conditions, tables
from analysis.cell_means import measured_response
from analysis.effects import build_rows
from analysis.level_words import OUT_OF_MEMORY_MARK, level_text, title_with_unit
from analysis.records import (
    distinct_names,
    framework_order,
    levels_in_order,
    missing_cells,
    out_of_memory_cells,
    unsuccessful,
    varying,
)
from analysis.settings import names_differing
from common.errors import InputError
from common.files import load_yaml
from common.notes import Note
from common.text import end_sentence
from declared.datasets import class_count, find_dataset, kind, targets
from declared.factors import UNTRACED, factor_table
from declared.frameworks import Framework, has_strategies, load_framework
from declared.mesh import exceeds_data_parallelism, mesh_of, split_strategy
from declared.models import find_graph
from declared.responses import RESPONSES
from declared.user_models import is_user_model
from models.collectives import ALL_REDUCE, COLLECTIVES
from models.graph import N_CATEGORIES, N_COUNTS
from models.named import MASKED_SHARE, models
from network import fit
from plan.cost import fraction_line
from replication.reached import target_note
from report import elsewhere
from report.checkout import citation
from report.design import exclusions
from report.facts import Facts, texts
from report.latex import cite, cited, dataset_key, keys_of, paragraph, published, to_latex
from report.material import group_failures
from report.site_and_software import node_memory

# Constant factors that a paper names; it also names factors whose level is not the default.
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
ANSWER_TABLES = ("effects", "anova", "checks")  # The answer rests on these tables wherever they are printed.
DIGEST_DIGITS = 12  # Hex digits of an environment's digest and of a commit.
MAX_REASONS = 10
CLOCK_COLUMN = "timed by the clock of"
ON_ONE_NODE = "on 1 node: "
CLOCKS = {"ranks": "each rank", "master": "the master"}


def write_methods(facts: Facts) -> str:
    """Return the section on methods, without its heading."""
    return "\n".join(
        section for heading, notes in method_notes(facts).items() if (section := paragraph(heading, notes))
    )


def method_notes(facts: Facts) -> dict[str, list[str]]:
    """Return the sentences of the section on methods, by heading.

    For imported measurements they do not mention random order, blocks, reference benchmarks and digests,
    which are not known.
    """
    parts = {
        "Source": _source,
        "Measurements": _cells_elsewhere,
        "Frameworks": _frameworks_elsewhere,
        "Strategies": _strategies,
        "Models": _models,
        "Machine": _machine,
        "Times": _times_elsewhere,
        "Network": _network_elsewhere,
        "Statistics": _statistics,
        "What failed": _left_out,
    }
    if not facts.study.imported:
        parts = {
            "Design": _design,
            "Frameworks": _frameworks,
            "Strategies": _strategies,
            "Models and data": _workload,
            "Machine": _machine,
            "Measurement": _measurement,
            "Network": _network,
            "Statistics": _statistics,
            "What was left out, and what failed": _left_out,
        }
    return {heading: list(filter(None, collect(facts))) for heading, collect in parts.items()}


def write_reproducibility(facts: Facts) -> str:
    """Return how to reproduce the study and this paper."""
    name, imported = facts.study.name, facts.study.imported
    commit = "" if facts.anonymous else (facts.state.commit or "")[:DIGEST_DIGITS]
    software = {"version": citation()["version"], "commit": commit}
    if imported:
        folders = list(map(str, imported.campaigns.values())) or [str(imported.folder)]
        return facts.sentence("reproduce-elsewhere", study=name, folders=folders, **software) + "\n"
    return (
        facts.sentence(
            "reproduce",
            study=name,
            **software,
            site=facts.site.name if facts.site else "SITE",
            on_cluster=facts.site is not None and facts.site.launcher == "slurm",
            has_digests=facts.ok["environment_digest"].notna().any(),
        )
        + "\n"
    )


def varied_factor_table(facts: Facts) -> str:
    """Return the table of the factors that vary, with their levels; "" if none does."""
    rows = {
        title_with_unit(name): ", ".join(
            _level_text(name, level) for level in levels_in_order(facts.runs, name)
        )
        for name in varying(facts.runs)
    }
    frame = pd.DataFrame(rows.items(), columns=["factor", "levels"])
    table = tables.Table("Factors that vary, and their levels", frame, frame, left_aligned=list(frame))
    return tables.latex(table, "tab:factors", wrap_to_column=True) if rows else ""


def constant_table(facts: Facts) -> str:
    """Return the table of the factors with one level in all cells; "" if every factor varies."""
    rows = {
        title_with_unit(name): _level_text(name, level)
        for name, level in _constant_levels(facts.runs).items()
    }
    frame = pd.DataFrame(rows.items(), columns=["factor", "level"])
    own_choices = "With the level default, each framework makes its own choice (table `settings`)."
    notes = [own_choices] if "default" in set(rows.values()) and facts.see("tab:settings") else []
    table = tables.Table("Factors that are the same in all cells", frame, frame, notes, list(frame))
    return tables.latex(table, "tab:constants") if rows else ""


def framework_table(facts: Facts) -> str:
    """Return the table of frameworks with recorded versions, transport, clock and environment."""
    rows = []
    for name in framework_order(facts.runs):
        framework_runs = facts.ok[facts.ok["framework"] == name]
        description = None if facts.study.imported else _find_framework(name)
        columns = {
            "library": framework_runs["library_version"],
            "Python": framework_runs["python_version"],
            "transport": _transports(framework_runs["transport"]),
            CLOCK_COLUMN: framework_runs["timing_scope"].map(CLOCKS),
            "environment": framework_runs["environment_digest"].str[:DIGEST_DIGITS],
        }
        rows.append(
            {"framework": name, "description": description.title if description else ""}
            | {
                title: "; ".join(sorted(set(values.dropna().astype(str)), key=_last_on_one_node))
                for title, values in columns.items()
            }
        )
    frame = pd.DataFrame(rows)
    frame = frame.loc[:, (frame != "").any()].replace("", tables.DASH)
    if facts.study.imported and list(frame) == ["framework"]:
        return ""
    constant = [name for name in ("Python", CLOCK_COLUMN) if name in frame and frame[name].nunique() == 1]
    note = "The same for all: " + "; ".join(f"{name} {frame[name].iloc[0]}" for name in constant) + "."
    frame = frame.drop(columns=constant)
    return tables.latex(
        tables.Table("Frameworks", frame, frame, [note] if constant else [], list(frame)), "tab:frameworks"
    )


def _transports(transports: pd.Series) -> pd.Series:
    """Return transports in which "none" says when it holds, if there are others: without a second node."""
    has_others = (transports.dropna() != "none").any()
    return transports.replace("none", f"{ON_ONE_NODE}none") if has_others else transports


def _last_on_one_node(text: str) -> tuple[bool, str]:
    """Return a key that sorts what holds on one node only to the end."""
    return text.startswith(ON_ONE_NODE), text


def _level_text(name: str, level: Any) -> str:
    is_default = conditions.SITE_DEFAULTS.get(name) == level
    return level_text(level) + (" (the site's)" if is_default else "")


def _find_framework(name: str) -> Framework | None:
    """Return a framework's description; None if this checkout has none."""
    try:
        return load_framework(name)
    except InputError:
        return None


def _source(facts: Facts) -> Iterator[str]:
    if imported := facts.study.imported:
        yield to_latex(elsewhere.source_note(imported))
        yield to_latex(elsewhere.planning_note(imported))
        if citation := imported.description.stated.citation:
            yield facts.sentence("citation", citation=end_sentence(citation))
        yield from map(to_latex, elsewhere.accepted_notes(imported))


def _times_elsewhere(facts: Facts) -> Iterator[str]:
    if imported := facts.study.imported:
        yield to_latex(elsewhere.epoch_note(imported, facts.runs))


def _cell_counts(runs: pd.DataFrame) -> dict[str, Any]:
    """Return the numbers of cells, replicates and runs, and whether a factor varies."""
    replicates = runs.groupby("cell").size()
    return {
        "cells": len(replicates),
        "replicates": sorted(set(replicates.tolist())),
        "runs": len(runs),
        "has_factors": bool(varying(runs)),
    }


def _cells_elsewhere(facts: Facts) -> Iterator[str]:
    yield facts.sentence("cells-elsewhere", **_cell_counts(facts.runs))
    yield _constants_note(facts)


def _frameworks_elsewhere(facts: Facts) -> Iterator[str]:
    yield facts.sentence("frameworks-elsewhere", frameworks=framework_order(facts.runs))


def _network_elsewhere(facts: Facts) -> Iterator[str]:
    if facts.network is not None and len(facts.network):
        yield to_latex(fit.setup_note(facts.network))
        yield to_latex(fit.link_rates_text(facts.network))


def _design(facts: Facts) -> Iterator[str]:
    study, runs = facts.study, facts.runs
    yield facts.sentence(
        "design",
        **_cell_counts(runs),
        fraction=study.fraction.name() if study.fraction else None,
        combinations=sum(levels["trace"] == UNTRACED for levels in study.combinations()),
    )
    if study.fraction:
        yield facts.sentence("aliases", aliases=fraction_line(study.fraction).partition(": ")[2])
    yield _constants_note(facts)
    yield to_latex(target_note(runs, study.replicates))
    yield facts.sentence("blocks", seed=study.seed, is_adaptive=study.replicates.adaptive)
    times = [*runs["started_at"].dropna(), *runs["ended_at"].dropna()]
    if times:
        first, last = (datetime.fromisoformat(time).date() for time in (min(times), max(times)))
        yield facts.sentence("sessions", sessions=runs["session"].nunique(), first=first, last=last)


def _constants_note(facts: Facts) -> str:
    """Name the constant factors that matter for a reader; the supplement lists all."""
    levels = _constant_levels(facts.runs)
    defaults = {name: rules.get("default") for name, rules in factor_table().items()}
    named = {
        name: level
        for name, level in levels.items()
        if name not in NAMED_ELSEWHERE and (name in NAMED_CONSTANTS or level != defaults.get(name))
    }
    return facts.sentence("constants", levels=named) if named else ""


def _constant_levels(runs: pd.DataFrame) -> Mapping[str, Any]:
    note = conditions.constants_note(runs)
    return note.facts["levels"] if isinstance(note, Note) else {}


def _frameworks(facts: Facts) -> Iterator[str]:
    described = []
    for name in framework_order(facts.runs):
        description = _find_framework(name)
        title = to_latex(description.title) if description else "a framework of its own"
        keys = keys_of(name, *(description.libraries if description else ()))
        described.append(f"{to_latex(name)} ({title}{cite(*keys)})")
    yield facts.sentence("frameworks", frameworks=framework_order(facts.runs), described=described)
    if facts.see("tab:settings"):
        yield facts.sentence("framework-settings", settings=names_differing(facts.runs))
    pairs = facts.runs[["framework", "baseline"]].drop_duplicates()
    pairs = pairs[pairs["baseline"].isin(pairs["framework"]) & (pairs["framework"] != pairs["baseline"])]
    if len(pairs):
        users = {name: sorted(rows["framework"]) for name, rows in pairs.groupby("baseline")}
        yield facts.sentence("speedup-baselines", frameworks=users)
    installed = sorted(set(facts.ok.loc[facts.ok["deployment"] == "installed", "framework"]))
    if facts.site and set(facts.runs["framework"]) - set(installed):
        yield facts.sentence("locked-software", deployment=facts.site.deployment)
    if installed:
        modules = sorted({name for users in facts.ok["modules"].dropna() for name in users.split("; ")})
        yield facts.sentence("site-software", frameworks=installed, modules=modules)


def _strategies(facts: Facts) -> Iterator[str]:
    """Yield what the ranks of each strategy partition; nothing if all cells only use data parallelism."""
    by_layer = facts.runs[facts.runs["framework"].map(has_strategies).astype(bool)]
    if len(by_layer):
        yield facts.sentence("layers-divided", frameworks=sorted(set(by_layer["framework"])))
        kinds = {split_strategy(level)[0] for level in by_layer["parallelism"]}
        yield from _described(facts, "layer-strategy", kinds)
    levels = facts.runs[["parallelism", "ranks"]].drop_duplicates().itertuples(index=False, name=None)
    meshes = {
        level: mesh_of(level, int(ranks))
        for level, ranks in levels
        if exceeds_data_parallelism(level, int(ranks))
    }
    if not meshes:
        return
    yield facts.sentence("meshes", strategies=list(meshes))
    yield from _described(facts, "axis", {axis for mesh in meshes.values() for axis in mesh.axes})

    def runs_along(axis: str) -> pd.DataFrame:
        levels = [level for level, mesh in meshes.items() if axis in mesh.axes]
        return facts.runs[facts.runs["parallelism"].isin(levels)]

    yield from _described(facts, "tensor-sharding", set(runs_along("tensor")["tensor_sharding"]))
    pipelines = runs_along("pipeline")
    if len(pipelines):
        yield facts.sentence("microbatches", microbatches=sorted(set(pipelines["microbatches"].astype(int))))
        yield from _described(facts, "schedule", set(pipelines["schedule"]))
    if not facts.study.imported:
        yield facts.sentence("same-weights")


def _described(facts: Facts, code: str, levels: set[str]) -> Iterator[str]:
    """Yield the sentence on each of these levels that has one, in the order of methods.yaml."""
    yield from (facts.sentence(code, level=level) for level in texts()[code] if level in levels)


def _models(facts: Facts) -> Iterator[str]:
    """Yield a sentence on each model, with its trained parameters if they are known."""
    for name, rows in facts.runs.groupby("model", sort=False):
        graphs = {dataset: find_graph(str(name), dataset) for dataset in rows["dataset"].unique()}
        sizes = {graph.parameters: dataset for dataset, graph in graphs.items() if graph}
        parameters = {
            size: f"{size:,}" + f" with {to_latex(dataset)}" * (len(sizes) > 1)
            for size, dataset in sizes.items()
        }
        stated = {int(size): f"{size:,.0f}" for size in sorted(set(rows["parameters"].dropna()))}
        described = models().get(str(name))
        yield facts.sentence(
            "model",
            model=name,
            title=described.title if described else "",
            source=described.source if described else "",
            parameters=parameters or stated,
        )
        if described and described.is_masked:
            yield facts.sentence("masked-tokens", model=name, percent=round(100 * MASKED_SHARE))


def _workload(facts: Facts) -> Iterator[str]:
    yield from _models(facts)
    are_own = [is_user_model(name) for name in set(facts.runs["model"])]
    if not all(are_own):
        yield facts.sentence("one-graph")
    if any(are_own):
        yield facts.sentence("one-module")
    for name in dict.fromkeys(facts.runs["dataset"]):
        yield _dataset(facts, name)
    trained, available = (facts.ok[name].astype(float) for name in ("samples_trained", "samples_per_epoch"))
    yield facts.sentence("same-samples", dropped_share=float((1 - trained / available).max()))


def _dataset(facts: Facts, name: str) -> str:
    entry = find_dataset(name)
    if entry is None:
        return facts.sentence("unknown-dataset", dataset=name)
    names = ("title", "train_samples", "validation_samples", "shape", "licence")
    return facts.sentence(
        "dataset",
        dataset=name,
        **{key: entry[key] for key in names},
        vocabulary=entry.get("vocabulary"),
        kind=kind(entry),
        targets=targets(entry),
        classes=class_count(entry),
        n_counts=N_COUNTS,
        n_categories=N_CATEGORIES,
        citation=cite(dataset_key(name)) if published(entry) else "",
    )


def _machine(facts: Facts) -> Iterator[str]:
    ok = facts.ok
    if facts.site:
        description = end_sentence(load_yaml(facts.site.file)["description"])
        yield facts.sentence("site", site=facts.site.name, description=description)
    if not facts.anonymous and (hosts := distinct_names(ok, "hosts")):
        yield facts.sentence("hosts", hosts=hosts)
    threads, node_cores = (
        sorted(set(ok[name].dropna().astype(int))) for name in ("cores_per_rank", "node_cores")
    )
    parts = [name for name in distinct_names(ok, "devices") if name != "cpu"]
    parts += [f"{' or '.join(map(str, node_cores))} cores"] * bool(node_cores)
    parts += [f"{memory} of memory"] if (memory := node_memory(ok)) else []
    systems = distinct_names(ok, "systems") + distinct_names(ok, "drivers")
    if parts or systems:
        is_shared = set(ok["placement"].dropna()) == {"emulated"}
        yield facts.sentence("machine", parts=parts, systems=systems, is_shared=is_shared)
    if threads:
        yield facts.sentence("threads", threads=threads)
    yield to_latex(conditions.circumstances_note(facts.runs))


def _measurement(facts: Facts) -> Iterator[str]:
    yield facts.sentence("epoch-timing")
    master_timed = sorted(set(facts.ok.loc[facts.ok["timing_scope"] == "master", "framework"]))
    if master_timed:
        yield facts.sentence("master-clock", frameworks=master_timed)
    counts = {name: sorted(facts.runs[name].unique().tolist()) for name in ("epochs", "warmup_epochs")}
    limits = sorted(set(facts.ok["max_other_cpu_share"].dropna()))
    percents = [f"{100 * limit:.3g}" for limit in limits if limit < 1]
    yield facts.sentence("epochs", **counts, limits=percents)


def _network(facts: Facts) -> Iterator[str]:
    if facts.network is None or facts.network.empty:
        yield facts.sentence("network-not-measured")
        return
    benchmarks = fit.valid_repetitions(facts.network)
    if len(benchmarks):
        collectives = [name for name in COLLECTIVES if name in {ALL_REDUCE, *benchmarks["collective"]}]
        yield facts.sentence(
            "collectives-benchmarked",
            collectives=collectives,
            nodes=sorted(set(benchmarks["nodes"])),
            sizes_bytes=sorted(set(benchmarks["bytes"])),
        )
        further = [name for name in collectives if name != ALL_REDUCE]
        for factor in dict.fromkeys(COLLECTIVES[name].factor for name in further):
            names = [name for name in further if COLLECTIVES[name].factor == factor]
            yield facts.sentence("bytes-counted", collectives=names, factor=factor.replace("−", "-"))
        yield to_latex(fit.setup_note(facts.network))
        yield to_latex(fit.link_rates_text(facts.network))
    yield to_latex(fit.missing_benchmarks_note(facts.network))


def _statistics(facts: Facts) -> Iterator[str]:
    yield cited(to_latex(conditions.replicates_note(facts.runs)))
    if len(facts.ok):
        yield cited(to_latex(conditions.contrasts_note(facts.runs, build_rows(facts.runs)["within_blocks"])))
    yield facts.sentence("summaries")
    labels = {*facts.paper_labels, *(f"tab:{name}" for name in ANSWER_TABLES if facts.see(f"tab:{name}"))}
    response = measured_response(facts.runs, RESPONSES[facts.study.response]).title
    for name in texts()["table-method"]:
        if f"tab:{name}" in labels:
            yield facts.sentence("table-method", table=name, response=response)
    if "tab:effects" in labels and facts.study.margin is not None:
        yield facts.sentence("equivalence", margin=facts.study.margin)
    if facts.recovers:
        yield facts.sentence("recovered")
    yield facts.sentence("table-notes", has_supplement=bool(facts.supplement_numbers))


def _left_out(facts: Facts) -> Iterator[str]:
    runs = facts.runs
    left_out = exclusions(facts.study)
    if left_out:
        texts_of_exclusions = [
            f"{exclusion.levels} ({exclusion.reason})" if exclusion.reason else exclusion.levels
            for exclusion in left_out
        ]
        yield facts.sentence("excluded", exclusions=texts_of_exclusions)
    failed, origin = unsuccessful(runs), "source" if facts.study.imported else "design"
    if failed.empty:
        yield facts.sentence("all-succeeded", runs=len(runs), origin=origin)
    else:
        groups = group_failures(failed)
        reasons = [f"{len(group)} {status} ({reason})" for status, reason, group in groups[:MAX_REASONS]]
        if n_other := sum(len(group) for _, _, group in groups[MAX_REASONS:]):
            reasons.append(f"{n_other} for other reasons")
        counts = {"runs": len(runs), "unsuccessful": len(failed)}
        yield facts.sentence("unsuccessful-runs", **counts, origin=origin, reasons=reasons)
        ran_out = out_of_memory_cells(runs)
        if ran_out:
            yield facts.sentence("out-of-memory", cells=ran_out, mark=OUT_OF_MEMORY_MARK)
        if missing := missing_cells(runs):
            yield facts.sentence("missing-cells", cells=missing)
        else:
            yield facts.sentence("no-cell-missing", out_of_memory=ran_out)
    repeated = runs[runs["attempt"].fillna(1) > 1]
    if len(repeated):
        without_record = int(repeated["unfinished_attempts"].notna().sum())
        yield facts.sentence("repeated-runs", runs=len(repeated), without_record=without_record)
    limits = runs["max_other_cpu_share"].value_counts().sort_index().to_dict()
    if len(limits) > 1:
        yield facts.sentence("changed-limit", limits=limits)
    yield facts.sentence("no-value-left-out")
