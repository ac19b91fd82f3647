"""Look up models by name, and build them for the samples and labels of a data set."""

import functools
import importlib
import itertools
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from models.graph import Builder, Graph, Shape

SMALL = 64  # pixels of the largest images that get the small stem

MASKED_SHARE = 0.15  # share of a sequence's tokens (Devlin et al., NAACL 2019, section 3.1)

# Kinds of samples.
IMAGES, PIXELS, TEXTS, TOKENS, CLICKS = "images", "pixels", "texts", "tokens", "clicks"


@dataclass(frozen=True)
class Model:
    """A model that can be built for samples of different shapes.

    Attributes:
        build: Adds the operators, as `build(builder, classes)`.
        title: Name in texts.
        source: Where the model was published.
        initializer: See models.initial.
        sample_kind: `images` or `texts` (sequences of tokens) that have a class, images whose `pixels` have
            one each, rows of counts and categories with `clicks`, or sequences of `tokens` whose label at
            each position is the next token; `classes` is then the size of the vocabulary.
        is_masked: Whether it predicts masked tokens instead of next ones. A sample then has the tokens and
            the positions of the masked ones, and the vocabulary has one more token, the mask.
    """

    build: Callable[[Builder, int], None]
    title: str
    source: str
    initializer: str
    sample_kind: str = IMAGES
    is_masked: bool = False


def is_small(shape: Shape) -> bool:
    """Return whether images of a shape get the small stem: their longer side is at most SMALL."""
    return max(shape[:2]) <= SMALL


@functools.cache
def has_small_stem(name: str) -> bool:
    """Return whether a model has different stems for small and for large images."""
    try:
        small, large = (graph(name, (side, side, 3), 10).operators[1] for side in (SMALL, 2 * SMALL))
    except ValueError:
        return False
    return small.settings != large.settings


@functools.cache
def models() -> Mapping[str, Model]:
    """Return all models by name."""
    families = importlib.import_module("models.families")
    modules = [
        importlib.import_module(f"models.families.{info.name}")
        for info in pkgutil.iter_modules(families.__path__)
    ]
    return {name: model for module in modules for name, model in module.MODELS.items()}


@functools.cache
def graph(
    name: str, shape: Shape, classes: int, vocabulary: int | None = None, targets: str = "class"
) -> Graph:
    """Return the graph of a model for samples of one shape.

    Args:
        name: The model.
        shape: (height, width, channels) of images, (length,) of sequences of tokens.
        classes: Number of classes; for `next` the size of the vocabulary.
        vocabulary: Number of different tokens, None for images.
        targets: Kind of labels: `class`, one for each sample; `pixel`, a class of each pixel; `click`,
            whether a row was clicked; or `next`, the next token at each position.

    Raises:
        ValueError: If the model is made for other samples, if they are too small, or if shapes do not match.
    """
    model = models()[name]
    kind = sample_kind(vocabulary, targets)
    try:
        check_sample_kind(model.sample_kind, kind)
        if model.is_masked:
            classes, n_masked = classes + 1, max(1, round(MASKED_SHARE * shape[0]))
            builder = Builder(name, (shape[0] + n_masked,), model.initializer, classes, n_masked)
        else:
            builder = Builder(name, shape, model.initializer, vocabulary)
        model.build(builder, classes)
        built = builder.graph()
        _check_logits(built, classes, model.sample_kind)
    except ValueError as error:
        element = {CLICKS: "elements"}.get(kind, "tokens")
        size = f"{shape[0]} x {shape[1]} pixels" if vocabulary is None else f"{shape[0]} {element}"
        samples = "images" if vocabulary is None else {CLICKS: "rows"}.get(kind, "sequences")
        raise ValueError(f"model {name} cannot be built for {samples} of {size}: {error}") from None
    return built


def sample_kind(vocabulary: int | None, targets: str) -> str:
    """Return the kind of samples with this vocabulary (None: images) and these labels (see `graph`)."""
    if targets == "class":
        return IMAGES if vocabulary is None else TEXTS
    return {"pixel": PIXELS, "click": CLICKS, "next": TOKENS}[targets]


def check_sample_kind(expected: str, kind: str) -> None:
    """Raise ValueError if a model takes samples of another kind."""
    if expected != kind:
        raise ValueError(f"it takes {_KIND_TITLES[expected]}, not {_KIND_TITLES[kind]}")


def _check_logits(model: Graph, classes: int, sample_kind: str) -> None:
    """Raise ValueError if a model does not end with logits, or selects a missing position."""
    for operator in model.operators:
        if operator.kind == "step":
            length, index = model.by_name[operator.inputs[0]].shape[0], operator["index"]
            if not -length <= index < length:
                raise ValueError(f"{operator.inputs[0]} has {length} positions; there is none at {index}")
    last, place = model.operators[-1], {TOKENS: "position", PIXELS: "pixel"}.get(sample_kind, "")
    is_short = sample_kind == PIXELS and last.shape[0] != math.prod(model.shape[:2])
    if len(last.shape) != (2 if place else 1) or last.shape[-1] != classes or is_short:
        expected = f"{classes} logits" + f" at each {place}" * bool(place)
        raise ValueError(f"its last operator, {last.name}, gives {last.shape}; expected {expected}")
    if sample_kind == TOKENS and not model.n_masked:
        _check_labels_unseen(model)


def _check_labels_unseen(model: Graph) -> None:
    """Raise ValueError if a position depends on the token that it predicts and could copy."""
    last = model.operators[-1]
    first_label = model.operators[0].shape[0] - last.shape[0] + 1
    for position, seen in enumerate(_last_seen(model)[last.name]):
        if seen >= first_label + position:
            raise ValueError(
                f"{last.name} tells token {first_label + position} at position {position}, and has seen the "
                f"tokens up to {seen}; make its attention causal"
            )


def _last_seen(model: Graph) -> dict[str, list[int]]:
    """Return the last token that each position of each operator depends on; a vector is one position."""
    seen: dict[str, list[int]] = {}
    for operator in model.operators:
        inputs = [seen[name] for name in operator.inputs]
        match operator.kind:
            case "input":
                last = list(range(operator.shape[0]))
            case "lstm":
                x, *state = inputs
                last = list(itertools.accumulate(x, max, initial=max(itertools.chain(*state), default=-1)))[
                    1:
                ]
            case "experts":  # Earlier positions fill experts.
                last = list(itertools.accumulate(inputs[0], max))
            case "attention" if operator["causal"]:
                last = list(itertools.accumulate(inputs[0], max))
            case "attention":
                last = [max(own, *inputs[-1]) for own in inputs[0]]
            case "class_token":
                last = [-1, *inputs[0]]
            case "step":
                last = [inputs[0][operator["index"]]]
            case "steps":
                last = inputs[0][operator["start"] : operator["stop"]]
            case _:
                positions = operator.shape[0] if len(operator.shape) > 1 else 1
                last = [
                    max(x[i] if len(x) == positions else max(x) for x in inputs) for i in range(positions)
                ]
        seen[operator.name] = last
    return seen


_KIND_TITLES = {
    IMAGES: "images",
    PIXELS: "images with a class of each pixel",
    TEXTS: "texts with a class",
    CLICKS: "rows with clicks",
    TOKENS: "tokens that predict the next one",
}
