"""What carried the gradients, from NCCL's own log, and what speaks against it.

The lines have the format of NCCL 2.4 to 2.29 (src/transport/net_ib, net_socket, net.cc: INFO with subsystems
INIT and NET).
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.notes import Note
from declared.site import Site, load_site
from ranks.worker.context import by_first_interface
from runs import transport
from runs.transport import INTRA_NODE, UNNAMED_NETWORK, describe_transport, wrong_network_reason

TWO_NODES: dict[str, Any] = {
    "device": "cpu",
    "ranks": 4,
    "nodes": 2,
    "replicas_per_rank": 1,
    "interface": "eth0",
    "fabric": "ethernet",
}
CLUSTER = replace(load_site("virtual"), placement="distinct-nodes", cpu_share=None)

INFINIBAND = """\
gpu1:2101:2101 [0] NCCL INFO cudaDriverVersion 13000
gpu1:2101:2101 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib0
gpu1:2101:2101 [0] NCCL INFO Bootstrap: Using ib0:10.20.0.11<0>
NCCL version 2.29.7+cuda13.0
gpu1:2101:2160 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.
gpu1:2101:2160 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB ib0:10.20.0.11<0>
gpu1:2101:2160 [0] NCCL INFO Using network IB
gpu1:2101:2171 [0] NCCL INFO Channel 00/02 :    0   1   2   3
gpu1:2101:2171 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
gpu1:2101:2171 [0] NCCL INFO Channel 01/0 : 3[1] -> 0[0] [receive] via NET/IB/1/GDRDMA
gpu1:2101:2171 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC
gpu1:2101:2171 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
"""
SOCKETS = """\
gpu1:2101:2101 [0] NCCL INFO Bootstrap: Using eth0:10.1.0.11<0>
NCCL version 2.29.7+cuda13.0
gpu1:2101:2160 [0] NCCL INFO NET/IB : No device found.
gpu1:2101:2160 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
gpu1:2101:2160 [0] NCCL INFO NET/Socket : Using [0]eth0:10.1.0.11<0>
gpu1:2101:2160 [0] NCCL INFO Using network Socket
gpu1:2101:2171 [0] NCCL INFO NET/Socket: Using 2 threads and 8 sockets per thread
gpu1:2101:2171 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/Socket/0
gpu1:2101:2171 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC
"""
BOTH_FOUND_SOCKETS_TAKEN = """\
gpu1:20:289 [0] NCCL INFO NET/Socket : Using [0]ib0:192.168.11.1<0>
gpu1:20:289 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:192.168.11.1<0>
gpu1:20:310 [0] NCCL INFO Ring 00 : 3 -> 0 [receive] via NET/Socket/0
"""
BOTH_FOUND_INFINIBAND_TAKEN = BOTH_FOUND_SOCKETS_TAKEN.replace("via NET/Socket/0", "via NET/IB/0")
MELLANOX_PLUGIN = """\
gpu1:9:94 [0] NCCL INFO P2P plugin IBext_v8
gpu1:9:94 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB ibp25s0:10.20.0.119<0>
gpu1:9:94 [0] NCCL INFO Using network IBext_v8
gpu1:9:98 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IBext_v8/0(8)/GDRDMA
"""
CONVERGED_ETHERNET = """\
gpu1:46:460 [0] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB eth0:10.1.0.11<0>
gpu1:46:460 [0] NCCL INFO Using network IB
gpu1:46:461 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0
"""
OTHER_PLUGIN = """\
gpu1:46:460 [0] NCCL INFO NET/OFI Selected provider is efa
gpu1:46:460 [0] NCCL INFO Using network AWS Libfabric
gpu1:46:461 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA
"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (INFINIBAND, "nccl over ib mlx5_0,mlx5_3"),
        (SOCKETS, "nccl over tcp eth0"),
        (BOTH_FOUND_SOCKETS_TAKEN, "nccl over tcp ib0"),
        (BOTH_FOUND_INFINIBAND_TAKEN, "nccl over ib mlx5_0"),
        (MELLANOX_PLUGIN, "nccl over ib mlx5_0,mlx5_1"),
        (CONVERGED_ETHERNET, "nccl over roce mlx5_10,mlx5_11"),
        (OTHER_PLUGIN, "nccl over AWS Libfabric"),
        (SOCKETS.split("gpu1:2101:2171", maxsplit=1)[0], "nccl over tcp eth0"),
        ("gpu1:1:1 [0] NCCL INFO cudaDriverVersion 13000\n", f"nccl over {UNNAMED_NETWORK}"),
    ],
)
def test_nccls_log_says_what_it_took(tmp_path: Path, log: str, expected: str) -> None:
    (tmp_path / "nccl.gpu1.2101.log").write_text(log)
    (tmp_path / "nccl.gpu2.2102.log").write_text(log.replace("gpu1", "gpu2"))
    assert describe_transport("nccl", TWO_NODES, tmp_path) == expected


def test_without_a_log_nothing_is_claimed(tmp_path: Path) -> None:
    assert describe_transport("nccl", TWO_NODES, tmp_path) == f"nccl over {UNNAMED_NETWORK}"


@pytest.mark.parametrize(
    ("interfaces", "own", "library", "expected"),
    [
        ("eth0", by_first_interface, "gloo", "gloo over tcp eth0"),
        ("ib0,ib1", by_first_interface, "gloo", "gloo over tcp ib0"),
        ("ib0,ib1", lambda spec, library: library, "gloo", "gloo over tcp ib0,ib1"),
        ("ib0,ib1", by_first_interface, "ring over grpc", "ring over grpc over tcp ib0"),
    ],
)
def test_a_transport_names_the_interfaces_that_its_library_uses(
    interfaces: str, own: Callable[[Any, str], str], library: str, expected: str, tmp_path: Path
) -> None:
    spec = {**TWO_NODES, "interface": interfaces}
    assert describe_transport(own(spec, library), spec, tmp_path) == expected


def test_gloo_uses_the_interface_and_one_replica_nothing(tmp_path: Path) -> None:
    assert describe_transport("gloo", TWO_NODES, tmp_path) == "gloo over tcp eth0"
    alone = {**TWO_NODES, "ranks": 1, "nodes": 1}
    assert describe_transport("gloo", alone, tmp_path) == "none"
    assert (
        describe_transport("memory", {**alone, "replicas_per_rank": 2}, tmp_path)
        == f"memory over {INTRA_NODE}"
    )
    assert describe_transport("nccl", {**TWO_NODES, "nodes": 1}, tmp_path) == f"nccl over {INTRA_NODE}"


def test_what_mpi_takes_on_infiniband_nobody_tells(tmp_path: Path) -> None:
    assert describe_transport("mpi", TWO_NODES, tmp_path) == "mpi over tcp eth0", "where we say so"
    reason = describe_transport("mpi", {**TWO_NODES, "fabric": "infiniband"}, tmp_path)
    assert reason == f"mpi over {transport.SILENT_NETWORK}"


MB = 1_000_000


def stated(note: Note | None) -> tuple[str, dict[str, Any]] | None:
    return note and (note.code, dict(note.facts))


def epochs(*sent: float | None, n_allreduces: int = 10) -> list[dict[str, Any]]:
    return [
        {"epoch": float(i), "n_allreduces": n_allreduces, "sent_bytes": count}
        for i, count in enumerate(sent, start=1)
    ]


def objected(transport: str, rows: list[dict[str, Any]], site: Site = CLUSTER, nodes: int = 2) -> Note | None:
    return wrong_network_reason(
        transport, {**TWO_NODES, "nodes": nodes}, site, rows, 4 * MB * (nodes - 1) / nodes
    )


@pytest.mark.parametrize(
    ("transport", "network"),
    [
        ("nccl over ib mlx5_0", None),
        ("nccl over tcp ib0", "tcp ib0"),
        ("nccl over ib mlx5_0 and tcp ib0", "ib mlx5_0 and tcp ib0"),
        ("nccl over roce mlx5_0", "roce mlx5_0"),
        (f"nccl over {UNNAMED_NETWORK}", UNNAMED_NETWORK),
    ],
)
def test_a_fall_back_from_infiniband_is_objected_to(transport: str, network: str | None) -> None:
    infiniband = replace(CLUSTER, fabric="infiniband")
    spec = {**TWO_NODES, "device": "cuda"}
    reason = wrong_network_reason(transport, spec, infiniband, epochs(0.0), 2 * MB)
    expected = ("not-infiniband", {"network": network}) if network else None
    assert stated(reason) == expected, "bytes on the interface say nothing of it"
    assert objected(transport, epochs(0.0), infiniband, nodes=1) is None, "one node needs no network"
    assert objected("gloo over tcp ib0", epochs(41.0 * MB), infiniband) is None, (
        "processors have no InfiniBand of their own"
    )


def test_too_few_bytes_through_the_interface_are_objected_to() -> None:
    reason = objected("gloo over tcp eth0", epochs(41.0 * MB, 9.0 * MB))
    facts = {"interface": "eth0", "epoch": 2, "sent_bytes": 9 * MB, "expected_bytes": 20 * MB}
    assert stated(reason) == ("too-few-bytes", facts)
    assert objected("nccl over tcp eth0", epochs(9.0 * MB)) is not None
    assert objected("gloo over tcp eth0", epochs(14.0 * MB), nodes=4) is not None, (
        "30 MB from the busiest node"
    )


def test_plausible_bytes_are_not() -> None:
    ring = 2 * 10 * 4 * MB * (2 - 1) / 2  # a ring's all-reduce: Patarasuk and Yuan 2009, section 4
    assert objected("gloo over tcp eth0", epochs(ring, ring)) is None
    assert objected("gloo over tcp eth0", epochs(None)) is None, (
        "a node that does not count objects to nothing"
    )
    assert objected("nccl over ib mlx5_0", epochs(0.0)) is None, "the kernel does not count what RDMA sends"
    assert objected("none", epochs(0.0), nodes=1) is None
    emulated = replace(CLUSTER, placement="emulated")
    assert objected("gloo over tcp lo", epochs(0.0), emulated) is None, (
        "loopback is shared by all emulated nodes"
    )


@pytest.mark.parametrize("nodes", [1, 2])
def test_accelerators_communicate_through_nccl_or_not_at_all(nodes: int) -> None:
    spec = {**TWO_NODES, "device": "cuda", "nodes": nodes, "ranks": 2}
    site = load_site("virtual-unshaped")
    reason = wrong_network_reason("gloo over tcp eth0", spec, site, [], 4 * MB)
    assert stated(reason) == ("not-nccl", {"transport": "gloo over tcp eth0"})
    own = "nccl over tcp eth0" if nodes == 2 else f"nccl over {INTRA_NODE}"
    assert wrong_network_reason(own, spec, site, [], 4 * MB) is None
    assert wrong_network_reason("none", {**spec, "ranks": 1, "nodes": 1}, site, [], 4 * MB) is None


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("library", ["mpi", "gaspi"])
def test_what_mpi_and_gaspi_do_with_accelerators_is_theirs(library: str, nodes: int) -> None:
    spec = {**TWO_NODES, "device": "cuda", "nodes": nodes, "ranks": 2}
    infiniband = replace(CLUSTER, fabric="infiniband")
    assert (
        wrong_network_reason(
            f"{library} over {transport.SILENT_NETWORK}", spec, infiniband, epochs(0.0), 4 * MB
        )
        is None
    )
    reason = wrong_network_reason(f"{library} over tcp eth0", spec, CLUSTER, epochs(9.0 * MB), 2 * MB)
    assert (reason is None) == (nodes == 1), "on Ethernet its bytes are counted, too"


def test_network_between_accelerators_of_a_node_is_objected_to(tmp_path: Path) -> None:
    spec = {**TWO_NODES, "device": "cuda", "nodes": 1, "ranks": 2}
    (tmp_path / "nccl.gpu1.9.log").write_text(
        "gpu1:9:94 [0] NCCL INFO NET/Socket : Using [0]eth0:10.1.0.11<0>\n"
    )
    assert describe_transport("nccl", spec, tmp_path) == f"nccl over {INTRA_NODE}"
    (tmp_path / "nccl.gpu1.9.log").write_text(SOCKETS)
    reason = wrong_network_reason(
        describe_transport("nccl", spec, tmp_path), spec, load_site("local"), [], 4 * MB
    )
    assert stated(reason) == ("network-within-node", {"transport": "nccl over tcp eth0"})


@pytest.mark.parametrize(
    ("transport", "changes", "line"),
    [
        (
            "nccl over tcp ib0",
            {"device": "cuda"},
            "the site says infiniband, but the gradients went over tcp ib0",
        ),
        (
            "gloo over tcp ib0",
            {},
            "9.0 MB were sent through eth0 in epoch 1, the gradients are at least 20.0 MB",
        ),
        (
            "gloo over tcp eth0",
            {"device": "cuda"},
            "gradients of GPUs went through gloo over tcp eth0, not through NCCL",
        ),
        (
            "nccl over tcp eth0",
            {"device": "cuda", "nodes": 1},
            "the GPUs of one node communicated through nccl over tcp eth0",
        ),
    ],
)
def test_wording_of_objections(transport: str, changes: dict[str, Any], line: str) -> None:
    infiniband = replace(CLUSTER, fabric="infiniband", interface="eth0")
    assert (
        wrong_network_reason(transport, {**TWO_NODES, **changes}, infiniband, epochs(9.0 * MB), 2 * MB)
        == line
    )
