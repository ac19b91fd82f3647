"""Verdicts on the twelve rules follow from runs and tables; each rule has more than one outcome."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from declared.figure_specs import FigureSpec
from figures import captions
from report import make, twelve_rules
from report.material import Material
from report.twelve_rules import MET, NOT_APPLICABLE, NOT_MET
from support.synthetic import campaign


def material(in_folder, runs, epochs, **options) -> Material:
    return in_folder(runs, epochs, **options).material()


@pytest.fixture(scope="module")
def whole_study(in_folder) -> Material:
    return material(in_folder, *recorded(*campaign(failures={})))


def recorded(runs, epochs):
    """Return runs with complete records."""
    digests = {f"{name}_digest": name[0] * 64 for name in ("environment", "code", "data")}
    fields = {
        "started_at": [f"2026-11-21T10:{i // 60:02d}:{i % 60:02d}.000Z" for i in range(len(runs))],
        "devices": "AMD EPYC",
    }
    return runs.sort_values("order_key").assign(**digests, **fields), epochs


def outcome(number: int, study_material: Material) -> twelve_rules.Verdict:
    return twelve_rules.RULES[number - 1].judge(study_material)


def with_data(study_material: Material, name: str, **columns) -> Material:
    """Return the material with other numbers in one of its tables."""
    stage_table = study_material.tables[name]
    table = replace(stage_table.table, data=stage_table.table.data.assign(**columns))
    return replace(study_material, tables={**study_material.tables, name: replace(stage_table, table=table)})


def test_a_whole_study_meets_them_all(whole_study: Material) -> None:
    verdicts = twelve_rules.judge_all(whole_study)
    assert {rule.number: verdict.note for rule, verdict in verdicts if verdict.outcome != MET} == {}
    assert twelve_rules.summary(verdicts).facts == {"counts": {MET: 12}}
    for _, verdict in verdicts:
        assert any(letter.isdigit() for letter in verdict.note), "each has its numbers"


def test_a_verdict_links_to_what_the_page_has(whole_study: Material) -> None:
    for _, verdict in twelve_rules.judge_all(whole_study):
        linked = make.keep_valid_links(verdict, whole_study)
        assert linked.links, verdict
        for anchor, _ in linked.links:
            kind, _, name = anchor.partition("-")
            targets = {
                "table": whole_study.tables,
                "figure": {picture.name: picture for picture in whole_study.pictures},
            }.get(kind)
            assert targets is None or name in targets


def test_bounds_link_to_figures_over_nodes(whole_study: Material) -> None:
    specs = [
        FigureSpec("by_batch_size", "by_factor", x="batch_size"),
        FigureSpec("by_nodes", "by_factor", x="nodes"),
        FigureSpec("scaling", "scaling"),
    ]
    pictures = [replace(whole_study.pictures[0], name=spec.name) for spec in specs]
    verdicts = dict(twelve_rules.judge_all(replace(whole_study, pictures=pictures, specs=specs)))
    (links,) = (verdict.links for rule, verdict in verdicts.items() if rule.number == 11)
    anchors = [anchor for anchor, _ in links if anchor.startswith("figure-")]
    assert anchors == ["figure-by_nodes", "figure-scaling"]


def test_a_study_on_one_node_has_no_speedup_and_no_bound(in_folder) -> None:
    runs, epochs = recorded(*campaign(failures={}))
    single_node = material(in_folder, runs[runs["nodes"] == 1], epochs)
    for number in (1, 11):
        assert outcome(number, single_node).outcome == NOT_APPLICABLE


def test_speedups_without_a_baseline_are_counted(in_folder) -> None:
    runs, epochs = recorded(*campaign(failures={}))
    alone = (runs["nodes"] == 1) & (runs["batch_size"] == 64)
    runs.loc[alone, ["status", "epoch_time_s", "reason"]] = ["failed", None, "broken"]
    verdict = outcome(1, material(in_folder, runs, epochs))
    assert verdict.outcome == NOT_MET and verdict.note.facts == {"without": 4, "cells": 16}


def test_failures_without_a_reason_are_not_explained(whole_study: Material) -> None:
    runs = whole_study.runs.copy()
    runs.loc[runs.index[0], ["status", "reason"]] = ["failed", None]
    verdict = outcome(2, replace(whole_study, runs=runs))
    assert verdict.outcome == NOT_MET and verdict.note.facts["unexplained"] == 1
    runs.loc[runs.index[0], "reason"] = "rank 1 ended with exit status 1"
    assert outcome(2, replace(whole_study, runs=runs)).outcome == MET
    runs.loc[runs.index[0], ["status", "reason"]] = ["oom", None]
    assert outcome(2, replace(whole_study, runs=runs)).outcome == MET, "it is a result"


def test_exclusions_want_a_comment_in_the_study(whole_study: Material, tmp_path: Path) -> None:
    text = whole_study.study.file.read_text()
    silent = tmp_path / "quickstart.yaml"
    silent.write_text(text.replace("# the single-device baselines", ""))
    verdict = outcome(2, replace(whole_study, study=replace(whole_study.study, file=silent)))
    assert verdict.outcome == NOT_MET
    assert (verdict.note.facts["silent_exclusions"], verdict.note.facts["exclusions"]) == (1, 3)


def test_nodes_that_stay_unused_want_a_reason(whole_study: Material) -> None:
    assert whole_study.site is not None
    verdict = outcome(2, replace(whole_study, site=replace(whole_study.site, nodes=5)))
    assert verdict.outcome == NOT_MET and (verdict.note.facts["nodes"], verdict.note.facts["site_nodes"]) == (
        2,
        5,
    )
    assert outcome(2, replace(whole_study, site=None)).outcome == NOT_MET


@pytest.mark.parametrize(
    ("number", "table", "column"),
    [
        (3, "cells", "epoch_time_s_mean"),
        (3, "cells", "throughput_samples_s_mean"),
        (4, "speedup", "speedup"),
        (4, "effects", "ratio"),
    ],
)
def test_other_means_and_ratios_are_found(
    whole_study: Material, number: int, table: str, column: str
) -> None:
    changed = {column: whole_study.data(table)[column] * 1.0001}
    assert outcome(number, with_data(whole_study, table, **changed)).outcome == NOT_MET


def test_one_replicate_leaves_no_interval_no_test_and_no_median(in_folder) -> None:
    alone = material(in_folder, *recorded(*campaign(replicates=1, failures={})))
    for number in (5, 6, 7, 8):
        assert outcome(number, alone).outcome == NOT_MET, number


def test_a_normality_that_does_not_hold_is_still_checked(in_folder) -> None:
    runs, epochs = recorded(*campaign(replicates=8, failures={}))
    far = np.random.default_rng(1).choice(runs.index, 20, replace=False)
    runs.loc[far, "epoch_time_s"] *= 3
    verdict = outcome(6, material(in_folder, runs, epochs))
    assert (
        verdict.outcome == MET
        and verdict.note.code == "normality-checked"
        and verdict.note.facts["p"] < 0.001
    )


def test_a_median_far_from_the_mean_is_told(whole_study: Material) -> None:
    high = whole_study.data("cells")["epoch_time_s_high"]
    verdict = outcome(8, with_data(whole_study, "cells", epoch_time_s_median=high * 1.5))
    assert verdict.note.facts["outside"] == whole_study.data("cells")["cell"].tolist() and len(high) == 38


@pytest.mark.parametrize("name", sorted(twelve_rules.SETUP))
def test_records_with_gaps_do_not_list_the_setup(whole_study: Material, name: str) -> None:
    runs = whole_study.runs.copy()
    runs[name] = runs[name].astype(object)
    runs.loc[runs.index[0], name] = None
    verdict = outcome(9, replace(whole_study, runs=runs))
    assert (verdict.outcome, verdict.note.code) == (NOT_MET, "setup-incomplete")
    assert verdict.note.facts["without"] == {name: 1} and verdict.note.facts["runs"] == 114
    assert twelve_rules.SETUP[name] in verdict.note


def test_a_processor_without_a_name_is_not_a_setup(whole_study: Material) -> None:
    verdict = outcome(9, replace(whole_study, runs=whole_study.runs.assign(devices="cpu")))
    assert verdict.outcome == NOT_MET and not verdict.note.facts["is_processor_named"]
    assert verdict.note.facts["without"] == {}


def test_times_that_are_not_the_mean_of_their_epochs_are_found(whole_study: Material) -> None:
    runs = whole_study.runs.assign(epoch_time_s=whole_study.runs["epoch_time_s"] * 1.01)
    verdict = outcome(10, replace(whole_study, runs=runs))
    assert verdict.outcome == NOT_MET and verdict.note.facts["share"] == pytest.approx(0.01)
    for changed, fact in (
        (replace(whole_study, epochs=whole_study.epochs.iloc[:0]), "untimed"),
        (replace(whole_study, runs=whole_study.runs.assign(timing_scope=None)), "unscoped"),
    ):
        verdict = outcome(10, changed)
        assert verdict.outcome == NOT_MET and verdict.note.facts[fact] == len(whole_study.ok)


def test_a_caption_without_n_does_not_say_what_is_behind_a_mark(whole_study: Material) -> None:
    silent = replace(whole_study.pictures[0], caption="A figure.")
    verdict = outcome(12, replace(whole_study, pictures=[silent, *whole_study.pictures[1:]]))
    assert verdict.outcome == NOT_MET and verdict.note.facts["without"] == [silent.name]
    assert outcome(12, replace(whole_study, pictures=[])).outcome == NOT_MET


@pytest.mark.parametrize(("n_cells", "replicates"), [(2, [1]), (2, [1, 2]), (2, [1, 2, 3]), (0, [])])
def test_captions_of_figures_say_how_many_runs(
    whole_study: Material, n_cells: int, replicates: list[int]
) -> None:
    runs = whole_study.runs
    chosen = runs["cell"].isin(runs["cell"].unique()[:n_cells]) & runs["replicate"].isin(replicates)
    caption = captions.compose_caption(runs.assign(status=np.where(chosen, "ok", "failed")), "Times.")
    picture = replace(whole_study.pictures[0], caption=caption.partition("\n\n")[0], endnotes="")
    verdict = outcome(12, replace(whole_study, pictures=[picture]))
    assert verdict.outcome == MET, caption


def test_a_study_without_any_result_says_so_in_every_rule(in_folder) -> None:
    runs, epochs = campaign(failures={})
    failed = runs.assign(status="failed", reason="broken", epoch_time_s=None)
    for rule, verdict in twelve_rules.judge_all(material(in_folder, failed, epochs)):
        assert verdict.outcome in (NOT_MET, NOT_APPLICABLE) or rule.number == 2, rule
        assert verdict.note


def test_one_cell_is_compared_with_nothing(in_folder) -> None:
    runs, epochs = recorded(*campaign(failures={}))
    single_cell = material(in_folder, runs[runs["cell"] == runs["cell"].iloc[0]], epochs)
    assert outcome(7, single_cell).outcome == NOT_APPLICABLE


def test_rounds_of_a_benchmark_are_counted_in_its_notes(whole_study: Material) -> None:
    picture = replace(whole_study.pictures[0], caption="Bandwidth.", endnotes="Each has n = 5 rounds.")
    assert outcome(12, replace(whole_study, pictures=[picture])).outcome == MET
