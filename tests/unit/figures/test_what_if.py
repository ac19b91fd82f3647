"""The figure what_if has a row for each change, with predicted and measured savings."""

import pandas as pd
import pytest

from analysis.records import Records
from common.notes import codes, find_note
from declared.figure_specs import FigureSpec
from figures import captions
from figures.kinds import what_if
from prediction.what_if import COLUMNS
from support.captions import why_not_drawn

SPEC = FigureSpec("what_if", "what_if")


def row(cell, question, change, ratio, **columns):
    return {
        "cell": cell,
        "question": question,
        "change": change,
        "runs": 3,
        "ratio": ratio,
        "ratio_low": ratio - 0.05,
        "ratio_high": ratio + 0.05,
        **columns,
    }


MEASURED = {
    "to_cell": "other",
    "measured_ratio": 0.6,
    "measured_ratio_low": 0.55,
    "measured_ratio_high": 0.65,
    "error": -0.04,
}
ROWS = [
    row("{}", "batch", "batch 2 times as large", 0.9),
    row("{}", "links", "links 2 times as fast", 0.5, **MEASURED),
    row("{}", "hidden", "communication fully overlapped", 0.4),
]


@pytest.fixture
def drawn(traced_records, tmp_path):
    """A function that draws rows of what_if.csv; `{}` stands for a traced cell."""

    def draw(rows, cells):
        every = [{**values, "cell": values["cell"].format(cell) or cell} for cell in cells for values in rows]
        file = tmp_path / "what_if.csv"
        pd.DataFrame(every).reindex(columns=COLUMNS).to_csv(file, index=False)
        return what_if.draw(
            Records(traced_records.runs_csv, traced_records.epochs_csv, {"what_if": file}), SPEC
        )

    return draw


@pytest.fixture
def traced_records(tmp_path):
    from support import known_physics

    runs = known_physics.runs(nodes=(2, 4), batches=(32,), rates=(62.5e6,))
    traced = runs.assign(trace="phases", run_id=runs["run_id"] + ".traced", cell=runs["cell"] + ".traced")
    known_physics.written(known_physics.joined(runs, traced), "runs", tmp_path)
    return Records(tmp_path / "runs.csv", tmp_path / "epochs.csv")


def traced_cells(records):
    runs = records.every_run
    return list(dict.fromkeys(runs.loc[runs["trace"] == "phases", "cell"]))


def places(ax, series_style):
    return [
        (x, y)
        for line in ax.lines
        if line.get_marker() == series_style.marker
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def test_one_change_a_row_in_the_order_of_questions(drawn, traced_records):
    picture, caption = drawn(ROWS, traced_cells(traced_records)[:1])
    (ax,) = picture.axes
    assert [text.get_text() for text in ax.get_yticklabels()] == [
        "links 2 times as fast",
        "communication fully overlapped",
        "batch 2 times as large",
    ]
    assert sorted(x for x, _ in places(ax, what_if.PREDICTED)) == pytest.approx([10, 50, 60])
    ((saved, y),) = places(ax, what_if.MEASURED)
    assert saved == pytest.approx(40)
    assert abs(y - 0) < 0.5  # beside its prediction, in the row of links
    errors = find_note(caption.notes, "errors")
    assert errors.facts == {"mean": 0.04, "most": 0.04}
    assert len(caption.split("\n\n")[0].split()) <= captions.MAX_CAPTION_WORDS


def test_a_panel_for_each_cell(drawn, traced_records):
    cells = traced_cells(traced_records)
    picture, caption = drawn(ROWS, cells)
    assert [ax.get_title() for ax in picture.axes] == ["2 nodes", "4 nodes"]
    assert "intervals" in codes(caption.notes)


def test_where_nothing_was_tried_nothing_is_said_of_errors(drawn, traced_records):
    picture, caption = drawn([ROWS[0]], traced_cells(traced_records)[:1])
    assert "errors" not in codes(caption.notes)
    assert [text.get_text() for legend in picture.legends for text in legend.get_texts()] == [
        "predicted by replay"
    ]


def test_without_traced_steps_it_says_why_it_is_empty(drawn):
    _, caption = drawn([], [])
    assert why_not_drawn(caption)["why"] == "no-trace"
