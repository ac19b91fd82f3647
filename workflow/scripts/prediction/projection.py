"""Table `projection`: the scaling projection, speed-up at unmeasured link rates and node counts.

The projection uses a study's cells and collective benchmark, if there is one, or numbers alone (see
prediction.question). figures.projection draws it.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.measured import (
    currency_of,
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
from prediction import worth
from prediction.cells import (
    heterogeneous_note,
    is_evenly_divided,
    is_heterogeneous,
    is_mesh,
    left_out_note,
    measured_cells,
)
from prediction.curves import (
    BANDS,
    CURVE,
    ENDS,
    FACTORS,
    LEVELS,
    hypothetical_cells,
    node_counts,
    predict_curves,
    study_cases,
    summarize_curve,
)
from prediction.message_times import Network, rate_text, read_benchmark
from prediction.question import DEFAULT_FRAMEWORK, GIGABIT, MAX_NODES, RATES, Question, ask
from prediction.study import StudyLaw

NOTHING_TO_PREDICT = Note(
    "nothing-to-predict",
    "A scaling projection needs cells on one node and on several, and the rate of their links or the time of "
    "messages.",
)
EMULATED = Note(
    "emulated",
    "Emulated nodes have no scaling projection, because they share the loopback of one machine instead "
    "of a network.",
)
WHAT_TO_DO = Note(
    "what-to-do",
    "Give numbers instead (`./ringside predict --help` explains them), or measure the study at a site "
    "whose nodes have a network.",
)
TITLE = "How many nodes are worth it, by the rate of the links"
COUNTS_TITLE = "What numbers of nodes give, with 90 % bands"
TITLES = {"treatment": "treatment", "rate": "links"}  # of columns that are no factors
QUANTITIES = {
    "epoch_time_s": "epoch (s)", "speedup": "speed-up", "throughput_samples_s": "samples/s",
    "efficiency": "efficiency (%)", "node_hours": "node hours", "cost": "cost",
}  # fmt: skip
MAX_SENTENCES = 6
MAX_MISFIT = 2.0  # factor between the time of a place that is given, and the law that is fitted to it
EXTRAPOLATED = Note(
    "extrapolated",
    "Extrapolated by the law of the table of predictions. Efficiency is speed-up divided by nodes; the "
    "baseline is the same model on one node with the same local batch, predicted where it was not measured. "
    "Nodes at an efficiency: the largest number up to which it stays at that level. Brackets have 90 % "
    "bands, which were set on public measurements of GPU clusters.",
)
LIMITED_BY_DATA = Note("limited-by-data", "There are at most as many replicas as batches in an epoch.")


def table(rows: pd.DataFrame, notes: Sequence[str]) -> tables.Table:
    """Return the table of `summarize`."""
    if rows.empty:
        return tables.Table(TITLE, rows, pd.DataFrame(), list(notes))
    constant = [name for name in ("device", "treatment") if rows[name].nunique() == 1]
    columns = _case_columns(rows, [name for name in CURVE if name not in constant])
    text_columns = [*columns][:-2]
    columns["nodes worth it"] = _band_texts(rows, "worth_nodes")
    columns["next doubling gains (%)"] = [tables.number(100 * gain, 2) for gain in rows["next_gain"]]
    columns["limited by"] = rows["limit"].where(rows["limit"] != "", tables.DASH)
    for level in LEVELS:
        columns[f"nodes at {100 * level:.0f} % efficiency"] = _band_texts(rows, f"nodes_at_{100 * level:.0f}")
    columns["measure next"] = rows["measure_next"].where(rows["measure_next"] != "", tables.DASH)
    group_starts = rows.index[(rows[FACTORS] != rows[FACTORS].shift()).any(axis=1)].tolist()
    rules = group_starts[1:] if len(group_starts) < len(rows) else []
    left_aligned = [*text_columns, "limited by"]
    return tables.Table(TITLE, rows, pd.DataFrame(columns), list(notes), left_aligned, rules)


def _case_columns(rows: pd.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    """Return the columns of `names` as text, by their headings."""
    return {
        TITLES.get(name) or title(name): rows[name].map(rate_text if name == "rate" else str)
        for name in names
    }


def counts_table(curves: pd.DataFrame, counts: Sequence[int]) -> tables.Table:
    """Return what some numbers of nodes give, by case and link rate."""
    rows = curves[curves["nodes"].isin(counts)].reset_index(drop=True)
    columns = _case_columns(rows, [name for name in CURVE if rows[name].nunique(dropna=False) > 1])
    columns["nodes"] = rows["nodes"].map("{:.0f}".format)
    for name, heading in QUANTITIES.items():
        if rows[name].notna().any():
            unit = f" ({rows['currency'].iloc[0]})" if name == "cost" and rows["currency"].iloc[0] else ""
            columns[f"{heading}{unit}"] = _band_texts(rows, name, 100 if name == "efficiency" else 1)
    return tables.Table(COUNTS_TITLE, rows, pd.DataFrame(columns), [])


def _band_texts(rows: pd.DataFrame, name: str, factor: float = 1.0) -> list[str]:
    """Return a column with its band as text; node counts at the end of the curve as "≥n"."""
    values = factor * rows[[f"{name}{end}" for end in ENDS]]
    texts = values.map(tables.number)
    if "nodes" in name:
        ends = "≥" + rows["most_nodes"].map("{:.0f}".format)
        texts = values.map("{:.0f}".format).mask(values.ge(rows["most_nodes"], axis=0), ends, axis=0)
    return [f"{value} [{low}, {high}]" for value, low, high in texts.itertuples(index=False)]


@dataclass(frozen=True)
class Study:
    """A study's runs, and the law of its cells and collective benchmark."""

    runs: pd.DataFrame
    law: StudyLaw

    @property
    def left_out_note(self) -> str:
        """A note of the cells that the law does not use, "" if there are none."""
        is_used_mesh = is_mesh(self.runs) & self.runs["cell"].isin(self.law.cells["cell"])
        return left_out_note(self.runs[~is_used_mesh])


def load_study(folder: Path) -> Study:
    """Return the study whose records are in `folder`."""
    network = folder / "network.csv"
    return load_records(folder / "runs.csv", network if stored_file(network).exists() else None)


def load_records(runs_csv: Path, network_csv: Path | None) -> Study:
    """Return the study of these runs and benchmarks."""
    runs = with_batch_numbers(read_timing_runs(runs_csv))
    cells = measured_cells(runs[~is_heterogeneous(runs)], include_meshes=True)
    cells = cells[~cells["is_mesh"] | is_evenly_divided(cells)].reset_index(drop=True)
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
        "treatment": "", "inside_rate": np.nan if args.inside_rate is None else GIGABIT * args.inside_rate,
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
    law = StudyLaw(cells, network)
    _check_places(args, law.predict(cells).seconds / n_allreduces.to_numpy())
    return law, cells.iloc[[-1]]


def _check_places(args: Question, predicted_s: np.ndarray) -> None:
    """Raise InputError if the law misses the time of a place, from which it was fitted, by MAX_MISFIT."""
    for (nodes, devices, step_s), own_s in zip(args.places, predicted_s.tolist(), strict=True):
        if own_s > MAX_MISFIT * step_s or step_s > MAX_MISFIT * own_s:
            place, rate_bytes_s = f"{nodes}x{devices}", GIGABIT * args.rate[0]
            problem = f"{place}={step_s:g} contradicts the other numbers, by which it is {own_s:.2g} s"
            hint = f"correct it, or the --rate of its links, {rate_text(rate_bytes_s)}"
            raise InputError("contradicting-places", problem, file="--measured", got=place, hint=hint)


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


def answer(args: Question, study: Study | None = None, cell: str = "") -> Answer:
    """Answer a question about `study`, or about the study that it names; of one of its cells if it is named.

    A named cell is asked about with its own links.
    """
    study = load_study(args.study) if args.study and study is None else study
    if study and not args.places:
        law, cases = study.law, study_cases(study.law.cells)
        if cell:
            cases = law.cells[law.cells["cell"] == cell].assign(treatment="")
    else:
        law, cases = law_of_numbers(args, study)
    if study and conditions.is_emulated(study.runs):
        cases = cases[:0]
    is_epoch_known = bool(args.places) or study is None or not measured_elsewhere(study.runs)
    counts = np.union1d(node_counts(args.nodes), args.at).astype(int)
    rates = [] if cell else _link_rates(args, law, cases, is_epoch_known)
    cells = hypothetical_cells(cases, rates, counts, is_epoch_known=is_epoch_known)
    curves = predict_curves(law, cells)
    price = _node_hour_price(args, study)
    for end in ENDS:
        curves[f"node_hours{end}"] *= args.epochs
        curves[f"cost{end}"] = price * curves[f"node_hours{end}"]
    curves["currency"] = currency_of(study.runs) if study and args.price is None else ""
    rows, sentences = summarize(law, curves, args)
    if rows.empty:
        notes = _no_answer_notes(study)
    else:
        own_notes = [_number_note(args)] if args.places else law.predict(cases).notes
        study_notes = _study_notes(study) if study else []
        limit = LIMITED_BY_DATA if is_epoch_known else ""
        explained = [_unanswered_note(cases, rows), _worth_note(args.min_gain), EXTRAPOLATED, limit]
        notes = [*sentences, *explained, *own_notes, *study_notes]
    return Answer(curves, rows, list(filter(None, notes)))


def _node_hour_price(args: Question, study: Study | None) -> float:
    """Return the price of a node hour that the question or else the study states, NaN without one."""
    if args.price is not None or study is None:
        return math.nan if args.price is None else args.price
    prices = study.runs.get("price_per_node_hour", pd.Series(dtype=float))
    return float(prices.max()) if prices.nunique() == 1 else math.nan


def _link_rates(args: Question, law: StudyLaw, cases: pd.DataFrame, is_measured_here: bool) -> list[float]:
    """Return the rates that the question names, or the usual ones and the study's fastest.

    It is empty where each case is asked at its own rate: measurements made elsewhere.
    """
    rates = [GIGABIT * rate for rate in dict.fromkeys(args.rate)]
    if args.study is None or args.places or args.rate != RATES:
        return rates
    if not is_measured_here and (cases["rate"].notna() | (cases["nodes"] > 1)).all():
        return []
    return sorted({*rates, *law.cells["rate"].dropna().nlargest(1)})


def summarize(law: StudyLaw, curves: pd.DataFrame, args: Question) -> tuple[pd.DataFrame, list[Note]]:
    """Return a row of the table for each curve, and the answers in sentences.

    What to measure next, and a sentence, are for the links that were measured; for all, where one node alone
    was.
    """
    rows, sentences = [], []
    linked = law.cells.loc[law.cells["nodes"] > 1, "rate"]
    for names, curve in curves.groupby(CURVE, sort=False, dropna=False):
        case = dict(zip(CURVE, names, strict=True))
        scaling = worth.predict_scaling(law, curve)
        knee = worth.knee(scaling, args.min_gain)
        is_measured = linked.empty or linked.isin([case["rate"]]).any() or linked.isna().all()
        target = int(min(2 * knee.nodes.high, knee.considered))
        is_open = is_measured and not knee.is_certain
        design = worth.next_counts(scaling, target, args.measurable) if is_open else None
        row = case | summarize_curve(curve) | worth.describe(knee, design) | {"answer": ""}
        if is_measured:
            row["answer"] = worth.explain(knee, design, args.min_gain, _case_clause(case, curves))
            sentences.append(Note("worth-it", str(row["answer"]), **row))
        rows.append(row)
    omitted = len(sentences) - MAX_SENTENCES
    if omitted > 0:
        text = f"The table has {omitted} more cases, its CSV their answers in the column `answer`."
        sentences[MAX_SENTENCES:] = [Note("answers-left-out", text)]
    return pd.DataFrame(rows, columns=None if rows else CURVE), sentences


def _case_clause(case: Mapping[str, Any], curves: pd.DataFrame) -> str:
    """Return the first clause of a sentence on a case, with what distinguishes it."""
    names = [name for name in FACTORS if curves[name].nunique() > 1]
    texts = [f"batches of {case[name]}" if name == "batch_size" else str(case[name]) for name in names]
    return f"With {', '.join([*texts, 'links of ' + rate_text(case['rate'])])}"


def forecast(study: Study, nodes: int, cell: str = "") -> pd.DataFrame:
    """Return what a study's cases give on a number of nodes, with the links that were measured.

    Args:
        study: What was measured (`load_study`).
        nodes: The number of nodes in question.
        cell: The cell whose case is asked about; "": all cases.

    Returns:
        A row for each case: `curves.CURVE`, `nodes`, the quantities of `curves.BANDS` with their 90 % bands,
        and the columns of the table `projection`. It is empty where nothing can be predicted.
    """
    projected = answer(ask(from_=Path(), nodes=max(MAX_NODES, 2 * nodes), at=[nodes]), study, cell)
    if projected.rows.empty:
        return projected.rows
    curves = curve_columns(projected.curves)
    return curves[curves["nodes"] == nodes].merge(projected.rows[projected.rows["answer"] != ""], on=CURVE)


def curve_columns(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of projection_curves.csv."""
    return curves[[*CURVE, "nodes", *(f"{name}{end}" for name in BANDS for end in ENDS), "currency"]]


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
    reasons = [EMULATED, WHAT_TO_DO] if is_emulated else [NOTHING_TO_PREDICT, study.left_out_note]
    return [*reasons, conditions.setting_note(study.runs)]


def _unanswered_note(cases: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Return a note of the frameworks without an answer, "" if there are none."""
    unanswered = sorted(set(cases["framework"]) - set(rows["framework"]))
    text = f"Not answered, because one node was not measured: {conditions.join_names(unanswered)}."
    return Note("not-answered", text, frameworks=unanswered) if unanswered else ""


def _worth_note(share: float) -> Note:
    """Return what the columns of nodes that are worth it mean, as a note."""
    text = (
        f"Nodes worth it: up to how many a doubling gains {100 * share:.0f} % or more of the ideal, which is "
        "the throughput of as many single nodes as it adds. Limited by: the part of a step that takes most "
        "of the node time that the next doubling adds."
    )
    return Note("worth", text, share=share)


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
        study.left_out_note,
        heterogeneous_note(study.runs),
        conditions.setting_note(study.runs),
    ]


if __name__ == "__main__":
    sys.exit(run_program(main))
