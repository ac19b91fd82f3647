"""How precise the cells of a study became, where it says a precision in place of a number of replicates."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import conditions, tables
from analysis.measured import cell_words, cells, read_runs, successful, timed
from common.errors import exit_status
from common.text import number_of
from declared.study import Replicates
from precision.stopping import looks

TITLE = "Precision that was wanted and reached"


def said(runs: pd.DataFrame, rule: Replicates) -> str:
    """That replicates were chosen by precision, and which cells did not reach it; nothing where their number is fixed."""
    if not rule.adaptive or runs.empty:
        return ""
    found, words = _in_order(looks(runs, rule), runs), cell_words(timed(runs))
    others = [words[cell] for cell in found.index[~found["precise"]]]
    n = successful(timed(runs)).groupby("cell").size()
    each = " to ".join(dict.fromkeys(f"{end}" for end in (n.min(), n.max()))) if len(n) else "0"
    reached = (
        f"not reached by {len(others)} of {number_of(len(found), 'cell')}: {conditions.named(others, '; ')}"
        if others
        else "reached by all cells"
    )
    return f"Replicates were chosen by precision: a cell has {rule.words} (n = {each}). This was {reached}."


def table(runs: pd.DataFrame, rule: Replicates) -> tables.Table:
    """A row per cell: what it was to reach, and what it reached."""
    found, words = _in_order(looks(runs, rule), runs), cell_words(timed(runs))
    data = pd.DataFrame(
        {
            "cell": found.index,
            "n": found["n"].to_numpy(),
            "half_width": found["half_width"].to_numpy(),
            "wanted": rule.until,
            "precise": found["precise"].to_numpy(),
        }
    )
    shown = pd.DataFrame(
        {
            "cell": [words[cell] for cell in found.index],
            "n": data["n"].astype(str),
            "half width (%)": [_percent(half) for half in data["half_width"]],
            "wanted (%)": _percent(rule.until or 0.0),
            "reached": ["yes" if precise else "no" for precise in data["precise"]],
        }
    )
    of = "the widest interval of a ratio in which the cell is" if rule.contrasts else "the cell's mean epoch time"
    notes = [
        f"Half width: half of the 95 % interval of {of}, relative to it, as the other tables have it; a dash where there is none.",
        said(runs, rule),
    ]
    return tables.Table(TITLE, data, shown, notes, ["cell", "reached"])


def in_few_words(table_csv: Path) -> str:
    """What `said` says, for the caption of a figure, from the CSV of the table."""
    rows = pd.read_csv(table_csv)
    others = int((~rows["precise"]).sum())
    short = f"{others} of {number_of(len(rows), 'cell')} did not reach it" if others else "all cells reached it"
    return (
        f"The number of runs was chosen by precision (half intervals of {100 * rows['wanted'].iloc[0]:g} %): {short}."
    )


def _in_order(found: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The cells that are timed, in the order of tables."""
    return found.loc[cells(timed(runs))["cell"].tolist()]


def _percent(share: float) -> str:
    return tables.DASH if pd.isna(share) else f"{100 * share:.3g}"


def _rule(written: str) -> Replicates:
    """The rule as a decision has it (plan.decisions.rule_of)."""
    told: Mapping[str, Any] = json.loads(written)
    contrasts = {name: tuple(levels) for name, levels in told["contrasts"].items()}
    return Replicates(told["at_least"], told["at_most"], told["until"], contrasts)


def main(argv: list[str] | None = None) -> None:
    """Write the table of the precision that was wanted and reached."""
    parser = argparse.ArgumentParser(prog="precision.reached", description=main.__doc__)
    parser.add_argument("--runs", type=Path, required=True, metavar="CSV", help="runs.csv of the study")
    parser.add_argument("--rule", type=_rule, required=True, metavar="JSON", help="the study's key replicates")
    parser.add_argument("--out", type=Path, required=True, metavar="STEM", help="files to write, without their suffix")
    options = parser.parse_args(argv)
    tables.write(table(read_runs(options.runs), options.rule), options.out)


if __name__ == "__main__":
    sys.exit(exit_status(main))
