"""A cluster of network namespaces on this machine, with shaped links and capped processors, under Slurm or OAR.

    python -m virtual_cluster.control up --nodes 3 --bandwidth 1gbit --cpu 0.6
    python -m virtual_cluster.control down

Every node is a daemon of the scheduler's in a network namespace with its own address, host name, /tmp and /etc/hosts, in
control groups that cap its processor and memory. Its link goes to a bridge, shaped in both directions by token buckets
(tc-tbf(8)). What differs between schedulers is in virtual_cluster.slurm and virtual_cluster.oar, which have the same functions.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

from common.errors import InputError, exit_status
from common.files import CHECKOUT
from declared.virtual import Settings, parse
from sites.virtual import STATE, running
from virtual_cluster import daemons, limits, nodes, oar, slurm
from virtual_cluster.limits import Limits

INSTALL = CHECKOUT / "workflow" / "scripts" / "common" / "install-packages"
PACKAGES = ("iproute2", "util-linux")
SCHEDULERS: dict[str, ModuleType] = {"slurm": slurm, "oar": oar}


def up(settings: Settings) -> None:
    """Start the cluster and return when all its nodes are idle. InputError when it cannot be; nothing is left then."""
    scheduler = SCHEDULERS[settings.scheduler]
    if os.geteuid() != 0:
        problem = "the virtual cluster needs root: it makes network namespaces and control groups"
        raise InputError("needs-root", problem)
    if running() is not None:
        problem = f"the virtual cluster is already up ({STATE})"
        raise InputError("already-running", problem, hint="take it down first: make cluster-down")
    scheduler.refuse_another()
    if subprocess.run([INSTALL, *scheduler.packages(settings), *PACKAGES], check=False).returncode:
        problem = "the packages that the virtual cluster needs cannot be installed"
        raise InputError("not-installed", problem, file=INSTALL.name)
    started = time.monotonic()
    down()
    try:
        _start(settings)
    except BaseException:
        down(keep_logs=True)
        raise
    print(f"virtual cluster: {settings.described()}; up after {time.monotonic() - started:.1f} s")


def _start(settings: Settings) -> None:
    scheduler = SCHEDULERS[settings.scheduler]
    daemons.begin(settings)
    nodes.make_bridge(settings)
    scheduler.start(settings)
    for number, name in enumerate(settings.names, start=1):
        nodes.make(number, name, settings, scheduler.CONTROLLERS)
        scheduler.start_node(name)
    scheduler.finish(settings)
    daemons.wait_for(lambda: bool(scheduler.ready(settings)), "all nodes are idle")
    daemons.say_ready()


def down(keep_logs: bool = False) -> bool:
    """End all of it and leave nothing behind, whatever state it is in. Whether there was something."""
    names = limits.nodes()
    for name in names:
        Limits(name).kill()
    daemons.end_all()
    nodes.remove_all()
    for name in names:
        Limits(name).remove()
    limits.remove_family()
    there = STATE.exists()
    if keep_logs and there:
        kept = Path("/tmp/ringside-cluster-failed")  # noqa: S108 (for a person to read)
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        for log in [*STATE.glob("*.log"), *STATE.glob("*.out")]:
            shutil.copy(log, kept)
        print(f"virtual cluster: did not come up; its logs are in {kept}", file=sys.stderr)
    there = any([there, *(scheduler.remove() for scheduler in SCHEDULERS.values())])
    shutil.rmtree(STATE, ignore_errors=True)
    return there


def refuse_busy() -> None:
    """InputError while jobs wait or run on the cluster."""
    there = running()
    if there is not None and (left := SCHEDULERS[there.scheduler].jobs()):
        raise InputError(
            "jobs-left",
            f"the virtual cluster has jobs that wait or run ({', '.join(left)})",
            got=left,
            hint="let them end, or make cluster-down ARGS=--force",
        )


def main(argv: list[str] | None = None) -> None:
    """Start or end the virtual cluster of this machine."""
    parser = argparse.ArgumentParser(prog="make", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", prog="make cluster-up", help="start it")
    start.add_argument("--nodes", default="3")
    start.add_argument("--bandwidth", default="1gbit", help="rate of a node's link, or none")
    start.add_argument("--cpu", default="0.6", help="cores of a node, or of each node as 0.9,0.6,0.3, or none")
    start.add_argument("--memory", default="6G", help="memory of a node, or none")
    start.add_argument("--scheduler", default="slurm", help="slurm or oar")
    start.add_argument("--accounting", action="store_true", help="with slurmdbd and MariaDB, so that sacct answers")
    stop = commands.add_parser("down", prog="make cluster-down", help="end it and leave nothing behind")
    stop.add_argument("--force", action="store_true", help="even while jobs wait or run")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    if options.command == "up":
        asked = options.nodes, options.bandwidth, options.cpu, options.memory, options.accounting, options.scheduler
        up(parse(*asked))
    else:
        if not options.force:
            refuse_busy()
        print("virtual cluster: down" if down() else "virtual cluster: there was none")


if __name__ == "__main__":
    sys.exit(exit_status(main))
