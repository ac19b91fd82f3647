"""Open a sandbox on this machine, in which a virtual cluster is isolated from the machine's own.

A sandbox has its own network, processes, mounts, /run, /etc/slurm and control groups; all other files are
shared with the machine. Everything in it ends when it is closed, or when the test's process ends.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
# Beginnings of variables that are not passed on. The last three tell make the options of a calling make.
REMOVED_VARIABLES = ("SLURM", "RINGSIDE", "MAKE", "MFLAGS", "ARGS")
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "memory", "cpuset", "freezer")  # In version 1, each has its own hierarchy.
NOTHING_LEFT: dict[str, list[str]] = {"processes": [], "files": [], "links": [], "groups": []}

# Starts a cluster, and exits like after a SIGKILL when a daemon runs but is not yet recorded. Arguments: the
# daemon and the scheduler.
KILLED = """
import os, sys, time
from virtual_cluster import daemons, control
write = daemons.write_json

def noted(file, state):
    if sys.argv[1] in state["pids"]:
        time.sleep(0.2)
        os._exit(9)
    write(file, state)

daemons.write_json = noted
control.start("2", "1gbit", "0.6", "6G", sys.argv[2])
"""

# Enters the control groups before `--`, then runs the command after it. The new cgroup namespace has these
# groups as its roots.
_ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift; exec "$@"'

# Process 1 of the sandbox. Arguments: pairs of a group's folder and its mount point.
_INSIDE = """
set -e
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /etc/slurm
mount -t tmpfs -o mode=755 tmpfs /etc/slurm
while [ $# -gt 0 ]; do mount --bind "$1" "$2"; shift 2; done
ip link set lo up
echo ready
exec sleep infinity
"""


@dataclass
class Sandbox:
    """An open sandbox; `init` is the process id of its first process on the machine."""

    init: int
    groups: list[Path]

    def entered(self, *command: str, folder: Path = CHECKOUT) -> list[str]:
        """Return the command that runs `command` in the sandbox."""
        enter = ["nsenter", f"--target={self.init}", "--mount", "--net", "--pid", "--cgroup"]
        return [*enter, "env", f"--chdir={folder}", f"PWD={folder}", *command]

    def run(
        self, *command: str, folder: Path = CHECKOUT, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the sandbox."""
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(REMOVED_VARIABLES)
        }
        return subprocess.run(
            self.entered(*command, folder=folder),
            env={**variables, "PYTHONPATH": str(folder / "workflow" / "scripts")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def python(self, *arguments: str, folder: Path = CHECKOUT) -> subprocess.CompletedProcess[str]:
        """Run a program of the workflow in the sandbox, like python -m."""
        return self.run(sys.executable, "-m", *arguments, folder=folder)

    def left(self) -> dict[str, list[str]]:
        """Return the remains of a virtual cluster by kind; NOTHING_LEFT if there are none."""
        show = """
            for status in /proc/[0-9]*/status; do
                sed -n 's/^Name:[[:space:]]*//p; s/^State:[[:space:]]*\\(.\\).*/\\1/p' "$status" 2>/dev/null | xargs echo process
            done
            for each in /run/netns/* /run/ringside-cluster /run/sshd /etc/slurm/*; do [ ! -e "$each" ] || echo file $each; done
            sed -n 's/^ringside-oar \\([^ ]*\\) .*/file \\1/p' /proc/self/mounts
            ip -o link | sed 's/^[0-9]*: /link /; s/[@:].*//'
        """
        lines = [
            line.split(maxsplit=1) for line in self.run("sh", "-c", show).stdout.splitlines() if " " in line
        ]
        by_kind = {kind: [rest for key, rest in lines if key == kind] for kind in ("process", "file", "link")}
        expected = ("sleep", "sh", "sed", "xargs", "nsenter", "env")  # processes of the sandbox itself
        return {
            "processes": [
                process
                for process in by_kind["process"]
                if process.split()[0] not in expected and not process.endswith(" Z")
            ],
            "files": by_kind["file"],
            "links": [link for link in by_kind["link"] if link.startswith("ringside")],
            "groups": [str(path) for group in self.groups for path in group.rglob("*") if path.is_dir()],
        }


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """Open a sandbox, and end everything in it afterwards."""
    name = f"ringside-test-{os.getpid()}-{secrets.token_hex(3)}"
    unified = (CGROUPS / "cgroup.controllers").is_file()
    tops = [CGROUPS] if unified else [CGROUPS / controller for controller in CONTROLLERS]
    if unified:
        (CGROUPS / "cgroup.subtree_control").write_text("+cpu +memory")
    groups = [top / name for top in tops]
    for top in tops:  # groups of tests that were killed
        _remove(
            [
                left
                for left in top.glob("ringside-test-*")
                if not Path("/proc", left.name.split("-")[2]).exists()
            ]
        )
    for group in groups:
        group.mkdir()
        if group.parent.name == "cpuset":  # A new cpuset has no CPUs and no memory nodes.
            for file in ("cpuset.cpus", "cpuset.mems"):
                (group / file).write_text((group.parent / file).read_text())
    pairs = [str(path) for pair in zip(groups, tops, strict=True) for path in pair]
    enter = [
        "sh",
        "-c",
        _ENTER,
        "sh",
        *([] if unified else map(str, groups)),
        "--",
    ]  # of version 2 only leaves have processes
    unshare = ["unshare", "--mount", "--net", "--pid", "--cgroup", "--fork", "--kill-child", "--mount-proc"]
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig=KILL", *enter, *unshare, "sh", "-c", _INSIDE, "sh", *pairs],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "the sandbox did not open"
        init = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
        yield Sandbox(init, groups)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 10
        while any(group.exists() for group in groups) and time.monotonic() < deadline:
            _remove(groups)
            time.sleep(0.05)


def _remove(groups: list[Path]) -> None:
    for group in groups:
        for folder in [*sorted(group.rglob("*"), reverse=True), group]:
            if folder.is_dir():
                with contextlib.suppress(OSError):  # A process in the group is still ending.
                    folder.rmdir()


def up(corner: Sandbox, *options: str) -> float:
    """Start a cluster in the sandbox, and return how many seconds it took."""
    started = time.monotonic()
    done = corner.python("ringside", "cluster", "up", *options)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - started


def down(corner: Sandbox) -> None:
    """Stop the cluster in the sandbox."""
    done = corner.python("ringside", "cluster", "down")
    assert done.returncode == 0, done.stderr
