"""Choose a rank's accelerators among those that its process sees.

A process sees either exactly the accelerators of its rank, because a scheduler or a wrapper hides the others,
or all of its node. Indices count what the process sees, as CUDA and HIP do: within CUDA_VISIBLE_DEVICES, or
within ROCR_VISIBLE_DEVICES and then HIP_VISIBLE_DEVICES.
"""

import ctypes
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ranks.worker.context import Context

NVIDIA_DRIVER = Path("/proc/driver/nvidia")
AMD_DRIVER = Path("/sys/class/kfd")
#: by vendor: variables that hide accelerators, outermost first; the first alternative that is set counts
VARIABLES = {
    "nvidia": (("CUDA_VISIBLE_DEVICES",),),
    "amd": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
}
HIDING_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
#: by vendor: the driver's library, its initialization, and its function that counts what a process sees
DRIVERS = {
    "nvidia": ("libcuda.so.1", "cuInit", "cuDeviceGetCount"),
    "amd": ("libamdhip64.so", "hipInit", "hipGetDeviceCount"),
}


class DeviceCountError(Exception):
    """A process sees neither exactly the accelerators of its rank nor all of its node."""


def device_indices(context: "Context", n_visible: int) -> list[int]:
    """Return the indices of this rank's accelerators among the `n_visible` that its process sees.

    Raises:
        DeviceCountError: If the process sees none, or fewer than its node trains on but not exactly its own.
    """
    n_own, n_node = context.spec["replicas_per_rank"], len(context.accelerators)
    if n_visible == n_own:
        return list(range(n_own))
    if n_visible >= n_node:
        first = n_own * context.local_rank
        return list(range(first, first + n_own))
    if n_visible == 0 and visible_names() != []:
        granted = [f"{name}={os.environ[name]}" for name in HIDING_VARIABLES if name in os.environ]
        raise DeviceCountError(
            f"rank {context.rank} sees no accelerator, and no variable hides them all "
            f"({' '.join(granted) or 'none is set'}): check that their driver works on this node, and that "
            "the library is built for them"
        )
    variables = " or ".join(name for names in VARIABLES[vendor()] for name in names)
    raise DeviceCountError(
        f"rank {context.rank} sees {n_visible} accelerators; expected {n_own} (its own) or at least {n_node} "
        f"(those that train on its node): check {variables}, and devices_per_node of the site"
    )


def vendor() -> str:
    """Return whose driver this node has: amd, or nvidia if it has both or none."""
    return "amd" if AMD_DRIVER.exists() and not NVIDIA_DRIVER.exists() else "nvidia"


def count_visible() -> int:
    """Return how many accelerators this process sees, from the driver's library.

    It serves libraries that cannot count accelerators before they are configured. The number is 0 on a node
    without the driver's library.
    """
    library, start, count = DRIVERS[vendor()]
    number = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return 0
    failed = getattr(driver, start)(0) or getattr(driver, count)(ctypes.byref(number))
    return 0 if failed else number.value


def visible_names(environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """Return the names of the accelerators that a process sees: numbers or UUIDs of the vendor's library.

    Return None if no variable of its `environment` hides any, so that it sees all of them.
    """
    names: list[str] | None = None
    for alternatives in VARIABLES[vendor()]:
        value = next((environment[name] for name in alternatives if name in environment), None)
        if value is None:
            continue
        listed = [name.strip() for name in value.split(",") if name.strip()]
        if "-1" in listed:  # CUDA and HIP ignore it and everything after it.
            listed = listed[: listed.index("-1")]
        if vendor() == "nvidia":
            listed = _usable_by_cuda(listed)
        outer = names
        names = (
            listed
            if outer is None
            else [
                outer[int(name)] if name.isdecimal() else name
                for name in listed
                if not name.isdecimal() or int(name) < len(outer)
            ]
        )
    return names


def _usable_by_cuda(listed: list[str]) -> list[str]:
    """Return the devices of CUDA_VISIBLE_DEVICES that CUDA uses: up to one of another kind than the first.

    The kinds are numbers and UUIDs. A process uses only one part of a GPU that MIG divides.
    """
    if listed and listed[0].startswith("MIG-"):
        return listed[:1]
    return list(itertools.takewhile(lambda name: name.isdecimal() == listed[0].isdecimal(), listed))


def rank_accelerators(context: "Context") -> list[str]:
    """Return the names of this rank's accelerators, [] if it trains on none."""
    if context.local_rank not in context.accelerators:
        return []
    names = visible_names()
    if names is None:
        names = [str(number) for number in context.accelerators]
    return [names[index] for index in device_indices(context, len(names))]


def node_accelerators(context: "Context") -> list[str]:
    """Return the names of the accelerators that train on this rank's node, in the order of ranks; collective.

    A name occurs twice if ranks are isolated from each other and each numbers its own accelerators.
    """
    if not context.accelerators:
        return []
    by_rank = context.group.all_gather(rank_accelerators(context))
    first = context.rank - context.local_rank
    return [name for names in by_rank[first : first + context.spec["ranks_per_node"]] for name in names]
