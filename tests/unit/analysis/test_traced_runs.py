"""Traced runs never change tables of time of a study that also has untraced runs."""

import pandas as pd
import pytest

from analysis import conditions, study
from analysis.records import read_runs, read_timing_runs, successful, timing_runs, traced
from common.notes import codes
from support.sentences import sentence, sentences
from support.synthetic import write_frames
from support.traces_made import traced_campaign


@pytest.fixture(scope="module")
def campaign() -> tuple[pd.DataFrame, pd.DataFrame]:
    runs, epochs, _ = traced_campaign()
    return runs, epochs


def test_tables_of_time_know_nothing_of_traced_runs(campaign, tmp_path):
    runs, epochs = campaign
    for name, chosen in (("both", runs), ("untraced", runs[runs["trace"] == "none"])):
        (tmp_path / name).mkdir()
        written = write_frames(tmp_path / name, chosen, epochs)
        study.main(runs=written[0], epochs=written[1], out=tmp_path / name / "tables")
    files, untraced = (sorted((tmp_path / name / "tables").iterdir()) for name in ("both", "untraced"))
    assert [file.name for file in files] == [file.name for file in untraced]
    differ = [
        written_file.name
        for written_file, plain_file in zip(files, untraced, strict=True)
        if written_file.read_bytes() != plain_file.read_bytes()
    ]
    assert differ == [
        "missing.md",
        "missing.tex",
        "notes.md",
        *(f"useful_time.{end}" for end in ("csv", "md", "tex")),
    ]
    notes, plain = ((tmp_path / name / "tables" / "notes.md").read_text() for name in ("both", "untraced"))
    note = conditions.tracing_note(read_runs(tmp_path / "both" / "runs.csv"))
    facts = sentence([note], "traced-runs").facts
    assert facts == {"runs": len(traced(runs)), "of": len(runs), "levels": ["phases"]}
    assert notes == f"{plain}\n{note}\n"
    assert "trace none" not in notes


def test_notes_name_the_traced_runs_without_phases(campaign):
    runs = campaign[0].copy()
    run_ids = traced(runs)["run_id"].iloc[:3].tolist()
    runs.loc[runs["run_id"] == run_ids[0], "without_phases"] = "attempt-1/phases.csv: lacks rank 1"
    runs.loc[runs["run_id"] == run_ids[1], "without_phases"] = "attempt-2/clocks.csv: is not there"
    runs.loc[runs["run_id"] == run_ids[2], ["status", "epoch_time_s"]] = ["failed", None]
    notes = [conditions.tracing_note(runs)]
    lost = sentence(notes, "without-phases")
    assert lost.facts["reasons"] == {
        run_ids[0]: "attempt-1/phases.csv: lacks rank 1",
        run_ids[1]: "attempt-2/clocks.csv: is not there",
        run_ids[2]: "failed",
    }
    assert lost.facts["command"] == f"./ringside repeat {run_ids[0]} --study quickstart"
    assert conditions.tracing_note(runs[runs["trace"] == "none"]) == ""


def test_untraced_runs_count_even_if_all_failed(campaign):
    runs = campaign[0].copy()
    runs.loc[runs["trace"] == "none", ["status", "epoch_time_s"]] = ["failed", None]
    assert successful(timing_runs(runs)).empty
    assert len(successful(traced(runs))) == len(runs) / 2


def test_a_study_of_traced_runs_alone_uses_them_and_says_so(campaign, tmp_path):
    all_runs, traced_runs = read_timing_runs(write_frames(tmp_path, *campaign)[0]), traced(campaign[0])
    file, _ = write_frames(tmp_path, traced_runs, campaign[1])
    assert len(read_timing_runs(file)) == len(traced_runs)
    assert conditions.ALL_TRACED in sentences([conditions.measurement_note(read_timing_runs(file))])
    assert "all-runs-traced" not in codes(sentences([conditions.measurement_note(all_runs)]))
