"""Graphs of models: published sizes, shapes, weights, and errors of models that do not fit."""

import itertools
import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from models import named
from models.families.recurrent import text_classifier
from models.families.transformers import vit
from models.graph import Builder, Graph, Rotary, from_json, is_decayed, is_trained
from models.initial import initial_weights
from models.named import CLICKS, IMAGES, PIXELS, TEXTS, TOKENS, Model, graph, models

MAX_DRAWN_PARAMETERS = 3e7  # larger models have no operators of their own, and take long to draw

IMAGE = ((224, 224, 3), 1000)
VOCABULARY = {
    "bert": 30_521,
    "gpt-2": 50_257,
    "llama-2-7b": 32_000,
    "llama-3": 128_256,
    "mixtral": 32_000,
}  # of models whose names begin so
OTHER_SAMPLES: dict[str, Any] = {
    "unet": ((64, 64, 3), 2, None, "pixel"),
    "lenet-5": ((28, 28, 1), 10),
    "inception-v3": ((299, 299, 3), 1000),
}
# As implemented by torchvision, GPT-2 by OpenAI, Llama as Hugging Face's weights of these names; BERT as Hugging
# Face's BertForMaskedLM, without the vectors of two segments; U-Net as milesial's with two classes.
PUBLISHED = {
    "resnet-18": 11_689_512,
    "resnet-34": 21_797_672,
    "resnet-50": 25_557_032,
    "resnet-101": 44_549_160,
    "inception-v3": 23_834_568,
    "vit-b-16": 86_567_656,
    "vit-l-16": 304_326_632,
    "unet": 31_037_698,
    "gpt-2": 124_439_808,
    "gpt-2-medium": 354_823_168,
    "gpt-2-large": 774_030_080,
    "gpt-2-xl": 1_557_611_200,
    "bert-base": 109_514_298 - 2 * 768,
    "bert-large": 335_174_458 - 2 * 1024,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mixtral-8x7b": 46_702_792_704,
    "efficientnet-b0": 5_288_548,
    "lenet-5": 61_706,  # with full connections
    "alexnet": 61_100_840,
    "vgg-16": 138_357_544,
}
PUBLISHED_GMACS = {
    "resnet-18": 1.81,
    "resnet-34": 3.66,
    "resnet-50": 4.09,
    "resnet-101": 7.80,
    "efficientnet-b0": 0.39,
    "vgg-16": 15.47,
    "vit-b-16": 17.56,
    "vit-l-16": 61.55,
    "inception-v3": 5.71,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_the_number_of_parameters_is_the_published_one(name: str, parameters: int) -> None:
    sizes = [size for start, size in VOCABULARY.items() if name.startswith(start)]
    length = 512 if name.startswith("bert") else 1024
    samples = ((length,), sizes[0], sizes[0], "next") if sizes else IMAGE
    samples = OTHER_SAMPLES.get(name, samples)
    assert graph(name, *samples).parameters == parameters


def test_dlrm_has_the_parameters_of_mlperf_and_one_more_logit() -> None:
    sizes = (13, 512, 256, 128), (128 + 27 * 26 // 2, 1024, 1024, 512, 256, 1)
    layers = sum((n_in + 1) * n_out for units in sizes for n_in, n_out in itertools.pairwise(units))
    assert graph("dlrm", (39,), 2, 26 * 1000, "click").parameters == 26 * 1000 * 128 + layers + 257


@pytest.mark.parametrize(("name", "gmacs"), PUBLISHED_GMACS.items())
def test_multiplications_are_the_published_ones(name: str, gmacs: float) -> None:
    assert graph(name, *OTHER_SAMPLES.get(name, IMAGE)).macs / 1e9 == pytest.approx(gmacs, abs=0.01)


@pytest.mark.parametrize("name", sorted(models()))
def test_every_weight_is_drawn(name: str) -> None:
    samples = {
        IMAGES: ((32, 32, 3), 10),
        PIXELS: ((16, 32, 3), 4, None, "pixel"),
        CLICKS: ((39,), 2, 260, "click"),
        TEXTS: ((6,), 3, 40),
        TOKENS: ((6,), 40, 40, "next"),
    }[models()[name].sample_kind]
    model = graph(name, *samples)
    assert from_json(json.loads(json.dumps(model.to_json()))) == model
    assert model.gradient_bytes == 4 * model.parameters
    if model.parameters < MAX_DRAWN_PARAMETERS:
        weights = initial_weights(model, 1)
        assert {key: weight.shape for key, weight in weights.items()} == model.weights()
        assert {weight.dtype for weight in weights.values()} == {np.dtype("float32")}
        assert sum(weight.size for key, weight in weights.items() if is_trained(key)) == model.parameters


@pytest.mark.parametrize(
    ("name", "samples", "logits"),
    [
        ("bert-nano", ((20,), 40, 40, "next"), (3, 41)),
        ("gpt-nano", ((6,), 40, 40, "next"), (6, 40)),
        ("rnn-lm", ((6,), 40, 40, "next"), (6, 40)),
        ("rnn-translation", ((7,), 40, 40, "next"), (4, 40)),
        ("rnn-text", ((6,), 3, 40), (3,)),
    ],
)
def test_sequence_models_have_logits_for_each_label(name: str, samples: Any, logits: Any) -> None:
    model = graph(name, *samples)
    assert (model.n_masked, model.operators[-1].shape) == (3 if name == "bert-nano" else 0, logits)
    assert model.shape == (samples[0][0] + model.n_masked,)
    assert model.vocabulary == logits[-1] if len(logits) > 1 else 40


@pytest.mark.parametrize(
    ("name", "samples", "message"),
    [
        ("resnet-18", ((6,), 3, 40), "it takes images, not texts with a class"),
        ("rnn-translation", ((1,), 40, 40, "next"), "input has 1 positions; there is none from 0 up to 0"),
        ("vit-b-16", ((100, 96, 3), 10), "its patches are 16 x 16 pixels, and must fill the image"),
        ("lenet-5", ((8, 8, 1), 10), "5 x 5 on 2 x 2 pixels: nothing is left"),
    ],
)
def test_samples_of_another_kind_are_refused(name: str, samples: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^model {name} cannot be built for .*{message}$"):
        graph(name, *samples)


@pytest.mark.parametrize(
    ("sample_kind", "build", "message"),
    [
        (TOKENS, lambda b, x, classes: b.lstm(x, 8),
         r"its last operator, lstm1, gives (5, 8); expected 9 logits at each position"),
        (TOKENS, lambda b, x, classes: b.dense(b.step(x, -1), classes),
         "gives (9,); expected 9 logits at each position"),
        (TOKENS, lambda b, x, classes: b.dense(b.attention(x, 2), classes),
         "dense1 tells token 1 at position 0, and has seen the tokens up to 4"),
        (TOKENS, lambda b, x, classes: b.dense(b.attention(b.steps(x, 2, 5), 2, to=x), classes),
         "dense1 tells token 3 at position 0"),
        (TEXTS, lambda b, x, classes: b.dense(x, classes),
         "its last operator, dense1, gives (5, 3); expected 3 logits"),
        (TEXTS, lambda b, x, classes: b.dense(b.step(x, 5), classes),
         "embedding1 has 5 positions; there is none at 5"),
    ],
)  # fmt: skip
def test_logits_that_depend_on_their_labels_are_refused(
    monkeypatch: pytest.MonkeyPatch, sample_kind: str, build: Any, message: str
) -> None:
    own = Model(lambda b, classes: build(b, b.embedding(b.input, 4), classes), "", "", "glorot", sample_kind)
    monkeypatch.setattr(named, "models", lambda: {"own": own})
    classes, targets = (9, "next") if sample_kind == TOKENS else (3, "class")
    with pytest.raises(ValueError, match=re.escape(message)):
        graph.__wrapped__("own", (5,), classes, 9, targets)


def test_too_few_pixels_with_logits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    halved = Model(lambda b, classes: b.sequence(b.conv(b.input, classes, 2, 2)), "", "", "he", PIXELS)
    monkeypatch.setattr(named, "models", lambda: {"own": halved})
    with pytest.raises(ValueError, match="expected 3 logits at each pixel"):
        graph.__wrapped__("own", (4, 4, 3), 3, None, "pixel")


def test_multiplications_of_sequences_count_each_position() -> None:
    builder = Builder("test", (5,), "glorot", 9)
    x = builder.embedding(builder.input, 4)
    attention = builder.attention(builder.lstm(x, 6), 2, to=x)
    builder.tied_dense(builder.dense(attention, 4), "embedding1")
    macs = {operator.kind: operator.macs for operator in builder.graph().operators}
    queries_and_output, keys_and_values, mixing = 2 * 5 * 6 * 6, 2 * 5 * 4 * 6, 2 * 5 * 5 * 6
    assert (
        macs["lstm"] == 5 * (4 + 6) * 4 * 6
        and macs["attention"] == queries_and_output + keys_and_values + mixing
    )
    assert macs["dense"] == 5 * 6 * 4 and macs["tied_dense"] == 5 * 4 * 9 and macs["embedding"] == 0


@pytest.mark.parametrize(
    ("name", "n_blocks", "largest"),
    [
        ("resnet-50", 16, 6_039_552),  # the first of stage 4, with its shortcut
        ("vit-b-16", 12, 12 * 768**2 + 13 * 768),
        ("inception-v3", 11, None),
        ("efficientnet-b0", 16, None),
        ("vgg-16", 0, None),
    ],
)
def test_blocks_are_those_of_the_publication(name: str, n_blocks: int, largest: int | None) -> None:
    model = graph(name, *IMAGE)
    sizes = [
        sum(
            math.prod(shape)
            for operator in block
            for weight, shape in operator.weights.items()
            if is_trained(weight)
        )
        for block in model.blocks.values()
    ]
    assert len(sizes) == n_blocks and all(sizes)
    assert largest is None or max(sizes) == largest
    outside = {operator.name for operator in model.operators} - {
        operator.name for block in model.blocks.values() for operator in block
    }
    assert {model.operators[0].name, model.operators[-1].name} <= outside


def test_a_tied_table_is_one_weight() -> None:
    model = graph("gpt-nano", (6,), 40, 40, "next")
    assert [key for key in model.weights() if key.startswith(("embedding", "head"))] == ["embedding.table"]


def test_weight_decay_is_of_kernels_matrices_or_all() -> None:
    undecayed = {
        "bias",
        "scale",
        "offset",
        "table",
        "token",
        "query_bias",
        "key_bias",
        "value_bias",
        "output_bias",
    }
    decayed = {"kernel", "recurrent_kernel", "query_kernel", "key_kernel", "value_kernel", "output_kernel"}
    graphs = [graph("vit-b-16", (32, 32, 3), 10), graph("rnn-translation", (6,), 9, 9, "next")]
    by_level = {
        level: {
            key.rpartition(".")[2] for model in graphs for key in model.weights() if is_decayed(key, level)
        }
        for level in ("kernels", "matrices", "all")
    }
    assert by_level == {"kernels": decayed, "matrices": decayed | {"table"}, "all": decayed | undecayed}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda model, x: model.attention(x, 3), "the 4 units of embedding1 cannot be divided by 3 heads"),
        (lambda model, x: model.attention(x, 2, to=model.steps(x, 0, 2), causal=True), "cannot be causal"),
        (
            lambda model, x: model.tied_dense(model.dense(x, 3), "embedding1"),
            "the table of embedding1, of 4 units",
        ),
        (
            lambda model, x: model.lstm(x, 3, state=model.final_state(model.lstm(x, 2))),
            r"\(2, 2\) is not a state of 3 units",
        ),
        (lambda model, x: model.final_state(x), "embedding1 is not an lstm"),
        (lambda model, x: model.lstm(model.step(x, 0), 3), r"step1 \(4,\) is not a sequence"),
        (lambda model, x: model.conv(x, 3, 1), r"embedding1 \(5, 4\) is not an image"),
        (lambda model, x: model.embedding(x, 3), r"embedding1 \(5, 4\) are not tokens"),
        (lambda model, x: model.concatenate(x, model.steps(x, 1, 3)), "cannot concatenate embedding1"),
        (lambda model, x: model.multiply(x, model.steps(x, 1, 3)), "cannot multiply embedding1"),
        (lambda model, x: model.interactions(model.dense(model.step(x, 0), 3), x), "cannot multiply dense1"),
        (lambda model, x: model.attention(x, 4, key_heads=3), "cannot share 3 heads of keys"),
        (lambda model, x: model.attention(x, 4, rotary=Rotary(10.0)), "an even number of units of a head"),
        (
            lambda model, x: model.attention(x, 2, to=model.steps(x, 0, 2), rotary=Rotary(10.0)),
            "cannot have rotary positions",
        ),
    ],
)
def test_operators_of_other_shapes_are_refused(build: Callable[[Builder, str], str], message: str) -> None:
    builder = Builder("test", (5,), "glorot", 9)
    x = builder.embedding(builder.input, 4)
    with pytest.raises(ValueError, match=message):
        build(builder, x)


def test_small_images_get_the_small_stem() -> None:
    def stem(height: int, width: int | None = None) -> list[tuple[str, int, int]]:
        operators = graph("resnet-18", (height, width or height, 3), 10).operators[1:5]
        return [(o.kind, o["kernel"], o["stride"]) for o in operators if o.kind in ("conv", "max_pool")][:2]

    assert stem(32)[0] == ("conv", 3, 1) and stem(32)[1][0] == "conv", "no pooling below 64 pixels"
    assert stem(64) == [("conv", 3, 1), ("max_pool", 3, 2)]
    assert stem(224) == stem(8, 65) == stem(65, 8) == [("conv", 7, 2), ("max_pool", 3, 2)], (
        "the longer side decides"
    )
    assert stem(8, 64) == stem(64, 8) == stem(64)


def test_deviation_of_a_kernel_is_that_of_its_use() -> None:
    experts = initial_weights(graph("llama-moe-nano", (6,), 40, 40, "next"), 7)
    deviations = [experts[f"block1_experts.{part}_kernel"].std() for part in ("gate", "down")]
    assert deviations == pytest.approx([0.02, 0.02 / math.sqrt(8)], rel=0.03), "eight sums"
    transposed = initial_weights(graph("unet", (16, 16, 3), 2, None, "pixel"), 7)["up0.kernel"]
    assert transposed.std() == pytest.approx(math.sqrt(2 / 128), rel=0.03), "128 channels of one pixel"


def test_weights_depend_only_on_seed_and_name() -> None:
    wide, narrow = (initial_weights(graph("resnet-18", (32, 32, 3), classes), 7) for classes in (100, 10))
    assert np.array_equal(wide["stem_conv.kernel"], narrow["stem_conv.kernel"])
    reseeded = initial_weights(graph("resnet-18", (32, 32, 3), 10), 8)
    assert not np.array_equal(reseeded["stem_conv.kernel"], narrow["stem_conv.kernel"])
    assert not np.array_equal(narrow["stage1_block1_conv1.kernel"], narrow["stage1_block1_conv2.kernel"])


def deviations(model: Graph) -> dict[str, float]:
    return {key: float(weight.std()) for key, weight in initial_weights(model, 1).items()}


def test_gpt_2_begins_as_published() -> None:
    deviation = deviations(graph("gpt-nano", (64,), 256, 256, "next"))
    for name in (
        "embedding.table",
        "positions.table",
        "block1_attention.query_kernel",
        "block4_expand.kernel",
    ):
        assert deviation[name] == pytest.approx(0.02, rel=0.05)
    for name in ("block1_attention.output_kernel", "block4_project.kernel"):
        assert deviation[name] == pytest.approx(0.02 / math.sqrt(8), rel=0.05), "four blocks add twice each"
    assert deviation["block1_expand.bias"] == deviation["block1_norm1.scale"] == 0


def test_vit_begins_as_published() -> None:
    builder = Builder("test", (32, 32, 3), "vit")
    vit(builder, 10, layers=1, heads=4, units=64)
    deviation = deviations(builder.graph())
    assert deviation["patches.kernel"] == pytest.approx(1 / math.sqrt(4 * 4 * 3), rel=0.05)
    assert deviation["block1_attention.key_kernel"] == pytest.approx(math.sqrt(2 / (64 + 64)), rel=0.05)
    assert deviation["block1_expand.kernel"] == pytest.approx(math.sqrt(2 / (64 + 256)), rel=0.05)
    assert deviation["block1_expand.bias"] == pytest.approx(1e-6, rel=0.2)
    assert deviation["positions.table"] == pytest.approx(0.02, rel=0.05)
    assert deviation["head.kernel"] == deviation["class_token.token"] == deviation["patches.bias"] == 0


def test_recurrent_weights_are_uniform_within_their_limit() -> None:
    builder = Builder("test", (6,), "uniform", 50)
    text_classifier(builder, 4, layers=1, units=16)
    weights = initial_weights(builder.graph(), 1)
    for name in ("embedding.table", "lstm1.kernel", "lstm1.recurrent_kernel", "head.kernel"):
        assert 0.23 < np.abs(weights[name]).max() <= 0.25
    assert not weights["lstm1.bias"].any()


def test_depthwise_kernel_has_the_fan_of_one_channel() -> None:
    builder = Builder("test", (8, 8, 64), "he")
    builder.dense(builder.flatten(builder.depthwise_conv(builder.input, 5, padding=2)), 10)
    model: Graph = builder.graph()
    assert model.operators[1].macs == 8 * 8 * 25 * 64 and model.weights()["depthwise_conv1.kernel"] == (
        5,
        5,
        64,
        1,
    )
    assert initial_weights(model, 1)["depthwise_conv1.kernel"].var() == pytest.approx(2 / 25, rel=0.1)


def test_padded_pooling_needs_a_nonnegative_input() -> None:
    builder = Builder("test", (8, 8, 1), "he")
    with pytest.raises(ValueError, match="wants a relu before it"):
        builder.max_pool(builder.conv(builder.input, 2, 3), 3, 2, 1)
