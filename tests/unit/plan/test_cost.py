"""What a campaign will cost: from runs that were measured, else from a rate that is stated or assumed."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from common.tables import write_table
from plan.campaign import Campaign
from plan.cost import ASSUMED_GFLOPS, START_S, Cost, measured_at, report
from plan.design import design
from plan.site import load_site
from plan.study import load_study, model_graph
from synthetic import designed_campaign

NOTHING = pd.DataFrame(columns=list(measured_at("nowhere", Path("nowhere")).columns))


def campaign(study: str, site: str, **changes: object) -> Campaign:
    there = replace(load_site(site), **changes)
    wanted = load_study(study)
    return Campaign(wanted, there, "campaign", design(wanted, there), None)


def test_without_any_run_a_rate_is_assumed_and_said() -> None:
    planned = campaign("tf-strategies", "virtual")
    cost = Cost(planned, NOTHING)
    run = next(run for run in planned.runs if run.levels["model"] == "resnet-50" and run.levels["nodes"] == 2)
    operations = 2 * model_graph("resnet-50", "tiny-imagenet-200").macs * (3 * 50_000 + 5_000) * 3
    expected = START_S + operations / (0.6 * ASSUMED_GFLOPS["cpu"] * 1e9)
    assert cost.estimates[run.run_id].run_s == pytest.approx(expected)
    assert "12 GFLOP/s a replica (cpu), assumed; no network" in report(cost)
    assert len(planned.runs) == 270 and "270 runs, 54 cells in 5 blocks" in report(cost)


def test_a_rate_that_the_site_states_is_taken() -> None:
    fast, slow = (Cost(campaign("tf-strategies", "virtual", gflops=rate), NOTHING) for rate in (200.0, 100.0))
    starts = len(fast.made) * START_S / 3600
    assert slow.hours(slow.made) - starts == pytest.approx(2 * (fast.hours(fast.made) - starts))
    assert "200 GFLOP/s a replica, stated" in report(fast)


def test_measured_runs_of_the_same_cell_go_before_everything(tmp_path: Path) -> None:
    runs, _ = designed_campaign()
    (tmp_path / "earlier").mkdir()
    write_table(runs, "runs", tmp_path / "earlier" / "runs.csv")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "runs.csv").write_text("nonsense\n1\n")
    planned = campaign("tf-strategies-virtual", "virtual")
    cost = Cost(planned, measured_at("virtual", tmp_path))
    run = planned.runs[0]
    own = runs[(runs.cell == run.cell) & (runs.status == "ok")]
    assert cost.estimates[run.run_id].run_s == pytest.approx(
        START_S + 3 * (own.epoch_time_s + own.validation_time_s).mean()
    )
    assert cost.estimates[run.run_id].origin == f"{len(own)} runs of the same cell"
    assert measured_at("elsewhere", tmp_path).empty


def test_processors_and_accelerators_are_told_apart(tmp_path: Path) -> None:
    planned = campaign("resnet34-devices", "slurm-example", gflops=15_000.0)
    cost = Cost(planned, NOTHING)
    cpu, cuda = (
        next(cost.estimates[run.run_id] for run in cost.made if run.levels["device"] == kind)
        for kind in ("cpu", "cuda")
    )
    assert cpu.run_s > 10 * cuda.run_s and "320 GFLOP/s a replica (cpu), assumed" in cpu.origin
    run = next(run for run in cost.made if run.levels["device"] == "cpu")
    row = {**run.levels, "epoch_time_s": 1200.0, "validation_time_s": 100.0, "replicas": 2, "samples_per_epoch": 50_000}
    known = Cost(planned, pd.DataFrame([row]))
    assert known.estimates[run.run_id].run_s == pytest.approx(START_S + 10 * 1300)
    assert all(
        known.estimates[each.run_id] == cost.estimates[each.run_id]
        for each in known.made
        if each.levels["device"] == "cuda"
    )
    other = Cost(planned, pd.DataFrame([{**row, "compiler": "torch-compile"}]))
    assert other.estimates[run.run_id].origin == "runs of other cells, by samples"


def test_nodes_and_accelerators_are_counted(tmp_path: Path) -> None:
    cost = Cost(campaign("frameworks", "slurm-example"), NOTHING)
    made = cost.made
    assert cost.node_hours == pytest.approx(sum(cost.hours([run]) * run.geometry.nodes for run in made))
    assert cost.gpu_hours == pytest.approx(2 * cost.node_hours), "two accelerators a node, held by every run"
    assert Cost(campaign("frameworks", "plafrim"), NOTHING).gpu_hours == 0
    assert set(cost.reasons) == {
        f"site slurm-example cannot run {name}: its adapter is not written yet" for name in ("lbann", "tarantella")
    }
    archives = 170_052_171 + 26_421_880 + 29_515 + 4_422_102 + 5_148
    images = 60_000 * (32 * 32 * 3 + 8) + 70_000 * (28 * 28 + 8)
    assert cost.data_bytes == archives + images
