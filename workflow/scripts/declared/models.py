"""The models that a study may name, for the samples and labels of a data set."""

import functools

from declared.datasets import class_count, load_dataset, targets
from models.graph import Graph
from models.named import graph, models


@functools.cache
def model_names() -> tuple[str, ...]:
    """The models that a family of workflow/scripts/models/families/ has."""
    return tuple(sorted(models()))


@functools.cache
def model_graph(model: str, dataset: str) -> Graph:
    """A model for the samples and labels of a data set. ValueError when it does not take them, or when they are too small for it."""
    entry = load_dataset(dataset)
    return graph(model, tuple(entry["shape"]), class_count(entry), entry.get("vocabulary"), targets(entry))
