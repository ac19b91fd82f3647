"""A program starts under Score-P, and its run fails if it leaves no trace."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import read_json, write_json
from common.run_status import RunStatus
from declared.site import load_site
from environments import scorep
from environments.installed import PROGRAM_VARIABLE
from ranks.worker.node import machine
from runs import score_p

ENVIRONMENT = {
    "variables": {PROGRAM_VARIABLE: "/opt/lbann", "X": "1"},
    "packages": {"lbann": "0.104"},
    "setup": [],
}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Replace Score-P's two programs by scripts."""
    (tmp_path / "bin").mkdir()
    for name, output in (("scorep-config", "8.4"), ("scorep-preload-init", "/lib/a.so:/lib/b.so")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho {output}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """Return an attempt with the files of ranks and Score-P."""
    folder = tmp_path / "attempt"
    (folder / scorep.START_FOLDER).mkdir(parents=True)
    (folder / scorep.ANCHOR).parent.mkdir()
    (folder / scorep.ANCHOR).touch()
    write_json(folder / "result.json", {"ranks": [{"machine": machine()}, {"machine": "another"}]})
    (folder / "phases-0.csv").write_text(
        f"epoch,step,phase,start,end\n0,0,interpreter,{time.monotonic() - 7:.7f},9e9\n"
    )
    return folder


def test_the_program_is_replaced_and_the_version_recorded(prefix: Path) -> None:
    site = replace(load_site("local"), scorep=prefix)
    started = score_p.wrap_program(ENVIRONMENT, site, "8.4", prefix)
    assert started["variables"] == {PROGRAM_VARIABLE: str(prefix / scorep.START_FOLDER / "lbann"), "X": "1"}
    assert started["packages"] == {"lbann": "0.104", "scorep": "8.4"}
    with pytest.raises(InputError) as refused:
        score_p.wrap_program(ENVIRONMENT, site, "9.0", prefix)
    error = refused.value
    assert (error.code, error.file, error.key) == (
        "changed-since-planned",
        "config/sites/local.yaml",
        "scorep",
    )
    assert "9.0" in error.problem


def test_clocks_are_compared_if_rank_0_was_on_this_machine(attempt: Path) -> None:
    assert (
        score_p.finish_trace(attempt, RunStatus.OK) is None and not (attempt / scorep.START_FOLDER).exists()
    )
    assert read_json(attempt / scorep.CLOCK)["rank_0_began"] == pytest.approx(time.time() - 7, abs=2)


def test_another_machine_has_another_clock(attempt: Path) -> None:
    write_json(attempt / "result.json", {"ranks": [{"machine": "another"}]})
    assert score_p.finish_trace(attempt, RunStatus.OK) is None and not (attempt / scorep.CLOCK).exists()


def test_a_run_without_a_trace_failed(attempt: Path) -> None:
    (attempt / scorep.ANCHOR).unlink()
    problem = score_p.finish_trace(attempt, RunStatus.OK)
    assert problem is not None and (problem.code, problem.facts) == (
        "no-trace",
        {"file": "score-p/traces.otf2"},
    )
