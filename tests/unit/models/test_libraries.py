"""One description, two libraries: the same function of the same weights, before and after the optimizer's step."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.graph import Graph
from models.named import graph, models
from runs.launch import SCRIPTS

SMALL = dict.fromkeys(models(), ((32, 32, 3), 10))
ORIGINAL = dict.fromkeys(("resnet-18", "efficientnet-b0"), ((96, 96, 3), 100))  # large enough for the original stem
OTHERS = {"lenet-5": ((28, 28, 1), 10), "resnet-50": ((64, 64, 3), 20)}
CASES = {
    f"{name}.{shape[0]}": (name, shape, classes)
    for group in (SMALL, ORIGINAL, OTHERS)
    for name, (shape, classes) in group.items()
}
ADAM = "resnet-18.32.adam"
AS_OTHERS = {
    "small-cnn-600.32",
    "vgg-16.32",
    "resnet-34.32",
    "resnet-50.32",
    "resnet-50.64",
}  # larger, of operators that others have, too


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
    graphs = {key: (without_dropout(graph(*case)).to_json(), "sgd") for key, case in CASES.items()}
    graphs[ADAM] = (graph("resnet-18", (32, 32, 3), 10).to_json(), "adam")
    asked = {item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")}
    graphs = {key: value for key, value in graphs.items() if key in asked}
    (folder / "graphs.json").write_text(json.dumps(graphs))

    def saved_by(library: str) -> dict[str, np.ndarray]:
        environment, out = real(library), folder / f"{library}.npz"
        program = [environment["python"]["executable"], str(Path(__file__).with_name("logits.py"))]
        done = subprocess.run(
            [*program, library, str(folder / "graphs.json"), str(out)],
            env={**os.environ, **environment["variables"], "PYTHONPATH": str(SCRIPTS)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        with np.load(out) as saved:
            return {name: saved[name] for name in saved.files}

    libraries = ("pytorch", "tensorflow")
    with ThreadPoolExecutor() as pool:
        return dict(zip(libraries, pool.map(saved_by, libraries), strict=True))


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.every_framework] * (case in AS_OTHERS)) for case in [*CASES, ADAM]],
)
def test_both_libraries_compute_the_same_logits_also_after_a_step(logits: Any, case: str) -> None:
    ours, theirs = logits["pytorch"], logits["tensorflow"]
    assert ours[f"{case}.parameters"] == theirs[f"{case}.parameters"]
    for when in ("before", "after"):
        one, other = ours[f"{case}.{when}"], theirs[f"{case}.{when}"]
        np.testing.assert_allclose(one, other, atol=1e-4 * max(1.0, float(np.abs(one).max())), rtol=0, err_msg=when)
    moved = np.abs(ours[f"{case}.after"] - ours[f"{case}.before"]).max()
    assert moved > 1e-4, "the step has changed something"
