"""The paper's sources say what was done, and compile, whatever people have written; its author's own text is kept."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from analysis import answers, checks, study
from analysis.measured import read_runs
from common.errors import InputError, exit_status
from common.files import CHECKOUT
from common.tables import read_table
from declared.paper import Paper
from declared.site import load_site
from declared.study import Replicates, load_study
from figures import style
from figures.panels import NOT_DRAWN
from network import fit
from report import design, paper, pdf
from report.latex import cited, first_sentence, keys_of, references, text
from report.methods import Facts, methods, reproducibility, threats
from support.synthetic import campaign, write_frames

KEPT = CHECKOUT / "docs" / "campaigns" / "tf-strategies-virtual"
TABLES = [
    "cells",
    "speedup",
    "effects",
    "anova",
    "scaling",
    "checks",
    "decomposition",
    "variance",
    "regression",
    "missing",
]
HOSTILE = '50 % of a_b & {c} ~ #1 \\ $x^2$ <1 × “Größe” naïve [x] `y` "z" -- 漢 \\input{main}'
CAPTION = f"Times of {HOSTILE}: markers are means. Missing cells: {'tensorflow-multiworker.small_cnn.b64.n2.s1' * 4}."
OVERFULL = re.compile(r"Overfull \\[hv]box \((\d+\.\d+)pt too (?:wide|high)\)")
SKELETON = Path(paper.__file__).with_name("main.tex")


def figure(stem: Path, width_in: float, height_in: float) -> Path:
    """A figure of this size with a caption that has everything that LaTeX minds."""
    drawn = style.figure(width_in, height_in)
    drawn.subplots()
    style.save(drawn, stem)
    Path(f"{stem}.caption.md").write_text(CAPTION + "\n")
    return stem


def facts_of(runs_csv: Path, network_csv: Path | None = None, **changes: object) -> Facts:
    runs = read_table(runs_csv, "runs")
    return Facts(
        study=replace(load_study(runs["study"].iloc[0]), **changes),
        site=load_site(runs["site"].iloc[0]),
        runs=runs,
        network=read_table(network_csv, "network") if network_csv else None,
        checks=None,
        shown=TABLES,
    )


def sources(folder: Path, facts: Facts, runs_csv: Path, network_csv: Path | None = None) -> Path:
    """All files of a paper, in `folder`/paper: real tables, and figures of three sizes."""
    study.main(
        ["--runs", str(runs_csv), "--epochs", str(runs_csv.with_name("epochs.csv")), "--out", str(folder / "tables")]
    )
    names = [*TABLES]
    if network_csv:
        fit.main(["--network", str(network_csv), "--out", str(folder / "tables" / "network")])
        names.append("network")
    stems = [
        figure(folder / "figures" / name, *size)
        for name, size in (("wide", (9, 3)), ("high", (6.9, 12)), ("s", (3, 2)))
    ]
    chosen = replace(facts.study, paper=Paper(figures=("wide", "high")))
    made = replace(facts, study=chosen, checks=pd.read_csv(folder / "tables" / "checks.csv"))
    paper.write(made, stems, [folder / "tables" / name for name in names], folder / "paper")
    shutil.copy(SKELETON, folder / "paper" / "main.tex")
    return folder / "paper"


def compiled(folder: Path) -> str:
    """What TeX said of a paper that compiles: nothing is too wide, and nothing that is referred to is missing."""
    said = ""
    for source, made in (("supplement", "supplement"), ("main", "paper")):
        out = folder / f"{made}.pdf"
        pdf.main(["--main", str(folder / f"{source}.tex"), "--out", str(out), "--log", str(folder / "log")])
        assert out.read_bytes().startswith(b"%PDF")
        said += (folder / "log").read_text()
    assert not [width for width in OVERFULL.findall(said) if float(width) > 20], said
    for complaint in ("undefined", "multiply", "Float too large"):
        assert complaint not in said, said
    assert not [name for name in folder.iterdir() if name.suffix in (".aux", ".bbl", ".blg", ".out")]
    return said


def test_the_paper_of_a_kept_campaign_compiles(tex: None, tmp_path: Path) -> None:
    network_csv = KEPT / "network.csv"
    facts = facts_of(KEPT / "runs.csv", network_csv)
    said = compiled(sources(tmp_path, facts, KEPT / "runs.csv", network_csv))
    assert int(re.findall(r"\((\d+) pages", said)[-1]) > 10


def test_methods_name_the_collectives_that_were_swept() -> None:
    facts = facts_of(KEPT / "runs.csv", KEPT / "network.csv")
    assert "all-reduce was swept through the library of each distributed framework, on" in methods(facts)
    assert facts.network is not None
    others = [facts.network.assign(collective=name) for name in ("reduce_scatter", "all_gather")]
    said = methods(replace(facts, network=pd.concat([facts.network, *others])))
    assert "all-reduce, all-gather and reduce-scatter were swept through the library of each" in said
    assert "In all-gather and reduce-scatter, bytes count $(n - 1) / n$ times." in said


def test_results_open_with_the_answer_then_each_figure_with_what_it_shows(tmp_path: Path) -> None:
    runs_csv, _ = write_frames(tmp_path, *campaign(failures={}))
    made = sources(tmp_path, facts_of(runs_csv), runs_csv)
    (tmp_path / "figures" / "wide.caption.md").write_text(f"{NOT_DRAWN}nothing was measured. More.\n")
    stems = [tmp_path / "figures" / name for name in ("high", "wide", "s")]
    names = [tmp_path / "tables" / name for name in TABLES]
    study_of = replace(load_study("quickstart"), paper=Paper(("s", "wide"), ("anova", "effects")))
    facts = replace(facts_of(runs_csv), study=study_of)
    paper.write(facts, stems, names, made)
    said = {name: (made / f"{name}.tex").read_text() for name in ("results", "tables", "supplement", "methods")}
    data = {name: pd.read_csv(tmp_path / "tables" / f"{name}.csv") for name in ("effects", "anova")}
    found = answers.sentences(facts.runs, data["effects"], data["anova"])
    first, more = answers.opening(found)
    places = [said["results"].index(text(sentence.text)) for sentence in (*first, *more)]
    assert places == sorted(places) and places[0] < 200 and more and r"\begin{itemize}" not in said["results"]
    shown = r"Figure~\ref{fig:s}: " + text(first_sentence(CAPTION)) + ".\n\n\\input{figures/s}\\floatsfirst"
    assert said["results"].index(shown) > places[-1] and said["results"].count(r"\input{") == 1
    assert re.findall("tables/([a-z]+)", said["tables"]) == ["anova", "effects"]
    assert re.findall("figures/([a-z]+)", said["supplement"]) == ["high"], "wide shows nothing"
    assert r"\begin" not in (made / "figures" / "wide.tex").read_text(), "Snakemake wants a file all the same"
    beside = re.findall("tables/([a-z]+)", said["supplement"])
    assert beside == [name for name in TABLES if name not in ("anova", "effects", "missing")], "no run is missing"
    assert "(the supplement)" in said["methods"] and r"\ref{tab:checks}" not in said["methods"]


def test_authors_are_those_of_the_study_or_to_be_named() -> None:
    ada = {"given-names": "Ada", "family-names": "Lovelace", "affiliation": "A & B"}
    study = replace(load_study("quickstart"), authors=(ada, {"given-names": "C.", "family-names": "Babbage"}))
    assert paper.authors(study) == r"Ada Lovelace\\A \& B \and C. Babbage"
    assert paper.authors(replace(study, authors=())) == "TODO: name the authors"
    assert r"\author{\studyauthors}" in SKELETON.read_text()


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Facts, Path]:
    """Facts of a made-up campaign in which everything that a person writes has signs that LaTeX minds."""
    runs, epochs = campaign()
    bad = runs["status"] != "ok"
    runs.loc[bad, "reason"] = f"rank 1 ended with status 1: {HOSTILE} " + "/a/very/long/path/of/a_module" * 8
    runs_csv, _ = write_frames(tmp_path, runs.assign(devices=HOSTILE), epochs)
    return facts_of(runs_csv, title=HOSTILE, question=f"{HOSTILE}\n\nand {HOSTILE}?"), runs_csv


def test_whatever_people_write_compiles(tex: None, hostile: tuple[Facts, Path], tmp_path: Path) -> None:
    compiled(sources(tmp_path, *hostile))


@pytest.mark.parametrize("case", ["one run", "no successful run", "published without the rest"])
def test_a_degenerate_study_compiles(tex: None, case: str, tmp_path: Path) -> None:
    runs, epochs = campaign(replicates=1)
    if case == "one run":
        runs = runs[runs["framework"] == "pytorch-single"][:1]
    if case == "no successful run":
        runs = runs.assign(status="missing", reason="not run", epoch_time_s=None, placement=None)
    if case == "published without the rest":
        runs = runs.drop(columns=["hosts", "devices", "transport", "library_version", "python_version", "session"])
        runs = runs.drop(columns=["systems", "node_memory_bytes"])
    runs_csv, _ = write_frames(tmp_path, runs, epochs)
    facts = facts_of(runs_csv)
    if case == "published without the rest":
        facts = replace(facts, site=None)
    compiled(sources(tmp_path, facts, runs_csv))


def test_methods_say_what_the_nodes_were(tmp_path: Path) -> None:
    runs, epochs = campaign(replicates=1)
    runs.loc[runs.index[0], "node_memory_bytes"] = 6 * 2**30
    runs_csv, _ = write_frames(tmp_path, runs.assign(drivers="nvidia 580.65.06"), epochs)
    said = " ".join(methods(facts_of(runs_csv)).split())
    assert "Memory of a node: 6.00 to 24.0 GiB. " in said
    assert "Systems and drivers: Debian GNU/Linux 12 (bookworm), Linux 6.1.0; nvidia 580.65.06." in said


def test_methods_say_by_which_precision_replicates_were_chosen(tmp_path: Path) -> None:
    runs, epochs = campaign(replicates=3, failures={})
    more, more_epochs = campaign(replicates=5, failures={})
    later = more["replicate"].gt(3) & more["batch_size"].eq(16)
    both = pd.concat([runs, more[later]])
    runs_csv, _ = write_frames(tmp_path, both, pd.concat([epochs, more_epochs]).drop_duplicates(["run_id", "epoch"]))
    facts = facts_of(runs_csv, replicates=Replicates(3, 5, 0.5))
    said = " ".join(methods(facts).split())
    assert "cells, each with 3 to 5 replicates" in said
    assert (
        "Replicates were chosen by precision: a cell has 3 to 5 runs, until half the 95 \\% interval of its mean"
        in said
    )
    assert "is 50 \\% or less (n = 3 to 5). This was reached by all cells; by 38 cells perhaps by chance." in said
    assert "contains every cell once (later blocks those that were not yet precise), in an order" in said
    told = design.replication(read_runs(runs_csv), facts.study.replicates)
    assert "each with 3 to 5 replicates" in told and "This was reached by all cells; by" in told
    assert "precise" not in design.replication(read_runs(runs_csv), Replicates(5, 5))


def test_methods_say_what_was_done() -> None:
    facts = facts_of(KEPT / "runs.csv", KEPT / "network.csv")
    said = " ".join(methods(facts).split())
    for part in (
        "a full factorial design~\\cite{jain1991} of the factors in Table~\\ref{tab:factors}: 54 cells, each with 5 replicates, "
        "270 runs in all",
        "study's seed (20200517)",
        "5 sessions on 2026-11-21 (UTC)",
        "TensorFlow MultiWorkerMirroredStrategy~\\cite{abadi2016}",
        "2,483,026 trained parameters",
        "4,608 training and 512 validation images",
        "virtual (nodes are those of a virtual cluster on one machine), each with 0.6 core, links of 125 MB/s",
        "3 epochs, of which the first is warm-up",
        "9 message sizes from 1 KiB to 64 MiB",
        "n = 5 per cell; intervals of epoch time are 95 \\% intervals",
        "training loop fit, batches per exchange 4, because tensorflow-multiworker cannot do training\\_loop=fit with "
        "sync\\_every=4.",
        "All 270 runs of the design succeeded.",
    ):
        assert part in said, part
    assert "workflow/" not in said and ".yaml" not in said, "methods are told in words, not in paths"
    assert "cpu (the records do not name its model); each rank has 1 thread for computation. All nodes share" in said
    assert "may rank treatments differently." in threats(facts) and "frameworks" not in threats(facts)
    assert "In 9 of 270 runs a hypervisor" in said and "9 of 270 runs" in threats(facts)
    assert "virtual cluster" in threats(facts) and "make submit STUDY=tf-strategies-virtual" in reproducibility(
        facts
    ).replace(r"\allowbreak{}", "")


def test_methods_say_what_each_strategy_is_with_its_source() -> None:
    facts = facts_of(KEPT / "runs.csv")
    assert "subsection{Strategies}" not in methods(facts), "all divide samples alone"
    several = facts.runs["ranks"] > 1
    divided = facts.runs.assign(
        parallelism=facts.runs["parallelism"].mask(several, "pipeline"),
        microbatches=facts.runs["microbatches"].mask(several, 4),
    )
    said = methods(replace(facts, runs=divided))
    assert "divide the training by pipeline." in said and "Along the axis tensor" not in said
    assert "each rank has a stage of the model" in said and r"\cite{huang2019}" in said
    assert r"4 microbatches, scheduled by 1F1B~\cite{narayanan2019}" in said


def test_what_a_check_found_is_told_with_what_follows_from_it() -> None:
    table = checks.table(read_table(KEPT / "runs.csv", "runs")).data
    said = threats(replace(facts_of(KEPT / "runs.csv"), checks=table))
    assert "Check of the assumption ``blocks alike'': " in said and "Assumed" not in said
    assert "Comparisons within blocks remove this difference; intervals of means do not." in said


def test_what_failed_is_said_with_its_reasons(tmp_path: Path) -> None:
    runs_csv, _ = write_frames(tmp_path, *campaign())
    facts = facts_of(runs_csv)
    said = methods(facts)
    assert "Of the 114 runs of the design, 4 did not succeed (Table~\\ref{tab:missing})" in said
    assert "1 invalid (disturbed: foreign\\_cpu\\_share 0.09)" in said
    assert "Speed-ups are relative to an undistributed framework: " in said and "no real network" not in said
    assert "exchange gradients through its memory" in threats(facts)


def test_a_fraction_says_what_it_cannot_tell_apart() -> None:
    facts = facts_of(KEPT / "runs.csv")
    screening = load_study("screening")
    assert "a fraction, 2\\textasciicircum{}(5-1) of resolution V" in methods(replace(facts, study=screening))


def test_references_are_of_frameworks_and_of_published_data_sets() -> None:
    assert keys_of("horovod-pytorch", "pytorch", "horovod") == ["paszke2019", "sergeev2018"]
    made = references({
        "cifar-10": {"citation": "A. & B, 100 %", "files": [{}], "format": "cifar-10-binary"},
        "synthetic": {"citation": "drawn here", "format": "patterns"},
    })  # fmt: skip
    assert "@misc{data-cifar-10,\n  note = {A. \\& B, 100 \\%},\n}" in made and "data-synthetic" not in made
    assert made.count("{") == made.count("}")


def test_whatever_the_papers_text_cites_or_names_is_in_its_references(tmp_path: Path) -> None:
    network_csv = KEPT / "network.csv"
    made = sources(tmp_path, facts_of(KEPT / "runs.csv", network_csv), KEPT / "runs.csv", network_csv)
    known = re.findall(r"^@\w+\{([^,]+),", (made / "references.bib").read_text(), re.MULTILINE)
    written = [made / f"{name}.tex" for name in ("main", "methods", "results", "threats", "reproducibility")]
    said = "\n".join(file.read_text() for file in written)
    keys = {key for keys in re.findall(r"\\cite\{([^}]+)\}", said) for key in keys.split(",")}
    assert "smyth2004" in keys and keys <= set(known)
    named = re.findall(r"\b[A-Z][a-z]+(?: \\& [A-Z][a-z]+| et al\.)?,? (?:19|20)\d\d\b(?!-)(.{0,8})", said)
    assert named and all(after.startswith(r"~\cite{") for after in named), "a work that is named is cited"


def test_a_work_that_is_named_is_cited_once() -> None:
    said = r"moderated (Smyth 2004), by Hoefler \& Belli, 2015, and Smyth 2005."
    assert cited(said) == (
        r"moderated (Smyth 2004~\cite{smyth2004}), by Hoefler \& Belli, 2015~\cite{hoefler2015}, and Smyth 2005."
    )


def test_a_caption_begins_with_a_sentence() -> None:
    assert first_sentence("Times by nodes, e.g. 0.6 core: means. The rest.") == "Times by nodes, e.g. 0.6 core: means"


def test_without_tex_one_line_says_what_to_install_and_where_the_sources_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    argv = ["--main", str(tmp_path / "main.tex"), "--out", str(tmp_path / "paper.pdf"), "--log", str(tmp_path / "log")]
    assert exit_status(lambda: pdf.main(argv)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"apt-get install {' '.join(pdf.PACKAGES)}" in said and str(tmp_path) in said


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a main.tex."""

    def write(text: str) -> Path:
        (tmp_path / "main.tex").write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("\\nothing", "main.tex:3: Undefined control sequence."),
        ("\\input{gone}", "main.tex:3: LaTeX Error: File `gone.tex' not found."),
    ],
)
def test_a_mistake_of_the_author_is_one_line(tex: None, written: Callable[[str], Path], body: str, said: str) -> None:
    folder = written(f"\\documentclass{{article}}\n\\begin{{document}}\n{body}\n\\end{{document}}\n")
    with pytest.raises(InputError) as refused:
        pdf.compiled(folder / "main.tex", folder, folder / "log")
    assert str(refused.value).endswith(said) and "\n" not in str(refused.value)


def test_a_package_that_is_missing_is_named_with_what_to_install(tex: None, written: Callable[[str], Path]) -> None:
    folder = written("\\documentclass{article}\n\\usepackage{gone}\n\\begin{document}\n\\end{document}\n")
    with pytest.raises(
        InputError, match=r"main.tex:\d+: LaTeX Error: File `gone.sty' not found.; on Debian: apt-get install"
    ):
        pdf.compiled(folder / "main.tex", folder, folder / "log")
