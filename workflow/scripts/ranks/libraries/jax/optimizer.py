"""Make the rules of optax by which optimizers change weights."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from models.graph import is_decayed


def optax_rule(levels: Mapping[str, Any]) -> optax.GradientTransformation:
    """Return SGD with momentum, Adam (Kingma & Ba 2015) or AdamW (Loshchilov & Hutter 2019).

    It returns changes that are not yet multiplied by the learning rate. AdamW adds weight decay to the
    changes, the others add it to the gradients.
    """
    if levels["optimizer"] == "sgd":
        rule = optax.trace(levels["momentum"])
    else:
        rule = adam(levels["adam_beta1"], levels["adam_beta2"], levels["adam_epsilon"])

    def decayed(weights: Mapping[str, Any]) -> dict[str, bool]:
        return {name: is_decayed(name, levels["decayed_weights"]) for name in weights}

    decay = [optax.add_decayed_weights(levels["weight_decay"], decayed)] if levels["weight_decay"] else []
    return optax.chain(rule, *decay) if levels["optimizer"] == "adamw" else optax.chain(*decay, rule)


def adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Return optax.scale_by_adam with an exact 1 - b^t.

    In the first steps, optax's value has only 3 correct digits, so that weights would differ from PyTorch's.
    """

    def update(
        gradients: Any, state: optax.ScaleByAdamState, _weights: Any = None
    ) -> tuple[Any, optax.ScaleByAdamState]:
        count = state.count + 1
        mean = optax.tree.update_moment(gradients, state.mu, b1, 1)
        square = optax.tree.update_moment_per_elem_norm(gradients, state.nu, b2, 2)
        mean_correction, square_correction = (-jnp.expm1(count * math.log(b)) for b in (b1, b2))
        root = jnp.sqrt(square_correction)
        changes = jax.tree.map(lambda m, s: m / mean_correction / (jnp.sqrt(s) / root + eps), mean, square)
        return changes, optax.ScaleByAdamState(count, mean, square)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)
