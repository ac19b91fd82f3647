"""Collective benchmarks of real ranks on loopback; a benchmark that fails is recorded."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.tables import read_table
from declared.frameworks import load_framework
from declared.site import load_site
from declared.study import load_study
from launchers.protocol import Outcome
from models.collectives import ALL_REDUCE, COLLECTIVES
from network import gather
from network import measure as measuring
from network.measure import KIND
from plan import cost
from plan import design as designing
from plan.campaign import load_campaign
from plan.collective_benchmarks import planned_benchmarks
from plan.design import plan_design
from ranks import collective_benchmark as rank_program
from runs import other_measurements
from support.installed_site import busy_site
from support.trainings import DISTRIBUTED

# A framework without a library: sums by our own group of ranks.
ADAPTER = """
import os, time
import numpy as np
from ranks.worker.collectives import Collectives

def environment(context):
    return {}

class Grouped(Collectives):
    transport = "group"

    def __init__(self, context):
        self.context = context

    def load(self, values):
        self.values = values

    def do(self, collective):
        #
        gathered = np.array(self.context.group.all_gather(self.values.tolist()), np.float32)
        self.values = np.sum(gathered, axis=0) if collective == "all_reduce" else np.concatenate(gathered)

    def result(self):
        return self.values

def collectives(context):
    return Grouped(context)
"""


@pytest.fixture
def study():
    return load_study("quickstart")


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGSIDE_LOCK", str(tmp_path / "machine.lock"))
    return busy_site(collective_max_bytes=65536, time_limit_s=120)


def benchmark_of(framework, study, site):
    factors = {**study.factors, "framework": [framework], "nodes": [2], "sync_every": [1]}
    every = planned_benchmarks(plan_design(replace(study, factors=factors, exclude=()), site), site)
    return next(benchmark for benchmark in every if benchmark.collective == ALL_REDUCE)


def run_benchmark(framework, study, site, folder):
    benchmark = benchmark_of(framework, study, site)
    return KIND.reuse_or_measure(study, site, benchmark, folder)


@pytest.mark.parametrize(
    "framework",
    [
        pytest.param(name, marks=[pytest.mark.every_framework] * (name in ("pytorch-fsdp", "deepspeed")))
        for name in DISTRIBUTED
    ],
)
def test_every_framework_benchmarks_its_own_library(framework, study, site, tmp_path, real):
    real(load_framework(framework).environment)
    record = run_benchmark(framework, study, site, tmp_path)
    assert (record["status"], record["reason"]) == ("ok", None)
    transport = "ring over grpc" if framework == "tensorflow-multiworker" else "gloo"
    assert record["transport"] == f"{transport} over tcp lo"
    assert [size["bytes"] for size in record["sizes"]] == [1024, 4096, 16384, 65536]
    for size in record["sizes"]:
        assert len(size["rounds"]) == rank_program.N_ROUNDS
        assert len({len(times) for times in size["rounds"]}) == 1, "every round has as many repetitions"
        assert all(0 < seconds < 5 for times in size["rounds"] for seconds in times)
    # Each of two ranks sends at least n bytes per all-reduce, and loopback counts both.
    timed = sum(size["bytes"] * sum(map(len, size["rounds"])) for size in record["sizes"])
    assert record["sent_bytes"] > timed
    assert record["ranks"] == 2 and record["placement"] == "emulated" and record["interface"] == "lo"


COLLECTIVES_OF_FRAMEWORKS = [
    (framework, collective)
    for framework in (
        "pytorch-ddp",
        "deepspeed",
        "horovod-pytorch",
        "horovod-tensorflow",
        "jax",
        "tensorflow-multiworker",
    )
    for collective in load_framework(framework).collectives[1:]
]


@pytest.mark.parametrize(
    ("framework", "collective"),
    [
        pytest.param(name, collective, marks=[pytest.mark.every_framework] * (name != "pytorch-ddp"))
        for name, collective in COLLECTIVES_OF_FRAMEWORKS
    ],
)
def test_every_collective_returns_the_right_values(framework, collective, study, site, tmp_path, real):
    real(load_framework(framework).environment)
    benchmark = replace(benchmark_of(framework, study, site), collective=collective)
    record = KIND.reuse_or_measure(
        study, replace(site, collective_max_bytes=1024), benchmark, tmp_path
    )  # ranks check results
    assert (record["status"], record["reason"], record["collective"]) == ("ok", None, collective)
    sent = COLLECTIVES[collective].sent(2) * 2 * 1024 * sum(map(len, record["sizes"][0]["rounds"]))
    assert record["sent_bytes"] > sent, "by both ranks, on loopback"


@pytest.fixture
def fake(tmp_path, monkeypatch, site):
    """Return a function that fakes a framework by an adapter with one changed line."""
    monkeypatch.setattr(
        other_measurements,
        "read_built",
        lambda stamp: {"python": {"executable": sys.executable}, "variables": {}},
    )

    def install(old="", new=""):
        folder = tmp_path / "framework"
        folder.mkdir()
        assert old in ADAPTER
        (folder / "adapter.py").write_text(ADAPTER.replace(old, new, 1) if old else ADAPTER)
        described = replace(load_framework("pytorch-ddp"), file=folder / "framework.yaml", modules=("numpy",))
        monkeypatch.setattr(
            designing,
            "load_framework",
            lambda name: described if name == described.name else load_framework(name),
        )
        return replace(site, collective_max_bytes=4096)

    return install


def test_a_benchmark_by_a_framework_that_works(fake, study, tmp_path):
    record = run_benchmark("pytorch-ddp", study, fake(), tmp_path)
    assert (record["status"], record["transport"]) == ("ok", "group over tcp lo")
    assert record["library_version"].startswith("numpy ")


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("#", "self.values[5] += self.context.rank", ["all_reduce", "1024 bytes", "1 of 256"]),
        ("#", "raise OSError('no such device')", ["status 1", "OSError: no such device"]),
        ("def collectives(", "def other(", ["AttributeError", "'adapter'", "'collectives'"]),
        ("#", "self.context.rank and os._exit(7)", ["rank 1", "status 7"]),
    ],
)
def test_a_failing_benchmark_is_data(fake, study, tmp_path, old, new, named):
    record = run_benchmark("pytorch-ddp", study, fake(old, new), tmp_path)
    assert record["status"] == "failed" and all(name in record["reason"] for name in named), record["reason"]
    assert record["sizes"] == [] and record["transport"] is None


def test_a_benchmark_that_hangs_is_ended(fake, study, tmp_path):
    site = replace(fake("#", "time.sleep(60)"), time_limit_s=3)
    record = run_benchmark("pytorch-ddp", study, site, tmp_path)
    assert record["status"] == "timeout" and "3 s" in record["reason"]
    assert record["wall_s"] < 30


def test_a_disturbed_benchmark_is_invalid(fake, study, tmp_path):
    record = run_benchmark("pytorch-ddp", study, replace(fake(), max_other_cpu_share=-1), tmp_path)
    assert record["status"] == "invalid" and record["reason"].startswith("disturbed: ")


def test_only_a_failed_attempt_is_repeated(fake, study, tmp_path):
    site = fake("#", "raise OSError('once')")
    benchmark = benchmark_of("pytorch-ddp", study, site)
    out = benchmark.final_record_path(tmp_path, site)
    assert KIND.reuse_or_measure(study, site, benchmark, tmp_path)["status"] == "failed"
    (tmp_path / "framework" / "adapter.py").write_text(ADAPTER)
    out.unlink()
    assert KIND.reuse_or_measure(study, site, benchmark, tmp_path)["attempt"] == 2
    before = KIND.read(out)
    out.unlink()
    assert KIND.reuse_or_measure(study, site, benchmark, tmp_path) == before
    assert sorted(path.name for path in out.parent.glob("attempt-*")) == ["attempt-1", "attempt-2"]


# Minimum traffic that leaves one of two nodes with two ranks each, for messages of 8 MB in total.
LEAVES_MB = {"all_reduce": 8, "all_gather": 4, "reduce_scatter": 4, "all_to_all": 8, "point_to_point": 8}


@pytest.mark.parametrize(("collective", "least"), LEAVES_MB.items())
def test_benchmark_over_another_interface_is_invalid(collective, least, study, site):
    cluster = replace(load_site("virtual"), placement="distinct-nodes", cpu_share=None, max_other_cpu_share=1)
    benchmark_spec = {**benchmark_of("pytorch-ddp", study, site).spec(site), "interface": "eth0"}
    benchmark_spec |= {"collective": collective, "ranks": 4, "ranks_per_node": 2}
    ended = Outcome("ok", None, 1.0)

    def judged(megabytes):
        ranks = [
            {"host": f"node{n}", "machine": f"{n}", "sent_bytes": round(megabytes * 1e6)}
            for n in (1, 1, 2, 2)
        ]
        result = {"ranks": ranks, "other_cpu_share": 0.0, "message_bytes": 8_000_000}
        hosts, log = ["node1", "node2"], Path("log.txt")
        return measuring.judge_benchmark(
            ended, result, "gloo over tcp eth0", benchmark_spec, cluster, hosts, log
        )

    assert judged(0.51 * least) == ("ok", None)
    status, reason = judged(0.49 * least)
    assert status == "invalid"
    assert reason.startswith("network: ") and cluster.interface in reason
    assert re.findall(r"[\d.]+ MB", reason) == [f"{0.49 * least:.1f} MB", f"{least}.0 MB"]


def test_sizes_that_take_too_long_are_left_out(fake, study, tmp_path):
    site = fake("#", "time.sleep(len(self.values) / 256 * 0.8)")  # 0.8 s for 1 KiB, 3.2 s for 4 KiB
    record = run_benchmark("pytorch-ddp", study, replace(site, collective_max_bytes=16384), tmp_path)
    assert [size["bytes"] for size in record["sizes"]] == [1024]


def test_benchmarks_are_gathered_whether_or_not_they_succeeded(fake, study, tmp_path, monkeypatch):
    site = fake()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("plan.campaign.load_site", lambda name: site)
    campaign = load_campaign({"study": "quickstart", "site": "local", "records": "available"})
    benchmark = benchmark_of("pytorch-ddp", study, site)
    KIND.reuse_or_measure(study, site, benchmark, campaign.results)
    old = campaign.results / "network" / "horovod-pytorch.n2" / "000000000000" / "collective_benchmark.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    gather.main(study="quickstart", site="local", out=Path("network.csv"))
    rows = read_table(tmp_path / "network.csv", "network")
    ok = rows[rows["status"] == "ok"]
    assert set(ok["framework"]) == {"pytorch-ddp"} and sorted(set(ok["bytes"])) == [1024, 4096]
    assert ok.groupby(["bytes", "round"])["repetition"].max().min() >= 1
    first = ok.iloc[0]
    assert first["bus_bandwidth_bytes_s"] == pytest.approx(first["bytes"] / first["seconds"])
    reasons = dict(zip(rows["framework"], rows["reason"], strict=True))
    assert reasons["horovod-pytorch"].startswith("old: ")
    assert reasons["tensorflow-multiworker"].startswith("absent: ")


def expected_results(collective, arrays):
    """Return the result of a collective on each rank, computed with numpy from the arrays of all ranks."""
    n, total = len(arrays), np.sum(arrays, axis=0, dtype=np.float32)
    return {
        "all_reduce": [total] * n,
        "all_gather": [np.concatenate(arrays)] * n,
        "reduce_scatter": np.split(total, n) if len(total) % n == 0 else [],
        "all_to_all": [
            np.concatenate(parts)
            for parts in zip(*(np.array_split(array, n) for array in arrays), strict=True)
        ],
        "point_to_point": [arrays[rank - 1] for rank in range(n)],
    }[collective]


@pytest.mark.parametrize("ranks", [2, 3, 7, 64])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_ranks_expect_the_result_of_the_collective(collective, ranks):
    elements = rank_program.elements_of(collective, 4096, ranks)
    assert 1024 <= elements < 1024 + ranks
    results = expected_results(
        collective, [rank_program.loaded(collective, elements, rank, ranks) for rank in range(ranks)]
    )
    for rank, result in enumerate(results):
        rank_program.check(result, collective, elements, rank, ranks)
        corrupted = [result - 1, result[::-1]]
        if collective in ("reduce_scatter", "all_to_all", "point_to_point"):
            corrupted.append(results[rank - 1])  # the result of another rank
        if collective in ("all_gather", "all_to_all"):
            corrupted.append(np.roll(result, elements // ranks))  # shares in another order
        for values in corrupted:
            with pytest.raises(ArithmeticError) as refused:
                rank_program.check(values, collective, elements, rank, ranks)
            named = (
                collective,
                f"{4 * elements} bytes",
                f"{np.count_nonzero(values != result)} of {len(values)}",
                f"rank {rank}:",
            )
            assert all(name in str(refused.value) for name in named), refused.value
    with pytest.raises(ArithmeticError) as refused:
        rank_program.check(results[1][1:], collective, elements, 1, ranks)
    assert "rank 1" in str(refused.value) and str(results[1][1:].shape) in str(refused.value)


def test_small_messages_are_repeated_more_often():
    assert rank_program.repetitions(1e-4) == rank_program.MAX_REPETITIONS
    assert rank_program.repetitions(0.7) == 1
    assert (
        rank_program.N_ROUNDS * rank_program.repetitions(0.1) * 0.1
        <= rank_program.SIZE_BUDGET_S
        == cost.SIZE_BUDGET_S
    )
