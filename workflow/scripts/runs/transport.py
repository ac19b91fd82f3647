"""Determine which network carried the gradients of a run, and whether it was the site's.

The sources are the library's own log and the node's counters.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.notes import Note
from declared.site import Site

# NCCL names a network by its plugin: IB, IBext_v8 (Mellanox's), Socket, or another vendor's such as AWS
# Libfabric.
_DEVICES = re.compile(r"NET/(IB|Socket)\s*:\s*Using\s*(\[.*)")
_CHANNEL = re.compile(r"via NET/([^/\n]+)/\d")
_CHOSEN = re.compile(r"Using network (\S.*)")
_DEVICE = re.compile(r"\[\d+\]([^\s:<\[]+)(?::\d+/(\w+))?")
# These choose networks for GPUs and InfiniBand by themselves and do not log which.
SILENT_LIBRARIES = ("mpi", "gaspi")
SILENT_NETWORK = "a network that it does not name"
UNNAMED_NETWORK = "a network that its log does not name"
INTRA_NODE = "links within the node"
MIN_SENT_SHARE = 0.5  # of the least bytes; far fewer leave a node whose gradients take another network


def describe_transport(library: str, spec: Mapping[str, Any], folder: Path) -> str:
    """Return `library over protocol interface`, such as `gloo over tcp eth0`; "none" with one replica.

    For NCCL the text comes from its log in the attempt's `folder` (nccl.*.log; `NET/IB : Using
    [0]mlx5_0:1/IB`, NCCL 2.x): ib is InfiniBand, roce the same protocol on Ethernet. MPI and GASPI do not log
    their network.
    """
    if spec["ranks"] == 1:
        return f"{library} over {INTRA_NODE}" if spec["replicas_per_rank"] > 1 else "none"
    if library in SILENT_LIBRARIES and spec["fabric"] == "infiniband":
        return f"{library} over {SILENT_NETWORK}"
    if library != "nccl":
        library, _, first = library.partition(" by ")  # `ranks.worker.context.by_first_interface`
        return f"{library} over tcp {first or spec['interface']}"
    nccl_log = "\n".join(log.read_text(errors="replace") for log in sorted(folder.glob("nccl.*.log")))
    if spec["nodes"] == 1 and not _CHANNEL.search(nccl_log):
        return f"nccl over {INTRA_NODE}"
    return f"nccl over {_nccl_network(nccl_log)}"


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
        min_allreduce_bytes: What the busiest node sends at least in an all-reduce, by any algorithm.
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
    if site.fabric == "infiniband" and by_nccl and (" ib " not in words or " tcp " in words):
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


def _nccl_network(log: str) -> str:
    """Return protocol and interface from NCCL's log: those of its channels, else those that it detected."""
    used = sorted(set(_CHANNEL.findall(log)) or set(_CHOSEN.findall(log)))
    return " and ".join(dict.fromkeys(_network(name, log) for name in used)) or UNNAMED_NETWORK


def _network(plugin: str, log: str) -> str:
    kind = "IB" if plugin.startswith("IB") else plugin
    devices = [
        device
        for device_kind, text in _DEVICES.findall(log)
        if device_kind == kind
        for device in _DEVICE.findall(text)
    ]
    links = {link for _, link in devices}
    protocol = {"Socket": "tcp", "IB": "roce" if links == {"RoCE"} else "ib"}.get(kind, kind)
    return " ".join([protocol, ",".join(dict.fromkeys(name for name, _ in devices))]).strip()
