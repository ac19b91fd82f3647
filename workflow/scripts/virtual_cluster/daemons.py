"""Start, record and end the programs of this machine's virtual cluster.

The state file lists them. A program is identified by its process and start time, so that no other process is
ever ended.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from common.errors import InputError
from common.files import write_json
from declared.virtual import Settings
from sites.virtual import STATE, Process, boot_id, is_running, read_state, recorded_programs, start_ticks

# Environment variable of each program, by which it is found if the start was killed before it recorded the
# program.
DAEMON = "RINGSIDE_CLUSTER_DAEMON"
READY_S = 60.0


def begin(settings: Settings) -> None:
    """Record that a cluster is being started."""
    STATE.mkdir(mode=0o755)
    write_json(
        STATE / "cluster.json", {"settings": vars(settings), "boot": boot_id(), "pids": {}, "ready": False}
    )


def record_ready() -> None:
    """Record that the cluster is up."""
    write_json(STATE / "cluster.json", {**read_state(), "ready": True})


def start(program: str, command: list[str]) -> None:
    """Start a daemon with its output in <program>.out, and record its process."""
    environment = {**os.environ, "TMPDIR": "/tmp"}  # noqa: S108 (the /tmp of the node)
    for name in [name for name in environment if name.startswith(("SLURM", "OAR", "SNAKEMAKE", "RINGSIDE"))]:
        del environment[name]
    environment[DAEMON] = program
    with open(STATE / f"{program}.out", "ab") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    state = read_state()
    pids = {**state["pids"], program: [process.pid, start_ticks(process.pid)]}
    write_json(STATE / "cluster.json", {**state, "pids": pids})


def end_all() -> None:
    """End all programs, including those that a killed start did not record."""
    for process in {*recorded_programs().values(), *_running_programs()}:
        _end(process)


def _running_programs() -> list[Process]:
    """Return the cluster's programs and their children that run on this machine, recorded or not."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(folder / "ns" / "pid") != os.readlink("/proc/self/ns/pid"):
                continue  # in another container of this machine
            variables = (folder / "environ").read_bytes().split(b"\0")
            if any(variable.startswith(f"{DAEMON}=".encode()) for variable in variables):
                processes.append(Process(int(folder.name), start_ticks(int(folder.name))))
    return processes


def _end(process: Process) -> None:
    """End a process by SIGTERM, then by SIGKILL, as long as its id still belongs to it."""
    for signum, patience_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        deadline = time.monotonic() + patience_s
        while is_running(process) and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signum)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
            time.sleep(0.05)


def wait_for(condition: Callable[[], bool], expected: str) -> None:
    """Return when the condition holds.

    Raises:
        InputError: If it does not hold after READY_S.
    """
    deadline = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline:
            problem = f"not ready after {READY_S:.0f} s, waiting until {expected}"
            raise InputError("not-ready", problem, file="virtual cluster", hint=f"logs: {STATE}/*.log")
        time.sleep(0.1)
