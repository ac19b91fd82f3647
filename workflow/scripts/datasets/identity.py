"""What a prepared data set is: the digest of its entry and of what prepares it, and where it lies in the site's cache."""

import functools
import json
from pathlib import Path

from common.files import digest_text
from common.normal_form import digest_sources
from declared.datasets import DATASETS, FRESH, kind, load_dataset
from declared.site import Site

# What only brings archives here, under checksums, or looks at prepared files, changes nothing of what is prepared; nor does
# what says so here.
NOT_PREPARING = ("__init__.py", "check.py", "fetch.py", "identity.py", "lock.py", "transfer.py", "verified.py")
FETCHING_KEYS = ("url", "mirrors", "unpacked_bytes")
TOLD_KEYS = ("title", "licence", "citation")  # for people


@functools.cache
def data_digest(dataset: str) -> str:
    """SHA-256 of the data set's table entry and of the code that prepares it; what it is called and where it is fetched from is no part."""
    code = digest_sources(file for file in DATASETS.parent.glob("*.py") if file.name not in NOT_PREPARING)
    entry = {key: said for key, said in load_dataset(dataset).items() if key not in TOLD_KEYS}
    if "files" in entry:
        entry["files"] = [
            {key: said for key, said in file.items() if key not in FETCHING_KEYS} for file in entry["files"]
        ]
    return digest_text(json.dumps(entry, sort_keys=True) + code)


def data_folder(site: Site, dataset: str) -> Path:
    """Where the prepared data set lies in the site's cache."""
    return site.cache / "datasets" / dataset / data_digest(dataset)[:12]


def data_files(folder: Path, dataset: str) -> list[Path]:
    """The files of a prepared data set in `folder` (datasets/prepared.py); a fresh one has no samples."""
    entry = load_dataset(dataset)
    if entry["format"] == FRESH:
        return [folder / "manifest.json"]
    parts = (f"{kind(entry)}.npy", "labels.npy", "manifest.json")
    return [folder / "manifest.json", *(folder / split / name for split in ("train", "validation") for name in parts)]
