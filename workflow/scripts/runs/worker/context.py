"""What a rank knows: who it is, what it trains, on what."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from runs.worker import model, sampling
from runs.worker.group import Group


@dataclass
class Context:
    """One rank of one run. `job` is the attempt's spec.json."""

    folder: Path
    job: dict[str, Any]
    rank: int
    local_rank: int
    group: Group

    @property
    def spec(self) -> dict[str, Any]:
        """The run's spec (plan/identity.py)."""
        return self.job["spec"]

    @property
    def levels(self) -> dict[str, Any]:
        """The level of every factor."""
        return self.spec["levels"]

    @property
    def ranks(self) -> int:
        """World size."""
        return self.spec["ranks"]

    @property
    def hosts(self) -> list[str]:
        """The nodes of the run, in the order of ranks, as the launcher found them."""
        return self.job["hosts"]

    @property
    def learning_rate(self) -> float:
        """The optimizer's step size: `lr_scaling: linear` makes it grow with the effective batch (Goyal et al. 2017)."""
        rate = self.levels["learning_rate"]
        return (
            rate * self.spec["effective_batch"] / self.levels["batch_size"]
            if self.levels["lr_scaling"] == "linear"
            else rate
        )

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The prepared data set's manifest."""
        return json.loads((Path(self.job["data"]) / "manifest.json").read_text())

    @cached_property
    def layers(self) -> list[model.Layer]:
        """The model's layers for this data set. ValueError when the count of parameters is not the one that is known."""
        made = model.layers(self.job["model"], tuple(self.manifest["shape"]), len(self.manifest["classes"]))
        known = self.job["model"]["parameters"].get(self.levels["dataset"])
        if known is not None and model.parameter_count(made) != known:
            raise ValueError(
                f"model {self.levels['model']} has {model.parameter_count(made)} parameters, expected {known}"
            )
        return made

    def initial_weights(self) -> list[np.ndarray]:
        """The same initial weights in every framework and on every rank, in the canonical layout."""
        return model.initial_weights(self.layers, self.spec["seed"])

    def arrays(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Images (uint8 NHWC, memory-mapped) and labels (int64) of `train` or of `validation`."""
        part = Path(self.job["data"]) / split
        return np.load(part / "images.npy", mmap_mode="r"), np.load(part / "labels.npy")

    def epoch_batches(self, epoch: int) -> np.ndarray:
        """Indices of this rank's samples in `epoch` (1 is the first), int64 [steps, local_batch]."""
        samples = self.spec["samples_per_epoch"]
        return sampling.epoch_batches(
            self.spec["seed"], epoch, samples, self.spec["local_batch"], self.rank, self.ranks
        )

    def accumulation_groups(self) -> list[int]:
        """Batches behind each exchange of an epoch."""
        return list(sampling.accumulation_groups(self.spec["steps"], self.levels["sync_every"]))

    def validation_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """This rank's share of the validation split."""
        images, labels = self.arrays("validation")
        share = sampling.validation_share(len(labels), self.rank, self.ranks)
        return images[share], labels[share]


def from_environment(folder: Path) -> Context:
    """The rank that the launcher started: identity from the environment, the rest from the attempt's folder."""
    job = json.loads((folder / "spec.json").read_text())
    rank = int(os.environ["RINGSIDE_RANK"])
    group = Group(rank, job["spec"]["ranks"], folder, job["spec"]["interface"])
    return Context(folder, job, rank, int(os.environ["RINGSIDE_LOCAL_RANK"]), group)
