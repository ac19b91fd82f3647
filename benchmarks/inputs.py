"""Compare samples per second of each library's input alone with those of its training."""

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import InputError
from datasets.fetch import site_store
from datasets.prepare import prepare
from declared.datasets import load_dataset
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
    {"dataset": "text8-small", "model": "gpt-nano"},
)


def own_case(dataset: str, model: str, batch_size: str) -> dict[str, Any]:
    """Return the case of a data set and a model.

    Raises:
        InputError: If the batch size is no number.
    """
    if not batch_size.isdecimal():
        raise InputError(
            "wrong-type", f"is {batch_size}", file="--case BATCH", got=batch_size, expected="a number"
        )
    return {"dataset": dataset, "model": model, "batch_size": int(batch_size)}


def measure(
    cases: Sequence[Mapping[str, Any]] = CASES,
) -> list[tuple[Mapping[str, Any], str, dict[str, float]]]:
    """Return samples per second of input and of training on one core, for every case and library.

    Also of the preparation of the data, with all cores.
    """
    site = replace(load_site("local"), cores=1, nodes=1, time_limit_s=600.0)
    results = []
    with tempfile.TemporaryDirectory(prefix="ringside-bench-") as scratch:
        for number, case in enumerate(cases):
            data, entry = Path(scratch, f"data{number}"), load_dataset(case["dataset"])
            started = time.perf_counter()
            prepare(case["dataset"], data, site_store(site))
            n_samples = entry["train_samples"] + entry["validation_samples"]
            prepared_s = n_samples / (time.perf_counter() - started)
            for framework in FRAMEWORKS:
                levels = {"framework": framework, "nodes": 1, "batch_size": 64, "sync_every": 1, **case}
                folder = Path(scratch, f"{framework}.{number}")
                folder.mkdir()
                described = read(load_framework(framework).environment)
                environment = build(described, site.cache, {"torch_index": site.torch_index or ""})
                train_ranks(site, environment, folder, data, "input_rate", levels)
                rates = json.loads((folder / "rates.json").read_text())
                results.append((case, framework, {"prepared_samples_s": prepared_s, **rates}))
                print(f"{framework} {case}: {results[-1][2]}", file=sys.stderr, flush=True)
    return results


def report(results: Sequence[tuple[Mapping[str, Any], str, Mapping[str, float]]], command: str) -> str:
    """Return the part of docs/measurements.md."""
    rows = []
    for case, framework, rates in results:
        ratio = rates["input_samples_s"] / rates["training_samples_s"]
        label = ", ".join(str(case[name]) for name in ("dataset", "model", "augmentation") if name in case)
        names = ("prepared_samples_s", "input_samples_s", "training_samples_s")
        rates_text = [f"{rates[name]:,.0f}" for name in names]
        limit = "input" if ratio < 1 else "training"
        met = f"{AIM}: {'met' if ratio >= AIM else 'missed'}"
        rows.append([label, framework, *rates_text, f"{ratio:.1f}", limit, met])
    return section(
        "Input against training",
        command,
        table(
            [
                "data set, model",
                "framework",
                "preparation, samples/s",
                "input, samples/s a core",
                "training, samples/s a core",
                "ratio",
                "limit",
                "aim",
            ],
            rows,
        ),
        "One rank on one core, batch 64 or that of the case (synthetic: 32), float32. Preparation happens "
        "once, with all cores: reading, decoding, writing arrays. Input is everything before the model: "
        "reading, augmentation, conversion to float, normalization. On a GPU a thread reads ahead into "
        "pinned memory; with one spare core per rank it keeps up with training at the input's rate.",
    )
