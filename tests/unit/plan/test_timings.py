"""Which timings a search for strategies uses, and what changes their keys."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from declared.site import Site, load_site
from declared.study import load_study
from plan.campaign import plan_campaign as campaign_of
from plan.cost import START_S, Cost, measured_at, table_rows
from plan.design import Run, plan_design
from plan.scheduling import run_resources
from plan.timings import BUDGET_S, Timing, Timings, planned_timings, required_timings
from support.timed_parts import DATASET, FRAMEWORK, study_of


def runs_of(site: Site, **factors: list[object]) -> list[Run]:
    return plan_design(study_of(**factors), site)


def named(timings: list[Timing]) -> list[str]:
    return [timing.name for timing in timings]


def test_each_model_and_batch_is_timed_once_for_most_devices(site: Site) -> None:
    all_runs = runs_of(site, nodes=[2, 4], batch_size=[32, 64], parallelism=["data", "found", "random1"])
    assert named(planned_timings(all_runs, site)) == [
        f"{FRAMEWORK}.messages",
        f"{FRAMEWORK}.lenet-5.{DATASET}.b32.p4",
        f"{FRAMEWORK}.lenet-5.{DATASET}.b64.p4",
    ]
    adam = planned_timings(runs_of(site, optimizer=["adam"], learning_rate=[0.001]), site)
    assert named(adam)[1:] == [f"{FRAMEWORK}.lenet-5.{DATASET}.b64.optimizer=adam.p4"]


def test_nothing_is_timed_without_a_searched_strategy(site: Site) -> None:
    assert required_timings(runs_of(site, parallelism=["data", "expert", "random1"])) == []
    assert required_timings(plan_design(load_study("quickstart"), site)) == []


def test_asking_for_strategies_without_timings_is_refused(site: Site) -> None:
    asks = campaign_of(study_of(), site)
    assert Timings(asks).check_available(["costs.csv"]) == ["costs.csv"]
    poor = replace(site, frameworks=("pytorch-single",))
    study, config = "config/studies/quickstart.yaml", "config/config.yaml"
    for campaign, expected in (
        (
            campaign_of(study_of(parallelism=["data", "random1"]), site),
            ("missing-level", study, "factors.parallelism"),
        ),
        (campaign_of(study_of(), poor), ("framework-not-at-site", study, "")),
        (replace(asks, mode="available"), ("not-possible-here", config, "records")),
    ):
        with pytest.raises(InputError) as refused:
            Timings(campaign).check_available(["costs.csv"])
        error = refused.value
        assert (error.code, error.file, error.key) == expected and "\n" not in str(error)


def test_parts_are_timed_on_a_rank_and_messages_on_two_nodes(site: Site) -> None:
    virtual = replace(load_site("virtual-six"))
    messages, parts = planned_timings(runs_of(site, bandwidth=[100, 1000]), virtual)
    assert (parts.spec(virtual)["nodes"], parts.spec(virtual)["ranks"]) == (1, 1)
    assert (messages.spec(virtual)["nodes"], messages.spec(virtual)["ranks"]) == (2, 2)
    assert (
        run_resources(virtual, parts.geometry)["nodes"] == 1
        and run_resources(virtual, messages.geometry)["nodes"] == 2
    )
    inside = replace(site, nodes=1, ranks_per_node=4)
    messages, _ = planned_timings(runs_of(inside, nodes=[1]), inside)
    assert (messages.geometry.nodes, messages.geometry.ranks, messages.geometry.ranks_per_node) == (1, 2, 2)


def test_a_timing_is_another_one_where_its_times_would_be_others(site: Site) -> None:
    def keys(site: Site, **factors: list[object]) -> tuple[str, str]:
        messages, parts = planned_timings(runs_of(site, **factors), site)
        return messages.key(site), parts.key(site)

    messages, parts = keys(site)
    assert keys(site, parallelism=["found", "random7"], epochs=[3]) == (messages, parts)
    for changed in ({"batch_size": [32]}, {"momentum": [0.5]}, {"nodes": [2]}):
        assert keys(site, **changed)[0] == messages and keys(site, **changed)[1] != parts, changed
    fewer_cores = keys(replace(site, cores=1))
    assert fewer_cores[0] != messages and fewer_cores[1] != parts
    large = keys(site, dataset=["synthetic-28x28x1-20-512"])
    assert large == (messages, large[1]) and large[1] != parts


def test_environment_is_built_while_its_runs_wait_for_strategies(site: Site) -> None:
    campaign = campaign_of(study_of(parallelism=["found"]), site)
    assert campaign.record_paths == {} and "pytorch" in campaign.environments
    timings = Timings(campaign)
    for name, output in timings.record_paths.items():
        assert timings.environment(name) == campaign.environments["pytorch"]
        assert Path(output).parts[-4:-2] == ("costs", name)


def test_a_plan_counts_timings(site: Site, tmp_path: Path) -> None:
    cost = Cost(campaign_of(study_of(), site), measured_at("nowhere", tmp_path))
    timings = {benchmark.kind: s for benchmark, s in cost.benchmarks if isinstance(benchmark, Timing)}
    assert timings == {kind: START_S + budget_s for kind, budget_s in BUDGET_S.items()}
    assert {row[1] for row in table_rows(cost)} >= {"(parts of layers)", "(messages)"}
