"""All models in numbers: what `make models` prints."""

import argparse
import sys
from collections.abc import Sequence

from common.errors import exit_status
from common.text import aligned
from models.graph import Graph, Shape
from models.named import graph, is_small, models

INPUTS: tuple[tuple[Shape, int], ...] = (
    ((8, 8, 1), 10), ((28, 28, 1), 10), ((32, 32, 3), 10), ((64, 64, 3), 200), ((224, 224, 3), 1000),
)  # fmt: skip
HEADER = ("model", "image", "classes", "stem", "parameters", "MMACs", "gradients, MB", "activations, MB a sample")
WORDS = HEADER[:4]


def row(name: str, shape: Shape, classes: int) -> tuple[str, ...]:
    """One model for one kind of images; dashes where they are too small for it."""
    height, width, channels = shape
    told = (name, f"{height}x{width}x{channels}", str(classes))
    try:
        made: Graph = graph(name, shape, classes)
    except ValueError:
        return (*told, *("-" for _ in HEADER[3:]))
    stem = "small" if is_small(shape) else "original"
    megabytes = (f"{size / 1e6:.2f}" for size in (made.gradient_bytes, made.activation_bytes))
    return (*told, stem, f"{made.parameters:,}", f"{made.macs / 1e6:.1f}", *megabytes)


def listing(names: Sequence[str]) -> str:
    """The table of the models, for a terminal."""
    rows = [HEADER, *(row(name, *image) for name in names for image in INPUTS)]
    lines = ["  ".join(cells) for cells in aligned(rows, left=[name in WORDS for name in HEADER])]
    titles = [
        f"{name}: {models()[name].title}" + f" ({models()[name].source})" * bool(models()[name].source)
        for name in names
    ]
    return "\n".join([*lines, "", *titles])


def main(argv: Sequence[str] | None = None) -> None:
    """Print parameters, multiplications, and bytes of gradients and activations (float32) of models for several images."""
    parser = argparse.ArgumentParser(prog="models.listing", description=main.__doc__)
    parser.add_argument(
        "models", nargs="*", choices=[*sorted(models()), []], help="those to print; all where none is named"
    )
    print(listing(parser.parse_args(argv).models or sorted(models())))


if __name__ == "__main__":
    sys.exit(exit_status(main))
