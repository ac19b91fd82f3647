"""Time the nodes of a job against each other: computation, memory, and messages between pairs of nodes.

A launcher starts `python -m ranks.node_check FOLDER`, one rank on each node. All nodes compute at the same
time, in rounds of equal work. Messages go through a tournament: in each round every node has one partner, and
`partners` gives each node a different one in each round, so that about log2(nodes) rounds distinguish a slow
node from a good node that met it. Rank 0 writes the times of every round to result.json, without a verdict.

With PyTorch in the environment, computation runs on the accelerators and pairs use an all-reduce of the
library that trains (NCCL or Gloo); otherwise on all cores, and over TCP sockets of the site's interface.
"""

import math
import secrets
import socket
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ranks.reference_work import WorkKind, workers_of, works_on_accelerators
from ranks.worker.context import Context, from_environment
from ranks.worker.process import adapter_of, as_rank, host, leave_result

COMPUTATION = WorkKind(version=1, steps=1, products=1, updated_mib=0)
MEMORY = WorkKind(version=1, steps=1, products=0, updated_mib=16)  # more than a core's share of caches
DEVICE_MEMORY = WorkKind(version=1, steps=1, products=0, updated_mib=512)
ROUND_S = 0.08  # length of one round of computation or memory
MESSAGE_S = 0.05  # time of one message between two nodes
SMALLEST_BYTES, LARGEST_BYTES = 2**20, 2**26
TOKEN_BYTES = 32

Work = Callable[[int], None]
Exchange = Callable[[int, int], None]  # arguments: partner's rank, bytes in each direction


def partners(nodes: int) -> list[dict[int, int]]:
    """Return the rounds of the tournament, each as rank -> partner; a node that pauses has no entry.

    They follow the circle method: one node stays, the others move on by one place in each round, so that no
    two meet twice. There are log2(nodes) rounds, rounded up. With an odd number of nodes there is one more,
    since one node pauses in each round. With three or more nodes, each meets at least two others.
    """
    if nodes < 2:
        return []
    places = nodes + nodes % 2
    n_rounds = min(places - 1, math.ceil(math.log2(nodes)) + nodes % 2)
    rounds = []
    for shift in range(n_rounds):
        order = [0, *(1 + (place + shift) % (places - 1) for place in range(places - 1))]
        pairs = [(order[i], order[-1 - i]) for i in range(places // 2)]
        met = {a: b for a, b in pairs if max(a, b) < nodes}
        rounds.append({**met, **{b: a for a, b in met.items()}})
    return rounds


def calibrated(context: Context, workers: Sequence[Work]) -> int:
    """Return the number of steps that takes ROUND_S on the median node, the same on all nodes; collective."""
    steps = 1
    while True:
        seconds = statistics.median(context.group.all_gather(max(timed_round(context, workers, steps))))
        if seconds >= ROUND_S / 4:
            return max(1, round(steps * ROUND_S / seconds))
        steps *= 2


def timed_round(context: Context, workers: Sequence[Work], steps: int) -> list[float]:
    """Return the seconds that each worker takes for `steps` steps, all workers and nodes at the same time."""

    def timed(work: Work) -> float:
        start = time.monotonic()
        work(steps)
        return time.monotonic() - start

    context.group.barrier()
    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(timed, workers))


def work_rounds(context: Context, workers: Sequence[Work]) -> list[list[float]]:
    """Return the times of every round: of each accelerator, or of the node's slowest core."""
    steps = calibrated(context, workers)
    rounds = [timed_round(context, workers, steps) for _ in range(context.spec["rounds"])]
    return rounds if works_on_accelerators(context) else [[max(times)] for times in rounds]


def socket_exchange(context: Context, meetings: Sequence[dict[int, int]]) -> Exchange:
    """Connect each pair of the tournament by TCP, and return a function that exchanges bytes with a rank."""
    address, rank = context.group.address, context.rank
    buffers = {"send": bytearray(LARGEST_BYTES), "receive": bytearray(LARGEST_BYTES)}
    connections: dict[int, socket.socket] = {}
    with socket.create_server((address, 0)) as server:
        server.settimeout(60)
        token = context.group.broadcast(secrets.token_hex(TOKEN_BYTES // 2)).encode()
        addresses = context.group.all_gather([address, server.getsockname()[1]])
        for meeting in meetings:
            partner = meeting.get(rank)
            if partner is not None and rank < partner:
                connections[partner] = socket.create_connection(tuple(addresses[partner]), timeout=60)
                connections[partner].sendall(token)
            elif partner is not None:
                while True:  # Strangers can connect, too.
                    connections[partner], _ = server.accept()
                    connections[partner].settimeout(60)
                    if connections[partner].recv(TOKEN_BYTES, socket.MSG_WAITALL) == token:
                        break
            context.group.barrier()

    def exchange(partner: int, size: int) -> None:
        connection = connections[partner]
        sent = threading.Thread(target=connection.sendall, args=(memoryview(buffers["send"])[:size],))
        sent.start()
        view = memoryview(buffers["receive"])[:size]
        while view:
            received = connection.recv_into(view)
            if not received:
                raise ConnectionError(f"rank {partner} closed its connection")
            view = view[received:]
        sent.join()

    return exchange


def library_exchange(context: Context, meetings: Sequence[dict[int, int]]) -> tuple[Exchange, str]:
    """Return an exchange by all-reduces in PyTorch's groups of two ranks, and its transport."""
    collectives = adapter_of(context).collectives(context)  # creates the group of all ranks

    import torch
    import torch.distributed as dist

    pairs = sorted({tuple(sorted(pair)) for meeting in meetings for pair in meeting.items()})
    groups = {pair: dist.new_group(list(pair)) for pair in pairs}
    device = "cuda" if context.spec["device"] == "cuda" else "cpu"
    message = torch.zeros(LARGEST_BYTES // 4, device=device)

    def exchange(partner: int, size: int) -> None:
        first, second = sorted((context.rank, partner))
        dist.all_reduce(message[: size // 4], group=groups[first, second])
        if device == "cuda":
            torch.cuda.synchronize()

    return exchange, collectives.transport


def link_rounds(
    context: Context, meetings: Sequence[dict[int, int]], exchange: Exchange
) -> tuple[list[list[list[float | None]]], int]:
    """Return seconds of all messages, [cycle][round][rank], None for a rank that pauses, and their bytes."""

    def timed_meeting(meeting: dict[int, int], size: int) -> list[float | None]:
        context.group.barrier()
        start = time.monotonic()
        if context.rank in meeting:
            exchange(meeting[context.rank], size)
        seconds = context.group.all_gather(time.monotonic() - start)
        # A rank that is slow only in sending can have all of its message in buffers, and measure no delay.
        slower_s = [max(seconds[rank], seconds[meeting.get(rank, rank)]) for rank in range(context.ranks)]
        return [seconds if rank in meeting else None for rank, seconds in enumerate(slower_s)]

    size = SMALLEST_BYTES
    for meeting in meetings:
        timed_meeting(meeting, size)  # libraries connect a group with its first message
    while size < LARGEST_BYTES:
        seconds = statistics.median(t for t in timed_meeting(meetings[0], size) if t is not None)
        if seconds >= MESSAGE_S / 2:
            break
        size *= 2
    cycles = range(context.spec["rounds"])
    return [[timed_meeting(meeting, size) for meeting in meetings] for _ in cycles], size


def run(folder: Path) -> None:
    """Make all tests, and leave their times in result.json."""
    context = from_environment(folder)
    meetings = partners(context.ranks)
    exchange, transport = None, "tcp"
    if meetings and "torch" in context.rank_input["modules"]:
        exchange, transport = library_exchange(context, meetings)
    elif meetings:
        exchange = socket_exchange(context, meetings)
    by_device = works_on_accelerators(context)
    kinds = {"computation": COMPUTATION, "memory": DEVICE_MEMORY if by_device else MEMORY}
    times = {test: work_rounds(context, workers_of(context, kind)) for test, kind in kinds.items()}
    links, size = link_rounds(context, meetings, exchange) if exchange else ([], 0)
    result = {
        "by_device": by_device,
        "nodes": context.group.all_gather({"host": host(), **times}),
        "links": links,
        "message_bytes": size,
        "transport": transport,
    }
    leave_result(context, result)


if __name__ == "__main__":
    as_rank(run)
