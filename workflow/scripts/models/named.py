"""The models by name, made concrete for what the samples and labels of a data set are."""

import functools
import importlib
import itertools
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from models.graph import Builder, Graph, Shape

SMALL = 64  # pixels: up to here the usual small stem, above the original


IMAGES, TEXTS, TOKENS = "images", "texts", "tokens"  # what models take


@dataclass(frozen=True)
class Model:
    """`build(builder, classes)` adds the operators. `source` is where it was published; `initializer` see models.initial.

    `takes` says what samples and labels are: `images` of a class, `texts` (sequences of tokens) of a class, or sequences of
    `tokens`, at each position of which the label is the next one; its `classes` are then the vocabulary.
    """

    build: Callable[[Builder, int], None]
    title: str
    source: str
    initializer: str
    takes: str = IMAGES


def is_small(shape: Shape) -> bool:
    """Whether images of `shape` get the small stem: by their longer side."""
    return max(shape[:2]) <= SMALL


@functools.cache
def has_small_stem(name: str) -> bool:
    """Whether the model begins otherwise on small images than on large ones."""
    try:
        small, large = (graph(name, (side, side, 3), 10).operators[1] for side in (SMALL, 2 * SMALL))
    except ValueError:
        return False
    return small.settings != large.settings


@functools.cache
def models() -> Mapping[str, Model]:
    """All models: name -> what it is."""
    families = importlib.import_module("models.families")
    modules = [
        importlib.import_module(f"models.families.{found.name}") for found in pkgutil.iter_modules(families.__path__)
    ]
    return {name: model for module in modules for name, model in module.MODELS.items()}


@functools.cache
def graph(name: str, shape: Shape, classes: int, vocabulary: int | None = None, targets: str = "class") -> Graph:
    """A model for samples of `shape`: images (height, width, channels), or sequences of tokens (length,) of a `vocabulary`.

    `targets` says what labels are: `class`, one of `classes` for each sample, or `next`, the next token at each position,
    where `classes` are the vocabulary. ValueError when the model does not take such samples, when they are too small for it,
    or when its operators do not fit each other.
    """
    model = models()[name]
    given = IMAGES if vocabulary is None else {"class": TEXTS, "next": TOKENS}[targets]
    builder = Builder(name, shape, model.initializer, vocabulary)
    try:
        if model.takes != given:
            raise ValueError(f"it takes {_SAID[model.takes]}, not {_SAID[given]}")
        model.build(builder, classes)
        made = builder.graph()
        _check(made, classes, model.takes)
    except ValueError as error:
        size = f"{shape[0]} x {shape[1]} pixels" if given == IMAGES else f"{shape[0]} tokens"
        kind = "images" if given == IMAGES else "sequences"
        raise ValueError(f"model {name} cannot be built for {kind} of {size}: {error}") from None
    return made


def _check(made: Graph, classes: int, takes: str) -> None:
    """Whether a model ends with logits, and takes positions that there are: a loss would take other outputs for these."""
    for operator in made.operators:
        if operator.kind == "step":
            length, index = made.by_name[operator.inputs[0]].shape[0], operator["index"]
            if not -length <= index < length:
                raise ValueError(f"{operator.inputs[0]} has {length} positions; there is none at {index}")
    last = made.operators[-1]
    if len(last.shape) != (2 if takes == TOKENS else 1) or last.shape[-1] != classes:
        wanted = f"{classes} logits{' at each position' * (takes == TOKENS)}"
        raise ValueError(f"its last operator, {last.name}, gives {last.shape}; expected {wanted}")
    if takes == TOKENS:
        _check_labels_unseen(made)


def _check_labels_unseen(made: Graph) -> None:
    """Whether no position has seen the token that it has to tell: it would learn to copy it."""
    last = made.operators[-1]
    first_told = made.operators[0].shape[0] - last.shape[0] + 1
    for position, seen in enumerate(_last_seen(made)[last.name]):
        if seen >= first_told + position:
            raise ValueError(
                f"{last.name} tells token {first_told + position} at position {position}, and has seen the tokens up to {seen}; "
                "make its attention causal"
            )


def _last_seen(made: Graph) -> dict[str, list[int]]:
    """Operator -> for each of its positions the last token on which it depends; of a vector, which has no positions, for all of it."""
    seen: dict[str, list[int]] = {}
    for operator in made.operators:
        inputs = [seen[name] for name in operator.inputs]
        match operator.kind:
            case "input":
                at = list(range(operator.shape[0]))
            case "lstm":
                x, *state = inputs
                at = list(itertools.accumulate(x, max, initial=max(itertools.chain(*state), default=-1)))[1:]
            case "attention" if operator["causal"]:
                at = list(itertools.accumulate(inputs[0], max))
            case "attention":
                at = [max(own, *inputs[-1]) for own in inputs[0]]
            case "class_token":
                at = [-1, *inputs[0]]
            case "step":
                at = [inputs[0][operator["index"]]]
            case "steps":
                at = inputs[0][operator["start"] : operator["stop"]]
            case _:
                positions = operator.shape[0] if len(operator.shape) > 1 else 1
                at = [max(x[i] if len(x) == positions else max(x) for x in inputs) for i in range(positions)]
        seen[operator.name] = at
    return seen


_SAID = {IMAGES: "images", TEXTS: "texts with a class", TOKENS: "tokens that predict the next one"}
