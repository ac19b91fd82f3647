"""The oldest supported Snakemake plans and runs as the newest does. More of it: make versions-test."""

import subprocess

import pytest

from support.checkout import Checkout
from support.oldest_snakemake import VERSION, oldest_snakemake


@pytest.fixture(scope="module")
def oldest() -> list[str]:
    command = oldest_snakemake()
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == VERSION
    return command


@pytest.mark.parametrize(("profile", "site"), [("local", "local"), ("slurm", "slurm-example")])
def test_oldest_plans_as_the_newest(campaign: Checkout, oldest: list[str], profile: str, site: str) -> None:
    settings = ["--profile", f"profiles/{profile}", "--config", "study=quickstart", f"site={site}"]
    newest = campaign.snakemake("--dry-run", "report", *settings)
    planned = campaign.snakemake("--dry-run", "report", *settings, program=oldest)
    assert (planned.status, newest.status) == (0, 0), planned.output
    assert planned.jobs == newest.jobs and planned.jobs["run"] > 0


def test_oldest_remakes_what_changed(campaign: Checkout, oldest: list[str]) -> None:
    assert campaign.snakemake("figures", program=oldest).jobs == {}
    table = campaign.results / "tables" / "cells.csv"
    before = table.read_text()
    table.write_text(before.replace("1", "2", 1))
    done = campaign.snakemake("figures", program=oldest)
    assert done.status == 0 and table.read_text() == before, done.output
    assert done.jobs == {"analysis": 1}
    assert campaign.snakemake("figures").jobs == {}
