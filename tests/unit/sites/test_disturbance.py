"""The disturbance of a machine is read from the kernel and described in a sentence, with its cost in runs."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declared.site import Site, load_site
from sites import disturbance, node_report
from sites.disturbance import describe, node_finding, spread_ratio
from sites.findings import Finding

SITE = load_site("local")
QUIET = {"steal": 0.0, "others": 0.0}


def rows(quiet: float, disturbed: float, n_runs: int, cells: int = 4) -> list[dict[str, str]]:
    """Return runs whose log epoch times have these standard deviations; half of the runs have 20 % of steal."""
    rng = np.random.default_rng(1)
    return [
        {
            "cell": f"cell-{cell}",
            "status": "ok",
            "epoch_time_s": repr(math.exp(cell + spread * rng.standard_normal())),
            "steal_share": str(share),
            "other_cpu_share": "0.01",
        }
        for cell in range(cells)
        for spread, share in ((quiet, 0.0), (disturbed, 0.2))
        for _ in range(n_runs)
    ]


def runs_csv(folder: Path, table: list[dict[str, str]]) -> Path:
    with open(file := folder / "runs.csv", "w", newline="") as file_object:
        writer = csv.DictWriter(file_object, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return file


def test_disturbed_runs_are_compared_within_cells() -> None:
    assert spread_ratio(rows(0.02, 0.06, 200)) == pytest.approx(3, rel=0.1)
    assert spread_ratio(rows(0.02, 0.06, 2)) is None  # four degrees of freedom of each
    assert spread_ratio([row for row in rows(0.02, 0.06, 200) if row["steal_share"] == "0.0"]) is None
    failed = [{**row, "status": "invalid"} for row in rows(0.02, 9.0, 200) if row["steal_share"] == "0.2"]
    assert spread_ratio([*failed, *rows(0.02, 0.06, 200)]) == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(
    "shares, invalid, sentence",
    [
        (QUIET, None, None),
        (None, None, None),
        ({"steal": 0.05, "others": None}, None, None),
        ({"steal": 0.12, "others": 0.02}, [], "the hypervisor takes 12% of the CPU time"),
        (
            {"steal": 0.2, "others": 0.4},
            ["max_steal_share", "max_other_cpu_share"],
            "the hypervisor takes 20% of the CPU time (runs with more than 15% are invalid: "
            "max_steal_share) and other programs use 40% of the CPU time (runs with more than 5% are "
            "invalid: max_other_cpu_share)",
        ),
    ],
)
def test_disturbed_machine_is_described_in_a_sentence(
    tmp_path: Path, shares: Any, invalid: list[str] | None, sentence: str | None
) -> None:
    note = describe(shares, SITE, tmp_path / "runs.csv")
    assert (note and note.facts["invalid"]) == invalid
    assert note == (sentence and f"this machine is disturbed: {sentence}")


def test_cost_of_disturbance_comes_from_the_campaign(tmp_path: Path) -> None:
    file = runs_csv(tmp_path, rows(0.02, 0.06, 200))
    sentence = describe({"steal": 0.12, "others": None}, SITE, file)
    times = spread_ratio(rows(0.02, 0.06, 200))
    assert sentence is not None and times is not None
    assert sentence.code == "disturbed" and sentence.facts["times"] == pytest.approx(times)
    older = [
        {name.replace("other_cpu", "foreign_cpu"): text for name, text in row.items()}
        for row in rows(0.02, 0.06, 200)
    ]
    assert describe({"steal": 0.12, "others": None}, SITE, runs_csv(tmp_path, older)) == sentence
    undisturbed = describe({"steal": 0.12, "others": None}, SITE, runs_csv(tmp_path, rows(0.06, 0.02, 99)))
    assert undisturbed is not None and undisturbed.facts["times"] is None


def test_doctor_names_disturbed_nodes_and_nodes_of_one_machine(tmp_path: Path) -> None:
    def judged(site: Site, **of_nodes: Any) -> Finding:
        reports = [{"host": name, "disturbed": {**QUIET, **shares}} for name, shares in of_nodes.items()]
        return node_finding(reports, site, tmp_path / "runs.csv")

    assert judged(SITE, node1={}).verdict == "ok"
    result = judged(SITE, node1={}, node2={"steal": 0.1}, node3={"steal": 0.1})
    assert (result.verdict, result.code) == ("warn", "disturbed")
    assert result.text.startswith("node2, node3: ")
    assert judged(load_site("virtual"), node1={"others": 0.5}, node2={"others": 0.5}).verdict == "ok"


def test_own_work_is_no_disturbance_of_this_machine() -> None:
    before = node_report.read_cpu_times()
    result = node_report.measure_disturbance(0.3)
    after = node_report.read_cpu_times()
    assert after["program"] - before["program"] > 0.01 and after["at"] - before["at"] >= 0.3
    assert 0 <= result["steal"] <= 1 and 0 <= result["others"] <= 1.1
    mine = {"at": 10.0, "busy": 5.0, "stolen": 0.0, "program": 5.0}
    assert node_report.disturbance_shares(dict.fromkeys(mine, 0.0), mine) == QUIET
    stolen = {**mine, "stolen": 1.25, "busy": 5.0}
    assert node_report.disturbance_shares(dict.fromkeys(mine, 0.0), stolen)["steal"] == pytest.approx(0.2)


def test_own_runs_and_remote_machines_are_no_disturbance() -> None:
    shares_now = disturbance.share_meter(SITE)(True)
    assert shares_now is not None and shares_now["others"] is None and shares_now["steal"] is not None
    assert disturbance.share_meter(load_site("slurm-example"))(False) is None
