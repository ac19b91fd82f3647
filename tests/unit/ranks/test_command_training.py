"""The scripts of docs/how-to/own-command.md train on one and on two nodes, and their losses fall."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declared.replicates import Replicates
from declared.study import load_study
from plan.design import plan_design
from plan.identity import plan_run
from runs.epochs import read_epochs
from runs.supervise import supervise
from support.installed_site import busy_site

pytestmark = [pytest.mark.training, pytest.mark.every_framework]


@pytest.mark.parametrize(
    ("framework", "nodes", "tp"),
    [("titan-example", 1, 1), ("titan-example", 2, 1), ("megatron-example", 2, 2)],
)
def test_a_script_of_our_own_trains(
    tmp_path: Path,
    real: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    framework: str,
    nodes: int,
    tp: int,
) -> None:
    monkeypatch.setenv("RINGSIDE_LOCK", str(tmp_path / "lock"))
    real("pytorch")
    site = busy_site(reference=False)
    study = load_study("own-commands")
    levels = {"framework": [framework], "nodes": [nodes], "custom_tp": [tp], "epochs": [2]}
    study = replace(study, factors=study.factors | levels, exclude=(), replicates=Replicates(1, 1))
    (run,) = plan_design(study, site)
    record = supervise(plan_run(study, site, run), tmp_path / "results", "session")
    assert (record["status"], record["reason"]) == ("ok", None)
    assert record["measured"]["log"]["global_batch"] == 8 and record["measured"][
        "library_version"
    ].startswith("torch ")
    folder = next((tmp_path / "results").glob("runs/*/*/attempt-1"))
    first, last = (row["train_loss"] for row in read_epochs(folder / "epochs.csv"))
    assert last < first
