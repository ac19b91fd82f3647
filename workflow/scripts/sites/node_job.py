"""Query nodes with one short job.

The program is an argument of srun, because a node may not be able to access this checkout. `sites.doctor`
compares the answers with a site, `sites.site_file` writes a site from them.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common.files import CHECKOUT
from common.shell import capture
from declared.site import Site
from plan.scheduling import allocation_options
from sites.node_report import MARK

REPORT = Path(__file__).with_name("node_report.py")
WAIT_S = 45  # time limit for srun to get nodes
ANSWER_S = 60  # time limit for the answers of all nodes

# $1 is the interpreter, $2 the program, $3 the question.
_ON_A_NODE = """
if "$1" -c pass 2>/dev/null; then exec "$1" -c "$2" "$3"; fi
if command -v python3 >/dev/null; then exec python3 -c "$2" "$3"; fi
echo "python3: is not on $(hostname)" >&2
exit 1
"""
# Options of a block's job that srun must not get here, since `_srun` sets its own or does not need them.
_BLOCK_OPTIONS = ("--nodes", "--ntasks-per-node", "--cpus-per-task", "--time", "--signal", "--no-requeue")


class Unwritable(Exception):
    """This host cannot write to a folder that nodes check; `subject` is cache or results."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(reason)
        self.subject = subject


def ask_nodes(
    site: Site, nodes: int, cores: int, question: dict[str, Any]
) -> tuple[list[dict[str, Any]], str, int]:
    """Query `nodes` nodes in a job; return reports by host, and srun's messages and exit status."""
    lines, messages, status = _srun(site, nodes, cores, question)
    # The site's options are for sbatch, which has options that srun does not know.
    if "nrecognized option" in messages or "nvalid option" in messages:
        lines, messages, status = _srun(site, nodes, cores, question, site_options=False)
    return reports(lines), messages, status


def ask_here(question: dict[str, Any]) -> list[dict[str, Any]]:
    """Query this machine; return its report in a list, [] if it fails."""
    command = [sys.executable, str(REPORT), json.dumps(question)]
    result = capture(command)
    return reports([(time.time(), f"0: {line}") for line in result.stdout.splitlines()])


def _srun(
    site: Site, nodes: int, cores: int, question: dict[str, Any], site_options: bool = True
) -> tuple[list[tuple[float, str]], str, int]:
    """Query the nodes; return their lines with times of arrival, srun's messages and its exit status."""
    dropped = () if site_options else site.scheduler.options
    options = [
        option
        for option in allocation_options(site, nodes)
        if option.split("=")[0] not in _BLOCK_OPTIONS and option not in dropped
    ]
    command = [
        "srun",
        "--job-name=ringside-doctor",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cores}",
        "--time=2",
        f"--immediate={WAIT_S}",
        "--label",
        "--input=none",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        *options,
        *("sh", "-c", _ON_A_NODE, "doctor", sys.executable, REPORT.read_text(), json.dumps(question)),
    ]
    lines: list[tuple[float, str]] = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            env=outside(),
        )
        alarm = threading.Timer(WAIT_S + ANSWER_S, process.terminate)
        alarm.start()
        try:
            lines.extend((time.time(), line) for line in process.stdout or ())
            status = process.wait()
        finally:
            alarm.cancel()
            if process.poll() is None:
                process.terminate()
        errors.seek(0)
        return lines, errors.read(), status


def reports(lines: Sequence[tuple[float, str]]) -> list[dict[str, Any]]:
    """Return the nodes' reports among the lines of `srun --label`, each with `clock_apart_s`.

    A line arrives within milliseconds, so `clock_apart_s` is the node's time minus the time of arrival. A
    long line can arrive in pieces, each with its label.
    """
    texts: dict[str, str] = {}
    arrived: dict[str, float] = {}
    for at, line in lines:
        label, _, text = line.rstrip("\n").partition(": ")
        if label in texts or text.startswith(MARK):
            texts[label] = texts.get(label, "") + text
            arrived[label] = at
    parsed = []
    for label, text in texts.items():
        with contextlib.suppress(ValueError):
            report = json.JSONDecoder().raw_decode(text.removeprefix(MARK))[0]
            parsed.append({**report, "clock_apart_s": report["clock"] - arrived[label]})
    return sorted(parsed, key=lambda report: report["host"])


@contextlib.contextmanager
def probes(site: Site, results: Path) -> Iterator[dict[str, Any]]:
    """Yield the question for nodes, with temporary folders and a lock that they have to find.

    Raises:
        Unwritable: If this host cannot create the folders.
    """
    with contextlib.ExitStack() as stack:
        folders = {}
        for name, parent in (("results", results), ("cache", site.cache)):
            try:
                parent.mkdir(parents=True, exist_ok=True)
                folders[name] = stack.enter_context(
                    tempfile.TemporaryDirectory(prefix=".doctor-", dir=parent)
                )
            except OSError as error:
                raise Unwritable(
                    name, f"{parent}: cannot be written on this host: {error.strerror}"
                ) from None
        lock = Path(folders["results"], "lock")
        lock_file = stack.enter_context(open(lock, "w"))
        with contextlib.suppress(OSError):  # then the nodes report that the file system has no locks
            fcntl.flock(lock_file, fcntl.LOCK_EX)
        yield {
            "checkout": str(CHECKOUT),
            "lock": str(lock),
            "scratch": str(site.scratch) if site.scratch else None,
            "setup": list(site.setup),
            "device": site.device,
            "binds": [bind.partition(":")[0] for bind in site.binds],
            **folders,
        }


def outside() -> dict[str, str]:
    """Return the environment without the variables of a Slurm job in which this program possibly runs."""
    inside = "SLURM_JOB_ID" in os.environ
    return {
        name: value
        for name, value in os.environ.items()
        if not inside or name == "SLURM_CONF" or "SLURM_" not in name
    }
