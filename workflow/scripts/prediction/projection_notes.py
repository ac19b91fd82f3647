"""The notes of a scaling projection: what its answers mean and assume, or why there are none."""

import pandas as pd

from analysis import conditions
from analysis.records import successful
from common.notes import Note
from prediction.inputs import heterogeneous_note
from prediction.measured_study import MeasuredStudy
from prediction.message_times import rate_text
from prediction.question import ScalingQuestion

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
EXTRAPOLATED = Note(
    "extrapolated",
    "Extrapolated by the law of the table of predictions. Efficiency is speed-up divided by nodes; the "
    "baseline is the same model on one node with the same local batch, predicted if it was not measured. "
    "Nodes at an efficiency: the largest number up to which it stays at that level. Brackets: 90 % bands, "
    "set on public measurements of GPU clusters.",
)
LIMITED_BY_DATA = Note("limited-by-data", "There are at most as many replicas as batches in an epoch.")


def no_answer_notes(study: MeasuredStudy | None) -> list[str]:
    """Return notes on why there is no answer."""
    if study is None:
        return [NOTHING_TO_PREDICT]
    if successful(study.runs).empty:
        return [conditions.run_counts_note(study.runs), conditions.measurement_note(study.runs)]
    is_emulated = conditions.is_emulated(study.runs)
    reasons = [EMULATED, WHAT_TO_DO] if is_emulated else [NOTHING_TO_PREDICT, study.exclusion_note]
    return [*reasons, conditions.measurement_note(study.runs)]


def unanswered_note(cases: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Return a note on the frameworks without an answer, "" if there are none."""
    unanswered = sorted(set(cases["framework"]) - set(rows["framework"]))
    text = f"Not answered, because one node was not measured: {conditions.join_names(unanswered)}."
    return Note("not-answered", text, frameworks=unanswered) if unanswered else ""


def omission_note(n_omitted: int) -> str:
    """Return a note on answers that are only in the CSV, "" if there are none."""
    text = f"The table has {n_omitted} more cases; the column `answer` of its CSV has their answers."
    return Note("answers-left-out", text) if n_omitted > 0 else ""


def worth_note(share: float) -> Note:
    """Return a note on the meaning of the columns of nodes that are worth it."""
    text = (
        f"Nodes worth it: up to how many a doubling gains {100 * share:.0f} % or more of the ideal, which is "
        "the throughput of as many single nodes as it adds. Limited by: the part of a step that takes most "
        "of the node time that the next doubling adds."
    )
    return Note("worth", text, share=share)


def number_note(question: ScalingQuestion) -> Note:
    """Return a note on the numbers that were given."""
    steps = (f"{nodes} x {devices}: {step_s:g} s" for nodes, devices, step_s in question.measured_steps)
    every = "batch" if question.sync_every == 1 else f"{question.sync_every} batches"
    text = (
        f"Given, not measured here: optimizer steps ({', '.join(steps)}; nodes x devices) with "
        f"{question.batch_size} samples per device in each batch, {question.samples} samples an epoch, an "
        f"all-reduce every {every}."
    )
    facts = {
        name: getattr(question, name) for name in ("measured_steps", "batch_size", "samples", "sync_every")
    }
    return Note("not-measured", text, **facts)


def study_notes(study: MeasuredStudy) -> list[str]:
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
        conditions.measurement_note(study.runs),
    ]
