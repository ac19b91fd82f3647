"""The digest of a data set covers content, not addresses and descriptions."""

import json

import pytest

from datasets import identity
from declared.datasets import datasets

ENTRY = datasets()["fashion-mnist"]


def test_addresses_and_descriptions_change_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(entry: dict[str, object]) -> str:
        monkeypatch.setattr(identity, "load_dataset", lambda _: entry)
        identity.data_digest.cache_clear()
        return identity.data_digest("ours")

    elsewhere = json.loads(json.dumps(ENTRY))
    elsewhere["files"][0] |= {"url": "http://a/b", "mirrors": ["http://c/d"], "unpacked_bytes": 2}
    elsewhere |= {"title": "T", "licence": "L", "citation": "C", "folder": "/elsewhere"}
    changed = json.loads(json.dumps(ENTRY))
    changed["files"][0]["md5"] = "0" * 32
    before = digest(ENTRY)
    assert digest(elsewhere) == before != digest(changed)
    identity.data_digest.cache_clear()
    assert "url" in elsewhere["files"][0], "the entry itself is left as it is"
