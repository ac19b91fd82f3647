"""Where time goes in every cell: of a run, from its launch to its end, or of an epoch."""

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
from figures.view import view

ROW_IN = 0.13
AXIS_IN = 0.35
BAR = 0.74  # of a row
MOST_CHARACTERS = 50  # of rows' names, times panels, that leave room for these in one column of print
EPOCH = "epoch"
CELL_WITHOUT_WALL_TIME = "no wall time"
SEEN = 0.002  # of the longest bar: shorter parts are nowhere to be seen
# Neighbours differ in grey, too: by lightness, or by hatching.
LOOKS: Mapping[str, tuple[str, str]] = {
    "startup_s": ("#dddddd", ""),
    "warm_up_s": ("#c8c8c8", "xxxxx"),
    "computation_s": ("#2b4a7a", ""),
    "exchange_s": ("#ee9a5f", ""),
    "training_s": ("#7d8fae", "/////"),
    "validation_s": ("#3c6e47", ""),
    "rest_s": ("#ffffff", ""),
}
OF_RUNS = "Where the wall time of a run goes. Mean seconds over the runs of each cell, from launch to end."
OF_EPOCHS = "Where the time of an epoch goes. Shares of each cell's mean epoch time."
NO_WALL_TIME = Note("no-wall-time", "no run tells its start-up and its wall time")
AROUND = Note(
    "parts-around-epochs",
    "Start-up: until all ranks reached the first barrier. Warm-up: the extra time of the warm-up epochs, which include the first "
    "step, compared with as many timed epochs, at least 0. Validation: after every epoch. The rest: work "
    "around epochs, and the end of the processes.",
)
DIVIDED = Note(
    "training-divided",
    "Computation: the batches of an epoch times the time of a batch of the same framework, model, data set, local batch and "
    "treatment on one replica. Exchange: the rest of the epoch, so it includes waiting for the slowest rank and any other cost of more "
    "replicas. Lines: 95 % intervals of the point where exchange begins, from the ratio of the mean epoch times of both cells.",
)
ALONE = Note(
    "no-cell-on-one-replica",
    "no cell on one replica was measured with the same framework, model, data set, local batch and treatment",
)
UNCOUNTED = Note("batches-not-counted", "batches were not counted")
ALL_EPOCHS = "Computation and exchange are extended from the timed epochs to all epochs, in the same shares."


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Rows by series and nodes, panels by the other factors that vary. The figure and its caption."""
    seen, of_runs = view(records.runs, asked), asked.x != EPOCH
    row_in = len(seen.rows) * ROW_IN + AXIS_IN
    seen = seen.on_a_page(row_in + panels.titles_height(seen.panels))
    data = shares.run_time_parts(records, seen.runs) if of_runs else _in_percent(shares.epoch_shares(records.runs))
    measured_cells = set(seen.ok["cell"])
    data = data[data.index.isin(measured_cells)]
    what = OF_RUNS if of_runs else OF_EPOCHS
    if data.empty:
        return panels.not_drawn(seen.runs, panels.NO_SUCCESS if seen.ok.empty else NO_WALL_TIME)
    rows, scaled_by = seen.rows, panels.scaled_by(seen.facet) if of_runs else []
    shown, cells = seen.panels, seen.cells
    there = [name for name in shares.PARTS if name in data]
    parts = [name for name in there if data[name].max() > SEEN * data[there].sum(axis=1).max()]
    down, columns, width = panels.layout(len(shown), panels.few_columns(len(shown)))
    if len(shown) * max(len(text) for _, _, text in rows) > MOST_CHARACTERS:
        width = style.PAGE_IN
    above = panels.legend_height(len(parts), width)
    drawn = style.figure(width, down * (row_in + panels.titles_height(shown)) + above)
    axes = panels.grid(drawn, (down, columns), len(shown), share_x=not scaled_by)
    for ax, levels in zip(axes, shown, strict=True):
        here = panels.at(cells, levels)
        planned = {y: cell for y, (one, along, _) in enumerate(rows) for cell in panels.at(one.of(here), along)["cell"]}
        measured = {y: cell for y, cell in planned.items() if cell in data.index}
        _bars(ax, data.loc[list(measured.values())].set_index(np.array(list(measured), dtype=int)), parts)
        for y in planned.keys() - measured.keys():
            why = CELL_WITHOUT_WALL_TIME if planned[y] in measured_cells else panels.NO_SUCCESS
            remark = ax.text(0.03, y, why, transform=ax.get_yaxis_transform())
            remark.set(va="center", color=style.MUTED, fontsize=5.5)
        for y in range(1, len(rows)):
            if rows[y][0] != rows[y - 1][0]:
                ax.axhline(y - 0.5, color=style.GRID, linewidth=0.4, zorder=1)
        alike = panels.at(cells, {name: levels[name] for name in scaled_by})["cell"]
        longest = data.loc[data.index.isin(alike), parts].sum(axis=1).max()
        ax.set_xlim(0, (1.02 if of_runs else 1) * longest if longest > 0 else 1)
        ax.grid(True, axis="x")
        ax.tick_params(axis="y", length=0)
        ax.set_title(panels.panel_title(levels))
    axes[0].set_yticks(range(len(rows)), [text for _, _, text in rows])
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    drawn.supxlabel("wall time of a run (s)" if of_runs else "share of the epoch (%)", fontsize=style.FONT_SIZE)
    handles = [Patch(label=shares.PARTS[name], **_look(name)) for name in parts]
    drawn.legend(handles=handles, loc="outside upper center", ncols=panels.legend_columns(width))
    return drawn, seen.caption(what, notes=[AROUND if of_runs else "", *_division(data, of_runs)], with_intervals=False)


def _in_percent(data: pd.DataFrame) -> pd.DataFrame:
    """`shares.epoch_shares` with the parts of an epoch in %."""
    exchange = data["exchange"].clip(0, 1)
    parts = {"computation_s": 1 - exchange, "exchange_s": exchange, "training_s": exchange.isna().astype(float)}
    return data.assign(**{name: 100 * share.fillna(0) for name, share in parts.items()})


def _bars(ax: Axes, data: pd.DataFrame, parts: Sequence[str]) -> None:
    """The parts of cells end to end, and the interval of where their exchange begins; `data` by the row of the panel."""
    start = pd.Series(0.0, index=data.index)
    for name in parts:
        there = data[name] > 0
        ax.barh(data.index[there], data.loc[there, name], left=start[there], height=BAR, zorder=2, **_look(name))
        if name == "computation_s":
            training = data["computation_s"] + data["exchange_s"]
            for y, cell in data[data["exchange_low"].notna() & (data["exchange_high"] > 0)].iterrows():
                ends = [1 - min(max(cell[f"exchange_{end}"], 0), 1) for end in ("high", "low")]
                x = [start[y] + training[y] * end for end in ends]
                line = ax.plot(x, [y, y], color=style.INK, linewidth=0.8, solid_capstyle="butt", zorder=4)[0]
                line.set_path_effects([withStroke(linewidth=2.0, foreground="white")])
        start = start + data[name]


def _look(name: str) -> dict[str, Any]:
    colour, hatch = LOOKS[name]
    return {
        "facecolor": colour,
        "edgecolor": style.MUTED if hatch or name == "rest_s" else "white",
        "hatch": hatch or None,
        "linewidth": 0.3,
    }


def _division(data: pd.DataFrame, of_runs: bool) -> list[str]:
    """How computation and exchange are told apart, and in which cells they are not."""
    undivided, below = data["exchange"].isna(), data.index[data["exchange"] < 0].tolist()
    said: list[str] = [] if undivided.all() else [DIVIDED, ALL_EPOCHS if of_runs else ""]
    if below:
        text = f"Without exchange, because computation alone would take longer than the epoch: {conditions.join_names(below)}."
        said.append(Note("cells-without-exchange", text, cells=below))
    for why, lacking in (
        (ALONE, undivided & (data["alone"] == "")),
        (UNCOUNTED, undivided & (data["alone"] != "")),
    ):
        if lacking.any():
            cells = data.index[lacking].tolist()
            where = "in all cells" if lacking.all() else conditions.join_names(cells)
            text = f"Training is not divided where {why}: {where}."
            said.append(Note("training-not-divided", text, why=why.code, cells=cells))
    return said
