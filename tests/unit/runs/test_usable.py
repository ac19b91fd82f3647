"""Usable runs are counted, with the causes why others are not."""

from dataclasses import replace

import pytest

from common.notes import Note
from common.run_status import RunStatus
from declared.site import load_site
from runs import verdict
from runs.usable import find_cause, usable_runs_note


def disturbed(load: float, steal: float) -> Note:
    """Return the reason of a run at a site with limits of 5 and 2.5 % of CPU time."""
    site = replace(load_site("local"), max_other_cpu_share=0.05, max_steal_share=0.025)
    reason = verdict.misplaced_or_disturbed_reason(["a"], 1, ["a"], (load, steal), site)
    assert reason is not None
    return reason


def test_limits_of_disturbed_runs_are_those_of_their_reasons() -> None:
    load, steal = find_cause("invalid", disturbed(0.16, 0)), find_cause("invalid", disturbed(0, 0.5))
    assert (load.name, steal.name) == ("background load", "CPU steal")
    assert "5 %" in load.text and "2.5 %" in steal.text


@pytest.mark.parametrize(
    ("status", "reason", "cause"),
    [
        ("failed", "a rank was paused for 2.0 s", "failed"),
        ("oom", "out of memory on device 0: rank 1 asked for 2.1 GB", "out of memory"),
        ("timeout", None, "timed out"),
        ("missing", None, "no record"),
        ("invalid", None, "invalid"),
        ("invalid", "something new", "invalid"),
        ("invalid", "network: NCCL used sockets", "wrong network"),
        ("invalid", "a rank was paused for 2.0 s", "paused ranks"),
        ("invalid", "a rank was stopped for 2.0 s", "paused ranks"),
        ("invalid", "misplaced: ranks were on b, expected a", "misplaced ranks"),
    ],
)
def test_cause_follows_from_status_and_reason(status: str, reason: str | None, cause: str) -> None:
    assert find_cause(status, reason).name == cause


def test_only_invalid_runs_are_reported_as_invalid() -> None:
    for status in set(RunStatus) - {RunStatus.OK, RunStatus.INVALID}:
        assert find_cause(status, "disturbed").name != "invalid"


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
    reasons = (disturbed(0.16, 0), disturbed(0.2, 0).replace("5 %", "10 %"))
    note = usable_runs_note([("invalid", reason) for reason in reasons])
    assert note.facts["causes"] == {"background load": 2} and note.count("was excluded") == 2
