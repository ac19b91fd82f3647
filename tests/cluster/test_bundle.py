"""Run studies from a bundle without a network, in a fresh checkout with an empty cache, locally and on Slurm.

Everything from `ringside unbundle` on runs in a sandbox without a route, without variables and with an empty
home. `make bundle-test` needs root, takes five to ten minutes, and fetches 0.5 GB.
"""

import csv
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.campaigns import study
from support.checkout import Checkout
from support.sandbox import Sandbox

pytestmark = pytest.mark.bundle

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PYTHON = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
REACH = "import socket; socket.create_connection(('192.0.2.1', 443), 5)"


@dataclass
class Place:
    """A checkout on a machine without a network, and the bundles copied there, by site."""

    corner: Sandbox
    checkout: Checkout
    home: Path
    bundles: dict[str, Path]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command there with only these variables."""
        variables = [f"PATH={PATH}", f"HOME={self.home}", "PIP_CONFIG_FILE=/dev/null", "LC_ALL=C.UTF-8"]
        return self.corner.run("env", "-i", *variables, *command, folder=self.checkout.folder, timeout_s=900)

    def ringside(self, *arguments: str | Path) -> str:
        """Run ./ringside, which has to succeed, and return its output."""
        done = self.run(PYTHON, "ringside", *map(str, arguments))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rows(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a study's runs.csv."""
        return list(csv.DictReader((self.checkout.folder / "results" / name / "runs.csv").open()))


@pytest.fixture(scope="module")
def place(corner: Sandbox, shared_folder_of_module: Path) -> Place:
    """Bundles made with a network, copied to a machine without one."""
    folder = shared_folder_of_module
    checkout = Checkout(folder / "there", study(nodes="2", epochs=2, replicates=2))
    checkout.write("config/studies/submitted.yaml", study(nodes="[1, 2]", epochs=2))
    tolerant = "max_other_cpu_share: 1\nmax_steal_share: 1"
    checkout.edit("config/sites/virtual.yaml", "max_other_cpu_share: 0.05", tolerant)
    checkout.edit("config/sites/virtual.yaml", "time_limit_s: 100", "time_limit_s: 300")
    online = checkout.copy(folder / "here")
    cache = {
        "RINGSIDE_CACHE": str(folder / "online"),
        "PYTHONPATH": str(online.folder / "workflow" / "scripts"),
    }
    bundles = {}
    for name, site in (("small", "local"), ("submitted", "virtual")):
        command = [sys.executable, "-m", "ringside", "bundle", name, "--site", site]
        subprocess.run(command, cwd=online.folder, env={**online.environment, **cache}, check=True)
        bundles[site] = folder / f"{site}.tar"
        os.rename(online.folder / "results" / name / f"{name}-{site}.bundle.tar", bundles[site])
    shutil.rmtree(folder / "online")
    (folder / "home").mkdir()
    return Place(corner, checkout, folder / "home", bundles)


def test_there_is_no_network_in_there(place: Place) -> None:
    assert place.run("ip", "route").stdout == ""
    assert "Network is unreachable" in place.run(PYTHON, "-c", REACH).stderr


def test_figures_of_a_study(place: Place) -> None:
    assert ", 0 were present" in place.ringside(
        "unbundle", place.bundles["local"], "--study=small", "--site=local"
    )
    place.ringside("run", "small", "--site=local")
    assert [row["status"] for row in place.rows("small")] == ["ok", "ok"]
    assert (place.checkout.folder / "results/small/figures/overview.pdf").is_file()


def test_wheels_that_a_bundle_lacks_are_one_line_before_any_run(place: Place) -> None:
    """Runs after test_figures_of_a_study, which installs the controller."""
    text = (place.checkout.folder / "config/studies/small.yaml").read_text()
    place.checkout.write(
        "config/studies/another.yaml",
        text.replace("pytorch-ddp", "tensorflow-single").replace("nodes: 2", "nodes: 1"),
    )
    done = place.run("make", f"PYTHON={PYTHON}", "figures", "STUDY=another", "SITE=local")
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("ringside: ")]
    assert (
        len(lines) == 1
        and "has no wheels of containers/tensorflow/requirements.cpu.txt as it is now" in lines[0]
    )
    assert not list((place.checkout.folder / "results/another").glob("runs/*"))


def test_a_campaign_on_slurm(place: Place) -> None:
    """The bundle of another study at another site adds nothing to the same cache."""
    assert ": 0 files unpacked, " in place.ringside("unbundle", place.bundles["virtual"])
    place.ringside("cluster", "up", "--nodes=3", "--bandwidth=1gbit", "--cpu=0.6", "--memory=6G")
    try:
        place.ringside("submit", "submitted", "--site=virtual", "--wait")
        place.ringside("run", "submitted", "--site=virtual", "--records=available")
    finally:
        place.ringside("cluster", "down")
    assert [row["status"] for row in place.rows("submitted")] == ["ok", "ok"]
