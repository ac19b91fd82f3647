"""Read Chakra execution traces with the reader of their package, and replay them by the rules of a topology.

As a program, with the Python of the environment chakra, it prints the traces whose stems it gets as JSON.
"""

import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PICOSECONDS = 1e12
Node = dict[str, Any]


def decode(stem: str) -> list[list[Node]]:
    """Return the nodes of each rank of a trace, with their attributes by name."""
    from chakra.schema.protobuf import et_def_pb2 as schema
    from chakra.src.third_party.utils.protolib import decodeMessage, openFileRd

    ranks: list[list[Node]] = []
    while Path(f"{stem}.{len(ranks)}.et").exists():
        file, nodes = openFileRd(f"{stem}.{len(ranks)}.et"), []
        metadata = schema.GlobalMetadata()
        assert decodeMessage(file, metadata) and metadata.version
        node = schema.Node()
        while decodeMessage(file, node):
            content: Node = {
                "id": node.id,
                "type": schema.NodeType.Name(node.type),
                "name": node.name,
                "data_deps": list(node.data_deps),
                "ctrl_deps": list(node.ctrl_deps),
                "start_time_micros": node.start_time_micros,
                "duration_micros": node.duration_micros,
            }
            for attribute in node.attr:
                value = getattr(attribute, attribute.WhichOneof("value"))
                content[attribute.name] = list(value.values) if hasattr(value, "values") else value
                content.setdefault("types", {})[attribute.name] = attribute.WhichOneof("value")
            nodes.append(content)
        ranks.append(nodes)
        file.close()
    return ranks


def read_traces(python: Path, stems: Iterable[Path]) -> list[list[list[Node]]]:
    """Return the traces with these stems, read with another Python."""
    command = [str(python), __file__, *map(str, stems)]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    traces: list[list[list[Node]]] = json.loads(process.stdout)
    return traces


def check_traces(ranks: list[list[Node]], groups: dict[str, list[int]]) -> None:
    """Check what every reader relies on: unique numbers, no cycles, order, messages with two ends, whole groups."""
    numbers = [node["id"] for nodes in ranks for node in nodes]
    assert len(numbers) == len(set(numbers))
    sides: dict[tuple[int, int, int], list[tuple[str, int]]] = defaultdict(list)
    collectives: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, nodes in enumerate(ranks):
        own: set[int] = set()
        latest: dict[str, int] = {}  # of what a rank does in order
        for node in nodes:
            deps = {*node["data_deps"], *node["ctrl_deps"]}
            assert deps <= own, "needs earlier nodes of its rank alone"
            own.add(node["id"])
            if node["type"] in ("COMP_NODE", "COMM_COLL_NODE") and not node["is_cpu_op"]:
                assert latest.get(node["type"], min(own)) in deps | {min(own)}
                latest[node["type"]] = node["id"]
            if node["type"] in ("COMM_SEND_NODE", "COMM_RECV_NODE"):
                assert rank == node["comm_src" if node["type"] == "COMM_SEND_NODE" else "comm_dst"]
                key = (node["comm_src"], node["comm_dst"], node["comm_tag"])
                sides[key].append((node["type"], node["comm_size"]))
            if node["type"] == "COMM_COLL_NODE":
                assert rank in groups[node["pg_name"]]
                collectives[node["pg_name"]][rank].append(node["comm_size"])
    for ends in sides.values():
        assert sorted(kind for kind, _ in ends) == ["COMM_RECV_NODE", "COMM_SEND_NODE"]
        assert len({size for _, size in ends}) == 1
    for name, by_rank in collectives.items():
        assert sorted(by_rank) == groups[name] and len({tuple(sizes) for sizes in by_rank.values()}) == 1


class Replay:
    """Execute the nodes of all ranks in the order of their numbers, by the rates of a topology."""

    def __init__(self, topology: Any, only_rings: bool) -> None:
        self.topology, self.only_rings = topology, only_rings
        self.free: dict[Any, int] = defaultdict(int)  # devices and links
        self.end: dict[int, int] = {}  # of nodes
        self.arrival: dict[tuple[int, int, int], int] = {}

    def step_ps(self, ranks: list[list[Node]], groups: dict[str, list[int]]) -> int:
        """Return the time of the step."""
        parts: dict[str, list[tuple[int, Node]]] = defaultdict(list)  # of collectives that are not complete
        for _, rank, node in sorted(
            (node["id"], rank, node) for rank, nodes in enumerate(ranks) for node in nodes
        ):
            ready = max((self.end[dep] for dep in node["data_deps"]), default=0)
            if node["type"] == "COMP_NODE":
                start = ready if node["is_cpu_op"] else max(ready, self.free[rank])
                self.end[node["id"]] = start + node["duration_ps"]
                if not node["is_cpu_op"]:
                    self.free[rank] = self.end[node["id"]]
            elif node["type"] == "COMM_COLL_NODE":
                waiting = parts[node["pg_name"]]
                waiting.append((ready, node))
                if len(waiting) == len(groups[node["pg_name"]]):
                    end = self.all_reduce(
                        groups[node["pg_name"]], max(at for at, _ in waiting), node["tensor_sizes"]
                    )
                    self.end |= {member["id"]: end for _, member in waiting}
                    waiting.clear()
            else:
                key = (node["comm_src"], node["comm_dst"], node["comm_tag"])
                if node["type"] == "COMM_SEND_NODE":
                    self.arrival[key] = self.message(*key[:2], node["comm_size"], ready)
                self.end[node["id"]] = self.arrival[key]
        return max(self.end.values())

    def message(self, sender: int, receiver: int, size: int, ready: int) -> int:
        """Return when a message arrives: it leaves the sender's unit, then enters the receiver's."""
        tier = self.topology.tier_between(sender, receiver)
        link, device = self.topology.tiers[tier], self.topology.device
        burst = round(PICOSECONDS * link.burst_bytes / link.bytes_s)
        transfer = max(1, int(size * (PICOSECONDS / link.bytes_s)))
        begin = end = ready
        for way, rank in (("out", sender), ("in", receiver)):
            key = (way, tier, self.topology.unit(tier, rank))
            self.free[key] = max(begin - burst, self.free[key]) + transfer
            end = max(end, self.free[key])
            begin = end - transfer
        self.free[sender] += round(device.send_s * PICOSECONDS) + int(
            size * (device.send_byte_s * PICOSECONDS)
        )
        received = int(size * (device.receive_byte_s * PICOSECONDS))
        self.free[receiver] += round(device.receive_s * PICOSECONDS) + received
        return end + round(link.latency_s * PICOSECONDS)

    def all_reduce(self, devices: list[int], ready: int, sizes: list[int]) -> int:
        """Return when an all-reduce ends, and occupy the links of its ring."""
        count, steps, top, tiers = len(devices), 2 * (len(devices) - 1), self.topology, self.topology.tiers
        hops = list(zip(devices, [*devices[1:], devices[0]], strict=True))
        at = [top.tier_between(*hop) for hop in hops]
        ways = [
            (way, tier, top.unit(tier, hop[side]))
            for hop, tier in zip(hops, at, strict=True)
            for side, way in enumerate(("out", "in"))
        ]
        rate = [PICOSECONDS / (tier.ring_bytes_s or tier.bytes_s) for tier in tiers]
        wait = [
            PICOSECONDS * (tier.latency_s if tier.ring_latency_s is None else tier.ring_latency_s)
            for tier in tiers
        ]
        hold = [value / tier.ring_channels for value, tier in zip(wait, tiers, strict=True)]
        burst = [round(PICOSECONDS * tier.burst_bytes / tier.bytes_s) for tier in tiers]
        units = [len({top.unit(tier, device) for device in devices}) for tier in range(len(tiers) + 1)]
        n = [math.ceil(units[tier] / units[tier + 1]) for tier in range(len(tiers))]

        def flat(size: float, delays: list[float]) -> int:
            times = []
            for tier in set(at):
                transfer, delay = max(1, int(size / count * rate[tier])), round(delays[tier])
                times.append(max(delay, transfer + delay - min(delay, burst[tier])))
            return steps * max(times)

        def rings(size: float, has_latency: bool) -> int:
            moved = sum(2 * (k - 1) / k * byte for k, byte in zip(n, rate, strict=True))
            return has_latency * sum(2 * (k - 1) * round(s) for k, s in zip(n, wait, strict=True)) + int(
                size * moved
            )

        def tree(size: float) -> int:
            hops_up = [n[0] - 1, *(math.ceil(math.log2(k)) for k in n[1:])]
            slowest = max(rate[tier] for tier in range(len(tiers)) if n[tier] > 1)
            return sum(2 * k * round(s) for k, s in zip(hops_up, wait, strict=True)) + int(2 * size * slowest)

        def fastest(size: float, delays: list[float]) -> int:
            ring = flat(size, delays)
            return ring if self.only_rings else min(ring, rings(size, True), tree(size))

        least = 0
        for size in sizes:
            ring = steps * max(0, *(int(size / count * rate[tier]) - 1 for tier in at))
            least += ring if self.only_rings else min(ring, max(0, rings(size, False) - 1))
        total, device = sum(sizes), top.device
        begin = max(ready - min(least, *(burst[tier] for tier in at)), *(self.free[way] for way in ways))
        occupied = fastest(total, hold)
        handled = steps * (
            round(device.send_s * PICOSECONDS)
            + round(device.receive_s * PICOSECONDS)
            + int(total / count * (device.send_byte_s * PICOSECONDS + device.receive_byte_s * PICOSECONDS))
        )
        self.free |= dict.fromkeys(ways, begin + occupied)
        for rank in devices:
            self.free[rank] += handled
        return max(begin + max(occupied, fastest(total, wait)), ready + fastest(0, wait))


def replay_recorded(ranks: list[list[Node]]) -> int:
    """Return the time in ps of a traced step: all-reduces move as long as recorded after the last rank's start."""
    end: dict[int, int] = {}
    free = [0] * len(ranks)
    turns: dict[int, list[Node]] = defaultdict(list)
    started: dict[int, int] = defaultdict(int)
    begins = [min((node["start_ps"] for node in nodes), default=0) for nodes in ranks]
    for _, rank, node in sorted(
        (node["id"], rank, node) for rank, nodes in enumerate(ranks) for node in nodes
    ):
        ready = max((end[dep] for dep in node["data_deps"]), default=begins[rank])
        if node["type"] == "COMP_NODE":
            free[rank] = end[node["id"]] = max(ready, free[rank]) + node["duration_ps"]
            continue
        turn = int(node["name"].split()[-1])
        turns[turn].append(node)
        started[turn] = max(started[turn], ready)
        if len(turns[turn]) == len(ranks):
            latest = max(member["start_ps"] for member in turns[turn])
            moved = max(member["start_ps"] + member["duration_ps"] for member in turns[turn]) - latest
            end |= {member["id"]: started[turn] + max(0, moved) for member in turns[turn]}
    return max(end.values()) - min(begins)


if __name__ == "__main__":
    json.dump([decode(stem) for stem in sys.argv[1:]], sys.stdout)
