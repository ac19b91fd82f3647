"""A rank leaves nothing on its node when it ends, and nothing for long when it is killed."""

import errno
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.program_sources import SCRIPTS
from ranks.libraries import horovod
from ranks.worker import load, process
from ranks.worker.context import Context, by_first_interface, from_environment
from ranks.worker.group import Group
from ranks.worker.node import memory_bytes
from support.programs import printed

RANK = """\
import sys, tempfile, time
from pathlib import Path
from ranks.worker.process import as_rank

def run(folder):
    Path(tempfile.gettempdir(), "left.py").touch()  # as libraries do that clean up when the interpreter ends
    (folder / "began").touch()
    while not (folder / "go-on").exists():
        time.sleep(0.01)

as_rank(run)
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str], subprocess.Popen[bytes]]:
    """Start a rank with an attempt's folder of this name, and return when it has begun.

    `scratch` is the folder of temporary files.
    """
    (tmp_path / "scratch").mkdir()

    def begun(name: str) -> subprocess.Popen[bytes]:
        folder = tmp_path / name
        folder.mkdir()
        variables = {
            "PYTHONPATH": str(SCRIPTS),
            "RINGSIDE_ALARM_S": "60",
            "RINGSIDE_SCRATCH": str(tmp_path / "scratch"),
        }
        rank = subprocess.Popen([sys.executable, "-c", RANK, str(folder)], env={**os.environ, **variables})
        end = time.monotonic() + 60
        while not (folder / "began").exists():
            assert rank.poll() is None and time.monotonic() < end, "it did not begin"
            time.sleep(0.01)
        return rank

    return begun


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_rank_that_ends_leaves_nothing(
    tmp_path: Path, start: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    rank = start("one")
    assert any(path.endswith("/left.py") for path in left(tmp_path / "scratch"))
    (tmp_path / "one" / "go-on").touch()
    assert rank.wait(60) == 0 and left(tmp_path / "scratch") == []


def test_a_rank_that_fails_says_why_and_ends_at_once(tmp_path: Path) -> None:
    """A library can hang after a peer has ended; here a thread that never ends takes its place."""
    program = """\
import threading, time
from ranks.worker.process import as_rank

def run(folder):
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise ArithmeticError("no sum")

as_rank(run)
"""
    variables = {"PYTHONPATH": str(SCRIPTS), "RINGSIDE_ALARM_S": "60", "RINGSIDE_SCRATCH": str(tmp_path)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1 and ended.stderr.endswith("ArithmeticError: no sum\n")
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("work", "left_library"), [("pass", True), ("raise ArithmeticError('no sum')", False)]
)
def test_rank_leaves_its_library_after_success_only(tmp_path: Path, work: str, left_library: bool) -> None:
    """Leaving is collective, so other ranks would wait for a rank that failed."""
    program = f"""\
from ranks.worker.process import as_rank, at_end

def run(folder):
    at_end.append((folder / "left").touch)
    {work}

as_rank(run)
"""
    variables = {"PYTHONPATH": str(SCRIPTS), "RINGSIDE_ALARM_S": "60", "RINGSIDE_SCRATCH": str(tmp_path)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, timeout=30, check=False
    )
    assert ended.returncode == (0 if left_library else 1) and (tmp_path / "left").exists() == left_library


def test_files_of_killed_ranks_are_removed_and_of_live_ones_kept(
    tmp_path: Path, start: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "ringside-of-others").mkdir()
    elsewhere = scratch / "ringside-on-another-node"
    elsewhere.mkdir()
    (elsewhere / "held").write_text("another-node")
    folders = left(scratch)

    living, killed = start("living"), start("killed")
    killed.kill()
    killed.wait()
    assert len(list(scratch.glob("ringside-*/left.py"))) == 2, "nobody has removed the dead one's"
    after = start("after")
    assert len(list(scratch.glob("ringside-*/left.py"))) == 2, "those of the two that live"
    for name in ("living", "after"):
        (tmp_path / name / "go-on").touch()
    assert living.wait(60) == after.wait(60) == 0
    assert left(scratch) == folders


@pytest.mark.parametrize(
    ("n_cores", "cores"),
    [(8, [{0, 1}, {2, 3}, {4, 5, 6, 7}]), (6, [{0, 1}, {2, 3}, {4, 5}]), (4, [None, None, None])],
)
def test_heterogeneous_ranks_take_their_own_cores(
    n_cores: int, cores: list[set[int] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[set[int] | None] = []
    monkeypatch.delenv("RINGSIDE_CORES", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(n_cores)))
    monkeypatch.setattr("os.sched_setaffinity", lambda _, own: bound.__setitem__(-1, set(own)))
    for rank in range(3):
        bound.append(None)
        process.bind_heterogeneous(
            Context(Path(), {"spec": {"rank_cores": [2, 2, 4]}}, rank, rank, cast(Group, None))
        )
    assert bound == cores


def test_processes_that_end_while_they_are_read_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading files of a process that has just ended fails with ESRCH, as seen on a busy machine."""
    stat, names = os.stat, os.listdir

    def ended(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("/stat"):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", ended)
    monkeypatch.setattr(os, "listdir", lambda path: [*names(path), str(2**31)])
    assert os.getpid() in load._processes() and 2**31 not in load._processes()


@pytest.mark.parametrize("kind", ["pipe", "other bytes"])
def test_strange_temporary_folders_hold_nobody_up(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / f"{process.TEMPORARY_PREFIX}strange"
    folder.mkdir()
    if kind == "pipe":
        os.mkfifo(folder / process.LOCK_FILE)
    else:
        (folder / process.LOCK_FILE).write_bytes(b"\xff\xfe")
    process._remove_unless_locked(folder)
    assert folder.exists()


@pytest.mark.parametrize(
    ("interface", "expected"), [("eth1", "=eth1"), ("ib0,ib1", "=ib0,ib1")], ids=["one", "several"]
)
def test_nccl_gets_whole_names_of_interfaces(interface: str, expected: str, tmp_path: Path) -> None:
    """NCCL's guide: "=eth0,eth1: use only interfaces eth0 and eth1"; eth1 alone is a prefix, also of eth10."""
    for device in ("cuda", "cpu"):
        spec = {"device": device, "interface": interface}
        context = Context(tmp_path, {"spec": spec}, 0, 0, cast(Group, None))
        variables = process.network_variables(context)
        assert variables.get("NCCL_SOCKET_IFNAME") == (expected if device == "cuda" else None)


def test_ranks_meet_on_the_first_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rank_input.json").write_text(json.dumps({"spec": {"ranks": 1, "interface": "lo,nope0"}}))
    monkeypatch.setenv("RINGSIDE_RANK", "0")
    monkeypatch.setenv("RINGSIDE_LOCAL_RANK", "0")
    assert from_environment(tmp_path).group.address == "127.0.0.1"


def test_horovod_gets_the_first_interface(tmp_path: Path) -> None:
    spec = {"device": "cpu", "interface": "ib0,ib1", "ranks_per_node": 1, "nodes": 2, "ranks": 2}
    group = cast(Group, SimpleNamespace(broadcast=lambda value: value, address="10.0.0.1"))
    context = Context(tmp_path, {"spec": spec, "hosts": ["a", "b"]}, 1, 0, group)
    assert horovod.placement_variables(context)["HOROVOD_GLOO_IFACE"] == "ib0"
    assert horovod.transport(context, None) == by_first_interface(spec, "gloo")


JAX = """
from types import SimpleNamespace
from ranks.libraries.jax import device

used = []
device.jax.distributed.initialize = lambda *_, **__: None
device._jax.make_gloo_tcp_collectives = lambda _, interface: used.append(interface)
device.xla_bridge.make_cpu_client = lambda _: None
device.xla_bridge.register_backend_factory = lambda _, client, **__: client()
group = SimpleNamespace(broadcast=lambda value: value, address="127.0.0.1")
spec = {"device": "cpu", "interface": "ib0,ib1"}
print(device.join(SimpleNamespace(group=group, spec=spec, ranks=2, rank=1, local_rank=0)), *used, sep="; ")
device.at_end.clear()
"""


@pytest.mark.training
def test_jax_gets_the_first_interface(real: Callable[[str], Any]) -> None:
    assert printed(real("jax"), "-c", JAX) == "gloo by ib0; ib0\n"


LIMITED = """
import resource
from types import SimpleNamespace
from ranks.worker.process import limit_memory

limit_memory(SimpleNamespace(spec={spec}))
print(resource.getrlimit(resource.RLIMIT_DATA)[0])
"""


@pytest.mark.parametrize("share", [0.25, None])
def test_rank_limits_itself_to_its_share_of_memory(share: float | None) -> None:
    spec = {"memory_share": share} if share else {}
    limit = subprocess.check_output(
        [sys.executable, "-c", LIMITED.format(spec=spec)], env={"PYTHONPATH": str(SCRIPTS)}
    )
    unlimited = resource.getrlimit(resource.RLIMIT_DATA)[0]
    assert int(limit) == (int(share * memory_bytes()) if share else unlimited)
