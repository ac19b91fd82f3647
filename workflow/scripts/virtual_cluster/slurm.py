"""Run Slurm on the virtual cluster: munge, slurmctld, a slurmd per node.

Slurmdbd and MariaDB for accounting.
"""

import secrets
import subprocess

from common.errors import InputError
from common.files import write_text
from declared.virtual import Settings
from sites.virtual import STATE, run, succeeds
from virtual_cluster import daemons, nodes
from virtual_cluster.configuration import (
    CLUSTER,
    DATABASE_PORT,
    MARK,
    SLURM_CONF,
    SLURMDBD_CONF,
    slurm_conf,
    slurmdbd_conf,
)

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
ACCOUNTING = ("slurmdbd", "mariadb-server")
ACCOUNT = "rehearsal"  # where there is accounting
CONTROLLERS = ("cpu", "memory")  # of control groups: what a node needs


def packages(settings: Settings) -> list[str]:
    """Return the Debian packages that Slurm needs."""
    return [*PACKAGES, *(ACCOUNTING if settings.accounting else ())]


def refuse_another() -> None:
    """Raise InputError if this machine has another Slurm."""
    for file in (SLURM_CONF, SLURMDBD_CONF):
        if file.exists() and not file.read_text().startswith(MARK):
            hint = "the virtual cluster needs a machine without one"
            raise InputError("not-possible-here", "belongs to another Slurm", file=file, hint=hint)


def start(settings: Settings) -> None:
    """Start what is not in a node."""
    (STATE / "slurmctld").mkdir()
    SLURM_CONF.parent.mkdir(parents=True, exist_ok=True)
    write_text(SLURM_CONF, slurm_conf(settings, STATE))
    _munge()
    if settings.accounting:
        _accounting()
    start_slurmctld()


def start_slurmctld() -> None:
    """Start the controller, with the state that an earlier one left."""
    daemons.start("slurmctld", ["slurmctld", "-D"])


def start_node(name: str) -> None:
    """Start the node's slurmd."""
    daemons.start(f"slurmd-{name}", nodes.inside(name, 'exec slurmd -D -N "$name"'))


def finish(settings: Settings) -> None:
    """Do nothing once all nodes are started: slurm.conf lists them already."""


def ready(settings: Settings) -> bool:
    """Return whether all nodes are idle."""
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%N %t"], capture_output=True, text=True, errors="replace", check=False
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    return {name for name, state in rows if state == "idle"} == set(settings.names)


def jobs() -> list[str]:
    """Return the numbers of jobs that wait or run."""
    command = ["squeue", "--noheader", "--format=%i"]
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, timeout=30
    ).stdout.split()


def remove() -> bool:
    """Remove what Slurm leaves outside STATE once its processes have ended; return whether there was any."""
    files = [
        file for file in (SLURM_CONF, SLURMDBD_CONF) if file.exists() and file.read_text().startswith(MARK)
    ]
    for file in files:
        file.unlink()
    return bool(files)


def _munge() -> None:
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
