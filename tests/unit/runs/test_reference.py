"""The reference benchmark runs on the cores of a run's ranks, waits for a quiet machine, and fails no run."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.notes import Note
from common.program_sources import SCRIPTS
from declared.site import load_site
from declared.study import load_study
from launchers import launch
from launchers.protocol import AttemptLost, Launcher
from plan.design import plan_design
from plan.identity import plan_run
from ranks.reference_work import DEFAULT_KIND, KINDS
from runs import reference, supervise
from runs.interruptions import AttemptStopped
from runs.reference import ReferenceTime, earlier_times, geometry, measure_before, run_benchmark, usual_band
from support.one_run import one_run

NODE_LOST = Note("node-unreachable", "a node is gone")
SITE = replace(load_site("local"), cores=2, ranks_per_node=1)
KIND = f"{DEFAULT_KIND}-{KINDS[DEFAULT_KIND].version}"


def spec(**changes: Any) -> dict[str, Any]:
    levels = {
        "framework": "pytorch-ddp",
        "model": "small-cnn",
        "dataset": "digits",
        "batch_size": 8,
        "sync_every": 1,
    }
    return {**one_run(SITE, nodes=2, **levels)[1], **changes}


def benchmark_times(*seconds: float) -> Callable[[], ReferenceTime]:
    """Return a benchmark that takes these times in turn, s."""
    times: Iterator[float] = iter(seconds)
    return lambda: ReferenceTime(KIND, {"node1": next(times)}, None)


@pytest.mark.training
def test_reference_runs_once_per_node_on_the_cores_of_its_ranks(
    tmp_path: Path, real: Callable[[str], Any]
) -> None:
    environment, run_spec = real("pytorch"), spec()
    result = run_benchmark(tmp_path / "reference-before", run_spec, ["torch"], environment, SITE)
    assert result.kind == KIND and result.reason is None
    assert result.times is not None and list(result.times) == ["node1", "node2"]
    assert all(0.02 < seconds < 30 for seconds in result.times.values())
    assert list(tmp_path.iterdir()) == []


ON_A_DEVICE = """
from types import SimpleNamespace
import torch
torch.cuda.device_count = lambda: 4
from ranks import reference_work as work
work.DEVICE_SIDE = 8
work.KINDS["accelerator"] = work.WorkKind(version=1, steps=3, products=2, updated_mib=1)
spec = {"device": "cuda", "replicas_per_rank": 2}
devices, work.on_an_accelerator, made = [], lambda kind, device: devices.append(device) or made(kind, "cpu"), work.on_an_accelerator
context = SimpleNamespace(spec=spec, rank_input={"modules": ["torch"]}, local_rank=1, accelerators=[0, 1, 2, 3])
workers = work.workers_of(context, work.KINDS["accelerator"])
for steps in workers:
    steps(3)
print(work.works_on_accelerators(context), devices)
"""


@pytest.mark.training
def test_reference_on_accelerators_uses_pytorch(real: Callable[[str], Any]) -> None:
    python = real("pytorch")["python"]["executable"]
    done = subprocess.run(
        [python, "-c", ON_A_DEVICE],
        env={"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True ['cuda:2', 'cuda:3']\n", done.stderr


@pytest.mark.parametrize(
    "program, code, facts",
    [
        ("raise SystemExit('no numpy')", "rank-failed", {"rank": 0, "host": None, "exit_status": 1}),
        ("", "program-error", {"error": "FileNotFoundError"}),
    ],
)
def test_failed_reference_has_no_time_and_keeps_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, code: str, facts: dict[str, Any]
) -> None:
    (tmp_path / "failing.py").write_text(program)
    monkeypatch.setattr(reference, "PROGRAM", "failing")
    run_spec = spec(nodes=1, ranks=1)
    environment = {"python": {"executable": sys.executable}, "variables": {"PYTHONPATH": str(tmp_path)}}
    folder = tmp_path / "reference-before"
    result = run_benchmark(folder, run_spec, [], environment, SITE)
    assert (result.kind, result.times) == (None, None) and result.reason is not None
    assert (result.reason.code, result.reason.facts) == (code, facts) and result.reason.startswith(
        "reference-before: "
    )
    assert (folder / "log.txt").exists()


@pytest.mark.parametrize("stopped", [AttemptStopped("SIGTERM"), AttemptLost(NODE_LOST)])
def test_run_stopped_or_lost_before_it_begins_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: Exception
) -> None:
    def make_launcher(*_: object, setup: object) -> Launcher:
        raise stopped

    monkeypatch.setattr(launch, "make_launcher", make_launcher)
    with pytest.raises(type(stopped)):
        run_benchmark(tmp_path / "reference-before", spec(), [], {}, SITE)


def test_node_that_is_gone_after_a_run_leaves_its_record() -> None:
    def lost() -> ReferenceTime:
        raise AttemptLost(NODE_LOST)

    entry = reference.measure_after(lost, measure_before(benchmark_times(0.3)))
    assert (entry["before"], entry["after"]) == ({"node1": 0.3}, None) and NODE_LOST in entry["reason"]
    complete = reference.measure_after(benchmark_times(0.4), measure_before(benchmark_times(0.3)))
    assert (complete["kind"], complete["after"], complete["reason"]) == (KIND, {"node1": 0.4}, None)


@pytest.mark.parametrize(
    "times, limit_s",
    [
        ([0.3] * 5, None),  # too few
        ([0.3] * 6, 0.315),
        ([0.30, 0.31, 0.32, 0.33, 0.34, 0.35, 0.36], 0.33 + 3 * 0.015 / 0.6745),
        ([0.30, 0.31, 0.32, 0.33, 0.9, 1.9, 2.9], 0.33 + 3 * 0.015 / 0.6745),  # three of seven were disturbed
    ],
)
def test_usual_band_comes_from_the_faster_half(times: Sequence[float], limit_s: float | None) -> None:
    band = usual_band(times)
    assert (band and band.max_s) == (limit_s and pytest.approx(limit_s))


EARLIER = [(KIND, 0.3)] * 6


@pytest.mark.parametrize(
    "seconds, earlier, wait_s, seen",
    [
        ((0.31,), EARLIER, 60, []),
        ((0.5, 0.4, 0.31), EARLIER, 60, [0.5, 0.4]),
        ((0.5,), EARLIER, 0, []),  # the site does not wait
        ((0.5,), [("mixed-0", 0.3)] * 6, 60, []),  # times of another version are not comparable
        ((0.5,), EARLIER[1:], 60, []),
    ],
)
def test_run_waits_until_the_benchmark_is_as_fast_as_usual(
    monkeypatch: pytest.MonkeyPatch,
    seconds: Sequence[float],
    earlier: list[tuple[str, float]],
    wait_s: float,
    seen: list[float],
) -> None:
    monkeypatch.setattr(reference, "PAUSE_S", 0.01)
    printed: list[Note] = []
    entry = measure_before(benchmark_times(*seconds), lambda: earlier, wait_s, printed.append)
    assert entry["seen"] == seen and entry["before"] == {"node1": seconds[-1]}
    assert (entry["waited_s"] >= 0.01) == bool(seen)
    facts = {"wait_s": wait_s, "took_s": 0.5, "usual_s": 0.3}
    assert [(note.code, note.facts) for note in printed] == [("waiting", facts)] * bool(seen)


def test_earlier_reference_has_equal_environment_and_geometry(tmp_path: Path) -> None:
    def record(name: str, entry: Any, environment: str = "this") -> None:
        folder = tmp_path / "runs" / name / "0123456789ab"
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(
            entry
            if isinstance(entry, str)
            else json.dumps({"reference": entry, "environment_digest": environment})
        )

    common = {"kind": KIND, "geometry": geometry(spec())}
    assert common["geometry"] == "2 x 1 x 1"
    record("both", {**common, "before": {"node1": 0.3, "node2": 0.5}, "after": {"node1": 0.2, "node2": 0.2}})
    record("one", {**common, "before": {"node1": 0.6, "node2": 0.6}, "after": None})
    record("of-one-node", {**common, "geometry": "1 x 1 x 1", "before": {"node1": 9.0}, "after": None})
    record("of-another-environment", {**common, "before": {"node1": 9.0}, "after": None}, "another")
    for name, entry in (("none", None), ("old", "{}"), ("broken", "{")):
        record(name, entry)
    assert sorted(earlier_times(tmp_path, common["geometry"], "this")) == [
        (KIND, 0.2),
        (KIND, 0.5),
        (KIND, 0.6),
    ]


def test_run_is_compared_with_records_of_its_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "PAUSE_S", 0.01)
    study = load_study("quickstart")
    planned = plan_run(study, site := replace(SITE, wait_for_quiet=60), plan_design(study, site)[0])
    run_geometry = geometry(planned.spec)
    for number in range(3):
        earlier = tmp_path / "runs" / f"run-{number}" / "0123456789ab" / "record.json"
        earlier.parent.mkdir(parents=True)
        ends = {end: {"node1": 0.3} for end in ("before", "after")}
        entry = {"reference": {"kind": KIND, "geometry": run_geometry, **ends}, **planned.digests}
        earlier.write_text(json.dumps(entry))
    benchmark = benchmark_times(0.5, 0.3)
    entry = supervise.reference_before(planned, tmp_path, lambda name: benchmark())
    assert (entry["geometry"], entry["seen"], entry["before"]) == (run_geometry, [0.5], {"node1": 0.3})
    assert capsys.readouterr().out == (
        f"{planned.run_id}: waiting for a quiet machine, 60 s at most: the reference benchmark takes 0.50 s, "
        "usually 0.30 s\n"
    )


def test_wait_for_a_busy_machine_has_the_limit_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "PAUSE_S", 0.02)
    entry = measure_before(
        lambda: ReferenceTime(KIND, {"node1": 0.5}, None), lambda: EARLIER, 0.05, lambda line: None
    )
    assert 0.05 <= entry["waited_s"] < 60 and len(entry["seen"]) >= 2 and entry["before"] == {"node1": 0.5}
