"""Read and check topologies, devices and their links, for which strategies are searched."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from common.files import CHECKOUT
from common.written import Keys, Rules, key, load, optional
from declared.configuration import unknown_name_error

FOLDER = CHECKOUT / "config" / "topologies"
MIN_GBIT_S = 0.01  # of a link: searches count a step's picoseconds in 64 bits


def _share(meaning: str) -> Any:
    return key(f"the share of the peak that {meaning} reach", default=1, gt=0, le=10)


@dataclass(frozen=True)
class ReachedKeys(Keys):
    """The key `reached`; a share is more than 1 if fast algorithms need fewer operations than are counted."""

    convolution: float = _share("convolutions with strides or windows of 1 x 1")
    wide_convolution: float = _share("convolutions with unit stride and windows of 3 x 3 and more")
    dense: float = _share("dense layers")
    attention: float = _share("the heads of attention")
    recurrent: float = _share("LSTMs")
    large: float | None = optional(
        "the share of the peak that dense layers reach which are large in all dimensions; meshes are "
        "simulated with it, and smaller layers reach less",
        gt=0,
        le=1,
    )
    memory: float = key("the share of memory_gb_s that is reached", default=1, gt=0, le=1)


@dataclass(frozen=True)
class DeviceKeys(Keys):
    """The key `device`; all devices are alike."""

    tflops: float = key(
        "floating point operations in 32 bits or TF32, in 10^12 a second, at the peak", ge=1e-6, le=1e9
    )
    memory_gb_s: float = key("what it reads and writes of its memory, in 10^9 bytes a second", gt=0, le=1e9)
    memory_gb: float = key("memory, in 10^9 bytes", gt=0, le=1e9)
    bf16_tflops: float | None = optional("the same in bfloat16", ge=1e-6, le=1e9)
    reached: ReachedKeys = key("the shares of these that are reached", default_factory=ReachedKeys)
    launch_us: float = key(
        "what starting an operator takes at least, in microseconds", default=0, ge=0, le=1e9
    )


@dataclass(frozen=True)
class LinkKeys(Keys):
    """An entry of the key `levels`."""

    of: int = key("how many devices a node has; on the next level, how many nodes there are", ge=1, le=4096)
    gbit_s: float = key("rate of the link of each, each way, in Gbit/s", ge=MIN_GBIT_S, le=1e9)
    latency_us: float = key("of a message, in microseconds", default=0, ge=0, le=1e9)


@dataclass(frozen=True)
class TopologyKeys(Keys):
    """The keys of config/topologies/NAME.yaml."""

    title: str = key("what it is, in a few words", min_length=1)
    source: str = key("where the numbers are from", min_length=1)
    device: DeviceKeys = key("one device; all are alike")
    levels: Annotated[tuple[LinkKeys, ...], Rules(min_length=1, max_length=4)] = key(
        "links, from those between the devices of a node outwards"
    )


def topology_names(folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the names of all topologies."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


@functools.cache
def load_topology(name: str, folder: Path = FOLDER) -> TopologyKeys:
    """Return a topology of config/topologies/.

    Raises:
        InputError: If the file is missing or wrong.
    """
    file = folder / f"{name}.yaml"
    if not file.is_file():
        raise unknown_name_error(name, "--topology", "", topology_names(folder))
    return load(TopologyKeys, file)
