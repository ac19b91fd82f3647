"""The campaigns whose records are kept are whole, are still read, and say what the pages say."""

import re
from pathlib import Path

import pandas as pd
import pytest

from analysis import anova, checks, decomposition, effects
from analysis.measured import successful
from analysis.pooling import pooled
from common.files import CHECKOUT
from common.tables import read_table
from declared.site import load_site
from declared.study import load_study
from plan.design import design

KEPT = CHECKOUT / "docs" / "campaigns"
FOLDERS = sorted(path for path in KEPT.iterdir() if path.is_dir())
INTERVAL = re.compile(r"(−?\d+\.\d+) \[(−?\d+\.\d+), (−?\d+\.\d+)\]")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_kept_campaign_is_whole(folder: Path) -> None:
    runs, epochs = (read_table(folder / f"{name}.csv", name) for name in ("runs", "epochs"))
    (site,) = set(runs["site"])
    study = load_study(folder.name)
    assert set(runs["run_id"]) == {run.run_id for run in design(study, load_site(site))}
    assert len(successful(runs)) == len(runs)
    assert epochs.groupby("run_id").size().to_dict() == dict.fromkeys(runs["run_id"], study.factors["epochs"][0])


def triples(data: pd.DataFrame) -> list[tuple[float, ...]]:
    """All estimates of a table with their bounds."""
    names = [name for name in data if {f"{name}_low", f"{name}_high"} <= set(data)]
    return [
        row for name in names for row in data[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False, name=None)
    ]


def test_every_interval_in_the_text_is_one_of_the_tables() -> None:
    made = []
    for folder in FOLDERS:
        runs, network = (read_table(folder / f"{name}.csv", name) for name in ("runs", "network"))
        made += triples(effects.compare(runs)) + triples(decomposition.decompose(runs, network))
    said = [
        tuple(float(number.replace("−", "-")) for number in found)
        for found in INTERVAL.findall((KEPT / "README.md").read_text().partition("## `prediction-virtual`")[0])
    ]
    assert len(said) == 16 + 24
    wrong = [numbers for numbers in said if not any(numbers == pytest.approx(row, abs=0.0051) for row in made)]
    assert not wrong


def percent(values: pd.Series) -> str:
    return f"{100 * values.min():.0f} to {100 * values.max():.0f} %"


def test_the_ranges_in_the_text_are_those_of_the_records() -> None:
    text = " ".join((KEPT / "README.md").read_text().split())
    predictions, tutorial = (
        " ".join((CHECKOUT / "docs" / name).read_text().split())
        for name in ("explanation/predictions.md", "tutorial/cluster.md")
    )
    slow, fast = (
        decomposition.decompose(*(read_table(folder / f"{name}.csv", name) for name in ("runs", "network")))
        for folder in (KEPT / "tf-strategies-virtual", KEPT / "tf-strategies-unshaped")
    )
    for data in (slow, fast):
        accumulated = data[(data["part"] == "sync_every") & (data["nodes"] > 1)]
        shares = accumulated["network_s"] / accumulated["difference_s"]
        assert percent(shares) in text
        if data is slow:
            assert f"errors of −{100 - 100 * shares.min():.0f} to +{100 * shares.max() - 100:.0f} %" in predictions
    for model, data in slow[slow["nodes"] > 1].groupby("model"):
        parts = data.pivot_table(index=["batch_size", "nodes"], columns="part", values="difference_s")
        assert percent(parts["training_loop"] / parts["total"]) in text, model
    runs = read_table(KEPT / "tf-strategies-virtual" / "runs.csv", "runs")
    assert f"{(runs['steal_share'] > 0.05).sum()} of the {len(runs)} runs" in text
    assert f"{len(runs)} runs in 76 minutes" in tutorial


def test_shares_and_noise_in_the_text_are_those_of_the_tables() -> None:
    text = " ".join((KEPT / "README.md").read_text().split())
    slow, fast = (read_table(KEPT / f"tf-strategies-{name}" / "runs.csv", "runs") for name in ("virtual", "unshaped"))
    shares = [100 * anova.of_runs(runs).rows.set_index("term")["share"] for runs in (slow, fast)]
    factors = ["model", "batches per exchange", "nodes", "nodes × batches per exchange"]
    assert [f"{shares[0][name]:.0f}" for name in [*factors, "batch size"]] == ["48", "10", "5", "4", "20"]
    assert [f"{shares[1][name]:.0f}" for name in factors] == ["61", "17", "10", "8"]
    assert f"Replicates differ by {shares[0]['error']:.1f} and {shares[1]['error']:.1f} %" in text
    rows = [checks.table(runs).data.set_index("assumption") for runs in (slow, fast)]
    correlations = [row.loc["no run depends on the one before it", "statistic"] for row in rows]
    assert f"correlation {correlations[0]:.2f} and {correlations[1]:.2f}" in text
    blocks, least = (
        [f"{row.loc[name, 'size_percent']:.0f}" for row in rows]
        for name in ("blocks alike", "least difference of two means, n = 5")
    )
    assert f"up to {blocks[0]} and {blocks[1]} % apart" in text
    assert f"beyond about {least[0]} and {least[1]} %" in text
    assert not pooled(fast).p < 0.05 and pooled(slow).p < 0.001
