"""Traced runs are other runs: where a study has both, tables of time are those of the untraced ones, byte by byte."""

import pandas as pd
import pytest

from analysis import conditions, study
from analysis.measured import read_runs, read_timed, successful, timed, traced
from common.notes import codes
from support.sentences import sentence, sentences
from support.synthetic import write_frames
from support.traces_made import traced_campaign


@pytest.fixture(scope="module")
def made() -> tuple[pd.DataFrame, pd.DataFrame]:
    runs, epochs, _ = traced_campaign()
    return runs, epochs


def test_tables_of_time_know_nothing_of_traced_runs(made, tmp_path):
    runs, epochs = made
    for name, some in (("both", runs), ("untraced", runs[runs["trace"] == "none"])):
        (tmp_path / name).mkdir()
        written = write_frames(tmp_path / name, some, epochs)
        study.main(runs=written[0], epochs=written[1], out=tmp_path / name / "tables")
    both, untraced = (sorted((tmp_path / name / "tables").iterdir()) for name in ("both", "untraced"))
    assert [file.name for file in both] == [file.name for file in untraced]
    differ = [one.name for one, other in zip(both, untraced, strict=True) if one.read_bytes() != other.read_bytes()]
    assert differ == ["missing.md", "missing.tex", "notes.md"]  # which count the runs of the design
    notes, plain = ((tmp_path / name / "tables" / "notes.md").read_text() for name in ("both", "untraced"))
    said = conditions.tracing(read_runs(tmp_path / "both" / "runs.csv"))
    facts = sentence([said], "traced-runs").facts
    assert facts == {"runs": len(traced(runs)), "of": len(runs), "levels": ["phases"]}
    assert notes == f"{plain}\n{said}\n"
    assert "trace none" not in notes


def test_notes_name_the_traced_runs_without_phases(made):
    runs = made[0].copy()
    some = traced(runs)["run_id"].iloc[:3].tolist()
    runs.loc[runs["run_id"] == some[0], "without_phases"] = "attempt-1/phases.csv: lacks rank 1"
    runs.loc[runs["run_id"] == some[1], "without_phases"] = "attempt-2/clocks.csv: is not there"
    runs.loc[runs["run_id"] == some[2], ["status", "epoch_time_s"]] = ["failed", None]
    said = [conditions.tracing(runs)]
    assert sentence(said, "traced-runs-unsuccessful").facts["status"] == {some[2]: "failed"}
    without = sentence(said, "without-phases")
    assert without.facts["reasons"] == {
        some[0]: "attempt-1/phases.csv: lacks rank 1",
        some[1]: "attempt-2/clocks.csv: is not there",
    }
    assert without.facts["command"] == f"./ringside repeat {some[0]} --study quickstart"
    assert without == (
        f"Traced, but without phases: {some[0]} (attempt-1/phases.csv: lacks rank 1), {some[1]} (attempt-2/clocks.csv: is not there); "
        f"repeat such a run: ./ringside repeat {some[0]} --study quickstart."
    )
    assert conditions.tracing(runs[runs["trace"] == "none"]) == ""


def test_untraced_ones_are_taken_even_where_only_traced_ones_succeeded(made):
    runs = made[0].copy()
    runs.loc[runs["trace"] == "none", ["status", "epoch_time_s"]] = ["failed", None]
    assert successful(timed(runs)).empty
    assert len(successful(traced(runs))) == len(runs) / 2


def test_a_study_of_traced_runs_alone_uses_them_and_says_so(made, tmp_path):
    both, only = read_timed(write_frames(tmp_path, *made)[0]), traced(made[0])
    file, _ = write_frames(tmp_path, only, made[1])
    assert len(read_timed(file)) == len(only)
    assert conditions.ALL_TRACED in sentences([conditions.setting(read_timed(file))])
    assert "all-runs-traced" not in codes(sentences([conditions.setting(both)]))
