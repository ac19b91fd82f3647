"""Table of the memory of ranks: the estimates made before the runs, by category, and the measurements."""

import pandas as pd

from analysis import conditions, tables
from analysis.level_words import level_texts
from analysis.records import cell_levels, peak_memory_bytes, successful
from analysis.strategies import megabyte_texts
from common.notes import Note
from declared.factors import factor_names

TITLE = "Memory of the rank that needs the most, estimated and measured"
ESTIMATE = "estimated_memory_peak_bytes"
HEADINGS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "buffers": "buffers",
    "activations": "activations",
    "framework": "framework",
    "program": "program",
}
NO_ESTIMATE = Note("no-memory-estimate", "No run has an estimate; ./ringside plan makes it before runs.")


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell with a successful run that has an estimate.

    Columns: cell, factors, n, estimated bytes by category and in all, measured_bytes (of the device, else the
    resident set) and error, the estimate over the measurement less 1; means over runs.
    """
    ok = successful(runs)
    if ESTIMATE not in ok or ok[ESTIMATE].isna().all():
        return pd.DataFrame(columns=["cell"], dtype=str)
    names = [f"estimated_{name}_bytes" for name in HEADINGS]
    estimated = ok[ok[ESTIMATE].notna()]
    values = estimated[[*names, ESTIMATE]].astype(float).assign(measured_bytes=peak_memory_bytes(estimated))
    groups = values.groupby(estimated["cell"])
    means = groups.mean().assign(n=groups.size())
    means["error"] = means[ESTIMATE] / means["measured_bytes"] - 1
    columns = ["n", *names, ESTIMATE, "measured_bytes", "error"]
    return cell_levels(runs)[["cell", *factor_names(runs)]].merge(
        means[columns], left_on="cell", right_index=True
    )


def table(runs: pd.DataFrame) -> tables.Table:
    """Return the table of a study; it has no rows without estimates."""
    data = summarize(runs)
    if data.empty:
        return tables.Table(TITLE, data, data, [NO_ESTIMATE])
    display = level_texts(data, runs)
    for name, heading in HEADINGS.items():
        values = data[f"estimated_{name}_bytes"]
        if values.fillna(0).any():
            display[f"{heading} (MB)"] = megabyte_texts(values)
    display["estimated (MB)"] = megabyte_texts(data[ESTIMATE])
    display["measured (MB)"] = megabyte_texts(data["measured_bytes"])
    display["error (%)"] = data["error"].map(lambda error: f"{100 * error:+.1f}".replace("-", "−"))
    notes = [conditions.run_counts_note(runs), conditions.measurement_note(runs)]
    return tables.Table(TITLE, data, pd.DataFrame(display), notes)
