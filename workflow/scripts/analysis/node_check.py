"""Table of the node check: the verdict on each test of a node or accelerator (runs/node_check.py)."""

import sys
from pathlib import Path

import pandas as pd

from analysis import tables
from common.notes import Note
from common.options import run_program
from common.tables import read_table
from sites.outliers import MARGIN_TEXT, RATE_TEXT

TITLE = "Node check before the campaign"
RULE = Note(
    "node-check-rule",
    f"A round is slow if it takes more than {MARGIN_TEXT} longer than the lower median of all rounds. A node "
    f"is slow if it has so many slow rounds that at most {RATE_TEXT} of checks of equal nodes would name any "
    "node.",
)


def table(nodes: pd.DataFrame) -> tables.Table:
    """Return the table of a campaign's nodes.csv."""
    slow = sorted(set(nodes.loc[nodes["slow"].astype(bool), "host"]))
    names = ", ".join(slow) or "none"
    verdict = Note("slow-nodes", f"Nodes: {nodes['host'].nunique()}; slow, and left out: {names}.", slow=slow)
    rows = [
        {
            "node": row.host if pd.isna(row.device) else f"{row.host}, accelerator {row.device}",
            "test": row.test,
            "ratio": tables.number(row.ratio),
            "slow rounds": f"{row.slow_rounds} of {row.rounds}",
            "verdict": "slow" if row.slow else "usual",
        }
        for row in nodes.itertuples()
    ]
    return tables.Table(TITLE, nodes, pd.DataFrame(rows), [verdict, RULE], ["node", "test", "verdict"])


def main(*, nodes: Path, out: Path) -> None:
    """Write the table of the node check.

    Args:
        nodes: nodes.csv of the campaign
        out: files to write, without their suffix
    """
    tables.write(table(read_table(nodes, "nodes")), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
