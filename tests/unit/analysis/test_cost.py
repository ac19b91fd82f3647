"""Cost and carbon dioxide follow from price, grid, nodes and time, and energy comes from meters first."""

import numpy as np
import pandas as pd
import pytest

from analysis import cells, cost, energy, time_to_accuracy
from analysis.cell_means import estimate_means, measured_response
from analysis.records import Records, read_runs
from analysis.responses import response_notes, with_response
from common.notes import codes, find_note
from declared.responses import EPOCH_TIME, RESPONSES, TO_TARGET
from support.measured_elsewhere import MLPERF
from support.synthetic import campaign, metered, write_frames

STATED = {"price_per_node_hour": 3.0, "currency": "EUR", "grid_g_co2_per_kwh": 250.0, "node_power_w": 360.0}
TARGET = 0.7
KWH_J = 3.6e6


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    runs, epochs = campaign(failures={})
    runs = runs.assign(**STATED, placement="distinct-nodes")
    return Records(*write_frames(tmp_path_factory.mktemp("cost"), runs, epochs))


@pytest.fixture(scope="module")
def runs(records: Records) -> pd.DataFrame:
    return records.runs


def test_cost_is_price_of_node_hours(runs: pd.DataFrame, records: Records) -> None:
    data = cost.summarize(runs, records.epochs).set_index("cell")
    times = estimate_means(runs).cell_statistics.reindex(data.index)
    nodes = runs.drop_duplicates("cell").set_index("cell")["nodes"].reindex(data.index).astype(float)
    for part, end in (("mean", ""), ("low", "_low"), ("high", "_high")):
        assert np.allclose(data[f"cost{end}"], 3.0 * nodes * times[part] / 3600), "the interval of time"
        assert np.allclose(data[f"co2_g{end}"], 250 * 360 * nodes * times[part] / KWH_J)
    assert set(data["energy_source"]) == {cost.STATED} and set(data["currency"]) == {"EUR"}
    means = runs.astype({"epoch_time_s": float}).groupby("cell")["epoch_time_s"].mean()
    assert np.allclose(data["epoch_time_s"], means.reindex(data.index))
    own = data["baseline_cell"] == data.index
    assert own.any() and (data.loc[own, "ratio"] == 1).all()
    sped_up = data[~own & data["baseline_cell"].notna()]
    assert np.allclose(
        sped_up["ratio"], sped_up["cost"] / data["cost"].reindex(sped_up["baseline_cell"]).to_numpy()
    )


def test_emulated_nodes_are_paid_as_one_machine(runs: pd.DataFrame, records: Records) -> None:
    emulated = with_response(runs.assign(placement="emulated"), RESPONSES["cost"], lambda: records.epochs)
    assert np.allclose(emulated["cost"], 3.0 * runs["epoch_time_s"].astype(float) / 3600)


def test_meters_come_before_stated_power(tmp_path) -> None:
    runs, epochs = metered(*campaign(failures={}))
    metered_records = Records(*write_frames(tmp_path, runs.assign(**STATED), epochs))
    runs, read = metered_records.runs, lambda: metered_records.epochs
    grams = with_response(runs, RESPONSES["carbon"], read)["co2_g"]
    assert np.allclose(grams, runs["energy_package_j"].astype(float) / KWH_J * 250)
    assert find_note(cost.source_notes(runs, "co2_g"), "whose-energy").facts == {"scope": "package"}
    spent = with_response(runs, RESPONSES["carbon_to_target"], read, TARGET).set_index("run_id")
    reached = spent["co2_to_target_g"].dropna()
    assert 0 < len(reached) < len(runs)
    scope = energy.choose_scope(runs)
    assert scope is not None
    joules = energy.energy_to_accuracy(runs, metered_records.epochs, scope, TARGET)
    assert np.allclose(reached, 250 * joules.reindex(reached.index).astype(float) / KWH_J)
    assert set(cost.summarize(runs, metered_records.epochs)["energy_source"]) == {"package"}


def test_cost_to_target_needs_all_runs_of_a_cell(runs: pd.DataFrame, records: Records) -> None:
    data = cost.summarize(runs, records.epochs, TARGET).set_index("cell")
    times = time_to_accuracy.summarize(runs, records.epochs, TARGET).set_index("cell").reindex(data.index)
    expected = 3.0 * times["nodes"].astype(float) * times["time_to_accuracy_s"] / 3600
    assert 0 < expected.notna().sum() < len(data)
    assert np.allclose(data["cost_to_target"], expected, equal_nan=True)
    assert np.allclose(data["co2_to_target_g"], expected / 3.0 * 0.36 * 250, equal_nan=True)


def test_front_cells_are_beaten_by_none(runs: pd.DataFrame, records: Records) -> None:
    models = runs["framework"].map(lambda name: "other" if "tensorflow" in name else "small-cnn")
    data = cost.summarize(runs.assign(model=models), records.epochs)
    assert (data.groupby("model")["front"].sum() > 0).all() and data["model"].nunique() == 2
    for cell in data.itertuples():
        rivals = data[(data["model"] == cell.model) & (data["dataset"] == cell.dataset)]
        beaten = ((rivals["epoch_time_s"] < cell.epoch_time_s) & (rivals["cost"] <= cell.cost)) | (
            (rivals["epoch_time_s"] <= cell.epoch_time_s) & (rivals["cost"] < cell.cost)
        )
        assert cell.front == (not beaten.any())
    assert 1 < data["front"].sum() < len(data)


def test_equal_points_are_no_part_of_a_front() -> None:
    points = pd.DataFrame({"x": [1.0, 1, 2, 3], "y": [3.0, 2, 2, 1]})
    assert cost.pareto_front(points, "x", "y").to_numpy().tolist() == [[1, 2], [3, 1]]


def test_carbon_is_shown_in_the_unit_of_its_heading(runs: pd.DataFrame, records: Records) -> None:
    table = cost.table(runs, records.epochs)
    milligrams = [float(text.split()[0]) for text in table.display["CO2e (mg)"]]
    assert milligrams == pytest.approx((1000 * table.data["co2_g"]).tolist(), rel=5e-3)


def test_whole_trainings_are_not_called_epochs() -> None:
    trainings = read_runs(MLPERF / "runs.csv").assign(**STATED, samples_per_epoch=None)
    assert "whole-trainings" in codes(cost.table(trainings, pd.DataFrame()).notes)


def test_response_of_money_has_the_currency(runs: pd.DataFrame, records: Records) -> None:
    response = RESPONSES["cost"]
    priced = with_response(runs, response, lambda: records.epochs)
    in_currency = measured_response(priced, response)
    assert in_currency == response and in_currency.label == "cost per epoch (EUR)"
    assert in_currency.label in cells.table(priced, in_currency).display
    assert codes(response_notes(priced, response)) == ["response", "price"]
    free = with_response(runs.assign(price_per_node_hour=None), response, lambda: records.epochs)
    assert measured_response(free, response) == EPOCH_TIME


def test_two_currencies_give_no_cost(runs: pd.DataFrame, records: Records) -> None:
    table = cost.table(runs.assign(currency=["USD", *runs["currency"].iloc[1:]]), records.epochs)
    assert "cost" not in table.data and table.data["co2_g"].notna().all()
    assert cost.CURRENCIES_NOTE in table.notes


@pytest.mark.parametrize("absent", ["price_per_node_hour", "grid_g_co2_per_kwh", "node_power_w"])
def test_what_is_not_stated_has_no_column(absent: str, runs: pd.DataFrame, records: Records) -> None:
    data = cost.summarize(runs.assign(**{absent: np.nan}), records.epochs, TARGET)
    is_price = absent == "price_per_node_hour"
    assert ("cost" in data) == (not is_price) and ("co2_g" in data) == is_price
    assert np.isfinite(data["ratio"].dropna()).all() and data["front"].any()
    assert data["energy_source"].isna().all() == (not is_price), "a source without carbon dioxide"


def test_nothing_stated_gives_a_note(runs: pd.DataFrame, records: Records) -> None:
    table = cost.table(runs.assign(**dict.fromkeys(STATED)), records.epochs, TARGET)
    assert table.data.empty and cost.NOTHING_STATED in table.notes
    assert set(TO_TARGET) == {"time_to_accuracy", "cost_to_target", "carbon_to_target"}


def test_empty_table_names_its_cause(runs: pd.DataFrame, records: Records) -> None:
    failed = cost.table(runs.assign(status="failed"), records.epochs)
    currencies = ["USD", *runs["currency"].iloc[1:]]
    mixed = cost.table(runs.assign(currency=currencies, grid_g_co2_per_kwh=None), records.epochs)
    for table in (failed, mixed):
        assert table.data.empty and cost.NOTHING_STATED not in table.notes
    assert cost.CURRENCIES_NOTE in mixed.notes


def test_carbon_alone_is_not_called_cost(runs: pd.DataFrame, records: Records) -> None:
    table = cost.table(runs.assign(price_per_node_hour=None, currency=None), records.epochs)
    assert cost.COST_NOTE not in table.notes and cost.METHOD_NOTE.format("CO2e") in table.notes
