"""Points of energy against time stand where they were made, with intervals both ways, or one sentence says why not."""

import numpy as np
import pytest

from analysis.measured import Records
from declared.figures import Declared
from figures import energy, style
from synthetic import campaign, designed_campaign, write_frames

ASKED = Declared("energy", "energy")
WATTS = 40.0


def powered(runs, watts=WATTS, noise=0.02, seed=2):
    """Runs whose nodes draw so much power each."""
    rng = np.random.default_rng(seed)
    joules = watts * runs["nodes"] * runs["epoch_time_s"].astype(float) * (1 + noise * rng.standard_normal(len(runs)))
    return runs.assign(energy_j=joules)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    runs, epochs = designed_campaign()
    return Records(*write_frames(tmp_path_factory.mktemp("energy"), powered(runs), epochs))


def test_energy_of_a_cell_is_the_mean_of_its_runs_for_all_samples(tmp_path):
    runs, epochs = designed_campaign()
    runs = powered(runs).assign(samples_trained=(0.98 * runs["samples_per_epoch"].astype(int)).astype(int))
    runs = Records(*write_frames(tmp_path, runs, epochs)).runs
    share = runs["samples_per_epoch"].astype(float) / runs["samples_trained"].astype(float)
    known = (runs["energy_j"] * share).groupby(runs["cell"]).mean()
    found = energy.of_cells(runs)
    assert found["value"].to_numpy() == pytest.approx(known.reindex(found.index).to_numpy())
    assert (found["n"] == 5).all() and (found["low"] < found["value"]).all() and (found["value"] < found["high"]).all()


def test_a_marker_for_every_cell_with_intervals_on_both_axes(records):
    drawn, caption = energy.draw(records, ASKED)
    drawn.draw_without_rendering()
    runs = records.runs
    known = energy.of_cells(runs)
    unit = {"J": 1.0, "kJ": 1e3}[drawn.axes[0].get_ylabel().split("(")[1].rstrip(")")]
    points = [
        point
        for ax in drawn.axes
        for line in ax.lines
        if line.get_marker() not in ("None", "")
        for point in zip(*line.get_data(), strict=True)
    ]
    times = runs.groupby("cell")["epoch_time_s"].mean()
    expected = sorted((times[cell], known.loc[cell, "value"] / unit) for cell in known.index)
    assert sorted(points) == [pytest.approx(point) for point in expected]
    assert all(len(ax.collections) == 2 * 3 for ax in drawn.axes), "two intervals for each of three series"
    assert caption.startswith("Energy of an epoch against its time. Each marker is a cell")
    assert "95 % t intervals of the mean" in caption and "Numbers beside markers: nodes." in caption
    assert {"1", "2", "3"} <= {text.get_text() for text in drawn.axes[0].texts}


def test_lines_are_equal_powers_and_say_which(records):
    drawn, caption = energy.draw(records, ASKED)
    drawn.draw_without_rendering()
    unit = {"J": 1.0, "kJ": 1e3}[drawn.axes[0].get_ylabel().split("(")[1].rstrip(")")]
    assert "Dotted lines: equal mean power." in caption
    for ax in drawn.axes:
        lines = [line for line in ax.lines if line.get_color() == style.MUTED]
        named = {text.get_text() for text in ax.texts if text.get_text().endswith("W")}
        assert len(lines) == len(named) >= 1
        for line in lines:
            powers = unit * line.get_ydata() / line.get_xdata()
            assert powers[0] == pytest.approx(powers[1])
            assert f"{powers[0]:g} W" in named
        values = [float(name.split()[0]) for name in named]
        assert min(values) < 3 * WATTS and max(values) > WATTS


@pytest.mark.parametrize(
    "case",
    [
        "no record has energy",
        "no successful run",
        "one run",
        "one framework tells",
        "one node",
        "far apart",
        "no energy used",
    ],
)
def test_it_is_drawn_whatever_the_records_hold(case, tmp_path):
    runs, epochs = campaign(failures={})
    made = powered(runs)
    match case:
        case "no record has energy":
            made = runs
        case "no successful run":
            made = made.assign(status="failed", reason="broken", epoch_time_s=None)
        case "one run":
            made = made.head(1)
        case "one framework tells":
            made.loc[made["framework"] != "pytorch-ddp", "energy_j"] = None
        case "one node":
            made = made[made["nodes"] == 1]
        case "far apart":
            made.loc[made["batch_size"] == 16, "energy_j"] *= 1000
        case "no energy used":
            made = made.assign(energy_j=0.0)
    drawn, caption = energy.draw(Records(*write_frames(tmp_path, made, epochs)), ASKED)
    drawn.draw_without_rendering()
    if case in ("no record has energy", "no successful run", "no energy used"):
        said = "no record has energy" if case == "no energy used" else case
        assert [text.get_text() for text in drawn.axes[0].texts] == [said]
    if case == "no record has energy":
        assert "Not drawn: no record has energy, because the machines do not report it." in caption
    if case == "one framework tells":
        assert "Without energy: " in caption and [text.get_text() for text in drawn.legends[0].get_texts()] == [
            "pytorch-ddp"
        ]
    if case == "far apart":
        assert "Both axes are logarithmic." in caption
    if case == "one node":
        assert "Numbers beside markers" not in caption
    assert caption.endswith(".") and "nan" not in caption
