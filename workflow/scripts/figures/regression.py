"""Residuals of the regression models against what they fit: a panel for each model of each response.

Dots are runs, markers the means of cells: where these stand off zero, the model misses something.
"""

import math
import sys
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import tables
from analysis.measured import Records, successful
from analysis.regression import Fit, Response, fit_all
from common.errors import exit_status
from figures import panels, style
from figures.style import Look

PANEL_IN = 1.25
MANY_CELLS = 200
MANY_RUNS = 2000  # dots of more are an image in the vector files
WHAT = (
    "Residuals (measured less fitted) of the linear and the quadratic model of epoch time and of throughput against the fitted value: dots "
    "are runs, markers the means of cells. A model without lack of fit has its markers at zero as nearly as their dots "
    "scatter; p is that of its test of lack of fit. A spread that grows to the right is variance that grows with the value, for which "
    "the standard errors of the table of regression allow."
)


def draw(records: Records) -> tuple[Figure, str]:
    """The figure and its caption."""
    runs = records.runs
    fits = fit_all(runs)
    if all(each.problem for each in fits.values()):
        problem = next(iter(fits.values())).problem
        return panels.nothing(style.figure(style.COLUMN_IN, 1.4), problem), panels.caption(runs, WHAT)
    series = panels.all_series(runs)
    models = list(dict.fromkeys(model for _, model in fits))
    shape = (len(fits) // len(models), len(models))
    told = [one for one in series if len(successful(one.of(runs)))]
    named = told if len(told) > 1 else []
    above = panels.legend_height(len(named), style.COLUMN_IN) if named else 0
    drawn = style.figure(style.COLUMN_IN, shape[0] * (PANEL_IN + 2 * panels.TITLE_ROW_IN) + 0.15 + above)
    axes = panels.grid(drawn, shape, len(fits), share_x=False, share_y=False)
    drawn_as = [(one.look, set(one.of(runs)["cell"])) for one in told]
    for place, ax in enumerate(axes):
        if place % shape[1]:
            ax.sharey(axes[place - 1])
    for ax, ((response, model), each) in zip(axes, fits.items(), strict=True):
        _panel(ax, each, drawn_as)
        ax.set_title(_title(response, model, each))
        ax.set_xlabel(f"fitted ({response.unit})")
        if ax in axes[:: shape[1]]:
            ax.set_ylabel(f"residual ({response.unit})")
    if named:
        panels.legend(drawn, named, lines=False)
    refused = [f"the {model} model was not fitted: {each.problem}" for (_, model), each in fits.items() if each.problem]
    remark = f"Empty: {'; '.join(dict.fromkeys(refused))}." if refused else ""
    return drawn, panels.caption(runs, panels.with_series(WHAT, runs), remark)


def _panel(ax: Axes, each: Fit, drawn_as: list[tuple[Look, set[str]]]) -> None:
    """The residuals of a model; `drawn_as`: the look of each series and its cells."""
    if each.problem:
        ax.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
        panels.say(ax, "not fitted")
        return
    ax.axhline(0, color=style.MUTED, linewidth=0.6, zorder=1)
    dots: dict[str, Any] = {
        "linestyle": "none",
        "marker": "o",
        "markersize": style.REPLICATE_SIZE,
        "markeredgewidth": 0,
        "alpha": 0.6,
    }
    for look, cells in drawn_as:
        runs = each.runs[each.runs["cell"].isin(cells)]
        ax.plot("fitted", "residual", data=runs, color=look.colour, rasterized=len(each.runs) > MANY_RUNS, **dots)
        means = each.cells[each.cells["cell"].isin(cells)]
        small = panels.marker(look) | {"markersize": 2.6 if len(each.cells) < MANY_CELLS else 1.6}
        ax.plot(means["fitted"], means["measured"] - means["fitted"], zorder=3, **small)
    ax.grid(True, axis="y")


def _title(response: Response, model: str, each: Fit) -> str:
    p = each.statistics.get("lack of fit: p", math.nan)
    tested = f"\nlack of fit: p {tables.p_value(p) if p < 0.001 else f'= {p:.3f}'}" if not math.isnan(p) else ""
    return f"{response.name}, {model}{tested}"


def main(argv: list[str] | None = None) -> None:
    """Draw the figure."""
    panels.program(draw, __doc__, argv)


if __name__ == "__main__":
    sys.exit(exit_status(main))
