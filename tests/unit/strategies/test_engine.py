"""Simulation of a step, against times by hand and a list of tasks; incremental against full simulation."""

import itertools
import math
from collections import defaultdict
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from models.graph import BYTES, Builder, Graph
from models.layout import Layout
from models.named import graph
from models.soap import Space, divide, part_of, region_needed, region_of
from strategies import engine, search, starts
from strategies.costs import PartCost, roofline
from strategies.problem import FASTEST, GRADIENTS, MESSAGES, PICOSECONDS, RING, Part, Posed, Strategy, pose
from strategies.topology import DeviceRates, LinkTier, Topology
from support import exact_search
from support.planned_models import HANDLING, SLOW, SMALL_DEVICE, SMALL_MODELS
from support.planner_properties import attempt_change, timeline

BATCH = 4
PAIR = Topology(SMALL_DEVICE, (LinkTier(2, 1000.0, 0.5),))
FOUR = Topology(HANDLING, (LinkTier(2, 1e9, 1e-6), SLOW))


def two_second_cost(space: Space, place: int, degrees: tuple[int, ...]) -> PartCost:
    """Return two seconds forward and four backward for each layer, shared by its parts."""
    return PartCost(2 / math.prod(degrees), 4 / math.prod(degrees), 0)


def perceptron() -> Graph:
    """Return a model of 64 inputs and 10 units: 650 parameters."""
    builder = Builder("perceptron", (8, 8, 1), "glorot")
    builder.dense(builder.flatten(builder.input), 10)
    return builder.graph()


def pose_model(name: str, topology: Topology = FOUR, gradients: str = RING) -> Posed:
    space = divide(graph(name, *SMALL_MODELS[name]), BATCH)
    return pose(
        space,
        topology,
        partial(roofline, device=topology.device, update_bytes=32),
        max_parts=8,
        gradients=gradients,
    )


def test_all_reduce_overlaps_backward_pass() -> None:
    posed = pose(divide(perceptron(), BATCH), PAIR, two_second_cost)
    # forward until 3 s, the loss's backward until 5, the dense layer's until 7; then 2 x (0.5 s + 1,300 bytes
    # at 1,000 a second)
    assert search.step_seconds(posed, starts.data_parallel(posed)) == pytest.approx(7 + 3.6)


def test_ring_has_own_rates_and_blocks_devices() -> None:
    link = replace(PAIR.tiers[0], ring_bytes_s=2000.0, ring_latency_s=1.0, ring_channels=4)
    for send_s in (0.25, 2.5):
        device = replace(SMALL_DEVICE, send_s=send_s, send_byte_s=1e-4, receive_s=0.125)
        posed = pose(divide(perceptron(), BATCH), Topology(device, (link,)), two_second_cost)
        handled = 2 * (send_s + 0.125 + 1300 * 1e-4)
        # meanwhile the flatten layer's backward pass takes 2 s, and what a device has to do for messages
        assert search.step_seconds(posed, starts.data_parallel(posed)) == pytest.approx(
            7 + max(2 + handled, 2 * (1 + 0.65))
        )


def test_burst_hides_bytes_behind_latency() -> None:
    for burst_s, step in ((0.0, 0.5 + 1.3), (0.25, 0.25 + 1.3), (9.0, 1.3)):
        posed = pose(
            divide(perceptron(), BATCH),
            Topology(SMALL_DEVICE, (replace(PAIR.tiers[0], burst_bytes=1000 * burst_s),)),
            two_second_cost,
        )
        # after a pause the first bytes pass at once: a burst, or all of them; each step has a latency
        waits = max(2 * step - min(burst_s, 2 * 1.3), 2 * 0.5)
        assert search.step_seconds(posed, starts.data_parallel(posed)) == pytest.approx(7 + max(2, waits))
        halves = {
            "flatten1": Part((1, 1, 1, 1), (0,)),
            "dense1": Part((1, 1, 1, 1), (1,)),
            "loss": Part((1, 1, 1, 1), (1,)),
        }
        message = max(0.0, BYTES * BATCH * 64 / 1000 - burst_s) + 0.5
        assert search.step_seconds(posed, halves) == pytest.approx(2 + message + 2 + 2 + 4 + 4 + message + 4)


def test_sums_on_same_devices_are_bucketed() -> None:
    builder = Builder("perceptron", (8, 8, 1), "glorot")
    hidden = builder.dense(builder.dense(builder.flatten(builder.input), 10), 10)
    builder.dense(hidden, 10)
    space = divide(builder.graph(), BATCH)
    first, *behind = (BYTES * parameters for parameters in (650, 110, 110))
    for bucket_bytes, last in (
        ((0, 0), first),
        ((500, 0), first),
        ((sum(behind) + 1, 0), first + sum(behind)),
        ((2**20, 0), first + sum(behind)),
        ((0, 2**20), first + behind[0]),
    ):
        posed = pose(space, PAIR, two_second_cost, bucket_bytes=bucket_bytes)
        # flatten, three dense layers and the loss: 5 s forward, and until the gradients of the first dense
        # layer 8 s more
        assert search.step_seconds(posed, starts.data_parallel(posed)) == pytest.approx(
            13 + 2 * (0.5 + last / 1000 / 2)
        )


def test_fastest_all_reduce_is_chosen_by_nodes_and_bytes() -> None:
    # Of 4 nodes with 2 devices, 650 parameters; links of 1 kB/s in a node, 500 B/s between, latency 0.5 s
    size, inner, outer = BYTES * 650, LinkTier(2, 1000.0, 0.5), LinkTier(4, 500.0, 0.5)
    ring = 14 * (0.5 + size / 8 / 500)
    hierarchical = 2 * (0.5 + size / 2 / 1000) + 6 * (0.5 + size / 4 / 500)
    tree = 2 * 0.5 + 4 * 0.5 + 2 * size / 500
    expected = {
        (inner, outer): min(ring, hierarchical, tree),
        # latency alone: 14, 8 and 6 steps
        (replace(inner, bytes_s=1e9), replace(outer, bytes_s=1e9)): 6 * 0.5,
        # in nodes of 4 devices a tree is a chain, with as many steps as rings of rings
        (LinkTier(4, 1e9, 0.5), LinkTier(2, 1e9, 0.5)): 8 * 0.5,
        # without latency, and with a fast link in the nodes, 3/4 of the bytes twice through the slow one
        (LinkTier(2, 1e9), LinkTier(4, 500.0)): 2 * 3 / 4 * size / 500,
        # a flat ring moves 7/8 of the bytes twice, in a node at the same time as between nodes
        (LinkTier(2, 500.0), LinkTier(4, 500.0)): 2 * 7 / 8 * size / 500,
    }
    for levels, seconds in expected.items():
        for gradients, duration in ((FASTEST, seconds), (RING, None)):
            posed = pose(
                divide(perceptron(), 8), Topology(SMALL_DEVICE, levels), two_second_cost, gradients=gradients
            )
            step_s = search.step_seconds(posed, starts.data_parallel(posed))
            if duration is None:
                rates = [level.bytes_s for level in levels]
                duration = 14 * (max(level.latency_s for level in levels) + size / 8 / min(rates))
            assert step_s == pytest.approx(3 * 2 / 8 + 2 * 4 / 8 + duration, rel=1e-4), (levels, gradients)


def test_message_handling_blocks_computation() -> None:
    device = replace(SMALL_DEVICE, send_s=0.25, receive_s=0.5)
    posed = pose(divide(perceptron(), BATCH), Topology(device, PAIR.tiers), two_second_cost)
    parts = {
        "flatten1": Part((2, 1, 1, 1), (0, 1)),
        "dense1": Part((1, 1, 1, 1), (0,)),
        "loss": Part((1, 1, 1, 1), (0,)),
    }
    message = BYTES * BATCH // 2 * 64 / 1000 + 0.5
    # device 0 is done with its half of flatten at 1 s, when the other half leaves device 1; it waits for that
    arrives_at = 1 + message
    full = arrives_at + 2 + 2 + 4 + 4
    # its own half's backward pass comes after the gradient has left, and that of device 1 after it has come
    assert search.step_seconds(posed, parts) == pytest.approx(max(full + message, full + 0.25) + 2)


def test_remote_output_and_gradient_cross_the_link() -> None:
    posed = pose(divide(perceptron(), BATCH), PAIR, two_second_cost)
    first, second = Part((1, 1, 1, 1), (0,)), Part((1, 1, 1, 1), (1,))
    strategy = {"flatten1": first, "dense1": second, "loss": second}
    message = BYTES * BATCH * 64 / 1000 + 0.5
    assert search.step_seconds(posed, strategy) == pytest.approx(2 + message + 2 + 2 + 4 + 4 + message + 4)
    assert search.describe_strategy(posed, strategy)["sent_activation_bytes"] == 2 * BYTES * BATCH * 64
    assert search.describe_strategy(posed, strategy)["gradient_bytes"] == 0
    assert search.describe_strategy(posed, starts.data_parallel(posed))["gradient_bytes"] == 2 * BYTES * 650


def test_strategy_beyond_memory_is_infeasible() -> None:
    small = Topology(DeviceRates(1e12, 1e11, memory_bytes=4 * BYTES * 650), PAIR.tiers)
    posed = pose(divide(perceptron(), BATCH), small, two_second_cost)
    assert search.step_seconds(posed, starts.data_parallel(posed)) == math.inf
    assert search.describe_strategy(posed, starts.data_parallel(posed))["seconds"] is None
    by_units = {**starts.data_parallel(posed), "dense1": Part((1, 2, 1, 1), (0, 1))}
    assert search.step_seconds(posed, by_units) < math.inf, "each half of the units is on one device alone"


def two_layers() -> Graph:
    """Return a model of two dense layers with 4,160 parameters each."""
    builder = Builder("two-layers", (8, 8, 1), "glorot")
    builder.dense(builder.dense(builder.flatten(builder.input), 64), 64)
    return builder.graph()


@pytest.mark.parametrize("method", search.SCHEDULES)
def test_search_leaves_strategies_without_memory(method: str) -> None:
    # Sums are fast and messages slow, so that strategies with less memory are slower.
    pair = Topology(SMALL_DEVICE, (replace(PAIR.tiers[0], ring_bytes_s=1e12, ring_latency_s=0.0),))
    roomy = pose(divide(two_layers(), BATCH), pair, two_second_cost)
    needed = search.describe_strategy(roomy, starts.data_parallel(roomy))["memory_bytes"]
    for share, fits in ((0.75, True), (0.1, False)):
        device = replace(SMALL_DEVICE, memory_bytes=share * needed)
        posed = pose(divide(two_layers(), BATCH), replace(pair, device=device), two_second_cost)
        strategy, facts = search.run_search(posed, starts.data_parallel(posed), method, 200, 1)
        least = search.describe_strategy(posed, strategy)
        assert least["memory_bytes"] < 0.8 * needed and (least["seconds"] is not None) == fits
        assert [seconds for _, seconds in facts["progress"]][-1] == least["seconds"]


def used_bytes(posed: Posed, strategy: Strategy) -> list[int]:
    """Return the memory of all devices."""
    state = posed.state(strategy)
    engine.simulate_strategy(posed.arrays, state)
    return state.used_bytes.tolist()


def test_devices_hold_inputs_outputs_and_each_shard_once() -> None:
    posed = pose(divide(two_layers(), BATCH), PAIR, two_second_cost)
    single = Part((1, 1, 1, 1), (0,))
    halves = {"flatten1": single, "dense1": Part((1, 2, 1, 1), (0, 1)), "dense2": single, "loss": single}
    values = BYTES * BATCH * 64
    loss = values + 2 * BYTES  # logarithms of probabilities, and two sums
    # Device 1 has received all inputs for its half; device 0 assembles both halves, and shares the others.
    first = 4 * BYTES * (2080 + 4160) + values // 2 + values + values + loss
    assert used_bytes(posed, halves) == [first, 4 * BYTES * 2080 + values + values // 2]
    twice = {**halves, "dense1": Part((2, 1, 1, 1), (0, 0))}
    assert used_bytes(posed, twice) == [4 * BYTES * 2 * 4160 + values + values + values + loss, 0]
    assert search.describe_strategy(posed, twice)["weight_bytes"] == 4 * BYTES * 2 * 4160


def test_tied_table_is_counted_once() -> None:
    model = graph("gpt-nano", *SMALL_MODELS["gpt-nano"])
    sizes = {name: BYTES * math.prod(shape) for name, shape in model.weights().items()}
    n_bytes, of_positions = sum(sizes.values()), sizes["positions.table"]
    for devices, absent in (((0, 1), 0), ((0,), of_positions)):
        changed = {"embedding": Part((len(devices), 1, 1, 1), devices), "head": Part((1, 1, 1, 1), (1,))}
        weights = []
        for n_numbers in (0, 1):
            posed = pose(divide(model, BATCH), PAIR, two_second_cost, numbers_of_parameter=n_numbers)
            weights.append(used_bytes(posed, starts.data_parallel(posed) | changed))
        added = [after - before for before, after in zip(*weights, strict=True)]
        assert added == [n_bytes, n_bytes - absent]


def test_starts_that_need_little_memory_are_added() -> None:
    topology = replace(PAIR, device=replace(SMALL_DEVICE, memory_bytes=BYTES * 4 * 8000))
    job = {
        "graph": two_layers().to_json(), "batch": BATCH, "topology": topology.to_json(), "costs": None,
        "numbers_of_parameter": 4, "gradients": RING, "proposals": 5, "restarts": 3, "seed": 1,
        "whole": False, "precision": "fp32", "bucket_bytes": [1 << 20, 25 << 20],
    }  # fmt: skip
    answers = list(search.run_job({**job, "starts": ["data"]}))
    begun = {answer["start"]: answer["seconds"] for answer in answers if answer["method"] is None}
    assert [*begun] == ["data", *starts.SMALL] and begun["data"] is None
    assert begun["stages"] and begun["units"]
    for answer in answers[len(begun) :]:
        assert len(answer["restarts"]) == 3
        assert answer["seconds"] == min(filter(None, answer["restarts"]), default=None)
    assert len({tuple(answer["restarts"]) for answer in answers[len(begun) :]}) > 2, "seeds are their own"
    assert max(len({*answer["restarts"]}) for answer in answers[len(begun) :]) > 1, "within a search, too"
    fitting = list(search.run_job({**job, "topology": PAIR.to_json(), "starts": ["data"]}))
    assert {answer["start"] for answer in fitting} == {"data"}


def list_step_time(posed: Posed, strategy: Strategy) -> int:  # noqa: PLR0912, PLR0915
    """Return the time of a step in ps, from regions and messages one by one."""
    space, topology, problem = posed.space, posed.topology, posed.arrays
    layers = space.layers
    free: dict[object, int] = defaultdict(int)
    parts = [strategy[layer.name] for layer in layers]
    regions = [
        [region_of(layer, part.degrees, i) for i in range(len(part.devices))]
        for layer, part in zip(layers, parts, strict=True)
    ]
    config = [
        int(problem.first_config[place]) + posed.configurations[place].index(part.degrees)
        for place, part in enumerate(parts)
    ]

    def message(sender: int, receiver: int, size: int, ready: int) -> int:
        if sender == receiver:
            return ready
        level = topology.tier_between(sender, receiver)
        used_links = [
            ("out", level, topology.unit(level, sender)),
            ("in", level, topology.unit(level, receiver)),
        ]
        link = topology.tiers[level]
        burst = round(PICOSECONDS * link.burst_bytes / link.bytes_s)
        transfer = max(1, int(size * (PICOSECONDS / link.bytes_s)))
        begin, end = ready, ready
        # The second link may begin with the first byte that leaves the first one, and ends with the last.
        for used_link in used_links:
            free[used_link] = max(begin - burst, free[used_link]) + transfer
            end = max(end, free[used_link])
            begin = end - transfer
        rates = topology.device
        for device, once_s, byte_s in (
            (sender, rates.send_s, rates.send_byte_s),
            (receiver, rates.receive_s, rates.receive_byte_s),
        ):
            free[device] += round(once_s * PICOSECONDS) + int(size * (byte_s * PICOSECONDS))
        return end + round(link.latency_s * PICOSECONDS)

    def common(edge: object, target: int, i: int) -> list[tuple[int, int]]:
        """Return the parts of an edge's source that a part needs, and bytes."""
        if edge.first_only and part_of(i, parts[target].degrees)[1] > 0:
            return []
        needed = region_needed(edge.needed, regions[target][i], layers[edge.source].shape)
        overlaps = []
        for p, region in enumerate(regions[edge.source] if needed else []):
            size = math.prod(
                max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in zip(needed, region, strict=True)
            )
            if size:
                overlaps.append((p, size * edge.element_bytes))
        return overlaps

    def previous(place: int, i: int) -> int | None:
        at = part_of(i, parts[place].degrees)
        if not layers[place].chain or at[1] == 0:
            return None
        earlier = (at[0], at[1] - 1, *at[2:])
        return next(
            p for p in range(len(parts[place].devices)) if part_of(p, parts[place].degrees) == earlier
        )

    links = topology.tiers
    ends: dict[tuple[int, int], int] = {}
    for place in range(len(layers)):
        for i, device in enumerate(parts[place].devices):
            ready = 0
            if (p := previous(place, i)) is not None:
                ready = message(
                    parts[place].devices[p], device, int(problem.state_bytes[config[place]]), ends[place, p]
                )
            for edge in space.edges:
                if edge.target == place:
                    for p, size in common(edge, place, i):
                        ready = max(
                            ready, message(parts[edge.source].devices[p], device, size, ends[edge.source, p])
                        )
            free[device] = max(ready, free[device]) + int(problem.forward[config[place]])
            ends[place, i] = free[device]
    first_bytes, bucket_bytes = problem.bucket_bytes.tolist()
    layout = Layout(
        space,
        tuple(part.degrees for part in parts),
        tuple(part.devices for part in parts),
        (),
        (first_bytes, bucket_bytes),
    )
    sums = list(layout.sums())
    back = dict(ends)

    def ring(bucket: tuple[int, ...], shard: int) -> None:
        devices = layout.members(bucket[0], shard)
        users = [user for place in bucket for user in (place, *layout.tied(place))]
        ready = max(
            back[user, i]
            for user in users
            for i in range(len(parts[user].devices))
            if user not in bucket or layout.shard((user, i)) == shard
        )
        hops = list(zip(devices, [*devices[1:], devices[0]], strict=True))
        levels = [topology.tier_between(*hop) for hop in hops]
        ways = [
            (link, level, topology.unit(level, hop[i]))
            for hop, level in zip(hops, levels, strict=True)
            for i, link in enumerate(("out", "in"))
        ]
        crossed = [topology.tiers[level] for level in levels]
        sizes = [int(problem.shard_bytes[config[place]]) for place in bucket]
        rates = [PICOSECONDS / (at.ring_bytes_s or at.bytes_s) for at in crossed]
        latencies = [
            PICOSECONDS * (at.latency_s if at.ring_latency_s is None else at.ring_latency_s) for at in crossed
        ]
        bursts = [round(PICOSECONDS * at.burst_bytes / at.bytes_s) for at in crossed]
        steps = 2 * (len(devices) - 1)

        def step(delays: list[int], size: float) -> int:
            """Return the slowest link's time of a step, with these latencies."""
            transfer = [max(1, int(size / len(devices) * rate)) for rate in rates]
            return max(
                max(latency, byte + latency - min(latency, burst))
                for latency, byte, burst in zip(delays, transfer, bursts, strict=True)
            )

        full = list(map(round, latencies))
        shares = [round(latency / at.ring_channels) for latency, at in zip(latencies, crossed, strict=True)]
        # Members of each unit, from devices outwards: by the number of units at a level and at the next one.
        n_units = [
            len({topology.unit(level, device) for device in devices}) for level in range(len(links) + 1)
        ]
        members = [math.ceil(n_units[level] / n_units[level + 1]) for level in range(len(links))]
        ring_ps = [
            round(PICOSECONDS * (at.latency_s if at.ring_latency_s is None else at.ring_latency_s))
            for at in links
        ]
        byte_ps = [PICOSECONDS / (at.ring_bytes_s or at.bytes_s) for at in links]

        def hierarchical(size: float, has_latency: bool = True) -> int:
            waits = sum(2 * (n - 1) * at for n, at in zip(members, ring_ps, strict=True))
            moved = sum(2 * (n - 1) / n * at for n, at in zip(members, byte_ps, strict=True))
            return waits * has_latency + int(size * moved)

        def tree(size: float) -> int:
            hops = [members[0] - 1, *(math.ceil(math.log2(n)) for n in members[1:])]
            slowest = max(at for n, at in zip(members, byte_ps, strict=True) if n > 1)
            return sum(2 * n * at for n, at in zip(hops, ring_ps, strict=True)) + int(2 * size * slowest)

        def fastest(delays: list[int], size: float) -> int:
            flat = steps * step(delays, size)
            return flat if problem.only_rings[0] else min(flat, hierarchical(size), tree(size))

        least = 0
        for size in sizes:
            flat = steps * max(0, *(int(size / len(devices) * rate) - 1 for rate in rates))
            least += flat if problem.only_rings[0] else min(flat, max(0, hierarchical(size, False) - 1))
        begin = max(ready - min(least, *bursts), *(free[link] for link in ways))
        occupied = fastest(shares, sum(sizes))
        arrives_at = max(begin + max(occupied, fastest(full, sum(sizes))), ready + fastest(full, 0))
        for link in ways:
            free[link] = begin + occupied
        cost_device = topology.device
        handled = steps * (
            round(cost_device.send_s * PICOSECONDS)
            + round(cost_device.receive_s * PICOSECONDS)
            + int(
                sum(sizes)
                / len(devices)
                * (cost_device.send_byte_s * PICOSECONDS + cost_device.receive_byte_s * PICOSECONDS)
            )
        )
        for device in devices:
            free[device] += handled
            last[device] = max(last[device], arrives_at)

    last: dict[int, int] = defaultdict(int)
    updates: dict[int, int] = defaultdict(int)
    for place in reversed(range(len(layers))):
        for i in reversed(range(len(parts[place].devices))):
            device = parts[place].devices[i]
            free[device] = max(back[place, i], free[device]) + int(problem.backward[config[place]])
            back[place, i] = free[device]
            if (p := previous(place, i)) is not None:
                size = int(problem.state_bytes[config[place]])
                back[place, p] = max(
                    back[place, p], message(device, parts[place].devices[p], size, back[place, i])
                )
            for edge in reversed(space.edges):
                if edge.target == place:
                    for p, size in common(edge, place, i):
                        arrives_at = message(device, parts[edge.source].devices[p], size, back[place, i])
                        back[edge.source, p] = max(back[edge.source, p], arrives_at)
        if layers[place].shared is not None or not layers[place].parameters:
            continue
        if problem.as_messages[0]:
            for shard in range(layout.shards(place)):
                since: dict[int, int] = {}
                for layer_index in (place, *layout.tied(place)):
                    for i, device in enumerate(parts[layer_index].devices):
                        if layer_index != place or layout.shard((place, i)) == shard:
                            since[device] = max(since.get(device, 0), back[layer_index, i])
                owner, *receivers = since  # in the order of parts
                if not receivers:
                    updates[owner] += int(problem.update[config[place]])
                    continue
                size = int(problem.shard_bytes[config[place]])
                arrives_at = max(
                    since[owner], *(message(device, owner, size, since[device]) for device in receivers)
                )
                arrives_at += int(problem.update[config[place]])
                last[owner] = max(last[owner], arrives_at)
                for device in receivers:
                    last[device] = max(last[device], message(owner, device, size, arrives_at))
            continue
        for shard in range(layout.shards(place)):
            for device in layout.members(place, shard):
                updates[device] += int(problem.update[config[place]])
        for bucket, shard in sums:
            if bucket[-1] == place:
                ring(bucket, shard)
    return max(max(free[device], last[device]) + updates[device] for device in range(topology.devices))


def test_an_owner_sums_gradients_and_sends_the_weights_back() -> None:
    def cost(space: Space, place: int, degrees: tuple[int, ...]) -> PartCost:
        return PartCost(2 / math.prod(degrees), 4 / math.prod(degrees), 0.25)

    pair = pose(divide(perceptron(), BATCH), PAIR, cost, gradients=MESSAGES)
    message = BYTES * 650 / 1000 + 0.5
    # backward until 7 s as above; the gradients to device 0, which updates the weights there, and the weights
    # back
    assert search.step_seconds(pair, starts.data_parallel(pair)) == pytest.approx(
        7 + message + 0.25 + message
    )
    assert search.describe_strategy(pair, starts.data_parallel(pair))["gradient_bytes"] == 2 * BYTES * 650
    four_devices = pose(
        divide(perceptron(), BATCH),
        Topology(SMALL_DEVICE, (LinkTier(4, 1000.0, 0.5),)),
        cost,
        gradients=MESSAGES,
    )
    # parts take half as long; three gradients one after the other into device 0, and three times the weights
    # out of it
    carried = 3 * BYTES * 650 / 1000 + 0.5
    assert search.step_seconds(four_devices, starts.data_parallel(four_devices)) == pytest.approx(
        3.5 + carried + 0.25 + carried
    )
    by_units = {**starts.data_parallel(pair), "dense1": Part((1, 2, 1, 1), (1, 0))}
    assert search.describe_strategy(pair, by_units)["gradient_bytes"] == 0, (
        "units that one device has need no owner"
    )


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("name", sorted(SMALL_MODELS))
def test_simulation_equals_list_of_tasks(name: str, gradients: str) -> None:
    posed = pose_model(name, gradients=gradients)
    for seed in range(2):
        strategy = starts.random_strategy(posed, seed)
        assert search.step_seconds(posed, strategy) == list_step_time(posed, strategy) / PICOSECONDS


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("name", sorted(SMALL_MODELS))
def test_incremental_simulation_equals_full_one(name: str, gradients: str) -> None:
    """Times of every part are equal in ps; a rejected change leaves the state as it was."""
    posed = pose_model(name, gradients=gradients)
    problem, rng = posed.arrays, np.random.default_rng(1)
    state = posed.state(starts.data_parallel(posed))
    cost = engine.simulate_strategy(problem, state)
    kinds = set()
    for _ in range(25):
        layer = int(rng.integers(len(problem.shape)))
        config = int(rng.integers(problem.first_config[layer + 1] - problem.first_config[layer]))
        parts = int(problem.parts[problem.first_config[layer] + config])
        devices = rng.integers(4, size=parts)
        limit = int(cost * rng.choice([0.9, 1.0, 1.5, 100]))
        before = [array.copy() for array in (state.config, state.device, state.forward_end[0], state.local)]
        time = attempt_change(problem, state, np.array([layer], np.int64), config, devices, limit, False)
        full = posed.state(posed.strategy(state.config, state.device))
        again = engine.simulate_strategy(problem, full)
        if time == engine.NEVER:
            assert again == cost
            assert all(
                np.array_equal(a, b)
                for a, b in zip(
                    before, (state.config, state.device, state.forward_end[0], state.local), strict=True
                )
            )
            tried = {**posed.strategy(state.config, state.device)}
            tried[posed.space.layers[layer].name] = Part(
                posed.configurations[layer][config], tuple(map(int, devices))
            )
            assert engine.simulate_strategy(problem, posed.state(tried)) > limit
        else:
            assert time == again <= limit
            assert all(map(np.array_equal, timeline(posed, state), timeline(posed, full)))
            assert np.array_equal(state.checkpoint_work[0], full.checkpoint_work[0]) and np.array_equal(
                state.used_bytes, full.used_bytes
            )
            cost = time
        kinds.add(time == engine.NEVER)
    assert kinds == {True, False}


def test_search_finds_optimum_of_small_model() -> None:
    posed = pose(
        divide(perceptron(), BATCH),
        Topology(SMALL_DEVICE, (LinkTier(2, 2000.0, 0.01),)),
        two_second_cost,
        bucket_bytes=(0, 0),
    )
    choices = [
        [Part(degrees, devices) for degrees in configurations for devices in itertools.product(range(2), repeat=math.prod(degrees))] for configurations in posed.configurations
    ]  # fmt: skip
    names = [layer.name for layer in posed.space.layers]
    times = [
        search.step_seconds(posed, dict(zip(names, choice, strict=True)))
        for choice in itertools.product(*choices)
    ]
    fastest, facts = exact_search.find_fastest(posed, starts.data_parallel(posed))
    assert search.step_seconds(posed, fastest) == facts["picoseconds"] / PICOSECONDS == min(times)
    assert facts["bounds"] < len(times)
    for method in search.SCHEDULES:
        strategy, facts = search.run_search(posed, starts.random_strategy(posed, 1), method, 1500, 1)
        assert search.step_seconds(posed, strategy) == min(times) == facts["progress"][-1][1]


def test_branch_and_bound_refuses_other_problems() -> None:
    data = starts.data_parallel
    for name, topology, words in (
        ("lenet-5", FOUR, "levels"),
        ("gpt-nano", PAIR, "^gpt-nano: "),
        ("lenet-5", PAIR, "bucket_bytes"),
    ):
        posed = pose_model(name, topology)
        with pytest.raises(ValueError, match=words):
            exact_search.find_fastest(posed, data(posed))


@pytest.mark.parametrize("method", search.SCHEDULES)
def test_incremental_search_equals_full_one(method: str) -> None:
    posed = pose_model("lenet-5")
    begin = starts.data_parallel(posed)
    runs = [search.run_search(posed, begin, method, 150, 3, full) for full in (False, True)]
    assert runs[0][0] == runs[1][0] and runs[0][1]["progress"] == runs[1][1]["progress"]
    assert runs[0][1]["ended"]["accepted"] > 5
