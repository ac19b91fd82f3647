"""All models in numbers: what `make models` prints."""

import argparse
import re
import sys
from collections.abc import Sequence

from common.errors import InputError, exit_status
from common.text import aligned
from models.graph import Graph, Shape
from models.named import SMALL, graph, has_small_stem, is_small, models

Images = tuple[Shape, int]

INPUTS: tuple[Images, ...] = (
    ((8, 8, 1), 10), ((28, 28, 1), 10), ((32, 32, 3), 10), ((64, 64, 3), 200), ((224, 224, 3), 1000),
)  # fmt: skip
HEADER = ("model", "image", "classes", "stem", "parameters", "MMACs", "gradients, MB", "activations, MB a sample")
WORDS = HEADER[:4]
DASH = "–"
LEGEND = (
    "classes: the model's outputs, as the data sets with such images have them.",
    f"stem: of models with two, the one that these images get: small up to {SMALL} pixels, above the original.",
    "MMACs: millions of multiplications, each with its addition, of one sample's forward pass, in convolutions and dense operators.",
    "gradients: what one exchange carries; activations: the outputs of all operators, which training keeps. Both in float32.",
)


def row(name: str, images: Images) -> tuple[str, ...]:
    """One model for one kind of images. ValueError where it cannot be built for them."""
    shape, classes = images
    made: Graph = graph(name, shape, classes)
    stem = ("small" if is_small(shape) else "original") if has_small_stem(name) else ""
    megabytes = (f"{size / 1e6:.2f}" for size in (made.gradient_bytes, made.activation_bytes))
    return (*_told(name, images), stem, f"{made.parameters:,}", f"{made.macs / 1e6:.1f}", *megabytes)


def listing(names: Sequence[str], inputs: Sequence[Images] = INPUTS) -> str:
    """The table of the models, for a terminal: below it what its columns mean, and why a model has dashes."""
    rows: list[tuple[str, ...]] = [HEADER]
    reasons: list[str] = []
    for name in names:
        for images in inputs:
            try:
                rows.append(row(name, images))
            except ValueError as error:
                rows.append((*_told(name, images), *(DASH for _ in HEADER[3:])))
                reasons.append(str(error))
    lines = ["  ".join(cells).rstrip() for cells in aligned(rows, left=[name in WORDS for name in HEADER])]
    titles = [
        f"{name}: {models()[name].title}" + f" ({models()[name].source})" * bool(models()[name].source)
        for name in names
    ]
    dashes = [f"{DASH}: the model cannot be built for such images:", *(f"  {reason}" for reason in reasons)]
    return "\n".join([*lines, "", *LEGEND, *(dashes if reasons else []), "", *titles])


def _told(name: str, images: Images) -> tuple[str, str, str]:
    (height, width, channels), classes = images
    return name, f"{height}x{width}x{channels}", str(classes)


def image(text: str) -> Shape:
    """The shape that HEIGHTxWIDTHxCHANNELS names. ValueError where it names none."""
    if not re.fullmatch(r"[1-9]\d{0,4}x[1-9]\d{0,4}x[1-9]\d{0,4}", text):
        raise ValueError(text)
    height, width, channels = map(int, text.split("x"))
    return height, width, channels


def main(argv: Sequence[str] | None = None) -> None:
    """Parameters, multiplications, and bytes of gradients and activations of models for several images."""
    parser = argparse.ArgumentParser(
        prog="make models",
        usage='make models ARGS="[MODEL ...] [--image HEIGHTxWIDTHxCHANNELS] [--classes NUMBER]"',
        description=main.__doc__,
        epilog=f"models: {', '.join(sorted(models()))}",
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="those to print; all where none is named")
    parser.add_argument("--image", type=image, metavar="HEIGHTxWIDTHxCHANNELS", help="of these images alone: 96x96x3")
    parser.add_argument("--classes", type=int, default=10, metavar="NUMBER", help="of --image (%(default)s)")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.models if name not in models()]:
        raise InputError(f"'{unknown[0]}' is no model; expected one of {', '.join(sorted(models()))}")
    if options.classes < 2:
        raise InputError(f"--classes {options.classes} is too small; expected at least 2")
    inputs = [(options.image, options.classes)] if options.image else INPUTS
    print(listing(options.models or sorted(models()), inputs))


if __name__ == "__main__":
    sys.exit(exit_status(main))
