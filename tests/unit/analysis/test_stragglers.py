"""Stragglers are named by rank and host, from work beside runs and from traced steps; quiet campaigns have none."""

import numpy as np
import pandas as pd
import pytest

from analysis.records import read_runs
from analysis.stragglers import computing_times, find_stragglers, reference_times, table
from common.files import CHECKOUT
from common.notes import codes, find_note
from common.tables import read_table

NO_PHASES = pd.DataFrame(columns=["run_id", "scope", "rank", "phase", "seconds"])
FOLDER = CHECKOUT / "docs" / "campaigns" / "phases-virtual"


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return read_runs(FOLDER / "runs.csv")


def with_reference(runs: pd.DataFrame, slow_host: str) -> pd.DataFrame:
    """Return the runs with reference times of every rank, longer on one host."""
    draw = np.random.default_rng(1)
    texts = [
        "/".join(
            f"{(1.4 if host == slow_host else 1.0) * draw.normal(0.3, 0.01):.4f}" for host in hosts.split()
        )
        if isinstance(hosts, str)
        else None
        for hosts in runs["hosts"].astype(object).where(runs["hosts"].notna(), None)
    ]
    return runs.assign(reference_ranks_s=pd.array(texts, dtype="str"))


def test_slow_host_is_a_straggler(runs: pd.DataFrame) -> None:
    phases = read_table(FOLDER / "phases.csv", "phases")
    rows = find_stragglers(with_reference(runs, "node2"), phases)
    named = rows[rows["verdict"] == "straggler"]
    assert list(zip(named["host"], named["rank"], named["source"], strict=True)) == [
        ("node2", 1, "reference")
    ]
    assert named["ratio"].iloc[0] == pytest.approx(1.4, abs=0.05) and named.index[0] == 0
    assert table(with_reference(runs, "node2"), phases).notes[0].facts["stragglers"] == ["rank 1 on node2"]


def test_quiet_campaign_has_no_straggler(runs: pd.DataFrame) -> None:
    rows = find_stragglers(runs, read_table(FOLDER / "phases.csv", "phases"))
    assert set(rows["source"]) == {"computation"}
    assert set(rows["verdict"]) == {"usual"}


@pytest.mark.parametrize("n_runs", [3, 7])
def test_few_runs_name_nobody(runs: pd.DataFrame, n_runs: int) -> None:
    pair = runs[runs["nodes"] == 2].head(n_runs)
    assert len(pair) == n_runs
    rows = find_stragglers(with_reference(pair, "node2"), NO_PHASES)
    assert set(rows["verdict"]) == {"too few runs"}
    notes = table(with_reference(pair, "node2"), NO_PHASES).notes
    assert find_note(notes, "stragglers").facts == {"stragglers": [], "undecided": len(rows)}


@pytest.mark.parametrize(
    "change",
    [{"cpu_shares": "1/0.5"}, {"device": "hybrid"}, {"status": "failed"}, {"ranks": 1, "hosts": "node2"}],
)
def test_runs_of_unequal_ranks_are_not_compared(runs: pd.DataFrame, change: dict[str, object]) -> None:
    pair = runs[runs["nodes"] == 2].assign(**change)
    assert find_stragglers(with_reference(pair, "node2"), NO_PHASES).empty


def test_ranks_of_a_model_in_parts_are_not_compared(runs: pd.DataFrame) -> None:
    phases = read_table(FOLDER / "phases.csv", "phases")
    assert find_stragglers(runs.assign(parallelism="pipeline2"), phases).empty


def test_ranks_fill_one_node_after_another(runs: pd.DataFrame) -> None:
    run = runs[runs["nodes"] == 2].head(1).assign(hosts="a b", reference_ranks_s="1/2/3/4")
    assert list(reference_times(run)) == [{("a", 0): 1, ("a", 1): 2, ("b", 2): 3, ("b", 3): 4}]


def test_computation_is_the_forward_and_backward_pass_of_steps(runs: pd.DataFrame) -> None:
    run = runs[runs["nodes"] == 2].head(1).assign(hosts="a b")
    spent = [
        ("step", "forward", 1),
        ("step", "backward", 2),
        ("step", "optimizer", 8),
        ("epoch", "forward", 16),
    ]
    rows = [
        [run["run_id"].iloc[0], scope, rank, phase, (rank + 1) * seconds]
        for rank in (0, 1)
        for scope, phase, seconds in spent
    ]
    phases = pd.DataFrame(rows, columns=NO_PHASES.columns)
    assert list(computing_times(run, phases)) == [{("a", 0): 3, ("b", 1): 6}]


def test_no_times_are_not_called_quiet(runs: pd.DataFrame) -> None:
    result = table(runs.assign(status="failed"), NO_PHASES)
    assert result.data.empty and codes(result.notes) == ["no-rank-times", "straggler-rule"]
