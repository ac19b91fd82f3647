"""PyTorch modules of the user's own in a folder of a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from declared import models, user_models
from support.own_commands import declarations_in, write_declarations

NORMALIZED: dict[str, Any] = {
    "file": "tests/support/torch_modules.py",
    "class": "make_normalized",
    "inputs": "images",
    "arguments": {"classes": "{classes}", "channels": "{channels}"},
}
CACHED = (
    user_models.user_model_names,
    user_models.load_user_model,
    models.trainable_model_names,
    models.model_graph,
)


@contextmanager
def user_models_in(folder: Path, **named: dict[str, Any]) -> Iterator[None]:
    """Let these modules, each with changes of NORMALIZED, be the only ones; `-` is `_` in their names."""
    write_declarations(folder, NORMALIZED, named)
    with declarations_in(folder, user_models.USER_MODELS, _set_folder):
        yield


def _set_folder(folder: Path) -> None:
    user_models.USER_MODELS = folder
    for cached in CACHED:
        cached.cache_clear()
