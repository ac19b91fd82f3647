"""Inception-v3 (Szegedy et al., CVPR 2016), without its auxiliary classifier."""

from collections.abc import Sequence

from models.graph import Builder, Size
from models.named import Model, is_small

# Filters, kernel, stride of a convolution without padding.
Layer = tuple[int, Size] | tuple[int, Size, int]


def inception_v3(model: Builder, classes: int) -> None:
    """Add a stem of five convolutions, eleven modules and a dense layer.

    On small images the stem has no stride and no pooling.
    """
    small = is_small(model.shape(model.input))
    x = _row(model, model.input, [(32, 3, 1 if small else 2), (32, 3, 1), (64, 3)], "stem")
    x = x if small else model.max_pool(x, 3, 2, name="stem_pool1")
    x = _row(model, x, [(80, 1), (192, 3, 1)], "stem_wide")
    x = x if small else model.max_pool(x, 3, 2, name="stem_pool2")
    for i, pooled in enumerate((32, 64, 64), 1):  # figure 5
        rows: list[list[Layer]] = [[(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)]]
        x = _module(model, x, rows, pooled, f"module{i}")
    x = _reduction(model, x, [[(384, 3, 2)], [(64, 1), (96, 3), (96, 3, 2)]], "module4")
    for i, filters in enumerate((128, 160, 160, 192), 5):  # figure 6, n = 7
        row, column = [1, 7], [7, 1]
        single: list[Layer] = [(filters, 1), (filters, row), (192, column)]
        double: list[Layer] = [(filters, 1), (filters, column), (filters, row), (filters, column), (192, row)]
        x = _module(model, x, [[(192, 1)], single, double], 192, f"module{i}")
    long: list[Layer] = [(192, 1), (192, [1, 7]), (192, [7, 1]), (192, 3, 2)]
    x = _reduction(model, x, [[(192, 1), (320, 3, 2)], long], "module9")
    for i in (10, 11):
        x = _expanded(model, x, f"module{i}")
    model.dense(model.dropout(model.global_average_pool(x), 0.5), classes)


def _module(model: Builder, x: str, rows: Sequence[Sequence[Layer]], pooled: int, name: str) -> str:
    """Add parallel rows of convolutions and a pooled branch."""
    branches = [_row(model, x, layers, f"{name}_branch{i}") for i, layers in enumerate(rows, 1)]
    return model.concatenate(*branches, _pooled(model, x, pooled, name), name=f"{name}_joined")


def _reduction(model: Builder, x: str, rows: Sequence[Sequence[Layer]], name: str) -> str:
    """Add parallel rows of convolutions that end in a stride of 2, and a pooling."""
    branches = [_row(model, x, layers, f"{name}_branch{i}") for i, layers in enumerate(rows, 1)]
    return model.concatenate(*branches, model.max_pool(x, 3, 2, name=f"{name}_pool"), name=f"{name}_joined")


def _expanded(model: Builder, x: str, name: str) -> str:
    """Add rows that end in two parallel convolutions (figure 7)."""
    branches = [_row(model, x, [(320, 1)], f"{name}_branch1")]
    rows: list[list[Layer]] = [[(384, 1)], [(448, 1), (384, 3)]]
    for i, layers in enumerate(rows, 2):
        y = _row(model, x, layers, f"{name}_branch{i}")
        branches += [_row(model, y, [(384, [1, 3])], f"{name}_branch{i}_row")]
        branches += [_row(model, y, [(384, [3, 1])], f"{name}_branch{i}_column")]
    return model.concatenate(*branches, _pooled(model, x, 192, name), name=f"{name}_joined")


def _pooled(model: Builder, x: str, filters: int, name: str) -> str:
    return _row(model, model.average_pool(x, 3, 1, 1, name=f"{name}_pool"), [(filters, 1)], f"{name}_pooled")


def _row(model: Builder, x: str, layers: Sequence[Layer], name: str) -> str:
    """Add convolutions, each with batch normalization and a relu."""
    for i, (filters, kernel, *unpadded) in enumerate(layers, 1):
        stride, zeros = (unpadded[0], 0) if unpadded else (1, _half(kernel))
        x = model.conv(x, filters, kernel, stride, zeros, bias=False, name=f"{name}_conv{i}")
        x = model.batch_norm(x, epsilon=1e-3, name=f"{name}_norm{i}")
        x = model.activation(x, "relu", name=f"{name}_relu{i}")
    return x


def _half(kernel: Size) -> Size:
    return kernel // 2 if isinstance(kernel, int) else [side // 2 for side in kernel]


MODELS = {"inception-v3": Model(inception_v3, "Inception-v3", "Szegedy et al., CVPR 2016", "he")}
