"""Build a node of the virtual cluster: a network namespace with a shaped link and control groups."""

import os
from collections.abc import Sequence
from pathlib import Path

from common.files import write_text
from common.shell import capture
from declared.virtual import LOGIN, Settings, address
from sites.virtual import NAMESPACE, STATE, run, shape_link, succeeds
from virtual_cluster.limits import Limits

BRIDGE = "ringside0"

# Runs in the namespaces of the node: $1 is its name, $2 the folder with the hosts file, $3 the command that
# starts its program; the rest are control groups.
_ENTER = """
set -e
name=$1 state=$2 program=$3
shift 3
for group in "$@"; do echo $$ > "$group/cgroup.procs"; done
hostname "$name"
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount --bind "$state/hosts" /etc/hosts
eval "$program"
"""


def make_bridge(settings: Settings) -> None:
    """Create the bridge that joins all links, and the hosts file with the names of the nodes."""
    hosts = [f"127.0.0.1 localhost\n{LOGIN} {os.uname().nodename}\n"]
    hosts += [f"{address(i)} {name}\n" for i, name in enumerate(settings.names, start=1)]
    write_text(STATE / "hosts", "".join(hosts))
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{LOGIN}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")


def make(number: int, name: str, settings: Settings, controllers: Sequence[str]) -> None:
    """Create the node with this number (1 is the first): its link and its control groups."""
    namespace, inside, outside = f"{NAMESPACE}{name}", f"{NAMESPACE}{number}i", f"{NAMESPACE}{number}"
    run("ip", "netns", "add", namespace)
    run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside)
    run("ip", "link", "set", inside, "netns", namespace, "name", "eth0")
    run("ip", "link", "set", outside, "master", BRIDGE, "up")
    run("ip", "-n", namespace, "address", "add", f"{address(number)}/24", "dev", "eth0")
    run("ip", "-n", namespace, "link", "set", "eth0", "up")
    run("ip", "-n", namespace, "link", "set", "lo", "up")
    shape_link(number, name, settings.bandwidth_bytes_s)
    Limits(name).make(settings.share_of(number), settings.memory_bytes, controllers)


def inside(name: str, program: str) -> list[str]:
    """Return the command that runs `program` in the node's namespaces and control groups.

    The program is a line of shell that ends with exec. It sees the /tmp and /etc/hosts of the node, and the
    variables $name and $state.
    """
    enter = [
        "nsenter",
        f"--net=/run/netns/{NAMESPACE}{name}",
        "unshare",
        "--uts",
        "--mount",
        "--propagation",
        "slave",
    ]
    groups = [str(folder) for folder in Limits(name).folders]
    return [*enter, "sh", "-c", _ENTER, "sh", name, str(STATE), program, *groups]


def remove_all() -> None:
    """Remove all namespaces and links, whatever state they are in."""
    folder = Path("/run/netns")
    for namespace in sorted(folder.glob(f"{NAMESPACE}*")) if folder.is_dir() else []:
        run("ip", "netns", "delete", namespace.name)
    for link in _links():
        succeeds("ip", "link", "delete", link)  # can have disappeared with its namespace or its other end


def _links() -> list[str]:
    """Return the bridge and the links outside of namespaces, some of which a killed start leaves behind."""
    output = capture(["ip", "-oneline", "link"]).stdout
    names = [line.split(":")[1].strip().split("@")[0] for line in output.splitlines()]
    return [name for name in names if name == BRIDGE or name.startswith(NAMESPACE)]
