"""The sources of a paper state how the study was made, and compile whatever texts the study contains.

The text of its author is kept.
"""

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import pandas as pd
import pytest

from analysis import answers, checks, conditions, study, tables
from analysis import effects as effects_of_factors
from analysis.evidence import Evidence
from analysis.records import read_runs, successful
from common.errors import InputError
from common.files import CHECKOUT
from common.notes import Note, codes, find_note
from common.tables import read_table
from common.text import first_sentence
from declared.datasets import load_dataset
from declared.figure_specs import FigureSpec
from declared.paper import Paper
from declared.records import WARNING_SEPARATOR, join_settings
from declared.replicates import Replicates
from declared.responses import EPOCH_TIME
from declared.site import load_site
from declared.study import load_study
from declared.study_keys import Author
from figures import style
from figures.captions import NOT_DRAWN
from network import fit
from replication import reached
from report import design, document, drafts, paper, pdf, results, site_and_software
from report import methods as methods_module
from report.facts import Facts, texts
from report.findings import (
    FIGURE_REFERENCE,
    find_effect_note,
    speedups,
    state_finding,
    variation_note,
)
from report.latex import cited, keys_of, link_names, references, to_latex
from report.methods import method_notes, write_methods, write_reproducibility
from report.threats import MAX_WARNINGS, threat_notes, write_threats
from support.synthetic import campaign, write_frames

CAMPAIGN = CHECKOUT / "docs" / "campaigns" / "tf-strategies-virtual"
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
CAPTION = (
    f"Times of {HOSTILE}: markers are means. Missing cells: "
    f"{'tensorflow-multiworker.small_cnn.b64.n2.s1' * 4}."
)
OVERFULL = re.compile(r"Overfull \\[hv]box \((\d+\.\d+)pt too (?:wide|high)\)")


PAPER_FIGURES = {
    "overview": (6.9, 2),
    "scaling": (6.9, 3.6),
    "shares": (3.3, 2.4),
    "accuracy-wall_time": (6.9, 4.6),
}


def figure(stem: Path, width_in: float, height_in: float, caption: str = CAPTION) -> Path:
    """Write a figure of this size, with a caption that has all characters special in LaTeX."""
    figure = style.new_figure(width_in, height_in)
    figure.subplots()
    style.save(figure, stem)
    Path(f"{stem}.caption.md").write_text(caption + "\n")
    return stem


def facts_of(runs_csv: Path, network_csv: Path | None = None, **changes: object) -> Facts:
    runs = read_runs(runs_csv)
    return Facts(
        study=replace(load_study(runs["study"].iloc[0]), **changes),
        site=load_site(runs["site"].iloc[0]),
        runs=runs,
        network=read_table(network_csv, "network") if network_csv else None,
        checks=None,
        paper_labels=[f"tab:{name}" for name in TABLES],
        figure_specs=[
            *load_study(runs["study"].iloc[0]).possible_figure_specs,
            *(FigureSpec(name, "timeline") for name in ("wide", "high", "s")),
        ],
    )


def sources(folder: Path, facts: Facts, runs_csv: Path, network_csv: Path | None = None) -> Path:
    """Write all files of a paper to `folder`/paper: real tables, and figures of three sizes."""
    study.main(runs=runs_csv, epochs=runs_csv.with_name("epochs.csv"), out=folder / "tables")
    names = [*TABLES]
    if network_csv:
        fit.main(network=network_csv, out=folder / "tables" / "network")
        names.append("network")
    stems = [
        figure(folder / "figures" / name, *size)
        for name, size in (("wide", (9, 3)), ("high", (6.9, 12)), ("s", (3, 2)))
    ]
    chosen = replace(facts.study, paper=replace(facts.study.paper, figures=("wide", "high")))
    complete = replace(facts, study=chosen, checks=pd.read_csv(folder / "tables" / "checks.csv"))
    paper.write_sources(complete, stems, [folder / "tables" / name for name in names], folder / "paper")
    shutil.copy(document.skeleton(chosen.paper.class_name), folder / "paper" / "main.tex")
    return folder / "paper"


def compile_paper(folder: Path, *sources: str) -> str:
    """Return TeX's output for a paper and its supplement, or for one of them.

    Assert that they compile, that nothing is too wide, and that no reference is missing.
    """
    output = ""
    products = {"supplement": "supplement", "main": "paper"}
    for source, product in products.items():
        if sources and source not in sources:
            continue
        out = folder / f"{product}.pdf"
        pdf.main(main=folder / f"{source}.tex", out=out, log=folder / "log")
        assert out.read_bytes().startswith(b"%PDF")
        output += (folder / "log").read_text()
    assert not [width for width in OVERFULL.findall(output) if float(width) > 20], output
    for complaint in ("undefined", "multiply", "Float too large"):
        assert complaint not in output, output
    assert not [name for name in folder.iterdir() if name.suffix in (".aux", ".bbl", ".blg", ".out")]
    return output


def test_the_paper_of_a_kept_campaign_compiles(tex: None, tmp_path: Path) -> None:
    network_csv = CAMPAIGN / "network.csv"
    facts = facts_of(CAMPAIGN / "runs.csv", network_csv)
    compile_paper(sources(tmp_path, facts, CAMPAIGN / "runs.csv", network_csv))


@pytest.fixture(scope="module")
def quickstart_like(tmp_path_factory: pytest.TempPathFactory) -> tuple[Facts, list[Path], list[Path]]:
    """Facts, figures and tables of a made-up campaign that is as large as quickstart."""
    folder = tmp_path_factory.mktemp("quickstart")
    runs_csv, epochs_csv = write_frames(folder, *campaign())
    study.main(runs=runs_csv, epochs=epochs_csv, out=folder / "tables")
    facts = facts_of(runs_csv, paper=Paper(figures=tuple(PAPER_FIGURES)))
    caption = "Epoch times. " + "Markers are means, and bars are intervals of them. " * 5
    stems = [figure(folder / "figures" / name, *size, caption) for name, size in PAPER_FIGURES.items()]
    stems.append(figure(folder / "figures" / "residuals", 6.9, 2.4))
    return facts, stems, [folder / "tables" / name for name in TABLES]


def in_class(facts: Facts, name: document.ClassName, **changes: object) -> Facts:
    """Facts of a study whose paper has another class."""
    chosen = replace(facts.study.paper, document_class=name)
    return replace(facts, study=replace(facts.study, paper=chosen, **changes))


def written_paper(quickstart_like: tuple[Facts, list[Path], list[Path]], folder: Path, facts: Facts) -> Path:
    """The folder of a paper with the initial main.tex of its class."""
    paper.write_sources(facts, *quickstart_like[1:], folder)
    shutil.copy(document.skeleton(facts.study.paper.class_name), folder / "main.tex")
    return folder


AUTHORS = (
    Author(
        given_names="Ada",
        family_names="Lovelace",
        affiliation="A & B",
        orcid="https://orcid.org/0000-0001-2345-6789",
    ),
    Author(given_names="C.", family_names="Babbage"),
)


@pytest.mark.parametrize(("name", "authors"), [("article", ()), ("acmart", AUTHORS), ("IEEEtran", AUTHORS)])
def test_paper_compiles_in_its_class_in_8_pages(
    tex_classes: None,
    quickstart_like: tuple[Facts, list[Path], list[Path]],
    name: document.ClassName,
    authors: tuple[Author, ...],
    tmp_path: Path,
) -> None:
    facts = in_class(quickstart_like[0], name, authors=authors)
    output = compile_paper(written_paper(quickstart_like, tmp_path, facts), "main")
    assert document.class_of(tmp_path / "main.tex") == name
    assert int(re.findall(r"\((\d+) pages", output)[-1]) <= 8


def test_long_tables_that_a_study_chooses_compile(
    tex: None, quickstart_like: tuple[Facts, list[Path], list[Path]], tmp_path: Path
) -> None:
    facts = quickstart_like[0]
    chosen = Paper(figures=("scaling",), tables=("effects", "anova"))
    written_paper(quickstart_like, tmp_path, replace(facts, study=replace(facts.study, paper=chosen)))
    compile_paper(tmp_path, "main")
    text = (tmp_path / "tables.tex").read_text()
    assert text.index("tables/anova") < text.index(r"\longtables{") < text.index("tables/effects")


def test_anonymous_acmart_paper_names_nobody(
    tex_classes: None,
    quickstart_like: tuple[Facts, list[Path], list[Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Facts, "anonymous", True)
    facts = in_class(quickstart_like[0], "acmart", authors=AUTHORS)
    compile_paper(written_paper(quickstart_like, tmp_path, facts), "main")
    texts = {file.name: file.read_text() for file in tmp_path.glob("*.tex")}
    assert "{anonymous,review}{acmart}" in texts["options.tex"]
    assert not [name for name, text in texts.items() if "Lovelace" in text or "0000-0001-2345-6789" in text]
    assert "hosts" not in codes(notes_of(facts))
    monkeypatch.setattr(Facts, "anonymous", False)
    assert "hosts" in codes(notes_of(facts)) and "Pass" not in document.options("acmart")


def test_main_tex_of_another_class_is_refused(
    quickstart_like: tuple[Facts, list[Path], list[Path]], tmp_path: Path
) -> None:
    written_paper(quickstart_like, tmp_path, in_class(quickstart_like[0], "article"))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.tex")}
    with pytest.raises(InputError) as refused:
        paper.write_sources(in_class(quickstart_like[0], "acmart"), *quickstart_like[1:], tmp_path)
    assert (refused.value.code, refused.value.got) == ("other-class", "article")
    assert "class: article" in refused.value.hint and "\n" not in str(refused.value)
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*.tex")}
    (tmp_path / "main.tex").write_text("% \\documentclass{article}\n\\documentclass[runningheads]{llncs}\n")
    paper.write_sources(in_class(quickstart_like[0], "acmart"), *quickstart_like[1:], tmp_path)


def test_figures_are_discussed_and_captions_not_repeated(
    quickstart_like: tuple[Facts, list[Path], list[Path]], tmp_path: Path
) -> None:
    folder = written_paper(quickstart_like, tmp_path, quickstart_like[0])
    source = (folder / "results.tex").read_text()
    paragraphs = source.split("\n\n")
    assert not [text for text in paragraphs if re.match(r"\s*Figure~\\ref\{[^}]*\}:", text)]
    assert "Epoch times. Markers" not in source and "tobewritten" not in source
    for name in PAPER_FIGURES:
        place = source.index(rf"\input{{figures/{name}}}")
        assert place < source.index(rf"Figure~\ref{{fig:{name}}}")
        assert r"\begin{fittedfigure}" in (folder / "figures" / f"{name}.tex").read_text()
    tables_of_paper = (folder / "tables.tex").read_text()
    assert r"\label{tab:means}" in tables_of_paper and "median" not in tables_of_paper
    assert re.findall("tables/([a-z]+)", tables_of_paper) == ["anova"]
    supplement = (folder / "supplement.tex").read_text()
    in_supplement = set(re.findall("tables/([a-z]+)", supplement))
    assert {"cells", "effects", "speedup"} <= in_supplement and r"\label{tab:constants}" in supplement
    main_texts = "".join(
        (folder / f"{name}.tex").read_text() for name in ("methods", "results", "threats", "reproducibility")
    )
    n_figures, n_tables = supplement.count(r"\input{figures"), supplement.count(r"\input{tables") + 1
    numbers = [f"Figure S{n}" for n in range(1, n_figures + 1)]
    numbers += [f"Table S{n}" for n in range(1, n_tables + 1)]
    cited_numbers = main_texts.replace("~", " ")
    assert [number for number in numbers if not re.search(rf"{number}\b", cited_numbers)] == []
    upright, _, wide = supplement.partition(r"\begin{sideways}")
    for name in in_supplement:
        is_wide = r"\begin{landscape}" in (folder / "tables" / f"{name}.tex").read_text()
        assert rf"\input{{tables/{name}}}" in (wide if is_wide else upright)


def test_captions_state_once_what_all_figures_have() -> None:
    tail = "3 runs per cell. Emulated nodes; local batch."
    captions = {
        "a": f"Times. Bars. {tail}",
        "b": f"Speed-ups. {tail}",
        "c": "Shares. Emulated nodes; local batch.",
        "d": "Emulated nodes; local batch.",
    }
    stated = paper.drop_shared_endings(captions)
    shortened = {"b": "Speed-ups.", "c": "Shares.", "d": captions["d"]}
    assert stated == {"a": f"{captions['a']} {paper.ENDING_HOLDS}", **shortened}
    assert paper.drop_shared_endings({"a": captions["a"]}) == {
        "a": captions["a"]
    } and not paper.drop_shared_endings({})


def test_drafts_say_what_tables_show(quickstart_like: tuple[Facts, list[Path], list[Path]]) -> None:
    facts, _, stems = quickstart_like
    evidence = Evidence(facts.runs, {stem.name: tables.read(stem).data for stem in stems})
    data = {name: evidence.tables[name] for name in ("anova", "speedup")}
    answer = answers.answer_sentences(evidence, answers.Question())
    notes = list(drafts.discussion(answer, evidence))
    decides, scaling = find_note(notes, "variation"), find_note(notes, "cost-of-scaling")
    shares = data["anova"].set_index("term")["share"]
    assert max(decides.facts["shares"].values()) == shares.drop(["total", "error"]).max()
    largest = data["speedup"][data["speedup"]["n_devices"] == scaling.facts["devices"]]
    assert scaling.facts["efficiency"] == largest["efficiency"].max()
    assert scaling.facts["slower"] == (largest["speedup_high"] < 1).sum()
    assert scaling.facts["longer"] == (largest["speedup"] < 1).sum() >= scaling.facts["slower"]
    means = find_note(answer.main, "means")
    short = means.partition("; ")[0]
    assert short in next(drafts.abstract(facts, answer)) and short not in next(
        drafts.conclusion(facts, answer)
    )
    worst = largest["efficiency"].idxmin()
    of_four = data["speedup"].assign(
        n_devices=data["speedup"]["n_devices"].mask(data["speedup"].index == worst, 4)
    )
    on_four = replace(evidence, tables=evidence.tables | {"speedup": of_four})
    scaling = find_note(list(drafts.discussion(answer, on_four)), "cost-of-scaling")
    assert scaling.facts["devices"] == 4
    assert scaling.facts["efficiency"] == largest["efficiency"].min()
    assert "[" not in next(drafts.conclusion(facts, answer)) and "[" in next(drafts.abstract(facts, answer))
    warning, unrelated = Note("response-not-measured", "No run has it."), Note("nothing-tested", "Nothing.")
    best = Note("best-level", "Mean is shortest with 4; no lead is significant.")
    assert drafts._main_sentences(answers.Answer([warning, best, unrelated], [])) == [warning, best]
    effect = Note("effect", "Nodes change it.")
    assert drafts._main_sentences(answers.Answer([best, unrelated, effect], [])) == [best, effect]
    empty = replace(facts, runs=facts.runs.assign(status="failed"))
    parts = drafts.draft_texts(empty, answers.Answer([answers.NO_SUCCESS], []), Evidence(empty.runs, {}))
    assert set(parts) == {"abstract.tex", "discussion.tex", "conclusion.tex"}
    assert all(part.startswith(r"\drafted") for part in parts.values())


def test_extreme_that_cells_share_names_none(quickstart_like: tuple[Facts, list[Path], list[Path]]) -> None:
    facts, _, stems = quickstart_like
    evidence = Evidence(facts.runs, {stem.name: tables.read(stem).data for stem in stems})
    accuracies = [0.5, *[0.9] * (len(evidence.tables["cells"]) - 1)]
    cells = evidence.tables["cells"].assign(validation_accuracy_mean=accuracies)
    changed = replace(evidence, tables=evidence.tables | {"cells": cells})
    finding = state_finding(FigureSpec(name="a", kind="accuracy", x="wall_time"), changed)
    assert finding is not None and finding.facts["tied"] == [1, len(cells) - 1]
    assert evidence.cell(cells["cell"].iloc[-1]) not in finding


def test_scatter_is_compared_with_each_factor(quickstart_like: tuple[Facts, list[Path], list[Path]]) -> None:
    runs = quickstart_like[0].runs
    for factors, named in (({"a": 0.7, "b": 0.2}, []), ({"a": 0.7, "b": 0.06}, ["a"]), ({"a": 0.08}, [])):
        rows = pd.DataFrame({"term": [*factors, "error"], "share": [*factors.values(), 0.1]})
        note = variation_note(Evidence(runs, {"anova": rows}))
        assert note is not None and note.facts["scatter"] == 0.1
        assert [name for name in factors if f"{name} (" in note.partition(". ")[2]] == named


def test_speedups_with_accumulation_are_a_sentence_of_their_own(
    quickstart_like: tuple[Facts, list[Path], list[Path]],
) -> None:
    facts, _, stems = quickstart_like
    evidence = Evidence(facts.runs, {stem.name: tables.read(stem).data for stem in stems})
    rows = evidence.tables["speedup"]
    accumulates = (rows["n_devices"] == 2) & (rows.index % 2 == 1)
    steps = rows.assign(sync_every=accumulates.map({True: 4, False: 1}))
    note = speedups(replace(evidence, tables=evidence.tables | {"speedup": steps}))
    assert note is not None and accumulates.any()
    assert note.facts["accumulating"] == rows.loc[accumulates, "speedup"].max()
    assert note.facts["greatest"] == rows.loc[(rows["n_devices"] == 2) & ~accumulates, "speedup"].max()


def test_abstract_counts_discarded_runs(quickstart_like: tuple[Facts, list[Path], list[Path]]) -> None:
    facts = quickstart_like[0]
    failed = facts.runs.assign(status=facts.runs["status"].mask(facts.runs.index < 2, "failed"))
    for runs in (facts.runs, failed):
        n_discarded = len(runs) - len(successful(runs))
        assert drafts._measured_note(replace(facts, runs=runs)).facts["discarded"] == n_discarded


def test_findings_are_the_numbers_of_tables(quickstart_like: tuple[Facts, list[Path], list[Path]]) -> None:
    facts, _, stems = quickstart_like
    evidence = Evidence(facts.runs, {stem.name: tables.read(stem).data for stem in stems})
    speedup, cells, effects, anova = (
        evidence.tables[name] for name in ("speedup", "cells", "effects", "anova")
    )

    def facts_of_finding(kind: str, **options: object) -> dict[str, object]:
        finding = state_finding(FigureSpec(name=kind, kind=kind, **options), evidence)
        assert finding and finding.count(FIGURE_REFERENCE) == 1 and finding.endswith(".")
        return finding.facts

    times = facts_of_finding("overview")
    means = cells.set_index("cell")["epoch_time_s_mean"]
    assert (times["fastest"], times["slowest"]) == (means.idxmin(), means.idxmax())
    assert times["ratio"] == pytest.approx(means.max() / means.min())
    scaled = speedup[speedup["n_devices"] == 2]["speedup"]
    finding = facts_of_finding("scaling")
    assert (finding["n_devices"], finding["least"], finding["greatest"]) == (2, scaled.min(), scaled.max())
    rows = effects[(effects["factor"] == "batch_size") & (effects["from"] == "16") & (effects["to"] == "64")]
    finding = facts_of_finding("by_factor", x="batch_size")
    assert (finding["least"].value, finding["greatest"].value) == (rows["ratio"].min(), rows["ratio"].max())
    assert finding["tested"] == len(rows) and finding["significant"] == int((rows["p_holm"] < 0.05).sum())
    row = anova[anova["term"] == "framework × nodes"].iloc[0]
    finding = facts_of_finding("interaction", x="nodes", colour=("framework",))
    assert (finding["share"], finding["p"]) == (row["share"], row["p"])
    accuracy = cells["validation_accuracy_mean"]
    finding = facts_of_finding("accuracy", x="wall_time")
    assert (finding["least"], finding["greatest"]) == (accuracy.min(), accuracy.max())
    finding = facts_of_finding("shares")
    assert 0 <= finding["least"] < finding["greatest"] <= 1
    rates = cells["throughput_samples_s_mean"]
    for kind, options in (("overview", {}), ("by_factor", {"x": "nodes"}), ("heat_map", {"x": "nodes"})):
        finding = facts_of_finding(kind, y="throughput", **options)
        assert (finding["least"], finding["greatest"]) == (rates.min(), rates.max())
    batch_16 = FigureSpec(name="o", kind="overview", filter={"batch_size": (16,)})
    small = facts.runs[facts.runs["batch_size"] == 16]["cell"]
    finding = state_finding(batch_16, evidence)
    assert finding is not None and finding.facts["slowest"] == means[small].idxmax()
    effect = Note("effect", "", factor="nodes")
    by_nodes = [FigureSpec(name="n", kind="by_factor", x="nodes", y=y) for y in ("epoch_time", "throughput")]
    assert [find_effect_note(figure, [effect], EPOCH_TIME) for figure in by_nodes] == [effect, None]
    by_framework = FigureSpec(name="i", kind="interaction", x="nodes", colour=("framework",), y="throughput")
    assert state_finding(by_framework, evidence) is None, "the analysis of variance is about epoch time"
    assert state_finding(FigureSpec(name="drift", kind="drift"), evidence) is None
    empty_evidence = Evidence(facts.runs.assign(status="missing"), evidence.tables)
    assert state_finding(FigureSpec(name="overview", kind="overview"), empty_evidence) is None


def test_finding_is_about_the_quantity_of_its_figure(
    quickstart_like: tuple[Facts, list[Path], list[Path]],
) -> None:
    facts, _, stems = quickstart_like
    evidence = Evidence(facts.runs, {stem.name: tables.read(stem).data for stem in stems})
    perplexity = FigureSpec(name="p", kind="accuracy", y="perplexity", x="wall_time")
    assert state_finding(perplexity, evidence) is None, "no run has a perplexity"
    cells = evidence.tables["cells"].assign(perplexity_mean=range(2, 2 + len(evidence.tables["cells"])))
    finding = state_finding(perplexity, replace(evidence, tables={**evidence.tables, "cells": cells}))
    assert finding and (finding.facts["column"], finding.facts["least"]) == ("perplexity_mean", 2)
    per_device = FigureSpec(name="o", kind="overview", y="throughput_per_device")
    rates = successful(facts.runs).assign(
        rate=lambda runs: runs["throughput_samples_s"] / runs["replicas"].astype(float)
    )
    harmonic = 1 / (1 / rates["rate"]).groupby(rates["cell"]).mean()
    finding = state_finding(per_device, evidence)
    assert finding is not None, "the table cells has no column of it"
    assert finding.facts["least"] == pytest.approx(harmonic.min())
    assert finding.facts["greatest"] == pytest.approx(harmonic.max())


def test_only_an_effect_refers_to_its_figure() -> None:
    by_nodes = FigureSpec(name="n", kind="by_factor", x="nodes")
    notes = [Note(code, "", factor="nodes") for code in ("out-of-memory", "effect")]
    assert find_effect_note(by_nodes, notes, EPOCH_TIME) is notes[1]
    assert find_effect_note(by_nodes, notes[:1], EPOCH_TIME) is None


def test_effect_refers_to_figures_by_spec_not_by_name(
    quickstart_like: tuple[Facts, list[Path], list[Path]],
) -> None:
    def labels(*specs: FigureSpec) -> list[str]:
        facts = replace(
            quickstart_like[0], figure_specs=specs, paper_labels=[f"fig:{spec.name}" for spec in specs]
        )
        effect = Note("effect", "It is slower.", factor="nodes")
        written = results.write_results(facts, {}, {}, answers.Answer([effect], []))
        return re.findall(r"fig:([\w-]+)", written)

    unnamed = FigureSpec("by_factor-nodes", "by_factor", x="nodes")
    of_throughput = FigureSpec("by_nodes", "by_factor", x="nodes", y="throughput")
    by_batch = FigureSpec("by_batch_size", "by_factor", x="batch_size")
    assert labels(of_throughput, by_batch, unnamed) == ["by_factor-nodes"]
    assert labels(of_throughput) == []


def test_finding_on_single_runs_has_no_interval() -> None:
    runs = read_runs(CAMPAIGN / "runs.csv")
    single = runs[runs["replicate"] == 1]
    evidence = Evidence(single, {"effects": effects_of_factors.table(single).data})
    finding = state_finding(FigureSpec(name="by_nodes", kind="by_factor", x="nodes"), evidence)
    assert finding is not None and finding.code == "effect-range"
    assert finding.facts["least"].value < finding.facts["greatest"].value and "[" not in finding


def test_failed_benchmarks_are_named_with_reasons() -> None:
    network = read_table(CAMPAIGN / "network.csv", "network")
    assert site_and_software.failed_benchmarks(fit.table(network).data) == ""
    first = network["framework"].iloc[0]
    network.loc[network["framework"] == first, ["status", "reason"]] = ["invalid", "disturbed"]
    note = site_and_software.failed_benchmarks(fit.table(network).data)
    assert isinstance(note, Note) and ("invalid", "disturbed") in note.facts["benchmarks"].values()


def test_names_in_backticks_are_references_or_code() -> None:
    source = r"The table `useful\_time` and table `cells`: `n\_nodes`, ``quoted''."
    assert link_names(source, ["tab:useful_time"]) == (
        r"Table~\ref{tab:useful_time} and table \texttt{cells}: \texttt{n\_nodes}, ``quoted''."
    )


def test_network_finding_names_extremes_of_frameworks() -> None:
    network = fit.table(read_table(CAMPAIGN / "network.csv", "network")).data
    evidence = Evidence(read_runs(CAMPAIGN / "runs.csv"), {"network": network})
    finding = state_finding(FigureSpec(name="network", kind="network"), evidence)
    rows = network[network["nodes"] == network["nodes"].max()]
    rows = rows[rows["deviation"] <= fit.MAX_FIT_DEVIATION]
    assert finding and finding.facts["latencies_s"] == [rows["latency_s"].min(), rows["latency_s"].max()]


def notes_of(facts: Facts) -> list[str]:
    """Return all sentences of the section on methods."""
    return [note for notes in method_notes(facts).values() for note in notes]


def test_every_sentence_is_stated_somewhere() -> None:
    folder = CHECKOUT / "workflow" / "scripts" / "report"
    code = "".join((folder / f"{name}.py").read_text() for name in ("methods", "threats", "paper"))
    assert [name for name in texts() if f'"{name}"' not in code and not name.endswith("-nodes")] == []


def test_methods_name_the_collectives_that_were_benchmarked() -> None:
    facts = facts_of(CAMPAIGN / "runs.csv", CAMPAIGN / "network.csv")
    timed = find_note(notes_of(facts), "collectives-benchmarked")
    assert timed.facts["collectives"] == ["all_reduce"] and "bytes-counted" not in codes(notes_of(facts))
    assert facts.network is not None
    collectives = [facts.network.assign(collective=name) for name in ("reduce_scatter", "all_gather")]
    notes = notes_of(replace(facts, network=pd.concat([facts.network, *collectives])))
    timed, counted = find_note(notes, "collectives-benchmarked"), find_note(notes, "bytes-counted")
    assert timed.facts["collectives"] == ["all_reduce", "all_gather", "reduce_scatter"]
    assert "all-reduce, all-gather and reduce-scatter" in timed
    assert counted.facts["collectives"] == ["all_gather", "reduce_scatter"] and "$(n - 1) / n$" in counted


def test_results_are_the_answer_then_the_figures(tmp_path: Path) -> None:
    runs_csv, _ = write_frames(tmp_path, *campaign(failures={}))
    folder = sources(tmp_path, facts_of(runs_csv), runs_csv)
    (tmp_path / "figures" / "wide.caption.md").write_text(f"{NOT_DRAWN}nothing was measured. More.\n")
    stems = [tmp_path / "figures" / name for name in ("high", "wide", "s")]
    names = [tmp_path / "tables" / name for name in TABLES]
    study_of = replace(load_study("quickstart"), paper=Paper(("s", "wide"), ("anova", "effects")))
    facts = replace(facts_of(runs_csv), study=study_of)
    paper.write_sources(facts, stems, names, folder)
    contents = {
        name: (folder / f"{name}.tex").read_text() for name in ("results", "tables", "supplement", "methods")
    }
    data = {name: pd.read_csv(tmp_path / "tables" / f"{name}.csv") for name in ("effects", "anova")}
    question = answers.Question(study_of.answer_factors, study_of.margin)
    first, further, _ = answers.answer_sentences(Evidence(facts.runs, data), question)
    usable = conditions.usable_runs_note(facts.runs)
    places = [
        contents["results"].index(to_latex(sentence).removesuffix("."))
        for sentence in (*first, usable, *further)
    ]
    assert places[0] == min(places) < 200 and further, "the means come first"
    assert places[len(first) + 1 :] == sorted(places[len(first) + 1 :])
    headings = re.findall(r"\\subsection\{(.*?)\}", contents["results"])
    assert {"Accumulation", "Frameworks", "Scaling"} < set(headings)
    discussed = contents["results"].index(r"\tobewritten{what Figure~\ref{fig:s} shows.}")
    assert discussed > places[len(first)] and contents["results"].count(r"\input{figures/s}") == 1
    assert re.findall("tables/([a-z]+)", contents["tables"]) == ["anova", "effects"]
    assert re.findall("figures/([a-z]+)", contents["supplement"]) == ["high"], "wide shows nothing"
    assert r"\begin" not in (folder / "figures" / "wide.tex").read_text(), (
        "Snakemake wants a file all the same"
    )
    in_supplement = re.findall("tables/([a-z]+)", contents["supplement"])
    assert sorted(in_supplement) == sorted(set(TABLES) - {"anova", "effects", "missing", "scaling"}), (
        "no run is missing, two counts"
    )
    placed = replace(facts, paper_labels=["tab:effects"], supplement_numbers={"tab:checks": "Table S3"})
    assert placed.see("tab:checks", "tab:none", "tab:effects") == r" (Table~S3 and Table~\ref{tab:effects})"
    assert placed.see("tab:none") == "" and r"\ref{tab:checks}" not in contents["methods"]


def test_authors_are_in_the_words_of_the_class() -> None:
    assert document.article_authors(AUTHORS) == r"Ada Lovelace\\A \& B \and C. Babbage"
    acm, ieee = document.acmart_authors(AUTHORS), document.ieeetran_authors(AUTHORS)
    assert r"\author{Ada Lovelace}\orcid{0000-0001-2345-6789}\affiliation{\institution{A \& B}" in acm
    assert r"\IEEEauthorblockN{Ada Lovelace}\IEEEauthorblockA{A \& B} \and " in ieee
    for authors, count in (
        (acm, 1),
        (ieee, 1),
        (document.acmart_authors([]), 1),
        (document.ieeetran_authors([]), 1),
    ):
        assert authors.count(document.NO_AFFILIATION) == count
    for name, entry in document.CLASSES.items():
        assert document.NO_AUTHORS in entry.authors([])
        assert r"\studyauthors" in document.skeleton(name).read_text()


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Facts, Path]:
    """Facts of a made-up campaign in which all texts by people contain characters special in LaTeX."""
    runs, epochs = campaign()
    bad = runs["status"] != "ok"
    runs.loc[bad, "reason"] = f"rank 1 ended with status 1: {HOSTILE} " + "/a/very/long/path/of/a_module" * 8
    runs_csv, _ = write_frames(tmp_path, runs.assign(devices=HOSTILE), epochs)
    return facts_of(runs_csv, title=HOSTILE, question=f"{HOSTILE}\n\nand {HOSTILE}?"), runs_csv


def test_whatever_people_write_compiles(tex: None, hostile: tuple[Facts, Path], tmp_path: Path) -> None:
    compile_paper(sources(tmp_path, *hostile))


@pytest.mark.parametrize("case", ["one run", "no successful run", "published without the rest"])
def test_a_degenerate_study_compiles(tex: None, case: str, tmp_path: Path) -> None:
    runs, epochs = campaign(replicates=1)
    if case == "one run":
        runs = runs[runs["framework"] == "pytorch-single"][:1]
    if case == "no successful run":
        runs = runs.assign(status="missing", reason="not run", epoch_time_s=None, placement=None)
    if case == "published without the rest":
        runs = runs.drop(
            columns=["hosts", "devices", "transport", "library_version", "python_version", "session"]
        )
        runs = runs.drop(columns=["systems", "node_memory_bytes"])
    runs_csv, _ = write_frames(tmp_path, runs, epochs)
    facts = facts_of(runs_csv)
    if case == "published without the rest":
        facts = replace(facts, site=None)
    compile_paper(sources(tmp_path, facts, runs_csv))


def test_methods_say_what_the_nodes_were(tmp_path: Path) -> None:
    runs, epochs = campaign(replicates=1)
    runs.loc[runs.index[0], "node_memory_bytes"] = 6 * 2**30
    recorded = runs.assign(drivers="nvidia 580.65.06", node_cores=12)
    runs_csv, _ = write_frames(tmp_path, recorded, epochs)
    notes = notes_of(facts_of(runs_csv))
    machine = find_note(notes, "machine")
    assert machine.facts["parts"][-2:] == ["12 cores", "6.00 to 24.0 GiB of memory"]
    systems = ["Debian GNU/Linux 12 (bookworm), Linux 6.1.0", "nvidia 580.65.06"]
    assert machine.facts["systems"] == systems


def test_methods_say_which_cells_ran_out_of_memory(tmp_path: Path) -> None:
    runs, epochs = campaign(replicates=2, failures={})
    is_out = runs["framework"].eq("pytorch-ddp") & runs["batch_size"].eq(64)
    runs.loc[is_out, ["status", "reason", "epoch_time_s"]] = ["oom", "out of memory on the host", None]
    runs_csv, _ = write_frames(tmp_path, runs, epochs[~epochs["run_id"].isin(runs["run_id"][is_out])])
    notes = notes_of(facts_of(runs_csv))
    ran_out = find_note(notes, "out-of-memory")
    assert sorted(ran_out.facts["cells"]) == sorted(set(runs["cell"][is_out]))
    assert "no-cell-missing" in codes(notes)
    assert "failed-runs" not in codes(notes), "it is no threat to means"


def test_methods_say_by_which_precision_replicates_were_chosen(tmp_path: Path) -> None:
    runs, epochs = campaign(replicates=3, failures={})
    larger, larger_epochs = campaign(replicates=5, failures={})
    later = larger["replicate"].gt(3) & larger["batch_size"].eq(16)
    all_runs = pd.concat([runs, larger[later]])
    runs_csv, _ = write_frames(
        tmp_path, all_runs, pd.concat([epochs, larger_epochs]).drop_duplicates(["run_id", "epoch"])
    )
    facts = facts_of(runs_csv, replicates=Replicates(3, 5, 0.5))
    notes = notes_of(facts)
    assert find_note(notes, "design").facts["replicates"] == [3, 5]
    assert find_note(notes, "blocks").facts["is_adaptive"]
    chosen = reached.target_note(facts.runs, facts.study.replicates)
    assert chosen and to_latex(chosen) in notes
    replication = design.replication(read_runs(runs_csv), facts.study.replicates)
    assert (
        replication.facts["replicates"] == [3, 5]
        and replication.facts["is_adaptive"]
        and chosen in replication
    )
    fixed = design.replication(read_runs(runs_csv), Replicates(5, 5))
    assert not fixed.facts["is_adaptive"] and chosen not in fixed


def test_methods_state_what_was_done() -> None:
    facts = facts_of(CAMPAIGN / "runs.csv", CAMPAIGN / "network.csv")
    notes = notes_of(facts)
    section = write_methods(facts)
    assert all(note in section for note in notes)
    stated = {
        note.facts["model"] if note.code == "model" else note.code: note.facts
        for note in notes
        if codes([note])
    }
    counts = {"cells": 54, "replicates": [5], "runs": 270, "fraction": None}
    assert counts.items() <= stated["design"].items()
    assert stated["blocks"] == {"seed": 20200517, "is_adaptive": False}
    day = date(2026, 11, 21)
    assert stated["sessions"] == {"sessions": 5, "first": day, "last": day}
    assert stated["frameworks"]["frameworks"] == ["tensorflow-multiworker"]
    assert r"TensorFlow MultiWorkerMirroredStrategy~\cite{abadi2016}" in find_note(notes, "frameworks")
    assert list(stated["small-cnn-600"]["parameters"]) == [2_483_026]
    assert (stated["dataset"]["train_samples"], stated["dataset"]["validation_samples"]) == (4608, 512)
    assert (stated["epochs"]["epochs"], stated["epochs"]["warmup_epochs"]) == ([3], [1])
    sizes = stated["collectives-benchmarked"]["sizes_bytes"]
    assert (len(sizes), sizes[0], sizes[-1]) == (9, 1024, 64 * 2**20)
    assert "fit" in stated["excluded"]["exclusions"][0] and stated["all-succeeded"]["runs"] == 270
    assert stated["threads"] == {"threads": [1]}
    for sentence in (conditions.circumstances_note(facts.runs), fit.setup_note(facts.network)):
        assert sentence and to_latex(sentence) in notes
    assert cited(to_latex(conditions.replicates_note(facts.runs))) in notes
    assert "workflow/" not in section and ".yaml" not in section, "methods are told in words, not in paths"
    assert r"\cite{jain1991}" in section and r"\ref{tab:factors}" in section


def test_methods_describe_rows_with_clicks_and_labels_of_pixels() -> None:
    facts = facts_of(CAMPAIGN / "runs.csv")
    facts.runs["dataset"] = "synthetic-clicks-100"
    clicks = find_note(notes_of(facts), "dataset")
    assert clicks.facts["shape"] == [39] and "2,600 values" in clicks
    facts.runs["dataset"] = "synthetic-regions-32x16x3-4"
    regions = find_note(notes_of(facts), "dataset")
    assert regions.facts["shape"] == [32, 16, 3] and "each pixel" in regions


def test_report_has_digests_of_folders_and_values_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = {**load_dataset("cifar-10"), "folder": "/data", "sha256": "ab" * 32}
    runs = facts_of(CAMPAIGN / "runs.csv").runs
    (clicks,) = site_and_software.data_sets(["synthetic-clicks-100"], None, runs)
    assert dict(clicks.facts)["vocabulary"] == "2,600" and "SHA-256 of the folder's files" not in dict(
        clicks.facts
    )
    monkeypatch.setattr(site_and_software, "find_dataset", lambda _: folder)
    (trees,) = site_and_software.data_sets(["cifar-10"], None, runs)
    assert dict(trees.facts)["SHA-256 of the folder's files"] == "ab" * 32


def test_threats_are_those_that_the_records_show() -> None:
    facts = facts_of(CAMPAIGN / "runs.csv", CAMPAIGN / "network.csv")
    notes = list(threat_notes(facts))
    assert {"virtual-nodes", "network-benchmarked-once", "short-training"} < set(
        codes(notes)
    ) and "no-success" not in codes(notes)
    assert find_note(notes, "one-site").facts["compared"] == "treatments"
    steal = find_note(notes, "cpu-steal").facts
    assert (steal["runs"], steal["successful"]) == (9, 270)
    assert all(note in write_threats(facts) for note in notes)
    commands = write_reproducibility(facts).replace(r"\allowbreak{}", "")
    assert "./ringside submit tf-strategies-virtual" in commands


def test_methods_point_at_the_table_of_settings() -> None:
    facts = facts_of(CAMPAIGN.with_name("strategies-virtual") / "runs.csv")
    assert "framework-settings" not in codes(method_notes(facts)["Frameworks"]), "there is no such table"
    runs = facts.runs.copy()
    runs["settings"] = join_settings({"threads": "2"})
    first = runs["framework"] == runs["framework"].iloc[0]
    runs.loc[first, "settings"] = join_settings({"threads": "1"})
    for in_paper, in_supplement, reference in (
        (("tab:settings",), {}, "tab:settings"),
        ((), {"tab:settings": "Table S3"}, "Table~S3"),
    ):
        placed = replace(facts, runs=runs, paper_labels=in_paper, supplement_numbers=in_supplement)
        note = find_note(method_notes(placed)["Frameworks"], "framework-settings")
        assert "threads" in note.facts["settings"] and reference in note


def test_warnings_of_libraries_are_threats() -> None:
    facts = facts_of(CAMPAIGN / "runs.csv")
    assert not {"library-warning", "more-library-warnings"} & set(codes(threat_notes(facts)))
    layout, six_texts = "UserWarning: Grad strides do not match; 50 % slower", [f"W: {i}" for i in range(6)]
    runs = facts.runs.copy()
    at = runs.index[runs["status"] == "ok"]
    runs.loc[at[:3], "warnings"] = layout
    runs.loc[at[0], "warnings"] = WARNING_SEPARATOR.join([layout, *six_texts])
    runs.loc[runs.index[runs["status"] != "ok"], "warnings"] = "of a run that failed"
    notes = [note for note in threat_notes(replace(facts, runs=runs)) if "library-warning" in note.code]
    assert len(notes) == MAX_WARNINGS + 1 and notes[-1].facts == {"warnings": 7 - MAX_WARNINGS}
    frameworks = sorted(runs.loc[at[:3], "framework"].unique())
    assert notes[0].facts == {"warning": layout, "runs": 3, "frameworks": frameworks}
    assert r"50~\% slower" in notes[0]


def test_methods_say_what_each_strategy_is_with_its_source() -> None:
    facts = facts_of(CAMPAIGN / "runs.csv")
    assert not method_notes(facts)["Strategies"] and "subsection{Strategies}" not in write_methods(facts), (
        "all divide samples"
    )
    is_multi_rank = facts.runs["ranks"] > 1
    divided = facts.runs.assign(
        parallelism=facts.runs["parallelism"].mask(is_multi_rank, "pipeline"),
        microbatches=facts.runs["microbatches"].mask(is_multi_rank, 4),
    )
    notes = method_notes(replace(facts, runs=divided))["Strategies"]
    assert find_note(notes, "meshes").facts["strategies"] == ["pipeline"]
    axis, schedule = find_note(notes, "axis"), find_note(notes, "schedule")
    assert axis.facts["level"] == "pipeline" and r"\cite{huang2019}" in axis
    assert schedule.facts["level"] == "1f1b" and r"\cite{narayanan2019}" in schedule
    assert find_note(notes, "microbatches").facts == {"microbatches": [4]}


@pytest.mark.parametrize(
    ("parallelism", "level", "key"),
    [
        ("tensor", "layers", None),
        ("tensor", "vocabulary", "shoeybi2019"),
        ("tensor", "sequence", "korthikanti2023"),
        ("pipeline", "sequence", None),
    ],
)
def test_methods_say_what_a_tensor_axis_divides(parallelism: str, level: str, key: str | None) -> None:
    facts = facts_of(CAMPAIGN / "runs.csv")
    divided = facts.runs["parallelism"].mask(facts.runs["ranks"] > 1, parallelism)
    runs = facts.runs.assign(parallelism=divided, tensor_sharding=level)
    notes = [note for note in notes_of(replace(facts, runs=runs)) if codes([note]) == ["tensor-sharding"]]
    expected = [(level, True)] if key else []
    assert [(note.facts["level"], rf"\cite{{{key}}}" in note) for note in notes] == expected


def test_what_a_check_found_is_told_with_what_follows_from_it() -> None:
    table = checks.table(read_runs(CAMPAIGN / "runs.csv")).data
    notes = list(threat_notes(replace(facts_of(CAMPAIGN / "runs.csv"), checks=table)))
    failed = {note.facts["assumption"]: note for note in notes if codes([note]) == ["failed-check"]}
    assert "blocks alike" in failed and all(note.facts["p"] < 0.05 for note in failed.values())
    assert failed["blocks alike"].endswith(texts()["consequence"]["blocks alike"])


def test_what_failed_is_said_with_its_reasons(tmp_path: Path) -> None:
    runs_csv, _ = write_frames(tmp_path, *campaign())
    facts = facts_of(runs_csv)
    notes = notes_of(facts)
    failed = find_note(notes, "unsuccessful-runs")
    assert (failed.facts["runs"], failed.facts["unsuccessful"]) == (
        114,
        4,
    ) and r"Table~\ref{tab:missing}" in failed
    assert r"1 invalid (disturbed: other\_cpu\_share 0.09)" in failed
    assert find_note(notes, "speedup-baselines").facts["frameworks"]
    assert "emulated-nodes" in codes(threat_notes(facts))


def test_alike_reasons_are_one_with_ranges(tmp_path: Path) -> None:
    runs, epochs = campaign(failures={})
    for place, share in enumerate((9, 31, 12)):
        runs.loc[place, ["status", "reason"]] = [
            "invalid",
            f"disturbed: {share}% of the CPU time (more than 5%)",
        ]
    runs.loc[7, ["status", "reason"]] = ["failed", "rank 1 ended with exit status 1"]
    runs_csv, _ = write_frames(tmp_path, runs, epochs)
    failed = find_note(notes_of(facts_of(runs_csv)), "unsuccessful-runs")
    assert failed.endswith(
        r": 3 invalid (disturbed: 9 to 31\% of the CPU time (more than 5\%)); "
        "1 failed (rank 1 ended with exit status 1)."
    )


@pytest.mark.parametrize(("repeated", "new"), [(10, 0.05), (0, 0.5), (0, 0.05)])
def test_methods_name_repeated_runs_and_changed_limits(tmp_path: Path, repeated: int, new: float) -> None:
    runs, epochs = campaign(failures={})
    runs["max_other_cpu_share"] = [new] * 10 + [0.05] * (len(runs) - 10)
    runs["attempt"] = [2] * repeated + [1] * (len(runs) - repeated)
    notes = codes(notes_of(facts_of(write_frames(tmp_path, runs, epochs)[0])))
    assert ("repeated-runs" in notes) == bool(repeated) and ("changed-limit" in notes) == (new != 0.05)


def test_methods_name_constants_that_matter(tmp_path: Path) -> None:
    runs, epochs = campaign(failures={})
    facts = facts_of(write_frames(tmp_path, runs, epochs)[0])
    named = find_note(notes_of(facts), "constants").facts["levels"]
    assert {name: named[name] for name in ("optimizer", "learning_rate")} == {
        "optimizer": "sgd",
        "learning_rate": 0.05,
    }
    assert not {"schedule", "sharding", "shares", "microbatches", "model", "epochs"} & set(named)
    adam = replace(facts, runs=facts.runs.assign(optimizer="adam", precision="amp"))
    named = find_note(notes_of(adam), "constants").facts["levels"]
    assert "momentum" not in named and named["precision"] == "amp"
    assert methods_module.constant_table(facts).count(r" \\") > len(named) + 5


def test_a_fraction_says_what_it_cannot_tell_apart() -> None:
    facts = facts_of(CAMPAIGN / "runs.csv")
    screening = load_study("screening")
    design_of = find_note(notes_of(replace(facts, study=screening)), "design")
    assert screening.fraction and design_of.facts["fraction"] == screening.fraction.name()
    assert to_latex(screening.fraction.name()) in design_of and "2\\textasciicircum{}(5-1)" in design_of


def test_references_are_of_frameworks_and_of_published_data_sets() -> None:
    assert keys_of("horovod-pytorch", "pytorch", "horovod") == ["paszke2019", "sergeev2018"]
    bibliography = references({
        "cifar-10": {"citation": "A. & B, 100 %", "files": [{}], "format": "cifar-10-binary"},
        "trees": {"citation": "C and D", "folder": "/data", "format": "image-folder"},
        "synthetic": {"citation": "drawn here", "format": "patterns"},
    })  # fmt: skip
    assert (
        "@misc{data-cifar-10,\n  note = {A. \\& B, 100~\\%},\n}" in bibliography
        and "@misc{data-trees," in bibliography
        and "data-synthetic" not in bibliography
    )
    assert bibliography.count("{") == bibliography.count("}")


def test_references_hold_all_that_the_paper_cites(tmp_path: Path) -> None:
    network_csv = CAMPAIGN / "network.csv"
    folder = sources(
        tmp_path, facts_of(CAMPAIGN / "runs.csv", network_csv), CAMPAIGN / "runs.csv", network_csv
    )
    bibliography_keys = re.findall(r"^@\w+\{([^,]+),", (folder / "references.bib").read_text(), re.MULTILINE)
    written = [
        folder / f"{name}.tex" for name in ("main", "methods", "results", "threats", "reproducibility")
    ]
    source = "\n".join(file.read_text() for file in written)
    keys = {key for keys in re.findall(r"\\cite\{([^}]+)\}", source) for key in keys.split(",")}
    assert "smyth2004" in keys and keys <= set(bibliography_keys)
    named = re.findall(r"\b[A-Z][a-z]+(?: \\& [A-Z][a-z]+| et al\.)?,? (?:19|20)\d\d\b(?!-)(.{0,8})", source)
    assert named and all(after.startswith(r"~\cite{") for after in named), "a work that is named is cited"


def test_a_work_that_is_named_is_cited_once() -> None:
    source = r"moderated (Smyth 2004), by Hoefler \& Belli, 2015, and Smyth 2005."
    assert cited(source) == (
        r"moderated (Smyth 2004~\cite{smyth2004}), by Hoefler \& Belli, 2015~\cite{hoefler2015}, and Smyth 2005."
    )


def test_a_caption_begins_with_a_sentence() -> None:
    assert (
        first_sentence("Times by nodes, e.g. 0.6 core: means. The rest.")
        == "Times by nodes, e.g. 0.6 core: means"
    )


def test_without_tex_the_error_names_packages_and_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError) as refused:
        pdf.main(main=tmp_path / "main.tex", out=tmp_path / "paper.pdf", log=tmp_path / "log")
    assert (refused.value.code, refused.value.got) == ("not-installed", ["pdflatex", "bibtex"])
    assert (
        pdf.install_hint(tmp_path / "main.tex") in str(refused.value) and str(tmp_path) in refused.value.hint
    )
    assert f"apt-get install {' '.join(document.CLASSES['article'].debian)}" in pdf.install_hint(
        tmp_path / "main.tex"
    )


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """A function that writes a main.tex."""

    def write(to_latex: str) -> Path:
        (tmp_path / "main.tex").write_text(to_latex)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("\\nothing", "Undefined control sequence."),
        ("\\input{gone}", "LaTeX Error: File `gone.tex' not found."),
    ],
)
def test_a_mistake_of_the_author_is_one_line(
    tex: None, written: Callable[[str], Path], body: str, problem: str
) -> None:
    folder = written(f"\\documentclass{{article}}\n\\begin{{document}}\n{body}\n\\end{{document}}\n")
    with pytest.raises(InputError) as refused:
        pdf.compile_pdf(folder / "main.tex", folder, folder / "log")
    assert (refused.value.code, refused.value.problem) == ("tex-error", problem)
    assert refused.value.file.endswith("main.tex:3") and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("log", "code", "place"),
    [
        ("./main.tex:3: Undefined control sequence.\n", "tex-error", "main.tex:3"),
        (
            "! LaTeX Error: File `gone.sty' not found.\n\n./main.tex:2: Emergency stop.\n",
            "not-installed",
            "main.tex:2",
        ),
        ("nothing of use\n", "tex-failed", "main.tex"),
    ],
)
def test_first_error_of_a_log_has_its_place(tmp_path: Path, log: str, code: str, place: str) -> None:
    error = pdf.tex_error(log, tmp_path / "main.tex")
    assert error.code == code and error.file.endswith(place) and bool(error.hint) == (code == "not-installed")


def test_prediction_finding_is_about_cells_that_were_left_out() -> None:
    runs = read_runs(CAMPAIGN / "runs.csv")
    rows = [
        ("nothing (fit)", "law", 9, 0.001),
        ("4 nodes", "law", 5, 0.02),
        ("4 nodes", "Ernest", 5, 0.08),
        ("4 nodes", "log-linear", 0, math.nan),
        ("2 nodes", "law", 3, 0.01),
        ("all that was left out", "law", 8, 0.015),
    ]
    table = pd.DataFrame(rows, columns=["left_out", "method", "predicted", "mape"])
    evidence = Evidence(runs, {"prediction": table.assign(mape_low=math.nan, mape_high=math.nan)})
    finding = state_finding(FigureSpec(name="prediction", kind="prediction"), evidence)
    assert finding is not None and finding.facts["left_out"] == "4 nodes"
    errors = {method: error.value for method, error in finding.facts["errors"].items()}
    assert errors == pytest.approx({"law": 2.0, "Ernest": 8.0})


def test_long_means_are_in_the_supplement_only(
    quickstart_like: tuple[Facts, list[Path], list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "MAX_FLOAT_ROWS", 20)
    folder = written_paper(quickstart_like, tmp_path, quickstart_like[0])
    assert "tab:means" not in (folder / "tables.tex").read_text()
    assert "Means of all cells are in Table~S" in (folder / "results.tex").read_text()
