"""Traced trainings: phases are complete, weights unchanged, and a library's own profiler agrees."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from runs.phases import damage_reason, merge_phases
from support.trainings import (
    REPLICAS,
    SAME_WEIGHTS,
    Trainings,
    able,
    assert_alike,
    epochs,
    framework_params,
    of_64,
)

SYNC_EVERY = 5
TRACED = able(SAME_WEIGHTS, trace="phases")
ALLREDUCING = [5, 10, 15, 20, 24]  # of 24 steps in groups of 5
WATCHED = range(1, 1 + SYNC_EVERY)
FEW_MS = 2e-3  # what the loop itself does between two stamps, on a busy machine
LATE_S = 5e-4  # by which two clocks of one event may differ


def traced(trainings: Trainings, framework: str, trace: str = "phases") -> tuple[Path, pd.DataFrame]:
    folder = trainings.train(framework, **of_64(framework), sync_every=SYNC_EVERY, trace=trace)
    merge_phases(folder)  # the first time
    return folder, pd.read_csv(folder / "phases.csv")


@pytest.mark.parametrize("framework", framework_params(TRACED))
def test_the_phases_of_a_step_add_up_to_its_time(trainings: Trainings, framework: str) -> None:
    folder, phases = traced(trainings, framework)
    assert damage_reason(folder, phases["rank"].nunique(), epochs=1, steps=ALLREDUCING[-1]) is None
    own = phases[(phases["step"] > 0) & (phases["phase"] != "communication")].assign(
        took=lambda p: p["end"] - p["start"]
    )
    for (rank, step), parts in own.groupby(["rank", "step"]):
        gaps = parts["start"].to_numpy()[1:] - parts["end"].to_numpy()[:-1]
        assert np.abs(gaps).max() < 1e-6, f"rank {rank}, step {step}: each begins where the one before ends"
        assert {"data", "forward", "backward", "metrics"} <= set(parts["phase"])
    sums = own.groupby(["rank", "step"])["took"].sum()
    times = pd.read_csv(folder / "steps.csv").set_index(["rank", "step"])["step_time_s"].reindex(sums.index)
    off = (sums - times).abs() - 0.01 * times
    within = off[
        sums.index.get_level_values("step") < ALLREDUCING[-1]
    ]  # the last one ends when the epoch's losses are read
    assert (within < FEW_MS).mean() > 0.95, within.sort_values().tail()
    assert sums.groupby("rank").sum().max() == pytest.approx(
        float(epochs(folder)[0]["epoch_time_s"]), rel=0.01, abs=FEW_MS
    )


@pytest.mark.parametrize("framework", framework_params(name for name in TRACED if name in REPLICAS))
def test_allreduces_follow_gradients_and_the_rank_waits_for_all(trainings: Trainings, framework: str) -> None:
    _, phases = traced(trainings, framework)
    sharded = framework in (
        "pytorch-fsdp",
        "pytorch-mesh",
    )  # which gathers parameters, too, in every forward pass
    allreduces = phases[(phases["phase"] == "communication") & (phases["step"] > 0)]
    if not sharded:
        assert sorted(allreduces["step"].unique()) == ALLREDUCING
    assert len(set(allreduces.groupby(["rank", "step"]).size().unstack("step").nunique())) == 1, (
        "as many on all ranks"
    )
    for (rank, step), allreduces_of_step in allreduces[allreduces["step"].isin(ALLREDUCING)].groupby(
        ["rank", "step"]
    ):
        parts = phases[(phases["rank"] == rank) & (phases["step"] == step)].groupby("phase")
        earliest = parts.get_group("forward" if sharded else "backward")["start"].min()
        assert allreduces_of_step["start"].min() >= earliest
        waits, last = parts.get_group("wait"), allreduces_of_step["end"].max()
        assert ((waits["start"] <= last) & (last <= waits["end"] + 1e-4)).any(), f"rank {rank}, step {step}"


@pytest.mark.parametrize("framework", framework_params(TRACED))
def test_to_be_traced_changes_no_weight(trainings: Trainings, framework: str) -> None:
    folder, _ = traced(trainings, framework)
    assert_alike(folder, trainings.train(framework, **of_64(framework), sync_every=SYNC_EVERY), 1e-6)


def test_the_clocks_of_one_machine_are_found_to_be_the_same(trainings: Trainings) -> None:
    folder, _ = traced(trainings, "pytorch-ddp")
    clocks = pd.read_csv(folder / "clocks.csv")
    assert list(clocks["rank"]) == [0, 1, 0, 1] and (clocks["offset_s"].abs() <= clocks["error_s"]).all()
    assert 0 < clocks["error_s"].max() < 0.01


OPERATORS = {  # of the forward pass; XLA names what it has fused, here a relu
    "pytorch": "aten::conv2d",
    "deepspeed": "aten::conv2d",
    "tensorflow": "_FusedConv2D",
    "jax": "broadcast_maximum_fusion",
}


@pytest.mark.parametrize("framework", framework_params(TRACED, ("pytorch-ddp", "horovod-tensorflow")))
def test_operators_lie_below_the_phases_that_they_belong_to(trainings: Trainings, framework: str) -> None:
    folder, phases = traced(trainings, framework, trace="full")
    for rank, own in phases.groupby("rank"):
        events = json.loads((folder / f"operators-{rank}.json").read_text())["traceEvents"]
        (name,) = (name for library, name in OPERATORS.items() if library in framework)
        begun = [event["ts"] / 1e6 for event in events if event["ph"] == "X" and event["name"].endswith(name)]
        forward = own[(own["phase"] == "forward") & own["step"].isin(WATCHED)]
        inside = [
            forward["step"][(forward["start"] - LATE_S <= at) & (at <= forward["end"] + LATE_S)].to_list()
            for at in begun
        ]
        if framework != "tensorflow-mirrored":  # whose other replica has operators, too, but no phases
            assert all(len(steps) == 1 for steps in inside), (begun, forward)
        assert {step for steps in inside for step in steps} == set(WATCHED)


@pytest.mark.parametrize(
    "framework",
    framework_params((name for name in TRACED if name.startswith("horovod")), ("horovod-tensorflow",)),
)
def test_horovods_timeline_agrees_with_our_allreduces(trainings: Trainings, framework: str) -> None:
    folder, phases = traced(trainings, framework, trace="full")
    events = json.loads((folder / "operators-0.json").read_text())["traceEvents"]
    reduced = [
        (event["ts"] / 1e6, event["dur"] / 1e6) for event in events if event.get("name") == "ALLREDUCE"
    ]
    own_allreduces = phases[
        (phases["rank"] == 0) & (phases["phase"] == "communication") & (phases["step"] == SYNC_EVERY)
    ]
    assert len(reduced) == 8, "every tensor, in the one of these steps that all-reduces"
    for begin, took in reduced:
        assert (
            own_allreduces["start"].min() - LATE_S <= begin
            and begin + took <= own_allreduces["end"].max() + LATE_S
        )
