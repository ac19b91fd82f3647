"""Each format is recognized and read: with restarts, several ranks, colours, and a last line that was cut off."""

import re
import statistics
from pathlib import Path

import pytest

from training_logs import step_table
from training_logs.formats import FORMATS, read_log, recognize
from training_logs.log import LogError

LOGS = Path(__file__).parent / "logs"
FILES = {
    "megatron.log": "megatron",
    "torchtitan.log": "torchtitan",
    "mllog.txt": "mllog",
    "mllog_blocks.txt": "mllog",
    "trainer_state.json": "trainer",
    "lightning.csv": "lightning",
    "steps.csv": "steps",
    "steps.jsonl": "steps",
}


@pytest.mark.parametrize("name", FILES)
def test_format_is_recognized(name: str) -> None:
    assert recognize(LOGS / name) == FILES[name]
    assert read_log(LOGS / name, FILES[name]).steps


def test_a_table_of_something_else_is_no_log(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text("framework,nodes,seconds\na,1,2.5\n")
    assert recognize(file) is None


def test_megatron_intervals_restart_and_arguments() -> None:
    log = read_log(LOGS / "megatron.log", "megatron")
    assert [step.index for step in log.steps] == [10, 20, 30, 40, 50, 50, 60, 70, 80]
    assert [step.segment for step in log.steps] == [0] * 5 + [1] * 4
    assert {step.n_steps for step in log.steps} == {10}
    assert log.steps[1].seconds == pytest.approx(0.8126)
    assert (log.steps[1].samples, log.steps[1].tokens) == (64, 64 * 2048)
    assert log.steps[0].loss == pytest.approx(8.8)
    assert log.facts | {"started_at": 0} == {
        "framework": "megatron-lm", "devices": 64, "global_batch": 64, "local_batch": 2, "sequence_length": 2048,
        "data_parallel": 8, "tensor_parallel": 4, "pipeline_parallel": 2, "context_parallel": 1, "precision": "bf16",
        "accumulation": 4, "restarts": 1, "damaged_lines": 2, "started_at": 0,
    }  # fmt: skip


def test_warm_up_counts_optimizer_steps_of_each_segment() -> None:
    log = read_log(LOGS / "megatron.log", "megatron")
    assert [step.index for step in log.timed_steps(5)] == [20, 30, 40, 50, 60, 70, 80]
    assert [step.index for step in log.timed_steps(11)] == [30, 40, 50, 70, 80]


def test_torchtitan_reads_one_rank() -> None:
    log = read_log(LOGS / "torchtitan.log", "torchtitan")
    assert [(step.index, step.n_steps, step.segment) for step in log.steps] == [
        (1, 1, 0), (10, 9, 0), (20, 10, 0), (30, 10, 0), (40, 10, 0), (40, 10, 1), (50, 10, 1),
    ]  # fmt: skip
    # Rank 0's validation after step 20 is no part of the steps until 30.
    expected = [6.5, 1.602, 1.601, 1.603, 1.600, 1.81, 1.604]
    assert [step.seconds for step in log.steps] == pytest.approx(expected, rel=4e-4)
    assert {step.tokens for step in log.steps} == {16 * 4096}
    assert log.facts["devices"] == 8
    assert (log.facts["sharded_parallel"], log.facts["tensor_parallel"]) == (4, 2)
    assert (log.facts["model"], log.facts["parameters"]) == ("llama3-8b", 8_030_261_248)
    assert (log.facts["accumulation"], log.facts["restarts"], log.facts["damaged_lines"]) == (2, 1, 1)
    assert log.facts["device"] == "NVIDIA H100 80GB HBM3"


def test_torchtitans_older_header_is_read(tmp_path: Path) -> None:
    file = tmp_path / "log"
    clock = "[rank0]:2025-01-01 10:00:{:02d},000 - root - INFO - "
    file.write_text(
        clock.format(0) + "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]\n"
        + clock.format(1) + "Training starts at step 1, with local batch size 2, global batch size 8, sequence "
        "length 1024, total steps 10 (warmup 2)\n"
        + clock.format(9) + "step:  1  loss: 12.1  memory: 33.81GiB(35.59%)  wps: 128  mfu: 2.14%\n"
    )  # fmt: skip
    (step,) = read_log(file, "torchtitan").steps
    assert step.seconds == 8 * 1024 / (128 * 8) and step.n_steps == 1


def test_torchtitan_without_a_header_uses_clocks(tmp_path: Path) -> None:
    text = (LOGS / "torchtitan.log").read_text()
    file = tmp_path / "log"
    file.write_text(
        "".join(line for line in text.splitlines(True) if "step" in line and "Trainer" not in line)
    )
    log = read_log(file, "torchtitan")
    assert "devices" not in log.facts
    assert log.steps[0].index == 10
    assert log.steps[0].seconds == pytest.approx(1.602, rel=1e-3)


def test_mlperf_steps_and_time_to_train() -> None:
    log = read_log(LOGS / "mllog.txt", "mllog")
    assert [step.index for step in log.steps] == [31, 63, 95, 127, 159, 191, 223, 255, 287]
    assert {step.n_steps for step in log.steps} == {32}
    assert statistics.median(step.seconds for step in log.steps) == pytest.approx(0.845)
    assert log.steps[0].tokens == 32 * 8192
    facts = log.facts
    assert (facts["benchmark"], facts["organization"], facts["accumulation"]) == ("llama31_8b", "Example", 2)
    assert (facts["evaluations"], facts["status"], facts["damaged_lines"]) == (3, "success", 1)
    assert facts["run_seconds"] == pytest.approx(3 * 6 + 32 * 7.667 + 0.1, abs=0.1)


def test_mlperf_blocks_count_samples_from_the_begin() -> None:
    log = read_log(LOGS / "mllog_blocks.txt", "mllog")
    assert [step.n_steps for step in log.steps] == [48, 48, 48]
    assert [step.seconds for step in log.steps] == pytest.approx([1.5 + 2 / 48, 1.501, 1.502])
    assert log.facts["status"] == "aborted"


def test_mlperf_numbers_of_steps_may_count_samples(tmp_path: Path) -> None:
    file = tmp_path / "log"
    text = (LOGS / "mllog.txt").read_text()
    file.write_text(
        re.sub(r'"step": ([1-9]\d*\.0)', lambda step: f'"step": {32 * (float(step[1]) + 1)}', text)
    )
    log = read_log(file, "mllog")
    assert [step.index for step in log.steps] == [32 * number for number in range(1, 10)]
    assert {step.n_steps for step in log.steps} == {32}


def test_trainer_gives_the_mean_of_the_training() -> None:
    (step,) = read_log(LOGS / "trainer_state.json", "trainer").steps
    assert step.seconds == pytest.approx(75.3 / 120)
    assert step.samples == pytest.approx(64, rel=1e-4)
    assert (step.index, step.n_steps, step.loss) == (120, 120, 2.0)


def test_lightning_uses_differences_of_training_time() -> None:
    log = read_log(LOGS / "lightning.csv", "lightning")
    assert [step.seconds for step in log.steps] == pytest.approx([0.211, 0.21, 0.211, 0.21, 0.211])
    assert {step.n_steps for step in log.steps} == {10}
    assert (log.facts["accumulation"], log.facts["local_batch"]) == (2, 16)


def test_tables_of_steps_have_units_and_clocks() -> None:
    log = read_log(LOGS / "steps.csv", "steps")
    assert [step.seconds for step in log.steps] == pytest.approx([0.9125, 0.40125, 0.39975, 0.402])
    assert log.steps[-1].loss == 3.7
    clocks = read_log(LOGS / "steps.jsonl", "steps")
    assert [step.seconds for step in clocks.steps] == pytest.approx([0.9, 0.41, 0.39, 0.42])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("text", ["", "no log\n", '{"a": 1}\n', "[1, 2]\n", ":::MLLOG {\n", "a,b\n1,2\n"])
def test_what_is_no_log_is_refused_in_one_line(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(text)
    with pytest.raises(LogError) as caught:
        read_log(file, name)
    assert "\n" not in str(caught.value)


def test_time_of_zero_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text("step,seconds\n1,0.5\n2,0\n")
    with pytest.raises(LogError) as caught:
        read_log(file, "steps")
    assert caught.value.line == 3


def test_copies_of_ranks_without_prefix_are_no_restart(tmp_path: Path) -> None:
    line = " iteration {:8d}/ 100 | elapsed time per iteration (ms): 500.0 | global batch size: 8 |\n"
    file = tmp_path / "log"
    file.write_text("".join(line.format(index) for index in (10, 20, 10, 20, 30, 20, 30, 40)))
    log = read_log(file, "megatron")
    assert [(step.index, step.segment) for step in log.steps] == [(10, 0), (20, 0), (30, 0), (40, 0)]


def write(folder: Path, text: str) -> Path:
    file = folder / "log"
    file.write_text(text)
    return file


def test_torchtitan_reads_the_rank_with_most_training_steps(tmp_path: Path) -> None:
    line = "[rank{}]:2025-01-01 10:00:{:02d},000 - INFO - {}step: {:2}  loss: 1.0  tps: 128  mfu: 1%\n"
    rank_0 = line.format(0, 5, "", 10)
    rank_1 = "".join(line.format(1, index // 2, "", index) for index in (10, 20, 30))
    validation = line.format(1, 8, "validate ", 15)
    first, *rest = rank_1.splitlines(True)
    log = read_log(write(tmp_path, "".join((rank_0, first, validation, *rest))), "torchtitan")
    assert [(step.index, step.n_steps, step.seconds) for step in log.steps] == [(20, 10, 0.5), (30, 10, 0.5)]


@pytest.mark.parametrize(("clock", "seconds"), [("08,123", 8.123), ("08,500", 8192 / (126 * 8))])
def test_torchtitan_takes_clocks_within_the_rounding_of_rates(
    tmp_path: Path, clock: str, seconds: float
) -> None:
    header = (
        "Building device mesh with parallelism: dp_shard=8\n"
        "Trainer is initialized with local batch size 1, global batch size 8, sequence length 1024\n"
    )
    line = "2025-01-01 10:00:{} - INFO - step: {}  loss: 1.0  tps: 126  mfu: 1%\n"
    text = header + line.format("00,000", 1) + line.format(clock, 2)
    assert read_log(write(tmp_path, text), "torchtitan").steps[1].seconds == pytest.approx(seconds)


def test_mlperf_steps_of_several_ranks_count_once(tmp_path: Path) -> None:
    lines = (LOGS / "mllog.txt").read_text().splitlines(True)
    doubled = "".join(2 * line if "train_step_time" in line else line for line in lines)
    steps = read_log(write(tmp_path, doubled), "mllog").steps
    assert steps == read_log(LOGS / "mllog.txt", "mllog").steps


def test_mlperf_throughputs_count_as_many_steps_as_fit(tmp_path: Path) -> None:
    event = ':::MLLOG {{"time_ms": {}, "key": "{}", "value": {}, "metadata": {{}}}}\n'
    text = event.format(1000, "global_batch_size", 32) + event.format(1000, "run_start", "null")
    text += event.format(11000, "tracked_stats", '{"throughput": 32.0}')
    text += event.format(12000, "tracked_stats", '{"throughput": 64.0}')
    steps = read_log(write(tmp_path, text), "mllog").steps
    assert [(step.index, step.n_steps, step.seconds) for step in steps] == [(10, 10, 1.0), (12, 2, 0.5)]


def test_megatron_counts_from_the_checkpoint_that_it_loaded(tmp_path: Path) -> None:
    text = "successfully loaded checkpoint from a [ t 0, p 0 ] at iteration 100\n"
    text += " iteration 110/ 200 | elapsed time per iteration (ms): 500.0 | global batch size: 8 |\n"
    (step,) = read_log(write(tmp_path, text), "megatron").steps
    assert (step.index, step.n_steps) == (110, 10)


def test_lightning_restarts_where_times_begin_again(tmp_path: Path) -> None:
    rows = "".join(f"{step},{time}\n" for step, time in ((10, 2), (20, 4), (10, 1), (20, 4), (30, 7)))
    log = read_log(write(tmp_path, "step,train/time\n" + rows), "lightning")
    assert [(step.segment, step.n_steps, step.seconds) for step in log.steps] == [
        (0, 10, 0.2), (1, 10, 0.3), (1, 10, 0.3)
    ]  # fmt: skip
    assert log.facts["restarts"] == 1


@pytest.mark.parametrize(("rate", "n_steps"), [(0.1, 100), (0.01, None)])
def test_trainers_rounded_rate_tells_steps_only_if_it_is_fine(
    tmp_path: Path, rate: float, n_steps: int | None
) -> None:
    file = write(
        tmp_path, f'{{"log_history": [{{"train_runtime": 1000, "train_steps_per_second": {rate}}}]}}'
    )
    if n_steps:
        assert read_log(file, "trainer").steps[0].n_steps == n_steps
    else:
        with pytest.raises(LogError):
            read_log(file, "trainer")


def test_clocks_of_two_trainings_are_no_step(tmp_path: Path) -> None:
    rows = "".join(f"{step},{clock}\n" for step, clock in ((1, 1), (2, 2), (3, 3), (1, 103), (2, 105)))
    log = read_log(write(tmp_path, "step,timestamp\n" + rows), "steps")
    assert [step.seconds for step in log.steps] == [1.0, 1.0, 2.0]


def test_separators_of_thousands_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError) as caught:
        read_log(write(tmp_path, "step;step_ms\n1;999,5\n2;1,001\n"), "steps")
    assert caught.value.line == 3


def test_unit_of_a_column_in_brackets_is_read(tmp_path: Path) -> None:
    lines = ["step,t (ms)\n", "1,412.5\n"]
    assert step_table.read(lines, {"seconds": "t (ms)"}).steps[0].seconds == pytest.approx(0.4125)
    assert step_table.read(["step,t\n", "1,412.5\n"], {"seconds": "t"}, "ms").steps[
        0
    ].seconds == pytest.approx(0.4125)
