"""What nvidia-smi prints on nodes of several kinds, replayed by a program of that name, and what we make of it.

The texts have the format of drivers 470 to 580 in public issues (DataDog/datadog-agent #33120, influxdata/telegraf #5812,
pytorch/pytorch #163658 and #87464, anderskm/gputil #26 and #55, NVIDIA/open-gpu-kernel-modules #387), shortened. That a
lost or corrupted GPU leaves the lines of the others is assumed.
"""

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import accelerator
import accelerator_page as pages
from declared.site import load_site
from sites import node_report, site_file
from sites.site_values import machine_site

LIST = "--list-gpus"
MODELS = "--query-gpu=name,driver_version --format=csv,noheader"
H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"
Printed = Mapping[str, tuple[str, int]]  # arguments -> text and status


def listed(model: str, count: int) -> str:
    return "".join(
        f"GPU {i}: {model} (UUID: GPU-8932f937-d72c-4106-c12f-20bd9faed9f{i})\n" for i in range(count)
    )


def undivided(model: str, count: int, driver: str) -> Printed:
    return {LIST: (listed(model, count), 0), MODELS: (f"{model}, {driver}\n" * count, 0)}


def failing(text: str, status: int) -> Printed:
    return {LIST: (text, status), MODELS: (text, status)}


PARTS = "".join(
    f"  MIG 1g.10gb     Device  {number}: (UUID: MIG-feb88891-0321-5fef-9c87-d4af3b54259{number})\n"
    for number in range(7)
)
EIGHT = undivided(H100, 8, "580.65.06")
DIVIDED: Printed = {
    LIST: (f"{listed(A100, 1)}{PARTS}GPU 1: {A100} (UUID: GPU-d8594bd4-0fc3-8595-e355-7c98138f3b95)\n", 0),
    MODELS: (f"{A100}, 535.216.01\n" * 2, 0),
}
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    "NVIDIA driver is installed and running.\n\n"
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n"
LOST = "Unable to determine the device handle for GPU 0000:34:00.0: Unknown Error\n"
INFOROM = "WARNING: infoROM is corrupted at gpu 0000:B3:00.0\n"
CORRUPTED = {
    arguments: (text + INFOROM, 14) for arguments, (text, _) in undivided(A100, 4, "535.216.01").items()
}
ONE_LOST: Printed = {
    LIST: (f"{listed(A100, 3)}{LOST}", 255),
    MODELS: (f"{A100}, 520.61.05\n" * 3 + LOST, 255),
}


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Printed], None]:
    """A function that puts an nvidia-smi on PATH which prints these texts, and refuses other arguments."""
    monkeypatch.setattr(node_report, "_KFD", f"{tmp_path}/no-kfd")
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def put(printed: Printed) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        cases = ""
        for number, (arguments, (text, status)) in enumerate(printed.items()):
            (folder / f"{number}.txt").write_text(text)
            cases += f"{shlex.quote(arguments)}) cat {folder}/{number}.txt; exit {status};;\n"
        script = f'#!/bin/sh\ncase "$*" in\n{cases}esac\necho "Invalid combination of input arguments." >&2\nexit 2\n'
        (folder / "nvidia-smi").write_text(script)
        (folder / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    return put


@pytest.mark.parametrize(
    ("printed", "count", "reason"),
    [
        (EIGHT, 8, None),
        (DIVIDED, 1, "MIG: a program sees one of 7 parts"),
        (CORRUPTED, 4, INFOROM.strip()),
        (ONE_LOST, 3, LOST.strip()),
        (failing(NO_DRIVER, 9), 0, NO_DRIVER.strip()),
        (failing(MISMATCH, 18), 0, MISMATCH.strip().replace("\n", "; ")),
        (failing("No devices were found\n", 6), 0, "No devices were found"),
        (failing("", 0), 0, "nvidia-smi ended with status 0"),
        ({}, 0, "Invalid combination of input arguments."),
    ],
    ids=["8 H100", "MIG", "infoROM", "lost", "no driver", "mismatch", "none", "silent", "old"],
)
def test_doctor_counts_the_gpus_that_programs_see(
    printed: Printed, count: int, reason: str | None, smi: Callable[[Printed], None]
) -> None:
    smi(printed)
    assert node_report.devices() == [count, reason]
    models = node_report.nvidia_models()
    assert len(models) == (2 if printed is DIVIDED else count)
    if count:
        (name,) = {line.rpartition(",")[0] for line in models}
        assert name == (H100 if printed is EIGHT else A100)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1,2,3,4,5,6,7", [8, None]),
        ("4,5", [2, "CUDA_VISIBLE_DEVICES=4,5"]),
        ("4,9,5", [1, "CUDA_VISIBLE_DEVICES=4,9,5"]),
        (
            "GPU-8932f937-d72c-4106-c12f-20bd9faed9f7",
            [1, "CUDA_VISIBLE_DEVICES=GPU-8932f937-d72c-4106-c12f-20bd9faed9f7"],
        ),
    ],
)
def test_variable_hides_gpus_from_programs_only(
    visible: str, expected: list[Any], smi: Callable[[Printed], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(EIGHT)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert node_report.devices() == expected


def test_program_that_hangs_counts_nothing(
    tmp_path: Path, smi: Callable[[Printed], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    smi({})
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 20\n")
    monkeypatch.setattr(node_report, "_TIMEOUT_S", 0.1)
    count, reason = node_report.devices()
    assert count == 0 and "timed out" in reason and node_report.nvidia_models() == []


@pytest.mark.parametrize(
    ("printed", "device", "ranks_per_node"),
    [(EIGHT, "cuda", 8), (DIVIDED, "cuda", 1), (CORRUPTED, "cuda", 4), (failing(NO_DRIVER, 9), "cpu", 1)],
)
def test_site_of_this_machine_has_its_gpus(
    printed: Printed, device: str, ranks_per_node: int, smi: Callable[[Printed], None]
) -> None:
    smi(printed)
    report = {
        "devices": node_report.devices(), "accelerators": node_report.nvidia_models(), "amd": 0, "processors": 96,
        "memory_mb": 2**20, "apptainer": None, "fuse": False, "user_namespaces": True, "modules": None,
    }  # fmt: skip
    site = site_file.load_text("mine", site_file.render_site("# head", machine_site(report)))
    assert (site.device, site.ranks_per_node, site.devices_per_node) == (
        device,
        ranks_per_node,
        ranks_per_node if device == "cuda" else 0,
    )


FORMAT = "--format=csv,noheader,nounits"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (("power.draw.instant", "power.draw"), 700.1),
        (("power.draw",), 650.0),  # a driver before 530
        ((), None),
    ],
)
def test_power_is_sampled_as_the_driver_knows_it(
    fields: tuple[str, ...],
    expected: float | None,
    smi: Callable[[Printed], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watts = {"power.draw.instant": 700.1, "power.draw": 650.0}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    printed = {}
    for name, value in watts.items():
        answer = (
            (f"{value}\n", 0) if name in fields else (f'Field "{name}" is not a valid field to query.\n\n', 2)
        )
        printed[f"--id=3 --query-gpu={name} {FORMAT}"] = answer
        line = f"2026/11/24 12:00:00.000, {value}\n"
        printed[f"--id=3 --query-gpu=timestamp,{name} {FORMAT} -lms 100"] = (line, 0)
    smi(printed)
    rig: Any = accelerator.Rig(replace(load_site("local"), device="cuda"), {}, tmp_path, 0.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with accelerator.power_of(rig) as file:
        latest = time.monotonic() + 5
        while fields and not file.read_text() and time.monotonic() < latest:
            time.sleep(0.01)
    samples = pages.powers(file.read_text())
    assert [power for _, power in samples] == ([expected] if expected else [])
