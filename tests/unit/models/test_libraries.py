"""Compare the logits of three libraries before and after optimizer steps, with the same weights."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.families.recurrent import language_model, text_classifier, translation
from models.families.transformers import gpt, llama, vit
from models.graph import Builder, Graph, Rotary, Shape
from models.named import IMAGES, graph, models
from support.programs import printed


def narrow(
    name: str, build: Callable[[Builder, int], None], shape: Shape, classes: int, vocabulary: int | None
) -> Graph:
    """Return a narrow model; shapes that are not square reveal transposed axes."""
    builder = Builder(name, shape, models()[name].initializer if name in models() else "glorot", vocabulary)
    build(builder, classes)
    return builder.graph()


def all_kinds(model: Builder, classes: int) -> None:
    """Add what shipped models do not use: attention between widths, users of softmax, relu of a position."""
    x = model.embedding(model.steps(model.input, 1, 5), 6, name="embedding")
    y = model.lstm(model.embedding(model.input, 4), 4)
    attended = model.attention(x, 2, to=y)
    first = model.activation(model.step(attended, 0), "relu")
    weighed = model.activation(model.concatenate(attended, x), "softmax")
    joined = model.concatenate(model.step(weighed, 2), first, model.step(attended, 0))
    model.tied_dense(model.layer_norm(model.dense(joined, 6)), "embedding")


def branches(model: Builder, classes: int) -> None:
    """Add convolutions and poolings like those of Inception."""
    rows = [
        model.conv(model.input, 4, [1, 7], padding=[0, 3], bias=False),
        model.conv(model.input, 5, [3, 1], padding=[1, 0]),
        model.average_pool(model.input, 3, 1, 1),
    ]
    x = model.activation(model.batch_norm(model.concatenate(*rows)), "relu")
    x = model.concatenate(model.conv(x, 3, 3, 2), model.max_pool(x, 3, 2))
    model.dense(model.flatten(x), classes)


SMALL = {
    name: ((32, 32, 3), 10)
    for name, model in models().items()
    if model.sample_kind == IMAGES and name != "inception-v3" and not name.startswith("vit")
}
ORIGINAL = dict.fromkeys(("resnet-18", "efficientnet-b0"), ((96, 96, 3), 100))  # have the original stem
OTHER_SHAPES = {
    "lenet-5": ((28, 28, 1), 10),
    "resnet-50": ((64, 64, 3), 20),
    "inception-v3": ((28, 28, 1), 10),  # at 96 pixels it normalizes eight values, which amplifies rounding
}
LLAMA: dict[str, Any] = {
    "layers": 2,
    "heads": 4,
    "key_heads": 2,
    "units": 24,
    "hidden": 20,
    "rotary": Rotary(50.0, factor=4.0, original_length=16),  # of three pairs, one of each kind
}
CASES = {
    f"{name}.{shape[0]}": partial(graph, name, shape, classes)
    for group in (SMALL, ORIGINAL, OTHER_SHAPES)
    for name, (shape, classes) in group.items()
} | {
    name: partial(narrow, name, *arguments)
    for name, *arguments in (
        ("gpt-2", partial(gpt, layers=2, heads=3, units=12), (7,), 23, 23),
        ("vit-b-16", partial(vit, layers=2, heads=2, units=16), (8, 12, 3), 10, None),
        ("llama-3-8b", partial(llama, **LLAMA), (7,), 23, 23),
        ("llama-3.2-1b", partial(llama, **LLAMA, tied=True), (7,), 23, 23),
        ("mixtral-8x7b", partial(llama, **LLAMA, experts=(4, 2)), (7,), 23, 23),
        ("rnn-text", partial(text_classifier, layers=2, units=8), (6,), 4, 19),
        ("rnn-lm", partial(language_model, layers=2, units=8), (6,), 19, 19),
        ("rnn-translation", partial(translation, layers=2, units=8), (9,), 19, 19),
        ("all-kinds", all_kinds, (5,), 11, 11),
        ("branches", branches, (9, 8, 3), 10, None),
    )
}
CASES["bert-nano"] = partial(graph, "bert-nano", (13,), 23, 23, "next")
CASES["dlrm-nano"] = partial(graph, "dlrm-nano", (39,), 2, 26 * 3, "click")
CASES["unet-nano"] = partial(graph, "unet-nano", (8, 12, 3), 3, None, "pixel")
RATES = {"sgd": 1e-4, "adam": 1e-5}  # a larger step of resnet-50 amplifies the rounding of float32
RATE = 0.1  # of narrow models, whose logits are small
SMALL_RATE = {"unet-nano": 1e-2}  # of a model in which a relu's kink lies close to many pixels
TOLERANCE = 1e-4  # relative to the largest logit
CLOSE = dict.fromkeys(
    ("bert-nano", "dlrm-nano", "llama-3-8b", "llama-3.2-1b", "mixtral-8x7b", "unet-nano"), 1e-6
)
N_STEPS = dict.fromkeys(CLOSE, 3)
DEEP = {
    "resnet-101.32": 5e-4,
    "inception-v3.28": 2e-4,
}  # rounding of deep models, relative to the largest logit after a step
ADAM = "resnet-18.32.adam"
LARGE_CASES = {
    "small-cnn-600.32",
    *(case for case in CASES if case.startswith("vgg-")),
    "resnet-34.32",
    "resnet-50.32",
    "resnet-50.64",
    "resnet-101.32",
    "resnet-18.96",
    "efficientnet-b0.96",
    "inception-v3.28",
}  # slow, without operators of their own
REFERENCE = "pytorch"
BY_JAX = {
    "lenet-5.28",
    "branches",
    "bert-nano",
    "dlrm-nano",
    "gpt-2",
    "llama-3-8b",
    "mixtral-8x7b",
    "vit-b-16",
    "rnn-translation",
    "all-kinds",
    "unet-nano",
}  # every kind of operator but one
OTHER_LIBRARIES = {  # with the cases that only `make frameworks-test` runs
    "tensorflow": LARGE_CASES,
    "jax": {*CASES, ADAM} - BY_JAX,
}
VARIABLES = {"jax": {"XLA_FLAGS": "--xla_backend_optimization_level=0"}}  # compiling dominates


def without_dropout(model: Graph) -> Graph:
    """Return a model without randomness in training."""
    operators = [
        replace(operator, settings={"rate": 0.0}) if operator.kind == "dropout" else operator
        for operator in model.operators
    ]
    return replace(model, operators=tuple(operators))


@pytest.fixture(scope="module")
def logits(
    tmp_path_factory: pytest.TempPathFactory, real: Any, request: pytest.FixtureRequest
) -> dict[str, dict[str, np.ndarray]]:
    """Return the logits of all requested cases in each library."""
    folder = tmp_path_factory.mktemp("logits")
    own_items = (item for item in request.session.items if item.path == request.path)
    params = [item.callspec.params for item in own_items if hasattr(item, "callspec")]
    requested = {
        library: {param["case"] for param in params if param.get("library") == library}
        for library in OTHER_LIBRARIES
    }
    requested[REFERENCE] = set().union(*requested.values())

    def saved_by(library: str) -> dict[str, np.ndarray]:
        graphs = {
            key: (
                without_dropout(make()).to_json(),
                "sgd",
                RATES["sgd"] if key.rpartition(".")[2].isdigit() else SMALL_RATE.get(key, RATE),
                N_STEPS.get(key, 1),
            )
            for key, make in CASES.items()
            if key in requested[library]
        }
        if ADAM in requested[library]:
            graphs[ADAM] = (graph("resnet-18", (32, 32, 3), 10).to_json(), "adam", RATES["adam"], 1)
        job = folder / f"{library}.json"
        job.write_text(json.dumps(graphs))
        environment, out = real(library), folder / f"{library}.npz"
        program = Path(__file__).with_name("logits.py")
        printed(environment, program, library, job, out, **VARIABLES.get(library, {}))
        return dict(np.load(out))

    with ThreadPoolExecutor() as pool:
        return dict(zip(requested, pool.map(saved_by, requested), strict=True))


@pytest.mark.parametrize(
    ("library", "case"),
    [
        pytest.param(library, case, marks=[pytest.mark.every_framework] * (case in later))
        for library, later in OTHER_LIBRARIES.items()
        for case in [*CASES, ADAM]
    ],
)
def test_libraries_compute_the_same_logits(logits: Any, library: str, case: str) -> None:
    reference, logits_of_library = logits[REFERENCE], logits[library]
    assert reference[f"{case}.parameters"] == logits_of_library[f"{case}.parameters"]
    tolerance = CLOSE.get(case, TOLERANCE)
    for moment, atol in (("before", tolerance), ("after", DEEP.get(case, tolerance))):
        expected, actual = reference[f"{case}.{moment}"], logits_of_library[f"{case}.{moment}"]
        np.testing.assert_allclose(
            expected, actual, atol=atol * max(1.0, float(np.abs(expected).max())), rtol=0, err_msg=moment
        )
    moved = np.abs(reference[f"{case}.after"] - reference[f"{case}.before"]).max()
    assert moved > 1e-4, "the step has changed something"
    np.testing.assert_allclose(reference[f"{case}.loads"], logits_of_library[f"{case}.loads"], atol=1e-6)


SMALL_IMAGES = """
import jax
import jax.numpy as jnp
import numpy as np
from models.graph import Builder
from ranks.libraries.jax import model as jax_model

random = np.random.default_rng(0)
taken, own = [], jax_model._convolution_of_pixels
jax_model._convolution_of_pixels = lambda operator, *arrays: taken.append(shape) or own(operator, *arrays)
for shape, kernel, stride, padding, depthwise in (
    ((1, 1, 4), 3, 1, 1, False),
    ((2, 3, 4), 3, 2, 3, False),
    ((4, 1, 4), 5, 2, 2, False),
    ((4, 3, 4), [1, 7], 1, [0, 3], False),
    ((3, 2, 4), 3, 1, 1, True),
    ((3, 3, 4), 3, 1, 1, False),
):
    model = Builder("one", shape, "glorot", None)
    if depthwise:
        model.depthwise_conv(model.input, kernel, stride, padding)
    else:
        model.conv(model.input, 6, kernel, stride, padding)
    operator = model.graph().operators[-1]
    weights = {name: random.normal(size=size).astype("float32") for name, size in operator.weights.items()}
    image, outputs = random.normal(size=(3, *shape)).astype("float32"), []
    for backend in ("cpu", "gpu"):  # on the latter XLA's own convolution is used
        jax.default_backend = lambda: backend
        call = lambda x, w: (jax_model._convolution(operator, x, w, jnp.float32) ** 2).sum()
        outputs.append(jax.tree.leaves(jax.jit(jax.value_and_grad(call, (0, 1)))(image, weights)))
    for value, expected in zip(*outputs):
        np.testing.assert_allclose(value, expected, rtol=2e-4, atol=2e-4)
print(len(taken))
"""


def test_jax_convolves_images_smaller_than_the_kernel(real: Callable[[str], Any]) -> None:
    """It has a convolution of its own for them, which equals XLA's, gradients included."""
    assert printed(real("jax"), "-c", SMALL_IMAGES, JAX_PLATFORMS="cpu") == "5\n"
