"""EfficientNet (Tan & Le, ICML 2019), without stochastic depth."""

from models.graph import Builder
from models.named import Model, is_small

# Table 1: expansion, channels, blocks, stride, kernel
STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


def efficientnet_b0(model: Builder, classes: int) -> None:
    """Add a stem, sixteen inverted bottlenecks with squeeze-and-excitation, and a dense layer.

    The stem has stride 2, on small images 1.
    """
    stride = 1 if is_small(model.shape(model.input)) else 2
    x = _conv_norm(model, model.input, 32, 3, stride, "stem", silu=True)
    for stage, (expansion, channels, blocks, stride, kernel) in enumerate(STAGES, 1):
        for block in range(1, blocks + 1):
            step = stride if block == 1 else 1
            x = _block(model, x, (expansion, channels, step, kernel), f"stage{stage}_block{block}")
    x = _conv_norm(model, x, 1280, 1, 1, "head", silu=True)
    model.dense(model.dropout(model.global_average_pool(x), 0.2), classes)


def _block(model: Builder, x: str, row: tuple[int, int, int, int], name: str) -> str:
    expansion, channels, stride, kernel = row
    inputs = model.shape(x)[-1]
    y = x
    if expansion > 1:
        y = _conv_norm(model, y, expansion * inputs, 1, 1, f"{name}_expand", silu=True)
    y = model.depthwise_conv(y, kernel, stride, kernel // 2, bias=False, name=f"{name}_depthwise_conv")
    y = _norm(model, y, f"{name}_depthwise", silu=True)
    y = model.squeeze_excite(y, max(1, inputs // 4), function="silu", name=f"{name}_se")
    y = _conv_norm(model, y, channels, 1, 1, f"{name}_project", silu=False)
    return model.add(y, x, name=f"{name}_add") if model.shape(x) == model.shape(y) and stride == 1 else y


def _conv_norm(
    model: Builder, x: str, filters: int, kernel: int, stride: int, name: str, *, silu: bool
) -> str:
    return _norm(
        model,
        model.conv(x, filters, kernel, stride, kernel // 2, bias=False, name=f"{name}_conv"),
        name,
        silu=silu,
    )


def _norm(model: Builder, x: str, name: str, *, silu: bool) -> str:
    x = model.batch_norm(x, epsilon=1e-3, momentum=0.99, name=f"{name}_norm")
    return model.activation(x, "silu", name=f"{name}_silu") if silu else x


MODELS = {"efficientnet-b0": Model(efficientnet_b0, "EfficientNet-B0", "Tan & Le, ICML 2019", "he")}
