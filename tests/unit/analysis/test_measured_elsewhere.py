"""Runs that were measured elsewhere are independent, form one series over nodes and devices, and say so."""

import math
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from analysis import checks, conditions, effects, scaling, shares, speedup
from analysis.cell_means import Values, estimate_means
from analysis.records import Records, are_times_to_train, measured_elsewhere, read_runs, varying
from common.notes import Note
from declared.factors import is_ladder
from support.measured_elsewhere import DLPERF, MLPERF
from support.synthetic import campaign, write_frames


@pytest.fixture(scope="module")
def dlperf() -> pd.DataFrame:
    return read_runs(DLPERF / "runs.csv")


@pytest.fixture(scope="module")
def mlperf() -> pd.DataFrame:
    return read_runs(MLPERF / "runs.csv")


def test_runs_without_keys_were_measured_elsewhere(dlperf: pd.DataFrame) -> None:
    assert measured_elsewhere(dlperf) and not measured_elsewhere(campaign(replicates=2)[0])


def test_cells_are_compared_as_independent_groups(dlperf: pd.DataFrame) -> None:
    assert (effects.build_rows(dlperf)["within_blocks"] == 0).all()
    values = Values.from_runs(dlperf, "epoch_time_s")
    assert values.blocks.isna().all(axis=None), "no two runs share a block"
    first, second = list(values.by_cell)[:2]
    ratio = estimate_means(dlperf).ratios([first], [second]).iloc[0]
    x, y = (values.log.by_cell[cell] for cell in (first, second))
    welch = stats.ttest_ind(x, y, equal_var=False)
    assert ratio["value"] == pytest.approx(values.by_cell[first].mean() / values.by_cell[second].mean())
    assert math.log(ratio["value"]) == pytest.approx(x.mean() - y.mean(), abs=1e-4)
    assert ratio["df"] <= len(x) + len(y) - 2 + 4 and welch.pvalue < 0.05


def test_nodes_and_devices_of_a_ladder_are_one_series(dlperf: pd.DataFrame) -> None:
    assert varying(dlperf) == ["framework", "n_devices"]
    rows, _ = scaling.build_rows(dlperf)
    assert rows["n_devices"].tolist() == [
        "1, 2, 4, 8, 16, 32",
        "1, 2, 4, 8, 16, 32",
        "1, 4, 8, 16, 32",
        "1, 2, 4, 8, 16, 32",
    ]
    assert set(rows["scaled"]) == {"n_devices"} and set(rows["baseline_n_devices"]) == {1}
    table = speedup.build_rows(dlperf)
    assert table.groupby("framework")["baseline_cell"].nunique().tolist() == [1, 1, 1, 1]
    large = table[table["n_devices"] == 32]
    assert large["speedup"].tolist() == pytest.approx(
        (large["baseline_epoch_time_s"] / large["epoch_time_s"]).tolist()
    )


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(1, 1), (1, 8), (2, 8), (4, 8)], True),
        ([(1, 1), (2, 2), (4, 4)], True),
        ([(1, 1), (1, 2), (2, 1), (2, 2)], False),
        ([(1, 8), (2, 4)], False),
        ([(1, 8), (2, 8)], False),
        ([(1, 0), (2, 8)], False),
    ],
)
def test_ladder_of_nodes_and_devices(sizes: list[tuple[int, int]], expected: bool) -> None:
    assert is_ladder(reversed(sizes)) is expected


def test_series_that_begins_at_a_node_has_it_as_its_base(mlperf: pd.DataFrame) -> None:
    rows = speedup.build_rows(mlperf).set_index("nodes")
    assert mlperf["local_batch"].unique().tolist() == [1.0, 0.5, 0.25]
    assert rows["baseline_n_devices"].tolist() == [8, 8, 8] and rows.at[1, "speedup"] == 1
    assert rows.at[4, "efficiency"] == pytest.approx(rows.at[4, "speedup"] / 4)
    assert rows["karp_flatt"].isna().all(), "Karp and Flatt's fraction needs the time on one device"
    assert "baseline_n_devices" in speedup.table(mlperf).data


def test_own_campaigns_keep_their_columns(tmp_path: Path) -> None:
    runs = read_runs(write_frames(tmp_path, *campaign(replicates=2))[0])
    assert "baseline_n_devices" not in speedup.table(runs).data


def test_order_of_the_runs_is_not_tested(dlperf: pd.DataFrame) -> None:
    tested = set(checks.table(dlperf).data["assumption"])
    assert checks.NORMAL in tested
    assert tested.isdisjoint(
        {checks.NO_DRIFT, checks.BLOCKS_ALIKE, checks.SESSIONS_ALIKE, checks.INDEPENDENT}
    )


def test_tables_say_that_runs_were_measured_elsewhere(dlperf: pd.DataFrame) -> None:
    setting = conditions.measurement_note(dlperf)
    assert isinstance(setting, Note)
    scopes, *notes = setting.facts["notes"]
    assert scopes.facts["elsewhere"] and "unchecked-algorithms" in [note.code for note in notes]
    assert conditions.ELSEWHERE in scopes
    paragraphs = conditions.methods_notes(dlperf, pd.Series([0.0]))
    assert isinstance(paragraphs[0], Note) and paragraphs[0].code == "measured-elsewhere-explained"


def test_levels_that_nobody_stated_are_not_said(dlperf: pd.DataFrame, mlperf: pd.DataFrame) -> None:
    for runs, expected in ((dlperf, {"batch_size"}), (mlperf, {"batch_size", "batch_scope", "precision"})):
        note = conditions.constants_note(runs)
        assert isinstance(note, Note)
        assert expected <= set(note.facts["levels"])
        assert {"optimizer", "learning_rate", "epochs", "warmup_epochs"}.isdisjoint(note.facts["levels"])


def test_epochs_belong_to_runs_without_keys() -> None:
    records = Records(MLPERF / "runs.csv", MLPERF / "epochs.csv")
    assert len(records.epochs) == len(records.runs) == 30


def test_share_of_communication_needs_no_counted_batches(dlperf: pd.DataFrame) -> None:
    rows = shares.epoch_shares(dlperf.assign(steps=math.nan))
    large = rows[rows.index.str.contains("n4")]
    assert large["communication"].between(0, 0.3).all() and len(large) == 4


def test_times_to_train_are_called_so(mlperf: pd.DataFrame) -> None:
    to_target = mlperf.assign(samples_per_epoch=pd.array([pd.NA] * len(mlperf), dtype="Int64"))
    assert are_times_to_train(to_target) and not are_times_to_train(mlperf)
    assert conditions.TO_TARGET.strip() in conditions.measurement_note(to_target)
    assert conditions.TO_TARGET.strip() not in conditions.measurement_note(mlperf)
