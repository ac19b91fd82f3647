"""Runs of a study with an interval target: first blocks, runs that decisions added, and runs with a record."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.notes import Note, codes, find_note
from declared.replicates import Replicates
from declared.site import load_site
from declared.study import load_study
from plan.campaign import Campaign, plan_campaign
from plan.cost import Cost, measured_at, notes, title
from plan.decisions import decision_file, read_decisions, rule_fields

RULE = Replicates(3, 6, 0.05)
A, B = (f"pytorch-single.small-cnn.digits.b{size}.n1.s1" for size in (16, 32))


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def campaign(rule: Replicates = RULE) -> Campaign:
    """Two cells."""
    study = load_study("quickstart")
    fixed_factors = {"framework": ["pytorch-single"], "nodes": [1], "batch_size": [16, 32], "sync_every": [1]}
    return plan_campaign(
        replace(study, factors=study.factors | fixed_factors, exclude=(), replicates=rule), load_site("local")
    )


def decide(block: int, *refined: str, **changes: Any) -> None:
    cells = {
        cell: {"n": block, "half_width": 0.1, "reached": "no", "refine": cell in refined, "expected": 5}
        for cell in (A, B)
    }
    file = decision_file(Path("results/quickstart"), block)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"block": block, "rule": rule_fields(RULE), "cells": cells, **changes}))


def runs(current: Campaign) -> dict[str, int]:
    return dict(Counter(run.cell for run in current.runs))


def record(current: Campaign, run_id: str) -> None:
    file = Path(
        replace(current, study=replace(current.study, replicates=Replicates(6, 6))).record_paths[run_id]
    )
    file.parent.mkdir(parents=True)
    file.write_text("{}")


def test_the_first_blocks_are_certain_and_more_are_possible() -> None:
    current = campaign()
    assert (runs(current), current.can_grow, current.blocks) == ({A: 3, B: 3}, True, [1, 2, 3, 4, 5, 6])
    assert len(current.designed_runs) == len(current.by_id) == 12


def test_what_is_decided_is_run_block_by_block() -> None:
    current = campaign()
    assert runs(current) == {A: 3, B: 3}
    decide(3, A)
    assert (runs(current.with_current_decisions()), current.with_current_decisions().can_grow) == (
        {A: 4, B: 3},
        True,
    )
    assert runs(current) == {A: 3, B: 3}, "as it was known"
    decide(4, A, B)
    decide(5, B)
    assert (runs(current.with_current_decisions()), current.with_current_decisions().can_grow) == (
        {A: 5, B: 5},
        False,
    ), "after at_most nothing is decided"
    decide(6)
    assert (runs(current.with_current_decisions()), current.with_current_decisions().can_grow) == (
        {A: 5, B: 5},
        False,
    ), "but how precise cells are then is"
    assert [decision.block for decision in current.with_current_decisions().decisions] == [3, 4, 5, 6]


def test_later_decisions_are_void_if_no_cell_is_refined() -> None:
    decide(4, A)
    assert runs(campaign()) == {A: 3, B: 3}, "nothing led to it"
    decide(3)
    assert (runs(campaign()), campaign().can_grow) == ({A: 3, B: 3}, False)


@pytest.mark.parametrize(
    "changes", [{"rule": {"at_least": 3}}, {"rule": rule_fields(replace(RULE, until=0.04))}, {"cells": 3}]
)
def test_a_decision_by_another_rule_or_a_broken_one_is_none(changes: dict[str, Any]) -> None:
    decide(3, A, **changes)
    assert read_decisions(Path("results/quickstart"), RULE) == [] and campaign().can_grow


def test_what_has_a_record_is_never_left_out() -> None:
    decide(3)
    record(campaign(), f"{B}.r5")
    assert runs(campaign()) == {A: 3, B: 4}
    assert [run.replicate for run in campaign().runs if run.cell == B] == [1, 2, 3, 5]


def test_the_cost_is_told_from_to_and_what_is_expected() -> None:
    def cost() -> Cost:
        return Cost(campaign(), measured_at("local"))

    assert title(cost()).facts == {"runs": 6, "most": 12, "cells": 2, "blocks": 3}
    state = notes(cost())
    assert find_note(state, "replicates-by-precision").facts == {"rule": RULE, "open": True}
    at_most = find_note(state, "at-most").facts
    assert at_most["runs"] == 12 and at_most["total_s"] > find_note(state, "total").facts["total_s"]
    assert find_note(state, "expected-later").facts == {"block": 3}
    decide(3, A)
    state = notes(cost())
    assert title(cost()).facts == {"runs": 7, "most": 12, "cells": 2, "blocks": 4}
    assert "expected-later" not in codes(state)
    expected = find_note(state, "expected").facts
    assert (expected["block"], expected["runs"]) == (3, 10)
    decide(4)
    assert title(cost()).facts["runs"] == title(cost()).facts["most"] == 7 and "at-most" not in codes(
        notes(cost())
    )


def test_cells_without_a_target_get_only_the_first_blocks() -> None:
    traced = campaign()
    study = replace(traced.study, factors=traced.study.factors | {"trace": ["none", "phases"]})
    current = plan_campaign(study, traced.site)
    assert (len(current.runs), len(current.max_runs), len(current.designed_runs)) == (12, 18, 24)
    counted = title(Cost(current, measured_at("local"))).facts
    assert (counted["runs"], counted["most"], counted["cells"]) == (12, 18, 4)
    record(
        current,
        next(
            run.run_id for run in current.designed_runs if run.levels["trace"] == "phases" and run.block == 5
        ),
    )
    assert len(current.with_current_decisions().max_runs) == 19, "what is recorded counts"
    limit = replace(study, factors=study.factors | {"batch_size": [16, 32, 64]})
    limit = replace(limit, replicates=replace(RULE, contrasts={"batch_size": (16, 32)}))
    assert {levels["batch_size"] for levels in limit.refinable} == {16, 32}


def test_rule_that_cannot_be_fulfilled_is_reported() -> None:
    def state(at_most: int, **changes: Any) -> list[Note]:
        return notes(Cost(campaign(Replicates(3, at_most, 0.05, **changes)), measured_at("local")))

    never = find_note(state(8), "never-precise")
    assert never.facts == {"at_most": 8, "known_after": 9, "cells": 2}
    assert "never-precise" not in codes(state(9))
    assert campaign(Replicates(3, 8, 0.05)).unreachable_target() == [never], (
        "./ringside run says it first, too"
    )
    pairs = {"contrasts": {"batch_size": (16, 32)}}
    assert find_note(state(16, **pairs), "never-precise").facts["known_after"] == 17
    assert "never-precise" not in codes(state(17, **pairs))
    assert [RULE.known_after(cells) for cells in (1, 2, 4, 8)] == [17, 9, 5, 3]


def test_decision_is_not_final_while_a_run_is_repeated() -> None:
    current = campaign()
    for run in current.runs:
        record(current, run.run_id)
    decide(3)
    assert current.with_current_decisions().count_runs() == (6, False)
    repeated = Path(current.record_paths[f"{A}.r2"])
    later = decision_file(current.results, 3).stat().st_mtime + 1
    os.utime(repeated, (later, later))
    assert current.with_current_decisions().count_runs() == (6, True)
    assert not current.with_current_decisions().can_grow, "what runs stand is known"


def test_a_pilot_counts_its_own_runs() -> None:
    pilot = campaign().pilot
    assert {run.block for run in pilot.runs} == {1, 2} and pilot.count_runs() == (4, False)


def test_decisions_in_the_older_folder_are_read() -> None:
    decide(3, A)
    Path("results/quickstart/replication").rename("results/quickstart/precision")
    assert runs(campaign()) == {A: 4, B: 3}
    decide(4)
    assert [decision.block for decision in campaign().decisions] == [3, 4]
