"""Compute logits of models before and after optimizer steps, in the environment of a framework.

python logits.py LIBRARY GRAPHS.json OUT.npz
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from models.graph import Graph, from_json, is_kernel
from models.initial import initial_weights

SAMPLES = 8
LEVELS = {
    "momentum": 0.9,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "decayed_weights": "kernels",
}
Forward = Callable[[np.ndarray], np.ndarray]


def perturbed_weights(graph: Graph) -> dict[str, np.ndarray]:
    """Return weights that differ everywhere, so that swapped weights change the logits."""
    random = np.random.default_rng(5)
    return {
        name: weight
        if is_kernel(name) and weight.any()
        else weight + random.uniform(0.0, 0.1, weight.shape).astype("float32")
        for name, weight in initial_weights(graph, 3).items()
    }


def run_pytorch(
    graph: Graph, optimizer: str, rate: float
) -> tuple[Forward, Callable[[np.ndarray, np.ndarray], None], Any]:
    import torch

    from ranks.libraries.pytorch.model import build, canonical_weights, load
    from ranks.libraries.pytorch.optimizer import make_optimizer

    module = build(graph)
    load(module, graph, perturbed_weights(graph))
    optimize = make_optimizer(module, graph, {"optimizer": optimizer, **LEVELS}, rate)

    def as_input(samples: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(samples)
        return tensor.permute(0, 3, 1, 2) if graph.vocabulary is None else tensor

    @torch.no_grad()
    def logits(samples: np.ndarray) -> np.ndarray:
        module.eval()
        return module(as_input(samples)).numpy()

    def step(samples: np.ndarray, labels: np.ndarray) -> None:
        module.train()
        optimize.zero_grad()
        out = module(as_input(samples)).flatten(0, -2)
        torch.nn.functional.cross_entropy(out, torch.from_numpy(labels).flatten()).backward()
        optimize.step()

    return logits, step, lambda: canonical_weights(module, graph)


def run_tensorflow(
    graph: Graph, optimizer: str, rate: float
) -> tuple[Forward, Callable[[np.ndarray, np.ndarray], None], Any]:
    import tensorflow as tf

    from ranks.libraries.tensorflow.model import build, variables
    from ranks.libraries.tensorflow.optimizer import keras_optimizer

    model = build(graph)
    own = variables(model, graph)
    for name, weight in perturbed_weights(graph).items():
        own[name].assign(weight)
    optimize = keras_optimizer({"optimizer": optimizer, **LEVELS}, rate)

    def step(samples: np.ndarray, labels: np.ndarray) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(samples, training=True))
            loss = tf.reduce_mean(losses)
        trained = model.trainable_variables
        optimize.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))

    return (
        lambda samples: model(samples, training=False).numpy(),
        step,
        lambda: {name: variable.numpy() for name, variable in own.items()},
    )


def run_jax(
    graph: Graph, optimizer: str, rate: float
) -> tuple[Forward, Callable[[np.ndarray, np.ndarray], None], Any]:
    import jax
    import optax

    from ranks.libraries.jax.model import forward
    from ranks.libraries.jax.optimizer import optax_rule

    now = {name: jax.numpy.asarray(weight) for name, weight in perturbed_weights(graph).items()}
    learned = [name for name in now if name not in graph.statistics]
    optimize = optax_rule({"optimizer": optimizer, **LEVELS})
    states = [optimize.init({name: now[name] for name in learned})]

    @jax.jit
    def evaluated(weights: Any, samples: Any) -> Any:
        return forward(graph, weights, samples)[0]

    @jax.jit
    def trained(weights: Any, state: Any, samples: Any, labels: Any) -> Any:
        def loss(trainable: Any) -> Any:
            out, statistics = forward(graph, {**weights, **trainable}, samples, jax.random.key(0))
            return optax.softmax_cross_entropy_with_integer_labels(out, labels).mean(), statistics

        trainable = {name: weights[name] for name in learned}
        gradients, statistics = jax.grad(loss, has_aux=True)(trainable)
        changes, state = optimize.update(gradients, state, trainable)
        trainable = {name: weight - rate * changes[name] for name, weight in trainable.items()}
        return {**weights, **trainable, **statistics}, state

    def step(samples: np.ndarray, labels: np.ndarray) -> None:
        weights, state = trained(now, states.pop(), samples, labels)
        now.update(weights)
        states.append(state)

    return (
        lambda samples: np.asarray(evaluated(now, samples)),
        step,
        lambda: {name: np.asarray(weight) for name, weight in now.items()},
    )


LIBRARIES = {"pytorch": run_pytorch, "tensorflow": run_tensorflow, "jax": run_jax}


def main() -> None:
    library, graphs, out = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), sys.argv[3]
    results = {}
    for key, (raw, optimizer, rate, n_steps) in graphs.items():
        graph = from_json(raw)
        random = np.random.default_rng(0)
        if graph.vocabulary is None:
            samples = random.normal(size=(SAMPLES, *graph.shape)).astype(np.float32)
        else:
            samples = random.integers(graph.vocabulary, size=(SAMPLES, *graph.shape))
            if n_masked := graph.n_masked:
                samples[:, -n_masked:] %= graph.shape[0] - n_masked
        *positions, classes = graph.operators[-1].shape
        labels = random.integers(classes, size=(SAMPLES, *positions))
        logits, step, weights = LIBRARIES[library](graph, optimizer, rate)
        initial = perturbed_weights(graph)
        assert all(np.array_equal(value, initial[name]) for name, value in weights().items()), key
        results[f"{key}.parameters"] = np.array(sum(value.size for value in weights().values()))
        results[f"{key}.before"] = logits(samples)
        for _ in range(n_steps):
            step(samples, labels)
        results[f"{key}.after"] = logits(samples)
        loads = [value for name, value in weights().items() if name.endswith(".load")]
        results[f"{key}.loads"] = np.array(loads)
    np.savez(out, **results)


if __name__ == "__main__":
    main()
