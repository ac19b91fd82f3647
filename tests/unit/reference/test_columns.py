"""Every column of every table of kept campaigns is described, and every described column exists."""

import pandas as pd
import pytest

from analysis import (
    adjusted,
    anova,
    cells,
    checks,
    cost,
    decomposition,
    drift,
    effects,
    efficiency,
    energy,
    memory,
    missing,
    regression,
    regression_table,
    scaling,
    settings,
    speedup,
    stragglers,
    strategies,
    time_to_accuracy,
    useful_time,
    variance,
)
from analysis.records import read_runs, read_timing_runs
from analysis.responses import with_response
from common.files import CHECKOUT
from common.schemas import schema
from common.tables import read_results, read_table
from comparison import changes, matched, published
from declared.costs import Costs, Price
from declared.factors import factor_names
from declared.products.tables import TABLES
from declared.references import load_reference
from declared.replicates import Replicates
from declared.responses import RESPONSES
from network import fit
from prediction import crossover, held_out, hybrid, measured_study, methods, projection, what_if
from prediction.inputs import measured_cells
from prediction.message_times import CollectiveBenchmark, benchmark_points
from prediction.question import build_question
from records.run_rows import memory_estimate_columns
from reference import products
from replication import pilot, reached
from strategies import costs_table, study_search
from support.known_heterogeneous import heterogeneous_runs
from support.measured_elsewhere import DLPERF
from support.synthetic import referenced
from support.traces_made import gathered
from traces import bottlenecks, exposed, path
from traces import cells as traced_cells
from traces import cost as tracing_cost

CAMPAIGNS = CHECKOUT / "docs" / "campaigns"
FOLDER, OTHER_FOLDER = (CAMPAIGNS / f"tf-strategies-{name}" for name in ("unshaped", "virtual"))


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    """A kept campaign, with costs, memory of accelerators, times of steps, and what tokens have."""
    steps = {f"step_time_{name}_s": 1.0 for name in ("median", "p95", "p99", "largest")}
    added = {"device_memory_peak_bytes": 1, "perplexity": 2.0, "throughput_tokens_s": 1e3}
    costs = Costs(price_per_node_hour=Price(2.0, "EUR"), grid_g_co2_per_kwh=300.0, node_power_w=100.0)
    return read_runs(FOLDER / "runs.csv").assign(**added, **steps, **costs.columns())


@pytest.fixture(scope="module")
def network() -> pd.DataFrame:
    return read_table(FOLDER / "network.csv", "network")


def of_variance(runs: pd.DataFrame) -> tuple[variance.Components, variance.MixedModel | None]:
    times = variance.log_times_by_run(runs, read_table(FOLDER / "epochs.csv", "epochs"))
    return variance.estimate_components(times), variance.fit_mixed_model(runs, times)


def cells_of_every_response(runs: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return the table of cells with the columns of all responses that a study may choose."""
    derived = [response for response in RESPONSES.values() if response.column not in runs]
    tables = [
        cells.summarize(with_response(runs, response, lambda: epochs, 0.5), response) for response in derived
    ]
    every = pd.concat(tables, axis="columns")
    return every.loc[:, ~every.columns.duplicated()]


@pytest.fixture(scope="module")
def of_traces(tmp_path_factory: pytest.TempPathFactory, network: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tables of a made-up campaign with traced runs, which no kept one has."""
    runs, phases = gathered(tmp_path_factory.mktemp("traced"), steps=4)
    measured = traced_cells.select_traced(runs, phases)
    return {
        "phases": traced_cells.table(measured).data,
        "bottlenecks": bottlenecks.table(measured, network).data,
        "critical_path": path.table(measured).data,
        "exposed": exposed.table(measured, runs).data,
        "tracing": tracing_cost.table(runs).data,
    }


@pytest.fixture(scope="module")
def table_data(
    runs: pd.DataFrame, network: pd.DataFrame, of_traces: dict[str, pd.DataFrame]
) -> dict[str, pd.DataFrame]:
    """Every table, with the columns that are left out of its file where nothing is in them."""
    fits = regression.fit_all(runs)
    phases = read_table(CAMPAIGNS / "phases-virtual" / "phases.csv", "phases")
    prepared, benchmarks = measured_cells(runs), CollectiveBenchmark(benchmark_points(network))
    every, errors = held_out.evaluate(prepared, benchmarks, methods.methods())
    study = measured_study.load_study_folder(FOLDER)
    projected = projection.project_scaling(build_question(from_=FOLDER, nodes=8), study)
    estimate = {"rank": 0, "bytes": dict.fromkeys(memory.HEADINGS, 1)}
    with_energy = runs.assign(energy_package_j=5.0, energy_scope="package", peak_flops_s=1e12)
    of_epochs = read_table(FOLDER / "epochs.csv", "epochs")
    metered_epochs = of_epochs.assign(energy_package_j=5.0)
    return {
        "memory": memory.summarize(runs.assign(**memory_estimate_columns(estimate))),
        "cells": cells_of_every_response(with_energy, metered_epochs),
        "settings": settings.values_by_framework(runs.assign(settings="threads: 2")),
        "drift": drift.drift_by_block(drift.drift_by_run(referenced(runs))),
        "adjusted": adjusted.summarize(referenced(runs), adjusted.adjust_for_speed(referenced(runs))),
        "effects": effects.build_rows(runs, margin=0.05, response=RESPONSES["throughput"]),
        "time_to_accuracy": time_to_accuracy.summarize(runs, of_epochs, 0.5),
        "efficiency": efficiency.summarize(efficiency.measure(runs.assign(peak_flops_s=1e12))),
        "energy": energy.summarize(with_energy, metered_epochs, 0.5),
        "cost": cost.summarize(runs, of_epochs, 0.5),
        "useful_time": useful_time.summarize(runs, of_epochs),
        "variance": variance.build_rows(*of_variance(runs)),
        "missing": missing.table(runs).data,
        "node_check": pd.DataFrame(columns=list(schema("nodes")["properties"])),
        "stragglers": stragglers.find_stragglers(runs, phases),
        "anova": anova.table(runs).data,
        "checks": checks.table(runs).data,
        "residuals": checks.residual_columns(checks.residuals(runs)),
        "regression": regression_table.long_table(fits),
        "regression_cells": regression_table.by_cell(fits),
        "speedup": speedup.build_rows(runs),
        "strategies": strategies.summarize(runs),
        "scaling": scaling.build_rows(runs)[0],
        "decomposition": decomposition.decompose(runs, network),
        "replication": reached.table(runs, Replicates(3, 9, 0.05)).data,
        "pilot": pilot.table(runs, read_table(FOLDER / "epochs.csv", "epochs")).data,
        "network": fit.summarize(pd.concat([network, network.assign(collective="all_gather")])),
        "prediction": errors,
        "prediction_cells": every,
        "projection": projected.rows,
        "crossover": crossover.rank_strategies(runs, benchmarks),
        "hybrid": hybrid.build_rows(*heterogeneous_runs()),
        "projection_curves": projection.curve_columns(projected.curves),
        **of_traces,
        "what_if": pd.DataFrame(columns=what_if.COLUMNS),
        "costs": costs_table.build_rows(pd.DataFrame(columns=[*schema("costs")["properties"]])),
        "strategies_found": study_search.table([], {}).data,
        "simulated": read_results(CAMPAIGNS / "found-strategies-virtual" / "simulated.csv"),
        "comparison": changes.changes(matched.read(str(FOLDER), str(OTHER_FOLDER))),
        "published": published.build_rows(
            read_timing_runs(DLPERF / "runs.csv"), load_reference("dlperf"), margin=0.05
        ),
    }


@pytest.mark.parametrize("name", TABLES)
def test_the_columns_of_a_table_are_described(name: str, table_data: dict[str, pd.DataFrame]) -> None:
    described = products.columns(TABLES[name])
    of_factors = set(factor_names()) - set(described) if products.FACTORS in described else set()
    assert sorted(set(table_data[name]) - of_factors) == sorted(
        column for column in described if column != products.FACTORS
    )


def test_every_table_is_described(table_data: dict[str, pd.DataFrame]) -> None:
    assert set(table_data) == set(TABLES)
