"""A model description made concrete for a data set: layers with shapes, and initial weights that all frameworks share.

The canonical layout of weights: convolution kernels [height, width, in, out], dense kernels [in, out] with the inputs
flattened from [height, width, channels], each followed by its bias [out].
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Layer:
    """One layer. `kind` is conv, flatten or dense; `inputs` its input's shape without the batch; `units` filters or units."""

    kind: str
    inputs: tuple[int, ...]
    units: int = 0
    kernel: int = 0
    activation: str | None = None

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """Shape of the kernel in the canonical layout; empty for a layer without weights."""
        match self.kind:
            case "conv":
                return (self.kernel, self.kernel, self.inputs[-1], self.units)
            case "dense":
                return (self.inputs[0], self.units)
        return ()


def layers(description: dict[str, Any], shape: tuple[int, ...], classes: int) -> list[Layer]:
    """The layers of a model for images of `shape` (height, width, channels)."""
    made: list[Layer] = []
    for entry in description["layers"]:
        activation = entry.get("activation")
        if "conv" in entry:
            made.append(Layer("conv", shape, entry["conv"], entry["kernel"], activation))
            shape = (*shape[:2], entry["conv"])
        elif "dense" in entry:
            units = classes if entry["dense"] == "classes" else entry["dense"]
            made.append(Layer("dense", shape, units, activation=activation))
            shape = (units,)
        else:
            made.append(Layer("flatten", shape))
            shape = (int(np.prod(shape)),)
    return made


def initial_weights(model: list[Layer], seed: int) -> list[np.ndarray]:
    """Glorot-uniform kernels (Glorot & Bengio 2010, eq. 16) and zero biases, float32, canonical layout."""
    generator = np.random.default_rng(seed)
    weights = []
    for layer in model:
        if shape := layer.kernel_shape:
            receptive = int(np.prod(shape[:-2]))
            limit = np.sqrt(6.0 / (receptive * (shape[-2] + shape[-1])))
            weights.append(generator.uniform(-limit, limit, shape).astype(np.float32))
            weights.append(np.zeros(shape[-1], np.float32))
    return weights


def parameter_count(model: list[Layer]) -> int:
    """Number of trainable parameters."""
    return sum(int(np.prod(layer.kernel_shape)) + layer.units for layer in model if layer.kernel_shape)
