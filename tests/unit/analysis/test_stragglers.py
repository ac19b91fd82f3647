"""Stragglers are named by rank and host, from work beside runs and from traced steps; quiet campaigns have none."""

import numpy as np
import pandas as pd
import pytest

from analysis.stragglers import find_stragglers, table
from common.files import CHECKOUT
from common.notes import codes, find_note
from common.tables import read_table

NO_PHASES = pd.DataFrame(columns=["run_id", "scope", "rank", "phase", "seconds"])
FOLDER = CHECKOUT / "docs" / "campaigns" / "phases-virtual"


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return read_table(FOLDER / "runs.csv", "runs")


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
    assert named["ratio"].iloc[0] == pytest.approx(1.4, abs=0.05)
    assert table(with_reference(runs, "node2"), phases).notes[0].facts["stragglers"] == ["rank 1 on node2"]


def test_quiet_campaign_has_no_straggler(runs: pd.DataFrame) -> None:
    rows = find_stragglers(runs, read_table(FOLDER / "phases.csv", "phases"))
    assert set(rows["source"]) == {"computation"}
    assert set(rows["verdict"]) == {"usual"}


def test_few_runs_name_nobody(runs: pd.DataFrame) -> None:
    pair = runs[runs["nodes"] == 2].head(3)
    rows = find_stragglers(with_reference(pair, "node2"), NO_PHASES)
    assert set(rows["verdict"]) == {"too few runs"}
    notes = table(with_reference(pair, "node2"), NO_PHASES).notes
    assert find_note(notes, "stragglers").facts == {"stragglers": [], "undecided": len(rows)}


def test_no_times_are_not_called_quiet(runs: pd.DataFrame) -> None:
    result = table(runs.assign(status="failed"), NO_PHASES)
    assert result.data.empty and codes(result.notes) == ["no-rank-times", "straggler-rule"]
