"""Phases of traced runs, by run and by cell, with 95 % intervals over runs; the table `phases`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis import conditions, intervals, tables
from analysis.intervals import Estimate, columns
from analysis.level_words import level_text, title
from analysis.records import cell_levels, successful, traced, varying
from common.notes import Note
from declared.factors import factor_names
from runs.phases import EPOCH, START
from runs.phases import STEP as OF_STEP
from traces.gather import MAX_SUM_ERROR
from traces.steps import WAIT

# Labels of a step's phases, in order.
PHASES = {name: {"data": "wait for data", WAIT: "wait for communication"}.get(name, name) for name in OF_STEP}
COMMUNICATION_PARTS = {
    "communication": "communication",
    "moving": "… bytes move",
    "waiting": "… waiting for the slowest",
    "exposed": "exposed communication",
    "exposed_moving": "… bytes move",
    "exposed_waiting": "… waiting for the slowest",
}
STEP = "step"  # the sum of its phases
SCOPES = {
    "step": "phase of a step",
    "communication": "communication",
    "epoch": "after the steps",
    "start": "start-up, once",
}
ORDERS = {"step": PHASES, "communication": COMMUNICATION_PARTS, "epoch": EPOCH, "start": START}  # of rows
NO_PHASES = Note("no-phases", "no traced run has phases")
TITLE = "Phases of a training step, of start-up and of epoch ends, with 95 % intervals"


@dataclass(frozen=True)
class Measured:
    """The traced runs of a study and their phases (phases.csv)."""

    runs: pd.DataFrame
    phases: pd.DataFrame

    @cached_property
    def ok(self) -> pd.DataFrame:
        """The successful runs with phases."""
        ok_runs = successful(self.runs)
        return ok_runs[ok_runs["run_id"].isin(self.current["run_id"])]

    @cached_property
    def current(self) -> pd.DataFrame:
        """The rows of phases.csv whose runs have the key in runs.csv; rows of earlier keys are left out."""
        keys = self.runs.set_index("run_id")["key"]
        return self.phases[self.phases["run_id"].map(keys) == self.phases["key"]]

    @cached_property
    def by_run(self) -> pd.DataFrame:
        """Means over ranks by run, scope and phase: run_id, cell, scope, phase, step_s, seconds, count.

        The phase STEP is the sum of a step's phases.
        """
        rows, values = self.current, ["step_s", "seconds", "count"]
        grouped = rows.groupby(["run_id", "cell", "scope", "phase"], sort=False)
        by_phase = grouped[values].sum(min_count=1).reset_index()
        n_ranks = by_phase["run_id"].map(rows.groupby("run_id")["rank"].nunique()).astype(float)
        n_ranks = n_ranks.where(by_phase["scope"] != "path", 1).clip(lower=1)
        by_phase[values] = by_phase[values].div(n_ranks, axis="index").astype(float)
        steps = by_phase[by_phase["scope"] == "step"].groupby(["run_id", "cell"], sort=False)
        step_sums = steps[["step_s", "seconds"]].sum().reset_index().assign(scope="step", phase=STEP)
        return pd.concat([by_phase, step_sums], ignore_index=True)

    def wide(self, scope: str, column: str = "seconds") -> pd.DataFrame:
        """Return a row for each run, by run_id, with a column for each phase of the scope, 0 if missing."""
        rows = self.by_run[self.by_run["scope"] == scope]
        return rows.pivot(index="run_id", columns="phase", values=column).astype(float).fillna(0.0)

    @cached_property
    def cell_of(self) -> pd.Series:
        """The cell of every run, by run_id."""
        return self.ok.set_index("run_id")["cell"]

    @cached_property
    def order(self) -> list[str]:
        """The cells with phases, in the order of tables."""
        with_phases = set(self.cell_of)
        return [cell for cell in cell_levels(self.runs)["cell"] if cell in with_phases]

    @cached_property
    def step_phases(self) -> list[str]:
        """The phases of steps, in order."""
        return in_order(self.by_run.loc[self.by_run["scope"] == "step", "phase"], PHASES)

    def estimates(self, scope: str, column: str = "seconds") -> pd.DataFrame:
        """Return value, low, high and n over runs by cell and phase.

        Args:
            scope: A key of SCOPES, or "path".
            column: "seconds" (of an epoch), "step_s" (of a step), "count", or "share" (of the step's time).
        """
        shares = column == "share"
        values = self.wide(scope, "step_s" if shares else column)
        if shares:
            values = values.div(self.wide("step", "step_s")[STEP], axis="index")
        values = values.loc[[run for run in values.index if run in self.cell_of.index]]
        cells = self.cell_of.reindex(values.index)
        by_phase = {str(phase): intervals.means(values[phase], cells, minimum=0.0) for phase in values}
        empty = pd.DataFrame(columns=["value", "low", "high", "n", "cv"])
        return pd.concat(by_phase or {"": empty}, names=["phase", "cell"]).swaplevel()

    @property
    def missing_note(self) -> str:
        """The note that names runs without phases and the reasons; "" if there are none."""
        return conditions.traced_runs_without_phases(self.runs, set(self.ok["run_id"]))

    @property
    def notes(self) -> list[str]:
        """The notes that every table of these runs has."""
        errors = self.current.drop_duplicates("run_id").set_index("run_id")["off_share"]
        wrong_runs = [str(run) for run in errors.index[errors > MAX_SUM_ERROR]]
        text = (
            f"The phases of a step differ from its time by more than {100 * MAX_SUM_ERROR:g} %: "
            f"{conditions.join_names(wrong_runs)}."
        )
        all_notes = [
            Note("phases-off", text, runs=wrong_runs, most=MAX_SUM_ERROR) if wrong_runs else "",
            self.missing_note,
        ]
        return [sentence for sentence in all_notes if sentence]


def select_traced(runs: pd.DataFrame, phases: pd.DataFrame) -> Measured:
    """Return the traced runs among all runs of a study."""
    return Measured(traced(runs), phases)


def in_order(names_found: Iterable[str], ordered: Iterable[str]) -> list[str]:
    """Return the names without STEP: first those in `ordered`, in its order, then the others by name."""
    names, first = set(names_found) - {STEP}, list(ordered)
    return [name for name in first if name in names] + sorted(names - set(first))


def estimate(row: pd.Series, factor: float = 1.0) -> Estimate:
    """Return a row of `Measured.estimates` times a factor."""
    return Estimate(factor * row["value"], factor * row["low"], factor * row["high"], int(row["n"]))


def level_columns(runs: pd.DataFrame, cell: pd.Series) -> dict[str, pd.Series]:
    """Return the columns of a displayed table that identify a row's cell."""
    rows = cell_levels(runs).set_index("cell")
    return {
        title(name): cell.map(rows[name]).map(level_text)
        for name in ["framework", *varying(runs, exclude=["framework"])]
    }


def add_factors(runs: pd.DataFrame, data: pd.DataFrame) -> pd.DataFrame:
    """Return a table with factors and n_devices inserted after its first column, `cell`."""
    rows = cell_levels(runs)[["cell", *factor_names(runs), "n_devices"]]
    rows = rows.drop(columns=[name for name in factor_names(rows) if rows[name].isna().all()])
    return data[["cell"]].merge(rows, on="cell", how="left").join(data.drop(columns="cell"))


def summarize(measured: Measured) -> pd.DataFrame:
    """Return a row for each cell, scope and phase.

    Columns: n, share of the step, seconds in a step and in an epoch, each with its interval.
    """
    rows = []
    for scope in SCOPES if measured.order else ():
        shares, seconds, steps = (
            measured.estimates(scope, column) for column in ("share", "seconds", "step_s")
        )
        measured_keys = set(seconds.index)
        names = in_order([phase for _, phase in measured_keys if phase != "until_first"], ORDERS[scope])
        for cell in measured.order:
            for phase in [*names, *([STEP] if scope == "step" else [])]:
                if (cell, phase) not in measured_keys or not seconds.at[(cell, phase), "value"] > 0:
                    continue
                at = (cell, phase)
                is_of_step = scope in ("step", "communication")
                share, step_s = (
                    estimate(values.loc[at]) if is_of_step else Estimate(math.nan)
                    for values in (shares, steps)
                )
                rows.append(
                    {
                        **{"cell": cell, "scope": scope, "phase": phase, "n": int(seconds.at[at, "n"])},
                        **columns("share", share),
                        **columns("step_s", step_s),
                        **columns("seconds", estimate(seconds.loc[at])),
                    }
                )
    rank = {cell: position for position, cell in enumerate(measured.order)}
    data = pd.DataFrame(rows, columns=list(rows[0]) if rows else ["cell", "scope", "phase", "n"])
    return data.sort_values("cell", key=lambda names: names.map(rank), kind="stable").reset_index(drop=True)


def phase_label(scope: str, phase: str) -> str:
    """Return a phase's label in tables and figures."""
    labels = PHASES if scope == "step" else COMMUNICATION_PARTS if scope == "communication" else {}
    return "whole step" if phase == STEP else labels.get(phase, phase)


def table(measured: Measured) -> tables.Table:
    """Return the table of phases."""
    data = summarize(measured)
    if data.empty:
        return empty_table(TITLE, measured)
    is_repeated = (data["cell"] == data["cell"].shift()) & (data["scope"] == data["scope"].shift())
    texts = {
        "of": data["scope"].map(SCOPES).where(~is_repeated, ""),
        "phase": [phase_label(*row) for row in data[["scope", "phase"]].itertuples(index=False)],
        "share of the step (%)": tables.interval_texts(data, "share", 100),
        "in a step (ms)": tables.interval_texts(data, "step_s", 1e3),
        "in an epoch, or at the start (s)": tables.interval_texts(data, "seconds"),
    }
    remark = "Means over ranks, then over runs; the interval over runs is in brackets."
    note = Note(
        "communication",
        "Communication is the time in which a rank has an all-reduce under way; exposed is the part without "
        "computation on the same rank. Until the last rank has started an all-reduce, the others wait for "
        "the slowest. Only then do bytes move. Start-up happens once in a run.",
    )
    return cell_table(TITLE, measured, data, remark, texts, [note], ["of", "phase"])


def cell_table(
    heading: str,
    measured: Measured,
    data: pd.DataFrame,
    remark: str,
    texts: Mapping[str, Sequence[str] | pd.Series],
    notes: Iterable[str],
    words: Sequence[str] = (),
) -> tables.Table:
    """Return a table of cells. Rows of one cell are a group, and only the first has the cell's levels.

    Args:
        heading: Title of the table.
        measured: The traced runs.
        data: The rows, those of one cell together.
        remark: Sentence that follows the number of runs in the first note.
        texts: The displayed columns after the levels.
        notes: Further notes; "" for none.
        words: Columns in `texts` with words rather than numbers.
    """
    is_repeated = data["cell"] == data["cell"].shift()
    levels = {
        name: level.where(~is_repeated, "")
        for name, level in level_columns(measured.runs, data["cell"]).items()
    }
    first = Note("runs", f"{conditions.run_counts_note(measured.ok)} {remark}")
    all_notes = [first, *notes, *measured.notes, conditions.measurement_note(measured.runs)]
    return tables.Table(
        heading,
        add_factors(measured.runs, data),
        pd.DataFrame({**levels, **texts}),
        all_notes,
        words,
        [row for row in range(1, len(data)) if not is_repeated[row]] if is_repeated.any() else (),
    )


def empty_table(heading: str, measured: Measured) -> tables.Table:
    """Return a table without rows, because no traced run has phases."""
    note = Note(NO_PHASES.code, f"{NO_PHASES.capitalize()}.")
    notes = [note, measured.missing_note, conditions.measurement_note(measured.runs)]
    return tables.Table(
        heading, pd.DataFrame(), pd.DataFrame(columns=["framework"]), [n for n in notes if n], ["framework"]
    )
