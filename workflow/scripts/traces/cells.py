"""The phases of traced runs by run and by cell: means over ranks, then over runs with 95 % intervals; their table."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis import conditions, intervals, tables
from analysis.intervals import Estimate, columns
from analysis.measured import cells, factors, level_text, successful, title, traced, varying
from common.notes import Note
from runs.phases import EPOCH, START
from runs.phases import STEP as OF_STEP
from traces.gather import MOST_OFF
from traces.steps import WAIT

# The phases of a step in their order, in words.
PHASES = {name: {"data": "wait for data", WAIT: "wait for the exchange"}.get(name, name) for name in OF_STEP}
EXCHANGED = {
    "communication": "communication",
    "moving": "… bytes move",
    "waiting": "… waiting for the slowest",
    "exposed": "exposed communication",
    "exposed_moving": "… bytes move",
    "exposed_waiting": "… waiting for the slowest",
}
STEP = "step"  # the whole one
SCOPES = {"step": "phase of a step", "exchange": "exchange", "epoch": "after the steps", "start": "start-up, once"}
ORDERS = {"step": PHASES, "exchange": EXCHANGED, "epoch": EPOCH, "start": START}  # of the rows of a scope
NO_PHASES = Note("no-phases", "no traced run has phases")
TITLE = "Phases of a training step, and of what is around it, with 95 % intervals"


@dataclass(frozen=True)
class Measured:
    """The traced runs of a study: `runs`, those of the design; `phases`: phases.csv."""

    runs: pd.DataFrame
    phases: pd.DataFrame

    @cached_property
    def ok(self) -> pd.DataFrame:
        """The successful runs whose phases are known."""
        some = successful(self.runs)
        return some[some["run_id"].isin(self.current["run_id"])]

    @cached_property
    def current(self) -> pd.DataFrame:
        """The rows of phases.csv that are of `runs` as they are."""
        keys = self.runs.set_index("run_id")["key"]
        return self.phases[self.phases["run_id"].map(keys) == self.phases["key"]]

    @cached_property
    def by_run(self) -> pd.DataFrame:
        """Mean over ranks of every scope and phase of a run, and of a STEP: run_id, cell, scope, phase, step_s, seconds, count."""
        mine = self.current
        by = mine.groupby(["run_id", "cell", "scope", "phase"], sort=False)
        found = by[["step_s", "seconds", "count"]].sum(min_count=1).reset_index()
        ranks = mine.groupby("run_id")["rank"].nunique()
        over = found["run_id"].map(ranks).where(found["scope"] != "path", 1).clip(lower=1)
        for name in ("step_s", "seconds", "count"):
            found[name] = (found[name] / over).astype(float)
        of_steps = found[found["scope"] == "step"].groupby(["run_id", "cell"], sort=False)[["step_s", "seconds"]].sum()
        return pd.concat([found, of_steps.reset_index().assign(scope="step", phase=STEP)], ignore_index=True)

    def wide(self, scope: str, column: str = "seconds") -> pd.DataFrame:
        """A row per run, by run_id: a column for each phase of the scope, 0 where a run has none of it."""
        mine = self.by_run[self.by_run["scope"] == scope]
        return mine.pivot(index="run_id", columns="phase", values=column).astype(float).fillna(0.0)

    @cached_property
    def cell_of(self) -> pd.Series:
        """The cell of every run, by run_id."""
        return self.ok.set_index("run_id")["cell"]

    @cached_property
    def order(self) -> list[str]:
        """The cells that have phases, in the order of tables."""
        there = set(self.cell_of)
        return [cell for cell in cells(self.runs)["cell"] if cell in there]

    @cached_property
    def named(self) -> list[str]:
        """The phases of steps, in their order."""
        return in_order(self.by_run.loc[self.by_run["scope"] == "step", "phase"], PHASES)

    def estimates(self, scope: str, column: str = "seconds") -> pd.DataFrame:
        """By cell and phase: value, low, high, n, over runs; `share`: of the step's time instead."""
        shares = column == "share"
        values = self.wide(scope, "step_s" if shares else column)
        if shares:
            values = values.div(self.wide("step", "step_s")[STEP], axis="index")
        values = values.loc[[run for run in values.index if run in self.cell_of.index]]
        own = self.cell_of.reindex(values.index)
        found = {str(phase): intervals.means(values[phase], own, minimum=0.0) for phase in values}
        nothing = pd.DataFrame(columns=["value", "low", "high", "n", "cv"])
        return pd.concat(found or {"": nothing}, names=["phase", "cell"]).swaplevel()

    @property
    def lacking(self) -> str:
        """The runs of which no phases are known, and why, in sentences; empty for none."""
        return conditions.traced_runs_without_phases(self.runs, set(self.ok["run_id"]))

    @property
    def notes(self) -> list[str]:
        """What must be said of these runs below each table of theirs."""
        off = self.current.drop_duplicates("run_id").set_index("run_id")["off_share"]
        bad = [str(run) for run in off.index[off > MOST_OFF]]
        text = f"The phases of a step do not add up to its time to {100 * MOST_OFF:g} %: {conditions.join_names(bad)}."
        said = [Note("phases-off", text, runs=bad, most=MOST_OFF) if bad else "", self.lacking]
        return [sentence for sentence in said if sentence]


def of(runs: pd.DataFrame, phases: pd.DataFrame) -> Measured:
    """The traced ones of all runs of a study."""
    return Measured(traced(runs), phases)


def in_order(found: Iterable[str], known: Iterable[str]) -> list[str]:
    """These names, those that are known first, in their order; STEP is none."""
    names, first = set(found) - {STEP}, list(known)
    return [name for name in first if name in names] + sorted(names - set(first))


def estimate(row: pd.Series, factor: float = 1.0) -> Estimate:
    """A row of `Measured.estimates`."""
    return Estimate(factor * row["value"], factor * row["low"], factor * row["high"], int(row["n"]))


def levels(runs: pd.DataFrame, cell: pd.Series) -> dict[str, pd.Series]:
    """The columns of a table for people that say which cell a row is of."""
    rows = cells(runs).set_index("cell")
    return {
        title(name): cell.map(rows[name]).map(level_text) for name in ["framework", *varying(runs, but=["framework"])]
    }


def with_factors(runs: pd.DataFrame, data: pd.DataFrame) -> pd.DataFrame:
    """A table for programs with the levels of the factors after its first column, `cell`."""
    rows = cells(runs)[["cell", *factors(), "replicas"]]
    rows = rows.drop(columns=[name for name in factors() if rows[name].isna().all()])
    return data[["cell"]].merge(rows, on="cell", how="left").join(data.drop(columns="cell"))


def summarize(measured: Measured) -> pd.DataFrame:
    """One row per cell, scope and phase: n, share of the step, seconds in a step and in an epoch, each with its interval."""
    rows = []
    for scope in SCOPES if measured.order else ():
        shares, seconds, steps = (measured.estimates(scope, column) for column in ("share", "seconds", "step_s"))
        found = set(seconds.index)
        names = in_order([phase for _, phase in found if phase != "until_first"], ORDERS[scope])
        for cell in measured.order:
            for phase in [*names, *([STEP] if scope == "step" else [])]:
                if (cell, phase) not in found or not seconds.at[(cell, phase), "value"] > 0:
                    continue
                at = (cell, phase)
                nothing = Estimate(math.nan)
                per_step = scope in ("step", "exchange")
                rows.append(
                    {
                        "cell": cell,
                        "scope": scope,
                        "phase": phase,
                        "n": int(seconds.at[at, "n"]),
                        **columns("share", estimate(shares.loc[at]) if per_step else nothing),
                        **columns("step_s", estimate(steps.loc[at]) if per_step else nothing),
                        **columns("seconds", estimate(seconds.loc[at])),
                    }
                )
    place = {cell: position for position, cell in enumerate(measured.order)}
    data = pd.DataFrame(rows, columns=list(rows[0]) if rows else ["cell", "scope", "phase", "n"])
    return data.sort_values("cell", key=lambda names: names.map(place), kind="stable").reset_index(drop=True)


def words(scope: str, phase: str) -> str:
    """A phase as tables and figures call it."""
    known = PHASES if scope == "step" else EXCHANGED if scope == "exchange" else {}
    return "whole step" if phase == STEP else known.get(phase, phase)


def texts(data: pd.DataFrame, name: str, factor: float = 1.0, digits: int = 3) -> list[str]:
    """An estimate's three columns as texts."""
    bounds = factor * data[[name, f"{name}_low", f"{name}_high"]].astype(float)
    return [tables.interval(Estimate(*row), digits) for row in bounds.itertuples(index=False)]


def table(measured: Measured) -> tables.Table:
    """The table of phases."""
    data = summarize(measured)
    if data.empty:
        return nothing(TITLE, measured)
    shown = pd.DataFrame(
        {
            **levels(measured.runs, data["cell"]),
            "of": data["scope"].map(SCOPES),
            "phase": [words(*row) for row in data[["scope", "phase"]].itertuples(index=False)],
            "share of the step (%)": texts(data, "share", 100),
            "in a step (ms)": texts(data, "step_s", 1e3),
            "in an epoch, or at the start (s)": texts(data, "seconds"),
        }
    )
    again = (data["cell"] == data["cell"].shift()).to_numpy()
    for name in levels(measured.runs, data["cell"]):
        shown[name] = shown[name].where(~again, "")
    shown["of"] = shown["of"].where(~(again & (data["scope"] == data["scope"].shift()).to_numpy()), "")
    notes = [
        runs_behind(measured, "Means over ranks, then over runs; in brackets the interval over runs."),
        Note(
            "communication",
            "Communication is the union of a rank's exchanges, exposed what of it no computing of the rank covers. Until the last rank has started an "
            "exchange, the others wait for the slowest; only then bytes move. Start-up is once a run.",
        ),
        *measured.notes,
        conditions.setting_note(measured.runs),
    ]
    parts = [row for row in range(1, len(data)) if not again[row]]
    return tables.Table(
        TITLE, with_factors(measured.runs, data), shown, notes, ["of", "phase", *_words(measured.runs)], parts
    )


def runs_behind(measured: Measured, more: str) -> Note:
    """Return how many runs stand behind the numbers of a table, and what else its first note says."""
    return Note("runs", f"{conditions.run_counts_note(measured.ok)} {more}")


def nothing(heading: str, measured: Measured) -> tables.Table:
    """A table without rows, since no traced run has phases."""
    said = Note(NO_PHASES.code, f"{NO_PHASES.capitalize()}.")
    notes = [said, measured.lacking, conditions.setting_note(measured.runs)]
    return tables.Table(
        heading, pd.DataFrame(), pd.DataFrame(columns=["framework"]), [n for n in notes if n], ["framework"]
    )


def _words(runs: pd.DataFrame) -> list[str]:
    return [title(name) for name in ("framework", "model", "dataset")]
