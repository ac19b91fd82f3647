"""Runs end as oom if a rank ran out of memory, and as failed if a rank was killed for another reason."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.notes import Note
from common.program_sources import SCRIPTS
from common.schemas import schema
from common.shell import capture
from launchers.oom_evidence import FACTS, find_oom_evidence
from ranks.worker.node import _groups

KILLED = Note("rank-failed", "rank 1 was killed by SIGKILL", rank=1, host="node2", exit_status=-9)
# Start two ranks of `body` as a supervisor does, and print how they ended.
SUPERVISOR = """\
import json, sys
from dataclasses import replace
from pathlib import Path
from declared.site import load_site
from launchers import launch

folder = Path(sys.argv[1])
site = replace(load_site("local"), time_limit_s=float(sys.argv[3]))
spec = {"run_id": "a.b.r1", "nodes": 1, "ranks": 2, "ranks_per_node": 2, "device": "cpu", "cores": 2,
        "cores_per_rank": 1}
environment = {"python": {"executable": sys.executable}, "variables": {"PYTHONPATH": sys.argv[2]}}
ranks = launch.make_launcher(site, spec)
outcome = launch.run_ranks(ranks, environment, folder, spec, site, program="rank")
print(json.dumps([outcome.status, outcome.reason.code, dict(outcome.reason.facts)]))
"""
EAT = """\
import os
kept = []
while os.environ["RINGSIDE_RANK"] == "1":
    kept.append(b"x" * (1 << 24))
"""
LIMITED = """\
import os, resource
from ranks.worker.process import as_rank

def run(folder):
    if os.environ["RINGSIDE_RANK"] == "0":
        raise RuntimeError("a rank is gone: it closed its connection")
    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
    bytearray(1 << 30)

as_rank(run)
"""
SMALL_BYTES = 1 << 27
KILL = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"


def supervise(folder: Path, body: str, join: Path | None = None, time_limit_s: float = 50) -> Any:
    """Return status, code and facts of two ranks; `join` is a file by which a process joins a group."""
    (folder / "rank.py").write_text(body)
    enter = f"echo $$ > {join} && " if join else ""
    program = [sys.executable, "-c", SUPERVISOR, str(folder), f"{folder}:{SCRIPTS}", str(time_limit_s)]
    ended = capture(
        ["sh", "-c", f'{enter}exec "$@"', "sh", *program],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_run_with_a_rank_without_memory_is_oom(tmp_path: Path) -> None:
    status, code, facts = supervise(tmp_path, LIMITED)
    assert (status, code) == ("oom", "out-of-memory")
    assert (facts["rank"], facts["place"], facts["host"]) == (1, "host", os.uname().nodename)


def test_a_killed_rank_without_evidence_has_failed(tmp_path: Path) -> None:
    status, code, facts = supervise(tmp_path, KILL)
    assert (status, code, facts["exit_status"]) == ("failed", "rank-failed", -9)


def test_run_at_its_time_limit_is_not_oom(tmp_path: Path) -> None:
    body = "import time\nprint('torch.OutOfMemoryError: CUDA out of memory', flush=True)\ntime.sleep(60)"
    assert supervise(tmp_path, body, time_limit_s=0.5)[:2] == ["timeout", "time-limit"]


def limits_memory_below(group: Path) -> bool:
    """Return whether groups inside this one can limit memory."""
    passed_on = group / "cgroup.subtree_control"  # of version 2
    if passed_on.exists():
        return "memory" in passed_on.read_text().split()
    return (group / "memory.limit_in_bytes").exists()


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of 128 MiB, of version 1 or 2. It needs root and control groups that can be written to."""
    parent = next(filter(limits_memory_below, _groups("memory")), None)
    if parent is None:
        pytest.skip("control groups made here do not limit memory")
    group = parent / f"ringside-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    limits = {
        "memory.limit_in_bytes": SMALL_BYTES,
        "memory.memsw.limit_in_bytes": SMALL_BYTES,
        "memory.max": SMALL_BYTES,
        "memory.swap.max": 0,
    }
    try:
        written = [
            (group / name).write_text(str(value)) for name, value in limits.items() if (group / name).exists()
        ]
        assert written, "a rank would take the machine's memory"
        yield group
    finally:
        group.rmdir()


def test_a_rank_that_the_kernel_kills_for_memory_is_oom(tmp_path: Path, small_group: Path) -> None:
    status, code, facts = supervise(tmp_path, EAT, small_group / "cgroup.procs")
    assert (status, code) == ("oom", "out-of-memory")
    assert (facts["rank"], facts["place"]) == (1, "host")


def test_evidence_is_a_count_of_kills_and_a_killed_rank(tmp_path: Path) -> None:
    ended = Note("rank-failed", "rank 0 ended with status 1", rank=0, host=None, exit_status=1)
    assert find_oom_evidence(tmp_path, KILLED, "cuda", 0) is None
    assert find_oom_evidence(tmp_path, ended, "cuda", 1) is None, "the kernel killed another program"
    reason = find_oom_evidence(tmp_path, KILLED, "cuda", 1)
    assert reason is not None
    assert reason.facts == {**dict.fromkeys(FACTS), "place": "host", "rank": 1, "host": "node2"}
    torchrun = "  exitcode  : -9 (pid: 7)\n  traceback : Signal 9 (SIGKILL) received by PID 7\n"
    for line in ("Error: LBANN was killed (Killed): epoch 2\n", torchrun):
        (tmp_path / "log.txt").write_text(line)
        assert find_oom_evidence(tmp_path, ended, "cpu", 1) is not None, "it runs as a child of the rank"


def test_first_rank_out_of_memory_is_the_reason(tmp_path: Path) -> None:
    for rank, at in ((0, 12.0), (2, 11.0)):
        content = {"error": "CUDA out of memory", "place": None, "rank": rank, "host": "a", "at": at}
        (tmp_path / f"out-of-memory-{rank}.json").write_text(json.dumps({**content, "asked_bytes": 7}))
    (tmp_path / "out-of-memory-9.json").write_text("{")  # killed while it wrote
    reason = find_oom_evidence(tmp_path, KILLED, "cuda", 0)
    assert reason is not None
    assert (reason.facts["rank"], reason.facts["place"], reason.facts["asked_bytes"]) == (2, "device", 7)


def test_log_of_a_library_is_evidence(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(
        "JaxRuntimeError: INTERNAL: NCCL operation failed: unhandled cuda error\n"
    )
    assert find_oom_evidence(tmp_path, KILLED, "cuda", 0) is None
    (tmp_path / "nccl.node2.17.log").write_text("node2:17:9 [0] NCCL WARN Cuda failure 2 'out of memory'\n")
    reason = find_oom_evidence(tmp_path, KILLED, "cuda", 0)
    assert reason is not None and (reason.facts["place"], reason.facts["host"]) == ("device", "node2")


def test_records_have_the_facts_of_the_reason() -> None:
    assert schema("record")["properties"]["out_of_memory"]["required"] == list(FACTS)
