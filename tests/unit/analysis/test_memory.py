"""The table of memory: what was estimated before the runs beside what they used."""

import numpy as np
import pytest

from analysis import memory
from analysis.records import successful
from records.run_rows import memory_estimate_columns

MEASURED_BYTES = 4e8
BYTES = {name: 10_000_000 * (place + 1) for place, name in enumerate(memory.HEADINGS)}


def estimated(runs):
    columns = memory_estimate_columns({"rank": 0, "bytes": BYTES})
    return runs.assign(**columns, memory_peak_bytes=MEASURED_BYTES, device_memory_peak_bytes=np.nan)


def test_error_is_relative_to_the_measured_peak(runs):
    data = memory.table(estimated(runs)).data
    assert set(data["cell"]) == set(successful(runs)["cell"])
    assert (data[memory.ESTIMATE] == sum(BYTES.values())).all()
    assert data["error"].tolist() == pytest.approx([sum(BYTES.values()) / MEASURED_BYTES - 1] * len(data))


def test_accelerators_are_compared_with_their_own_memory(runs):
    on_gpus = estimated(runs).assign(device_memory_peak_bytes=2.0 * sum(BYTES.values()))
    errors = memory.table(on_gpus).data["error"]
    assert errors.tolist() == pytest.approx([-0.5] * successful(runs)["cell"].nunique())


def test_runs_without_an_estimate_have_no_row(runs):
    assert memory.table(runs).notes == [memory.NO_ESTIMATE]
    data = estimated(runs)
    is_first = data["cell"] == data["cell"].iloc[0]
    data.loc[~is_first, memory.ESTIMATE] = np.nan
    assert len(memory.table(data).data) == 1
