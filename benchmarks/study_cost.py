"""Measure the time of a finished campaign outside its runs: Snakemake, supervisors, records, figures."""

import json
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from common.errors import InputError
from common.files import CHECKOUT, display_path
from common.shell import capture
from common.tables import read_table
from document import section, table
from plan.plan_files import plan_file

AIM = 1.05
PAUSE_S = 60.0
NO_KEY = "0" * 12  # the supervisor starts, reads its plan, compares keys, and refuses


@dataclass(frozen=True)
class SessionCost:
    """Times of a session: sum of its runs (`runs_s`), and the seconds besides them."""

    session: str
    runs: int
    runs_s: float
    start_s: float
    between_s: float
    records_s: float
    products_s: float
    between_median_s: float

    @property
    def ratio(self) -> float:
        """The session's wall time over the sum of its runs."""
        return 1 + (self.start_s + self.between_s + self.records_s + self.products_s) / self.runs_s


def session_cost(
    results: Path, state: dict[str, Any], session: str, runs: pd.DataFrame
) -> SessionCost | None:
    """Return the cost of a session, None if fewer than two of its runs are in runs.csv.

    All clocks have to be this machine's. A run that a later session repeated is left out with the gap before
    it.
    """
    mine = runs[(runs["session"] == session) & runs["wall_s"].notna()].set_index("run_id")
    runs_s, records_s, gaps = 0.0, 0.0, []
    before = None
    for entry in state["ended"]:
        if entry["run_id"] in mine.index:
            launched = datetime.fromisoformat(mine.loc[entry["run_id"], "started_at"]).timestamp()
            wall_s = float(mine.loc[entry["run_id"], "wall_s"])
            runs_s += wall_s
            records_s += entry["at"] - launched - wall_s
            gaps += [launched - before] if before else []
        before = entry["at"]
    if not gaps or before is None:
        return None
    began = datetime.strptime(session.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    built = _written(results, "logs/environments/*", "logs/datasets/*")
    return SessionCost(
        session=session,
        runs=len(mine),
        runs_s=runs_s,
        start_s=state["started"]
        - max([began, *(moment for moment in built if began < moment < state["started"])]),
        between_s=sum(gaps),
        records_s=records_s,
        products_s=_end_of_burst(_written(results, "tables/*", "figures/*"), before) - before,
        between_median_s=statistics.median(gaps),
    )


def supervisor_start_s(study: str, site: str, run_id: str, repetitions: int = 5) -> float:
    """Return the median time in s from a supervisor's start to the moment when it would take the lock."""
    plan = plan_file(Path("results") / study, run_id)
    command = [sys.executable, "-m", "runs.supervise", "--site", site, "--plan", str(plan), "--key", NO_KEY]
    times_s = []
    for _ in range(repetitions):
        started = time.monotonic()
        done = capture(command, cwd=CHECKOUT)
        times_s.append(time.monotonic() - started)
        if done.returncode != 2:
            raise InputError(
                "cannot-measure", f"the supervisor did not refuse a wrong key: {done.stderr[-300:]}"
            )
    return statistics.median(times_s)


def measure(results: Path) -> tuple[list[SessionCost], float]:
    """Return the costs of all sessions of the campaign in `results`, and a supervisor's start-up time in s.

    Raises:
        InputError: If there is no finished campaign, or no session has two runs.
    """
    sessions = sorted(results.glob("sessions/*.json"))
    if not sessions or not (results / "runs.csv").exists():
        problem = f"{display_path(results)}: there is no finished campaign; run ./ringside run first"
        raise InputError("cannot-measure", problem)
    runs = read_table(results / "runs.csv", "runs")
    candidates = [session_cost(results, json.loads(path.read_text()), path.stem, runs) for path in sessions]
    costs = [cost for cost in candidates if cost]
    if not costs:
        problem = f"{display_path(results)}: no session has two runs of runs.csv; run ./ringside run first"
        raise InputError("cannot-measure", problem)
    run = runs[runs["wall_s"].notna()].iloc[0]
    return costs, supervisor_start_s(run["study"], run["site"], run["run_id"])


def report(costs: list[SessionCost], start_s: float, command: str) -> str:
    """Return the part of docs/measurements.md."""
    rows = []
    for cost in costs:
        shares = [
            f"{seconds:.1f} s ({seconds / cost.runs_s:.1%})"
            for seconds in (cost.start_s, cost.between_s, cost.records_s, cost.products_s)
        ]
        met = "met" if cost.ratio <= AIM else "missed"
        rows.append(
            [
                cost.session,
                str(cost.runs),
                f"{cost.runs_s:.1f} s",
                *shares,
                f"{cost.ratio:.3f}",
                f"{AIM}: {met}",
            ]
        )
    header = [
        "session",
        "runs",
        "sum of runs",
        "start",
        "between runs",
        "records",
        "tables, figures",
        "wall / sum",
        "aim",
    ]
    return section(
        "A study compared with the sum of its runs",
        command,
        table(header, rows),
        "Start: from the start of Snakemake, or the end of the last build, to the first supervisor. "
        "Between runs: from a record to the next launch (Snakemake, supervisor, lock), median "
        f"{statistics.median(cost.between_median_s for cost in costs):.2f} s a run; starting a supervisor "
        f"alone takes {start_s:.2f} s. Records: from the end of a run to its record. Shares are relative to "
        "the sum of runs.",
    )


def _written(results: Path, *patterns: str) -> list[float]:
    """Return the modification times of files in order."""
    return sorted(path.stat().st_mtime for pattern in patterns for path in results.glob(pattern))


def _end_of_burst(moments: list[float], began: float) -> float:
    """Return the last moment after `began` before a pause; later files belong to another session."""
    end = began
    for moment in moments:
        if end < moment <= end + PAUSE_S:
            end = moment
    return end
