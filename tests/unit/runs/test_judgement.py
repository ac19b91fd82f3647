"""Status and reason of an attempt, from what the ranks left behind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan.site import load_site
from runs.launch import Outcome, cores_of
from runs.supervise import judge, measurement, with_last_line
from runs.worker.meter import COLUMNS

SPEC = {"levels": {"epochs": 2}}
MEASURED: dict[str, Any] = {"foreign_cpu_share": 0.01}
OK = Outcome("ok", None, 4.0)
SITE = replace(load_site("local"), max_foreign_cpu_share=0.05)


def epochs(folder: Path, *losses: float) -> Path:
    rows = [",".join("1" if column != "train_loss" else str(loss) for column in COLUMNS) for loss in losses]
    (folder / "epochs.csv").write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    return folder


def test_a_whole_undisturbed_run_is_ok(tmp_path: Path) -> None:
    assert judge(OK, MEASURED, epochs(tmp_path, 2.0, 1.0), SPEC, SITE) == ("ok", None)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_invalid(tmp_path: Path, loss: float) -> None:
    assert judge(OK, MEASURED, epochs(tmp_path, 2.0, loss), SPEC, SITE)[0] == "invalid"


def test_a_disturbed_run_is_invalid(tmp_path: Path) -> None:
    status, reason = judge(OK, {"foreign_cpu_share": 0.2}, epochs(tmp_path, 2.0, 1.0), SPEC, SITE)
    assert (status, reason) == ("invalid", "disturbed: 20% of the processor time went to others (more than 5%)")


def test_a_run_that_ends_early_has_failed(tmp_path: Path) -> None:
    assert judge(OK, MEASURED, epochs(tmp_path, 2.0), SPEC, SITE) == ("failed", "ended after 1 of 2 epochs")
    assert judge(OK, None, epochs(tmp_path, 2.0, 1.0), SPEC, SITE)[0] == "failed"


def test_the_reason_quotes_the_line_of_the_log_that_names_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("starting\nRuntimeError: out of memory\nshutting down\n\n")
    outcome = Outcome("failed", "rank 1 ended with status 1", 4.0)
    assert judge(outcome, None, tmp_path, SPEC, SITE) == (
        "failed",
        "rank 1 ended with status 1: RuntimeError: out of memory",
    )
    assert with_last_line("killed", tmp_path / "nothing") == "killed"


def test_no_result_is_no_measurement(tmp_path: Path) -> None:
    assert measurement(tmp_path, 0.0) is None


def test_ranks_have_disjoint_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 2, 4, 6})
    assert [cores_of(rank, 4, 2) for rank in range(2)] == [[0, 2], [4, 6]]
    assert [cores_of(rank, 2, 1) for rank in range(2)] == [[0], [2]]
    assert cores_of(2, 2, 1) == [0, 2], "ranks for which there is no core share the site's"
