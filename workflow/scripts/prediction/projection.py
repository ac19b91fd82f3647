"""Table `projection`: the scaling projection, speed-up at unmeasured link rates and node counts.

The projection uses a study (computation, law of the network, overlap and waiting, with intervals of a
parametric bootstrap), or numbers alone (see prediction.question). figures.projection draws it.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.measured import read_timing_runs, successful, title, with_batch_numbers
from common.cores import all_cores
from common.errors import InputError
from common.notes import Note
from common.options import run_program
from common.tables import read_table
from common.text import alternatives
from declared.datasets import load_dataset
from declared.models import model_graph, model_names
from models.collectives import ALL_REDUCE
from models.graph import BYTES
from prediction import communication, law, physics
from prediction.extrapolate import (
    BANDS,
    FACTORS,
    LEVELS,
    add_bands,
    drop_incomplete_curves,
    generalize,
    hypothetical_cells,
    predict_curves,
    refit_resampled,
    study_cases,
    summarize_curves,
)
from prediction.law import Law, rate_text
from prediction.physics import Levels, PhysicalModel
from prediction.question import DEFAULT_FRAMEWORK, Question, ask

N_REFITS = 400
PROGRESS_INTERVAL = 100  # refits
REFITS_PER_TASK = 25
NOTHING_TO_PREDICT = Note(
    "nothing-to-predict",
    (
        "A scaling projection needs cells on one node, cells on several nodes, and a collective benchmark of "
        "these with two message sizes or more."
    ),
)
EMULATED = Note(
    "emulated",
    (
        "Emulated nodes have no scaling projection, because they share the loopback of one machine instead "
        "of a network."
    ),
)
WHAT_TO_DO = Note(
    "what-to-do",
    (
        "Give numbers instead (`./ringside predict --help` explains them), or measure the study at a site "
        "whose nodes have a network."
    ),
)
TITLE = "How many nodes are worth it, by the rate of the links"
GIGABIT = 1e9 / 8


def table(rows: pd.DataFrame, notes: Sequence[str]) -> tables.Table:
    """Return the table of `extrapolate.summarize_curves`."""
    shown_factors = [name for name in FACTORS if name != "device" or rows[name].nunique() > 1]
    columns: dict[str, Any] = {title(name): rows[name].map(str) for name in shown_factors}
    columns["links"] = rows["rate"].map(rate_text)
    for level in LEVELS:
        columns[f"nodes at {100 * level:.0f} % efficiency"] = _interval_texts(
            rows, f"nodes_at_{100 * level:.0f}"
        )
    columns["greatest speed-up"] = _interval_texts(rows, "greatest_speedup")
    columns["on nodes"] = rows["at_nodes"].map(lambda nodes: f"{nodes:.0f}")
    group_starts = rows.index[(rows[FACTORS] != rows[FACTORS].shift()).any(axis=1)].tolist()
    text_columns = [title(name) for name in shown_factors if name != "batch_size"]
    return tables.Table(TITLE, rows, pd.DataFrame(columns), list(notes), text_columns, group_starts[1:])


def _interval_texts(rows: pd.DataFrame, name: str) -> list[str]:
    """Return a column with its bounds as text; node counts at the end of the curve as "≥n"."""
    is_node_count = name.startswith("nodes")

    def text(value: float, max_nodes: float) -> str:
        if is_node_count:
            return f"≥{max_nodes:.0f}" if value >= max_nodes else f"{value:.0f}"
        return tables.number(value)

    texts = []
    for row in rows.to_dict("records"):
        cell_text = text(row[name], row["most_nodes"])
        if f"{name}_low" in row:
            low, high = (text(row[f"{name}_{end}"], row["most_nodes"]) for end in ("low", "high"))
            cell_text += f" [{low}, {high}]"
        texts.append(cell_text)
    return texts


@dataclass(frozen=True)
class Study:
    """Runs, `physics.measured_cells` and `law.benchmark_points` of a study, and the model fitted to them."""

    runs: pd.DataFrame
    cells: pd.DataFrame
    benchmarks: pd.DataFrame
    fitted: PhysicalModel


def load_study(folder: Path) -> Study:
    """Return the study whose records are in `folder`."""
    return load_records(folder / "runs.csv", folder / "network.csv")


def load_records(runs_csv: Path, network_csv: Path) -> Study:
    """Return the study of these runs and benchmarks, with the model fitted to them."""
    runs = with_batch_numbers(read_timing_runs(runs_csv))
    cells, benchmarks = physics.measured_cells(runs), law.benchmark_points(read_table(network_csv, "network"))
    return Study(runs, cells, benchmarks, generalize(physics.fit_model(cells, benchmarks)))


def model_from_numbers(args: Question, network: PhysicalModel | None) -> tuple[PhysicalModel, pd.DataFrame]:
    """Return the model and the one case that the options describe, on a study's network if one is given."""
    benchmarked = sorted({name for name, _ in network.laws}) if network else []
    framework = args.framework or (benchmarked[0] if len(benchmarked) == 1 else DEFAULT_FRAMEWORK)
    if network and framework not in benchmarked:
        problem, expected = f"'{framework}' has no collective benchmark", benchmarked or "none"
        raise InputError("unknown-name", problem, file="--framework", got=framework, expected=expected)
    gradients, names = _requested_gradients(args)
    carrier = next(
        (name for name in (network.laws if network else {}) if name[0] == framework), (framework, "site")
    )
    given_law = Law(args.algorithm, law.PIPELINED, 0.0, 2 * args.latency, 1 / args.share, 0.0)
    # All-gather and reduce-scatter are each one of the two passes of an all-reduce.
    shards = {name: replace(given_law, step_s=args.latency, collective=name) for name in communication.SHARDS}
    computation: dict[Levels, np.ndarray] = {
        (framework,): np.array([0.0, cast(float, args.step_time) / args.batch_size, 0.0])
    }
    model = PhysicalModel(
        (),
        computation,
        computation,
        {names: gradients},
        {carrier: network.laws[carrier] if network else {ALL_REDUCE: given_law, **shards}},
        {carrier: network.hidden[carrier] if network else args.hidden},
        {carrier: network.scatter[carrier] if network else args.scatter},
    )
    levels = {
        "framework": framework,
        "device": carrier[1],
        "baseline": framework,
        "model": names[0],
        "dataset": names[1],
    }
    counted = {"batch_size": args.batch_size, "sync_every": args.sync_every, "samples": args.samples}
    fixed = {
        "batch_scope": "local",
        "training_loop": "custom",
        "nodes": 1.0,
        "rate": np.nan,
        "is_mesh": False,
    }
    return model, pd.DataFrame([levels | counted | fixed])


def _requested_gradients(args: Question) -> tuple[communication.Tensors, tuple[str, str]]:
    """Return the gradients of the model in question, and its names of model and data set."""
    if args.model is not None:
        if args.model not in model_names():
            problem, models = f"'{args.model}' is unknown", model_names()
            raise InputError(
                "unknown-name", problem, file="--model", got=args.model, **alternatives(args.model, models)
            )
        load_dataset(args.dataset, "--dataset")
        try:
            return communication.gradient_tensors(model_graph(args.model, args.dataset)), (
                args.model,
                args.dataset,
            )
        except ValueError as error:
            problem, hint = f"{args.model} for {args.dataset}: {error}", "name another --dataset, or model"
            raise InputError("conflicting-keys", problem, file="--model", got=args.model, hint=hint) from None
    size = args.gradient_bytes or BYTES * cast(float, args.parameters)
    return communication.single_tensor(size), (f"{size / 1e6:g} MB of gradients", "any")


@dataclass(frozen=True)
class Answer:
    """The answer: curves over nodes (`extrapolate.predict_curves`), rows of the table, and notes."""

    curves: pd.DataFrame
    rows: pd.DataFrame
    notes: list[str]

    @property
    def table(self) -> tables.Table:
        """The rows as a table."""
        return table(self.rows, self.notes)


def answer(args: Question, study: Study | None = None) -> Answer:
    """Answer a question about `study`, or about the study that it names."""
    study = load_study(args.study) if args.study and study is None else study
    if study and args.step_time is None:
        model, cases = study.fitted, study_cases(study.cells)
    else:
        model, cases = model_from_numbers(args, study.fitted if study else None)
    if study and conditions.is_emulated(study.runs):
        cases = cases[:0]
    curves = drop_incomplete_curves(
        predict_curves(
            model,
            hypothetical_cells(cases, [GIGABIT * rate for rate in dict.fromkeys(args.rate)], args.nodes),
        )
    )
    rows = summarize_curves(curves)
    if study and args.step_time is None and len(rows):
        curves, rows = add_bands(curves, rows, _bootstrap(study, curves))
    if rows.empty:
        notes = _no_answer_notes(study)
    else:
        notes = [
            _unanswered_note(cases, rows),
            EXTRAPOLATED,
            *(_study_notes(study, args) if study else _assumption_notes(args)),
        ]
    return Answer(curves, rows, [note for note in notes if note])


def curve_columns(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of projection_curves.csv."""
    bands = [name for name in curves if name.startswith(tuple(BANDS))]
    return curves[[*FACTORS, "rate", "nodes", "epoch_time_s", *bands]]


def main(*, runs: Path, network: Path, out: Path) -> None:
    """Write the table of a study, and what its figure shows as numbers.

    Args:
        runs: runs.csv of the study
        network: network.csv of the study
        out: files of the table to write, without their suffix; the curves lie beside it
    """
    projection = answer(ask(from_=runs.parent), load_records(runs, network))
    tables.write(projection.table, out)
    tables.write_csv(curve_columns(projection.curves), out.with_name(f"{out.name}_curves.csv"))


def _bootstrap(study: Study, curves: pd.DataFrame) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """Return BANDS and rows of N_REFITS refitted models, computed on all cores, and print progress."""
    streams = np.random.default_rng(N_REFITS).spawn(N_REFITS)
    parts = [streams[first : first + REFITS_PER_TASK] for first in range(0, N_REFITS, REFITS_PER_TASK)]
    refits: list[tuple[pd.DataFrame, pd.DataFrame]] = []
    with all_cores() as pool:
        for part in pool.map(
            _refit_curves, repeat(replace(study, runs=study.runs[:0])), repeat(curves), parts
        ):
            refits += part
            if len(refits) % PROGRESS_INTERVAL == 0 or len(refits) == N_REFITS:
                print(f"intervals: {len(refits)} of {N_REFITS} refits are done", file=sys.stderr, flush=True)
    return refits


def _refit_curves(
    study: Study, curves: pd.DataFrame, streams: Sequence[np.random.Generator]
) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """Return BANDS and rows of one refitted model for each of these random streams."""
    refitted = (
        predict_curves(refit_resampled(study.cells, study.benchmarks, study.fitted, rng), curves)
        for rng in streams
    )
    return [(refit[BANDS], summarize_curves(refit)) for refit in refitted]


def _no_answer_notes(study: Study | None) -> list[str]:
    """Return notes that say why there is no answer."""
    if study is None:
        return [NOTHING_TO_PREDICT]
    if successful(study.runs).empty:
        return [conditions.run_counts_note(study.runs), conditions.setting_note(study.runs)]
    reasons = (
        [EMULATED, WHAT_TO_DO]
        if conditions.is_emulated(study.runs)
        else [NOTHING_TO_PREDICT, physics.left_out_note(study.runs)]
    )
    return [*reasons, conditions.setting_note(study.runs)]


def _unanswered_note(cases: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Return a note of the frameworks without an answer, "" if there are none."""
    unanswered = sorted(set(cases["framework"]) - set(rows["framework"]))
    text = (
        "Not answered, because the collective benchmark has fewer than two message sizes: "
        f"{conditions.join_names(unanswered)}."
    )
    return Note("not-answered", text, frameworks=unanswered) if unanswered else ""


EXTRAPOLATED = Note(
    "extrapolated",
    "Extrapolated by the physical model of the table of predictions. Efficiency is speed-up divided by "
    "nodes; the baseline is the same model on one node with the same local batch. A node has one replica, "
    "and there are at most as many nodes as batches in an epoch. The columns of nodes have the largest "
    "number of nodes up to which efficiency stays at that level.",
)


def _assumption_notes(args: Question) -> list[str]:
    """Return the numbers that the answer assumes, as a note."""
    text = (
        f"Nothing here was measured: a step of {args.step_time:g} s with {args.batch_size} samples, "
        f"{args.samples} samples an epoch, an all-reduce every {_batch_count_text(args.sync_every)}; "
        f"messages of {args.framework or DEFAULT_FRAMEWORK} on a {args.algorithm}, {args.latency:g} s to the "
        f"next node at every rate, {100 * args.share:g} % of the link's rate; hidden share {args.hidden:g}, "
        f"scatter {args.scatter:g}."
    )
    names = (
        "step_time",
        "batch_size",
        "samples",
        "sync_every",
        "algorithm",
        "latency",
        "share",
        "hidden",
        "scatter",
    )
    return [Note("not-measured", text, **{name: getattr(args, name) for name in names})]


def _study_notes(study: Study, args: Question) -> list[str]:
    """Return notes on the measurements behind the answer, and on what it assumes."""
    rates = [rate_text(rate) for rate in sorted(study.benchmarks["link_bytes_s"].unique())]
    nodes = ", ".join(f"{count:g}" for count in sorted(study.benchmarks["nodes"].unique()))
    networks = [laws[ALL_REDUCE] for laws in study.fitted.laws.values()]
    algorithms = " or ".join(sorted({network.algorithm for network in networks})) or "ring"
    link = (
        "falls in proportion to its rate"
        if study.benchmarks["link_bytes_s"].notna().any()
        else "is at least that of its full rate"
    )
    hidden_cost = not any(network.cost_s for network in networks)
    text = (
        f"The collective benchmark ran on {nodes} nodes with links of {', '.join(rates)}. Elsewhere, the "
        f"latency of a step of the {algorithms} is assumed the same at every rate, and time on the link "
        f"{link}"
        + (
            ". CPU time per byte cannot be separated from time on the link and is left out, so faster "
            "links look better than they are."
            if hidden_cost
            else "."
        )
    )
    benchmarked = {
        name: sorted(study.benchmarks[name].dropna().unique()) for name in ("nodes", "link_bytes_s")
    }
    notes: list[str] = [Note("benchmarked", text, **benchmarked, cost_left_out=hidden_cost)]
    if args.step_time is None:
        alone = _single_place_frameworks(study)
        text = (
            f"Brackets have 95 % intervals of a parametric bootstrap ({N_REFITS} refits of model and law to "
            "cells and benchmarks resampled with their noise). They do not include effects that the model "
            "leaves out." + _network_uncertainty_text(study, alone)
        )
        notes.append(Note("intervals", text, refits=N_REFITS, benchmarked_at_one_place=alone))
    else:
        text = (
            f"A step of {args.step_time:g} s with {args.batch_size} samples is given, not measured here; so "
            f"are {args.samples} samples an epoch and an all-reduce every "
            f"{_batch_count_text(args.sync_every)}."
        )
        notes.append(Note("step-given", text, step_time=args.step_time, batch_size=args.batch_size))
    if "virtual" in set(study.runs["placement"].dropna()):
        shares = sorted(study.runs["cpu_share"].dropna().unique())
        cores = ", ".join(f"{share:g}" for share in shares)
        text = (
            f"The measured nodes had {cores or 'a part of a'} core each, of a virtual cluster: on whole "
            "machines computation is faster, so the same link matters more."
        )
        notes.append(Note("virtual-nodes", text, cores=shares))
    return [
        *notes,
        physics.left_out_note(study.runs),
        physics.heterogeneous_note(study.runs),
        conditions.setting_note(study.runs),
    ]


def _single_place_frameworks(study: Study) -> list[str]:
    """Return the frameworks whose benchmarks ran at one place, so that the misfit of their law is unknown."""
    with_misfit = {name for name, laws in study.fitted.laws.items() if np.isfinite(laws[ALL_REDUCE].misfit)}
    return sorted(name for name, _ in set(study.fitted.laws) - with_misfit)


def _network_uncertainty_text(study: Study, alone: Sequence[str]) -> str:
    """Return what intervals omit for frameworks benchmarked at one place, after a space; "" for none."""
    if not alone:
        return ""
    rounds = study.benchmarks["error"].notna().any()
    content = (
        "no uncertainty of the network except the differences between rounds"
        if rounds
        else "no uncertainty of the network"
    )
    return (
        f" The benchmark ran at one number of nodes and one rate ({conditions.join_names(alone)}), so "
        f"intervals include {content}."
    )


def _batch_count_text(count: int) -> str:
    return "batch" if count == 1 else f"{count} batches"


if __name__ == "__main__":
    sys.exit(run_program(main))
