"""Decide after a block which cells get a run in the next one, from the records of the blocks so far."""

import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import conditions
from common.files import write_json
from common.notes import Note
from common.options import run_program
from common.schemas import check
from common.text import number_of
from declared.study import Replicates
from plan.campaign import Campaign, load_campaign
from plan.decisions import NO, in_words, rule_of
from precision.stopping import expected, looks
from records.aggregate import aggregate

MOST_NAMED = 4  # cells


def recorded(campaign: Campaign, block: int) -> pd.DataFrame:
    """The rows of runs.csv, of the runs of the campaign up to a block."""
    so_far = replace(campaign, possible=[run for run in campaign.runs if run.block <= block])
    with tempfile.TemporaryDirectory() as folder:
        return aggregate(so_far, Path(folder) / "epochs.csv")


def decision(runs: pd.DataFrame, rule: Replicates, block: int) -> dict[str, Any]:
    """What is decided after a block, as its file has it (plan.decisions)."""
    found = looks(runs, rule)
    cells = {
        str(row.Index): {
            "n": int(row.n),
            "half_width": float(row.half_width) if math.isfinite(row.half_width) else None,
            "reached": str(row.reached),
            "refine": bool(row.refine and block < rule.at_most),
            "expected": int(row.expected),
        }
        for row in found.assign(expected=expected(found, rule)).itertuples()
    }
    return {"block": block, "rule": rule_of(rule), "cells": cells}


def summary(said: dict[str, Any]) -> Note:
    """Return what a person should know of a decision, in one line."""
    cells, block = said["cells"], said["block"]
    refined = [name for name, cell in cells.items() if cell["refine"]]
    wide = [name for name, cell in cells.items() if cell["reached"] == NO]
    used_up = block == said["rule"]["at_most"]
    if refined:
        what = f"{_named(refined)} in block {block + 1}"
    else:
        last = f"; not precise: {conditions.named(wide)}" if wide else ""
        what = f"no cell gets more runs{', as at_most is reached' if used_up else ''}{last}"
    text = f"precision after block {block}: {in_words(cells, said['rule'])}; {what}"
    return Note("precision-decided", text, block=block, refined=refined, not_precise=wide, used_up=used_up)


def _named(cells: Sequence[str]) -> str:
    named = f" ({', '.join(cells)})" if len(cells) <= MOST_NAMED else ""
    return f"another run of {number_of(len(cells), 'cell')}{named}"


def main(*, study: str, site: str, block: int, out: Path) -> None:
    """Decide after a block which cells get a run in the next one.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        block: the last block that has run
        out: the decision
    """
    campaign = load_campaign({"study": study, "site": site, "records": "available"})
    said = decision(recorded(campaign, block), campaign.study.replicates, block)
    check(said, "decision", out)
    write_json(out, said)
    print(summary(said))


if __name__ == "__main__":
    sys.exit(run_program(main))
