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
from typing import Any, NamedTuple

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
    with_measured_times,
)
from prediction.inputs import adjusted_note
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
        curves: Predictions on all numbers of nodes (`curves.predict_curves`), with measured times, cost and
            currency.
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


class _Subject(NamedTuple):
    """What a question is about.

    Attributes:
        predictor: Fitted to a study, or to the numbers of the question.
        cases: The cases whose curves are predicted; none on emulated nodes.
        rates: Link rates in bytes/s; None: each case has its own.
        has_sample_count: See `curves.hypothetical_cells`.
    """

    predictor: StudyPredictor
    cases: pd.DataFrame
    rates: list[float] | None
    has_sample_count: bool


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
    if study is None or question.measured_steps:
        subject = _numbers_subject(question, study)
    else:
        subject = _study_subject(question, study, cell)
    if study and conditions.is_emulated(study.runs):
        subject = subject._replace(cases=subject.cases[:0])
    counts = np.union1d(node_counts(question.max_nodes), question.at).astype(int)
    cells = hypothetical_cells(
        subject.cases, subject.rates, counts, has_sample_count=subject.has_sample_count
    )
    curves = with_measured_times(predict_curves(subject.predictor, cells), subject.predictor.cells)
    curves = _add_cost(curves, question, study)
    rows, answers = summarize_curves(subject.predictor, curves, question)
    if rows.empty:
        notes = no_answer_notes(study)
    else:
        notes = [
            omission_note(len(answers) - MAX_SENTENCES),
            unanswered_note(subject.cases, rows),
            worth_note(question.min_gain),
            EXTRAPOLATED,
            LIMITED_BY_DATA if subject.has_sample_count else "",
            *(
                [number_note(question)]
                if study is None or question.measured_steps
                else [*subject.predictor.predict(subject.cases).notes, adjusted_note(study.runs)]
            ),
            *(study_notes(study) if study else []),
        ]
    return Projection(curves, rows, answers[:MAX_SENTENCES], list(filter(None, notes)))


def _numbers_subject(question: ScalingQuestion, study: MeasuredStudy | None) -> _Subject:
    """Return the one case that the numbers of a question describe."""
    predictor, cases = predictor_of_numbers(question, study.predictor.benchmark if study else None)
    return _Subject(predictor, cases, _asked_rates(question), has_sample_count=True)


def _study_subject(question: ScalingQuestion, study: MeasuredStudy, cell: str) -> _Subject:
    """Return the cases of a study, or the case of one cell, if `cell` names it.

    Link rates are those of the question or, if it has the default ones, these and the fastest of the study.
    Only a cell and cases that were measured elsewhere keep their own rates, which can be unknown.
    """
    predictor, is_imported = study.predictor, measured_elsewhere(study.runs)
    cases = study_cases(predictor.cells)
    rates: list[float] | None = _asked_rates(question)
    if cell:
        cases, rates = predictor.cells[predictor.cells["cell"] == cell].assign(treatment=""), None
    elif question.rates_gbit_s == RATES:
        has_own_rates = is_imported and (cases["rate"].notna() | (cases["nodes"] > 1)).all()
        fastest = predictor.cells["rate"].dropna().nlargest(1)
        rates = None if has_own_rates else sorted({*_asked_rates(question), *fastest})
    return _Subject(predictor, cases, rates, has_sample_count=not is_imported)


def _asked_rates(question: ScalingQuestion) -> list[float]:
    """Return the link rates of a question in bytes/s."""
    return [GIGABIT_BYTES * rate for rate in dict.fromkeys(question.rates_gbit_s)]


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
        curve_levels = dict(zip(CURVE, names, strict=True))
        scaling = worth.joint_scaling(predictor, curve)
        knee = worth.find_knee(scaling, question.min_gain)
        has_measured_rate = linked.empty or linked.isin([curve_levels["rate"]]).any() or linked.isna().all()
        target = int(min(2 * knee.nodes.high, knee.considered))
        is_open = has_measured_rate and not knee.is_certain
        proposal = worth.propose_measurements(scaling, target, question.measurable) if is_open else None
        row = curve_levels | summarize_curve(curve) | worth.knee_columns(knee, proposal) | {"answer": ""}
        if has_measured_rate:
            row["answer"] = worth.explain_knee(
                knee, proposal, question.min_gain, _case_clause(curve_levels, curves)
            )
            sentences.append(Note("worth-it", str(row["answer"]), **row))
        rows.append(row)
    return pd.DataFrame(rows, columns=None if rows else CURVE), sentences


def _case_clause(curve_levels: Mapping[str, Any], curves: pd.DataFrame) -> str:
    """Return the first clause of the sentence on a curve: its levels that vary, and its links."""
    names = [name for name in FACTORS if curves[name].nunique() > 1]
    texts = [
        f"batches of {curve_levels[name]}" if name == "batch_size" else str(curve_levels[name])
        for name in names
    ]
    return f"With {', '.join([*texts, 'links of ' + rate_text(curve_levels['rate'])])}"


def predict_cases(study: MeasuredStudy, nodes: int, cell: str = "") -> pd.DataFrame:
    """Predict the cases of a study on a number of nodes, with the links that were measured.

    Args:
        study: The measured study.
        nodes: The number of nodes in question.
        cell: Predict the case of this cell alone; "": all cases.

    Returns:
        A row for each case: `curves.CURVE`, `nodes`, the quantities of `curves.BAND_COLUMNS` with their 90 %
        bands, and the columns of the table `projection`; empty if nothing can be predicted.
    """
    # The next doubling decides whether the nodes are worth it, so the curves have to reach it.
    question = ScalingQuestion(max_nodes=max(MAX_NODES, 2 * nodes), at=(nodes,))
    projected = project_scaling(question, study, cell)
    if projected.rows.empty:
        return projected.rows
    curves = curve_columns(projected.curves)
    return curves[curves["nodes"] == nodes].merge(projected.rows[projected.rows["answer"] != ""], on=CURVE)


def curve_columns(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of projection_curves.csv."""
    predicted = [f"{name}{end}" for name in BAND_COLUMNS for end in SUFFIXES]
    return curves[[*CURVE, "nodes", *predicted, "currency", "measured_epoch_time_s"]]


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
