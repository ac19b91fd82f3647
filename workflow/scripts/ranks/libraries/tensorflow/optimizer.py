"""Make the optimizers of Keras 2 that frameworks share."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

keras = tf.keras


class AdamW(keras.optimizers.legacy.Adam):  # type: ignore[name-defined]
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    #: weight decay of a trainable variable
    weight_decay_of: Callable[[Any], float]

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        decay = self.weight_decay_of(var)
        rate = self._decayed_lr(var.dtype.base_dtype)
        shrunk = [var.assign_sub(rate * decay * var)] if decay else []
        with tf.control_dependencies(shrunk):
            return super()._resource_apply_dense(grad, var, apply_state)


def keras_optimizer(levels: dict[str, Any], rate: float) -> Any:
    """Return SGD with momentum, Adam (Kingma & Ba 2015) or AdamW."""
    adam = {"beta_1": levels["adam_beta1"], "beta_2": levels["adam_beta2"], "epsilon": levels["adam_epsilon"]}
    match levels["optimizer"]:
        case "adam":
            return keras.optimizers.legacy.Adam(rate, **adam)
        case "adamw":
            return AdamW(rate, **adam, name="AdamW")
    return keras.optimizers.legacy.SGD(rate, momentum=levels["momentum"])
