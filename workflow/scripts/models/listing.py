"""List the sizes of models for `ringside models`."""

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from common.errors import InputError
from common.text import align_columns, alternatives
from models.graph import N_CATEGORIES, N_COUNTS, Graph, Shape
from models.named import CLICKS, IMAGES, PIXELS, SMALL, TEXTS, TOKENS, graph, has_small_stem, is_small, models

Samples = tuple[Shape, int] | tuple[Shape, int, int | None, str]  # arguments of models.named.graph

# By kind of samples: the sizes that are listed without an option.
INPUTS: dict[str, tuple[Samples, ...]] = {
    IMAGES: (
        ((8, 8, 1), 10), ((28, 28, 1), 10), ((32, 32, 3), 10), ((64, 64, 3), 200), ((224, 224, 3), 1000),
    ),
    PIXELS: (((64, 64, 3), 4, None, "pixel"), ((256, 256, 3), 2, None, "pixel")),
    CLICKS: (((N_COUNTS + N_CATEGORIES,), 2, 260_000, "click"),),
    TEXTS: (((40,), 2, 10_000, "class"),),
    TOKENS: (((40,), 10_000, 10_000, "next"), ((64,), 256, 256, "next"), ((1024,), 50_257, 50_257, "next")),
}  # fmt: skip
HEADER = (
    "model",
    "sample",
    "classes",
    "stem",
    "parameters",
    "MMACs",
    "gradients, MB",
    "activations, MB a sample",
)
WORDS = HEADER[:4]
DASH = "–"
UNKNOWN_SIZE = "the size of a PyTorch module of your own is known after a training"
MIN_CLASSES = 2
# Attributes of a graph that the table has as JSON.
NUMBERS = ("parameters", "active_parameters", "macs", "gradient_bytes", "activation_bytes")
LEGEND = (
    "sample: an image, HEIGHTxWIDTHxCHANNELS, a sequence of tokens or a row with clicks, LENGTH:VOCABULARY.",
    (
        "classes: number of outputs, as in data sets with such samples; of a language model the outputs at "
        "each position."
    ),
    f"stem: of models with two stems the one for these images: small up to {SMALL} pixels, original above.",
    "MMACs: millions of multiply-accumulate operations in the forward pass of one sample, in convolutions, "
    "dense operators, attention (as if it were not causal), LSTMs and the experts that a token uses.",
    (
        "gradients: payload of a gradient all-reduce; activations: outputs of all operators, which training "
        "keeps. Both in float32."
    ),
)


def format_row(name: str, samples: Samples) -> tuple[str, ...]:
    """Return the row of a model for samples of one kind, or raise ValueError if it cannot be built."""
    model: Graph = graph(name, *samples)
    stem = ("small" if is_small(model.shape) else "original") if has_small_stem(name) else ""
    megabytes = (f"{size / 1e6:.2f}" for size in (model.gradient_bytes, model.activation_bytes))
    return (*_describe(name, samples), stem, f"{model.parameters:,}", f"{model.macs / 1e6:.1f}", *megabytes)


def inputs_of(name: str, inputs: Mapping[str, Sequence[Samples]] = INPUTS) -> Sequence[Samples]:
    """Return the samples of a model's kind; without any, samples of another kind, which it refuses."""
    return inputs.get(models()[name].sample_kind) or next(iter(inputs.values()))


def listing(names: Sequence[str], inputs: Mapping[str, Sequence[Samples]] = INPUTS) -> str:
    """Return the table of the models for a terminal, with a legend and the reason for each row of dashes."""
    rows: list[tuple[str, ...]] = [HEADER]
    reasons: list[str] = []
    for name in names:
        for samples in inputs_of(name, inputs):
            try:
                rows.append(format_row(name, samples))
            except ValueError as error:
                rows.append((*_describe(name, samples), *(DASH for _ in HEADER[3:])))
                reasons.append(str(error))
    lines = [
        "  ".join(cells).rstrip() for cells in align_columns(rows, left=[name in WORDS for name in HEADER])
    ]
    titles = [
        f"{name}: {models()[name].title}" + (f" ({source})" if (source := models()[name].source) else "")
        for name in names
    ]
    dashes = [f"{DASH}: the model cannot be built for such samples:", *(f"  {reason}" for reason in reasons)]
    return "\n".join([*lines, "", *LEGEND, *(dashes if reasons else []), "", *titles])


def _describe(name: str, samples: Samples) -> tuple[str, str, str]:
    """Return the first three columns of a row: model, sample, classes."""
    shape, classes, *rest = samples
    return name, f"{shape[0]}:{rest[0]}" if rest and rest[0] else "x".join(map(str, shape)), str(classes)


def parse_image(text: str) -> Shape:
    """Return the shape in a text HEIGHTxWIDTHxCHANNELS."""
    if not re.fullmatch(r"[1-9]\d{0,4}x[1-9]\d{0,4}x[1-9]\d{0,4}", text):
        expected = "HEIGHTxWIDTHxCHANNELS, such as 224x224x3"
        raise InputError("bad-pattern", f"is {text!r}", file="--image", got=text, expected=expected)
    height, width, channels = map(int, text.split("x"))
    return height, width, channels


def parse_tokens(text: str) -> tuple[int, int]:
    """Return length and vocabulary in a text LENGTH:VOCABULARY."""
    if not re.fullmatch(r"[1-9]\d{0,5}:[1-9]\d{0,6}", text):
        expected = "LENGTH:VOCABULARY, such as 40:10000"
        raise InputError("bad-pattern", f"is {text!r}", file="--tokens", got=text, expected=expected)
    length, vocabulary = map(int, text.split(":"))
    return length, vocabulary


def choose_inputs(image: str | None, tokens: str | None, classes: int) -> dict[str, Sequence[Samples]]:
    """Return the samples that the options give, by kind; INPUTS without options."""
    chosen: dict[str, Sequence[Samples]] = {}
    if image:
        chosen[IMAGES] = [(parse_image(image), classes)]
        chosen[PIXELS] = [(parse_image(image), classes, None, "pixel")]
    if tokens:
        length, vocabulary = parse_tokens(tokens)
        if length == N_COUNTS + N_CATEGORIES:
            chosen[CLICKS] = [((length,), 2, vocabulary, "click")]
        chosen[TEXTS] = [((length,), classes, vocabulary, "class")]
        chosen[TOKENS] = [((length,), vocabulary, vocabulary, "next")]
    return chosen or {**INPUTS}


def to_json(names: Sequence[str], inputs: Mapping[str, Sequence[Samples]], own: Mapping[str, str]) -> str:
    """Return the table as JSON. A model that cannot be built for samples has a reason instead of numbers.

    Args:
        names: Models.
        inputs: Samples by kind.
        own: Titles of user-supplied PyTorch modules by name; their sizes are unknown.
    """
    rows: list[dict[str, object]] = []
    for name in names:
        for samples in inputs_of(name, inputs):
            _, sample, classes = _describe(name, samples)
            entry = {"model": name, "title": models()[name].title, "sample": sample, "classes": int(classes)}
            try:
                model = graph(name, *samples)
            except ValueError as error:
                rows.append({**entry, "reason": str(error)})
                continue
            rows.append(entry | {name: getattr(model, name) for name in NUMBERS})
    rows += [{"model": name, "title": title, "reason": UNKNOWN_SIZE} for name, title in own.items()]
    return json.dumps(rows, indent=2)


def show_models(
    names: Sequence[str] = (),
    image: str | None = None,
    tokens: str | None = None,
    classes: int = 10,
    as_json: bool = False,
    own: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print parameters, multiplications, and bytes of gradients and activations of models.

    Args:
        names: Models; default: all models of these kinds of samples.
        image: Images to ask about, HEIGHTxWIDTHxCHANNELS.
        tokens: Tokens to ask about, LENGTH:VOCABULARY.
        classes: Number of classes of these images and texts.
        as_json: Print JSON, for programs.
        own: Titles of user-supplied PyTorch modules, by name.
    """
    if unknown := [name for name in names if name not in models() and name not in own]:
        problem, choices = f"'{unknown[0]}' is not a model", sorted([*models(), *own])
        raise InputError("unknown-name", problem, got=unknown[0], **alternatives(unknown[0], choices))
    if classes < MIN_CLASSES:
        problem = f"{classes} is too small"
        raise InputError(
            "out-of-range", problem, file="--classes", got=classes, expected=f"at least {MIN_CLASSES}"
        )
    inputs = choose_inputs(image, tokens, classes)
    if names:
        chosen = [name for name in names if name in models()]
        own = {name: own[name] for name in names if name in own}
    else:
        chosen = [name for name in sorted(models()) if models()[name].sample_kind in inputs]
        own = {} if image or tokens else own
    if as_json:
        print(to_json(chosen, inputs, own))
        return
    if chosen:
        print(listing(chosen, inputs), end="\n\n" if own else "\n")
    if own:
        print(f"{UNKNOWN_SIZE}:", *(f"  {name}: {title}" for name, title in own.items()), sep="\n")
