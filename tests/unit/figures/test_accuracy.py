"""Series whose accuracies agree at every epoch share a curve, but over wall time each has its own."""

import pandas as pd
import pytest
from matplotlib.collections import LineCollection, PolyCollection

from analysis.records import Records
from common.notes import codes
from declared.figure_specs import FigureSpec
from figures.kinds import accuracy
from support.synthetic import campaign, write_frames

COLUMNS = ["train_accuracy", "validation_accuracy"]


@pytest.fixture
def records(tmp_path):
    """Return a campaign in which frameworks differ only if one uses PyTorch and the other TensorFlow."""
    runs, epochs = campaign(replicates=3, failures={})
    framework = epochs["run_id"].str.partition(".")[0]
    replicate = epochs["run_id"].str[-1].astype(int)
    level = pd.Series(0.1, index=epochs.index).where(framework.str.contains("tensorflow"), 0.0)
    for column in COLUMNS:
        epochs[column] = 0.5 + 0.05 * epochs["epoch"] + level + 0.01 * replicate
    return Records(*write_frames(tmp_path, runs, epochs))


def test_frameworks_that_agree_share_a_coloured_curve(records):
    figure, caption = accuracy.draw(records, FigureSpec("accuracy", "accuracy"))
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    frameworks = sorted(set(records.runs["framework"]))
    assert len(names) == 2 and sorted(", ".join(names).split(", ")) == frameworks
    for ax in (ax for ax in figure.axes if ax.axison and ax.lines):
        assert len(ax.lines) == len([band for band in ax.collections if isinstance(band, PolyCollection)])
        assert len(ax.lines) <= 2
    assert "shifted-sideways" not in codes(caption.notes)


def test_every_curve_over_time_has_intervals(records):
    figure, _ = accuracy.draw(records, FigureSpec("over-time", "accuracy", x="wall_time"))
    ax = next(ax for ax in figure.axes if ax.axison)
    n_bars = [
        len([bar for bar in collection.get_segments() if len(bar)])
        for collection in ax.collections
        if isinstance(collection, LineCollection)
    ]
    assert len(ax.lines) == len([n for n in n_bars if n]) > 2
