"""`ringside repeat` counts what it repeats; the benchmarks' summary has the same command as the runs'."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from common.errors import InputError
from common.notes import find_note
from common.run_status import RECORD_STATUSES
from common.schemas import schema
from common.text import suggest_pattern
from network.gather import summary
from plan.campaign import load_campaign
from records.next_commands import CampaignArguments, repeat_notes
from records.repeat import count_by_kind, repeat_runs, select_measurements


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (
            ["a.r1", "a.r2", "benchmark.a.n2", "benchmark.b.n2", "benchmark.b.n3"],
            "2 runs and 3 collective benchmarks",
        ),
        (["a.r1"], "1 run"),
        (["benchmark.a.n2"], "1 collective benchmark"),
    ],
)
def test_runs_and_benchmarks_are_counted_apart(names: list[str], text: str) -> None:
    assert count_by_kind(names) == text


def test_one_command_repeats_runs_and_benchmarks() -> None:
    place = {
        "collective": "all_reduce",
        "framework": "a",
        "nodes": 2,
        "ranks": 2,
        "device": "cpu",
        "bandwidth": 0,
    }
    benchmark = {**place, "status": "invalid", "reason": "disturbed: 20%"}
    notes = summary(
        pd.DataFrame([benchmark, {**benchmark, "nodes": 3, "status": "ok"}]), CampaignArguments("x")
    )
    assert find_note(notes, "collective-benchmarks").facts == {"benchmarks": 2, "ok": 1}
    assert find_note(notes, "benchmark-not-ok").facts.items() <= benchmark.items()
    assert notes[-1:] == repeat_notes(["invalid"], CampaignArguments("x"))
    assert repeat_notes(["missing", "ok"], CampaignArguments()) == []


RUNS = ["pytorch-ddp.small-cnn.digits.b16.n2.s1.r1", "pytorch-single.small-cnn.digits.b16.n1.s1.r1"]


@pytest.mark.parametrize(
    ("pattern", "suggestion"),
    [
        ("invalidd", "invalid"),
        ("*pytorch-dpp*.n2.*", "*pytorch-ddp*.n2.*"),
        (RUNS[0][:-1] + "2", RUNS[0]),
        ("*lbann*", ""),
        ("*pytorch-dpp*.n9.*", ""),
    ],
)
def test_similar_pattern_is_suggested(pattern: str, suggestion: str) -> None:
    assert suggest_pattern(pattern, RUNS, RECORD_STATUSES) == suggestion


def test_runs_out_of_memory_are_repeated_by_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    campaign = load_campaign({"study": "quickstart", "site": "local", "records": "campaign"})
    by_status = dict(zip(("oom", "failed", "ok"), campaign.record_paths, strict=False))
    for status, run_id in by_status.items():
        record = Path(campaign.record_paths[run_id])
        record.parent.mkdir(parents=True)
        content = dict.fromkeys(schema("record")["required"]) | {"status": status}
        record.write_text(json.dumps(content))
    for status, run_id in by_status.items():
        assert set(select_measurements(campaign, status)) == {run_id}


def test_unwritable_results_are_refused_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    campaign = load_campaign({"study": "quickstart", "site": "local", "records": "campaign"})
    record = Path(next(iter(campaign.record_paths.values())))
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    readable = campaign.results
    monkeypatch.setattr(os, "access", lambda path, mode, **_: mode != os.W_OK or Path(path) != readable)
    with pytest.raises(InputError) as refused:
        repeat_runs("*", "quickstart", "local", run=False)
    assert refused.value.code == "not-writable" and record.exists()
