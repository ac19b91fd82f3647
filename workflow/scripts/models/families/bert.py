"""BERT: a post-norm transformer that predicts masked tokens (Devlin et al., NAACL 2019)."""

from functools import partial

from models.graph import Builder
from models.named import TOKENS, Model


def bert(model: Builder, _classes: int, *, layers: int, heads: int, units: int) -> None:
    """Add embeddings of tokens and positions, blocks, and a tied dense layer of the masked positions alone.

    As in RoBERTa (Liu et al., arXiv:1907.11692) there are no segments, and no next sentence is predicted.
    Dropout is left out.
    """
    (n_elements,), n_masked = model.shape(model.input), model.n_masked
    tokens = model.steps(model.input, 0, n_elements - n_masked, name="tokens")
    masked = model.steps(model.input, n_elements - n_masked, n_elements, name="masked")
    x = model.positions(model.embedding(tokens, units, name="embedding"), name="positions")
    x = model.layer_norm(x, epsilon=1e-12, name="embedding_norm")
    for block in range(1, layers + 1):
        name = f"block{block}"
        y = model.attention(x, heads, name=f"{name}_attention")
        x = model.layer_norm(model.add(x, y, name=f"{name}_add1"), epsilon=1e-12, name=f"{name}_norm1")
        y = model.activation(model.dense(x, 4 * units, name=f"{name}_expand"), "gelu", name=f"{name}_gelu")
        y = model.add(x, model.dense(y, units, name=f"{name}_project"), name=f"{name}_add2")
        x = model.layer_norm(y, epsilon=1e-12, name=f"{name}_norm2")
    x = model.dense(model.gather(x, masked, name="masked_positions"), units, name="transform")
    x = model.layer_norm(model.activation(x, "gelu", name="transform_gelu"), epsilon=1e-12, name="norm")
    model.add_vector(model.tied_dense(x, "embedding", name="head"), name="head_bias")


def _bert(layers: int, heads: int, units: int, title: str, source: str) -> Model:
    build = partial(bert, layers=layers, heads=heads, units=units)
    return Model(build, title, source, "bert", TOKENS, is_masked=True)


_SOURCE = "Devlin et al., NAACL 2019"
MODELS = {
    "bert-base": _bert(12, 12, 768, "BERT, base: predicts masked tokens", _SOURCE),
    "bert-large": _bert(24, 16, 1024, "BERT, large: predicts masked tokens", _SOURCE),
    "bert-nano": _bert(2, 4, 64, "BERT's operators, for laptops: 2 blocks of 4 heads", ""),
}
