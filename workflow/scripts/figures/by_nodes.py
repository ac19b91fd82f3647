"""Epoch time by nodes: a line per series, beside the undistributed bases, panels by the other factors that vary."""

import sys

from matplotlib.figure import Figure

from analysis.measured import Records
from common.errors import exit_status
from figures import panels, series

WHAT = (
    "Epoch time by number of nodes: markers are means over replicates, bars their intervals, "
    "dots beside them the single replicates; "
    "lines lead the eye from one number of nodes to the next."
)


def draw(records: Records) -> tuple[Figure, str]:
    """The figure and its caption."""
    return series.draw(records, "nodes", WHAT, with_bases=True)


def main(argv: list[str] | None = None) -> None:
    """Draw the figure."""
    panels.program(draw, __doc__, argv)


if __name__ == "__main__":
    sys.exit(exit_status(main))
