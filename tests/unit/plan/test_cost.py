"""Cost of a campaign, estimated from measured runs, or from a stated or assumed rate."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from common.errors import InputError
from common.notes import codes, find_note
from common.tables import write_table
from declared.costs import Costs, Price
from declared.models import model_graph
from declared.site import load_site
from declared.study import load_study
from plan.campaign import Campaign, plan_campaign
from plan.cost import (
    ASSUMED_GFLOPS,
    REFERENCE_S,
    SAME_CELL,
    SCALED,
    START_S,
    Cost,
    main,
    measured_at,
    notes,
    report,
    table_rows,
    title,
    weighted_macs,
)
from support.recorded import content
from support.synthetic import designed_campaign

NO_RUNS = measured_at("nowhere", Path("nowhere"))


def campaign(study: str, site: str, **changes: object) -> Campaign:
    """Without the work beside runs, unless a test wants it."""
    return plan_campaign(load_study(study), replace(load_site(site), **({"reference": False} | changes)))


def test_the_work_beside_a_run_counts() -> None:
    unreferenced, referenced = (
        Cost(campaign("quickstart", "local", reference=is_timed), NO_RUNS) for is_timed in (False, True)
    )
    added = referenced.seconds(referenced.runs) - unreferenced.seconds(unreferenced.runs)
    assert added == pytest.approx(REFERENCE_S * len(unreferenced.campaign.runs))


def test_without_any_run_a_rate_is_assumed_and_said() -> None:
    planned_campaign = campaign("tf-strategies", "virtual")
    cost = Cost(planned_campaign, NO_RUNS)
    run = next(
        run
        for run in planned_campaign.runs
        if run.levels["model"] == "resnet-50" and run.levels["nodes"] == 2
    )
    operations = 2 * model_graph("resnet-50", "tiny-imagenet-200").macs * (3 * 50_000 + 5_000) * 3
    expected = START_S + operations / (0.6 * ASSUMED_GFLOPS["cpu"] * 1e9)
    assert cost.estimate(run).run_s == pytest.approx(expected)
    origin = cost.estimate(run).origin
    assert origin.code == "assumed-rate" and origin.facts == {"gflops": pytest.approx(72), "device": "cpu"}
    assert len(planned_campaign.runs) == 270 and title(cost).facts == {
        "runs": 270,
        "most": 270,
        "cells": 54,
        "blocks": 5,
    }
    assert origin in report(cost) and "assumed-rate" in codes(notes(cost))


@pytest.mark.parametrize(
    ("model", "shape", "images_s"),
    [
        ("resnet-18", "32x32x3-10", 32 / 0.69),
        ("efficientnet-b0", "32x32x3-10", 32 / 0.294),
        ("cnn-cifar10", "32x32x3-10", 800),
        ("resnet-18", "224x224x3-1000", 14),
    ],
)
def test_assumed_rates_are_those_of_the_measurements(model: str, shape: str, images_s: float) -> None:
    """Images a second on one core, of docs/measurements.md."""
    assumed = ASSUMED_GFLOPS["cpu"] * 1e9 / (2 * 3 * weighted_macs(model, f"synthetic-{shape}"))
    assert assumed == pytest.approx(images_s, rel=0.4)


def test_a_rate_that_the_site_states_is_taken() -> None:
    fast, slow = (Cost(campaign("tf-strategies", "virtual", gflops=rate), NO_RUNS) for rate in (200.0, 100.0))
    starts = len(fast.runs) * START_S
    assert slow.seconds(slow.runs) - starts == pytest.approx(2 * (fast.seconds(fast.runs) - starts))
    origins = {estimate.origin.code for estimate in fast.by_cell.values()}
    assert origins == {"stated-rate"} and "assumed-rate" not in codes(notes(fast))
    assert {estimate.origin.facts["gflops"] for estimate in fast.by_cell.values()} == {200.0}


def test_measured_runs_of_the_same_cell_go_before_everything(tmp_path: Path) -> None:
    runs, _ = designed_campaign()
    (tmp_path / "earlier").mkdir()
    write_table(runs.drop(columns="n_devices"), "runs", tmp_path / "earlier" / "runs.csv")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "runs.csv").write_text("nonsense\n1\n")
    planned_campaign = campaign("tf-strategies-virtual", "virtual")
    cost = Cost(planned_campaign, measured_at("virtual", tmp_path))
    run = planned_campaign.runs[0]
    own = runs[(runs.cell == run.cell) & (runs.status == "ok")]
    assert cost.estimate(run).run_s == pytest.approx(
        START_S + 3 * (own.epoch_time_s + own.validation_time_s).mean()
    )
    assert {row[-1] for row in table_rows(cost)[1:3]} == {SAME_CELL}
    assert measured_at("elsewhere", tmp_path).empty
    started = Cost(planned_campaign, cost.measured.assign(startup_s=7.0))
    assert started.seconds(planned_campaign.runs) == pytest.approx(
        cost.seconds(planned_campaign.runs) + 270 * (7.0 - START_S)
    )


def test_processors_and_accelerators_are_told_apart(tmp_path: Path) -> None:
    planned_campaign = campaign("resnet34-devices", "slurm-example", gflops=15_000.0)
    cost = Cost(planned_campaign, NO_RUNS)
    cpu, cuda = (
        next(cost.estimate(run) for run in cost.runs if run.levels["device"] == kind)
        for kind in ("cpu", "cuda")
    )
    assert (
        cpu.run_s > 3 * cuda.run_s
        and cpu.origin.code == "assumed-rate"
        and cpu.origin.facts["gflops"] == 1920
    )
    run = next(run for run in cost.runs if run.levels["device"] == "cpu")
    row = {**run.levels, "epoch_time_s": 1200.0, "validation_time_s": 100.0, "samples_per_epoch": 50_000}
    row |= {"ranks": 2, "replicas": 2}
    informed = Cost(planned_campaign, pd.DataFrame([{**row, "startup_s": 20.0}]))
    assert informed.estimate(run).run_s == pytest.approx(20 + 10 * 1300)
    rescaled = Cost(planned_campaign, pd.DataFrame([{**row, "startup_s": None, "compiler": "torch-compile"}]))
    assert rescaled.estimate(run).origin == SCALED
    assert rescaled.estimate(run).run_s == pytest.approx(START_S + 10 * 1300)


def test_benchmarks_cost_their_time_limit() -> None:
    cost = Cost(campaign("tf-strategies-virtual", "virtual"), NO_RUNS)
    limit_s = START_S + 9 * 1.2
    assert [(benchmark.name, seconds) for benchmark, seconds in cost.benchmarks] == [
        (f"tensorflow-multiworker.n{nodes}", pytest.approx(limit_s)) for nodes in (2, 3)
    ]
    assert cost.total_s(cost.runs) == pytest.approx(cost.seconds(cost.runs) + 2 * limit_s)
    node_s = sum(cost.seconds([run]) * run.geometry.nodes for run in cost.runs) + 5 * limit_s
    assert cost.node_hours == pytest.approx(node_s / 3600)


def test_runs_that_the_site_will_end_are_told() -> None:
    too_long = find_note(notes(Cost(campaign("tf-strategies", "virtual"), NO_RUNS)), "too-long")
    assert too_long.facts == {"runs": 270, "of": 270, "time_limit_s": 100}
    assert "too-long" not in codes(notes(Cost(campaign("quickstart", "local"), NO_RUNS)))


def test_a_block_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[Cost] = []
    monkeypatch.setattr("plan.cost.report", asked_for.append)
    for names in ({}, {"study": "rehearsal", "site": "virtual"}):
        main(**names, block=2)
        assert title(asked_for.pop()).facts["blocks"] == 1
    with pytest.raises(InputError) as refused:
        main(block=99)
    assert (refused.value.code, refused.value.got) == ("unknown-name", 99)


def test_json_has_what_the_report_says(capsys: pytest.CaptureFixture[str]) -> None:
    main(study="rehearsal", site="virtual", as_json=True)
    result = json.loads(capsys.readouterr().out)
    assert (result["study"], result["site"], result["runs"], result["cells"]) == (
        "rehearsal",
        "virtual",
        24,
        12,
    )
    assert sum(group["runs"] for group in result["groups"]) == 24
    assert 0 < sum(group["total_s"] for group in result["groups"]) < result["total_s"], (
        "without the benchmarks"
    )


def test_what_remains_is_told_by_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def leave(planned_campaign: Campaign, statuses: list[str]) -> None:
        for path, status in zip(planned_campaign.record_paths.values(), statuses, strict=False):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(json.dumps(content(status=status)) if status != "broken" else "{")

    leave(campaign("rehearsal", "virtual"), ["ok"] * 18 + ["invalid"] * 2 + ["failed", "broken"])
    planned_campaign = campaign("rehearsal", "virtual")
    state = find_note(notes(Cost(planned_campaign, NO_RUNS)), "records-so-far")
    assert (
        state.facts["statuses"] == {"ok": 18, "failed": 1, "invalid": 2, "broken": 1}
        and state.facts["left"] == 6
    )
    assert (
        planned_campaign.summary()
        == "rehearsal at virtual: 24 runs: 18 ok, 1 failed, 2 invalid, 1 broken, 2 to run"
    )
    leave(planned_campaign, ["ok"] * 24)
    planned_campaign = campaign("rehearsal", "virtual")
    assert codes(notes(Cost(planned_campaign, NO_RUNS)))[-1] == "complete"
    assert planned_campaign.summary() == "rehearsal at virtual: 24 runs: 24 ok"


def test_nodes_and_accelerators_are_counted(tmp_path: Path) -> None:
    cost = Cost(campaign("frameworks", "slurm-example"), NO_RUNS)
    runs = sum(cost.seconds([run]) * run.geometry.nodes for run in cost.runs)
    benchmarks = sum(seconds * benchmark.nodes for benchmark, seconds in cost.benchmarks)
    assert cost.node_hours == pytest.approx((runs + benchmarks) / 3600)
    assert cost.gpu_hours == pytest.approx(2 * cost.node_hours), "two accelerators a node, held by every run"
    site = replace(cost.campaign.site, costs=Costs(price_per_node_hour=Price(3.0, "EUR")))
    priced = find_note(notes(replace(cost, campaign=replace(cost.campaign, site=site))), "total").facts
    assert (priced["price"], priced["currency"]) == (pytest.approx(3 * cost.node_hours), "EUR")
    assert find_note(notes(cost), "total").facts["price"] is None
    assert Cost(campaign("frameworks", "plafrim"), NO_RUNS).gpu_hours == 0
    archives = 170_052_171 + 26_421_880 + 29_515 + 4_422_102 + 5_148
    images = 60_000 * (32 * 32 * 3 + 8) + 70_000 * (28 * 28 + 8)
    assert cost.data_bytes == archives + images
