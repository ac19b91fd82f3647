"""Prepare a data set in the format that every framework reads.

A prepared data set is a folder with `train/` and `validation/`, each with `images.npy` (uint8, NHWC),
`labels.npy` (int64) and `manifest.json`. The folder's own `manifest.json` has the training images' mean and
standard deviation per channel (1 for a constant channel). A text has `tokens.npy` and `labels.npy` instead,
both unsigned integers [N, length]. A data set that is drawn while training (fresh) has only the manifest.
"""

import contextlib
import math
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.caches import follow_modes
from common.errors import system_faults
from common.files import write_json
from common.options import run_program
from datasets.archives import Archive
from datasets.fetch import Store, archives, lock_archives, site_store
from datasets.folders import read_folder, verified_folder
from datasets.formats import READERS, Content
from datasets.identity import data_files
from datasets.made_up import write_archives
from datasets.prepared import write_images, write_tokens
from datasets.verified import first_changed_file, write_verified
from declared.datasets import FOLDERS, FRESH, IMAGES, TOKENS, kind, load_dataset, sample_name
from declared.site import load_site
from environments.steps import build_lock, print_progress

UNIFORM_MEAN = 127.5
UNIFORM_STD = math.sqrt((256**2 - 1) / 12)  # standard deviation of the integers from 0 to 255
PARTS = ("train", "validation")


def prepare(dataset: str, folder: Path, store: Store | None = None) -> None:
    """Write a prepared data set to ``folder``, atomically, unless it exists and is unchanged.

    Concurrent calls wait for each other.

    Args:
        dataset: Name of the data set.
        folder: Folder of the prepared data set.
        store: The places of archives; None is allowed for a data set without archives.
    """
    if first_changed_file(folder, data_files(folder, dataset)) is None:
        return
    with system_faults(folder), build_lock(folder.with_name(f".{folder.name}.lock"), dataset):
        if first_changed_file(folder, data_files(folder, dataset)) is not None:
            for leftover in folder.parent.glob(f".{folder.name}.*partial"):
                shutil.rmtree(leftover, ignore_errors=True)
            partial = folder.with_name(f".{folder.name}.partial")
            partial.mkdir(parents=True)
            try:
                manifest = write_parts(dataset, load_dataset(dataset), partial, store)
                write_json(partial / "manifest.json", manifest)
                write_verified(partial, data_files(partial, dataset))
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)


def write_parts(dataset: str, entry: Mapping[str, Any], folder: Path, store: Store | None) -> dict[str, Any]:
    """Write both parts of a data set into ``folder``, and return its manifest."""
    manifest = {
        "dataset": dataset,
        **{
            key: entry[key]
            for key in ("title", "train_samples", "validation_samples", "shape", "licence", "citation")
        },
    }
    if entry["format"] == FRESH:
        return {**manifest, "fresh": True, "source": {"format": FRESH}, **_fresh_keys(entry)}
    with open_archives(dataset, entry, store, folder) as archives_by_name:
        print_progress(
            f"{dataset}: preparing {entry['train_samples']} + {entry['validation_samples']} "
            f"{sample_name(entry)}"
        )
        if entry["format"] in FOLDERS:
            content = read_folder(entry, verified_folder(dataset, entry, store))
        else:
            content = READERS[entry["format"]](entry, archives_by_name)
        parts = {part: _write_part(dataset, entry, content, part, folder / part) for part in PARTS}
    manifest["source"] = describe_source(entry, archives_by_name)
    if kind(entry) == TOKENS:
        return {**manifest, **_label_keys(entry)}
    return {**manifest, "classes": content.classes, **{key: parts["train"][key] for key in ("mean", "std")}}


def _fresh_keys(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest entries of samples that the worker draws."""
    keys = _label_keys(entry)
    if kind(entry) == IMAGES:
        channels = entry["shape"][2]
        keys |= {"mean": [UNIFORM_MEAN] * channels, "std": [UNIFORM_STD] * channels}
    return keys


def _label_keys(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest entries of tokens and labels."""
    return {key: entry[key] for key in ("vocabulary", "classes", "targets") if key in entry}


def _write_part(
    dataset: str, entry: Mapping[str, Any], content: Content, part: str, folder: Path
) -> dict[str, Any]:
    """Write a part to its folder, and return its manifest."""
    blocks, samples, label = getattr(content, part), entry[f"{part}_samples"], f"{dataset}: {part}"
    if kind(entry) == TOKENS:
        return write_tokens(folder, blocks, samples, entry["shape"][0], entry["vocabulary"], label)
    return write_images(folder, blocks, samples, entry["shape"], len(content.classes), label)


@contextlib.contextmanager
def open_archives(
    dataset: str, entry: Mapping[str, Any], store: Store | None, folder: Path
) -> Iterator[dict[str, Archive]]:
    """Yield the data set's archives by name, {} if it has none; synthetic ones are generated in ``folder``.

    Fetched archives are locked if the block ends without an error.
    """
    if "made_up" in entry:
        with tempfile.TemporaryDirectory(prefix="archives-", dir=folder) as scratch:
            yield write_archives(entry, Path(scratch))
    elif "files" in entry:
        if store is None:
            raise ValueError(f"{dataset} has archives, but no store is given")
        fetched = archives(dataset, entry, store)
        yield fetched
        lock_archives(dataset, fetched, store)
    else:
        yield {}


def describe_source(entry: Mapping[str, Any], fetched: Mapping[str, Archive]) -> dict[str, Any]:
    """Return where the samples come from, for the manifest."""
    description: dict[str, Any] = {"format": entry["format"]}
    if "made_up" in entry:
        return {**description, "made_up": True}
    if "folder" in entry:
        return {**description, "sha256": entry["sha256"]}
    if fetched:
        description["files"] = [
            {
                "name": name,
                "from": archive.origin,
                "bytes": archive.path.stat().st_size,
                "sha256": archive.sha256,
            }
            for name, archive in fetched.items()
        ]
    return description


def main(*, dataset: str, site: str, out: Path) -> None:
    """Fetch and prepare a data set, unless it is already prepared.

    The output is a separate file: Snakemake removes outputs first, and another campaign can be reading the
    data.

    Args:
        dataset: name of the data set
        site: name of a file in config/sites/
        out: an empty file that marks the data set's folder as complete
    """
    signal.signal(signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum))
    load_dataset(dataset, "--dataset")
    described = load_site(site)
    with system_faults(described.cache), follow_modes(described.cache):
        prepare(dataset, out.parent, site_store(described))
        with system_faults(out):
            out.touch()


if __name__ == "__main__":
    sys.exit(run_program(main))
