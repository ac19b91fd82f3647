"""The timeline shows when and where every run ran, and failures, for any number of runs."""

import itertools
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba

from analysis import conditions
from analysis.records import Records
from common.files import CHECKOUT
from common.notes import codes, find_note
from declared.figure_specs import FigureSpec
from figures import style
from figures.kinds import timeline
from support.captions import why_not_drawn
from support.pages import on_one_line
from support.synthetic import campaign, designed_campaign, write_frames

SPEC = FigureSpec("timeline", "timeline")
FIRST = pd.Timestamp("2026-11-21T06:00:00Z")
RUN_S, PAUSE_S, STARTUP_S = 30.0, 6.0, 12.0


def scheduled(runs, hosts=None, night_after=None):
    """Return the runs one after the other in their order, each RUN_S long.

    After `night_after` of them there is a gap of 14 hours.
    """
    start = np.arange(len(runs)) * (RUN_S + PAUSE_S)
    if night_after:
        start[night_after:] += 14 * 3600
    place = FIRST + pd.to_timedelta(start, unit="s")
    with_times = runs.assign(
        started_at=[f"{at:%Y-%m-%dT%H:%M:%S}.000Z" for at in place],
        ended_at=[f"{at + pd.Timedelta(seconds=RUN_S):%Y-%m-%dT%H:%M:%S}.000Z" for at in place],
        startup_s=STARTUP_S,
        hosts=hosts if hosts is not None else "one",
        session=["evening" if night_after and row < night_after else "morning" for row in range(len(runs))],
    )
    is_missing = with_times["status"] == "missing"
    with_times.loc[is_missing, ["started_at", "ended_at", "startup_s", "hosts", "session"]] = None
    return with_times


@pytest.fixture
def drawn_of(tmp_path):
    def drawn_of(runs, epochs, spec=SPEC):
        figure, caption = timeline.draw(Records(*write_frames(tmp_path, runs, epochs)), spec)
        figure.draw_without_rendering()
        return figure, caption

    return drawn_of


def boxes(figure):
    """Return left, right (hours, without cuts), lane and colour of every bar."""
    bars = []
    for ax in figure.axes:
        for collection in ax.collections:
            colours = collection.get_facecolors()
            for number, path in enumerate(collection.get_paths()):
                x, y = path.vertices[:4].T
                bars.append(
                    (x.min(), x.max(), round((y.min() + y.max()) / 2), tuple(colours[number % len(colours)]))
                )
    return [box for box in bars if box[2] >= 0]


def lanes(figure):
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_a_run_is_a_bar_on_each_of_its_hosts(drawn_of):
    runs, epochs = designed_campaign()
    runs = runs.head(30)
    hosts = [" ".join(f"node{number}" for number in range(9, 9 + nodes)) for nodes in runs["nodes"]]
    figure, caption = drawn_of(scheduled(runs, hosts), epochs)
    assert lanes(figure) == ["node9", "node10", "node11"]
    assert len(boxes(figure)) == 2 * runs["nodes"].sum(), "start-up and the rest, on every host"
    third = next(row for row, nodes in enumerate(runs["nodes"]) if nodes == 3)
    start = third * (RUN_S + PAUSE_S)
    own = [box for box in boxes(figure) if start - 1 < 3600 * box[0] < start + RUN_S - 1]
    assert sorted({lane for *_, lane, _ in own}) == [0, 1, 2]
    ends = sorted(
        {(round(3600 * left - start, 3), round(3600 * right - start, 3)) for left, right, *_ in own}
    )
    assert ends == [(0, STARTUP_S), (STARTUP_S, RUN_S)]
    assert find_note(caption.notes, "heading").facts == {"lanes": ["host"]}
    span = find_note(caption.notes, "campaign-span")
    assert span == "30 runs from 2026-11-21 06:00 to 06:17 UTC, 84 % of 18 min in runs; longest gap 6.0 s."
    assert (span.facts["runs"], span.facts["first"]) == (30, FIRST)
    assert span.facts["total_s"] == pytest.approx(30 * (RUN_S + PAUSE_S) - PAUSE_S)
    assert span.facts["share"] == pytest.approx(30 * RUN_S / span.facts["total_s"])


@pytest.mark.parametrize(
    ("runs", "unit", "highest"), [(3, "seconds", 106), (30, "minutes", 18), (270, "hours", 3)]
)
def test_a_short_campaign_has_its_axis_in_minutes_or_seconds(drawn_of, runs, unit, highest):
    all_runs, epochs = designed_campaign()
    figure, _ = drawn_of(scheduled(all_runs.head(runs)), epochs)
    assert figure.axes[-1].get_xlabel() == f"{unit} since the first run started"
    ticks = [float(label.get_text()) for ax in figure.axes for label in ax.get_xticklabels()]
    assert 0.6 * highest <= max(ticks) <= highest and len(ticks) >= 3


def test_on_one_machine_lanes_are_frameworks_in_their_colours(drawn_of):
    runs, epochs = campaign(replicates=1, failures={})
    figure, caption = drawn_of(scheduled(runs), epochs)
    assert lanes(figure) == sorted(set(runs["framework"]), key=list(lanes(figure)).index)
    assert lanes(figure)[:2] == ["pytorch-single", "tensorflow-single"]
    lane = lanes(figure).index("pytorch-ddp")
    colours = {colour for _, _, at, colour in boxes(figure) if at == lane}
    assert to_rgba(style.FRAMEWORK_STYLES["pytorch-ddp"].colour) in colours and len(colours) == 2
    light, full = sorted(colours, key=sum, reverse=True)
    assert full == to_rgba(style.FRAMEWORK_STYLES["pytorch-ddp"].colour)
    assert all(a > b for a, b in zip(light[:3], full[:3], strict=True))
    assert find_note(caption.notes, "heading").facts == {"lanes": ["framework"]}


def test_every_other_block_is_shaded_unless_blocks_overlap(drawn_of):
    runs, epochs = campaign(failures={})
    in_order = scheduled(runs.sort_values("block", kind="stable"))
    overlapping = in_order.assign(ended_at=in_order["ended_at"].max())
    for ordered, names, n_shaded in ((in_order, ["block 1", "2", "3"], 1), (overlapping, [], 0)):
        figure, caption = drawn_of(ordered, epochs)
        named = [text.get_text() for ax in figure.axes for text in ax.texts]
        shades = {round(patch.get_x(), 6) for ax in figure.axes for patch in ax.patches}
        assert ([name for name in named if name in names], len(shades)) == (names, n_shaded)
        assert ("blocks-shaded" in codes(caption.notes)) == bool(names)


def test_what_went_wrong_has_a_symbol_each_and_is_counted(drawn_of, tmp_path):
    runs, epochs = campaign()
    runs = scheduled(runs)
    runs.loc[runs["status"] == "timeout", "startup_s"] = None
    runs.loc[runs.index[-1], ["status", "epoch_time_s"]] = ["oom", None]
    figure, caption = drawn_of(runs, epochs)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [
        *("start-up", "rest of the run", "unknown start-up"),
        *("oom (1)", "failed (1)", "timeout (1)", "invalid (1)"),
    ]
    marks = [line for ax in figure.axes for line in ax.lines if len(line.get_xdata())]
    assert sorted(line.get_marker() for line in marks) == sorted(timeline.SYMBOLS.values())
    failed = runs.reset_index()[runs["status"].to_numpy() == "failed"].index[0]
    at = next(line for line in marks if line.get_marker() == timeline.SYMBOLS["failed"]).get_xdata()
    assert 3600 * at == pytest.approx(failed * (RUN_S + PAUSE_S) + RUN_S / 2)
    note = find_note(caption.notes, "runs-without-times")
    assert note.facts == {"runs": 1}
    assert (
        conditions.measurement_note(Records(tmp_path / "runs.csv", tmp_path / "epochs.csv").runs) in caption
    )


def test_a_failed_run_that_tells_no_host_has_a_lane_of_its_own(drawn_of):
    runs, epochs = designed_campaign()
    runs = runs.head(12)
    hosts = [" ".join(f"node{number}" for number in range(1, 1 + nodes)) for nodes in runs["nodes"]]
    runs = scheduled(runs, hosts)
    runs.loc[runs.index[4], ["status", "hosts", "epoch_time_s"]] = ["failed", None, None]
    figure, _ = drawn_of(runs, epochs[epochs["run_id"] != runs["run_id"].iloc[4]])
    assert lanes(figure)[-1] == timeline.UNKNOWN_HOST
    assert {lane for _, _, lane, _ in boxes(figure)} == {0, 1, 2, 3}


def test_a_night_without_runs_is_cut_and_said(drawn_of):
    runs, epochs = campaign(replicates=1, failures={})
    figure, caption = drawn_of(scheduled(runs, night_after=10), epochs)
    assert figure.axes[0].get_xlim()[1] < 0.4, "the axis has the hours of the runs, not those of the night"
    ticks = [float(label.get_text()) for label in figure.axes[0].get_xticklabels()]
    assert ticks == sorted(ticks) and ticks[0] == 0 and ticks[-1] > 14
    assert "14.0 h" in [text.get_text() for text in figure.axes[0].texts]
    assert "gaps-cut" in codes(caption.notes)


@pytest.mark.parametrize(
    ("rows", "runs", "max_runs"), [(1, 40, 90), (1, 85, 90), (3, 270, 90), (9, 2000, 300)]
)
def test_many_runs_go_on_in_rows_of_round_length(rows, runs, max_runs):
    length = runs * 36 / 3600
    count, width = timeline._row_layout(length, runs, 9)
    assert count <= rows and count * width >= length * (1 - 1e-9)
    assert runs * width / length <= 2 * max_runs


def test_every_bar_of_a_campaign_in_rows_is_drawn(drawn_of):
    runs, epochs = designed_campaign()
    figure, caption = drawn_of(scheduled(runs.sort_values("order_key")), epochs)
    assert len(figure.axes) == 3 and figure.get_figwidth() == style.PAGE_INCHES
    assert "rows-go-on" in codes(caption.notes)
    starts = {round(left * 3600) for left, *_ in boxes(figure)}
    assert {round(row * (RUN_S + PAUSE_S)) for row in range(len(runs))} <= starts
    limits = [ax.get_xlim() for ax in figure.axes]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(limits))


@pytest.mark.parametrize("case", ["not started", "no clock", "all failed"])
def test_it_says_why_it_is_empty_and_draws_whatever_there_is(case, drawn_of):
    runs, epochs = campaign(failures={})
    case_runs = scheduled(runs)
    match case:
        case "not started":
            case_runs = runs.assign(status="missing", reason="not run", epoch_time_s=None)
        case "no clock":
            case_runs = case_runs.assign(ended_at="2020-01-01T00:00:00.000Z")  # before it began
        case "all failed":
            case_runs = case_runs.assign(
                status="failed", reason="broken", epoch_time_s=None, startup_s=None, hosts=None
            )
    figure, caption = drawn_of(case_runs, epochs)
    if why := {"not started": timeline.NOT_STARTED, "no clock": timeline.NO_CLOCK}.get(case):
        assert [text.get_text() for text in figure.axes[0].texts] == [why]
        assert why_not_drawn(caption)["why"] == why.code
    else:
        assert boxes(figure)
    assert caption.endswith(".") and "nan" not in caption and "NaT" not in caption
    assert "interval" not in caption, "nothing is estimated here"


def test_a_filter_shows_a_part_in_the_same_colours(drawn_of):
    runs, epochs = campaign(failures={})
    spec = FigureSpec("timeline", "timeline", filter={"framework": ["pytorch-ddp", "horovod-pytorch"]})
    figure, caption = drawn_of(scheduled(runs), epochs, spec)
    assert set(lanes(figure)) >= {"pytorch-ddp", "horovod-pytorch"}
    assert "tensorflow-single" not in lanes(figure)
    assert find_note(caption.notes, "filtered").facts["levels"] == spec.filter


def test_the_kept_campaign_took_as_long_as_its_text_says():
    campaigns = CHECKOUT / "docs" / "campaigns"
    numbers = re.search(r"took (\d+) and (\d+) minutes, (\d+) and (\d+) % of it", on_one_line()).groups()
    for study, minutes, share in zip(("virtual", "unshaped"), numbers[:2], numbers[2:], strict=True):
        folder = campaigns / f"tf-strategies-{study}"
        _, caption = timeline.draw(Records(folder / "runs.csv", folder / "epochs.csv"), SPEC)
        span = find_note(caption.notes, "campaign-span").facts
        assert (f"{100 * span['share']:.0f}", f"{span['total_s'] / 60:.0f}") == (share, minutes)
