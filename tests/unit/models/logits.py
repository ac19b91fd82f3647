"""Run inside a framework's environment: logits of models before and after one optimizer step, with the same weights.

python logits.py LIBRARY GRAPHS.json OUT.npz
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from models.graph import Graph, from_json
from models.initial import initial_weights

SAMPLES, RATES = 8, {"sgd": 1e-4, "adam": 1e-5}  # a larger step of resnet-50 makes more of the rounding of float32
LEVELS = {"momentum": 0.9, "weight_decay": 0.0}
Forward = Callable[[np.ndarray], np.ndarray]


def of_pytorch(graph: Graph, optimizer: str) -> tuple[Forward, Callable[[np.ndarray, np.ndarray], None], Any]:
    import torch

    from runs.libraries.pytorch import build, load, make_optimizer, saved

    module = build(graph)
    load(module, graph, initial_weights(graph, 3))
    optimize = make_optimizer(module, graph, {"optimizer": optimizer, **LEVELS}, RATES[optimizer])

    @torch.no_grad()
    def logits(images: np.ndarray) -> np.ndarray:
        module.eval()
        return module(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()

    def step(images: np.ndarray, labels: np.ndarray) -> None:
        module.train()
        out = module(torch.from_numpy(images).permute(0, 3, 1, 2))
        torch.nn.functional.cross_entropy(out, torch.from_numpy(labels)).backward()
        optimize.step()

    return logits, step, lambda: saved(module, graph)


def of_tensorflow(graph: Graph, optimizer: str) -> tuple[Forward, Callable[[np.ndarray, np.ndarray], None], Any]:
    import tensorflow as tf

    from runs.libraries.tensorflow import _optimizer, build, variables

    model = build(graph)
    own = variables(model, graph)
    for name, weight in initial_weights(graph, 3).items():
        own[name].assign(weight)
    optimize = _optimizer({"optimizer": optimizer, **LEVELS}, RATES[optimizer])

    def step(images: np.ndarray, labels: np.ndarray) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
            loss = tf.reduce_mean(losses)
        trained = model.trainable_variables
        optimize.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))

    return (
        lambda images: model(images, training=False).numpy(),
        step,
        lambda: {name: variable.numpy() for name, variable in own.items()},
    )


def of_jax(graph: Graph, optimizer: str) -> tuple[Forward, Callable[[np.ndarray, np.ndarray], None], Any]:
    import jax
    import optax

    from runs.libraries.jax_model import forward
    from runs.libraries.jax_training import optimizer as rule

    now = {name: jax.numpy.asarray(weight) for name, weight in initial_weights(graph, 3).items()}
    learned = [name for name in now if name not in graph.statistics]
    optimize = rule({"optimizer": optimizer, **LEVELS})

    @jax.jit
    def evaluated(weights: Any, images: Any) -> Any:
        return forward(graph, weights, images)[0]

    @jax.jit
    def trained(weights: Any, images: Any, labels: Any) -> Any:
        def loss(ours: Any) -> Any:
            out, statistics = forward(graph, {**weights, **ours}, images, jax.random.key(0))
            return optax.softmax_cross_entropy_with_integer_labels(out, labels).mean(), statistics

        ours = {name: weights[name] for name in learned}
        gradients, statistics = jax.grad(loss, has_aux=True)(ours)
        changes, _ = optimize.update(gradients, optimize.init(ours), ours)
        ours = {name: weight - RATES[optimizer] * changes[name] for name, weight in ours.items()}
        return {**weights, **ours, **statistics}

    def step(images: np.ndarray, labels: np.ndarray) -> None:
        now.update(trained(now, images, labels))

    return (
        lambda images: np.asarray(evaluated(now, images)),
        step,
        lambda: {name: np.asarray(weight) for name, weight in now.items()},
    )


LIBRARIES = {"pytorch": of_pytorch, "tensorflow": of_tensorflow, "jax": of_jax}


def main() -> None:
    library, graphs, out = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), sys.argv[3]
    results = {}
    for key, (raw, optimizer) in graphs.items():
        graph = from_json(raw)
        random = np.random.default_rng(0)
        images = random.normal(size=(SAMPLES, *graph.shape)).astype(np.float32)
        labels = random.integers(graph.operators[-1].shape[0], size=SAMPLES)
        logits, step, weights = LIBRARIES[library](graph, optimizer)
        if key == next(iter(graphs)):
            assert all(np.array_equal(weights()[name], value) for name, value in initial_weights(graph, 3).items())
        results[f"{key}.parameters"] = np.array(sum(value.size for value in weights().values()))
        results[f"{key}.before"] = logits(images)
        step(images, labels)
        results[f"{key}.after"] = logits(images)
    np.savez(out, **results)


if __name__ == "__main__":
    main()
