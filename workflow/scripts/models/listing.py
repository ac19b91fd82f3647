"""All models in numbers: what `make models` prints."""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence

from common.errors import InputError, exit_status
from common.text import aligned, alternatives
from models.graph import Graph, Shape
from models.named import IMAGES, SMALL, TEXTS, TOKENS, graph, has_small_stem, is_small, models

Samples = tuple[Shape, int] | tuple[Shape, int, int, str]  # as models.named.graph takes them

INPUTS: dict[str, tuple[Samples, ...]] = {
    IMAGES: (((8, 8, 1), 10), ((28, 28, 1), 10), ((32, 32, 3), 10), ((64, 64, 3), 200), ((224, 224, 3), 1000)),
    TEXTS: (((40,), 2, 10_000, "class"),),
    TOKENS: (((40,), 10_000, 10_000, "next"), ((64,), 256, 256, "next"), ((1024,), 50_257, 50_257, "next")),
}  # fmt: skip
HEADER = ("model", "sample", "classes", "stem", "parameters", "MMACs", "gradients, MB", "activations, MB a sample")
WORDS = HEADER[:4]
DASH = "–"
LEGEND = (
    "sample: an image, HEIGHTxWIDTHxCHANNELS, or a sequence of tokens, LENGTH:VOCABULARY.",
    "classes: the model's outputs, as the data sets with such samples have them; a language model has so many at each position.",
    f"stem: of models with two, the one that these images get: small up to {SMALL} pixels, above the original.",
    "MMACs: millions of multiplications, each with its addition, of one sample's forward pass, in convolutions, dense operators, "
    "attention (as if it were not causal) and LSTMs.",
    "gradients: what one exchange carries; activations: the outputs of all operators, which training keeps. Both in float32.",
)


def row(name: str, samples: Samples) -> tuple[str, ...]:
    """One model for one kind of samples. ValueError where it cannot be built for them."""
    made: Graph = graph(name, *samples)
    stem = ("small" if is_small(made.shape) else "original") if has_small_stem(name) else ""
    megabytes = (f"{size / 1e6:.2f}" for size in (made.gradient_bytes, made.activation_bytes))
    return (*_told(name, samples), stem, f"{made.parameters:,}", f"{made.macs / 1e6:.1f}", *megabytes)


def inputs_of(name: str, inputs: Mapping[str, Sequence[Samples]] = INPUTS) -> Sequence[Samples]:
    """Those of `inputs` (by what models take) that a model takes; where there are none, the first others, which it refuses."""
    return inputs.get(models()[name].takes) or next(iter(inputs.values()))


def listing(names: Sequence[str], inputs: Mapping[str, Sequence[Samples]] = INPUTS) -> str:
    """The table of the models, for a terminal: below it what its columns mean, and why a model has dashes."""
    rows: list[tuple[str, ...]] = [HEADER]
    reasons: list[str] = []
    for name in names:
        for samples in inputs_of(name, inputs):
            try:
                rows.append(row(name, samples))
            except ValueError as error:
                rows.append((*_told(name, samples), *(DASH for _ in HEADER[3:])))
                reasons.append(str(error))
    lines = ["  ".join(cells).rstrip() for cells in aligned(rows, left=[name in WORDS for name in HEADER])]
    titles = [
        f"{name}: {models()[name].title}" + f" ({models()[name].source})" * bool(models()[name].source)
        for name in names
    ]
    dashes = [f"{DASH}: the model cannot be built for such samples:", *(f"  {reason}" for reason in reasons)]
    return "\n".join([*lines, "", *LEGEND, *(dashes if reasons else []), "", *titles])


def _told(name: str, samples: Samples) -> tuple[str, str, str]:
    shape, classes, *tokens = samples
    return name, f"{shape[0]}:{tokens[0]}" if tokens else "x".join(map(str, shape)), str(classes)


def image(text: str) -> Shape:
    """The shape that HEIGHTxWIDTHxCHANNELS names. ArgumentTypeError where it names none."""
    if not re.fullmatch(r"[1-9]\d{0,4}x[1-9]\d{0,4}x[1-9]\d{0,4}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no image; expected HEIGHTxWIDTHxCHANNELS, such as 224x224x3")
    height, width, channels = map(int, text.split("x"))
    return height, width, channels


def tokens(text: str) -> tuple[int, int]:
    """The length and the vocabulary that LENGTH:VOCABULARY names. ArgumentTypeError where it names none."""
    if not re.fullmatch(r"[1-9]\d{0,5}:[1-9]\d{0,6}", text):
        raise argparse.ArgumentTypeError(f"{text!r} are no tokens; expected LENGTH:VOCABULARY, such as 40:10000")
    length, vocabulary = map(int, text.split(":"))
    return length, vocabulary


def _asked(options: argparse.Namespace) -> dict[str, Sequence[Samples]]:
    """The samples that a person asks for; by default the usual ones."""
    asked: dict[str, Sequence[Samples]] = {}
    if options.image:
        asked[IMAGES] = [(options.image, options.classes)]
    if options.tokens:
        length, vocabulary = options.tokens
        asked[TEXTS] = [((length,), options.classes, vocabulary, "class")]
        asked[TOKENS] = [((length,), vocabulary, vocabulary, "next")]
    return asked or {**INPUTS}


def main(argv: Sequence[str] | None = None) -> None:
    """Parameters, multiplications, and bytes of gradients and activations of models for several kinds of samples."""
    parser = argparse.ArgumentParser(
        prog="make models",
        usage='make models ARGS="[MODEL ...] [--image HEIGHTxWIDTHxCHANNELS] [--tokens LENGTH:VOCABULARY] [--classes NUMBER]"',
        description=main.__doc__,
        epilog=f"models: {', '.join(sorted(models()))}",
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="those to print; all where none is named")
    parser.add_argument("--image", type=image, metavar="HEIGHTxWIDTHxCHANNELS", help="of these images alone: 96x96x3")
    parser.add_argument("--tokens", type=tokens, metavar="LENGTH:VOCABULARY", help="of these tokens alone: 128:5000")
    parser.add_argument(
        "--classes", type=int, default=10, metavar="NUMBER", help="of images and of texts (%(default)s)"
    )
    options = parser.parse_args(argv)
    if unknown := [name for name in options.models if name not in models()]:
        problem = f"'{unknown[0]}' is no model"
        raise InputError("unknown-name", problem, got=unknown[0], **alternatives(unknown[0], sorted(models())))
    if options.classes < 2:
        problem = f"{options.classes} is too small"
        raise InputError("out-of-range", problem, file="--classes", got=options.classes, expected="at least 2")
    inputs = _asked(options)
    print(listing(options.models or [name for name in sorted(models()) if models()[name].takes in inputs], inputs))


if __name__ == "__main__":
    sys.exit(exit_status(main))
