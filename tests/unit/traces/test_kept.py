"""Which steps of a traced run are kept for the replay."""

import pandas as pd
import pytest

from common.tables import read_table, write_table
from support.made_up_trace import Truth
from traces import kept
from traces.kept import BLOCK_STEPS

RUN = "pytorch-ddp.small-cnn.digits.b32.n2.s1.trace=phases.r1"


def trace(steps, epochs=(1, 2, 3)):
    truth = Truth()
    return pd.concat(
        [truth.trace(steps, [10.0 * epoch] * 2, epoch=epoch) for epoch in epochs], ignore_index=True
    )


def numbers(rows):
    return sorted(set(rows[["epoch", "step"]].itertuples(index=False, name=None)))


def test_all_steps_of_timed_epochs_where_they_are_few():
    result = kept.select_steps(trace(20), 1, 10**6)
    assert numbers(result) == [(epoch, step) for epoch in (2, 3) for step in range(1, 21)]
    item = trace(20)
    assert len(result) == len(item[item["epoch"] > 1])


def test_many_steps_are_kept_in_blocks_from_first_to_last():
    rows = trace(80)
    per_step = len(rows) / (3 * 80)
    result = kept.select_steps(rows, 1, int(4 * BLOCK_STEPS * per_step))
    steps = numbers(result)
    assert len(steps) == 4 * BLOCK_STEPS
    assert all(
        steps[k : k + BLOCK_STEPS] == [(steps[k][0], steps[k][1] + i) for i in range(BLOCK_STEPS)]
        for k in range(0, len(steps), BLOCK_STEPS)
    )
    assert steps[0] == (2, 1)
    assert steps[-1] == (3, 80)


def test_one_block_at_least_and_nothing_of_a_run_without_steps():
    assert len(numbers(kept.select_steps(trace(80), 1, 1))) == BLOCK_STEPS
    assert kept.select_steps(trace(5), 3, 100).empty


@pytest.fixture
def campaign(tmp_path):
    """runs.csv and the folder of the records, with the phases of one traced run.

    Beside it an untraced one, and one that failed.
    """
    row = {
        "run_id": RUN,
        "key": "0" * 12,
        "attempt": 2,
        "status": "ok",
        "epoch_time_s": 1.0,
        "trace": "phases",
        "warmup_epochs": 1,
        "without_phases": None,
    }
    runs = pd.DataFrame(
        [row, {**row, "run_id": "untraced", "trace": "none"}, {**row, "run_id": "failed", "status": "failed"}]
    )
    folder = tmp_path / RUN / ("0" * 12) / "attempt-2"
    folder.mkdir(parents=True)
    trace(20).to_csv(folder / "phases.csv", index=False)
    return runs, tmp_path


def test_times_count_from_the_first_that_is_kept(campaign):
    result = kept.gather(*campaign)
    assert set(result["run_id"]) == {RUN}
    assert result["start"].min() == 0
    file = campaign[1] / "replay_steps.csv"
    write_table(result, "replay_steps", file)
    assert len(read_table(file, "replay_steps")) == len(result) == len(kept.select_steps(trace(20), 1, 10**6))


def test_the_table_of_many_runs_stays_below_a_megabyte(campaign):
    runs, folder = campaign
    large = pd.concat([runs[:1]] * 30).assign(run_id=[f"{RUN}{number}" for number in range(30)])
    for run_id in large["run_id"]:
        attempt = folder / run_id / ("0" * 12) / "attempt-2"
        attempt.mkdir(parents=True)
        trace(200).to_csv(attempt / "phases.csv", index=False)
    file = folder / "replay_steps.csv"
    write_table(kept.gather(large, folder), "replay_steps", file)
    assert file.stat().st_size < 1_000_000
