"""Pre-norm transformers (Vaswani et al., NeurIPS 2017): GPT and Llama for tokens, ViT for images."""

from functools import partial

from models.graph import Builder, Rotary
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


def llama(
    model: Builder,
    classes: int,
    *,
    layers: int,
    heads: int,
    key_heads: int,
    units: int,
    hidden: int,
    rotary: Rotary,
    tied: bool = False,
    experts: tuple[int, int] | None = None,
) -> None:
    """Add an embedding, causal blocks and a dense layer, all without biases and dropout.

    Blocks have RMSNorm, grouped-query attention with rotary positions, and SwiGLU (Shazeer,
    arXiv:2002.05202). With `tied` the last layer uses the table of the embedding. Initial weights are drawn
    as GPT-2's, since Llama's distribution is not published. With `experts`, their number and how many a
    position uses, blocks have a mixture of experts in place of SwiGLU, as Mixtral's.
    """
    x = model.embedding(model.input, units, name="embedding")
    for block in range(1, layers + 1):
        name = f"block{block}"
        y = model.rms_norm(x, name=f"{name}_norm1")
        y = model.attention(
            y, heads, causal=True, key_heads=key_heads, rotary=rotary, bias=False, name=f"{name}_attention"
        )
        x = model.add(x, y, name=f"{name}_add1")
        y = model.rms_norm(x, name=f"{name}_norm2")
        if experts:
            y = model.experts(y, experts[0], hidden, top=experts[1], name=f"{name}_experts")
        else:
            y = _swiglu(model, y, hidden, name)
        x = model.add(x, y, name=f"{name}_add2")
    x = model.rms_norm(x, name="norm")
    if tied:
        model.tied_dense(x, "embedding", name="head")
    else:
        model.dense(x, classes, bias=False, name="head")


def _swiglu(model: Builder, x: str, hidden: int, name: str) -> str:
    gate = model.dense(x, hidden, bias=False, name=f"{name}_gate")
    gate = model.activation(gate, "silu", name=f"{name}_silu")
    y = model.multiply(gate, model.dense(x, hidden, bias=False, name=f"{name}_up"), name=f"{name}_gated")
    return model.dense(y, model.shape(x)[-1], bias=False, name=f"{name}_down")


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
_VIT = "Dosovitskiy et al., ICLR 2021"
_LLAMA_3 = "Grattafiori et al., arXiv:2407.21783"
_LONG = Rotary(500_000.0, factor=32.0)  # of Llama 3.2


def _gpt(layers: int, heads: int, units: int, title: str, source: str = _GPT) -> Model:
    return Model(partial(gpt, layers=layers, heads=heads, units=units), title, source, "gpt-2", TOKENS)


def _llama(
    layers: int,
    heads: tuple[int, int],
    units: tuple[int, int],
    rotary: Rotary,
    title: str,
    source: str = "",
    *,
    tied: bool = False,
    experts: tuple[int, int] | None = None,
) -> Model:
    """Return a Llama from its heads of queries and keys, and the units of blocks and hidden layers."""
    of_heads = partial(llama, heads=heads[0], key_heads=heads[1], rotary=rotary, tied=tied, experts=experts)
    build = partial(of_heads, layers=layers, units=units[0], hidden=units[1])
    return Model(build, title, source, "gpt-2", TOKENS)


MODELS = {
    "gpt-2": _gpt(12, 12, 768, "GPT-2, the smallest"),
    "gpt-2-medium": _gpt(24, 16, 1024, "GPT-2 medium"),
    "gpt-2-large": _gpt(36, 20, 1280, "GPT-2 large"),
    "gpt-2-xl": _gpt(48, 25, 1600, "GPT-2 XL"),
    "gpt-nano": _gpt(4, 4, 64, "GPT-2's operators, for laptops: 4 blocks of 4 heads", ""),
    "llama-2-7b": _llama(
        32, (32, 32), (4096, 11_008), Rotary(10_000.0), "Llama 2 7B", "Touvron et al., arXiv:2307.09288"
    ),
    "llama-3-8b": _llama(32, (32, 8), (4096, 14_336), Rotary(500_000.0), "Llama 3 8B", _LLAMA_3),
    "llama-3.2-1b": _llama(
        16, (32, 8), (2048, 8192), _LONG, "Llama 3.2 1B", "Meta, model card of Llama 3.2, 2024", tied=True
    ),
    "llama-3.2-3b": _llama(
        28, (24, 8), (3072, 8192), _LONG, "Llama 3.2 3B", "Meta, model card of Llama 3.2, 2024", tied=True
    ),
    "llama-20m": _llama(
        6, (6, 2), (384, 1024), Rotary(10_000.0),
        "Llama's operators: 20 million parameters with a vocabulary of 28,000", tied=True
    ),
    "llama-nano": _llama(
        4, (4, 2), (64, 192), Rotary(10_000.0), "Llama's operators, for laptops: 4 blocks of 4 heads"
    ),
    "llama-moe-nano": _llama(
        4, (4, 2), (64, 96), Rotary(10_000.0),
        "Mixtral's operators, for laptops: 4 blocks of 4 experts, of which a token uses 2", experts=(4, 2)
    ),
    "mixtral-8x7b": _llama(
        32, (32, 8), (4096, 14_336), Rotary(1_000_000.0),
        "Mixtral 8x7B: 8 experts in each block, of which a token uses 2", "Jiang et al., arXiv:2401.04088",
        experts=(8, 2),
    ),
    "vit-b-16": Model(
        partial(vit, layers=12, heads=12, units=768), "Vision Transformer ViT-B/16", _VIT, "vit"
    ),
    "vit-l-16": Model(
        partial(vit, layers=24, heads=16, units=1024), "Vision Transformer ViT-L/16", _VIT, "vit"
    ),
}  # fmt: skip
