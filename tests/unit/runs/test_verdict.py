"""The status of a run follows from how its ranks ended and from the files that they have written."""

import errno
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import MACHINE_ERRORS, InputError
from common.files import write_json
from common.notes import Note
from common.run_status import RunStatus
from declared.site import Site, load_site
from declared.study import load_study
from environments.built import read_built
from environments.identity import environment_stamp
from launchers.local import rank_cores
from launchers.protocol import AttemptLost, Outcome
from plan.design import plan_design
from plan.identity import environment_of, plan_run
from ranks.worker.epoch_timer import COLUMNS
from runs.epochs import mean_of_timed, read_epochs
from runs.rank_summary import mean_dropped_share, startup_time, summarize_ranks
from runs.supervise import describe_run
from runs.usable import find_cause
from runs.verdict import (
    Measurements,
    Verdict,
    append_last_error,
    check_measurements,
    extend_failure_reason,
    judge_run,
)
from support.one_run import one_run

SPEC: dict[str, Any] = {"device": "cpu", "levels": {"epochs": 2}, "nodes": 2, "ranks": 2, "interface": "eth0"}
HOSTS = ["node1", "node2"]
MEASURED: dict[str, Any] = {
    "hosts": HOSTS,
    "machines": 1,
    "transport": "gloo over tcp eth0",
    "other_cpu_share": 0.01,
    "steal_share": 0.01,
    "paused_s": 0.0,
    "weights_finite": True,
}
OK = Outcome("ok", None, 4.0)
SITE = replace(load_site("local"), max_other_cpu_share=0.05)
CLUSTER = replace(load_site("virtual"), max_other_cpu_share=0.05)
GRADIENTS = 1_000_000


def epochs(folder: Path, *losses: float, sent: str = "") -> list[dict[str, Any]]:
    """Return the rows of an epochs.csv with these training losses and bytes sent."""
    values = {
        "train_loss": "",
        "sent_bytes": sent,
        "warm_up": "false",
        "throttled_s": "",
        "energy_node_j": "",
    }
    rows = [
        ",".join({**values, "train_loss": str(loss)}.get(column, "1") for column in COLUMNS)
        for loss in losses
    ]
    (folder / "epochs.csv").write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    return read_epochs(folder / "epochs.csv")


def judged(rows: list[dict[str, Any]], site: Site = SITE, **changes: Any) -> Verdict:
    """Return the verdict on these epochs and on measurements with these changes."""
    return check_measurements(Measurements({**MEASURED, **changes}, rows), SPEC, site, HOSTS, GRADIENTS)


def decided(outcome: Outcome, log: Path, trace_problem: Note | None = None, killed: bool = False) -> Verdict:
    """Return the verdict on a run whose ranks ended with this outcome and left no measurements."""
    study = load_study("quickstart")
    planned = plan_run(study, SITE, plan_design(study, SITE)[0])
    log.touch()
    return judge_run(planned, outcome, trace_problem, Measurements(None, []), HOSTS, log, killed)


def stated(verdict: tuple[str, Note | None]) -> tuple[str, str, dict[str, Any]]:
    """Return the status, and code and facts of the reason."""
    status, reason = verdict
    assert reason is not None
    return status, reason.code, dict(reason.facts)


def test_a_whole_undisturbed_run_is_ok(tmp_path: Path) -> None:
    assert judged(epochs(tmp_path, 2.0, 1.0)) == ("ok", None)
    assert judged(epochs(tmp_path, 2.0, 1.0, sent="1100000"), CLUSTER) == ("ok", None)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_invalid(tmp_path: Path, loss: float) -> None:
    assert stated(judged(epochs(tmp_path, 2.0, loss))) == ("invalid", "loss-not-finite", {"epoch": 1})
    assert find_cause(*judged(epochs(tmp_path, 2.0, loss))).name == "loss not finite"


@pytest.mark.parametrize(
    ("changes", "code", "facts", "cause"),
    [
        ({"weights_finite": False}, "weights-not-finite", {}, "loss not finite"),
        ({"other_cpu_share": 0.2}, "other-cpu-time", {"share": 0.2, "limit": 0.05}, "background load"),
        ({"steal_share": 0.4}, "cpu-steal", {"share": 0.4, "limit": 0.15}, "CPU steal"),
        ({"paused_s": 6.0}, "paused", {"paused_s": 6.0}, "paused ranks"),
    ],
)
def test_run_with_a_bad_measurement_is_invalid(
    tmp_path: Path, changes: dict[str, Any], code: str, facts: dict[str, Any], cause: str
) -> None:
    verdict = judged(epochs(tmp_path, 2.0, 1.0), **changes)
    assert stated(verdict) == ("invalid", code, facts) and find_cause(*verdict).name == cause


@pytest.mark.parametrize(
    ("ready_s", "closed_s", "expected"),
    [(2.5, 7.0, 2.5), (-2.5, 2.0, None), (3602.5, 3607.0, None), (3.5, 8.0, None)],
    ids=["same clock", "rank behind", "rank ahead by an hour", "rank ahead by a second"],
)
def test_startup_time_needs_agreeing_clocks(ready_s: float, closed_s: float, expected: float | None) -> None:
    assert startup_time(ready_s, closed_s, wall_s=7.2) == expected


def test_misplaced_ranks_make_a_run_invalid(tmp_path: Path) -> None:
    rows = epochs(tmp_path, 2.0, 1.0)
    verdict = judged(rows, CLUSTER, hosts=["node1"])
    assert stated(verdict) == ("invalid", "misplaced", {"hosts": ["node1"], "expected": HOSTS})
    assert judged(rows, CLUSTER, hosts=["node1.cluster.example", "node2.cluster.example"])[0] == "ok", (
        "with domains"
    )
    assert judged(rows, SITE, hosts=["this-machine"])[0] == "ok", "emulated nodes are one machine"


def test_nodes_that_share_a_machine_make_a_run_invalid(tmp_path: Path) -> None:
    distinct, rows = replace(CLUSTER, placement="distinct-nodes"), epochs(tmp_path, 2.0, 1.0)
    assert judged(rows, distinct, machines=2)[0] == "ok"
    verdict = judged(rows, distinct, machines=1)
    assert stated(verdict) == ("invalid", "nodes-share-a-machine", {"hosts": HOSTS, "machines": 1})


def test_gradients_on_another_network_make_a_run_invalid(tmp_path: Path) -> None:
    status, reason = judged(epochs(tmp_path, 2.0, 1.0, sent="9000"), CLUSTER)
    assert status == "invalid" and reason is not None and reason.code == "too-few-bytes"
    assert (reason.facts["interface"], reason.facts["epoch"], reason.facts["sent_bytes"]) == ("eth0", 1, 9000)


def test_a_run_that_ends_early_has_failed(tmp_path: Path) -> None:
    assert stated(judged(epochs(tmp_path, 2.0))) == ("failed", "ended-early", {"epochs": 1, "planned": 2})
    rows = epochs(tmp_path, 2.0, 1.0)
    assert check_measurements(Measurements(None, rows), SPEC, SITE, HOSTS, GRADIENTS).status == "failed"
    assert stated(decided(OK, tmp_path / "log.txt"))[:2] == ("failed", "ended-early")


@pytest.mark.parametrize("status", [RunStatus.OOM, RunStatus.FAILED, RunStatus.TIMEOUT])
def test_status_of_a_launch_other_than_ok_stays(tmp_path: Path, status: RunStatus) -> None:
    outcome = Outcome(status, Note("code", "reason of the launcher", fact=4), 4.0)
    assert decided(outcome, tmp_path / "log.txt") == (status, outcome.reason)


def test_run_without_a_trace_of_score_p_failed(tmp_path: Path) -> None:
    problem = Note("no-trace", "no trace", file="traces.otf2")
    assert decided(OK, tmp_path / "log.txt", problem) == ("failed", problem)


@pytest.mark.parametrize("status", [RunStatus.OOM, RunStatus.FAILED])
def test_failed_attempt_is_lost_if_snakemake_ended(tmp_path: Path, status: RunStatus) -> None:
    with pytest.raises(AttemptLost) as lost:
        decided(Outcome(status, Note("code", "reason"), 4.0), tmp_path / "log.txt", killed=True)
    assert lost.value.reason.code == "parent-killed"


def test_timeout_stays_if_snakemake_ended(tmp_path: Path) -> None:
    outcome = Outcome(RunStatus.TIMEOUT, Note("code", "reason"), 4.0)
    assert decided(outcome, tmp_path / "log.txt", killed=True).status == "timeout"


def test_reason_quotes_the_line_of_the_log_with_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("starting\nRuntimeError: out of memory\nshutting down\n\n")
    failed = Note("rank-failed", "rank 1", rank=1)
    reason = append_last_error(failed, log)
    assert reason == "rank 1: RuntimeError: out of memory"
    assert (reason.code, reason.facts) == (
        "rank-failed",
        {"rank": 1, "last_line": "RuntimeError: out of memory"},
    )
    log.write_text("RuntimeError: no luck\nsrun: error: node2: task 1: Exited with exit code 1\n")
    assert append_last_error(failed, log).facts["last_line"] == "RuntimeError: no luck", (
        "srun does not say why"
    )
    log.write_text(
        "LBANN error on rank 1 (reader.cpp:94): can't open file : x\nmodel0 training epoch 3 accuracy : 99%\n"
    )
    error = "LBANN error on rank 1 (reader.cpp:94): can't open file : x"
    assert append_last_error(failed, log).facts["last_line"] == error
    log.write_text(
        "RuntimeError: no such layer\nE1128 11:06:47 7 torch/distributed/elastic/multiprocessing/api.py:1002] failed: Error\n"
        "    raise ChildFailedError(\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    )
    assert append_last_error(failed, log).facts["last_line"] == "RuntimeError: no such layer", (
        "not torchrun's"
    )
    assert append_last_error(failed, tmp_path / "nothing") is failed


def test_environment_exists_while_its_stamp_is_rewritten(tmp_path: Path) -> None:
    site = replace(SITE, cache=tmp_path)
    levels = {"model": "small-cnn", "dataset": "digits", "batch_size": 32, "nodes": 1, "sync_every": 1}
    run, _ = one_run(site, framework="pytorch-single", **levels)
    stamp = environment_stamp(site.cache, "pytorch", site.variant, site.realization)
    complete = {"python": {"executable": sys.executable}}
    write_json(stamp.with_name("whole.json"), complete)
    assert read_built(environment_of(site, run.framework)) == complete
    stamp.with_name("whole.json").unlink()
    with pytest.raises(InputError, match="is broken, or a file that it names is gone"):
        read_built(environment_of(site, run.framework))


def test_no_result_is_no_measurement(tmp_path: Path) -> None:
    assert summarize_ranks(tmp_path, 0.0, 4.0, SPEC, []) is None


def test_share_of_dropped_tokens_is_the_mean_over_layers() -> None:
    """The shares are those of two stages of a pipeline, the second of two ranks."""
    first, second = {"block1_experts": 0.1, "block2_experts": 0.2}, {"block3_experts": 0.6}
    assert mean_dropped_share([first, second, second]) == pytest.approx(0.3)
    assert mean_dropped_share([{}, {}]) is None


def test_epochs_are_numbers_and_a_truncated_table_is_refused(tmp_path: Path) -> None:
    rows = epochs(tmp_path, 2.0, 1.0, sent="5")
    assert rows[0]["train_loss"] == 2.0 and rows[0]["sent_bytes"] == 5 and rows[0]["energy_node_j"] is None
    assert mean_of_timed(rows, "train_loss") == 1.5 and mean_of_timed(rows, "energy_node_j") is None
    assert mean_of_timed([{**rows[0], "warm_up": True}, rows[1]], "train_loss") == 1.0, (
        "warm-up does not count"
    )
    table = tmp_path / "epochs.csv"
    table.write_text(table.read_text()[:-20])
    with pytest.raises(ValueError, match="cut off"):
        read_epochs(table)


def test_record_has_the_cores_of_a_node() -> None:
    study, site = load_study("quickstart"), replace(SITE, cores=6)
    planned = plan_run(study, site, plan_design(study, site)[0])
    fields = describe_run(planned, {"deployment": "venv", "packages": {}})
    assert (fields["node_cores"], fields["cores_per_rank"]) == (6, planned.spec["cores_per_rank"])


def test_ranks_have_disjoint_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 2, 4, 6})
    assert [rank_cores(rank, 4, [2]) for rank in range(2)] == [[0, 2], [4, 6]]
    assert [rank_cores(rank, 2, [1]) for rank in range(2)] == [[0], [2]]
    assert [rank_cores(rank, 4, [3, 1]) for rank in range(2)] == [[0, 2, 4], [6]], "heterogeneous ranks"
    assert [rank_cores(rank, 4, [1, 1]) for rank in range(4)] == [[0], [2], [4], [6]], "of two nodes"
    assert rank_cores(2, 2, [1]) == [0, 2], "ranks for which there is no core share the site's"


@pytest.mark.parametrize("number", (*MACHINE_ERRORS, errno.EADDRINUSE), ids=errno.errorcode.get)
def test_machine_error_loses_the_attempt(tmp_path: Path, number: int) -> None:
    log = tmp_path / "log.txt"
    log.write_text(f"epoch 1\nOSError: [Errno {number}] {os.strerror(number)}: 'epochs.csv'\n")
    with pytest.raises(AttemptLost) as lost:
        extend_failure_reason(Note("rank-failed", "rank 0 ended with status 1"), log)
    note = lost.value.args[0]
    assert (note.code, note.facts["error"]) == ("machine-error", errno.errorcode[number])
