"""Which messages an all-reduce has, and how long it keeps a step waiting."""

import math

import numpy as np
import pytest

from declared.models import model_graph
from prediction.communication import (
    MIB,
    Rule,
    Tensors,
    Units,
    can_overlap,
    exposed_s,
    exposed_units_s,
    gradient_tensors,
    join_buckets,
    join_units,
    message_rule,
    single_tensor,
)

TWO = Tensors(np.array([10.0, 20.0]), np.array([0.5, 1.0]))
BACKWARD = np.array([4.0])


class Line:
    """A network that takes a second for a byte, and `latency` beside the bytes of other messages."""

    def __init__(self, latency=0.0):
        self.latency, self.sent = latency, []

    def seconds(self, size):
        self.sent.append(size.tolist())
        return self.latency + size

    def occupied(self, size):
        return size


def late(kind, hidden, built=TWO, backward=BACKWARD, latency=0.0, **rule):
    return float(exposed_s(Rule(kind, **rule), built, Line(latency), backward, hidden)[0])


def test_buckets_are_those_of_torch():
    """torch.distributed._compute_bucket_assignment_by_size (torch 2.2.2) of three Linear(512, 512), in their
    own order, with limits of 1 MiB: [[0], [1, 2], [3, 4], [5]]. The rule: Li et al., VLDB 2020, section
    3.2.3.
    """
    sizes = np.array([1048576.0, 2048.0] * 3)
    built = join_buckets(Tensors(sizes, np.arange(6) / 5), (MIB, MIB))
    assert built.bytes.tolist() == [1048576, 1050624, 1050624, 2048]
    assert built.ready.tolist() == [0, 2 / 5, 4 / 5, 1]


def test_ddp_sends_resnet_50_in_a_small_and_four_large_buckets():
    built = gradient_tensors(model_graph("resnet-50", "synthetic-224x224x3-1000"))
    joined = join_buckets(built, message_rule("pytorch-ddp").limits_bytes)
    assert built.total_bytes == joined.bytes.sum() == 4 * 25_557_032  # torchvision's number of parameters
    assert len(joined.bytes) == 5
    assert (joined.bytes[1:-1] >= 25 * MIB).all()
    assert MIB <= joined.bytes[0] < 25 * MIB
    assert joined.ready[-1] == pytest.approx(1)


def test_gradients_come_in_the_order_of_the_backward_pass():
    graph = model_graph("small-cnn", "digits")
    built = gradient_tensors(graph)
    assert len(built.bytes) == len([name for name in graph.weights() if name not in graph.statistics])
    assert built.bytes[0] == 4 * 10  # the last operator's bias: ten classes
    assert (np.diff(built.ready) >= 0).all()


def test_without_overlap_messages_wait_for_the_backward_pass():
    for kind in ("ends", "buckets", "fusion"):
        assert late(kind, 0.0) == 30
    assert late("buckets", 0.0, limits_bytes=(1, 1)) == 30


def test_a_bucket_travels_beside_the_rest_of_the_backward_pass():
    # The first is ready 2 s before the end and needs 10 s; the second then takes 20 s more.
    assert late("buckets", 1.0, limits_bytes=(1, 1)) == 10 - 2 + 20
    # At half of the pass it is ready 1 s before its end.
    assert late("buckets", 0.5, limits_bytes=(1, 1)) == 10 - 1 + 20
    # Where the first has arrived before the end, the last one is exposed alone.
    assert late("buckets", 1.0, limits_bytes=(1, 1), backward=np.array([100.0])) == 20


def test_what_is_sent_after_the_backward_pass_is_never_hidden():
    assert late("ends", 1.0, backward=np.array([100.0])) == 30
    assert not can_overlap("tensorflow-multiworker")
    assert can_overlap("pytorch-ddp")
    assert not can_overlap("a framework without a rule")


def test_fusion_takes_gradients_ready_during_the_last_message():
    built = Tensors(np.array([10.0, 1.0, 2.0, 3.0]), np.array([0.0, 0.5, 0.75, 1.0]))
    # Sent: 10 alone at -8 until 2; then 1 + 2 + 3 together until 8.
    assert late("fusion", 1.0, built, np.array([8.0])) == 8
    # With 40 s: 10 at -40, 1 at -20, 2 at -10, 3 at 0.
    assert late("fusion", 1.0, built, np.array([40.0])) == 3
    # A cycle is looked for on average half of its length after a tensor is there.
    assert late("fusion", 1.0, built, np.array([40.0]), cycle_s=0.5) == 3.25


def test_a_fused_message_has_a_limit():
    line, built = Line(), Tensors(np.array([30.0, 30.0, 10.0]), np.ones(3))
    assert exposed_s(Rule("fusion", (32, 32)), built, line, np.array([1.0]), 0.0) == pytest.approx(70)
    assert line.sent == [[70 - 64], [32.0]]


def test_concurrent_messages_share_the_link_but_not_latencies():
    item, two = ({"limits_bytes": (1, 1), "latency": 5.0, "channels": channels} for channels in (1, 2))
    assert late("buckets", 0.0, **item) == 5 + 10 + 5 + 20
    assert late("buckets", 0.0, **two) == 10 + 20  # the second's latency has passed before the link is free
    three = Tensors(np.array([10.0, 1.0, 1.0]), np.ones(3))
    # The second ends at 11, with the link; the third starts with the first's end at 15, and takes 6.
    assert late("buckets", 0.0, three, **two) == 15 + 6


def test_units_are_closed_in_front_of_a_layer():
    """As frameworks/pytorch-fsdp makes them: three layers of 10 with a bias of 1, from the last to the
    first.
    """
    built = Tensors(
        np.array([1.0, 10.0] * 3), np.array([0.25, 0.25, 0.5, 0.5, 1.0, 1.0]), np.array([0, 0, 1, 1, 2, 2])
    )
    two = join_units(built, 11)
    assert two.bytes.tolist() == [11, 11, 11] and two.share.tolist() == [0.5, 0.25, 0.25]
    item = join_units(built, 12)
    assert item.bytes.tolist() == [22, 11] and item.share.tolist() == [0.75, 0.25]
    assert join_units(built, 99).bytes.tolist() == [33] and join_units(
        single_tensor(5.0), 1
    ).share.tolist() == [1]


def of_units(hidden, batches=1, backward=4.0, sizes=(8.0, 4.0, 2.0)):
    built = Units(np.array(sizes), np.full(len(sizes), 1 / len(sizes)))
    slow = Line()
    slow.seconds = lambda size: 10 * size  # reduce-scatter
    return float(
        exposed_units_s(built, Line(), slow, np.array([backward]), hidden, np.array([float(batches)]))[0]
    )


def test_all_units_but_the_last_are_gathered_twice():
    """Counted in FSDP2 (PyTorch 2.13): with three units five gathers and three reductions, and two gathers a
    batch more.
    """
    assert of_units(0.0) == (8 + 4 + 2) + (4 + 8) + 10 * (8 + 4 + 2)
    assert of_units(0.0, batches=3) == of_units(0.0) + 2 * (4 + 8)
    assert of_units(0.0, sizes=(8.0,)) == 8 + 80
    assert of_units(0.0, batches=3, sizes=(8.0,)) == 8 + 80


def test_units_travel_beside_the_work_on_others():
    # Of a pass of 3 x 1000 s: forward begins when the last unit and the first are there, backward ends with
    # the reductions of both.
    assert of_units(1.0, backward=3000.0) == (2 + 8) + 10 * (8 + 2)
    # A second batch before the all-reduce hides all that it gathers.
    assert of_units(1.0, batches=2, backward=3000.0) == of_units(1.0, backward=3000.0)
    # Of 3 x 2 s backward, 3 x 1 forward. Gathered: last 2, first 10, forward 11; second from 10 to 14,
    # forward 15, last 16, backward 18; second again from 16 to 20, backward 22; first from 20 to 28, backward
    # 30; the second's gradients from 28 to 68, then 100 s more.
    assert of_units(1.0, backward=6.0) == 68 + 100 - 9


def test_a_model_of_known_size_is_one_tensor():
    assert single_tensor(1e6).total_bytes == 1e6
    assert math.isclose(late("buckets", 1.0, single_tensor(5.0)), 5)
