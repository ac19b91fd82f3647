"""Describe a machine to NVIDIA's management library of the tests (nvml.c)."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

VARIABLE = "RINGSIDE_NVML"  # file that describes the machine
SONAME = "libnvidia-ml.so.1"
SOURCE = Path(__file__).with_name("nvml.c")
# Codes of nvml.h.
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST, VERSION_MISMATCH = 3, 4, 9, 15, 18
HANG = "hang"

Errors = Mapping[str, int | str]  # function, or * for each one -> code


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML sees it.

    Attributes:
        uuid: Its name.
        name: Its model.
        memory_bytes: Its memory.
        joules: What its counter says.
        watts: The power that it draws.
        mig: Whether MIG divides it, None if it cannot.
        instances: UUIDs of its parts.
        errors: What functions return instead.
    """

    uuid: str
    name: str = "NVIDIA A100-SXM4-80GB"
    memory_bytes: int = 80 * 2**30
    joules: float = 0.0
    watts: float = 60.0
    mig: bool | None = False
    instances: tuple[str, ...] = ()
    errors: Errors = field(default_factory=dict)

    def lines(self) -> list[tuple[object, ...]]:
        """Return the fields of the GPU's lines in the file."""
        mode = "-" if self.mig is None else "on" if self.mig else "off"
        counters = round(self.joules * 1e3), round(self.watts * 1e3)
        return [
            ("gpu", self.uuid, self.name, self.memory_bytes, *counters, mode),
            *(("error", function, code) for function, code in self.errors.items()),
            *(("mig", uuid, f"{self.name} MIG 1g.10gb", 10 * 2**30) for uuid in self.instances),
        ]


def a100s(count: int, **changes: object) -> list[Gpu]:
    """Return A100s whose counters are 1, 2, 4 ... kJ, and that draw 50, 60, 70 ... W."""
    return [
        replace(Gpu(f"GPU-{number:08x}", joules=1e3 * 2**number, watts=50.0 + 10 * number), **changes)  # type: ignore[arg-type]
        for number in range(count)
    ]


def describe(file: Path, gpus: Sequence[Gpu], errors: Errors | None = None, is_running: bool = False) -> None:
    """Describe the machine: its GPUs, what functions return of all of them, and whether counters grow from now on."""
    lines: list[tuple[object, ...]] = [("driver", "580.65.06")]
    if is_running:
        lines.append(("since", time.monotonic()))
    lines += [("error", function, code) for function, code in (errors or {}).items()]
    lines += [line for gpu in gpus for line in gpu.lines()]
    partial = file.with_suffix(".partial")
    partial.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    os.replace(partial, file)
