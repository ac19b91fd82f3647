"""Recurrent networks of the FlexFlow paper (Jia, Zaharia & Aiken, MLSys 2019, section 8.1).

The paper specifies the number of LSTM layers of 1,024 units, unrolled for 40 steps, the embedding before and
the softmax after them, and attention on top of the decoder. Our choices: embeddings have 1,024 units, a
classifier uses the last position, a decoder layer starts with the final state of its encoder layer, and
attention is that of Luong et al. (EMNLP 2015, section 3.1). The softmax is part of the loss.
"""

from functools import partial

from models.graph import Builder
from models.named import TEXTS, TOKENS, Model


def text_classifier(model: Builder, classes: int, *, layers: int, units: int) -> None:
    """Add an embedding, LSTM layers, and a dense layer after the last position."""
    x = model.embedding(model.input, units, name="embedding")
    for layer in range(1, layers + 1):
        x = model.lstm(x, units, name=f"lstm{layer}")
    model.dense(model.step(x, -1, name="last_step"), classes, name="head")


def language_model(model: Builder, classes: int, *, layers: int, units: int) -> None:
    """Add an embedding, LSTM layers, and a dense layer at each position."""
    x = model.embedding(model.input, units, name="embedding")
    for layer in range(1, layers + 1):
        x = model.lstm(x, units, name=f"lstm{layer}")
    model.dense(x, classes, name="head")


def translation(model: Builder, classes: int, *, layers: int, units: int) -> None:
    """Add an encoder of the first half of the tokens, and a decoder that predicts the second half."""
    (length,) = model.shape(model.input)
    source = model.steps(model.input, 0, length // 2, name="source")
    target = model.steps(model.input, length // 2, length, name="target")
    x = model.embedding(source, units, name="source_embedding")
    y = model.embedding(target, units, name="target_embedding")
    for layer in range(1, layers + 1):
        x = model.lstm(x, units, name=f"encoder{layer}")
        y = model.lstm(y, units, state=model.final_state(x, name=f"state{layer}"), name=f"decoder{layer}")
    context = model.attention(y, 1, to=x, name="attention")
    joined = model.dense(model.concatenate(context, y, name="joined"), units, name="attentional")
    model.dense(model.activation(joined, "tanh", name="attentional_tanh"), classes, name="head")


_SOURCE = "as in Jia et al., MLSys 2019"
MODELS = {
    "rnn-text": Model(
        partial(text_classifier, layers=4, units=1024), "text classification by 4 LSTM layers", _SOURCE,
        "uniform", TEXTS
    ),
    "rnn-lm": Model(
        partial(language_model, layers=2, units=1024), "language model of 2 LSTM layers", _SOURCE, "uniform",
        TOKENS
    ),
    "rnn-text-nano": Model(
        partial(text_classifier, layers=1, units=64),
        "text classification for laptops: an LSTM layer of 64 units", "", "uniform", TEXTS
    ),
    "rnn-nano": Model(
        partial(language_model, layers=1, units=64), "language model for laptops: an LSTM layer of 64 units",
        "", "uniform", TOKENS
    ),
    "rnn-translation": Model(
        partial(translation, layers=2, units=1024),
        "translation: encoder and decoder of 2 LSTM layers each, with attention",
        _SOURCE,
        "uniform",
        TOKENS,
    ),
}  # fmt: skip
