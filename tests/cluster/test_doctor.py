"""`ringside doctor` on real virtual clusters: verdicts for sites and clusters with faults.

The clusters are in sandboxes, so that nodes can be drained without effect on other tests.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.shell import capture
from support.campaigns import wait_until
from support.checkout import CHECKOUT, Checkout
from support.sandbox import Sandbox

VIRTUAL = "config/sites/virtual.yaml"
HEALTHY = ["--nodes=3", "--bandwidth=1gbit", "--cpu=0.6"]  # what the site virtual describes


@dataclass
class DoctorReport:
    """Report of the doctor: exit status, verdict and text of each subject, and all output."""

    status: int
    lines: dict[str, tuple[str, str]]
    output: str

    def verdict(self, subject: str) -> str:
        return self.lines[subject][0]

    def text(self, subject: str) -> str:
        return self.lines[subject][1]

    @property
    def failing(self) -> set[str]:
        return {subject for subject, (verdict, _) in self.lines.items() if verdict == "FAIL"}


@pytest.fixture(scope="module")
def cluster(corner: Sandbox) -> Sandbox:
    """The cluster that the site virtual describes, in a sandbox."""
    done = corner.python("ringside", "cluster", "up", *HEALTHY)
    assert done.returncode == 0, done.stderr
    return corner


@pytest.fixture
def copy(shared_folder: Path) -> Checkout:
    """A checkout that all nodes see, for a test to change."""
    return Checkout(shared_folder / "checkout")


def call_doctor(corner: Sandbox, checkout: Checkout, *config: str) -> DoctorReport:
    """Call the doctor and return its report."""
    arguments = [f"--{option}" for option in config]
    return parse_report(corner.python("ringside", "doctor", *arguments, folder=checkout.folder))


def parse_report(done: subprocess.CompletedProcess[str]) -> DoctorReport:
    """Parse the output of the doctor."""
    assert "Traceback" not in done.stderr, done.stderr
    lines = {}
    for line in done.stdout.splitlines():
        verdict, _, rest = line.partition(" ")
        if verdict in ("ok", "warn", "FAIL"):
            subject, _, text = rest.strip().partition(": ")
            lines[subject] = (verdict, text)
    return DoctorReport(done.returncode, lines, done.stdout + done.stderr)


def add(checkout: Checkout, lines: str) -> None:
    """Add lines to the site."""
    checkout.path(VIRTUAL).write_text(checkout.path(VIRTUAL).read_text() + lines)


def test_the_cluster_of_the_tutorial(corners: Callable[[], Sandbox], copy: Checkout) -> None:
    """The tutorial's commands: up, doctor, down."""
    corner = corners()
    copy.path(".venv").symlink_to(CHECKOUT / ".venv")
    up = corner.run(
        "./ringside", "cluster", "up", "--nodes=3", "--bandwidth=1gbit", "--cpu=0.6", folder=copy.folder
    )
    assert up.returncode == 0, up.stderr
    report = parse_report(corner.run("./ringside", "doctor", folder=copy.folder))
    assert report.status == 0, report.output
    assert {verdict for verdict, _ in report.lines.values()} == {"ok"}, report.output
    assert report.text("test job") == "ran on node1, node2, node3"
    assert report.verdict("file locks") == "ok"
    assert [path.name for path in copy.path("results").iterdir()] == ["README.md"]
    down = corner.run("./ringside", "cluster", "down", folder=copy.folder)
    assert down.returncode == 0, down.stderr


def test_a_drained_node(cluster: Sandbox, copy: Checkout) -> None:
    assert cluster.run("scontrol", "update", "nodename=node3", "state=drain", "reason=fan").returncode == 0
    try:
        report = call_doctor(cluster, copy)
    finally:
        cluster.run("scontrol", "update", "nodename=node3", "state=resume")
        wait_until(lambda: cluster.run("sinfo", "-h", "-o", "%D %T").stdout == "3 idle\n", "node3 is back")
    assert report.status == 1
    assert "nodes: is 3, but 2 are usable (node3 is drained (fan))" in report.text("nodes")
    assert (
        report.text("test job")
        == "checked 2 of the 3 nodes of a run, the others are busy or down: node1, node2"
    )
    assert report.verdict("interface") == "ok"


def test_folders_that_nodes_do_not_see(cluster: Sandbox, tmp_path: Path) -> None:
    copy = Checkout(tmp_path / "checkout")  # below /tmp, and every node has its own
    copy.edit(VIRTUAL, "cache: ~/.cache/ringside", f"cache: {tmp_path}/cache\nscratch: {tmp_path}/scratch")
    report = call_doctor(cluster, copy)
    assert (report.status, report.failing) == (1, {"checkout", "results", "cache", "scratch"}), report.output
    assert report.text("checkout").startswith("node1, node2, node3: cannot access it; move the checkout")
    assert report.verdict("file locks") == "warn"


def test_a_setup_line_that_fails(cluster: Sandbox, copy: Checkout) -> None:
    add(copy, "setup: ['export A=1', 'loadmodule cuda/12', 'true']\n")
    report = call_doctor(cluster, copy)
    assert (report.status, report.failing) == (1, {"setup"}), report.output
    assert "'loadmodule cuda/12' fails: " in report.text("setup")
    assert "command not found" in report.text("setup")


def test_a_busy_cluster(cluster: Sandbox, copy: Checkout) -> None:
    copy.edit("workflow/scripts/sites/node_job.py", "WAIT_S = 45 ", "WAIT_S = 2 ")
    job = cluster.run(
        "sbatch", "--parsable", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 60"
    )
    try:
        report = call_doctor(cluster, copy)
    finally:
        cluster.run("scancel", job.stdout.strip())
    assert report.status == 0, report.output
    assert report.verdict("test job") == "warn"
    assert "within 2 s" in report.text("test job")


def test_options_that_only_sbatch_knows(cluster: Sandbox, copy: Checkout) -> None:
    add(copy, "scheduler:\n  options: ['--ignore-pbs']\n")
    report = call_doctor(cluster, copy)
    assert (report.status, report.verdict("test job")) == (0, "ok"), report.output


def test_accounts(corners: Callable[[], Sandbox], copy: Checkout) -> None:
    corner = corners()
    done = corner.python("ringside", "cluster", "up", *HEALTHY, "--accounting")
    assert done.returncode == 0, done.stderr
    report = call_doctor(corner, copy)
    assert report.status == 0, report.output
    assert report.text("account") == "your default among rehearsal, root"
    add(copy, "scheduler:\n  account: nobodys\n")
    report = call_doctor(corner, copy)
    assert (report.status, report.failing) == (1, {"account"}), report.output
    assert report.text("account").endswith("'nobodys' is not one of yours; expected one of rehearsal, root")
    copy.edit(VIRTUAL, "account: nobodys", "account: rehearsal")
    copy.edit("profiles/slurm/config.yaml", "slurm-status-command: squeue", "slurm-status-command: sacct")
    report = call_doctor(corner, copy)
    assert (report.status, report.failing) == (0, set()), report.output


def test_no_controller(corners: Callable[[], Sandbox], copy: Checkout) -> None:
    report = call_doctor(corners(), copy)
    assert (report.status, report.failing) == (1, {"controller"}), report.output


@pytest.fixture
def without_slurm(tmp_path: Path) -> Iterator[str]:
    """A PATH with the usual programs, but none of Slurm's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in ("env", "bash", "sh", "git", "hostname"):
        (folder / program).symlink_to(str(shutil.which(program)))
    yield str(folder)


def test_without_slurm_here(copy: Checkout, without_slurm: str) -> None:
    environment = {
        **copy.environment,
        "PATH": without_slurm,
        "PYTHONPATH": str(copy.path("workflow/scripts")),
    }
    command = [sys.executable, "-m", "ringside", "doctor"]
    report = parse_report(capture(command, cwd=copy.folder, env=environment))
    assert (report.status, report.failing) == (1, {"programs"}), report.output


def test_a_site_without_slurm(copy: Checkout) -> None:
    report = parse_report(copy.program("ringside", "doctor", "--site=local"))
    assert report.status == 0, report.output
    assert report.text("site") == "local is this machine and needs no Slurm"
    assert "test job" not in report.lines
    copy.edit("config/sites/local.yaml", "interface: lo", "interface: eth77")
    report = parse_report(copy.program("ringside", "doctor", "--site=local"))
    assert (report.status, report.failing) == (1, {"machine", "interface"}), report.output
