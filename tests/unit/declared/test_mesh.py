"""Levels of meshes, their sizes on a number of ranks, and the coordinates of a rank."""

import pytest

from common.errors import CodedValueError
from declared.mesh import exceeds_data_parallelism, mesh_of, sizes_of
from models.mesh import Mesh, mesh_from_spec


@pytest.mark.parametrize(
    ("level", "ranks", "mesh"),
    [
        ("data", 4, Mesh(data=4)),
        ("data2-tensor2", 4, Mesh(data=2, tensor=2)),
        ("data-tensor2", 8, Mesh(data=4, tensor=2)),
        ("data-tensor2", 2, Mesh(tensor=2)),
        ("pipeline2-data-sharded2", 12, Mesh(pipeline=2, data=3, sharded=2)),
        ("data2-experts", 8, Mesh(data=2, experts=4)),
        ("tensor", 1, Mesh()),
    ],
)
def test_a_level_is_a_mesh_of_all_ranks(level: str, ranks: int, mesh: Mesh) -> None:
    assert mesh_of(level, ranks) == mesh and mesh.ranks == ranks
    assert exceeds_data_parallelism(level, ranks) == (not mesh.is_plain) == (mesh.axes not in ((), ("data",)))
    assert mesh_of(mesh.name, ranks) == mesh, "its name says the same"


@pytest.mark.parametrize(
    ("level", "code", "mentions"),
    [
        ("tensr2", "unknown-axis", ["'tensr2'", "pipeline, data, sharded, experts, tensor"]),
        ("data2-dense", "unknown-axis", ["'dense'", "'data2-dense'"]),
        ("data2-data2", "duplicate", ["data"]),
        ("data-tensor", "missing-size", []),
        ("data1-tensor2", "out-of-range", ["'data1'", "'data1-tensor2'"]),
        ("tensor2-data", "wrong-order", ["data-tensor2"]),
    ],
)
def test_what_is_no_mesh_is_told_why(level: str, code: str, mentions: list[str]) -> None:
    with pytest.raises(CodedValueError) as refused:
        sizes_of(level)
    assert refused.value.code == code and all(mention in str(refused.value) for mention in mentions)


def test_ranks_that_are_not_the_product_are_told() -> None:
    for level, ranks, sentence in (
        ("data2-tensor2", 2, "is 4 ranks, the cell has 2"),
        ("data-tensor2", 3, "is a multiple of 2 ranks, the cell has 3"),
    ):
        with pytest.raises(CodedValueError) as refused:
            mesh_of(level, ranks)
        assert (refused.value.code, str(refused.value)) == ("wrong-rank-count", sentence)


def test_ranks_are_laid_out_with_the_tensor_axis_innermost() -> None:
    mesh = Mesh(pipeline=2, data=2, sharded=1, tensor=2)
    assert [tuple(mesh.coordinates(rank).values()) for rank in (0, 1, 2, 5)] == [
        (0, 0, 0, 0, 0),
        (1, 0, 0, 0, 0),
        (0, 0, 0, 1, 0),
        (1, 0, 0, 0, 1),
    ]
    assert [mesh.replica(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [rank for rank in range(8) if mesh.is_reporter(rank, 1)] == [4, 6], (
        "of each replica one, of its last stage"
    )
    experts = Mesh(data=2, experts=2)
    assert [experts.replica(rank) for rank in range(4)] == [0, 1, 2, 3] and experts.replicas == 4
    assert mesh_from_spec({"ranks": 8, "mesh": mesh.sizes}) == mesh and mesh_from_spec({"ranks": 3}) == Mesh(
        data=3
    )
