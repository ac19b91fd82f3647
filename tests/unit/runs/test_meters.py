"""Energy from the meters of a machine and from a wattmeter service gets into the record of a run."""

import csv
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.program_sources import SCRIPTS
from common.schemas import schema
from datasets.prepare import prepare
from declared.site import Site, load_site
from launchers import launch
from ranks.worker.epoch_timer import COLUMNS
from runs import meters
from runs.epochs import read_epochs
from runs.rank_input import rank_input
from runs.rank_summary import epoch_energy, summarize_ranks
from support.kwollect import Kwollect, kwollect
from support.one_run import one_run

WATTS, AT_SOCKET_W = 40.0, 65.0  # of the package (metered.py), of the node
DATA = "synthetic-16x16x1-10-1024"
LEVELS = {
    "framework": "pytorch-ddp", "model": "small-cnn", "dataset": DATA, "nodes": 2, "batch_size": 8, "sync_every": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def environment(real: Callable[[str], Any]) -> dict[str, Any]:
    built = real("pytorch")
    path = f"{SCRIPTS}{os.pathsep}{Path(__file__).parent}"
    return {**built, "variables": {**built["variables"], "PYTHONPATH": path}}


def site(server: Kwollect) -> Site:
    return replace(load_site("local"), energy=server.meter(patience_s=3))


def trained(folder: Path, server: Kwollect, environment: dict[str, Any], **levels: Any) -> dict[str, Any]:
    """Return `measured` in the record of a run whose two ranks trained in `folder`."""
    local_site = site(server)
    run, spec = one_run(local_site, **{**LEVELS, "epochs": 3, "warmup_epochs": 1, **levels})
    folder.mkdir(parents=True)
    prepare(DATA, folder / "data")
    ranks = launch.make_launcher(local_site, spec)
    content = rank_input(spec, run.framework, environment, run.graph.to_json(), folder / "data", ranks.hosts)
    (folder / "rank_input.json").write_text(json.dumps(content))
    outcome = launch.run_ranks(ranks, environment, folder, spec, local_site, program="metered")
    assert outcome.status == "ok", (folder / "log.txt").read_text()[-3000:]
    run_meters = meters.read_after(folder, spec, local_site, ranks)
    measured = summarize_ranks(folder, 0.0, outcome.wall_s, spec, read_epochs(folder / "epochs.csv"))
    assert measured is not None and measured["warnings"] == []
    warned = json.loads((folder / "result.json").read_text())
    for number, rank in enumerate(warned["ranks"]):
        rank["warnings"] = ["UserWarning: slow", f"UserWarning: https://me:secret@host/{number}"]
    (folder / "result.json").write_text(json.dumps(warned))
    of_both = summarize_ranks(folder, 0.0, outcome.wall_s, spec, read_epochs(folder / "epochs.csv"))
    hidden = [f"UserWarning: https://***@host/{number}" for number in range(2)]
    assert of_both is not None and of_both["warnings"] == ["UserWarning: slow", *hidden]
    return {**measured, "meters": run_meters}


@pytest.mark.training
def test_run_records_each_scope_and_its_power_over_time(tmp_path: Path, environment: dict[str, Any]) -> None:
    with kwollect(lambda node, at: AT_SOCKET_W) as server:
        server.period_s = 0.02
        measured = trained(tmp_path / "run", server, environment)
    epochs = read_epochs(tmp_path / "run" / "epochs.csv")
    for row in epochs:
        assert row["energy_package_j"] == pytest.approx(WATTS * row["closed_time_s"], rel=0.1)
        assert row["energy_node_j"] == pytest.approx(AT_SOCKET_W * row["closed_time_s"], rel=0.01)
        assert row["energy_device_j"] is None
    assert measured["energy_scope"] == "node" and measured["energy_j"] == measured["energy_node_j"]
    opened = [row["opened_at"] for row in epochs]
    for before, after, row in zip(opened, opened[1:], epochs, strict=False):
        assert after - before >= row["closed_time_s"]
    assert [(meter["source"], meter["scope"], meter["reason"]) for meter in measured["meters"]] == [
        ("rapl", "package", None),
        ("wattmeter", "node", None),
    ]
    assert set(measured["meters"][0]) == set(_meters_schema())
    power = list(csv.DictReader((tmp_path / "run" / "power.csv").read_text().splitlines()))
    rows_of = {scope: [row for row in power if row["scope"] == scope] for scope in ("package", "node")}
    assert {row["host"] for row in power} == {os.uname().nodename.split(".")[0], os.uname().nodename}
    package = sorted(float(row["watt"]) for row in rows_of["package"])
    assert package[len(package) // 2] == pytest.approx(WATTS, rel=0.1) and len(rows_of["node"]) > 20
    assert [float(row["t"]) for row in power] == sorted(float(row["t"]) for row in power)


def _meters_schema() -> dict[str, Any]:
    items: dict[str, Any] = schema("record")["properties"]["measured"]["properties"]["meters"]["items"][
        "properties"
    ]
    return items


@pytest.mark.training
def test_unreachable_wattmeters_do_not_fail_a_run(tmp_path: Path, environment: dict[str, Any]) -> None:
    with kwollect(lambda node, at: AT_SOCKET_W) as server:
        server.broken = [(503, b"")] * 100
        measured = trained(tmp_path / "run", server, environment, batch_size=64)
    rapl, wattmeter = measured["meters"]
    assert measured["energy_scope"] == "package" and measured["energy_node_j"] is None
    assert rapl["reason"] is None and "503" in wattmeter["reason"]


@pytest.mark.training
def test_idle_power_is_measured_once_for_a_session(
    tmp_path: Path, environment: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters, "IDLE", "metered")
    with kwollect(lambda node, at: 50.0) as server:
        local_site = site(server)
        _, spec = one_run(local_site, **LEVELS)
        powers = [meters.idle_power(tmp_path, name, local_site, spec, environment) for name in "aab"]
    assert powers[0] == powers[1] and powers[2] is not None
    for idle in powers:
        assert idle["device"] is None and 0 < idle["package"] < 1.1 * WATTS, (
            "on a busy machine the counter of the test itself is late"
        )
    content = json.loads((tmp_path / "idle" / "a" / "cpu" / "idle.json").read_text())
    assert len(content["hosts"]) == 2 and {meter["source"] for meter in content["meters"]} >= {"rapl"}
    assert sorted(path.name for path in (tmp_path / "idle").iterdir()) == ["a", "b"]


def test_idle_power_without_meters_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "packages", list)
    local_site = load_site("local")
    _, spec = one_run(local_site, **LEVELS)
    monkeypatch.setattr(launch, "make_launcher", pytest.fail)
    assert meters.idle_power(tmp_path, "a", local_site, spec, {}) is None
    assert list(tmp_path.iterdir()) == []


def test_run_has_the_widest_scope_that_all_timed_epochs_have() -> None:
    epochs = [
        {"warm_up": True, "energy_device_j": 9.0, "energy_package_j": 9.0, "energy_node_j": None},
        {"warm_up": False, "energy_device_j": 3.0, "energy_package_j": 7.0, "energy_node_j": 5.0},
        {"warm_up": False, "energy_device_j": 4.0, "energy_package_j": 8.0, "energy_node_j": None},
    ]
    assert epoch_energy(epochs, "cuda") == {
        "energy_device_j": 3.5, "energy_package_j": 7.5, "energy_node_j": None, "energy_j": 3.5,
        "energy_scope": "device",
    }  # fmt: skip
    assert epoch_energy(epochs, "cpu")["energy_scope"] == "package"


def test_only_a_node_scope_covers_processors_and_accelerators() -> None:
    energies_j = {"warm_up": False, "energy_device_j": 3.0, "energy_package_j": 7.0}
    assert epoch_energy([energies_j | {"energy_node_j": None}], "hybrid")["energy_scope"] is None
    assert epoch_energy([energies_j | {"energy_node_j": 20.0}], "hybrid")["energy_j"] == 20.0


def test_set_clock_leaves_no_wattmeter_energy() -> None:
    with kwollect(lambda node, at: AT_SOCKET_W) as server:
        _, values, reasons, samples = meters._read_wattmeters(
            server.meter(), ["a"], [(0.0, 1.0), (1.0, 2.0)], step_s=-3600.0
        )
        assert not server.requests
    assert values == [None, None] and not samples
    assert [(reason.code, reason.facts) for reason in reasons] == [("clock-set", {"step_s": -3600.0})]


def test_a_command_without_times_of_day_has_no_wattmeter_energy(tmp_path: Path) -> None:
    rows = [{"epoch": epoch, "warm_up": "false", "epoch_time_s": 1.0} for epoch in (1, 2)]
    with open(tmp_path / "epochs.csv", "w", newline="") as table:
        writer = csv.DictWriter(table, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    result = {"ranks": [{"host": "a", "machine": "m", "meters": []}], "closed_at": 9.0, "clock_step_s": 0.0}
    (tmp_path / "result.json").write_text(json.dumps(result))
    with kwollect(lambda node, at: AT_SOCKET_W) as server:
        local_site = site(server)
        ranks = launch.make_launcher(local_site, {"nodes": 1, "ranks": 1})
        entries = meters.read_after(tmp_path, {"samples_per_epoch": 1}, local_site, ranks)
        assert not server.requests
    assert [entry["reason"] for entry in entries] == [str(meters.NO_CLOCK)]
    assert {row["energy_node_j"] for row in read_epochs(tmp_path / "epochs.csv")} == {None}


def test_unlistable_processor_meters_are_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "intel-rapl:0").mkdir()  # without a name
    monkeypatch.setattr("ranks.worker.energy.POWERCAP", tmp_path)
    monkeypatch.setattr(launch, "make_launcher", pytest.fail)
    assert meters.idle_power(tmp_path, "s", load_site("local"), {"device": "cpu"}, {}) is None
