"""The critical path through a training step of every cell, over ranks: what the time of a step is made of that nothing else hides."""

from matplotlib.figure import Figure

from analysis.measured import Records
from common.notes import Note
from declared.figures import Declared
from figures import panels, phase_looks, stacks
from figures.view import view
from ranks.worker.phases import EXCHANGE
from traces import cells, path
from traces.cells import NO_PHASES

WHAT = "The critical path through a training step, over ranks."


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Rows by series and nodes, panels by the other factors that vary. The figure and its caption."""
    measured = cells.select_traced(records.every_run, records.table("phases"))
    data = path.summarize(measured)
    if data.empty:
        return panels.not_drawn(measured.runs, NO_PHASES, measured.missing_note)
    names = path.path_parts(measured)
    parts = 1e3 * data.set_index("cell")[[f"{name}_s" for name in names]].set_axis(names, axis="columns")
    seen = view(measured.runs, asked)
    drawn, seen = stacks.draw(
        seen,
        parts[parts.index.isin(seen.runs["cell"])],
        phase_looks.look,
        "time in a step (ms)",
        phase_looks.handles,
    )
    shares = 100 * data.loc[data["cell"].isin(seen.runs["cell"]), "exchange_share"]
    ends = dict.fromkeys(f"{end:.0f}" for end in (shares.min(), shares.max()))
    said = (
        Note(
            "exchange-share",
            f"The exchange is {' to '.join(ends)} % of it.",
            least=shares.min() / 100,
            most=shares.max() / 100,
        )
        if EXCHANGE in names
        else ""
    )
    return drawn, seen.caption([WHAT, said], notes=[path.PATH, *measured.notes], with_intervals=False)
