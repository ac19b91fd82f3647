"""Draw a response by one factor: one line per series; over nodes or devices with baselines and the ideal."""

from matplotlib.figure import Figure

from analysis.batch_scaling import batch_scaling, scaling_phrase
from analysis.level_words import title
from analysis.records import Records
from analysis.terms import is_treated_as_number
from common.notes import Note
from declared.factors import SIZE_FACTORS
from declared.figure_specs import FigureSpec
from figures import captions, lines
from figures.view import build_response_view

GUIDE_NOTE = Note("lines-guide-the-eye", "Lines only guide the eye from one level to the next.")


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure and its caption."""
    x, view = str(spec.x), build_response_view(records, spec)
    guide_note = GUIDE_NOTE if is_treated_as_number(records.runs, x) else ""
    scaling = batch_scaling(view.runs, x) if x in SIZE_FACTORS else None
    lead = f"{view.response.capitalized_title} by {title(x)}{scaling_phrase(scaling)}. {captions.MARKERS}"
    endnotes = [scaling or "", *view.response_notes, guide_note]
    return lines.draw_lines(view, lead, endnotes=endnotes)
