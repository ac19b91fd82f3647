"""Tables of traces say of a made-up campaign what it was made of."""

import numpy as np
import pandas as pd
import pytest

from analysis import intervals
from analysis.cell_means import estimate_means
from analysis.intervals import Estimate
from analysis.records import timing_runs
from common.notes import codes, find_note
from common.schemas import schema
from common.tables import write_table
from declared.factors import factor_table
from network.fit import valid_repetitions as benchmarked
from support.benchmarked import benchmark_rows
from traces import bottlenecks, cells, cost, exposed, path, study
from traces.cells import STEP

DDP = "pytorch-ddp.small-cnn.digits.b32.n2.s1"
TRACED = f"{DDP}.trace=phases"
ALONE = "pytorch-ddp.small-cnn.digits.b32.n1.s1.trace=phases"


def row(data: pd.DataFrame, cell: str, **at: str) -> pd.Series:
    result = data[
        (data["cell"] == cell) & np.logical_and.reduce([data[k] == v for k, v in at.items()] or [True])
    ]
    assert len(result) == 1
    return result.iloc[0]


def test_phases_are_means_over_ranks_and_then_runs(built):
    """Rank 1 computes 1 ms longer in a step of 20 ms: 6.5 ms of backward on average.

    A replicate is 1 % slower than the one before.
    """
    data = cells.summarize(built.measured)
    backward = row(data, TRACED, scope="step", phase="backward")
    assert backward["share"] == pytest.approx(6.5 / 20, rel=1e-4)
    lengths = [6.5e-3 * (1 + 32 / 64) * (1 + 0.01 * replicate) for replicate in (1, 2, 3)]
    expected = intervals.mean(lengths)
    assert list(backward[["step_s", "step_s_low", "step_s_high"]]) == pytest.approx(
        [expected.value, expected.low, expected.high], rel=1e-4
    )
    assert backward["seconds"] == pytest.approx(12 * expected.value, rel=1e-4)
    steps = data[(data["cell"] == TRACED) & (data["scope"] == "step")]
    assert steps.loc[steps["phase"] != STEP, "share"].sum() == pytest.approx(1)
    assert row(data, TRACED, scope="communication", phase="exposed")["share"] == pytest.approx(
        (6 + 5) / 2 / 20, rel=1e-4
    )
    assert row(data, TRACED, scope="start", phase="import")["seconds"] == pytest.approx(
        2 * 1.5 * 1.02, rel=1e-4
    )


def test_only_runs_as_they_are_count(built):
    second = cells.select_traced(built.runs, built.phases.assign(key="0" * 12))
    assert cells.summarize(second).empty
    assert codes(cells.table(second).notes)[0] == "no-phases"


def test_the_path_of_a_cell_is_as_long_as_its_step(built):
    data = path.summarize(built.measured)
    group = row(data, TRACED)
    assert group["communication_share"] == pytest.approx(5 / 20, rel=1e-4)
    assert group["step_s"] == pytest.approx(20e-3 * 1.5 * 1.02, rel=1e-4)
    assert row(data, ALONE)["communication_share"] == 0


def test_what_tracing_costs_is_the_ratio_of_epoch_times(built):
    data = cost.build_rows(built.runs)
    assert len(data) == built.measured.runs["cell"].nunique()
    assert data["ratio"].to_numpy() == pytest.approx(1.01)
    group = row(data, TRACED)
    ratio = estimate_means(built.runs).ratios([TRACED], [DDP]).iloc[0]
    assert list(group[["ratio_low", "ratio_high", "p"]]) == pytest.approx(list(ratio[["low", "high", "p"]]))
    assert group["untraced_cell"] == DDP
    facts = find_note(cost.table(built.runs).notes, "tracing-costs").facts
    assert facts == {"cells": 19, "unknown": 0, "shown": 0, "more": 0, "unsure": 19}
    assert cost.table(timing_runs(built.runs)).display.empty


def one_replicate(built):
    runs = built.runs[built.runs["replicate"] == 1]
    return runs, built.phases[built.phases["run_id"].isin(runs["run_id"])]


def test_a_study_whose_traced_runs_failed_is_not_told_to_trace(built):
    runs = built.runs.copy()
    runs.loc[runs["trace"] != "none", ["status", "epoch_time_s"]] = ["failed", None]
    assert codes(cost.table(runs).notes)[0] == "not-measured"
    assert codes(cost.table(timing_runs(runs)).notes)[0] == "not-planned"


def test_start_up_is_listed_in_the_order_of_time(built):
    data = cells.summarize(built.measured).query("cell == @TRACED")
    names = {scope: rows["phase"].tolist() for scope, rows in data.groupby("scope")}
    assert names["start"] == ["interpreter", "rendezvous", "import", "build", "barrier"]
    assert names["epoch"] == ["barrier", "validation", "between"]
    assert names["step"] == ["data", "forward", "backward", "wait", "metrics", "optimizer", STEP]


@pytest.mark.parametrize("table", [cells.table, path.table], ids=["phases", "critical path"])
def test_a_table_names_the_traced_runs_that_it_lacks(built, table):
    runs = built.runs.copy()
    failed = runs.index[runs["trace"] != "none"][0]
    runs.loc[failed, ["status", "epoch_time_s"]] = ["failed", None]
    measured = cells.select_traced(runs, built.phases)
    assert f"{runs.at[failed, 'run_id']} (failed)" in measured.missing_note
    assert measured.missing_note in table(measured).notes


def reported(built, share: float) -> pd.DataFrame:
    """The campaign whose untraced times say so: T(2) is half of T(1)'s computing, over what the all-reduce
    leaves.
    """
    runs = built.runs.copy()
    single, double = (
        runs["cell"].str.startswith(f"pytorch-ddp.small-cnn.digits.b32.n{n}.s1") for n in (1, 2)
    )
    noise = 1 + 0.001 * runs["replicate"]
    runs.loc[single, "epoch_time_s"] = noise
    runs.loc[double, "epoch_time_s"] = noise * 1 / (1 - share)
    runs["steps"] = 12
    return runs


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.275, exposed.AGREE), (0.3, exposed.SLOWER), (0.6, exposed.OPEN)],
    ids=["agrees", "computing is slower", "not explained"],
)
def test_the_exposed_share_is_held_against_times(built, share, verdict):
    """5.5 of 20 ms are exposed, and 0.5 ms of computing is slower than on one rank."""
    data = exposed.summarize(built.measured, reported(built, share))
    group = row(data, TRACED)
    assert group["exposed"] == pytest.approx(0.275, rel=1e-4)
    assert group["slower"] == pytest.approx(0.025, rel=1e-3)
    assert group["by_times"] == pytest.approx(share, rel=1e-3)
    assert group["verdict"] == verdict
    assert set(data["cell"].str.extract(r"\.n(\d)")[0]) == {"2"}


@pytest.mark.parametrize(
    "left", ["replicate == 1", "nodes == 2"], ids=["one replicate", "no cell on one device"]
)
def test_what_nothing_is_known_of_is_not_to_be_told(built, left):
    runs = reported(built, 0.6)
    campaigns = runs[(runs["trace"] == "none") | runs.index.isin(runs.query(left).index)]
    measured = cells.select_traced(campaigns, built.phases[built.phases["run_id"].isin(campaigns["run_id"])])
    data = exposed.summarize(measured, campaigns)
    assert row(data, TRACED)["verdict"] == exposed.UNKNOWN
    counts = find_note(exposed.table(measured, campaigns).notes, "verdicts").facts["cells"]
    assert counts == data["verdict"].value_counts().to_dict() and counts[exposed.UNKNOWN] > 0


def test_a_reason_is_that_tracing_changes_the_epoch():
    seen, none, ratio = (
        Estimate(0.3, 0.29, 0.31),
        Estimate(0.0, 0.0, 0.0),
        pd.Series({"ratio_low": 1.1, "ratio_high": 1.2}),
    )
    assert exposed.verdict(seen, none, seen, Estimate(0.1, 0.09, 0.11), ratio) == exposed.COST
    assert exposed.verdict(seen, none, seen, Estimate(0.05, 0.04, 0.06), ratio) == exposed.OPEN, (
        "more than it costs"
    )
    assert exposed.verdict(seen, none, seen, Estimate(float("nan")), ratio) == exposed.UNKNOWN
    assert (
        exposed.verdict(seen, Estimate(-0.2, -0.21, -0.19), Estimate(0.1, 0.08, 0.12), Estimate(0.1), None)
        == exposed.FASTER
    )


LEVELS = {name: rules.get("default") for name, rules in factor_table().items()}


def known_cell(framework: str = "pytorch-ddp", **seconds: float) -> bottlenecks.Cell:
    """A cell of 100 steps on two equal ranks, a step of 1 s that computes for 0.9 s unless something else is
    said.
    """
    parts = {"data": 0.0, "forward": 30.0, "backward": 60.0, "wait": 10.0} | seconds
    parts[STEP] = sum(parts[name] for name in ("data", "forward", "backward", "wait"))
    parts = {
        "communication": 0.0,
        "moving": 0.0,
        "exposed": 0.0,
        "exposed_moving": 0.0,
        "exposed_waiting": 0.0,
    } | parts
    runs = pd.DataFrame([parts, parts], index=["a", "b"]).drop(
        columns=["slow", "alone", "latency", "other", "count", "every", "least"], errors="ignore"
    )
    busy = parts[STEP] - parts["wait"]
    computing = pd.Series({0: busy, 1: busy + seconds.get("slow", 0.0)})
    rest = {"other": seconds["other"]} if "other" in seconds else {}
    nan = float("nan")
    by_benchmark = seconds.get("latency", nan), rest
    mean = parts["exposed_waiting"]
    least = seconds.get("least", mean)
    return bottlenecks.Cell(
        runs,
        computing,
        seconds.get("alone", nan),
        seconds.get("count", 1.0),
        *by_benchmark,
        100,
        seconds.get("every", 1.0),
        pd.Series({0: 2 * mean - least, 1: least}),
        {**LEVELS, "framework": framework, "n_devices": 2},
    )


# Three quarters of an all-reduce are hidden behind backward.
HIDDEN = {"wait": 20.0, "communication": 75.0, "moving": 75.0, "exposed": 20.0, "exposed_moving": 20.0}


@pytest.mark.parametrize(
    ("seconds", "limits"),
    [
        ({}, {"computation": 90}),
        ({"data": 20.0}, {"computation": 90, "input": 20}),
        (
            {
                "wait": 200.0,
                "communication": 200.0,
                "moving": 200.0,
                "exposed": 200.0,
                "exposed_moving": 200.0,
            },
            {
                "communication longer than computation": 200,
                "frequent all-reduces": 150,
                "communication after computation, not overlapped": 60,
            },
        ),
        # As much is hidden as backward can hide.
        (HIDDEN, {"computation": 90, "frequent all-reduces": 15}),
        (
            HIDDEN | {"other": 40.0, "count": 2.0},
            {"computation": 90, "slow all-reduce": 20, "frequent all-reduces": 15},
        ),
        (HIDDEN | {"other": 60.0, "count": 2.0}, {"computation": 90, "frequent all-reduces": 15}),
        # Of one all-reduce that begins with backward, as some libraries tell it, only what is exposed surely
        # moves.
        (HIDDEN | {"other": 40.0}, {"computation": 90, "frequent all-reduces": 15}),
        # Who accumulates eight batches is not told to accumulate four.
        (HIDDEN | {"every": 8.0}, {"computation": 90}),
        # Ten messages of 75 ms each, of which the smallest takes 50.
        (
            HIDDEN | {"count": 10.0, "latency": 0.05},
            {"computation": 90, "many small messages": 20, "frequent all-reduces": 15},
        ),
        (HIDDEN | {"count": 10.0, "latency": 0.03}, {"computation": 90, "frequent all-reduces": 15}),
        (
            # The one that waits does so for 40 s, but only 25 are the other's computing.
            {"wait": 20.0, "exposed": 20.0, "exposed_waiting": 20.0, "slow": 25.0},
            {"computation": 90, "a slower rank": 25},
        ),
        (
            {"wait": 20.0, "exposed": 20.0, "exposed_waiting": 20.0, "slow": 15.0},
            {"computation": 90, "ranks wait for each other in turn": 20},
        ),
        (
            {"wait": 20.0, "exposed": 20.0, "exposed_waiting": 20.0, "slow": 50.0},
            {"computation": 90, "a slower rank": 40},  # a mean over two ranks, of which one waits
        ),
        # A rank that computes no longer is always the last to start: nobody knows why.
        (
            {"wait": 20.0, "exposed": 20.0, "exposed_waiting": 20.0, "slow": 5.0, "least": 5.0},
            {"computation": 90},
        ),
        # Ten messages that move for 8 s of latency each; fused, one of them still does.
        (
            HIDDEN | {"count": 10.0, "latency": 0.6, "exposed_moving": 75.0},
            {"computation": 90, "frequent all-reduces": 56.25, "many small messages": 15},
        ),
        # Where nobody tells the all-reduce, computing may be waiting.
        ({"count": 0.0, "alone": 70.0}, {}),
        (
            {"wait": 20.0, "exposed": 20.0, "exposed_waiting": 20.0, "slow": 5.0},
            {"computation": 90, "ranks wait for each other in turn": 20},
        ),
        ({"alone": 70.0}, {"computation": 90, "computation slower than on one rank": 20}),
        ({"alone": 89.0}, {"computation": 90}),
    ],
)
def test_rules_find_what_a_cell_was_made_of(seconds, limits):
    result = {rule.limit: size.value for rule, size in bottlenecks.applicable_rules(known_cell(**seconds))}
    assert result == pytest.approx(limits)
    assert list(result.values()) == sorted(result.values(), reverse=True)


@pytest.mark.parametrize(
    ("limit", "framework", "words"),
    [
        ("computation", "pytorch-ddp", "more ranks"),
        ("computation", "pytorch-single", "a framework that trains on several ranks"),
        ("frequent all-reduces", "pytorch-ddp", "4 accumulated batches"),
        ("frequent all-reduces", "lbann", "4 times as large"),
        ("communication after computation, not overlapped", "pytorch-ddp", "buckets"),
        ("communication after computation, not overlapped", "horovod-pytorch", "HOROVOD_CYCLE_TIME"),
        ("communication after computation, not overlapped", "tensorflow-multiworker", "a framework that"),
        ("many small messages", "pytorch-ddp", "bucket_cap_mb"),
        ("many small messages", "gone", "or a framework"),
        ("a slower rank", "pytorch-hybrid", "shares: measured"),
        ("a slower rank", "gone", "which pytorch-hybrid can give"),
        ("slow all-reduce", "other", "cores for the threads of this one"),
        ("slow all-reduce", "pytorch-ddp", "the all-reduce of other"),
    ],
)
def test_what_would_help_is_possible_with_the_framework(limit: str, framework: str, words: str) -> None:
    assert words in rule_of(limit).help(known_cell(framework, other=40.0))


def rule_of(limit: str) -> bottlenecks.Rule:
    return next(rule for rule in bottlenecks.RULES if rule.limit == limit)


def test_parameters_gathered_before_backward_forbid_accumulation() -> None:
    fsdp = {"framework": "pytorch-fsdp", "count": 6.0}
    assert not known_cell(**fsdp, until_first=1.0).accumulates
    assert known_cell(**fsdp, until_first=31.0).accumulates


def test_no_limit_is_larger_than_the_steps(built):
    data = bottlenecks.summarize(built.measured, pd.DataFrame(columns=list(schema("network")["properties"])))
    assert (data["share"] <= 1).all()
    late = known_cell(wait=20.0, exposed=20.0, exposed_waiting=100.0, slow=500.0)
    assert {rule.limit: size.value for rule, size in bottlenecks.applicable_rules(late)}[
        "a slower rank"
    ] == 110


def test_computing_on_one_rank_is_that_of_as_many_steps(built):
    """One rank has twice as many steps in an epoch, of equal batches."""
    runs, phases = built.runs.copy(), built.phases.copy()
    group = runs["cell"] == ALONE
    runs.loc[group, "steps"] *= 2
    phases.loc[phases["run_id"].isin(runs.loc[group, "run_id"]), "seconds"] *= 2
    described = bottlenecks.describe_cells(
        cells.select_traced(runs, phases), pd.DataFrame(columns=list(schema("network")["properties"]))
    )
    assert described[ALONE].steps == 2 * described[TRACED].steps
    assert described[TRACED].alone_s == pytest.approx(14e-3 * 1.5 * 1.02 * described[TRACED].steps, rel=1e-3)


def test_the_benchmark_tells_latency_and_other_libraries(built):
    """A library whose all-reduce of any size takes 1 ms, and another's of 5 ms."""
    network = pd.concat(
        [
            benchmark_rows(lambda _, seconds=seconds: [seconds], (4, 2**20, 2**24), 3, framework=framework)
            for framework, seconds in (("pytorch-ddp", 5e-3), ("horovod-pytorch", 1e-3))
        ]
    )
    assert len(benchmarked(network)) == 18
    group = bottlenecks.describe_cells(built.measured, network)[TRACED]
    assert group.latency_s == pytest.approx(5e-3)
    assert group.best == ("horovod-pytorch", pytest.approx(2 * 12 * 1e-3))
    limits = bottlenecks.summarize(built.measured, network).query("cell == @TRACED").set_index("limit")
    assert "2.00 ms in the library of horovod-pytorch" in limits.at["slow all-reduce", "evidence"]
    assert {"slow all-reduce", "many small messages"} <= set(limits.index)


def test_all_tables_are_written_with_rows_in_three_forms(built, tmp_path):
    study.main(runs=built.folder / "runs.csv", phases=built.folder / "phases.csv", out=tmp_path)
    for name in ("phases", "bottlenecks", "critical_path", "exposed", "tracing"):
        assert {file.suffix for file in tmp_path.glob(f"{name}.*")} == {".csv", ".md", ".tex"}
        assert len(pd.read_csv(tmp_path / f"{name}.csv")) >= 8


def test_without_phases_every_table_says_so(built, tmp_path):
    write_table(built.phases[:0], "phases", tmp_path / "phases.csv")
    study.main(runs=built.folder / "runs.csv", phases=tmp_path / "phases.csv", out=tmp_path)
    for name in ("phases", "bottlenecks", "critical_path"):
        assert f"{cells.NO_PHASES.capitalize()}." in (tmp_path / f"{name}.md").read_text()
    assert exposed.NO_COMMUNICATION in (tmp_path / "exposed.md").read_text()


def test_a_trace_that_costs_shows_it(built):
    slow = built.runs.copy()
    slow.loc[slow["trace"] != "none", "epoch_time_s"] *= 1.2
    facts = find_note(cost.table(slow).notes, "tracing-costs").facts
    assert facts == {"cells": 19, "unknown": 0, "shown": 19, "more": 19, "unsure": 0}


def test_notes_name_runs_that_do_not_add_up(built):
    bad = built.phases.copy()
    first = bad["run_id"].iloc[0]
    bad.loc[bad["run_id"] == first, "off_share"] = 0.02
    notes = cells.table(cells.select_traced(built.runs, bad)).notes
    assert find_note(notes, "phases-off").facts == {"runs": [first], "most": 0.01}
