"""A cluster of network namespaces on this machine, with shaped links and capped processors, under Slurm or OAR.

Every node is a daemon of the scheduler's in a network namespace with its own address, host name, /tmp and /etc/hosts, in
control groups that cap its processor and memory. Its link goes to a bridge, shaped in both directions by token buckets
(tc-tbf(8)). What differs between schedulers is in virtual_cluster.slurm and virtual_cluster.oar, which have the same functions.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

from common.errors import InputError
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
        raise InputError("already-running", problem, hint="take it down first: ./ringside cluster down")
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
            hint="let them end, or ./ringside cluster down --force",
        )


def start(
    nodes: str, bandwidth: str, cpu: str, memory: str, scheduler: str, accounting: bool = False
) -> None:
    """Start the virtual cluster that these words describe (declared.virtual), and return when its nodes are idle."""
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    up(parse(nodes, bandwidth, cpu, memory, accounting, scheduler))


def stop(force: bool = False) -> None:
    """End the virtual cluster and leave nothing behind; only with `force` while jobs wait or run."""
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    if not force:
        refuse_busy()
    print("virtual cluster: down" if down() else "virtual cluster: there was none")
