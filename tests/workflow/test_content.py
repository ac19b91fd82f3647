"""Given a finished campaign, the content of inputs decides whether a product is rebuilt, not their dates.

No product counts as up to date that was made from other inputs.
"""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from support.checkout import Checkout

FIGURE = "workflow/scripts/figures/kinds/overview.py"
AGES = pytest.mark.parametrize(
    "age_s",
    [
        pytest.param(10 * 365 * 86400, id="older"),
        pytest.param(-86400, marks=pytest.mark.thorough, id="in the future"),
    ],
)


def edit(file: Path, text: str, age_s: float) -> None:
    """Write a file and date it back by `age_s`."""
    file.write_text(text)
    os.utime(file, (time.time() - age_s,) * 2)


def rebuild(checkout: Checkout, target: str = "figures") -> dict[str, int]:
    """Build a target, verify the results, and return the jobs by rule."""
    done = checkout.snakemake(target)
    assert done.status == 0, done.output
    compared = checkout.program("ringside", "verify", "small")
    assert compared.returncode == 0, compared.stdout
    return done.jobs


def input_digest(checkout: Checkout, product: str, file: str) -> str:
    """Return the digest of a product's input in the manifest."""
    return str(checkout.manifest()["products"][product]["made_of"][file])


@AGES
def test_code_that_is_edited_and_put_back(campaign: Checkout, age_s: float) -> None:
    file = campaign.path(FIGURE)
    caption = campaign.results / "figures" / "overview.caption.md"
    before, text, named = (
        file.read_text(),
        caption.read_text(),
        input_digest(campaign, "figures/overview", FIGURE),
    )
    edit(file, before.replace("} of every cell.", "} of each cell.", 1), age_s)
    assert rebuild(campaign) == {"figure": 1}
    assert "Epoch time of each cell" in caption.read_text()
    assert input_digest(campaign, "figures/overview", FIGURE) != named
    edit(file, before, age_s)
    assert rebuild(campaign) == {"figure": 1}
    assert caption.read_text() == text and input_digest(campaign, "figures/overview", FIGURE) == named
    assert rebuild(campaign) == {}


def test_epochs_that_are_others_are_found_and_taken(campaign: Checkout) -> None:
    record = campaign.results / campaign.records()[0]
    file = next(record.parent.glob("attempt-*/epochs.csv"))
    before, table = file.read_text(), (campaign.results / "runs.csv").read_text()
    head, first, second, *rest = before.split("\n")
    number, warm_up, time_s, *other_columns = second.split(",")
    edit(
        file,
        "\n".join([head, first, ",".join([number, warm_up, f"{float(time_s) * 2}", *other_columns]), *rest]),
        86400,
    )
    compared = campaign.program("ringside", "verify", "small")
    assert compared.returncode == 1 and f"{file.relative_to(campaign.folder)}: differs" in compared.stdout
    assert rebuild(campaign)["aggregate"] == 1
    assert (campaign.results / "runs.csv").read_text() != table
    edit(file, before, 86400)
    assert rebuild(campaign)["aggregate"] == 1
    assert (campaign.results / "runs.csv").read_text() == table


@AGES
def test_a_record_that_is_another(campaign: Checkout, age_s: float) -> None:
    file = campaign.results / campaign.records()[0]
    content = json.loads(file.read_text())
    edit(file, json.dumps({**content, "status": "failed", "reason": "it fell", "measured": None}), age_s)
    shutil.rmtree(campaign.path(".snakemake"))  # Snakemake's metadata is not used
    assert rebuild(campaign) == {"aggregate": 1, "analysis": 1, "figure": 4}
    assert "failed,it fell" in (campaign.results / "runs.csv").read_text()
    assert rebuild(campaign) == {}


def test_a_stated_price_repeats_no_run(campaign: Checkout) -> None:
    site = campaign.path("config/sites/local.yaml")
    stated = "costs: {price_per_node_hour: {amount: 3.2, currency: EUR}}\n"
    edit(site, f"{site.read_text()}{stated}", 86400)
    jobs = rebuild(campaign)
    assert jobs == {"aggregate": 1, "analysis": 1, "figure": 4}
    assert "3.2,EUR" in (campaign.results / "runs.csv").read_text()
    assert "(EUR)" in (campaign.results / "tables" / "cost.md").read_text()


@pytest.mark.parametrize(
    ("names", "rules"),
    [
        (["runs.csv"], {"aggregate": 1, "analysis": 1, "figure": 4}),
        (["design.csv"], {"design": 1, "aggregate": 1, "analysis": 1, "figure": 4}),
        (["tables/cells.md", "figures/overview.svg"], {"analysis": 1, "figure": 1}),
    ],
)
def test_an_edited_product_is_made_again(campaign: Checkout, names: list[str], rules: dict[str, int]) -> None:
    files = {campaign.results / name: (campaign.results / name).read_text() for name in names}
    for file, before in files.items():
        edit(file, before.replace("1", "2", 1), 3600)
    compared = campaign.program("ringside", "verify", "small")
    assert compared.returncode == 1
    assert all(str(file.relative_to(campaign.folder)) in compared.stdout for file in files)
    assert rebuild(campaign) == rules
    assert {file: file.read_text() for file in files} == files


def test_removed_outputs_of_one_job_are_made_again(campaign: Checkout) -> None:
    files = [campaign.results / "tables" / name for name in ("effects.csv", "variance.md", "cells.tex")]
    for file in files:
        file.unlink()
    compared = campaign.program("ringside", "verify", "small")
    assert compared.returncode == 1
    assert all(str(file.relative_to(campaign.folder)) in compared.stdout for file in files)
    assert rebuild(campaign) == {"analysis": 1}
    assert all(file.exists() for file in files)


def test_products_of_another_checkout_are_made_again(campaign: Checkout, tmp_path: Path) -> None:
    second = campaign.copy(tmp_path / "other")
    file = second.path(FIGURE)
    edit(file, file.read_text() + "OTHER = True\n", 3600)
    assert rebuild(second) == {"figure": 1}
    for folder in ("figures", "made_of/figures"):
        shutil.rmtree(campaign.results / folder)
        shutil.copytree(
            second.results / folder, campaign.results / folder
        )  # dates kept, as cp -p and rsync -a do
    assert rebuild(campaign) == {"figure": 1}


def test_a_changed_command_makes_again_what_nobody_remembers(campaign: Checkout) -> None:
    shutil.rmtree(campaign.path(".snakemake"))
    campaign.edit(
        "config/studies/small.yaml",
        "{kind: overview}",
        "{kind: overview, filter: {framework: pytorch-single}}",
    )
    assert rebuild(campaign) == {"figure": 1}
