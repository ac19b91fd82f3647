"""Fields of the heat map are the cells of the table, with the same numbers."""

import matplotlib
import numpy as np
import pytest
from matplotlib.patches import Rectangle

from analysis import cells, tables
from analysis.intervals import Estimate
from analysis.records import Records
from common.notes import codes
from declared.figure_specs import FigureSpec
from figures.kinds import heat_map
from support.synthetic import designed_campaign, write_frames

SPEC = FigureSpec("heat_map", "heat_map", x="nodes", y="throughput", filter={"model": ["small-cnn"]})


@pytest.fixture(scope="module")
def frames():
    return designed_campaign()


@pytest.fixture(scope="module")
def records(frames, tmp_path_factory):
    return Records(*write_frames(tmp_path_factory.mktemp("heat_map"), *frames))


def panels_of(figure):
    """Return the axes with fields, without the scale of colours and axes that are switched off."""
    return [ax for ax in figure.axes[:-1] if ax.axison and ax.get_label() != "<colorbar>"]


def fields(figure):
    """Return the texts and the colour of each field by panel, column and row."""
    fields_by_place = {}
    for panel, ax in enumerate(panels_of(figure)):
        for patch in ax.patches:
            assert isinstance(patch, Rectangle)
            column, row = patch.get_x() + 0.5, patch.get_y() + 0.5
            texts = [
                text.get_text()
                for text in ax.texts
                if text.get_position()[0] == column and abs(text.get_position()[1] - row) < 0.5
            ]
            fields_by_place[panel, column, row] = (texts, patch.get_facecolor())
    return fields_by_place


def test_each_cell_is_a_field_with_the_numbers_of_the_table(records):
    figure, _ = heat_map.draw(records, SPEC)
    table = cells.summarize(records.runs)
    table = table[table["model"] == "small-cnn"]
    expected = []
    for row in table[[f"throughput_samples_s_{part}" for part in ("mean", "low", "high")]].itertuples(
        index=False
    ):
        mean, _, bounds = tables.interval(Estimate(*row)).partition(" [")
        expected.append([mean, f"[{bounds}"])
    assert sorted(texts for texts, _ in fields(figure).values()) == sorted(expected)


def test_colours_rise_with_the_mean(records):
    figure, _ = heat_map.draw(records, SPEC)
    luminance = {
        float(texts[0]): float(np.dot(colour[:3], heat_map.LUMINANCE))
        for texts, colour in fields(figure).values()
    }
    in_order = [luminance[mean] for mean in sorted(luminance)]
    assert in_order == sorted(in_order) and len(set(in_order)) > 10
    assert heat_map.COLOURS in matplotlib.colormaps


def test_a_single_run_is_marked_and_has_no_interval(frames, tmp_path):
    runs, epochs = frames
    lost = runs["cell"].eq(runs["cell"].iloc[0]) & (runs["replicate"] > 1)
    runs = runs.assign(
        status=runs["status"].mask(lost, "failed"), epoch_time_s=runs["epoch_time_s"].mask(lost)
    )
    model = runs["model"].iloc[0]
    records = Records(*write_frames(tmp_path, runs, epochs))
    figure, caption = heat_map.draw(
        records, FigureSpec("h", "heat_map", x="nodes", filter={"model": [model]})
    )
    marked = [texts for texts, _ in fields(figure).values() if heat_map.SINGLE_RUN in texts[0]]
    assert len(marked) == 1 and len(marked[0]) == 1
    assert "single-runs" in codes(caption.notes)


def test_a_cell_without_a_value_is_no_field(frames, tmp_path):
    runs, epochs = frames
    lost = runs["cell"].eq(runs["cell"].iloc[0])
    runs = runs.assign(
        status=runs["status"].mask(lost, "failed"), epoch_time_s=runs["epoch_time_s"].mask(lost)
    )
    model = runs["model"].iloc[0]
    records = Records(*write_frames(tmp_path, runs, epochs))
    figure, _ = heat_map.draw(records, FigureSpec("h", "heat_map", x="nodes", filter={"model": [model]}))
    n_cells = runs.loc[runs["model"] == model, "cell"].nunique()
    assert len(fields(figure)) == n_cells - 1
    assert [text.get_text() for ax in figure.axes for text in ax.texts if "success" in text.get_text()]


def test_factors_are_rows_where_panels_would_be_too_many(records):
    figure, _ = heat_map.draw(records, SPEC)
    panels = panels_of(figure)
    rows = [label.get_text() for label in panels[0].get_yticklabels()]
    n_cells = records.runs.loc[records.runs["model"] == "small-cnn", "cell"].nunique()
    assert len(panels) == 1 and len(rows) * 3 == n_cells, "three columns and no gap"
    spec = FigureSpec("h", "heat_map", x="nodes", facet=("batch_size",), filter=SPEC.filter)
    figure, _ = heat_map.draw(records, spec)
    assert [ax.get_title() for ax in panels_of(figure)] == [f"batch size {size}" for size in (32, 64, 96)]


def test_means_of_several_magnitudes_have_logarithmic_colours(records):
    figure, caption = heat_map.draw(records, FigureSpec("h", "heat_map", x="nodes", y="throughput"))
    assert figure.axes[-1].get_xscale() == "log" and "logarithmic-colours" in codes(caption.notes)
    memory = FigureSpec("h", "heat_map", x="nodes", y="memory")
    figure, caption = heat_map.draw(records, memory)
    assert figure.axes[-1].get_xscale() == "linear" and "logarithmic-colours" not in codes(caption.notes)
