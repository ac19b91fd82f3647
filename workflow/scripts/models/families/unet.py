"""U-Net (Ronneberger, Fischer & Brox, MICCAI 2015), which gives each pixel of an image a class.

As in today's implementations convolutions keep the size of the image, and batch normalization follows them.
"""

from functools import partial

from models.graph import Builder
from models.named import PIXELS, Model


def unet(model: Builder, classes: int, *, filters: int, depth: int) -> None:
    """Add a path of `depth` poolings down, one of as many transposed convolutions up, and joins between them.

    A path has two convolutions at each size, of which the largest has this many filters.
    """
    height, width, _ = model.shape(model.input)
    if height % 2**depth or width % 2**depth:
        raise ValueError(f"it halves images {depth} times: their sides must be multiples of {2**depth}")
    x, skipped = _convolutions(model, model.input, filters, "down0"), []
    for level in range(1, depth + 1):
        skipped.append(x)
        x = model.max_pool(x, 2, 2, name=f"down{level}_pool")
        x = _convolutions(model, x, filters * 2**level, f"down{level}")
    for level in reversed(range(depth)):
        up = model.up_conv(x, filters * 2**level, 2, name=f"up{level}")
        joined = model.concatenate(skipped[level], up, name=f"up{level}_joined")
        x = _convolutions(model, joined, filters * 2**level, f"up{level}")
    model.sequence(model.conv(x, classes, 1, name="head"), name="pixels")


def _convolutions(model: Builder, x: str, filters: int, name: str) -> str:
    for i in (1, 2):
        x = model.conv(x, filters, 3, padding=1, bias=False, name=f"{name}_conv{i}")
        x = model.activation(model.batch_norm(x, name=f"{name}_norm{i}"), "relu", name=f"{name}_relu{i}")
    return x


_SOURCE = "Ronneberger et al., MICCAI 2015"
MODELS = {
    "unet": Model(
        partial(unet, filters=64, depth=4), "U-Net with batch normalization", _SOURCE, "he", PIXELS
    ),
    "unet-nano": Model(
        partial(unet, filters=4, depth=2), "U-Net for laptops: 4 to 16 filters", "", "he", PIXELS
    ),
}
