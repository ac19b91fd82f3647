"""Run Slurm on the virtual cluster: munge, slurmctld, a slurmd per node, slurmdbd with MariaDB."""

import secrets

from common.errors import InputError
from common.files import write_text
from common.shell import capture
from declared.virtual import Settings, from_json
from sites.virtual import STATE, read_state, run, succeeds
from virtual_cluster import daemons, limits, nodes
from virtual_cluster.configuration import (
    CGROUP_CONF,
    CGROUP_SETTINGS,
    CLUSTER,
    DATABASE_PORT,
    GRES_CONF,
    MARK,
    SLURM_CONF,
    SLURMDBD_CONF,
    gpu_folder,
    gres_conf,
    slurm_conf,
    slurmdbd_conf,
)

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
ACCOUNTING = ("slurmdbd", "mariadb-server")
ACCOUNT = "rehearsal"  # the only account, if there is accounting
CONTROLLERS = ("cpu", "memory")  # controllers of the control groups of a node
FILES = (SLURM_CONF, GRES_CONF, CGROUP_CONF, SLURMDBD_CONF)
# Control groups of version 1, in which each slurmd creates a group for the devices of its jobs.
DEVICES = limits.ROOT / "devices"

# The GPUs of a node are device files in a file system that only the node has. Linux reserves their major
# number for experiments. No driver answers, so that a process that may open such a file gets ENXIO.
_GPUS = """
mount -t tmpfs -o mode=755 tmpfs %(folder)s
for gpu in $(seq 0 %(last)d); do mknod "%(folder)s/gpu$gpu" c 60 "$gpu"; done
"""


def packages(settings: Settings) -> list[str]:
    """Return the Debian packages that Slurm needs."""
    return [*PACKAGES, *(ACCOUNTING if settings.accounting else ())]


def refuse_another() -> None:
    """Raise InputError if this machine has another Slurm."""
    for file in FILES:
        if file.exists() and not file.read_text().startswith(MARK):
            hint = "the virtual cluster needs a machine without one"
            raise InputError("not-possible-here", "belongs to another Slurm", file=file, hint=hint)


def start(settings: Settings) -> None:
    """Start the programs that run outside of nodes."""
    (STATE / "slurmctld").mkdir()
    SLURM_CONF.parent.mkdir(parents=True, exist_ok=True)
    write_text(SLURM_CONF, slurm_conf(settings, STATE))
    if settings.gpus_per_node:
        gpu_folder(STATE).mkdir()
        write_text(GRES_CONF, gres_conf(settings, STATE))
    if settings.constrain_devices:
        _refuse_without_device_groups()
        write_text(CGROUP_CONF, CGROUP_SETTINGS)
    _munge()
    if settings.accounting:
        _accounting()
    start_slurmctld()


def start_slurmctld() -> None:
    """Start the controller, with the state that an earlier one has left."""
    daemons.start("slurmctld", ["slurmctld", "-D"])


def start_node(name: str) -> None:
    """Start the node's slurmd."""
    n_gpus = from_json(read_state()["settings"]).gpus_per_node
    make_gpus = _GPUS % {"folder": gpu_folder(STATE), "last": n_gpus - 1} if n_gpus else ""
    daemons.start(f"slurmd-{name}", nodes.inside(name, f'{make_gpus}exec slurmd -D -N "$name"'))


def finish(settings: Settings) -> None:
    """Do nothing once all nodes are started: slurm.conf lists them already."""


def ready(settings: Settings) -> bool:
    """Return whether all nodes are idle."""
    done = capture(["sinfo", "-h", "-N", "-o", "%N %t"])
    rows = [line.split() for line in done.stdout.splitlines()]
    return {name for name, state in rows if state == "idle"} == set(settings.names)


def jobs() -> list[str]:
    """Return the numbers of jobs that wait or run."""
    command = ["squeue", "--noheader", "--format=%i"]
    return capture(command, timeout=30).stdout.split()


def remove() -> bool:
    """Remove what Slurm leaves outside STATE once its processes have ended; return whether there was any."""
    files = [file for file in FILES if file.exists() and file.read_text().startswith(MARK)]
    for group in DEVICES.glob("slurm_node*") if CGROUP_CONF in files else []:
        limits.remove_group(group)
    for file in files:
        file.unlink()
    return bool(files)


def _refuse_without_device_groups() -> None:
    """Raise InputError if Slurm cannot constrain devices, which it recognizes by a file of version 1."""
    if not (DEVICES / "release_agent").is_file():
        problem = "is not possible on this machine: it has no control groups of version 1 for devices"
        raise InputError("not-possible-here", problem, file="--constrain-devices", hint="leave it out")


def _munge() -> None:
    """Start munge, with a new key."""
    key = STATE / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    files = {
        "key-file": "munge.key",
        "socket": "munge.socket",
        "pid-file": "munge.pid",
        "seed-file": "munge.seed",
    }
    options = [f"--{option}={STATE / file}" for option, file in files.items()]
    daemons.start("munged", ["munged", "--foreground", "--force", f"--log-file={STATE}/munged.log", *options])
    daemons.wait_for((STATE / "munge.socket").exists, "munged listens")


def _accounting() -> None:
    """Start MariaDB and slurmdbd, and create the account that jobs of root use."""
    data, socket, password = STATE / "mariadb", STATE / "mariadb.socket", secrets.token_hex(16)
    run(
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={data}",
        "--user=root",
        "--auth-root-authentication-method=normal",
    )
    listen = [f"--socket={socket}", "--bind-address=127.0.0.1", f"--port={DATABASE_PORT}"]
    quick = ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M"]
    daemons.start(
        "mariadbd", ["mariadbd", "--no-defaults", f"--datadir={data}", "--user=root", *listen, *quick]
    )
    client = ["mariadb", "--no-defaults", f"--socket={socket}", "--user=root"]
    daemons.wait_for(lambda: succeeds(*client, "--execute=select 1"), "the database answers")
    grant = (
        "create database slurm_acct_db; "
        f"grant all on slurm_acct_db.* to slurm@'127.0.0.1' identified by '{password}'"
    )
    run(*client, f"--execute={grant}")
    SLURMDBD_CONF.touch(mode=0o600)
    SLURMDBD_CONF.write_text(slurmdbd_conf(STATE, password))
    daemons.start("slurmdbd", ["slurmdbd", "-D"])
    daemons.wait_for(
        lambda: succeeds("sacctmgr", "--noheader", "--parsable2", "show", "cluster"), "slurmdbd answers"
    )
    run("sacctmgr", "--immediate", "add", "cluster", CLUSTER)
    run("sacctmgr", "--immediate", "add", "account", ACCOUNT, f"Cluster={CLUSTER}")
    run("sacctmgr", "--immediate", "add", "user", "root", f"Account={ACCOUNT}")
