"""Interaction of two factors: epoch time over one, a line for each level of the other, parallel where they do not interact."""

from matplotlib.figure import Figure

from analysis import anova
from analysis.intervals import p_text
from analysis.measured import Records, title
from common.notes import Note
from declared.figures import Declared
from figures import lines, panels
from figures.view import view

PARALLEL = (
    "On the logarithmic axis, parallel lines mean no interaction: each factor then multiplies the time by the same ratio at every level of "
    "the other. Nothing was measured between the levels."
)


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """The figure and its caption, with the test of the interaction."""
    x = str(asked.x)
    of = view(records.runs, asked)
    colour = " and ".join(title(name) for name in of.colour)
    what = f"Interaction of {title(x)} and {colour} in epoch time. {panels.MARKERS.format('beside')}"
    test = _test(records, x, of.colour[0]) if len(of.ok) else ""
    return lines.draw(of, x, what, to_compare=True, notes=[PARALLEL, test])


def _test(records: Records, one: str, other: str) -> str:
    """What the analysis of variance of the whole study says of the interaction, in a sentence."""
    made = anova.analyse_runs(records.runs)
    rows = made.rows.set_index("term")
    names = [anova.TIMES.join(map(title, pair)) for pair in ((one, other), (other, one))]
    name = next((name for name in names if name in rows.index), "")
    if not name or not rows.loc[name, "F"] >= 0:
        why = made.problem or "its design cannot separate it from other terms"
        return Note(
            "interaction-not-tested", f"The study has no test of this interaction: {why}.", problem=made.problem
        )
    row, error = rows.loc[name], rows.loc[anova.ERROR]
    text = (
        f"In the analysis of variance of the whole study their interaction has F = {row['F']:.3g} "
        f"({row['df']:.0f}, {error['df']:.0f} degrees of freedom), {p_text(row['p'])}, and {100 * row['share']:.1f} % of the "
        f"sum of squares of log epoch times."
    )
    facts = {"df": row["df"], "error_df": error["df"], "p": row["p"], "share": row["share"]}
    return Note("interaction-tested", text, term=name, f=row["F"], **facts)
