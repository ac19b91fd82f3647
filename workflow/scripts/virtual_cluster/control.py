"""Start and stop a cluster of network namespaces with shaped links and capped processors.

Every node is a daemon of Slurm or OAR in a network namespace with its own address, host name, /tmp and
/etc/hosts, in control groups that cap its processor and memory. Its link goes to a bridge, shaped in both
directions by token buckets (tc-tbf(8)). The modules virtual_cluster.slurm and virtual_cluster.oar, which have
the same functions, know what differs between the schedulers.
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
from sites.virtual import STATE, running_cluster
from virtual_cluster import daemons, limits, nodes, oar, slurm
from virtual_cluster.limits import Limits

INSTALL = CHECKOUT / "workflow" / "scripts" / "common" / "install-packages"
PACKAGES = ("iproute2", "util-linux")
SCHEDULERS: dict[str, ModuleType] = {"slurm": slurm, "oar": oar}


def up(settings: Settings) -> None:
    """Start the cluster, and return when all of its nodes are idle; if that fails, leave nothing behind.

    Raises:
        InputError: If the cluster cannot be started.
    """
    scheduler = SCHEDULERS[settings.scheduler]
    if os.geteuid() != 0:
        problem = "the virtual cluster needs root: it creates network namespaces and control groups"
        raise InputError("needs-root", problem)
    if running_cluster() is not None:
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
    daemons.record_ready()


def down(keep_logs: bool = False) -> bool:
    """End the cluster, whatever its state, leave nothing behind, and return whether there was one."""
    names = limits.nodes()
    for name in names:
        Limits(name).kill()
    daemons.end_all()
    nodes.remove_all()
    for name in names:
        Limits(name).remove()
    limits.remove_family()
    existed = STATE.exists()
    if keep_logs and existed:
        log_folder = Path("/tmp/ringside-cluster-failed")  # noqa: S108 (for the user to read)
        shutil.rmtree(log_folder, ignore_errors=True)
        log_folder.mkdir()
        for log in [*STATE.glob("*.log"), *STATE.glob("*.out")]:
            shutil.copy(log, log_folder)
        print(f"virtual cluster: did not come up; its logs are in {log_folder}", file=sys.stderr)
    existed = any([existed, *(scheduler.remove() for scheduler in SCHEDULERS.values())])
    shutil.rmtree(STATE, ignore_errors=True)
    return existed


def refuse_busy() -> None:
    """Raise InputError if jobs wait or run on the cluster."""
    settings = running_cluster()
    if settings is not None and (left := SCHEDULERS[settings.scheduler].jobs()):
        problem = f"the virtual cluster has jobs that wait or run ({', '.join(left)})"
        raise InputError("jobs-left", problem, hint="let them end, or ./ringside cluster down --force")


def start(
    nodes: str,
    bandwidth: str,
    cpu: str,
    memory: str,
    scheduler: str,
    accounting: bool = False,
    gpus: str = "none",
    constrain_devices: bool = False,
) -> None:
    """Start the virtual cluster that the arguments describe, and return when its nodes are idle."""
    signal.signal(signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum))
    up(parse(nodes, bandwidth, cpu, memory, accounting, scheduler, gpus, constrain_devices))


def stop(force: bool = False) -> None:
    """End the virtual cluster and leave nothing behind; while jobs wait or run, `force` is required."""
    signal.signal(signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum))
    if not force:
        refuse_busy()
    print("virtual cluster: down" if down() else "virtual cluster: there was none")
