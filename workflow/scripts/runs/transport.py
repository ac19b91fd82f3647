"""Determine which network carried the gradients of a run, and whether it was the site's.

The sources are the log of the library and the counters of the node.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.notes import Note
from declared.site import Site

# NCCL names a network by its plugin: IB, IBext_v8 (Mellanox's), Socket, or another vendor's such as AWS
# Libfabric. A channel names the number of its device: "via NET/IB/2/GDRDMA".
_CHANNEL = re.compile(r"via NET/([^/\n]+)/(\d+)")
_CHOSEN = re.compile(r"Using network (\S.*)")
# NVLink of several nodes (GB200 NVL72): "via P2P/MNNVL".
_NVLINK_CHANNEL = re.compile(r"via P2P/MNNVL")
# A process lists its devices in the order of their numbers: "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE
# [RO]; OOB ..." or "NET/Socket : Using [0]eth0:10.1.0.11<0>".
_LIST = re.compile(r"NET/(IB|Socket)\s*:\s*Using\s*(\[.*)")
# NCCL 2.20 to 2.23 list ports that they merge as one device: "[0]={[0] mlx5_0:1/RoCE, [1] mlx5_0:2/RoCE}".
_DEVICE = re.compile(r"\[\d+\](?:=\{([^}]*)\}|([^\s\[{]+))")
# Later versions number merged devices after the others.
_MERGED = re.compile(r"NET/IB : Made virtual device \[(\d+)\] name=(\S+)")
# These libraries choose networks for GPUs and InfiniBand themselves and do not log their choice.
SILENT_LIBRARIES = ("mpi", "gaspi")
SILENT_NETWORK = "a network that it does not name"
UNNAMED_NETWORK = "a network that its log does not name"
INTRA_NODE = "links within the node"
MULTI_NODE_NVLINK = "NVLink between nodes"
OTHER_THAN_IB = {"tcp", "roce"}
NCCL_LOGS = "nccl.*.log"
UNKNOWN = "unknown"  # transport of user-supplied commands that do not use NCCL
# Share of the expected bytes. If gradients take another network, far fewer bytes leave a node.
MIN_SENT_SHARE = 0.5


def describe_transport(library: str, spec: Mapping[str, Any], attempt_folder: Path) -> str:
    """Return `library over protocol interface`, such as `gloo over tcp eth0`; "none" with one replica.

    For NCCL the text comes from its log in the attempt's folder (nccl.*.log; `NET/IB : Using
    [0]mlx5_0:1/IB`, NCCL 2.x): ib is InfiniBand, roce the same protocol on Ethernet. MPI and GASPI do not log
    their network.
    """
    if "command" in spec and spec["ranks"] * spec["replicas_per_rank"] > 1:
        if not any(attempt_folder.glob(NCCL_LOGS)):
            return UNKNOWN
        library = "nccl"
    elif spec["ranks"] == 1:
        return f"{library} over {INTRA_NODE}" if spec["replicas_per_rank"] > 1 else "none"
    if library in SILENT_LIBRARIES and spec["fabric"] == "infiniband":
        return f"{library} over {SILENT_NETWORK}"
    if library != "nccl":
        library, _, first = library.partition(" by ")  # `ranks.worker.context.by_first_interface`
        return f"{library} over tcp {first or spec['interface']}"
    logs = [log.read_text(errors="replace") for log in sorted(attempt_folder.glob(NCCL_LOGS))]
    if spec["nodes"] == 1 and not any(map(_CHANNEL.search, logs)):
        return f"nccl over {INTRA_NODE}"
    return f"nccl over {_nccl_networks(logs)}"


def wrong_network_reason(
    transport: str,
    spec: Mapping[str, Any],
    site: Site,
    epochs: Sequence[Mapping[str, Any]],
    min_allreduce_bytes: float,
    benchmark: bool = False,
) -> Note | None:
    """Return why a run did not measure the site's network, or None.

    Args:
        transport: Text of `describe_transport`.
        spec: The run's specification.
        site: The site.
        epochs: Rows of epochs.csv as numbers, or the row of a collective benchmark with all its messages.
        min_allreduce_bytes: Bytes that the busiest node sends at least in an all-reduce, whatever the
            algorithm.
        benchmark: Whether this is a collective benchmark.
    """
    by_nccl = spec["device"] == "cuda" and not transport.startswith(SILENT_LIBRARIES)
    if by_nccl and spec["ranks"] > 1 and not transport.startswith("nccl "):
        text = f"gradients of GPUs went through {transport}, not through NCCL"
        return Note("not-nccl", text, transport=transport)
    if spec["nodes"] == 1:
        used_network = by_nccl and spec["ranks"] > 1 and not transport.endswith(INTRA_NODE)
        text = f"the GPUs of one node communicated through {transport}"
        return Note("network-within-node", text, transport=transport) if used_network else None
    words = f" {transport} "
    if site.fabric == "infiniband" and by_nccl and (" ib " not in words or OTHER_THAN_IB & {*words.split()}):
        network = transport.partition(" over ")[2]
        text = f"the site says infiniband, but the gradients went over {network}"
        return Note("not-infiniband", text, network=network)
    if " tcp " not in words or site.placement == "emulated":
        return None
    if "mesh" in spec:  # how many bytes a node sends depends on the axes of the mesh and their placement
        return None
    for row in epochs:
        expected_bytes = row["n_allreduces"] * min_allreduce_bytes
        if row["sent_bytes"] is not None and row["sent_bytes"] < MIN_SENT_SHARE * expected_bytes:
            sent_mb, expected_mb = row["sent_bytes"] / 1e6, expected_bytes / 1e6
            period, content = (
                ("the benchmark", "messages") if benchmark else (f"epoch {row['epoch']:.0f}", "gradients")
            )
            text = (
                f"{sent_mb:.1f} MB were sent through {site.interface} in {period}, "
                f"the {content} are at least {expected_mb:.1f} MB"
            )
            facts = {"interface": site.interface, "epoch": row["epoch"], "sent_bytes": row["sent_bytes"]}
            return Note("too-few-bytes", text, **facts, expected_bytes=expected_bytes)
    return None


def _nccl_networks(logs: Sequence[str]) -> str:
    """Return protocols and interfaces from the logs of all processes, such as `ib mlx5_0,mlx5_1`.

    These are the devices of all channels or, if the logs have no channel, of the chosen networks.
    """
    used = set().union(*(_named_devices(log, _CHANNEL.findall(log)) for log in logs))
    if not used and any(map(_NVLINK_CHANNEL.search, logs)):
        return MULTI_NODE_NVLINK
    used = used or set().union(
        *(_named_devices(log, [(name, "") for name in _CHOSEN.findall(log)]) for log in logs)
    )
    names: dict[str, dict[str, None]] = {}
    for protocol, _, name in sorted(used):
        names.setdefault(protocol, {})[name] = None
    networks = (
        f"{protocol} {','.join(filter(None, devices))}".strip() for protocol, devices in names.items()
    )
    return " and ".join(networks) or UNNAMED_NETWORK


def _named_devices(log: str, channels: Sequence[tuple[str, str]]) -> set[tuple[str, int, str]]:
    """Return protocol, number and name of the devices that carry channels.

    Args:
        log: The log of a process. The name of a device that it does not list is empty.
        channels: Plugin and number of the device of each channel; without a number, all devices of the
            plugin.
    """
    listed, used = _listed_devices(log), set()
    for plugin, number in channels:
        kind = "IB" if plugin.startswith("IB") else plugin
        devices = listed.get(kind, {})
        for index in [int(number)] if number else devices or [0]:
            used |= {(_protocol(kind, link), index, name) for name, link in devices.get(index, [("", "")])}
    return used


def _protocol(kind: str, link: str) -> str:
    return {"Socket": "tcp", "IB": "roce" if link == "RoCE" else "ib"}.get(kind, kind)


def _listed_devices(log: str) -> dict[str, dict[int, list[tuple[str, str]]]]:
    """Return the devices in a log by network and number, as names and links; a merged device has several."""
    devices: dict[str, dict[int, list[tuple[str, str]]]] = {}
    for kind, text in _LIST.findall(log):
        devices[kind] = {
            number: [_name_and_link(part) for part in (merged.split(", ") if merged else [alone])]
            for number, (merged, alone) in enumerate(_DEVICE.findall(text))
        }
    links = dict(device for parts in devices.get("IB", {}).values() for device in parts)
    for number, names in _MERGED.findall(log):
        parts = [(name, links.get(name, "")) for name in names.split("+")]
        devices.setdefault("IB", {}).setdefault(int(number), parts)
    return devices


def _name_and_link(text: str) -> tuple[str, str]:
    """Return name and link of a listed device: `mlx5_0:1/IB/SHARP`, `[1] mlx5_1:1/RoCE`, `eth0:10.1.0.11<0>`.

    NCCL 2.30 puts rail and plane after the port: `mlx5_0:1:0:1/RoCE`.
    """
    name, _, rest = re.sub(r"^\[\d+\] ", "", text).partition(":")
    return name, rest.partition("/")[2].partition("/")[0]
