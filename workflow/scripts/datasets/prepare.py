"""Prepare a data set in the one format that every framework reads.

A prepared data set is a folder with `train/` and `validation/`, each with `images.npy` (uint8, NHWC), `labels.npy`
(int64) and `manifest.json`, and a `manifest.json` of its own, written last, with mean and standard deviation per
channel of the training images.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import exit_status
from common.files import digest_file, locked, write_json
from plan.study import datasets

SPLIT_SEED = 0


def synthetic(entry: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """As many images as the entry says, uint8 [N, H, W, C], each its class's pattern under noise, and labels, int64 [N]."""
    generator = np.random.default_rng(SPLIT_SEED)
    labels = generator.integers(len(entry["classes"]), size=entry["train_samples"] + entry["validation_samples"])
    patterns = generator.integers(256, size=(len(entry["classes"]), *entry["shape"]))
    noise = generator.integers(256, size=(len(labels), *entry["shape"]))
    return ((patterns[labels] + 3 * noise) // 4).astype(np.uint8), labels


def digits(entry: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The 1,797 bundled images, uint8 [N, 8, 8, 1] with values 0 to 16, and their labels, int64 [N], in a fixed random order."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(bunch.target))
    return bunch.images[order].astype(np.uint8)[..., None], bunch.target[order].astype(np.int64)


SOURCES = {"scikit-learn": digits, "synthetic": synthetic}


def split(images: np.ndarray, labels: np.ndarray, entry: dict[str, Any]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Training and validation part: the first and the next samples of an order that is already random."""
    train, validation = entry["train_samples"], entry["validation_samples"]
    if len(images) != train + validation or list(images.shape[1:]) != entry["shape"]:
        raise ValueError(f"{images.shape} are not {train} + {validation} images of {entry['shape']}")
    return {"train": (images[:train], labels[:train]), "validation": (images[train:], labels[train:])}


def prepare(dataset: str, folder: Path) -> None:
    """Write the prepared data set to `folder`, whole or not at all; two at once wait for each other."""
    with locked(folder.with_name(f".{folder.name}.lock"), lambda: print(f"{dataset}: another process prepares it")):
        if not (folder / "manifest.json").exists():
            _prepare(dataset, folder)


def _prepare(dataset: str, folder: Path) -> None:
    entry = datasets()[dataset]
    images, labels = SOURCES[entry["source"]](entry)
    parts = split(images, labels, entry)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name, (split_images, split_labels) in parts.items():
        target = partial / name
        target.mkdir(parents=True)
        np.save(target / "images.npy", split_images)
        np.save(target / "labels.npy", split_labels)
        write_json(
            target / "manifest.json",
            {
                "samples": len(split_images),
                "shape": list(split_images.shape[1:]),
                "sha256": {file: digest_file(target / file) for file in ("images.npy", "labels.npy")},
            },
        )
    train_images = parts["train"][0]
    write_json(
        partial / "manifest.json",
        {
            "dataset": dataset,
            "source": entry["source"],
            "train_samples": len(train_images),
            "validation_samples": len(parts["validation"][0]),
            "shape": entry["shape"],
            "classes": entry["classes"],
            "mean": train_images.mean(axis=(0, 1, 2), dtype=np.float64).tolist(),
            "std": train_images.std(axis=(0, 1, 2), dtype=np.float64).tolist(),
        },
    )
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def main(argv: list[str] | None = None) -> None:
    """Prepare one data set of workflow/scripts/datasets/table.yaml."""
    parser = argparse.ArgumentParser(prog="datasets.prepare", description=main.__doc__)
    parser.add_argument("--dataset", required=True, choices=sorted(datasets()))
    parser.add_argument(
        "--out", required=True, type=Path, help="manifest.json of the prepared data set; its folder is made whole"
    )
    options = parser.parse_args(argv)
    prepare(options.dataset, options.out.parent)


if __name__ == "__main__":
    sys.exit(exit_status(main))
