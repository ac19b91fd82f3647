"""Runs, blocks, waits and the slope in the figure of drift agree with its table."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis import drift as of_table
from analysis import tables
from analysis.adjusted import NO_REFERENCE, adjust_for_speed, adjusted_tables_note
from analysis.adjusted import interval_gain_note as said_of_widths
from analysis.records import Records
from common.notes import find_note
from declared.figure_specs import FigureSpec
from figures.kinds import drift
from support.captions import why_not_drawn
from support.synthetic import campaign, referenced, write_frames

SPEC = FigureSpec("drift", "drift")
APART_S, LASTS_S, GAP_S = 25, 18, 6 * 3600


def with_clocks(runs, gap_after_block=1):
    """Runs one after the other, with a night after one block."""
    place = runs["order_key"].rank().to_numpy() - 1
    since = APART_S * place + GAP_S * (runs["block"].to_numpy() > gap_after_block)
    start = pd.Timestamp("2026-11-26T08:00:00Z") + pd.to_timedelta(since, unit="s")
    ends = start + pd.Timedelta(seconds=LASTS_S)
    times = {"started_at": start, "ended_at": ends}
    return runs.assign(**{name: at.strftime("%Y-%m-%dT%H:%M:%SZ") for name, at in times.items()})


def records(folder, runs, epochs):
    return Records(*write_frames(folder, runs, epochs))


@pytest.fixture(scope="module")
def campaign_records(tmp_path_factory):
    runs, epochs = campaign()
    return records(tmp_path_factory.mktemp("drift"), with_clocks(referenced(runs)), epochs)


def labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def dots(ax):
    return next(line for line in ax.lines if line.get_marker() == "o")


def test_every_run_has_a_place_in_all_four_panels(campaign_records):
    figure, caption = drift.draw(campaign_records, SPEC)
    figure.draw_without_rendering()
    data = of_table.drift_by_run(campaign_records.runs)
    bottom, top, middle, covariate_ax = figure.axes
    for ax, column in ((top, "reference"), (middle, "epoch_time")):
        assert dots(ax).get_ydata() == pytest.approx(100 * (data[column] - 1).to_numpy())
        places = dots(ax).get_xdata()
        assert (np.diff(places) > 0).all()
    (segments,) = top.collections[:1]
    ends = np.array(segments.get_segments())
    assert ends[:, :, 1] == pytest.approx(100 * (data[["before", "after"]].to_numpy() - 1))
    waits = next(line for line in top.lines if line.get_marker() == "v")
    assert len(waits.get_xdata()) == (data["waited_s"] > 0).sum() > 0
    heights = [patch.get_height() for patch in bottom.containers[0]]
    assert heights == pytest.approx((100 * data["steal_share"]).tolist())
    adjusted = adjust_for_speed(campaign_records.runs)
    slope = adjusted.slopes_alone[adjusted.leading_covariate].values[0]
    x, y = dots(covariate_ax).get_data()
    assert np.polyfit(np.log1p(x / 100), np.log1p(y / 100), 1)[0] == pytest.approx(slope)
    assert (
        covariate_ax.get_title()
        == f"slope {tables.interval(adjusted.slopes_alone[adjusted.leading_covariate].estimates[0])}"
    )
    levels = [line for line in top.lines if line.get_linewidth() == 1.0 and len(line.get_xdata()) == 2]
    assert len(levels) == campaign_records.runs["block"].nunique()
    assert 0 < bottom.get_xlim()[1] < 2.5, "the night is cut"
    assert find_note(caption.notes, "runs-waited").facts["runs"] == (data["waited_s"] > 0).sum() == 9
    assert find_note(caption.notes, "correlation").facts["reference"] == pytest.approx(0.99, abs=0.005)
    assert (
        list(adjusted.adjusted_means.slopes.covariates) == ["lost_cpu_time"]
        and adjusted_tables_note(adjusted) in caption
    )
    assert top.get_ylim()[1] > ends[:, :, 1].max() and bottom.get_xlim()[0] == 0
    assert [text.get_text() for text in middle.texts] == ["6.0 h"]
    assert "CPU steal" in labels(figure)


@pytest.mark.parametrize("case", ["no reference", "no clock", "one run", "nothing told of others"])
def test_it_is_drawn_whatever_there_is(case, tmp_path):
    runs, epochs = campaign()
    runs = with_clocks(referenced(runs))
    match case:
        case "no reference":
            runs = campaign()[0]
        case "no clock":
            runs = runs.assign(started_at=None)
        case "one run":
            runs = runs[runs["status"] == "ok"][:1]
        case "nothing told of others":
            runs = runs.assign(steal_share=None, other_cpu_share=None)
    case_records = records(tmp_path, runs, epochs)
    figure, caption = drift.draw(case_records, SPEC)
    figure.draw_without_rendering()
    table = of_table.table(case_records.runs)
    assert "nan" not in caption and "nan" not in tables.markdown(table)
    if case == "no reference":
        assert why_not_drawn(caption) and table.display.empty
        assert NO_REFERENCE in caption and NO_REFERENCE in table.notes[0]
    if case == "no clock":
        assert figure.axes[0].get_xlabel() == "run, in order"
    if case == "nothing told of others":
        assert [text.get_text() for text in figure.axes[0].texts] == [drift.NO_SHARES]


def test_runs_before_the_first_reference_are_drawn(tmp_path):
    runs, epochs = campaign()
    runs = with_clocks(referenced(runs)).assign(steal_share=0.001, other_cpu_share=0.5)
    runs.loc[runs["order_key"].rank() <= 60, "reference_s"] = None
    late_records = records(tmp_path, runs, epochs)
    figure, caption = drift.draw(late_records, SPEC)
    figure.draw_without_rendering()
    table = of_table.table(late_records.runs)
    ok = late_records.runs[late_records.runs["status"] == "ok"]
    n_missing = int(ok["reference_s"].isna().sum())
    assert find_note(caption.notes, "runs-without-reference").facts["runs"] == n_missing
    assert (
        adjust_for_speed(late_records.runs).adjusted_means is None
        and adjusted_tables_note(adjust_for_speed(late_records.runs)) in table.notes
    )
    assert sum(f" {n_missing} " in note for note in table.notes) == 2, "in the table, too"
    logs = np.log(ok["epoch_time_s"].astype(float))
    deviation = 100 * np.expm1(logs - logs.groupby(ok["cell"]).transform("mean"))
    assert sorted(dots(figure.axes[2]).get_ydata()) == pytest.approx(sorted(deviation)), (
        "of all runs of the cell"
    )
    assert figure.axes[0].get_xlim()[0] == 0 < dots(figure.axes[2]).get_xdata()[0] < APART_S / 3600
    assert table.data["n"].sum() == 110 - n_missing
    assert "CPU steal" not in labels(figure)
    assert find_note(caption.notes, "steal-not-seen").facts["most"] == 0.001


def test_excluded_and_extreme_runs_are_drawn(tmp_path):
    runs, epochs = campaign()
    runs = with_clocks(referenced(runs)).assign(other_cpu_share=0.01, max_other_cpu_share=0.05)
    ok = runs.index[runs["status"] == "ok"]
    runs.loc[ok[:3], ["status", "other_cpu_share"]] = ["invalid", 0.24]
    runs.loc[ok[10], ["reference_s", "reference_after_s"]] *= 4
    figure, caption = drift.draw(records(tmp_path, runs, epochs), SPEC)
    bottom, top, *_ = figure.axes
    excluded = next(line for line in bottom.lines if line.get_markerfacecolor() == "white")
    n_excluded = int(((runs["status"] != "ok") & runs["started_at"].notna()).sum())
    assert len(excluded.get_xdata()) == n_excluded >= 3
    assert max(excluded.get_ydata()) == pytest.approx(24) and bottom.get_ylim()[1] > 24
    assert any(np.allclose(line.get_ydata(), 5.0) for line in bottom.lines), "the limit"
    assert (
        top.get_ylim()[1] < 0.6 * max(dots(top).get_ydata())
        and sum("%" in text.get_text() for text in top.texts) == 1
    )
    assert find_note(caption.notes, "excluded-runs-drawn")
    assert find_note(caption.notes, "axis-cut").facts["runs"] == 1


def test_the_table_has_a_row_for_each_block(campaign_records):
    data = of_table.drift_by_block(of_table.drift_by_run(campaign_records.runs))
    ok = campaign_records.runs[campaign_records.runs["status"] == "ok"]
    assert data["block"].tolist() == sorted(set(ok["block"]))
    for row in data.itertuples():
        block = ok[ok["block"] == row.block]
        usual = np.log(ok["reference_s"]).groupby(ok["nodes"]).transform("median").loc[block.index]
        ratios = block["reference_s"] / np.exp(usual)
        assert row.n == len(block)
        assert (row.reference_lowest, row.reference_highest) == pytest.approx((ratios.min(), ratios.max()))
        assert row.reference == pytest.approx(math.exp(np.log(ratios).mean()))
        assert (row.waited, row.waited_s) == ((block["waited_s"] > 0).sum(), block["waited_s"].sum())
        assert row.steal_share == pytest.approx(block["steal_share"].mean())
        assert row.started_at == block["started_at"].min()
    notes = " ".join(of_table.table(campaign_records.runs).notes)
    assert "0.85" in notes, "the correlation over the whole campaign"
    assert said_of_widths(adjust_for_speed(campaign_records.runs)) in notes
