"""MPT (MosaicML NLP Team, 2023) as LLM Foundry's throughput tables train it: GPT's blocks in nine sizes.

With 50,368 tokens and 2,048 positions their numbers of parameters are those that were published. These
trainings had learned positions, as GPT; released MPT-7B has biases of attention by distance (ALiBi) instead.
"""

from functools import partial

from models.families.transformers import gpt
from models.named import TOKENS, Model

_SOURCE = "MosaicML, LLM Foundry, 2023"
_SIZES = {  # layers, heads, units
    "125m": (12, 12, 768),
    "350m": (24, 16, 1024),
    "760m": (24, 12, 1536),
    "1b": (24, 16, 2048),
    "3b": (32, 20, 2560),
    "7b": (32, 32, 4096),
    "13b": (40, 40, 5120),
    "30b": (48, 56, 7168),
    "70b": (80, 64, 8192),
}

MODELS = {
    f"mpt-{size}": Model(
        partial(gpt, layers=layers, heads=heads, units=units),
        f"MPT-{size.upper()} with learned positions",
        _SOURCE,
        "gpt-2",
        TOKENS,
    )
    for size, (layers, heads, units) in _SIZES.items()
}
