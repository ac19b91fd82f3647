"""A line is printed when a run ends, and equal failures halt the campaign."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from common.errors import InputError
from common.notes import codes
from runs.progress import CampaignProgress, Interruption, count_usable, filter_log, print_planned_search
from runs.session import SESSION_VARIABLE, raise_if_halted


def pass_error(progress: CampaignProgress, **fields: Any) -> bool:
    """Pass the error of a job through the filter of Snakemake's log, and return whether it is kept."""
    event = {"jobid": 1, "rule_name": "run", "rule_msg": "it FAILED", "aux": {}, "log": [], **fields}
    return filter_log(progress, logging.makeLogRecord({"event": LogEvent.JOB_ERROR, **event}))


def end_run(progress: CampaignProgress, results: Path, record: dict[str, object]) -> None:
    """Let a run end with this record, and pass the events of Snakemake's log to the progress."""
    folder = results / "runs" / "a" / "0123456789ab"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_text(json.dumps({"attempt": 1, **record}))
    progress.follow_job("job_info", 7, "run", {"run_id": "a", "key": "0123456789ab"})
    progress.follow_job("job_finished", 7, None, None)


def test_line_counts_runs_done_left_and_not_ok(tmp_path: Path) -> None:
    left_s = iter([200.0, None])
    progress = CampaignProgress(tmp_path, "s", n_planned=4, n_done=1, left_s=lambda: next(left_s))
    facts = progress.end_run("b", "ok", "0.2 s/epoch").facts
    assert facts == {"done": 2, "planned": 4, "open": False, "left_s": 200.0, "not_ok": 0}
    facts = progress.end_run("c", "failed", "rank 0 ended").facts
    assert facts == {"done": 3, "planned": 4, "open": False, "left_s": None, "not_ok": 1}
    assert progress.end_run("d", "ok", "x").facts["done"] == 4
    ended = json.loads((tmp_path / "sessions" / "s.json").read_text())["ended"]
    assert [entry["run_id"] for entry in ended] == ["b", "c", "d"]


def test_number_of_planned_runs_can_grow_until_decided(tmp_path: Path) -> None:
    counts = iter([(1, True), (3, True), (3, False)])
    progress = CampaignProgress(tmp_path, "s", n_planned=1, n_done=0, count_planned=lambda: next(counts))
    lines = [progress.end_run(run_id, "ok", "x") for run_id in "abc"]
    facts = [(line.facts["done"], line.facts["planned"], line.facts["open"]) for line in lines]
    assert facts == [(1, 1, True), (2, 3, True), (3, 3, False)] and lines[0].startswith("[1/1] ok")


def test_a_line_is_printed_when_snakemake_finishes_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = CampaignProgress(tmp_path, "s", n_planned=2, n_done=0)
    progress.follow_job("job_info", 8, "table", {"table": "cells"})
    progress.follow_job("job_finished", 8, None, None)
    assert capsys.readouterr().out == "", "only runs have a line"
    end_run(progress, tmp_path, {"status": "timeout", "reason": "too slow"})
    assert capsys.readouterr().out.startswith("[1/2] timeout a")


@pytest.mark.parametrize(
    ("timing", "line"),
    [
        ({"status": "ok", "reason": None, "parts": [1, 2, 3], "messages": []}, "ok: 3 parts in 41.3 s"),
        ({"status": "ok", "reason": None, "parts": [], "messages": [1, 2]}, "ok: 2 message sizes in 41.3 s"),
        ({"status": "failed", "reason": "it broke", "parts": [], "messages": []}, "failed: it broke"),
    ],
)
def test_a_timing_has_a_line_too(
    timing: dict[str, object], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = CampaignProgress(tmp_path, "s", n_planned=2, n_done=0)
    folder = tmp_path / "costs" / "one" / "0123456789ab"
    folder.mkdir(parents=True)
    (folder / "timing.json").write_text(json.dumps({**timing, "wall_s": 41.3}))
    progress.follow_job("job_info", 7, "timing", {"timing": "one", "key": "0123456789ab"})
    progress.follow_job("job_finished", 7, None, None)
    assert capsys.readouterr().out == f"timing one: {line}\n"


def test_disturbed_machine_is_reported_at_once(tmp_path: Path) -> None:
    progress = CampaignProgress(tmp_path, "s", n_planned=9, n_done=0)
    hints = [codes(progress.count_disturbed(disturbed)) for disturbed in [True] * 7]
    assert hints == [["first-disturbed-run"], [], [], [], ["all-disturbed"], [], []]
    progress = CampaignProgress(tmp_path, "s", n_planned=9, n_done=0)
    assert [
        len(list(progress.count_disturbed(disturbed))) for disturbed in (False, True, True, True, True, True)
    ] == [0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(("status", "is_kept"), [(2, False), (137, True)])
def test_line_of_a_program_is_not_buried(status: int, is_kept: bool) -> None:
    message = (
        'RuleException:\nCalledProcessError in file "/checkout/rules/datasets.smk", line 33:\n'
        f"Command 'set -euo pipefail; python -m datasets.prepare' returned non-zero exit status {status}."
    )
    assert filter_log(None, logging.makeLogRecord({"msg": message, "event": LogEvent.ERROR})) is is_kept


def test_an_interruption_ends_with_one_line_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    stopped = (
        "RuleException:\n"
        'CalledProcessError in file "a.smk", line 1:\n'
        "Command 'x' returned non-zero exit status 130."
    )
    expected = {
        "Terminating processes on user request, this might take some time.": False,
        stopped: False,
        "Complete log(s): /a/b.log": False,
        "Elapsed time: 0:00:15": False,
        "WorkflowError:\nAt least one job did not complete successfully.": False,
        "WorkflowError:\nsomething else": True,
    }
    for interrupted, is_kept in ((False, [True] * 5), (True, list(expected.values()))):
        interruption = Interruption()
        messages = list(expected)[0 if interrupted else 1 :]
        assert [interruption(logging.makeLogRecord({"msg": message})) for message in messages] == is_kept[
            -len(messages) :
        ]
        printed = capsys.readouterr().err.splitlines()
        assert (
            printed
            == ["ringside: interrupted. Completed runs are kept. Rerun the command to resume."][
                : int(interrupted)
            ]
        )


@pytest.mark.parametrize(("rules", "is_kept"), [("extra_p dataset", False), ("extra_p table", True)])
def test_cache_files_of_another_checkout_are_not_reported(rules: str, is_kept: bool) -> None:
    message = (
        "2 jobs have missing provenance/metadata so that it in part cannot be used to trigger re-runs.\n"
        f"Rules with missing metadata: {rules}"
    )
    assert filter_log(None, logging.makeLogRecord({"msg": message})) is is_kept


def test_cause_of_a_failed_cluster_job_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "17.log"
    log.write_text("ringside: a run: lost: No space left on device\nError in rule run:\n    jobid: 0\n")
    progress = CampaignProgress(tmp_path, "s", 2, 0)
    for file in (log, tmp_path / "gone"):
        pass_error(progress, aux={"external_jobid": "17"}, log=[str(file)])
    assert capsys.readouterr().out.splitlines() == [
        "ringside: run: cluster job 17 failed: a run: lost: No space left on device",
        "ringside: run: cluster job 17 failed: it FAILED",
    ]
    pass_error(progress, log=[str(log)])  # on this machine its words were seen already
    assert capsys.readouterr().out == ""


def test_refusal_of_slurm_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As snakemake-executor-plugin-slurm 2.8 reports them; profiles are quiet about rules."""
    progress = CampaignProgress(tmp_path, "s", 2, 0)
    errors = [
        "sbatch: error: Requested node configuration is not available",
        "sbatch: error: a\nsbatch: error: b",
    ]
    for job, error in ((1, errors[0]), (2, errors[0]), (1, errors[1])):
        message = f"SLURM sbatch failed. The error message was '{error}'.\n    sbatch call:\n        sbatch -x 'y'.\n"
        pass_error(progress, jobid=job, rule_msg=message)
    advice = "./ringside doctor names the key of the site to correct"
    assert capsys.readouterr().out.splitlines() == [
        f"ringside: run: Slurm refuses the job: {errors[0]}; {advice}",
        f"ringside: run: Slurm refuses the job: sbatch: error: a; sbatch: error: b; {advice}",
    ]


def test_campaign_is_halted_after_three_equal_failures(tmp_path: Path) -> None:
    stops: list[int] = []
    progress = CampaignProgress(tmp_path, "s", 9, 0, stop_scheduling=lambda: stops.append(1))
    for status, reason in (
        *2 * [("failed", "rank 0 ended with status 1: ImportError")],
        ("ok", "None"),
        *2 * [("failed", "rank 1 ended with status 1: ImportError")],
    ):
        progress.failures.add_result(status, reason)
    assert not stops and progress.failures.halted is None
    progress.failures.add_result("failed", "rank 0 ended with status 1: ImportError")
    progress.failures.add_result("failed", "rank 0 ended with status 1: ImportError")
    assert stops == [1] and progress.failures.halted is not None
    assert progress.failures.halted.code == "same-failure" and progress.failures.halted.facts["runs"] == 3
    assert (
        "./ringside repeat failed" in progress.failures.halted and "--keep-going" in progress.failures.halted
    )


def test_no_run_begins_in_a_halted_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SESSION_VARIABLE, "s")
    progress = CampaignProgress(tmp_path, "s", 9, 0, stop_scheduling=lambda: None)
    raise_if_halted(tmp_path)
    progress.end_run("a", "failed", "x")
    raise_if_halted(tmp_path)
    for _ in range(3):
        progress.failures.add_result("failed", "the same")
    with pytest.raises(InputError) as refused:
        raise_if_halted(tmp_path)
    assert refused.value.code == "campaign-halted"
    monkeypatch.setenv(SESSION_VARIABLE, "t")
    raise_if_halted(tmp_path)


@pytest.mark.parametrize(
    "statuses", [["timeout"] * 4, ["oom"] * 4, ["invalid"] * 4, ["failed", "failed", "timeout", "failed"]]
)
def test_other_ends_do_not_halt_a_campaign(tmp_path: Path, statuses: list[str]) -> None:
    progress = CampaignProgress(tmp_path, "s", 9, 0, stop_scheduling=lambda: pytest.fail("it was stopped"))
    for status in statuses:
        progress.failures.add_result(status, "the same")
    for reason in ("ImportError", "MemoryError", "ImportError", "MemoryError"):
        progress.failures.add_result("failed", reason)


@pytest.mark.parametrize(
    ("statuses", "line"),
    [
        (["ok", "ok"], "All 2 runs are usable"),
        (
            ["ok", "failed", "missing"],
            "1 of 3 runs is usable; 1 failed, 1 has no record; see tables/missing.md",
        ),
    ],
)
def test_usable_runs_are_counted(tmp_path: Path, statuses: list[str], line: str) -> None:
    rows = "".join(f"a,{status},\n" for status in statuses)
    (tmp_path / "runs.csv").write_text(f"run_id,status,reason\n{rows}")
    counted = count_usable(tmp_path / "runs.csv")
    assert counted == line and counted.facts["usable"] == statuses.count("ok")


SCONTROL = """#!/bin/sh
echo "JobId=17 JobName=x JobState={state} ExitCode={code} BatchHost=n3 WorkDir=/a/checkout"
"""


@pytest.mark.parametrize(
    ("log", "state", "code", "facts"),
    [
        ("x.log", "", "", {"node": "n1", "path": "/cache"}),
        (".snakemake/pbs/17.txt", "", "", {"node": "n1", "path": "/cache"}),
        (None, "FAILED", "0:53", {"node": "n3", "path": "/a/checkout"}),
        (None, "FAILED", "79:0", {"node": "n3", "path": "/a/checkout"}),
        (None, "FAILED", "1:0", None),
        (None, "NODE_FAIL", "0:53", None),
    ],
)
def test_node_without_a_path_halts_a_campaign(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: str | None,
    state: str,
    code: str,
    facts: dict[str, str] | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "scontrol").write_text(SCONTROL.format(state=state, code=code))
    (tmp_path / "scontrol").chmod(0o755)
    if log:
        (tmp_path / log).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / log).write_text("ringside: node n1 cannot access /cache\n")
    progress = CampaignProgress(tmp_path, "s", 2, 0, stop_scheduling=lambda: True)
    assert pass_error(progress, aux={"external_jobid": "17"}, log=["x.log"]) is (facts is None)
    assert (
        (progress.failures.halted.code, progress.failures.halted.facts) == ("inaccessible", facts)
        if facts
        else progress.failures.halted is None
    )


def test_ranks_without_a_path_halt_a_campaign(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a" / "0123456789ab" / "attempt-1"
    folder.mkdir(parents=True)
    (folder / "unfinished.txt").write_text("lost: node n2 cannot access /data (job 7 on n1)\n")
    progress = CampaignProgress(tmp_path, "s", 2, 0, stop_scheduling=lambda: True)
    progress.follow_job("job_info", 7, "run", {"run_id": "a", "key": "0123456789ab"})
    assert not pass_error(progress, jobid=7)
    assert progress.failures.halted is not None and progress.failures.halted.facts == {
        "node": "n2",
        "path": "/data",
    }


def test_failures_are_counted_where_nothing_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sessions").write_text("a file in the folder's place")
    progress = CampaignProgress(tmp_path, "s", n_planned=9, n_done=0, stop_scheduling=lambda: True)
    for _ in range(3):
        end_run(progress, tmp_path, {"status": "failed", "reason": "ImportError"})
    assert progress.failures.halted is not None and capsys.readouterr().out.count("failed  a") == 3


def test_dry_run_names_each_batch_search(capsys: pytest.CaptureFixture[str]) -> None:
    for rule, wildcards in (("batch_search", {"search": "a.b1", "key": "0" * 12}), ("dataset", {})):
        fields = {"event": LogEvent.JOB_INFO, "rule_name": rule, "wildcards": wildcards}
        assert print_planned_search(logging.makeLogRecord(fields)), "Snakemake goes on with the record"
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["a.b1"]


def test_keep_going_halts_no_campaign(tmp_path: Path) -> None:
    progress = CampaignProgress(tmp_path, "s", 9, 0)
    for _ in range(4):
        progress.failures.add_result("failed", "the same")
    assert progress.failures.halted is None
