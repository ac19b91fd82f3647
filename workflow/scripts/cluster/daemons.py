"""The state of the virtual cluster of this machine, and the programs that it keeps running: started, noted, found, ended.

What is up stands in STATE/cluster.json. A program is known by its process and when that began, so none else is ever ended.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import InputError
from common.files import write_json
from declared.virtual import Settings, from_json

STATE = Path("/run/ringside-cluster")
DAEMON = "RINGSIDE_CLUSTER_DAEMON"  # in the environment of each, by which one is found whose start was killed before it was noted
READY_S = 60.0


class Process(NamedTuple):
    """A process, and when it began, in the kernel's ticks."""

    pid: int
    began: int


def begin(settings: Settings) -> None:
    """Note that a cluster is being started."""
    STATE.mkdir(mode=0o755)
    write_json(STATE / "cluster.json", {"settings": vars(settings), "boot": _boot(), "pids": {}, "ready": False})


def say_ready() -> None:
    """Note that it is up."""
    write_json(STATE / "cluster.json", {**_noted(), "ready": True})


def up() -> Settings | None:
    """The settings of the cluster that is up, as far as it is noted; its programs may have ended since."""
    state = _noted()
    return from_json(state["settings"]) if state.get("ready") else None


def start(program: str, command: list[str], variables: Mapping[str, str] | None = None) -> None:
    """Start a program that stays, with its output in <program>.out, and note its process."""
    kept = {**os.environ, "TMPDIR": "/tmp", **(variables or {})}  # noqa: S108 (of the node's own)
    for name in [name for name in kept if name.startswith(("SLURM", "OAR", "SNAKEMAKE", "RINGSIDE"))]:
        del kept[name]
    kept[DAEMON] = program
    with open(STATE / f"{program}.out", "ab") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", env=kept, start_new_session=True
        )
    state = _noted()
    noted = {**state["pids"], program: [process.pid, began(process.pid)]}
    write_json(STATE / "cluster.json", {**state, "pids": noted})


def noted() -> dict[str, Process]:
    """The programs of the cluster that was started last, whether or not they still run."""
    return {program: Process(*process) for program, process in _noted().get("pids", {}).items()}


def ended() -> list[str]:
    """Those of them which have ended, or were killed, since."""
    return [program for program, process in noted().items() if not runs(process)]


def pid_of(program: str) -> int:
    """The process of a program of the cluster, such as munged, slurmctld, slurmd-<node>, almighty, sshd-<node>."""
    return noted()[program].pid


def end_all() -> None:
    """End all programs, also those of a start that was killed before it had noted them."""
    for process in {*noted().values(), *_found()}:
        _end(process)


def _found() -> list[Process]:
    """The programs that run here, and what they started, noted or not."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(folder / "ns" / "pid") != os.readlink("/proc/self/ns/pid"):
                continue  # of another corner of this machine
            variables = (folder / "environ").read_bytes().split(b"\0")
            if any(said.startswith(f"{DAEMON}=".encode()) for said in variables):
                found.append(Process(int(folder.name), began(int(folder.name))))
    return found


def _end(process: Process) -> None:
    """Ask the process to end, then make it; only while it is still the one that was started."""
    for signum, patience_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        deadline = time.monotonic() + patience_s
        while runs(process) and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signum)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
            time.sleep(0.05)


def runs(process: Process) -> bool:
    """Whether this process has not ended."""
    with contextlib.suppress(OSError):
        state, *fields = _status(process.pid)
        return state != "Z" and int(fields[18]) == process.began
    return False


def began(pid: int) -> int:
    """When a process began, in the kernel's ticks (field 22 of proc_pid_stat(5)); 0 where it is gone."""
    with contextlib.suppress(OSError):
        return int(_status(pid)[19])
    return 0


def _status(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the program's name, from the third on."""
    return Path("/proc", str(pid), "stat").read_text(errors="replace").rsplit(")", 1)[1].split()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Return when it holds. InputError after READY_S."""
    deadline = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline:
            problem = f"not ready after {READY_S:.0f} s, waiting until {what}"
            raise InputError("not-ready", problem, file="virtual cluster", hint=f"logs: {STATE}/*.log")
        time.sleep(0.1)


def quiet(*command: str) -> bool:
    """Whether a command succeeds."""
    return subprocess.run(command, capture_output=True, check=False, env=_variables()).returncode == 0


def run(*command: str) -> str:
    """What a command says. InputError when it does not succeed."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        stdin=subprocess.DEVNULL,
        env=_variables(),
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
        raise InputError("command-failed", said[-1], file="virtual cluster", key=shlex.join(command)[:200])
    return done.stdout


def _variables() -> dict[str, str]:
    """Those of this process; in jobs, too, programs for root are found."""
    return {**os.environ, "PATH": f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"}


def _noted() -> dict[str, Any]:
    """What cluster.json holds; empty where there is none, or from before the machine's last start."""
    with contextlib.suppress(OSError, ValueError):
        state: dict[str, Any] = json.loads((STATE / "cluster.json").read_text())
        if state.get("boot") == _boot():
            return state
    return {}


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
