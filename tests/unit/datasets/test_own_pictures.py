"""The programs of docs/how-to/own-data.md pack a folder of pictures, and a text, as they say."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from common.files import CHECKOUT
from datasets.archives import Archive
from datasets.formats import READERS, Content
from declared import datasets

PAGE = CHECKOUT / "docs" / "how-to" / "own-data.md"


def packed_by(number: int, name: str, folder: Path) -> tuple[dict[str, Any], Content]:
    """The entry that a program of the page prints, and what is read of the archive that it has packed."""
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[number]
    done = subprocess.run([sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, check=True)
    (folder / "datasets.yaml").write_text(done.stdout)
    entry = datasets.read_datasets(datasets.DATASETS, folder / "datasets.yaml")[name]
    assert entry == yaml.safe_load(done.stdout)[name]
    (file,) = entry["files"]
    packed = Path(file["url"].removeprefix("file://"))
    assert packed.stat().st_size == file["bytes"]
    found = {file["name"]: Archive(packed, file["unpacked_bytes"], file["url"])}
    return entry, READERS[entry["format"]](entry, found)


def test_the_program_of_the_page_packs_a_text_that_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "poems.txt").write_text("a rose is a rose\n\n" * 100, encoding="utf-8")
    entry, content = packed_by(1, "poems", tmp_path)
    assert (entry["vocabulary"], entry["train_samples"], entry["validation_samples"]) == (5, 9, 1)
    for blocks, samples in ((content.train, 9), (content.validation, 1)):
        ((tokens, labels),) = blocks
        assert tokens.shape == labels.shape == (samples, 64) and tokens[0, :7].tolist() == [1, 2, 3, 1, 2, 0, 0]


def test_the_program_of_the_page_packs_pictures_that_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    colours = {"ash": (255, 0, 0), "oak": (0, 0, 255)}
    for name, colour in colours.items():
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (48, 40), colour).save(tmp_path / "pictures" / name / f"{number}.png")
    _, content = packed_by(0, "leaves", tmp_path)
    for blocks, samples in ((content.train, 16), (content.validation, 4)):
        images, labels = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        assert images.shape == (samples, 32, 32, 3)
        for image, label in zip(images, labels, strict=True):
            assert tuple(image[0, 0]) == colours[content.classes[label]]
