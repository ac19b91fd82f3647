"""Meshes in a design: how a cell is laid out, what its ranks are told, which cells are doubles, and which cannot be."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from declared.site import Site, load_site
from declared.study import Replicates, load_study
from models.mesh import Mesh
from plan.design import Run, design
from plan.identity import spec


@pytest.fixture
def site() -> Site:
    return replace(load_site("local"), cores=4, nodes=8, ranks_per_node=1)


def runs_of(site: Site, **factors: list[object]) -> list[Run]:
    plain = load_study("hybrid-virtual")
    held: dict[str, list[object]] = {
        "framework": ["pytorch-mesh"],
        "nodes": [4],
        "batch_size": [96],
        "shares": ["equal"],
    }
    return design(replace(plain, factors=plain.factors | held | factors, exclude=(), replicates=Replicates(1, 1)), site)


def test_ranks_of_a_replica_share_its_samples_and_plain_cells_keep_their_spec(site: Site) -> None:
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
        (run.geometry.ranks, run.geometry.replicas, run.geometry.local_batch) for run in (plain, mesh, pipeline)
    ] == [
        (4, 4, 24),
        (4, 2, 48),
        (4, 1, 96),
    ]
    assert [run.geometry.effective_batch for run in (plain, mesh, pipeline)] == [96] * 3
    study = load_study("hybrid-virtual")
    told, ours = spec(study, site, plain), spec(study, site, mesh)
    assert "mesh" not in told and ours["mesh"] == Mesh(data=2, tensor=2).sizes and {*ours} == {*told, "mesh"}


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        ({"parallelism": ["data2-tensor4"]}, "parallelism=data2-tensor4 is 8 ranks, the cell has 4; change the sizes"),
        ({"parallelism": ["tensor3-data"]}, "factors.parallelism: 'tensor3-data' is not in order; write data-tensor3"),
        ({"parallelism": ["tensor"], "nodes": [3]}, "dense1 of small-cnn has 128 units, which 3 ranks cannot divide"),
        ({"parallelism": ["tensor"], "model": ["resnet-18"]}, "has neither attention nor two dense operators"),
        ({"parallelism": ["pipeline"], "nodes": [6], "microbatches": [6]}, "small-cnn cannot be cut into 6 stages"),
        ({"parallelism": ["pipeline2"], "nodes": [2]}, "schedule=1f1b wants a microbatch for each of 2 stages"),
        ({"parallelism": ["pipeline2"], "nodes": [2], "microbatches": [5]}, "microbatches=5 do not divide the 96 samples"),
        ({"parallelism": ["tensor2"], "nodes": [2], "framework": ["pytorch-ddp"]}, "the factors, or take jax or pytorch-mesh or tensorflow-dtensor"),
        ({"parallelism": ["tensor2"], "nodes": [2], "framework": ["pytorch-ddp"]}, "pytorch-ddp cannot do parallelism=tensor2 ("),
        ({"framework": ["jax"], "training_loop": ["fit"]}, "jax cannot do training_loop=fit (capabilities in"),
        ({"parallelism": ["sharded"], "sharding": ["optimizer"]}, "pytorch-mesh cannot do sharding=optimizer: FSDP"),
        ({"parallelism": ["sharded"], "sharding": ["optimizer"]}, "DeepSpeed can shard (capabilities in"),
        ({"parallelism": ["data", "data4"]}, "parallelism=data4 and data are the same on these ranks; take one of them"),
        ({"parallelism": ["data-tensor2", "tensor2"], "nodes": [2]}, "are the same on these ranks"),
        ({"microbatches": [1, 2]}, "trains exactly as pytorch-mesh"),
        ({"schedule": ["gpipe", "1f1b"]}, "it has no pipeline; hold schedule"),
        ({"sharding": ["gradients", "parameters"]}, "it has no axis sharded; hold sharding"),
    ],
)  # fmt: skip
def test_what_cannot_be_divided_is_refused_in_one_line(
    site: Site, tmp_path: Path, factors: dict[str, list[object]], said: str
) -> None:
    with pytest.raises(InputError) as refused:
        if "order" in said:
            text = (
                Path("config/studies/hybrid-virtual.yaml")
                .read_text()
                .replace("  framework:", "  parallelism: tensor3-data\n  framework:")
            )
            (tmp_path / "wrong.yaml").write_text(text)
            load_study("wrong", tmp_path)
        runs_of(site, **factors)
    (line,) = str(refused.value).splitlines()
    assert said in line


def test_a_mesh_of_one_rank_is_plain_whoever_trains_it(site: Site) -> None:
    (run,) = runs_of(site, parallelism=["tensor"], nodes=[1])
    assert run.geometry.mesh is None and run.geometry.replicas == run.geometry.ranks == 1
    (run,) = runs_of(site, parallelism=["data4"], framework=["pytorch-ddp"])
    assert run.geometry.mesh is None and run.geometry.replicas == 4


def test_a_capability_that_names_axes_holds_for_meshes_of_these_axes(site: Site) -> None:
    (run,) = runs_of(site, framework=["jax"], parallelism=["data-sharded2"], trace=["phases"])
    assert run.geometry.mesh == Mesh(data=2, sharded=2)
    with pytest.raises(
        InputError,
        match="jax cannot do parallelism=data-tensor2 with trace=phases: along a tensor axis XLA itself places what is exchanged",
    ):
        runs_of(site, framework=["jax"], parallelism=["data-tensor2"], trace=["phases"])
    assert runs_of(site, framework=["jax"], parallelism=["data-tensor2"])
