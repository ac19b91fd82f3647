"""A file server, and a store of archives in an empty cache that fetches from it without long pauses."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datasets.fetch import Store
from datasets.transfer import Patience
from support.file_server import FileServer, file_server


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        yield running


@pytest.fixture
def store_at(tmp_path: Path) -> Callable[..., Store]:
    """A maker of stores; what is said replaces the defaults."""

    def make(**changes: Any) -> Store:
        defaults: dict[str, Any] = {
            "downloads": tmp_path / "cache" / "downloads",
            "folder": None,
            "mirror": None,
            "site": "config/sites/here.yaml",
            "table": tmp_path / "table.yaml",
            "patience": Patience(connect_s=2, read_s=0.5, tries=3, pause_s=0.01, longest_pause_s=0.2),
        }
        return Store(**{**defaults, **changes})

    return make


@pytest.fixture
def declare() -> Callable[..., dict[str, Any]]:
    """A maker of entries of archives, as the table has them; what is None is left out."""

    def make(name: str, content: bytes, **changes: Any) -> dict[str, Any]:
        entry = {
            "name": name,
            "bytes": len(content),
            "unpacked_bytes": 1 << 26,
            "md5": hashlib.md5(content, usedforsecurity=False).hexdigest(),
        }
        return {key: value for key, value in {**entry, **changes}.items() if value is not None}

    return make
