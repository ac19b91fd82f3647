"""DLRM, a model of recommendation (Naumov et al., arXiv:1906.00091), for rows of Criteo's click logs.

The tables of all categories are one, in which each has rows of its own. Two logits, for and against a click,
take the place of one: their difference is its logit.
"""

from functools import partial

from models.graph import N_CATEGORIES, N_COUNTS, Builder
from models.named import CLICKS, Model


def dlrm(model: Builder, classes: int, *, bottom: tuple[int, ...], top: tuple[int, ...]) -> None:
    """Add dense layers of counts, embeddings of categories, the products of their pairs, and dense layers.

    Args:
        model: receives the operators.
        classes: number of logits.
        bottom: units of the layers of counts; an embedding has as many as the last one.
        top: units of the layers of products.
    """
    n_elements = N_COUNTS + N_CATEGORIES
    if model.shape(model.input) != (n_elements,):
        raise ValueError(f"a row has {N_COUNTS} counts and {N_CATEGORIES} categories")
    x = model.log_counts(model.steps(model.input, 0, N_COUNTS, name="counts"), name="log_counts")
    for number, units in enumerate(bottom, 1):
        x = model.activation(
            model.dense(x, units, name=f"bottom{number}"), "relu", name=f"bottom{number}_relu"
        )
    categories = model.steps(model.input, N_COUNTS, n_elements, name="categories")
    vectors = model.embedding(categories, bottom[-1], name="embedding")
    x = model.interactions(x, vectors, name="interactions")
    for number, units in enumerate(top, 1):
        x = model.activation(model.dense(x, units, name=f"top{number}"), "relu", name=f"top{number}_relu")
    model.dense(x, classes, name="head")


_SOURCE = "Naumov et al., arXiv:1906.00091"
MODELS = {
    "dlrm": Model(
        partial(dlrm, bottom=(512, 256, 128), top=(1024, 1024, 512, 256)),
        "DLRM, with the layers of MLPerf's benchmark", _SOURCE, "glorot", CLICKS
    ),
    "dlrm-nano": Model(
        partial(dlrm, bottom=(32, 8), top=(32,)),
        "DLRM for laptops: embeddings of 8 units", "", "glorot", CLICKS
    ),
}  # fmt: skip
