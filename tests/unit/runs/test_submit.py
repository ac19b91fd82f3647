"""A campaign is submitted block by block.

With an interval target, every possible block has a job.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from common.shell import find_inaccessible_path
from declared.replicates import Replicates
from declared.site import load_site
from declared.study import load_study
from plan.campaign import Campaign, plan_campaign
from plan.decisions import decision_file, rule_fields
from runs import submit

SBATCH = """#!/bin/sh
echo "$@" >> sbatch.log
cat >> sbatch.in
echo $(wc -l < sbatch.log)
"""


@pytest.fixture(autouse=True)
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace sbatch by a script that numbers jobs and keeps its arguments."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(submit, "has_missing_benchmarks", lambda campaign: False)


def campaign(rule: Replicates, at_a_time: int = 1) -> Campaign:
    """Return a campaign of one cell on a cluster that runs `at_a_time` blocks at a time."""
    study, site = load_study("quickstart"), load_site("virtual")
    fixed = {"framework": ["pytorch-ddp"], "nodes": [1], "batch_size": [32], "sync_every": [1]}
    study = replace(study, factors=study.factors | fixed, exclude=(), replicates=rule)
    return plan_campaign(study, replace(site, scheduler=replace(site.scheduler, concurrent_runs=at_a_time)))


def submitted(campaign_now: Campaign) -> dict[int, str]:
    """Submit a campaign; return block -> dependencies of its job."""
    for file in ("sbatch.log", "sbatch.in"):
        Path(file).unlink(missing_ok=True)
    submit.submit(campaign_now, ["study=quickstart"], ["--keep-going"])
    lines = Path("sbatch.log").read_text().splitlines() if Path("sbatch.log").exists() else []
    words = [dict(word[2:].split("=", 1) for word in line.split() if "=" in word) for line in lines]
    blocks = [int(line.split("block ")[1].split()[0]) for line in lines]
    return {block: options["dependency"] for block, options in zip(blocks, words, strict=True)}


def record(campaign_now: Campaign, *blocks: int) -> None:
    for run in campaign_now.designed_runs:
        if run.block in blocks:
            file = Path(
                replace(
                    campaign_now, study=replace(campaign_now.study, replicates=Replicates(9, 9))
                ).record_paths[run.run_id]
            )
            file.parent.mkdir(parents=True)
            file.write_text("{}")


def decide(campaign_now: Campaign, block: int, refine: bool) -> None:
    cell = {"n": block, "half_width": 0.1, "reached": "no", "refine": refine, "expected": 5}
    file = decision_file(campaign_now.results, block)
    file.parent.mkdir(exist_ok=True)
    cells = {campaign_now.designed_runs[0].cell: cell}
    file.write_text(
        json.dumps({"block": block, "rule": rule_fields(campaign_now.study.replicates), "cells": cells})
    )


def test_a_fixed_number_of_blocks() -> None:
    campaign_now = campaign(Replicates(3, 3))
    record(campaign_now, 2)
    assert submitted(campaign_now) == {1: "singleton", 3: "singleton"}, "those with something to do"
    assert "block=3" in Path("sbatch.in").read_text()


def test_every_block_that_is_possible_waits_for_those_before() -> None:
    rule = Replicates(3, 5, 0.05)
    assert submitted(campaign(rule)) == {
        1: "singleton",
        2: "singleton",
        3: "singleton",
        4: "singleton,afterany:1:2:3",
        5: "singleton,afterany:1:2:3:4",
    }
    assert submitted(campaign(rule, at_a_time=2))[5] == "singleton,afterany:1:2:3:4"


def test_decided_and_undecided_blocks_are_submitted() -> None:
    campaign_now = campaign(Replicates(3, 6, 0.05))
    record(campaign_now, 1, 2, 3)
    assert list(submitted(campaign_now)) == [4, 5, 6], "the next job decides"
    decide(campaign_now, 3, refine=True)
    assert list(submitted(campaign_now.with_current_decisions())) == [4, 5, 6]
    record(campaign_now, 4)
    assert list(submitted(campaign_now.with_current_decisions())) == [5, 6]
    decide(campaign_now, 4, refine=False)
    assert submitted(campaign_now.with_current_decisions()) == {}


SQUEUE = """#!/bin/sh
echo '7|{name}0|quickstart block 2|PENDING'
echo '8|a|pipe|in|a name|RUNNING'
echo 'a line of a plugin'
"""


def test_jobs_of_the_study_are_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "squeue").write_text(SQUEUE.format(name=submit.job_name_prefix()))
    (tmp_path / "squeue").chmod(0o755)
    assert submit.campaign_jobs(campaign(Replicates(3, 3))) == {"7": "quickstart block 2 PENDING"}


def test_block_on_a_node_without_paths_has_its_own_status(tmp_path: Path) -> None:
    submitted(campaign(Replicates(1, 1)))
    script = (tmp_path / "sbatch.in").read_text()
    assert f"{sys.executable} " in script
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    (tmp_path / "sleep").chmod(0o755)
    blind = script.replace(f" {sys.executable} ", " /no/python ", 1)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["bash"], input=blind, env=environment, capture_output=True, text=True, check=False)
    seen = find_inaccessible_path(done.stderr)
    assert done.returncode == 79 and seen is not None and seen.facts["path"] == "/no/python"


def test_options_of_the_caller_reach_a_block(tmp_path: Path) -> None:
    submitted(campaign(Replicates(1, 1)))
    script = (tmp_path / "sbatch.in").read_text()
    (snakemake,) = [line for line in script.splitlines() if line.startswith("exec snakemake ")]
    assert "--keep-going" in snakemake.split()
