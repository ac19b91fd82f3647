"""Time messages between two ranks.

A launcher starts `python -m ranks.messages_timed ATTEMPT_FOLDER` in the framework's environment. Rank 0
writes result.json, the measured part of timing.json, into the attempt's folder.

Messages are sent one after the other, as in ranks.libraries.pytorch_strategy. For each size, the result has
the CPU time of sender and receiver over all threads, and the time until a message has arrived.
"""

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ranks.libraries.pytorch.collectives import join
from ranks.libraries.pytorch.device import configure_library, device_name
from ranks.libraries.pytorch_strategy import make_host_group
from ranks.worker.context import Context, from_environment
from ranks.worker.load import Load
from ranks.worker.process import adapter_of, as_rank, leave_measurement

N_REPETITIONS = 5
MAX_MESSAGES = 200  # per repetition
ITEM_BYTES = 4


def send_messages(
    rank: int, elements: int, count: int, device: torch.device, host_group: dist.ProcessGroup | None
) -> tuple[float, float]:
    """Send messages from rank 0 to rank 1, and return this rank's CPU seconds and seconds per message."""
    began, used = time.perf_counter(), time.process_time()
    tensor = torch.zeros(elements, device=device)
    for tag in range(count):
        if rank == 0:
            content = tensor.detach().contiguous().cpu()
            dist.isend(content, 1, group=host_group, tag=tag).wait()
        else:
            received = torch.empty(elements)
            dist.irecv(received, 0, group=host_group, tag=tag).wait()
            received.to(device)
    return (time.process_time() - used) / count, (time.perf_counter() - began) / count


def timed(
    context: Context, size: int, device: torch.device, host_group: dist.ProcessGroup | None
) -> dict[str, Any]:
    """Return, by repetition, CPU seconds of sender and receiver and seconds per message of `size` bytes."""
    group, elements = context.group, size // ITEM_BYTES

    def repetition(count: int) -> list[tuple[float, float]]:
        group.barrier()
        return [
            (times_of_rank[0], times_of_rank[1])
            for times_of_rank in group.all_gather(
                send_messages(context.rank, elements, count, device, host_group)
            )
        ]

    repetition(1)
    one_s = max(seconds for _, seconds in repetition(3))
    longest_s = context.spec["budget_s"] / N_REPETITIONS / len(context.spec["sizes"])
    count = max(1, min(MAX_MESSAGES, int(longest_s / one_s)))
    times = [repetition(count) for _ in range(N_REPETITIONS)]
    return {
        "bytes": size,
        "send": [send for (send, _), _ in times],
        "receive": [receive for _, (receive, _) in times],
        "seconds": [max(sender, receiver) for (_, sender), (_, receiver) in times],
    }


def run(folder: Path) -> None:
    """Time all messages; rank 0 writes result.json at the end."""
    context = from_environment(folder)
    adapter_of(context)
    device = configure_library(context)
    transport = join(context)
    host_group = make_host_group(transport)
    context.group.barrier()
    load = Load(context.group)
    messages = [timed(context, size, device, host_group) for size in context.spec["sizes"]]
    leave_measurement(context, load, device_name(device), {"transport": transport, "messages": messages})


if __name__ == "__main__":
    as_rank(run)
