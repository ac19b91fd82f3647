"""Peak rates and memory of accelerators: the table devices.yaml, with sources.

A site or an import can state other peaks.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from common.keys import Keys, Pairs, Rules, key, load
from models.precision import AMP, BF16, FP32, TF32

TABLE = Path(__file__).with_suffix(".yaml")
# By level of the factor precision: the precisions of its products; the first one with a peak counts.
PEAK_PRECISIONS = {FP32: ("fp32",), TF32: ("tf32",), AMP: ("bf16", "fp16"), BF16: ("bf16",)}
GIB = 2**30
TERA = 1e12
_NAMED_GIB = re.compile(r"\b(\d+) ?GB\b", re.IGNORECASE)
_PART_OF_A_DEVICE = re.compile(r"\bMIG\b", re.IGNORECASE)

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
Tflops = Annotated[float, Rules("TFLOP/s", gt=0, le=10**9, exact=True)]
Peaks = Pairs[Precision, Tflops]


@dataclass(frozen=True, kw_only=True)
class Device(Keys):
    """An entry of `devices`: an accelerator, or the part of one that a rank sees as a device."""

    pattern: str = key("regular expression that matches the names of this device in NVML and AMD SMI")
    memory_gib: int = key("nominal memory, GiB; the smallest one of devices that are sold with several", ge=1)
    peak_tflops: Peaks = key("peak of dense matrix products by precision, TFLOP/s")
    source: str = key("title of a document of the maker, with its year: a key of sources")
    name: str = ""
    url: str = ""

    @property
    def memory_bytes(self) -> int:
        """Nominal memory in bytes; drivers and error correction keep up to 7 % of it."""
        return self.memory_gib * GIB


@dataclass(frozen=True, kw_only=True)
class DeviceTable(Keys):
    """The keys of devices.yaml."""

    sources: dict[str, str] = key("addresses of documents by their titles")
    devices: dict[str, Device] = key("devices by name")


@functools.cache
def load_devices() -> Mapping[str, Device]:
    """Return all devices of the table by name."""
    table = load(DeviceTable, TABLE)
    return {
        name: replace(device, name=name, url=table.sources[device.source])
        for name, device in table.devices.items()
    }


@functools.cache
def find_device(reported: str) -> Device | None:
    """Return the device with a reported name, with the memory that the name states.

    Return None for processors, parts of a GPU (MIG), and names that leave open which device it is, such as
    H100 80GB.
    """
    if _PART_OF_A_DEVICE.search(reported):
        return None
    matching = [
        device
        for device in load_devices().values()
        if re.search(device.pattern, reported, flags=re.IGNORECASE)
    ]
    if len(matching) != 1:
        return None
    named = _NAMED_GIB.search(reported)
    return replace(matching[0], memory_gib=int(named[1])) if named else matching[0]


def choose_peak(peaks: tuple[tuple[str, float], ...], level: str) -> tuple[str, float] | None:
    """Return precision of products and peak in FLOP/s for a level of `precision`, None without a peak."""
    by_precision = dict(peaks)
    for precision in PEAK_PRECISIONS.get(level, ()):
        if precision in by_precision:
            return precision, TERA * by_precision[precision]
    return None


def stated_peak(peaks: tuple[tuple[str, float], ...], level: str) -> float | None:
    """Return the stated peak in FLOP/s for a level of the factor `precision`, None without one."""
    chosen = choose_peak(peaks, level)
    return chosen[1] if chosen else None
