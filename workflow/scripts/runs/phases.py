"""phases.csv of an attempt: the phases of all ranks, on one clock. Made of what each rank wrote (runs/worker/phases.py)."""

from pathlib import Path

import numpy as np
import pandas as pd

from common.files import written_whole
from runs.worker.phases import COLUMNS

TABLE = "phases.csv"
CLOCKS = "clocks.csv"


def put_together(folder: Path) -> float | None:
    """Write phases.csv of all ranks' tables, which go; return the largest error of a clock in s, None where nobody traced.

    Times are in s from the start of the first process. Between two comparisons a clock is taken to drift evenly.
    """
    parts = {int(file.stem.removeprefix("phases-")): file for file in folder.glob("phases-*.csv")}
    if not parts:
        return None
    clocks = pd.read_csv(folder / CLOCKS)
    aligned = []
    for rank, file in sorted(parts.items()):
        mine = pd.read_csv(file, dtype={"phase": str})
        told = clocks[clocks["rank"] == rank]
        for name in ("start", "end"):
            mine[name] -= np.interp(mine[name], told["at"] + told["offset_s"], told["offset_s"])
        aligned.append(mine.assign(rank=rank))
    phases = pd.concat(aligned, ignore_index=True)
    phases[["start", "end"]] -= phases["start"].min()
    phases = phases.sort_values(["rank", "start"], kind="stable")
    with written_whole(folder / TABLE) as partial:
        phases.to_csv(partial, index=False, columns=["rank", *COLUMNS], float_format="%.7f", lineterminator="\n")
    for file in parts.values():
        file.unlink()
    return float(clocks["error_s"].max())
