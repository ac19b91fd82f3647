"""How models are divided: what a tensor axis takes apart, and where a pipeline is cut."""

import itertools

import pytest

from declared.models import model_graph, model_names
from models.division import stages, tensor_parts


def test_a_tensor_axis_divides_pairs_of_dense_operators() -> None:
    assert tensor_parts(model_graph("small-cnn", "digits"), 2) == {"dense1": "columns", "dense2": "rows"}
    lenet = tensor_parts(model_graph("lenet-5", "synthetic-28x28x1-10"), 4)
    assert lenet == {"dense1": "columns", "dense2": "rows"}, "the third one has no partner"
    with pytest.raises(ValueError, match="dense1 of small-cnn has 128 units, which 3 ranks cannot divide"):
        tensor_parts(model_graph("small-cnn", "digits"), 3)
    with pytest.raises(ValueError, match="resnet-18 has no two dense operators"):
        tensor_parts(model_graph("resnet-18", "cifar-10"), 2)


@pytest.mark.parametrize("model", model_names())
@pytest.mark.parametrize("count", [2, 4])
def test_the_stages_of_a_pipeline_are_the_model(model: str, count: int) -> None:
    graph = model_graph(model, "synthetic-64x64x3-10")
    try:
        parts = stages(graph, count)
    except ValueError:
        assert model == "small-cnn" or count == 4, model
        return
    assert [op for part in parts for op in part.operators[bool(part is not parts[0]) :]] == list(graph.operators)
    for before, after in itertools.pairwise(parts):
        assert after.shape == before.operators[-1].shape and after.operators[0].name == before.operators[-1].name
        made = {operator.name for operator in after.operators}
        assert all(name in made for operator in after.operators for name in operator.inputs), "one output is handed on"
    assert all(part.macs > 0 for part in parts) and sum(part.macs for part in parts) == graph.macs
    weights = [name for part in parts for name in part.weights()]
    assert weights == list(graph.weights())


def test_stages_have_about_as_much_work() -> None:
    macs = [part.macs for part in stages(model_graph("resnet-50", "synthetic-224x224x3-1000"), 4)]
    assert max(macs) / sum(macs) < 0.3


def test_a_pipeline_is_not_cut_where_a_tensor_axis_divides() -> None:
    vgg = model_graph("vgg-16", "cifar-10")
    for part in stages(vgg, 4, tensor=2):
        names = {operator.name for operator in part.operators}
        assert len(names & {"dense1", "dense2"}) in (0, 2)
    with pytest.raises(ValueError, match="cannot be cut into 9 stages"):
        stages(model_graph("small-cnn", "digits"), 9)
