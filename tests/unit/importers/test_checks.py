"""Each check finds what it is for, and nothing in public measurements without such a mistake."""

from pathlib import Path
from typing import Any

import pytest

from declared.imported import Statement
from importers.cells import ImportedRun, complete_run
from importers.checks import run_checks, without_repetitions
from importers.measurement import Measurement
from importers.run_table import read_run_table
from training_logs.log import Step

FILES = Path(__file__).parent / "files"
STATED = Statement(source="s", licence="l")
BASE = {"framework": "f", "model": "m", "devices_per_node": 8, "local_batch": 8.0, "sync_every": 1}


def public(name: str, columns: dict[str, str] | None = None, time: str = "step") -> list[ImportedRun]:
    runs, _ = read_run_table(FILES / name, {"dataset": "", **(columns or {})}, {}, {})
    return [complete_run(run, STATED, time) for run in runs]


def run(place: str = "a", steps: tuple[Step, ...] = (), time: str = "step", **values: Any) -> ImportedRun:
    nodes = values.get("nodes", 1)
    content = {**BASE, "nodes": nodes, "global_batch": 64.0 * nodes, **values}
    return complete_run(Measurement(place, content, steps=steps), STATED, time)


def codes(runs: list[ImportedRun], time: str = "step") -> list[str]:
    return [finding.code for finding in run_checks(runs, time)]


@pytest.mark.parametrize("name", ["dlperf_runs.csv", "llm_foundry.csv", "nvidia_examples.csv"])
def test_good_measurements_raise_nothing(name: str) -> None:
    assert codes(public(name)) == []


@pytest.mark.parametrize("factor", [1e3, 1e-3])
@pytest.mark.parametrize("name", ["dlperf_runs.csv", "llm_foundry.csv", "nvidia_examples.csv"])
def test_other_unit_is_found_in_every_source(name: str, factor: float) -> None:
    runs, _ = read_run_table(FILES / name, {"dataset": ""}, {}, {})
    changed = [
        complete_run(
            Measurement(
                public_run.place, {**public_run.values, "seconds": public_run.values["seconds"] * factor}
            ),
            STATED,
            "step",
        )
        for public_run in runs
    ]
    assert "implausible-unit" in codes(changed)


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, []), (1e3, ["implausible-unit"]), (1e-3, ["implausible-unit"])]
)
def test_parameters_and_samples_tell_the_unit(factor: float, expected: list[str]) -> None:
    # ResNet-50, whose samples have no tokens, at 380 images/s of a V100.
    assert codes([run(parameters=25557032.0, local_batch=8.0, seconds=0.021 * factor)]) == expected


@pytest.mark.parametrize(
    "values",
    [
        {"samples_per_s": 128.0},
        {"tokens_per_s": 128.0 * 100, "sequence_length": 100},
        {"device_tokens_per_s": 16.0 * 100, "sequence_length": 100},
    ],
)
@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, []), (1.4, []), (1 / 8, ["implausible-unit"]), (8, ["implausible-unit"])]
)
def test_throughput_that_contradicts_a_time_is_found(
    values: dict[str, float], factor: float, expected: list[str]
) -> None:
    names = [name for name in values if name != "sequence_length"]
    changed = values | {name: values[name] * factor for name in names}
    assert codes([run(seconds=0.5, **changed)]) == expected


def test_pause_between_restarts_tells_no_unit() -> None:
    begins = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (4, 0), (5, 0)]  # segment, step
    steps = (
        Step(index, 0.42, started_at=1e9 + 1000.0 * segment + 0.42 * index, segment=segment)
        for segment, index in begins
    )
    assert codes([run(steps=tuple(steps))]) == []


def test_clocks_of_a_log_tell_its_unit() -> None:
    steps = tuple(Step(n, 42.0, started_at=1e9 + 0.042 * n) for n in range(6))
    assert codes([run(steps=steps)]) == ["implausible-unit"]
    assert codes([run(steps=tuple(Step(n, 0.42, started_at=1e9 + 0.42 * n) for n in range(6)))]) == []


def test_run_that_was_submitted_twice_is_found_and_left_out() -> None:
    runs = public("mlperf_runs.csv", time="run")
    findings = run_checks(runs, "run")
    (finding,) = (finding for finding in findings if finding.code == "same-run-twice")
    assert finding.text.startswith("2 runs")
    assert len(without_repetitions(runs)) == len(runs) - 2
    assert without_repetitions(public("dlperf_runs.csv")) == public("dlperf_runs.csv")


def test_series_that_stands_twice_in_a_report_is_found() -> None:
    runs = public("dlperf_batches.csv")
    assert codes(runs) == ["same-run-twice"] and len(without_repetitions(runs)) == len(runs) - 4
    assert codes(runs[:-2]) == [], "two equal rows may be chance"


def test_runs_on_other_devices_are_not_the_same() -> None:
    values = {"seconds": 0.51234, "samples_per_s": 125.0, "started_at": 1.7e9}
    for names in (("seconds", "samples_per_s"), ("seconds", "started_at")):
        times = {name: values[name] for name in names}
        assert codes([run("a", **times), run("b", **times)]) == ["same-run-twice"]
        assert (
            codes([run("a", **times), run("b", nodes=2, local_batch=4.0, **{**times, "global_batch": 64.0})])
            == []
        )
    begins = [run("a", seconds=0.5, started_at=1.7e9), run("b", seconds=0.6, started_at=1.7e9)]
    assert codes(begins) == [], "runs that begin together have other times"


def test_published_times_that_were_computed_are_found() -> None:
    columns = {
        "devices": "# GPUs",
        "global_batch": "global batch",
        "local_batch": "micro batch",
        "tensor_parallel": "tensor parallelism",
        "data_parallel": "data parallelism",
        "pipeline_parallel": "pipeline parallelism",
        "seconds": "iteration time (ms)",
    }
    runs, _ = read_run_table(FILES / "vtrain_single.csv", columns, {}, {})
    levels = {"framework": "megatron-lm", "model": "gpt"}
    stated = Statement(source="s", licence="l", devices_per_node=8, levels=levels)
    (finding,) = run_checks([complete_run(one_run, stated, "step") for one_run in runs], "step")
    assert finding.code == "too-exact" and "2 series" in finding.text


@pytest.mark.parametrize(("spread", "expected"), [(0.0, ["too-exact"]), (1e-7, ["too-exact"]), (3e-4, [])])
def test_times_on_straight_lines_were_computed(spread: float, expected: list[str]) -> None:
    # As vTrain's table: a constant and a time of each micro-batch, for three batches of a device.
    runs = [
        run(
            f"line {batch} {count}",
            local_batch=float(batch),
            sync_every=count,
            global_batch=8.0 * batch * count,
            seconds=round(
                (0.05 + 0.031 * batch * count) * (1 + spread * (1 if count in (2, 8) else -1) * batch), 9
            ),
        )
        for batch in (1, 2, 4)
        for count in (2, 4, 8, 16)
    ]
    assert codes(runs) == expected


def test_batch_that_is_not_the_product_is_found() -> None:
    assert codes([run(local_batch=8.0, sync_every=2, seconds=0.5)]) == ["step-count"]
    content = {**BASE, "nodes": 1, "global_batch": 300.0, "seconds": 0.5}
    del content["sync_every"]
    assert codes([complete_run(Measurement("a", content), STATED, "step")]) == ["step-count"]
    statement = Statement(source="s", licence="l", levels={"sync_every": 4})
    runs = [complete_run(Measurement("a", content | {"global_batch": 64.0}), statement, "step")]
    assert codes(runs) == ["step-count"], "what is stated contradicts the file"
    pipeline = run(local_batch=1.0, sync_every=64, pipeline_parallel=8, seconds=0.5)
    assert codes([pipeline]) == []
    assert codes([run(local_batch=7.875, seconds=0.5)]) == ["step-count"]
    assert codes([run(local_batch=7.9999, seconds=0.5)]) == []


def test_parallelism_that_changes_along_a_series_is_found() -> None:
    changing = [
        run(nodes=1, tensor_parallel=4, local_batch=32.0, seconds=0.5),
        run(nodes=2, tensor_parallel=8, local_batch=64.0, seconds=0.52),
    ]
    assert codes(changing) == ["parallelism-changes"]
    context = [
        run(nodes=n, context_parallel=c, local_batch=8.0 * c, seconds=0.5) for n, c in ((1, 2), (2, 4))
    ]
    assert codes(context) == ["parallelism-changes"]
    devices = [run(nodes=n, device=device, seconds=0.5) for n, device in ((1, "A100"), (2, "H100"))]
    assert codes(devices) == ["parallelism-changes"]
    crossed = [
        run(nodes=nodes, tensor_parallel=tensor, local_batch=8.0 * tensor, seconds=0.5)
        for nodes in (1, 2)
        for tensor in (2, 4)
    ]
    assert codes(crossed) == []


def test_replicates_of_two_systems_are_found() -> None:
    runs = [run("a", device="A100-80GB", seconds=0.5), run("b", device="H100", seconds=0.4)]
    assert codes(runs) == ["mixed-cell"]
    assert (
        codes([run("a", device="A100-80GB", seconds=0.5), run("b", device="A100-80GB", seconds=0.51)]) == []
    )
    contexts = [
        run(path, nodes=2, context_parallel=size, global_batch=64.0, local_batch=4.0 * size, seconds=seconds)
        for path, size, seconds in (("a", 1, 0.5), ("b", 2, 0.6))
    ]
    assert "mixed-cell" in codes(contexts)


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.55, ["off-curve"]), (0.45, ["off-curve"]), (0.525, []), (0.51, [])]
)
def test_place_off_the_curve_is_found(seconds: float, expected: list[str]) -> None:
    series = {1: 0.5, 2: 0.505, 4: seconds, 8: 0.515}
    assert codes([run(f"n{nodes}", nodes=nodes, seconds=time) for nodes, time in series.items()]) == expected


def test_time_to_train_on_a_lattice_is_found() -> None:
    runs = [
        run(f"r{number}", time="run", run_s=95.0 * evaluations + number / 10, evaluations=evaluations)
        for number, evaluations in enumerate((5, 6, 6, 7, 6, 5))
    ]
    assert codes(runs, "run") == ["lattice"]
    assert codes([run(f"r{n}", time="run", run_s=600.0 + n, evaluations=6) for n in range(6)], "run") == []
    scattered = zip((5, 6, 6, 7, 6, 5), (500.0, 520.0, 620.0, 610.0, 560.0, 570.0), strict=True)
    runs = [
        run(f"r{n}", time="run", run_s=time, evaluations=count) for n, (count, time) in enumerate(scattered)
    ]
    assert codes(runs, "run") == []


def test_log_that_was_copied_is_found() -> None:
    steps = tuple(Step(n, 0.4 + n / 1000) for n in range(5))
    assert codes([run("a.log", steps), run("b.log", steps)]) == ["same-run-twice"]
    assert codes([run("a.log", steps), run("b.log", steps[1:])]) == []


def test_batches_of_sharded_replicas_count_all() -> None:
    sharded = {"sharded_parallel": 8, "data_parallel": 1}
    assert codes([run(local_batch=8.0, seconds=0.5, **sharded)]) == []
    assert codes([run(local_batch=64.0, seconds=0.5, **sharded)]) == ["step-count"]


def test_wide_spread_is_no_place_off_the_curve() -> None:
    series = {1: (0.5, 0.5), 2: (0.505, 0.505), 4: (0.50, 0.62), 8: (0.515, 0.515)}
    runs = [run(f"n{nodes}", nodes=nodes, seconds=time) for nodes, times in series.items() for time in times]
    assert codes(runs) == []
