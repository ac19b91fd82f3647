"""Draw the phases of a training step of every cell end to end.

Exposed communication is hatched. Overlapped communication is in a lane below the bar.
"""

from collections.abc import Collection, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.level_words import cell_words
from analysis.records import Records
from common.notes import Note
from declared.figure_specs import FigureSpec
from figures import captions, panels, phase_styles, stacks
from figures.phase_styles import ORANGE, REST, TRANSFERRING, WAITING
from figures.view import build_view
from traces import cells
from traces.cells import NO_PHASES, STEP, Measured
from traces.steps import WAIT

TIME = "time"
LANE = 0.17  # height, as a share of a row
LEAD = "Where the time of a training step goes."
HOW_TO_READ = (
    "Means over ranks, then over runs. Hatched: exposed communication, during which nothing is computed; "
    "first transfer, then waiting for the slowest rank to start it."
)
OTHER_WAITING = (
    "Other waiting: the rank waits while it does not communicate; its library prepares messages or returns "
    "sums."
)
LANE_NOTE = "The lane below a bar is communication: its overlapped part, then its exposed part."


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with rows by series and nodes, and its caption."""
    measured = cells.select_traced(records.every_run, records.table("phases"))
    if not measured.order or not measured.step_phases:
        return panels.empty_figure(measured.runs, NO_PHASES, measured.missing_note)
    in_ms = spec.x == TIME
    data = parts(measured, in_ms)
    view = build_view(measured.runs, spec)
    figure, view = stacks.draw_stacks(
        view,
        data[data.index.isin(view.runs["cell"])],
        "time in a step (ms)" if in_ms else "share of the step (%)",
        phase_styles.phase_style,
        _legend_handles,
        lambda ax, y, row, end: _draw_lane(ax, y, row, end, overlapped(measured, in_ms)),
    )
    lead = [LEAD, _exposed_note(measured, set(view.runs["cell"]))]
    return figure, view.caption(
        lead, endnotes=[HOW_TO_READ, OTHER_WAITING, LANE_NOTE, *measured.notes], with_intervals=False
    )


def parts(measured: Measured, in_ms: bool) -> pd.DataFrame:
    """Return the length of each phase in % of a step or in ms, [cells, phases].

    Waiting is split into exposed communication and other waiting.
    """
    phases, allreduce = (_means(measured, scope, in_ms) for scope in ("step", "communication"))
    parts = {}
    for name in measured.step_phases:
        if name != WAIT:
            parts[name] = phases[name]
            continue
        parts[TRANSFERRING], parts[WAITING] = (
            allreduce.get(part, pd.Series(dtype=float)).reindex(phases.index).fillna(0.0)
            for part in (TRANSFERRING, WAITING)
        )
        parts[REST] = (phases[WAIT] - parts[TRANSFERRING] - parts[WAITING]).clip(lower=0)
    return pd.DataFrame(parts)


def overlapped(measured: Measured, in_ms: bool) -> pd.Series:
    """Return the overlapped communication of each cell in % of a step or in ms."""
    allreduce = _means(measured, "communication", in_ms)
    return allreduce["communication"] - allreduce["exposed"] if len(allreduce) else pd.Series(dtype=float)


def _means(measured: Measured, scope: str, in_ms: bool) -> pd.DataFrame:
    """Return the means of the phases of a scope in % of a step or in ms, [cells, phases]."""
    values = measured.estimates(scope, "step_s" if in_ms else "share")["value"]
    named = values.rename_axis(["cell", "phase"]).unstack("phase")
    return (named * (1e3 if in_ms else 100)).fillna(0.0).drop(columns=STEP, errors="ignore")


def _draw_lane(ax: Axes, y: float, row: pd.Series, end: float, overlapped: pd.Series) -> None:
    """Draw the communication of a cell below its bar: first its overlapped, then its exposed part."""
    names = list(row.index)
    exposed = sum(row.get(part, 0.0) for part in (TRANSFERRING, WAITING))
    overlap = float(overlapped.get(row.name, 0.0))
    if TRANSFERRING not in names or overlap + exposed <= 0:
        return
    exposed_start = float(row.iloc[: names.index(TRANSFERRING)].sum())
    left = max(0.0, exposed_start - overlap)
    length, middle = exposed_start + exposed - left, y + end + LANE / 2
    ax.barh(middle, length, left=left, height=LANE, color=ORANGE, linewidth=0, zorder=2)


def _legend_handles(phases: Sequence[str]) -> list[Patch]:
    lane = Patch(facecolor=ORANGE, linewidth=0, label="communication (below)")
    return [*phase_styles.legend_handles(phases), *([lane] if TRANSFERRING in phases else [])]


def _exposed_note(measured: Measured, drawn: Collection[str]) -> str:
    """Return the range of exposed communication over the drawn cells, in a sentence."""
    shares = measured.estimates("communication", "share")["value"].rename_axis(["cell", "phase"])
    exposed = shares[shares.index.get_level_values("phase") == "exposed"].droplevel("phase")
    is_multi_device = measured.runs.drop_duplicates("cell").set_index("cell")["n_devices"] > 1
    exposed = exposed[[bool(is_multi_device.get(cell, False)) and cell in drawn for cell in exposed.index]]
    if exposed.empty:
        return ""
    words = cell_words(measured.runs)
    bounds = [
        f"{100 * exposed[cell]:.0f} % ({words[str(cell)]})"
        for cell in dict.fromkeys((exposed.idxmin(), exposed.idxmax()))
    ]
    text = f"Exposed communication is {' to '.join(bounds)}."
    return Note("exposed-share", text, least=exposed.min(), most=exposed.max())
