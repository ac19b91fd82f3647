"""Figures of traced runs show the steps, phases and critical path of a made-up campaign.

Figures of epoch times use untraced runs only.
"""

import matplotlib.colors
import pandas as pd
import pytest

from analysis import conditions
from analysis.level_words import OUT_OF_MEMORY_MARK
from analysis.records import Records, read_runs, traced
from common.notes import codes, find_note
from common.tables import write_table
from declared.figure_specs import FigureSpec
from figures import captions, phase_styles
from figures.kinds import critical_path, gantt, overview, phases, timeline
from figures.phase_styles import REST, TRANSFERRING, WAITING
from support.captions import why_not_drawn
from support.traces_made import attempt, gathered
from traces import cells

TRACED = "pytorch-ddp.small-cnn.digits.b32.n2.s1.trace=phases"
GANTT, PHASES, PATH = (FigureSpec(kind, kind) for kind in ("gantt", "phases", "critical_path"))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    gathered(folder, steps=6)
    files = {name: folder / f"{name}.csv" for name in ("phases", "trace_steps")}
    return Records(folder / "runs.csv", folder / "epochs.csv", files)


def single_levels(**levels) -> dict[str, list]:
    return {name: [level] for name, level in levels.items()}


def titles(figure) -> list[str]:
    return [ax.get_title(loc="left").partition(",")[0] for ax in figure.axes]


def test_a_gantt_has_a_panel_for_every_cell_on_several_ranks(records):
    figure, caption = gantt.draw(records, GANTT)
    assert titles(figure) == 4 * ["horovod-pytorch"] + 4 * ["pytorch-ddp"]
    assert all(
        [text.get_text() for text in ax.get_yticklabels()] == ["rank 0", "rank 1"] for ax in figure.axes
    )
    assert find_note(caption.notes, "cells-left-out").facts == {"drawn": 8, "cells": 19}
    assert len(caption.split("\n\n")[0].split()) <= captions.MAX_CAPTION_WORDS


def test_a_gantt_of_too_many_cells_has_the_largest(records, monkeypatch):
    monkeypatch.setattr(gantt, "MAX_HEIGHT_INCHES", 2.0)
    figure, caption = gantt.draw(records, GANTT)
    assert titles(figure) == ["horovod-pytorch", "pytorch-ddp"]
    assert find_note(caption.notes, "cells-left-out").facts == {"drawn": 2, "cells": 19}


def test_a_gantt_draws_what_was_kept(records):
    """One cell has six steps of 30.6 ms, of which three set the axis.

    Each rank has phases and communication, and each step has a path.
    """
    spec = FigureSpec(
        "gantt", "gantt", filter=single_levels(framework="pytorch-ddp", nodes=2, batch_size=32, sync_every=1)
    )
    figure, caption = gantt.draw(records, spec)
    (ax,) = figure.axes
    assert ax.get_xlim() == pytest.approx((0, 3 * 20 * 1.5 * 1.02), rel=1e-3)
    colour = matplotlib.colors.to_rgba(phase_styles.PHASE_STYLES["backward"][0])
    backward = [collection for collection in ax.collections if tuple(collection.get_facecolor()[0]) == colour]
    assert sorted(len(collection.get_paths()) for collection in backward) == [3, 3]  # of each rank
    widths = sorted(round(path.get_extents().width, 2) for path in backward[0].get_paths())
    assert widths == pytest.approx([6 * 1.5 * 1.02] * 3, abs=0.02)
    paths = [line for line in ax.lines if len(line.get_xdata()) == 4]
    assert len(paths) == 3
    facts = find_note(caption.notes, "ranks-wait").facts
    assert facts["least"] == facts["most"] == pytest.approx(0.28, abs=0.005)


def test_of_many_ranks_three_are_drawn(records, tmp_path):
    run = records.table("trace_steps")["run_id"].iloc[0]
    twelve_ranks = attempt([float(rank) / 4 for rank in range(12)], epochs=2, steps=5)
    twelve_ranks = twelve_ranks[(twelve_ranks["epoch"] == 2) & (twelve_ranks["step"] > 0)].drop_duplicates()
    write_table(twelve_ranks.assign(run_id=run), "trace_steps", tmp_path / "steps.csv")
    figure, caption = gantt.draw(
        Records(records.runs_csv, records.epochs_csv, {"trace_steps": tmp_path / "steps.csv"}), GANTT
    )
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["rank 11", "rank 6", "rank 0"]
    assert "ranks-left-out" in codes(caption.notes)


def test_waiting_is_divided_into_what_is_exposed(records):
    measured = cells.select_traced(records.every_run, records.table("phases"))
    parts = phases.parts(measured, in_ms=False)
    assert parts.sum(axis=1).to_numpy() == pytest.approx(100)
    cell_parts = parts.loc[TRACED]
    assert (
        cell_parts["backward"],
        cell_parts[TRANSFERRING],
        cell_parts[WAITING],
        cell_parts[REST],
    ) == pytest.approx((32.5, 27.5, 0, 0), abs=0.01)
    in_ms = phases.parts(measured, in_ms=True).loc[TRACED]
    assert in_ms.sum() == pytest.approx(20 * 1.5 * 1.02, rel=1e-3)
    assert phases.overlapped(measured, in_ms=False)[TRACED] == pytest.approx(100 * 2 / 20, abs=0.01)


@pytest.mark.parametrize(
    ("kind", "spec"),
    [(phases, PHASES), (phases, FigureSpec("phases", "phases", x="time")), (critical_path, PATH)],
)
def test_a_bar_for_every_traced_cell(records, kind, spec):
    figure, caption = kind.draw(records, spec)
    bars = sum(
        len({round(bar.get_y(), 3) for bar in ax.patches if bar.get_height() > 0.5}) for ax in figure.axes
    )
    assert bars == 19
    assert len(caption.split("\n\n")[0].split()) <= captions.MAX_CAPTION_WORDS
    facts = conditions.measurement_note(traced(records.every_run)).facts
    missing = [note for note in facts["notes"] if note not in caption]
    assert not missing


def rounded(caption, code):
    facts = find_note(caption.notes, code).facts
    return round(facts["least"], 2), round(facts["most"], 2)


def test_a_caption_is_of_the_cells_that_are_drawn(records):
    one_cell = FigureSpec(
        "phases",
        "phases",
        filter=single_levels(framework="pytorch-ddp", nodes=2, batch_size=32, sync_every=1),
    )
    caption = phases.draw(records, one_cell)[1]
    assert rounded(caption, "exposed-share") == (0.27, 0.27)
    alone = FigureSpec("phases", "phases", filter=single_levels(nodes=1))
    assert "exposed-share" not in codes(phases.draw(records, alone)[1].notes)


def test_traced_cells_out_of_memory_are_marked(records, tmp_path):
    table = read_runs(records.runs_csv)
    is_out = (table["trace"] != "none") & (table["n_devices"] > 1)
    table.loc[is_out, ["status", "epoch_time_s"]] = ["oom", None]
    write_table(table.drop(columns="n_devices"), "runs", tmp_path / "runs.csv")
    figure, _ = phases.draw(Records(tmp_path / "runs.csv", records.epochs_csv, records.files), PHASES)
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert texts.count(OUT_OF_MEMORY_MARK) == table.loc[is_out, "cell"].nunique()


@pytest.mark.parametrize(("kind", "spec"), [(gantt, GANTT), (phases, PHASES), (critical_path, PATH)])
def test_without_phases_a_figure_says_so(records, kind, spec):
    _, caption = kind.draw(Records(records.runs_csv, records.epochs_csv), spec)
    assert why_not_drawn(caption) and cells.NO_PHASES in caption


def test_figures_of_time_are_those_of_the_untraced_runs_alone(records, tmp_path):
    all_runs = read_runs(records.runs_csv)
    untraced = all_runs[all_runs["trace"] == "none"]
    write_table(untraced.drop(columns="n_devices"), "runs", tmp_path / "runs.csv")
    alone = Records(tmp_path / "runs.csv", records.epochs_csv)
    spec = FigureSpec("overview", "overview")
    assert overview.draw(records, spec)[1] == overview.draw(alone, spec)[1]
    assert len(records.runs) == len(untraced) == len(all_runs) / 2
    assert set(records.epochs["run_id"]) == set(untraced["run_id"])


def test_the_timeline_has_all_runs(records, tmp_path):
    every = read_runs(records.runs_csv)
    begun = pd.Timestamp("2026-11-20T12:00:00Z") + pd.to_timedelta(range(len(every)), unit="min")
    at = every.assign(
        started_at=begun.strftime("%Y-%m-%dT%H:%M:%SZ"),
        ended_at=(begun + pd.Timedelta("50s")).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    write_table(at.drop(columns="n_devices"), "runs", tmp_path / "runs.csv")
    _, caption = timeline.draw(
        Records(tmp_path / "runs.csv", records.epochs_csv), FigureSpec("timeline", "timeline")
    )
    assert find_note(caption.notes, "campaign-span").facts["runs"] == 114
    assert not {"runs-without-times", "earlier-attempts"} & set(codes(caption.notes))
