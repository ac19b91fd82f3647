"""One description, four libraries: the same function of the same weights, before and after the optimizer's step."""

import json
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declared.frameworks import load_framework
from launchers.launch import SCRIPTS
from models.families.recurrent import language_model, text_classifier, translation
from models.families.transformers import gpt, vit
from models.graph import Builder, Graph, Shape
from models.named import IMAGES, graph, models


def narrow(
    name: str, build: Callable[[Builder, int], None], shape: Shape, classes: int, vocabulary: int | None
) -> Graph:
    """A model's operators with few units; what is not square shows what is turned."""
    builder = Builder(name, shape, models()[name].initializer if name in models() else "glorot", vocabulary)
    build(builder, classes)
    return builder.graph()


def all_kinds(model: Builder, classes: int) -> None:
    """What the shipped models do not use: a state of its own, attention of unlike widths, what comes of a softmax, and a relu of a part."""
    x = model.embedding(model.steps(model.input, 1, 5), 6, name="embedding")
    y = model.lstm(model.embedding(model.input, 4), 4)
    asked = model.attention(x, 2, to=y)
    first = model.activation(model.step(asked, 0), "relu")
    weighed = model.activation(model.concatenate(asked, x), "softmax")
    joined = model.concatenate(model.step(weighed, 2), first, model.step(asked, 0))
    model.tied_dense(model.layer_norm(model.dense(joined, 6)), "embedding")


def branches(model: Builder, classes: int) -> None:
    """Convolutions and poolings as Inception has them."""
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
    if model.takes == IMAGES and name not in ("inception-v3", "vit-b-16")
}
ORIGINAL = dict.fromkeys(("resnet-18", "efficientnet-b0"), ((96, 96, 3), 100))  # large enough for the original stem
OTHERS = {
    "lenet-5": ((28, 28, 1), 10),
    "resnet-50": ((64, 64, 3), 20),
    "inception-v3": ((28, 28, 1), 10),  # of 96 pixels it normalizes eight values, which makes much of rounding
}
CASES = {
    f"{name}.{shape[0]}": partial(graph, name, shape, classes)
    for group in (SMALL, ORIGINAL, OTHERS)
    for name, (shape, classes) in group.items()
} | {
    name: partial(narrow, name, *told)
    for name, *told in (
        ("gpt-2", partial(gpt, layers=2, heads=3, units=12), (7,), 23, 23),
        ("vit-b-16", partial(vit, layers=2, heads=2, units=16), (8, 12, 3), 10, None),
        ("rnn-text", partial(text_classifier, layers=2, units=8), (6,), 4, 19),
        ("rnn-lm", partial(language_model, layers=2, units=8), (6,), 19, 19),
        ("rnn-translation", partial(translation, layers=2, units=8), (9,), 19, 19),
        ("all-kinds", all_kinds, (5,), 11, 11),
        ("branches", branches, (9, 8, 3), 10, None),
    )
}
RATES = {"sgd": 1e-4, "adam": 1e-5}  # a larger step of resnet-50 makes more of the rounding of float32
RATE = 0.1  # of what is narrow, whose logits are small
TOLERANCE = 1e-4  # of the largest logit
DEEP = {"resnet-101.32": 5e-4, "inception-v3.28": 2e-4}  # what float32 rounds there, of the largest logit after a step
ADAM = "resnet-18.32.adam"
AS_OTHERS = {
    "small-cnn-600.32",
    *(case for case in CASES if case.startswith("vgg-")),
    "resnet-34.32",
    "resnet-50.32",
    "resnet-50.64",
    "resnet-101.32",
    "resnet-18.96",
    "efficientnet-b0.96",
    "inception-v3.28",
}  # larger, of operators that others have, too
REFERENCE = "pytorch"
BY_JAX = {
    "lenet-5.28",
    "branches",
    "gpt-2",
    "vit-b-16",
    "rnn-translation",
    "all-kinds",
}  # every kind of operator but one
OTHER_LIBRARIES = {  # and what waits for `make frameworks-test`
    "tensorflow": AS_OTHERS,
    "jax": {*CASES, ADAM} - BY_JAX,
    "dtensor": {*CASES, ADAM},
}
ENVIRONMENTS = {"dtensor": "tensorflow"}  # of which a library is a part
LACKED = set(load_framework("tensorflow-dtensor").without["cpu"])
LEFT_OUT = {  # of what a library lacks an operator, and what is larger: resnet-101 is rounded by 2e-4, by PyTorch more than by DTensor
    "dtensor": {case for case, make in CASES.items() if LACKED & {each.kind for each in make().operators}} | AS_OTHERS,
}
VARIABLES = {"jax": {"XLA_FLAGS": "--xla_backend_optimization_level=0"}}  # to compile takes longer than to compute


def without_dropout(made: Graph) -> Graph:
    """The same model, in which nothing is random."""
    operators = [
        replace(operator, settings={"rate": 0.0}) if operator.kind == "dropout" else operator
        for operator in made.operators
    ]
    return replace(made, operators=tuple(operators))


@pytest.fixture(scope="module")
def logits(
    tmp_path_factory: pytest.TempPathFactory, real: Any, request: pytest.FixtureRequest
) -> dict[str, dict[str, np.ndarray]]:
    """What logits.py says in each library of the cases that are asked for."""
    folder = tmp_path_factory.mktemp("logits")
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    asked = {
        library: {each["case"] for each in params if each.get("library") == library} for library in OTHER_LIBRARIES
    }
    asked[REFERENCE] = set().union(*asked.values())

    def saved_by(library: str) -> dict[str, np.ndarray]:
        graphs = {
            key: (without_dropout(make()).to_json(), "sgd", RATES["sgd"] if "." in key else RATE)
            for key, make in CASES.items()
            if key in asked[library]
        }
        if ADAM in asked[library]:
            graphs[ADAM] = (graph("resnet-18", (32, 32, 3), 10).to_json(), "adam", RATES["adam"])
        told = folder / f"{library}.json"
        told.write_text(json.dumps(graphs))
        environment, out = real(ENVIRONMENTS.get(library, library)), folder / f"{library}.npz"
        program = [environment["python"]["executable"], str(Path(__file__).with_name("logits.py"))]
        done = subprocess.run(
            [*program, library, str(told), str(out)],
            env={**os.environ, **environment["variables"], **VARIABLES.get(library, {}), "PYTHONPATH": str(SCRIPTS)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        with np.load(out) as saved:
            return {name: saved[name] for name in saved.files}

    with ThreadPoolExecutor() as pool:
        return dict(zip(asked, pool.map(saved_by, asked), strict=True))


@pytest.mark.parametrize(
    ("library", "case"),
    [
        pytest.param(library, case, marks=[pytest.mark.every_framework] * (case in later))
        for library, later in OTHER_LIBRARIES.items()
        for case in [*CASES, ADAM]
        if case not in LEFT_OUT.get(library, ())
    ],
)
def test_libraries_compute_the_same_logits_also_after_a_step(logits: Any, library: str, case: str) -> None:
    ours, theirs = logits[REFERENCE], logits[library]
    assert ours[f"{case}.parameters"] == theirs[f"{case}.parameters"]
    for when, atol in (("before", TOLERANCE), ("after", DEEP.get(case, TOLERANCE))):
        one, other = ours[f"{case}.{when}"], theirs[f"{case}.{when}"]
        np.testing.assert_allclose(one, other, atol=atol * max(1.0, float(np.abs(one).max())), rtol=0, err_msg=when)
    moved = np.abs(ours[f"{case}.after"] - ours[f"{case}.before"]).max()
    assert moved > 1e-4, "the step has changed something"
