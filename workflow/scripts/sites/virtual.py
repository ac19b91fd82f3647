"""Read the state of this machine's virtual cluster, and shape its links; virtual_cluster starts and ends it.

The state is in STATE/cluster.json. A program is identified by its process and the start time of that process.
"""

import contextlib
import json
import os
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import InputError
from common.shell import capture
from declared.site import Site
from declared.virtual import Settings, from_json, shaping

STATE = Path("/run/ringside-cluster")
NAMESPACE = "ringside-"
CONTROLLER = {"slurm": "slurmctld", "oar": "almighty"}  # the daemon of each scheduler outside of the nodes


class Process(NamedTuple):
    """A process and its start time in the kernel's ticks."""

    pid: int
    began: int


def running_cluster() -> Settings | None:
    """Return the settings of the running virtual cluster; None if a program outside its nodes has ended."""
    state = read_state()
    if not state.get("ready"):
        return None
    settings = from_json(state["settings"])
    node_suffixes = tuple(f"-{name}" for name in settings.names)
    return settings if all(program.endswith(node_suffixes) for program in ended_programs()) else None


def command_for(site: Site) -> str:
    """Return the command that starts the cluster of a site with placement virtual."""
    rate = f"{site.bandwidth_bytes_s * 8 / 1e6:g}mbit" if site.bandwidth_bytes_s else "none"
    share = ",".join(f"{share:g}" for share in site.cpu_shares or [site.cpu_share] if share) or "none"
    scheduler = "" if site.launcher == "slurm" else f" --scheduler {site.launcher}"
    gpus = f" --gpus {site.devices_per_node}" if site.devices_per_node else ""
    return f"./ringside cluster up --nodes {site.nodes} --bandwidth {rate} --cpu {share}{gpus}{scheduler}"


def limit_links(names: Iterable[str], bandwidth_bytes_s: float | None) -> None:
    """Limit the links of nodes to a rate in both directions, or remove the limit (None). Needs root.

    Raises:
        InputError: If the virtual cluster is not running, or a command fails.
    """
    settings = running_cluster()
    if settings is None:
        raise InputError("not-running", "the virtual cluster is not running, so links cannot be shaped")
    controller = pid_of(CONTROLLER[settings.scheduler])
    # From inside, a node sees only its own end of its link.
    host = ["nsenter", f"--net=/proc/{controller}/ns/net"]
    for name in names:
        shape_link(settings.names.index(name) + 1, name, bandwidth_bytes_s, host)


def shape_link(number: int, name: str, bandwidth_bytes_s: float | None, enter: Sequence[str] = ()) -> None:
    """Put a token bucket (tc-tbf(8)) at each end of a node's link, or remove it if there is no limit."""
    for at, end in (("-n", f"{NAMESPACE}{name}"), "eth0"), ((), f"{NAMESPACE}{number}"):
        qdisc = [*enter, "tc", *at, "qdisc"]
        if bandwidth_bytes_s:
            run(*qdisc, "replace", "dev", end, "root", *shaping(bandwidth_bytes_s))
        else:
            succeeds(*qdisc, "delete", "dev", end, "root")  # fails if there was no limit


def recorded_programs() -> dict[str, Process]:
    """Return the programs of the cluster that was started last, whether or not they still run."""
    return {program: Process(*process) for program, process in read_state().get("pids", {}).items()}


def ended_programs() -> list[str]:
    """Return the programs of the cluster that have ended."""
    return [program for program, process in recorded_programs().items() if not is_running(process)]


def pid_of(program: str) -> int:
    """Return the process of a program, such as munged, slurmctld, slurmd-<node>, almighty, sshd-<node>."""
    return recorded_programs()[program].pid


def is_running(process: Process) -> bool:
    """Return whether this process has not ended."""
    with contextlib.suppress(OSError):
        state, *fields = _status(process.pid)
        return state != "Z" and int(fields[18]) == process.began
    return False


def start_ticks(pid: int) -> int:
    """Return the start time of a process in ticks (field 22 of proc_pid_stat(5)), 0 if it has ended."""
    with contextlib.suppress(OSError):
        return int(_status(pid)[19])
    return 0


def _status(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the third on."""
    return Path("/proc", str(pid), "stat").read_text(errors="replace").rsplit(")", 1)[1].split()


def succeeds(*command: str) -> bool:
    """Return whether a command succeeds."""
    return subprocess.run(command, capture_output=True, check=False, env=_variables()).returncode == 0


def run(*command: str) -> str:
    """Return the output of a command.

    Raises:
        InputError: If it fails.
    """
    result = capture(command, env=_variables())
    if result.returncode:
        messages = (result.stderr or result.stdout).strip().splitlines() or [f"status {result.returncode}"]
        raise InputError(
            "command-failed", messages[-1], file="virtual cluster", key=shlex.join(command)[:200]
        )
    return result.stdout


def _variables() -> dict[str, str]:
    """Return this process's variables, with the folders of root's programs added to PATH."""
    return {**os.environ, "PATH": f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"}


def read_state() -> dict[str, Any]:
    """Return the content of cluster.json, {} if it is missing or older than the machine's last start."""
    with contextlib.suppress(OSError, ValueError):
        state: dict[str, Any] = json.loads((STATE / "cluster.json").read_text())
        if state.get("boot") == boot_id():
            return state
    return {}


def boot_id() -> str:
    """Return the identifier of the machine's last start."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
