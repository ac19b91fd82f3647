"""The line of marks that says how good the data are."""

import pandas as pd
import pytest

from analysis.tables import Table
from plan.decisions import BY_CHANCE, NO, NOT_ASKED, YES
from report import quality
from report.quality import BAD, GOOD, UNKNOWN


@pytest.mark.parametrize(
    ("reached", "cells", "wide", "by_chance", "outcome"),
    [
        ((YES, NO, BY_CHANCE), 3, ["b"], ["c"], BAD),
        ((YES, NOT_ASKED, BY_CHANCE), 2, [], ["c"], UNKNOWN),
        ((YES, YES, NOT_ASKED), 2, [], [], GOOD),
    ],
)
def test_mark_counts_precise_cells(reached, cells, wide, by_chance, outcome):  # type: ignore[no-untyped-def]
    rows = pd.DataFrame({"cell": ["a", "b", "c"], "reached": reached})
    mark = quality._precision_mark(Table("t", rows, rows, []))
    assert (
        mark.name.facts == {"cells": cells, "wide": wide, "by_chance": by_chance} and mark.outcome == outcome
    )
    assert all(cell in mark.detail for cell in (*wide, *by_chance)) and bool(mark.detail) == bool(
        wide or by_chance
    )
