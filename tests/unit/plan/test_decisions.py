"""Where a study says a precision, its runs are those of the first blocks, those that were decided, and those that have a record."""

import json
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declared.site import load_site
from declared.study import Replicates, load_study
from plan.campaign import Campaign, planned
from plan.cost import Cost, measured_at, report
from plan.decisions import decided, place, rule_of

RULE = Replicates(3, 6, 0.05)
A, B = (f"pytorch-single.small-cnn.digits.b{size}.n1.s1" for size in (16, 32))


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def campaign(rule: Replicates = RULE) -> Campaign:
    """Two cells."""
    study = load_study("quickstart")
    held = {"framework": ["pytorch-single"], "nodes": [1], "batch_size": [16, 32], "sync_every": [1]}
    return planned(replace(study, factors=study.factors | held, exclude=(), replicates=rule), load_site("local"))


def decide(block: int, *refined: str, **changes: Any) -> None:
    cells = {
        cell: {"n": block, "half_width": 0.1, "reached": "no", "refine": cell in refined, "expected": 5}
        for cell in (A, B)
    }
    file = place(Path("results/quickstart"), block)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"block": block, "rule": rule_of(RULE), "cells": cells, **changes}))


def runs(here: Campaign) -> dict[str, int]:
    return dict(Counter(run.cell for run in here.runs))


def record(here: Campaign, run_id: str) -> None:
    file = Path(replace(here, study=replace(here.study, replicates=Replicates(6, 6))).records[run_id])
    file.parent.mkdir(parents=True)
    file.write_text("{}")


def test_the_first_blocks_are_certain_and_more_are_possible() -> None:
    here = campaign()
    assert (runs(here), here.open, here.blocks) == ({A: 3, B: 3}, True, [1, 2, 3, 4, 5, 6])
    assert len(here.possible) == len(here.by_id) == 12


def test_replicates_are_the_same_runs_whether_their_number_is_fixed_or_not() -> None:
    fixed, adaptive = campaign(Replicates(6, 6)), campaign()
    assert fixed.runs == fixed.possible == adaptive.possible
    assert set(adaptive.records.items()) <= set(fixed.records.items()), "with the same keys"


def test_what_is_decided_is_run_block_by_block() -> None:
    here = campaign()
    assert runs(here) == {A: 3, B: 3}
    decide(3, A)
    assert (runs(here.now()), here.now().open) == ({A: 4, B: 3}, True)
    assert runs(here) == {A: 3, B: 3}, "as it was known"
    decide(4, A, B)
    decide(5, B)
    assert (runs(here.now()), here.now().open) == ({A: 5, B: 5}, False), "after at_most nothing is decided"
    decide(6)
    assert (runs(here.now()), here.now().open) == ({A: 5, B: 5}, False), "but how precise cells are then is"
    assert [decision.block for decision in here.now().decisions] == [3, 4, 5, 6]


def test_where_no_cell_is_refined_nothing_that_was_decided_later_counts() -> None:
    decide(4, A)
    assert runs(campaign()) == {A: 3, B: 3}, "nothing led to it"
    decide(3)
    assert (runs(campaign()), campaign().open) == ({A: 3, B: 3}, False)


@pytest.mark.parametrize(
    "changes", [{"rule": {"at_least": 3}}, {"rule": rule_of(replace(RULE, until=0.04))}, {"cells": 3}]
)
def test_a_decision_by_another_rule_or_a_broken_one_is_none(changes: dict[str, Any]) -> None:
    decide(3, A, **changes)
    assert decided(Path("results/quickstart"), RULE) == [] and campaign().open


def test_what_has_a_record_is_never_left_out() -> None:
    decide(3)
    record(campaign(), f"{B}.r5")
    assert runs(campaign()) == {A: 3, B: 4}
    assert [run.replicate for run in campaign().runs if run.cell == B] == [1, 2, 3, 5]


def test_the_cost_is_told_from_to_and_what_is_expected() -> None:
    def said() -> str:
        return report(Cost(campaign(), measured_at("local"), {}))

    assert "quickstart at local: 6 to 12 runs, 2 cells in 3 blocks\n" in said()
    assert (
        "replicates by precision: a cell has 3 to 6 runs, until half the 95 % interval of its mean epoch time is 5 % or less"
        in said()
    )
    assert re.search(r"at most 12 runs, \d+ (s|min)", said())
    not_yet = (
        "how many are to be expected is told after block 3; make pilot STUDY=quickstart SITE=local tells it after two"
    )
    assert not_yet in said()
    decide(3, A)
    assert not_yet not in said()
    assert "7 to 12 runs, 2 cells in 4 blocks" in said()
    assert "expected, by what was measured up to block 3: 10 runs" in said()
    decide(4)
    assert "quickstart at local: 7 runs, 2 cells" in said() and "at most 12" not in said()


def test_cells_of_which_nothing_is_asked_are_not_counted_beyond_the_first_blocks() -> None:
    traced = campaign()
    study = replace(traced.study, factors=traced.study.factors | {"trace": ["none", "phases"]})
    here = planned(study, traced.site)
    assert (len(here.runs), len(here.most), len(here.possible)) == (12, 18, 24)
    assert "quickstart at local: 12 to 18 runs, 4 cells" in report(Cost(here, measured_at("local"), {}))
    record(here, next(run.run_id for run in here.possible if run.levels["trace"] == "phases" and run.block == 5))
    assert len(here.now().most) == 19, "what is recorded counts"
    among = replace(study, factors=study.factors | {"batch_size": [16, 32, 64]})
    among = replace(among, replicates=replace(RULE, contrasts={"batch_size": (16, 32)}))
    assert {levels["batch_size"] for levels in among.refinable} == {16, 32}


def test_a_rule_that_no_number_of_runs_up_to_at_most_can_fulfil_is_said() -> None:
    def said(at_most: int, **changes: Any) -> str:
        return report(Cost(campaign(Replicates(3, at_most, 0.05, **changes)), measured_at("local"), {}))

    assert "at_most: 8 cannot be enough: how far runs spread is known after 9 runs of 2 cells at best" in said(8)
    assert "cannot be enough" not in said(9)
    assert campaign(Replicates(3, 8, 0.05)).never_precise()[0] in said(8), "make figures says it first, too"
    pairs = {"contrasts": {"batch_size": (16, 32)}}
    assert "make pilot" in said(16) and "make pilot" not in said(16, **pairs), "which tells nothing of ratios"
    assert "is known after 17 runs" in said(16, **pairs) and "cannot be enough" not in said(17, **pairs)
    assert [RULE.known_after(cells) for cells in (1, 2, 4, 8)] == [17, 9, 5, 3]


def test_where_all_possible_runs_are_there_another_rule_leaves_nothing_to_decide() -> None:
    here = campaign()
    for run in here.possible:
        record(here, run.run_id)
    assert not here.now().open and "quickstart at local: 12 runs, 2 cells" in report(
        Cost(here.now(), measured_at("local"), {})
    )


def test_a_decision_that_a_repeated_run_will_change_is_not_the_last_word() -> None:
    here = campaign()
    for run in here.runs:
        record(here, run.run_id)
    decide(3)
    assert here.now().known() == (6, False)
    repeated = Path(here.records[f"{A}.r2"])
    later = place(here.results, 3).stat().st_mtime + 1
    os.utime(repeated, (later, later))
    assert here.now().known() == (6, True)
    assert not here.now().open, "what runs stand is known"


def test_a_pilot_counts_its_own_runs() -> None:
    pilot = campaign().pilot
    assert {run.block for run in pilot.runs} == {1, 2} and pilot.known() == (4, False)
