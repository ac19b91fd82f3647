"""The table of data sets: what ships is right, what a person adds or names wrongly is refused in one line."""

from pathlib import Path

import pytest
import yaml

from common.errors import InputError
from common.schemas import schema
from datasets.formats import CIFAR, CIFAR_BATCHES, TINY, WIKITEXT
from declared.datasets import (
    DATASETS,
    IDX,
    class_count,
    datasets,
    kind,
    load_dataset,
    read_datasets,
    table_of,
    targets,
)

OWN = {
    "title": "t",
    "format": "idx",
    "files": [
        {"name": name, "bytes": 1, "unpacked_bytes": 1, "md5": "a" * 32} for pair in IDX.values() for name in pair
    ],
    "train_samples": 1,
    "validation_samples": 1,
    "shape": [1, 1, 1],
    "classes": ["a", "b"],
    "licence": "l",
    "citation": "c",
}
MADE_UP = {"files": None, "made_up": True}
TEXT = {**MADE_UP, "format": "wikitext", "shape": [8], "vocabulary": 9}
BUNDLED = {"files": None, "format": "scikit-learn", "train_samples": 1597, "validation_samples": 200}
BUNDLED |= {"shape": [8, 8, 1], "classes": [str(digit) for digit in range(10)]}


def own(folder: Path, name: str = "ours", **changes: object) -> Path:
    entry = {key: value for key, value in {**OWN, **changes}.items() if value is not None}
    (folder / "datasets.yaml").write_text(yaml.safe_dump({name: entry}))
    return folder / "datasets.yaml"


def test_what_is_published_of_the_archives() -> None:
    files = {
        (name, file["name"]): (file["bytes"], file.get("md5") or file["sha256"])
        for name in datasets()
        for file in datasets()[name].get("files", [])
    }
    assert files == {
        ("cifar-10", "cifar-10-binary.tar.gz"): (170052171, "c32a1d4ab5d03f1284b67883e8d87530"),
        ("fashion-mnist", "train-images-idx3-ubyte.gz"): (26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("fashion-mnist", "train-labels-idx1-ubyte.gz"): (29515, "25c81989df183df01b3e8a0aad5dffbe"),
        ("fashion-mnist", "t10k-images-idx3-ubyte.gz"): (4422102, "bef4ecab320f06d8554ea6380940ec79"),
        ("fashion-mnist", "t10k-labels-idx1-ubyte.gz"): (5148, "bb300cfdad3c16e7a12a480ee83cd310"),
        ("tiny-imagenet-200", "tiny-imagenet-200.zip"): (248100043, "90528d7ca1a48142e341f4ef8d21d0de"),
        ("text8", "text8.zip"): (31344016, "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232"),
        ("wikitext-2", "wikitext-2-v1.zip"): (4475746, "542ccefacc6c27f945fb54453812b3cd"),
    }
    assert {"digits", "synthetic"} < set(datasets())


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("text8", (90_000_000, 5_000_000)), ("wikitext-2", (2_088_628, 217_646))],  # as published, with the ends of lines
)
def test_sequences_of_a_text_follow_each_other_to_its_end(name: str, tokens: tuple[int, int]) -> None:
    entry = datasets()[name]
    samples = entry["train_samples"], entry["validation_samples"]
    assert samples == tuple((number - 1) // entry["shape"][0] for number in tokens)


def test_small_ones_are_like_those_that_they_stand_for() -> None:
    for name in ("cifar-10", "fashion-mnist", "tiny-imagenet-200"):
        large, small = datasets()[name], datasets()[f"{name}-small"]
        assert (large["format"], large["shape"]) == (small["format"], small["shape"])
        assert isinstance(large["classes"], int) or large["classes"] == small["classes"]


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": [str(i) for i in range(256)]},
        {"format": "tiny-imagenet", "classes": 300},
        BUNDLED,
        {**TEXT, "classes": None},
    ],
)
def test_what_just_fits_is_taken(tmp_path: Path, changes: dict[str, object]) -> None:
    just = {**changes} if changes is BUNDLED else {**MADE_UP, "shape": [8, 8, 3], **changes}
    assert "ours" in read_datasets(DATASETS, own(tmp_path, **just))


def test_a_users_own_data_sets_stand_beside_the_table(tmp_path: Path) -> None:
    entries = read_datasets(DATASETS, own(tmp_path))
    assert entries["ours"] == OWN and "digits" in entries
    assert "ours" not in read_datasets(DATASETS, tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("digits", {}, "digits: is a data set of workflow/scripts/datasets/table.yaml; give it another name"),
        ("synthetic-8x8x1-10", {}, "such a name is drawn, not read; give it another name"),
        ("Ours", {}, "Ours: 'Ours' does not look right"),
        ("../ours", {}, "does not look right"),
        ("ours", {"format": "jpeg"}, "datasets.yaml (ours): format: 'jpeg' is not one of cifar-10-binary, idx"),
        ("ours", {"files": None}, "files: with format idx expected either files or made_up: true"),
        ("ours", {"made_up": True}, "files: with format idx expected either files or made_up: true"),
        ("ours", {"format": "patterns"}, "files: with format patterns expected neither files nor made_up"),
        ("ours", {"format": "patterns", "made_up": True}, "expected neither files nor made_up"),
        ("ours", {"classes": 10}, "classes: with format idx expected a list of names"),
        ("ours", {"format": "tiny-imagenet"}, "classes: with format tiny-imagenet expected their number"),
        ("ours", {"classes": ["a"]}, "classes: has 1 entry; expected at least 2"),
        ("ours", {"classes": []}, "classes: is empty; expected at least 2"),
        ("ours", {"shape": [16, 16]}, "shape: with format idx expected [height, width, channels], not [16, 16]"),
        ("ours", {"shape": [16, 16, 3, 1]}, "shape: has 4 entries; expected at most 3"),
        ("ours", {"classes": None}, "classes: with format idx expected some"),
        ("ours", {"vocabulary": 9}, "vocabulary: with format idx expected none"),
        ("ours", TEXT, "classes: with format wikitext expected none: what follows is told"),
        ("ours", {**TEXT, "shape": [1, 1, 1]}, "shape: with format wikitext expected [length], not [1, 1, 1]"),
        ("ours", {**TEXT, "vocabulary": None}, "vocabulary: with format wikitext expected the number of different"),
        (
            "ours",
            {**TEXT, "format": "text8"},
            "vocabulary: with format text8 expected 27 (a to z and the blank), not 9",
        ),
        ("synthetic-text-9-9-2", {}, "such a name is drawn, not read; give it another name"),
        ("ours", {"files": OWN["files"] * 2}, "files: two are called train-images-idx3-ubyte.gz; name each once"),
        (
            "ours",
            {"files": [{**OWN["files"][0], "name": "mnist-train.gz"}, *OWN["files"][1:]]},
            "files: with format idx expected the names train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
            "t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz, not mnist-train.gz,",
        ),
        ("ours", {"files": OWN["files"][:2]}, "files: with format idx expected the names train-images"),
        ("ours", {"format": "cifar-10-binary"}, "files: with format cifar-10-binary expected one archive, not 4"),
        (
            "ours",
            {"files": [{"name": "../a", "bytes": 1, "unpacked_bytes": 1}]},
            "files.0.name: '../a' does not look right",
        ),
        ("ours", {"files": [{"name": "a", "bytes": 1}]}, "files.0: key 'unpacked_bytes' is missing"),
        ("ours", {"files": [{**OWN["files"][0], "url": "ftp://x/y"}]}, "files.0.url: 'ftp://x/y' does not look right"),
        ("ours", {"files": [{**OWN["files"][0], "md5": "ABC"}]}, "files.0.md5: 'ABC' does not look right"),
        ("ours", {"files": [{**OWN["files"][0], "sha256": "abc"}]}, "files.0.sha256: 'abc' does not look right"),
        (
            "ours",
            {"files": [OWN["files"][0], {key: OWN["files"][1][key] for key in ("name", "bytes", "unpacked_bytes")}]},
            "files.1: train-labels-idx1-ubyte.gz has neither md5 nor sha256; say sha256: and what "
            "`sha256sum train-labels-idx1-ubyte.gz` prints",
        ),
        (
            "ours",
            {"files": [{**OWN["files"][0], "url": "file://x/y"}]},
            "'file://x/y' does not look right; expected an",
        ),
        ("ours", {"files": [{**OWN["files"][0], "name": "x" * 300}]}, "is too long; expected at most 200 characters"),
        ("x" * 300, {}, "is too long; expected at most 100 characters"),
        ("ours", {"classes": [str(i) for i in range(257)]}, "classes: with format idx expected at most 256, since a"),
        (
            "ours",
            {**MADE_UP, "format": "cifar-10-binary", "classes": [str(i) for i in range(257)]},
            "classes: with format cifar-10-binary expected at most 256, since a label is one byte, not 257",
        ),
        ("ours", {"classes": ["a", " "]}, "classes: second value ' ' does not look right; expected a name"),
        (
            "ours",
            {**MADE_UP, "format": "tiny-imagenet", "classes": 2},
            "shape: with format tiny-imagenet expected 3 channels, not 1",
        ),
        ("ours", {**BUNDLED, "shape": [8, 8, 3]}, "shape: with format scikit-learn expected [8, 8, 1], not [8, 8, 3]"),
        ("ours", {**BUNDLED, "classes": ["a", "b"]}, "classes: with format scikit-learn expected 10, not 2"),
        (
            "ours",
            {**BUNDLED, "train_samples": 1500},
            "train_samples and validation_samples: with format scikit-learn expected 1797, not 1700",
        ),
    ],
)
def test_a_wrong_entry_is_refused(tmp_path: Path, name: str, changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_datasets(DATASETS, own(tmp_path, name, **changes))
    (line,) = str(refused.value).splitlines()
    assert said in line


@pytest.mark.parametrize(("text", "said"), [("nonsense", "holds 'nonsense'"), ("", "is empty"), ("[a]", "holds")])
def test_a_file_that_has_no_entries_is_told_from_an_empty_one(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "datasets.yaml").write_text(text)
    with pytest.raises(InputError, match=f"datasets.yaml: {said}.*; expected names of data sets, each with its entry"):
        read_datasets(DATASETS, tmp_path / "datasets.yaml")


def test_what_the_format_is_described_to_want_is_what_is_read() -> None:
    described = schema("dataset")["properties"]["format"]["description"]
    names = [*(name for pair in IDX.values() for name in pair), CIFAR, TINY, *WIKITEXT.values()]
    names += [path.partition("/")[2] for path in CIFAR_BATCHES[:1]]
    assert all(name in described for name in names)


def test_a_name_says_what_is_drawn() -> None:
    entry = load_dataset("synthetic-32x16x3-10")
    assert (entry["shape"], len(entry["classes"])) == ([32, 16, 3], 10)
    assert (entry["train_samples"], entry["validation_samples"]) == (10240, 1024)
    assert load_dataset("synthetic-8x8x1-2-50")["validation_samples"] == 5
    assert load_dataset("synthetic")["format"] == "patterns", "published campaigns name it"
    assert (kind(entry), targets(entry), class_count(entry)) == ("images", "class", 10)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("synthetic-tokens-1000-64", ([64], 10240, "next", 1000)),
        ("synthetic-tokens-2-1-10", ([1], 10, "next", 2)),
        ("synthetic-text-500-32-4-20", ([32], 20, "class", 4)),
        ("wikitext-2", ([128], 16317, "next", 33278)),
    ],
)
def test_tokens_are_followed_by_one_of_the_vocabulary_or_have_a_class(name: str, told: object) -> None:
    entry = load_dataset(name)
    assert (entry["shape"], entry["train_samples"], targets(entry), class_count(entry)) == told
    assert kind(entry) == "tokens"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("synthetic-32x32x3", "is unknown; expected synthetic-<height>"),
        ("synthetic-032x32x3-10", "expected synthetic-<height>x<width>x<channels>-<classes>[-<samples>]"),
        ("mnist", "data set: 'mnist' is unknown"),
        ("synthetic-8x8x1-1", "expected at least 2 classes and 10 samples"),
        (
            "synthetic-token-100-8",
            "expected synthetic-<height>x<width>x<channels>-<classes>[-<samples>] or synthetic-tokens-",
        ),
        ("synthetic-tokens-100", "is unknown; expected synthetic-tokens-<vocabulary>-<length>[-<samples>]"),
        ("synthetic-text-100-8", "expected synthetic-text-<vocabulary>-<length>-<classes>[-<samples>]"),
        ("synthetic-tokens-1-8", "'synthetic-tokens-1-8': expected a vocabulary of at least 2"),
        ("synthetic-tokens-9-8-9", "expected at least 10 samples"),
        ("synthetic-text-100-8-1", "expected at least 2 classes and 10 samples"),
        ("synthetic-text-3-8-4", "expected a vocabulary of at least 4"),
        ("synthetic-8x8x1-2-9", "expected at least 2 classes and 10 samples"),
    ],
)
def test_an_unknown_name_is_refused(name: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        load_dataset(name)
    assert said in str(refused.value)


def test_a_mistake_stops_those_who_use_the_data_set_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("declared.datasets.OWN_DATASETS", own(tmp_path, train_samples=0))
    for cached in (datasets, load_dataset, table_of):
        cached.cache_clear()
    try:
        assert load_dataset("digits")["format"] == "scikit-learn"
        with pytest.raises(InputError, match=r"ours.*train_samples: 0 is too small"):
            load_dataset("ours")
    finally:
        monkeypatch.undo()
        for cached in (datasets, load_dataset, table_of):
            cached.cache_clear()
