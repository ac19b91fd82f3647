"""Compare images per second of each library's input alone with those of its training."""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets.prepare import prepare
from declared.environments import read
from declared.frameworks import load_framework
from declared.site import load_site
from document import section, table
from environments.build import build
from epoch_times import train_ranks

AIM = 5
FRAMEWORKS = ("pytorch-single", "tensorflow-single")  # the others of each library have the same input
CASES: tuple[dict[str, Any], ...] = (
    {"dataset": "digits", "model": "small-cnn"},
    {"dataset": "fashion-mnist-small", "model": "lenet-5"},
    {"dataset": "cifar-10-small", "model": "cnn-cifar10"},
    {"dataset": "cifar-10-small", "model": "cnn-cifar10", "augmentation": "flip-crop"},
    {"dataset": "tiny-imagenet-200-small", "model": "cnn-cifar10", "augmentation": "flip-crop"},
    {"dataset": "synthetic-224x224x3-1000-64", "model": "resnet-18", "batch_size": 32},
)


def measure() -> list[tuple[Mapping[str, Any], str, dict[str, float]]]:
    """Return images per second of input and of training on one core, for every case and library."""
    site = replace(load_site("local"), cores=1, nodes=1, time_limit_s=600.0)
    results = []
    with tempfile.TemporaryDirectory(prefix="ringside-bench-") as scratch:
        for number, case in enumerate(CASES):
            data = Path(scratch, f"data{number}")
            prepare(case["dataset"], data)
            for framework in FRAMEWORKS:
                levels = {"framework": framework, "nodes": 1, "batch_size": 64, "sync_every": 1, **case}
                folder = Path(scratch, f"{framework}.{number}")
                folder.mkdir()
                described = read(load_framework(framework).environment)
                environment = build(described, site.cache, {"torch_index": site.torch_index or ""})
                train_ranks(site, environment, folder, data, "input_rate", levels)
                results.append((case, framework, json.loads((folder / "rates.json").read_text())))
                print(f"{framework} {case}: {results[-1][2]}", file=sys.stderr, flush=True)
    return results


def report(results: Sequence[tuple[Mapping[str, Any], str, Mapping[str, float]]], command: str) -> str:
    """Return the part of docs/measurements.md."""
    rows = []
    for case, framework, rates in results:
        ratio = rates["input_images_s"] / rates["training_images_s"]
        label = ", ".join(str(case[name]) for name in ("dataset", "model", "augmentation") if name in case)
        rates_text = [f"{rates[name]:,.0f}" for name in ("input_images_s", "training_images_s")]
        met = f"{AIM}: {'met' if ratio >= AIM else 'missed'}"
        rows.append([label, framework, *rates_text, f"{ratio:.1f}", met])
    return section(
        "Input against training",
        command,
        table(
            [
                "data set, model",
                "framework",
                "input, images/s a core",
                "training, images/s a core",
                "ratio",
                "aim",
            ],
            rows,
        ),
        "One rank on one core, batch 64 (synthetic: 32), float32. Input is everything before the model: "
        "reading, augmentation, conversion to float, normalization. On a GPU a thread reads ahead into "
        "pinned memory; with one spare core per rank it keeps up with training at the input's rate.",
    )
