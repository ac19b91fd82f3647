"""The page is self-contained and complete, and no text from a log or title can run code in it."""

import itertools
import json
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

from analysis import answers, records, tables
from analysis.evidence import Evidence
from common.errors import InputError
from common.notes import find_note
from common.tables import write_table
from figures.captions import NOT_DRAWN
from report import content, libraries, make, material, quality, site_and_software, twelve_rules
from report.answer_section import build_answer_section
from report.checkout import State
from report.every_run import RECORDS_ELSEWHERE
from runs.phases import WAIT
from support.html_page import Page
from support.reports import COMMIT, PICTURES
from support.synthetic import campaign
from support.traces_made import read_runs, traced_campaign, write_attempt
from traces import gather
from traces.cells import STEP, phase_label

HOSTILE = "</script><img src=x onerror=alert(1)>&lt; \"'` \x1b[31m\x00\x07 \u202e {{ 7 * 7 }} ]]> <!--"
SECTIONS = [
    "answer",
    "design",
    "environment",
    "data",
    "rules",
    "figures",
    "tables",
    "failures",
    "runs",
    "reproduce",
    "about",
]


@pytest.fixture(scope="module")
def campaign_files(in_folder):
    files = in_folder(*campaign())
    files.leave_records()
    return files


@pytest.fixture(scope="module")
def page(campaign_files) -> Page:
    return Page(campaign_files.report())


def test_every_section_is_there_and_every_link_leads_somewhere(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) and set(SECTIONS) <= set(ids)
    run_ids = {row[-1] for row in page.data["rows"]}
    for tag, attributes in page.elements:
        target = attributes.get("href") or ""
        if tag == "a":
            assert target.startswith("#"), "nothing leads out"
            assert target[1:] in ids or unquote(target.removeprefix("#run=")) in run_ids, target


def test_headings_have_an_order_and_images_a_text(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels) if before != 1)
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    assert len(images) == 2 and all(attributes["alt"] and attributes["width"] for attributes in images)
    assert images[0]["alt"] == PICTURES["overview"].partition(" Replicates")[0]


def test_nothing_is_asked_for(page: Page) -> None:
    for tag, attributes in page.elements:
        for name in ("src", "href", "data", "poster", "action", "srcset"):
            value = attributes.get(name) or ""
            assert value.startswith(("data:", "#")) or not value, (tag, value[:80])
    styles = "".join(text for name, text in page.scripts.items() if name.startswith("style"))
    assert "@import" not in styles and "url(http" not in styles
    policy = next(
        a["content"]
        for tag, a in page.elements
        if tag == "meta" and "content" in a and "default-src" in a["content"]
    )
    assert policy.startswith("default-src 'none'") and "unsafe-eval" not in policy


def test_the_same_files_give_the_same_bytes(campaign_files, page: Page) -> None:
    assert campaign_files.report(out="again.html").read_bytes() == page.file.read_bytes()


def test_a_large_figure_is_the_smaller_of_image_and_points(campaign_files) -> None:
    stem = campaign_files.figures[0]
    before = material.read_picture(stem)
    assert before.image.startswith("data:image/svg+xml") and (before.width, before.height) == (966, 280)
    svg = stem.with_suffix(".svg").read_text()
    (stem.parent / "large.svg").write_text(svg + "<!-- " + "x" * material.LARGE_SVG_BYTES + " -->")
    for suffix in ("png", "pdf", "caption.md"):
        shutil.copy(f"{stem}.{suffix}", stem.parent / f"large.{suffix}")
    after = material.read_picture(stem.parent / "large")
    assert after.image.startswith("data:image/png") and (after.width, after.height) == (
        before.width,
        before.height,
    )


def test_a_lost_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "TABLES", "html/gone.js")
    with pytest.raises(InputError) as refused:
        libraries.load()
    assert (refused.value.code, refused.value.file, refused.value.got) == (
        "missing-file",
        "itables",
        "html/gone.js",
    )


def test_the_table_of_runs_has_every_run(page: Page, campaign_files) -> None:
    columns = [column["name"] for column in page.data["columns"]]
    assert columns[0] == "order" and columns[-1] == "run_id"
    assert {"framework", "batch_size", "nodes", "sync_every", "status", "epoch_time_s", "reason"} <= set(
        columns
    )
    assert [row[-1] for row in page.data["rows"]] == campaign_files.runs["run_id"].tolist()
    status = {row[-1]: row[columns.index("status")] for row in page.data["rows"]}
    assert status == dict(zip(campaign_files.runs["run_id"], campaign_files.runs["status"], strict=True))


def test_a_run_has_its_record_its_curves_and_its_log(page: Page, campaign_files) -> None:
    details = {run["run_id"]: run for run in page.details()}
    assert list(details) == campaign_files.runs["run_id"].tolist()
    ok = campaign_files.runs[campaign_files.runs["status"] == "ok"].iloc[0]
    run = details[ok["run_id"]]
    assert run["record"]["packages"] == {"torch": "2.13.0"}
    assert run["epochs"]["epoch"] == [1, 2, 3, 4, 5, 6] and run["epochs"]["warm_up"] == 1
    timed = run["epochs"]["epoch_time_s"][1:]
    assert sum(timed) / 5 == pytest.approx(ok["epoch_time_s"], rel=1e-5)
    assert run["log"] == "step 1\nred and plain\nlast line"
    note = campaign_files.details()[ok["run_id"]]["note"]
    assert run["note"] == note and (note.facts["file"].name, note.facts["extent"]) == ("log.txt", "whole-log")
    absent = details[campaign_files.runs.loc[campaign_files.runs["status"] == "missing", "run_id"].iloc[0]]
    assert "log" not in absent and absent["row"]["status"] == "missing"
    note = campaign_files.details()[absent["run_id"]]["note"]
    assert absent["note"] == note and note.code == "not-attempted"


def test_a_traced_run_has_its_phases_or_why_it_has_none(in_folder) -> None:
    """Rank 1 of two computes 1 ms longer in a step of 20 ms; for the rest of it both ranks wait.

    A batch of 32 takes 1.5 times as long.
    """
    runs, epochs, intervals = traced_campaign(steps=4)
    cell = "pytorch-ddp.small-cnn.digits.b32.n2.s1"
    runs = runs[runs["cell"].isin([cell, f"{cell}.trace=phases"])].copy()
    traced, lost, plain = f"{cell}.trace=phases.r1", f"{cell}.trace=phases.r2", f"{cell}.r1"
    runs.loc[runs["run_id"] == lost, "without_phases"] = "attempt-1/phases.csv: lacks rank 1"
    campaign_files = in_folder(runs, epochs[epochs["run_id"].isin(runs["run_id"])], tables=["missing"])
    for run_id in (traced, lost):
        write_attempt(campaign_files.results, runs, run_id, intervals[run_id])
    all_runs = read_runs(campaign_files.results)
    write_table(
        gather.gather(all_runs[all_runs["run_id"].isin([traced, lost])], campaign_files.results / "runs")[0],
        "phases",
        campaign_files.results / "phases.csv",
    )
    details = {run["run_id"]: run for run in Page(campaign_files.report()).details()}
    phases = details[traced]["phases"]
    assert (phases["ranks"], phases["median"], phases["slowest"]) == (2, 0, 1)
    steps = ("data", "forward", "backward", WAIT, "metrics", "optimizer", STEP)
    assert [row[0] for row in phases["step"]] == [phase_label("step", phase) for phase in steps]
    assert phases["step"][2][1:] == pytest.approx([32.5, *(ms * 1.5 * 1.01 for ms in (6.5, 6, 7))], rel=0.01)
    assert phases["step"][-1][1:] == pytest.approx([100, *[20 * 1.5 * 1.01] * 3], rel=0.01)
    assert phases["start"][2][0] == "import" and phases["start"][2][1:] == pytest.approx(
        [2 * 1.5 * 1.01] * 2, rel=0.01
    )
    assert (
        details[lost]["without_phases"] == "attempt-1/phases.csv: lacks rank 1"
        and "phases" not in details[lost]
    )
    assert not {"phases", "without_phases"} & set(details[plain])


def test_an_attempt_that_was_cut_short_shows_its_log_and_why(in_folder) -> None:
    campaign_files = in_folder(*campaign(), tables=["missing"])
    row = campaign_files.runs[campaign_files.runs["status"] == "missing"].iloc[0]
    attempt = campaign_files.results / "runs" / row["run_id"] / row["key"] / "attempt-2"
    attempt.mkdir(parents=True)
    (attempt / "log.txt").write_text("so far\n")
    (attempt / "unfinished.txt").write_text("stopped by SIGTERM\n")
    run = campaign_files.details()[row["run_id"]]
    assert run["log"] == "so far" and "stopped by SIGTERM" in run["note"]
    assert (run["note"].code, run["note"].facts["unfinished"]) == ("log", "stopped by SIGTERM")


def test_a_run_under_score_p_says_where_its_trace_is(in_folder) -> None:
    campaign_files = in_folder(*campaign(), tables=["missing"])
    row = campaign_files.runs[campaign_files.runs["status"] == "ok"].iloc[0]
    anchor = (
        campaign_files.results
        / "runs"
        / row["run_id"]
        / row["key"]
        / f"attempt-{row['attempt']:.0f}"
        / "score-p"
        / "traces.otf2"
    )
    anchor.parent.mkdir(parents=True)
    anchor.touch()
    (anchor.parent.parent / "log.txt").write_text("so far\n")
    notes = {run_id: run["note"] for run_id, run in campaign_files.details().items()}
    trace = anchor.relative_to(Path.cwd())
    assert notes[row["run_id"]].facts["score_p"] == trace and str(trace) in notes[row["run_id"]]
    assert sum(note.facts.get("score_p") is not None for note in notes.values()) == 1


def test_failures_stand_with_reason_and_link(page: Page) -> None:
    assert "rank 1 ended with exit status 1" in page.text and "longer than 300 s" in page.text
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert any(
        link and unquote(link) == "#run=horovod-tensorflow.small-cnn.digits.b16.n2.s1.r2" for link in links
    )
    assert "pytorch-ddp.small-cnn.digits.b32.n2.s4" in page.text


def test_the_answer_has_the_numbers_of_the_tables(page: Page, campaign_files) -> None:
    material = campaign_files.material()
    cells = tables.read(campaign_files.results / "tables" / "cells")
    fastest = cells.data.sort_values("epoch_time_s_mean")["epoch_time_s_mean"].iloc[0]
    section = " ".join(page.text_of("answer").split())
    assert tables.number(fastest) in section
    marks = [mark.name for mark in quality.marks(material, twelve_rules.judge_all(material))]
    facts = find_note(marks, "runs-usable").facts
    assert (facts["usable"], facts["runs"], sum(facts["causes"].values())) == (110, 114, 4)
    main = build_answer_section(material).main
    assert find_note(main, "usable-runs").facts == facts
    n_several = int(((material.ok["nodes"] > 1) & material.ok["placement"].eq("emulated")).sum())
    assert find_note(main, "emulated-nodes").facts == {"runs": n_several}
    assert find_note(marks, "nodes-emulated").facts == {"runs": n_several}
    assert all(mark in section for mark in marks)


def test_answer_is_sentences_main_figure_marks_tables(page: Page, campaign_files) -> None:
    data = {
        name: pd.read_csv(campaign_files.results / "tables" / f"{name}.csv") for name in ("effects", "anova")
    }
    material = campaign_files.material()
    first, further, _ = answers.answer_sentences(
        Evidence(records.read_runs(campaign_files.runs_csv), data),
        answers.Question(material.study.answer_factors, material.study.margin),
    )
    marks = [mark.name for mark in quality.marks(material, twelve_rules.judge_all(material))]
    section = build_answer_section(material)
    captions = [table.caption.partition(",")[0] for table in section.tables]
    sentences = [section.opening, *(sentence for _, sentence in section.paragraphs)]
    assert section.opening.startswith(find_note(first, "means"))
    assert find_note(first, "best-level") in section.opening
    assert all(note in " ".join(sentences) for note in first)
    order = [*sentences, material.pictures[0].heading, *marks, *further, *captions]
    text = " ".join(page.text_of("answer").split())
    places = [text.index(" ".join(part.split())) for part in order]
    assert places == sorted(places) and len(places) > 12


def test_names_of_tables_in_backticks_are_links() -> None:
    linked = make.link_names("See the table `cells`, table `other` & `<b>`.", {"table-cells": 3})
    assert linked == (
        'See <a href="#table-cells">Table 3</a>, table <code>other</code> &amp; <code>&lt;b&gt;</code>.'
    )


def test_significant_comparisons_asked_about_come_first(campaign_files) -> None:
    effects = campaign_files.material().tables["effects"]
    data = effects.table.data
    ordered = make.order_comparisons(effects, ["nodes"]).table.display.index
    p, factors = (data.loc[ordered, name].tolist() for name in ("p_holm", "factor"))
    n_significant = sum(value < 0.05 for value in p)
    assert max(p[:n_significant]) < 0.05 and factors[0] == factors[n_significant] == "nodes"


def test_what_has_no_content_is_left_out_with_its_reason(in_folder) -> None:
    pictures = {**PICTURES, "energy": f"{NOT_DRAWN}no run measured energy. Replicates are independent runs."}
    campaign_files = in_folder(*campaign(failures={}), pictures=pictures)
    page = Page(campaign_files.report())
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert "figure-energy" not in ids and "table-missing" not in ids and "source-missing" not in page.scripts
    left_out = campaign_files.material().left_out
    assert list(left_out) == ["energy", "table scaling", "table missing"]
    assert left_out["energy"] == "no run measured energy"
    reason = tables.read(campaign_files.results / "tables" / "missing").notes[0]
    assert reason.startswith(left_out["table missing"])
    assert content.left_out(left_out) in page.text
    assert {"figure-residuals", "table-cells"} <= ids


def test_cells_out_of_memory_are_listed_and_answered(in_folder) -> None:
    runs, epochs = campaign(replicates=2, failures={})
    is_out = runs["framework"].eq("pytorch-ddp") & runs["batch_size"].eq(64)
    runs.loc[is_out, ["status", "reason", "epoch_time_s"]] = ["oom", "out of memory on the host", None]
    campaign_files = in_folder(
        runs, epochs[~epochs["run_id"].isin(runs["run_id"][is_out])], tables=["missing"]
    )
    failures = Page(campaign_files.report()).text_of("failures")
    assert "Cells whose memory ran out: 2" in failures and "Cells without any" not in failures
    assert all(cell in failures for cell in set(runs["cell"][is_out]))
    sentences = build_answer_section(campaign_files.material()).main
    assert find_note(sentences, "out-of-memory").facts["factor"] == "framework"
    assert find_note(sentences, "usable-runs").facts["causes"] == {"out of memory": 4}


def test_tables_are_there_with_notes_and_sources(page: Page, campaign_files) -> None:
    source = json.loads(page.unpacked("source-cells"))
    assert source["csv"] == (campaign_files.results / "tables" / "cells.csv").read_text()
    notes = tables.read(campaign_files.results / "tables" / "cells").below
    assert notes and all(note in page.text for note in notes)
    assert json.loads(page.unpacked("source-runs"))["csv"] == campaign_files.runs_csv.read_text()


def test_constant_number_of_runs_is_no_column(in_folder) -> None:
    equal = in_folder(*campaign(failures={})).material().tables["cells"]
    unequal = in_folder(*campaign()).material().tables["cells"]
    assert "n" in equal.table.display and "n" not in make.page_table(equal).header
    assert "n" in make.page_table(unequal).header


def test_how_to_reproduce_names_commit_changes_and_seeds(page: Page, campaign_files) -> None:
    assert "./ringside report quickstart --site local" in page.text and "20261120" in page.text
    state = State(COMMIT.commit, ("a file",))
    note = site_and_software.reproduction(campaign_files.campaign(), None, "available", state).commit
    assert (note.code, note.facts) == ("changed-commit", {"commit": COMMIT.commit, "changed": ("a file",)})
    assert "a file" in note and note in Page(campaign_files.report(state=state, out="dirty.html")).text
    for state, code, rendered in (
        (COMMIT, "clean-commit", page),
        (State(None), "no-commit", Page(campaign_files.report(state=State(None), out="none.html"))),
    ):
        note = site_and_software.reproduction(campaign_files.campaign(), None, "available", state).commit
        assert note.code == code and note in rendered.text and (state.commit or "") in note


def test_published_tables_alone_make_a_page(campaign_files) -> None:
    page = Page(campaign_files.report(records=str(campaign_files.results), out="published.html"))
    run = page.details()[0]
    assert "record" not in run and run["row"]["run_id"] == run["run_id"] and run["note"] == RECORDS_ELSEWHERE
    assert run["epochs"]["epoch"] == [1, 2, 3, 4, 5, 6]


def hostile_campaign():
    runs, epochs = campaign()
    runs["reason"] = runs["reason"].astype(object)
    runs.loc[runs["status"] == "failed", "reason"] = HOSTILE.replace("\x00", "\x01")
    return runs, epochs


def test_hostile_text_stays_text(in_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from plan import campaign as plan_campaign

    campaign_files = in_folder(*hostile_campaign(), tables=["missing"])
    campaign_files.leave_records(lambda run_id: HOSTILE.encode() + b"\xff\xfe" + b"y" * 1000 + b"\n")
    load = plan_campaign.load_study
    monkeypatch.setattr(
        plan_campaign, "load_study", lambda name: replace(load(name), title=HOSTILE, question=HOSTILE)
    )
    page = Page(campaign_files.report())
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert [attributes["src"][:10] for tag, attributes in page.elements if tag == "img"] == ["data:image"] * 2
    raw = page.file.read_bytes()
    for character in (b"\x00", b"\x01", b"\x07", b"\x1b", "\u202e".encode()):
        assert character not in raw
    assert "alert(1)" in page.text and "{{ 7 * 7 }}" in page.text, "it is shown, as text"
    assert "<img src=x onerror=alert(1)>" in page.details()[0]["log"]


DEGENERATE = ["one run", "nothing ran", "all failed", "one cell", "one replicate", "no accuracy"]


@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_studies_have_a_page(in_folder, case: str) -> None:
    runs, epochs = campaign(replicates=1 if case == "one replicate" else 3)
    match case:
        case "one run":
            runs = runs.iloc[:1]
        case "nothing ran":
            runs = runs.drop(columns=[name for name in runs if name not in runs.columns[:33]]).assign(
                status="missing", reason="absent: has not run", epoch_time_s=None, key=None
            )
        case "all failed":
            runs = runs.assign(status="failed", reason="broken", epoch_time_s=None)
        case "one cell":
            runs = runs[runs["cell"] == runs["cell"].iloc[0]]
        case "no accuracy":
            epochs = epochs.assign(train_accuracy=None, validation_accuracy=None)
            runs = runs.assign(train_accuracy=None, validation_accuracy=None)
    epochs = epochs[epochs["run_id"].isin(runs["run_id"])]
    page = Page(in_folder(runs, epochs).report())
    assert len(page.data["rows"]) == len(runs)
    for word in ("nan", "None", "inf", "undefined", "NaN"):
        assert not re.search(rf"(?<![\w-]){word}(?![\w-])", page.text), word


def test_a_missing_file_is_one_line(campaign_files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        campaign_files, "tables", [*campaign_files.tables, campaign_files.results / "tables" / "absent"]
    )
    with pytest.raises(InputError) as refused:
        campaign_files.report(out="broken.html")
    assert refused.value.code == "missing-file" and refused.value.file.endswith("tables/absent.csv")
    assert "./ringside run" in refused.value.hint
    assert not (campaign_files.results / "broken.html").exists()
