"""Node hours of a proposal follow from measured or predicted epochs; it states what was not measured."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.cost import HOUR_S
from analysis.intervals import Estimate
from analysis.records import Records, successful
from analysis.tables import Table
from common.errors import InputError
from common.files import CHECKOUT
from declared.datasets import load_dataset
from declared.study import load_study
from plan.campaign import measured_campaign
from prediction.measured_study import load_study_tables
from report import proposal
from report.request import (
    Question,
    Request,
    choose_series,
    find_counterpart,
    make_request,
    parse_levels,
    project,
)
from support.synthetic import campaign, write_frames

PREDICTION = CHECKOUT / "docs" / "campaigns" / "prediction-virtual"
SIX_NODES = Question(6)
ELSEWHERE = CHECKOUT / "docs" / "campaigns" / "public" / "public-mpt-fsdp"


def records_of(folder: Path) -> Records:
    return Records(folder / "runs.csv", folder / "epochs.csv")


@pytest.fixture(scope="module")
def records() -> Records:
    return records_of(PREDICTION)


def gather(records: Records, question: Question = SIX_NODES, **changes: Any) -> tuple[Request, Any, Any]:
    """Return request, facts and tables of the largest series of runs with these changes."""
    series = choose_series(records.runs.assign(**changes), {})
    request = make_request(series, question)
    study = load_study("prediction-virtual")
    return request, *proposal.gather_facts(study, records, series, request)


def test_series_is_the_one_with_most_devices(records: Records) -> None:
    series = choose_series(records.runs, {})
    assert series.devices == [1, 2, 3, 4, 6] and series.most_nodes == 6
    fastest = successful(records.runs).query("nodes == 6").groupby("cell")["epoch_time_s"].mean().idxmin()
    assert series.largest == fastest
    first, last = series.rows.iloc[0], series.rows.iloc[-1]
    assert last["speedup"] == pytest.approx(first["epoch_time_s"] / last["epoch_time_s"], rel=0.02)
    assert last["efficiency"] == pytest.approx(last["speedup"] / 6)
    chosen = choose_series(records.runs, {"batch_size": "64", "bandwidth": "250"})
    assert "b64" in chosen.largest and "bandwidth=250" in chosen.largest
    on_one_node = replace(series, rows=series.rows.assign(nodes=1))
    assert on_one_node.measured_epoch(1) == series.estimate("epoch_time_s")


def test_efficiency_is_that_of_devices(records: Records) -> None:
    n_devices = records.runs["n_devices"].where(records.runs["nodes"] == 1, 2 * records.runs["nodes"])
    series = choose_series(records.runs.assign(n_devices=n_devices), {})
    assert series.devices == [1, 4, 6, 8, 12] and series.devices_per_node == 2
    assert series.estimate("efficiency").value == pytest.approx(series.estimate("speedup").value / 12)
    request = make_request(series, Question(6))
    _, tables = proposal.gather_facts(load_study("prediction-virtual"), records, series, request)
    epoch_s = series.estimate("epoch_time_s").value
    last = tables["scaling"].display.iloc[-1]
    efficiency = float(last["efficiency (%)"].partition(" ")[0])
    assert efficiency == pytest.approx(100 * series.estimate("efficiency").value, rel=0.01)
    assert float(last["node h/epoch"]) == pytest.approx(6 * epoch_s / HOUR_S, rel=0.01)
    assert float(last["samples/s"].replace(",", "")) == pytest.approx(4608 / epoch_s, rel=0.01)


@pytest.mark.parametrize(
    ("levels", "n_bytes"),
    [({"optimizer": "sgd"}, 8), ({"optimizer": "adam"}, 12), ({"optimizer": "adam", "precision": "bf16"}, 6)],
)
def test_checkpoint_has_parameters_and_state(records: Records, levels: dict[str, str], n_bytes: int) -> None:
    _, facts, _ = gather(records, **levels)
    assert facts["parameters"] > 1000 and facts["checkpoint_bytes"] == n_bytes * facts["parameters"]


@pytest.mark.parametrize(
    ("levels", "unknown"), [({"batch_size": "65"}, "65"), ({"batchsize": "64"}, "batchsize")]
)
def test_unknown_level_is_refused(records: Records, levels: dict[str, str], unknown: str) -> None:
    with pytest.raises(InputError) as refused:
        choose_series(records.runs, levels)
    assert (refused.value.code, refused.value.got) == ("unknown-name", unknown)
    with pytest.raises(InputError) as refused:
        parse_levels(["batch_size:64"])
    assert refused.value.code == "wrong-format"


def test_node_hours_follow_from_times_and_attempts(tmp_path: Path) -> None:
    runs, epochs = campaign()
    largest = choose_series(records_of(write_frames(tmp_path, runs, epochs)[0].parent).runs, {}).largest
    runs.loc[runs.index[runs["cell"] == largest][0], "attempt"] = 3
    folder = write_frames(tmp_path, runs, epochs)[0].parent
    series = choose_series(records_of(folder).runs, {})
    question = Question(series.most_nodes, epochs=90, trainings=5)
    request = make_request(series, question)
    epoch_s = float(series.rows["epoch_time_s"].iloc[-1])
    training_s = 90 * (epoch_s + series.mean_at_largest("validation_time_s")) + series.mean_at_largest(
        "startup_s"
    )
    assert request.training_s.value == pytest.approx(training_s) and not request.is_predicted
    n_started = float(series.runs["attempt"].sum())
    attempts = n_started / len(successful(series.runs))
    assert attempts > 1
    assert request.node_hours.value == pytest.approx(series.most_nodes * 5 * training_s * attempts / HOUR_S)
    samples = float(series.rows["samples"].iloc[-1])
    halved = make_request(series, Question(series.most_nodes, samples=samples / 2))
    assert halved.epochs == 0.5


@pytest.mark.parametrize(
    ("numbers", "code", "option"),
    [
        ({"nodes": 10**9}, "out-of-range", "--target-nodes"),
        ({"epochs": 1, "samples": 1}, "conflicting-keys", "--samples"),
        ({"epochs": 0}, "out-of-range", "--epochs"),
        ({"epochs": math.inf}, "out-of-range", "--epochs"),
        ({"samples": math.nan}, "wrong-type", "--samples"),
        ({"trainings": 10**30}, "out-of-range", "--trainings"),
    ],
)
def test_impossible_numbers_are_refused(numbers: dict[str, float], code: str, option: str) -> None:
    with pytest.raises(InputError) as refused:
        Question(**{"nodes": 1, **numbers})  # type: ignore[arg-type]
    assert (refused.value.code, refused.value.file) == (code, option)


def test_campaign_without_a_success_is_refused(tmp_path: Path) -> None:
    runs = (PREDICTION / "runs.csv").read_text()
    (tmp_path / "runs.csv").write_text(runs.replace(",ok,", ",failed,"))
    header = (PREDICTION / "epochs.csv").read_text().partition("\n")[0]
    (tmp_path / "epochs.csv").write_text(f"{header}\n")
    failed = measured_campaign("prediction-virtual", "local", str(tmp_path))
    with pytest.raises(InputError) as refused:
        proposal.gather_records(failed, Question(4))
    assert refused.value.code == "no-success" and refused.value.file.endswith("runs.csv")


def test_two_levels_of_a_factor_are_refused() -> None:
    assert parse_levels(["batch_size=32", "batch_size=32"]) == {"batch_size": "32"}
    with pytest.raises(InputError) as refused:
        parse_levels(["batch_size=32", "batch_size=64"])
    assert (refused.value.code, refused.value.got) == ("conflicting-keys", "batch_size")


def test_nodes_beyond_the_measured_are_predicted(records: Records) -> None:
    series = choose_series(records.runs, {})
    study = load_study_tables(PREDICTION / "runs.csv", PREDICTION / "network.csv")
    predicted, answer = project(study, series.largest, 16)
    assert answer and project(study, "no cell", 16)[1] == ""
    measured = series.measured_epoch(6)
    assert measured and predicted.low < predicted.value < predicted.high < measured.value
    request = make_request(series, Question(16, epochs=1), predicted)
    assert request.is_predicted and request.epoch_s == predicted
    row = series.predicted_row(request)
    assert row["efficiency"] == pytest.approx(row["speedup"] / 16) and row["efficiency"] < 0.52
    assert row["speedup_low"] < row["speedup"] < row["speedup_high"]
    from_two = replace(series, rows=series.rows.iloc[1:]).predicted_row(request)
    assert from_two["efficiency"] == pytest.approx(from_two["speedup"] * 2 / 16)
    facts, tables = proposal.gather_facts(
        load_study("prediction-virtual"), records, series, replace(request, question=Question(5, epochs=1))
    )
    assert tables["scaling"].display["devices"].tolist() == ["1", "2", "3", "4", "5", "6"]
    assert facts["most_devices"] == 4608 // 128 and not math.isnan(request.attempts)


def test_cost_and_carbon_follow_from_what_the_site_states(records: Records) -> None:
    stated = {
        "price_per_node_hour": 2.0,
        "currency": "EUR",
        "node_power_w": 400.0,
        "estimated_memory_peak_bytes": 2**30,
        "grid_g_co2_per_kwh": 250.0,
    }
    request, facts, _ = gather(records, Question(6, epochs=1000), **stated)
    node_hours = request.node_hours.value
    assert facts["cost"].value == pytest.approx(2 * node_hours) and facts["currency"] == "EUR"
    assert facts["energy_kwh"] == pytest.approx(0.4 * node_hours)
    assert facts["carbon_kg"] == pytest.approx(0.25 * facts["energy_kwh"])
    assert facts["estimated_mib"] == 1024
    assert 0.15 < facts["spent"]["share"] < 0.25 and facts["spent"]["node_hours"] > 3


def test_metered_power_is_that_of_one_node(records: Records) -> None:
    joules = 600.0 * records.runs["nodes"] * records.runs["epoch_time_s"]
    metered = {"energy_j": None, "energy_node_j": joules, "energy_scope": "node", "node_power_w": 400.0}
    _, facts, _ = gather(records, **metered)
    assert facts["power_w"] == pytest.approx(600)


@pytest.mark.parametrize("name", ["synthetic", "synthetic-tokens-1000-16-256"])
def test_input_has_the_bytes_of_prepared_samples(records: Records, name: str) -> None:
    request, facts, _ = gather(records, dataset=name)
    entry = load_dataset(name)
    sample_bytes = math.prod(entry["shape"]) * (2 if "tokens" in name else 1)
    n_samples = entry["train_samples"] + entry["validation_samples"]
    assert entry["validation_samples"] > 0
    assert (facts["sample_bytes"], facts["data_bytes"]) == (sample_bytes, sample_bytes * n_samples)
    read_bytes_s = sample_bytes * entry["train_samples"] / request.epoch_s.value
    assert facts["read_bytes_s"] == pytest.approx(read_bytes_s)


@pytest.mark.parametrize(("placement", "n_sharing"), [("emulated", 6), ("virtual", 1)])
def test_ranks_of_a_machine_share_its_memory(records: Records, placement: str, n_sharing: int) -> None:
    _, facts, _ = gather(records, placement=placement, node_memory_bytes=6 * 2**30)
    assert facts["available_mib"] == 6 * 1024 / n_sharing


def test_both_kinds_of_scaling_have_a_table(records: Records) -> None:
    strong = records.runs.assign(batch_scope="global", cell=records.runs["cell"] + ".global")
    strong = strong.assign(run_id=strong["cell"], epoch_time_s=1.5 * strong["epoch_time_s"])
    series = choose_series(pd.concat([records.runs, strong], ignore_index=True), {})
    counterpart = find_counterpart(pd.concat([records.runs, strong], ignore_index=True), series)
    assert counterpart is not None and counterpart.largest == f"{series.largest}.global"
    assert counterpart.devices == series.devices and find_counterpart(records.runs, series) is None


def test_what_was_not_measured_is_none() -> None:
    records = records_of(ELSEWHERE)
    series = choose_series(records.runs, {})
    unknown = make_request(series, Question(4096), Estimate(math.nan))
    facts, tables = proposal.gather_facts(load_study("public-mpt-fsdp"), records, series, unknown)
    assert {name for name in ("peak_mib", "data_bytes", "power_w", "spent") if facts[name] is None} == {
        "peak_mib", "data_bytes", "power_w", "spent"
    }  # fmt: skip
    assert facts["parameters"] and facts["checkpoint_bytes"] is None, "its optimizer is not stated"
    assert math.isnan(unknown.attempts) and facts["most_devices"] == math.inf
    assert facts["on_most_nodes"].node_hours.value > 0 and facts["other_kind"] == "strong"
    assert tables["software"].display.empty
    assert "predicted" not in set(tables["scaling"].display["runs"])
    blocks = proposal.render_blocks(facts, tables)
    requested = next(block for block in blocks if isinstance(block, Table))
    assert not {"node hours", "time of an epoch (s)"} & set(requested.display["quantity"])
    text = proposal.to_markdown(blocks, "")
    assert len(re.findall(r"^## ", text, re.MULTILINE)) == 8 and "nan" not in text


def test_anonymous_proposal_has_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without TeX
    runs = (PREDICTION / "runs.csv").read_text().replace("node1 ", "hera17.example.edu ")
    (tmp_path / "runs.csv").write_text(runs)
    (tmp_path / "epochs.csv").write_bytes((PREDICTION / "epochs.csv").read_bytes())
    named = measured_campaign("prediction-virtual", "local", str(tmp_path))
    study = replace(named.study, anonymous=True, question="How fast is hera17.example.edu?")
    monkeypatch.setattr(proposal, "measured_campaign", lambda *_: replace(named, study=study))
    proposal.write_proposal("prediction-virtual", "", str(tmp_path), Question(6))
    out = tmp_path / "results" / "prediction-virtual" / "proposal"
    for suffix in ("md", "tex"):
        text = (out / f"proposal.{suffix}").read_text()
        assert "How fast is" in text and "hera17" not in text


def test_proposal_of_a_kept_campaign_has_4_pages(
    tex: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    proposal.write_proposal("prediction-virtual", "", str(PREDICTION), Question(16, epochs=90))
    out = tmp_path / "results" / "prediction-virtual" / "proposal"
    pages = re.search(r"proposal\.pdf: (\d) pages", capsys.readouterr().out)
    assert pages and 2 <= int(pages[1]) <= 4
    assert {"proposal.md", "proposal.pdf", "scaling.png"} <= {file.name for file in out.iterdir()}
    log = (out / "proposal.log").read_text()
    assert "undefined" not in log and "Overfull" not in log


def test_more_devices_and_scales_come_before_shorter_epochs(records: Records) -> None:
    first, runs = choose_series(records.runs, {}), records.runs
    second = choose_series(runs[~runs["cell"].isin(first.rows["cell"][1:4])], {})
    assert second.largest != first.largest and second.devices == first.devices
    on_most = runs[runs["nodes"] == 6].groupby("cell")["epoch_time_s"].mean()
    slowest = choose_series(runs[(runs["nodes"] < 6) | (runs["cell"] == on_most.idxmax())], {})
    assert slowest.largest == on_most.idxmax()


def test_samples_need_those_of_an_epoch(records: Records) -> None:
    series = choose_series(records.runs, {})
    unknown = replace(series, rows=series.rows.assign(samples=math.nan))
    with pytest.raises(InputError) as refused:
        make_request(unknown, Question(6, samples=10))
    assert (refused.value.code, refused.value.file) == ("conflicting-keys", "--samples")


def test_failed_runs_are_attempts_and_missing_ones_are_none(records: Records) -> None:
    series = choose_series(records.runs, {})
    runs = series.runs.assign(status="ok", attempt=1.0)
    runs.loc[runs.index[0], ["status", "attempt"]] = ["failed", 3]
    runs.loc[runs.index[1], ["status", "attempt"]] = ["missing", math.nan]
    request = make_request(replace(series, runs=runs), Question(6))
    assert request.attempts == pytest.approx((len(runs) - 2 + 3) / (len(runs) - 2))


def test_series_of_a_study_without_others_has_no_words(records: Records) -> None:
    runs = records.runs[records.runs["cell"].isin(choose_series(records.runs, {}).runs["cell"])]
    assert choose_series(runs, {}).words == "" and choose_series(records.runs, {}).words


def test_global_batch_limits_the_devices(records: Records) -> None:
    series = choose_series(records.runs.assign(batch_scope="global"), {})
    request = make_request(series, Question(6))
    facts, _ = proposal.gather_facts(load_study("prediction-virtual"), records, series, request)
    assert facts["most_devices"] == facts["levels"]["batch_size"]
