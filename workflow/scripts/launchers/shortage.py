"""Tell ranks that ran out of memory from ranks that failed: the status `oom`.

A rank says so itself (ranks/worker/shortage.py), or its launcher, or the kernel counts a process that it
killed, or a line of a log says so. Without such evidence a killed rank has failed.
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
from ranks.worker.shortage import DEVICE, HOST, SHORTAGE_FILES, Shortage, describe_text

OUT_OF_MEMORY = "out-of-memory"
FACTS = ("place", "rank", "host", "device", "asked_bytes", "free_bytes", "total_bytes")
LIBRARY_LOGS = "nccl.*.log"  # what NCCL reports only there
# Open MPI, torchrun and LBANN's adapter say by which signal a program of theirs ended.
_KILLED = re.compile(r"\b[Ss]ignal 9\b|\(Killed\)")
# Statuses of a killed rank: of Python's Popen, of a shell, and of oarsh, which does not tell.
_KILLED_STATUSES = (-signal.SIGKILL, 128 + signal.SIGKILL, 255)


def find_shortage(folder: Path, failure: Note, device: str, oom_kills: int) -> Note | None:
    """Return the reason of ranks that failed for lack of memory, None without evidence of it.

    Args:
        folder: The attempt's folder.
        failure: What the launcher knows of the failure.
        device: `device` of the run's spec: it says whose memory ran out if the library does not.
        oom_kills: Processes of this node's control group that the kernel killed during the run.
    """
    default_place = {"cpu": HOST, "cuda": DEVICE}.get(device)
    rank, host = failure.facts.get("rank"), failure.facts.get("host")
    notes = sorted(filter(None, map(_read_note, folder.glob(SHORTAGE_FILES))), key=lambda note: note["at"])
    if notes:
        return make_reason({**notes[0], "place": notes[0]["place"] or default_place}, notes[0]["error"])
    if failure.code == OUT_OF_MEMORY:
        return failure
    log = read_end(folder / "log.txt")
    if oom_kills > 0 and (failure.facts.get("status") in _KILLED_STATUSES or _KILLED.search(log)):
        text = "the kernel killed it, since the memory of its control group or node was used up"
        return make_reason({"place": HOST, "rank": rank, "host": host}, text)
    texts = [log, *map(read_end, sorted(folder.glob(LIBRARY_LOGS)))]
    shortage = next((match for text in texts if (match := describe_text(text))), None)
    if shortage is None:
        return None
    facts = {**asdict(shortage), "place": shortage.place or default_place, "rank": rank, "host": host}
    return make_reason(facts, shortage.error)


def make_reason(facts: Mapping[str, Any], error: str) -> Note:
    """Return the reason of status oom, as in `out of memory on GPU 0: rank 1 on node2 asked for 2.1 GB: ...`.

    Args:
        facts: What is known of FACTS.
        error: What the library, the kernel or the scheduler says.
    """
    all_facts = {name: facts.get(name) for name in FACTS}
    error = "".join(filter(str.isprintable, redact_log(error)))
    place = {DEVICE: " on the device", HOST: " on the host"}.get(all_facts["place"] or "", "")
    if all_facts["device"] is not None:
        place = f" on device {all_facts['device']}"
    rank_name = "a rank" if all_facts["rank"] is None else f"rank {all_facts['rank']}"
    host_name = f" on {all_facts['host']}" if all_facts["host"] else ""
    request = (
        "" if all_facts["asked_bytes"] is None else f" asked for {format_bytes(all_facts['asked_bytes'])}"
    )
    free = "" if all_facts["free_bytes"] is None else f", {format_bytes(all_facts['free_bytes'])} were free"
    return Note(
        OUT_OF_MEMORY, f"out of memory{place}: {rank_name}{host_name}{request}{free}: {error}", **all_facts
    )


def _read_note(file: Path) -> dict[str, Any] | None:
    """Return what a rank left, None if it was killed while it wrote."""
    with contextlib.suppress(OSError, ValueError):
        content: dict[str, Any] = json.loads(file.read_text())
        return {**asdict(Shortage("")), **content} if "at" in content else None
    return None
