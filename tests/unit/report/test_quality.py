"""Every mark on the quality of the data can be good and bad."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import checks, conditions
from analysis.records import read_runs
from analysis.tables import Table
from common.notes import Note
from plan.decisions import BY_CHANCE, NO, NOT_ASKED, YES
from report import quality
from report.quality import BAD, GOOD, UNKNOWN, Mark
from report.twelve_rules import MET, NOT_APPLICABLE, NOT_MET, Rule, Verdict
from support.reports import CampaignFiles
from support.synthetic import campaign, write_frames
from support.traces_made import traced_campaign

LOAD = "disturbed: 16% of the CPU time went to other processes (more than 5%)"
STEAL = "disturbed: 16% of the CPU time was taken by the hypervisor (steal) (more than 5%)"


def runs_of(*rows: tuple[str, str | None, float, float], cells: str = "ab") -> pd.DataFrame:
    """Return runs of alternating cells with status, reason and shares of CPU time."""
    data = pd.DataFrame(rows, columns=["status", "reason", "other_cpu_share", "steal_share"])
    cell_names = [cells[i % len(cells)] for i in range(len(data))]
    return data.assign(cell=cell_names, attempt=1, epoch_time_s=1.0, max_other_cpu_share=0.05)


OK = ("ok", None, 0.01, 0.0)


def check_rows(*rows: tuple[str, float, float, str]) -> pd.DataFrame:
    """Return a table of checks with assumption, p, size_percent and verdict."""
    return pd.DataFrame(rows, columns=["assumption", "p", "size_percent", "verdict"])


def rules(*outcomes: str) -> list[tuple[Rule, Verdict]]:
    verdicts = [Verdict(outcome, Note("n", "n")) for outcome in outcomes]
    return [
        (Rule(i, f"rule {i}", lambda material: verdicts[0]), verdict) for i, verdict in enumerate(verdicts)
    ]


@pytest.mark.parametrize(
    ("reached", "cells", "wide", "by_chance", "outcome"),
    [
        ((YES, NO, BY_CHANCE), 3, ["b"], ["c"], BAD),
        ((YES, NOT_ASKED, BY_CHANCE), 2, [], ["c"], UNKNOWN),
        ((YES, YES, NOT_ASKED), 2, [], [], GOOD),
    ],
)
def test_mark_counts_precise_cells(
    reached: tuple[str, ...], cells: int, wide: list[str], by_chance: list[str], outcome: str
) -> None:
    rows = pd.DataFrame({"cell": ["a", "b", "c"], "reached": reached})
    mark = quality.target_mark(Table("t", rows, rows, []))
    assert (
        mark.name.facts == {"cells": cells, "wide": wide, "by_chance": by_chance} and mark.outcome == outcome
    )
    assert all(cell in mark.detail for cell in (*wide, *by_chance)) and bool(mark.detail) == bool(
        wide or by_chance
    )


@pytest.mark.parametrize(
    ("rows", "text", "outcome"),
    [
        ([OK] * 3, "all 3 runs usable", GOOD),
        ([OK] * 2 + [("invalid", LOAD, 0.16, 0.0)], "1 of 3 runs not usable: background load", BAD),
        (
            [OK, ("failed", "x", np.nan, np.nan), *[("invalid", STEAL, 0.0, 0.16)] * 2],
            "3 of 4 runs not usable: 2 CPU steal, 1 failed",
            BAD,
        ),
    ],
)
def test_mark_names_the_causes_of_runs_that_do_not_count(
    rows: list[tuple[str, str | None, float, float]], text: str, outcome: str
) -> None:
    mark = quality.usable_mark(runs_of(*rows))
    assert (mark.name, mark.outcome) == (text, outcome)


def test_note_on_usable_runs_counts_repeated_ones() -> None:
    runs = runs_of(OK, OK, ("invalid", LOAD, 0.16, 0.0)).assign(attempt=[1, 2, 2])
    note = conditions.usable_runs_note(runs)
    assert note.facts["repeated"] == 1, "a repeated run that is invalid again is not usable"
    assert conditions.usable_runs_note(runs_of(OK)).facts["repeated"] == 0


def test_mark_counts_cells_without_data() -> None:
    bad = quality.cells_mark(runs_of(OK, ("failed", "x", 0.0, 0.0)))
    assert (bad.outcome, bad.name.facts["cells"], bad.name) == (BAD, ["b"], "1 of 2 cells without data")
    assert quality.cells_mark(runs_of(OK, OK)).outcome == GOOD
    ran_out = quality.cells_mark(runs_of(OK, ("oom", "x", 0.0, 0.0)))
    assert (ran_out.outcome, ran_out.name.facts["out_of_memory"]) == (GOOD, ["b"]), "it is a result"


def load(**shares: float) -> list[Mark]:
    """Return the marks of load if one usable run has these shares of CPU time, and an unusable run more."""
    row = ("ok", None, shares.get("other", 0.0), shares.get("steal", 0.0))
    return list(quality.load_marks(runs_of(OK, row, ("invalid", LOAD, 0.5, 0.5))))


@pytest.mark.parametrize(("name", "place"), [("other", 0), ("steal", 1)])
def test_only_usable_runs_count_as_loaded(name: str, place: int) -> None:
    bad, good = load(**{name: 0.2})[place], load()[place]
    assert (bad.outcome, good.outcome) == (BAD, GOOD)
    assert bad.name.facts == {"affected": 1, "runs": 2} and "above 5 % in 1 of 2 usable runs" in bad.name


def test_failed_checks_have_consequences() -> None:
    bad = [*load(other=0.2, steal=0.2), quality.cells_mark(runs_of(OK, ("failed", "x", 0.0, 0.0)))]
    note = quality.consequences(bad)
    assert note.facts["failed"] == ["other-cpu-share", "steal-share", "cells-measured"]
    assert note.count(";") == 1, "equal consequences are one"
    assert quality.consequences(load()).facts["failed"] == []
    drifts = [*quality.assumption_marks(check_rows((checks.NO_DRIFT, 0.01, 9.0, "slower")))]
    repeated = quality.usable_mark(runs_of(OK, OK).assign(attempt=[1, 2]))
    assert quality.REPEATED_LATER in quality.consequences([repeated, *drifts])
    assert quality.REPEATED_LATER not in quality.consequences(drifts)


def test_marks_of_runs_count_traced_ones(in_folder: Callable[..., CampaignFiles]) -> None:
    runs, epochs, _ = traced_campaign(steps=4)
    material = in_folder(runs, epochs, tables=["missing"]).material()
    assert 0 < len(material.runs) < len(material.every_run)
    counts = {mark.name.code: mark.name.facts.get("runs") for mark in quality.marks(material, [])}
    for code in ("runs-usable", "other-cpu-share", "steal-share"):
        assert counts[code] == len(material.every_run), code


@pytest.mark.parametrize(
    ("assumption", "size", "text"),
    [
        (checks.NORMAL, np.nan, "residuals not normal"),
        (checks.EQUAL_SPREAD, np.nan, "spread differs between cells"),
        (checks.NO_DRIFT, 3.21, "drift: runs get slower"),
        (checks.NO_DRIFT, -3.21, "drift: runs get faster"),
        (checks.BLOCKS_ALIKE, 7.64, "blocks differ by 7.6 %"),
        (checks.SESSIONS_ALIKE, np.nan, "sessions differ"),
        (checks.INDEPENDENT, np.nan, "runs depend on the one before"),
    ],
)
def test_mark_says_how_an_assumption_fails(assumption: str, size: float, text: str) -> None:
    outliers = (checks.NO_OUTLIERS, np.nan, np.nan, "none of 9 runs")
    bad, _ = quality.assumption_marks(check_rows((assumption, 0.01, size, "v"), outliers))
    good, _ = quality.assumption_marks(check_rows((assumption, 0.5, size, "v"), outliers))
    assert (bad.outcome, bad.name, bad.detail) == (BAD, text, "v")
    assert good.outcome == GOOD and good.name != bad.name


def test_mark_counts_outliers() -> None:
    rows = [(checks.NO_OUTLIERS, np.nan, np.nan, "2 of 9 runs"), *[(checks.OUTLIER, 0.01, 9.0, "slow")] * 2]
    (bad,), (good,) = (list(quality.assumption_marks(check_rows(*rows[:end]))) for end in (3, 1))
    assert (bad.outcome, bad.name, good.outcome) == (BAD, "2 outliers", GOOD)


def test_assumptions_that_were_not_judged_share_a_mark() -> None:
    rows = [
        (checks.NORMAL, np.nan, np.nan, "too few"),
        (checks.SESSIONS_ALIKE, np.nan, np.nan, "one session"),
    ]
    *_, mark = quality.assumption_marks(check_rows(*rows, (checks.NO_OUTLIERS, np.nan, np.nan, "none")))
    assert mark.outcome == UNKNOWN and mark.name.facts["assumptions"] == [
        checks.NORMAL,
        checks.SESSIONS_ALIKE,
    ]


def test_every_assumption_of_the_table_has_words(tmp_path: Path) -> None:
    data = checks.table(read_runs(write_frames(tmp_path, *campaign())[0])).data
    *marks, last = quality.assumption_marks(data)
    judged = {mark.name.facts["assumption"] for mark in marks}
    unknown = set(last.name.facts.get("assumptions", ()))
    first_of_others = data.index[data["assumption"] == checks.NO_OUTLIERS][0]
    assert judged | unknown | {checks.NO_OUTLIERS} == set(data["assumption"][: first_of_others + 1])


def test_mark_names_rules_that_are_not_met() -> None:
    bad, good = quality.rules_mark(rules(MET, NOT_MET, NOT_APPLICABLE)), quality.rules_mark(rules(MET, MET))
    assert (bad.outcome, good.outcome, bad.detail) == (BAD, GOOD, "rule 1")
    facts: dict[str, Any] = {"met": 1, "applicable": 2}
    assert bad.name.facts == facts and bad.name == "1 of 2 rules of benchmarking not met"


def test_load_that_was_not_recorded_has_no_mark() -> None:
    assert list(quality.load_marks(runs_of(("ok", None, np.nan, np.nan)))) == []
