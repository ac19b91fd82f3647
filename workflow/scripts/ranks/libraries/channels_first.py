"""Convert weights between the canonical layout (models.graph, channels last) and channels first.

Both are orders of a weight's axes. How PyTorch stores an array with these axes in memory is another matter,
the factor `memory_format`.
"""

import numpy as np

from models.graph import Graph, Operator

KEPT_ORDER = ("depthwise_conv", "up_conv")  # operators with kernels that keep the order of channels


def channels_first(weight: np.ndarray, operator: Operator, graph: Graph) -> np.ndarray:
    """Return a canonical weight of `operator` in channels-first layout, a copy in row-major order.

    Kernels of convolutions become [out, in, height, width], depthwise ones [channels, 1, height, width],
    transposed ones [in, out, height, width]; kernels of dense operators, attention and LSTMs [out, in].
    Inputs of a dense operator behind `flatten` are reordered to channels first. Vectors and tables stay.
    """
    if weight.ndim == 4:
        weight = weight.transpose((2, 3, 0, 1) if operator.kind in KEPT_ORDER else (3, 2, 0, 1))
    elif weight.ndim == 2 and "table" not in operator.weights:
        if shape := graph.flattened(operator):
            weight = weight.reshape(*shape, -1).transpose(2, 0, 1, 3).reshape(weight.shape)
        weight = weight.T
    return np.array(weight, order="C")


def canonical(weight: np.ndarray, operator: Operator, graph: Graph) -> np.ndarray:
    """Return the canonical weight; the inverse of `channels_first`."""
    if weight.ndim == 4:
        weight = weight.transpose((2, 3, 0, 1) if operator.kind in KEPT_ORDER else (2, 3, 1, 0))
    elif weight.ndim == 2 and "table" not in operator.weights:
        weight = weight.T
        if shape := graph.flattened(operator):
            height, width, channels = shape
            weight = weight.reshape(channels, height, width, -1).transpose(1, 2, 0, 3).reshape(weight.shape)
    return np.array(weight, order="C")
