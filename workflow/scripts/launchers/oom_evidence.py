"""Decide whether ranks failed because memory ran out, which is the status `oom`.

There are four kinds of evidence, and the first of them that exists counts:

1. the report that a rank writes itself (ranks/worker/out_of_memory.py),
2. the scheduler's report,
3. a process that the kernel killed,
4. a line of a log.

Without evidence, the status of a killed rank is `failed`.
"""

import contextlib
import json
import re
import signal
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.notes import Note
from common.redaction import redact_log
from common.text import format_bytes
from launchers.log import read_end
from ranks.worker import out_of_memory

DEVICE_MEMORY, NODE_MEMORY = out_of_memory.DEVICE, out_of_memory.HOST  # "device" and "host" in records
OOM_CODE = "out-of-memory"
# `place` is which memory ran out, DEVICE_MEMORY or NODE_MEMORY; `host` the name of the node.
FACTS = ("place", "rank", "host", "device", "asked_bytes", "free_bytes", "total_bytes")
LIBRARY_LOGS = "nccl.*.log"  # NCCL reports some errors only there
# How Open MPI, torchrun and LBANN's adapter report a program that SIGKILL ended.
_KILLED = re.compile(r"\b[Ss]ignal 9\b|\(Killed\)")
# Exit statuses that can mean SIGKILL: from Popen, from a shell, and 255 from oarsh, which hides the signal.
_KILLED_EXIT_STATUSES = (-signal.SIGKILL, 128 + signal.SIGKILL, 255)


def find_oom_evidence(launch_folder: Path, failure: Note, device_kind: str, n_oom_kills: int) -> Note | None:
    """Return the reason of status oom if ranks failed because memory ran out, None without evidence.

    Args:
        launch_folder: The folder of the launch, such as an attempt's.
        failure: The launcher's reason. If its code is OOM_CODE, it is the scheduler's report.
        device_kind: `device` of the run's spec, "cpu" or "cuda". It decides which memory ran out if the
            evidence does not say so.
        n_oom_kills: Number of processes that the kernel killed for lack of memory during the run, in this
            process's control group and below (`ranks.worker.node.oom_kills`). This includes ranks that the
            local launcher started, but not those of a Slurm step, which has a control group of its own and
            whose kills Slurm reports.
    """
    default_place = {"cpu": NODE_MEMORY, "cuda": DEVICE_MEMORY}.get(device_kind)
    rank, host = failure.facts.get("rank"), failure.facts.get("host")
    reports = filter(None, map(_read_report, launch_folder.glob(out_of_memory.REPORT_FILES)))
    # The rank that ran out of memory first made the others fail.
    if first := min(reports, key=lambda report: report["at"], default=None):
        return format_oom_reason({**first, "place": first["place"] or default_place}, first["error"])
    if failure.code == OOM_CODE:
        return failure
    log = read_end(launch_folder / "log.txt")
    if n_oom_kills > 0 and (failure.facts.get("exit_status") in _KILLED_EXIT_STATUSES or _KILLED.search(log)):
        text = "the kernel killed it, since the memory of its control group or node was used up"
        return format_oom_reason({"place": NODE_MEMORY, "rank": rank, "host": host}, text)
    texts = [log, *map(read_end, sorted(launch_folder.glob(LIBRARY_LOGS)))]
    report = next(filter(None, map(out_of_memory.describe_text, texts)), None)
    if report is None:
        return None
    facts = {**asdict(report), "place": report.place or default_place, "rank": rank, "host": host}
    return format_oom_reason(facts, report.error)


def format_oom_reason(facts: Mapping[str, Any], error: str) -> Note:
    """Return the reason of status oom: `out of memory on device 0: rank 1 on node2 asked for 2.1 GB: ...`.

    Args:
        facts: The known ones of FACTS.
        error: The message of the library, the kernel or the scheduler.
    """
    all_facts = {name: facts.get(name) for name in FACTS}
    error = "".join(filter(str.isprintable, redact_log(error)))
    place = {DEVICE_MEMORY: " on the device", NODE_MEMORY: " on the node"}.get(all_facts["place"] or "", "")
    if all_facts["device"] is not None:
        place = f" on device {all_facts['device']}"
    rank_name = "a rank" if all_facts["rank"] is None else f"rank {all_facts['rank']}"
    host_name = f" on {all_facts['host']}" if all_facts["host"] else ""
    request = (
        "" if all_facts["asked_bytes"] is None else f" asked for {format_bytes(all_facts['asked_bytes'])}"
    )
    free = "" if all_facts["free_bytes"] is None else f", {format_bytes(all_facts['free_bytes'])} were free"
    return Note(
        OOM_CODE, f"out of memory{place}: {rank_name}{host_name}{request}{free}: {error}", **all_facts
    )


def _read_report(file: Path) -> dict[str, Any] | None:
    """Return the content of a rank's report, None if the rank was killed while it wrote the report."""
    with contextlib.suppress(OSError, ValueError):
        content: dict[str, Any] = json.loads(file.read_text())
        return {**asdict(out_of_memory.OutOfMemory("")), **content} if "at" in content else None
    return None
