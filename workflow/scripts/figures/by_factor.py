"""Draw epoch time by one factor: one line per series; over nodes or devices with single-device baselines."""

from matplotlib.figure import Figure

from analysis.measured import Records, title
from analysis.terms import is_treated_as_number
from common.notes import Note
from declared.figures import Declared
from figures import lines, panels
from figures.view import build_view

GUIDE_NOTE = Note("lines-guide-the-eye", "Lines only guide the eye from one level to the next.")
SCALE_FACTORS = ("nodes", "devices_per_node")  # they make replicas, which are compared with baselines


def draw(records: Records, declaration: Declared) -> tuple[Figure, panels.Caption]:
    """Return the figure and its caption."""
    x = str(declaration.x)
    joined = GUIDE_NOTE if is_treated_as_number(records.runs, x) else ""
    heading = f"Epoch time by {title(x)}. {panels.MARKERS}"
    return lines.draw(
        build_view(records.runs, declaration), x, heading, with_baselines=x in SCALE_FACTORS, notes=[joined]
    )
