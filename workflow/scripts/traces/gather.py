"""What traced runs kept of their time -> phases.csv, one row per run, rank and phase, and trace_steps.csv, some steps as they were."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.measured import successful, traced
from common.cores import all_cores
from common.errors import InputError
from common.files import shown
from common.notes import Note
from common.options import run_program
from common.schemas import schema
from common.tables import read_table, write_table
from common.text import number_of
from runs.phases import BARRIER, TABLE
from traces.steps import Traced
from traces.timeline import read_intervals, told

MOST_OFF = 0.01  # of a step's time, by which the sum of its phases may differ
SEVERAL = 4  # runs, from which on a second process is worth its start


@dataclass(frozen=True)
class Found:
    """What one run adds: its rows of phases.csv, the intervals of its typical steps, their time in s, and its cell."""

    cell: str
    rows: pd.DataFrame
    steps: pd.DataFrame
    typical_s: float


def of_run(run: dict[str, Any], folder: Path) -> Found:
    """What the attempt in `folder` adds; `run`: its row of runs.csv. InputError where a table of it is broken."""
    of = Traced(read_intervals(folder / TABLE), int(run["warmup_epochs"]), int(run["steps"]))
    names = {name: run[name] for name in ("run_id", "key", "cell")}
    rows = of.rows().assign(**names, off_share=off(of, folder, run))
    return Found(run["cell"], rows, of.typical_steps().assign(run_id=run["run_id"]), of.typical_s)


def off(of: Traced, folder: Path, run: dict[str, Any]) -> float:
    """See Traced.off. Where the meter took no step times, steps and the barrier after them are held against the epoch's, if every
    step was traced and the epoch's is known."""
    steps = folder / "steps.csv"
    share = of.off(_table(steps) if steps.exists() else None)
    if steps.exists() or len(of.numbers) < of.steps * of.numbers["epoch"].nunique() or of.numbers.empty:
        return share
    epochs = _table(folder / "epochs.csv").set_index("epoch")
    counted = (run["samples_trained"] or run["samples_per_epoch"]) / run["samples_per_epoch"]
    closed = (epochs["closed_time_s"] * counted).reindex(of.numbers["epoch"].unique())
    if closed.isna().any():
        return share
    barrier = of.intervals[(of.intervals["phase"] == BARRIER) & of.intervals["epoch"].isin(closed.index)]
    summed = of.phases["length"].sum() + (barrier["end"] - barrier["start"]).sum()
    return max(share, abs(float(summed / (closed.sum() * len(of.ranks))) - 1))


def _table(file: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(file)
    except (OSError, ValueError) as error:
        raise InputError("broken-file", f"cannot be read: {error}", file=shown(file), hint="repeat the run") from None


def gather(runs: pd.DataFrame, records: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """phases.csv and trace_steps.csv of the successful traced ones of `runs`, in their order, whose records are in `records`.

    Runs without phases are left out. InputError where a table has been broken since runs.csv was made.
    """
    todo = told(runs, records)
    several: Callable[..., Iterable[Found]] = map
    if len(todo) < SEVERAL:
        found = list(several(of_run, *zip(*todo, strict=True))) if todo else []
    else:
        with all_cores() as pool:
            found = list(pool.map(of_run, *zip(*todo, strict=True)))
    phases = pd.concat([one.rows for one in found]) if found else pd.DataFrame()
    typical = _typical(found)
    steps = pd.concat([one.steps for one in typical]).drop_duplicates() if typical else pd.DataFrame()
    return tuple(
        table.reindex(columns=list(schema(name)["properties"]))
        for table, name in ((phases, "phases"), (steps, "trace_steps"))
    )


def _typical(found: list[Found]) -> list[Found]:
    """Of each cell the run whose step time is the median of its runs', of two in the middle the shorter one."""
    chosen = []
    for cell in dict.fromkeys(one.cell for one in found):
        mine = sorted((one for one in found if one.cell == cell and len(one.steps)), key=lambda one: one.typical_s)
        chosen += mine[(len(mine) - 1) // 2 :][:1]
    return chosen


def summary(runs: pd.DataFrame, phases: pd.DataFrame) -> list[Note]:
    """Return how many traced runs there are, which have no phases, and of which a step's phases do not add up to it, a line each."""
    wanted = successful(traced(runs)).set_index("run_id")["without_phases"]
    of_run = phases.drop_duplicates("run_id").set_index("run_id")
    text = f"{number_of(len(wanted), 'traced run')}, phases of {len(of_run)}"
    lines = [Note("traced-runs", text, runs=len(wanted), with_phases=len(of_run))]
    for run_id, why in wanted.dropna().items():
        lines.append(Note("run-without-phases", f"  {run_id}: without phases: {why}", run=run_id, why=why))
    for run_id, share in of_run["off_share"].items():
        if share > MOST_OFF:
            text = f"  {run_id}: the phases of a step add up to {100 * share:.3g} % more or less than its time; at most {100 * MOST_OFF:g} % is usual"
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
    print("\n".join(summary(measured, of_phases)))


if __name__ == "__main__":
    sys.exit(run_program(main))
