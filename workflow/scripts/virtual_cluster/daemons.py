"""The programs that keep the virtual cluster of this machine running: started, noted in its state (sites.virtual), found, ended.

A program is known by its process and when that began, so none else is ever ended.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from common.errors import InputError
from common.files import write_json
from declared.virtual import Settings
from sites.virtual import STATE, Process, began, boot_id, noted, read_state, runs

DAEMON = "RINGSIDE_CLUSTER_DAEMON"  # in the environment of each, by which one is found whose start was killed before it was noted
READY_S = 60.0


def begin(settings: Settings) -> None:
    """Note that a cluster is being started."""
    STATE.mkdir(mode=0o755)
    write_json(
        STATE / "cluster.json", {"settings": vars(settings), "boot": boot_id(), "pids": {}, "ready": False}
    )


def say_ready() -> None:
    """Note that it is up."""
    write_json(STATE / "cluster.json", {**read_state(), "ready": True})


def start(program: str, command: list[str], variables: Mapping[str, str] | None = None) -> None:
    """Start a program that stays, with its output in <program>.out, and note its process."""
    kept = {**os.environ, "TMPDIR": "/tmp", **(variables or {})}  # noqa: S108 (of the node's own)
    for name in [name for name in kept if name.startswith(("SLURM", "OAR", "SNAKEMAKE", "RINGSIDE"))]:
        del kept[name]
    kept[DAEMON] = program
    with open(STATE / f"{program}.out", "ab") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env=kept,
            start_new_session=True,
        )
    state = read_state()
    pids = {**state["pids"], program: [process.pid, began(process.pid)]}
    write_json(STATE / "cluster.json", {**state, "pids": pids})


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


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Return when it holds. InputError after READY_S."""
    deadline = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline:
            problem = f"not ready after {READY_S:.0f} s, waiting until {what}"
            raise InputError("not-ready", problem, file="virtual cluster", hint=f"logs: {STATE}/*.log")
        time.sleep(0.1)
