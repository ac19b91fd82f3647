"""The models that a study may name, for the images and classes of a data set."""

import functools

from declared.datasets import class_count, load_dataset
from models.graph import Graph
from models.named import graph, models


@functools.cache
def model_names() -> tuple[str, ...]:
    """The models that a family of workflow/scripts/models/families/ has."""
    return tuple(sorted(models()))


@functools.cache
def model_graph(model: str, dataset: str) -> Graph:
    """A model for the images and classes of a data set. ValueError when they are too small for it."""
    entry = load_dataset(dataset)
    return graph(model, tuple(entry["shape"]), class_count(entry))
