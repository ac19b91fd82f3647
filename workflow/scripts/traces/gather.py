"""Gather the phases of traced runs in phases.csv, and typical steps in trace_steps.csv."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.records import successful, traced
from common.cores import all_cores
from common.errors import InputError
from common.notes import Note
from common.options import run_program
from common.schemas import schema
from common.tables import read_table, write_table
from common.text import number_of
from runs.phases import BARRIER, TABLE
from traces.steps import Traced
from traces.timeline import read_intervals, traced_attempts

MAX_SUM_ERROR = 0.01  # relative difference between a step's time and the sum of its phases
MIN_PARALLEL_RUNS = 4  # fewer runs do not repay the start of processes


@dataclass(frozen=True)
class RunPhases:
    """One run's cell, rows of phases.csv, intervals of typical steps, and median step time in s."""

    cell: str
    rows: pd.DataFrame
    steps: pd.DataFrame
    typical_s: float


def summarize_run(run: dict[str, Any], folder: Path) -> RunPhases:
    """Return the phases of one run, from its row of runs.csv and the folder of its attempt.

    Raises:
        InputError: If a table is broken.
    """
    phases = Traced(read_intervals(folder / TABLE), int(run["warmup_epochs"]), int(run["steps"]))
    names = {name: run[name] for name in ("run_id", "key", "cell")}
    rows = phases.rows().assign(**names, off_share=sum_error(phases, folder, run))
    return RunPhases(run["cell"], rows, phases.typical_steps().assign(run_id=run["run_id"]), phases.typical_s)


def sum_error(phases: Traced, folder: Path, run: dict[str, Any]) -> float:
    """Return `Traced.sum_error`, or the error of epochs if that is larger.

    If the meter recorded no step times, and every step was traced, steps and the barrier after them are also
    compared with the epoch time.
    """
    steps = folder / "steps.csv"
    share = phases.sum_error(_read_csv(steps) if steps.exists() else None)
    n_epochs = phases.numbers["epoch"].nunique()
    if steps.exists() or not n_epochs or len(phases.numbers) < phases.steps * n_epochs:
        return share
    epochs = _read_csv(folder / "epochs.csv").set_index("epoch")
    counted = (run["samples_trained"] or run["samples_per_epoch"]) / run["samples_per_epoch"]
    closed = (epochs["closed_time_s"] * counted).reindex(phases.numbers["epoch"].unique())
    if closed.isna().any():
        return share
    intervals = phases.intervals
    barrier = intervals[(intervals["phase"] == BARRIER) & intervals["epoch"].isin(closed.index)]
    summed = phases.phases["length"].sum() + (barrier["end"] - barrier["start"]).sum()
    return max(share, abs(float(summed / (closed.sum() * len(phases.ranks))) - 1))


def _read_csv(file: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(file)
    except (OSError, ValueError) as error:
        raise InputError(
            "broken-file", f"cannot be read: {error}", file=file, hint="repeat the run"
        ) from None


def gather(runs: pd.DataFrame, records: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return phases.csv and trace_steps.csv of the successful traced runs that have phases, in their order.

    Raises:
        InputError: If a table was damaged after runs.csv was written.
    """
    attempts = traced_attempts(runs, records)
    if len(attempts) < MIN_PARALLEL_RUNS:
        summaries = [summarize_run(run, folder) for run, folder in attempts]
    else:
        with all_cores() as pool:
            summaries = list(pool.map(summarize_run, *zip(*attempts, strict=True)))
    phases = pd.concat([summary.rows for summary in summaries]) if summaries else pd.DataFrame()
    typical = _typical_runs(summaries)
    steps = pd.concat([summary.steps for summary in typical]).drop_duplicates() if typical else pd.DataFrame()
    return tuple(
        table.reindex(columns=list(schema(name)["properties"]))
        for table, name in ((phases, "phases"), (steps, "trace_steps"))
    )


def _typical_runs(summaries: list[RunPhases]) -> list[RunPhases]:
    """Return each cell's run with the median step time, or the faster of the two middle runs."""
    chosen = []
    for cell in dict.fromkeys(summary.cell for summary in summaries):
        of_cell = [summary for summary in summaries if summary.cell == cell and len(summary.steps)]
        of_cell.sort(key=lambda summary: summary.typical_s)
        chosen += of_cell[(len(of_cell) - 1) // 2 :][:1]
    return chosen


def summary_lines(runs: pd.DataFrame, phases: pd.DataFrame) -> list[Note]:
    """Say how many runs were traced, and which have no phases or wrong sums, in lines to print."""
    reasons = successful(traced(runs)).set_index("run_id")["without_phases"]
    of_run = phases.drop_duplicates("run_id").set_index("run_id")
    text = f"{number_of(len(reasons), 'traced run')}, phases of {len(of_run)}"
    lines = [Note("traced-runs", text, runs=len(reasons), with_phases=len(of_run))]
    for run_id, reason in reasons.dropna().items():
        lines.append(
            Note("run-without-phases", f"  {run_id}: without phases: {reason}", run=run_id, why=reason)
        )
    for run_id, share in of_run["off_share"].items():
        if share > MAX_SUM_ERROR:
            text = (
                f"  {run_id}: the phases of a step differ from its time by {100 * share:.3g} %; expected at "
                f"most {100 * MAX_SUM_ERROR:g} %"
            )
            lines.append(Note("phases-off", text, run=run_id, share=float(share)))
    return lines


def main(*, runs: Path, records: Path, phases: Path, steps: Path) -> None:
    """Gather the phases of the traced runs of a study.

    Args:
        runs: runs.csv of the study
        records: where the records of its runs are
        phases: phases.csv
        steps: trace_steps.csv
    """
    measured = read_table(runs, "runs")
    of_phases, of_steps = gather(measured, records)
    write_table(of_phases, "phases", phases)
    write_table(of_steps, "trace_steps", steps)
    print("\n".join(summary_lines(measured, of_phases)))


if __name__ == "__main__":
    sys.exit(run_program(main))
