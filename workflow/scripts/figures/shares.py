"""Draw where time goes in every cell: the wall time of a run, or the time of an epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from analysis import conditions, shares
from analysis.measured import Records
from common.notes import Note
from declared.figures import Declared
from figures import panels, style
from figures.view import build_view

ROW_INCHES = 0.13
AXIS_INCHES = 0.35
BAR = 0.74  # of a row
MAX_LABEL_CHARACTERS = 50  # of row labels, times panels, in one print column
EPOCH = "epoch"
CELL_WITHOUT_WALL_TIME = "no wall time"
MIN_VISIBLE_SHARE = 0.002  # of the longest bar
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
RUNS_HEADING = "Mean wall time of a run by part, from launch to end."
EPOCHS_HEADING = "Mean epoch time by part."
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
    "local batch and treatment on one replica. Rest: what remains of the epoch, that is communication, "
    "waiting for the slowest rank, contention for cores and memory, and any other cost of more replicas. "
    "Lines: 95 % intervals of the point where the rest begins, from the ratio of the mean epoch times of "
    "both cells.",
)
NO_SINGLE_REPLICA = Note(
    "no-cell-on-one-replica",
    "no cell on one replica was measured with the same framework, model, data set, local batch and treatment",
)
NOT_COUNTED = Note("batches-not-counted", "batches were not counted")
ALL_EPOCHS = "Computation and rest are extrapolated from the timed epochs to all epochs, in the same shares."


def draw(records: Records, declaration: Declared) -> tuple[Figure, panels.Caption]:
    """Return the figure, with rows by series and nodes, and its caption."""
    view, by_run = build_view(records.runs, declaration), declaration.x != EPOCH
    row_in = len(view.rows) * ROW_INCHES + AXIS_INCHES
    view = view.fit_to_page(row_in + panels.titles_height(view.panels))
    data = (
        shares.run_time_parts(records, view.runs)
        if by_run
        else _in_percent(shares.epoch_shares(records.runs))
    )
    measured_cells = set(view.ok["cell"])
    data = data[data.index.isin(measured_cells)]
    heading = RUNS_HEADING if by_run else EPOCHS_HEADING
    if data.empty:
        return panels.empty_figure(view.runs, panels.NO_SUCCESS if view.ok.empty else NO_WALL_TIME)
    view_rows, axis_factors = view.rows, panels.duration_factors(view.facet) if by_run else []
    panel_levels, cells = view.panels, view.cells
    present = [name for name in shares.PARTS if name in data]
    parts = [
        name for name in present if data[name].max() > MIN_VISIBLE_SHARE * data[present].sum(axis=1).max()
    ]
    n_rows, columns, width = panels.layout(len(panel_levels), panels.wide_columns(len(panel_levels)))
    if len(panel_levels) * max(len(text) for _, _, text in view_rows) > MAX_LABEL_CHARACTERS:
        width = style.PAGE_INCHES
    handles = [Patch(label=shares.PARTS[name], **_part_style(name)) for name in parts]
    above_in = panels.handles_height(handles, width)
    figure = style.new_figure(width, n_rows * (row_in + panels.titles_height(panel_levels)) + above_in)
    axes = panels.create_axes(figure, (n_rows, columns), len(panel_levels), share_x=not axis_factors)
    for ax, levels in zip(axes, panel_levels, strict=True):
        panel_cells = panels.rows_at(cells, levels)
        planned = {
            y: cell
            for y, (series, scale_levels, _) in enumerate(view_rows)
            for cell in panels.rows_at(series.select(panel_cells), scale_levels)["cell"]
        }
        measured = {y: cell for y, cell in planned.items() if cell in data.index}
        _draw_bars(
            ax, data.loc[list(measured.values())].set_index(np.array(list(measured), dtype=int)), parts
        )
        for y in planned.keys() - measured.keys():
            runs = view.runs[view.runs["cell"] == planned[y]]
            is_measured = planned[y] in measured_cells
            remark_text = CELL_WITHOUT_WALL_TIME if is_measured else view.absence_reason(runs)
            remark = ax.text(0.03, y, remark_text, transform=ax.get_yaxis_transform())
            remark.set(va="center", color=style.MUTED, fontsize=style.SMALL_FONT_SIZE)
        for y in range(1, len(view_rows)):
            if view_rows[y][0] != view_rows[y - 1][0]:
                ax.axhline(y - 0.5, color=style.GRID, linewidth=0.4, zorder=1)
        axis_cells = panels.rows_at(cells, {name: levels[name] for name in axis_factors})["cell"]
        longest = data.loc[data.index.isin(axis_cells), parts].sum(axis=1).max()
        ax.set_xlim(0, (1.02 if by_run else 1) * longest if longest > 0 else 1)
        ax.grid(True, axis="x")
        ax.tick_params(axis="y", length=0)
        ax.set_title(panels.panel_title(levels))
    axes[0].set_yticks(range(len(view_rows)), [text for _, _, text in view_rows])
    axes[0].set_ylim(len(view_rows) - 0.4, -0.6)
    figure.supxlabel(
        "wall time of a run (s)" if by_run else "share of the epoch (%)", fontsize=style.FONT_SIZE
    )
    panels.place_legend(figure, handles)
    return figure, view.caption(
        heading, notes=[PARTS_NOTE if by_run else "", *_division_notes(data, by_run)], with_intervals=False
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


def _draw_bars(ax: Axes, data: pd.DataFrame, parts: Sequence[str]) -> None:
    """Draw the parts of cells end to end, and the interval of where communication begins.

    `data` by row of the panel.
    """
    start = pd.Series(0.0, index=data.index)
    for name in parts:
        present = data[name] > 0
        ax.barh(
            data.index[present],
            data.loc[present, name],
            left=start[present],
            height=BAR,
            zorder=2,
            **_part_style(name),
        )
        if name == "computation_s":
            training = data["computation_s"] + data["communication_s"]
            for y, cell in data[
                data["communication_low"].notna() & (data["communication_high"] > 0)
            ].iterrows():
                ends = [1 - min(max(cell[f"communication_{end}"], 0), 1) for end in ("high", "low")]
                x = [start[y] + training[y] * end for end in ends]
                line = ax.plot(x, [y, y], color=style.INK, linewidth=0.8, solid_capstyle="butt", zorder=4)[0]
                line.set_path_effects([withStroke(linewidth=2.0, foreground="white")])
        start = start + data[name]


def _part_style(name: str) -> dict[str, Any]:
    colour, hatch = PART_STYLES[name]
    return {
        "facecolor": colour,
        "edgecolor": style.MUTED if hatch or name == "rest_s" else "white",
        "hatch": hatch or None,
        "linewidth": 0.3,
    }


def _division_notes(data: pd.DataFrame, by_run: bool) -> list[str]:
    """Return how computation and communication are separated, and in which cells they are not."""
    undivided, below_zero = data["communication"].isna(), data.index[data["communication"] < 0].tolist()
    notes: list[str] = [] if undivided.all() else [DIVISION_NOTE, ALL_EPOCHS if by_run else ""]
    if below_zero:
        text = (
            "Without a rest, because computation alone would take longer than the epoch: "
            f"{conditions.join_names(below_zero)}."
        )
        notes.append(Note("cells-without-communication", text, cells=below_zero))
    for why, missing in (
        (NO_SINGLE_REPLICA, undivided & (data["alone"] == "")),
        (NOT_COUNTED, undivided & (data["alone"] != "")),
    ):
        if missing.any():
            cells = data.index[missing].tolist()
            cells_text = "in all cells" if missing.all() else conditions.join_names(cells)
            text = f"Training is not divided where {why}: {cells_text}."
            notes.append(Note("training-not-divided", text, why=why.code, cells=cells))
    return notes
