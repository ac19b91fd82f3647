"""What several stages' tests need: the shipped environments, really built."""

import os
from pathlib import Path

import pytest

from environments.build import build
from environments.description import read
from installed_site import SITE
from plan.identity import realization


@pytest.fixture(scope="session")
def real():
    """What environment.json says of a shipped environment, which is built in the user's cache unless it is there."""
    cache = Path(os.environ.get("RINGSIDE_CACHE", "~/.cache/ringside")).expanduser().resolve()
    indexes = {"torch_index": SITE.torch_index or ""}
    return lambda name: build(read(name), cache, indexes, realization(SITE))
