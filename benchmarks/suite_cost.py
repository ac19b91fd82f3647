"""Measure a suite of tests, and attribute its CPU time by polling every process that it starts."""

import os
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import InputError
from common.files import CHECKOUT
from document import section, table

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAUSE_S = 0.1
N_SHOWN = 14
# Purpose of a process by its command line; the first match counts.
CAUSES = (
    (
        "ranks of {0}",
        re.compile(r"environments/(\S+?)/\S* .*-m (?:ranks\.worker|trained|ranks\.collective_benchmark)\b"),
    ),
    ("other processes in {0}'s environment", re.compile(r"environments/([a-z-]+)/\S+/bin/python")),
    ("pip, builds", re.compile(r"-m pip\b|pip install|/cc1plus|^g\+\+|cmake|ninja|-m venv|-m compileall")),
    ("Snakemake", re.compile(r"\S+/snakemake\b|-m snakemake\b")),
    ("programs of {0}", re.compile(r"-m ([a-z]+)\.[a-z_]+\b")),
    ("pytest and what it computes itself", re.compile(r"-m pytest\b|execnet|exec\(eval\(")),
    ("Slurm's daemons", re.compile(r"slurm\w*d\b|munged")),
    ("Chromium", re.compile(r"chrom")),
    ("Apptainer", re.compile(r"apptainer|squashfuse|mksquashfs|unsquashfs|debootstrap")),
    ("TeX", re.compile(r"tex\b|pdftoppm")),
)
IMPORTS = {
    "Snakemake": "import snakemake.cli",
    "a figure": (
        "import pandas, scipy.stats, matplotlib.figure, matplotlib.backends.backend_agg, statsmodels.api"
    ),
}


@dataclass
class Seen:
    """A process when it was last polled, with its own CPU time in s."""

    command: str
    name: str
    cpu_s: float = 0.0


@dataclass
class Watch:
    """Polls all processes that started after it was created.

    They are identified by pid and start time, since pids are reused.
    """

    seen: dict[tuple[int, int], Seen] = field(default_factory=dict)
    before: set[tuple[int, int]] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.before = {(pid, began) for pid, began, _, _ in _processes()}

    def run(self) -> None:
        """Poll until `over` is set."""
        while not self.over.wait(PAUSE_S):
            for pid, began, name, cpu_s in _processes():
                if (pid, began) not in self.before:
                    process = self.seen.setdefault((pid, began), Seen("", name))
                    process.command = _command(pid) or process.command
                    process.name, process.cpu_s = name, cpu_s


def _processes() -> list[tuple[int, int, str, float]]:
    """Return (pid, start, name, CPU time in s) of all processes."""
    processes = []
    for folder in os.scandir("/proc"):
        if folder.name.isdigit():
            try:
                text = Path(folder.path, "stat").read_text()
            except OSError:
                continue
            name, _, rest = text.partition("(")[2].rpartition(")")
            fields = rest.split()
            processes.append(
                (int(folder.name), int(fields[19]), name, (int(fields[11]) + int(fields[12])) * TICK_S)
            )
    return processes


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def cause(process: Seen) -> str:
    """Return the purpose of a process, or the name of its program if none is known.

    A process forked by the prefork server has its module's name.
    """
    command = f"-m {process.name}" if "." in process.name else process.command
    for label, pattern in CAUSES:
        if match := pattern.search(command):
            return label.format(*match.groups())
    return process.name


def import_s(code: str, repetitions: int = 3) -> float:
    """Return the smallest CPU time in s of an interpreter that runs these imports."""
    times = []
    for _ in range(repetitions):
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True)
        after = os.times()
        times.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
    return min(times)


@dataclass(frozen=True)
class SuiteCost:
    """Wall and CPU time of a suite in s.

    `causes` has the number of processes and their CPU time by purpose; `ending` is pytest's closing line.
    """

    command: str
    wall_s: float
    cpu_s: float
    causes: dict[str, tuple[int, float]]
    ending: str


def measure(target: str) -> SuiteCost:
    """Run a target of the Makefile once and print its output.

    Raises:
        InputError: If it fails: its cost is not that of the tests.
    """
    command = ["make", target, "ARGS=--durations=60"]
    watch = Watch()
    looking = threading.Thread(target=watch.run, daemon=True)
    looking.start()
    began, before = time.monotonic(), os.times()
    process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    ending = ""
    for line in process.stdout or ():
        print(line, end="", flush=True)
        if line.startswith("=") and " in " in line:
            ending = line.strip()
    process.wait()
    wall_s, after = time.monotonic() - began, os.times()
    watch.over.set()
    looking.join()
    if process.returncode:
        problem = f"make {target} failed after {wall_s / 60:.1f} min; its cost is not that of the tests"
        raise InputError("cannot-measure", problem)
    sums: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for seen in watch.seen.values():
        count, cpu_s = sums[cause(seen)]
        sums[cause(seen)] = (count + 1, cpu_s + seen.cpu_s)
    children_s = after.children_user + after.children_system - before.children_user - before.children_system
    return SuiteCost(" ".join(command), wall_s, children_s, dict(sums), ending)


def report(cost: SuiteCost, command: str) -> str:
    """Return the part of docs/measurements.md."""
    ordered = sorted(cost.causes.items(), key=lambda item: -item[1][1])
    total = sum(cpu_s for _, (_, cpu_s) in ordered)
    rows = [
        [label, str(count), f"{cpu_s:.0f} s", f"{cpu_s / total:.0%}"]
        for label, (count, cpu_s) in ordered[:N_SHOWN]
    ]
    rest = ordered[N_SHOWN:]
    if rest:
        cpu_s = sum(seconds for _, (_, seconds) in rest)
        rows.append(
            [
                "all others",
                str(sum(count for _, (count, _) in rest)),
                f"{cpu_s:.0f} s",
                f"{cpu_s / total:.0%}",
            ]
        )
    imports = "; ".join(f"{library} {import_s(code):.2f} s" for library, code in IMPORTS.items())
    return section(
        f"What `{cost.command}` takes",
        command,
        f"{cost.wall_s / 60:.1f} min; {total / 60:.1f} min of CPU time. {cost.ending.strip('= ')}.",
        table(["CPU time of", "processes", "", "share"], rows),
        f"Processes are looked at every {PAUSE_S:g} s, so of each up to that is not counted, and some short "
        f"ones not at all. Of a process, imports are: {imports}.",
    )
