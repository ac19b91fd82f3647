"""Run OAR on the virtual cluster: PostgreSQL, Almighty, and in each node the sshd that starts its jobs.

OAR reads fixed paths. File systems in memory (MOUNT) therefore cover /etc/oar and the home of its user with
copies of the Debian packages' files. The files of the machine are never changed, and the copies disappear
with the mounts.
"""

import os
import pwd
import re
import secrets
import shutil
from pathlib import Path

from common.errors import InputError
from common.shell import capture
from declared.virtual import LOGIN, SUBNET, Settings
from sites.virtual import CONTROLLER, STATE, run, succeeds
from virtual_cluster import daemons, nodes
from virtual_cluster.configuration import OAR_DATABASE_PORT, job_manager, oar_conf
from virtual_cluster.limits import FAMILY, ROOT, Limits

PACKAGES = (
    "oar-server",
    "oar-server-pgsql",
    "oar-node",
    "oar-user",
    "oar-user-pgsql",
    "postgresql",
    "openssh-server",
)
# OAR puts the processes of a job into groups of these controllers, to find and end them. It does not know
# version 2.
KEPT_IN = tuple(name for name in ("cpuset", "freezer") if (ROOT / "cpuset" / "tasks").is_file())
CONTROLLERS = ("cpu", "memory", *KEPT_IN)
SERVER = "server"  # name of the control groups, without limits, of programs outside of nodes
MOUNT = "ringside-oar"  # source of our mounts, which tells them apart from others
CONF = Path("/etc/oar/oar.conf")
HOME = Path("/var/lib/oar")
PACKAGED = Path("/usr/share/oar/oar-common/oar.conf")
SSHD_FOLDER = Path("/run/sshd")  # folder of sshd's privilege separation; ours is a link into STATE
ROOT_MAY = "2"  # the admission rule that refuses jobs of root

_SERVER = """
set -e
hosts=$1
shift
for group in "$@"; do echo $$ > "$group/cgroup.procs"; done
mount --bind "$hosts" /etc/hosts
exec /usr/sbin/Almighty
"""

# The node gets its own /dev, since OAR looks for the control groups of its jobs there. It does not get the
# shell settings of root, which every shell of every job would run.
_NODE = """
mount -t tmpfs -o mode=755 tmpfs "$state/dev"
cp -ax /dev/. "$state/dev"
for each in shm pts mqueue; do
    if mountpoint -q "/dev/$each"; then mount --rbind "/dev/$each" "$state/dev/$each"; fi
done
mount --rbind "$state/dev" /dev
for controller in %s; do
    mkdir -p /dev/oar_cgroups_links
    ln -s "%s/$controller/%s/$name" "/dev/oar_cgroups_links/$controller"
done
if [ ! -d /dev/oar_cgroups_links ]; then
    mkdir -p /dev/oar_cgroups_links/cpuset
    cd /dev/oar_cgroups_links/cpuset
    cat /sys/devices/system/cpu/online > cpuset.cpus
    echo 0 > cpuset.mems
    touch tasks
    cd /
fi
ln -s oar_cgroups_links/cpuset /dev/cpuset
if [ -e "$HOME/.bashrc" ]; then mount --bind /dev/null "$HOME/.bashrc"; fi
exec /usr/sbin/sshd -D -e -f /etc/oar/sshd_config -o PidFile=none
"""


def packages(_settings: Settings) -> list[str]:
    """Return the Debian packages that OAR needs."""
    return list(PACKAGES)


def refuse_another() -> None:
    """Raise InputError if this machine has another OAR: its oar.conf is not that of the Debian package."""
    if (
        CONF.exists()
        and not _mounts()
        and (not PACKAGED.exists() or CONF.read_text() != PACKAGED.read_text())
    ):
        hint = "the virtual cluster needs a machine without one"
        raise InputError("not-possible-here", "belongs to another OAR", file=CONF, hint=hint)


def start(_settings: Settings) -> None:
    """Start the programs that run outside of nodes."""
    Limits(SERVER).make(None, None, CONTROLLERS)
    password = secrets.token_hex(16)
    for folder in (CONF.parent, HOME):
        _cover(folder)
    CONF.write_text(oar_conf(PACKAGED.read_text(), STATE, password))
    manager = CONF.parent / "job_resource_manager_cgroups.pl"
    manager.write_text(job_manager(manager.read_text(), groups=bool(KEPT_IN)))
    log = STATE / "oar.log"
    log.touch()
    shutil.chown(log, "oar", "oar")
    (STATE / "sshd").mkdir(mode=0o755)
    (STATE / "dev").mkdir()
    if not SSHD_FOLDER.exists():
        SSHD_FOLDER.symlink_to(STATE / "sshd")
    _postgres(password)
    database = ["oar-database", "--create", "--db-admin-user=postgres", f"--db-admin-pass={password}", "-y"]
    run(*database)
    server = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _SERVER, "sh", str(STATE / "hosts")]
    daemons.start(CONTROLLER["oar"], [*server, *map(str, Limits(SERVER).folders)])


def start_node(name: str) -> None:
    """Start the node's sshd."""
    daemons.start(f"sshd-{name}", nodes.inside(name, _NODE % (" ".join(KEPT_IN), ROOT, FAMILY)))


def finish(settings: Settings) -> None:
    """Register the nodes with OAR, each as one resource with all processors of the machine."""
    run("oaradmissionrules", "-m", ROOT_MAY, "-N")
    for kind in (["cpu"], ["core"], ["host", "-c"], ["cluster", "-c"]):
        run("oarproperty", "-a", *kind)
    processors = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    for number, name in enumerate(settings.names, start=1):
        properties = {"cpu": number, "core": number, "cpuset": processors, "host": name, "cluster": "virtual"}
        options = [word for key, value in properties.items() for word in ("-p", f"{key}={value}")]
        run("oarnodesetting", "-a", "-h", name, *options)


def ready(settings: Settings) -> bool:
    """Return whether all nodes are alive."""
    return alive() == set(settings.names)


def alive() -> set[str]:
    """Return the nodes that OAR lists as alive."""
    command = ["oarnodes", "--sql", "state = 'Alive'", "-l"]
    return set(capture(command).stdout.split())


def jobs() -> list[str]:
    """Return the numbers of jobs that wait or run."""
    output = capture(["oarstat"], timeout=30).stdout
    return re.findall(r"^(\d+)\s", output, re.MULTILINE)


def remove() -> bool:
    """Remove what OAR leaves outside STATE once its processes have ended; return whether there was any."""
    mounts = _mounts()
    for folder in reversed(mounts):
        run("umount", folder)
    if SSHD_FOLDER.is_symlink() and SSHD_FOLDER.readlink() == STATE / "sshd":
        SSHD_FOLDER.unlink()
    return bool(mounts)


def _cover(folder: Path) -> None:
    """Mount a complete copy of a folder over it."""
    copy = STATE / folder.relative_to("/").as_posix().replace("/", "-")
    copy.mkdir()
    run("mount", "-t", "tmpfs", "-o", "mode=755", MOUNT, str(copy))
    run("cp", "-a", f"{folder}/.", str(copy))
    run("mount", "--bind", str(copy), str(folder))


def _mounts() -> list[str]:
    """Return the mount points of our file systems, in the order of mounting."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [target for source, target, *_ in lines if source == MOUNT]


def _postgres(password: str) -> None:
    """Start the database of the cluster, which listens on the bridge."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))[
        -1
    ].parent
    user = pwd.getpwnam("postgres")
    data, secret = STATE / "postgres", STATE / "postgres.password"
    data.mkdir(mode=0o700)
    secret.touch(mode=0o600)
    secret.write_text(password)
    for path in (data, secret):
        os.chown(path, user.pw_uid, user.pw_gid)
    as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    options = [
        "--username=postgres",
        f"--pwfile={secret}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
    ]
    run(*as_user, str(programs / "initdb"), f"--pgdata={data}", "--no-sync", "--wal-segsize=1", *options)
    secret.unlink()
    with open(data / "pg_hba.conf", "a") as access:
        access.write(f"host all all {SUBNET}.0/24 scram-sha-256\n")
    quick = ["-c", "fsync=off", "-c", "dynamic_shared_memory_type=mmap", "-c", "unix_socket_directories="]
    listen = ["-c", f"listen_addresses={LOGIN}", "-c", f"port={OAR_DATABASE_PORT}"]
    # Its processes share memory in a namespace, which disappears with them even if they are killed.
    daemons.start(
        "postgres",
        ["unshare", "--ipc", *as_user, str(programs / "postgres"), "-D", str(data), *quick, *listen],
    )
    is_ready = [str(programs / "pg_isready"), f"--host={LOGIN}", f"--port={OAR_DATABASE_PORT}"]
    daemons.wait_for(lambda: succeeds(*is_ready), "the database answers")
