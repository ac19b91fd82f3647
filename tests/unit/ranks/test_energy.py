"""Energy: counters of the kernel and of vendors' libraries, valid windows, and power over time."""

import csv
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ranks.worker import energy
from ranks.worker.energy import (
    NVML,
    NVML_POWER,
    RAPL,
    EnergyMeter,
    Integrated,
    Meters,
    Package,
    combine_meters,
    widest_scope,
)

RANGE_UJ = 262_143_328_850


def zone(folder: Path, name: str, energy_uj: int | None, range_uj: int = RANGE_UJ) -> Path:
    """Create a zone of Linux's powercap, without a counter if the energy is None."""
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
    if energy_uj is not None:
        (folder / "energy_uj").write_text(f"{energy_uj}\n")
    return folder


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create two packages with cores and memory, and the platform around them, as on a dual-socket server."""
    folder = tmp_path / "powercap"
    for number in (0, 1):
        package = zone(folder / f"intel-rapl:{number}", f"package-{number}", 1_000_000 * (number + 1))
        zone(folder / f"intel-rapl:{number}:0", "core", 700_000)
        zone(folder / f"intel-rapl:{number}:1", "dram", 900_000)
        (package / f"intel-rapl:{number}:0").mkdir()
    zone(folder / "intel-rapl:2", "psys", 50_000_000)
    zone(folder / "intel-rapl-mmio:0", "package-0", 3_000_000)
    (folder / "intel-rapl").mkdir()
    monkeypatch.setattr(energy, "POWERCAP", folder)
    return folder


def test_energy_of_packages_is_that_of_all_and_nothing_twice(powercap: Path) -> None:
    meter = Meters([])
    assert meter.read() == {"package": pytest.approx(3.0)}, (
        "joules of packages 0 and 1: no cores, memory, platform or second interface"
    )
    (powercap / "intel-rapl:1" / "energy_uj").write_text("7500000\n")
    assert meter.read() == {"package": pytest.approx(8.5)}
    (entry,) = meter.describe()
    assert [entry[key] for key in ("source", "scope", "method", "reason")] == [
        "rapl",
        "package",
        "counter",
        None,
    ]


def test_a_counter_that_wraps_around_goes_on(tmp_path: Path) -> None:
    package = Package(zone(tmp_path / "intel-rapl:0", "package-0", RANGE_UJ - 2_000_000))
    before = package()
    for now in (1_000_000, RANGE_UJ - 1_000_000, 500_000):  # wraps twice
        (tmp_path / "intel-rapl:0" / "energy_uj").write_text(f"{now}\n")
        after = package()
    assert after - before == pytest.approx((2 * RANGE_UJ + 500_000 - (RANGE_UJ - 2_000_000)) / 1e6)


def test_unreadable_package_gives_a_reason_instead_of_energy(powercap: Path) -> None:
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    meter = Meters([])
    assert meter.read() == {}, "one package is not the machine"
    (entry,) = meter.describe()
    assert (
        entry["source"] == "rapl"
        and "cannot be read" in entry["reason"]
        and "intel-rapl:1" in entry["reason"]
    )


def test_machine_without_meters_reports_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "nothing")
    meter, threads = Meters([]), threading.active_count()
    meter.sample(tmp_path / "power.csv")
    assert (meter.read(), meter.describe()) == ({}, [])
    assert not (tmp_path / "power.csv").exists() and threading.active_count() == threads


@pytest.mark.parametrize(
    ("joules", "seconds", "reason"),
    [
        (50.0, 1.0, None),
        (50.0, 0.9, "an epoch of 0.9 s is shorter than the 1 s that nvml can resolve (new every 0.1 s)"),
        (0.0, 5.0, "the counter of nvml did not move"),
        (-4.0, 5.0, "the counter of nvml did not move"),
        (0.005, 5.0, "an epoch of 0.005 J is less than nvml can resolve (0.001 J)"),
        (None, 5.0, "nvml stopped reporting"),
    ],
)
def test_a_window_that_a_meter_cannot_resolve_has_a_reason(
    joules: float | None, seconds: float, reason: str | None
) -> None:
    assert NVML.rejection_reason(joules, seconds) == reason


def test_power_that_grows_is_integrated_by_trapezoids() -> None:
    start = time.monotonic()
    meter = Integrated(lambda: 100 * (time.monotonic() - start), 0.02)
    began = time.monotonic() - start
    before = meter()
    time.sleep(0.3)
    joules, ended = meter() - before, time.monotonic() - start
    assert joules == pytest.approx(50 * (ended**2 - began**2), rel=0.05)


# The vendors' libraries: tests/gpu/test_nvml.py and test_amd_smi.py.


def old_amdsmi(counted: list[int]) -> ModuleType:
    """Return amdsmi as before version 6.2: another name for the counter, no numbers of HIP."""
    library = ModuleType("amdsmi")
    for function, does in {
        "amdsmi_init": lambda: None,
        "amdsmi_get_processor_handles": lambda: list(range(len(counted))),
        "amdsmi_get_energy_count": lambda handle: {"power": counted[handle], "counter_resolution": 15.259},
    }.items():
        setattr(library, function, does)
    return library


def test_a_run_on_accelerators_asks_whoever_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "nothing")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    meter = Meters(["0"])
    assert meter.read() == {} and [entry["source"] for entry in meter.describe()] == ["nvml", "amd-smi"]
    assert all("cannot be read: ModuleNotFoundError" in entry["reason"] for entry in meter.describe())
    monkeypatch.setitem(sys.modules, "amdsmi", old_amdsmi([1_000_000]))
    assert Meters(["0"]).read() == {"device": pytest.approx(15.259)}


# Meters in a run's record.


def make_entries(reason: str | None = None, kind: energy.MeterKind = RAPL) -> list[dict[str, Any]]:
    return [energy.entry(kind, reason)]


def test_meters_of_machines_are_joined_and_missing_ones_named() -> None:
    (combined,) = combine_meters([("a", make_entries()), ("b", make_entries())])
    assert combined["reason"] is None and combined["window"] == "epochs"
    assert (
        combine_meters([("a", make_entries()), ("b", make_entries("too short"))])[0]["reason"]
        == "b: too short"
    )
    assert combine_meters([("a", make_entries()), ("b", [])])[0]["reason"] == "1 of 2 machines have it"
    assert combine_meters([("a", make_entries("too short"))])[0]["reason"] == "too short"
    joined = combine_meters([("a", make_entries() + make_entries(kind=NVML))])
    assert [meter["source"] for meter in joined] == ["rapl", "nvml"]


@pytest.mark.parametrize(
    ("scopes", "device", "scope"),
    [
        ("device package node", "cuda", "node"),
        ("device package node", "cpu", "node"),
        ("device package", "cuda", "device"),
        ("package", "cuda", None),
        ("package", "cpu", "package"),
        ("", "cpu", None),
        ("device package", "hybrid", None),
        ("device package node", "hybrid", "node"),
    ],
)
def test_response_is_the_widest_scope_with_accelerators(scopes: str, device: str, scope: str | None) -> None:
    energies = {f"energy_{name}_j": 1.0 if name in scopes.split() else None for name in energy.SCOPES}
    assert widest_scope(energies, device) == scope


def test_gap_between_power_samples_gives_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ranks.worker.energy.every", lambda *_: None)
    now = [0.0]
    monkeypatch.setattr("ranks.worker.energy.time.monotonic", lambda: now[0])
    meter = EnergyMeter(NVML_POWER, [Integrated(lambda: 50.0, 0.1)])
    now[0] = 1.0
    assert meter.joules() == pytest.approx(50.0)
    now[0] = 60.0
    assert meter.joules() is None


def test_a_counter_that_was_reset_tells_nothing_from_then_on(powercap: Path) -> None:
    meter = Meters([])
    (powercap / "intel-rapl:1" / "energy_uj").write_text("90000000000\n")
    assert meter.read() == {"package": pytest.approx(90_001.0)}
    (powercap / "intel-rapl:1" / "energy_uj").write_text("1000000\n")  # a wrap would be 170 kJ at once
    assert meter.read() == {"package": None}
    (powercap / "intel-rapl:1" / "energy_uj").write_text("2000000\n")
    assert meter.read() == {"package": None}


def test_power_is_what_counters_went_up_by_whatever_the_clock(
    powercap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Callable[[], object]] = []
    monkeypatch.setattr(energy, "every", lambda _, call: lines.append(call))
    now, set_by = [0.0], [0.0]
    monkeypatch.setattr(energy.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(energy.time, "time", lambda: 1e9 + now[0] + set_by[0])
    Meters([]).sample(tmp_path / "power.csv")
    for second in (1, 2, 3):
        now[0], set_by[0] = float(second), -3600.0 if second == 2 else 0.0
        (powercap / "intel-rapl:0" / "energy_uj").write_text(f"{1_000_000 + 30_000_000 * second}\n")
        lines[0]()
    rows = list(csv.DictReader((tmp_path / "power.csv").read_text().splitlines()))
    assert [float(row["watt"]) for row in rows] == [30.0] * 3 and {row["scope"] for row in rows} == {
        "package"
    }
    assert float(rows[0]["t"]) == pytest.approx(1e9 + 0.5), "Unix time"
