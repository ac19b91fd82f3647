"""The phases of a training step in every cell, end to end; what of the exchange is exposed is hatched, what is hidden lies below."""

from collections.abc import Collection, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.measured import Records, cell_words
from common.notes import Note
from declared.figures import Declared
from figures import panels, phase_looks, stacks
from figures.phase_looks import MOVING, ORANGE, REST, WAITING
from figures.view import view
from traces import cells
from traces.cells import NO_PHASES, STEP, Measured
from traces.steps import WAIT

TIME = "time"
LANE = 0.17  # of a row, what is hidden of the exchange
HIDDEN = "exchange behind computing"
HEADING = "Where the time of a training step goes."
NO_EXCHANGE = Note("no-exchange", "No cell exchanges gradients.")
EXCHANGE_UNTOLD = Note("exchange-untold", "No run tells its exchange.")
NOT_TRACED = Note("exchange-without-phases", "No cell that exchanges gradients has phases.")
HOW = (
    "Means over ranks, then over runs. Hatched: the exposed exchange, while nothing is computed; first while bytes move, then while ranks wait for "
    "the slowest to start it."
)
LEFT = "Rest of the wait: the rank waits, but no exchange of its own is under way; its library prepares messages, or hands sums back."
BELOW = "The lane below a bar is the exchange, its part behind computing left of where it is exposed."


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Rows by series and nodes, panels by the other factors that vary. The figure and its caption."""
    measured = cells.select_traced(records.every_run, records.table("phases"))
    if not measured.order or not measured.step_phases:
        return panels.not_drawn(measured.runs, NO_PHASES, measured.missing_note)
    in_ms = asked.x == TIME
    data = parts(measured, in_ms)
    seen = view(measured.runs, asked)
    drawn, seen = stacks.draw(
        seen,
        data[data.index.isin(seen.runs["cell"])],
        phase_looks.look,
        "time in a step (ms)" if in_ms else "share of the step (%)",
        _legend,
        lambda ax, y, row, end: _lane(ax, y, row, end, hidden(measured, in_ms)),
    )
    what = [HEADING, _widest(measured, set(seen.runs["cell"]))]
    return drawn, seen.caption(what, notes=[HOW, LEFT, BELOW, *measured.notes], with_intervals=False)


def parts(measured: Measured, in_ms: bool) -> pd.DataFrame:
    """By cell, in % of a step or in ms: every phase in its order, waiting divided into what of the exchange is exposed and a rest."""
    phases, exchange = (_means(measured, scope, in_ms) for scope in ("step", "exchange"))
    found = {}
    for name in measured.step_phases:
        if name != WAIT:
            found[name] = phases[name]
            continue
        found[MOVING], found[WAITING] = (
            exchange.get(part, pd.Series(dtype=float)).reindex(phases.index).fillna(0.0) for part in (MOVING, WAITING)
        )
        found[REST] = (phases[WAIT] - found[MOVING] - found[WAITING]).clip(lower=0)
    return pd.DataFrame(found)


def hidden(measured: Measured, in_ms: bool) -> pd.Series:
    """By cell, the exchange that computing covers."""
    exchange = _means(measured, "exchange", in_ms)
    return exchange["communication"] - exchange["exposed"] if len(exchange) else pd.Series(dtype=float)


def _means(measured: Measured, scope: str, in_ms: bool) -> pd.DataFrame:
    """By cell, a column for each phase of a scope."""
    values = measured.estimates(scope, "step_s" if in_ms else "share")["value"]
    named = values.rename_axis(["cell", "phase"]).unstack("phase")
    return (named * (1e3 if in_ms else 100)).fillna(0.0).drop(columns=STEP, errors="ignore")


def _lane(ax: Axes, y: float, row: pd.Series, end: float, behind: pd.Series) -> None:
    """The exchange of a cell below its bar: what is hidden ends where it is exposed."""
    names = list(row.index)
    exposed = sum(row.get(part, 0.0) for part in (MOVING, WAITING))
    covered = float(behind.get(row.name, 0.0))
    if MOVING not in names or covered + exposed <= 0:
        return
    begins = float(row.iloc[: names.index(MOVING)].sum())
    left = max(0.0, begins - covered)
    ax.barh(y + end + LANE / 2, begins + exposed - left, left=left, height=LANE, color=ORANGE, linewidth=0, zorder=2)


def _legend(names: Sequence[str]) -> list[Patch]:
    entries = phase_looks.handles(names)
    lane = [Patch(facecolor=ORANGE, linewidth=0, label="exchange (lane)")] if MOVING in names else []
    return [*entries, *lane]


def _widest(measured: Measured, drawn: Collection[str]) -> str:
    """The least and the most exposed of the cells that are drawn, in a sentence."""
    shares = measured.estimates("exchange", "share")["value"].rename_axis(["cell", "phase"])
    exposed = shares[shares.index.get_level_values("phase") == "exposed"].droplevel("phase")
    several = measured.runs.drop_duplicates("cell").set_index("cell")["replicas"] > 1
    exposed = exposed[[bool(several.get(cell, False)) and cell in drawn for cell in exposed.index]]
    if exposed.empty:
        exchanging = [cell for cell in drawn if several.get(cell, False)]
        if not exchanging:
            return NO_EXCHANGE
        return EXCHANGE_UNTOLD if set(exchanging) & set(measured.order) else NOT_TRACED
    words = cell_words(measured.runs)
    ends = [
        f"{100 * exposed[cell]:.0f} % ({words[str(cell)]})"
        for cell in dict.fromkeys((exposed.idxmin(), exposed.idxmax()))
    ]
    return Note("exposed-share", f"Exposed is {' to '.join(ends)}.", least=exposed.min(), most=exposed.max())
