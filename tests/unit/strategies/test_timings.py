"""Parts and messages are timed on this machine, and the plan has the strategies searched from that."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from common.errors import InputError
from common.notes import find_note
from common.tables import read_table, write_table
from declared.site import Site, load_site
from declared.study import Study
from launchers.protocol import Outcome
from models.soap import divide
from models.strategy import check_strategy, from_json
from plan import design as planner
from plan import strategies
from plan.campaign import load_campaign
from plan.collective_benchmarks import message_sizes
from plan.design import plan_design
from plan.timings import MESSAGES, Timing, planned_timings
from runs import other_measurements
from strategies import gather, measure, study_search
from support.benchmarked import benchmark_rows
from support.installed_site import busy_site
from support.timed_parts import study_of

NAME = "quickstart"
NOT_RUN = "absent: has not run"
TABLES = {name: Path(f"{name}.csv") for name in ("costs", "messages", "network")}
FROM_TABLES: dict[str, Any] = {"study": NAME, "site": "local", **TABLES, "out": Path("table")}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("RINGSIDE_LOCK", str(tmp_path / "machine.lock"))
    return busy_site(collective_max_bytes=65536, time_limit_s=120)


@pytest.fixture
def study() -> Study:
    """Return lenet-5 on two nodes, eight samples a step."""
    return study_of(nodes=[2], batch_size=[8], parallelism=["data", "found"])


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: Site, study: Study) -> Path:
    """Return a folder for results, where programs load this study and this site."""
    monkeypatch.chdir(tmp_path)
    for module in ("plan.campaign", "strategies.study_search"):
        monkeypatch.setattr(f"{module}.load_site", lambda name: site)
        monkeypatch.setattr(f"{module}.load_study", lambda name: study)
    for module in (planner, study_search):
        monkeypatch.setattr(module, "strategy_file", lambda study, site: tmp_path / "found.json")
    return tmp_path / "results" / NAME


def line(collective: str) -> pd.DataFrame:
    """Return a benchmark of slow links as rows of network.csv."""
    return benchmark_rows(
        lambda size: [1e-4 + size / 1e7], message_sizes(2**20), 2,
        collective=collective, study=NAME, framework="pytorch-strategy", placement="emulated", link_bytes_s=None,
    )  # fmt: skip


def test_study_is_timed_searched_and_planned(real: Any, results: Path, study: Study, site: Site) -> None:
    for environment in ("pytorch", "planner"):
        real(environment)
    before = next(run for run in plan_design(study, site) if run.levels["parallelism"] == "found")
    assert before.lacks_strategy
    records = [
        measure.KIND.reuse_or_measure(study, site, timing, results)
        for timing in planned_timings(plan_design(study, site), site)
    ]
    assert [(record["kind"], record["status"], record["reason"]) for record in records] == [
        ("messages", "ok", None),
        ("parts", "ok", None),
    ]
    messages, parts = records
    assert messages["transport"] == "gloo over tcp lo" and len(messages["hosts"]) == 1
    assert all(min(size["send"]) > 0 and min(size["receive"]) > 0 for size in messages["messages"])
    assert parts["node_memory_bytes"] > parts["resident_bytes"] > 5e7
    gather.main(study=NAME, site="local", costs=Path("costs.csv"), messages=Path("messages.csv"))
    costs = read_table(Path("costs.csv"), "costs")
    space = divide(before.graph, 8)
    configurations = {
        (layer.name, "x".join(map(str, degrees)))
        for layer in space.layers
        for degrees in layer.configurations(2)
    }
    assert set(zip(costs["layer"], costs["degrees"], strict=True)) == configurations
    unsplit = costs[costs["parts"] == 1].set_index("layer")
    assert unsplit.loc["conv2", "forward_s"] > 3 * unsplit.loc["flatten1", "forward_s"], (
        "which computes nothing"
    )
    assert unsplit.loc["dense1", "update_s"] > 0 and unsplit.loc["average_pool1", "update_s"] == 0
    rows = pd.concat([line("point_to_point"), line("all_reduce")])
    write_table(rows, "network", Path("network.csv"))
    study_search.main(**FROM_TABLES)
    content = json.loads(Path("found.json").read_text())
    ((question, answer),) = content["strategies"].items()
    assert question == strategies.strategy_search_name(before.levels) and set(content["made_of"]) == {
        question
    }
    check_strategy(from_json(answer["parts"]), space, 2)
    data = pd.read_csv("table.csv").iloc[0]
    assert answer["step_s"] == data["found_s"] <= data["data_s"]
    run = next(run for run in plan_design(study, site) if run.levels["parallelism"] == "found")
    assert not run.lacks_strategy and run.strategy == from_json(answer["parts"])


def test_missing_timings_are_named_and_nothing_written(real: Any, results: Path, study: Study) -> None:
    real("planner")
    campaign = load_campaign({"study": NAME, "site": "local", "records": "available"})
    tables = gather.gather(campaign)
    assert tables["costs"]["reason"].tolist() == tables["messages"]["reason"].tolist() == [NOT_RUN]
    lines = gather.summary(tables)
    assert find_note(lines, "timings").facts == {"timings": 2, "ok": 0}
    parts = next(line for line in lines if "lenet-5" in line)
    assert (parts.code, parts.facts["status"], parts.facts["reason"]) == ("timing-not-ok", "missing", NOT_RUN)
    for name, table in tables.items():
        write_table(table, name, Path(f"{name}.csv"))
    write_table(line("all_reduce"), "network", Path("network.csv"))
    with pytest.raises(InputError) as refused:
        study_search.main(**FROM_TABLES)
    assert refused.value.code == "measurement-failed" and refused.value.problem.endswith(NOT_RUN)
    assert "lenet-5" in refused.value.problem
    assert not Path("found.json").exists()


@pytest.mark.parametrize(
    ("outcome", "result", "status", "words"),
    [
        (Outcome("timeout", "not finished", 1.0), None, "timeout", ["not finished"]),
        (Outcome("ok", None, 1.0), None, "failed", []),
        (Outcome("ok", None, 1.0), {"other_cpu_share": 0.5}, "invalid", ["50.0 %", "5 %"]),
        (Outcome("ok", None, 1.0), {"other_cpu_share": 0.01}, "ok", None),
    ],
)
def test_a_timing_that_fails_is_data(
    outcome: Outcome, result: dict[str, Any] | None, status: str, words: list[str] | None, tmp_path: Path
) -> None:
    with_ranks = result and {**result, "ranks": [{"host": "node1", "machine": "a"}]}
    (log := tmp_path / "log.txt").touch()
    decided, reason = other_measurements.judge_measurement(
        outcome, with_ranks, load_site("local"), ["node1"], log
    )
    assert decided == status
    assert reason is None if words is None else bool(reason) and all(word in reason for word in words)


def test_old_key_and_unknown_timing_are_refused(study: Study, site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr(other_measurements, "load_site", lambda name: site)
    monkeypatch.setattr(other_measurements, "load_study", lambda name: study)
    for name, words in (
        ("pytorch-strategy.messages", ["timing pytorch-strategy.messages", "0" * 12]),
        ("pytorch-ddp.messages", [study.file.name, "timing pytorch-ddp.messages"]),
    ):
        with pytest.raises(InputError) as refused:
            measure.main(
                study=NAME,
                site="local",
                timing=name,
                key="0" * 12,
                out=Path("results/quickstart/timings/name/key/record.json"),
            )
        assert all(word in str(refused.value) for word in words)


def test_a_broken_timing_is_one_line(results: Path, study: Study, site: Site) -> None:
    timing: Timing = next(
        candidate
        for candidate in planned_timings(plan_design(study, site), site)
        if candidate.kind == MESSAGES
    )
    file = timing.final_record_path(results, site)
    file.parent.mkdir(parents=True)
    for text, words in (("{", [file.name, str(file.parent)]), ("{}", [file.name, "study"])):
        file.write_text(text)
        with pytest.raises(InputError) as refused:
            measure.KIND.read(file)
        assert all(word in str(refused.value) for word in words) and len(str(refused.value).splitlines()) == 1
