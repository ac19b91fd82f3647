"""A campaign on heterogeneous nodes in a sandbox: batch shares follow speeds, and the table is written."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.campaigns import Campaign, study
from support.checkout import Checkout
from support.sandbox import NOTHING_LEFT, Sandbox, down, up

SHARES = "0.9,0.6,0.3"
BLOCK = 96
FACTORS = "  shares: [equal, measured]\n  batch_scope: global\n"
ALONE = "exclude: [{nodes: 1, shares: measured}]\n"


@pytest.fixture(scope="module")
def cluster(corner: Sandbox) -> Iterator[Sandbox]:
    """A cluster of three heterogeneous nodes."""
    up(corner, f"--cpu={SHARES}")
    yield corner
    down(corner)
    assert corner.left() == NOTHING_LEFT


class HeterogeneousCampaign(Campaign):
    """A study at the site virtual-heterogeneous, in a checkout that all nodes can access."""

    site = "virtual-heterogeneous"

    def __init__(self, corner: Sandbox, folder: Path, text: str) -> None:
        super().__init__(folder, text)
        self.corner = corner

    def entered(self, *command: str) -> list[str]:
        """Return the command that runs `command` in the sandbox."""
        return self.corner.entered(*command, folder=self.checkout.folder)


@pytest.mark.long
def test_slow_node_is_named(cluster: Sandbox, shared_folder: Path) -> None:
    """A node with a fifth of the others' link rate is slow, and the exit status says so.

    Not by less CPU time: beside other tests, all nodes get less than their shares.
    """
    limit = "qdisc replace dev eth0 root tbf rate 200mbit burst 256kb latency 50ms"
    assert cluster.run("tc", "-n", "ringside-node3", *limit.split()).returncode == 0
    checkout = Checkout(shared_folder / "checkout")
    done = cluster.python("ringside", "nodecheck", "virtual", folder=checkout.folder)
    assert done.returncode == 1, done.stderr
    words = [line.split() for line in done.stdout.splitlines() if " links " in line]
    links = {name.rstrip(":"): float(ratio) for _, name, *_, ratio in words}
    assert ["SLOW", "node3:"] in [line[:2] for line in words], done.stdout
    assert links["node3"] > 3, done.stdout
    assert max(links["node1"], links["node2"]) < 2, done.stdout
    by_design = cluster.python("ringside", "nodecheck", "virtual-heterogeneous", folder=checkout.folder)
    assert by_design.returncode == 2
    assert by_design.stderr.count("\n") == 1


@pytest.mark.long
def test_a_cut_of_hybrid_virtual(cluster: Sandbox, shared_folder: Path) -> None:
    text = study("pytorch-hybrid", nodes="[1, 3]", epochs=3).replace("batch_size: 32", f"batch_size: {BLOCK}")
    campaign = HeterogeneousCampaign(cluster, shared_folder, text + FACTORS + ALONE)
    snakemake = campaign.start("tables", "--config", f"site={campaign.site}")
    assert campaign.finish(snakemake, 900) == 0, campaign.output()
    rows = {(row["nodes"], row["shares"]): row for row in campaign.rows()}
    assert {row["status"] for row in rows.values()} == {"ok"}, [row["reason"] for row in rows.values()]
    assert rows["1", "equal"]["hosts"] == "node1", "the strongest is the first"
    equal, measured = rows["3", "equal"], rows["3", "measured"]
    assert measured["hosts"] == "node1 node2 node3" and measured["cpu_shares"] == "0.9/0.6/0.3"
    assert not equal["rank_samples"] and equal["cpu_share"] == ""
    samples = [int(value) for value in measured["rank_samples"].split("/")]
    speeds = [float(value) for value in measured["rank_speeds"].split("/")]
    assert sum(samples) == BLOCK and sorted(samples) == sorted(
        samples, key=lambda n: speeds[samples.index(n)]
    )
    assert samples[0] > samples[2], f"0.9 core does more than 0.3: {speeds}"
    with open(campaign.results / "tables" / "hybrid.csv", newline="") as table:
        predictions = list(csv.DictReader(table))
    assert [(row["nodes"], row["source"]) for row in predictions] == [
        ("3", "declared shares"),
        ("3", "declared shares"),
        ("3", "measured speeds"),
    ]
    assert all(float(row["predicted_s"]) > 0 for row in predictions)
