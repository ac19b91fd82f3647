"""The page holds all that it shows, says what it must, and nothing in it can be made to do something by a log or a title."""

import base64
import gzip
import itertools
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

from analysis import answers
from common.errors import InputError
from common.tables import read_table, write_table
from figures.panels import NOT_DRAWN
from report import libraries, material
from report.checkout import State
from support.reports import COMMIT, PICTURES
from support.synthetic import campaign
from support.traces_made import read_runs, traced_campaign, write_attempt
from traces import gather

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


class Page(HTMLParser):
    """What an HTML page consists of: elements with attributes, scripts' texts by id, visible text."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self._inside: list[str] = []
        self._script = ""
        self.feed(file.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)
            self._script = dict(attrs).get("id") or f"{tag}-{len(self.scripts)}"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        else:
            self.text += data

    @property
    def data(self) -> dict:
        return json.loads(self.scripts["page-data"])

    def unpacked(self, name: str) -> str:
        return gzip.decompress(base64.b64decode(self.scripts[name])).decode()

    def details(self) -> list[dict]:
        names = [name for name in self.scripts if name.startswith("block-")]
        return [run for name in names for run in json.loads(self.unpacked(name))]


@pytest.fixture(scope="module")
def made(in_folder):
    one = in_folder(*campaign())
    one.leave_records()
    return one


@pytest.fixture(scope="module")
def page(made) -> Page:
    return Page(made.report())


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
    assert images[0]["alt"] == "Epoch time of every cell: markers are means."


def test_nothing_is_asked_for(page: Page) -> None:
    for tag, attributes in page.elements:
        for name in ("src", "href", "data", "poster", "action", "srcset"):
            value = attributes.get(name) or ""
            assert value.startswith(("data:", "#")) or not value, (tag, value[:80])
    styles = "".join(text for name, text in page.scripts.items() if name.startswith("style"))
    assert "@import" not in styles and "url(http" not in styles
    policy = next(
        a["content"] for tag, a in page.elements if tag == "meta" and "content" in a and "default-src" in a["content"]
    )
    assert policy.startswith("default-src 'none'") and "unsafe-eval" not in policy


def test_the_same_files_give_the_same_bytes(made, page: Page) -> None:
    assert made.report(out="again.html").read_bytes() == page.file.read_bytes()


def test_a_page_of_114_runs_is_small(page: Page) -> None:
    assert page.file.stat().st_size < 6_000_000


def test_a_large_figure_is_an_image_of_points_where_that_is_smaller(made) -> None:
    stem = made.figures[0]
    before = material.picture(stem)
    assert before.image.startswith("data:image/svg+xml") and (before.width, before.height) == (966, 280)
    svg = stem.with_suffix(".svg").read_text()
    (stem.parent / "large.svg").write_text(svg + "<!-- " + "x" * material.LARGE_SVG + " -->")
    for suffix in ("png", "caption.md"):
        shutil.copy(f"{stem}.{suffix}", stem.parent / f"large.{suffix}")
    after = material.picture(stem.parent / "large")
    assert after.image.startswith("data:image/png") and (after.width, after.height) == (before.width, before.height)


def test_a_lost_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "TABLES", "html/gone.js")
    with pytest.raises(InputError, match=r"^itables: has no html/gone\.js"):
        libraries.load()


def test_the_table_of_runs_has_every_run(page: Page, made) -> None:
    columns = [column["name"] for column in page.data["columns"]]
    assert columns[0] == "order" and columns[-1] == "run_id"
    assert {"framework", "batch_size", "nodes", "sync_every", "status", "epoch_time_s", "reason"} <= set(columns)
    assert [row[-1] for row in page.data["rows"]] == made.runs["run_id"].tolist()
    status = {row[-1]: row[columns.index("status")] for row in page.data["rows"]}
    assert status == dict(zip(made.runs["run_id"], made.runs["status"], strict=True))


def test_a_run_has_its_record_its_curves_and_its_log(page: Page, made) -> None:
    details = {run["run_id"]: run for run in page.details()}
    assert list(details) == made.runs["run_id"].tolist()
    ok = made.runs[made.runs["status"] == "ok"].iloc[0]
    run = details[ok["run_id"]]
    assert run["record"]["packages"] == {"torch": "2.13.0"}
    assert run["epochs"]["epoch"] == [1, 2, 3, 4, 5, 6] and run["epochs"]["warm_up"] == 1
    timed = run["epochs"]["epoch_time_s"][1:]
    assert sum(timed) / 5 == pytest.approx(ok["epoch_time_s"], rel=1e-5)
    assert run["log"] == "step 1\nred and plain\nlast line" and "log.txt: all of it" in run["note"]
    absent = details[made.runs.loc[made.runs["status"] == "missing", "run_id"].iloc[0]]
    assert (
        "log" not in absent
        and absent["note"] == "This run was not attempted here."
        and absent["row"]["status"] == "missing"
    )


def test_a_traced_run_has_its_phases_or_why_it_has_none(in_folder) -> None:
    """Rank 1 of two computes 1 ms longer in a step of 20 ms, in which both wait for the rest; a batch of 32 takes 1.5 times as long."""
    runs, epochs, intervals = traced_campaign(steps=4)
    cell = "pytorch-ddp.small-cnn.digits.b32.n2.s1"
    runs = runs[runs["cell"].isin([cell, f"{cell}.trace=phases"])].copy()
    whole, lost, plain = f"{cell}.trace=phases.r1", f"{cell}.trace=phases.r2", f"{cell}.r1"
    runs.loc[runs["run_id"] == lost, "without_phases"] = "attempt-1/phases.csv: lacks rank 1"
    made = in_folder(runs, epochs[epochs["run_id"].isin(runs["run_id"])], tables=["missing"])
    for run_id in (whole, lost):
        write_attempt(made.results, runs, run_id, intervals[run_id])
    every = read_runs(made.results)
    write_table(
        gather.gather(every[every["run_id"].isin([whole, lost])], made.results / "runs")[0],
        "phases",
        made.results / "phases.csv",
    )
    details = {run["run_id"]: run for run in Page(made.report()).details()}
    told = details[whole]["phases"]
    assert (told["ranks"], told["median"], told["slowest"]) == (2, 0, 1)
    assert [row[0] for row in told["step"]] == [
        "wait for data",
        "forward",
        "backward",
        "wait for the exchange",
        "metrics",
        "optimizer",
        "whole step",
    ]
    assert told["step"][2][1:] == pytest.approx([32.5, *(ms * 1.5 * 1.01 for ms in (6.5, 6, 7))], rel=0.01)
    assert told["step"][-1][1:] == pytest.approx([100, *[20 * 1.5 * 1.01] * 3], rel=0.01)
    assert told["start"][2][0] == "import" and told["start"][2][1:] == pytest.approx([2 * 1.5 * 1.01] * 2, rel=0.01)
    assert details[lost]["without_phases"] == "attempt-1/phases.csv: lacks rank 1" and "phases" not in details[lost]
    assert not {"phases", "without_phases"} & set(details[plain])


def test_an_attempt_that_was_cut_short_shows_its_log_and_why(in_folder) -> None:
    made = in_folder(*campaign(), tables=["missing"])
    row = made.runs[made.runs["status"] == "missing"].iloc[0]
    attempt = made.results / "runs" / row["run_id"] / row["key"] / "attempt-2"
    attempt.mkdir(parents=True)
    (attempt / "log.txt").write_text("so far\n")
    (attempt / "unfinished.txt").write_text("stopped by SIGTERM\n")
    details = {run["run_id"]: run for run in Page(made.report()).details()}
    assert details[row["run_id"]]["log"] == "so far"
    assert details[row["run_id"]]["note"].endswith("It left no record: stopped by SIGTERM.")


def test_a_run_under_score_p_says_where_its_trace_is(in_folder) -> None:
    made = in_folder(*campaign(), tables=["missing"])
    row = made.runs[made.runs["status"] == "ok"].iloc[0]
    anchor = (
        made.results / "runs" / row["run_id"] / row["key"] / f"attempt-{row['attempt']:.0f}" / "score-p" / "traces.otf2"
    )
    anchor.parent.mkdir(parents=True)
    anchor.touch()
    (anchor.parent.parent / "log.txt").write_text("so far\n")
    details = {run["run_id"]: run for run in Page(made.report()).details()}
    assert f"It ran under Score-P: {anchor.relative_to(Path.cwd())} opens in Vampir" in details[row["run_id"]]["note"]
    assert sum("Score-P" in run["note"] for run in details.values()) == 1


def test_failures_stand_with_reason_and_link(page: Page) -> None:
    assert "rank 1 ended with exit status 1" in page.text and "longer than 300 s" in page.text
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert any(link and unquote(link) == "#run=horovod-tensorflow.small-cnn.digits.b16.n2.s1.r2" for link in links)
    assert "pytorch-ddp.small-cnn.digits.b32.n2.s4" in page.text


def test_the_answer_has_the_numbers_of_the_tables(page: Page, made) -> None:
    from analysis import tables

    cells = tables.read(made.results / "tables" / "cells")
    fastest = cells.data.sort_values("epoch_time_s_mean")["epoch_time_s_mean"].iloc[0]
    text = " ".join(page.text.split())
    answer = text[text.index("The answer in numbers", text.index("About this page")) :][:4000]
    assert tables.number(fastest) in answer
    assert "110 of 114 runs succeeded" in answer and "Speed-up on 2 replicas" in answer


def test_the_answer_begins_with_sentences_then_the_main_figure_then_the_data(page: Page, made) -> None:
    effects = pd.read_csv(made.results / "tables" / "effects.csv")
    anova = pd.read_csv(made.results / "tables" / "anova.csv")
    every = answers.sentences(read_table(made.runs_csv, "runs"), effects, anova)
    first, more = ([str(one) for one in some] for some in answers.opening(every))
    order = [*first, "Figure 1. Epoch time of every cell", "How good the data are:", *more, "Fastest and slowest cells"]
    text = " ".join(page.text.split())
    places = [text.index(part) for part in order]
    assert places == sorted(places) and len(places) > 6
    marks = {a["title"]: a for tag, a in page.elements if tag == "a" and a.get("class") in ("good", "bad", "unknown")}
    links = [one["href"] for one in marks.values()]
    assert {"#failures", "#table-checks", "#rules"} <= set(links)
    checks = pd.read_csv(made.results / "tables" / "checks.csv").set_index("assumption")
    for name in ("normal residuals", "equal spread in all cells", "blocks alike"):
        is_good = checks.loc[name, "p"] >= 0.05
        assert marks[checks.loc[name, "verdict"]]["class"] == ("good" if is_good else "bad")


def test_what_has_no_content_is_left_out_and_told_in_one_line(in_folder) -> None:
    pictures = {**PICTURES, "energy": f"{NOT_DRAWN}no run measured energy. Replicates are independent runs."}
    page = Page(in_folder(*campaign(failures={}), pictures=pictures).report())
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert "figure-energy" not in ids and "table-missing" not in ids and "source-missing" not in page.scripts
    assert "Not drawn: energy (no run measured energy); missing (all 114 runs succeeded)." in page.text
    assert {"figure-residuals", "table-cells"} <= ids


def test_tables_are_there_with_notes_and_sources(page: Page, made) -> None:
    source = json.loads(page.unpacked("source-cells"))
    assert source["csv"] == (made.results / "tables" / "cells.csv").read_text()
    assert source["latex"] == (made.results / "tables" / "cells.tex").read_text()
    assert "In brackets the interval." in page.text


def test_how_to_reproduce_names_commit_changes_and_seeds(page: Page, made) -> None:
    assert f"Made from commit {COMMIT.commit}, without any change." in page.text
    assert "make report STUDY=quickstart SITE=local" in page.text and "20261120" in page.text
    dirty = Page(made.report(state=State(COMMIT.commit, ("a file",)), out="dirty.html"))
    assert "with changes that are not in it: a file." in dirty.text
    assert "not under version control" in Page(made.report(state=State(None), out="none.html")).text


def test_data_sets_have_licence_and_citation(page: Page) -> None:
    assert "CC BY 4.0" in page.text and "10.24432/C50P49" in page.text


def test_published_tables_alone_make_a_page(made) -> None:
    page = Page(made.report(records=str(made.results), out="published.html"))
    run = page.details()[0]
    assert "record" not in run and run["row"]["run_id"] == run["run_id"] and "where the campaign ran" in run["note"]
    assert run["epochs"]["epoch"] == [1, 2, 3, 4, 5, 6]


def hostile_campaign():
    runs, epochs = campaign()
    runs["reason"] = runs["reason"].astype(object)
    runs.loc[runs["status"] == "failed", "reason"] = HOSTILE.replace("\x00", "\x01")
    return runs, epochs


def test_hostile_text_stays_text(in_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from plan import campaign as plan_campaign

    made = in_folder(*hostile_campaign(), tables=["missing"])
    made.leave_records(lambda run_id: HOSTILE.encode() + b"\xff\xfe" + b"y" * 1000 + b"\n")
    load = plan_campaign.load_study
    monkeypatch.setattr(plan_campaign, "load_study", lambda name: replace(load(name), title=HOSTILE, question=HOSTILE))
    page = Page(made.report())
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


def test_a_missing_file_is_one_line(made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "tables", [*made.tables, made.results / "tables" / "absent"])
    with pytest.raises(InputError, match=r"absent\.csv: No such file or directory; make it: snakemake figures"):
        made.report(out="broken.html")
    assert not (made.results / "broken.html").exists()
