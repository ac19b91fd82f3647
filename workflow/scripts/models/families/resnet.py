"""Residual networks (He et al., CVPR 2016), version 1.5: 3x3 convolutions of bottlenecks have the stride."""

from functools import partial

from models.graph import Builder
from models.named import Model, is_small

PLANES = (64, 128, 256, 512)


def resnet(model: Builder, classes: int, *, blocks: tuple[int, ...], bottleneck: bool) -> None:
    """Add a stem, four stages of residual blocks, and a dense layer.

    The stem is a 7x7 convolution with stride 2 and 3x3 max pooling with stride 2; on small images a 3x3
    convolution without stride, and pooling only for 64 pixels.
    """
    small, side = is_small(model.shape(model.input)), max(model.shape(model.input)[:2])
    x = model.conv(model.input, 64, *((3, 1, 1) if small else (7, 2, 3)), bias=False, name="stem_conv")
    x = model.activation(model.batch_norm(x, name="stem_norm"), "relu", name="stem_relu")
    if side >= 64:
        x = model.max_pool(x, 3, 2, 1, name="stem_pool")
    for stage, (planes, count) in enumerate(zip(PLANES, blocks, strict=True), 1):
        for block in range(1, count + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            x = _block(model, x, planes, stride, bottleneck, f"stage{stage}_block{block}")
    model.dense(model.global_average_pool(x), classes)


def _block(model: Builder, x: str, planes: int, stride: int, bottleneck: bool, name: str) -> str:
    if bottleneck:
        layers = [(planes, 1, 1), (planes, 3, stride), (4 * planes, 1, 1)]
    else:
        layers = [(planes, 3, stride), (planes, 3, 1)]
    y = x
    for i, (filters, kernel, step) in enumerate(layers, 1):
        y = model.conv(y, filters, kernel, step, kernel // 2, bias=False, name=f"{name}_conv{i}")
        y = model.batch_norm(y, name=f"{name}_norm{i}")
        if i < len(layers):
            y = model.activation(y, "relu", name=f"{name}_relu{i}")
    if model.shape(x) != model.shape(y):
        x = model.conv(x, model.shape(y)[-1], 1, stride, bias=False, name=f"{name}_shortcut")
        x = model.batch_norm(x, name=f"{name}_shortcut_norm")
    return model.activation(model.add(y, x, name=f"{name}_add"), "relu", name=f"{name}_relu")


_SOURCE = "He et al., CVPR 2016"
MODELS = {
    f"resnet-{depth}": Model(
        partial(resnet, blocks=blocks, bottleneck=bottleneck),
        f"residual network of {depth} layers",
        _SOURCE,
        "he",
    )
    for depth, blocks, bottleneck in (
        (18, (2, 2, 2, 2), False),
        (34, (3, 4, 6, 3), False),
        (50, (3, 4, 6, 3), True),
        (101, (3, 4, 23, 3), True),
    )
}
