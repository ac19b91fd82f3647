"""Every reduced study runs here and has all of its figures.

Runs that this machine does not support are missing, with a reason.
"""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from declared.study import load_study
from support.checkout import Checkout

SITES = {"cnn-horovod-small": "local-devices", "resnet34-devices-small": "local-devices"}
MISSING = {
    "frameworks-small": {name: f"{name} is not installed at site local" for name in ("lbann", "tarantella")},
    "resnet34-devices-small": {"device=cuda": "has no device cuda", "device=hybrid": "has no device cuda"},
}
STUDIES = sorted(path.stem for path in Path("config/studies").glob("*-small.yaml"))


@pytest.mark.every_study
@pytest.mark.parametrize("study", STUDIES)
def test_a_reduced_study_runs_to_its_figures(fresh: Callable[..., Checkout], study: str) -> None:
    checkout, site = fresh("", study), SITES.get(study, "local")
    checkout.edit("config/config.yaml", "study: small", f"study: {study}")
    if site != "local":
        checkout.edit(
            f"config/sites/{site}.yaml",
            "max_other_cpu_share: 0.05",
            "max_other_cpu_share: 1\nmax_steal_share: 1",
        )
    done = checkout.snakemake("figures", "--config", f"site={site}", timeout_s=3000)
    assert done.status == 0, done.output
    results = checkout.folder / "results" / study
    with open(results / "runs.csv", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    for row in rows:
        reasons = [why for part, why in MISSING.get(study, {}).items() if part in row["run_id"]]
        if reasons:
            assert row["status"] == "missing" and reasons[0] in row["reason"], row
        else:
            assert row["status"] == "ok", f"{row['run_id']}: {row['reason']}"
            assert float(row["epoch_time_s"]) > 0
    assert any(row["status"] == "ok" for row in rows)
    with open(results / "epochs.csv", encoding="utf-8") as table:
        losses: dict[str, list[float]] = {}
        for row in csv.DictReader(table):
            losses.setdefault(row["run_id"], []).append(float(row["train_loss"]))
    assert sum(loss[-1] for loss in losses.values()) < sum(loss[0] for loss in losses.values()), "they learn"
    declared = load_study(study)
    traits = declared.traits(
        has_collective_benchmark=(results / "network.csv").exists(),
        reference_timed=any(row["reference_s"] for row in rows),
        nodes_have_network=any(row["placement"] not in ("", "emulated") for row in rows),
    )
    expected = {figure.name for figure in declared.figure_specs(traits)}
    assert {path.stem for path in (results / "figures").glob("*.pdf")} == expected
    for figure in expected:
        for suffix in ("pdf", "svg", "png", "caption.md"):
            assert (results / "figures" / f"{figure}.{suffix}").stat().st_size > 100
