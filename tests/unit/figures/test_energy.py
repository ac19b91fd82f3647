"""Energy against time has markers at the measured values with both intervals, or says why it is empty."""

import pytest

from analysis.energy import WHY_NO_ENERGY, choose_scope
from analysis.records import Records
from common.notes import codes, find_note
from declared.figure_specs import FigureSpec
from figures import style
from figures.kinds import energy
from support.captions import why_not_drawn
from support.synthetic import IDLE_W, WATTS, campaign, designed_campaign, metered, write_frames

SPEC = FigureSpec("energy", "energy")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return Records(*write_frames(tmp_path_factory.mktemp("energy"), *metered(*designed_campaign())))


def test_energy_of_a_cell_is_the_mean_of_its_runs(tmp_path):
    runs, epochs = metered(*designed_campaign())
    runs = runs.assign(samples_trained=(0.98 * runs["samples_per_epoch"].astype(int)).astype(int))
    runs = Records(*write_frames(tmp_path, runs, epochs)).runs
    share = runs["samples_per_epoch"].astype(float) / runs["samples_trained"].astype(float)
    expected = (runs["energy_j"] * share).groupby(runs["cell"]).mean()
    computed = energy.cell_energy(runs, choose_scope(runs))
    assert computed["mean"].to_numpy() == pytest.approx(expected.reindex(computed.index).to_numpy())
    assert (
        (computed["n"] == 5).all()
        and (computed["low"] < computed["mean"]).all()
        and (computed["mean"] < computed["high"]).all()
    )


def _markers(ax):
    lines = [line for line in ax.lines if line.get_marker() not in ("None", "")]
    return [point for line in lines for point in zip(*line.get_data(), strict=True)]


def test_a_marker_for_every_cell_with_intervals_on_both_axes(records):
    figure, caption = energy.draw(records, SPEC)
    figure.draw_without_rendering()
    runs = records.runs
    energies = energy.cell_energy(runs, choose_scope(runs))
    unit = {"J": 1.0, "kJ": 1e3}[figure.axes[0].get_ylabel().split("(")[1].rstrip(")")]
    points = [point for ax in figure.axes for point in _markers(ax)]
    times = runs.groupby("cell")["epoch_time_s"].mean()
    expected = sorted((times[cell], energies.loc[cell, "mean"] / unit) for cell in energies.index)
    assert sorted(points) == [pytest.approx(point) for point in expected]
    assert all(len(ax.collections) == 2 * 3 for ax in figure.axes), "two intervals for each of three series"
    fronts = [line for ax in figure.axes for line in ax.lines if line.get_drawstyle() == "steps-post"]
    for line in fronts:
        on_it = list(zip(*line.get_data(), strict=True))
        panel_points = [point for ax in figure.axes if line in ax.lines for point in _markers(ax)]
        beaten = [
            candidate
            for candidate in on_it
            for x, y in panel_points
            if (x < candidate[0] and y <= candidate[1]) or (x <= candidate[0] and y < candidate[1])
        ]
        assert len(on_it) > 1 and beaten == [] and set(on_it) <= set(panel_points)
    assert fronts and "pareto-front" in codes(caption.notes)
    assert find_note(caption.notes, "idle-power").facts == {
        "least": IDLE_W,
        "most": IDLE_W,
        "scope": "package",
    }
    assert find_note(caption.below, "heading").facts == {"scope": "package"}
    assert find_note(caption.notes, "numbers-beside-markers").facts == {"factor": "nodes"}
    assert {"1", "2", "3"} <= {text.get_text() for text in figure.axes[0].texts}


def test_lines_are_equal_powers_and_say_which(records):
    figure, caption = energy.draw(records, SPEC)
    figure.draw_without_rendering()
    unit = {"J": 1.0, "kJ": 1e3}[figure.axes[0].get_ylabel().split("(")[1].rstrip(")")]
    assert energy.HOW_TO_READ in caption.endnotes
    for ax in figure.axes:
        lines = [line for line in ax.lines if line.get_color() == style.MUTED]
        named = {text.get_text() for text in ax.texts if text.get_text().endswith("W")}
        assert len(lines) == len(named) >= 1
        for line in lines:
            powers = unit * line.get_ydata() / line.get_xdata()
            assert powers[0] == pytest.approx(powers[1])
            assert f"{powers[0]:g} W" in named
        values = [float(name.split()[0]) for name in named]
        assert min(values) < 3 * WATTS and max(values) > WATTS


@pytest.mark.parametrize("case", ["no record has energy", "one framework tells", "far apart"])
def test_it_is_drawn_whatever_the_records_hold(case, tmp_path):
    runs, epochs = campaign(failures={})
    with_energy, epochs = metered(runs, epochs)
    columns = ["energy_package_j", "energy_j"]
    match case:
        case "no record has energy":
            with_energy = runs
        case "one framework tells":
            with_energy.loc[with_energy["framework"] != "pytorch-ddp", columns] = None
        case "far apart":
            with_energy.loc[with_energy["batch_size"] == 16, columns] *= 1000
    figure, caption = energy.draw(Records(*write_frames(tmp_path, with_energy, epochs)), SPEC)
    figure.draw_without_rendering()
    if case == "no record has energy":
        assert why_not_drawn(caption)["why"] == energy.NO_ENERGY.code and WHY_NO_ENERGY in caption
    if case == "one framework tells":
        left_out = set(with_energy.loc[with_energy["framework"] != "pytorch-ddp", "cell"])
        assert set(find_note(caption.notes, "n-cells-without-energy").facts["cells"]) == left_out
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["pytorch-ddp"]
    if case == "far apart":
        assert "logarithmic-axes" in codes(caption.notes)
    assert caption.endswith(".") and "nan" not in caption
