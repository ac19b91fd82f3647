"""Node time of a campaign is divided into known parts, which add up."""

import pandas as pd
import pytest

from analysis import useful_time
from analysis.records import read_runs
from common.notes import find_note
from common.tables import read_table
from support.synthetic import designed_campaign, write_frames

STARTUP_S, VALIDATION_S, END_S, SLOWER_S = 6.0, 0.05, 0.7, 0.4


@pytest.fixture
def frames(tmp_path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A campaign whose first epoch is slower, with start-up, validations and an end of processes."""
    runs, epochs = designed_campaign(noise=0)
    epochs.loc[epochs["epoch"] == 1, "epoch_time_s"] += SLOWER_S
    epochs["validation_time_s"] = VALIDATION_S
    spent = epochs.groupby("run_id")[["epoch_time_s", "validation_time_s"]].sum().sum(axis=1)
    wall_s = runs["run_id"].map(spent) + STARTUP_S + END_S
    paths = write_frames(tmp_path, runs.assign(startup_s=STARTUP_S, wall_s=wall_s), epochs)
    return read_runs(paths[0]), read_table(paths[1], "epochs")


def test_parts_are_as_constructed_and_add_up(frames) -> None:
    runs, epochs = frames
    data = useful_time.summarize(runs, epochs)
    nodes, n_epochs = runs["nodes"].sum(), epochs["epoch"].max()
    total = data.iloc[0]
    assert total["cell"] == "" and total["n"] == len(runs) and len(data) == 1 + runs["cell"].nunique()
    expected = {"startup_s": STARTUP_S, "other_s": END_S, "validation_s": n_epochs * VALIDATION_S}
    for part, seconds in {**expected, "warm_up_s": SLOWER_S}.items():
        assert total[part] == pytest.approx(nodes * seconds), part
    node_s = (runs["wall_s"].astype(float) * runs["nodes"]).sum()
    assert total["node_s"] == pytest.approx(node_s)
    assert total["useful_share"] == pytest.approx(total["training_s"] / node_s)
    sums = data.iloc[1:][["node_s", *list(useful_time.PARTS)[:-1]]].sum()
    assert (sums - total[sums.index].astype(float)).abs().max() < 1e-6 * node_s


def test_lost_time_is_told_apart(frames) -> None:
    runs, epochs = frames
    waited = runs.assign(waited_s=2.0, lost_s=[30.0, *[None] * (len(runs) - 1)])
    first, last = runs.index[[0, -1]]
    waited.loc[last, ["status", "reason", "epoch_time_s"]] = ["invalid", "disturbed: ", None]
    before = useful_time.summarize(runs, epochs).iloc[0]
    after = useful_time.summarize(waited, epochs).iloc[0]
    assert after["lost_s"] == 30.0 * runs.loc[first, "nodes"]
    node_s = runs.loc[last, "nodes"] * (runs.loc[last, "wall_s"] + 2.0)
    assert after["unsuccessful_s"] == pytest.approx(node_s) and after["training_s"] < before["training_s"]
    waiting = 2.0 * runs["nodes"].drop(last).sum() - END_S * runs.loc[last, "nodes"]
    assert after["other_s"] - before["other_s"] == pytest.approx(waiting)


def test_a_quicker_first_epoch_is_training(frames) -> None:
    runs, epochs = frames
    quicker = epochs.copy()
    quicker.loc[quicker["epoch"] == 1, "epoch_time_s"] -= 1.5 * SLOWER_S
    total = useful_time.summarize(runs, quicker).iloc[0]
    spent = quicker.groupby("run_id")["epoch_time_s"].sum()
    assert total["warm_up_s"] == 0
    assert total["training_s"] == pytest.approx((runs["run_id"].map(spent) * runs["nodes"]).sum())


def test_idle_nodes_of_an_allocation_and_queues_count_once(frames) -> None:
    runs, epochs = frames
    begun = pd.Timestamp("2026-05-01T12:00:00Z")
    one_job = runs.sort_values("nodes").iloc[[0, 1, -1]]
    starts = begun + pd.to_timedelta([10, 110, 210], unit="s")
    ends = starts + pd.to_timedelta([50, 50, 90], unit="s")
    iso = "%Y-%m-%dT%H:%M:%SZ"
    one_job = one_job.assign(
        wall_s=[50.0, 40.0, 90.0], job="7", submitted_at=(begun - pd.Timedelta(60, "s")).strftime(iso),
        job_started_at=begun.strftime(iso), started_at=starts.strftime(iso), ended_at=ends.strftime(iso),
    )  # fmt: skip
    total = useful_time.summarize(one_job, epochs).iloc[0]
    nodes = one_job["nodes"].to_numpy(float)
    assert total["queue_s"] == nodes[-1] * 60
    assert total["idle_s"] == pytest.approx(nodes[-1] * 300 - (nodes * [50, 50, 90]).sum())
    assert total["node_s"] == pytest.approx(nodes[-1] * 300), "what the allocation was charged"
    priced = useful_time.table(one_job.assign(price_per_node_hour=3.0, currency="EUR"), epochs)
    assert priced.data["cost"].iloc[0] == pytest.approx(3 * total["node_s"] / 3600)


def test_costs_need_one_price(frames) -> None:
    runs, epochs = frames
    priced = runs.assign(price_per_node_hour=3.0, currency="EUR")
    priced.loc[priced.index[0], "price_per_node_hour"] = 4.0
    assert useful_time.summarize(priced, epochs)["cost"].isna().all()


def test_runs_without_record_are_counted(frames) -> None:
    runs, epochs = frames
    absent = runs.copy()
    absent.loc[absent.index[:2], ["wall_s", "status"]] = [None, "missing"]
    table = useful_time.table(absent, epochs)
    assert table.data["n"].iloc[0] == len(runs) - 2
    assert find_note(table.notes, "runs-without-record").facts == {"runs": 2}


def test_without_records_there_is_no_table(frames) -> None:
    runs, epochs = frames
    table = useful_time.table(runs.assign(wall_s=None, status="missing"), epochs)
    assert table.data.empty and table.notes == [useful_time.NO_TIME]


def test_emulated_nodes_are_not_idle(frames) -> None:
    runs, epochs = frames
    begun = pd.Timestamp("2026-05-01T12:00:00Z")
    run = runs[runs["nodes"] > 1].head(1).assign(
        placement="emulated", wall_s=50.0, job="7", submitted_at=begun, job_started_at=begun,
        started_at=begun, ended_at=begun + pd.Timedelta(50, "s"),
    )  # fmt: skip
    total = useful_time.summarize(run, epochs).iloc[0]
    assert total["node_s"] == pytest.approx(50.0) and total["idle_s"] == 0
