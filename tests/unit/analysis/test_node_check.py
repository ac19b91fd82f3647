"""The table of the node check has the verdict on each node and accelerator."""

import pandas as pd

from analysis.node_check import table
from common.notes import find_note

COLUMNS = ["host", "device", "test", "ratio", "rounds", "slow_rounds", "slow"]
NODES = pd.DataFrame(
    [
        ["n1", None, "links", 1.02, 9, 1, False],
        ["n2", None, "links", 2.0, 9, 8, True],
        ["n2", 1, "computation", 1.5, 9, 9, True],
    ],
    columns=COLUMNS,
).astype({"device": "Int64"})


def test_slow_nodes_are_named_once() -> None:
    result = table(NODES)
    assert find_note(result.notes, "slow-nodes").facts["slow"] == ["n2"]
    quiet = table(NODES.assign(slow=False))
    assert find_note(quiet.notes, "slow-nodes").facts["slow"] == []


def test_rows_have_verdict_ratio_and_rounds() -> None:
    rows = table(NODES).display.to_dict("records")
    assert [row["verdict"] for row in rows] == ["usual", "slow", "slow"]
    assert [float(row["ratio"]) for row in rows] == [1.02, 2, 1.5]
    assert [row["slow rounds"] for row in rows] == ["1 of 9", "8 of 9", "9 of 9"]
    assert rows[1]["node"] == "n2" and rows[2]["node"] == "n2, accelerator 1"
