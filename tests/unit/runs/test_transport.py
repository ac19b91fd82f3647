"""The network of the gradients is read from NCCL's log, and a wrong one is reported.

The lines have the format of NCCL 2.4 to 2.30 (src/transport/net_ib, net_socket, net.cc, p2p.cc: INFO with
subsystems INIT and NET). They are shortened and put together from logs in public issues (NVIDIA/nccl #302, #1538,
#1769, #1804, nccl-tests #185, #213, aws-ofi-nccl #889, ROCm/rccl #1026); that of 2.30 is by its source alone.
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
from runs.transport import (
    INTRA_NODE,
    MULTI_NODE_NVLINK,
    UNNAMED_NETWORK,
    describe_transport,
    wrong_network_reason,
)

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
gpu1:2101:2101 [0] NCCL INFO Bootstrap: Using ib0:10.20.0.11<0>
gpu1:2101:2160 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.
gpu1:2101:2160 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB ib0:10.20.0.11<0>
gpu1:2101:2160 [0] NCCL INFO Using network IB
gpu1:2101:2171 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
gpu1:2101:2171 [0] NCCL INFO Channel 01/0 : 3[1] -> 0[0] [receive] via NET/IB/1/GDRDMA
gpu1:2101:2171 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC
"""
SOCKETS = """\
gpu1:2101:2101 [0] NCCL INFO Bootstrap: Using eth0:10.1.0.11<0>
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
gpu1:9:94 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB ibp25s0:10.20.0.119<0>
gpu1:9:94 [0] NCCL INFO Using network IBext_v8
gpu1:9:98 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IBext_v8/0(8)/GDRDMA
"""
CONVERGED_ETHERNET = """\
gpu1:46:460 [0] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB eth0:10.1.0.11<0>
gpu1:46:460 [0] NCCL INFO Using network IB
gpu1:46:461 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0
"""
# NCCL 2.6: a machine with both link layers (NVIDIA/nccl #302), of which the channels use one.
BOTH_LINKS = """\
crow:7240:7240 [0] NCCL INFO NET/IB : Using [0]mlx5_3:1/IB [1]mlx5_0:1/IB [2]mlx5_2:1/RoCE [3]mlx5_4:1/IB ; OOB eth0:10.100.72.18<0>
crow:7240:7240 [0] NCCL INFO Using network IB
crow:7240:7401 [0] NCCL INFO Ring 00 : 51[3d000] -> 56[1a000] [receive] via NET/IB/2
crow:7240:7401 [0] NCCL INFO Ring 00 : 56[1a000] -> 58[3e000] via P2P/IPC
"""
# Ports that NCCL 2.20 to 2.23 and HPC-X merge.
MERGED_PORTS = """\
gpu1:1884:2298 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE} [1]={[2] mlx5_0:1/RoCE, [3] mlx5_1:1/RoCE} [RO]; OOB bond0.526:169.136.106.9<0>
gpu1:1884:2298 [0] NCCL INFO Using non-device net plugin version 0
gpu1:1884:2298 [0] NCCL INFO Using network IBext_v8
gpu1:1884:2301 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IBext_v8/1/GDRDMA
"""
# NCCL 2.27 numbers merged devices after the others, and says what each device is.
VIRTUAL_DEVICE = """\
gpu1:42:56 [0] NCCL INFO NET/IB : Made virtual device [0] name=mlx5_0 speed=200000 ndevs=1
gpu1:42:56 [0] NCCL INFO NET/IB : Made virtual device [1] name=mlx5_1 speed=200000 ndevs=1
gpu1:42:56 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB enm0:172.16.249.128<0>
gpu1:42:56 [0] NCCL INFO Using network IB
gpu1:42:56 [0] NCCL INFO NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=400000 ndevs=2
gpu1:42:61 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/2/GDRDMA(PCI)/Shared
"""
RAIL_AND_PLANE = CONVERGED_ETHERNET.replace(":1/RoCE", ":1:0:1/RoCE")  # NCCL 2.30
# Processes of a node without a channel to others: what they could have used says nothing.
NVLINK_WITHIN = """\
gpu1:44:44 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_7:1/IB [RO]; OOB ib0:10.20.0.11<0>
gpu1:44:44 [1] NCCL INFO Using network IB
gpu1:44:61 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM/read
gpu1:44:61 [1] NCCL INFO Channel 01 : 1[1] -> 2[2] via SHM/direct/direct
"""
# A rack of NVLink: one network domain of several nodes (GB200 NVL72).
NVLINK_BETWEEN = """\
gb1:17:18 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.1.0.11<0>
gb1:17:18 [0] NCCL INFO Using network IB
gb1:17:20 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0] via P2P/MNNVL
"""
# Two processes of RCCL on Slingshot's sockets, each with its own interface.
RCCL = """\
g1072:1263985:1264007 [0] NCCL INFO NET/Socket : Using [0]hsn0:10.150.0.5<0> [1]hsn1:10.150.0.6<0> [2]hsn2:10.150.0.7<0>
g1072:1263985:1264007 [0] NCCL INFO Using network Socket
g1072:1263985:1264007 [0] NCCL INFO Channel 02/0 : 1[c6000] -> 4[c1000] [receive] via NET/Socket/1 comm 0x95cdeb0 nRanks 08
g1072:1263985:1264007 [0] NCCL INFO Channel 00/0 : 7[ce000] -> 5[c6000] via P2P/IPC comm 0xfb16e30 nRanks 08
"""
AWS = """\
ip-10-36-22-140:80:2500 [0] NCCL INFO NET/OFI Using Libfabric version 2.1
ip-10-36-22-140:80:2500 [0] NCCL INFO NET/OFI Using transport protocol SENDRECV (platform set)
ip-10-36-22-140:80:2500 [0] NCCL INFO Using network Libfabric
ip-10-36-22-140:80:2511 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA
"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (INFINIBAND, "nccl over ib mlx5_0,mlx5_3"),
        (SOCKETS, "nccl over tcp eth0"),
        (BOTH_FOUND_SOCKETS_TAKEN, "nccl over tcp ib0"),
        (BOTH_FOUND_INFINIBAND_TAKEN, "nccl over ib mlx5_0"),
        (MELLANOX_PLUGIN, "nccl over ib mlx5_0"),
        (CONVERGED_ETHERNET, "nccl over roce mlx5_10"),
        (BOTH_LINKS, "nccl over roce mlx5_2"),
        (
            BOTH_LINKS + BOTH_LINKS.replace("via NET/IB/2", "via NET/IB/0"),
            "nccl over ib mlx5_3 and roce mlx5_2",
        ),
        (MERGED_PORTS, "nccl over roce mlx5_0,mlx5_1"),
        (MERGED_PORTS.split("gpu1:1884:2301", maxsplit=1)[0], "nccl over roce mlx5_2,mlx5_3,mlx5_0,mlx5_1"),
        (VIRTUAL_DEVICE, "nccl over roce mlx5_0,mlx5_1"),
        (RAIL_AND_PLANE, "nccl over roce mlx5_10"),
        (NVLINK_BETWEEN, f"nccl over {MULTI_NODE_NVLINK}"),
        # With more nodes than an NVLink domain has, the network limits them.
        (
            f"{NVLINK_BETWEEN}gb1:17:20 [0] NCCL INFO Channel 00/0 : 7[3] -> 8[0] [send] via NET/IB/1/GDRDMA\n",
            "nccl over ib mlx5_1",
        ),
        (RCCL, "nccl over tcp hsn1"),
        (AWS, "nccl over Libfabric"),
        (SOCKETS.split("gpu1:2101:2171", maxsplit=1)[0], "nccl over tcp eth0"),
        ("gpu1:1:1 [0] NCCL INFO cudaDriverVersion 13000\n", f"nccl over {UNNAMED_NETWORK}"),
    ],
)
def test_nccl_log_names_the_network(tmp_path: Path, log: str, expected: str) -> None:
    (tmp_path / "nccl.gpu1.2101.log").write_text(log)
    (tmp_path / "nccl.gpu2.2102.log").write_text(log.replace("gpu1", "gpu2"))
    assert describe_transport("nccl", TWO_NODES, tmp_path) == expected


def test_transport_of_a_command_is_that_of_nccl_or_unknown(tmp_path: Path) -> None:
    spec = {**TWO_NODES, "command": {}, "device": "cuda"}
    assert describe_transport("nccl", spec, tmp_path) == transport.UNKNOWN
    assert describe_transport("nccl", {**spec, "ranks": 1, "nodes": 1}, tmp_path) == "none"
    one_start = {**spec, "ranks": 1, "nodes": 1, "replicas_per_rank": 8}
    assert describe_transport("nccl", one_start, tmp_path) == transport.UNKNOWN
    (tmp_path / "nccl.gpu1.2101.log").write_text(SOCKETS)
    assert describe_transport("unknown", spec, tmp_path) == "nccl over tcp eth0"


def test_devices_are_those_of_the_process_that_used_them(tmp_path: Path) -> None:
    """Nodes may number their devices differently, and not every process sends to another node."""
    (tmp_path / "nccl.gpu1.44.log").write_text(NVLINK_WITHIN)
    (tmp_path / "nccl.gpu1.46.log").write_text(CONVERGED_ETHERNET)
    (tmp_path / "nccl.gpu2.46.log").write_text(CONVERGED_ETHERNET.replace("mlx5_10", "mlx5_2"))
    assert describe_transport("nccl", TWO_NODES, tmp_path) == "nccl over roce mlx5_10,mlx5_2"


def test_network_without_a_log_is_unnamed(tmp_path: Path) -> None:
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


def test_network_of_mpi_on_infiniband_is_unnamed(tmp_path: Path) -> None:
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
        ("nccl over ib mlx5_3 and roce mlx5_2", "ib mlx5_3 and roce mlx5_2"),
        (f"nccl over {MULTI_NODE_NVLINK}", MULTI_NODE_NVLINK),
        ("nccl over roce mlx5_0", "roce mlx5_0"),
        (f"nccl over {UNNAMED_NETWORK}", UNNAMED_NETWORK),
    ],
)
def test_fall_back_from_infiniband_is_a_wrong_network(transport: str, network: str | None) -> None:
    infiniband = replace(CLUSTER, fabric="infiniband")
    spec = {**TWO_NODES, "device": "cuda"}
    reason = wrong_network_reason(transport, spec, infiniband, epochs(0.0), 2 * MB)
    expected = ("not-infiniband", {"network": network}) if network else None
    assert stated(reason) == expected, "bytes on the interface say nothing of it"
    assert objected(transport, epochs(0.0), infiniband, nodes=1) is None, "one node needs no network"
    assert objected("gloo over tcp ib0", epochs(41.0 * MB), infiniband) is None, (
        "processors have no InfiniBand of their own"
    )


def test_too_few_bytes_through_the_interface_are_a_wrong_network() -> None:
    reason = objected("gloo over tcp eth0", epochs(41.0 * MB, 9.0 * MB))
    facts = {"interface": "eth0", "epoch": 2, "sent_bytes": 9 * MB, "expected_bytes": 20 * MB}
    assert stated(reason) == ("too-few-bytes", facts)
    assert objected("nccl over tcp eth0", epochs(9.0 * MB)) is not None
    assert objected("gloo over tcp eth0", epochs(14.0 * MB), nodes=4) is not None, (
        "30 MB from the busiest node"
    )


def test_plausible_bytes_are_the_right_network() -> None:
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
def test_mpi_and_gaspi_choose_networks_of_accelerators(library: str, nodes: int) -> None:
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


def test_network_within_a_node_is_a_wrong_network(tmp_path: Path) -> None:
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
