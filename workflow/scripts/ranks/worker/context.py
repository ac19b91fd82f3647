"""What a rank knows: who it is, what it trains, on what."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from models.graph import Graph, from_json
from models.initial import initial_weights
from models.mesh import Mesh, mesh_from_spec
from ranks.worker import sampling
from ranks.worker.batches import Augmentation, Batch, Prepared, Split, split_of
from ranks.worker.group import Group
from ranks.worker.phases import Untraced, of_run

LARGEST_VALIDATED = 256  # samples at once
LARGEST_HELD = 2**28  # bytes of images or tokens


@dataclass
class Context:
    """One rank of one run. `job` is the attempt's spec.json."""

    folder: Path
    job: dict[str, Any]
    rank: int
    local_rank: int
    group: Group
    phases: Untraced = field(default_factory=Untraced)
    _divided: list[int] = field(default_factory=list)

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

    @cached_property
    def mesh(self) -> Mesh:
        """How the ranks divide the training."""
        return mesh_from_spec(self.spec)

    @property
    def replica(self) -> int:
        """Which part of a step's samples this rank sees; ranks that see the same one have the same number."""
        return self.mesh.replica(self.rank)

    @property
    def counting(self) -> list[int]:
        """The ranks that tell of samples and their losses, one of those that see the same ones: of the others nothing is taken."""
        return [rank for rank in range(self.ranks) if self.mesh.is_reporter(rank)]

    @property
    def hosts(self) -> list[str]:
        """The nodes of the run, in the order of ranks, as the launcher found them."""
        return self.job["hosts"]

    @property
    def target_learning_rate(self) -> float:
        """The rate after any warm-up: `lr_scaling: linear` makes it grow with the effective batch (Goyal et al. 2017)."""
        rate = self.levels["learning_rate"]
        return (
            rate * self.spec["effective_batch"] / self.levels["batch_size"]
            if self.levels["lr_scaling"] == "linear"
            else rate
        )

    def learning_rate(self, update: int) -> float:
        """The rate of optimizer step `update` (0 is the run's first): it rises linearly in the first `lr_warmup_epochs`."""
        rising = self.levels["lr_warmup_epochs"] * len(self.accumulation_groups)
        return self.target_learning_rate * min(1.0, (update + 1) / max(1, rising))

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The prepared data set's manifest."""
        return json.loads((Path(self.job["data"]) / "manifest.json").read_text())

    @cached_property
    def graph(self) -> Graph:
        """The model for this data set."""
        return from_json(self.job["model"])

    @property
    def positions(self) -> int:
        """Labels of a sample: one, or one for each of the last positions of a sequence, for which the model has logits."""
        return math.prod(self.graph.operators[-1].shape[:-1])

    def initial_weights(self) -> dict[str, np.ndarray]:
        """The same initial weights in every framework and on every rank, in the canonical layout."""
        return initial_weights(self.graph, self.spec["seed"])

    @cached_property
    def accumulation_groups(self) -> list[int]:
        """Batches behind each exchange of an epoch."""
        return list(sampling.accumulation_groups(self.spec["steps"], self.levels["sync_every"]))

    @cached_property
    def _train(self) -> Split:
        return split_of(Path(self.job["data"]), "train", self.manifest, self.spec["seed"])

    @property
    def cores(self) -> int:
        """Processor cores of this rank."""
        of_ranks = self.spec.get("rank_cores")
        return of_ranks[self.local_rank] if of_ranks else self.spec["cores_per_rank"]

    @property
    def accelerators(self) -> list[int]:
        """Return the numbers of the accelerators of each node that train, those of the first local ranks.

        With device hybrid the last rank has none.
        """
        ranks = min(self.ranks, self.spec["ranks_per_node"])
        found = {"cuda": ranks * self.spec["replicas_per_rank"], "hybrid": ranks - 1}.get(
            self.spec["device"], 0
        )
        return list(range(found))

    @property
    def samples(self) -> list[int]:
        """Samples in a step of each rank, or of the ranks that see the same ones, by `replica`."""
        return (
            self._divided or [self.spec["local_batch"] * self.spec["replicas_per_rank"]] * self.mesh.replicas
        )

    def divide(self, samples: Sequence[int]) -> None:
        """From now on each rank has so many samples of a step, all of them together as many as before; one replica a rank."""
        self._divided = list(samples)

    @property
    def part(self) -> slice:
        """This rank's part of the samples of a step."""
        before = sum(self.samples[: self.replica])
        return slice(before, before + self.samples[self.replica])

    @property
    def _parts(self) -> list[slice]:
        """Those of its replicas."""
        part, replicas = self.part, self.spec["replicas_per_rank"]
        batch = (part.stop - part.start) // replicas
        return [slice(first, first + batch) for first in range(part.start, part.stop, batch)]

    def order(self, epoch: int) -> np.ndarray:
        """Return the numbers of the samples of this rank's batches of `epoch`.

        int64 [steps * replicas of the rank, batch]: each step one batch for each replica.
        """
        told = self.spec["seed"], epoch, self.spec["samples_per_epoch"], sum(self.samples)
        orders = [sampling.epoch_batches(*told, part) for part in self._parts]
        return np.stack(orders, axis=1).reshape(-1, orders[0].shape[1])

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """This rank's batches of `epoch` (1 is the first), augmented as the study says: each step one for each replica."""
        spec, level, parts, block = self.spec, self.levels["augmentation"], self._parts, sum(self.samples)
        augment = Augmentation(level, spec["seed"], epoch, spec["samples_per_epoch"], self.graph.shape[0])
        for place, samples in enumerate(self.order(epoch)):
            step, replica = divmod(place, len(parts))
            first = step * block + parts[replica].start
            inputs, labels = self._train.take(epoch, slice(first, first + len(samples)), samples)
            yield augment(inputs, samples), self._told(labels)

    def held(self) -> Batch | None:
        """Return all training samples and labels, or None.

        None where batches consist of something else, or where they are too large for a rank's memory. A library can
        take the batches of `order` from them itself. Tokens are as they are kept, in few bytes.
        """
        if isinstance(self._train, Prepared) and self.levels["augmentation"] == "none":
            inputs, labels = self._train.inputs, self._train.labels
            return (inputs, self._told(labels)) if inputs.nbytes <= LARGEST_HELD else None
        return None

    def _told(self, labels: np.ndarray) -> np.ndarray:
        """The labels, [N] or [N, length], for which the model has logits: where there is one for each token, the last."""
        return labels if labels.ndim == 1 else labels[:, -self.positions :]

    @cached_property
    def _validation(self) -> Split:
        return split_of(Path(self.job["data"]), "validation", self.manifest, self.spec["seed"])

    @property
    def largest_validation_share(self) -> int:
        """Samples of the validation split that the replica with most of them evaluates: ranks that evaluate together go on as long."""
        return max(-(-len(self._validation) * samples // sum(self.samples)) for samples in self.samples)

    def validation(self) -> Iterator[Batch]:
        """This rank's share of the validation split, in batches that take no more memory than those of training."""
        split = self._validation
        share = sampling.validation_share(len(split), sum(self.samples), self.part)
        size = min(LARGEST_VALIDATED, self.samples[self.replica])
        for first in range(share.start, share.stop, size):
            places = slice(first, min(first + size, share.stop))
            inputs, labels = split.take(0, places, np.arange(places.start, places.stop))
            yield inputs, self._told(labels)


def from_environment(folder: Path) -> Context:
    """The rank that the launcher started: identity from the environment, the rest from the attempt's folder."""
    job = json.loads((folder / "spec.json").read_text())
    spec, rank = job["spec"], int(os.environ["RINGSIDE_RANK"])
    phases = of_run(spec.get("levels", {}), folder, rank, spec.get("steps", 0))
    phases.enter("rendezvous")
    group = Group(rank, spec["ranks"], folder, spec["interface"])
    return Context(folder, job, rank, int(os.environ["RINGSIDE_LOCAL_RANK"]), group, phases)
