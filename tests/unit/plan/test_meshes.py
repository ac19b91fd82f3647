"""Meshes in a design: geometry of cells, specifications, duplicates, and infeasible cells."""

from dataclasses import replace

import pytest

from common.errors import InputError
from declared.site import Site, load_site
from declared.study import load_study
from models.mesh import Mesh
from plan.design import Run, plan_design
from plan.geometry import INFEASIBLE_FOR_FRAMEWORK
from plan.identity import run_spec
from support.changed_study import changed_study

GPT: dict[str, list[object]] = {
    "model": ["gpt-nano"], "dataset": ["synthetic-tokens-32-16-3840"], "parallelism": ["tensor2"], "nodes": [2],
}  # fmt: skip


@pytest.fixture
def site() -> Site:
    return replace(load_site("local"), cores=4, nodes=8, ranks_per_node=1)


def runs_of(site: Site, **factors: list[object]) -> list[Run]:
    levels: dict[str, list[object]] = {
        "framework": ["pytorch-mesh"],
        "nodes": [4],
        "batch_size": [96],
        "shares": ["equal"],
    }
    return plan_design(changed_study("hybrid-virtual", levels, factors), site)


def test_ranks_of_a_replica_share_samples_and_plain_specs_stay(site: Site) -> None:
    tokens: dict[str, list[object]] = {
        "model": ["gpt-nano"],
        "dataset": ["synthetic-tokens-32-16-3840"],
        "microbatches": [4],
    }
    plain, mesh, pipeline = (
        *runs_of(site, parallelism=["data"], batch_scope=["global"]),
        *runs_of(site, parallelism=["data-tensor2"], batch_scope=["global"]),
        *runs_of(site, parallelism=["pipeline4"], **tokens),
    )
    assert [
        (run.geometry.ranks, run.geometry.replicas, run.geometry.local_batch)
        for run in (plain, mesh, pipeline)
    ] == [(4, 4, 24), (4, 2, 48), (4, 1, 96)]
    assert [run.geometry.effective_batch for run in (plain, mesh, pipeline)] == [96] * 3
    study = load_study("hybrid-virtual")
    plain_spec, mesh_spec = run_spec(study, site, plain), run_spec(study, site, mesh)
    assert (
        "mesh" not in plain_spec
        and mesh_spec["mesh"] == Mesh(data=2, tensor=2).sizes
        and {*mesh_spec} == {*plain_spec, "mesh"}
    )


@pytest.mark.parametrize(
    ("factors", "code", "decide"),
    [
        ({"parallelism": ["data2-tensor4"]}, "mesh-does-not-fit", {"parallelism", "nodes"}),
        ({"parallelism": ["tensor"], "nodes": [3]}, "model-not-divisible", {"parallelism", "model", "nodes"}),
        ({"parallelism": ["pipeline"], "nodes": [6], "microbatches": [6]}, "model-not-divisible",
         {"parallelism", "model"}),
        ({"parallelism": ["experts3"], "nodes": [3], "model": ["llama-moe-nano"],
          "dataset": ["synthetic-tokens-32-16-3840"]}, "model-not-divisible", {"parallelism", "model"}),
        ({"parallelism": ["experts2-tensor2"]}, INFEASIBLE_FOR_FRAMEWORK, {"parallelism", "framework"}),
        ({"parallelism": ["pipeline2"], "nodes": [2]}, "too-few-microbatches",
         {"schedule", "microbatches", "parallelism"}),
        ({"parallelism": ["pipeline2"], "nodes": [2], "microbatches": [2], "schedule": ["zero-bubble-v"]},
         "too-few-microbatches", {"schedule", "microbatches", "parallelism"}),
        ({"parallelism": ["pipeline2"], "nodes": [2], "microbatches": [5]}, "not-divisible",
         {"microbatches", "batch_size"}),
        ({"parallelism": ["pipeline2"], "nodes": [2], "microbatches": [3], "schedule": ["zero-bubble"]},
         "microbatches-not-multiple", {"schedule", "microbatches", "parallelism"}),
        ({**GPT, "parallelism": ["pipeline2"], "microbatches": [3], "schedule": ["interleaved-1f1b"]},
         "microbatches-not-multiple", {"schedule", "microbatches", "parallelism"}),
        ({"parallelism": ["pipeline"], "microbatches": [4], "schedule": ["interleaved-1f1b"]},
         "model-not-divisible", {"parallelism", "schedule", "model"}),
        ({"parallelism": ["tensor2"], "nodes": [2], "framework": ["pytorch-ddp"]}, INFEASIBLE_FOR_FRAMEWORK,
         {"framework", "parallelism"}),
        ({"parallelism": ["tensor2"], "nodes": [2], "tensor_sharding": ["vocabulary"]}, "model-not-divisible",
         {"parallelism", "model", "dataset", "tensor_sharding"}),
        ({**GPT, "label_smoothing": [0.1], "tensor_sharding": ["vocabulary"]}, INFEASIBLE_FOR_FRAMEWORK,
         {"framework", "label_smoothing"}),
        ({**GPT, "framework": ["jax"], "tensor_sharding": ["sequence"]}, INFEASIBLE_FOR_FRAMEWORK,
         {"framework", "tensor_sharding"}),
        ({"tensor_sharding": ["layers", "vocabulary"]}, "duplicate", {"parallelism", "tensor_sharding"}),
        ({"parallelism": ["sharded"], "sharding": ["optimizer"]}, INFEASIBLE_FOR_FRAMEWORK, {"framework", "sharding"}),
        ({**GPT, "parallelism": ["sharded"], "framework": ["deepspeed"], "checkpointing": ["selective"]},
         INFEASIBLE_FOR_FRAMEWORK, {"framework", "sharding", "checkpointing"}),
        ({"parallelism": ["data", "data4"]}, "duplicate", {"parallelism", "nodes", "devices_per_node"}),
        ({"parallelism": ["data-tensor2", "tensor2"], "nodes": [2]}, "duplicate",
         {"parallelism", "nodes", "devices_per_node"}),
        ({"microbatches": [1, 2]}, "duplicate", {"parallelism", "microbatches"}),
        ({"schedule": ["gpipe", "1f1b"]}, "duplicate", {"parallelism", "schedule"}),
        ({"sharding": ["gradients", "parameters"]}, "duplicate", {"parallelism", "sharding"}),
        ({"parallelism": ["pipeline2-sharded2"], "microbatches": [2], "sharding": ["gradients", "parameters"]},
         "duplicate", {"parallelism", "sharding"}),
        ({"framework": ["jax"], "compiler": ["none", "xla"]}, "duplicate", {"framework", "compiler"}),
    ],
)  # fmt: skip
def test_what_cannot_be_divided_is_refused(
    site: Site, factors: dict[str, list[object]], code: str, decide: set[str]
) -> None:
    with pytest.raises(InputError) as refused:
        runs_of(site, **factors)
    assert (refused.value.code, refused.value.key) == (code, "factors")
    levels: dict[str, object] = refused.value.got  # type: ignore[assignment]
    assert decide <= set(levels) and all(levels[name] in factors[name] for name in set(factors) & set(levels))


def test_frameworks_that_can_are_suggested(site: Site) -> None:
    with pytest.raises(InputError) as refused:
        runs_of(site, parallelism=["tensor2"], nodes=[2], framework=["pytorch-ddp"])
    assert all(name in refused.value.hint for name in ("jax", "pytorch-mesh"))


def test_a_mesh_of_one_rank_is_plain_whoever_trains_it(site: Site) -> None:
    (run,) = runs_of(site, parallelism=["tensor"], nodes=[1])
    assert run.geometry.mesh is None and run.geometry.replicas == run.geometry.ranks == 1
    (run,) = runs_of(site, parallelism=["data4"], framework=["pytorch-ddp"])
    assert run.geometry.mesh is None and run.geometry.replicas == 4


def test_capability_with_axes_holds_for_meshes_of_these_axes(site: Site) -> None:
    (run,) = runs_of(site, framework=["jax"], parallelism=["data-sharded2"], trace=["phases"])
    assert run.geometry.mesh == Mesh(data=2, sharded=2)
    with pytest.raises(InputError) as refused:
        runs_of(site, framework=["jax"], parallelism=["data-tensor2"], trace=["phases"])
    assert refused.value.code == INFEASIBLE_FOR_FRAMEWORK
    assert refused.value.got == {"framework": "jax", "parallelism": "data-tensor2", "trace": "phases"}
    assert runs_of(site, framework=["jax"], parallelism=["data-tensor2"])
