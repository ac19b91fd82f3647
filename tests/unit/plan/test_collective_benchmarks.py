"""Which collective benchmarks a study has, and what changes their keys."""

from dataclasses import replace

import pytest

from common.normal_form import digest_source
from declared.site import load_site
from declared.study import load_study
from plan.collective_benchmarks import (
    benchmark_code_digest,
    message_sizes,
    planned_benchmarks,
    required_benchmarks,
)
from plan.design import plan_design


@pytest.fixture
def site():
    return replace(load_site("local"), cores=2)


@pytest.fixture
def study():
    return load_study("quickstart")


def named(benchmarks):
    return [benchmark.name for benchmark in benchmarks]


def test_each_framework_is_benchmarked_from_two_nodes_on(study, site):
    nodes = replace(study, factors=study.factors | {"nodes": [1, 2, 3]}, exclude=tuple(
        {**entry, "nodes": [2, 3]} if "nodes" in entry else entry for entry in study.exclude
    ))  # fmt: skip
    frameworks = ("horovod-pytorch", "horovod-tensorflow", "pytorch-ddp", "tensorflow-multiworker")
    runs = plan_design(nodes, replace(site, nodes=3))
    assert named(planned_benchmarks(runs, site)) == [f"{name}.n{n}" for name in frameworks for n in (2, 3)]


def test_what_one_framework_sends_is_benchmarked_by_all_that_can(study, site):
    frameworks = [
        "pytorch-fsdp",
        "horovod-pytorch",
        "tensorflow-multiworker",
        "pytorch-single",
        "tensorflow-single",
    ]
    runs = plan_design(replace(study, factors=study.factors | {"framework": frameworks}), site)
    assert named(planned_benchmarks(runs, site)) == [
        "horovod-pytorch.n2",
        "horovod-pytorch.n2.all_gather",
        "horovod-pytorch.n2.reduce_scatter",
        "pytorch-fsdp.n2",
        "pytorch-fsdp.n2.all_gather",
        "pytorch-fsdp.n2.reduce_scatter",
        "tensorflow-multiworker.n2",
        "tensorflow-multiworker.n2.all_gather",
    ]


@pytest.mark.parametrize(
    ("level", "sent"),
    [
        ("data", []),
        ("spatial", []),
        ("data2-tensor", []),
        ("pipeline2-tensor2", ["point_to_point"]),
        ("sharded4", ["all_gather", "reduce_scatter"]),
    ],
)
def test_the_axes_of_a_mesh_say_what_is_sent(study, site, level, sent):
    run = next(
        run
        for run in plan_design(study, site)
        if run.framework.name == "pytorch-ddp" and run.geometry.nodes == 2
    )
    meshed = replace(run, levels=run.levels | {"parallelism": level})
    assert [benchmark.collective for benchmark in required_benchmarks([meshed])] == ["all_reduce", *sent]
    by_position = replace(meshed, levels=meshed.levels | {"tensor_sharding": "sequence"})
    gathered = {"all_gather", "reduce_scatter"} if "tensor" in level else set()
    collectives = {benchmark.collective for benchmark in required_benchmarks([by_position])}
    assert collectives == {"all_reduce", *sent, *gathered}


def test_what_the_site_lacks_is_wanted_but_not_planned(study, site):
    poor = replace(site, frameworks=("pytorch-single", "pytorch-ddp"))
    runs = plan_design(study, poor)
    assert named(planned_benchmarks(runs, poor)) == ["pytorch-ddp.n2"]
    assert len(required_benchmarks(runs)) == 4


def test_sizes_grow_by_four_up_to_the_sites_largest():
    assert message_sizes(64 * 2**20) == [2**10, 2**12, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26]
    assert message_sizes(5000) == [1024, 4096]
    assert message_sizes(1024) == [1024]


@pytest.mark.parametrize(
    "change",
    [
        {"bandwidth_bytes_s": 1e9},
        {"collective_max_bytes": 4096},
        {"ranks_per_node": 2},
        {"python_abi": "cp399-linux_x86_64"},
    ],
)
def test_what_changes_the_measurement_changes_the_key(study, site, change):
    benchmark, changed_site = planned_benchmarks(plan_design(study, site), site)[0], replace(site, **change)
    (again,) = [
        candidate
        for candidate in planned_benchmarks(plan_design(study, changed_site), changed_site)
        if candidate.name == benchmark.name
    ]
    assert again.key(changed_site) != benchmark.key(site)


@pytest.mark.parametrize("file", ["ranks/collective_benchmark.py", "frameworks/pytorch-ddp/adapter.py"])
def test_the_key_follows_the_code_that_measures(study, site, monkeypatch, file):
    benchmark = next(
        candidate
        for candidate in planned_benchmarks(plan_design(study, site), site)
        if candidate.framework == "pytorch-ddp"
    )
    before = benchmark.key(site)
    monkeypatch.setattr(
        "common.normal_form.digest_source",
        lambda path, words, really=digest_source: (
            "changed" if str(path).endswith(file) else really(path, words)
        ),
    )
    benchmark_code_digest.cache_clear()
    try:
        assert benchmark.key(site) != before
    finally:
        benchmark_code_digest.cache_clear()
