"""The report of an anonymous study reveals neither who measured it nor where, whatever logs contain."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from common.files import CHECKOUT, load_yaml
from common.latex import latex_text
from declared.study import Study, load_study
from declared.study_keys import Author
from plan import campaign as plan_campaign
from report import paper
from report.anonymous import BREAK, NOT_ANONYMOUS, Anonymizer, build_anonymizer, scrub_sources
from report.checkout import State
from support.html_page import Page
from support.reports import CampaignFiles
from support.synthetic import campaign

HOSTS = ["gpunode017", "zeus.example.edu"]
AUTHOR = Author(given_names="Ada", family_names="Lovelacia", affiliation="University of Nowhere", orcid=None)
LOG = (
    "gpunode017.example.edu: rank 1 on ZEUS, nodes gpunode[017-019], 10.11.12.13\n"
    "/home/adalove/project x/train.py:75: warning, see /scratch/adalove/runs\n"
    "mail ada@example.edu to Ada Lovelacia; adalove@gpunode018:~/runs/a.txt\n"
    "loss 0.25 at 127.0.0.1, /usr/lib/python3/x.py\n"
)
PLANTED = [
    "gpunode",
    "zeus",
    "example.edu",
    "adalove",
    "lovelacia",
    "nowhere",
    "/home",
    "/scratch",
    "10.11.12",
]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setenv("LOGNAME", "adalove")
    return replace(load_study("quickstart"), anonymous=True, authors=(AUTHOR,))


def with_hosts() -> tuple[pd.DataFrame, pd.DataFrame]:
    runs, epochs = campaign(failures={})
    runs["hosts"] = " ".join(HOSTS)
    runs["reason"] = runs["reason"].astype(object)
    runs.loc[runs.index[0], ["status", "reason"]] = ["failed", "adalove: rank 1 on gpunode017 ended"]
    return runs, epochs


@pytest.fixture
def names(study: Study) -> Anonymizer:
    return build_anonymizer(study, None, pd.DataFrame({"hosts": HOSTS, "site": "nowhere-cluster"}))


def test_a_log_keeps_what_names_nobody(names: Anonymizer) -> None:
    assert names.scrub(LOG).splitlines() == [
        "HOST-1: rank 1 on HOST-2, nodes HOST, ADDRESS",
        "PATH x/train.py:75: warning, see PATH",
        "mail ADDRESS to AUTHOR; USER@HOST:PATH",
        "loss 0.25 at 127.0.0.1, /usr/lib/python3/x.py",
    ]


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("config/sites/nowhere-cluster.yaml", "config/sites/SITE.yaml"),
        (f"{CHECKOUT}/results/quickstart/log.txt", "PATH/log.txt"),
        ("PATH=/usr/bin:/home/adalove/bin", "PATH=/usr/bin:PATH"),
        ("samples/s/device of 8/9/2026", "samples/s/device of 8/9/2026"),
        ("https://pytorch.org/docs/stable/x.html", "https://pytorch.org/docs/stable/x.html"),
        ("a local batch of zeuses", "a local batch of zeuses"),
        ("torch 2.13.0, CUDA 12.8.1", "torch 2.13.0, CUDA 12.8.1"),
    ],
)
def test_a_text_is_scrubbed(names: Anonymizer, text: str, scrubbed: str) -> None:
    assert names.scrub(text) == scrubbed


def test_keys_and_values_of_records_are_scrubbed(names: Anonymizer) -> None:
    record = {"hosts": ["zeus"], "reference": {"gpunode017": 0.5}, "n": 3, "none": None}
    assert names.scrub_all(record) == {
        "hosts": ["HOST-2"],
        "reference": {"HOST-1": 0.5},
        "n": 3,
        "none": None,
    }


def test_nodes_that_no_run_used_have_no_name(study: Study, tmp_path: Path) -> None:
    (tmp_path / "node_check.csv").write_text("host,slow\nhera.example.edu,true\n")
    names = build_anonymizer(
        study, None, pd.DataFrame({"hosts": HOSTS, "site": "x"}), [tmp_path / "node_check"]
    )
    assert not names.has_name("HOST-4 is slow") and "hera" not in names.scrub("Nodes: 3; slow: hera.")


def test_latex_hides_no_name(names: Anonymizer, tmp_path: Path) -> None:
    source, plain_line = tmp_path / "methods.tex", f"a{BREAK}b\n"
    source.write_text(f"see /scratch/{BREAK}adalove/{BREAK}x.txt on {latex_text('my_cluster')}\n{plain_line}")
    scrub_sources(tmp_path, [], replace(names, words={"my_cluster": "SITE"}))
    assert source.read_text() == f"see PATH/x.txt on SITE\n{plain_line}"


def test_a_study_that_is_not_anonymous_changes_nothing() -> None:
    names = build_anonymizer(load_study("quickstart"), None, pd.DataFrame({"hosts": HOSTS, "site": "x"}))
    assert names is NOT_ANONYMOUS and names.scrub(LOG) == LOG


def anonymous_files(in_folder, study: Study, monkeypatch: pytest.MonkeyPatch) -> CampaignFiles:
    files = in_folder(*with_hosts())
    files.leave_records(lambda run_id: LOG.encode())
    svg = files.figures[1].with_suffix(".svg")
    svg.write_text(svg.read_text().replace("</svg>", "<text>zeus</text></svg>"))
    monkeypatch.setattr(plan_campaign, "load_study", lambda name: study)
    return files


def test_no_planted_name_is_in_the_page(in_folder, study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    files = anonymous_files(in_folder, study, monkeypatch)
    page = Page(files.report())
    packed = [
        name
        for name in page.scripts
        if name.startswith(("block-", "source-", "chart-")) or name.endswith("svg")
    ]
    unpacked = [page.unpacked(name) for name in packed]
    page_text = "\n".join([page.text, page.scripts["page-data"], *unpacked]).lower()
    assert [name for name in [*PLANTED, str(CHECKOUT), str(Path.home())] if name.lower() in page_text] == []
    assert "HOST-1" in page.text and "HOST-2: rank" not in page.text
    assert len(packed) > 10 and "file-residuals.png" not in page.scripts
    assert {"file-overview.png", "file-overview.pdf", "file-residuals.svg"} <= set(page.scripts)
    monkeypatch.setattr(plan_campaign, "load_study", lambda name: replace(study, anonymous=False))
    open_page = Page(files.report(out="open.html"))
    assert "gpunode017" in open_page.text and "file-residuals.png" in open_page.scripts


def test_no_planted_name_is_in_the_papers_sources(
    in_folder, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = anonymous_files(in_folder, study, monkeypatch)
    monkeypatch.setattr(paper, "load_study", lambda name: study)
    out = files.results / "paper"
    out.mkdir()
    (out / "main.tex").write_text("Ada Lovelacia\n")
    paper.main(
        study="quickstart",
        site="local",
        runs=files.runs_csv,
        epochs=files.epochs_csv,
        figures=[spec.to_json() for spec in files.specs],
        figure_folder=files.results / "figures",
        tables=files.tables,
        checkout=State().to_json(),
        out=out,
    )
    sources = {file.name: file.read_text().lower() for file in out.rglob("*.tex")}
    assert sources.pop("main.tex") == "ada lovelacia\n" and len(sources) > 10
    plain = {name: text.replace(r"\allowbreak{}", "") for name, text in sources.items()}
    description = load_yaml(CHECKOUT / "config" / "sites" / "local.yaml")["description"].lower()
    leaked = [
        (name, planted)
        for planted in [*PLANTED, description]
        for name, text in plain.items()
        if planted in text
    ]
    assert leaked == []
    copied = [(out / "figures" / f"{stem.name}.pdf").read_bytes() for stem in files.figures]
    drawn = [stem.with_suffix(".pdf").read_bytes() for stem in files.figures]
    assert copied[0] == drawn[0] and copied[1] != drawn[1] and copied[1].startswith(b"%PDF")
