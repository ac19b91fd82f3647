"""Every format is read back exactly as it was written, by code that knows only the published layout."""

import gzip
import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from common.errors import InputError
from common.files import CHECKOUT
from datasets.archives import Archive
from datasets.formats import READERS, decode_jpeg
from datasets.made_up import cifar_records, generate_parts, jpeg, tar, write_archives
from declared.datasets import load_dataset
from support.refusals import assert_refusal

CIFAR = "cifar-10-small"
FASHION = "fashion-mnist-small"
TINY = "tiny-imagenet-200-small"


def read(entry, archives):
    content = READERS[entry["format"]](entry, archives)
    samples = {}
    for name in ("train", "validation"):
        images, labels = zip(*getattr(content, name), strict=True)
        samples[name] = np.concatenate(images), np.concatenate(labels)
    return content.classes, samples


def refusal(entry, archives) -> InputError:
    with pytest.raises(InputError) as refused:
        read(entry, archives)
    return refused.value


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (CIFAR, {}),
        (FASHION, {}),
        (FASHION, {"shape": [6, 4, 3]}),
        (CIFAR, {"classes": ["one", "two  words", "3\t4"]}),
    ],
)
def test_synthetic_archives_are_read_back_exactly(tmp_path, name, changes):
    entry = {**load_dataset(name), **changes}
    classes, samples = read(entry, write_archives(entry, tmp_path))
    expected = generate_parts(entry, len(entry["classes"]))
    assert classes == entry["classes"]
    for part, (images, labels) in expected.items():
        assert np.array_equal(samples[part][0], images) and np.array_equal(samples[part][1], labels)
        assert samples[part][0].dtype == np.uint8 and samples[part][1].dtype == np.int64


def test_cifar_by_hand(tmp_path):
    """A record is its label, then the red plane row by row, the green, the blue
    (cs.toronto.edu/~kriz/cifar.html).
    """
    entry = {**load_dataset(CIFAR), "shape": [2, 2, 3]}
    record = bytes([7, 1, 2, 3, 4, 11, 12, 13, 14, 21, 22, 23, 24])
    _, samples = read(entry, cifar_archive(tmp_path, record, entry["classes"]))
    assert samples["train"][0].shape == (5, 2, 2, 3) and list(samples["validation"][1]) == [7]
    assert samples["train"][0][0].tolist() == [[[1, 11, 21], [2, 12, 22]], [[3, 13, 23], [4, 14, 24]]]


def cifar_archive(folder: Path, record: bytes, classes: list[str], **changes: bytes) -> dict[str, Archive]:
    root = "cifar-10-batches-bin"
    members = {f"{root}/data_batch_{i}.bin": record for i in (1, 3, 2, 5, 4)}
    members |= {
        f"{root}/test_batch.bin": record,
        f"{root}/batches.meta.txt": "\n".join(classes).encode() + b"\n\n",
    }
    members |= {f"{root}/{name}": content for name, content in changes.items()}
    (folder / "c.tar.gz").write_bytes(gzip.compress(tar(members)))
    return {"c.tar.gz": Archive(folder / "c.tar.gz", 1 << 20, "here")}


def test_another_order_of_classes_is_refused(tmp_path):
    entry = load_dataset(CIFAR)
    archives = cifar_archive(tmp_path, b"", entry["classes"][::-1])
    assert_refusal(refusal(entry, archives), "contradicts-entry", got=entry["classes"][::-1])


def test_a_cifar_batch_of_another_size_is_refused(tmp_path):
    entry = load_dataset(CIFAR)
    error = refusal(entry, cifar_archive(tmp_path, bytes(3072), entry["classes"]))
    assert_refusal(error, "contradicts-entry", "", ["data_batch_1.bin"], got=3072)


def test_no_pickle_is_loaded(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "evil",))

    entry = load_dataset(CIFAR)
    evil = pickle.dumps(Evil())
    archives = cifar_archive(tmp_path, evil, entry["classes"], **{"batches.meta": evil, "data_batch_1": evil})
    assert_refusal(refusal(entry, archives), "contradicts-entry", got=len(evil))
    assert not (tmp_path / "evil").exists()
    for source in (CHECKOUT / "workflow" / "scripts" / "datasets").glob("*.py"):
        text = source.read_text()
        assert "import pickle" not in text and "allow_pickle=True" not in text and "extractall" not in text
    with pytest.raises(ValueError, match="allow_pickle=False"):
        np.save(io.BytesIO(), np.array([Evil()]), allow_pickle=False)


def test_fashion_by_hand(tmp_path):
    entry = {**load_dataset(FASHION), "shape": [1, 2, 1], "train_samples": 2, "validation_samples": 1}
    files = {
        "train-images-idx3-ubyte.gz": "00000803 00000002 00000001 00000002 01020304",
        "train-labels-idx1-ubyte.gz": "00000801 00000002 0900",
        "t10k-images-idx3-ubyte.gz": "00000803 00000001 00000001 00000002 ff00",
        "t10k-labels-idx1-ubyte.gz": "00000801 00000001 03",
    }
    archives = idx_archives(tmp_path, files)
    _, samples = read(entry, archives)
    assert samples["train"][0].tolist() == [[[[1], [2]]], [[[3], [4]]]] and samples["train"][1].tolist() == [
        9,
        0,
    ]
    assert samples["validation"][0].tolist() == [[[[255], [0]]]] and samples["validation"][1].tolist() == [3]
    images, labels = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
    for name, content, code, got in [
        (images, "00000d03 00000002 00000001 00000002 01020304", "wrong-format", "00000d03"),
        (images, "00000803 00000003 00000001 00000002 01020304", "contradicts-entry", ((3, 1, 2), 4)),
        (images, "00000803 00000002 00000001 00000002 010203", "contradicts-entry", ((2, 1, 2), 3)),
        (labels, "00000801 00000002 090001", "contradicts-entry", ((2,), 3)),
        (labels, "0000", "wrong-format", "0000"),
        (images, "00000803 000000", "wrong-format", "00000803"),
    ]:
        error = refusal(entry, idx_archives(tmp_path, {**files, name: content}))
        assert_refusal(error, code, file=str(tmp_path / name), got=got)
    archives = idx_archives(tmp_path, files)
    archives.pop("t10k-labels-idx1-ubyte.gz")
    assert_refusal(refusal(entry, archives), "missing-file", "files", ["t10k-labels-idx1-ubyte.gz"])


def idx_archives(folder: Path, files: dict[str, str]) -> dict[str, Archive]:
    for name, content in files.items():
        (folder / name).write_bytes(gzip.compress(bytes.fromhex(content)))
    return {name: Archive(folder / name, 100, "here") for name in files}


def test_tiny_imagenet_is_read_as_pillow_decodes_it(tmp_path):
    entry = load_dataset(TINY)
    archives = write_archives(entry, tmp_path)
    classes, samples = read(entry, archives)
    with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip") as opened:
        ids = opened.read("tiny-imagenet-200/wnids.txt").decode().split()
        token_stream = dict(
            line.split("\t") for line in opened.read("tiny-imagenet-200/words.txt").decode().splitlines()
        )
        assert ids != sorted(ids), "the order is that of wnids.txt, not the alphabet's"
        assert classes == [token_stream[wnid] for wnid in ids]
        images, labels = samples["train"]
        for number in (0, 11, 31, 32, 639):
            name = (
                f"tiny-imagenet-200/train/{ids[number // 32]}/images/{ids[number // 32]}_{number % 32}.JPEG"
            )
            with Image.open(opened.open(name)) as image:
                assert np.array_equal(images[number], np.asarray(image.convert("RGB"))), name
            assert labels[number] == number // 32
        rows = opened.read("tiny-imagenet-200/val/val_annotations.txt").decode().splitlines()
        assert [ids[label] for label in samples["validation"][1]] == [row.split("\t")[1] for row in rows]
    expected = generate_parts(entry, 20)["validation"][0].astype(int)
    off = np.abs(samples["validation"][0].astype(int) - expected).mean(axis=(1, 2, 3))
    assert off[1] < 45, "JPEG loses little of it"
    grey = samples["validation"][0][0]
    assert (grey[..., 0] == grey[..., 1]).all() and (grey[..., 0] == grey[..., 2]).all(), (
        "grey ones get three channels"
    )


@pytest.mark.parametrize(
    ("changes", "code", "got"),
    [
        ({"wnids.txt": b"n1\nn1"}, "contradicts-entry", (1, 2)),
        ({"wnids.txt": b"n1"}, "contradicts-entry", (1, 1)),
        ({"train/n3/images/n3_0.JPEG": b""}, "unknown-class", "tiny-imagenet-200/train/n3/images/n3_0.JPEG"),
        ({"val/val_annotations.txt": b"val_0.JPEG\tn9\t0"}, "unknown-class", ["val_0.JPEG", "n9", "0"]),
        ({"val/val_annotations.txt": b"val_1.JPEG\tn1\t0"}, "missing-member",
         "tiny-imagenet-200/val/images/val_1.JPEG"),
        ({"val/images/val_0.JPEG": b"GIF89a"}, "wrong-format", "tiny-imagenet-200/val/images/val_0.JPEG"),
    ],
)  # fmt: skip
def test_changed_tiny_imagenet_is_refused(tmp_path, changes, code, got):
    entry = {**load_dataset(TINY), "classes": 2}
    image = jpeg(np.zeros((64, 64, 3), np.uint8), grey=False)
    members = {
        "wnids.txt": b"n2\nn1\n",
        "words.txt": b"n1\tone\nn2\ttwo, second\nn3\tthree\n",
        "train/n1/images/n1_0.JPEG": image,
        "train/n2/images/n2_0.JPEG": image,
        "val/images/val_0.JPEG": image,
        "val/val_annotations.txt": b"val_0.JPEG\tn1\t0\t0\t63\t63\n",
    }
    archives = tiny_archive(tmp_path, members)
    classes, samples = read(entry, archives)
    assert classes == ["two, second", "one"] and samples["validation"][1].tolist() == [1]
    error = refusal(entry, tiny_archive(tmp_path, {**members, **changes}))
    assert_refusal(error, code, file=str(tmp_path / "t.zip"), got=got)


def tiny_archive(folder: Path, members: dict[str, bytes]) -> dict[str, Archive]:
    with zipfile.ZipFile(folder / "t.zip", "w") as opened:
        for name, content in members.items():
            opened.writestr(f"tiny-imagenet-200/{name}", content)
    return {"t.zip": Archive(folder / "t.zip", 1 << 20, "here")}


def saved(image: Image.Image, kind: str) -> bytes:
    written = io.BytesIO()
    image.save(written, kind)
    return written.getvalue()


@pytest.mark.parametrize(
    ("content", "code", "got"),
    [
        (saved(Image.new("RGB", (64, 64)), "PNG"), "wrong-format", "x.JPEG"),
        (saved(Image.new("RGB", (64, 63)), "JPEG"), "contradicts-entry", (63, 64, "RGB")),
        (saved(Image.new("CMYK", (64, 64)), "JPEG"), "contradicts-entry", (64, 64, "CMYK")),
        (saved(Image.effect_noise((64, 64), 90), "JPEG")[:-400], "wrong-format", "x.JPEG"),
        (b"", "wrong-format", "x.JPEG"),
    ],
)
def test_only_jpeg_files_of_the_right_size_are_decoded(content, code, got):
    with pytest.raises(InputError) as refused:
        decode_jpeg(Archive(Path("t.zip"), 1, "here"), "x.JPEG", content, [64, 64, 3])
    assert_refusal(refused.value, code, "", ["'x.JPEG'"], file="t.zip", got=got)


def test_the_made_up_cifar_has_the_published_layout(tmp_path):
    write_archives(load_dataset(CIFAR), tmp_path)
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz") as opened:
        sizes = {info.name: info.size for info in opened if info.isfile()}
    assert sizes["cifar-10-batches-bin/data_batch_5.bin"] == 256 * 3073
    assert len(cifar_records(np.zeros((2, 32, 32, 3), np.uint8), np.arange(2))) == 2 * 3073


def zipped(folder: Path, **members: bytes) -> dict[str, Archive]:
    with zipfile.ZipFile(folder / "t.zip", "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return {"t.zip": Archive(folder / "t.zip", 1 << 20, "here")}


def text(vocabulary: int = 27, length: int = 4, kind: str = "text8") -> dict[str, object]:
    return {"title": "t", "format": kind, "shape": [length], "vocabulary": vocabulary}


def test_text8_by_hand(tmp_path):
    """The first 90 % of its characters train, the next 5 % validate.

    A token is a blank, or a letter by its place in the alphabet.
    """
    content = (b"the cat " * 25)[:200]
    _, samples = read(text(), zipped(tmp_path, text8=content))
    inputs, labels = samples["train"]
    letters = np.frombuffer(b" abcdefghijklmnopqrstuvwxyz", np.uint8)
    assert (
        bytes(letters[inputs.ravel()]) == content[:176] and bytes(letters[labels.ravel()]) == content[1:177]
    )
    assert inputs.shape == labels.shape == (44, 4), "(180 - 1) // 4"
    assert bytes(letters[samples["validation"][0].ravel()]) == content[180:188], "(10 - 1) // 4 sequences"


@pytest.mark.parametrize(
    ("members", "code", "got"),
    [({"text8": b"abc Def"}, "wrong-format", (0x44, 4)), ({"a": b"a", "b": b"b"}, "wrong-count", 2)],
)
def test_invalid_text8_is_refused(tmp_path, members, code, got):
    assert_refusal(refusal(text(), zipped(tmp_path, **members)), code, got=got)


def test_wikitext_by_hand(tmp_path):
    """Words between blanks, an end after each line.

    The most frequent is 0, of equals the first in the alphabet.
    """
    train, valid = b" \n = a b = \n \n a a <unk> b \n", b" a c \n b \n\n"
    members = zipped(
        tmp_path, **{"w__wiki.train.tokens": train, "w__wiki.valid.tokens": valid, "w__wiki.test.tokens": b""}
    )
    _, samples = read(text(5, 3, "wikitext"), members)
    names = np.array(["<eos>", "a", "=", "b", "<unk>"])  # 4, 3, 2, 2, 1 times
    (inputs, labels), (tokens, _) = samples["train"], samples["validation"]
    assert inputs.shape == (3, 3) and inputs.dtype == labels.dtype == np.int64
    assert " ".join(names[inputs.ravel()]) == "<eos> = a b = <eos> <eos> a a"
    assert " ".join(names[labels.ravel()]) == "= a b = <eos> <eos> a a <unk>"
    assert " ".join(names[tokens.ravel()]) == "a <unk> <eos>", "c is unknown"
    assert_refusal(refusal(text(4, 3, "wikitext"), members), "contradicts-entry", "", [4], got=5)
    error = refusal(text(4, 3, "wikitext"), zipped(tmp_path, a=b"a"))
    assert_refusal(error, "wrong-count", "", ["wiki.train.tokens"], got=0)


def token_stream(entry, archives) -> np.ndarray:
    _, samples = read(entry, archives)
    return np.concatenate([blocks[0].ravel() for blocks in samples.values()])


def test_wikitext_is_read_as_utf8_alone(tmp_path):
    """Another encoding would give other words."""
    written = "Bär Bör größe\n" * 4
    tokens = {}
    for encoding in ("utf-8", "utf-8-sig"):
        content = written.encode(encoding)
        members = {"w__wiki.train.tokens": content, "w__wiki.valid.tokens": content}
        tokens[encoding] = token_stream(text(5, 3, "wikitext"), zipped(tmp_path, **members)).tolist()
    assert tokens["utf-8"] == tokens["utf-8-sig"] and len(set(tokens["utf-8"])) == 4
    for encoding in ("latin-1", "utf-16"):
        content = written.encode(encoding)
        members = {"w__wiki.train.tokens": content, "w__wiki.valid.tokens": content}
        error = refusal(text(5, 3, "wikitext"), zipped(tmp_path, **members))
        assert error.code == "wrong-encoding" and error.got[0].endswith("wiki.train.tokens")
