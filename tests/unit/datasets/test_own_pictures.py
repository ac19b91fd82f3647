"""The program of docs/how-to/own-data.md packs a folder of pictures as it says."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from common.files import CHECKOUT
from datasets.archives import Archive
from datasets.formats import READERS
from declared import datasets

PAGE = CHECKOUT / "docs" / "how-to" / "own-data.md"


def test_the_program_of_the_page_packs_pictures_that_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    colours = {"ash": (255, 0, 0), "oak": (0, 0, 255)}
    for name, colour in colours.items():
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (48, 40), colour).save(tmp_path / "pictures" / name / f"{number}.png")
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=True)
    (tmp_path / "datasets.yaml").write_text(done.stdout)
    entry = datasets.read_datasets(datasets.DATASETS, tmp_path / "datasets.yaml")["leaves"]
    assert entry == yaml.safe_load(done.stdout)["leaves"]
    (file,) = entry["files"]
    packed = Path(file["url"].removeprefix("file://"))
    assert packed.stat().st_size == file["bytes"]
    content = READERS[entry["format"]](entry, {file["name"]: Archive(packed, file["unpacked_bytes"], file["url"])})
    for blocks, samples in ((content.train, 16), (content.validation, 4)):
        images, labels = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        assert images.shape == (samples, 32, 32, 3)
        for image, label in zip(images, labels, strict=True):
            assert tuple(image[0, 0]) == colours[content.classes[label]]
