"""Energy of NVIDIA's GPUs through their real Python binding, above a library of our own in the driver's place (nvml.c)."""

import csv
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.program_sources import SCRIPTS
from declared.site import Site
from gpu import nvml
from gpu.compiled import compile_library
from gpu.nvml import Gpu, a100s
from gpu.steady_power import assert_integrates
from launchers import launch
from ranks.worker import energy
from ranks.worker.devices import HIDING_VARIABLES
from ranks.worker.energy import NVML, NVML_POWER, Meters
from runs import meters
from runs.epochs import read_epochs
from support.installed_site import SITE
from support.one_run import one_run

TESTS = Path(__file__).resolve().parents[1]
H100 = "NVIDIA H100 80GB HBM3"
INSTANCE = "MIG-feb88891-0321-5fef-9c87-d4af3b54259e"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library, in a folder for LD_LIBRARY_PATH."""
    return compile_library(nvml.SOURCE, nvml.SONAME, tmp_path_factory)


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that gives this process a machine with GPUs; called again, it changes them."""
    ctypes.CDLL(str(library))  # The binding gets it by its name, since that is loaded.
    monkeypatch.setenv(nvml.VARIABLE, str(tmp_path / "gpus"))
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "no-powercap")
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    for name in HIDING_VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def describe(gpus: Sequence[Gpu], **changes: Any) -> None:
        nvml.describe(tmp_path / "gpus", gpus, **changes)

    return describe


def nvml_reason(run_meters: Meters) -> str:
    (reason,) = [entry["reason"] for entry in run_meters.describe() if entry["source"] == "nvml"]
    return str(reason)


@pytest.mark.parametrize(
    ("count", "names", "joules"),
    [
        (4, ["0"], 1e3),
        (4, ["2", "3"], 12e3),
        (4, ["GPU-00000003", "GPU-00000000"], 9e3),
        (8, [str(number) for number in range(8)], 255e3),
    ],
)
def test_counters_of_the_named_gpus_are_summed(
    count: int, names: list[str], joules: float, machine: Callable[..., None]
) -> None:
    machine(a100s(count))
    meter, refused = energy.accelerators(names)
    assert meter is not None and refused == []
    assert meter.kind == NVML and meter.joules() == pytest.approx(joules)


def test_window_has_the_energy_between_two_readings(machine: Callable[..., None]) -> None:
    machine([Gpu("GPU-h", H100, joules=5_000_000.125)])
    run_meters = Meters(["0"])
    before = run_meters.read()
    machine([Gpu("GPU-h", H100, joules=5_000_700.625)])
    after = run_meters.read()
    assert run_meters.between(before, after, 1.0, "an epoch") == {"device": pytest.approx(700.5)}
    assert run_meters.describe()[0]["reason"] is None
    assert run_meters.between(before, after, 0.9, "an epoch") == {"device": None}
    assert nvml_reason(run_meters).startswith("an epoch of 0.9 s is shorter than the 1 s")


def test_without_a_counter_power_is_integrated(machine: Callable[..., None]) -> None:
    no_counter = {"nvmlDeviceGetTotalEnergyConsumption": nvml.NOT_SUPPORTED}
    machine([Gpu("GPU-p", "Tesla P100-SXM2-16GB", watts=100, mig=None, errors=no_counter), *a100s(1)])
    meter, _ = energy.accelerators(["0", "1"])
    assert meter is not None and meter.kind == NVML_POWER
    assert_integrates(meter, watts=150)


def test_gpu_lost_during_a_run_ends_its_energy_with_a_reason(machine: Callable[..., None]) -> None:
    machine(a100s(2))
    run_meters = Meters(["0", "1"])
    before = run_meters.read()
    assert before == {"device": 3e3}
    machine([*a100s(1), *a100s(1, uuid="GPU-b", errors={"*": nvml.GPU_IS_LOST})])
    after = run_meters.read()
    assert after == {"device": None}, "the sum without it would be another run's"
    assert run_meters.between(before, after, 5.0, "an epoch") == {"device": None}
    assert nvml_reason(run_meters) == "nvml stopped reporting"
    assert Meters(["0"]).read() == {"device": 1e3}, "the other one still counts"


READINGS = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage")


@pytest.mark.parametrize(
    ("name", "gpu_errors", "errors", "error"),
    [
        ("0", dict.fromkeys(READINGS, nvml.NO_PERMISSION), {}, "NVMLError_NoPermission"),
        ("0", dict.fromkeys(READINGS, nvml.NOT_SUPPORTED), {}, "NVMLError_NotSupported"),
        ("0", {"*": nvml.GPU_IS_LOST}, {}, "NVMLError_GpuIsLost"),
        ("1", {}, {}, "NVMLError_InvalidArgument"),
        ("GPU-other", {}, {}, "NVMLError_NotFound"),
        ("0", {}, {"nvmlInitWithFlags": nvml.DRIVER_NOT_LOADED}, "NVMLError_DriverNotLoaded"),
        ("0", {}, {"nvmlInitWithFlags": nvml.VERSION_MISMATCH}, "NVMLError_LibRmVersionMismatch"),
    ],
)
def test_gpu_that_cannot_be_read_gives_the_error_as_the_reason(
    name: str, gpu_errors: dict[str, int], errors: dict[str, int], error: str, machine: Callable[..., None]
) -> None:
    machine(a100s(1, errors=gpu_errors), errors=errors)
    run_meters = Meters([name])
    assert run_meters.read() == {} and f": {error}: " in nvml_reason(run_meters)


def test_part_of_a_gpu_has_no_energy(machine: Callable[..., None]) -> None:
    """The counters of a GPU that MIG divides include what others do on its other parts."""
    machine([Gpu("GPU-a", joules=5.0, mig=True, instances=(INSTANCE,)), *a100s(1)])
    assert Meters(["1"]).read() == {"device": 1e3}
    for name, error in (
        ("0", "DividedError"),
        ("GPU-a", "DividedError"),
        (INSTANCE, "NVMLError_NotSupported"),
    ):
        part = Meters([name])
        assert part.read() == {} and f": {error}: " in nvml_reason(part)


def test_isolated_ranks_have_no_meter_of_gpus(machine: Callable[..., None]) -> None:
    """Each rank calls its own GPU number 0; reading number 0 twice would be another node's energy."""
    machine(a100s(2))
    isolated = Meters(["0", "0"])
    assert isolated.read() == {} and "isolated" in nvml_reason(isolated)


def test_driver_that_hangs_holds_up_no_rank(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "LIBRARY_TIMEOUT_S", 0.2)
    machine(a100s(1))
    run_meters = Meters(["0"])
    before = run_meters.read()
    machine(a100s(1, errors={"nvmlDeviceGetTotalEnergyConsumption": nvml.HANG}))
    began = time.monotonic()
    assert [run_meters.read() for _ in range(20)] == [{"device": None}] * 20
    assert time.monotonic() - began < 3.5, "it is asked once: twenty times are 4 s"
    assert run_meters.between(before, run_meters.read(), 1.0, "an epoch") == {"device": None}
    assert nvml_reason(run_meters) == "nvml stopped reporting"
    machine(a100s(1), errors={"nvmlInitWithFlags": nvml.HANG})
    assert ": TimeoutError: " in nvml_reason(Meters(["0"]))


@pytest.fixture
def node(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Site, dict[str, Any], Any]:
    """A node with 8 A100s, of which ranks use 4: site, content of rank_input.json, environment of the ranks."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    nvml.describe(tmp_path / "gpus", a100s(8), is_running=True)
    path = os.pathsep.join([str(SCRIPTS), *sys.path])
    variables = {nvml.VARIABLE: str(tmp_path / "gpus"), "PYTHONPATH": path}
    environment: Any = {"python": {"executable": sys.executable}, "variables": variables}
    site = replace(SITE, device="cuda", cores=1, nodes=1, ranks_per_node=4, time_limit_s=30.0)
    levels = {"nodes": 1, "devices_per_node": 4, "batch_size": 16, "sync_every": 1, "warmup_epochs": 1}
    planned, spec = one_run(site, framework="pytorch-ddp", model="small-cnn", dataset="digits", **levels)
    for name in HIDING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return site, {"spec": spec, "hosts": ["node1"], "model": planned.graph.to_json()}, environment


def test_epochs_of_a_run_have_the_energy_of_its_gpus(
    node: tuple[Site, dict[str, Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of eight GPUs are visible, which draw 90, 100, 110 and 120 W."""
    site, content, environment = node
    spec = content["spec"]
    uuids = [gpu.uuid for gpu in a100s(8)[4:]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(uuids))
    launcher = launch.make_launcher(site, spec)
    folder = tmp_path / "attempt"
    folder.mkdir()
    (folder / "rank_input.json").write_text(json.dumps(content))
    outcome = launch.run_ranks(launcher, environment, folder, spec, site, program="gpu.metered_rank")
    assert outcome.status == "ok", (folder / "log.txt").read_text()[-3000:]
    short, timed = read_epochs(folder / "epochs.csv")
    assert short["energy_device_j"] is None, "counters are new every 0.1 s"
    assert timed["energy_device_j"] == pytest.approx(420 * timed["closed_time_s"], rel=0.12)
    (entry,) = meters.read_after(folder, spec, site, launcher)
    assert (entry["source"], entry["scope"], entry["method"]) == ("nvml", "device", "counter")
    power = [float(row["watt"]) for row in csv.DictReader((folder / "power.csv").read_text().splitlines())]
    assert len(power) >= 3 and sum(power) / len(power) == pytest.approx(420, rel=0.2)


def test_idle_power_is_the_mean_of_the_gpus_that_train(
    node: tuple[Site, dict[str, Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs 2 to 5 of eight draw 70, 80, 90 and 100 W."""
    site, content, environment = node
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,4,5")
    monkeypatch.setattr(meters, "IDLE", "gpu.metered_rank")
    watts = meters.idle_power(tmp_path, "session", site, content["spec"], environment)
    assert watts == {"device": pytest.approx(85, rel=0.12), "package": None, "node": None}


# A number that does not exist hides those after it, which only a driver knows.
VISIBLE = [
    "",
    "0",
    "4,5",
    " 2 , 3 ",
    "1,-1,0",
    "GPU-00000003,GPU-00000001",
    "3,GPU-00000001",
    "0,1,2,3,4,5,6,7",
]
COUNT = """\
import json, os, torch
from ranks.worker.devices import visible_names
counts = []
for value in json.loads(os.environ["VALUES"]):
    os.environ["CUDA_VISIBLE_DEVICES"] = value
    counts.append([torch.cuda._device_count_nvml(), len(visible_names())])
print(json.dumps(counts))
"""


def test_variable_shows_the_gpus_that_pytorch_counts(
    library: Path, tmp_path: Path, real: Callable[[str], Any]
) -> None:
    nvml.describe(tmp_path / "gpus", a100s(8))
    variables = {
        "LD_LIBRARY_PATH": str(library.parent),
        nvml.VARIABLE: str(tmp_path / "gpus"),
        "PYTHONPATH": str(SCRIPTS),
        "VALUES": json.dumps(VISIBLE),
    }
    python = real("pytorch")["python"]["executable"]
    done = subprocess.run([python, "-c", COUNT], env=variables, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[n, n] for n in (0, 1, 2, 2, 1, 2, 1, 8)]
