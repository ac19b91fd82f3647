"""Prepare a data set in the one format that every framework reads.

A prepared data set is a folder with `train/` and `validation/`, each with `images.npy` (uint8, NHWC), `labels.npy`
(int64) and `manifest.json`, and a `manifest.json` of its own, with mean and standard deviation per channel of the
training images (a constant channel's deviation is 1). One of tokens has `tokens.npy` and `labels.npy`, sequences
[N, length] of the same unsigned integers. One that is drawn while training (fresh) has that manifest only.
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
from datasets.fetch import Store, archives, hold_to, store
from datasets.formats import READERS, Content
from datasets.identity import data_files
from datasets.made_up import write_archives
from datasets.prepared import write_part, write_tokens
from datasets.verified import changed, remember
from declared.datasets import FRESH, TOKENS, kind, load_dataset, sample_name
from declared.site import load_site
from environments.steps import build_lock, print_progress

UNIFORM_MEAN = 127.5
UNIFORM_STD = math.sqrt((256**2 - 1) / 12)  # of the whole numbers from 0 to 255
PARTS = ("train", "validation")


def prepare(dataset: str, folder: Path, kept: Store | None = None) -> None:
    """Write the prepared data set to `folder`, whole or not at all, unless it is there; two at once wait for each other.

    `kept` says where archives are; what is bundled, drawn or made up needs none.
    """
    if changed(folder, data_files(folder, dataset)) is None:
        return
    with system_faults(folder), build_lock(folder.with_name(f".{folder.name}.lock"), dataset):
        if changed(folder, data_files(folder, dataset)) is not None:
            for left in folder.parent.glob(f".{folder.name}.*partial"):
                shutil.rmtree(left, ignore_errors=True)
            partial = folder.with_name(f".{folder.name}.partial")
            partial.mkdir(parents=True)
            try:
                manifest = write_all(dataset, load_dataset(dataset), partial, kept)
                write_json(partial / "manifest.json", manifest)
                remember(partial, data_files(partial, dataset))
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)


def write_all(dataset: str, entry: Mapping[str, Any], folder: Path, kept: Store | None) -> dict[str, Any]:
    """Write both parts of a data set into `folder`, and return the content of its manifest.json."""
    told = {
        "dataset": dataset,
        **{key: entry[key] for key in ("title", "train_samples", "validation_samples", "shape", "licence", "citation")},
    }
    if entry["format"] == FRESH:
        return {**told, "fresh": True, "source": {"format": FRESH}, **_fresh(entry)}
    with at_hand(dataset, entry, kept, folder) as found:
        print_progress(
            f"{dataset}: preparing {entry['train_samples']} + {entry['validation_samples']} {sample_name(entry)}"
        )
        content = READERS[entry["format"]](entry, found)
        parts = {part: _write(dataset, entry, content, part, folder / part) for part in PARTS}
    told["source"] = source(entry, found)
    if kind(entry) == TOKENS:
        return {**told, **_of_tokens(entry)}
    return {**told, "classes": content.classes, **{key: parts["train"][key] for key in ("mean", "std")}}


def _fresh(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest says of samples that the worker draws."""
    if kind(entry) == TOKENS:
        return _of_tokens(entry)
    channels = entry["shape"][2]
    return {"classes": entry["classes"], "mean": [UNIFORM_MEAN] * channels, "std": [UNIFORM_STD] * channels}


def _of_tokens(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest says of tokens."""
    return {key: entry[key] for key in ("vocabulary", "classes") if key in entry}


def _write(dataset: str, entry: Mapping[str, Any], content: Content, part: str, folder: Path) -> dict[str, Any]:
    """Write a part to its folder, and return its manifest."""
    blocks, samples, what = getattr(content, part), entry[f"{part}_samples"], f"{dataset}: {part}"
    if kind(entry) == TOKENS:
        return write_tokens(folder, blocks, samples, entry["shape"][0], entry["vocabulary"], what)
    return write_part(folder, blocks, samples, entry["shape"], len(content.classes), what)


@contextlib.contextmanager
def at_hand(dataset: str, entry: Mapping[str, Any], kept: Store | None, folder: Path) -> Iterator[dict[str, Archive]]:
    """The data set's archives: fetched, or made up in `folder` for as long as they are read, or none."""
    if "made_up" in entry:
        with tempfile.TemporaryDirectory(prefix="archives-", dir=folder) as scratch:
            yield write_archives(entry, Path(scratch))
    elif "files" in entry:
        if kept is None:
            raise ValueError(f"{dataset} has archives; say where they are kept")
        found = archives(dataset, entry, kept)
        yield found
        hold_to(dataset, found, kept)
    else:
        yield {}


def source(entry: Mapping[str, Any], found: Mapping[str, Archive]) -> dict[str, Any]:
    """Where the images come from, for the manifest."""
    told: dict[str, Any] = {"format": entry["format"]}
    if "made_up" in entry:
        return {**told, "made_up": True}
    if found:
        told["files"] = [
            {"name": name, "from": archive.origin, "bytes": archive.path.stat().st_size, "sha256": archive.sha256}
            for name, archive in found.items()
        ]
    return told


def main(*, dataset: str, site: str, out: Path) -> None:
    """Fetch what a data set needs and prepare it, unless that is done already.

    Snakemake removes the file that it asks for before it starts this program, so that file is one that no run reads.

    Args:
        dataset: a data set that a study may name
        site: name of a file in config/sites/
        out: an empty file that is left in the data set's folder once that is complete
    """
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    load_dataset(dataset, "--dataset")
    described = load_site(site)
    with system_faults(described.cache), follow_modes(described.cache):
        prepare(dataset, out.parent, store(described))
        with system_faults(out):
            out.touch()


if __name__ == "__main__":
    sys.exit(run_program(main))
