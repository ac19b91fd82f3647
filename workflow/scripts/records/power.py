"""Collect the power samples of all successful runs in power.csv."""

import sys
from pathlib import Path

import pandas as pd

from common.errors import InputError, raise_if_machine_error
from common.files import display_path
from common.options import run_program
from common.run_status import RunStatus
from common.schemas import schema
from common.tables import read_table, write_table
from runs.attempts import attempt_path

POWER_FILE = "power.csv"
TYPES = {"t": float, "host": str, "scope": str, "watt": float}


def gather(runs: pd.DataFrame, results: Path) -> pd.DataFrame:
    """Return the rows of power.csv in the order of `runs`; a run without a meter has none.

    Raises:
        InputError: If a file of samples is broken.
    """
    tables = [pd.DataFrame(columns=list(schema("power")["properties"]))]
    ok = runs[runs["status"] == RunStatus.OK]
    for run_id, key, attempt in ok[["run_id", "key", "attempt"]].itertuples(index=False, name=None):
        file = attempt_path(results / "runs" / run_id / key, attempt) / POWER_FILE
        if file.exists():
            try:
                tables.append(pd.read_csv(file, dtype=TYPES).assign(run_id=run_id, key=key))
            except (OSError, ValueError) as error:
                raise_if_machine_error(error, display_path(file))
                raise InputError("broken-file", f"is broken ({error})", file=file, hint="remove it") from None
    return pd.concat(tables[1:] or tables, ignore_index=True)


def main(*, runs: Path, results: Path, out: Path) -> None:
    """Gather the power over time of a study's runs.

    Args:
        runs: runs.csv of the study
        results: results/STUDY, where the attempts lie
        out: power.csv
    """
    write_table(gather(read_table(runs, "runs"), results), "power", out)


if __name__ == "__main__":
    sys.exit(run_program(main))
