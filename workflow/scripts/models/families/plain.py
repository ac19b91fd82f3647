"""Models that are a single sequence of operators."""

from functools import partial

from models.graph import Builder, Shape
from models.named import Model, is_small


def small_cnn(model: Builder, classes: int, *, units: int) -> None:
    """Add two 3x3 convolutions and two dense layers."""
    x = model.input
    for filters in (32, 64):
        x = model.activation(model.conv(x, filters, 3, padding=1), "relu")
    x = model.activation(model.dense(model.flatten(x), units), "relu")
    model.dense(x, classes)


def cnn_cifar10(model: Builder, classes: int) -> None:
    """Add two blocks of two 3x3 convolutions, pooling and dropout, and two dense layers.

    The second convolution of a block has no padding.
    """
    x = model.input
    for filters in (32, 64):
        x = model.activation(model.conv(x, filters, 3, padding=1), "relu")
        x = model.activation(model.conv(x, filters, 3), "relu")
        x = model.dropout(model.max_pool(x, 2, 2), 0.25)
    x = model.activation(model.dense(model.flatten(x), 512), "relu")
    model.dense(model.dropout(x, 0.5), classes)


def lenet_5(model: Builder, classes: int) -> None:
    """Add two 5x5 convolutions with average pooling, and three dense layers; pad 28 pixels to 32."""
    x = model.conv(model.input, 6, 5, padding=2 if model.shape(model.input)[0] == 28 else 0)
    x = model.average_pool(model.activation(x, "tanh"), 2, 2)
    x = model.average_pool(model.activation(model.conv(x, 16, 5), "tanh"), 2, 2)
    x = model.flatten(x)
    for units in (120, 84):
        x = model.activation(model.dense(x, units), "tanh")
    model.dense(x, classes)


def alexnet(model: Builder, classes: int) -> None:
    """Add five convolutions and three dense layers.

    On small images the first convolution is 3x3 without stride, and pooling is 2x2.
    """
    small = is_small(model.shape(model.input))
    pool = (2, 2) if small else (3, 2)
    x = model.conv(model.input, 64, 3, 1, 1) if small else model.conv(model.input, 64, 11, 4, 2)
    x = model.max_pool(model.activation(x, "relu"), *pool)
    x = model.conv(x, 192, 3, 1, 1) if small else model.conv(x, 192, 5, 1, 2)
    x = model.max_pool(model.activation(x, "relu"), *pool)
    for filters in (384, 256, 256):
        x = model.activation(model.conv(x, filters, 3, 1, 1), "relu")
    x = model.flatten(model.max_pool(x, *pool))
    for _ in range(2):
        x = model.activation(model.dense(model.dropout(x, 0.5), 4096), "relu")
    model.dense(x, classes)


def vgg(model: Builder, classes: int, *, convolutions: tuple[int, ...]) -> None:
    """Add five blocks of 3x3 convolutions and three dense layers; a block of a single pixel is not pooled.

    Args:
        model: receives the operators.
        classes: number of logits.
        convolutions: number of convolutions of each block.
    """
    x = model.input
    for filters, n_convolutions in zip((64, 128, 256, 512, 512), convolutions, strict=True):
        for _ in range(n_convolutions):
            x = model.activation(model.conv(x, filters, 3, 1, 1), "relu")
        if _side(model.shape(x)) > 1:
            x = model.max_pool(x, 2, 2)
    x = model.flatten(x)
    for _ in range(2):
        x = model.dropout(model.activation(model.dense(x, 4096), "relu"), 0.5)
    model.dense(x, classes)


def wide_mlp(model: Builder, classes: int) -> None:
    """Add four hidden layers of 2,048 units: matrix products that can be partitioned dominate the time."""
    x = model.flatten(model.input)
    for _ in range(4):
        x = model.activation(model.dense(x, 2048), "relu")
    model.dense(x, classes)


def _side(shape: Shape) -> int:
    return min(shape[:2])


_KERAS = "as cifar10_cnn.py of Keras' examples, 2015"
_VGG = "Simonyan & Zisserman, ICLR 2015"
MODELS = {
    "small-cnn": Model(partial(small_cnn, units=128), "two convolutions, two dense layers", "", "glorot"),
    "small-cnn-600": Model(partial(small_cnn, units=600), "small-cnn with a wider dense layer", "", "glorot"),
    "cnn-cifar10": Model(cnn_cifar10, "plain CNN with dropout", _KERAS, "glorot"),
    "lenet-5": Model(lenet_5, "LeNet-5", "LeCun et al., Proc. IEEE 86(11), 1998", "glorot"),
    "alexnet": Model(alexnet, "AlexNet, one tower", "Krizhevsky, arXiv:1404.5997, 2014", "he"),
    "vgg-16": Model(partial(vgg, convolutions=(2, 2, 3, 3, 3)), "VGG, configuration D", _VGG, "he"),
    "wide-mlp": Model(wide_mlp, "five dense layers, the hidden ones of 2,048 units", "", "he"),
}
