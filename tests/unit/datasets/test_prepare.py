"""Prepared data sets are complete, and preparing them again gives the same bytes."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from common.errors import SYSTEM_CODE, InputError
from common.files import digest_file
from datasets import check
from datasets.check import check_data
from datasets.identity import data_files
from datasets.made_up import write_archives
from datasets.prepare import main, prepare, write_parts
from datasets.prepared import channel_statistics, write_images, write_tokens
from datasets.verified import first_changed_file
from declared.datasets import datasets, load_dataset
from support.refusals import assert_refusal

SMALL = ("digits", "synthetic", "cifar-10-small", "fashion-mnist-small", "tiny-imagenet-200-small")
# As prepared for the campaigns in docs/campaigns.
PUBLISHED_SHA256 = {
    "digits/train/images.npy": "2322378d4292019ef082971b75c3e18415e78400b9385dbdd4ce3b63d46ae7f9",
    "digits/train/labels.npy": "4a7721c97c6dd24e81dce114a304c988b46c4f308834e5d15696520fbd541a98",
    "digits/validation/images.npy": "0cba7f751f5d6f1cf48edb4ba6eb1c3313bf625b7c65e460157f4b24759449fc",
    "digits/validation/labels.npy": "04bf7fca61ff9b1f72f3053328f9cfdfeaf8cf0e1116b273b12f90bd0ddc288a",
    "synthetic/train/images.npy": "274db8ba6c3e3dbf132d4e092d1cb9c716792f71fdedd918b9114beab420f3f3",
    "synthetic/train/labels.npy": "15c96091b6f3f38ea289222c553dce9a2db43fbe5ff0a2ec7ec756bcb7eec309",
    "synthetic/validation/images.npy": "990c84192f6b0a273a2f8ceddddf6b3b1ea4b92e4557f2c27c834f7536fbd9b6",
    "synthetic/validation/labels.npy": "e2091c494e854f07ee857fc6ec5299c7f734be1d07c8319f9f36afc57d3867bf",
}


@pytest.mark.parametrize("name", SMALL)
def test_a_data_set_is_prepared_as_the_table_says(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGSIDE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / name / "0123456789ab"
    main(dataset=name, site="local", out=folder / "prepared")
    entry, manifest = datasets()[name], json.loads((folder / "manifest.json").read_text())
    assert all(file.is_file() for file in data_files(folder, name))
    for part in ("train", "validation"):
        images, labels = (
            np.load(folder / part / "images.npy", mmap_mode="r"),
            np.load(folder / part / "labels.npy"),
        )
        assert images.shape == (entry[f"{part}_samples"], *entry["shape"]) and images.dtype == np.uint8
        assert labels.dtype == np.int64
        assert set(labels) == set(range(len(manifest["classes"]))), "every class is in both parts"
        part_manifest = json.loads((folder / part / "manifest.json").read_text())
        assert part_manifest["sha256"]["images.npy"] == digest_file(folder / part / "images.npy")
        assert part_manifest["bytes"]["labels.npy"] == (folder / part / "labels.npy").stat().st_size
        assert (
            part_manifest["class_counts"] == np.bincount(labels).tolist()
            and sum(part_manifest["class_counts"]) == part_manifest["samples"]
        )
        assert part_manifest["mean"] == pytest.approx(images.mean(axis=(0, 1, 2)), rel=1e-9)
        assert part_manifest["std"] == pytest.approx(images.std(axis=(0, 1, 2), dtype=np.float64), rel=1e-9)
        if part == "train":
            assert [manifest[key] for key in ("mean", "std")] == [
                part_manifest[key] for key in ("mean", "std")
            ]
    assert {key: manifest[key] for key in ("train_samples", "shape", "licence", "citation")} == {
        key: entry[key] for key in ("train_samples", "shape", "licence", "citation")
    }
    assert not list(folder.parent.glob(".*partial"))


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_data_of_published_campaigns_are_unchanged(tmp_path: Path, name: str) -> None:
    prepare(name, tmp_path / name)
    published_sha256 = {
        file: sha256 for file, sha256 in PUBLISHED_SHA256.items() if file.startswith(f"{name}/")
    }
    assert {file: digest_file(tmp_path / file) for file in published_sha256} == published_sha256


@pytest.mark.parametrize("name", ["text8-small", "wikitext-2-small"])
def test_a_text_is_prepared_as_the_table_says(tmp_path: Path, name: str) -> None:
    entry, folder = datasets()[name], tmp_path / "a"
    prepare(name, folder)
    check_data(folder, name)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["vocabulary"] == entry["vocabulary"] and not {"classes", "mean"} & set(manifest)
    texts = []
    for part in ("train", "validation"):
        tokens, labels = (np.load(folder / part / f"{array}.npy") for array in ("tokens", "labels"))
        assert tokens.shape == labels.shape == (entry[f"{part}_samples"], *entry["shape"])
        assert tokens.dtype == labels.dtype == np.uint8, "the smallest that holds the vocabulary"
        assert np.array_equal(tokens.ravel()[1:], labels.ravel()[:-1]), "sequences follow each other"
        part_manifest = json.loads((folder / part / "manifest.json").read_text())
        assert part_manifest["sha256"]["tokens.npy"] == digest_file(folder / part / "tokens.npy")
        texts.append(tokens.tobytes())
    assert texts[1][:50] not in texts[0], "what validates was not seen in training"
    (folder / "train" / "tokens.npy").write_bytes(b"cut off")
    with pytest.raises(InputError) as refused:
        check_data(folder, name)
    assert_refusal(refused.value, "changed-file", file=str(folder / "train" / "tokens.npy"))


@pytest.mark.parametrize(
    ("tokens", "got", "mentions"),
    [
        (np.zeros((1, 3), np.int64), 1, [1, 2]),
        (np.zeros((3, 3), np.int64), (3, 3), [0, 3, 2]),
        (np.zeros((2, 4), np.int64), (2, 4), [0, 2, 4, 3]),
        (np.full((2, 3), 300), (300, 300), [300]),
        (np.full((2, 3), -1), (-1, -1), [-1, 300]),
    ],
)
def test_text_that_contradicts_its_entry_is_refused(
    tmp_path: Path, tokens: np.ndarray, got: object, mentions: list[int]
) -> None:
    with pytest.raises(InputError) as refused:
        write_tokens(tmp_path / "train", [(tokens, tokens)], 2, 3, 300, "ours: train")
    assert_refusal(refused.value, "contradicts-entry", "", mentions, file="ours: train", got=got)


def test_a_half_prepared_data_set_is_prepared_again(tmp_path: Path) -> None:
    prepare("digits", tmp_path / "a")
    (tmp_path / "a" / "manifest.json").unlink()
    (tmp_path / "a" / "train" / "images.npy").write_bytes(b"cut off")
    (tmp_path / ".a.partial" / "train").mkdir(parents=True)
    prepare("digits", tmp_path / "a")
    assert len(np.load(tmp_path / "a" / "train" / "images.npy")) == 1536
    assert not (tmp_path / ".a.partial").exists()


def test_complete_data_set_is_not_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGSIDE_CACHE", str(tmp_path / "cache"))
    prepared = tmp_path / "digits" / "prepared"

    def inodes_after_asking() -> list[int]:
        main(dataset="digits", site="local", out=prepared)
        assert prepared.is_file()
        return [file.stat().st_ino for file in data_files(prepared.parent, "digits")]

    before = inodes_after_asking()
    prepared.unlink()  # as Snakemake of another campaign does before it asks
    check_data(prepared.parent, "digits")
    assert inodes_after_asking() == before
    (prepared.parent / "train" / "images.npy").write_bytes(b"cut off")
    inodes_after_asking()
    check_data(prepared.parent, "digits")


@contextlib.contextmanager
def nearly_full_disk() -> Iterator[None]:
    """No file takes more than 10 kB; pytest's own output is one, so that it must not outlast the call."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["digits", "cifar-10-small"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    with nearly_full_disk(), pytest.raises(InputError) as refused:
        prepare(name, tmp_path / "a")
    assert_refusal(refused.value, SYSTEM_CODE, "", ["File too large"], file=str(tmp_path / "a"))
    assert [path.name for path in tmp_path.iterdir()] == [".a.lock"]


def test_ended_preparation_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    places = {"RINGSIDE_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "temporary")}
    for attempt in range(10):
        out = tmp_path / str(attempt) / "0123456789ab" / "prepared"
        arguments = ["--dataset", "tiny-imagenet-200-small", "--site", "local", "--out", str(out)]
        process = subprocess.Popen(
            [sys.executable, "-m", "datasets.prepare", *arguments], env={**os.environ, **places}
        )
        while not list(tmp_path.glob(f"{attempt}/.*.partial/archives-*")) and process.poll() is None:
            time.sleep(0.01)
        process.terminate()
        if process.wait(30):  # else it was ready before it was ended, as on a busy machine
            break
    assert process.returncode == 128 + signal.SIGTERM
    assert [path.name for path in out.parent.parent.iterdir()] == [".0123456789ab.lock"]
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(
    ("images", "labels", "got", "mentions"),
    [
        (np.zeros((3, 2, 2, 1), np.uint8), [0, 1, 2], (3, [2, 2, 1]), [0, 3]),
        (np.zeros((1, 2, 2, 1), np.uint8), [0], 1, [2]),
        (np.zeros((2, 2, 2, 3), np.uint8), [0, 1], (2, [2, 2, 3]), ["[2, 2, 3]", "[2, 2, 1]"]),
        (np.zeros((2, 2, 2, 1), np.int16), [0, 1], (2, [2, 2, 1]), []),
        (np.zeros((2, 2, 2, 1), np.uint8), [0, 3], (0, 3), [3]),
        (np.zeros((2, 2, 2, 1), np.uint8), [-1, 0], (-1, 0), [3]),
    ],
)
def test_images_that_contradict_their_entry_are_refused(
    tmp_path: Path, images, labels, got, mentions
) -> None:
    with pytest.raises(InputError) as refused:
        write_images(tmp_path / "train", [(images, np.array(labels))], 2, [2, 2, 1], 3, "ours: train")
    assert_refusal(refused.value, "contradicts-entry", "", mentions, file="ours: train", got=got)


def test_mean_and_deviation_are_exact_in_any_order_of_blocks() -> None:
    counts = np.zeros((2, 256), np.int64)
    counts[0, 255] = 10**11
    counts[1, [254, 255]] = 10**11
    assert channel_statistics(counts) == {"mean": [255.0, 254.5], "std": [1.0, 0.5]}, (
        "a constant channel can be divided by"
    )


def test_a_fresh_data_set_is_a_manifest(tmp_path: Path) -> None:
    prepare("synthetic-4x6x3-5-200", tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["manifest.json", "verified.json"]
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert (
        manifest["fresh"]
        and manifest["shape"] == [4, 6, 3]
        and manifest["classes"] == ["0", "1", "2", "3", "4"]
    )
    assert (manifest["train_samples"], manifest["validation_samples"]) == (200, 20)
    assert manifest["mean"] == [127.5] * 3 and manifest["std"] == pytest.approx([np.arange(256).std()] * 3)
    check_data(tmp_path / "a", "synthetic-4x6x3-5-200")
    prepare("synthetic-regions-4x6x3-5-200", tmp_path / "b")
    regions = json.loads((tmp_path / "b" / "manifest.json").read_text())
    assert (regions["targets"], len(regions["mean"])) == ("pixel", 3) and "targets" not in manifest


@pytest.fixture
def published(tmp_path: Path, declare, server) -> dict[str, Any]:
    """The entry of a data set whose archives a server has; they are also files in ``made``."""
    small = load_dataset("fashion-mnist-small")
    (tmp_path / "made").mkdir()
    contents = {
        name: archive.path.read_bytes() for name, archive in write_archives(small, tmp_path / "made").items()
    }
    files = [
        declare(name, content, url=server.serve(f"/{name}", content)) for name, content in contents.items()
    ]
    return {**{key: value for key, value in small.items() if key != "made_up"}, "files": files}


def test_manifest_has_the_origin_of_archives(tmp_path: Path, store_at, published) -> None:
    manifest, files = write_parts("ours", published, tmp_path / "prepared", store_at()), published["files"]
    assert [file["from"] for file in manifest["source"]["files"]] == [file["url"] for file in files]
    sha256 = {file["name"]: digest_file(tmp_path / "made" / file["name"]) for file in files}
    assert {file["name"]: file["sha256"] for file in manifest["source"]["files"]} == sha256
    assert yaml.safe_load(store_at().lock("ours").read_text()) == {"ours": sha256}
    prepare("fashion-mnist-small", tmp_path / "small")
    assert (tmp_path / "small" / "train" / "images.npy").read_bytes() == (
        tmp_path / "prepared" / "train" / "images.npy"
    ).read_bytes(), "fetched or made up, the same code reads it"


def test_unreadable_archive_is_not_locked(tmp_path: Path, store_at, declare, server, published) -> None:
    first, rubbish = published["files"][0], b"Sorry, we are moving."
    spoilt = declare(first["name"], rubbish, url=server.serve("/rubbish", rubbish))
    with pytest.raises(InputError) as refused:
        write_parts(
            "ours", {**published, "files": [spoilt, *published["files"][1:]]}, tmp_path / "spoilt", store_at()
        )
    assert refused.value.code == "broken-archive"
    assert not store_at().lock("ours").exists()
    write_parts("ours", published, tmp_path / "good", store_at())


def test_data_of_another_archive_are_refused(tmp_path: Path, monkeypatch, store_at, published) -> None:
    monkeypatch.setitem(datasets(), "ours", published)
    monkeypatch.setattr(check, "table_of", lambda _: store_at().table)
    prepare("ours", tmp_path / "ours", store_at())
    check_data(tmp_path / "ours", "ours")
    name, lock = published["files"][0]["name"], store_at().lock("ours")
    lock.write_text(lock.read_text().replace(f"{name}: ", f"{name}: {'f' * 64} # "))
    with pytest.raises(InputError) as refused:
        check_data(tmp_path / "ours", "ours")
    used = digest_file(tmp_path / "made" / name)
    folder = tmp_path / "ours"
    assert_refusal(refused.value, "checksum-mismatch", file=str(folder), got=used)
    assert f"{name} of ours from {lock}" in refused.value.hint
    load_dataset.cache_clear()


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    prepare("digits", tmp_path / "digits")
    return tmp_path / "digits"


@pytest.mark.parametrize(
    "name", ["manifest.json", "train/images.npy", "validation/labels.npy", "train/manifest.json"]
)
def test_no_run_trains_on_changed_data(digits: Path, name: str) -> None:
    check_data(digits, "digits")
    content = bytearray((digits / name).read_bytes())
    content[-3] ^= 1
    (digits / name).write_bytes(content)
    with pytest.raises(InputError) as refused:
        check_data(digits, "digits")
    assert_refusal(refused.value, "changed-file", "", [digits], file=str(digits / name))
    (digits / name).unlink()
    with pytest.raises(InputError) as refused:
        check_data(digits, "digits")
    assert_refusal(refused.value, "changed-file", "", [digits], file=str(digits / name))


def test_invisible_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        check_data(tmp_path / "elsewhere", "digits")
    assert_refusal(refused.value, "missing-folder", "", [os.uname().nodename], file=f"{tmp_path}/elsewhere")
    assert "remove" not in refused.value.hint.split()


def test_a_copied_cache_is_compared_by_content_once(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in data_files(digits, "digits"):
        os.utime(file, ns=(1, 1))
    read: list[Path] = []
    monkeypatch.setattr("datasets.verified.digest_file", lambda file: read.append(file) or digest_file(file))
    assert first_changed_file(digits, data_files(digits, "digits")) is None and len(read) == 7
    assert first_changed_file(digits, data_files(digits, "digits")) is None and len(read) == 7
