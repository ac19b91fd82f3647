"""Figures have a manifest of inputs, changed inputs are reported, and an archive rebuilds everything."""

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from support.checkout import SMALL_STUDY, Checkout
from support.synthetic import campaign as campaign_of
from support.synthetic import write_campaign, write_frames
from support.validators import accepts_citation, accepts_crate

STUDY = "config/studies/small.yaml"
FIGURE = "workflow/scripts/figures/kinds/overview.py"
LOCK = "containers/tensorflow/requirements.cpu.txt"

PRIVATE = (
    "config/secret.env",
    "config/studies/private.yaml",
    "config/sites/private.yaml",
    "docs/private/key.pem",
)
LEFT_OUT = {  # recommendations that the crate does not follow
    "process-run-crate-0.5_5.1",  # a workflow with a URL: ours is in the crate
    "workflow-ro-crate-1.0_8.1",  # Bioschemas' profile, too
    "ro-crate-1.1_31.2",  # the address of an author's affiliation
    "ro-crate-1.1_22.3",  # a publisher: the archive is not published yet
}


def verified(checkout: Checkout, *arguments: str) -> subprocess.CompletedProcess[str]:
    return checkout.program("ringside", "verify", "small", *arguments)


def test_the_manifest_has_all_that_figures_were_made_of(campaign: Checkout) -> None:
    manifest = campaign.manifest()
    files = {str(path.relative_to(campaign.folder)) for path in campaign.results.glob("figures/*")}
    assert {
        file
        for name, product in manifest["products"].items()
        if name.startswith("figures/")
        for file in product["files"]
    } == files
    sources = manifest["sources"]
    assert list(sources["study"]) == [STUDY]
    assert json.loads(sources["site"]["cores"]) >= 1
    assert {"requirements.txt", LOCK, "containers/horovod-pytorch/requirements.cpu.txt"} <= set(
        sources["locks"]
    )
    worker = "workflow/scripts/ranks/worker/epoch_timer.py"
    assert {FIGURE, worker, "workflow/scripts/ranks/frameworks/horovod-pytorch/adapter.py"} <= set(
        sources["code"]
    )
    assert "digits" in sources["data"]
    assert {"design.csv", "runs.csv", "epochs.csv"} <= set(sources["tables"])
    assert len([file for file in sources["records"] if file.endswith("record.json")]) == 3
    assert len([file for file in sources["records"] if file.endswith("attempt-1/epochs.csv")]) == 3
    assert FIGURE in manifest["products"]["figures/overview"]["made_of"]
    done = verified(campaign)
    assert done.returncode == 0 and done.stdout.rstrip().endswith(
        f"{len(files) + other_files(manifest) + len(sources['records'])} identical"
    ), done.stdout


def other_files(manifest: dict) -> int:
    n_files = sum(
        len(product["files"])
        for name, product in manifest["products"].items()
        if not name.startswith("figures/")
    )
    return n_files + len(manifest["sources"]["tables"])


def test_figures_say_what_has_changed_since_they_were_made(campaign: Checkout) -> None:
    done = campaign.snakemake("figures")
    assert done.status == 0 and "changed since" not in done.output

    campaign.edit(STUDY, "title: the smallest", "title: the very smallest")
    campaign.write(FIGURE, campaign.path(FIGURE).read_text() + "CHANGED = True\n")
    campaign.edit("config/sites/local.yaml", "time_limit_s: 300", "time_limit_s: 301")
    for arguments in (["-n"], []):
        done = campaign.snakemake("figures", *arguments)
        assert done.status == 0, done.output
        assert "small: changed since its figures were made; dependent outputs will be rebuilt:" in done.output
        assert f"  the study: {STUDY}\n" in done.output and f"  code: {FIGURE}\n" in done.output
        assert "the site, where" not in done.output, "a limit changes no measurement"
        assert done.jobs == {"figure": 1}, "which has the title"
    assert "changed since" not in campaign.snakemake("figures").output

    campaign.write(LOCK, campaign.path(LOCK).read_text() + "# another\n")
    done = campaign.snakemake("figures", "-n")
    assert f"  locked software: {LOCK}\n" in done.output and done.jobs["run"] == 1


def test_verify_finds_what_is_not_as_it_was_made(campaign: Checkout) -> None:
    table = campaign.results / "tables" / "cells.csv"
    head, first, *other_rows = table.read_text().splitlines()
    table.write_text("\n".join([head, first.replace("1", "2"), *other_rows]) + "\n")
    (campaign.results / "figures" / "overview.svg").unlink()
    done = verified(campaign)
    assert done.returncode == 1
    assert "results/small/tables/cells.csv: differs\n" in done.stdout
    assert "results/small/figures/overview.svg: not there\n" in done.stdout


@pytest.fixture(scope="module")
def archived(finished_campaign: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the small campaign, unpacked: <study>/."""
    checkout = finished_campaign.copy(tmp_path_factory.mktemp("archived") / "checkout")
    study = checkout.path(STUDY)
    study.write_text(
        f"{study.read_text()}licence: CC-BY-4.0\n"
        "authors:\n"
        "  - {family-names: Lovelace, given-names: Ada, orcid: 'https://orcid.org/0000-0002-1825-0097', "
        "affiliation: Nowhere}\n"
    )
    for name in PRIVATE:
        checkout.path(name).parent.mkdir(exist_ok=True)
        checkout.write(name, "secret")
    done = checkout.snakemake("archive")
    assert done.status == 0, done.output
    assert done.jobs == {"archived": 1}
    file = checkout.results / "small.tar.gz"
    before = file.read_bytes()
    file.unlink()
    assert checkout.snakemake("archive").status == 0
    assert file.read_bytes() == before, "the same content makes the same file"
    folder = tmp_path_factory.mktemp("elsewhere")
    subprocess.run(["tar", "--extract", "--file", file, "--directory", folder], check=True)
    shutil.rmtree(checkout.folder)
    return folder / "small"


def test_an_archive_makes_everything_again_elsewhere(archived: Path) -> None:
    command = (archived / "remake").read_text()
    assert "ringside run small --site local --records available" in command
    again = Checkout(archived / "ringside")
    assert not (again.results / "figures").exists() and not (again.results / "runs.csv").exists()
    done = again.snakemake("figures", "--config", "study=small", "site=local", "records=available")
    assert done.status == 0 and "run" not in done.jobs, done.output
    compared = verified(again, "--against", "../manifest.json")
    assert compared.returncode == 0, compared.stdout
    assert not [name for name in PRIVATE if again.path(name).exists()]
    assert any(again.path("config/studies").glob("small.yaml"))
    copy = archived / "figures" / "overview.svg"
    content = copy.read_bytes()
    copy.write_bytes(content + b"<!-- -->")
    compared = verified(again, "--against", "../manifest.json")
    copy.write_bytes(content)
    assert compared.returncode == 1 and "../figures/overview.svg: differs" in compared.stdout
    for name in ("runs.csv", "epochs.csv"):
        assert (again.results / name).read_bytes() == (archived / "records" / name).read_bytes()


def test_an_archive_describes_itself(archived: Path) -> None:
    text = (archived / "appendix.md").read_text()
    for heading in (
        "Contribution",
        "Hardware",
        "Software",
        "Data",
        "Installation and execution",
        "Time and disk",
        "Analysis",
    ):
        assert f"## {heading}\n" in text
    assert "digits" in text and "horovod" in text and "SHA-256" in text
    assert "node hours" in text and "environments: " in text and "records, with logs: " in text
    citation = yaml.safe_load((archived / "CITATION.cff").read_text())
    assert citation["authors"][0]["family-names"] == "Lovelace" and citation["license"] == "CC-BY-4.0"
    crate = json.loads((archived / "ro-crate-metadata.json").read_text())
    by_id = {entity["@id"]: entity for entity in crate["@graph"]}
    for name, entity in by_id.items():
        if {"File", "Dataset"} & set(
            [entity["@type"]] if isinstance(entity["@type"], str) else entity["@type"]
        ):
            assert (archived / name).exists(), name
    campaign = by_id["#campaign"]
    assert campaign["startTime"] < campaign["endTime"]
    assert by_id[campaign["agent"]["@id"]]["name"] == "Ada Lovelace"


def test_public_validators_accept_it(archived: Path) -> None:
    objections = accepts_crate(archived, "workflow-run-crate")
    assert not [objection for objection in objections if objection.startswith("REQUIRED")]
    assert {objection.split()[1].rstrip(":") for objection in objections} <= LEFT_OUT, objections
    assert accepts_citation(archived / "CITATION.cff") == []


def test_published_tables_are_archived_and_differences_reported(fresh: Callable[..., Checkout]) -> None:
    checkout = fresh(SMALL_STUDY)
    shipped = "config/studies/quickstart.yaml"
    checkout.write(shipped, checkout.path(shipped).read_text() + "figures: [{kind: overview}]\n")
    checkout.path("published").mkdir()
    runs, epochs = campaign_of(1)
    digests = {"code_digest": "c" * 64, "data_digest": "d" * 64, "environment_digest": "e" * 64}
    write_frames(checkout.path("published"), runs.assign(**digests), epochs)
    settings = ("--config", "study=quickstart", "records=published")
    assert checkout.snakemake("archive", *settings).status == 0
    with tarfile.open(checkout.folder / "results" / "quickstart" / "quickstart.tar.gz") as archive:
        names = archive.getnames()
    assert {
        "quickstart/records/runs.csv",
        "quickstart/records/epochs.csv",
        "quickstart/manifest.json",
    } <= set(names)
    assert not [name for name in names if "/results/" in name]
    assert "Nothing to be done" in checkout.snakemake("figures", *settings).output


def test_what_cannot_be_compared_is_told(fresh: Callable[..., Checkout]) -> None:
    checkout = fresh(SMALL_STUDY)
    checkout.path("one").mkdir()
    write_campaign(checkout.path("one"))
    for arguments, code in (
        (["one"], "wrong-count"),
        (["one", "2024"], "missing-file"),
        (["one", "one"], "nothing-to-compare"),
        (["one", "--reference", "dlperf"], "nothing-to-compare"),
        (["one", "--reference", "dlperf", "--margin", "90 %"], "bad-pattern"),
    ):
        done = checkout.program("ringside", "compare", *arguments)
        assert done.returncode == 2 and f"[{code}]" in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_the_catalogues_entry_is_the_workflow(fresh: Callable[..., Checkout]) -> None:
    checkout = fresh(SMALL_STUDY)
    for arguments in ([], ["--snakefile", "workflow/Snakefile"]):
        done = checkout.snakemake(*arguments, "-n")
        assert done.status == 0 and done.jobs["run"] == 3, done.output
    elsewhere = checkout.folder.parent / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "snakemake",
            "-n",
            "--cores",
            "1",
            "--snakefile",
            str(checkout.path("workflow/Snakefile")),
        ],
        cwd=elsewhere,
        env={name: value for name, value in checkout.environment.items() if name != "SNAKEMAKE_PROFILE"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert (
        "is not the workflow's checkout; call snakemake in" in done.stderr and "Traceback" not in done.stderr
    )
