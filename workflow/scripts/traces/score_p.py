"""Add the communication that Score-P recorded to a traced run, for MPI programs whose libraries record none.

It is displayed, not added up: exposed communication is unknown where a rank does not record when it waits.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from common.files import read_json
from environments import scorep
from ranks.worker.phases import COMMUNICATION
from traces import otf2_read
from traces.timeline import Timeline


def add_communication(timeline: Timeline, attempt: Path) -> Timeline:
    """Return the trace of an attempt with Score-P's all-reduces, on its clock and in the step of their begin.

    The trace is unchanged without an archive of Score-P or a comparison of the two clocks.

    Raises:
        InputError: If the archive is broken.
    """
    if not (attempt / scorep.CLOCK).exists() or not (attempt / scorep.ANCHOR).exists():
        return timeline
    recorded, intervals = otf2_read.read(attempt / scorep.ANCHOR), timeline.intervals
    clock_offset = (
        read_json(attempt / scorep.CLOCK)["rank_0_began"]
        - intervals.loc[intervals["rank"] == 0, "start"].min()
        - recorded.began
    )
    calls = recorded.intervals[recorded.intervals["phase"] == COMMUNICATION]
    calls = calls.assign(start=calls["start"] - clock_offset, end=calls["end"] - clock_offset)
    with_position = [
        _assign_steps(of_rank, intervals[intervals["rank"] == rank])
        for rank, of_rank in calls.groupby("rank")
    ]
    all_intervals = pd.concat([intervals.astype({"phase": str}), *with_position], ignore_index=True)
    return replace(
        timeline, intervals=all_intervals.sort_values(["rank", "start"], kind="stable", ignore_index=True)
    )


def _assign_steps(calls: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    """Return the all-reduces of a rank with epoch and step; between steps with the last epoch and step 0."""
    by_step = phases[phases["step"] > 0].groupby(["epoch", "step"])
    steps = by_step.agg(start=("start", "min"), end=("end", "max")).reset_index().sort_values("start")
    last = np.searchsorted(steps["start"], calls["start"], side="right") - 1
    if steps.empty:
        return calls.assign(epoch=0, step=0)
    step_rows = steps.iloc[np.maximum(last, 0)]
    inside = calls["start"].to_numpy() < step_rows["end"].to_numpy()
    epoch, step = step_rows["epoch"].to_numpy(), step_rows["step"].to_numpy()
    return calls.assign(epoch=np.where(last < 0, 0, epoch), step=np.where((last < 0) | ~inside, 0, step))
