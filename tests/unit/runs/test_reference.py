"""The work beside a run: it is done in the places of the run's ranks, what is unusual is waited for, and no failure of it is the run's."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.notes import Note
from declared.site import load_site
from declared.study import load_study
from launchers import launch
from plan.design import plan_design
from plan.identity import plan_run
from ranks.reference_work import KINDS, USUAL
from runs import reference, supervise
from runs.reference import Took, band, before, earlier, geometry, work
from support.one_run import one_run

GONE = Note("node-unreachable", "a node is gone")
HERE = replace(load_site("local"), cores=2, ranks_per_node=1)
KIND = f"{USUAL}-{KINDS[USUAL].version}"


def spec(**changes: Any) -> dict[str, Any]:
    levels = {"framework": "pytorch-ddp", "model": "small-cnn", "dataset": "digits", "batch_size": 8, "sync_every": 1}
    return {**one_run(HERE, nodes=2, **levels)[1], **changes}


def took(*seconds: float) -> Callable[[], Took]:
    """What does the work in so many seconds, one time after the other."""
    each: Iterator[float] = iter(seconds)
    return lambda: Took(KIND, {"node1": next(each)}, None)


@pytest.mark.training
def test_the_work_is_done_once_on_each_node_in_the_cores_of_its_ranks(
    tmp_path: Path, real: Callable[[str], Any]
) -> None:
    environment, told = real("pytorch"), spec()
    found = work(tmp_path / "reference-before", told, ["torch"], environment, lambda: launch.launcher(HERE, told), HERE)
    assert found.kind == KIND and found.reason is None
    assert found.times is not None and list(found.times) == ["node1", "node2"]
    assert all(0.02 < seconds < 30 for seconds in found.times.values())
    assert list(tmp_path.iterdir()) == []


ON_A_DEVICE = """
from types import SimpleNamespace
from ranks import reference_work as work
work.DEVICE_SIDE = 8
work.KINDS["accelerator"] = work.Kind(version=1, steps=3, products=2, updated_mib=1)
spec = {"device": "cuda", "replicas_per_rank": 2}
devices, work.on_an_accelerator, made = [], lambda kind, device: devices.append(device) or made(kind, "cpu"), work.on_an_accelerator
name, workers = work.chosen(SimpleNamespace(spec=spec, job={"modules": ["torch"]}, local_rank=1, cores=1))
for steps in workers:
    steps(3)
print(name, devices)
"""


@pytest.mark.training
def test_accelerators_do_it_by_pytorch_as_far_as_a_processor_can_tell(real: Callable[[str], Any]) -> None:
    python = real("pytorch")["python"]["executable"]
    done = subprocess.run(
        [python, "-c", ON_A_DEVICE],
        env={"PYTHONPATH": str(launch.SCRIPTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "accelerator ['cuda:2', 'cuda:3']\n", done.stderr


@pytest.mark.parametrize(
    "program, code, facts",
    [
        ("raise SystemExit('no numpy')", "rank-failed", {"rank": 0, "host": None, "status": 1}),
        ("", "program-error", {"error": "FileNotFoundError"}),
    ],
)
def test_failed_reference_has_no_time_and_keeps_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, code: str, facts: dict[str, Any]
) -> None:
    (tmp_path / "failing.py").write_text(program)
    monkeypatch.setattr(reference, "PROGRAM", "failing")
    told = spec(nodes=1, ranks=1)
    environment = {"python": {"executable": sys.executable}, "variables": {"PYTHONPATH": str(tmp_path)}}
    folder = tmp_path / "reference-before"
    found = work(folder, told, [], environment, lambda: launch.launcher(HERE, told), HERE)
    assert (found.kind, found.times) == (None, None) and found.reason is not None
    assert (found.reason.code, found.reason.facts) == (code, facts) and found.reason.startswith("reference-before: ")
    assert (folder / "log.txt").exists()


@pytest.mark.parametrize("stopped", [launch.Stopped("SIGTERM"), launch.Lost(GONE)])
def test_run_stopped_or_lost_before_it_begins_is_not_made(tmp_path: Path, stopped: Exception) -> None:
    def ranks() -> launch.Launcher:
        raise stopped

    with pytest.raises(type(stopped)):
        work(tmp_path / "reference-before", spec(), [], {}, ranks, HERE)


def test_what_is_lost_after_a_run_leaves_the_run() -> None:
    def lost() -> Took:
        raise launch.Lost(GONE)

    said = reference.after(lost, before(took(0.3)))
    assert (said["before"], said["after"]) == ({"node1": 0.3}, None) and GONE in said["reason"]
    whole = reference.after(took(0.4), before(took(0.3)))
    assert (whole["kind"], whole["after"], whole["reason"]) == (KIND, {"node1": 0.4}, None)


@pytest.mark.parametrize(
    "known, most",
    [
        ([0.3] * 5, None),  # too few
        ([0.3] * 6, 0.315),
        ([0.30, 0.31, 0.32, 0.33, 0.34, 0.35, 0.36], 0.33 + 3 * 0.015 / 0.6745),
        ([0.30, 0.31, 0.32, 0.33, 0.9, 1.9, 2.9], 0.33 + 3 * 0.015 / 0.6745),  # three of seven were disturbed
    ],
)
def test_the_usual_band_is_that_of_the_quicker_half(known: Sequence[float], most: float | None) -> None:
    found = band(known)
    assert (found and found.most_s) == (most and pytest.approx(most))


KNOWN = [(KIND, 0.3)] * 6


@pytest.mark.parametrize(
    "seconds, known, wait_s, seen",
    [
        ((0.31,), KNOWN, 60, []),
        ((0.5, 0.4, 0.31), KNOWN, 60, [0.5, 0.4]),
        ((0.5,), KNOWN, 0, []),  # the site does not wait
        ((0.5,), [("mixed-0", 0.3)] * 6, 60, []),  # another version is nothing to compare with
        ((0.5,), KNOWN[1:], 60, []),
    ],
)
def test_a_run_waits_until_the_work_takes_no_longer_than_usual(
    monkeypatch: pytest.MonkeyPatch,
    seconds: Sequence[float],
    known: list[tuple[str, float]],
    wait_s: float,
    seen: list[float],
) -> None:
    monkeypatch.setattr(reference, "PAUSE_S", 0.01)
    told: list[Note] = []
    said = before(took(*seconds), lambda: known, wait_s, told.append)
    assert said["seen"] == seen and said["before"] == {"node1": seconds[-1]}
    assert (said["waited_s"] >= 0.01) == bool(seen)
    facts = {"wait_s": wait_s, "took_s": 0.5, "usual_s": 0.3}
    assert [(note.code, note.facts) for note in told] == [("waiting", facts)] * bool(seen)


def test_a_machine_that_stays_busy_is_not_waited_for_longer_than_the_site_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "PAUSE_S", 0.02)
    said = before(lambda: Took(KIND, {"node1": 0.5}, None), lambda: KNOWN, 0.05, lambda line: None)
    assert 0.05 <= said["waited_s"] < 5 and len(said["seen"]) >= 2 and said["before"] == {"node1": 0.5}


def test_earlier_work_is_that_of_the_same_environment_on_as_many_nodes_ranks_and_cores(tmp_path: Path) -> None:
    def record(name: str, said: Any, environment: str = "this") -> None:
        folder = tmp_path / "runs" / name / "0123456789ab"
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(
            said if isinstance(said, str) else json.dumps({"reference": said, "environment_digest": environment})
        )

    same = {"kind": KIND, "geometry": geometry(spec())}
    assert same["geometry"] == "2 x 1 x 1"
    record("both", {**same, "before": {"node1": 0.3, "node2": 0.5}, "after": {"node1": 0.2, "node2": 0.2}})
    record("one", {**same, "before": {"node1": 0.6, "node2": 0.6}, "after": None})
    record("of-one-node", {**same, "geometry": "1 x 1 x 1", "before": {"node1": 9.0}, "after": None})
    record("of-another-environment", {**same, "before": {"node1": 9.0}, "after": None}, "another")
    for name, said in (("none", None), ("old", "{}"), ("broken", "{")):
        record(name, said)
    assert sorted(earlier(tmp_path, same["geometry"], "this")) == [(KIND, 0.2), (KIND, 0.5), (KIND, 0.6)]


def test_a_run_is_held_against_the_records_of_its_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "PAUSE_S", 0.01)
    study = load_study("quickstart")
    wanted = plan_run(study, site := replace(HERE, wait_for_quiet=60), plan_design(study, site)[0])
    where = geometry(wanted.spec)
    for number in range(3):
        earlier = tmp_path / "runs" / f"run-{number}" / "0123456789ab" / "record.json"
        earlier.parent.mkdir(parents=True)
        ends = {end: {"node1": 0.3} for end in ("before", "after")}
        said = {"reference": {"kind": KIND, "geometry": where, **ends}, **wanted.digests}
        earlier.write_text(json.dumps(said))
    look = took(0.5, 0.3)
    said = supervise.speed_before(wanted, tmp_path, lambda name: look())
    assert (said["geometry"], said["seen"], said["before"]) == (where, [0.5], {"node1": 0.3})
    assert capsys.readouterr().out == (
        f"{wanted.run_id}: waiting for a quiet machine, 60 s at most: a fixed piece of work takes 0.50 s, usually 0.30 s\n"
    )
