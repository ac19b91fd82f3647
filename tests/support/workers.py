"""A folder that the workers of one call of pytest share."""

import os
from pathlib import Path

import pytest

WORKER = "PYTEST_XDIST_WORKER"  # set in a worker of pytest-xdist


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder that all workers of this call of pytest see."""
    base = factory.getbasetemp()
    return base.parent if WORKER in os.environ else base
