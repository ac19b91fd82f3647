"""Throughput over nodes equals the table of cells, and the ideal grows with the number of replicas."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from analysis import cells
from analysis.records import Records
from common.notes import codes, find_note
from declared.figure_specs import FigureSpec
from figures import marks, value_axis
from figures.kinds import by_factor
from figures.lines import IDEAL_LINE, IDEAL_POINTS
from support.synthetic import campaign, designed_campaign, write_frames

SPEC = FigureSpec(
    "throughput", "by_factor", x="nodes", y="throughput",
    filter={"model": ["small-cnn-600"], "batch_size": [64]},
)  # fmt: skip
COLUMNS = [f"throughput_samples_s_{part}" for part in ("mean", "low", "high")]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return Records(*write_frames(tmp_path_factory.mktemp("by_factor"), *designed_campaign()))


def rows_of(records):
    table = cells.summarize(records.runs)
    return table[(table["model"] == "small-cnn-600") & (table["batch_size"] == 64)]


def epochs_of(records):
    """Return the epochs as the file has them."""
    return records.epochs.drop(columns="cell")


def ideals(ax):
    return [line for line in ax.lines if len(line.get_xdata()) == IDEAL_POINTS]


def test_bars_are_intervals_of_the_table_of_cells(records):
    figure, _ = by_factor.draw(records, SPEC)
    (ax,) = figure.axes
    rows = rows_of(records)
    bars = sorted(tuple(line.get_ydata()) for line in ax.lines if isinstance(line, marks.Bar))
    assert bars == [
        pytest.approx(tuple(row)) for row in sorted(rows[COLUMNS[1:]].itertuples(index=False, name=None))
    ]
    markers = [line for line in ax.lines if line.get_linestyle() == "None" and line.get_marker() != "_"]
    assert sorted(y for line in markers for y in line.get_ydata()) == pytest.approx(sorted(rows[COLUMNS[0]]))
    assert ax.get_ylim()[0] == 0 and ax.get_ylim()[1] >= rows[COLUMNS[0]].max()
    assert ax.get_ylabel() == "throughput (samples/s)"


def test_ideal_is_proportional_to_the_devices(records):
    figure, caption = by_factor.draw(records, SPEC)
    (ax,) = figure.axes
    rows = rows_of(records)
    starts = sorted(line.get_ydata()[0] for line in ideals(ax))
    assert starts == pytest.approx(sorted(rows.loc[rows["nodes"] == 1, COLUMNS[0]]))
    for line in ideals(ax):
        assert line.get_ydata()[-1] == pytest.approx(3 * line.get_ydata()[0]), "on three nodes"
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "ideal (thin)"
    assert find_note(caption.notes, "batch-scaling").facts == {"kind": "fixed batch per replica"}
    assert caption.startswith("Throughput by nodes, fixed batch per replica.")


def test_ideal_per_device_is_level(records):
    per_device = FigureSpec("d", "by_factor", x="nodes", y="throughput_per_device", filter=SPEC.filter)
    figure, _ = by_factor.draw(records, per_device)
    for line in ideals(figure.axes[0]):
        assert np.ptp(line.get_ydata()) == pytest.approx(0, abs=1e-6 * line.get_ydata()[0])


def test_memory_has_no_ideal(records):
    memory = FigureSpec("m", "by_factor", x="nodes", y="memory", filter=SPEC.filter)
    figure, caption = by_factor.draw(records, memory)
    assert not ideals(figure.axes[0]) and "ideal-drawn" not in codes(caption.notes)
    mib = records.runs["memory_peak_bytes"].astype(float) / 2**20
    top = max(line.get_ydata()[0] for line in figure.axes[0].lines if isinstance(line, marks.Bar))
    assert mib.min() < top < mib.max()


def test_without_one_device_the_ideal_starts_at_the_fewest(records, tmp_path):
    runs = records.runs[records.runs["nodes"] > 1]
    larger = Records(*write_frames(tmp_path, runs, epochs_of(records)))
    figure, caption = by_factor.draw(larger, SPEC)
    rows = rows_of(records)
    starts = sorted(line.get_ydata()[0] for line in ideals(figure.axes[0]))
    assert starts == pytest.approx(sorted(rows.loc[rows["nodes"] == 2, COLUMNS[0]]))
    for line in ideals(figure.axes[0]):
        assert line.get_ydata()[-1] == pytest.approx(1.5 * line.get_ydata()[0]), "three nodes over two"
    assert "ideal-from-smallest-size" in codes(caption.notes)
    assert all(line.get_alpha() == IDEAL_LINE["alpha"] for line in ideals(figure.axes[0]))


def test_where_nodes_double_both_axes_are_logarithmic(records, tmp_path):
    doubled = records.runs.replace({"nodes": {3: 4}}).assign(
        replicas=records.runs["replicas"].replace({3: 4})
    )
    figure, caption = by_factor.draw(Records(*write_frames(tmp_path, doubled, epochs_of(records))), SPEC)
    (ax,) = figure.axes
    assert ax.get_yscale() == "log" and "logarithmic-axis" in codes(caption.notes)
    for line in ideals(ax):
        slopes = np.diff(np.log2(line.get_ydata())) / np.diff(line.get_xdata())
        assert np.allclose(slopes, 1), "a straight line on both logarithmic axes"


def slow_down(batch_size, factor):
    """Return runs and epochs of a campaign, at one batch size with `factor` times the epoch times."""
    runs, epochs = campaign(failures={}, noise=0.01)
    is_slow = runs["batch_size"] == batch_size
    runs["epoch_time_s"] = runs["epoch_time_s"].mask(is_slow, factor * runs["epoch_time_s"])
    return runs, epochs


@pytest.mark.parametrize(("factor", "scale"), [(1, "linear"), (4, "log")])
def test_shared_axis_of_distant_panels_is_logarithmic(tmp_path, factor, scale):
    spec = FigureSpec("by_nodes", "by_factor", x="nodes", filter={"framework": ["pytorch-ddp"]})
    records = Records(*write_frames(tmp_path, *slow_down(16, factor)))
    figure, caption = by_factor.draw(records, spec)
    assert {ax.get_yscale() for ax in figure.axes if ax.axison} == {scale}
    assert ("logarithmic-value-axis" in codes(caption.notes)) == (scale == "log")


def test_logarithmic_axis_reaches_ideals_near_it():
    ax = Figure().subplots()
    ax.set(yscale="log", ylim=(0.2, 1.0))
    value_axis.show_ideals(ax, [0.12, 0.01])
    low, high = ax.get_ylim()
    assert 0.05 < low < 0.12 and high == 1.0, "a value far below the axis does not stretch it"
