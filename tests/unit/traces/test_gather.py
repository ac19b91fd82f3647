"""phases.csv and trace_steps.csv have what every traced run kept, and the log says of which runs they do not add up."""

import pandas as pd
import pytest

from analysis.measured import traced
from common.errors import InputError
from common.tables import read_table, write_table
from support.synthetic import write_frames
from support.traces_made import attempt, read_runs, traced_campaign, write_attempt
from traces import gather

ONE = "pytorch-ddp.small-cnn.digits.b16.n2.s1"


@pytest.fixture
def folder(tmp_path):
    """Three traced and three untraced runs of one cell."""
    runs, epochs, intervals = traced_campaign(steps=6)
    runs = runs[runs["cell"].isin([ONE, f"{ONE}.trace=phases"])]
    write_frames(tmp_path, runs, epochs[epochs["run_id"].isin(runs["run_id"])])
    for run_id in traced(runs)["run_id"]:
        write_attempt(tmp_path, runs, run_id, intervals[run_id])
    return tmp_path


def gathered(folder, capsys):
    written = {"phases": "phases.csv", "steps": "trace_steps.csv"}
    options = {"runs": "runs.csv", "records": "runs", **written}
    gather.main([text for option, name in options.items() for text in (f"--{option}", f"{folder}/{name}")])
    tables = (read_table(folder / f"{name}.csv", name) for name in ("phases", "trace_steps"))
    return *tables, capsys.readouterr().out


def place(folder, replicate):
    return next((folder / "runs" / f"{ONE}.trace=phases.r{replicate}").glob("*/attempt-1"))


def test_every_traced_run_has_rows_of_every_rank(folder, capsys):
    phases, _, said = gathered(folder, capsys)
    assert said.splitlines() == ["3 traced runs, phases of 3"]
    runs = traced(read_runs(folder))
    assert list(phases["run_id"].unique()) == runs["run_id"].tolist()
    assert (phases.groupby("run_id")["rank"].nunique() == 2).all()
    assert phases["off_share"].max() < 1e-4
    assert (phases.groupby("run_id")["key"].first() == runs.set_index("run_id")["key"]).all()
    assert set(phases["scope"]) == {"start", "step", "epoch", "exchange", "path"}


def test_steps_are_those_of_the_run_in_the_middle(folder, capsys):
    _, steps, _ = gathered(folder, capsys)
    assert set(steps["run_id"]) == {f"{ONE}.trace=phases.r2"}  # r1 is quicker, r3 slower
    assert steps["step"].nunique() == 5
    assert {"exchange", "backward"} <= set(steps["phase"])


def test_a_run_that_does_not_add_up_is_named(folder, capsys):
    file = place(folder, 3) / "phases.csv"
    lacking = pd.read_csv(file)
    lacking[lacking["phase"] != "forward"].to_csv(file, index=False)
    phases, _, said = gathered(folder, capsys)
    assert f"  {ONE}.trace=phases.r3: the phases of a step add up to 25 % more or less than its time" in said
    assert phases.loc[phases["run_id"].str.endswith("r3"), "off_share"].iloc[0] == pytest.approx(0.25, abs=0.01)


def test_phases_are_held_against_the_epochs_clock(folder, capsys):
    """Without step times: an epoch that lasted longer than all of its steps and the barrier."""
    file = place(folder, 1) / "epochs.csv"
    told = pd.read_csv(file)
    told.assign(closed_time_s=told["closed_time_s"] * 1.25).to_csv(file, index=False)
    assert "r1: the phases of a step add up to 20 % more or less" in gathered(folder, capsys)[2]


def test_where_nobody_told_an_epochs_time_steps_alone_are_compared(folder, capsys):
    """As where a program trains by itself."""
    for replicate in (1, 2, 3):
        file = place(folder, replicate) / "epochs.csv"
        pd.read_csv(file).assign(closed_time_s=None).to_csv(file, index=False)
    phases, _, said = gathered(folder, capsys)
    assert said.splitlines() == ["3 traced runs, phases of 3"] and phases["off_share"].max() < 1e-4


def test_and_against_the_meters_steps_where_it_took_them(folder, capsys):
    own = attempt([0.0, 1.0], epochs=6, steps=6)
    own.to_csv(place(folder, 1) / "phases.csv", index=False)
    clock = own[(own["step"] > 0) & (own["phase"] != "exchange")].groupby(["epoch", "rank", "step"])
    took = (clock["end"].max() - clock["start"].min()).rename("step_time_s").reset_index()
    took.to_csv(place(folder, 1) / "steps.csv", index=False)
    assert gathered(folder, capsys)[2].splitlines() == ["3 traced runs, phases of 3"]
    took.assign(step_time_s=2 * took["step_time_s"]).to_csv(place(folder, 1) / "steps.csv", index=False)
    assert "add up to 50 %" in gathered(folder, capsys)[2]


def lost(folder, *replicates):
    """These traced runs count as without phases."""
    runs = read_runs(folder)
    those = runs["run_id"].isin([f"{ONE}.trace=phases.r{replicate}" for replicate in replicates])
    runs["without_phases"] = runs["without_phases"].astype(object).where(~those, "attempt-1/phases.csv: lacks rank 1")
    write_table(runs, "runs", folder / "runs.csv")


def test_a_run_without_phases_is_left_out_and_named(folder, capsys):
    lost(folder, 2)
    phases, _, said = gathered(folder, capsys)
    assert phases["run_id"].nunique() == 2
    assert f"  {ONE}.trace=phases.r2: without phases: attempt-1/phases.csv: lacks rank 1" in said


def test_without_any_the_tables_have_no_rows(folder, capsys):
    lost(folder, 1, 2, 3)
    phases, steps, _ = gathered(folder, capsys)
    assert phases.empty and steps.empty


def test_a_broken_table_of_a_run_is_one_line(folder):
    file = place(folder, 2) / "phases.csv"
    file.write_text("rank,epoch,step,phase,start,end\n0,1,1,data,2,1\n")
    with pytest.raises(InputError, match=r"attempt-1/phases.csv: line 2: .* it ends before it starts; repeat the run"):
        gather.gather(read_runs(folder), folder / "runs")
