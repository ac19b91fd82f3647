"""Draw the critical path through a training step of every cell, over ranks."""

from matplotlib.figure import Figure

from analysis.records import Records
from common.notes import Note
from declared.figure_specs import FigureSpec
from figures import captions, panels, phase_styles, stacks
from figures.view import build_view
from ranks.worker.phases import COMMUNICATION
from traces import cells, path
from traces.cells import NO_PHASES

LEAD = "The critical path through a training step, over ranks."


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with a row per cell, and its caption."""
    measured = cells.select_traced(records.every_run, records.table("phases"))
    data = path.summarize(measured)
    if data.empty:
        return panels.empty_figure(measured.runs, NO_PHASES, measured.missing_note)
    names = path.path_parts(measured)
    parts = 1e3 * data.set_index("cell")[[f"{name}_s" for name in names]].set_axis(names, axis="columns")
    view = build_view(measured.runs, spec)
    figure, view = stacks.draw_stacks(
        view,
        parts[parts.index.isin(view.runs["cell"])],
        "time in a step (ms)",
        phase_styles.phase_style,
        phase_styles.legend_handles,
    )
    shares = 100 * data.loc[data["cell"].isin(view.runs["cell"]), "communication_share"]
    bounds = dict.fromkeys(f"{share:.0f}" for share in (shares.min(), shares.max()))
    text = f"Gradient all-reduce is {' to '.join(bounds)} % of it."
    share_note = Note("communication-share", text, least=shares.min() / 100, most=shares.max() / 100)
    lead = [LEAD, share_note if COMMUNICATION in names else ""]
    return figure, view.caption(lead, endnotes=[path.PATH, *measured.notes], with_intervals=False)
