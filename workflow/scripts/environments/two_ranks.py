"""Run a self-test as two ranks on loopback, under a time limit.

Usage: python two_ranks.py PROGRAM --limit SECONDS

Standard library only: it runs in an environment's own Python, and in an image's %test. Each rank gets
RINGSIDE_RANK, RINGSIDE_SIZE, RINGSIDE_PORTS (one free port per rank) and RINGSIDE_MEETING (an empty shared
folder), and writes its result to `rank<r>.json` in that folder. The result of rank 0 is printed as one line
of JSON; the output of the ranks goes to stderr.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RANKS = 2


def run(program: Path, limit_s: float) -> dict[str, Any]:
    """Run `program` as two ranks of this Python, and return the result of rank 0 with number and seconds.

    Raises:
        RuntimeError: If a rank fails or writes no result, or the time limit is exceeded.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ringside-") as meeting:
        shared = {
            "RINGSIDE_SIZE": str(RANKS),
            "RINGSIDE_PORTS": ",".join(map(str, _free_ports(RANKS))),
            "RINGSIDE_MEETING": meeting,
        }
        ranks = [
            subprocess.Popen(
                [sys.executable, str(program)],
                env={**os.environ, **shared, "RINGSIDE_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                start_new_session=True,
            )
            for rank in range(RANKS)
        ]
        try:
            _wait(ranks, start + limit_s, limit_s)
        finally:
            for rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()
        results = [Path(meeting) / f"rank{rank}.json" for rank in range(RANKS)]
        if not all(file.is_file() for file in results):
            raise RuntimeError("a rank ended without a result")
        result = json.loads(results[0].read_text(encoding="utf-8"))
    return {"ranks": RANKS, "seconds": round(time.monotonic() - start, 2), **result}


def _wait(ranks: list[subprocess.Popen[bytes]], deadline: float, limit_s: float) -> None:
    while any(rank.poll() is None for rank in ranks):
        if any(rank.returncode for rank in ranks):
            break
        if time.monotonic() > deadline:
            raise RuntimeError(f"not done after {limit_s:g} s")
        time.sleep(0.05)
    for number, rank in enumerate(ranks):
        if rank.returncode:
            raise RuntimeError(f"rank {number} ended with status {rank.returncode}")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


def main() -> None:
    """Run the self-test that the command line names."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("program", type=Path, help="what each rank runs")
    parser.add_argument("--limit", type=float, required=True, help="seconds after which it has failed")
    options = parser.parse_args()
    try:
        print(json.dumps(run(options.program, options.limit)))
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
