"""Run the commands of the documentation in order in one checkout; tests/support/commands.yaml lists them."""

import base64
import csv
import gzip
import json
import re
import subprocess

import pytest

from support.checkout import CHECKOUT, Checkout, planned_jobs
from support.pages import lists, page

LISTS = lists()
STUDY = "config/studies/second-node.yaml"
CAMPAIGNS = "docs/campaigns/tf-strategies"
EXPECTED_OUTPUTS = {  # command -> part of its output
    "./ringside plan second-node": "second-node at local: 12 runs, 4 cells in 3 blocks",
    "./ringside status second-node": "done       12 ok",
    "./ringside repeat '*.b64.n2.s1.r1' --study second-node": "1 run will be repeated",
    "./ringside archive second-node": "results/second-node/second-node.tar.gz: ",
    "./ringside verify second-node": " identical",
    f"./ringside compare {CAMPAIGNS}-virtual {CAMPAIGNS}-unshaped": "to tf-strategies-unshaped, of 12 compared cells: ",
    "./ringside report second-node": "report: results/second-node/report.html",
    "./ringside unlock": "there is no lock",
    "./ringside models two-blocks": "two-blocks  32x32x3",
    "./ringside models one-block --tokens 128:5000": "one-block  128:5000",
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout with all files that the pages tell a reader to write."""
    new_checkout = Checkout(tmp_path_factory.mktemp("pages") / "checkout", name="second-node")
    new_checkout.path(".venv").symlink_to(CHECKOUT / ".venv")
    new_checkout.write(
        STUDY,
        page("docs/tutorial/laptop.md").blocks("yaml")[0] + page("docs/how-to/publish.md").blocks("yaml")[0],
    )
    for model in page("docs/how-to/own-model.md").blocks("python"):
        new_checkout.write(model.partition("\n")[0].removeprefix("# "), model)
    return new_checkout


def call(checkout: Checkout, command: str) -> str:
    """Run a command, which has to succeed, and return its output."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=checkout.folder, env=checkout.environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("command", LISTS.run)
def test_a_command_works(checkout: Checkout, command: str) -> None:
    assert EXPECTED_OUTPUTS.get(command, "") in call(checkout, command)


@pytest.mark.parametrize("command", LISTS.planned)
def test_what_takes_minutes_is_planned(checkout: Checkout, command: str) -> None:
    planned = f"{command} -n" if " -- " in command else f"{command} -- -n"
    last = {"./ringside strategies": "found", "./ringside pilot": "pilot"}.get(
        " ".join(command.split()[:2]), "figure"
    )
    assert planned_jobs(call(checkout, planned))[last] > 0


def test_a_comparison_has_a_figure(checkout: Checkout) -> None:
    (figure,) = checkout.path("results/comparison").glob("*/comparison.png")
    assert figure.stat().st_size > 10_000


def test_the_last_line_of_run_is_its_outcome(checkout: Checkout) -> None:
    checkout.path("results/second-node/figures/residuals.png").unlink()
    output = call(checkout, "./ringside run second-node")
    assert output.splitlines()[-1] == "ringside: All 12 runs are usable"


def test_the_tutorial_is_right_about_what_it_made(checkout: Checkout) -> None:
    with open(checkout.results / "runs.csv") as table:
        rows = list(csv.DictReader(table))
    assert [row["status"] for row in rows] == ["ok"] * 12
    assert [row["run_id"] for row in rows if row["attempt"] == "2"] == [
        "pytorch-ddp.small-cnn.digits.b64.n2.s1.r1"
    ]
    text = page("docs/tutorial/laptop.md").text
    for name in re.findall(r"`(results/second-node/[\w./-]+)`", text):
        assert checkout.path(name).exists(), name
    assert (checkout.results / "paper" / "threats.tex").exists()


def test_the_report_has_every_run_with_its_log(checkout: Checkout) -> None:
    html = (checkout.results / "report.html").read_text()
    assert "Does a second node pay?" in html
    block = re.search(r'id="block-0">([^<]+)<', html)
    assert block is not None
    runs = json.loads(gzip.decompress(base64.b64decode(block[1])))
    assert [run["record"]["status"] for run in runs] == ["ok"] * 12 and all(
        "log.txt" in run["note"] for run in runs
    )


def test_a_level_more_plans_its_own_runs_alone(checkout: Checkout) -> None:
    text = checkout.path(STUDY).read_text()
    checkout.edit(STUDY, "batch_size: [16, 64] ", "batch_size: [16, 32, 64] ")
    planned = planned_jobs(call(checkout, "snakemake -n --config study=second-node"))
    checkout.write(STUDY, text)
    assert planned["run"] == 6
