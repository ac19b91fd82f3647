"""The shipped table of data sets is right; mistakes in entries and names are refused with one line."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from common.errors import InputError
from declared.datasets import (
    DATASETS,
    IDX,
    SYNTHETIC_FORMS,
    class_count,
    datasets,
    kind,
    load_dataset,
    read_datasets,
    table_of,
    targets,
)
from support.refusals import assert_refusal

OWN = {
    "title": "t",
    "format": "idx",
    "files": [
        {"name": name, "bytes": 1, "unpacked_bytes": 1, "md5": "a" * 32}
        for pair in IDX.values()
        for name in pair
    ],
    "train_samples": 1,
    "validation_samples": 1,
    "shape": [1, 1, 1],
    "classes": ["a", "b"],
    "licence": "l",
    "citation": "c",
}
UNCHECKED = {key: value for key, value in OWN["files"][0].items() if key != "md5"}
IDX_NAMES = [name for pair in IDX.values() for name in pair]
MADE_UP = {"files": None, "made_up": True}
TEXT = {**MADE_UP, "format": "wikitext", "shape": [8], "vocabulary": 9}
SHARDS = {"files": None, "format": "webdataset", "folder": "/data", "sha256": "a" * 64}


def own(folder: Path, name: str = "ours", /, **changes: object) -> Path:
    entry = {key: value for key, value in {**OWN, **changes}.items() if value is not None}
    (folder / "datasets.yaml").write_text(yaml.safe_dump({name: entry}))
    return folder / "datasets.yaml"


def test_small_ones_are_like_those_that_they_stand_for() -> None:
    for name in ("cifar-10", "fashion-mnist", "tiny-imagenet-200"):
        large, small = datasets()[name], datasets()[f"{name}-small"]
        assert (large["format"], large["shape"]) == (small["format"], small["shape"])
        assert isinstance(large["classes"], int) or large["classes"] == small["classes"]


def test_a_users_own_data_sets_stand_beside_the_table(tmp_path: Path) -> None:
    entries = read_datasets(DATASETS, own(tmp_path))
    assert entries["ours"] == OWN and "digits" in entries
    assert "ours" not in read_datasets(DATASETS, tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("name", "changes", "code", "key", "facts"),
    [
        ("digits", {}, "duplicate", "digits", {"got": "digits"}),
        ("synthetic-8x8x1-10", {}, "reserved-name", "synthetic-8x8x1-10", {"got": "synthetic-8x8x1-10"}),
        ("../ours", {}, "bad-pattern", "../ours", {"got": "../ours"}),
        ("ours", {"format": "jpeg"}, "not-one-of", "format", {"got": "jpeg"}),
        ("ours", {"files": None}, "missing-key", "files", {}),
        ("ours", {"made_up": True}, "unfit-for-format", "files", {}),
        ("ours", {"format": "patterns"}, "unfit-for-format", "files", {}),
        ("ours", {"classes": 10}, "unfit-for-format", "classes", {"got": 10}),
        ("ours", {"format": "tiny-imagenet"}, "unfit-for-format", "classes", {"got": ["a", "b"]}),
        ("ours", {"classes": ["a"]}, "too-few", "classes", {"got": 1, "mentions": [2]}),
        ("ours", {"classes": ["a", " "]}, "bad-pattern", "classes", {"got": " "}),
        ("ours", {"shape": [16, 16]}, "unfit-for-format", "shape", {"got": [16, 16]}),
        ("ours", {"classes": None}, "missing-key", "classes", {}),
        ("ours", {"vocabulary": 9}, "unfit-for-format", "vocabulary", {"got": 9}),
        ("ours", TEXT, "unfit-for-format", "classes", {"got": ["a", "b"]}),
        ("ours", {**TEXT, "classes": None, "shape": [1, 1, 1]}, "unfit-for-format", "shape", {"got": [1, 1, 1]}),
        ("ours", {**TEXT, "vocabulary": None}, "missing-key", "vocabulary", {}),
        ("ours", {"files": OWN["files"][:2]}, "unfit-for-format", "files", {"mentions": IDX_NAMES}),
        ("ours", {"format": "cifar-10-binary"}, "unfit-for-format", "files", {}),
        ("ours", {"files": [{"name": "../a", "bytes": 1, "unpacked_bytes": 1}]}, "bad-pattern", "files.0.name",
         {"got": "../a"}),
        ("ours", {"files": [{"name": "a", "bytes": 1}]}, "missing-key", "files.0.unpacked_bytes", {}),
        ("ours", {"files": [{**OWN["files"][0], "url": "file://x/y"}]}, "bad-pattern", "files.0.url",
         {"got": "file://x/y"}),
        ("ours", {"files": [{**OWN["files"][0], "md5": "ABC"}]}, "bad-pattern", "files.0.md5",
         {"got": "abc", "mentions": [32]}),
        ("ours", {"files": [*OWN["files"][1:], UNCHECKED]}, "missing-key", "files.3", {"mentions": ["sha256sum"]}),
        ("ours", {"folder": "/data"}, "unfit-for-format", "folder", {"got": "/data"}),
        ("ours", {**SHARDS, "sha256": None}, "missing-key", "sha256", {}),
        ("ours", {**SHARDS, "folder": "data"}, "bad-pattern", "folder", {"got": "data"}),
        ("ours", {**SHARDS, "train_files": "/data/*"}, "bad-pattern", "train_files", {"got": "/data/*"}),
        ("ours", {**SHARDS, "shape": [8, 8, 2]}, "unfit-for-format", "shape", {"got": [8, 8, 2]}),
        ("ours", {**SHARDS, "format": "token-files"}, "missing-key", "vocabulary", {}),
        ("ours", {**SHARDS, "made_up": True}, "unfit-for-format", "made_up", {"got": True}),
    ],
)  # fmt: skip
def test_wrong_entry_is_refused_with_file_and_key(
    tmp_path: Path, name: str, changes: dict[str, object], code: str, key: str, facts: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as refused:
        read_datasets(DATASETS, own(tmp_path, name, **changes))
    assert_refusal(refused.value, code, key, **facts)
    assert refused.value.file in (f"{tmp_path}/datasets.yaml", f"{tmp_path}/datasets.yaml ({name})")


def test_digests_may_have_capitals(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        yaml.safe_dump({"ours": {**OWN, "files": [{**file, "sha256": "AB" * 32} for file in OWN["files"]]}})
    )
    entry = read_datasets(tmp_path / "own.yaml", tmp_path / "none.yaml")["ours"]
    assert entry["files"][0]["sha256"] == "ab" * 32
    entries = read_datasets(DATASETS, own(tmp_path, **{**SHARDS, "sha256": "AB" * 32}))
    assert entries["ours"]["sha256"] == "ab" * 32


@pytest.mark.parametrize(("text", "got"), [("nonsense", "nonsense"), ("", None), ("[a]", ["a"])])
def test_file_without_entries_is_refused_with_its_content(tmp_path: Path, text: str, got: object) -> None:
    (tmp_path / "datasets.yaml").write_text(text)
    with pytest.raises(InputError) as refused:
        read_datasets(DATASETS, tmp_path / "datasets.yaml")
    assert_refusal(refused.value, "wrong-type", file=f"{tmp_path}/datasets.yaml", got=got)


def test_a_name_says_what_is_drawn() -> None:
    entry = load_dataset("synthetic-32x16x3-10")
    assert (entry["shape"], len(entry["classes"])) == ([32, 16, 3], 10)
    assert (entry["train_samples"], entry["validation_samples"]) == (10240, 1024)
    assert load_dataset("synthetic-8x8x1-2-50")["validation_samples"] == 5
    assert load_dataset("synthetic")["format"] == "patterns", "published campaigns name it"
    assert (kind(entry), targets(entry), class_count(entry)) == ("images", "class", 10)
    regions = load_dataset("synthetic-regions-32x16x3-4-50")
    assert (kind(regions), targets(regions), class_count(regions)) == ("images", "pixel", 4)
    assert (regions["shape"], regions["train_samples"]) == ([32, 16, 3], 50)
    clicks = load_dataset("synthetic-clicks-1000-50")
    assert (kind(clicks), targets(clicks), class_count(clicks)) == ("rows", "click", 2)
    assert (clicks["shape"], clicks["vocabulary"], clicks["train_samples"]) == ([39], 26_000, 50)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("synthetic-tokens-1000-64", ([64], 10240, "next", 1000)),
        ("synthetic-tokens-2-1-10", ([1], 10, "next", 2)),
        ("synthetic-text-500-32-4-20", ([32], 20, "class", 4)),
        ("wikitext-2", ([128], 16317, "next", 33278)),
    ],
)
def test_tokens_have_a_next_token_or_a_class(name: str, expected: object) -> None:
    entry = load_dataset(name)
    assert (entry["shape"], entry["train_samples"], targets(entry), class_count(entry)) == expected
    assert kind(entry) == "tokens"


@pytest.mark.parametrize(
    ("name", "code", "mentions"),
    [
        ("synthetic-32x32x3", "unknown-name", [SYNTHETIC_FORMS["images"]]),
        ("mnist", "unknown-name", ["cifar-10", "digits", *SYNTHETIC_FORMS.values()]),
        ("synthetic-token-100-8", "unknown-name", SYNTHETIC_FORMS.values()),
        ("synthetic-text-100-8", "unknown-name", [SYNTHETIC_FORMS["text"]]),
        ("synthetic-8x8x1-1", "out-of-range", [2, 10]),
        ("synthetic-tokens-1-8", "out-of-range", [2]),
        ("synthetic-text-3-8-4", "out-of-range", [4]),
    ],
)
def test_data_set_that_cannot_be_had_is_refused(name: str, code: str, mentions: list[object]) -> None:
    with pytest.raises(InputError) as refused:
        load_dataset(name, "s.yaml", "factors.dataset")
    assert_refusal(refused.value, code, "factors.dataset", mentions, file="s.yaml", got=name)


def test_wrong_entry_stops_only_those_who_use_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("declared.datasets.OWN_DATASETS", own(tmp_path, train_samples=0))
    for cached in (datasets, load_dataset, table_of):
        cached.cache_clear()
    try:
        assert load_dataset("digits")["format"] == "scikit-learn"
        with pytest.raises(InputError) as refused:
            load_dataset("ours")
        assert_refusal(refused.value, "out-of-range", "train_samples", ["ours"], got=0)
    finally:
        monkeypatch.undo()
        for cached in (datasets, load_dataset, table_of):
            cached.cache_clear()
