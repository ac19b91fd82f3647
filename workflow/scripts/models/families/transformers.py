"""Pre-norm transformers (Vaswani et al., NeurIPS 2017): GPT for tokens and ViT for images."""

from functools import partial

from models.graph import Builder
from models.named import TOKENS, Model, is_small


def gpt(model: Builder, _classes: int, *, layers: int, heads: int, units: int) -> None:
    """Add embeddings of tokens and positions, causal blocks, and a tied dense layer, without dropout.

    The model has as many positions as the sequences of its data set; GPT-2 has 1,024.
    """
    x = model.positions(model.embedding(model.input, units, name="embedding"), name="positions")
    for block in range(1, layers + 1):
        x = _block(model, x, heads, "gelu_tanh", 1e-5, f"block{block}", causal=True)
    model.tied_dense(model.layer_norm(x, name="norm"), "embedding", name="head")


def vit(model: Builder, classes: int, *, layers: int, heads: int, units: int) -> None:
    """Add patches, a class token, position embeddings, blocks and a dense layer.

    Patches have 16 x 16 pixels, on small images 4 x 4.
    """
    height, width, _ = model.shape(model.input)
    patch = 4 if is_small(model.shape(model.input)) else 16
    if height % patch or width % patch:
        raise ValueError(f"its patches are {patch} x {patch} pixels, and must fill the image")
    x = model.sequence(model.conv(model.input, units, patch, patch, name="patches"), name="sequence")
    x = model.positions(model.class_token(x, name="class_token"), name="positions")
    for block in range(1, layers + 1):
        x = _block(model, x, heads, "gelu", 1e-6, f"block{block}", causal=False)
    x = model.layer_norm(x, epsilon=1e-6, name="norm")
    model.dense(model.step(x, 0, name="class_step"), classes, name="head")


def _block(
    model: Builder, x: str, heads: int, function: str, epsilon: float, name: str, *, causal: bool
) -> str:
    units = model.shape(x)[-1]
    y = model.layer_norm(x, epsilon=epsilon, name=f"{name}_norm1")
    y = model.attention(y, heads, causal=causal, name=f"{name}_attention")
    x = model.add(x, y, name=f"{name}_add1")
    y = model.layer_norm(x, epsilon=epsilon, name=f"{name}_norm2")
    y = model.activation(model.dense(y, 4 * units, name=f"{name}_expand"), function, name=f"{name}_gelu")
    return model.add(x, model.dense(y, units, name=f"{name}_project"), name=f"{name}_add2")


_GPT = "Radford et al., Language Models are Unsupervised Multitask Learners, 2019"
MODELS = {
    "gpt-2": Model(
        partial(gpt, layers=12, heads=12, units=768), "GPT-2, the smallest", _GPT, "gpt-2", TOKENS
    ),
    "gpt-nano": Model(
        partial(gpt, layers=4, heads=4, units=64), "GPT-2's operators, for laptops: 4 blocks of 4 heads", "",
        "gpt-2", TOKENS
    ),
    "vit-b-16": Model(
        partial(vit, layers=12, heads=12, units=768), "Vision Transformer ViT-B/16",
        "Dosovitskiy et al., ICLR 2021", "vit"
    ),
}  # fmt: skip
