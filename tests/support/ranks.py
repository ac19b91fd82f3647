"""Ranks as threads of this process, joined by real sockets on loopback."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ranks.worker.group import Group


def on_ranks(size: int, folder: Path, work: Callable[[Group], Any], timeout_s: float = 5) -> list[Any]:
    """Run `work` on each rank of a group and return the results by rank."""

    def rank(number: int) -> Any:
        group = Group(number, size, folder, "lo", timeout_s)
        try:
            return work(group)
        finally:
            group.close()

    with ThreadPoolExecutor(size) as pool:
        return [done.result() for done in [pool.submit(rank, number) for number in range(size)]]
