"""Meshes of ranks: the levels that name them, their sizes on so many ranks, and who a rank is in one."""

import pytest

from declared.mesh import divides_more, mesh_of, sizes_of
from models.mesh import Mesh, of_spec


@pytest.mark.parametrize(
    ("level", "ranks", "mesh"),
    [
        ("data", 4, Mesh(data=4)),
        ("data2-tensor2", 4, Mesh(data=2, tensor=2)),
        ("data-tensor2", 8, Mesh(data=4, tensor=2)),
        ("data-tensor2", 2, Mesh(tensor=2)),
        ("pipeline2-data-sharded2", 12, Mesh(pipeline=2, data=3, sharded=2)),
        ("tensor", 1, Mesh()),
    ],
)
def test_a_level_is_a_mesh_of_all_ranks(level: str, ranks: int, mesh: Mesh) -> None:
    assert mesh_of(level, ranks) == mesh and mesh.ranks == ranks
    assert divides_more(level, ranks) == (not mesh.is_plain) == (mesh.axes not in ((), ("data",)))
    assert mesh_of(mesh.name, ranks) == mesh, "its name says the same"


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ("tensr2", "'tensr2' is no axis; expected pipeline, data, sharded, tensor with a size"),
        ("data2-dense", "'dense' of 'data2-dense' is no axis"),
        ("data2-data2", "has the axis data twice"),
        ("data-tensor", "several axes without a size"),
        ("data1-tensor2", "'data1' of 'data1-tensor2' divides nothing"),
        ("tensor2-data", "is not in order; write data-tensor2"),
    ],
)
def test_what_is_no_mesh_is_told_why(level: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sizes_of(level)


def test_ranks_that_are_not_the_product_are_told() -> None:
    for level, ranks, said in (
        ("data2-tensor2", 2, "is 4 ranks, the cell has 2"),
        ("data-tensor2", 3, "multiple of 2"),
    ):
        with pytest.raises(ValueError, match=said):
            mesh_of(level, ranks)


def test_ranks_are_laid_out_with_the_tensor_axis_innermost() -> None:
    mesh = Mesh(pipeline=2, data=2, sharded=1, tensor=2)
    assert [tuple(mesh.coordinates(rank).values()) for rank in (0, 1, 2, 5)] == [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
        (0, 0, 1, 0),
        (1, 0, 0, 1),
    ]
    assert [mesh.replica(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [rank for rank in range(8) if mesh.counts(rank)] == [4, 6], "of each replica one, of its last stage"
    assert of_spec({"ranks": 8, "mesh": mesh.sizes}) == mesh and of_spec({"ranks": 3}) == Mesh(data=3)
