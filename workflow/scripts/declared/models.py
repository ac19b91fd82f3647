"""Return the models that a study may name, and their graphs for a data set."""

import functools

from common.errors import InputError
from declared.datasets import class_count, load_dataset, targets
from declared.own_models import is_own_model, load_own_model, own_model_names
from models.graph import Graph
from models.named import graph, models


@functools.cache
def model_names() -> tuple[str, ...]:
    """Return the names of all models of workflow/scripts/models/families/."""
    return tuple(sorted(models()))


@functools.cache
def trainable_model_names() -> tuple[str, ...]:
    """Return the names of all models that a study may train: graphs, and modules of the user's own."""
    return tuple(sorted((*model_names(), *own_model_names())))


@functools.cache
def model_graph(model: str, dataset: str) -> Graph:
    """Return a model's graph for the samples and labels of a data set.

    That of a module of the user's own has a single operator, without weights.

    Raises:
        ValueError: If the model does not accept them, or they are too small.
    """
    entry = load_dataset(dataset)
    samples = tuple(entry["shape"]), class_count(entry), entry.get("vocabulary"), targets(entry)
    return load_own_model(model).graph(*samples) if is_own_model(model) else graph(model, *samples)


@functools.cache
def find_graph(model: str, dataset: str) -> Graph | None:
    """Return a model's graph for a data set, None if one of the two is not registered or they do not fit.

    Of measurements made elsewhere and of commands of the user's own, models and data sets may have any name.
    Nothing is known of a module of the user's own before it is trained.
    Columns `parameters` and `gradient_bytes` of runs.csv have the size of an unregistered model.
    """
    if model not in model_names():
        return None
    try:
        return model_graph(model, dataset)
    except (InputError, ValueError):
        return None
