"""Return the models that a study can name, and their graphs for a data set."""

import functools

from common.errors import InputError
from declared.datasets import class_count, load_dataset, targets
from declared.user_models import is_user_model, load_user_model, user_model_names
from models.graph import Graph
from models.named import graph, models


@functools.cache
def model_names() -> tuple[str, ...]:
    """Return the names of all models of workflow/scripts/models/families/."""
    return tuple(sorted(models()))


@functools.cache
def trainable_model_names() -> tuple[str, ...]:
    """Return the names of all models that a study can train: graphs of Ringside and user-supplied modules."""
    return tuple(sorted((*model_names(), *user_model_names())))


@functools.cache
def model_graph(model: str, dataset: str) -> Graph:
    """Return a model's graph for the samples and labels of a data set.

    The graph of a user-supplied module is a single operator without weights.

    Raises:
        ValueError: If the model does not accept them, or they are too small.
    """
    entry = load_dataset(dataset)
    samples = tuple(entry["shape"]), class_count(entry), entry.get("vocabulary"), targets(entry)
    return load_user_model(model).graph(*samples) if is_user_model(model) else graph(model, *samples)


@functools.cache
def find_graph(model: str, dataset: str) -> Graph | None:
    """Return a model's graph for a data set, None if Ringside lacks one of them or they do not fit.

    Measurements made elsewhere and user-supplied commands can have other models and data sets; the columns
    `parameters` and `gradient_bytes` of runs.csv then have the size of the model. A user-supplied module has
    no graph here, since its size is unknown before it is trained.
    """
    if model not in model_names():
        return None
    try:
        return model_graph(model, dataset)
    except (InputError, ValueError):
        return None
