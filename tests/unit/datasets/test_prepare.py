"""The one prepared format: what it holds, that it is whole, and that preparing it again gives the same."""

import json
from pathlib import Path

import numpy as np
import pytest

from common.files import digest_file
from datasets.prepare import digits, main, prepare, split
from plan.identity import data_files
from plan.study import datasets


def test_digits_are_prepared_as_the_table_says(tmp_path: Path) -> None:
    folder = tmp_path / "digits" / "0123456789ab"
    main(["--dataset", "digits", "--out", str(folder / "manifest.json")])
    entry, manifest = datasets()["digits"], json.loads((folder / "manifest.json").read_text())
    assert all(file.is_file() for file in data_files(folder))
    for name in ("train", "validation"):
        images, labels = np.load(folder / name / "images.npy"), np.load(folder / name / "labels.npy")
        assert images.shape == (entry[f"{name}_samples"], *entry["shape"]) and images.dtype == np.uint8
        assert set(labels) == set(range(len(entry["classes"]))), "every class is in both parts"
        part = json.loads((folder / name / "manifest.json").read_text())
        assert part["sha256"]["images.npy"] == digest_file(folder / name / "images.npy")
        if name == "train":
            assert manifest["mean"] == pytest.approx([images.mean()]) and manifest["std"] == pytest.approx(
                [images.std()]
            )
    assert not list(folder.parent.glob("*.partial"))


def test_no_sample_is_in_both_parts() -> None:
    images, labels = digits(datasets()["digits"])
    parts = split(
        np.arange(len(labels)).reshape(-1, 1, 1, 1).repeat(64, 1).reshape(-1, 8, 8, 1), labels, datasets()["digits"]
    )
    train, validation = (set(parts[name][0][:, 0, 0, 0]) for name in ("train", "validation"))
    assert not train & validation and len(train | validation) == len(images) == 1797


def test_another_machine_prepares_the_same_bytes(tmp_path: Path) -> None:
    prepare("digits", tmp_path / "a")
    prepare("digits", tmp_path / "b")
    assert [digest_file(file) for file in data_files(tmp_path / "a")] == [
        digest_file(file) for file in data_files(tmp_path / "b")
    ]


def test_a_half_prepared_data_set_is_prepared_again(tmp_path: Path) -> None:
    prepare("digits", tmp_path / "a")
    (tmp_path / "a" / "manifest.json").unlink()
    (tmp_path / "a" / "train" / "images.npy").write_bytes(b"cut off")
    prepare("digits", tmp_path / "a")
    assert len(np.load(tmp_path / "a" / "train" / "images.npy")) == 1536


def test_images_that_are_not_what_the_table_says_are_refused() -> None:
    with pytest.raises(ValueError, match="are not 1536 \\+ 261 images"):
        split(np.zeros((10, 8, 8, 1)), np.zeros(10), datasets()["digits"])
