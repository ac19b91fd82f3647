"""Describe a virtual cluster: its nodes, and link rate, CPU share, memory and GPUs of each."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import InputError

SUBNET = "10.213.77"
LOGIN = f"{SUBNET}.254"
MAX_NODES = 200
SCHEDULERS = {"slurm": "Slurm", "oar": "OAR"}

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)bit")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG])")
_GPUS = re.compile(r"(?:([a-z][a-z0-9_.-]*):)?([1-9]\d*)")
MAX_GPUS = 64


@dataclass(frozen=True)
class Settings:
    """Settings of a virtual cluster; None means no limit.

    Attributes:
        nodes: Number of nodes.
        bandwidth_bytes_s: Link rate of a node.
        cpu_share: CPU time of a node in cores; None also if nodes differ.
        memory_bytes: Memory of a node.
        cpu_shares: CPU time of each node if they differ, else empty.
        gpus_per_node: GPUs of a node: device files without a driver. Slurm grants them; they cannot compute.
        constrain_devices: Whether only programs that were granted a GPU can open it.
    """

    nodes: int
    bandwidth_bytes_s: float | None
    cpu_share: float | None
    memory_bytes: int | None
    accounting: bool = False
    scheduler: str = "slurm"
    cpu_shares: tuple[float, ...] = ()
    gpus_per_node: int = 0
    gpu_type: str = ""
    constrain_devices: bool = False

    def share_of(self, node: int) -> float | None:
        """Return the CPU share of a node (1 is the first)."""
        return self.cpu_shares[node - 1] if self.cpu_shares else self.cpu_share

    @property
    def names(self) -> list[str]:
        """Names of the nodes."""
        return node_names(self.nodes)

    def described(self) -> str:
        """Return a description of the cluster."""
        rate = f"{self.bandwidth_bytes_s * 8 / 1e6:g} Mbit/s" if self.bandwidth_bytes_s else "unshaped links"
        share = f"{self.cpu_share:g} core each" if self.cpu_share else "all cores each"
        if self.cpu_shares:
            share = f"{', '.join(f'{share:g}' for share in self.cpu_shares)} core"
        gpus = f"{self.gpus_per_node} {self.gpu_type}".strip() + " GPUs without a driver each, "
        return (
            f"{self.nodes} nodes, {rate}, {share}, {gpus if self.gpus_per_node else ''}"
            f"{SCHEDULERS[self.scheduler]}"
        )


def shaping(bandwidth_bytes_s: float) -> list[str]:
    """Return the token bucket filter of a link rate as arguments of tc-tbf(8); all of them affect results."""
    burst = str(burst_bytes(bandwidth_bytes_s))
    return ["tbf", "rate", f"{int(bandwidth_bytes_s * 8)}bit", "burst", burst, "latency", "50ms"]


def burst_bytes(bandwidth_bytes_s: float) -> int:
    """Return the burst of a link in bytes."""
    return max(80_000, int(bandwidth_bytes_s * 0.002))  # holds a segment of 64 KiB with its headers


def node_names(nodes: int) -> list[str]:
    """Return the names of `nodes` nodes."""
    return [f"node{i}" for i in range(1, nodes + 1)]


def address(node: int) -> str:
    """Return the IPv4 address of the node with this number (1 is the first)."""
    return f"{SUBNET}.{node}"


def parse(
    nodes: str,
    bandwidth: str,
    cpu: str,
    memory: str,
    accounting: bool,
    scheduler: str = "slurm",
    gpus: str = "none",
    constrain_devices: bool = False,
) -> Settings:
    """Parse settings such as 3 nodes, bandwidth 1gbit, CPU 0.6, memory 4G; `none` removes a limit.

    `gpus` are those of a node, such as a100:4 or 4.
    """
    if scheduler not in SCHEDULERS:
        raise _not_possible("--scheduler", scheduler, "unknown-name", list(SCHEDULERS))
    for option, is_given in (("--accounting", accounting), ("--gpus", gpus != "none")):
        if is_given and scheduler != "slurm":
            hint = f"remove it, or use --scheduler slurm instead of {scheduler}"
            raise InputError("conflicting-keys", "is Slurm's", file=option, got=scheduler, hint=hint)
    if not nodes.isdecimal() or not 1 <= int(nodes) <= MAX_NODES:
        raise _not_possible("--nodes", nodes, "out-of-range", f"a number from 1 to {MAX_NODES}")
    shares = [_share(part) for part in cpu.split(",")]
    if len(shares) > 1 and (len(shares) != int(nodes) or None in shares):
        expected = f"cores of one node, or of each of the {nodes} nodes, such as 0.9,0.6,0.3"
        raise _not_possible("--cpu", cpu, "wrong-count", expected)
    cpu_share, cpu_shares = as_settings([share for share in shares if share])
    n_gpus, gpu_type = _gpus(gpus)
    if constrain_devices and not n_gpus:
        raise InputError("missing-key", "is for GPUs", file="--constrain-devices", hint="add --gpus 4")
    return Settings(
        int(nodes),
        _rate(bandwidth),
        cpu_share,
        _size(memory),
        accounting,
        scheduler,
        cpu_shares,
        n_gpus,
        gpu_type,
        constrain_devices,
    )


def _not_possible(option: str, text: str, code: str, expected: str | Sequence[str]) -> InputError:
    """Return the error about the value of an option."""
    return InputError(code, f"'{text}' is not possible", file=option, got=text, expected=expected)


def as_settings(shares: Sequence[float]) -> tuple[float | None, tuple[float, ...]]:
    """Return `cpu_share` and `cpu_shares` of the shares of nodes: one number if all are equal."""
    return (None, tuple(shares)) if len(set(shares)) > 1 else (next(iter(shares), None), ())


def from_json(values: dict[str, Any]) -> Settings:
    """Return settings from their `vars`."""
    return Settings(**{**values, "cpu_shares": tuple(values.get("cpu_shares", ()))})


def _rate(text: str) -> float | None:
    if text == "none":
        return None
    match = _RATE.fullmatch(text)
    rate = float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[match[2]] / 8 if match else 0.0
    if rate < 125e3:
        expected = "a rate such as 1gbit or 100mbit (at least 1mbit), or none"
        raise _not_possible("--bandwidth", text, "out-of-range", expected)
    return rate


def _share(text: str) -> float | None:
    if text == "none":
        return None
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.2 <= share <= 1024:  # the kernel's smallest quota is 1 ms per period of 5 ms
        raise _not_possible(
            "--cpu", text, "out-of-range", "cores of one node, such as 0.6 (at least 0.2), or none"
        )
    return share


def _gpus(text: str) -> tuple[int, str]:
    """Return number and type of the GPUs of a node, from a text such as a100:4."""
    if text == "none":
        return 0, ""
    match = _GPUS.fullmatch(text)
    if match is None or int(match[2]) > MAX_GPUS:
        expected = f"GPUs of one node, such as 4 or a100:4 (at most {MAX_GPUS}), or none"
        raise _not_possible("--gpus", text, "out-of-range", expected)
    return int(match[2]), match[1] or ""


def _size(text: str) -> int | None:
    if text == "none":
        return None
    match = _SIZE.fullmatch(text)
    size = int(float(match[1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[match[2]]) if match else 0
    if size < 2**26:
        raise _not_possible(
            "--memory", text, "out-of-range", "a size such as 4G or 512M (at least 64M), or none"
        )
    return size
