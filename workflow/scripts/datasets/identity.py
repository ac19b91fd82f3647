"""Identify a prepared data set by the digest of its entry and of the code that prepares it."""

import functools
import json
from pathlib import Path

from common.files import digest_text
from common.normal_form import digest_sources
from declared.datasets import DATASETS, FRESH, kind, load_dataset
from declared.site import Site

# Modules that do not affect what is prepared: they fetch archives by checksum, or check prepared files.
NON_PREPARING_MODULES = (
    "__init__.py",
    "check.py",
    "declare.py",
    "fetch.py",
    "identity.py",
    "lock.py",
    "transfer.py",
    "verified.py",
)
FETCHING_KEYS = ("url", "mirrors", "unpacked_bytes")
# `folder` does not count, because the entry's sha256 identifies the files.
DESCRIPTIVE_KEYS = ("title", "folder", "licence", "citation")


@functools.cache
def data_digest(dataset: str) -> str:
    """Return the SHA-256 of a data set's entry and its preparing code, without descriptions and addresses."""
    code = digest_sources(
        file for file in DATASETS.parent.glob("*.py") if file.name not in NON_PREPARING_MODULES
    )
    entry = {key: value for key, value in load_dataset(dataset).items() if key not in DESCRIPTIVE_KEYS}
    if "files" in entry:
        entry["files"] = [
            {key: value for key, value in file.items() if key not in FETCHING_KEYS} for file in entry["files"]
        ]
    return digest_text(json.dumps(entry, sort_keys=True) + code)


def data_folder(site: Site, dataset: str) -> Path:
    """Return the folder of a prepared data set in the site's cache."""
    return site.cache / "datasets" / dataset / data_digest(dataset)[:12]


def data_files(folder: Path, dataset: str) -> list[Path]:
    """Return the files of a prepared data set in ``folder``; a data set drawn while training has only one."""
    entry = load_dataset(dataset)
    if entry["format"] == FRESH:
        return [folder / "manifest.json"]
    parts = (f"{kind(entry)}.npy", "labels.npy", "manifest.json")
    return [
        folder / "manifest.json",
        *(folder / split / name for split in ("train", "validation") for name in parts),
    ]
