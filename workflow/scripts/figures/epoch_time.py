"""Overview: the epoch time of every cell, with its interval and its replicates."""

import sys

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.measured import Records, combination_text, scale_factor, series_factors, successful, varying
from analysis.pooling import Pooling, pooled
from common.errors import exit_status
from figures import panels, style
from figures.panels import Series

ROW_IN = 0.13
BESIDE = 0.36
AXIS_IN = 0.35
WHAT = (
    "Epoch time of every cell of the study: markers are means over replicates, bars their intervals, "
    "dots below them the single replicates."
)


def draw(records: Records) -> tuple[Figure, str]:
    """Rows by series and nodes, panels by the other factors that vary. The figure and its caption."""
    runs = records.runs
    ok = successful(runs)
    if ok.empty:
        empty = panels.nothing(style.figure(style.COLUMN_IN, 1.4))
        return empty, panels.caption(runs, "Epoch time of every cell.")
    rows = _rows(runs)
    around = varying(runs, but=[*series_factors(runs), scale_factor(runs)])
    shown, unseen = panels.most(panels.combinations(runs, around))
    height, columns, width = panels.layout(len(shown))
    drawn = style.figure(width, height * (len(rows) * ROW_IN + AXIS_IN + panels.titles_height(shown)))
    scaled_by = panels.scaled_by(around)
    axes = panels.grid(drawn, (height, columns), len(shown), share_x=not scaled_by)
    remarks: list[str] = []
    pooling = pooled(runs)
    for ax, levels in zip(axes, shown, strict=True):
        _panel(ax, panels.at(runs, levels), rows, pooling)
        ax.set_title(panels.panel_title(levels))
        remarks += panels.time_axis(ax, panels.at(ok, {name: levels[name] for name in scaled_by}), pooling, axis="x")
        ax.set_xlabel("epoch time (s)")
    axes[0].set_yticks(range(len(rows)), [text for _, _, text in rows])
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    return drawn, panels.caption(
        runs,
        panels.with_series(WHAT, runs),
        unseen,
        *remarks,
    )


def _rows(runs: pd.DataFrame) -> list[tuple[Series, dict[str, object], str]]:
    """For each row from the top: its series, its level of nodes or devices (none where all have the same), its label."""
    along = [name for name in (scale_factor(runs),) if name in varying(runs)]
    return [
        (one, levels, ", ".join(text for text in (one.name, combination_text(levels)) if text))
        for one in panels.all_series(runs)
        for levels in panels.combinations(one.of(runs), along)
    ]


def _panel(ax: Axes, runs: pd.DataFrame, rows: list[tuple[Series, dict[str, object], str]], pooling: Pooling) -> None:
    for y, (one, levels, _) in enumerate(rows):
        planned = panels.at(one.of(runs), levels)
        ok = successful(planned)
        if len(ok):
            panels.interval(ax, one.look, y, ok, pooling, BESIDE, upright=False)
        elif len(planned):
            said = ax.text(0.03, y, "no successful run", transform=ax.get_yaxis_transform())
            said.set(va="center", color=style.MUTED, fontsize=5.5)
        if y and one != rows[y - 1][0]:
            ax.axhline(y - 0.5, color=style.GRID, linewidth=0.4)


def main(argv: list[str] | None = None) -> None:
    """Draw the figure."""
    panels.program(draw, __doc__, argv)


if __name__ == "__main__":
    sys.exit(exit_status(main))
