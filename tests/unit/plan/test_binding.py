"""Results belong to the first site and machine that measure for them; any other one is refused."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from common.notes import Note
from common.program_sources import SCRIPTS
from declared.site import Site, load_site
from declared.study import load_study
from launchers import launch
from launchers.protocol import AttemptLost
from network import measure as benchmarking
from plan import binding
from plan.binding import bind_results, check_bound, machine_id
from plan.collective_benchmarks import planned_benchmarks
from plan.design import plan_design
from plan.identity import plan_run
from runs import attempts, other_measurements, supervise
from runs.interruptions import AttemptStopped
from support.one_run import one_run

ROUNDS = 40
# Binds the results that a line names for the site that the argument names, again and again; says what came of
# it.
BIND = """\
import sys
from dataclasses import replace
from pathlib import Path
from common.errors import exit_status
from plan import binding
from plan.binding import bind_results
from declared.site import load_site
site = replace(load_site("local"), name=sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    print(exit_status(lambda: bind_results(Path(line.strip()), "quickstart", site)), flush=True)
"""


def test_of_two_that_come_at_once_one_binds(tmp_path: Path) -> None:
    sites = ("alpine", "boreal")
    processes = {
        site: subprocess.Popen(
            [sys.executable, "-c", BIND, site],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PYTHONPATH": str(SCRIPTS)},
        )
        for site in sites
    }  # fmt: skip
    for process in processes.values():
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    losers = []
    for number in range(ROUNDS):
        results = tmp_path / f"results-{number}"
        for process in processes.values():
            assert process.stdin is not None
            process.stdin.write(f"{results}\n")
            process.stdin.flush()
        ended = {
            site: process.stdout.readline().strip() for site, process in processes.items() if process.stdout
        }
        assert sorted(ended.values()) == ["0", "2"]
        bound = json.loads((results / "campaign.json").read_text())
        assert ended[bound["site"]] == "0" and [path.name for path in results.iterdir()] == ["campaign.json"]
        losers.append((next(site for site in sites if site != bound["site"]), bound["site"]))
    for site, process in processes.items():
        _, stderr_text = process.communicate()
        firsts = [first for second, first in losers if second == site]
        for line, first in zip(stderr_text.splitlines(), firsts, strict=True):
            assert line.endswith("[other-place]") and first in line and site in line


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What is there to measure with, so that every attempt that starts notes here whether its results were
    bound.
    """
    bound_states: list[bool] = []

    def attempt(*arguments: Any) -> None:
        bound_states.append((tmp_path / "campaign.json").exists())
        raise AttemptStopped("the test")

    monkeypatch.setenv("RINGSIDE_LOCK", str(tmp_path / "machine.lock"))
    monkeypatch.setattr(launch, "make_launcher", lambda site, spec, mpi=False, setup=(): None)
    monkeypatch.setattr(supervise, "check_data", lambda folder, dataset: None)
    for module in (supervise, other_measurements):
        monkeypatch.setattr(module, "read_built", lambda stamp: {})
    monkeypatch.setattr(supervise, "run_attempt", attempt)
    monkeypatch.setattr(benchmarking, "KIND", replace(benchmarking.KIND, measure=attempt))
    return bound_states


def run(site: Site, results: Path) -> None:
    levels = {
        "framework": "pytorch-ddp",
        "model": "small-cnn",
        "dataset": "digits",
        "batch_size": 32,
        "nodes": 2,
        "sync_every": 1,
    }
    planned_run, _ = one_run(site, **levels)
    supervise.supervise(plan_run(load_study("quickstart"), site, planned_run), results, "session")


def benchmark(site: Site, results: Path) -> None:
    study = load_study("quickstart")
    planned = planned_benchmarks(plan_design(study, site), site)[0]
    benchmarking.KIND.reuse_or_measure(study, site, planned, results)


@pytest.mark.parametrize("start", [run, benchmark])
def test_results_are_bound_before_anything_is_measured(
    tmp_path: Path, measured: list[bool], start: Any
) -> None:
    with pytest.raises(AttemptStopped):
        start(load_site("local"), tmp_path)
    assert measured == [True]


@pytest.mark.parametrize("start", [run, benchmark])
def test_nothing_is_measured_where_another_site_was_first(
    tmp_path: Path, measured: list[bool], start: Any
) -> None:
    bind_results(tmp_path, "quickstart", replace(load_site("local"), name="elsewhere"))
    with pytest.raises(InputError) as refused:
        start(load_site("local"), tmp_path)
    assert (refused.value.code, refused.value.got) == ("other-place", {"site": "elsewhere"})
    assert measured == [] and not list(tmp_path.rglob("attempt-*"))


def test_a_launcher_that_is_lost_leaves_the_attempts_reason(
    tmp_path: Path, measured: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object, **__: object) -> None:
        raise AttemptLost(Note("scheduler-silent", "scontrol: no answer"))

    monkeypatch.setattr(launch, "make_launcher", lose)
    for start in (run, benchmark):
        with pytest.raises(AttemptLost):
            start(load_site("local"), tmp_path)
    reasons = [attempts.attempts_without_record(folder.parent) for folder in tmp_path.rglob("attempt-1")]
    assert reasons == [[{"attempt": 1, "reason": "lost: scontrol: no answer"}]] * 2
    assert measured == []


def renamed(results: Path, **changes: Any) -> None:
    """Results that were bound under another name of the machine."""
    file = results / "campaign.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "machine": "other-container", **changes}))


def test_a_machine_is_known_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "machine_id", lambda: "0123456789abcdef")
    site = load_site("local")
    bind_results(tmp_path, "quickstart", site)
    renamed(tmp_path)
    assert check_bound(tmp_path, site)
    for current_id in ("fedcba9876543210", None):
        renamed(tmp_path, machine_id=current_id)
        with pytest.raises(InputError) as refused:
            check_bound(tmp_path, site)
        assert refused.value.code == "other-place"


def test_a_machine_id_is_of_number_and_processor(tmp_path: Path) -> None:
    number, cpuinfo = tmp_path / "machine-id", tmp_path / "cpuinfo"
    number.write_text("8f6c\n")
    machine_ids = set()
    for model in ("AMD EPYC 7R13", "Intel Xeon"):
        cpuinfo.write_text(f"processor: 0\nmodel name: {model}\nmodel name: {model}\n")
        machine_ids.add(machine_id(number, cpuinfo))
    assert len(machine_ids) == 2 and "8f6c" not in "".join(map(str, machine_ids))
    number.write_text("")
    assert machine_id(number, cpuinfo) is None and machine_id(tmp_path / "absent", cpuinfo) is None
