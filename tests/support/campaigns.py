"""Run a campaign on the virtual cluster while a test breaks something, and inspect the results."""

import csv
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.shell import capture
from support.checkout import Checkout
from virtual_cluster.limits import Limits

STUDY = """\
title: two runs on several nodes
question: what is left when something breaks?
seed: 7
design: full
replicates: {replicates}
figures: [{figure}]
factors:
  framework: {framework}
  model: small-cnn
  dataset: digits
  nodes: {nodes}
  batch_size: 32
  sync_every: 1
  epochs: {epochs}
"""


def study(
    framework: str = "pytorch-ddp",
    nodes: str = "3",
    epochs: int = 12,
    replicates: int = 1,
    figure: str = "{kind: overview}",
) -> str:
    """Return the text of a study whose last key is `factors`."""
    return STUDY.format(framework=framework, nodes=nodes, epochs=epochs, replicates=replicates, figure=figure)


FOLDERS = "ringside-test-"


class Campaign:
    """The study `name` at the site virtual, in a checkout that all nodes can access."""

    site, profile = "virtual", "slurm"

    def __init__(
        self, folder: Path, text: str, time_limit_s: int = 100, name: str = "small", reference: bool = False
    ) -> None:
        self.checkout = Checkout(folder / "checkout", text, name)
        self.results = self.checkout.results
        site = f"config/sites/{self.site}.yaml"
        self.checkout.edit(site, "time_limit_s: 100", f"time_limit_s: {time_limit_s}")
        # The test itself uses CPU time, so CPU time of other processes must not invalidate runs.
        self.checkout.edit(
            site,
            "max_other_cpu_share: 0.05",
            f"max_other_cpu_share: 1\nmax_steal_share: 1\nreference: {str(reference).lower()}",
        )

    def entered(self, *command: str) -> list[str]:
        """Return the command line that runs `command` on the machine (or in the sandbox) of the cluster."""
        return list(command)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `snakemake --profile slurm` (or the class's profile) in the background.

        Its output goes to snakemake.out.
        """
        with open(self.checkout.folder / "snakemake.out", "a") as out:
            return subprocess.Popen(
                self.entered(
                    "snakemake", "--profile", self.profile, "--seconds-between-status-checks", "1", *arguments
                ),
                cwd=self.checkout.folder,
                env=self.checkout.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                text=True,
                # A shell makes its background jobs ignore SIGINT, and children inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (no thread here)
            )

    @contextmanager
    def running(self, target: str = "runs") -> Iterator[subprocess.Popen[str]]:
        """Run Snakemake in the background, and kill it if it still runs when the test ends."""
        process = self.start(target)
        try:
            yield process
        except BaseException:
            print(self.output())  # pytest shows the output with the failure, and removes the folder.
            raise
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def finish(self, process: subprocess.Popen[str], timeout_s: float = 300) -> int:
        """Wait for Snakemake and return its exit status."""
        return process.wait(timeout_s)

    def output(self) -> str:
        """Return the output of Snakemake."""
        return (self.checkout.folder / "snakemake.out").read_text()

    def wait_for_epoch(self, epoch: int = 1, attempt: int = 1) -> Path:
        """Wait until a run has written this epoch and still trains; return the attempt's folder."""

        def find_attempt() -> Path | None:
            for table in self.results.glob(f"runs/*/*/attempt-{attempt}/epochs.csv"):
                if table.read_text().count("\n") > epoch and not (table.parent / "result.json").exists():
                    return table.parent
            return None

        # The limit allows for a machine that other processes load.
        folder = wait_until(find_attempt, f"epoch {epoch} of attempt {attempt}", 240)
        assert isinstance(folder, Path)
        return folder

    def rows(self) -> list[dict[str, str]]:
        """Collect the available records and return the rows of runs.csv."""
        done = self.checkout.snakemake(
            "records", "--forcerun", "aggregate", "--config", "records=available", f"site={self.site}"
        )
        text = (self.results / "runs.csv").read_text() if (self.results / "runs.csv").exists() else ""
        assert text, done.output
        return list(csv.DictReader(text.splitlines()))

    def attempts(self) -> list[str]:
        """Return the names of all attempts."""
        return [Path(path).name for path in self.checkout.attempts()]


def wait_until(condition: Callable[[], object], event: str, timeout_s: float = 90) -> object:
    """Return the first true result of `condition`; fail with the name of the `event` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {event}"
        time.sleep(0.1)
    return value


def workers(node: str) -> list[int]:
    """Return the process ids of the ranks on a node."""
    pids = []
    for pid in Limits(node).processes():
        try:
            command = Path("/proc", str(pid), "cmdline").read_bytes()
        except OSError:
            continue
        if b"ranks.worker" in command:
            pids.append(pid)
    return sorted(pids)


def no_worker_is_left(nodes: tuple[str, ...] = ("node1", "node2", "node3")) -> bool:
    """Whether no node has a rank."""
    return not any(workers(node) for node in nodes)


def jobs() -> list[str]:
    """Return the numbers of pending and running jobs of these tests."""
    listed = slurm("squeue", "-h", "-o", "%i %Z").split("\n")
    return [number for number, _, folder in (line.partition(" ") for line in listed) if FOLDERS in folder]


def slurm(*command: str) -> str:
    """Run a command of Slurm, which has to succeed, and return its output."""
    return capture(command, check=True).stdout
