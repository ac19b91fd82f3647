"""Render slurm.conf, gres.conf, cgroup.conf, slurmdbd.conf and oar.conf of the virtual cluster."""

import os
import re
import socket
from pathlib import Path

from common.errors import InputError
from common.templates import render
from declared.virtual import LOGIN, Settings, address

FOLDER = Path(__file__).parent  # folder of the templates
MARK = "# Made by Ringside's `./ringside cluster up`; `./ringside cluster down` removes it."
#: Default location, because Slurm's commands in jobs of Snakemake look there.
SLURM_CONF = Path("/etc/slurm/slurm.conf")
GRES_CONF = Path("/etc/slurm/gres.conf")
CGROUP_CONF = Path("/etc/slurm/cgroup.conf")
CGROUP_SETTINGS = f"""{MARK}
CgroupPlugin=cgroup/v1
CgroupAutomount=no
ConstrainDevices=yes
ConstrainCores=no
ConstrainRAMSpace=no
"""  # virtual_cluster.limits constrains cores and memory
SLURMDBD_CONF = Path("/etc/slurm/slurmdbd.conf")
DATABASE_PORT = 33066
OAR_DATABASE_PORT = 54326
CLUSTER = "ringside"


def slurm_conf(settings: Settings, state: Path) -> str:
    """Return the text of slurm.conf; daemons write to the folder `state`."""
    memory_mb = (settings.memory_bytes or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 20
    nodes = [
        f"NodeName={name} NodeAddr={address(i)} CPUs={_cores(settings.share_of(i))} "
        f"{_gpu_words(settings, i)}RealMemory={memory_mb} State=UNKNOWN"
        for i, name in enumerate(settings.names, start=1)
    ]
    return render(
        FOLDER / "slurm.conf.jinja",
        mark=MARK,
        cluster=CLUSTER,
        settings=settings,
        state=state,
        nodes=nodes,
        host=socket.gethostname().split(".")[0],
        login=LOGIN,
    )


def gres_conf(settings: Settings, state: Path) -> str:
    """Return the text of gres.conf: the GPUs of each node, divided between its sockets.

    A node with an even number of cores has two sockets, any other node has one.
    """
    lines = [MARK, "AutoDetect=off"]
    for i, name in enumerate(settings.names, start=1):
        n_cores = _cores(settings.share_of(i))
        n_sockets = _sockets(n_cores)
        for gpu in range(settings.gpus_per_node):
            socket_of_gpu = gpu * n_sockets // settings.gpus_per_node
            first = socket_of_gpu * n_cores // n_sockets
            cores = f"{first}-{first + n_cores // n_sockets - 1}"
            kind = f" Type={settings.gpu_type}" if settings.gpu_type else ""
            lines.append(f"NodeName={name} Name=gpu{kind} File={gpu_folder(state)}/gpu{gpu} Cores={cores}")
    return "\n".join(lines) + "\n"


def gpu_folder(state: Path) -> Path:
    """Return the folder of a node's GPUs, inside the node."""
    return state / "gpus"


def slurmdbd_conf(state: Path, password: str) -> str:
    """Return the accounting daemon's configuration."""
    return render(
        FOLDER / "slurmdbd.conf.jinja", mark=MARK, state=state, password=password, port=DATABASE_PORT
    )


def oar_conf(packaged: str, state: Path, password: str) -> str:
    """Return the Debian package's oar.conf with the settings of this cluster."""
    values = {
        "DB_HOSTNAME": LOGIN,  # nodes use the database, too
        "DB_PORT": str(OAR_DATABASE_PORT),
        "DB_BASE_PASSWD": password,
        "DB_BASE_PASSWD_RO": password,
        "SERVER_HOSTNAME": LOGIN,
        "LOG_FILE": str(state / "oar.log"),
        "SCHEDULER_MIN_TIME_BETWEEN_2_CALLS": "1",  # seconds; with 5, consecutive jobs are 12 s apart
    }
    text = packaged
    for name, value in values.items():
        text, n_replaced = re.subn(rf"^#?{name}=.*$", f'{name}="{value}"', text, count=1, flags=re.MULTILINE)
        if not n_replaced:
            problem = f"the Debian package's has no {name}"
            raise InputError("missing-key", problem, file="oar.conf", got=name, expected="that of OAR 2.5")
    return f"{MARK}\n{text}"


def job_manager(packaged: str, groups: bool) -> str:
    """Return OAR's job_resource_manager_cgroups.pl, changed for nodes that share one machine.

    After the last job of a user, the script would delete the user's files in /tmp, /dev/shm and /var/tmp, and
    nodes share two of these folders with the machine. Without control groups of version 1 (`groups`), plain
    folders take their place: OAR then starts jobs as usual, but does not find processes that they leave
    behind.
    """
    edits = {"@Tmp_dir_to_clear = ('/tmp/.','/dev/shm/.','/var/tmp/.');": "@Tmp_dir_to_clear = ();"}
    if not groups:
        edits |= {
            "oardodo mkdir -p $d/'.$Cpuset_path_job.'\n": "oardodo mkdir -p $d/'.$Cpuset_path_job.'\n"
            "oardodo touch $d/'.$Cpuset_path_job.'/tasks\n",
            'while [ "$PROCESSES" != "" ]; do': "while false; do",
            "oardodo rmdir $d": "oardodo rm -rf $d",
        }
    text = packaged
    for old, new in edits.items():
        if old not in text:
            problem, file = f"has no {old.strip()}", "job_resource_manager_cgroups.pl"
            raise InputError("missing-key", problem, file=file, got=old.strip(), expected="that of OAR 2.5")
        text = text.replace(old, new)
    return text


def _cores(share: float | None) -> int:
    """Return the whole cores of a node that has this share of the processor."""
    return max(1, round(share + 0.49)) if share else os.cpu_count() or 1


def _sockets(n_cores: int) -> int:
    """Return how many sockets a node with GPUs has."""
    return 1 if n_cores % 2 else 2


def _gpu_words(settings: Settings, node: int) -> str:
    """Return the GPUs and sockets of a node for its line of slurm.conf, or ""."""
    if not settings.gpus_per_node:
        return ""
    n_cores = _cores(settings.share_of(node))
    n_sockets = _sockets(n_cores)
    kind = f"{settings.gpu_type}:" if settings.gpu_type else ""
    return (
        f"Sockets={n_sockets} CoresPerSocket={n_cores // n_sockets} Gres=gpu:{kind}{settings.gpus_per_node} "
    )
