"""Table of the runs that did not succeed, with status and reason."""

import pandas as pd

from analysis import tables
from analysis.records import one_line, unsuccessful
from common.notes import Note
from common.text import number_of


def table(runs: pd.DataFrame) -> tables.Table:
    """Return the table of the unsuccessful runs of a study."""
    data = unsuccessful(runs).sort_values("run_id")[["run_id", "status", "reason"]].reset_index(drop=True)
    data["reason"] = data["reason"].map(one_line)
    counts = data["status"].value_counts().sort_index().to_dict()
    if len(data):
        text = f"{len(data)} of {number_of(len(runs), 'run')} did not succeed: "
        text += f"{', '.join(f'{count} {status}' for status, count in counts.items())}."
    else:
        text = f"All {len(runs):,} runs succeeded." if len(runs) > 1 else "The only run succeeded."
    note = Note("runs-without-success", text, of=len(runs), by_status=counts)
    return tables.Table(
        title="Runs that did not succeed",
        data=data,
        display=data.rename(columns={"run_id": "run"}),
        notes=[note],
        left_aligned=["run", "status", "reason"],
    )
