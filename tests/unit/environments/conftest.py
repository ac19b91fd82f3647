"""Two tiny environments that build in seconds."""

import os
import shutil

import pytest

from declared.environments import read
from environments.build import build
from support.tiny_environments import Tiny, write_tiny


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """One folder for all tests, since a virtual environment cannot be moved.

    Beside it, what they start from.
    """
    root = tmp_path_factory.mktemp("tiny")
    write_tiny(root)
    shutil.copytree(root, root.with_name("tiny-empty"))
    return root


@pytest.fixture
def tiny(root, monkeypatch):
    """The tiny environments with an empty cache; pip sees their packages and no network."""
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(root / "links"))
    shutil.rmtree(root)
    shutil.copytree(root.with_name("tiny-empty"), root)
    return Tiny(root / "containers", root / "links", root / "cache", root / "count")


@pytest.fixture
def filled(tiny, root):
    """The tiny environments with both of them built."""
    complete = root.with_name("tiny-filled")
    if not complete.exists():
        build(read("over", containers=tiny.containers), tiny.cache)
        shutil.copytree(root, complete, symlinks=True)
    shutil.rmtree(root)
    shutil.copytree(complete, root, symlinks=True)
    return tiny
