"""A note is the sentence that readers see together with what it states."""

import copy
import pickle

import pytest

from common.notes import Note, codes, find_note

SLOW = Note("slow-cells", "Two cells took more than 5 s.", cells=["a", "b"], limit_s=5.0)
MISSING = Note("missing-runs", "3 of 12 runs are missing.", missing=3, runs=12)


def test_note_is_its_sentence() -> None:
    assert SLOW == "Two cells took more than 5 s." and isinstance(SLOW, str)
    assert (SLOW.code, SLOW.facts) == ("slow-cells", {"cells": ["a", "b"], "limit_s": 5.0})
    assert type(SLOW + "") is str and type(" ".join([SLOW])) is str


@pytest.mark.parametrize(
    "again",
    [pickle.loads(pickle.dumps(SLOW)), copy.copy(SLOW), copy.deepcopy(SLOW)],  # noqa: S301
    ids=["pickle", "copy", "deepcopy"],
)
def test_copied_note_keeps_code_and_facts(again: Note) -> None:
    assert type(again) is Note
    assert (again, again.code, again.facts) == (SLOW, SLOW.code, SLOW.facts)


def test_deep_copy_has_facts_of_its_own() -> None:
    copied = copy.deepcopy(SLOW)
    copied.facts["cells"].append("c")
    assert SLOW.facts["cells"] == ["a", "b"]


def test_codes_leave_out_plain_text() -> None:
    assert codes([SLOW, "plain", MISSING, SLOW]) == ["slow-cells", "missing-runs", "slow-cells"]


def test_a_note_is_found_by_its_code() -> None:
    assert find_note(["plain", SLOW, MISSING], "missing-runs").facts["missing"] == 3


@pytest.mark.parametrize("notes", [[], ["missing-runs"], [SLOW], [MISSING, MISSING]])
def test_absent_or_ambiguous_note_is_an_error(notes: list[str]) -> None:
    with pytest.raises(LookupError, match="missing-runs"):
        find_note(notes, "missing-runs")
