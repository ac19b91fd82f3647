"""Table `projection`: the scaling projection, predicted speed-ups at unmeasured link rates and node counts.

The projection uses a study's cells and its collective benchmark, if there is one, or numbers alone
(prediction.question). figures.kinds.projection draws it, ringside.predicting shows it on a terminal.

The validation of the law (prediction.held_out) differs in three ways: it predicts all meshes, not only those
that nodes can be added to (`measured_study.load_study_tables`); its benchmark has corrections for measured
scales, where that of the projection is smooth; and its bands are not limited by ideal scaling
(`curves.predict_curves`), because it counts how many measurements are in the bands of the law itself.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.records import currency_of, measured_elsewhere
from common.notes import Note
from common.options import run_program
from prediction import worth
from prediction.curves import (
    BAND_COLUMNS,
    CURVE,
    FACTORS,
    SUFFIXES,
    hypothetical_cells,
    node_counts,
    predict_curves,
    study_cases,
    summarize_curve,
)
from prediction.measured_study import MeasuredStudy, load_study_folder, load_study_tables
from prediction.message_times import rate_text
from prediction.numbers_predictor import predictor_of_numbers
from prediction.projection_notes import (
    EXTRAPOLATED,
    LIMITED_BY_DATA,
    no_answer_notes,
    number_note,
    omission_note,
    study_notes,
    unanswered_note,
    worth_note,
)
from prediction.projection_table import curves_table
from prediction.question import GIGABIT_BYTES, MAX_NODES, RATES, ScalingQuestion
from prediction.study_predictor import StudyPredictor

MAX_SENTENCES = 6


@dataclass(frozen=True)
class Projection:
    """The answer to a question about scaling.

    Attributes:
        curves: Predictions on all numbers of nodes (`curves.predict_curves`), with cost and currency.
        rows: The data of the table, a row for each curve (`summarize_curves`).
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
        return curves_table(self.rows, [*self.answers, *self.notes])


def project_scaling(
    question: ScalingQuestion, study: MeasuredStudy | None = None, cell: str = ""
) -> Projection:
    """Answer a question about scaling.

    Args:
        question: The question.
        study: The measured study that the question is about; None: the study in the question's folder, if it
            names one.
        cell: Predict the case of this cell alone, at the rate of its links; "": all cases.

    Raises:
        InputError: If the study's records cannot be read, or `predictor_of_numbers` refuses the numbers.
    """
    if study is None and question.folder:
        study = load_study_folder(question.folder)
    if question.scales or study is None:
        predictor, cases = predictor_of_numbers(question, study.predictor.benchmark if study else None)
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
        notes = no_answer_notes(study)
    else:
        notes = [
            omission_note(len(sentences) - MAX_SENTENCES),
            unanswered_note(cases, rows),
            worth_note(question.min_gain),
            EXTRAPOLATED,
            LIMITED_BY_DATA if has_sample_count else "",
            *([number_note(question)] if question.scales else predictor.predict(cases).notes),
            *(study_notes(study) if study else []),
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
        scaling = worth.joint_scaling(predictor, curve)
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
        study: The measured study (`load_study_folder`).
        nodes: The number of nodes in question.
        cell: Predict the case of this cell alone; "": all cases.

    Returns:
        A row for each case: `curves.CURVE`, `nodes`, the quantities of `curves.BAND_COLUMNS` with their 90 %
        bands, and the columns of the table `projection`; empty if nothing can be predicted.
    """
    # The next doubling decides whether the nodes are worth it, so the curves have to reach it.
    question = ScalingQuestion(nodes=max(MAX_NODES, 2 * nodes), at=(nodes,))
    projected = project_scaling(question, study, cell)
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
    projection = project_scaling(ScalingQuestion(), load_study_tables(runs, network))
    tables.write(projection.table, out)
    tables.write_csv(curve_columns(projection.curves), out.with_name(f"{out.name}_curves.csv"))


if __name__ == "__main__":
    sys.exit(run_program(main))
