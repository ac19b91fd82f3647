"""Run Snakemake in a copy of the checkout, as a user would, and read its plan and output."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]

SMALL_STUDY = """\
title: the smallest study that has a baseline, a child environment and a second library {PyTorch, TensorFlow}
question: does the workflow repeat what it must, and only that?
seed: 7
design: full
replicates: 1
factors:
  framework: [pytorch-single, horovod-pytorch, tensorflow-single]
  model: small-cnn
  dataset: digits
  nodes: 1
  batch_size: [64]
  sync_every: 1
  epochs: 2
figures:
  - {kind: overview}
  - {kind: residuals}
  - {kind: accuracy}
  - {kind: accuracy, x: updates}
"""

THREE_RUNS = """\
title: three short runs
question: does a kill lose anything?
seed: 3
design: full
replicates: 3
factors: {framework: pytorch-single, model: small-cnn, dataset: digits, nodes: 1, batch_size: 64, sync_every: 1, epochs: 3}
figures: [{kind: residuals}]
"""


# Variables that `make test` can set, and a user's shell does not have.
TEST_VARIABLES = (
    "PYTHONPATH",
    "RINGSIDE_SESSION",
    "MAKEFLAGS",
    "MFLAGS",
    "MAKEOVERRIDES",
    "ARGS",
    "RINGSIDE_STUDY",
    "RINGSIDE_SITE",
)


@dataclass(frozen=True)
class Invocation:
    """One call of Snakemake: exit status, planned jobs by rule (without target rules), all output."""

    status: int
    jobs: dict[str, int]
    output: str


class Checkout:
    """A copy of the checkout's source files, with a study of its own and a site that accepts a busy machine."""

    def __init__(self, folder: Path, study: str = SMALL_STUDY, name: str = "small") -> None:
        self.folder = folder
        self.results = folder / "results" / name
        if not folder.exists():
            listed = subprocess.run(
                ["git", "ls-files", "-co", "--exclude-standard", "-z"],
                cwd=CHECKOUT,
                capture_output=True,
                check=True,
            )
            for file in listed.stdout.decode().split("\0"):
                source = CHECKOUT / file
                if file and (source.is_file() or source.is_symlink()):
                    target = folder / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source, target, follow_symlinks=False)
            # Byte code stays valid, because the copied sources keep their dates.
            for compiled in (CHECKOUT / "workflow" / "scripts").rglob("__pycache__"):
                shutil.copytree(compiled, folder / compiled.relative_to(CHECKOUT))
            self.write(f"config/studies/{name}.yaml", study)
            self.edit("config/config.yaml", "study: quickstart", f"study: {name}")
            self.edit(
                "config/sites/local.yaml",
                "max_other_cpu_share: 0.05",
                "max_other_cpu_share: 1\nmax_steal_share: 1\nreference: false",
            )

    def copy(self, folder: Path) -> "Checkout":
        """Copy everything, including results, Snakemake's metadata and dates, to another checkout."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Checkout(folder)

    def path(self, name: str) -> Path:
        """Return the path of a file of this checkout."""
        return self.folder / name

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        self.path(name).write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text that occurs exactly once in a file."""
        text = self.path(name).read_text()
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        self.write(name, text.replace(old, new))

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a user's shell with the activated .venv of this checkout."""
        inherited = {name: value for name, value in os.environ.items() if name not in TEST_VARIABLES}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**inherited, "PATH": path, "SNAKEMAKE_PROFILE": str(self.folder / "profiles" / "local")}

    def snakemake(self, *arguments: str, timeout_s: float = 600, program: Sequence[str] = ()) -> Invocation:
        """Call Snakemake and wait for it.

        It is forked by the prefork server, unless `program` is another command line for Snakemake.
        """
        done = subprocess.run(
            [*(program or self.prefork_command("snakemake")), *arguments, "--quiet", "rules", "host"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Invocation(done.returncode, planned_jobs(done.stdout), done.stdout)

    def program(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call one of the workflow's programs, like python -m."""
        environment = {**self.environment, "PYTHONPATH": str(self.folder / "workflow" / "scripts")}
        command = self.prefork_command(*arguments)
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )

    def ringside(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call ./ringside as a user would, with the .venv of the original checkout."""
        return self._call("./ringside", *arguments)

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call make with the .venv of the original checkout."""
        return self._call("make", *arguments)

    def _call(self, *command: str) -> subprocess.CompletedProcess[str]:
        if not self.path(".venv").exists():
            self.path(".venv").symlink_to(CHECKOUT / ".venv")
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )

    def prefork_command(self, *arguments: str) -> list[str]:
        """Return the command that does what `python -m` does, through the prefork server."""
        return [
            sys.executable,
            "-IS",
            str(self.folder / "workflow" / "scripts" / "common" / "prefork_server.py"),
            *arguments,
        ]

    def records(self) -> list[str]:
        """Return the published records, relative to the results."""
        return sorted(
            str(path.relative_to(self.results)) for path in self.results.glob("runs/*/*/record.json")
        )

    def attempts(self) -> list[str]:
        """Return all attempts, relative to the results."""
        return sorted(str(path.relative_to(self.results)) for path in self.results.glob("runs/*/*/attempt-*"))

    def manifest(self) -> dict[str, Any]:
        """Return the content of manifest.json."""
        content: dict[str, Any] = json.loads((self.results / "manifest.json").read_text())
        return content

    def products(self) -> dict[str, str]:
        """Return the stamp of each file that is made from the records."""
        files = [
            self.results / "runs.csv",
            self.results / "epochs.csv",
            *self.results.glob("tables/*"),
            *self.results.glob("figures/*"),
        ]
        return {str(path.relative_to(self.results)): stamp(path) for path in files if path.is_file()}


TARGETS = (
    "all",
    "plan",
    "environments",
    "datasets",
    "network",
    "collective_benchmarks",
    "runs",
    "records",
    "tables",
    "figures",
    "archive",
    "paper",
)
TARGETS = (*TARGETS, "manifest")  # rebuilt with every other product; test_provenance.py checks it


def stamp(path: Path) -> str:
    """Return inode and modification time, which change whenever the file is rewritten.

    The inode alone is not enough, because a file system can reuse a freed one.
    """
    status = path.stat()
    return f"{status.st_ino} {status.st_mtime_ns}"


def planned_jobs(output: str) -> dict[str, int]:
    """Return the numbers of jobs by rule in Snakemake's table "Job stats", without TARGETS."""
    jobs: dict[str, int] = {}
    lines = iter(output.splitlines())
    for line in lines:
        if line.startswith("Job stats:"):
            jobs = {}
            next(lines), next(lines)
            for row in lines:
                if not row.strip() or row.startswith("total"):
                    break
                name, count = row.split()
                jobs[name] = int(count)
    return {name: count for name, count in jobs.items() if name not in TARGETS}


def wait_for(condition, limit_s: float = 120) -> None:  # type: ignore[no-untyped-def]
    """Wait until a condition is true; fail after `limit_s`."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)
