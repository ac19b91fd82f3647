"""Measure the idle power of a run's machines: `python -m ranks.worker.idle FOLDER`, started by a launcher.

It runs before a session's first run, and imports no library, so that accelerators stay idle. Rank 0 writes
result.json: for each node its name, its machine, mean powers in W by scope (for `device`, of one accelerator)
and its meters; and when the measurement began and ended (Unix time in s).
"""

import time
from pathlib import Path
from typing import Any

from ranks.worker.context import from_environment
from ranks.worker.devices import node_accelerators
from ranks.worker.energy import Meters
from ranks.worker.node import machine
from ranks.worker.process import as_rank, host, leave_result

IDLE_S = 10.0


def run(folder: Path) -> None:
    """Sleep for IDLE_S on all ranks; one rank of a node reads its meters."""
    context = from_environment(folder)
    devices = node_accelerators(context)
    meters = Meters(devices) if context.local_rank == 0 else None
    context.group.barrier()
    began_at, start, before = time.time(), time.monotonic(), meters.read() if meters else {}
    time.sleep(IDLE_S)
    mine: dict[str, Any] | None = None
    if meters:
        seconds = time.monotonic() - start
        joules = meters.between(before, meters.read(), seconds, "the time")
        shared_by = {"device": len(devices)}
        watts = {
            scope: None if value is None else value / seconds / shared_by.get(scope, 1)
            for scope, value in joules.items()
        }
        mine = {"host": host(), "machine": machine(), "watts": watts, "meters": meters.describe()}
    nodes = [node for node in context.group.all_gather(mine) if node]
    leave_result(context, {"began_at": began_at, "ended_at": time.time(), "nodes": nodes})


if __name__ == "__main__":
    as_rank(run)
