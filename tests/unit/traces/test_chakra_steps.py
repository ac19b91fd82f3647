"""Execution traces of traced steps: read by the package's reader, and replayed with the recorded durations."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from common.errors import InputError
from common.files import CHECKOUT
from common.tables import read_table
from ranks.worker.epoch_timer import COLUMNS
from ranks.worker.phases import COMMUNICATION
from support.chakra_traces import check_traces, read_traces, replay_recorded
from support.traces_made import attempt
from traces import chakra, chakra_steps
from traces.chakra import GROUPS
from traces.steps import Traced

GRADIENT_BYTES = 1001
CAMPAIGNS = [CHECKOUT / "docs" / "campaigns" / name for name in ("phases-virtual", "what-if-virtual")]


def test_exported_step_is_read_and_lasts_as_recorded(real, tmp_path: Path, monkeypatch) -> None:
    python = real("chakra")["python"]["executable"]
    monkeypatch.setattr("traces.chakra.interpreter", lambda: python)
    (tmp_path / "rank_input.json").write_text('{"spec": {"ranks": 2, "levels": {"warmup_epochs": 1}}}')
    rows = [",".join("4" if name == "steps" else str(epoch) for name in COLUMNS) for epoch in (1, 2, 3)]
    (tmp_path / "epochs.csv").write_text("\n".join([",".join(COLUMNS), *rows, ""]))
    attempt([0.0, 3.0]).to_csv(tmp_path / "phases.csv", index=False)
    chakra_steps.export(tmp_path, "a.r1", GRADIENT_BYTES, tmp_path / "step")
    (ranks,) = read_traces(python, [tmp_path / "step" / "a.r1"])
    check_traces(ranks, json.loads((tmp_path / "step" / f"a.r1.{GROUPS}").read_text()))
    # The backward pass of rank 0 is cut at ms 10, where its first all-reduce starts.
    names = [
        "data",
        "forward",
        "backward",
        "all-reduce 1",
        "backward",
        "all-reduce 2",
        "metrics",
        "optimizer",
    ]
    assert [node["name"] for node in ranks[0]] == names
    by_name = {node["name"]: node for node in ranks[0]}
    sums = [by_name[f"all-reduce {turn}"] for turn in (1, 2)]
    assert sum(node["comm_size"] for node in sums) == GRADIENT_BYTES
    assert by_name["metrics"]["data_deps"] == [node["id"] for node in sums]
    assert replay_recorded(ranks) == pytest.approx(20e9, abs=10)


def test_steps_of_kept_campaigns_last_as_recorded() -> None:
    errors = []
    for campaign in CAMPAIGNS:
        steps = read_table(campaign / "trace_steps.csv", "trace_steps")
        for _, rows in steps.groupby(["run_id", "epoch", "step"]):
            is_sum = rows["phase"] == COMMUNICATION
            phases = rows[~is_sum]
            graph = chakra_steps.build_graph(phases, rows[is_sum], GRADIENT_BYTES)
            ranks = [[{**node, **node["attributes"]} for node in nodes] for nodes in graph.to_json()]
            check_traces(ranks, {str(number): list(group) for group, number in graph.groups.items()})
            recorded_s = phases["end"].max() - phases["start"].min()
            errors.append(abs(replay_recorded(ranks) / 1e12 / recorded_s - 1))
    assert len(errors) == 75 and np.median(errors) < 0.005 and max(errors) < 0.07


def test_ranks_with_different_sums_are_refused() -> None:
    intervals = attempt([0.0, 0.0])
    traced = Traced(intervals, 1, 4)
    epoch, step = traced.typical_step()
    rows = intervals[(intervals["epoch"] == epoch) & (intervals["step"] == step)]
    sums: pd.DataFrame = rows[rows["phase"] == COMMUNICATION]
    with pytest.raises(InputError) as refused:
        chakra_steps.build_graph(rows[rows["phase"] != COMMUNICATION], sums.iloc[1:], GRADIENT_BYTES)
    assert (refused.value.code, refused.value.got) == ("not-possible-here", [1, 2])


def test_earlier_trace_stays_where_writing_fails(tmp_path: Path) -> None:
    earlier = tmp_path / "a.0.et"
    earlier.write_text("whole")
    with pytest.raises(InputError):
        chakra.write(chakra.Graph.empty(1), tmp_path, "a", {}, python="false")
    assert [file.name for file in tmp_path.iterdir()] == ["a.0.et"] and earlier.read_text() == "whole"
