"""make repeat says what it repeats; after the sweeps' summary no other command than after the runs'."""

import pandas as pd
import pytest

from common.errors import InputError
from common.notes import find_note
from network.gather import summary
from records import repeat
from records.repeat import counted
from records.ways import to_repeat


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.r1", "a.r2", "sweep.a.n2", "sweep.b.n2", "sweep.b.n3"], "2 runs and 3 sweeps"),
        (["a.r1"], "1 run"),
        (["sweep.a.n2"], "1 sweep"),
    ],
)
def test_runs_and_sweeps_are_counted_apart(names: list[str], said: str) -> None:
    assert counted(names) == said


def test_one_command_repeats_both() -> None:
    place = {"collective": "all_reduce", "framework": "a", "nodes": 2, "ranks": 2, "device": "cpu", "bandwidth": 0}
    sweep = {**place, "status": "invalid", "reason": "disturbed: 20%"}
    notes = summary(pd.DataFrame([sweep, {**sweep, "nodes": 3, "status": "ok"}]), "STUDY=x")
    assert find_note(notes, "sweeps").facts == {"sweeps": 2, "ok": 1}
    assert find_note(notes, "sweep-not-ok").facts.items() <= sweep.items()
    assert notes[-1:] == to_repeat(["invalid"], "STUDY=x")
    assert to_repeat(["missing", "ok"], "") == []


def test_without_a_choice_nothing_is_repeated() -> None:
    with pytest.raises(InputError) as refused:
        repeat.main(["--runs", ""])
    assert refused.value.code == "missing-option"
    assert str(refused.value) == (
        "RUNS: is not set; expected a status (ok, failed, timeout, invalid, broken) or a pattern of run_id; make repeat RUNS=invalid"
    )
