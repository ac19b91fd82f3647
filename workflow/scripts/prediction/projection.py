"""Table `projection`: the scaling projection, speed-up at unmeasured link rates and node counts.

The projection uses a study's cells and collective benchmark, if there is one, or numbers alone (see
prediction.question). figures.projection draws it.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.measured import (
    factors,
    measured_elsewhere,
    read_timing_runs,
    successful,
    title,
    with_batch_numbers,
)
from common.errors import InputError
from common.notes import Note
from common.options import run_program
from common.tables import stored_file
from common.text import alternatives
from declared.datasets import load_dataset
from declared.models import model_graph, model_names
from models.graph import BYTES
from prediction.cells import heterogeneous_note, is_heterogeneous, left_out_note, measured_cells
from prediction.curves import (
    BANDS,
    ENDS,
    FACTORS,
    LEVELS,
    hypothetical_cells,
    predict_curves,
    study_cases,
    summarize_curves,
)
from prediction.message_times import Network, rate_text, read_benchmark
from prediction.question import DEFAULT_FRAMEWORK, GIGABIT, RATES, Question, ask
from prediction.study import StudyLaw

NOTHING_TO_PREDICT = Note(
    "nothing-to-predict",
    "A scaling projection needs cells on one node and on several, and the rate of their links or the time of "
    "messages.",
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
EXTRAPOLATED = Note(
    "extrapolated",
    "Extrapolated by the law of the table of predictions. Efficiency is speed-up divided by nodes; the "
    "baseline is the same model on one node with the same local batch. The columns of nodes have the largest "
    "number of nodes up to which efficiency stays at that level. Brackets have 90 % bands, which were set on "
    "public measurements of GPU clusters.",
)
LIMITED_BY_DATA = Note("limited-by-data", "There are at most as many replicas as batches in an epoch.")


def table(rows: pd.DataFrame, notes: Sequence[str]) -> tables.Table:
    """Return the table of `curves.summarize_curves`."""
    shown_factors = [name for name in FACTORS if name != "device" or rows[name].nunique() > 1]
    columns: dict[str, Any] = {title(name): rows[name].map(str) for name in shown_factors}
    columns["links"] = rows["rate"].map(rate_text)
    for level in LEVELS:
        columns[f"nodes at {100 * level:.0f} % efficiency"] = _band_texts(rows, f"nodes_at_{100 * level:.0f}")
    columns["greatest speed-up"] = _band_texts(rows, "greatest_speedup")
    columns["on nodes"] = rows["at_nodes"].map(lambda nodes: f"{nodes:.0f}")
    group_starts = rows.index[(rows[FACTORS] != rows[FACTORS].shift()).any(axis=1)].tolist()
    text_columns = [title(name) for name in shown_factors if name != "batch_size"]
    return tables.Table(TITLE, rows, pd.DataFrame(columns), list(notes), text_columns, group_starts[1:])


def _band_texts(rows: pd.DataFrame, name: str) -> list[str]:
    """Return a column with its band as text; node counts at the end of the curve as "≥n"."""
    values = rows[[f"{name}{end}" for end in ENDS]]
    texts = values.map(tables.number)
    if name.startswith("nodes"):
        ends = "≥" + rows["most_nodes"].map("{:.0f}".format)
        texts = values.map("{:.0f}".format).mask(values.ge(rows["most_nodes"], axis=0), ends, axis=0)
    return [f"{value} [{low}, {high}]" for value, low, high in texts.itertuples(index=False)]


@dataclass(frozen=True)
class Study:
    """A study's runs, and the law of its cells and collective benchmark."""

    runs: pd.DataFrame
    law: StudyLaw


def load_study(folder: Path) -> Study:
    """Return the study whose records are in `folder`."""
    network = folder / "network.csv"
    return load_records(folder / "runs.csv", network if stored_file(network).exists() else None)


def load_records(runs_csv: Path, network_csv: Path | None) -> Study:
    """Return the study of these runs and benchmarks."""
    runs = with_batch_numbers(read_timing_runs(runs_csv))
    cells = measured_cells(runs[~is_heterogeneous(runs)])
    return Study(runs, StudyLaw(cells, read_benchmark(network_csv, cells).smooth()))


def law_of_numbers(args: Question, study: Study | None) -> tuple[StudyLaw, pd.DataFrame]:
    """Return the law and the one case that the options describe, on a study's network if one is given."""
    network = study.law.network if study else Network()
    framework, device = args.framework or DEFAULT_FRAMEWORK, "site"
    if study:
        benchmarked = network.carriers
        names = sorted({name for name, _ in benchmarked})
        framework = args.framework or (names[0] if len(names) == 1 else DEFAULT_FRAMEWORK)
        if framework not in names:
            problem = f"'{framework}' has no collective benchmark"
            raise InputError(
                "unknown-name", problem, file="--framework", got=framework, expected=names or "none"
            )
        device = next(own for name, own in benchmarked if name == framework)
    size, (model, dataset) = _requested_size(args)
    levels = {
        "framework": framework, "device": device, "baseline": framework, "model": model, "dataset": dataset,
        "computes": "data", "batch_size": args.batch_size, "sync_every": args.sync_every,
        "samples": args.samples, "batch_scope": "local", "training_loop": "custom", "is_mesh": False,
        "local_batch": float(args.batch_size), "gradient_bytes": size, "n": 1, "sd": np.nan,
        "inside_rate": np.nan if args.inside_rate is None else GIGABIT * args.inside_rate,
    }  # fmt: skip
    places = pd.DataFrame(args.places, columns=["nodes", "per_node", "step_s"])
    replicas = places["nodes"] * places["per_node"]
    n_allreduces = args.samples / (args.batch_size * args.sync_every) / replicas
    cells = pd.DataFrame([levels] * len(places)).assign(
        nodes=places["nodes"], replicas=replicas, ranks=replicas,
        rate=GIGABIT * args.rate[0], steps=n_allreduces * args.sync_every,
        n_allreduces=n_allreduces, epoch_time_s=places["step_s"] * n_allreduces,
    )  # fmt: skip
    missing = {name: None for name in factors() if name not in cells}
    cells = cells.assign(**missing)
    return StudyLaw(cells, network), cells.iloc[[-1]]


def _requested_size(args: Question) -> tuple[float, tuple[str, str]]:
    """Return the bytes of gradients of the model in question, and its names of model and data set."""
    if args.model is None:
        size = args.gradient_bytes or BYTES * float(args.parameters or 0.0)
        return size, (f"{size / 1e6:g} MB of gradients", "any")
    if args.model not in model_names():
        problem, models = f"'{args.model}' is unknown", model_names()
        raise InputError(
            "unknown-name", problem, file="--model", got=args.model, **alternatives(args.model, models)
        )
    load_dataset(args.dataset, "--dataset")
    try:
        return float(model_graph(args.model, args.dataset).gradient_bytes), (args.model, args.dataset)
    except ValueError as error:
        problem, hint = f"{args.model} for {args.dataset}: {error}", "name another --dataset, or model"
        raise InputError("conflicting-keys", problem, file="--model", got=args.model, hint=hint) from None


@dataclass(frozen=True)
class Answer:
    """The answer: curves over nodes (`curves.predict_curves`), rows of the table, and notes."""

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
    if study and not args.places:
        law, cases = study.law, study_cases(study.law.cells)
    else:
        law, cases = law_of_numbers(args, study)
    if study and conditions.is_emulated(study.runs):
        cases = cases[:0]
    rates = [GIGABIT * rate for rate in dict.fromkeys(args.rate)]
    if study and not args.places and args.rate == RATES and law.cells["rate"].notna().any():
        rates = sorted({*rates, law.cells["rate"].max()})
    is_epoch_known = bool(args.places) or study is None or not measured_elsewhere(study.runs)
    cells = hypothetical_cells(cases, rates, args.nodes, is_epoch_known=is_epoch_known)
    curves = predict_curves(law, cells)
    rows = summarize_curves(curves)
    if rows.empty:
        notes = _no_answer_notes(study)
    else:
        own_notes = [_number_note(args)] if args.places else law.predict(cases).notes
        study_notes = _study_notes(study) if study else []
        limit = LIMITED_BY_DATA if is_epoch_known else ""
        notes = [_unanswered_note(cases, rows), EXTRAPOLATED, limit, *own_notes, *study_notes]
    return Answer(curves, rows, list(filter(None, notes)))


def curve_columns(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of projection_curves.csv."""
    bands = [name for name in curves if name.startswith(tuple(BANDS))]
    return curves[[*FACTORS, "rate", "nodes", "epoch_time_s", *bands]]


def main(*, runs: Path, network: Path | None = None, out: Path) -> None:
    """Write the table of a study, and what its figure shows as numbers.

    Args:
        runs: runs.csv of the study
        network: network.csv of the study, if there is a collective benchmark
        out: files of the table to write, without their suffix; the curves lie beside it
    """
    projection = answer(ask(from_=runs.parent), load_records(runs, network))
    tables.write(projection.table, out)
    tables.write_csv(curve_columns(projection.curves), out.with_name(f"{out.name}_curves.csv"))


def _no_answer_notes(study: Study | None) -> list[str]:
    """Return notes that say why there is no answer."""
    if study is None:
        return [NOTHING_TO_PREDICT]
    if successful(study.runs).empty:
        return [conditions.run_counts_note(study.runs), conditions.setting_note(study.runs)]
    is_emulated = conditions.is_emulated(study.runs)
    reasons = [EMULATED, WHAT_TO_DO] if is_emulated else [NOTHING_TO_PREDICT, left_out_note(study.runs)]
    return [*reasons, conditions.setting_note(study.runs)]


def _unanswered_note(cases: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Return a note of the frameworks without an answer, "" if there are none."""
    unanswered = sorted(set(cases["framework"]) - set(rows["framework"]))
    text = f"Not answered, because one node was not measured: {conditions.join_names(unanswered)}."
    return Note("not-answered", text, frameworks=unanswered) if unanswered else ""


def _number_note(args: Question) -> Note:
    """Return the numbers that the answer assumes, as a note."""
    places = ", ".join(f"{nodes} x {devices}: {step_s:g} s" for nodes, devices, step_s in args.places)
    every = "batch" if args.sync_every == 1 else f"{args.sync_every} batches"
    text = (
        f"Given, not measured here: steps ({places}; nodes x devices) with {args.batch_size} samples a "
        f"device, {args.samples} samples an epoch, an all-reduce every {every}."
    )
    facts = {name: getattr(args, name) for name in ("places", "batch_size", "samples", "sync_every")}
    return Note("not-measured", text, **facts)


def _study_notes(study: Study) -> list[str]:
    """Return notes on the measurements behind the answer, and on what it assumes."""
    notes: list[str] = []
    network = study.law.network
    if network.points is not None and len(network.points):
        nodes = sorted(network.points["nodes"].unique())
        text = (
            f"The collective benchmark ran on {', '.join(f'{count:g}' for count in nodes)} nodes with links "
            f"of {', '.join(map(rate_text, network.rates)) or 'no known rate'}."
        )
        notes.append(Note("benchmarked", text, nodes=nodes, link_bytes_s=network.rates))
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
        left_out_note(study.runs),
        heterogeneous_note(study.runs),
        conditions.setting_note(study.runs),
    ]


if __name__ == "__main__":
    sys.exit(run_program(main))
