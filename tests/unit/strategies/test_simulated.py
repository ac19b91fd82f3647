"""Simulated and measured step times: time outside layers, errors, orders, missing strategies."""

import itertools
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from analysis.cell_means import estimate_means
from analysis.records import Records
from common.notes import codes, find_note
from common.schemas import schema
from common.tables import write_table
from declared.figure_specs import FigureSpec
from declared.replicates import Replicates
from declared.site import load_site
from figures import captions
from figures.kinds import simulated as figure
from plan.campaign import Campaign, plan_campaign
from records.run_rows import planned_row
from strategies.measured import Measurements
from strategies.simulated import (
    Simulator,
    build_rows,
    count_correct_orders,
    findings,
    rank_correlations,
    sort_rows,
    speedups,
    table,
)
from support.timed_parts import handled, network_rows, study_of, timed

REST_S = 0.25  # that a step takes beside its layers
SLOWER = {"data": 1.0, "expert": 1.2, "random1": 0.9, "found": 1.0}  # than simulated


@pytest.fixture
def campaign() -> Campaign:
    single_rank = {"nodes": [1], "parallelism": ["expert", "random1", "found"]}
    study = study_of(nodes=[1, 4], parallelism=["data", "expert", "random1", "found"])
    study = replace(study, exclude=(single_rank,), replicates=Replicates(2, 2))
    return plan_campaign(study, replace(load_site("local"), nodes=4, ranks_per_node=1))


@pytest.fixture
def simulator(campaign: Campaign) -> Simulator:
    return Simulator(
        Measurements(timed(campaign.runs[0]), handled(), network_rows(), 1.0), "call ./ringside strategies"
    )


@pytest.fixture
def runs(campaign: Campaign, simulator: Simulator) -> pd.DataFrame:
    """Return the runs that would be measured if the simulation were right apart from SLOWER."""
    rows = []
    for run in campaign.runs:
        row = {**planned_row(campaign, run), "status": "ok", "reason": None, "session": "1", "site": "local"}
        if run.strategy is None:
            row |= {"status": "missing", "reason": campaign.not_executable_reason(run)}
        else:
            step = simulator.simulate(run)["seconds"] * SLOWER[str(run.levels["parallelism"])] + REST_S
            row |= {"epoch_time_s": 512 / 64 * step * (1 + 0.001 * (-1) ** run.replicate)}
        rows.append(row)
    return pd.DataFrame(rows, columns=list(schema("runs")["properties"]))


def cells(campaign: Campaign) -> dict[str, object]:
    return {run.cell: run for run in campaign.runs}


def test_time_outside_layers_is_added_to_all_cells(
    campaign: Campaign, simulator: Simulator, runs: pd.DataFrame
) -> None:
    data, missing = build_rows(runs, cells(campaign), simulator)
    (cell,) = [run.cell for run in campaign.runs if run.lacks_strategy and run.replicate == 1]
    assert find_note(missing, "not-simulated").facts == {"cells": [cell], "reason": "strategy-not-found-yet"}
    assert len(missing) == 1 and cell in missing[0]
    rows = data.set_index(["nodes", "parallelism"])
    assert rows["rest_s"].to_numpy() == pytest.approx(REST_S)
    assert rows.loc[(1, "data"), "error"] == pytest.approx(0, abs=1e-9)
    assert abs(rows.loc[(4, "data"), "error"]) < 0.01
    expert = rows.loc[(4, "expert")]
    assert expert["step_s"] == pytest.approx(1.2 * expert["simulated_s"] + REST_S)
    assert expert["error"] == pytest.approx((expert["simulated_s"] + expert["rest_s"]) / expert["step_s"] - 1)
    assert (
        rows.loc[(4, "data"), "sent_activation_bytes"] == 0 < rows.loc[(4, "expert"), "sent_activation_bytes"]
    )
    assert rows.loc[(4, "data"), "gradient_bytes"] > rows.loc[(4, "expert"), "gradient_bytes"]


def test_no_time_is_added_without_single_rank_cell(
    campaign: Campaign, simulator: Simulator, runs: pd.DataFrame
) -> None:
    multi_rank = {cell: run for cell, run in cells(campaign).items() if run.geometry.ranks > 1}
    runs = runs[runs["nodes"] > 1]
    result = table(runs, *build_rows(runs, multi_rank, simulator))
    assert result.data["rest_s"].isna().all() and result.data["error"].notna().all()
    assert find_note(result.notes, "no-rest").facts == {"models": ["lenet-5"]}


def test_table_is_sorted_by_model_link_and_strategy(
    campaign: Campaign, simulator: Simulator, runs: pd.DataFrame
) -> None:
    data, missing = build_rows(runs, cells(campaign), simulator)
    rates = {cell: rate for rate, cell in zip(itertools.cycle((1000, 100)), data["cell"], strict=False)}
    result = table(runs, data.assign(bandwidth=data["cell"].map(rates)), missing)
    assert list(result.display)[:4] == ["model", "nodes", "bandwidth (Mbit/s)", "parallelism"]
    copies = [
        data.assign(model=model, bandwidth=rate, parallelism=data["parallelism"].replace("expert", level))
        for model in ("lenet-5", "alexnet")
        for rate in (1000, 100)
        for level in ("random10", "expert", "random2", "found")
    ]
    shuffled = pd.concat(copies).sample(frac=1, random_state=3).reset_index(drop=True)
    columns = ["model", "nodes", "bandwidth", "parallelism"]
    assert sort_rows(shuffled)[columns].drop_duplicates().to_numpy().tolist() == [
        [model, nodes, rate, level]
        for model in ("alexnet", "lenet-5")
        for nodes, levels in (
            (1, ["data"]),
            (4, ["data", "expert", "found", "random1", "random2", "random10"]),
        )
        for rate in (100, 1000)
        for level in levels
    ]


def test_cells_without_strategy_keep_measured_times(
    campaign: Campaign, simulator: Simulator, runs: pd.DataFrame, tmp_path: Path
) -> None:
    unfound = {
        cell: replace(run, strategy=None)
        if run.geometry.ranks > 1 and run.levels["parallelism"] != "data"
        else run
        for cell, run in cells(campaign).items()
    }
    data, missing = build_rows(runs, unfound, simulator)
    (note,) = missing
    assert (note.code, note.facts["reason"], len(note.facts["cells"])) == (
        "not-simulated",
        "strategy-not-found-yet",
        3,
    )
    result = table(runs, data, missing)
    assert missing[0] in result.notes
    rows = data.set_index(["nodes", "parallelism"])
    assert set(rows.index) == {(1, "data"), (4, "data"), (4, "expert"), (4, "random1")}, (
        "found was never measured"
    )
    assert rows.loc[4, "step_s"].notna().all() and rows.loc[4, "simulated_s"].isna().sum() == 2
    row = result.display.set_index(["nodes", "parallelism"]).loc[("4", "expert")]
    assert (
        row[["simulated (ms)", "error (%)", "sent (MB)"]].tolist() == ["–"] * 3
        and row["measured (ms)"] != "–"
    )
    data.to_csv(tmp_path / "simulated.csv", index=False)
    write_table(runs, "runs", tmp_path / "runs.csv")
    records = Records(
        tmp_path / "runs.csv", tmp_path / "epochs.csv", {"simulated": tmp_path / "simulated.csv"}
    )
    caption = figure.draw(records, FigureSpec("simulated", "simulated"))[1]
    assert find_note(caption.notes, "measured-cells-left-out").facts == {"cells": 2}


def test_orders_and_speedups_compare_only_strategies(
    campaign: Campaign, simulator: Simulator, runs: pd.DataFrame
) -> None:
    data, _ = build_rows(runs, cells(campaign), simulator)
    assert rank_correlations(data) == [1.0]
    assert speedups(data, estimate_means(runs)) == [], "nothing was found"
    renamed = data.assign(parallelism=data["parallelism"].replace("random1", "found"))
    ((levels, gain),) = speedups(renamed, estimate_means(runs))
    by_level = renamed[renamed["ranks"] > 1].set_index("parallelism")["step_s"]
    assert levels["nodes"] == 4 and gain.value == pytest.approx(
        by_level["data"] / by_level["found"], rel=1e-3
    )
    notes = findings(renamed, estimate_means(runs))
    assert codes(notes) == ["errors", "order", "gains"]
    assert find_note(notes, "order").facts["taus"] == [1.0] and find_note(notes, "gains").facts["gains"] == [
        gain.value
    ]
    upside_down = data.assign(step_s=1 / data["step_s"])
    assert rank_correlations(upside_down) == [-1.0]


def test_order_counts_only_resolved_pairs(
    campaign: Campaign, simulator: Simulator, runs: pd.DataFrame
) -> None:
    data, _ = build_rows(runs, cells(campaign), simulator)
    assert count_correct_orders(data, estimate_means(runs)) == (3, 3)
    assert count_correct_orders(data.assign(simulated_s=1 / data["simulated_s"]), estimate_means(runs)) == (
        0,
        3,
    )
    by_name = data[data["ranks"] > 1].set_index("parallelism")["cell"]
    noisy = runs.copy()
    of_expert = noisy["cell"] == by_name["expert"]
    noisy.loc[of_expert, "epoch_time_s"] *= 1 + 0.9 * (-1) ** noisy.loc[of_expert, "replicate"].astype(int)
    assert count_correct_orders(data, estimate_means(noisy)) == (1, 1), (
        "the expert's rule may be faster or slower than the other two"
    )
    assert count_correct_orders(data[data["ranks"] == 1], estimate_means(runs)) == (0, 0)


def test_figure_has_marker_per_multi_rank_cell(
    campaign: Campaign, simulator: Simulator, runs: pd.DataFrame, tmp_path: Path
) -> None:
    data, _ = build_rows(runs, cells(campaign), simulator)
    data.to_csv(tmp_path / "simulated.csv", index=False)
    write_table(runs, "runs", tmp_path / "runs.csv")
    records = Records(
        tmp_path / "runs.csv", tmp_path / "epochs.csv", {"simulated": tmp_path / "simulated.csv"}
    )
    drawn, caption = figure.draw(records, FigureSpec("simulated", "simulated"))
    (ax,) = drawn.axes
    markers = [line for line in ax.get_lines() if line.get_marker() not in ("None", "", None)]
    assert sum(len(line.get_xdata()) for line in markers) == (data["ranks"] > 1).sum() == 3
    errors = data.loc[data["ranks"] > 1, "error"].abs()
    assert f"{100 * errors.mean():.1f} % on average" in caption
    empty = Records(tmp_path / "runs.csv", tmp_path / "epochs.csv")
    assert figure.draw(empty, FigureSpec("simulated", "simulated"))[1].startswith(captions.NOT_DRAWN)
