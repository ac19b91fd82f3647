"""Epoch time by nodes, or by devices where only these vary: a line per series, beside the undistributed bases.

Panels by the other factors that vary.
"""

import sys

from matplotlib.figure import Figure

from analysis.measured import Records, scale_factor, title
from common.errors import exit_status
from figures import panels, series

WHAT = (
    "Epoch time by number of {}: markers are means over replicates, bars their intervals, "
    "dots beside them the single replicates; "
    "lines lead the eye from one number to the next."
)


def draw(records: Records) -> tuple[Figure, str]:
    """The figure and its caption."""
    factor = scale_factor(records.runs)
    return series.draw(records, factor, WHAT.format(title(factor)), with_bases=True)


def main(argv: list[str] | None = None) -> None:
    """Draw the figure."""
    panels.program(draw, __doc__, argv)


if __name__ == "__main__":
    sys.exit(exit_status(main))
