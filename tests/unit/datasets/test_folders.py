"""Data sets in folders are read as their writers wrote them, in the same order on every file system."""

import gzip
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from common.errors import InputError
from datasets import identity
from datasets.declare import declare_folder
from datasets.fetch import Store
from datasets.prepare import prepare
from declared import datasets
from support.refusals import assert_refusal

ORIENTATION, ROTATED = 0x0112, 6  # the tag of EXIF; to be turned by 90 degrees clockwise
COLOURS = {"ash": (255, 0, 0), "oak": (0, 0, 255), "yew": (0, 255, 0)}
# As in docs/how-to/own-data.md.
BY_HAND = "find -L train* val* -type f -not -path '*/.*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
Arrays = dict[str, tuple[np.ndarray, np.ndarray]]


@pytest.fixture
def declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Return a function that declares a folder as the data set `mine`, with changes of the entry."""

    def run(
        form: str, folder: Path, size: int, changes: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        declare_folder(form, folder, "mine", size, **options)
        entry = yaml.safe_load(capsys.readouterr().out)["mine"] | (changes or {})
        (tmp_path / "datasets.yaml").write_text(yaml.safe_dump({"mine": entry}))
        monkeypatch.setattr(datasets, "OWN_DATASETS", tmp_path / "datasets.yaml")
        for cached in (datasets.datasets, datasets.table_of, datasets.load_dataset, identity.data_digest):
            cached.cache_clear()
        return entry

    yield run
    for cached in (datasets.datasets, datasets.table_of, datasets.load_dataset, identity.data_digest):
        cached.cache_clear()


def prepared(folder: Path) -> Arrays:
    """Return the arrays of the data set `mine`."""
    prepare("mine", folder / "cache")
    kind = "tokens" if (folder / "cache" / "train" / "tokens.npy").exists() else "images"
    return {
        part: tuple(np.load(folder / "cache" / part / f"{name}.npy") for name in (kind, "labels"))
        for part in ("train", "validation")
    }


def colours(images: np.ndarray) -> list[tuple[int, ...]]:
    """Return the colour in the middle of each picture, as one of 0 and 255."""
    middle = images[:, images.shape[1] // 2, images.shape[2] // 2]
    return [tuple(np.where(pixel > 127, 255, 0).tolist()) for pixel in middle]


def encode(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def write_image_folder(folder: Path) -> Path:
    """Write three classes in pictures of several modes, sizes and depths."""
    exif = Image.Exif()
    exif[ORIENTATION] = ROTATED
    for part, number in (("train", 4), ("val", 1)):
        for name, colour in COLOURS.items():
            image = Image.new("RGB", (20, 12), colour)
            contents = {
                "b.jpeg": encode(image.convert("CMYK"), "JPEG"),
                "deep/er/a.JPG": encode(image, "JPEG", exif=exif),
                "p.png": encode(image.convert("P"), "PNG"),
                "q.webp": encode(image.convert("RGBA"), "WEBP", lossless=True),
            }
            for path, content in list(contents.items())[:number]:
                (folder / part / name / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / part / name / path).write_bytes(content)
    (folder / "train" / "ash" / ".hidden").write_bytes(b"no picture")
    (folder / "LICENSE").write_text("free")
    return folder


def test_image_folder_of_any_depth_and_mode(tmp_path: Path, declared: Callable[..., dict[str, Any]]) -> None:
    entry = declared("image-folder", write_image_folder(tmp_path / "trees"), 8)
    assert (entry["train_samples"], entry["validation_samples"], entry["classes"]) == (12, 3, 3)
    content = prepared(tmp_path)
    for part, n_of_class in (("train", 4), ("validation", 1)):
        images, labels = content[part]
        assert images.shape[1:] == (8, 8, 3) and labels.tolist() == np.repeat(range(3), n_of_class).tolist()
        assert colours(images) == [list(COLOURS.values())[label] for label in labels]


def test_wide_picture_is_cropped_at_its_centre(
    tmp_path: Path, declared: Callable[..., dict[str, Any]]
) -> None:
    for part in ("train", "val"):
        for name in ("a", "b"):
            pixels = np.zeros((16, 64), np.uint8)
            pixels[:, 24:40] = 255
            (tmp_path / "grey" / part / name).mkdir(parents=True)
            Image.fromarray(pixels).save(tmp_path / "grey" / part / name / "x.png")
    declared("image-folder", tmp_path / "grey", 16, channels=1)
    images, _ = prepared(tmp_path)["train"]
    assert images.shape == (2, 16, 16, 1) and images.min() == 255


def write_shard(file: Path, members: Mapping[str, bytes]) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, value in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(value)
            tar.addfile(info, io.BytesIO(value))
    packed = gzip.compress(content.getvalue()) if file.suffix == ".gz" else content.getvalue()
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(packed)


def samples(labels: Iterable[int]) -> dict[str, bytes]:
    members = {}
    for number, label in enumerate(labels):
        image = Image.new("RGB", (9, 9), list(COLOURS.values())[label])
        members[f"./x/{number:04d}.cls"] = f"{label}\n".encode()
        members[f"./x/{number:04d}.JPG"] = encode(image, "JPEG")
        members[f"./x/{number:04d}.seg.png"] = b"a mask, which is left out"
    return members


def test_shards_are_read_in_their_order(tmp_path: Path, declared: Callable[..., dict[str, Any]]) -> None:
    write_shard(tmp_path / "wds" / "train-000001.tar.gz", samples([2, 1]))
    write_shard(tmp_path / "wds" / "train-000000.tar", samples([0, 2, 2]))
    write_shard(tmp_path / "wds" / "val-000000.tar", samples([1]))
    entry = declared("webdataset", tmp_path / "wds", 8, {"classes": list(COLOURS)})
    assert (entry["train_samples"], entry["validation_samples"]) == (5, 1)
    content = prepared(tmp_path)
    for part, expected in (("train", [0, 2, 2, 2, 1]), ("validation", [1])):
        images, labels = content[part]
        assert labels.tolist() == expected
        assert colours(images) == [list(COLOURS.values())[label] for label in expected]


@pytest.mark.parametrize("has_names", [True, False])
def test_parquet_of_pictures_is_read(
    tmp_path: Path, declared: Callable[..., dict[str, Any]], has_names: bool
) -> None:
    (tmp_path / "hub").mkdir()
    features = {"img": {"_type": "Image"}, "tree": {"names": list(COLOURS), "_type": "ClassLabel"}}
    for part, labels in (("train", [2, 0, 1, 1]), ("validation", [2])):
        pictures = [encode(Image.new("RGB", (9, 5), [*COLOURS.values()][label]), "PNG") for label in labels]
        column = [{"bytes": picture, "path": None} for picture in pictures]
        table = pa.table({"img": column, "tree" if has_names else "label": labels})
        if has_names:
            metadata = {"huggingface": json.dumps({"info": {"features": features}})}
            table = table.replace_schema_metadata(metadata)
        pq.write_table(table, tmp_path / "hub" / f"{part}-00000-of-00001.parquet", row_group_size=3)
    entry = declared("parquet", tmp_path / "hub", 8)
    assert (entry["train_samples"], entry["validation_samples"], entry["classes"]) == (4, 1, 3)
    images, labels = prepared(tmp_path)["train"]
    assert labels.tolist() == [2, 0, 1, 1]
    assert colours(images) == [list(COLOURS.values())[label] for label in labels]
    classes = json.loads((tmp_path / "cache" / "manifest.json").read_text())["classes"]
    assert classes == (list(COLOURS) if has_names else ["0", "1", "2"])


def write_nanogpt(folder: Path, name: str, tokens: np.ndarray) -> None:
    tokens.astype(np.uint16).tofile(folder / f"{name}.bin")


def write_llm_c(folder: Path, name: str, tokens: np.ndarray) -> None:
    header = np.zeros(256, np.int32)
    header[:3] = 20240801, 7, len(tokens)
    (folder / f"{name}.bin").write_bytes(header.tobytes() + tokens.astype(np.uint32).tobytes())


def write_megatron(folder: Path, name: str, tokens: np.ndarray) -> None:
    """Write two documents as IndexedDatasetBuilder does."""
    lengths = np.array([len(tokens) // 3, len(tokens) - len(tokens) // 3], np.int32)
    tokens.astype(np.int32).tofile(folder / f"{name}_text_document.bin")
    numbers = (
        np.array([4], np.uint8), np.array([2, 3], np.uint64), lengths,
        np.array([0, 4 * lengths[0]], np.int64), np.array([0, 1, 2], np.int64),
    )  # fmt: skip
    (folder / f"{name}_text_document.idx").write_bytes(
        b"MMIDIDX\x00\x00" + np.uint64(1).tobytes() + b"".join(number.tobytes() for number in numbers)
    )


def write_parquet(folder: Path, name: str, tokens: np.ndarray) -> None:
    rows = [tokens[:9].tolist(), [], tokens[9:].tolist()]
    columns = {"text": ["a", "b", "c"], "input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}
    pq.write_table(pa.table(columns), folder / f"{name}-00000.parquet")


@pytest.mark.parametrize("write", [write_nanogpt, write_llm_c, write_megatron, write_parquet])
def test_tokens_are_read_as_written(
    tmp_path: Path, declared: Callable[..., dict[str, Any]], write: Callable[[Path, str, np.ndarray], None]
) -> None:
    tokens = {"train": np.arange(50) * 7 % 300, "val": np.arange(17) + 280}
    (tmp_path / "text").mkdir()
    for name, numbers in tokens.items():
        write(tmp_path / "text", name, numbers)
    form = "parquet" if write is write_parquet else "token-files"
    entry = declared(form, tmp_path / "text", 8, {"train_samples": 5})
    assert (entry["vocabulary"], entry["validation_samples"]) == (297, 2)
    content = prepared(tmp_path)
    for part, name, n in (("train", "train", 5), ("validation", "val", 2)):
        for first, array in enumerate(content[part]):
            assert array.tolist() == tokens[name][first : first + 8 * n].reshape(n, 8).tolist()


def test_digest_is_that_of_sha256sum(tmp_path: Path, declared: Callable[..., dict[str, Any]]) -> None:
    folder = write_image_folder(tmp_path / "trees")
    (folder / "train" / "oak" / "two words.png").write_bytes((folder / "train/oak/p.png").read_bytes())
    (folder / "train" / "elm").symlink_to("oak")
    by_hand = subprocess.run(["bash", "-c", BY_HAND], cwd=folder, check=True, capture_output=True, text=True)
    assert declared("image-folder", folder, 8)["sha256"] == by_hand.stdout.split()[0]


def test_site_may_have_a_folder_of_its_own(
    tmp_path: Path, declared: Callable[..., dict[str, Any]], store_at: Callable[..., Store]
) -> None:
    folder = write_image_folder(tmp_path / "trees")
    declared("image-folder", folder, 8)
    (tmp_path / "site").mkdir()
    folder.rename(tmp_path / "site" / "mine")
    prepare("mine", tmp_path / "cache", store_at(folder=tmp_path / "site"))
    assert len(np.load(tmp_path / "cache" / "train" / "labels.npy")) == 12


@pytest.mark.parametrize("change", ["content", "name", "more"])
def test_changed_folder_is_refused(
    tmp_path: Path, declared: Callable[..., dict[str, Any]], change: str
) -> None:
    folder = write_image_folder(tmp_path / "trees")
    entry = declared("image-folder", folder, 8)
    own = folder / "train" / "oak"
    if change == "content":
        (own / "p.png").write_bytes((folder / "train" / "ash" / "p.png").read_bytes())
    elif change == "name":
        (own / "p.png").rename(own / "r.png")
    else:
        (own / "r.png").write_bytes((own / "p.png").read_bytes())
    with pytest.raises(InputError) as refused:
        prepare("mine", tmp_path / "cache")
    assert refused.value.code == "checksum-mismatch" and refused.value.got != entry["sha256"]
    assert not (tmp_path / "cache").exists()


PNG = encode(Image.new("L", (4, 4)), "PNG")
IMAGES = {"train/ash/a.png": PNG, "val/ash/a.png": PNG}
TOKENS = {"train.bin": bytes(100), "val.bin": bytes(100)}
MEGATRON = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little")
LLM_C = (20240520).to_bytes(4, "little")  # with version 1
SHARD = {"a.png": PNG, "a.cls": b"0"}


@pytest.mark.parametrize(
    ("form", "files", "code", "name"),
    [
        ("image-folder", {}, "missing-folder", ""),
        ("image-folder", {"train/ash/a.png": PNG}, "missing-file", ""),
        ("image-folder", {**IMAGES, "train/a.png": PNG}, "unknown-class", "train/a.png"),
        ("image-folder", {**IMAGES, "val/oak/a.png": PNG}, "unknown-class", "val/oak/a.png"),
        ("image-folder", {**IMAGES, "train/oak/a.txt": b"a"}, "unknown-picture", "train/oak/a.txt"),
        ("webdataset", {"train.tar": b"no tar", "val.tar": SHARD}, "broken-archive", "train.tar"),
        ("webdataset", {"train.tar": {"a.png": PNG}, "val.tar": SHARD}, "wrong-format", "train.tar"),
        ("webdataset", {"train.tar": {**SHARD, "a.cls": b"oak"}, "val.tar": SHARD}, "wrong-format", "train.tar"),
        ("webdataset", {"train.tar": {}, "val.tar": SHARD}, "wrong-count", ""),
        ("token-files", {**TOKENS, "val.bin": bytes(4)}, "wrong-count", ""),
        ("token-files", {**TOKENS, "val.txt": b"text"}, "wrong-format", "val.txt"),
        ("token-files", {**TOKENS, "val.bin": bytes(99)}, "wrong-size", "val.bin"),
        ("token-files", {**TOKENS, "val.idx": bytes(99)}, "wrong-format", "val.idx"),
        ("token-files", {**TOKENS, "val.idx": MEGATRON + b"\x08" + b"\xff" * 16}, "wrong-format", "val.idx"),
        ("token-files", {**TOKENS, "val.idx": MEGATRON + b"\x08" + bytes(16)}, "wrong-size", "val.bin"),
        ("webdataset", {"train.tar": {**SHARD, "a.PNG": PNG}, "val.tar": SHARD}, "wrong-format", "train.tar"),
        ("token-files", {**TOKENS, "val.bin": LLM_C + b"\x07" + bytes(1200)}, "wrong-format", "val.bin"),
        ("parquet", {"train.parquet": b"PAR1", "val.parquet": b"PAR1"}, "broken-archive", "train.parquet"),
        ("parquets", IMAGES, "unknown-name", ""),
    ],
)  # fmt: skip
def test_wrong_file_is_refused_by_name(
    tmp_path: Path,
    declared: Callable[..., dict[str, Any]],
    form: str,
    files: dict[str, Any],
    code: str,
    name: str,
) -> None:
    folder = tmp_path / "mine"
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            write_shard(folder / path, content)
        else:
            (folder / path).write_bytes(content)
    with pytest.raises(InputError) as refused:
        declared(form, folder, 2)
        prepared(tmp_path)
    expected = "--format" if code == "unknown-name" else str(folder / name)
    assert_refusal(refused.value, code, file=expected)


def test_file_of_both_parts_is_refused(tmp_path: Path, declared: Callable[..., dict[str, Any]]) -> None:
    folder = write_image_folder(tmp_path / "trees")
    with pytest.raises(InputError) as refused:
        declared("image-folder", folder, 8, validation="t*/a*")
    assert_refusal(refused.value, "duplicate", file=str(folder / "train/ash/b.jpeg"))


@pytest.mark.parametrize(
    ("options", "code", "option"),
    [
        ({"name": "a b"}, "bad-pattern", "--name"),
        ({"name": "cifar-10"}, "duplicate", "--name"),
        ({"channels": 2}, "out-of-range", "--channels"),
        ({"size": 0}, "out-of-range", "--size"),
        ({"vocabulary": -1}, "out-of-range", "--vocabulary"),
    ],
)
def test_wrong_option_is_refused_before_files_are_read(
    tmp_path: Path, options: dict[str, Any], code: str, option: str
) -> None:
    with pytest.raises(InputError) as refused:
        declare_folder("image-folder", tmp_path / "nowhere", **{"name": "mine", "size": 8, **options})
    assert_refusal(refused.value, code, file=option)


BYTES = pa.struct([("bytes", pa.binary())])
CLASS_NAMES = {
    "huggingface": json.dumps({"info": {"features": {"tree": {"_type": "ClassLabel", "names": []}}}})
}


def pictures(labels: list[int], content: Any = PNG, kind: pa.DataType = BYTES) -> pa.Table:
    return pa.table({"img": pa.array([{"bytes": content}] * len(labels), kind), "label": labels})


@pytest.mark.parametrize(
    ("table", "code", "key"),
    [
        (pictures([0, -1]), "wrong-format", ""),
        (pictures([0, 2**40]), "out-of-range", "classes"),
        (pictures([0, 1], "/a/file.png", pa.struct([("bytes", pa.string())])), "wrong-format", ""),
        (pa.table({"input_ids": pa.array([[], []], pa.list_(pa.int64()))}), "wrong-count", ""),
        (pa.table({"input_ids": [[3, -1, 2, 1, 0]]}), "out-of-range", ""),
        (pa.table({"input_ids": [[3, 2**40, 2, 1, 0]]}), "out-of-range", ""),
    ],
)
def test_parquet_of_wrong_numbers_is_refused(tmp_path: Path, table: pa.Table, code: str, key: str) -> None:
    for part in ("train", "val"):
        pq.write_table(table, tmp_path / f"{part}.parquet")
    with pytest.raises(InputError) as refused:
        declare_folder("parquet", tmp_path, "mine", 2)
    assert (refused.value.code, refused.value.key) == (code, key)


def test_token_beyond_the_declared_vocabulary_is_refused(tmp_path: Path) -> None:
    for name in ("train", "val"):
        write_nanogpt(tmp_path, name, np.arange(30))
    with pytest.raises(InputError) as refused:
        declare_folder("token-files", tmp_path, "mine", 2, vocabulary=29)
    assert (refused.value.code, refused.value.got) == ("out-of-range", (0, 29))
