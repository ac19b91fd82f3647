"""Times of messages on a mesh, by hand."""

import pytest

from models.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, POINT_TO_POINT
from models.messages import Message
from strategies.collective_times import message_seconds
from strategies.topology import DeviceRates, LinkTier, Topology

# Two nodes of four devices: 100 bytes/s within, 40 bytes/s between, 1 s and 2 s of latency.
NODES = Topology(DeviceRates(1.0, 1.0, 1.0), (LinkTier(4, 100.0, 1.0), LinkTier(2, 40.0, 2.0)))
SIZE = 8000.0


def seconds(kind: str, ranks: int, stride: int, size: float = SIZE) -> float:
    return message_seconds(Message(kind, "", size, 1, ranks, stride), NODES)


def test_a_ring_in_a_node_takes_its_steps() -> None:
    assert seconds(ALL_GATHER, 4, 1) == pytest.approx(3 * (1 + SIZE / 400))
    assert seconds(ALL_REDUCE, 4, 1) == pytest.approx(6 * (1 + SIZE / 400))
    assert seconds(ALL_GATHER, 2, 2) == pytest.approx(1 + SIZE / 200), "neighbours with a stride, on one node"


def test_all_devices_take_the_faster_ring() -> None:
    flat = 7 * max(1 + SIZE / 800, 2 + SIZE / 320)
    hierarchical = 3 * (1 + SIZE / 400) + 2 + SIZE / 80
    assert seconds(ALL_GATHER, 8, 1) == pytest.approx(min(flat, hierarchical))
    wide = Topology(NODES.device, (NODES.tiers[0], LinkTier(16, 40.0, 2.0)))
    empty = Message(ALL_REDUCE, "", 0.0, 1, 64, 1)
    assert message_seconds(empty, wide) == pytest.approx(2 * 3 * 1 + 2 * 4 * 2), "a tree"


def test_groups_across_nodes_share_the_link_of_a_node() -> None:
    assert seconds(ALL_GATHER, 2, 4) == pytest.approx(2 + SIZE / 20), "four groups of two, 10 bytes/s each"
    assert seconds(POINT_TO_POINT, 2, 4) == pytest.approx(2 + SIZE / 10)
    assert seconds(POINT_TO_POINT, 4, 1) == pytest.approx(1 + SIZE / 100)


def test_an_all_to_all_sends_each_rank_its_share() -> None:
    assert seconds(ALL_TO_ALL, 8, 1) == pytest.approx(4 * (2 + 4 * SIZE / 320))
    assert seconds(ALL_TO_ALL, 4, 1) == pytest.approx(3 * (1 + SIZE / 400))
