"""Draw where time goes in every cell: the wall time of a run, or the time of an epoch."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from analysis import conditions, shares
from analysis.records import Records
from common.notes import Note
from declared.figure_specs import FigureSpec
from figures import captions, panels, stacks, style
from figures.view import build_view

BAR = 0.74  # height, as a share of a row
EPOCH = "epoch"
CELL_WITHOUT_WALL_TIME = "no wall time"
# Neighbours also differ in grey, by lightness or hatching.
PART_STYLES: Mapping[str, tuple[str, str]] = {
    "startup_s": ("#dddddd", ""),
    "warm_up_s": ("#c8c8c8", "xxxxx"),
    "computation_s": ("#2b4a7a", ""),
    "communication_s": ("#ee9a5f", ""),
    "training_s": ("#7d8fae", "/////"),
    "validation_s": ("#3c6e47", ""),
    "rest_s": ("#ffffff", ""),
}
RUNS_LEAD = "Mean wall time of a run by part, from launch to end."
EPOCHS_LEAD = "Mean epoch time by part."
NO_WALL_TIME = Note("no-wall-time", "no run recorded its start-up and its wall time")
PARTS_NOTE = Note(
    "parts-around-epochs",
    "Start-up: until all ranks reached the first barrier. Warm-up: the extra time of the warm-up epochs, "
    "which include the first step, compared with as many timed epochs, at least 0. Validation: after every "
    "epoch. Other: work around epochs, and the end of the processes.",
)
DIVISION_NOTE = Note(
    "training-divided",
    "Computation: the batches of an epoch times the time of a batch of the same framework, model, data set, "
    "local batch and treatment on one device. Rest: what remains of the epoch, that is communication, "
    "waiting for the slowest rank, contention for cores and memory, and any other cost of more devices. "
    "Black lines: 95 % intervals of the point where the rest begins, from the ratio of the mean epoch times "
    "of both cells.",
)
REST_NOTE = Note(
    "rest-interval",
    "Rest: epoch time beyond computation; black lines: interval of where it begins.",
)
ONE_DEVICE_NOTE = Note("one-device-computes", "On one device all epoch time counts as computation.")
NO_SINGLE_DEVICE_CELL = Note(
    "no-cell-on-one-device",
    "no cell on one device was measured with the same framework, model, data set, local batch and treatment",
)
NOT_COUNTED = Note("batches-not-counted", "batches were not counted")
ALL_EPOCHS = "Computation and rest are extrapolated from the timed epochs to all epochs, in the same shares."


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with a row per cell, and its caption."""
    view, by_run = build_view(records.runs, spec), spec.x != EPOCH
    data = (
        shares.run_time_parts(records, view.runs)
        if by_run
        else _in_percent(shares.epoch_shares(records.runs))
    )
    data = data[data.index.isin(view.ok["cell"])]
    if data.empty:
        return panels.empty_figure(view.runs, captions.NO_SUCCESS if view.ok.empty else NO_WALL_TIME)
    figure, view = stacks.draw_stacks(
        view,
        data[[name for name in shares.PARTS if name in data]],
        "wall time of a run (s)" if by_run else "share of the epoch (%)",
        _part_style,
        lambda parts: [Patch(label=shares.PARTS[name], **_part_style(name)) for name in parts],
        lambda ax, y, row, _: _draw_interval(ax, y, data.loc[row.name]),
        absence=CELL_WITHOUT_WALL_TIME,
        bar=BAR,
        has_one_axis=not by_run,
        margin=1.02 if by_run else 1.0,
    )
    drawn = data[data.index.isin(view.ok["cell"])]
    has_one_device = drawn["alone"].eq(drawn.index).any()
    endnotes = [
        PARTS_NOTE if by_run else "",
        *_division_notes(drawn, by_run),
    ]
    return figure, view.caption(
        RUNS_LEAD if by_run else EPOCHS_LEAD,
        REST_NOTE if drawn["communication"].notna().any() else "",
        ONE_DEVICE_NOTE if has_one_device else "",
        endnotes=endnotes,
        with_intervals=False,
    )


def _in_percent(data: pd.DataFrame) -> pd.DataFrame:
    """Return `shares.epoch_shares` with the parts of an epoch in %."""
    communication = data["communication"].clip(0, 1)
    parts = {
        "computation_s": 1 - communication,
        "communication_s": communication,
        "training_s": communication.isna().astype(float),
    }
    return data.assign(**{name: 100 * share.fillna(0) for name, share in parts.items()})


def _draw_interval(ax: Axes, y: float, cell: pd.Series) -> None:
    """Draw the interval of the border between computation and communication in the bar of a cell."""
    if not (pd.notna(cell["communication_low"]) and cell["communication_high"] > 0):
        return
    ends = [1 - min(max(cell[f"communication_{end}"], 0), 1) for end in ("high", "low")]
    before = sum(cell.get(name, 0.0) for name in ("startup_s", "warm_up_s"))
    training = cell["computation_s"] + cell["communication_s"]
    line = ax.plot([before + training * end for end in ends], [y, y], color=style.INK, zorder=4)[0]
    line.set(
        linewidth=0.8, solid_capstyle="butt", path_effects=[withStroke(linewidth=2.0, foreground="white")]
    )


def _part_style(name: str) -> dict[str, Any]:
    colour, hatch = PART_STYLES[name]
    return {
        "facecolor": colour,
        "edgecolor": style.MUTED if hatch or name == "rest_s" else "white",
        "hatch": hatch or None,
        "linewidth": 0.3,
    }


def _division_notes(data: pd.DataFrame, by_run: bool) -> list[str]:
    """Return notes on how computation and communication are separated, and in which cells they are not."""
    undivided, below_zero = data["communication"].isna(), data.index[data["communication"] < 0].tolist()
    notes: list[str] = [] if undivided.all() else [DIVISION_NOTE, ALL_EPOCHS if by_run else ""]
    if below_zero:
        names = conditions.join_names(below_zero)
        text = f"Without a rest, because computation alone would take longer than the epoch: {names}."
        notes.append(Note("cells-without-communication", text, cells=below_zero))
    for why, missing in (
        (NO_SINGLE_DEVICE_CELL, undivided & (data["alone"] == "")),
        (NOT_COUNTED, undivided & (data["alone"] != "")),
    ):
        if missing.any():
            cells = data.index[missing].tolist()
            cells_text = "in all cells" if missing.all() else conditions.join_names(cells)
            text = f"Training is not divided where {why}: {cells_text}."
            notes.append(Note("training-not-divided", text, why=why.code, cells=cells))
    return notes
