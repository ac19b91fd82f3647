"""Draw the interaction of two factors: a response over one, a line per level of the other.

Without interaction the lines are parallel.
"""

from matplotlib.figure import Figure

from analysis import anova
from analysis.intervals import p_text
from analysis.level_words import title
from analysis.records import Records
from common.notes import Note
from declared.figure_specs import FigureSpec
from figures import captions, lines
from figures.view import View, build_response_view

HOW_TO_READ = (
    "On the logarithmic axis, parallel lines mean no interaction: each factor multiplies the response by the "
    "same ratio at every level of the other. Nothing was measured between the levels."
)


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure and its caption, with the test of the interaction."""
    x = str(spec.x)
    view = build_response_view(records, spec)
    colour = " and ".join(title(name) for name in view.series_factors)
    response = view.response
    lead = f"Interaction of {title(x)} and {colour} in {response.title}. {captions.MARKERS}"
    test, share = _test_notes(view, x, view.series_factors[0]) if len(view.ok) else ("", "")
    endnotes = [*view.response_notes, HOW_TO_READ, share]
    return lines.draw_lines(view, lead, details=[test], endnotes=endnotes)


def _test_notes(view: View, factor: str, other_factor: str) -> tuple[str, str]:
    """Return the test of the interaction in the study's analysis of variance, and its share of variation."""
    analysis = anova.analyse_runs(view.unfiltered_runs, view.response)
    rows = analysis.rows.set_index("term")
    names = [anova.TIMES.join(map(title, pair)) for pair in ((factor, other_factor), (other_factor, factor))]
    name = next((name for name in names if name in rows.index), "")
    if not name or not rows.loc[name, "F"] >= 0:
        problem = analysis.problem or "its design cannot separate it from other terms"
        text = f"The study has no test of this interaction: {problem}."
        return "", Note("interaction-not-tested", text)
    row, error = rows.loc[name], rows.loc[anova.ERROR]
    df, error_df = row["df"], error["df"]
    test = f"F({df:.0f}, {error_df:.0f}) = {row['F']:.3g}, {p_text(row['p'])}."
    share = (
        f"The F test is that of the analysis of variance of the whole study, in which the interaction has "
        f"{100 * row['share']:.1f} % of the sum of squares of the logarithm of {view.response.title}."
    )
    return (
        Note("interaction-tested", test, term=name, f=row["F"], df=df, error_df=error_df, p=row["p"]),
        Note("interaction-share", share, share=row["share"]),
    )
