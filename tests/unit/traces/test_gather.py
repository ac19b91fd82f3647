"""phases.csv and trace_steps.csv have what every traced run kept, and the log says of which runs they do not
add up.
"""

import pandas as pd
import pytest

from analysis.records import traced
from common.errors import InputError
from common.notes import codes, find_note
from common.tables import read_table, write_table
from support.synthetic import write_frames
from support.traces_made import attempt, read_runs, traced_campaign, write_attempt
from traces import gather

ITEM = "pytorch-ddp.small-cnn.digits.b16.n2.s1"


@pytest.fixture
def folder(tmp_path):
    """Three traced and three untraced runs of one cell."""
    runs, epochs, intervals = traced_campaign(steps=6)
    runs = runs[runs["cell"].isin([ITEM, f"{ITEM}.trace=phases"])]
    write_frames(tmp_path, runs, epochs[epochs["run_id"].isin(runs["run_id"])])
    for run_id in traced(runs)["run_id"]:
        write_attempt(tmp_path, runs, run_id, intervals[run_id])
    return tmp_path


def gathered(folder, capsys):
    written = {"phases": "phases.csv", "steps": "trace_steps.csv"}
    options = {"runs": "runs.csv", "records": "runs", **written}
    gather.main(**{option: folder / name for option, name in options.items()})
    phases, steps = (read_table(folder / f"{name}.csv", name) for name in ("phases", "trace_steps"))
    notes = gather.summary_lines(read_runs(folder), phases)
    assert capsys.readouterr().out.splitlines() == notes
    return phases, steps, notes


def off(notes):
    """By how much the phases of a step do not add up, by replicate."""
    return {int(note.facts["run"][-1]): note.facts["share"] for note in notes if note.code == "phases-off"}


def place(folder, replicate):
    return next((folder / "runs" / f"{ITEM}.trace=phases.r{replicate}").glob("*/attempt-1"))


def test_every_traced_run_has_rows_of_every_rank(folder, capsys):
    phases, _, notes = gathered(folder, capsys)
    assert [(note.code, note.facts) for note in notes] == [("traced-runs", {"runs": 3, "with_phases": 3})]
    runs = traced(read_runs(folder))
    assert list(phases["run_id"].unique()) == runs["run_id"].tolist()
    assert (phases.groupby("run_id")["rank"].nunique() == 2).all()
    assert phases["off_share"].max() < 1e-4
    assert (phases.groupby("run_id")["key"].first() == runs.set_index("run_id")["key"]).all()
    assert set(phases["scope"]) == {"start", "step", "epoch", "communication", "path"}


def test_steps_are_those_of_the_run_in_the_middle(folder, capsys):
    _, steps, _ = gathered(folder, capsys)
    assert set(steps["run_id"]) == {f"{ITEM}.trace=phases.r2"}  # r1 is quicker, r3 slower
    assert steps["step"].nunique() == 5
    assert {"communication", "backward"} <= set(steps["phase"])


def test_a_run_that_does_not_add_up_is_named(folder, capsys):
    file = place(folder, 3) / "phases.csv"
    missing = pd.read_csv(file)
    missing[missing["phase"] != "forward"].to_csv(file, index=False)
    phases, _, notes = gathered(folder, capsys)
    assert off(notes) == {3: pytest.approx(0.25, abs=0.01)}
    assert phases.loc[phases["run_id"].str.endswith("r3"), "off_share"].iloc[0] == pytest.approx(
        0.25, abs=0.01
    )


def test_phases_are_held_against_the_epochs_clock(folder, capsys):
    """Without step times: an epoch that lasted longer than all of its steps and the barrier."""
    file = place(folder, 1) / "epochs.csv"
    reported = pd.read_csv(file)
    reported.assign(closed_time_s=reported["closed_time_s"] * 1.25).to_csv(file, index=False)
    assert off(gathered(folder, capsys)[2]) == {1: pytest.approx(0.2, abs=0.005)}


def test_and_against_the_meters_steps_where_it_took_them(folder, capsys):
    own = attempt([0.0, 1.0], epochs=6, steps=6)
    own.to_csv(place(folder, 1) / "phases.csv", index=False)
    clock = own[(own["step"] > 0) & (own["phase"] != "communication")].groupby(["epoch", "rank", "step"])
    took = (clock["end"].max() - clock["start"].min()).rename("step_time_s").reset_index()
    took.to_csv(place(folder, 1) / "steps.csv", index=False)
    assert codes(gathered(folder, capsys)[2]) == ["traced-runs"]
    took.assign(step_time_s=2 * took["step_time_s"]).to_csv(place(folder, 1) / "steps.csv", index=False)
    assert off(gathered(folder, capsys)[2]) == {1: pytest.approx(0.5, abs=0.005)}


def lost(folder, *replicates):
    """These traced runs count as without phases."""
    runs = read_runs(folder)
    is_lost = runs["run_id"].isin([f"{ITEM}.trace=phases.r{replicate}" for replicate in replicates])
    runs["without_phases"] = (
        runs["without_phases"].astype(object).where(~is_lost, "attempt-1/phases.csv: lacks rank 1")
    )
    write_table(runs.drop(columns="n_devices"), "runs", folder / "runs.csv")


def test_a_run_without_phases_is_left_out_and_named(folder, capsys):
    lost(folder, 2)
    phases, _, notes = gathered(folder, capsys)
    assert phases["run_id"].nunique() == 2
    assert find_note(notes, "traced-runs").facts == {"runs": 3, "with_phases": 2}
    named = find_note(notes, "run-without-phases").facts
    assert named == {"run": f"{ITEM}.trace=phases.r2", "why": "attempt-1/phases.csv: lacks rank 1"}


def test_without_any_the_tables_have_no_rows(folder, capsys):
    lost(folder, 1, 2, 3)
    phases, steps, _ = gathered(folder, capsys)
    assert phases.empty and steps.empty


def test_a_broken_table_of_a_run_is_one_line(folder):
    file = place(folder, 2) / "phases.csv"
    file.write_text("rank,epoch,step,phase,start,end\n0,1,1,data,2,1\n")
    with pytest.raises(InputError) as refused:
        gather.gather(read_runs(folder), folder / "runs")
    assert "attempt-1/phases.csv" in str(refused.value) and "line 2" in str(refused.value)
