"""Start the ranks of a run, watch them, and end all of them: nothing outlives a run."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.files import CHECKOUT
from plan.study import Framework

SCRIPTS = CHECKOUT / "workflow" / "scripts"
GRACE_S = 10.0  # once a rank has failed, the others may still say why they cannot go on
POLL_S = 0.02


@dataclass(frozen=True)
class Outcome:
    """How the ranks ended: ok, failed or timeout, with the reason; seconds from launch to the last end."""

    status: str
    reason: str | None
    wall_s: float


class Stopped(Exception):
    """Somebody asked the supervisor to stop: SIGTERM or SIGINT."""


def job(spec: Mapping[str, Any], framework: Framework, model: Mapping[str, Any], data: Path) -> dict[str, Any]:
    """What an attempt's spec.json holds, all that its ranks are told: the run's spec, the model, and where things lie."""
    return {
        "spec": spec,
        "model": model,
        "data": str(data),
        "adapter": str(framework.file.parent),
        "modules": list(framework.modules),
    }


def local(environment: Mapping[str, Any], folder: Path, spec: Mapping[str, Any], time_limit_s: float) -> Outcome:
    """Run all ranks as processes of this machine, on disjoint cores, with their output in log.txt.

    `environment` is the content of an environment.json, `folder` the attempt's (absolute).
    """
    started = time.monotonic()
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        with open(folder / "log.txt", "ab") as log:
            for rank in range(spec["ranks"]):
                ranks.append(
                    subprocess.Popen(
                        [environment["python"]["executable"], "-m", "runs.worker", str(folder)],
                        env={**variables(rank, spec), **environment["variables"]},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        status, reason = _watch(ranks, started, time_limit_s)
    finally:
        _end(ranks)
    return Outcome(status, reason, time.monotonic() - started)


def cores_of(rank: int, cores: int, cores_per_rank: int) -> list[int]:
    """The cores of one rank among the site's `cores`: disjoint between ranks; where there are too few, all ranks share all."""
    usable = sorted(os.sched_getaffinity(0))[:cores]
    first = rank * cores_per_rank
    return usable[first : first + cores_per_rank] if first + cores_per_rank <= len(usable) else usable


def variables(rank: int, spec: Mapping[str, Any]) -> dict[str, str]:
    """What a rank is told; of the caller's environment only what a program needs to run."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")
    }
    threads = str(spec["cores_per_rank"])
    return {
        **kept,
        "PYTHONPATH": str(SCRIPTS),
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        "RINGSIDE_RANK": str(rank),
        "RINGSIDE_LOCAL_RANK": str(rank % spec["ranks_per_node"]),
        "RINGSIDE_CORES": ",".join(map(str, cores_of(rank, spec["cores"], spec["cores_per_rank"]))),
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }


def _watch(ranks: list[subprocess.Popen[bytes]], started: float, time_limit_s: float) -> tuple[str, str | None]:
    failed_at: float | None = None
    first_failure = None
    while True:
        codes = [rank.poll() for rank in ranks]
        now = time.monotonic()
        if failed_at is None:
            failed = [(i, code) for i, code in enumerate(codes) if code]
            if failed:
                failed_at = now
                first_failure = f"rank {failed[0][0]} {_ending(failed[0][1])}"
        if all(code is not None for code in codes):
            return ("failed", first_failure) if first_failure else ("ok", None)
        if failed_at is not None and now - failed_at > GRACE_S:
            return "failed", first_failure
        if now - started > time_limit_s:
            return "timeout", f"not finished after the time limit of {time_limit_s:g} s"
        time.sleep(POLL_S)


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Kill every rank's whole process group, whether or not the rank itself has ended, and wait for the ranks."""
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
    for rank in ranks:
        rank.wait()
