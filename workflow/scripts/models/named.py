"""The models by name, made concrete for images of a shape and a number of classes."""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from models.graph import Builder, Graph, Shape

SMALL = 64  # pixels: up to here the usual small stem, above the original


@dataclass(frozen=True)
class Model:
    """`build(builder, classes)` adds the operators. `source` is where it was published; `initializer` see models.initial."""

    build: Callable[[Builder, int], None]
    title: str
    source: str
    initializer: str


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
def graph(name: str, shape: Shape, classes: int) -> Graph:
    """A model for images of `shape`. ValueError when they are too small for it, or its operators do not fit each other."""
    model = models()[name]
    builder = Builder(name, shape, model.initializer)
    try:
        model.build(builder, classes)
    except ValueError as error:
        height, width, _ = shape
        raise ValueError(f"model {name} cannot be built for images of {height} x {width} pixels: {error}") from None
    return builder.graph()
