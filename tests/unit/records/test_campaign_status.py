"""The state of a campaign is read without a lock and shown in lines for a terminal."""

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import InputError, exit_status
from common.files import format_utc
from common.notes import find_note
from common.shell import Unanswered
from declared.replicates import Replicates
from declared.site import load_site
from declared.study import load_study
from plan.binding import bind_results
from plan.campaign import Campaign, plan_campaign
from plan.collective_benchmarks import CollectiveBenchmarks
from plan.decisions import decision_file, rule_fields
from plan.design import Run, plan_design
from plan.timings import Timings
from ranks.worker.epoch_timer import COLUMNS
from records import status_text
from records.campaign_status import (
    CampaignStatus,
    Problem,
    TargetProgress,
    UnderWay,
    campaign_status_reader,
    group_problems,
    read_campaign_status,
)
from records.job_queue import Job
from records.next_commands import CampaignArguments, repeat_notes
from records.time_left import RecordCache, time_left_estimator
from runs import attempts, submit
from runs.machine_lock import machine_lock
from sites import disturbance, slurm
from support.recorded import content, folder_of, small_campaign

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RINGSIDE_LOCK", str(tmp_path / "machine.lock"))
    monkeypatch.setattr("time.time", lambda: NOW)


def campaign(site: str = "local", replicates: int = 2, **changes: Any) -> Campaign:
    return small_campaign(replace(load_site(site), **changes), replicates)


def record(
    campaign: Campaign, run: Run, status: str = "ok", reason: str = "", start: float = 0, lasts: float = 10
) -> None:
    """Write the record of a run that began `start` seconds after the first one."""
    folder = folder_of(campaign, run)
    folder.mkdir(parents=True)
    dates = {"started_at": format_utc(NOW - 1000 + start), "ended_at": format_utc(NOW - 1000 + start + lasts)}
    record_content = content(status=status, reason=reason or None, wall_s=lasts, **dates)
    (folder / "record.json").write_text(json.dumps(record_content))


def begin(campaign: Campaign, run: Run, epochs: int = 2, **holder: Any) -> Path:
    """Write an attempt without a record, begun 5 s ago, in which `epochs` epochs are done; return its folder."""
    attempt = attempts.create_attempt_folder(folder_of(campaign, run))
    fields = {
        "process": 1,
        "host": os.uname().nodename,
        "job": None,
        "started_at": format_utc(NOW - 5),
        **holder,
    }
    (attempt / "supervisor.json").write_text(json.dumps(fields))
    (attempt / "rank_input.json").write_text(json.dumps({"hosts": ["a-node"]}))
    (attempt / "epochs.csv").write_text(",".join(COLUMNS) + "\n" + "1\n" * epochs)
    return attempt


@contextmanager
def locked(attempt: Path) -> Iterator[None]:
    """Hold the run's lock as its supervisor does."""
    with open(attempt.with_name(".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(campaign: Campaign) -> CampaignStatus:
    return read_campaign_status(campaign, CollectiveBenchmarks(campaign), Timings(campaign), RecordCache())


def names(state: CampaignStatus) -> list[str]:
    """Return the names of the lines after the first one, without the bar."""
    lines = status_text.render(state).splitlines()[1:]
    return [
        name for line in lines if (name := line[: status_text.INDENT].strip()) and not line.startswith("[")
    ]


def test_unstarted_campaign_has_no_progress_bar() -> None:
    state = read(campaign())
    assert (state.n_planned, state.n_executable, state.done, state.n_left, state.has_begun) == (
        4,
        4,
        0,
        4,
        False,
    )
    assert state.run_command == "./ringside run"
    assert "#" not in status_text.render(state) and not {"done", "running", "snakemake"} & set(names(state))


def test_status_suggests_no_repeat_of_oom() -> None:
    arguments = CampaignArguments("x")
    assert repeat_notes(["ok", "oom"], arguments) == []
    (note,) = repeat_notes(["oom", "failed"], arguments)
    assert note.facts["command"].split()[2] == "failed" and "oom" not in note


def test_problems_are_counted_by_reason() -> None:
    measured = campaign(replicates=4)
    for number, run in enumerate(measured.runs[:3]):
        record(measured, run, "invalid", f"disturbed: {number + 6}%")
    record(measured, measured.runs[3], "failed", "rank 1 fell")
    record(measured, measured.runs[4])
    state = read(measured)
    assert state.problems == [
        Problem("failed", "rank 1 fell", 1, measured.runs[3].run_id),
        Problem("invalid", "disturbed: 6 to 8%", 3, measured.runs[0].run_id),
    ]
    assert (state.n_planned, state.done, state.n_left) == (8, 5, 3)
    assert state.statuses == {"ok": 1, "failed": 1, "invalid": 3}
    assert state.repeat_command == "./ringside repeat failed (likewise: invalid)"


def test_a_disturbed_machine_shows_while_runs_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        disturbance, "share_meter", lambda site: lambda running: {"steal": 0.2, "others": None}
    )
    monkeypatch.setattr(disturbance, "describe", lambda shares, site, runs_csv: f"{shares} at {site.name}")
    measured = campaign()
    state = campaign_status_reader(measured)()
    assert state.disturbance == "{'steal': 0.2, 'others': None} at local" and "disturbed" in names(state)
    for run in measured.runs:
        record(measured, run)
    assert campaign_status_reader(measured)().disturbance is None


def test_a_broken_record_is_not_done_and_can_be_repeated() -> None:
    measured = campaign()
    record(measured, measured.runs[0])
    for run, text in zip(
        measured.runs[1:], ("{", '{"status": "ok"}', json.dumps(content(status="zzz"))), strict=True
    ):
        record(measured, run)
        (folder_of(measured, run) / "record.json").write_text(text)
    state = read(measured)
    assert (state.done, state.n_left, state.statuses) == (1, 0, {"ok": 1, "broken": 3})
    reasons = [item.reason for item in state.problems]
    for expected in (
        "Expecting property name",
        "run_id: is missing",
        "'zzz'",
    ):  # values of JSON, and broken records
        assert any(expected in reason for reason in reasons), reasons
    assert json.loads(status_text.to_json(state))["repeat"] == "./ringside repeat broken"


def test_a_run_under_way_has_its_epoch_and_its_hosts() -> None:
    measured = campaign()
    attempt = begin(measured, measured.runs[0])
    with locked(attempt):
        state = read(measured)
    (running,) = state.under_way
    assert (running.name, running.hosts, running.epoch, running.epochs) == (
        measured.runs[0].run_id,
        ["a-node"],
        3,
        5,
    )
    assert running.seconds == pytest.approx(5) and running.since == format_utc(NOW - 5)
    assert (state.n_left, state.left_s) == (4, None) and not state.problems


def test_abandoned_attempt_is_left_to_run() -> None:
    measured = campaign()
    begin(measured, measured.runs[0])
    attempts.write_unfinished_reason(begin(measured, measured.runs[1]), "stopped by SIGTERM")
    state = read(measured)
    assert not state.under_way and state.n_left == 4
    assert [item.status for item in state.problems] == ["to run", "to run"]
    unknown, stopped = (item.reason for item in state.problems)
    assert unknown.endswith(attempts.UNKNOWN_END) and stopped.endswith("stopped by SIGTERM")


def test_old_record_does_not_count() -> None:
    measured = campaign()
    record(measured, measured.runs[0])
    folder_of(measured, measured.runs[0]).rename(folder_of(measured, measured.runs[0]).with_name("0" * 12))
    state = read(measured)
    assert (state.done, state.n_left) == (0, 4) and state.problems[0].reason.startswith("old: ")


def test_time_left_comes_from_runs_of_the_same_cells() -> None:
    measured = campaign(replicates=3)
    lasts = {measured.runs[0].cell: 10.0, measured.runs[1].cell: 30.0}
    assert len(lasts) == 2
    for number, run in enumerate(measured.runs[:4]):
        record(measured, run, start=100 * number, lasts=lasts.get(run.cell, 0))
    state = read(measured)
    gaps = [100 - lasts[run.cell] for run in measured.runs[:3]]
    expected = sum(lasts[run.cell] for run in measured.runs[4:]) + 2 * sorted(gaps)[1]
    assert state.left_s == pytest.approx(expected) == time_left_estimator(measured)(), (
        "as the line after a run tells it"
    )
    with locked(begin(measured, measured.runs[4])):
        assert read(measured).left_s == pytest.approx(expected - 5)


def test_a_campaign_ends_when_all_its_runs_are_done() -> None:
    measured = campaign(replicates=1)
    for run in measured.runs:
        record(measured, run)
    state = read(measured)
    assert state.is_complete and (state.n_planned, state.done, state.n_left, state.left_s) == (2, 2, 0, 0)


def test_infeasible_runs_are_a_separate_problem() -> None:
    state = read(campaign(frameworks=("pytorch-ddp",)))
    (problem,) = state.problems
    assert (problem.status, problem.count) == ("not here", 2) and "pytorch-single" in problem.reason
    assert (state.n_planned, state.n_executable, state.has_begun) == (4, 2, False)
    assert read(campaign(frameworks=("lbann",))).n_executable == 0


def test_absent_environments_and_data_are_named(tmp_path: Path) -> None:
    state = read(campaign(cache=tmp_path / "cache"))
    assert (state.environments, state.datasets) == (["pytorch"], ["digits"])


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that sets the answer of squeue."""
    return lambda answer: monkeypatch.setattr(slurm, "run_client", lambda *_, timeout_s: answer)


def test_queue_shows_which_jobs_and_runs_are_active(queue: Callable[[str], None]) -> None:
    measured = campaign("virtual")
    begin(measured, measured.runs[0], job="7", host="node1")
    begin(measured, measured.runs[1], job="6", host="node1")
    key = folder_of(measured, measured.runs[2]).name
    queue(
        f"7|{submit.job_name_prefix()}0|RUNNING|2026-11-21T20:32:46|node[1-3]|quickstart block 1\n"
        f"8|{submit.job_name_prefix()}0|PENDING|N/A|(Dependency)|quickstart block 2\n"
        f"9|{submit.job_name_prefix()}0|PENDING|N/A|(Dependency)|another block 2\n"
        f"10|a-uuid|PENDING|N/A|(Priority)|rule_run_wildcards_{measured.runs[2].run_id}_{key}\n"
        "11|mine|RUNNING|N/A|node1|(null)\n"
    )
    state = read(measured)
    assert [item.name for item in state.under_way] == [measured.runs[0].run_id], (
        "job 6 is not in the queue any more"
    )
    assert state.jobs is not None
    assert state.jobs == [
        Job("7", "block 1", "RUNNING", "2026-11-21T20:32:46", "node[1-3]"),
        Job("8", "block 2", "PENDING", "N/A", "Dependency"),
        Job("10", measured.runs[2].run_id, "PENDING", "N/A", "Priority"),
    ]
    (ended,) = state.problems
    assert ended.first == measured.runs[1].run_id and "node1" in ended.reason


def test_young_attempts_count_as_active_without_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: str, timeout_s: float) -> str:
        raise Unanswered("squeue: no answer within 5 s")

    monkeypatch.setattr(slurm, "run_client", silent)
    measured = campaign("virtual")
    begin(measured, measured.runs[0], job="7", host="node1")
    begin(measured, measured.runs[1], job="6", host="node1", started_at=format_utc(NOW - 10_000))
    state = read(measured)
    assert [item.name for item in state.under_way] == [measured.runs[0].run_id]
    assert state.jobs is None
    assert find_note([state.queue_note], "queue-unanswered").facts["answer"] == "squeue: no answer within 5 s"
    assert json.loads(status_text.to_json(state))["queue"] == state.queue_note


def test_queue_without_slurm_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    state = read(campaign("virtual"))
    assert (
        state.jobs is None and "squeue" in find_note([state.queue_note], "queue-unanswered").facts["answer"]
    )


def test_the_queues_of_other_schedulers_are_not_read() -> None:
    measured = campaign("virtual")
    state = read(replace(measured, site=replace(measured.site, launcher="flux")))
    assert find_note([state.queue_note], "queue-not-read").facts["see"] == "flux jobs"


def test_lines_fit_a_terminal_and_only_a_terminal_has_colours() -> None:
    measured = campaign(replicates=5)
    for number, run in enumerate(measured.runs[:8]):
        record(measured, run, "failed", f"{'x' * number} went wrong: " + "a long story " * 30)
    text = status_text.render(read(measured))
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
    assert text.count("went wrong") == status_text.MAX_LISTED == 8 - 2 and "and 2 more" in text
    coloured = status_text.render(read(measured), colour=True)
    assert (
        re.sub(
            "|".join(map(re.escape, (status_text.RED, status_text.GREEN, status_text.RESET))), "", coloured
        )
        == text
    )


def test_reasons_that_differ_in_numbers_are_grouped() -> None:
    problems = group_problems(
        [
            ("failed", "rank 1 of 3", "a"),
            ("failed", "rank 2 of 3", "b"),
            ("failed", "no", "c"),
            ("timeout", "t", "d"),
        ]
    )
    assert [(item.status, item.reason, item.count, item.first) for item in problems] == [
        ("failed", "rank 1 to 2 of 3", 2, "a"),
        ("failed", "no", 1, "c"),
        ("timeout", "t", 1, "d"),
    ]


def test_no_lock_is_taken_and_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured = campaign()
    record(measured, measured.runs[0])
    begin(measured, measured.runs[1])
    before = sorted(tmp_path.rglob("*"))

    def refuse(*_: object) -> None:
        raise AssertionError("a lock was taken")

    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr("fcntl.lockf", refuse)
    assert read(measured).done == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_holder_of_machine_lock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = campaign()
    assert read(measured).machine_locked_by is None
    with machine_lock("process 5 on here, which measures another run", print):
        state = read(measured)
        assert (
            state.machine_locked_by == "process 5 on here, which measures another run"
            and "machine" in names(state)
        )
    assert read(measured).machine_locked_by is None


def test_a_record_is_read_again_only_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = campaign()
    record(measured, measured.runs[0])
    cache = RecordCache()
    path = measured.record_paths[measured.runs[0].run_id]
    first = cache.read(path)
    monkeypatch.setattr("records.time_left.load_record", lambda _: {"status": "failed"})
    assert cache.read(path) is first
    os.utime(path, (1, 1))
    assert (cache.read(path) or {})["status"] == "failed"
    Path(path).unlink()
    assert cache.read(path) is None


def test_a_watch_ends_with_the_campaign(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = campaign(replicates=1)
    record(measured, measured.runs[0])
    paused: list[float] = []

    def sleep(seconds: float) -> None:
        paused.append(seconds)
        record(measured, measured.runs[1])

    # Only threads of this module count, since sleeping threads of other tests' trainings remain.
    monkeypatch.setattr(status_text, "time", SimpleNamespace(sleep=sleep, time=time.time))
    status_text.watch(lambda: read(measured), lambda state: f"{state.done} of {state.n_planned}")
    assert paused == [status_text.REFRESH_S]
    assert capsys.readouterr().out.split("\n\n") == ["1 of 2", "2 of 2\n"]


def test_json_keeps_keys_that_programs_read() -> None:
    state = made_up(
        jobs=[Job("7", "block 1", "RUNNING", "2026-11-21T20:32:46", "node1")],
        replication=TargetProgress({}, max_runs=10, open=True, block=0, cells={}),
    )
    content = json.loads(status_text.to_json(state))
    assert content["jobs"] == [
        {
            "number": "7",
            "what": "block 1",
            "state": "RUNNING",
            "since": "2026-11-21T20:32:46",
            "where": "node1",
        }
    ]
    assert content["precision"] == {"rule": {}, "most": 10, "open": True, "block": 0, "cells": {}}
    assert {
        "possible",
        "repeat",
        "run",
        "snakemake",
        "machine",
        "queue",
        "disturbed",
        "begun",
        "ended",
    } <= set(content)


def test_unknown_study_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(lambda: status_text.show_status("nothing")) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "config/studies/nothing.yaml" in error


def test_another_site_than_that_of_the_results_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    bind_results(Path("results/quickstart"), "quickstart", load_site("local"))
    with pytest.raises(InputError) as refused:
        status_text.campaign_reader("quickstart", "virtual")
    assert (refused.value.code, refused.value.got) == ("other-place", {"site": "local"})
    for site in ("", "local"):
        status_text.show_status("quickstart", site, as_json=True)
        assert json.loads(capsys.readouterr().out)["site"] == "local"


def test_headline_counts_usable_runs_where_some_are_not() -> None:
    measured = campaign()
    for run, outcome in zip(measured.runs, ("ok", "invalid", "ok", "ok"), strict=True):
        record(measured, run, outcome)
    assert "4 of 4 runs done, 3 usable;" in status_text.headline(read(measured))
    usable = replace(read(measured), statuses={"ok": 4})
    assert "4 of 4 runs done;" in status_text.headline(usable)


def test_submitted_campaign_is_read_at_slurm_site(
    capsys: pytest.CaptureFixture[str], queue: Callable[[str], None]
) -> None:
    queue("")
    (Path("results") / "tf-strategies-virtual" / "logs" / "submit").mkdir(parents=True)
    status_text.show_status("tf-strategies-virtual", as_json=True)
    state = json.loads(capsys.readouterr().out)
    assert (state["study"], state["site"], state["planned"], state["begun"]) == (
        "tf-strategies-virtual",
        "virtual",
        270,
        False,
    )


def test_timings_are_counted_like_benchmarks() -> None:
    """One is broken, and another one is under way."""
    study, site = load_study("found-strategies-virtual"), load_site("virtual-four")
    campaign_of_strategies = plan_campaign(study, site)
    messages, *parts = (Path(path) for path in Timings(campaign_of_strategies).record_paths.values())
    messages.parent.mkdir(parents=True)
    messages.write_text("{}")
    attempt = attempts.create_attempt_folder(parts[0].parent)
    (attempt / "rank_input.json").write_text(json.dumps({"hosts": ["a-node"]}))
    with locked(attempt):
        state = read(campaign_of_strategies)
    assert state.timings == {"planned": 1 + len(parts), "done": 1, "ok": 0} and state.has_begun
    name = parts[0].parts[-3]
    assert [(item.name, item.hosts, item.epochs) for item in state.under_way] == [
        (f"timing {name}", ["a-node"], None)
    ]
    assert "timings" in names(state) and "benchmarks" in names(state)
    assert [problem.reason.split()[0] for problem in state.problems] == ["timing"], "it is no run"


def test_an_adaptive_campaign_is_open_until_its_last_decision() -> None:
    fixed = campaign(replicates=3)
    rule = Replicates(3, 5, 0.02)
    measured = replace(fixed, study=replace(fixed.study, replicates=rule))
    measured = replace(measured, designed_runs=plan_design(measured.study, measured.site))
    assert read(fixed).replication is None
    for run in measured.runs:
        record(measured, run)
    state = read(measured)
    assert state.replication == TargetProgress(rule_fields(rule), max_runs=10, open=True, block=0, cells={})
    assert (state.n_planned, state.done, state.n_left, state.is_complete) == (6, 6, 0, False)
    first, second = dict.fromkeys(run.cell for run in measured.runs)
    cell = {"n": 3, "half_width": 0.031, "reached": "no", "refine": True, "expected": 5}
    last = {**cell, "n": 5, "refine": False}
    decisions = {
        3: {first: cell, second: {**cell, "half_width": 0.01, "reached": "yes", "refine": False}},
        4: {first: cell, second: cell},
        5: {first: last, second: {**last, "reached": "perhaps by chance"}},
    }
    decision_file(measured.results, 3).parent.mkdir(parents=True)

    def decide(block: int) -> None:
        decision = {"block": block, "rule": rule_fields(rule), "cells": decisions[block]}
        decision_file(measured.results, block).write_text(json.dumps(decision))

    decide(3)
    state = read(measured.with_current_decisions())
    assert (state.n_planned, state.done, state.n_left) == (7, 6, 1)
    assert state.replication == TargetProgress(
        rule_fields(rule), max_runs=10, open=True, block=3, cells=decisions[3]
    )
    decide(4)
    decide(5)
    for run in measured.with_current_decisions().runs:
        if not folder_of(measured, run).exists():
            record(measured, run)
    state = read(measured.with_current_decisions())
    assert (state.n_planned, state.done, state.n_left, state.is_complete) == (9, 9, 0, True)
    assert state.replication == TargetProgress(
        rule_fields(rule), max_runs=10, open=False, block=5, cells=decisions[5]
    )
    decision_file(measured.results, 5).unlink()
    progress = read(measured.with_current_decisions()).replication
    assert progress is not None and (progress.block, progress.open) == (4, False), (
        "what came of the last runs is not known"
    )


def test_number_and_percent_sign_stay_on_one_line() -> None:
    assert status_text.wrap_text("x" * (status_text.WIDTH - 2) + " 34 %") == [
        "x" * (status_text.WIDTH - 2),
        "34 %",
    ]


NO_MEASUREMENTS = {"planned": 0, "done": 0, "ok": 0}


def made_up(**changes: Any) -> CampaignStatus:
    """Return the state of a campaign of eight runs that has not begun, apart from `changes`."""
    plain: dict[str, Any] = {
        "study": "strategies", "site": "here", "n_planned": 8, "n_executable": 8, "statuses": {}, "under_way": [],
        "n_left": 8, "left_s": None, "problems": [], "repeat_command": "", "run_command": "./ringside run",
        "collective_benchmarks": NO_MEASUREMENTS, "timings": NO_MEASUREMENTS, "environments": [], "datasets": [],
        "sessions": 0, "last_session": None, "is_snakemake_running": False, "machine_locked_by": None,
        "jobs": None, "queue_note": "",
    }  # fmt: skip
    return CampaignStatus(**{**plain, **changes})


def lines(state: CampaignStatus, name: str) -> list[str]:
    """Return the contents of the lines with a name and of those that continue it."""
    contents, current = [], ""
    for line_name, text in status_text.status_lines(state):
        current = line_name or current
        contents += [text] * (current == name)
    return contents


def test_only_the_first_of_many_are_listed() -> None:
    under_way = [
        UnderWay("a.r1", ["node1", "node1", "node2"], format_utc(NOW - 5), 5.0, 3, 5),
        *(
            UnderWay(f"collective benchmark {name}", [], format_utc(NOW), 0.0, None, None)
            for name in "bcdefgh"
        ),
    ]
    job = Job("7", "block 1", "RUNNING", "2026-11-21T20:32:46", "node[1-3]")
    waiting = [Job(f"{number}", "block 2", "PENDING", "N/A", "Dependency") for number in range(9)]
    state = made_up(under_way=under_way, jobs=[job, *waiting])
    first, *_, last = lines(state, "running")
    assert first.startswith("a.r1 on node1, node2, epoch 3 of 5, since ") and last == "and 2 more"
    assert lines(state, "jobs") == ["9 pending, Dependency", "7 (block 1) runs on node[1-3] since 20:32"]
    assert lines(made_up(jobs=[]), "jobs") == ["none in the queue"]


def test_cells_that_miss_the_target_are_listed_widest_first() -> None:
    cell = {"n": 3, "half_width": 0.031, "reached": "no", "refine": True}
    cells = {
        "a": cell,
        "b": {**cell, "half_width": None, "reached": "perhaps by chance", "refine": False},
        "c": {**cell, "reached": "yes", "refine": False},
    }
    progress = TargetProgress({"until": 0.02, "at_most": 5, "contrasts": {}}, 10, True, 3, cells)
    _, *listed = lines(made_up(replication=progress), "target")
    assert listed == ["b: n = 3, no interval, perhaps by chance", "a: n = 3, within 3.1 %, gets another run"]
    assert len(lines(made_up(replication=replace(progress, block=0, cells={})), "target")) == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "8 runs, not started; start with ./ringside run"),
        ({"n_executable": 0}, "8 runs, none of which can run here"),
        (
            {"statuses": {"ok": 1}, "n_left": 7},
            "1 of 8 runs done; the time left is unknown until a run has ended",
        ),
        ({"statuses": {"ok": 8}, "n_left": 0}, "8 of 8 runs done; nothing is left to run"),
    ],
)
def test_headline_says_what_is_left(changes: dict[str, Any], text: str) -> None:
    assert status_text.headline(made_up(**changes)) == text
