"""The line of marks that says how good the data are."""

import pandas as pd
import pytest

from analysis.tables import Table
from plan.decisions import BY_CHANCE, NO, NOT_ASKED, YES
from report import quality
from report.quality import BAD, GOOD, UNKNOWN


@pytest.mark.parametrize(
    ("reached", "name", "outcome", "said"),
    [
        ((YES, NO, BY_CHANCE), "2 of 3 cells as precise as wanted", BAD, "not: b. perhaps by chance: c"),
        ((YES, NOT_ASKED, BY_CHANCE), "2 of 2 cells as precise as wanted", UNKNOWN, "perhaps by chance: c"),
        ((YES, YES, NOT_ASKED), "2 of 2 cells as precise as wanted", GOOD, ""),
    ],
)
def test_whether_cells_are_as_precise_as_wanted(reached, name, outcome, said):  # type: ignore[no-untyped-def]
    rows = pd.DataFrame({"cell": ["a", "b", "c"], "reached": reached})
    mark = quality._precise(Table("t", rows, rows, []))
    assert (mark.name, mark.outcome, mark.said) == (name, outcome, said)
