"""Read and check topologies: devices and links of clusters that strategies are searched for."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from common.files import CHECKOUT
from common.keys import Keys, Rules, key, load, optional
from declared.configuration import unknown_name_error

FOLDER = CHECKOUT / "config" / "topologies"
MIN_GBIT_S = 0.01  # rate of a link; searches count picoseconds of a step in 64 bits


def _share(meaning: str) -> Any:
    return key(f"the share of the peak that {meaning} reach", default=1, gt=0, le=10)


@dataclass(frozen=True)
class ReachedKeys(Keys):
    """The key `reached`. A share is above 1 if fast algorithms need fewer operations than are counted."""

    convolution: float = _share("convolutions with strides or windows of 1 x 1")
    wide_convolution: float = _share("convolutions with unit stride and windows of 3 x 3 and more")
    dense: float = _share("dense layers")
    attention: float = _share("the heads of attention")
    recurrent: float = _share("LSTMs")
    large: float | None = optional(
        "the share of the peak that dense layers reach if all dimensions are large; simulations of meshes "
        "use it, and smaller layers reach less",
        gt=0,
        le=1,
    )
    memory: float = key("the share of memory_gb_s that is reached", default=1, gt=0, le=1)


@dataclass(frozen=True)
class DeviceKeys(Keys):
    """The key `device`; all devices are the same."""

    tflops: float = key(
        "peak rate in 32 bits or TF32, 10^12 floating point operations per second", ge=1e-6, le=1e9
    )
    memory_gb_s: float = key("bandwidth of its memory, 10^9 bytes per second", gt=0, le=1e9)
    memory_gb: float = key("memory, in 10^9 bytes", gt=0, le=1e9)
    bf16_tflops: float | None = optional(
        "peak rate in bfloat16, 10^12 floating point operations per second", ge=1e-6, le=1e9
    )
    reached: ReachedKeys = key("shares of these rates that are reached", default_factory=ReachedKeys)
    launch_us: float = key("minimum time to start an operator, microseconds", default=0, ge=0, le=1e9)


@dataclass(frozen=True)
class LinkKeys(Keys):
    """An entry of the key `levels`."""

    of: int = key("number of devices of a node; on the next level, number of nodes", ge=1, le=4096)
    gbit_s: float = key("rate of the link of each in one direction, Gbit/s", ge=MIN_GBIT_S, le=1e9)
    latency_us: float = key("latency of a message, microseconds", default=0, ge=0, le=1e9)


@dataclass(frozen=True)
class TopologyKeys(Keys):
    """The keys of config/topologies/NAME.yaml."""

    title: str = key("title of the topology", min_length=1)
    source: str = key("source of the numbers", min_length=1)
    device: DeviceKeys = key("a device; all are the same")
    levels: Annotated[tuple[LinkKeys, ...], Rules(min_length=1, max_length=4)] = key(
        "links, first between the devices of a node, then between nodes, and so on"
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
