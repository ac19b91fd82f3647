"""Epoch time by a factor, numeric or not: a line per series; over nodes or devices beside the undistributed bases."""

from matplotlib.figure import Figure

from analysis.measured import Records, title
from analysis.terms import is_treated_as_number
from common.notes import Note
from declared.figures import Declared
from figures import lines, panels
from figures.view import view

GUIDE = Note("lines-guide-the-eye", "Lines only guide the eye from one level to the next.")
REPLICATED = ("nodes", "devices_per_node")  # what makes replicas, which bases are compared with


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """The figure and its caption."""
    x = str(asked.x)
    joined = GUIDE if is_treated_as_number(records.runs, x) else ""
    what = f"Epoch time by {title(x)}. {panels.MARKERS.format('beside')}"
    return lines.draw(view(records.runs, asked), x, what, with_bases=x in REPLICATED, notes=[joined])
