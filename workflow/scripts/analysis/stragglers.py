"""Name the ranks, with their hosts, that were slower than the other ranks of their runs.

Each run with several equal ranks is a round of the rule in sites/outliers.py: once by the reference benchmark
before and after the run and, if the run was traced, once by the computation of a step. Training times do not
show a straggler, because all ranks wait for the slowest one.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from analysis import tables
from analysis.records import read_runs, successful
from common.notes import Note
from common.options import run_program
from common.tables import read_table
from common.text import number_of
from sites.outliers import FALSE_POSITIVE_RATE, MARGIN_TEXT, RATE_TEXT, Verdict, binomial_tail, judge_units

TITLE = "Stragglers by rank and host"
COLUMNS = ["host", "rank", "source", "runs", "slow_runs", "ratio", "p", "verdict"]
STRAGGLER, TOO_FEW = "straggler", "too few runs"
COMPUTING = ("forward", "backward")  # Phases of a traced step.
RULE = (
    f"A run is slow on a rank that takes more than {MARGIN_TEXT} longer than the lower median of its ranks. "
    f"A rank is a straggler if it is slow in so many runs that at most {RATE_TEXT} of campaigns of "
    "equal ranks would name any rank."
)
SOURCE_TEXTS = {
    "reference": "Reference: fixed work right before and after the run.",
    "computation": "Computation: forward and backward pass of traced steps.",
}

HostRank = tuple[str, int]  # Host and rank.
NOTHING_COMPARED = Note(
    "no-rank-times",
    "No successful run on several equal ranks has times of the reference benchmark, or phases.",
)


def reference_times(runs: pd.DataFrame) -> Iterator[dict[HostRank, float]]:
    """Yield the seconds of the reference benchmark by host and rank, of each run with several ranks."""
    for row in runs.dropna(subset=["reference_ranks_s", "hosts"]).itertuples():
        seconds = [float(text) for text in row.reference_ranks_s.split("/")]
        yield dict(zip(_host_ranks(row.hosts, len(seconds)), seconds, strict=True))


def computing_times(runs: pd.DataFrame, phases: pd.DataFrame) -> Iterator[dict[HostRank, float]]:
    """Yield the seconds of a step's computation by host and rank, of each traced run with several ranks."""
    steps = phases[(phases["scope"] == "step") & phases["phase"].isin(COMPUTING)]
    by_rank = steps.groupby(["run_id", "rank"], observed=True)["seconds"].sum()
    equal = runs[runs["parallelism"] == "data"].dropna(subset="hosts").set_index("run_id")["hosts"]
    for run_id, seconds in by_rank.groupby(level="run_id"):
        if run_id in equal.index:
            yield dict(zip(_host_ranks(equal[run_id], len(seconds)), seconds, strict=True))


def _host_ranks(hosts: str, ranks: int) -> list[HostRank]:
    """Return host and rank of each rank of a run whose nodes have equally many ranks."""
    names = hosts.split()
    return [(names[rank * len(names) // ranks], rank) for rank in range(ranks)]


def find_stragglers(runs: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the table, the slowest rank of each source first."""
    equal = successful(runs)
    equal = equal[equal["cpu_shares"].isna() & (equal["device"] != "hybrid") & (equal["ranks"] > 1)]
    sources = {"reference": list(reference_times(equal)), "computation": list(computing_times(equal, phases))}
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
        return STRAGGLER
    smallest_p = binomial_tail(verdict.n_rounds, verdict.n_rounds)
    return TOO_FEW if smallest_p > FALSE_POSITIVE_RATE / n_tests else "usual"


def table(runs: pd.DataFrame, phases: pd.DataFrame) -> tables.Table:
    """Return the table of a campaign."""
    data = find_stragglers(runs, phases)
    display = data.assign(
        rank=data["rank"].astype(str),
        ratio=data["ratio"].map(tables.number),
        runs=[f"{row.slow_runs} of {row.runs}" for row in data.itertuples()],
    ).drop(columns=["slow_runs", "p"])
    return tables.Table(
        TITLE,
        data,
        display.rename(columns={"runs": "slow runs"}),
        [_summary(data), _rule_note(set(data["source"]))],
        ["host", "source", "verdict"],
    )


def _rule_note(sources: set[str]) -> Note:
    """Return what a straggler is, and what the sources of its times are."""
    texts = [text for source, text in SOURCE_TEXTS.items() if source in sources]
    return Note("straggler-rule", " ".join([RULE, *texts]), sources=sorted(sources))


def _summary(data: pd.DataFrame) -> Note:
    """Name the stragglers, and say how many verdicts lack runs."""
    if data.empty:
        return NOTHING_COMPARED
    named = data[data["verdict"] == STRAGGLER]
    listed = [*dict.fromkeys(f"rank {row.rank} on {row.host}" for row in named.itertuples())]
    undecided = int((data["verdict"] == TOO_FEW).sum())
    text = f"Stragglers: {', '.join(listed) or 'none'}."
    text += f" Too few runs for {undecided} of {number_of(len(data), 'verdict')}." if undecided else ""
    return Note("stragglers", text, stragglers=listed, undecided=undecided)


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
