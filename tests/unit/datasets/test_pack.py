"""Pictures and texts of one's own are packed, and read again as they were."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from common.errors import InputError
from datasets import pack
from datasets.archives import Archive
from datasets.formats import READERS, Content
from datasets.pack import pack_images, pack_text
from datasets.pictures import crop_picture, read_picture
from declared import datasets

ORIENTATION = 0x0112  # the tag of EXIF
ROTATED = 6  # to be turned by 90 degrees clockwise


@pytest.fixture
def packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[dict[str, Any], Content]]:
    """Return a function that packs by the program, and returns the printed entry and the archive's
    content.
    """

    def run(kind: str, source: Path, size: int, validation_share: float) -> tuple[dict[str, Any], Content]:
        pack.pack_dataset(kind, source, "mine", size, validation_share, tmp_path)
        (tmp_path / "datasets.yaml").write_text(capsys.readouterr().out)
        entry = datasets.read_datasets(datasets.DATASETS, tmp_path / "datasets.yaml")["mine"]
        (file,) = entry["files"]
        archive = tmp_path / file["name"]
        assert archive.stat().st_size == file["bytes"] and file["url"] == archive.as_uri()
        return entry, READERS[entry["format"]](
            entry, {file["name"]: Archive(archive, file["unpacked_bytes"], "here")}
        )

    return run


def pictures(folder: Path, number: int = 10) -> Path:
    for name, colour in {"ash tree": "red", "oak": "blue"}.items():
        (folder / name).mkdir(parents=True)
        for i in range(number):
            Image.new("RGB", (48, 40), colour).save(folder / name / f"{i}.png")
    return folder


def read_image(file: Path, side: int) -> np.ndarray:
    return crop_picture(read_picture(file, file), (side, side, 3))


def test_packed_pictures_are_read_again(tmp_path: Path, packed: Callable[..., Any]) -> None:
    folder = pictures(tmp_path / "pictures")
    (folder / ".DS_Store").touch()
    (folder / "oak" / "._1.png").write_bytes(b"\x00\x05\x16\x07")
    entry, content = packed("images", folder, 32, 0.2)
    assert entry["classes"] == content.classes == ["ash_tree", "oak"]
    for blocks, samples in ((content.train, 16), (content.validation, 4)):
        images, labels = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        assert images.shape == (samples, 32, 32, 3)
        for image, label in zip(images, labels, strict=True):
            assert image[0, 0].tolist() == [[255, 0, 0], [0, 0, 255]][label]


def test_orientation_is_applied(tmp_path: Path) -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:32] = 255
    exif = Image.Exif()
    exif[ORIENTATION] = ROTATED
    Image.fromarray(pixels).save(tmp_path / "turned.jpg", exif=exif)
    halves = read_image(tmp_path / "turned.jpg", 64)
    assert halves[:, :30].max() < 10 and halves[:, 34:].min() > 245


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(tmp_path: Path, mode: str) -> None:
    options = {"transparency": 0} if mode == "P" else {}
    Image.new(mode, (8, 8), 0).save(tmp_path / "clear.png", **options)
    assert read_image(tmp_path / "clear.png", 8).min() == 255


def test_invalid_image_is_refused_by_name(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    for name, content in (("notes.txt", b"red"), ("cut.png", (folder / "oak" / "1.png").read_bytes()[:60])):
        (folder / "oak" / name).write_bytes(content)
        with pytest.raises(InputError) as refused:
            pack_images(folder, tmp_path / "mine.tar.gz", 8, 0.2)
        assert (refused.value.code, Path(refused.value.file).name) == ("unknown-picture", name)
        (folder / "oak" / name).unlink()
    frames = [Image.new("L", (8, 8), grey) for grey in (0, 255)]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    Image.fromarray(np.zeros((8, 8), np.float32)).save(tmp_path / "depths.tiff")
    for name in ("moving.gif", "depths.tiff"):
        with pytest.raises(InputError) as refused:
            read_image(tmp_path / name, 8)
        assert refused.value.code == "unknown-picture"
    assert not (tmp_path / "mine.tar.gz").exists()


@pytest.mark.parametrize("number", [0, 1])
def test_too_few_pictures_are_refused(tmp_path: Path, number: int) -> None:
    with pytest.raises(InputError) as refused:
        pack_images(pictures(tmp_path / "pictures", number), tmp_path / "mine.tar.gz", 8, 0.2)
    assert refused.value.code == "wrong-count"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_packed_text_is_read_again(tmp_path: Path, packed: Callable[..., Any], encoding: str) -> None:
    (tmp_path / "poems.txt").write_text("a rosé is a rosé\n\n" * 100, encoding=encoding)
    entry, content = packed("text", tmp_path / "poems.txt", 64, 0.1)
    assert (entry["vocabulary"], entry["train_samples"], entry["validation_samples"]) == (5, 9, 1)
    for blocks, samples in ((content.train, 9), (content.validation, 1)):
        ((tokens, labels),) = blocks
        assert tokens.shape == labels.shape == (samples, 64) and tokens[0, :7].tolist() == [
            1,
            2,
            3,
            1,
            2,
            0,
            0,
        ]


@pytest.mark.parametrize(
    ("content", "code"),
    [("Bär " * 1000, "wrong-encoding"), ("a rose", "wrong-count")],
    ids=["latin-1", "short"],
)
def test_a_text_that_cannot_be_packed_is_refused(tmp_path: Path, content: str, code: str) -> None:
    (tmp_path / "poems.txt").write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError) as refused:
        pack_text(tmp_path / "poems.txt", tmp_path / "mine.zip", 64, 0.1)
    assert refused.value.code == code
