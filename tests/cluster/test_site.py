"""`ringside site` on a real virtual cluster in a sandbox: the site that it writes is correct."""

from pathlib import Path

import pytest

from declared.site import load_site
from support.checkout import CHECKOUT, Checkout
from support.sandbox import Sandbox

FILE = "config/sites/mine.yaml"
UP = ["--nodes=2", "--bandwidth=123.4567mbit", "--cpu=0.7", "--accounting"]


@pytest.fixture(scope="module")
def cluster(corner: Sandbox) -> Sandbox:
    """A cluster that no shipped site describes."""
    done = corner.python("ringside", "cluster", "up", *UP)
    assert done.returncode == 0, done.stderr
    return corner


@pytest.fixture
def copy(shared_folder: Path) -> Checkout:
    """A checkout that all nodes see."""
    checkout = Checkout(shared_folder / "checkout")
    checkout.path(".venv").symlink_to(CHECKOUT / ".venv")
    return checkout


def test_written_site_passes_the_doctor_and_is_never_overwritten(cluster: Sandbox, copy: Checkout) -> None:
    done = cluster.run("./ringside", "site", "mine", folder=copy.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith(f"{FILE}: written; ")
    assert lines[2] == f"site mine ({FILE})"
    assert {line[:4] for line in lines[3:]} == {"ok  "}, done.stdout

    site = load_site("mine", copy.path("config/sites"))
    assert (site.launcher, site.placement, site.device, site.interface) == ("slurm", "virtual", "cpu", "eth0")
    assert (site.nodes, site.cores, site.cpu_share, site.bandwidth_bytes_s) == (2, 1, 0.7, 123.4567e6 / 8)
    assert (site.scheduler.partition, site.scheduler.account) == ("virtual", "root")
    text = copy.path(FILE).read_text()
    assert "the test job on node" in text, "a node was asked"

    copy.path(FILE).write_text("# a person's own\n")
    again = cluster.run("./ringside", "site", "mine", folder=copy.folder)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith(f"ringside: {FILE}: exists already and is not changed; ")
    assert copy.path(FILE).read_text() == "# a person's own\n"


def test_what_no_node_could_be_asked_is_assumed(cluster: Sandbox, copy: Checkout) -> None:
    copy.edit("workflow/scripts/sites/node_job.py", "WAIT_S = 45 ", "WAIT_S = 2 ")
    job = cluster.run(
        "sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 60"
    )
    try:
        done = cluster.run("./ringside", "site", "mine", "--partition=virtual", folder=copy.folder)
    finally:
        cluster.run("scancel", job.stdout.strip())
    assert (
        done.returncode == 0 and "test job (this machine alone: ./ringside site mine --local)" in done.stdout
    )
    assert "warn  test job: not tried again: none was free within 2 s; " in done.stdout, (
        done.stdout + done.stderr
    )
    text = copy.path(FILE).read_text()
    assert "No node was seen: none was free within 2 s; " in " ".join(text.replace("#", " ").split())
    (line,) = [line for line in text.splitlines() if line.startswith("interface: ")]
    assert "# ASSUMED: no node was seen" in line


def test_a_partition_that_is_not_there(cluster: Sandbox, copy: Checkout) -> None:
    done = cluster.run("./ringside", "site", "mine", "--partition=$(x)`id`", folder=copy.folder)
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("ringside: --partition: ") and "[unknown-name]\n" in done.stderr
    assert not copy.path(FILE).exists()


def test_a_machine_without_slurm(copy: Checkout) -> None:
    done = copy.program("ringside", "site", "mine", "--local")
    assert done.returncode == 0 and "ok    machine: " in done.stdout, done.stdout + done.stderr
    site = load_site("mine", copy.path("config/sites"))
    assert (site.launcher, site.placement, site.interface) == ("local", "emulated", "lo")
