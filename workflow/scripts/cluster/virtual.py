"""A Slurm cluster of network namespaces on this machine, with shaped links and capped processors.

    python -m cluster.virtual up --nodes 3 --bandwidth 1gbit --cpu 0.6
    python -m cluster.virtual down

Every node is a slurmd in a network namespace with its own address, host name, /tmp and /etc/hosts, in control groups
that cap its processor and memory. Its link goes to a bridge, shaped in both directions by token buckets (tc-tbf(8)).
"""

import argparse
import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from cluster import limits
from cluster.configuration import CLUSTER, DATABASE_PORT, MARK, SLURM_CONF, SLURMDBD_CONF, slurm_conf, slurmdbd_conf
from cluster.limits import Limits
from common.errors import InputError, exit_status
from common.files import CHECKOUT, write_json, write_text
from declared.site import Site
from declared.virtual import LOGIN, Settings, address, from_json, parse, shaping

STATE = Path("/run/ringside-cluster")
BRIDGE = "ringside0"
NAMESPACE = "ringside-"
ACCOUNT = "rehearsal"  # where there is accounting
READY_S = 60.0
DAEMON = "RINGSIDE_CLUSTER_DAEMON"  # in the environment of each, by which one is found whose start was killed before it was noted
_SLURMD = "slurmd-"  # and the node's name
INSTALL = CHECKOUT / "workflow" / "scripts" / "common" / "install-packages"
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "iproute2", "util-linux")
ACCOUNTING = ("slurmdbd", "mariadb-server")

# In the node's own namespaces: $1 name, $2 folder with the node's hosts file, the rest control groups to enter.
_NODE = """
set -e
name=$1 state=$2
shift 2
for group in "$@"; do echo $$ > "$group/cgroup.procs"; done
hostname "$name"
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount --bind "$state/hosts" /etc/hosts
exec slurmd -D -N "$name"
"""


def up(settings: Settings) -> None:
    """Start the cluster and return when all its nodes are idle. InputError when it cannot be; nothing is left then."""
    if os.geteuid() != 0:
        raise InputError("the virtual cluster needs root: it makes network namespaces and control groups")
    if running() is not None:
        raise InputError(f"the virtual cluster is already up ({STATE}); take it down first: make cluster-down")
    for file in (SLURM_CONF, SLURMDBD_CONF):
        if file.exists() and not file.read_text().startswith(MARK):
            raise InputError(f"{file}: belongs to another Slurm; the virtual cluster needs a machine without one")
    needed = [*PACKAGES, *(ACCOUNTING if settings.accounting else ())]
    if subprocess.run([INSTALL, *needed], check=False).returncode:
        raise InputError(f"{INSTALL.name}: the packages that the virtual cluster needs cannot be installed")
    started = time.monotonic()
    down()
    try:
        _start(settings)
    except BaseException:
        down(keep_logs=True)
        raise
    print(f"virtual cluster: {settings.described()}; up after {time.monotonic() - started:.1f} s")


def down(keep_logs: bool = False) -> bool:
    """End all of it and leave nothing behind, whatever state it is in. Whether there was something."""
    there = STATE.exists() or (SLURM_CONF.exists() and SLURM_CONF.read_text().startswith(MARK))
    names = limits.nodes()
    for name in names:
        Limits(name).kill()
    for program, pid in [*_pids().items(), *_daemons()]:
        _end(program, pid)
    for namespace in _namespaces():
        _run("ip", "netns", "delete", namespace)
    for link in _links():
        _quiet("ip", "link", "delete", link)  # may have gone by itself, with its namespace or its other end
    for name in names:
        Limits(name).remove()
    limits.remove_family()
    for file in (SLURM_CONF, SLURMDBD_CONF):
        if file.exists() and file.read_text().startswith(MARK):
            file.unlink()
    if keep_logs and STATE.exists():
        kept = Path("/tmp/ringside-cluster-failed")  # noqa: S108 (for a person to read)
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        for log in [*STATE.glob("*.log"), *STATE.glob("*.out")]:
            shutil.copy(log, kept)
        print(f"virtual cluster: did not come up; its logs are in {kept}", file=sys.stderr)
    shutil.rmtree(STATE, ignore_errors=True)
    return there


def refuse_busy() -> None:
    """InputError while jobs wait or run on the cluster."""
    if running() is None:
        return
    asked = ["squeue", "--noheader", "--format=%i"]
    left = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30).stdout.split()
    if left:
        raise InputError(
            f"the virtual cluster has jobs that wait or run ({', '.join(left)}); let them end, or make cluster-down ARGS=--force"
        )


def running() -> Settings | None:
    """The settings of the cluster that is up on this machine; None where there is none, or its controller has ended."""
    try:
        state = json.loads((STATE / "cluster.json").read_text())
        up = state["ready"] and state["boot"] == _boot() and all(name.startswith(_SLURMD) for name in ended())
        return from_json(state["settings"]) if up else None
    except (OSError, ValueError, KeyError):
        return None


def ended() -> list[str]:
    """The programs of the cluster that was started last which have ended, or were killed, since."""
    return [program for program, pid in _pids().items() if not _is(program, pid)]


def command_for(site: Site) -> str:
    """The command that starts the cluster which a site with placement virtual describes."""
    rate = f"{site.bandwidth_bytes_s * 8 / 1e6:g}mbit" if site.bandwidth_bytes_s else "none"
    share = f"{site.cpu_share:g}" if site.cpu_share else "none"
    return f"make cluster-up NODES={site.nodes} BANDWIDTH={rate} CPU={share}"


def _start(settings: Settings) -> None:
    STATE.mkdir(mode=0o755)
    write_json(STATE / "cluster.json", {"settings": vars(settings), "boot": _boot(), "pids": {}, "ready": False})
    (STATE / "slurmctld").mkdir()
    hosts = [f"127.0.0.1 localhost\n{LOGIN} {os.uname().nodename}\n"]
    hosts += [f"{address(i)} {name}\n" for i, name in enumerate(settings.names, start=1)]
    write_text(STATE / "hosts", "".join(hosts))
    SLURM_CONF.parent.mkdir(parents=True, exist_ok=True)
    write_text(SLURM_CONF, slurm_conf(settings, STATE))
    _munge()
    _run("ip", "link", "add", BRIDGE, "type", "bridge")
    _run("ip", "address", "add", f"{LOGIN}/24", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")
    if settings.accounting:
        _accounting()
    start_slurmctld()
    for number, name in enumerate(settings.names, start=1):
        _link(number, name, settings.bandwidth_bytes_s)
        groups = Limits(name)
        groups.make(settings.cpu_share, settings.memory_bytes)
        start_slurmd(name)
    _wait_for(lambda: _idle() == settings.names, "all nodes are idle")
    state = json.loads((STATE / "cluster.json").read_text())
    write_json(STATE / "cluster.json", {**state, "ready": True})


def start_slurmctld() -> None:
    """Start the controller, with the state that an earlier one left."""
    _daemon("slurmctld", ["slurmctld", "-D"])


def pid_of(program: str) -> int:
    """The process of a part of the running cluster: munged, slurmctld, slurmd-<node>."""
    return _pids()[program]


def start_slurmd(name: str) -> None:
    """Start the node's slurmd, in its namespaces and control groups."""
    enter = ["nsenter", f"--net=/run/netns/{NAMESPACE}{name}", "unshare", "--uts", "--mount", "--propagation", "slave"]
    groups = [str(folder) for folder in Limits(name).folders]
    _daemon(f"{_SLURMD}{name}", [*enter, "sh", "-c", _NODE, "sh", name, str(STATE), *groups])


def _munge() -> None:
    key = STATE / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
    options = [f"--{option}={STATE / file}" for option, file in files.items()]
    _daemon("munged", ["munged", "--foreground", "--force", f"--log-file={STATE}/munged.log", *options])
    _wait_for((STATE / "munge.socket").exists, "munged listens")


def _accounting() -> None:
    data, socket, password = STATE / "mariadb", STATE / "mariadb.socket", secrets.token_hex(16)
    _run(
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={data}",
        "--user=root",
        "--auth-root-authentication-method=normal",
    )
    listen = [f"--socket={socket}", "--bind-address=127.0.0.1", f"--port={DATABASE_PORT}"]
    quick = ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M"]
    _daemon("mariadbd", ["mariadbd", "--no-defaults", f"--datadir={data}", "--user=root", *listen, *quick])
    client = ["mariadb", "--no-defaults", f"--socket={socket}", "--user=root"]
    _wait_for(lambda: _quiet(*client, "--execute=select 1"), "the database answers")
    grant = (
        f"create database slurm_acct_db; grant all on slurm_acct_db.* to slurm@'127.0.0.1' identified by '{password}'"
    )
    _run(*client, f"--execute={grant}")
    SLURMDBD_CONF.touch(mode=0o600)
    SLURMDBD_CONF.write_text(slurmdbd_conf(STATE, password))
    _daemon("slurmdbd", ["slurmdbd", "-D"])
    _wait_for(lambda: _quiet("sacctmgr", "--noheader", "--parsable2", "show", "cluster"), "slurmdbd answers")
    _run("sacctmgr", "--immediate", "add", "cluster", CLUSTER)
    _run("sacctmgr", "--immediate", "add", "account", ACCOUNT, f"Cluster={CLUSTER}")
    _run("sacctmgr", "--immediate", "add", "user", "root", f"Account={ACCOUNT}")


def _link(number: int, name: str, bandwidth_bytes_s: float | None) -> None:
    namespace, inside, outside = f"{NAMESPACE}{name}", f"{NAMESPACE}{number}i", f"{NAMESPACE}{number}"
    _run("ip", "netns", "add", namespace)
    _run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside)
    _run("ip", "link", "set", inside, "netns", namespace, "name", "eth0")
    _run("ip", "link", "set", outside, "master", BRIDGE, "up")
    _run("ip", "-n", namespace, "address", "add", f"{address(number)}/24", "dev", "eth0")
    _run("ip", "-n", namespace, "link", "set", "eth0", "up")
    _run("ip", "-n", namespace, "link", "set", "lo", "up")
    _shape(number, name, bandwidth_bytes_s)


def shape(names: Iterable[str], bandwidth_bytes_s: float | None) -> None:
    """Give the links of these nodes this rate in both directions; None: no limit. From anywhere on the machine, as root."""
    settings = running()
    if settings is None:
        raise InputError("the virtual cluster is not up, so links cannot be shaped")
    host = ["nsenter", f"--net=/proc/{pid_of('slurmctld')}/ns/net"]  # a node sees its own end of its link only
    for name in names:
        _shape(settings.names.index(name) + 1, name, bandwidth_bytes_s, host)


def _shape(number: int, name: str, bandwidth_bytes_s: float | None, enter: Sequence[str] = ()) -> None:
    """A token bucket (tc-tbf(8)) at each end of a node's link; none where there is no limit."""
    for at, end in (("-n", f"{NAMESPACE}{name}"), "eth0"), ((), f"{NAMESPACE}{number}"):
        qdisc = [*enter, "tc", *at, "qdisc"]
        if bandwidth_bytes_s:
            _run(*qdisc, "replace", "dev", end, "root", *shaping(bandwidth_bytes_s))
        else:
            _quiet(*qdisc, "delete", "dev", end, "root")  # there may be none


def _daemon(program: str, command: list[str]) -> None:
    """Start a program that stays, with its output in <program>.log, and note its process."""
    variables = {**os.environ, "TMPDIR": "/tmp"}  # noqa: S108 (of the node's own)
    for name in [name for name in variables if name.startswith(("SLURM", "SNAKEMAKE", "RINGSIDE"))]:
        del variables[name]
    variables[DAEMON] = program
    with open(STATE / f"{program}.out", "ab") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", env=variables, start_new_session=True
        )
    state = json.loads((STATE / "cluster.json").read_text())
    write_json(STATE / "cluster.json", {**state, "pids": {**state["pids"], program: process.pid}})


def _pids() -> dict[str, int]:
    try:
        state: dict[str, Any] = json.loads((STATE / "cluster.json").read_text())
    except (OSError, ValueError):
        return {}
    return state["pids"] if state.get("boot") == _boot() else {}


def _daemons() -> list[tuple[str, int]]:
    """The daemons that run here, noted or not: program, process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(folder / "ns" / "pid") != os.readlink("/proc/self/ns/pid"):
                continue  # of another corner of this machine
            variables = (folder / "environ").read_bytes().split(b"\0")
            found += [
                (said[len(DAEMON) + 1 :].decode(), int(folder.name))
                for said in variables
                if said.startswith(f"{DAEMON}=".encode())
            ]
    return found


def _end(program: str, pid: int) -> None:
    """Ask the process to end, then make it; only while it is still the program that was started."""
    for signum, patience_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        deadline = time.monotonic() + patience_s
        while _is(program, pid) and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.05)


def _is(program: str, pid: int) -> bool:
    try:
        command = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")[0]
        state = Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z" and Path(command.decode()).name == program.split("-", maxsplit=1)[0]


def _namespaces() -> list[str]:
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.glob(f"{NAMESPACE}*")) if folder.is_dir() else []


def _links() -> list[str]:
    """The bridge and the links that are in no namespace: a start that was killed leaves some."""
    shown = subprocess.run(["ip", "-oneline", "link"], capture_output=True, text=True, check=False).stdout
    names = [line.split(":")[1].strip().split("@")[0] for line in shown.splitlines()]
    return [name for name in names if name == BRIDGE or name.startswith(NAMESPACE)]


def _idle() -> list[str]:
    done = subprocess.run(["sinfo", "-h", "-N", "-o", "%N %t"], capture_output=True, text=True, check=False)
    rows = [line.split() for line in done.stdout.splitlines()]
    return [name for name, state in sorted(rows, key=lambda row: int(row[0].removeprefix("node"))) if state == "idle"]


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline:
            raise InputError(
                f"virtual cluster: not ready after {READY_S:.0f} s, waiting until {what}; logs: {STATE}/*.log"
            )
        time.sleep(0.1)


def _quiet(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
        raise InputError(f"virtual cluster: {shlex.join(command)[:200]}: {said[-1]}")


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def main(argv: list[str] | None = None) -> None:
    """Start or end the virtual cluster of this machine."""
    parser = argparse.ArgumentParser(prog="make", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", prog="make cluster-up", help="start it")
    start.add_argument("--nodes", default="3")
    start.add_argument("--bandwidth", default="1gbit", help="rate of a node's link, or none")
    start.add_argument("--cpu", default="0.6", help="cores of a node, or none")
    start.add_argument("--memory", default="6G", help="memory of a node, or none")
    start.add_argument("--accounting", action="store_true", help="with slurmdbd and MariaDB, so that sacct answers")
    stop = commands.add_parser("down", prog="make cluster-down", help="end it and leave nothing behind")
    stop.add_argument("--force", action="store_true", help="even while jobs wait or run")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    if options.command == "up":
        up(parse(options.nodes, options.bandwidth, options.cpu, options.memory, options.accounting))
    else:
        if not options.force:
            refuse_busy()
        print("virtual cluster: down" if down() else "virtual cluster: there was none")


if __name__ == "__main__":
    sys.exit(exit_status(main))
