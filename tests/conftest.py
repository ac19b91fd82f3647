"""What several stages' tests need: the shipped environments, really built."""

import os
from pathlib import Path

import pytest

from common.files import CHECKOUT, load_yaml
from environments.build import build
from environments.description import read


@pytest.fixture(scope="session")
def real():
    """What environment.json says of a shipped environment, which is built in the user's cache unless it is there."""
    cache = Path(os.environ.get("RINGSIDE_CACHE", "~/.cache/ringside")).expanduser().resolve()
    torch_index = load_yaml(CHECKOUT / "config" / "sites" / "local.yaml")["torch_index"]
    return lambda name: build(read(name), cache, {"torch_index": torch_index})
