"""Campaigns of published measurements repeat from their files, load, and have the numbers of their pages."""

import functools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import effects
from analysis.records import read_runs, successful
from common.files import CHECKOUT
from declared.study import load_study
from importers import campaign
from importers.campaign import import_measurements
from importers.statement import Options
from prediction.inputs import measured_cells
from prediction.study_predictor import StudyPredictor
from support.pages import page

PUBLIC = "docs/campaigns/public"
DLPERF, MPT, STEPS, TRAIN = (
    f"public-{name}" for name in ("dlperf", "mpt-fsdp", "mlperf-llama", "mlperf-train")
)
MEASURED = {DLPERF: DLPERF, MPT: MPT, STEPS: STEPS, TRAIN: STEPS}  # two campaigns are of the same file
CELLS = {DLPERF: (52, 289), MPT: (56, 56), STEPS: (23, 230), TRAIN: (23, 230)}
MAX_KEPT_BYTES = 200_000


@functools.cache
def runs_of(name: str) -> pd.DataFrame:
    return read_runs(CHECKOUT / PUBLIC / name / "runs.csv")


@functools.cache
def effects_of(name: str) -> pd.DataFrame:
    return effects.build_rows(runs_of(name))


def rows_of(name: str) -> set[str]:
    """Return the rows of the tables of a page."""
    return {" ".join(line.split()) for line in page(f"{PUBLIC}/{name}.md").text.splitlines()}


@pytest.mark.parametrize("name", CELLS)
def test_import_repeats_from_the_file_beside_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "_version", lambda: "0.0")
    monkeypatch.setattr(campaign, "CHECKOUT", tmp_path)
    monkeypatch.setattr(campaign, "STUDIES", tmp_path)
    folder = CHECKOUT / PUBLIC / name
    measured = CHECKOUT / PUBLIC / MEASURED[name] / "measured.csv"
    import_measurements([str(measured)], name, Options(), folder / "import.yaml")
    for table in ("runs.csv", "epochs.csv"):
        again = pd.read_csv(tmp_path / "results" / name / "imported" / table)
        before = pd.read_csv(folder / table)
        columns = [column for column in before if column in again]  # a later version may write more of them
        assert {"run_id", "epoch_time_s"} <= set(columns)
        pd.testing.assert_frame_equal(again[columns], before[columns])
        assert (folder / table).stat().st_size <= MAX_KEPT_BYTES


@pytest.mark.parametrize(("name", "numbers"), CELLS.items())
def test_study_has_the_cells_of_its_page(name: str, numbers: tuple[int, int]) -> None:
    study, runs = load_study(name), runs_of(name)
    assert (len(study.cells()), len(successful(runs))) == numbers
    assert {figure.name for figure in study.figures} and study.imported is not None
    number_of_runs = f"{numbers[1]}"
    assert any(number_of_runs in row for row in rows_of(MEASURED[name]))


def percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.0f}"


def test_frameworks_of_dlperf_are_as_far_apart_as_the_page_says() -> None:
    data = effects_of(DLPERF).query("factor == 'framework' and model == 'resnet-50-v15'")
    faster = "ngc-mxnet"
    rates = runs_of(DLPERF).assign(rate=lambda runs: runs["throughput_samples_s"] / runs["n_devices"])
    rates = (
        1 / (1 / rates.set_index(["model", "framework", "n_devices"])["rate"]).groupby(level=[0, 1, 2]).mean()
    )
    for devices, own in data.groupby("n_devices"):
        texts = [f"{rates['resnet-50-v15', faster, devices]:.0f}"]
        for framework in ("mxnet", "mindspore", "tensorflow2", "pytorch-dali"):
            row = own[own["from"].isin([faster, framework]) & own["to"].isin([faster, framework])]
            if row.empty:
                texts.append("–")
                continue
            ends = row.iloc[0][["ratio", "ratio_low_simultaneous", "ratio_high_simultaneous"]].to_numpy(float)
            change, *limits = ends if row["from"].iloc[0] == faster else 1 / ends[[0, 2, 1]]
            low, high = map(percent, limits)
            texts.append(
                f"{rates['resnet-50-v15', framework, devices]:.0f}, +{percent(change)} % [{low}, {high}]"
            )
        assert f"| {devices} | {' | '.join(texts)} |" in rows_of(DLPERF)


@pytest.mark.parametrize(
    ("name", "nodes", "max_nodes", "error_percent"),
    [(DLPERF, 4, 2, 2.2), (MPT, 64, 32, 2.0), (MPT, 64, 16, 3.0), (STEPS, 128, 8, 0.4), (STEPS, 64, 16, 0.4)],
)
def test_predictions_are_those_of_the_page(
    name: str, nodes: int, max_nodes: int, error_percent: float
) -> None:
    cells = measured_cells(runs_of(name), include_meshes=True)
    cells = (
        cells[~((cells["model"] == "llama2-70b-lora") & (cells["custom_gpu"] == "h200"))]
        if name == STEPS
        else cells
    )
    predicted = StudyPredictor(cells[cells["nodes"] <= max_nodes]).predict(cells[cells["nodes"] == nodes])
    measured = cells.loc[cells["nodes"] == nodes, "epoch_time_s"].to_numpy()
    errors = predicted.seconds / measured - 1
    assert np.round(100 * np.abs(errors).mean(), 1) == error_percent
    assert ((predicted.low <= measured) & (measured <= predicted.high)).all()
    digits = ".2f" if name == STEPS else ".3f"
    for seconds, low, high, error in zip(
        predicted.seconds, predicted.low, predicted.high, errors, strict=True
    ):
        text = f"{seconds:{digits}} [{low:{digits}}, {high:{digits}}] | {100 * error:+.1f} |".replace(
            "-", "−"
        )
        assert text in page(f"{PUBLIC}/{name}.md").text
