"""What really carried the gradients of a run, and what speaks against it: from the library's own log and the node's counters."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.notes import Note
from declared.site import Site

# NCCL names a network by its plugin: IB, IBext_v8 (Mellanox's), Socket, or another vendor's such as AWS Libfabric.
_DEVICES = re.compile(r"NET/(IB|Socket)\s*:\s*Using\s*(\[.*)")
_CHANNEL = re.compile(r"via NET/([^/\n]+)/\d")
_CHOSEN = re.compile(r"Using network (\S.*)")
_DEVICE = re.compile(r"\[\d+\]([^\s:<\[]+)(?::\d+/(\w+))?")
# Of what these do with accelerators and with InfiniBand their libraries tell nothing; they choose by themselves.
UNTOLD = ("mpi", "gaspi")
UNTOLD_NETWORK = "a network that it does not name"
UNNAMED = "a network that its log does not name"
WITHIN = "links within the node"
LEAST_SHARE = 0.5


def described(library: str, spec: Mapping[str, Any], folder: Path) -> str:
    """`library over protocol interface`, such as `gloo over tcp eth0`; none where there is one replica.

    For NCCL its own log in the attempt's `folder` tells (nccl.*.log; `NET/IB : Using [0]mlx5_0:1/IB`, NCCL 2.x): ib is
    InfiniBand, roce the same protocol on Ethernet. Of MPI and GASPI on InfiniBand nobody tells.
    """
    if spec["ranks"] == 1:
        return f"{library} over {WITHIN}" if spec["replicas_per_rank"] > 1 else "none"
    if library in UNTOLD and spec["fabric"] == "infiniband":
        return f"{library} over {UNTOLD_NETWORK}"
    if library != "nccl":
        return f"{library} over tcp {spec['interface']}"
    said = "\n".join(log.read_text(errors="replace") for log in sorted(folder.glob("nccl.*.log")))
    if spec["nodes"] == 1 and not _CHANNEL.search(said):
        return f"nccl over {WITHIN}"
    return f"nccl over {_nccl_network(said)}"


def objection(
    transport: str,
    spec: Mapping[str, Any],
    site: Site,
    epochs: Sequence[Mapping[str, Any]],
    least_bytes: float,
    sweep: bool = False,
) -> Note | None:
    """Why a run did not measure the site's network; None where nothing speaks against it.

    `least_bytes` leave the node that sends most in each exchange, whatever the algorithm; `epochs` are rows of epochs.csv as
    numbers, or the one row of a sweep of the network, of all its messages.
    """
    by_nccl = spec["device"] == "cuda" and not transport.startswith(UNTOLD)
    if by_nccl and spec["ranks"] > 1 and not transport.startswith("nccl "):
        text = f"the gradients of accelerators went through {transport}, not through NCCL"
        return Note("not-nccl", text, transport=transport)
    if spec["nodes"] == 1:
        left = by_nccl and spec["ranks"] > 1 and not transport.endswith(WITHIN)
        text = f"the accelerators of one node exchanged their gradients by {transport}"
        return Note("network-within-node", text, transport=transport) if left else None
    words = f" {transport} "
    if site.fabric == "infiniband" and by_nccl and (" ib " not in words or " tcp " in words):
        network = transport.partition(" over ")[2]
        text = f"the site says infiniband, but the gradients went over {network}"
        return Note("not-infiniband", text, network=network)
    if " tcp " not in words or site.placement == "emulated":
        return None
    if "mesh" in spec:  # who sends what to whom follows from its axes, and from where they lie
        return None
    for row in epochs:
        least = row["exchanges"] * least_bytes
        if row["sent_bytes"] is not None and row["sent_bytes"] < LEAST_SHARE * least:
            sent, expected = row["sent_bytes"] / 1e6, least / 1e6
            where, what = ("the sweep", "messages") if sweep else (f"epoch {row['epoch']:.0f}", "gradients")
            text = f"{sent:.1f} MB left through {site.interface} in {where}, the {what} are {expected:.1f} MB or more"
            facts = {"interface": site.interface, "epoch": row["epoch"], "sent_bytes": row["sent_bytes"]}
            return Note("too-few-bytes", text, **facts, expected_bytes=least)
    return None


def _nccl_network(log: str) -> str:
    """Protocol and interface that NCCL's log names; what its channels went through counts more than what it had found."""
    used = sorted(set(_CHANNEL.findall(log)) or set(_CHOSEN.findall(log)))
    return " and ".join(dict.fromkeys(_network(name, log) for name in used)) or UNNAMED


def _network(plugin: str, log: str) -> str:
    kind = "IB" if plugin.startswith("IB") else plugin
    devices = [device for named, text in _DEVICES.findall(log) if named == kind for device in _DEVICE.findall(text)]
    links = {link for _, link in devices}
    protocol = {"Socket": "tcp", "IB": "roce" if links == {"RoCE"} else "ib"}.get(kind, kind)
    return " ".join([protocol, ",".join(dict.fromkeys(name for name, _ in devices))]).strip()
