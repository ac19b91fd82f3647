"""The virtual cluster that is up on this machine (virtual_cluster starts and ends it): what it is made of, and the rate of its links.

What is up stands in STATE/cluster.json. A program is known by its process and when that began.
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
from declared.site import Site
from declared.virtual import Settings, from_json, shaping

STATE = Path("/run/ringside-cluster")
NAMESPACE = "ringside-"
CONTROLLER = {"slurm": "slurmctld", "oar": "almighty"}  # of each scheduler, the daemon that is in no node


class Process(NamedTuple):
    """A process, and when it began, in the kernel's ticks."""

    pid: int
    began: int


def running() -> Settings | None:
    """The settings of the cluster that is up on this machine; None where there is none, or its controller has ended."""
    state = read_state()
    if not state.get("ready"):
        return None
    there = from_json(state["settings"])
    of_nodes = tuple(f"-{name}" for name in there.names)
    return there if all(program.endswith(of_nodes) for program in ended()) else None


def command_for(site: Site) -> str:
    """The command that starts the cluster which a site with placement virtual describes."""
    rate = f"{site.bandwidth_bytes_s * 8 / 1e6:g}mbit" if site.bandwidth_bytes_s else "none"
    share = ",".join(f"{share:g}" for share in site.cpu_shares or [site.cpu_share] if share) or "none"
    scheduler = "" if site.launcher == "slurm" else f" --scheduler {site.launcher}"
    return f"./ringside cluster up --nodes {site.nodes} --bandwidth {rate} --cpu {share}{scheduler}"


def shape(names: Iterable[str], bandwidth_bytes_s: float | None) -> None:
    """Give the links of these nodes this rate in both directions; None: no limit. From anywhere on the machine, as root."""
    settings = running()
    if settings is None:
        raise InputError("not-running", "the virtual cluster is not up, so links cannot be shaped")
    controller = pid_of(CONTROLLER[settings.scheduler])
    host = ["nsenter", f"--net=/proc/{controller}/ns/net"]  # a node sees its own end of its link only
    for name in names:
        shape_link(settings.names.index(name) + 1, name, bandwidth_bytes_s, host)


def shape_link(number: int, name: str, bandwidth_bytes_s: float | None, enter: Sequence[str] = ()) -> None:
    """A token bucket (tc-tbf(8)) at each end of a node's link; none where there is no limit."""
    for at, end in (("-n", f"{NAMESPACE}{name}"), "eth0"), ((), f"{NAMESPACE}{number}"):
        qdisc = [*enter, "tc", *at, "qdisc"]
        if bandwidth_bytes_s:
            run(*qdisc, "replace", "dev", end, "root", *shaping(bandwidth_bytes_s))
        else:
            quiet(*qdisc, "delete", "dev", end, "root")  # there may be none


def noted() -> dict[str, Process]:
    """The programs of the cluster that was started last, whether or not they still run."""
    return {program: Process(*process) for program, process in read_state().get("pids", {}).items()}


def ended() -> list[str]:
    """Those of them which have ended, or were killed, since."""
    return [program for program, process in noted().items() if not runs(process)]


def pid_of(program: str) -> int:
    """The process of a program of the cluster, such as munged, slurmctld, slurmd-<node>, almighty, sshd-<node>."""
    return noted()[program].pid


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


def read_state() -> dict[str, Any]:
    """Return what cluster.json holds; {} where there is none, or from before the machine's last start."""
    with contextlib.suppress(OSError, ValueError):
        state: dict[str, Any] = json.loads((STATE / "cluster.json").read_text())
        if state.get("boot") == boot_id():
            return state
    return {}


def boot_id() -> str:
    """Return the identifier of the machine's last start."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
