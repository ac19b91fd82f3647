"""Decide after a block which cells get a run in the next block, by the records so far."""

import math
import sys
import tempfile
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
from declared.replicates import Replicates
from plan.campaign import Campaign, load_campaign
from plan.decisions import NO, rule_fields, summarize_target
from records.aggregate import aggregate_records
from replication.stopping import expected_runs, judge_cells


def aggregate_blocks(campaign: Campaign, block: int) -> pd.DataFrame:
    """Return the rows of runs.csv of all blocks up to `block`."""
    so_far = replace(campaign, designed_runs=[run for run in campaign.runs if run.block <= block])
    with tempfile.TemporaryDirectory() as folder:
        return aggregate_records(so_far, Path(folder) / "epochs.csv")


def decide(runs: pd.DataFrame, rule: Replicates, block: int) -> dict[str, Any]:
    """Return the decision after a block, in the form of its file (plan.decisions)."""
    verdicts = judge_cells(runs, rule)
    cells = {
        str(row.Index): {
            "n": int(row.n),
            "half_width": float(row.half_width) if math.isfinite(row.half_width) else None,
            "reached": str(row.reached),
            "refine": bool(row.refine and block < rule.at_most),
            "expected": int(row.expected),
        }
        for row in verdicts.assign(expected=expected_runs(verdicts, rule)).itertuples()
    }
    return {"block": block, "rule": rule_fields(rule), "cells": cells}


def summarize_decision(decision: dict[str, Any]) -> Note:
    """Return a decision in one line."""
    cells, block = decision["cells"], decision["block"]
    refined = [name for name, cell in cells.items() if cell["refine"]]
    wide = [name for name, cell in cells.items() if cell["reached"] == NO]
    used_up = block == decision["rule"]["at_most"]
    outcome = f"{number_of(len(refined), 'cell')} will get another run in block {block + 1}"
    if not refined:
        outcome = "no cell gets more runs" + ", because at_most is reached" * used_up
        outcome += f"; outside the target: {conditions.join_names(wide)}" if wide else ""
    text = f"interval target after block {block}: {summarize_target(cells, decision['rule'])}; {outcome}"
    return Note("precision-decided", text, block=block, refined=refined, not_precise=wide, used_up=used_up)


def main(*, study: str, site: str, block: int, out: Path) -> None:
    """Decide after a block which cells get a run in the next block.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        block: the last block that has run
        out: the decision
    """
    campaign = load_campaign({"study": study, "site": site, "records": "available"})
    decision = decide(aggregate_blocks(campaign, block), campaign.study.replicates, block)
    check(decision, "decision", out)
    write_json(out, decision)
    print(summarize_decision(decision))


if __name__ == "__main__":
    sys.exit(run_program(main))
