"""Differences, costs, archives and manifests. End to end: tests/workflow/test_provenance.py."""

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from common.errors import InputError
from common.files import CHECKOUT
from common.normal_form import digest_source
from common.notes import codes
from common.schemas import schema
from common.tables import read_table
from common.text import end_sentence
from declared.records import RECORD_TABLES
from declared.site import load_site
from declared.study import load_study
from plan.campaign import Campaign, load_campaign
from provenance import appendix, archive, verify
from provenance.citation import format_citation
from provenance.crate import build_crate
from provenance.differing import compare_sources
from provenance.manifest import retire
from provenance.sources import collect_sources, measured_with
from report.checkout import checkout_state
from report.page_table import PageTable
from support.measured_elsewhere import imported_study
from support.own_commands import PRINTED_STEPS, own_commands, write_study
from support.synthetic import campaign
from support.user_models import NORMALIZED, user_models_in

KEPT_CAMPAIGN = CHECKOUT / "docs" / "campaigns" / "prediction-virtual"


def test_changes_are_listed_by_group() -> None:
    before = {
        "study": {"a.yaml": "1"},
        "site": {"cores": "2", "interface": '"lo"'},
        "code": {"a.py": "1", "b.py": "1"},
        "data": {"digits": "1"},
    }
    now = {
        "study": {"a.yaml": "1"},
        "site": {"cores": "4", "interface": '"lo"'},
        "code": {"a.py": "2", "c.py": "1"},
        "data": {"digits": "2"},
    }
    lines = compare_sources(before, now)
    assert codes(lines) == ["changed-sources"] * 3
    assert [dict(line.facts) for line in lines] == [
        {"group": "site", "changed": ["cores"], "added": [], "removed": []},
        {"group": "code", "changed": ["a.py"], "added": ["c.py"], "removed": ["b.py"]},
        {"group": "data", "changed": ["digits"], "added": [], "removed": []},
    ]
    assert "cores 2 → 4" in lines[0]
    assert compare_sources(before, before) == []
    five_files = {"code": {f"{i}.py": "1" for i in range(5)}}
    (line,) = compare_sources(five_files, {"code": dict.fromkeys(five_files["code"], "2")})
    assert line.facts["changed"] == list(five_files["code"])
    assert [name in line for name in five_files["code"]] == [True] * 3 + [False] * 2, (
        "only the first are named"
    )
    assert compare_sources({"study": {}}, {"study": {}, "site": {"cores": "2"}}) == [], "of another mode"


def test_former_products_are_moved_to_old(tmp_path: Path) -> None:
    for name in (
        "runs.csv",
        "explore.R",
        "figures/a.pdf",
        "figures/gone.pdf",
        "figures/gone.png",
        "figures/asked.pdf",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    products = {name: {"files": [str(tmp_path / name)]} for name in ("explore.R", "figures/a.pdf")}
    assert retire(tmp_path, products, [str(tmp_path / "figures/asked.pdf")]) == ["figures/gone"]
    left = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file())
    names = ["a.pdf", "asked.pdf", "old/gone.pdf", "old/gone.png"]
    assert left == ["explore.R", *(f"figures/{name}" for name in names), "runs.csv"]


def test_a_manifest_may_name_every_table() -> None:
    allowed = schema("manifest")["properties"]["sources"]["properties"]["tables"]["propertyNames"]["pattern"]
    assert all(
        re.search(allowed, f"{name}.csv{end}") for name in ("design", *RECORD_TABLES) for end in ("", ".gz")
    )
    assert not re.search(allowed, "steps.csv") and not re.search(allowed, "runs.csv.xz")


def test_sources_change_only_with_their_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    quickstart = load_campaign({"study": "quickstart", "site": "local", "records": "available"})
    sources = collect_sources(quickstart, ["workflow/scripts/figures/kinds/overview.py"])
    assert sources["study"] == {
        "config/studies/quickstart.yaml": digest_source(CHECKOUT / "config/studies/quickstart.yaml")
    }
    assert "containers/pytorch/requirements.cpu.txt" in sources["locks"]
    assert "containers/pytorch/requirements.cuda.txt" not in sources["locks"], "which nothing here is made of"
    assert "workflow/scripts/figures/kinds/overview.py" in sources["code"]
    assert "workflow/scripts/sites/doctor.py" not in sources["code"]
    assert "time_limit_s" not in sources["site"] and sources["site"]["device"] == '"cpu"'
    strategies = tmp_path / "strategies.json"
    monkeypatch.setattr("provenance.sources.strategy_file", lambda study, site: strategies)
    assert collect_sources(quickstart, [])["study"] == sources["study"]
    strategies.write_text("{}")
    assert collect_sources(quickstart, [])["study"] == {
        **sources["study"],
        str(strategies): digest_source(strategies),
    }


@pytest.mark.parametrize(
    ("old", "new", "code", "facts"),
    [
        (
            "a,b\n1,2.0\n",
            "a,b\n1,2.000000002\n",
            "other-numbers",
            {"relative": pytest.approx(1e-9, rel=1e-3)},
        ),
        ("a,b\n1,x\n", "a,b\n1,y\n", "other-text", {"before": "x", "after": "y"}),
        ("a,b\n1,x\n", "a,b\n", "other-shape", {}),
    ],
)
def test_difference_of_tables_is_described(
    tmp_path: Path, old: str, new: str, code: str, facts: dict[str, object]
) -> None:
    for name, text in (("old.csv", old), ("new.csv", new)):
        (tmp_path / name).write_text(text)
    note = verify.describe_difference(tmp_path / "old.csv", tmp_path / "new.csv")
    assert note is not None and note.code == code and note.facts == facts


def test_difference_of_pictures_is_described(tmp_path: Path) -> None:
    picture = np.full((10, 10, 3), 255, np.uint8)
    Image.fromarray(picture).save(tmp_path / "old.png")
    picture[0, :5] = 0
    Image.fromarray(picture).save(tmp_path / "new.png")
    note = verify.describe_difference(tmp_path / "old.png", tmp_path / "new.png")
    assert note is not None and note.code == "other-pixels" and note.facts["share"] == pytest.approx(0.05)
    Image.fromarray(picture[:5]).save(tmp_path / "small.png")
    note = verify.describe_difference(tmp_path / "old.png", tmp_path / "small.png")
    assert note is not None and note.code == "other-size"
    assert note.facts == {"before": (10, 10), "after": (10, 5)}
    assert verify.describe_difference(tmp_path / "old.csv", tmp_path / "absent.csv") is None
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(f"{name}," + "9" * 200_000 + "\n")
    assert verify.describe_difference(tmp_path / "a.csv", tmp_path / "b.csv") is None, (
        "a field longer than the csv module reads"
    )


def test_costs_of_runs_are_summed() -> None:
    runs = campaign(2)[0].assign(started_at=None, ended_at=None, wall_s=1800.0, nodes=2)
    names = {"study": "prediction-virtual", "site": "virtual-six", "records": str(KEPT_CAMPAIGN)}
    facts = dict(appendix.cost_facts(load_campaign(names), runs))
    assert facts["times their nodes"] == f"{len(runs):.1f} node hours"
    assert "environments" not in facts, "published tables say nothing of these"


def test_a_citation_without_authors_names_the_study() -> None:
    study = load_study("quickstart")
    content = yaml.safe_load(format_citation(study, "2026-11-20", None))
    (author,) = content["authors"]
    assert (
        list(author) == ["name"]
        and study.name in author["name"]
        and "license" not in content
        and "commit" not in content
    )


def test_archive_has_no_dates_and_owners(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/bin/sh\n")
    (tmp_path / "program").chmod(0o700)
    (tmp_path / "link").symlink_to("program")
    contents: dict[str, bytes | Path] = {
        "a/program": tmp_path / "program",
        "link": tmp_path / "link",
        "text": b"said",
        "remake": b"x",
    }
    for name in ("one", "two"):
        archive.write_archive(contents, "top", 1_790_000_000, tmp_path / name)
        (tmp_path / "program").touch()
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with tarfile.open(tmp_path / "one") as packed:
        members = {member.name: member for member in packed}
    assert list(members) == ["top/a/program", "top/link", "top/text", "top/remake"]
    assert [oct(member.mode) for member in members.values() if member.isfile()] == ["0o755", "0o644", "0o755"]
    assert members["top/link"].issym() and members["top/link"].linkname == "program"
    assert {(member.uid, member.uname, member.mtime) for member in members.values()} == {
        (0, "", 1_790_000_000)
    }


def test_archive_has_no_private_files() -> None:
    published = load_campaign(
        {"study": "prediction-virtual", "site": "virtual-six", "records": str(KEPT_CAMPAIGN)}
    )
    names = archive.workflow_files(published)
    assert {
        "Snakefile",
        "Makefile",
        "requirements.txt",
        "config/studies/prediction-virtual.yaml",
        "rules/figures.smk",
    } <= set(names)
    assert not [name for name in names if name.startswith((".venv/", ".snakemake/", ".git/"))]
    assert [name for name in names if name.startswith("results/")] == ["results/README.md"]


def test_appendix_is_same_in_markdown_and_latex() -> None:
    page_table = PageTable("A table.", ["name", "n"], [["a_b", "3"]], ("name",))
    part = appendix.Section(
        "Time & disk", ["One 5 % line."], [("runs", "1 h")], [page_table], [("make x", "it makes x")]
    )
    text = appendix.to_markdown("Title", [part])
    assert (
        "## Time & disk\n\nOne 5 % line.\n\n* runs: 1 h\n\n    make x\n\nit makes x.\n" in text
        and "| a_b" in text
    )
    latex = appendix.to_latex([part])
    assert (
        r"\subsection{Time \& disk}" in latex
        and r"One 5 \% line." in latex
        and r"\item runs: 1 h" in latex
        and r"a\_b" in latex
    )


@pytest.mark.parametrize(
    ("study", "file", "codes"),
    [
        ("other", "results/other/tables/cells.csv", {"other-study"}),
        ("mine", None, {"empty-manifest"}),
        ("mine", "results/other/tables/cells.csv", {"foreign-product"}),
        ("mine", "results/mine/figures/../../x.pdf", {"foreign-product", "broken-file"}),
        ("mine", "/etc/hostname", {"foreign-product", "broken-file"}),
    ],
)
def test_manifest_has_files_of_its_study_alone(
    tmp_path: Path, study: str, file: str | None, codes: set[str]
) -> None:
    content = {
        "study": study, "sites": [], "records": "records", "commit": None, "changed": [], "python": "3.11",
        "libraries": {}, "sources": {"study": {}, "locks": {}, "code": {}, "tables": {}, "records": {}},
        "measured_with": {"environment": {}, "code": {}, "data": {}},
        "products": {"tables/cells": {"files": {file: "0" * 64} if file else {}, "made_of": []}},
    }  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(InputError) as refused:
        verify.verify("mine", tmp_path / "manifest.json")
    assert refused.value.code in codes


def test_parsing_does_not_import_pandas() -> None:
    """Importing pandas takes longer than everything else."""
    program = "import provenance.differing, sys; sys.exit('pandas' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env={"PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")},
    )
    assert done.returncode == 0


SECRET = "s3cr3t-0f-0urs"  # noqa: S105


@pytest.mark.parametrize("name", ["log.txt", "rank-0.log"])
def test_logs_in_an_archive_have_no_passwords(tmp_path: Path, name: str) -> None:
    log = tmp_path / name
    log.write_bytes(f"\xff fetching http://u:{SECRET}@host/a?token={SECRET}\n".encode("latin-1"))
    archive.write_archive({"results/log": archive.redacted_log(log)}, "top", 0, tmp_path / "a.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz") as packed:
        content = packed.extractfile("top/results/log").read()
    assert content == b"\xff fetching http://***@host/a?token=***\n"
    log.write_text("nothing secret")
    assert archive.redacted_log(log) == log


def test_archive_refuses_configuration_with_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "CHECKOUT", tmp_path)
    (tmp_path / "config" / "sites").mkdir(parents=True)
    (tmp_path / "config" / "sites" / "unused.yaml").write_text(
        f"datasets: {{mirror: 'http://u:{SECRET}@host/'}}\n"
    )
    archive.refuse_secrets(["config/other.txt"])
    with pytest.raises(InputError) as refused:
        archive.refuse_secrets(["config/sites/unused.yaml"])
    assert (refused.value.code, refused.value.key) == ("secret-in-file", "datasets.mirror")


@pytest.fixture
def imported_campaign(monkeypatch: pytest.MonkeyPatch) -> Campaign:
    monkeypatch.chdir(CHECKOUT)
    study = imported_study("measured-mlperf")
    monkeypatch.setattr("plan.campaign.load_study", lambda name: study)
    return load_campaign({"study": study.name, "site": "local", "records": "campaign"})


def test_archive_of_imported_measurements_has_their_source(imported_campaign: Campaign) -> None:
    folder = str(imported_campaign.published_folder)
    assert {f"{folder}/{name}" for name in ("import.yaml", "runs.csv", "epochs.csv")} <= set(
        archive.workflow_files(imported_campaign)
    )
    assert f"{folder}/import.yaml" in collect_sources(imported_campaign, [])["study"]


def test_crate_and_citation_name_the_source_of_imports(imported_campaign: Campaign) -> None:
    study, runs = imported_campaign.study, read_table(imported_campaign.runs_csv, "runs")
    versions = {"ringside": None, "snakemake": "9"}
    crate = build_crate(study, runs, {}, {}, {}, "ringside/Snakefile", versions)
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    source = entities[entities["./"]["isBasedOn"]["@id"]]
    assert entities[source["license"]["@id"]]["name"] == "Apache-2.0" and "Nebius" in source["name"]
    assert "startTime" not in entities["#campaign"]
    (reference,) = yaml.safe_load(format_citation(study, "2026-11-20", None))["references"]
    assert reference["url"] == source["@id"]


def test_appendix_of_imported_measurements_has_no_software(imported_campaign: Campaign) -> None:
    runs = read_table(imported_campaign.runs_csv, "runs")
    sections = list(appendix.appendix_sections(imported_campaign, runs, checkout_state()))
    headings = [section.heading for section in sections]
    assert headings == ["Contribution", "Source", "Installation and execution", "Analysis"]
    assert appendix.to_markdown("t", sections) and appendix.to_latex(sections)


def test_archive_has_the_commands_of_a_study_and_their_files(tmp_path: Path) -> None:
    with own_commands(tmp_path / "commands", ours={}, theirs={}):
        factors = {"framework": ["pytorch-ddp", "ours"], "model": "small-cnn", "dataset": "digits"}
        study = load_study("s", write_study(tmp_path, **factors))
        packed = list(archive.command_files(Campaign(study, load_site("local"), "available", [], None)))
    assert packed == [tmp_path / "commands" / "ours.yaml", CHECKOUT / PRINTED_STEPS]


def test_archive_has_user_models_of_a_study_and_their_files(tmp_path: Path) -> None:
    with user_models_in(tmp_path / "models", ours={"files": ["README.md"]}, theirs={}):
        levels = {"framework": "pytorch-ddp", "model": ["small-cnn", "ours"], "dataset": "digits"}
        study = load_study("s", write_study(tmp_path, **levels))
        packed = list(archive.command_files(Campaign(study, load_site("local"), "available", [], None)))
    sources = [CHECKOUT / NORMALIZED["file"], CHECKOUT / "README.md"]
    assert packed == [tmp_path / "models" / "ours.yaml", *sources]


def test_digests_of_runs_are_grouped_by_kind() -> None:
    row = {
        "framework": "a",
        "model": "m",
        "dataset": "d",
        "environment_digest": "1",
        "code_digest": "2",
        "data_digest": "",
    }
    assert measured_with(
        [row, {**row, "environment_digest": "3"}, {**row, "framework": "b", "code_digest": ""}]
    ) == {"environment": {"a": ["1", "3"], "b": ["1"]}, "code": {"a m d": ["2"]}, "data": {}}


@pytest.mark.parametrize(
    ("text", "ended"), [("DDP or Horovod?", "DDP or Horovod?"), ("Six ways ", "Six ways."), ("So.", "So.")]
)
def test_sentence_has_one_mark_at_its_end(text: str, ended: str) -> None:
    assert end_sentence(text) == ended
