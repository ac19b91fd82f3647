"""Bars are as long as the parts of a cell, differ in grey, and unknown parts are stated."""

import itertools

import numpy as np
import pytest

from analysis import conditions, shares
from analysis.records import Records
from common.files import CHECKOUT
from common.notes import codes, find_note
from declared.figure_specs import FigureSpec
from figures import captions, style
from figures.kinds import scaling
from figures.kinds import shares as shares_figure
from support.captions import why_not_drawn
from support.synthetic import designed_campaign, write_frames

RUN = FigureSpec("shares", "shares")
EPOCH = FigureSpec("shares-epoch", "shares", x="epoch")
ONE_MODEL = {"model": ["small-cnn-600"], "batch_size": [64]}


def timed(runs, epochs):
    """Runs with 6 s of start-up and 0.5 s at the end."""
    spent = epochs.groupby("run_id")[["epoch_time_s", "validation_time_s"]].sum().sum(axis=1)
    return runs.assign(startup_s=6.0, wall_s=runs["run_id"].map(spent) + 6.5), epochs


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return Records(*write_frames(tmp_path_factory.mktemp("shares"), *timed(*designed_campaign())))


def bars(ax):
    """Return by row the (left, width, colour) of its bars, from the left."""
    parts_by_row = {}
    for patch in ax.patches:
        y = round(patch.get_y() + patch.get_height() / 2)
        parts_by_row.setdefault(y, []).append((patch.get_x(), patch.get_width(), patch.get_facecolor()))
    return {y: sorted(parts) for y, parts in parts_by_row.items()}


def test_captions_explain_lines_baseline_and_setting(records):
    _, caption = shares_figure.draw(records, FigureSpec("shares", "shares", filter=ONE_MODEL))
    assert find_note(caption.notes, "rest-interval")
    _, caption = scaling.draw(records, FigureSpec("scaling", "scaling", filter=ONE_MODEL))
    facts = find_note(caption.notes, "baseline-time").facts
    times = find_note(caption.endnotes, "baselines").facts["means"].values()
    assert (facts["shortest"], facts["longest"]) == (min(times), max(times))
    (scopes,) = find_note(caption.below, "setting").facts["notes"][:1]
    assert scopes.facts["placements"] == ["virtual"] and scopes.startswith("Nodes are ")


@pytest.mark.parametrize("spec", [RUN, EPOCH], ids=["run", "epoch"])
def test_the_bars_of_a_row_are_its_parts_end_to_end(spec, records):
    filtered = FigureSpec(spec.name, "shares", x=spec.x, filter=ONE_MODEL)
    figure, _ = shares_figure.draw(records, filtered)
    figure.draw_without_rendering()
    data = shares.run_time_parts(records)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    own_loop = "Ringside's loop, no accumulation"
    assert labels[::3] == [f"{own_loop}, {nodes} node{'s' * (nodes > 1)}" for nodes in (1, 2, 3)]
    for y, parts in bars(figure.axes[0]).items():
        nodes, loop, sync_every = y // 3 + 1, *[("custom", 1), ("custom", 4), ("fit", 1)][y % 3]
        runs = records.runs
        is_like = (runs["model"] == "small-cnn-600") & (runs["batch_size"] == 64) & (runs["nodes"] == nodes)
        cell = runs[is_like & (runs["training_loop"] == loop) & (runs["sync_every"] == sync_every)][
            "cell"
        ].iloc[0]
        assert all(a[0] + a[1] == pytest.approx(b[0]) for a, b in itertools.pairwise(parts))
        total = sum(width for _, width, _ in parts)
        if spec is EPOCH:
            assert total == pytest.approx(100)
            assert len(parts) == (1 if nodes == 1 else 2)
            if nodes > 1:
                assert parts[1][1] == pytest.approx(100 * data.loc[cell, "communication"])
        else:
            assert total == pytest.approx(data.loc[cell, "wall_s"])
            assert [width for _, width, _ in parts] == pytest.approx(
                [data.loc[cell, name] for name in shares.PARTS if data.loc[cell, name] > 0]
            )


def test_the_interval_stands_around_where_communication_begins(records):
    figure, caption = shares_figure.draw(records, FigureSpec("shares", "shares", x="epoch", filter=ONE_MODEL))
    data = shares.epoch_shares(records.runs)
    lines = [
        line for line in figure.axes[0].lines if len(line.get_xdata()) == 2 and line.get_color() == style.INK
    ]
    assert len(lines) == 6, "of the cells on two and three nodes"
    for line in lines:
        (start,) = [left for left, _, _ in bars(figure.axes[0])[round(line.get_ydata()[0])][1:]]
        assert min(line.get_xdata()) <= start <= max(line.get_xdata())
    ends = sorted(min(line.get_xdata()) for line in lines)
    expected = data[
        data.index.str.contains("small-cnn-600")
        & data.index.str.contains("b64")
        & data["communication_high"].notna()
    ]
    assert ends == pytest.approx(sorted(100 * (1 - expected["communication_high"])))
    assert "training-divided" in codes(caption.endnotes)


def test_panels_share_an_axis_within_a_model(records):
    figure, caption = shares_figure.draw(records, RUN)
    figure.draw_without_rendering()
    assert figure.axes[0].get_title() == "small-cnn, batch size 32"
    assert len(figure.axes) == 6 and figure.get_figheight() < 5
    limits = {ax.get_title().split(",")[0]: ax.get_xlim() for ax in figure.axes}
    assert len(set(limits.values())) == 2
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["start-up", *list(shares.PARTS.values())[2:4], "validation", "other"], (
        "no warm-up was longer"
    )
    assert {"parts-around-epochs", "training-divided"} <= set(codes(caption.endnotes))
    assert (
        conditions.measurement_note(records.runs) in caption
        and conditions.run_counts_note(records.runs, False) in caption
    )
    assert "nan" not in caption


def test_neighbours_differ_in_grey_by_lightness_or_hatching():
    def grey(name):
        colour = shares_figure.PART_STYLES[name][0]
        return np.dot([0.299, 0.587, 0.114], [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])

    divided = ["startup_s", "warm_up_s", "computation_s", "communication_s", "validation_s", "rest_s"]
    undivided = ["startup_s", "warm_up_s", "training_s", "validation_s"]
    for order in (divided, undivided):
        for first, second in itertools.pairwise(order):
            hatched = shares_figure.PART_STYLES[first][1] != shares_figure.PART_STYLES[second][1]
            assert hatched or abs(grey(first) - grey(second)) > 0.15, (first, second)
    assert set(shares_figure.PART_STYLES) == set(shares.PARTS)


def case_of(case):
    runs, epochs = timed(*designed_campaign())
    match case:
        case "no wall time":
            runs = runs.assign(wall_s=None)
        case "no cell on one device":
            runs = runs[runs["nodes"] > 1]
        case "too short":
            runs.loc[runs["nodes"] == 3, "epoch_time_s"] *= 0.1
        case "a cell failed":
            runs.loc[runs["cell"] == runs["cell"].iloc[0], ["status", "epoch_time_s"]] = ["failed", None]
        case "some tell no wall time":
            runs.loc[runs["nodes"] == 2, "wall_s"] = None
        case "steps were not counted":
            runs = runs.assign(steps=None)
    return runs, epochs[epochs["run_id"].isin(runs["run_id"])]


CODES = {
    "no cell on one device": "training-not-divided",
    "steps were not counted": "training-not-divided",
    "too short": "cells-without-communication",
}


@pytest.mark.parametrize("spec", [RUN, EPOCH], ids=["run", "epoch"])
@pytest.mark.parametrize(
    "case",
    [
        "no wall time",
        "no cell on one device",
        "too short",
        "a cell failed",
        "some tell no wall time",
        "steps were not counted",
    ],
)
def test_it_is_drawn_whatever_the_campaign_holds(case, spec, tmp_path):
    records = Records(*write_frames(tmp_path, *case_of(case)))
    figure, caption = shares_figure.draw(records, spec)
    figure.draw_without_rendering()
    texts = {text.get_text().replace("\n", " ") for ax in figure.axes for text in ax.texts}
    is_empty = case == "no wall time" and spec is RUN
    if is_empty:
        assert why_not_drawn(caption)["why"] == shares_figure.NO_WALL_TIME.code
    elif case == "some tell no wall time" and spec is RUN:
        assert texts == {shares_figure.CELL_WITHOUT_WALL_TIME}
    elif case == "a cell failed":
        assert texts == {captions.NO_SUCCESS}
    assert conditions.measurement_note(records.runs) in caption
    assert is_empty or conditions.run_counts_note(records.runs, False) in caption
    if case in CODES:
        facts = find_note(caption.endnotes, CODES[case]).facts
        all_cells = set(records.runs["cell"])
        expected = {
            "too short": {cell for cell in all_cells if ".n3." in cell},
            "no cell on one device": all_cells,
        }
        multi_node = {cell for cell in all_cells if ".n1." not in cell}
        assert set(facts["cells"]) == expected.get(case, multi_node)
    assert caption.endswith(".") and "nan" not in caption


def test_caption_judges_efficiencies_above_100_percent():
    folder = CHECKOUT / "docs" / "campaigns" / "quickstart"
    records = Records(folder / "runs.csv", folder / "epochs.csv")
    _, caption = scaling.draw(records, FigureSpec("scaling", "scaling"))
    note = find_note(caption.below, "above-ideal")
    assert note.facts == {"cells": ["horovod-tensorflow.small-cnn.digits.b16.n1.s1"], "significant": False}
