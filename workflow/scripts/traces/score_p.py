"""What Score-P saw of a traced run, beside the run's own phases: exchanges of programs of MPI, whose libraries tell none themselves.

It is shown, not added up: what of an exchange is exposed cannot be told where a rank does not say when it waits.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from common.files import read_json
from environments import scorep
from ranks.worker.phases import EXCHANGE
from traces import otf2_read
from traces.timeline import Timeline


def beside(timeline: Timeline, attempt: Path) -> Timeline:
    """The trace of an attempt with the exchanges that Score-P saw, on its clock, each in the step in which its rank began it.

    It is as it was where Score-P wrote nothing, or nobody compared the two clocks. InputError where its archive is broken.
    """
    if not (attempt / scorep.CLOCK).exists() or not (attempt / scorep.ANCHOR).exists():
        return timeline
    seen, own = otf2_read.read(attempt / scorep.ANCHOR), timeline.intervals
    ahead = read_json(attempt / scorep.CLOCK)["rank_0_began"] - own.loc[own["rank"] == 0, "start"].min() - seen.began
    exchanges = seen.intervals[seen.intervals["phase"] == EXCHANGE]
    exchanges = exchanges.assign(start=exchanges["start"] - ahead, end=exchanges["end"] - ahead)
    placed = [_placed(mine, own[own["rank"] == rank]) for rank, mine in exchanges.groupby("rank")]
    together = pd.concat([own.astype({"phase": str}), *placed], ignore_index=True)
    return replace(timeline, intervals=together.sort_values(["rank", "start"], kind="stable", ignore_index=True))


def _placed(exchanges: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    """The exchanges of a rank with the epoch and the step in which each began; between steps the epoch of the last one, and step 0."""
    of_steps = phases[phases["step"] > 0].groupby(["epoch", "step"])
    steps = of_steps.agg(start=("start", "min"), end=("end", "max")).reset_index().sort_values("start")
    last = np.searchsorted(steps["start"], exchanges["start"], side="right") - 1
    if steps.empty:
        return exchanges.assign(epoch=0, step=0)
    told = steps.iloc[np.maximum(last, 0)]
    inside = exchanges["start"].to_numpy() < told["end"].to_numpy()
    epoch, step = told["epoch"].to_numpy(), told["step"].to_numpy()
    return exchanges.assign(epoch=np.where(last < 0, 0, epoch), step=np.where((last < 0) | ~inside, 0, step))
