"""The self-test of an environment: its `selftest.py` as two ranks on loopback, under a time limit.

Each rank gets RINGSIDE_RANK, RINGSIDE_SIZE, RINGSIDE_PORTS (one free port per rank) and RINGSIDE_MEETING (an empty
folder that both see), and writes `rank<r>.json` there when all is well.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import InputError
from environments.steps import isolated

RANKS = 2


def run(python: Path, program: Path, variables: Mapping[str, str], limit_s: float, log: Path) -> dict[str, Any]:
    """Run `program` as two ranks. Returns what rank 0 found; InputError when a rank fails or time runs out."""
    what = f"the self-test {program.parent.name}/{program.name}"
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ringside-") as meeting, open(log, "ab") as output:
        shared = {
            "RINGSIDE_SIZE": str(RANKS),
            "RINGSIDE_PORTS": ",".join(map(str, _free_ports(RANKS))),
            "RINGSIDE_MEETING": meeting,
        }
        ranks = [
            subprocess.Popen(
                [str(python), str(program)],
                env=isolated({**variables, **shared, "RINGSIDE_RANK": str(rank)}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for rank in range(RANKS)
        ]
        try:
            _wait(ranks, start + limit_s, f"{what} failed", limit_s, log)
        finally:
            for rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()
        found = [Path(meeting) / f"rank{rank}.json" for rank in range(RANKS)]
        if not all(file.is_file() for file in found):
            raise InputError(f"{what} failed: a rank ended without a result; its output is in {log}")
        result = json.loads(found[0].read_text(encoding="utf-8"))
    return {"ranks": RANKS, "seconds": round(time.monotonic() - start, 2), **result}


def _wait(ranks: list[subprocess.Popen[bytes]], deadline: float, failed: str, limit_s: float, log: Path) -> None:
    while any(rank.poll() is None for rank in ranks):
        if any(rank.returncode for rank in ranks):
            break
        if time.monotonic() > deadline:
            raise InputError(f"{failed}: not done after {limit_s:g} s; its output is in {log}")
        time.sleep(0.05)
    for number, rank in enumerate(ranks):
        if rank.returncode:
            raise InputError(f"{failed}: rank {number} ended with status {rank.returncode}; its output is in {log}")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
