"""Report and paper of imported measurements name their source, and nothing that only planned runs have."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.records import Records, read_runs
from common.files import CHECKOUT
from common.notes import Note
from declared.imported import AcceptedFinding
from plan.campaign import Campaign, load_campaign
from report import design, elsewhere, every_run, make, quality, site_and_software, twelve_rules
from report.checkout import State
from report.facts import Facts
from report.material import Material
from report.methods import constant_table, framework_table, method_notes, write_reproducibility
from report.threats import threat_notes
from support.measured_elsewhere import DLPERF, FOLDER, imported_study

OF_OWN_RUNS = {
    "blocks",
    "sessions",
    "one-graph",
    "same-samples",
    "epoch-timing",
    "epochs",
    "locked-software",
    "design",
    "one-site",
}
FINDING = AcceptedFinding(code="too-exact", finding="times of one cell differ by 1e-7")


@pytest.fixture
def campaign(monkeypatch: pytest.MonkeyPatch) -> Campaign:
    monkeypatch.chdir(CHECKOUT)
    study = imported_study("measured-dlperf")
    assert study.imported
    description = replace(study.imported.description, accepted=(FINDING,))
    study = replace(study, imported=replace(study.imported, description=description))
    monkeypatch.setattr("plan.campaign.load_study", lambda name: study)
    return load_campaign({"study": study.name, "site": "local", "records": "campaign"})


@pytest.fixture
def material(campaign: Campaign) -> Material:
    files = Records(DLPERF / "runs.csv", DLPERF / "epochs.csv")
    return make.read_material(campaign, files, [], Path(), [])


def facts_of(campaign: Campaign) -> Facts:
    return Facts(
        campaign.study, None, read_runs(DLPERF / "runs.csv"), None, None, ["tab:cells", "tab:effects"]
    )


def codes(sections: Mapping[str, Sequence[str]]) -> set[str]:
    return {note.code for notes in sections.values() for note in notes if isinstance(note, Note)}


def test_methods_declare_source_and_nothing_of_own_runs(campaign: Campaign) -> None:
    sections = method_notes(facts_of(campaign))
    assert next(iter(sections)) == "Source"
    assert {"source", "not-planned", "accepted-finding", "epoch-of-samples", "cells-elsewhere"} <= codes(
        sections
    )
    assert codes(sections).isdisjoint(OF_OWN_RUNS)
    source = sections["Source"][0]
    assert isinstance(source, Note) and source.facts["licence"] == "Apache-2.0"
    models = [note for note in sections["Models"] if isinstance(note, Note)]
    assert "25,557,032" in models[0]


def test_threats_name_what_is_not_known(campaign: Campaign) -> None:
    codes = {note.code for note in threat_notes(facts_of(campaign)) if isinstance(note, Note)}
    assert {"measured-elsewhere", "accepted-finding"} <= codes
    assert codes.isdisjoint({"one-site", "short-training"})


def test_paper_has_no_digests_and_names_the_folder(campaign: Campaign) -> None:
    facts = facts_of(campaign)
    assert "digest" not in framework_table(facts) + write_reproducibility(facts)
    assert "tests/support/imported/dlperf" in write_reproducibility(facts).replace("\\allowbreak{}", "")
    assert "learning rate" not in constant_table(facts)


def test_report_describes_the_source(material: Material) -> None:
    imported = material.study.imported
    assert imported and material.site is None
    facts = dict(elsewhere.facts(imported, material.runs))
    assert facts["licence"] == "Apache-2.0" and facts["links in a node"] == "25 GB/s"
    assert [row[0] for row in elsewhere.accepted(imported).rows] == ["too-exact"]
    assert elsewhere.files(imported).rows[0][2] == "120"


def test_report_has_no_seeds_and_no_order(material: Material) -> None:
    replication = design.replication(material.runs, material.study.replicates)
    assert replication.code == "replication-elsewhere" and replication.facts["runs"] == 120
    assert design.kept_order(material.runs) == "" and design.seeds(material.runs) == []
    varying, constant = design.factors(material.study)
    assert [row[0] for row in varying.rows] == ["framework", "nodes", "devices per node"]
    assert "optimizer" not in [row[0] for row in constant.rows]
    assert site_and_software.data_sets(material.study.factors["dataset"], None, material.runs) == []


def test_every_run_has_a_place_in_the_chart(material: Material) -> None:
    positions, by_clock = every_run.run_order(material.every_run)
    assert positions.tolist() == list(range(1, 121)) and not by_clock
    assert len(material.epochs) == 120


def test_rules_are_judged_without_a_site(material: Material) -> None:
    verdicts = twelve_rules.judge_all(material)
    by_number = {rule.number: verdict for rule, verdict in verdicts}
    assert by_number[2].note.code == "subset-unknown"
    assert by_number[9].note.code == "setup-incomplete" and by_number[10].note.code == "timing-unsound"
    assert {mark.name.code for mark in quality.marks(material, verdicts)} == {
        "runs-usable",
        "cells-measured",
        "rules-met",
    }


def test_page_names_source_and_licence(campaign: Campaign, material: Material, tmp_path: Path) -> None:
    page = make.render_page(material, campaign, "published", State("0" * 40), make.libraries.load())
    assert "Oneflow-Inc/DLPerf" in page and "Seed of the study" not in page and "Locks" not in page
    assert (FOLDER / "measured-dlperf.yaml").is_file()
