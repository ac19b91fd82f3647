"""Files, inputs and command lines of figures and tables follow from their declarations."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import analysis.study
from common.files import CHECKOUT
from common.options import parse_arguments
from declared.costs import Costs
from declared.products import tables
from declared.products.figure_kinds import KINDS, FigureKind
from declared.products.tables import PROGRAM_OF, PROGRAMS, TABLES
from declared.site import load_site
from declared.study import load_study
from figures import draw, style
from plan import products
from plan.campaign import Campaign, load_campaign, plan_campaign
from plan.collective_benchmarks import CollectiveBenchmarks
from plan.products import Products
from plan.timings import Timings
from support.synthetic import write_campaign

ENTRY = """
question: How many?
shows: The number of runs.
reading: Read it.
drawn_by_default: where nodes vary
when: [nodes_vary]
inputs: [network, crossover]
takes: [filter]
example: {study: quickstart, figure: {}}
"""


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    return plan_campaign(load_study("quickstart"), load_site("local"))


def products_of(campaign: Campaign) -> Products:
    return Products(campaign, CollectiveBenchmarks(campaign), Timings(campaign))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> FigureKind:
    """A kind of figure that stands in the registry alone, and its module."""

    def draw_count(records, entry_drawn):
        drawn = style.new_figure(style.COLUMN_INCHES, 1)
        drawn.subplots().set_title(f"{len(records.runs)} runs")
        return (
            drawn,
            f"{entry_drawn.kind}: {len(records.runs)} runs, {len(records.table('network'))} repetitions.",
        )

    kind = FigureKind(name="run_count", **yaml.safe_load(ENTRY))
    monkeypatch.setitem(KINDS, "run_count", kind)
    monkeypatch.setitem(sys.modules, "figures.kinds.run_count", SimpleNamespace(draw=draw_count))
    return kind


def test_registered_figure_is_planned(registered: FigureKind, campaign: Campaign) -> None:
    planned_products = products_of(campaign)
    assert list(planned_products.figures)[-1] == "run_count"
    assert planned_products.figure_files["run_count"] == [
        f"results/quickstart/figures/run_count.{suffix}" for suffix in ("pdf", "svg", "png", "caption.md")
    ]
    assert planned_products.figure_module("run_count") == "figures.kinds.run_count"
    files = {name: f"results/quickstart/{name}.csv" for name in ("runs", "epochs", "network")}
    assert planned_products.figure_inputs("run_count") == files, (
        "there is no table of crossover without strategies"
    )
    assert campaign.study.paper.chosen_figures([planned_products.figures["run_count"]]) == ["run_count"]
    one_node = replace(
        campaign, study=replace(campaign.study, factors={**campaign.study.factors, "nodes": [1]})
    )
    assert "run_count" not in products_of(one_node).figures


def test_registered_figure_is_drawn(registered: FigureKind, campaign: Campaign, tmp_path: Path) -> None:
    runs, epochs = write_campaign(tmp_path)
    figure = products_of(campaign).figures["run_count"].to_json()
    inputs = [f"runs={runs}", f"epochs={epochs}"]
    draw.main(figure=figure, inputs=inputs, out=tmp_path / "run_count")
    assert (tmp_path / "run_count.caption.md").read_text().endswith(" runs, 0 repetitions.\n")
    assert (tmp_path / "run_count.pdf").stat().st_size > 1000


def test_registered_table_is_planned(monkeypatch: pytest.MonkeyPatch, campaign: Campaign) -> None:
    entry = {
        "inputs": ["runs", "network"],
        "options": ["study"],
        "when": ["nodes_vary"],
        "tables": {"run_count": {}},
    }
    entry["tables"] = {
        "run_count": {"answers": "How many?", "method": "Counted.", "columns": {"n": ["runs", "all"]}}
    }
    program = tables.read_program("analysis.run_count", entry)
    monkeypatch.setitem(PROGRAMS, program.name, program)
    monkeypatch.setitem(TABLES, "run_count", program.tables[0])
    monkeypatch.setitem(PROGRAM_OF, "run_count", program)
    planned_products = products_of(campaign)
    assert planned_products.files_of_program(program) == [
        f"results/quickstart/tables/run_count.{suffix}" for suffix in ("csv", "md", "tex")
    ]
    assert (
        set(planned_products.files_of_program(program)) <= set(planned_products.table_files)
        and "run_count" in planned_products.printed_tables
    )
    assert planned_products.arguments(program) == [
        "--runs", "results/quickstart/runs.csv", "--network", "results/quickstart/network.csv",
        "--study", "quickstart", "--out", "results/quickstart/tables/run_count",
    ]  # fmt: skip


def test_programs_are_told_what_they_declare(campaign: Campaign) -> None:
    study = replace(campaign.study, margin=0.05, target_accuracy=0.9, extra_p=True)
    planned_products = products_of(replace(campaign, study=study))
    arguments = planned_products.arguments(PROGRAMS["analysis.study"])
    assert arguments[6:10] == ["--margin", "0.05", "--target-accuracy", "0.9"]
    assert arguments[-2:] == ["--out", "results/quickstart/tables"]
    plain = products_of(campaign).arguments(PROGRAMS["analysis.study"])
    assert "--target-accuracy" not in plain and "--replicates" not in plain
    (stamp,) = planned_products.environments(PROGRAMS["prediction.held_out"])
    assert ["--extrap", stamp] == planned_products.arguments(PROGRAMS["prediction.held_out"])[4:6]
    assert {option for program in PROGRAMS.values() for option in program.options} == set(products.OPTIONS)


def test_tables_with_nothing_to_show_are_omitted(campaign: Campaign) -> None:
    assert not products_of(campaign).traits.nodes_have_network, "they are emulated at the site local"
    omitted_here = ["time_to_accuracy", "cost", "strategies", "efficiency", "memory"]
    assert products.omitted_tables(campaign) == omitted_here
    costs = Costs(grid_g_co2_per_kwh=250.0)
    priced = replace(campaign, site=replace(campaign.site, costs=costs))
    assert "cost" not in products.omitted_tables(priced)
    assert {figure.y for figure in products_of(priced).figures.values() if figure.kind == "pareto"} == {
        "carbon"
    }
    arguments = parse_arguments(
        analysis.study.main, products_of(campaign).arguments(PROGRAMS["analysis.study"])
    )
    assert list(arguments["omit"]) == omitted_here
    factors = campaign.study.factors | {"nodes": [2], "sync_every": [1], "batch_size": [16]}
    single = replace(campaign.study.replicates, at_least=1, at_most=1)
    study = replace(campaign.study, factors=factors, replicates=single, exclude=())
    omitted = {"speedup", "scaling", "checks", "residuals", "regression", "regression_cells"}
    small_campaign = replace(campaign, study=study)
    assert omitted <= set(products.omitted_tables(small_campaign))
    assert not omitted & {
        name.rsplit("/", 1)[-1].split(".")[0] for name in products_of(small_campaign).table_files
    }


def test_published_tables_have_what_lies_beside_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    published = CHECKOUT / "docs" / "campaigns" / "phases-virtual"
    folder = tmp_path / "kept"
    folder.mkdir()
    for name in ("runs", "epochs", "network", "phases", "trace_steps"):
        (folder / f"{name}.csv").symlink_to(published / f"{name}.csv")
    monkeypatch.chdir(tmp_path)
    config = {"study": "phases-virtual", "site": "local", "records": str(folder)}
    plain = products_of(load_campaign(config)).record_files(
        "network", "phases", "trace_steps", "replay_steps"
    )
    assert plain == [f"{folder}/{name}.csv" for name in ("network", "phases", "trace_steps")]
    for name in ("network", "phases"):
        (folder / f"{name}.csv").unlink()
        (folder / f"{name}.csv.gz").touch()
    planned_products = products_of(load_campaign(config))
    assert planned_products.record_files("network", "phases", "trace_steps", "replay_steps") == [
        f"{folder}/{name}" for name in ("network.csv.gz", "phases.csv.gz", "trace_steps.csv")
    ]
    assert "traces.study" in {program.name for program in planned_products.programs}
    assert "prediction.what_if" not in {program.name for program in planned_products.programs}
    assert json.loads(planned_products.figures["gantt"].to_json())["kind"] == "gantt"
