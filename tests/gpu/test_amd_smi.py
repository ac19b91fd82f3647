"""Energy of AMD's GPUs through their real Python binding, above a library of our own in the driver's place (amd_smi.c)."""

import ctypes
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu.compiled import compile_library
from gpu.steady_power import assert_integrates
from ranks.worker import energy
from ranks.worker.energy import AMD, AMD_POWER, Meters

SONAME = "libamd_smi.so"
UNIT_J = pytest.approx(15.259e-6, rel=1e-6)  # MI200 and MI300
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED = 2, 10, 34
GPUS = [
    (0, 3, 1_000_000, 140, "-"),
    (0, 2, 2_000_000, 150, "-"),
    (1, 1, 3_000_000, 160, "-"),
    (1, 0, 4_000_000, 170, "-"),
]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library, with all functions that the binding looks up."""
    binding = importlib.util.find_spec("amdsmi")
    assert binding and binding.origin
    text = Path(binding.origin).with_name("amdsmi_wrapper.py").read_text()
    names = sorted(set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", text)))
    return compile_library(Path(__file__).with_name("amd_smi.c"), SONAME, tmp_path_factory, names)


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that gives this process a machine with GPUs, named as in amd_smi.c; called again, it changes them."""
    ctypes.CDLL(str(library))  # The binding gets it by its name, since that is loaded.
    monkeypatch.setenv("RINGSIDE_AMD_SMI", str(tmp_path / "gpus"))
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "no-powercap")
    monkeypatch.setitem(sys.modules, "pynvml", None)

    def describe(gpus: list[tuple[object, ...]], **errors: int) -> None:
        lines = [("gpu", *gpu) for gpu in gpus] + [("error", *error) for error in errors.items()]
        (tmp_path / "gpus").write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))

    return describe


def amd_reason(run_meters: Meters) -> str:
    (reason,) = [entry["reason"] for entry in run_meters.describe() if entry["source"] == "amd-smi"]
    return str(reason)


@pytest.mark.parametrize(
    ("names", "accumulated"),
    [(["0"], 4_000_000), (["1", "2"], 5_000_000), (["0", "1", "2", "3"], 10_000_000)],
)
def test_gpus_have_the_numbers_of_hip(
    names: list[str], accumulated: int, machine: Callable[..., None]
) -> None:
    """HIP numbers these GPUs, two of a socket, against the order of their PCI addresses."""
    machine(GPUS)
    meter, refused = energy.accelerators(names)
    assert meter is not None and refused == [] and meter.kind == AMD
    joules = meter.joules()
    assert joules is not None and joules / accumulated == UNIT_J


@pytest.mark.parametrize(("current", "average"), [(300, "-"), ("-", 300)], ids=["MI300", "MI200"])
def test_without_a_counter_power_is_integrated(
    current: object, average: object, machine: Callable[..., None]
) -> None:
    machine([(0, 0, 0, current, average)], amdsmi_get_energy_count=NOT_SUPPORTED)
    meter, _ = energy.accelerators(["0"])
    assert meter is not None and meter.kind == AMD_POWER
    assert_integrates(meter, watts=300)


@pytest.mark.parametrize(
    ("name", "errors", "error"),
    [
        ("0", {"amdsmi_init": DRIVER_NOT_LOADED}, "AmdSmiLibraryException: Error code: 34 | "),
        (
            "0",
            {"amdsmi_get_energy_count": NO_PERMISSION, "amdsmi_get_power_info": NO_PERMISSION},
            "AmdSmiLibraryException: Error code: 10 | ",
        ),
        ("7", {}, "IndexError: "),
    ],
)
def test_gpu_that_cannot_be_read_gives_the_error_as_the_reason(
    name: str, errors: dict[str, int], error: str, machine: Callable[..., None]
) -> None:
    machine(GPUS, **errors)
    run_meters = Meters([name])
    assert run_meters.read() == {} and f": {error}" in amd_reason(run_meters)


def test_gpu_without_counter_and_power_has_a_reason(machine: Callable[..., None]) -> None:
    machine([(0, 0, 0, "-", "-")], amdsmi_get_energy_count=NOT_SUPPORTED)
    assert amd_reason(Meters(["0"])) == "cannot be read: LookupError: its power is unknown"
