"""Usable runs are counted, with the causes why others are not."""

from dataclasses import replace

import pytest

from common.notes import Note
from declared.site import load_site
from runs import supervise, usable
from runs.usable import (
    FAILED,
    NOT_RUN,
    OTHERWISE_INVALID,
    OUT_OF_MEMORY,
    TIMED_OUT,
    find_cause,
    usable_runs_note,
)


def disturbed(load: float, steal: float) -> Note:
    """Return the reason of a run at a site with limits of 5 and 2.5 % of CPU time."""
    site = replace(load_site("local"), max_other_cpu_share=0.05, max_steal_share=0.025)
    reason = supervise.misplaced_or_disturbed_reason(["a"], 1, ["a"], (load, steal), site)
    assert reason is not None
    return reason


def test_limits_of_disturbed_runs_are_those_of_their_reasons() -> None:
    load, steal = find_cause("invalid", disturbed(0.16, 0)), find_cause("invalid", disturbed(0, 0.5))
    assert (load.name, steal.name) == ("background load", "CPU steal")
    assert "5 %" in load.text and "2 %" in steal.text, "the reason rounds its limit"


@pytest.mark.parametrize(
    ("status", "reason", "cause"),
    [
        ("failed", "a rank was stopped for 2.0 s", FAILED),
        ("oom", "out of memory on device 0: rank 1 asked for 2.1 GB", OUT_OF_MEMORY),
        ("timeout", None, TIMED_OUT),
        ("missing", None, NOT_RUN),
        ("invalid", None, OTHERWISE_INVALID),
        ("invalid", "something new", OTHERWISE_INVALID),
        ("invalid", "network: NCCL used sockets", "wrong network"),
        ("invalid", "misplaced: ranks were on b, expected a", "misplaced ranks"),
    ],
)
def test_cause_follows_from_status_and_reason(
    status: str, reason: str | None, cause: usable.Cause | str
) -> None:
    assert cause in (find_cause(status, reason), find_cause(status, reason).name)


def test_most_frequent_cause_comes_first() -> None:
    outcomes = (
        [("ok", None)] * 5 + [("failed", "x")] + [("invalid", disturbed(0.1 * n, 0)) for n in (1, 2, 3)]
    )
    note = usable_runs_note(outcomes)
    assert note.facts == {"usable": 5, "runs": 9, "causes": {"background load": 3, "failed": 1}}
    assert note == (
        "5 of 9 runs are usable; 3 were excluded because other processes used more than 5 % of CPU time, 1 failed"
    )


def test_limits_that_changed_are_one_cause_with_two_clauses() -> None:
    reasons = (disturbed(0.16, 0), disturbed(0.2, 0).replace("5%", "10%"))
    note = usable_runs_note([("invalid", reason) for reason in reasons])
    assert note.facts["causes"] == {"background load": 2} and note.count("was excluded") == 2
