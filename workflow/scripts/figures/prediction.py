"""Errors of predicted epoch times of cells that were left out of the fit: a column for each method."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from analysis import conditions, intervals
from analysis.measured import Records
from common.notes import Note
from declared.figures import Declared
from figures import panels, style
from figures.panels import Series
from prediction.held_out import EMULATED, KINDS, is_common
from prediction.physics import pooled_cv

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
LEAST, MOST = 1.3, 3.2  # the axis reaches so far beyond no error, as a factor, at least and at most
SHARE = 0.95  # of the predictions that the axis holds, where it can
MARKER = 2.2
IMPOSSIBLE = "below 0 s"
SPREAD = 0.6  # of a column's width that its markers take
WHAT = "Errors of predicted epoch times of cells left out of the fit, by method. Above: mean absolute error (%)"
BOUNDED = "and its 95 % interval"
HOW = (
    "Each marker is a cell on several nodes, once for each time it was left out. The axis is logarithmic. Intervals: bootstrap over cells. Grey band: "
    "1.96 times the pooled coefficient of variation of a cell's mean."
)
NOTHING = Note("nothing-predicted", "nothing was left out and predicted")
PARTLY = Note("methods-of-some-cells", "*: not all cells.")
OTHERS = Note(
    "compare-in-table",
    "Methods with a * do not predict all cells, so their MAPE is over other cells; compare them in the table of predictions.",
)


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """The figure and its caption."""
    runs, cells = records.runs, records.table("prediction_cells")
    left = cells[cells["kind"].isin(KINDS)] if len(cells) else pd.DataFrame(columns=["method", "predicted_s"])
    methods = [name for name, own in left.groupby("method", sort=False) if own["predicted_s"].notna().any()]
    if not methods:
        return panels.not_drawn(runs, NOTHING)
    left = left.assign(common=is_common(left), position=left.groupby("method").cumcount())
    positions = max(1, left["position"].max())
    kinds = [kind for kind in KINDS if kind in set(left["kind"])]
    series = [
        Series(kind, {"kind": kind}, look)
        for kind, look in zip(KINDS, style.TREATMENT_LOOKS, strict=False)
        if kind in kinds
    ]
    left = left[left["predicted_s"].notna()]
    ratios = left["predicted_s"] / left["epoch_time_s"]
    possible = ratios > 0
    reach = np.exp(np.quantile(np.abs(np.log(ratios[possible])), SHARE)) if possible.any() else LEAST
    top = float(np.clip(1.1 * reach, LEAST, MOST))
    drawn = style.figure(style.PAGE_IN, 2.6)
    (ax,) = panels.grid(drawn, (1, 1), 1)
    spread = pooled_cv(left.drop_duplicates("cell"), of_means=True)
    if np.isfinite(spread):
        ax.axhspan(max(1 - 1.96 * spread, 1 / top), min(1 + 1.96 * spread, top), color=style.GRID, linewidth=0)
    ax.axhline(1, color=style.MUTED, linewidth=0.7, zorder=2)
    beyond = wrong = 0
    headings: list[str] = []
    for column, method in enumerate(methods):
        own = left[left["method"] == method]
        x = column + SPREAD * (own["position"] / positions - 0.5)
        ratio = ratios[own.index]
        for one in series:
            here = one.of(own).index
            inside = here[ratio[here].between(1 / top, top)]
            look = panels.marker(one.look) | {"markersize": MARKER, "alpha": 0.75}
            ax.plot(x[inside], ratio[inside], zorder=3, **look)
            for mark, end, rows in (
                ("^", top, here[ratio[here] > top]),
                ("v", 1 / top, here[(ratio[here] < 1 / top) & (ratio[here] > 0)]),
                ("x", 1 / top, here[ratio[here] <= 0]),
            ):
                # a line of no points has a place all the same, far off, for which the layout would make room
                if len(rows):
                    ax.plot(x[rows], [end] * len(rows), clip_on=False, zorder=4, **look | {"marker": mark})
        beyond += int(((ratio > top) | ((ratio < 1 / top) & (ratio > 0))).sum())
        wrong += int((ratio <= 0).sum())
        headings.append(_heading(own))
        ax.text(column, 1.02, headings[-1], transform=ax.get_xaxis_transform(), ha="center", va="bottom", fontsize=5.5)
    all_of_it = left["position"].nunique()
    partly = [len(left[left["method"] == method]) < all_of_it for method in methods]
    _scales(ax, [f"{name}{' *' if some else ''}" for name, some in zip(methods, partly, strict=True)], top)
    panels.legend(drawn, series, lines=False)
    bounded = any("[" in heading for heading in headings)
    said = [
        f"{WHAT}{f' {BOUNDED}' if bounded else ''}.",
        Note("noise", f"Grey: noise of the means ({100 * spread:.1f} %).", share=spread) if np.isfinite(spread) else "",
        Note("predictions-beyond-axis", f"Arrows: {beyond} beyond the axis.", predictions=beyond) if beyond else "",
        Note("impossible-predictions", f"Crosses: {wrong} {IMPOSSIBLE}.", predictions=wrong) if wrong else "",
        PARTLY if any(partly) else "",
        EMULATED if conditions.is_emulated(runs) else "",
    ]
    return drawn, panels.caption(runs, *said, notes=[HOW, OTHERS if any(partly) else ""], with_intervals=False)


def _heading(own: pd.DataFrame) -> str:
    """A method's MAPE in per cent, and its interval where it has one in a second line."""
    found = intervals.bootstrap_mean(100 * own["error"].abs().to_numpy(), own["cell"].to_numpy())
    if np.isnan(found.low):
        return f"{found.value:.1f}"
    return f"{found.value:.1f}\n[{found.low:.1f}, {found.high:.1f}]"


def _scales(ax: Axes, names: list[str], top: float) -> None:
    ax.set_yscale("log")
    ax.set_ylim(1 / top, top)
    ticks = {ratio: text for ratio, text in TICKS.items() if 1 / top <= ratio <= top}
    ax.yaxis.set_major_locator(FixedLocator(list(ticks)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_yticklabels(list(ticks.values()))
    ax.set_ylabel("error (%): predicted against measured")
    ax.set_xticks(range(len(names)), [textwrap.fill(name, 12) for name in names])
    ax.set_xlim(-0.5, len(names) - 0.5)
    ax.grid(True, axis="y")
