"""Fixtures: a file server, and a store of archives in an empty cache with short pauses."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datasets.fetch import Store
from datasets.transfer import RetryPolicy
from support.file_server import FileServer, file_server


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        yield running


@pytest.fixture
def store_at(tmp_path: Path) -> Callable[..., Store]:
    """Return a function that makes a store with changed defaults."""

    def make(**changes: Any) -> Store:
        defaults: dict[str, Any] = {
            "downloads": tmp_path / "cache" / "downloads",
            "folder": None,
            "mirror": None,
            "site": "config/sites/here.yaml",
            "table": tmp_path / "table.yaml",
            "retry_policy": RetryPolicy(connect_s=2, read_s=0.5, n_attempts=3, pause_s=0.01),
        }
        return Store(**{**defaults, **changes})

    return make


@pytest.fixture
def declare() -> Callable[..., dict[str, Any]]:
    """Return a function that makes the entry of an archive; keys that are None are left out."""

    def make(name: str, content: bytes, **changes: Any) -> dict[str, Any]:
        entry = {
            "name": name,
            "bytes": len(content),
            "unpacked_bytes": 1 << 26,
            "md5": hashlib.md5(content, usedforsecurity=False).hexdigest(),
        }
        return {key: value for key, value in {**entry, **changes}.items() if value is not None}

    return make
