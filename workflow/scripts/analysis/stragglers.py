"""Name the ranks, with their hosts, that were slower than the others of their runs.

Each run with several equal ranks is a round of the rule in sites/outliers.py, once by the reference benchmark
beside the run and, where runs were traced, once by the computation of a step. Training itself does not show
a straggler: all ranks wait for the slowest one.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from analysis import tables
from analysis.measured import read_runs, successful
from common.notes import Note
from common.options import run_program
from common.tables import read_table
from sites.outliers import FALSE_POSITIVE_RATE, MARGIN, Verdict, judge_units, tail

TITLE = "Stragglers by rank and host"
COLUMNS = ["host", "rank", "source", "runs", "slow_runs", "ratio", "p", "verdict"]
COMPUTING = ("forward", "backward")  # phases of a traced step
RULE = Note(
    "straggler-rule",
    f"A run is slow on a rank that takes more than {MARGIN:.0%} longer than the lower median of its ranks. A "
    f"rank is a straggler if at most {FALSE_POSITIVE_RATE:.0%} of campaigns of equal ranks would name any. "
    "Reference: fixed work right before and after the run; computation: forward and backward pass of traced "
    "steps.",
)

Unit = tuple[str, int]  # host and rank


def reference_times(runs: pd.DataFrame) -> Iterator[dict[Unit, float]]:
    """Yield the seconds of the reference benchmark by host and rank, of each run with several ranks."""
    for row in runs.dropna(subset=["reference_ranks_s", "hosts"]).itertuples():
        seconds = [float(text) for text in row.reference_ranks_s.split("/")]
        yield dict(zip(_units(row.hosts, len(seconds)), seconds, strict=True))


def computing_times(runs: pd.DataFrame, phases: pd.DataFrame) -> Iterator[dict[Unit, float]]:
    """Yield the seconds of a step's computation by host and rank, of each traced run with several ranks."""
    steps = phases[(phases["scope"] == "step") & phases["phase"].isin(COMPUTING)]
    by_rank = steps.groupby(["run_id", "rank"], observed=True)["seconds"].sum()
    equal = runs[runs["parallelism"] == "data"].dropna(subset="hosts").set_index("run_id")["hosts"]
    for run_id, seconds in by_rank.groupby(level="run_id"):
        if run_id in equal.index:
            yield dict(zip(_units(equal[run_id], len(seconds)), seconds, strict=True))


def _units(hosts: str, ranks: int) -> list[Unit]:
    """Return host and rank of each rank of a run; each node has as many."""
    names = hosts.split()
    return [(names[rank * len(names) // ranks], rank) for rank in range(ranks)]


def find_stragglers(runs: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the table, the slowest rank of each source first."""
    equal = successful(runs)
    equal = equal[equal["cpu_shares"].isna() & (equal["device"] != "hybrid") & (equal["ranks"] > 1)]
    sources = {
        "reference": list(reference_times(equal)),
        "computation": list(computing_times(equal, phases)),
    }
    n_tests = sum(len({unit for times in rounds for unit in times}) for rounds in sources.values())
    rows = [
        [host, rank, source, test.n_rounds, test.n_slow, test.ratio, test.p, _in_words(test, n_tests)]
        for source, rounds in sources.items()
        for (host, rank), test in judge_units(rounds, n_tests).items()
    ]
    return pd.DataFrame(rows, columns=COLUMNS).sort_values(
        ["source", "ratio"], ascending=[False, False], ignore_index=True
    )


def _in_words(verdict: Verdict, n_tests: int) -> str:
    if verdict.is_slow:
        return "straggler"
    smallest_p = tail(verdict.n_rounds, verdict.n_rounds)
    return "too few runs" if smallest_p > FALSE_POSITIVE_RATE / n_tests else "usual"


def table(runs: pd.DataFrame, phases: pd.DataFrame) -> tables.Table:
    """Return the table of a campaign."""
    data = find_stragglers(runs, phases)
    named = data[data["verdict"] == "straggler"]
    listed = [f"rank {row.rank} on {row.host}" for row in named.itertuples()]
    names = ", ".join(dict.fromkeys(listed)) or "none"
    note = Note("stragglers", f"Stragglers: {names}.", stragglers=[*dict.fromkeys(listed)])
    display = data.assign(
        rank=data["rank"].astype(str),
        ratio=data["ratio"].map(tables.number),
        runs=[f"{row.slow_runs} of {row.runs}" for row in data.itertuples()],
    ).drop(columns=["slow_runs", "p"])
    return tables.Table(
        TITLE,
        data,
        display.rename(columns={"runs": "slow runs"}),
        [note, RULE],
        ["host", "source", "verdict"],
    )


def main(*, runs: Path, out: Path, phases: Path | None = None) -> None:
    """Write the table of stragglers.

    Args:
        runs: runs.csv of the study
        out: files to write, without their suffix
        phases: phases.csv of the study, if runs are traced
    """
    columns = ["run_id", "scope", "rank", "phase", "seconds"]
    traced = read_table(phases, "phases") if phases else pd.DataFrame(columns=columns)
    tables.write(table(read_runs(runs), traced), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
