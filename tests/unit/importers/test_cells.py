"""Measurements become rows: place, batch, parallelism and times, each from the file or from what is stated."""

from typing import Any

import pytest

from common.errors import InputError
from declared.imported import ModelSize, Statement
from importers.cells import complete_run, to_rows
from importers.measurement import Measurement
from training_logs.log import Step

BASE = {"framework": "f", "model": "m", "nodes": 1, "devices_per_node": 8, "global_batch": 64, "seconds": 0.5}


def stated(**keys: Any) -> Statement:
    return Statement(source="s", licence="l", **keys)


def run(
    statement: Statement | None = None, time: str = "step", steps: tuple[Step, ...] = (), **values: Any
) -> Any:
    content = {name: value for name, value in {**BASE, **values}.items() if value is not None}
    return complete_run(Measurement("a.csv, line 2", content, steps=steps), statement or stated(), time)


@pytest.mark.parametrize(
    ("values", "keys", "place"),
    [
        ({"nodes": None, "devices_per_node": None, "devices": 16}, {"devices_per_node": 8}, (2, 8)),
        ({"nodes": None, "devices_per_node": None, "devices": 4}, {"devices_per_node": 8}, (1, 4)),
        ({"devices_per_node": None, "devices": 16, "nodes": 4}, {"devices_per_node": 8}, (4, 4)),
        ({"nodes": None}, {"nodes": 3}, (3, 8)),
        ({}, {"nodes": 3, "devices_per_node": 2}, (1, 8)),
    ],
)
def test_place_is_the_files_else_stated(
    values: dict[str, Any], keys: dict[str, int], place: tuple[int, int]
) -> None:
    levels = run(stated(**keys), **values).levels
    assert (levels["nodes"], levels["devices_per_node"]) == place


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"nodes": None}, "missing-value"),
        ({"devices": 12}, "contradicting-values"),
        ({"tensor_parallel": 3}, "contradicting-values"),
        ({"global_batch": None}, "missing-value"),
        ({"global_batch": 12.5}, "out-of-range"),
        ({"seconds": None}, "missing-value"),
        ({"seconds": None, "tokens_per_s": 9.0}, "missing-value"),
        ({"seconds": None, "epoch_s": 9.0}, "missing-value"),
        ({"framework": None}, "missing-value"),
    ],
)
def test_what_is_missing_or_contradicts_is_named(values: dict[str, Any], code: str) -> None:
    with pytest.raises(InputError) as refused:
        run(**values)
    assert refused.value.code == code and refused.value.file == "a.csv, line 2"


def test_batch_is_stated_where_no_file_says_it() -> None:
    levels = {"batch_size": 4, "sync_every": 2}
    completed = run(stated(levels=levels), global_batch=None)
    assert (completed.effective_batch, completed.local_batch, completed.sync_every) == (64, 4.0, 2)
    completed = run(stated(levels={**levels, "batch_scope": "global"}), global_batch=None)
    assert (completed.effective_batch, completed.local_batch, completed.sync_every) == (8, 0.5, 2)


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({}, 0.5),
        ({"seconds": None, "samples_per_s": 256.0}, 0.25),
        ({"seconds": None, "tokens_per_s": 64e3, "sequence_length": 100}, 0.1),
        ({"seconds": None, "device_tokens_per_s": 8e3, "sequence_length": 100}, 0.1),
        ({"seconds": None, "epoch_s": 30.0, "samples_per_epoch": 640}, 3.0),
    ],
)
def test_time_of_a_step_follows_from_what_the_file_has(values: dict[str, Any], seconds: float) -> None:
    assert run(**values).seconds == pytest.approx(seconds)


def test_steps_of_a_log_come_before_other_times() -> None:
    completed = run(steps=(Step(10, 0.2, n_steps=10), Step(20, 0.4, n_steps=10)), seconds=9.0)
    rows, epochs = to_rows([completed], "s", stated())
    assert completed.seconds == pytest.approx(0.3)
    assert (
        rows[0]["step_time_median_s"] == 0.2 and rows[0]["epoch_time_s"] == epochs[0]["epoch_time_s"] == 0.3
    )


def test_pipeline_takes_accumulated_batches_as_microbatches() -> None:
    completed = run(
        nodes=8,
        global_batch=64,
        local_batch=2,
        sync_every=4,
        tensor_parallel=4,
        pipeline_parallel=2,
        data_parallel=8,
    )
    assert completed.levels["parallelism"] == "pipeline2-data-tensor4"
    assert (
        completed.levels["microbatches"],
        completed.sync_every,
        completed.local_batch,
        completed.replicas,
    ) == (4, 1, 8.0, 8)


@pytest.mark.parametrize(
    ("values", "level"),
    [
        ({"sharded_parallel": 8}, "sharded"),
        ({"sharded_parallel": 4, "data_parallel": 2}, "data-sharded4"),
        ({"tensor_parallel": 2}, "data-tensor2"),
        ({"context_parallel": 2}, "data"),
    ],
)
def test_axes_are_written_as_a_mesh(values: dict[str, int], level: str) -> None:
    assert run(**values).levels["parallelism"] == level


def test_batch_is_local_in_weak_and_global_in_strong_scaling() -> None:
    weak = [run(nodes=nodes, global_batch=64 * nodes) for nodes in (1, 2, 4)]
    strong = [run(framework="g", nodes=nodes) for nodes in (1, 2, 4)]
    small = [run(framework="h", nodes=nodes, global_batch=8) for nodes in (1, 2)]
    rows, _ = to_rows([*weak, *strong, *small], "s", stated())
    scopes = [(row["framework"], row["batch_scope"], row["batch_size"], row["local_batch"]) for row in rows]
    assert scopes[:3] == [("f", "local", 8, 8.0)] * 3
    assert scopes[3:6] == [("g", "global", 64, 8.0), ("g", "global", 64, 4.0), ("g", "global", 64, 2.0)]
    assert scopes[6:] == [("h", "global", 8, 1.0), ("h", "global", 8, 0.5)]


def test_runs_are_numbered_and_an_epoch_has_the_largest_batch() -> None:
    rows, epochs = to_rows([run(), run(), run(nodes=2, global_batch=128)], "s", stated())
    assert [row["replicate"] for row in rows] == [1, 2, 1]
    assert {row["samples_per_epoch"] for row in rows} == {128}
    assert [epoch["epoch_time_s"] for epoch in epochs] == [1.0, 1.0, 0.5]
    assert [(row["steps"], row["n_allreduces"]) for row in rows] == [(2, 2), (2, 2), (1, 1)]
    rows, _ = to_rows([run()], "s", stated(samples_per_epoch=6400, devices_per_node=8))
    assert rows[0]["epoch_time_s"] == 50.0


@pytest.mark.parametrize(
    ("values", "is_right"),
    [
        ({"data_parallel": 8}, True),
        ({"data_parallel": 4}, False),
        ({"data_parallel": 2, "sharded_parallel": 4}, True),
        ({"data_parallel": 8, "sharded_parallel": 8}, True),
        ({"data_parallel": 2, "sharded_parallel": 2}, False),
        ({"sharded_parallel": 4}, True),
        ({"sharded_parallel": 3}, False),
        ({"data_parallel": 8, "tensor_parallel": 2}, False),
    ],
)
def test_replicas_are_those_of_the_devices(values: dict[str, int], is_right: bool) -> None:
    if is_right:
        assert run(**values).replicas == 8
    else:
        with pytest.raises(InputError) as refused:
            run(**values)
        assert refused.value.code == "contradicting-values"


def test_epochs_of_files_have_their_samples() -> None:
    epoch = {"seconds": None, "epoch_s": 100.0, "samples_per_epoch": 51200}
    rows, _ = to_rows([run(**epoch)], "s", stated())
    assert (rows[0]["samples_per_epoch"], rows[0]["epoch_time_s"]) == (51200, 100.0)
    assert (rows[0]["throughput_samples_s"], rows[0]["step_time_median_s"]) == (512.0, 0.125)
    rows, _ = to_rows([run(**epoch)], "s", stated(samples_per_epoch=5120))
    assert (rows[0]["samples_per_epoch"], rows[0]["epoch_time_s"]) == (5120, pytest.approx(10.0))
    rows, _ = to_rows([run(**epoch), run(**{**epoch, "samples_per_epoch": 6400})], "s", stated())
    assert [row["samples_per_epoch"] for row in rows] == [64, 64], "the largest batch: files contradict"
    assert [row["epoch_time_s"] for row in rows] == pytest.approx([0.125, 1.0])


def test_time_to_train_is_no_epoch() -> None:
    rows, _ = to_rows([run(time="run", seconds=None, run_s=900.0, samples_per_epoch=640)], "s", stated())
    assert rows[0]["epoch_time_s"] == 900.0 and "steps" not in rows[0]
    names = ("samples_per_epoch", "throughput_samples_s", "throughput_tokens_s", "step_time_median_s")
    assert [rows[0][name] for name in names] == [None] * 4
    sizes = [run(time="run", seconds=None, run_s=900.0, samples_per_epoch=n) for n in (640, 1280)]
    assert [row["epoch_time_s"] for row in to_rows(sizes, "s", stated(samples_per_epoch=6400))[0]] == [
        900.0
    ] * 2


def test_batch_that_accumulation_does_not_divide_is_one() -> None:
    rows, _ = to_rows([run(global_batch=9, sync_every=2)], "s", stated())
    assert [rows[0][name] for name in ("batch_scope", "batch_size", "sync_every")] == ["global", 9, 1]


def test_count_beyond_the_table_names_its_place() -> None:
    with pytest.raises(InputError) as refused:
        to_rows([run(global_batch=2.0**24 * 8, nodes=1)], "s", stated())
    assert refused.value.code == "out-of-range" and refused.value.key == "batch_size"


def test_sizes_and_rates_are_the_files_else_stated() -> None:
    keys = {"models": {"m": ModelSize(parameters=1e9)}, "bandwidth_bytes_s": 12.5e9}
    rows, _ = to_rows(
        [run(stated(**keys)), run(stated(**keys), parameters=2e9, bandwidth_gbit_s=400.0)],
        "s",
        stated(**keys),
    )
    assert [row["parameters"] for row in rows] == [1e9, 2e9]
    assert [row["bandwidth_bytes_s"] for row in rows] == [12.5e9, 50e9]
    registered, _ = to_rows([run(model="small-cnn", parameters=1e6, gradient_bytes=2e6)], "s", stated())
    assert (registered[0]["parameters"], registered[0]["gradient_bytes"]) == (1e6, 2e6)


def test_failed_run_has_no_time() -> None:
    rows, epochs = to_rows([run(), run(status="CUDA out of memory")], "s", stated())
    assert [row["status"] for row in rows] == ["ok", "oom"]
    assert rows[1]["epoch_time_s"] is None and len(epochs) == 1


def test_peak_is_stated_for_devices_without_one() -> None:
    statement = stated(
        levels={"precision": "amp"},
        peak_tflops={"bf16": 989.5},
        models={"m": ModelSize(parameters=45e6, sample_flops=2.4e15)},
    )
    names = ("H100 80GB", "NVIDIA A100-SXM4-80GB", None)
    rows = [to_rows([run(statement, device=name)], "s", statement)[0][0] for name in names]
    assert [row["peak_flops_s"] for row in rows] == [989.5e12, None, 989.5e12]
    assert {row["sample_flops"] for row in rows} == {2.4e15}


def test_level_of_an_own_factor_is_checked() -> None:
    measurement = Measurement("a.csv, line 2", dict(BASE), custom={"kernel": "a b/.."})
    with pytest.raises(InputError) as refused:
        complete_run(measurement, stated(), "step")
    assert refused.value.key == "custom_kernel" and refused.value.file == "a.csv, line 2"
