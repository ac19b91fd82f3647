"""Table `projection`: the scaling projection, predicted speed-ups at unmeasured link rates and node counts.

The projection uses a study's cells and its collective benchmark, if there is one, or numbers alone
(prediction.question). figures.kinds.projection draws it, ringside.predicting shows it on a terminal.
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
from declared.mesh import PLAIN
from declared.models import model_graph, model_names
from models.graph import BYTES
from prediction import worth
from prediction.cells import (
    can_add_nodes,
    exclusion_note,
    heterogeneous_note,
    is_heterogeneous,
    measured_cells,
    uses_model_parallelism,
)
from prediction.curves import (
    BAND_COLUMNS,
    CURVE,
    EFFICIENCIES,
    FACTORS,
    SUFFIXES,
    hypothetical_cells,
    node_counts,
    predict_curves,
    study_cases,
    summarize_curve,
)
from prediction.message_times import CollectiveBenchmark, rate_text, read_benchmark
from prediction.question import DEFAULT_FRAMEWORK, GIGABIT_BYTES, MAX_NODES, RATES, ScalingQuestion
from prediction.study import StudyPredictor

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
TITLES = {"treatment": "treatment", "rate": "links"}  # of columns that are not factors
QUANTITIES = {
    "epoch_time_s": "epoch (s)", "speedup": "speed-up", "throughput_samples_s": "samples/s",
    "efficiency": "efficiency (%)", "node_hours": "node hours", "cost": "cost",
}  # fmt: skip
MAX_SENTENCES = 6
MAX_MISFIT = 2.0  # factor between a given time, and the law that is fitted to the given times
EXTRAPOLATED = Note(
    "extrapolated",
    "Extrapolated by the law of the table of predictions. Efficiency is speed-up divided by nodes; the "
    "baseline is the same model on one node with the same local batch, predicted if it was not measured. "
    "Nodes at an efficiency: the largest number up to which it stays at that level. Brackets: 90 % bands, "
    "set on public measurements of GPU clusters.",
)
LIMITED_BY_DATA = Note("limited-by-data", "There are at most as many replicas as batches in an epoch.")


def table(rows: pd.DataFrame, notes: Sequence[str]) -> tables.Table:
    """Return the table of the rows of `summarize_curves`."""
    if rows.empty:
        return tables.Table(TITLE, rows, pd.DataFrame(), list(notes))
    constant = [name for name in ("device", "treatment") if rows[name].nunique() == 1]
    columns = _case_columns(rows, [name for name in CURVE if name not in constant])
    text_columns = [*columns][:-2]
    columns["nodes worth it"] = _band_texts(rows, "worth_nodes")
    columns["next doubling gains (%)"] = [tables.number(100 * gain, 2) for gain in rows["next_gain"]]
    columns["limited by"] = rows["limit"].where(rows["limit"] != "", tables.DASH)
    for level in EFFICIENCIES:
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
    """Return the table of the predictions on some numbers of nodes, by case and link rate."""
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
    values = factor * rows[[f"{name}{suffix}" for suffix in SUFFIXES]]
    texts = values.map(tables.number)
    if "nodes" in name:
        open_ends = "≥" + rows["most_nodes"].map("{:.0f}".format)
        is_open = values.ge(rows["most_nodes"], axis=0)
        texts = values.map("{:.0f}".format).mask(is_open, open_ends, axis=0)
    return [f"{value} [{low}, {high}]" for value, low, high in texts.itertuples(index=False)]


@dataclass(frozen=True)
class MeasuredStudy:
    """A study's runs, and the predictor that is fitted to its cells and collective benchmark."""

    runs: pd.DataFrame
    predictor: StudyPredictor

    @property
    def exclusion_note(self) -> str:
        """A note on the cells that the law does not use, "" if there are none."""
        is_used_mesh = uses_model_parallelism(self.runs) & self.runs["cell"].isin(
            self.predictor.cells["cell"]
        )
        return exclusion_note(self.runs[~is_used_mesh])


def load_study(folder: Path) -> MeasuredStudy:
    """Read the study whose records, runs.csv and network.csv, are in `folder`."""
    network = folder / "network.csv"
    return load_records(folder / "runs.csv", network if stored_file(network).exists() else None)


def load_records(runs_csv: Path, network_csv: Path | None) -> MeasuredStudy:
    """Read runs and benchmarks, and return the study for scaling projections.

    This differs from the validation (prediction.held_out) in three ways. Meshes are used only if nodes can be
    added to them. The benchmark is smooth (`CollectiveBenchmark.smooth`), because curves pass through
    numbers of nodes that it measured and others. And bands are limited by ideal scaling
    (`curves.predict_curves`), so the shares of measurements in the band that the validation prints are those
    of the wider bands.
    """
    runs = with_batch_numbers(read_timing_runs(runs_csv))
    cells = measured_cells(runs[~is_heterogeneous(runs)], include_meshes=True)
    cells = cells[~cells["is_divided"] | can_add_nodes(cells)].reset_index(drop=True)
    return MeasuredStudy(runs, StudyPredictor(cells, read_benchmark(network_csv, cells).smooth()))


def predictor_of_numbers(
    question: ScalingQuestion, study: MeasuredStudy | None
) -> tuple[StudyPredictor, pd.DataFrame]:
    """Return the predictor and the one case that the numbers of a question describe.

    Messages take the time of the study's collective benchmark, if a study is given.

    Raises:
        InputError: If the model is unknown, the framework was not benchmarked, or the scales contradict each
            other.
    """
    benchmark = study.predictor.benchmark if study else CollectiveBenchmark()
    framework, device = question.framework or DEFAULT_FRAMEWORK, "site"
    if study:
        benchmarked = benchmark.framework_devices
        names = sorted({name for name, _ in benchmarked})
        framework = question.framework or (names[0] if len(names) == 1 else DEFAULT_FRAMEWORK)
        if framework not in names:
            problem = f"'{framework}' has no collective benchmark"
            raise InputError(
                "unknown-name", problem, file="--framework", got=framework, expected=names or "none"
            )
        device = next(device for name, device in benchmarked if name == framework)
    size, model, dataset = _requested_size(question)
    inside_rate = math.nan if question.inside_rate is None else GIGABIT_BYTES * question.inside_rate
    levels = {
        "framework": framework, "device": device, "baseline": framework, "model": model, "dataset": dataset,
        "lbann_layout": PLAIN, "batch_size": question.batch_size, "sync_every": question.sync_every,
        "samples": question.samples, "batch_scope": "local", "training_loop": "custom", "is_divided": False,
        "local_batch": float(question.batch_size), "gradient_bytes": size, "n": 1, "sd": np.nan,
        "treatment": "", "inside_rate": inside_rate,
    }  # fmt: skip
    scales = pd.DataFrame(question.scales, columns=["nodes", "per_node", "optimizer_step_s"])
    n_devices = scales["nodes"] * scales["per_node"]
    n_allreduces = question.samples / (question.batch_size * question.sync_every) / n_devices
    cells = pd.DataFrame([levels] * len(scales)).assign(
        nodes=scales["nodes"], n_devices=n_devices, ranks=n_devices,
        rate=GIGABIT_BYTES * question.rate[0], batches_per_epoch=n_allreduces * question.sync_every,
        n_allreduces=n_allreduces, epoch_time_s=scales["optimizer_step_s"] * n_allreduces,
    )  # fmt: skip
    cells = cells.assign(**{name: None for name in factors() if name not in cells})
    predictor = StudyPredictor(cells, benchmark)
    _check_scales(question, predictor.predict(cells).seconds / n_allreduces.to_numpy())
    return predictor, cells.iloc[[-1]]


def _check_scales(question: ScalingQuestion, predicted_s: np.ndarray) -> None:
    """Raise InputError if the law misses a given time, to which it was fitted, by a factor of MAX_MISFIT."""
    for (nodes, devices, step_s), law_s in zip(question.scales, predicted_s.tolist(), strict=True):
        if law_s > MAX_MISFIT * step_s or step_s > MAX_MISFIT * law_s:
            scale, rate_bytes_s = f"{nodes}x{devices}", GIGABIT_BYTES * question.rate[0]
            problem = f"{scale}={step_s:g} contradicts the other numbers, which predict {law_s:.2g} s"
            hint = f"correct it, or the --rate of its links, {rate_text(rate_bytes_s)}"
            raise InputError("contradicting-places", problem, file="--measured", got=scale, hint=hint)


def _requested_size(question: ScalingQuestion) -> tuple[float, str, str]:
    """Return the gradient bytes of the model in question, and the answer's names of model and data set."""
    model, dataset = question.model, question.dataset
    if model is None:
        size = question.gradient_bytes or BYTES * float(question.parameters or 0.0)
        return size, f"{size / 1e6:g} MB of gradients", "any"
    if model not in (models := model_names()):
        facts = {"file": "--model", "got": model, **alternatives(model, models)}
        raise InputError("unknown-name", f"'{model}' is unknown", **facts)
    load_dataset(dataset, "--dataset")
    try:
        return float(model_graph(model, dataset).gradient_bytes), model, dataset
    except ValueError as error:
        problem, hint = f"{model} for {dataset}: {error}", "name another --dataset, or model"
        raise InputError("conflicting-keys", problem, file="--model", got=model, hint=hint) from None


@dataclass(frozen=True)
class Projection:
    """The answer to a question.

    Attributes:
        curves: Predictions on all numbers of nodes (`curves.predict_curves`), with cost and currency.
        rows: The table, a row for each curve (`summarize_curves`).
        answers: Answers in sentences, MAX_SENTENCES at most.
        notes: Notes on what the answers mean and assume, or on why there are none.
    """

    curves: pd.DataFrame
    rows: pd.DataFrame
    answers: list[Note]
    notes: list[str]

    @property
    def table(self) -> tables.Table:
        """The rows as a table, with answers and notes."""
        return table(self.rows, [*self.answers, *self.notes])


def answer(question: ScalingQuestion, study: MeasuredStudy | None = None, cell: str = "") -> Projection:
    """Answer a question.

    Args:
        question: The question.
        study: The measured study that the question is about; None: read the one that the question names, if
            it names one.
        cell: Predict the case of this cell alone, at the rate of its links; "": all cases.

    Raises:
        InputError: If the study's records cannot be read, or see `predictor_of_numbers`.
    """
    if study is None and question.folder:
        study = load_study(question.folder)
    if question.scales or study is None:
        predictor, cases = predictor_of_numbers(question, study)
        has_sample_count = True
    else:
        predictor, cases = study.predictor, study_cases(study.predictor.cells)
        has_sample_count = not measured_elsewhere(study.runs)
        if cell:
            cases = predictor.cells[predictor.cells["cell"] == cell].assign(treatment="")
    if study and conditions.is_emulated(study.runs):
        cases = cases[:0]
    counts = np.union1d(node_counts(question.nodes), question.at).astype(int)
    rates = [] if cell else _link_rates(question, study, cases)
    cells = hypothetical_cells(cases, rates, counts, has_sample_count=has_sample_count)
    curves = _add_cost(predict_curves(predictor, cells), question, study)
    rows, sentences = summarize_curves(predictor, curves, question)
    if rows.empty:
        notes = _no_answer_notes(study)
    else:
        notes = [
            _omission_note(len(sentences) - MAX_SENTENCES),
            _unanswered_note(cases, rows),
            _worth_note(question.min_gain),
            EXTRAPOLATED,
            LIMITED_BY_DATA if has_sample_count else "",
            *([_number_note(question)] if question.scales else predictor.predict(cases).notes),
            *(_study_notes(study) if study else []),
        ]
    return Projection(curves, rows, sentences[:MAX_SENTENCES], list(filter(None, notes)))


def _add_cost(curves: pd.DataFrame, question: ScalingQuestion, study: MeasuredStudy | None) -> pd.DataFrame:
    """Return curves with the node hours and the cost of all epochs, NaN without a price.

    The price is stated in the question, or else the study's, if all its runs have the same.
    """
    price, currency = question.price, ""
    if price is None and study:
        prices = study.runs.get("price_per_node_hour", pd.Series(dtype=float))
        price = float(prices.max()) if prices.nunique() == 1 else None
        currency = currency_of(study.runs)
    node_hours = {
        f"node_hours{suffix}": question.epochs * curves[f"node_hours{suffix}"] for suffix in SUFFIXES
    }
    cost = {
        name.replace("node_hours", "cost"): (math.nan if price is None else price) * hours
        for name, hours in node_hours.items()
    }
    return curves.assign(**node_hours, **cost, currency=currency)


def _link_rates(question: ScalingQuestion, study: MeasuredStudy | None, cases: pd.DataFrame) -> list[float]:
    """Return the link rates of the answer in bytes/s; if empty, each case has its own.

    These are the rates of the question or, for a study, RATES and its fastest rate. Only cases that were
    measured elsewhere keep their own rates, which can be unknown.
    """
    rates = [GIGABIT_BYTES * rate for rate in dict.fromkeys(question.rate)]
    if study is None or question.scales or question.rate != RATES:
        return rates
    if measured_elsewhere(study.runs) and (cases["rate"].notna() | (cases["nodes"] > 1)).all():
        return []
    return sorted({*rates, *study.predictor.cells["rate"].dropna().nlargest(1)})


def summarize_curves(
    predictor: StudyPredictor, curves: pd.DataFrame, question: ScalingQuestion
) -> tuple[pd.DataFrame, list[Note]]:
    """Return a row of the table for each curve, and the answers in sentences.

    Only curves at a measured link rate get a recommendation and a sentence; if only one node was measured,
    all curves get them.
    """
    rows, sentences = [], []
    linked = predictor.cells.loc[predictor.cells["nodes"] > 1, "rate"]
    for names, curve in curves.groupby(CURVE, sort=False, dropna=False):
        case = dict(zip(CURVE, names, strict=True))
        scaling = worth.predict_scaling(predictor, curve)
        knee = worth.find_knee(scaling, question.min_gain)
        is_measured = linked.empty or linked.isin([case["rate"]]).any() or linked.isna().all()
        target = int(min(2 * knee.nodes.high, knee.considered))
        is_open = is_measured and not knee.is_certain
        proposal = worth.propose_measurements(scaling, target, question.measurable) if is_open else None
        row = case | summarize_curve(curve) | worth.knee_columns(knee, proposal) | {"answer": ""}
        if is_measured:
            row["answer"] = worth.explain_knee(knee, proposal, question.min_gain, _case_clause(case, curves))
            sentences.append(Note("worth-it", str(row["answer"]), **row))
        rows.append(row)
    return pd.DataFrame(rows, columns=None if rows else CURVE), sentences


def _case_clause(case: Mapping[str, Any], curves: pd.DataFrame) -> str:
    """Return the first clause of the sentence on a case: its levels that vary, and its links."""
    names = [name for name in FACTORS if curves[name].nunique() > 1]
    texts = [f"batches of {case[name]}" if name == "batch_size" else str(case[name]) for name in names]
    return f"With {', '.join([*texts, 'links of ' + rate_text(case['rate'])])}"


def predict_cases(study: MeasuredStudy, nodes: int, cell: str = "") -> pd.DataFrame:
    """Predict the cases of a study on a number of nodes, with the links that were measured.

    Args:
        study: The measured study (`load_study`).
        nodes: The number of nodes in question.
        cell: Predict the case of this cell alone; "": all cases.

    Returns:
        A row for each case: `curves.CURVE`, `nodes`, the quantities of `curves.BAND_COLUMNS` with their 90 %
        bands, and the columns of the table `projection`; empty if nothing can be predicted.
    """
    # The next doubling decides whether the nodes are worth it, so the curves have to reach it.
    question = ScalingQuestion(nodes=max(MAX_NODES, 2 * nodes), at=(nodes,))
    projected = answer(question, study, cell)
    if projected.rows.empty:
        return projected.rows
    curves = curve_columns(projected.curves)
    return curves[curves["nodes"] == nodes].merge(projected.rows[projected.rows["answer"] != ""], on=CURVE)


def curve_columns(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of projection_curves.csv."""
    return curves[
        [*CURVE, "nodes", *(f"{name}{end}" for name in BAND_COLUMNS for end in SUFFIXES), "currency"]
    ]


def main(*, runs: Path, network: Path | None = None, out: Path) -> None:
    """Write the table of a study, and a CSV of the curves that its figure shows.

    Args:
        runs: runs.csv of the study
        network: network.csv of the study, if there is a collective benchmark
        out: files of the table to write, without their suffix; the curves are written to OUT_curves.csv
    """
    projection = answer(ScalingQuestion(), load_records(runs, network))
    tables.write(projection.table, out)
    tables.write_csv(curve_columns(projection.curves), out.with_name(f"{out.name}_curves.csv"))


def _no_answer_notes(study: MeasuredStudy | None) -> list[str]:
    """Return notes on why there is no answer."""
    if study is None:
        return [NOTHING_TO_PREDICT]
    if successful(study.runs).empty:
        return [conditions.run_counts_note(study.runs), conditions.setting_note(study.runs)]
    is_emulated = conditions.is_emulated(study.runs)
    reasons = [EMULATED, WHAT_TO_DO] if is_emulated else [NOTHING_TO_PREDICT, study.exclusion_note]
    return [*reasons, conditions.setting_note(study.runs)]


def _unanswered_note(cases: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Return a note of the frameworks without an answer, "" if there are none."""
    unanswered = sorted(set(cases["framework"]) - set(rows["framework"]))
    text = f"Not answered, because one node was not measured: {conditions.join_names(unanswered)}."
    return Note("not-answered", text, frameworks=unanswered) if unanswered else ""


def _omission_note(n_omitted: int) -> str:
    """Return a note on answers that are only in the CSV, "" if there are none."""
    text = f"The table has {n_omitted} more cases; the column `answer` of its CSV has their answers."
    return Note("answers-left-out", text) if n_omitted > 0 else ""


def _worth_note(share: float) -> Note:
    """Return a note on the meaning of the columns of nodes that are worth it."""
    text = (
        f"Nodes worth it: up to how many a doubling gains {100 * share:.0f} % or more of the ideal, which is "
        "the throughput of as many single nodes as it adds. Limited by: the part of a step that takes most "
        "of the node time that the next doubling adds."
    )
    return Note("worth", text, share=share)


def _number_note(question: ScalingQuestion) -> Note:
    """Return a note on the numbers that were given."""
    scales = ", ".join(f"{nodes} x {devices}: {step_s:g} s" for nodes, devices, step_s in question.scales)
    every = "batch" if question.sync_every == 1 else f"{question.sync_every} batches"
    text = (
        f"Given, not measured here: optimizer steps ({scales}; nodes x devices) with {question.batch_size} "
        f"samples per device in each batch, {question.samples} samples an epoch, an all-reduce every {every}."
    )
    facts = {name: getattr(question, name) for name in ("scales", "batch_size", "samples", "sync_every")}
    return Note("not-measured", text, **facts)


def _study_notes(study: MeasuredStudy) -> list[str]:
    """Return notes on the measurements behind the answer, and on what it assumes."""
    notes: list[str] = []
    benchmark = study.predictor.benchmark
    if benchmark.points is not None and len(benchmark.points):
        nodes = sorted(benchmark.points["nodes"].unique())
        text = (
            f"The collective benchmark ran on {', '.join(f'{count:g}' for count in nodes)} nodes with links "
            f"of {', '.join(map(rate_text, benchmark.rates)) or 'no known rate'}."
        )
        notes.append(Note("benchmarked", text, nodes=nodes, link_bytes_s=benchmark.rates))
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
        study.exclusion_note,
        heterogeneous_note(study.runs),
        conditions.setting_note(study.runs),
    ]


if __name__ == "__main__":
    sys.exit(run_program(main))
