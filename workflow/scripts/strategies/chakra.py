"""The simulated step of a strategy as nodes of Chakra execution traces (`ringside strategies --chakra`).

The step is walked layer by layer in the order of `engine`, with the engine's own rules for messages and
all-reduces, so that every node has its simulated times; `build_graph` checks that the step takes as long as
the engine says. Computations of a device are in program order. Gradients of weights that several devices have
are collectives, one for each bucket, or messages to the device that updates them and back.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import InputError
from common.text import alternatives
from models.operations import FLOPS_PER_MAC
from models.strategy import Part, Strategy
from strategies import engine
from strategies.costs import moved_bytes
from strategies.problem import Posed
from strategies.search import build_problem
from traces.chakra import Graph, write

BACKWARD_WORK = 2  # A backward pass has twice the arithmetic: gradients of weights and of inputs.
Place = tuple[int, int]  # A layer, and one of its parts.


class Walk:
    """The walk through a simulated step, which adds each node to `graph`."""

    def __init__(self, posed: Posed, strategy: Strategy) -> None:
        """Simulate the strategy, and prepare to walk through its step."""
        self.problem, self.space, self.layers = posed.arrays, posed.space, posed.space.layers
        self.state = posed.state(strategy)
        self.expected_ps = int(engine.simulate_strategy(self.problem, self.state))
        self.config = [int(config) for config in self.state.config]
        self.degrees = [strategy[layer.name].degrees for layer in self.layers]
        self.moved_bytes = [
            moved_bytes(self.space, layer, degrees) for layer, degrees in enumerate(self.degrees)
        ]
        # Handling of messages waits until a device has computed all layers of a segment (`engine`): forward
        # the parts of its first layer get messages, backward those of its last layer send them.
        self.head = self.state.head[0].tolist()
        self.begins_segment = (self.state.foot == np.arange(len(self.layers))).tolist()
        for array in (
            self.state.free_at,
            self.state.back_end,
            self.state.back_offset,
            self.state.synced_at,
            self.state.updates,
            self.state.bucket,
        ):
            array[...] = 0
        self.state.foot[:] = np.arange(len(self.layers))
        self.graph = Graph.empty(posed.topology.devices)
        self.forward_end: dict[Place, int] = {}
        self.forward_node: dict[Place, int] = {}
        self.backward_node: dict[Place, int] = {}
        self.arrived: dict[Place, list[int]] = {}  # Nodes that bring gradients of a part.
        self.bucket: list[int] = []  # Layers whose gradients wait for a common all-reduce.
        self.synced: list[list[int]] = [[] for _ in self.graph.ranks]  # Nodes before a device's updates.
        self.update_bytes = [0] * len(self.graph.ranks)

    def device(self, place: Place) -> int:
        """Return the device of a part."""
        return int(self.state.device[place])

    def parts(self, layer: int) -> range:
        """Return the numbers of a layer's parts."""
        return range(int(self.problem.parts[self.config[layer]]))

    def needs(self, place: Place) -> Iterator[tuple[Place, int]]:
        """Yield the parts that a part needs, with bytes: the one before it in a chain, then by edges."""
        layer, _ = place
        if previous := self.previous(place):
            yield previous, int(self.problem.state_bytes[self.config[layer]])
        for edge in range(int(self.problem.first_edge[layer]), int(self.problem.first_edge[layer + 1])):
            yield from self.overlaps(edge, place)

    def previous(self, place: Place) -> Place | None:
        """Return the part that hands its state to this one along a chain."""
        layer, part = place
        config = self.config[layer]
        if not engine.follows_link(self.problem, config, part):
            return None
        return layer, part - int(self.problem.chain_stride[config])

    def overlaps(self, edge: int, place: Place) -> list[tuple[Place, int]]:
        """Return the parts of an edge's source that a part needs, with bytes."""
        source, (layer, part) = int(self.problem.source[edge]), place
        count = engine.find_overlaps(self.problem, self.state, edge, layer, part)
        first = int(self.state.cursor[0])
        parts, sizes = self.state.overlap_parts, self.state.overlap_bytes
        return [((source, int(parts[i])), int(sizes[i])) for i in range(first, first + count)]

    def send(
        self, name: str, sender: int, receiver: int, size: int, ready: int, deps: Sequence[int]
    ) -> tuple[int, Sequence[int]]:
        """Send a message; return its arrival, and what its receiver waits for: `deps` on the same device."""
        arrival = int(engine.send_message(self.problem, self.state, sender, receiver, size, ready, False))
        if sender == receiver:
            return arrival, deps
        _, received = self.graph.add_message(sender, receiver, name, (ready, arrival), size, deps)
        return arrival, [received]

    def compute(self, place: Place, ready: int, deps: Sequence[int], backward: bool) -> tuple[int, int]:
        """Compute a part as soon as its device is free; return its end and its node."""
        layer, device = place[0], self.device(place)
        times = self.problem.backward if backward else self.problem.forward
        start = max(ready, int(self.state.free_at[device]))
        end = start + int(times[self.config[layer]])
        self.state.free_at[device] = end
        operations = FLOPS_PER_MAC * self.layers[layer].part_macs(self.degrees[layer])
        node = self.graph.add_computation(
            device,
            f"{self.layers[layer].name}.{place[1]} {'backward' if backward else 'forward'}",
            (start, end),
            deps,
            n_operations=operations * (BACKWARD_WORK if backward else 1),
            moved_bytes=self.moved_bytes[layer][backward],
        )
        return end, node

    def run_forward(self) -> None:
        """Add the forward passes of all layers: of each segment part by part."""
        heads = sorted(set(self.head))
        for head, end in zip(heads, [*heads[1:], len(self.layers)], strict=True):
            for part in self.parts(head):
                for layer in range(head, end):
                    self.compute_forward((layer, part))

    def compute_forward(self, place: Place) -> None:
        """Add the messages that a part waits for, and its forward pass."""
        ready, deps = 0, list[int]()
        for source, size in self.needs(place):
            name = f"{self.layers[source[0]].name}.{source[1]} output"
            producer = [self.forward_node[source]]
            made_at, sender = self.forward_end[source], self.device(source)
            arrival, waits = self.send(name, sender, self.device(place), size, made_at, producer)
            ready, deps = max(ready, arrival), [*deps, *waits]
        end, node = self.compute(place, ready, deps, backward=False)
        self.forward_end[place], self.forward_node[place] = end, node

    def run_backward(self) -> None:
        """Add the backward passes of all layers, their messages and the sums of gradients of weights."""
        for layer in reversed(range(len(self.layers))):
            places = [(layer, part) for part in reversed(self.parts(layer))]
            for place in places:
                self.compute_backward(place)
                if self.begins_segment[layer]:
                    self.send_gradients(place)
            for place in places if not self.begins_segment[layer] else ():
                self.send_gradients(place)
            if self.problem.shard_bytes[self.config[layer]] and self.problem.owner[layer] == layer:
                self.sum_gradients(layer)

    def compute_backward(self, place: Place) -> None:
        """Add the backward pass of a part."""
        deps = [self.forward_node[place], *self.arrived.get(place, ())]
        end, node = self.compute(place, int(self.state.back_end[place]), deps, backward=True)
        self.state.back_end[place], self.backward_node[place] = end, node

    def send_gradients(self, place: Place) -> None:
        """Send the gradients of a part's inputs: along the chain, then by edges from the last one on."""
        layer, _ = place
        first, end = (int(self.problem.first_edge[layer + i]) for i in range(2))
        previous, receivers = self.previous(place), list[tuple[Place, int]]()
        if previous:
            receivers.append((previous, int(self.problem.state_bytes[self.config[layer]])))
        for edge in reversed(range(first, end)):
            receivers += self.overlaps(edge, place)
        for source, size in receivers:
            name = f"{self.layers[source[0]].name}.{source[1]} gradient"
            arrival, waits = self.send(
                name,
                self.device(place),
                self.device(source),
                size,
                int(self.state.back_end[place]),
                [self.backward_node[place]],
            )
            self.state.back_end[source] = max(int(self.state.back_end[source]), arrival)
            self.arrived.setdefault(source, []).extend(waits)

    def holders(self, layer: int, shard: int) -> dict[int, list[Place]]:
        """Return the parts that have a shard of a layer's weights, by device in the order of parts."""
        config, sharer = self.config[layer], int(self.problem.sharer[layer])
        shards, stride = int(self.problem.shards[config]), int(self.problem.shard_stride[config])
        places = [(layer, part) for part in self.parts(layer) if part // stride % shards == shard]
        if sharer >= 0:
            places += [(sharer, part) for part in self.parts(sharer)]
        places_of: dict[int, list[Place]] = {}
        for place in places:
            places_of.setdefault(self.device(place), []).append(place)
        return places_of

    def sum_gradients(self, layer: int) -> None:
        """Sum a layer's gradients, or add them to the bucket that waits."""
        config, state = self.config[layer], self.state
        size, update = int(self.problem.shard_bytes[config]), int(self.problem.update[config])
        if state.device_set[layer] > 0:
            self.bucket.append(layer)
            latest = max(int(state.back_end[layer, part]) for part in self.parts(layer))
            engine.add_to_bucket(self.problem, state, layer, latest)
            if engine.is_bucket_complete(self.problem, state, layer):
                self.sum_bucket()
            return
        for shard in range(int(self.problem.shards[config])):
            places_of = self.holders(layer, shard)
            members = list(places_of)
            ready = {
                device: max(int(state.back_end[place]) for place in places_of[device]) for device in members
            }
            deps = {device: [self.backward_node[place] for place in places_of[device]] for device in members}
            if len(members) > 1 and self.problem.as_messages[0]:
                self.sum_at_owner(layer, ready, deps)
                continue
            for device in members:
                state.updates[device] += update
                self.update_bytes[device] += 2 * int(self.problem.weight_bytes[config])
                self.synced[device] += deps[device]
            if len(members) > 1:
                state.bucket[engine.SET] = 0  # The ring below replaces that of the bucket.
                state.member[: len(members)] = members
                engine.build_ring(self.problem, state, len(members))
                least = int(engine.min_all_reduce_time(self.problem, state, len(members), size))
                self.all_reduce([layer], ready, deps, least)

    def sum_bucket(self) -> None:
        """All-reduce the layers of the bucket."""
        state, bucket = self.state, self.state.bucket
        by_layer = [self.holders(layer, 0) for layer in self.bucket]
        deps = {
            device: [self.backward_node[place] for places in by_layer for place in places[device]]
            for device in by_layer[0]
        }
        ready = dict.fromkeys(deps, int(bucket[engine.READY]))
        for device in deps:
            state.updates[device] += bucket[engine.UPDATE]
            self.update_bytes[device] += 2 * sum(
                int(self.problem.weight_bytes[self.config[layer]]) for layer in self.bucket
            )
        self.all_reduce(self.bucket, ready, deps, int(bucket[engine.MIN_TIME]))
        for item in (engine.SIZE, engine.READY, engine.MIN_TIME, engine.UPDATE):
            bucket[item] = 0
        bucket[engine.N_SENT] += 1
        self.bucket = []

    def all_reduce(
        self, layers: Sequence[int], ready: Mapping[int, int], deps: Mapping[int, Sequence[int]], least: int
    ) -> None:
        """All-reduce gradients of layers around the engine's current ring; `ready` and `deps` by device."""
        state, sizes = self.state, [int(self.problem.shard_bytes[self.config[layer]]) for layer in layers]
        latest, before = max(ready.values()), state.synced_at.copy()
        state.synced_at[:] = 0
        engine.all_reduce(self.problem, state, len(ready), sum(sizes), latest, least, engine.NEVER)
        end = int(state.synced_at.max())
        np.maximum(state.synced_at, before, out=state.synced_at)
        first, last = self.layers[layers[0]].name, self.layers[layers[-1]].name
        name = f"gradients of {first}" + (f" to {last}" if len(layers) > 1 else "")
        times = {device: (at, end) for device, at in ready.items()}
        nodes = self.graph.add_all_reduce(name, times, sizes, dict(deps))
        for device, node in nodes.items():
            self.synced[device].append(node)

    def sum_at_owner(self, layer: int, ready: Mapping[int, int], deps: Mapping[int, Sequence[int]]) -> None:
        """Send gradients to the first device that has the weights, update them there, and send them back."""
        config, (owner, *members), state = self.config[layer], list(ready), self.state
        name, size = self.layers[layer].name, int(self.problem.shard_bytes[config])
        latest, needed = ready[owner], list(deps[owner])
        for device in members:
            arrival, waits = self.send(
                f"gradients of {name}", device, owner, size, ready[device], deps[device]
            )
            latest, needed = max(latest, arrival), [*needed, *waits]
        end = latest + int(self.problem.update[config])
        # In the engine the owner updates while it computes, as a parameter server does.
        updated = self.graph.add_computation(
            owner,
            f"update of {name}",
            (latest, end),
            needed,
            moved_bytes=2 * int(self.problem.weight_bytes[config]),
            on_cpu=True,
        )
        state.synced_at[owner] = max(int(state.synced_at[owner]), end)
        self.synced[owner].append(updated)
        for device in members:
            arrival, waits = self.send(f"weights of {name}", owner, device, size, end, [updated])
            state.synced_at[device] = max(int(state.synced_at[device]), arrival)
            self.synced[device] += waits

    def run_updates(self) -> int:
        """Add the updates of all devices, and return the end of the step."""
        step_end = 0
        for device in range(len(self.graph.ranks)):
            start = int(max(self.state.free_at[device], self.state.synced_at[device]))
            end = start + int(self.state.updates[device])
            self.graph.add_computation(
                device, "optimizer", (start, end), self.synced[device], moved_bytes=self.update_bytes[device]
            )
            step_end = max(step_end, end)
        return step_end


def build_graph(posed: Posed, strategy: Strategy) -> tuple[Graph, int]:
    """Return the nodes of a strategy's step, and its time in ps.

    Raises:
        RuntimeError: If the walk takes another time than the simulation.
    """
    walk = Walk(posed, strategy)
    walk.run_forward()
    walk.run_backward()
    step_ps = walk.run_updates()
    if step_ps != walk.expected_ps:
        raise RuntimeError(f"the walk takes {step_ps} ps, the simulated step {walk.expected_ps} ps")
    return walk.graph, step_ps


def choose_answer(answers: Sequence[Mapping[str, Any]], names: Sequence[str], wanted_name: str | None) -> int:
    """Return the number of the answer that has this name, by default of the fastest one.

    Raises:
        InputError: If there is no such answer, or it does not fit in memory.
    """
    if wanted_name is None:
        return min(
            (number for number, answer in enumerate(answers) if answer["seconds"]),
            key=lambda number: answers[number]["seconds"],
        )
    if wanted_name not in names:
        choices = alternatives(wanted_name, sorted(names))
        raise InputError(
            "unknown-name", f"'{wanted_name}' is unknown", file="--strategy", got=wanted_name, **choices
        )
    number = names.index(wanted_name)
    if not answers[number]["seconds"]:
        problem = f"'{wanted_name}' needs more memory than a device has"
        raise InputError("too-little-memory", problem, file="--strategy", got=wanted_name)
    return number


def export(
    job: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]], name: str, folder: Path
) -> list[Path]:
    """Write the step of a strategy as execution traces, and return their files.

    Args:
        job: The question of a search (`strategies.search`).
        parts: The strategy: degrees and devices of each layer.
        name: Its name.
        folder: Where to write.
    """
    posed = build_problem(job)
    strategy = {layer: Part(tuple(part["degrees"]), tuple(part["devices"])) for layer, part in parts.items()}
    graph, step_ps = build_graph(posed, strategy)
    facts: dict[str, Any] = {
        "model": job["graph"]["model"],
        "strategy": name,
        "batch_size": job["batch"],
        "step_ps": step_ps,
    }
    return write(graph, folder, str(facts["model"]), facts)
