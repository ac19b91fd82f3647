"""What a node says of itself, as one line of JSON: run by `sites.node_job` on every node of a test job.

It stands alone, on the standard library of Python 3.7 or newer: a node may see nothing of this checkout. `ringside-node`
begins its line. Errors are values, never exceptions: the other answers count, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

MARK = "ringside-node "
HELPERS = os.pathsep.join(
    [os.environ.get("PATH", ""), "/usr/libexec/apptainer/bin", "/usr/local/libexec/apptainer/bin"]
)
_ADDRESS = 0x8915  # SIOCGIFADDR, netdevice(7)
_PATIENCE_S = 20


def report(asked: dict[str, Any]) -> dict[str, Any]:
    """The answers to `asked`: checkout, results, cache, lock (paths); scratch, setup, device, binds; survey (true or absent);
    disturbed (false, or absent)."""
    return {
        **(survey() if asked.get("survey") else {}),
        "host": "".join(sign if sign.isprintable() else "_" for sign in socket.gethostname()),
        "python": sys.executable,
        "version": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "processors": os.cpu_count(),
        "checkout": os.path.isfile(os.path.join(asked["checkout"], "Snakefile")),
        "results": not_writable(asked["results"]),
        "lock": lock_state(asked["lock"]),
        "cache_seen": os.path.isdir(asked["cache"]),
        "cache": not_writable(asked["cache"]),
        "scratch": not_writable(asked["scratch"]) if asked["scratch"] else None,
        "interfaces": interfaces(),
        "infiniband": names("/sys/class/infiniband"),
        "setup": failing_line(asked["setup"]),
        "devices": devices() if asked["device"] == "cuda" else [0, None],
        "apptainer": apptainer(asked["setup"]),
        "fuse": os.path.exists("/dev/fuse") and shutil.which("squashfuse_ll", path=HELPERS) is not None,
        "binds": [path for path in asked["binds"] if not os.path.exists(path)],
        "disturbed": disturbed() if asked.get("disturbed", True) else None,
    }


def disturbed(seconds: float = 1.0) -> dict[str, float]:
    """`shares` of about a second in which all processors that this program may use work: who wants no time is withheld none."""
    before = used()
    until = before["at"] + seconds
    workers = [threading.Thread(target=work_until, args=(until,)) for _ in os.sched_getaffinity(0)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return shares(before, used())


def work_until(moment: float) -> None:
    """Take one processor until then (monotonic), without holding the interpreter."""
    block = bytes(2**20)
    while time.monotonic() < moment:
        hashlib.sha256(block)


def used() -> dict[str, float]:
    """Totals in s until now: this machine's processors (proc(5), /proc/stat), of them this program and what it has started and ended."""
    with open("/proc/stat") as stat:
        ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in stat.readline().split()[1:9]]
    return {"at": time.monotonic(), "busy": sum(ticks[:3]), "stolen": ticks[7], "own": sum(os.times()[:4])}


def shares(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """What a hypervisor withheld, as a share of the time that programs wanted; what others used, as a share of all processors."""
    at, busy, stolen, own = (now[name] - before[name] for name in ("at", "busy", "stolen", "own"))
    others = max(0.0, busy - own) / (at * (os.cpu_count() or 1))
    return {"withheld": stolen / (busy + stolen) if stolen else 0.0, "others": others}


def not_writable(folder: str) -> str | None:
    """Why no file can be made in `folder`; None where one can."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".ringside-"):
            return None
    except OSError as error:
        return str(error.strerror)


def lock_state(path: str) -> str:
    """Of a file that the submitting host holds with flock(2): held, or free where the lock is not seen here, or an error."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return "free"
    except BlockingIOError:
        return "held"
    except OSError as error:
        return str(error.strerror)


def interfaces() -> dict[str, str | None]:
    """Every network interface with its IPv4 address, None where it has none."""
    found: dict[str, str | None] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, _ADDRESS, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(answer[20:24])
            except OSError:
                found[name] = None
    return found


def names(folder: str) -> list[str]:
    """The names in a folder; none where it is absent."""
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def failing_line(lines: list[str]) -> list[str] | None:
    """The first setup line that fails in a login shell, with the last line that it said; None where all run."""
    script = "exec 3>&1 1>&2\ntrap 'echo $done >&3' EXIT\ndone=0\n"
    script += "".join(f"{{ {line}\n}} || exit 1\ndone={i}\n" for i, line in enumerate(lines, start=1))
    try:
        run = _run("bash", "-lc", script)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [lines[0] if lines else "a login shell", str(error)[-200:]]
    done = int((run.stdout.split() or ["0"])[-1])
    if run.returncode == 0 and done == len(lines):
        return None
    said = run.stderr.strip().splitlines() or [f"status {run.returncode}"]
    return [lines[min(done, len(lines) - 1)] if lines else "a login shell", said[-1][:200]]


def apptainer(lines: list[str]) -> str | None:
    """What Apptainer behind the setup lines says of its version; None where it does not run."""
    script = "".join(f"{{ {line}\n}} >&2 || exit 1\n" for line in lines) + "apptainer --version"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        run = _run("bash", "-lc" if lines else "-c", script)
        return run.stdout.strip() if run.returncode == 0 else None
    return None


def devices() -> list[Any]:
    """How many NVIDIA devices the job has here, and why they cannot be counted or None."""
    try:
        run = _run("nvidia-smi", "--list-gpus")
    except (OSError, subprocess.TimeoutExpired) as error:
        return [0, str(error)[-200:]]
    if run.returncode:
        return [0, ((run.stdout + run.stderr).strip().splitlines() or ["nvidia-smi failed"])[-1][:200]]
    return [sum(line.startswith("GPU ") for line in run.stdout.splitlines()), None]


def survey() -> dict[str, Any]:
    """What a site file is written from, beside the rest."""
    return {
        "own_address": own_address(),
        "links": links(),
        "ports": ports(),
        "memory_mb": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        "accelerators": said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "driver": first_line("/proc/driver/nvidia/version"),
        "amd": sum("simd_count 0" not in text and "simd_count" in text for text in _contents(_KFD)),
        "user_namespaces": bool(said("unshare", "--user", "--map-root-user", "echo", "yes")),
        "modules": modules(),
        "scratch_there": scratch(),
    }


_KFD = "/sys/class/kfd/kfd/topology/nodes/*/properties"  # AMD's driver: a processor is a node without SIMD units
_MODULES = re.compile(r"^\S*(?:pytorch|tensorflow|horovod|lbann|tarantella|apptainer|singularity)\S*$", re.I | re.M)
_SCRATCH = ("/scratch", "/local/scratch", "/localscratch", "/lscratch", "/mnt/scratch", "/local", "$SCRATCH", "$TMPDIR")
_SYSTEMS = ("", "/tmp", "/var/tmp")  # noqa: S108 (names that are passed over)


def own_address() -> str | None:
    """The address by which the node reaches the host that started the job, else the one that its name stands for."""
    towards = os.environ.get("SLURM_LAUNCH_NODE_IPADDR")
    with contextlib.suppress(OSError):
        if not towards:
            return socket.gethostbyname(socket.gethostname())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.connect((towards, 9))  # nothing is sent
            return str(asked.getsockname()[0])
    return None


def links() -> dict[str, Any]:
    """Every network interface: its rate in Mbit/s or None, whether it is up, and whether a device is behind it."""
    found = {}
    for _, name in socket.if_nameindex():
        folder = "/sys/class/net/" + name + "/"
        rate = first_line(folder + "speed")
        found[name] = {
            "mbit_s": int(rate) if rate and rate.isdigit() and int(rate) else None,
            "up": first_line(folder + "operstate") != "down",
            "device": os.path.exists(folder + "device"),
        }
    return found


def ports() -> list[dict[str, Any]]:
    """The ports of InfiniBand devices; `layer` is Ethernet with RoCE, `rate` such as 100 Gb/sec (4X EDR)."""
    found = []
    for folder in sorted(glob.glob("/sys/class/infiniband/*/ports/*")):
        device = folder.split("/")[4]
        found.append(
            {
                "device": device,
                "layer": first_line(folder + "/link_layer"),
                "state": first_line(folder + "/state"),
                "rate": first_line(folder + "/rate"),
                "interfaces": names("/sys/class/infiniband/" + device + "/device/net"),
            }
        )
    return found


def modules() -> list[str] | None:
    """The modules of a login shell that are of interest here, None where there are no modules at all, or they take too long.

    Lmod and Environment Modules list on standard error.
    """
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        run = _run("bash", "-lc", "module -t avail 2>&1")
        found = {name.rstrip(":") for name in _MODULES.findall(run.stdout) if not name.startswith("/")}
        return sorted(found)[:40] if run.returncode == 0 else None
    return None


def scratch() -> dict[str, int]:
    """Folders for temporary files that can be written, by the variable that names them or by path, with free bytes."""
    found = {}
    for name in _SCRATCH:
        path = os.environ.get(name[1:], "") if name.startswith("$") else name
        if path not in _SYSTEMS and os.path.isdir(path) and not_writable(path) is None:
            with contextlib.suppress(OSError):
                found[name if path == name else name + "=" + path] = shutil.disk_usage(path).free
    return found


def said(*command: str) -> list[str]:
    """The lines that a program says; none where it is absent or fails."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        run = _run(*command)
        return [line.strip() for line in run.stdout.splitlines() if line.strip()] if run.returncode == 0 else []
    return []


def first_line(path: str) -> str | None:
    """The first line of a file; None where there is none that can be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path) as file:
        return file.readline().strip() or None
    return None


def _contents(pattern: str) -> list[str]:
    found = []
    for path in glob.glob(pattern):
        with contextlib.suppress(OSError), open(path) as file:
            found.append(file.read())
    return found


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=_PATIENCE_S,
    )


if __name__ == "__main__":
    answers = report(json.loads(sys.argv[1]))
    answers["clock"] = time.time()  # last: the reader compares it with the moment when the line arrives
    print(MARK + json.dumps(answers), flush=True)
