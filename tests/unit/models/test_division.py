"""Partitions of models: operators that a tensor axis divides, stages of a pipeline."""

import itertools

import pytest

from declared.models import model_graph, model_names
from models.division import divided_outputs, sequence_outputs, shared_inputs, stages, tensor_parts
from models.graph import SHARED, Builder, Graph
from models.named import CLICKS, IMAGES, PIXELS, TOKENS, models

SAMPLES = {
    IMAGES: "synthetic-64x64x3-10",
    PIXELS: "synthetic-regions-64x64x3-4",
    CLICKS: "synthetic-clicks-10",
    TOKENS: "synthetic-tokens-100-40",
}
UNCUT = {
    **dict.fromkeys(("bert-base", "bert-large", "bert-nano"), 4),  # masked positions reach behind the blocks
    "dlrm-nano": 4,
    "rnn-nano": 3,
    "rnn-text-nano": 3,
    "rnn-lm": 4,
    "rnn-translation": 4,
}  # smallest number of stages that is too large


def graph_of(model: str) -> Graph:
    return model_graph(model, SAMPLES.get(models()[model].sample_kind, "synthetic-text-100-40-4"))


def test_tensor_axis_divides_attention_and_pairs_of_dense_layers() -> None:
    assert tensor_parts(model_graph("small-cnn", "digits"), 2) == {"dense1": "columns", "dense2": "rows"}
    lenet = tensor_parts(model_graph("lenet-5", "synthetic-28x28x1-10"), 4)
    assert lenet == {"dense1": "columns", "dense2": "rows"}, "the third one has no partner"
    vit = tensor_parts(model_graph("vit-b-16", "synthetic-224x224x3-1000"), 4)
    assert len(vit) == 3 * 12 and [vit[f"block3_{name}"] for name in ("attention", "expand", "project")] == [
        "heads",
        "columns",
        "rows",
    ]
    llama = graph_of("llama-nano")
    parts = tensor_parts(llama, 2)
    names = ("attention", "gate", "up", "down")
    assert [parts[f"block2_{name}"] for name in names] == ["heads", "columns", "columns", "rows"]
    assert len(parts) == 4 * 4 and shared_inputs(llama, parts) == {f"block{n}_norm2" for n in range(1, 5)}
    gpt = graph_of("gpt-nano")
    assert not shared_inputs(gpt, tensor_parts(gpt, 2)), "a norm that one operator uses"
    gated = {f"block3_{name}" for name in ("gate", "silu", "up", "gated")}
    assert {name for name in divided_outputs(llama, parts) if name.startswith("block3")} == gated


def test_vocabulary_and_positions_are_divided_where_asked() -> None:
    gpt, llama = graph_of("gpt-nano"), graph_of("llama-nano")
    for graph in (gpt, llama):
        layers, vocabulary = tensor_parts(graph, 2), tensor_parts(graph, 2, "vocabulary")
        assert vocabulary == {**layers, "embedding": "rows", "head": "columns"}
        assert "head" in divided_outputs(graph, vocabulary)
    by_position = tensor_parts(gpt, 2, "sequence")
    assert by_position == {**tensor_parts(gpt, 2, "vocabulary"), "positions": "positions"}
    names = sequence_outputs(llama, tensor_parts(llama, 2, "sequence"))
    own = ("norm1", "attention", "add1", "norm2", "down", "add2")
    blocks = [f"block{number}_{name}" for number in range(1, 5) for name in own]
    assert names == ["embedding", *blocks, "norm"]
    later = stages(llama, 2, 2, "sequence")[1]
    assert (
        sequence_outputs(later, by_position | tensor_parts(llama, 2, "sequence"))[0]
        == later.operators[0].name
    )


@pytest.mark.parametrize(
    ("model", "dataset", "sharding", "message"),
    [
        ("gpt-nano", "synthetic-tokens-33-16", "vocabulary", "head of gpt-nano has 33 tokens, which 2 ranks"),
        ("gpt-nano", "synthetic-tokens-32-15", "sequence", "embedding of gpt-nano has 15 positions, which 2"),
        ("vit-b-16", "synthetic-224x224x3-1000", "vocabulary", "vit-b-16 does not predict tokens"),
        ("bert-nano", "synthetic-tokens-31-20", "sequence", "head_bias of bert-nano, its last operator"),
    ],
)
def test_indivisible_vocabularies_and_sequences_are_refused(
    model: str, dataset: str, sharding: str, message: str
) -> None:
    graph = model_graph(model, dataset)
    assert tensor_parts(graph, 2)
    with pytest.raises(ValueError, match=message):
        tensor_parts(graph, 2, sharding)


def test_operators_of_several_positions_keep_the_sequence_whole() -> None:
    builder = Builder("model", (16,), "glorot", 8)
    x = builder.attention(builder.embedding(builder.input, 8), 4, causal=True)
    builder.dense(builder.lstm(x, 8, name="memory"), 8, name="head")
    assert tensor_parts(builder.graph(), 2, "vocabulary")
    with pytest.raises(ValueError, match="memory of model is not divided along positions"):
        tensor_parts(builder.graph(), 2, "sequence")


@pytest.mark.parametrize(
    ("model", "parts", "message"),
    [
        ("small-cnn", 3, "dense1 of small-cnn has 128 units, which 3 ranks cannot divide"),
        ("gpt-nano", 8, "block1_attention of gpt-nano has 4 heads, which 8 ranks cannot divide"),
        ("llama-nano", 4, "block1_attention of llama-nano has 2 heads of keys, which 4 ranks cannot divide"),
        ("resnet-18", 2, "resnet-18 has neither attention nor two dense operators"),
    ],
)
def test_indivisible_operators_are_refused(model: str, parts: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tensor_parts(graph_of(model), parts)


@pytest.mark.parametrize("model", model_names())
def test_the_stages_of_a_pipeline_are_the_model(model: str) -> None:
    graph = graph_of(model)
    for count in (2, 4):
        if count >= UNCUT.get(model, 5):
            with pytest.raises(ValueError, match=f"cannot be cut into {count} stages"):
                stages(graph, count)
            continue
        parts = stages(graph, count)
        own = [[op for op in part.operators if op in graph.operators] for part in parts]
        assert list(itertools.chain(*own)) == list(graph.operators)
        for before, after in itertools.pairwise(parts):
            assert (
                after.shape == before.operators[-1].shape
                and after.operators[0].name == before.operators[-1].name
            )
            assert all(name in after.by_name for operator in after.operators for name in operator.inputs)
        assert all(part.macs > 0 for part in parts) and sum(part.macs for part in parts) == graph.macs
        weights = {name: shape for part in parts for name, shape in part.weights().items()}
        assert weights == graph.weights()


def test_stages_have_about_as_much_work() -> None:
    macs = [part.macs for part in stages(model_graph("resnet-50", "synthetic-224x224x3-1000"), 4)]
    assert max(macs) / sum(macs) < 0.3


def test_the_last_stage_has_the_table_of_a_tied_embedding_too() -> None:
    first, last = stages(graph_of("gpt-2"), 2)
    assert last.by_name["embedding"].kind == SHARED and "embedding.table" in {*first.weights()} & {
        *last.weights()
    }


def test_a_pipeline_is_not_cut_where_a_tensor_axis_divides() -> None:
    for part in stages(model_graph("vgg-16", "cifar-10"), 4, tensor=2):
        assert len({operator.name for operator in part.operators} & {"dense1", "dense2"}) in (0, 2)
