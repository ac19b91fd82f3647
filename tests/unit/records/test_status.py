"""Where a campaign stands: what is done, under way, left and wrong, told without a lock, in lines for a terminal."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster import disturbance, slurm
from common.errors import exit_status
from common.files import utc
from declared.site import load_site
from declared.study import Replicates, load_study
from plan.campaign import Campaign
from plan.decisions import place, rule_of
from plan.design import Run, design
from plan.identity import run_key
from plan.sweeps import Sweeps
from plan.timings import Timings
from records import status
from records.standing import Standing, grouped, standing
from records.standing import observer as observed
from records.time_left import Reader, observer
from runs import attempts, submit
from runs.worker.meter import COLUMNS
from support.recorded import content

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RINGSIDE_LOCK", str(tmp_path / "machine.lock"))
    monkeypatch.setattr("time.time", lambda: NOW)


def campaign(site: str = "local", replicates: int = 2, **changes: Any) -> Campaign:
    """Two frameworks on one node, each with so many replicates."""
    study = load_study("quickstart")
    factors = study.factors | {
        "framework": ["pytorch-single", "pytorch-ddp"],
        "nodes": [1],
        "batch_size": [32],
        "sync_every": [1],
    }
    study = replace(study, factors=factors, exclude=(), replicates=Replicates(replicates, replicates))
    return Campaign(study, where := replace(load_site(site), **changes), "available", design(study, where), None)


def folder_of(campaign: Campaign, run: Run) -> Path:
    return campaign.results / "runs" / run.run_id / run_key(campaign.study, campaign.site, run)


def record(
    campaign: Campaign, run: Run, status: str = "ok", reason: str = "", start: float = 0, lasts: float = 10
) -> None:
    """Leave a record of a run that began `start` seconds after the first one."""
    folder = folder_of(campaign, run)
    folder.mkdir(parents=True)
    dates = {"started_at": utc(NOW - 1000 + start), "ended_at": utc(NOW - 1000 + start + lasts)}
    said = content(status=status, reason=reason or None, wall_s=lasts, **dates)
    (folder / "record.json").write_text(json.dumps(said))


def begin(campaign: Campaign, run: Run, epochs: int = 2, **holder: Any) -> Path:
    """Leave an attempt that has not ended, `epochs` of its epochs done, begun 5 s ago; its folder."""
    _, attempt = attempts.start(folder_of(campaign, run))
    told = {"process": 1, "host": os.uname().nodename, "job": None, "started_at": utc(NOW - 5), **holder}
    (attempt / "holder.json").write_text(json.dumps(told))
    (attempt / "spec.json").write_text(json.dumps({"hosts": ["a-node"]}))
    (attempt / "epochs.csv").write_text(",".join(COLUMNS) + "\n" + "1\n" * epochs)
    return attempt


@contextmanager
def locked(attempt: Path) -> Iterator[None]:
    """The run's lock, held as its supervisor holds it."""
    with open(attempt.with_name(".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def look(campaign: Campaign) -> Standing:
    return standing(campaign, Sweeps(campaign), Timings(campaign), Reader())


def told(campaign: Campaign) -> str:
    return status.text(look(campaign))


def test_a_campaign_that_has_not_begun_is_said_in_a_line() -> None:
    line, *rest = told(campaign()).splitlines()
    assert line == "quickstart at local: 4 runs, not begun; make figures starts it"
    assert not any(word in "\n".join(rest) for word in ("done", "running", "left", "#"))


def test_what_is_done_and_what_went_wrong_is_counted_by_reason_with_the_command_that_repeats_it() -> None:
    here = campaign(replicates=4)
    for number, run in enumerate(here.runs[:3]):
        record(here, run, "invalid", f"disturbed: {number + 6}% of the processor time went to others")
    record(here, here.runs[3], "failed", "rank 1 ended with status 1: ValueError: no")
    record(here, here.runs[4])
    found = look(here)
    assert [(each.status, each.count) for each in found.problems] == [("failed", 1), ("invalid", 3)]
    text = status.text(found)
    assert "5 of 8 runs done; 3 left" in text and "done       1 ok, 1 failed, 3 invalid" in text
    assert "failed     1 x rank 1 ended with status 1: ValueError: no" in text
    assert "invalid    3 x disturbed: 6 to 8% of the processor time went to others" in text
    assert "to repeat  make repeat RUNS=failed, or RUNS=invalid\n" in text


def test_a_machine_that_is_disturbed_is_said_while_runs_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbance, "looks", lambda site: lambda running: {"withheld": 0.2, "others": None})
    here = campaign()
    found = observed(here)()
    assert "\ndisturbed  a hypervisor withholds 20% of the processor time" in status.text(found)
    for run in here.runs:
        record(here, run)
    assert observed(here)().disturbed is None


def test_a_record_that_is_broken_is_not_done_and_told_with_the_command_that_repeats_it() -> None:
    here = campaign()
    record(here, here.runs[0])
    for run, said in zip(here.runs[1:], ("{", '{"status": "ok"}', json.dumps(content(status="zzz"))), strict=True):
        record(here, run)
        (folder_of(here, run) / "record.json").write_text(said)
    found = look(here)
    assert (found.done, found.left, found.statuses) == (1, 0, {"ok": 1, "broken": 3})
    told = status.text(found)
    assert "1 of 4 runs done" in told and "to repeat  make repeat RUNS=broken" in told
    reasons = [each.reason for each in found.problems]
    for expected in (
        "Expecting property name",
        "key 'run_id' is missing; expected",
        "status: 'zzz' is not one of ok, ",
    ):
        assert any(reason.startswith(expected) for reason in reasons), reasons
    assert json.loads(status.to_json(found))["repeat"] == "make repeat RUNS=broken"


def test_a_run_under_way_is_told_with_its_epoch_and_where_it_is() -> None:
    here = campaign()
    attempt = begin(here, here.runs[0])
    with locked(attempt):
        found = look(here)
        said = status.text(found)
    (running,) = found.under_way
    assert (running.name, running.hosts, running.epoch, running.epochs) == (here.runs[0].run_id, ["a-node"], 3, 5)
    assert running.seconds == pytest.approx(5) and found.left == 4 and not found.problems
    assert " ".join(said.split()).count(f"{here.runs[0].run_id} on a-node, epoch 3 of 5, since ") == 1
    assert "the time left is known when one run has ended" in " ".join(said.split())


def test_an_attempt_that_nobody_is_at_is_left_to_run() -> None:
    here = campaign()
    begin(here, here.runs[0])
    attempts.give_up(begin(here, here.runs[1]), "stopped by SIGTERM")
    found = look(here)
    assert not found.under_way and found.left == 4
    reasons = [each.reason for each in found.problems]
    assert reasons == [f"attempt 1 {attempts.UNKNOWN_END}", "attempt 1 stopped by SIGTERM"]


def test_a_record_of_other_settings_is_no_record() -> None:
    here = campaign()
    record(here, here.runs[0])
    folder_of(here, here.runs[0]).rename(folder_of(here, here.runs[0]).with_name("0" * 12))
    found = look(here)
    assert (found.done, found.left) == (0, 4) and found.problems[0].reason.startswith("old: measured with other")


def test_time_left_comes_from_runs_of_the_same_cells_and_the_gaps_between_them() -> None:
    here = campaign(replicates=3)
    lasts = {here.runs[0].cell: 10.0, here.runs[1].cell: 30.0}
    assert len(lasts) == 2
    for number, run in enumerate(here.runs[:4]):
        record(here, run, start=100 * number, lasts=lasts.get(run.cell, 0))
    found = look(here)
    gaps = [100 - lasts[run.cell] for run in here.runs[:3]]
    expected = sum(lasts[run.cell] for run in here.runs[4:]) + 2 * sorted(gaps)[1]
    assert found.left_s == pytest.approx(expected) == observer(here)(), "as the line after a run tells it"
    with locked(begin(here, here.runs[4])):
        assert look(here).left_s == pytest.approx(expected - 5)


def test_the_end_of_a_campaign_is_told() -> None:
    here = campaign(replicates=1)
    for run in here.runs:
        record(here, run)
    found = look(here)
    assert found.ended and found.left_s == 0
    assert "2 of 2 runs done; nothing is left to run" in status.text(found)


def test_what_the_site_cannot_do_is_told_apart() -> None:
    here = campaign(frameworks=("pytorch-ddp",))
    text = told(here)
    assert "not here   2 x site local does not have pytorch-single" in text and "not begun" in text
    assert told(campaign(frameworks=("lbann",))).startswith(
        "quickstart at local: 4 runs, none of which can run here\nnot here "
    )


def test_environments_and_data_that_are_not_there_yet_are_named(tmp_path: Path) -> None:
    text = told(campaign(cache=tmp_path / "cache"))
    assert "to build   pytorch (environments)" in text and "to prepare digits (data sets)" in text


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what squeue answers."""
    return lambda said: monkeypatch.setattr(slurm, "ask", lambda *_, patience_s: said)


def test_the_clusters_queue_tells_which_jobs_there_are_and_which_runs_live(queue: Callable[[str], None]) -> None:
    here = campaign("virtual")
    begin(here, here.runs[0], job="7", host="node1")
    begin(here, here.runs[1], job="6", host="node1")
    key = folder_of(here, here.runs[2]).name
    queue(
        f"7|{submit.job_names()}0|RUNNING|2026-11-21T20:32:46|node[1-3]|quickstart block 1\n"
        f"8|{submit.job_names()}0|PENDING|N/A|(Dependency)|quickstart block 2\n"
        f"9|{submit.job_names()}0|PENDING|N/A|(Dependency)|another block 2\n"
        f"10|a-uuid|PENDING|N/A|(Priority)|rule_run_wildcards_{here.runs[2].run_id}_{key}\n"
        "11|mine|RUNNING|N/A|node1|(null)\n"
    )
    found = look(here)
    assert [each.name for each in found.under_way] == [here.runs[0].run_id], "job 6 is not in the queue any more"
    assert found.jobs is not None
    assert [job.number for job in found.jobs] == ["7", "8", "10"]
    text = " ".join(status.text(found).split())
    assert "jobs 7 (block 1) runs on node[1-3] since 20:32 8 (block 2): pending, Dependency" in text
    assert f"10 ({here.runs[2].run_id}): pending, Priority" in text
    assert "begun on node1, has not ended, or was killed" in text


def test_a_queue_that_does_not_answer_is_said_and_the_young_are_taken_to_live(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: str, patience_s: float) -> str:
        raise slurm.Unanswered("squeue: no answer within 5 s")

    monkeypatch.setattr(slurm, "ask", silent)
    here = campaign("virtual")
    begin(here, here.runs[0], job="7", host="node1")
    begin(here, here.runs[1], job="6", host="node1", started_at=utc(NOW - 10_000))
    found = look(here)
    assert [each.name for each in found.under_way] == [here.runs[0].run_id]
    assert "jobs       the queue does not answer: squeue: no answer within 5 s" in status.text(found)


def test_where_slurm_is_not_installed_the_queue_is_said_to_be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "the queue does not answer: squeue: is not on this machine" in " ".join(told(campaign("virtual")).split())


def test_lines_fit_a_terminal_and_only_a_terminal_has_colours() -> None:
    here = campaign(replicates=5)
    for number, run in enumerate(here.runs[:8]):
        record(here, run, "failed", f"{'x' * number} went wrong: " + "a long story " * 30)
    text = told(here)
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
    assert "2 x for other reasons" in text
    assert status.text(look(here), colour=True).replace(status.RED, "").replace(status.PLAIN, "").replace(
        status.GREEN, ""
    ) == text  # fmt: skip


def test_reasons_are_alike_but_for_their_numbers() -> None:
    made = grouped(
        [("failed", "rank 1 of 3", "a"), ("failed", "rank 2 of 3", "b"), ("failed", "no", "c"), ("timeout", "t", "d")]
    )
    assert [(each.status, each.reason, each.count, each.first) for each in made] == [
        ("failed", "rank 1 to 2 of 3", 2, "a"),
        ("failed", "no", 1, "c"),
        ("timeout", "t", 1, "d"),
    ]


def test_no_lock_is_taken_and_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = campaign()
    record(here, here.runs[0])
    begin(here, here.runs[1])
    before = sorted(tmp_path.rglob("*"))

    def refuse(*_: object) -> None:
        raise AssertionError("a lock was taken")

    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr("fcntl.lockf", refuse)
    assert look(here).done == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_who_holds_the_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    here = campaign()
    assert look(here).machine is None
    with attempts.machine_lock("process 5 on here, which measures another run", print):
        assert "machine    held by process 5 on here, which measures another run" in told(here)
    assert look(here).machine is None


def test_a_record_is_read_again_only_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = campaign()
    record(here, here.runs[0])
    reader = Reader()
    path = here.records[here.runs[0].run_id]
    first = reader.read(path)
    monkeypatch.setattr("records.time_left.record_of", lambda _: {"status": "failed"})
    assert reader.read(path) is first
    os.utime(path, (1, 1))
    assert (reader.read(path) or {})["status"] == "failed"
    Path(path).unlink()
    assert reader.read(path) is None


def test_two_thousand_runs_take_less_than_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processor seconds of all that comes after the imports, so that a busy machine fails nothing."""
    study = replace(load_study("quickstart"), replicates=Replicates(72, 72))
    site = load_site("local")
    full = Campaign(study, site, "available", design(study, site), None)
    for run in full.runs[:1500]:
        record(full, run)
    start = time.process_time()
    again = Campaign(study, site, "available", design(study, site), None)
    found = look(again)
    assert status.text(found)
    assert time.process_time() - start < 1.5
    assert (found.planned, found.done) == (2016, 1500)


def test_a_watch_ends_with_the_campaign(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    here = campaign(replicates=1)
    record(here, here.runs[0])
    paused: list[float] = []

    def sleep(seconds: float) -> None:
        paused.append(seconds)
        record(here, here.runs[1])

    monkeypatch.setattr("time.sleep", sleep)
    status.watch(lambda: look(here), status.text)
    said = capsys.readouterr().out
    assert paused == [status.PAUSE_S]
    assert said.index("1 of 2 runs done") < said.index("2 of 2 runs done") and "\x1b" not in said


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    here = campaign()
    record(here, here.runs[0], "failed", "no")
    found = json.loads(status.to_json(look(here)))
    assert (found["study"], found["site"], found["done"], found["left"]) == ("quickstart", "local", 1, 3)
    assert found["problems"] == [{"status": "failed", "reason": "no", "count": 1, "first": here.runs[0].run_id}]


def test_a_study_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(lambda: status.main(["--config", "study=nothing"])) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "there is no config/studies/nothing.yaml" in said


def test_what_was_submitted_is_looked_for_at_slurms_site(
    capsys: pytest.CaptureFixture[str], queue: Callable[[str], None]
) -> None:
    queue("")
    (Path("results") / "tf-strategies-virtual" / "logs" / "submit").mkdir(parents=True)
    status.main(["--config", "study=tf-strategies-virtual"])
    assert capsys.readouterr().out.startswith("tf-strategies-virtual at virtual: 270 runs, not begun; ")


def test_timings_are_counted_and_told_as_sweeps_are() -> None:
    """One is broken, and somebody is at another one."""
    study, site = load_study("found-strategies-virtual"), load_site("virtual-four")
    there = Campaign(study, site, "available", design(study, site), None)
    messages, *parts = (Path(path) for path in Timings(there).outputs.values())
    messages.parent.mkdir(parents=True)
    messages.write_text("{}")
    _, attempt = attempts.start(parts[0].parent)
    (attempt / "spec.json").write_text(json.dumps({"hosts": ["a-node"]}))
    with locked(attempt):
        found = look(there)
    assert found.timings == {"planned": 1 + len(parts), "done": 1, "ok": 0} and found.begun
    name = parts[0].parts[-3]
    assert [(each.name, each.hosts, each.epochs) for each in found.under_way] == [(f"timing {name}", ["a-node"], None)]
    assert f"timings    1 of {1 + len(parts)} of parts and messages done, 1 not ok" in status.text(found)


def test_how_far_each_cell_is_where_a_precision_is_wanted() -> None:
    fixed = campaign(replicates=3)
    rule = Replicates(3, 5, 0.02)
    here = replace(fixed, study=replace(fixed.study, replicates=rule))
    here = replace(here, possible=design(here.study, here.site))
    for run in here.runs:
        record(here, run)
    said = " ".join(told(here).split())
    assert "6 of 6 runs done, 10 at most; which cells get more is decided when the campaign goes on" in said
    assert "precision 2 % wanted; told when the campaign goes on" in said and not look(here).ended
    one, other = dict.fromkeys(run.cell for run in here.runs)
    cell = {"n": 3, "half_width": 0.031, "reached": "no", "refine": True, "expected": 5}
    cells = {one: cell, other: {**cell, "half_width": 0.01, "reached": "yes", "refine": False}}
    file = place(here.results, 3)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"block": 3, "rule": rule_of(rule), "cells": cells}))
    text = told(here.now())
    assert "6 of 7 runs done, 10 at most; 1 left" in " ".join(text.split())
    assert "precision  1 of 2 cells within 2 % after block 3" in text
    assert f"{one}: n = 3, within 3.1 %, gets another run" in " ".join(text.split()) and f"{other}: n" not in text
    assert "precision" not in told(fixed)
    last = {**cell, "n": 5, "refine": False}
    for block, said in (
        (4, {one: cell, other: cell}),
        (5, {one: last, other: {**last, "reached": "perhaps by chance"}}),
    ):
        place(here.results, block).write_text(json.dumps({"block": block, "rule": rule_of(rule), "cells": said}))
    for run in here.now().runs:
        if not folder_of(here, run).exists():
            record(here, run)
    text = " ".join(told(here.now()).split())
    assert "9 of 9 runs done; nothing is left to run" in text and "gets another run" not in text
    assert (
        "1 of 2 cells within 2 %, 1 perhaps by chance after block 5, which is at_most: no cell gets more runs" in text
    )
    assert f"{one}: n = 5, within 3.1 %" in text and f"{other}: n = 5, within 3.1 %, perhaps by chance" in text
    place(here.results, 5).unlink()
    text = " ".join(told(here.now()).split())
    assert "after block 4; make figures says what was reached" in text and "gets another run" not in text
    found = look(here.now())
    of_ratios = replace(found.precision, rule=found.precision.rule | {"contrasts": {"framework": ["a", "b"]}})
    text = " ".join(status.text(replace(found, precision=of_ratios)).split())
    assert "ratios of 0 of 2 cells within 2 %" in text and f"{one}: n = 3, ratio within 3.1 %" in text


def test_a_number_stays_beside_its_percent_sign() -> None:
    assert status._wrapped("x" * (status.WIDTH - 2) + " 34 %") == ["x" * (status.WIDTH - 2), "34 %"]
