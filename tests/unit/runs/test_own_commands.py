"""A command's log becomes epochs, steps and a status, and its run a record like any other."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.files import CHECKOUT
from common.tables import read_table
from declared.commands import Command, load_command
from declared.environments import read
from declared.site import Site, load_site
from declared.study import load_study
from environments.build import build
from plan.campaign import plan_campaign
from plan.identity import plan_run
from ranks.command.adapter import OUTPUT, PRINTED
from records.aggregate import aggregate_records
from records.record_checks import find_contradiction
from runs.epochs import read_epochs
from runs.own_commands import UNREADABLE, CommandTimes, measured_fields, read_times
from runs.steps import quantiles
from runs.supervise import supervise
from support.own_commands import COMMAND, own_commands, write_study

SPEC: dict[str, Any] = {
    "levels": {"epochs": 3, "warmup_epochs": 1, "nodes": 1}, "nodes": 1, "ranks": 1, "ranks_per_node": 1,
    "replicas_per_rank": 1, "replicas": 1, "local_batch": 8, "effective_batch": 16, "samples_per_epoch": 66,
    "steps": 8, "device": "cpu", "replicate": 1, "seed": 1,
}  # fmt: skip


def lines(times_s: list[float], batch: int = 16, interval: int = 1, first: int = 1) -> str:
    """Return a log of steps with these times, each the mean of `interval` steps."""
    return "".join(
        f" [2026-11-28 10:00:00] iteration {(first + number) * interval:8}/      12 | elapsed time per iteration "
        f"(ms): {1000 * time_s:.3f} | global batch size: {batch} | lm loss: {1 / (1 + number):E} |\n"
        for number, time_s in enumerate(times_s)
    )


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    with own_commands(tmp_path / "commands", ours={"warmup_steps": 5}):
        yield load_command("ours")


def read_log(folder: Path, command: Command, *printed: str, wall_s: float = 60.0, **changes: Any) -> Any:
    """Read the times of a run whose processes have printed these texts."""
    (folder / OUTPUT).mkdir(exist_ok=True)
    for rank, text in enumerate(printed):
        (folder / OUTPUT / PRINTED.format(rank)).write_text(text)
    return read_times(command, {**SPEC, "ranks": len(printed), **changes}, folder, wall_s)


def test_epochs_are_means_of_their_steps(tmp_path: Path, command: Command) -> None:
    times = [9.0, 1.0, 1.0, 1.0, 5.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0]
    read_back = read_log(tmp_path, command, "warnings\n" + lines(times))
    assert (
        read_back.problem is None and read_back.first_step_s == 9.0 and read_back.facts["global_batch"] == 16
    )
    epochs = read_epochs(tmp_path / "epochs.csv")
    scale = 66 / 16  # of 66 samples, steps of 16 train 64
    assert [row["epoch_time_s"] for row in epochs] == pytest.approx([3.0 * scale, 2.0 * scale, 3.25 * scale])
    assert [row["warm_up"] for row in epochs] == [True, False, False]
    assert {(row["n_allreduces"], row["samples_trained"], row["steps"]) for row in epochs} == {(4, 64, 8)}
    assert epochs[2]["train_loss"] == pytest.approx(sum(1 / step for step in (9, 10, 11, 12)) / 4, rel=1e-4)
    assert epochs[0]["validation_loss"] is None
    # Steps 6 to 12 count: five are warm-up, one of them in the second epoch.
    assert quantiles(tmp_path / "steps.csv", 1) == pytest.approx(
        {"median": 3.0, "p95": 3.7, "p99": 3.94, "largest": 4.0}
    )


def test_means_of_steps_belong_to_the_epochs_they_cover(tmp_path: Path, command: Command) -> None:
    assert read_log(tmp_path, command, lines([1.0, 2.0], interval=6)).problem is None
    epochs = read_epochs(tmp_path / "epochs.csv")
    assert [row["epoch_time_s"] * 16 / 66 for row in epochs] == pytest.approx([1.0, (1 + 2 * 2) / 3, 2.0])
    assert not (tmp_path / "steps.csv").exists()


def test_mean_of_all_steps_covers_each_step(tmp_path: Path) -> None:
    with own_commands(tmp_path / "commands", ours={"log_format": "trainer"}):
        command = load_command("ours")
    for n_steps, code in ((12, None), (11, "other-steps"), (7, "other-steps"), (13, "other-steps")):
        summary = {"step": n_steps, "train_runtime": 1.5 * n_steps}
        text = json.dumps({"global_step": n_steps, "log_history": [summary]})
        read_back = read_log(tmp_path, command, text)
        assert (read_back.problem and read_back.problem.code) == code
    # The end of its first step is unknown.
    assert read_log(tmp_path, command, text.replace("13", "12")).first_step_s is None


def test_steps_after_the_last_interval_need_no_line(tmp_path: Path, command: Command) -> None:
    assert read_log(tmp_path, command, lines([1.0, 2.0], interval=5)).problem is None
    assert read_log(tmp_path, command, lines([1.0] * 3, interval=3)).problem.code == "other-steps"


def test_numbers_of_steps_may_begin_at_zero(tmp_path: Path) -> None:
    with own_commands(tmp_path / "commands", ours={"log_format": "steps"}):
        command = load_command("ours")
    for first in (0, 1):
        rows = "".join(f"{first + number},{1.0 + number}\n" for number in range(12))
        assert read_log(tmp_path, command, f"step,seconds\n{rows}", wall_s=99.0).problem is None
        assert read_epochs(tmp_path / "epochs.csv")[0]["epoch_time_s"] * 16 / 66 == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("started_at", "startup_s"), [(103.0, 3.0), (99.0, None), (161.0, None), (None, None)]
)
def test_clock_of_another_machine_gives_no_startup_time(
    command: Command, started_at: float | None, startup_s: float | None
) -> None:
    environment: Any = {"packages": {}, "python": {"version": "3.12"}}
    times = CommandTimes(None, started_at=started_at)
    assert measured_fields(command, environment, times, 100.0, 60.0)["startup_s"] == startup_s


def test_steps_are_read_from_the_node_that_prints_them(tmp_path: Path, command: Command) -> None:
    assert read_log(tmp_path, command, "only arguments\n", lines([1.0] * 12)).problem is None


@pytest.mark.parametrize(
    ("text", "changes", "code"),
    [
        ("", {}, UNREADABLE),
        (lines([1.0] * 11), {}, "other-steps"),
        (lines([1.0] * 13), {}, "other-steps"),
        (lines([1.0] * 12, batch=32), {}, "other-batch"),
        (lines([1.0] * 12), {"wall_s": 11.0}, "too-long-steps"),
        (lines([1.0] * 6) + "training ...\n" + lines([1.0] * 12), {}, "restarted"),
        ("  world_size ............ 2\n" + lines([1.0] * 12), {}, "other-devices"),
        (lines([1.0] * 5, first=8), {}, "epoch-without-step"),
    ],
)
def test_a_log_that_does_not_fit_the_plan_is_refused(
    tmp_path: Path, command: Command, text: str, changes: dict[str, Any], code: str
) -> None:
    problem = read_log(tmp_path, command, text, **changes).problem
    assert problem is not None and problem.code == code and str(problem).startswith("log: ")


def test_a_file_is_the_log_if_there_is_one_of_its_name(tmp_path: Path) -> None:
    with own_commands(tmp_path / "commands", ours={"log": "logs/{nodes}-*.txt"}):
        command = load_command("ours")
        assert read_log(tmp_path, command, lines([1.0] * 12)).problem.code == UNREADABLE
        (tmp_path / OUTPUT / "logs").mkdir()
        (tmp_path / OUTPUT / "logs" / "1-a.txt").write_text(lines([1.0] * 12))
        assert read_log(tmp_path, command, "").problem is None
        (tmp_path / OUTPUT / "logs" / "1-b.txt").write_text("")
        assert read_log(tmp_path, command, "").problem.code == UNREADABLE


@pytest.fixture
def run_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Run the command with some keys at a site, and return its record and its attempt's folder."""
    monkeypatch.setenv("RINGSIDE_LOCK", str(tmp_path / "lock"))
    results = tmp_path / "results" / "s"
    results.mkdir(parents=True)

    def run(factors: dict[str, Any] | None = None, site: dict[str, Any] | None = None, **keys: Any) -> Any:
        with own_commands(tmp_path / "commands", ours=keys):
            place = local(tmp_path / "cache", **(site or {}))
            build(read("ours"), place.cache, realization=place.realization)
            study = load_study("s", write_study(tmp_path, epochs=2, **(factors or {})))
            campaign = plan_campaign(study, place)
            (run,) = campaign.runs
            planned = plan_run(study, place, run)
            record = supervise(planned, results, "session")
            assert find_contradiction(record, planned, "local") is None
            monkeypatch.setattr(type(campaign), "results", results)
            (row,) = aggregate_records(campaign, tmp_path / "epochs.csv").to_dict("records")
            return record, results / "runs" / run.run_id / planned.key / "attempt-1", row

    return run


def local(cache: Path, **changes: Any) -> Site:
    """Return this machine as a site whose runs other programs may disturb."""
    limits = {"max_other_cpu_share": 1.0, "max_steal_share": 1.0, "reference": False, "time_limit_s": 60.0}
    return replace(load_site("local"), cache=cache, **{**limits, **changes})


def test_a_run_has_a_record_like_any_other(run_command: Any, tmp_path: Path) -> None:
    record, attempt, row = run_command({"nodes": 2}, once_per="rank", title="printed steps")
    assert (record["status"], record["reason"], record["deployment"]) == ("ok", None, "installed")
    assert (
        record["packages"]["numpy"]
        and record["installed"]["executable"] == COMMAND["environment"]["executable"]
    )
    measured = record["measured"]
    assert len(measured["devices"]) == 2 and measured["log"]["global_batch"] == 16
    assert measured["transport"] == "unknown" and measured["library_version"] == "printed steps"
    assert measured["step_time_s"]["median"] == 0.02 and measured["memory_peak_bytes"] > 1e6
    # 4 steps of 20 ms for 64 samples
    assert row["epoch_time_s"] == pytest.approx(0.08) and row["status"] == "ok" and row["ranks"] == 2
    assert row["gradient_bytes"] == 4000 and row["baseline"] is None and row["timing_scope"] == "master"
    assert len(read_table(tmp_path / "epochs.csv", "epochs")) == 2
    spec = json.loads((attempt / "rank_input.json").read_text())
    assert spec["command"]["folder"] == str(CHECKOUT) and spec["model"] is None


def test_output_without_line_ends_is_copied_while_it_is_printed(run_command: Any) -> None:
    seen = "[ -s {output}/printed-0.txt ]"
    wait = f"for i in $(seq 300); do {seen} && break; sleep 0.01; done; {seen} || exit 9; echo"
    record, _, _ = run_command(command=f"printf '%070000d' 0; {wait}; {COMMAND['command']}")
    assert record["status"] == "ok"


@pytest.mark.parametrize(
    ("keys", "status", "words"),
    [
        ({"arguments": "--status 3 --last-words 'RuntimeError: no such layer'"}, "failed", "RuntimeError: no such layer"),
        ({"arguments": "--status 1 --last-words 'torch.OutOfMemoryError: CUDA out of memory.'"}, "oom", "out of memory"),
        ({"arguments": "--file {output}/elsewhere.txt"}, "failed", "log: "),
        ({"steps": "{steps - 13}"}, "invalid", "log: it ends with step 3"),
        ({"step_ms": "60000"}, "timeout", "1 s"),
    ],
)  # fmt: skip
def test_status_is_that_of_the_command(
    run_command: Any, keys: dict[str, str], status: str, words: str
) -> None:
    steps, step_ms, arguments = (
        keys.get(name, default)
        for name, default in (("steps", "{steps}"), ("step_ms", "20"), ("arguments", ""))
    )
    line = f"{COMMAND['command'].split(' {')[0]} {steps} {{samples_per_step}} {step_ms} {arguments}"
    record, attempt, _ = run_command(site={"time_limit_s": 1.0} if status == "timeout" else {}, command=line)
    assert record["status"] == status and words in record["reason"]
    assert "ended with status 0" not in record["reason"] and (attempt / "log.txt").exists()


def test_a_long_first_interval_does_not_hide_missing_steps(tmp_path: Path, command: Command) -> None:
    text = lines([1.0], interval=8) + lines([1.0, 1.0], first=9)
    assert read_log(tmp_path, command, text).problem.code == "other-steps"


def test_header_of_torchtitan_has_the_batch(tmp_path: Path) -> None:
    with own_commands(tmp_path / "commands", ours={"log_format": "torchtitan"}):
        command = load_command("ours")
    header = "Trainer is initialized with local batch size 8, global batch size {}, sequence length 32\n"
    text = "".join(
        f"2026-11-28 10:00:{number:02d},000 step: {number:2}  loss: 1.0  tps: 512  x\n"
        for number in range(13)
    )
    assert read_log(tmp_path, command, header.format(32) + text).problem.code == "other-batch"


def test_rounded_times_may_add_up_to_a_little_more_than_the_run(tmp_path: Path, command: Command) -> None:
    assert read_log(tmp_path, command, lines([1.0] * 12), wall_s=11.9).problem is None
