"""Print a report on a node as one line of JSON.

`sites.node_job` runs this program on every node of a test job.

The program is self-contained and needs only Python 3.7, because a node may not be able to access this
checkout. Its line begins with `ringside-node`. Errors are values instead of exceptions, so that one error
does not hide the other answers.
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
_TIMEOUT_S = 20


def report(question: dict[str, Any]) -> dict[str, Any]:
    """Return the report of this node.

    Args:
        question: Paths checkout, results, cache and lock; scratch, setup, device and binds of the site;
            optionally survey (true) and disturbed (false).
    """
    return {
        **(survey() if question.get("survey") else {}),
        "host": "".join(sign if sign.isprintable() else "_" for sign in socket.gethostname()),
        "python": sys.executable,
        "version": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "processors": os.cpu_count(),
        "checkout": os.path.isfile(os.path.join(question["checkout"], "Snakefile")),
        "results": not_writable(question["results"]),
        "lock": lock_state(question["lock"]),
        "cache_seen": os.path.isdir(question["cache"]),
        "cache": not_writable(question["cache"]),
        "scratch": not_writable(question["scratch"]) if question["scratch"] else None,
        "interfaces": interfaces(),
        "infiniband": names("/sys/class/infiniband"),
        "setup": failing_line(question["setup"]),
        "devices": devices() if question["device"] == "cuda" else [0, None],
        "apptainer": apptainer(question["setup"]),
        "fuse": os.path.exists("/dev/fuse") and shutil.which("squashfuse_ll", path=HELPERS) is not None,
        "binds": [path for path in question["binds"] if not os.path.exists(path)],
        "disturbed": measure_disturbance() if question.get("disturbed", True) else None,
    }


def measure_disturbance(seconds: float = 1.0) -> dict[str, float]:
    """Return `disturbance_shares` of about a second in which all CPUs work: idle ones show no steal."""
    before = read_cpu_times()
    until = before["at"] + seconds
    workers = [threading.Thread(target=work_until, args=(until,)) for _ in os.sched_getaffinity(0)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return disturbance_shares(before, read_cpu_times())


def work_until(moment: float) -> None:
    """Keep one CPU busy until `moment` on the monotonic clock, without holding the GIL."""
    block = bytes(2**20)
    while time.monotonic() < moment:
        hashlib.sha256(block)


def read_cpu_times() -> dict[str, float]:
    """Return total CPU times in s of this machine (proc(5)) and of this program with its ended children."""
    with open("/proc/stat") as stat:
        ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in stat.readline().split()[1:9]]
    return {
        "at": time.monotonic(),
        "busy": sum(ticks[:3]),
        "stolen": ticks[7],
        "program": sum(os.times()[:4]),
    }


def disturbance_shares(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """Return CPU steal per requested CPU time, and CPU time of other processes as a share of all CPUs."""
    names_of_times = ("at", "busy", "stolen", "program")
    elapsed, busy, stolen, program = (now[name] - before[name] for name in names_of_times)
    other_cpu = max(0.0, busy - program) / (elapsed * (os.cpu_count() or 1))
    return {"steal": stolen / (busy + stolen) if stolen else 0.0, "others": other_cpu}


def not_writable(folder: str) -> str | None:
    """Return why no file can be created in `folder`, or None."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".ringside-"):
            return None
    except OSError as error:
        return str(error.strerror)


def lock_state(path: str) -> str:
    """Return the state of the submitting host's lock (flock(2)): held, free if invisible, or an error."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return "free"
    except BlockingIOError:
        return "held"
    except OSError as error:
        return str(error.strerror)


def interfaces() -> dict[str, str | None]:
    """Return every network interface with its IPv4 address or None."""
    addresses: dict[str, str | None] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, _ADDRESS, struct.pack("256s", name.encode()[:15]))
                addresses[name] = socket.inet_ntoa(answer[20:24])
            except OSError:
                addresses[name] = None
    return addresses


def names(folder: str) -> list[str]:
    """Return the names in a folder, [] if it does not exist."""
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def failing_line(lines: list[str]) -> list[str] | None:
    """Return the first setup line that fails in a login shell, and its last message; None if all run."""
    script = "exec 3>&1 1>&2\ntrap 'echo $done >&3' EXIT\ndone=0\n"
    script += "".join(f"{{ {line}\n}} || exit 1\ndone={i}\n" for i, line in enumerate(lines, start=1))
    try:
        run = _run("bash", "-lc", script)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [lines[0] if lines else "a login shell", str(error)[-200:]]
    done = int((run.stdout.split() or ["0"])[-1])
    if run.returncode == 0 and done == len(lines):
        return None
    messages = run.stderr.strip().splitlines() or [f"status {run.returncode}"]
    return [lines[min(done, len(lines) - 1)] if lines else "a login shell", messages[-1][:200]]


def apptainer(lines: list[str]) -> str | None:
    """Return Apptainer's version after the setup lines, or None if it does not run."""
    script = "".join(f"{{ {line}\n}} >&2 || exit 1\n" for line in lines) + "apptainer --version"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        run = _run("bash", "-lc" if lines else "-c", script)
        return run.stdout.strip() if run.returncode == 0 else None
    return None


def devices() -> list[Any]:
    """Return how many accelerators the programs of this job see, and why some or all are hidden, or None.

    The drivers also count accelerators that a variable hides. In the list of a variable, a number that no
    accelerator has ends the list, both for CUDA and for HIP, which counts within ROCR_VISIBLE_DEVICES.
    """
    count, reason, variables = amd_devices(), None, ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"]
    if not count:
        (count, reason), variables = nvidia_devices(), []
    for name in [*variables, "CUDA_VISIBLE_DEVICES"]:
        visible = os.environ.get(name)
        if visible is None:
            continue
        entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
        if "-1" in entries:  # It hides everything that follows.
            entries = entries[: entries.index("-1")]
        absent = [i for i, entry in enumerate(entries) if entry.isdigit() and int(entry) >= count]
        if absent and not str(reason).startswith("MIG"):  # Parts of MIG have other numbers.
            entries = entries[: absent[0]]
        if len(entries) < count:
            count, reason = len(entries), name + "=" + visible
        elif reason and not count:  # the driver does not answer, although a scheduler granted accelerators
            reason += "; " + name + "=" + visible
    return [count, reason]


def nvidia_devices() -> list[Any]:
    """Return how many NVIDIA GPUs a program of this job sees, and why it sees no more, or None.

    If MIG divides GPUs, a program sees one part of one of them and no whole GPU (MIG user guide, device
    enumeration).
    """
    try:
        run = _run("nvidia-smi", "--list-gpus")
    except FileNotFoundError:
        return [0, "nvidia-smi is not installed"]
    except (OSError, subprocess.TimeoutExpired) as error:
        return [0, str(error)[-200:]]
    lines = [line.strip() for line in (run.stdout + run.stderr).splitlines() if line.strip()]
    count = sum(line.startswith("GPU ") for line in lines)
    n_parts = sum(line.startswith("MIG ") for line in lines)
    if n_parts:
        return [1, f"MIG: a program sees one of {n_parts} parts"]
    messages = [line for line in lines if not line.startswith("GPU ")]
    if not count and not messages:
        messages = [f"nvidia-smi ended with status {run.returncode}"]
    return [count, "; ".join(messages)[:200] or None]


def nvidia_models() -> list[str]:
    """Return model and driver of each NVIDIA GPU, such as `NVIDIA H100 80GB HBM3, 580.65.06`.

    The exit status of nvidia-smi is ignored: it is 14 if only a checksum (infoROM) is wrong and the GPUs
    work.
    """
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        run = _run("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
        return [line.strip() for line in run.stdout.splitlines() if _MODEL.fullmatch(line.strip())]
    return []


def amd_devices() -> int:
    """Return the number of AMD accelerators."""
    count = 0
    for path in glob.glob(_KFD):
        with contextlib.suppress(OSError), open(path) as file:
            text = file.read()
            count += "simd_count" in text and "simd_count 0" not in text
    return count


def survey() -> dict[str, Any]:
    """Return the additional answers from which a site file is written."""
    return {
        "own_address": own_address(),
        "links": links(),
        "ports": ports(),
        "memory_mb": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        "accelerators": nvidia_models(),
        "amd": amd_devices(),
        "user_namespaces": has_user_namespaces(),
        "modules": modules(),
        "scratch_there": scratch(),
    }


_KFD = (
    "/sys/class/kfd/kfd/topology/nodes/*/properties"  # the AMD driver lists CPUs as nodes without SIMD units
)
_MODEL = re.compile(r".+, \d[\d.]*")
_MODULES = re.compile(
    r"^\S*(?:pytorch|tensorflow|horovod|lbann|tarantella|apptainer|singularity)\S*$", re.I | re.M
)
_SCRATCH = (
    *("/scratch", "/local/scratch", "/localscratch", "/lscratch", "/mnt/scratch", "/local"),
    *("$SCRATCH", "$TMPDIR"),
)
_SYSTEMS = ("", "/tmp", "/var/tmp")  # noqa: S108 (these names are skipped)


def own_address() -> str | None:
    """Return the address that the submitting host can reach, else the address of the node's name."""
    towards = os.environ.get("SLURM_LAUNCH_NODE_IPADDR")
    with contextlib.suppress(OSError):
        if not towards:
            return socket.gethostbyname(socket.gethostname())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((towards, 9))  # nothing is sent
            return str(sock.getsockname()[0])
    return None


def links() -> dict[str, Any]:
    """Return for each network interface its rate in Mbit/s or None, and whether it is up and a device."""
    rows = {}
    for _, name in socket.if_nameindex():
        folder = "/sys/class/net/" + name + "/"
        rate = first_line(folder + "speed")
        rows[name] = {
            "mbit_s": int(rate) if rate and rate.isdigit() and int(rate) else None,
            "up": first_line(folder + "operstate") != "down",
            "device": os.path.exists(folder + "device"),
        }
    return rows


def ports() -> list[dict[str, Any]]:
    """Return the ports of InfiniBand devices.

    `layer` is Ethernet with RoCE, `rate` such as 100 Gb/sec (4X EDR).
    """
    rows = []
    for folder in sorted(glob.glob("/sys/class/infiniband/*/ports/*")):
        device = folder.split("/")[4]
        rows.append(
            {
                "device": device,
                "layer": first_line(folder + "/link_layer"),
                "state": first_line(folder + "/state"),
                "rate": first_line(folder + "/rate"),
            }
        )
    return rows


def modules() -> list[str] | None:
    """Return the relevant modules of a login shell; None without modules, or if listing them takes too long.

    Lmod and Environment Modules print the list to standard error.
    """
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        run = _run("bash", "-lc", "module -t avail 2>&1")
        relevant = {name.rstrip(":") for name in _MODULES.findall(run.stdout) if not name.startswith("/")}
        return sorted(relevant)[:40] if run.returncode == 0 else None
    return None


def scratch() -> dict[str, int]:
    """Return free bytes of writable folders for temporary files, by path or variable."""
    free_bytes = {}
    for name in _SCRATCH:
        path = os.environ.get(name[1:], "") if name.startswith("$") else name
        if path not in _SYSTEMS and os.path.isdir(path) and not_writable(path) is None:
            with contextlib.suppress(OSError):
                free_bytes[name if path == name else name + "=" + path] = shutil.disk_usage(path).free
    return free_bytes


def has_user_namespaces() -> bool:
    """Return whether programs can create user namespaces."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return _run("unshare", "--user", "--map-root-user", "true").returncode == 0
    return False


def first_line(path: str) -> str | None:
    """Return the first line of a file, or None if it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path) as file:
        return file.readline().strip() or None
    return None


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=_TIMEOUT_S,
    )


if __name__ == "__main__":
    answers = report(json.loads(sys.argv[1]))
    # The last answer, because the reader compares it with the time at which the line arrives.
    answers["clock"] = time.time()
    print(MARK + json.dumps(answers), flush=True)
