"""Draw errors of predicted epoch times of cells held out of the fit: one column per method."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from analysis import conditions, intervals, tables
from analysis.records import Records
from common.notes import Note
from declared.figure_specs import FigureSpec
from figures import captions, legends, marks, panels, style
from figures.selection import Series
from prediction.held_out import EMULATED, KINDS, is_common
from prediction.inputs import pooled_cv

TICKS = {
    1 / 3: "−67",
    0.5: "−50",
    2 / 3: "−33",
    0.8: "−20",
    0.9: "−10",
    1: "0",
    1.1: "+10",
    1.25: "+25",
    1.5: "+50",
    2: "+100",
    3: "+200",
}
MIN_REACH, MAX_REACH = 1.3, 3.2  # factor that the axis extends beyond no error
REACH_QUANTILE = 0.95  # share of the predictions that the axis holds if possible
MARKER_SIZE = 2.2
IMPOSSIBLE = "below 0 s"
SPREAD = 0.6  # share of a column's width that its markers take
LEAD = (
    "Errors of epoch times predicted for cells held out of the fit, by method. Above: mean absolute error (%)"
)
INTERVAL_PHRASE = "and its 95 % interval"
HOW_TO_READ = (
    "Each marker is a cell on several nodes, once per time it was held out. The axis is logarithmic. "
    "Intervals: bootstrap over cells. Shaded band: 1.96 times the pooled coefficient of variation of a "
    "cell's mean."
)
NOTHING_PREDICTED = Note("nothing-predicted", "no cell was held out and predicted")
PARTIAL_NOTE = Note("methods-of-some-cells", "*: not all cells; compare in the table `prediction`.")


def draw(records: Records, _spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure and its caption."""
    runs, cells = records.runs, records.table("prediction_cells")
    no_cells = pd.DataFrame(columns=["method", "predicted_s"])
    held_out = cells[cells["kind"].isin(KINDS)] if len(cells) else no_cells
    predicted = set(held_out.loc[held_out["predicted_s"].notna(), "method"])
    methods = [name for name in held_out["method"].unique() if name in predicted]
    if not methods:
        return panels.empty_figure(runs, NOTHING_PREDICTED)
    held_out = held_out.assign(common=is_common(held_out), position=held_out.groupby("method").cumcount())
    positions = max(1, held_out["position"].max())
    kinds = [kind for kind in KINDS if kind in set(held_out["kind"])]
    all_series = [
        Series(kind, {"kind": kind}, series_style)
        for kind, series_style in zip(KINDS, style.TREATMENT_STYLES, strict=False)
        if kind in kinds
    ]
    held_out = held_out[held_out["predicted_s"].notna()]
    ratios = held_out["predicted_s"] / held_out["epoch_time_s"]
    positive = ratios > 0
    errors = np.abs(np.log(ratios[positive]))
    reach = np.exp(errors.quantile(REACH_QUANTILE)) if positive.any() else MIN_REACH
    top = float(np.clip(1.1 * reach, MIN_REACH, MAX_REACH))
    figure = style.new_figure(style.PAGE_INCHES, 2.6)
    (ax,) = panels.create_axes(figure, (1, 1), 1)
    spread = pooled_cv(held_out.drop_duplicates("cell"), of_means=True)
    if np.isfinite(spread):
        ends = max(1 - 1.96 * spread, 1 / top), min(1 + 1.96 * spread, top)
        ax.axhspan(*ends, color=style.GRID, linewidth=0)
    ax.axhline(1, color=style.MUTED, linewidth=0.7, zorder=2)
    headings = {}
    for column, method in enumerate(methods):
        method_rows = held_out[held_out["method"] == method]
        x = column + SPREAD * (method_rows["position"] / positions - 0.5)
        for series in all_series:
            selected = series.select(method_rows).index
            _draw_ratios(ax, x[selected], ratios[selected], top, series)
        headings[method] = _heading(method_rows)
        label = ax.text(column, 1.02, headings[method], transform=ax.get_xaxis_transform())
        label.set(ha="center", va="bottom", fontsize=style.SMALL_FONT_SIZE)
    n_impossible = int((~positive).sum())
    n_beyond = int((~ratios.between(1 / top, top)).sum()) - n_impossible
    n_positions = held_out["position"].nunique()
    counts = held_out["method"].value_counts()
    names = [f"{name} *" if counts[name] < n_positions else name for name in methods]
    _set_axes(ax, names, top)
    legends.add_legend(figure, all_series, lines=False)
    has_intervals = any("[" in heading for heading in headings.values())
    sentences = [
        f"{LEAD}{f' {INTERVAL_PHRASE}' if has_intervals else ''}.",
        Note("noise", f"Shaded: noise of the means ({tables.number(100 * spread, 2)} %).", share=spread)
        if np.isfinite(spread)
        else "",
        Note("predictions-beyond-axis", f"Arrows: {n_beyond} beyond the axis.", predictions=n_beyond)
        if n_beyond
        else "",
        Note("impossible-predictions", f"Crosses: {n_impossible} {IMPOSSIBLE}.", predictions=n_impossible)
        if n_impossible
        else "",
        PARTIAL_NOTE if names != methods else "",
        EMULATED if conditions.is_emulated(runs) else "",
    ]
    return figure, captions.compose_caption(runs, *sentences, endnotes=[HOW_TO_READ], with_intervals=False)


def _draw_ratios(ax: Axes, x: pd.Series, ratios: pd.Series, top: float, series: Series) -> None:
    """Draw the ratios of a series; those beyond the axis are arrows, those up to 0 crosses."""
    series_style = marks.marker_style(series.style) | {"markersize": MARKER_SIZE, "alpha": 0.75}
    inside = ratios.between(1 / top, top)
    ax.plot(x[inside], ratios[inside], zorder=3, **series_style)
    for mark, end, is_there in (
        ("^", top, ratios > top),
        ("v", 1 / top, (ratios < 1 / top) & (ratios > 0)),
        ("x", 1 / top, ratios <= 0),
    ):
        # Even a line without points has an extent, for which the layout would make room.
        if is_there.any():
            ends = [end] * int(is_there.sum())
            ax.plot(x[is_there], ends, clip_on=False, zorder=4, **series_style | {"marker": mark})


def _heading(method_rows: pd.DataFrame) -> str:
    """Return a method's MAPE in per cent, with its interval in a second line if there is one."""
    mape = intervals.bootstrap_mean(
        100 * method_rows["error"].abs().to_numpy(), method_rows["cell"].to_numpy()
    )
    return tables.interval(mape, digits=2).replace(" [", "\n[")


def _set_axes(ax: Axes, names: list[str], top: float) -> None:
    ax.set_yscale("log")
    ax.set_ylim(1 / top, top)
    ticks = {ratio: text for ratio, text in TICKS.items() if 1 / top <= ratio <= top}
    ax.yaxis.set_major_locator(FixedLocator(list(ticks)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_yticklabels(list(ticks.values()))
    ax.set_ylabel("prediction error (%)")
    ax.set_xticks(range(len(names)), [textwrap.fill(name, 12) for name in names])
    ax.set_xlim(-0.5, len(names) - 0.5)
    ax.grid(True, axis="y")
