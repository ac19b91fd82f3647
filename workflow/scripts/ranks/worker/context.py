"""Context of a rank: its identity, its data, its model, and the group of ranks."""

import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from models.graph import Graph, from_json
from models.initial import draw_weights, initial_weights
from models.mesh import Mesh, mesh_from_spec
from models.pipelines import rank_of, stages_per_rank
from ranks.worker import sampling
from ranks.worker.batches import Augmentation, Batch, Prepared, Split, mask_tokens, split_of
from ranks.worker.group import Group
from ranks.worker.phases import Untraced, make_phases

MAX_VALIDATION_BATCH = 256
MAX_SAMPLES_IN_MEMORY_BYTES = 2**28


@dataclass
class Context:
    """One rank of one run.

    `rank_input` is the content of the attempt's rank_input.json (`runs.rank_input`). Its key `spec` has the
    run's specification (plan.identity.run_spec); other keys have what a rank needs in addition, such as the
    folder of the data.
    """

    folder: Path
    rank_input: dict[str, Any]
    rank: int
    local_rank: int
    group: Group
    phases: Untraced = field(default_factory=Untraced)
    _unequal_counts: list[int] = field(default_factory=list)

    @property
    def spec(self) -> dict[str, Any]:
        """The run's specification (plan.identity.run_spec)."""
        return self.rank_input["spec"]

    @property
    def levels(self) -> dict[str, Any]:
        """Levels of the run's factors: all of them in a training, only some in a benchmark or timing."""
        return self.spec["levels"]

    @property
    def ranks(self) -> int:
        """World size."""
        return self.spec["ranks"]

    @cached_property
    def mesh(self) -> Mesh:
        """Mesh of the ranks, one axis for each kind of parallelism."""
        return mesh_from_spec(self.spec)

    @property
    def replica(self) -> int:
        """Number of this rank's replica; ranks that see the same samples have the same number."""
        return self.mesh.replica(self.rank)

    @property
    def reporters(self) -> list[int]:
        """Ranks whose samples and losses are counted: one of each replica, on the stage with the logits."""
        last = 0
        if (n_ranks := self.mesh.pipeline) > 1:
            schedule = self.levels["schedule"]
            last = rank_of(n_ranks * stages_per_rank(schedule) - 1, schedule, n_ranks)
        return [rank for rank in range(self.ranks) if self.mesh.is_reporter(rank, last)]

    @property
    def hosts(self) -> list[str]:
        """Nodes of the run, in the order of ranks, as the launcher reported them."""
        return self.rank_input["hosts"]

    @property
    def target_learning_rate(self) -> float:
        """Learning rate after the warm-up, if there is one.

        `lr_scaling: linear` scales it with the global batch size (Goyal et al. 2017).
        """
        rate = self.levels["learning_rate"]
        return (
            rate * self.spec["effective_batch"] / self.levels["batch_size"]
            if self.levels["lr_scaling"] == "linear"
            else rate
        )

    def learning_rate(self, update: int) -> float:
        """Return the learning rate of optimizer step `update` (0 is the run's first).

        It rises linearly in the first `lr_warmup_epochs` epochs, and follows `lr_schedule` afterwards.
        """
        levels, epoch_updates = self.levels, len(self.accumulation_groups)
        rising = levels["lr_warmup_epochs"] * epoch_updates
        rate = self.target_learning_rate * min(1.0, (update + 1) / max(1, rising))
        match levels["lr_schedule"]:
            case "cosine" if update >= rising:
                progress = (update - rising) / (levels["epochs"] * epoch_updates - rising)
                final = levels["lr_final_share"]
                return rate * (final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2)
            case "step":
                n_steps = update // epoch_updates // levels["lr_step_epochs"]
                return rate * levels["lr_step_factor"] ** n_steps
        return rate

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The prepared data set's manifest."""
        return json.loads((Path(self.rank_input["data"]) / "manifest.json").read_text())

    @cached_property
    def graph(self) -> Graph:
        """The model for this data set."""
        return from_json(self.rank_input["model"])

    @property
    def positions(self) -> int:
        """Number of labels of a sample: 1, or the number of positions with logits."""
        return math.prod(self.graph.operators[-1].shape[:-1])

    @property
    def counts_correct(self) -> bool:
        """Whether training steps count correct labels, as they do except for language models.

        Training a language model usually spends no time on an argmax over the vocabulary at every position.
        """
        return not self.graph.is_language_model

    def initial_weights(self) -> dict[str, np.ndarray]:
        """Return the initial weights in canonical layout, the same in every framework and on every rank."""
        return initial_weights(self.graph, self.spec["seed"])

    def draw_weights(self, names: Collection[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the initial weights in `names` one after the other, so that a rank never has all of them."""
        return draw_weights(self.graph, self.spec["seed"], names)

    @cached_property
    def accumulation_groups(self) -> list[int]:
        """Number of batches of each optimizer step of an epoch."""
        return list(sampling.accumulation_groups(self.spec["steps"], self.levels["sync_every"]))

    @cached_property
    def _train(self) -> Split:
        return split_of(Path(self.rank_input["data"]), "train", self.manifest, self.spec["seed"])

    @property
    def cores(self) -> int:
        """Number of CPU cores of this rank."""
        rank_cores = self.spec.get("rank_cores")
        return rank_cores[self.local_rank] if rank_cores else self.spec["cores_per_rank"]

    @property
    def accelerators(self) -> list[int]:
        """Numbers of the accelerators of a node that train; they belong to the node's first ranks.

        With `device: hybrid`, the last rank of a node has none.
        """
        ranks = min(self.ranks, self.spec["ranks_per_node"])
        n_accelerators = {"cuda": ranks * self.spec["replicas_per_rank"], "hybrid": ranks - 1}.get(
            self.spec["device"], 0
        )
        return list(range(n_accelerators))

    @property
    def sample_counts(self) -> list[int]:
        """Number of samples of each `replica` in a step."""
        equal = self.spec["local_batch"] * self.spec["replicas_per_rank"]
        return self._unequal_counts or [equal] * self.mesh.replicas

    @property
    def step_samples(self) -> int:
        """Number of samples of all replicas in a step."""
        return sum(self.sample_counts)

    def divide(self, sample_counts: Sequence[int]) -> None:
        """Set the number of samples of each rank in a step, where each rank is one replica.

        Their sum must remain `step_samples`.
        """
        self._unequal_counts = list(sample_counts)

    @property
    def sample_slice(self) -> slice:
        """Slice of a step's samples that this rank sees."""
        before = sum(self.sample_counts[: self.replica])
        return slice(before, before + self.sample_counts[self.replica])

    @property
    def _replica_slices(self) -> list[slice]:
        """Slices of a step's samples, one for each of this rank's replicas."""
        of_rank = self.sample_slice
        batch = (of_rank.stop - of_rank.start) // self.spec["replicas_per_rank"]
        return [slice(first, first + batch) for first in range(of_rank.start, of_rank.stop, batch)]

    def order(self, epoch: int) -> np.ndarray:
        """Return the sample numbers of this rank's batches, int64 [steps * replicas of the rank, batch]."""
        epoch_order = self.spec["seed"], epoch, self.spec["samples_per_epoch"], self.step_samples
        orders = [sampling.epoch_batches(*epoch_order, part) for part in self._replica_slices]
        return np.stack(orders, axis=1).reshape(-1, orders[0].shape[1])

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield this rank's augmented batches of `epoch` (1 is the first), in each step one per replica."""
        spec, level, slices = self.spec, self.levels["augmentation"], self._replica_slices
        augment = Augmentation(level, spec["seed"], epoch, spec["samples_per_epoch"], self.graph.shape[0])
        for place, sample_numbers in enumerate(self.order(epoch)):
            step, replica = divmod(place, len(slices))
            first = step * self.step_samples + slices[replica].start
            places = slice(first, first + len(sample_numbers))
            inputs, labels = self._train.read(epoch, places, sample_numbers)
            yield self._with_labels(augment(inputs, sample_numbers), labels, sample_numbers, epoch)

    def samples_in_memory(self) -> Batch | None:
        """Return all training samples and labels, for a library that gathers the batches of `order` itself.

        It returns None if samples are drawn, augmented or masked, or larger than MAX_SAMPLES_IN_MEMORY_BYTES.
        Tokens have the data type of the file.
        """
        is_unchanged = self.levels["augmentation"] == "none" and not self.graph.n_masked
        if isinstance(self._train, Prepared) and is_unchanged:
            inputs, labels = self._train.inputs, self._train.labels
            return (
                (inputs, self._labels_with_logits(labels))
                if inputs.nbytes <= MAX_SAMPLES_IN_MEMORY_BYTES
                else None
            )
        return None

    def _labels_with_logits(self, labels: np.ndarray) -> np.ndarray:
        """Return the labels that have logits, [N] or [N, length]: the last ones of a sequence."""
        return labels[:, -self.positions :] if labels.ndim == 2 else labels

    def _with_labels(
        self, inputs: np.ndarray, labels: np.ndarray, sample_numbers: np.ndarray, epoch: int
    ) -> Batch:
        """Return inputs, masked if the model predicts masked tokens, and the labels that have logits."""
        if labels.ndim == 2 and (n_masked := self.graph.n_masked):
            mask = self.graph.operators[0]["vocabulary"] - 1
            return mask_tokens(inputs, sample_numbers, n_masked, mask, [self.spec["seed"], epoch])
        return inputs, self._labels_with_logits(labels)

    @cached_property
    def _validation(self) -> Split:
        return split_of(Path(self.rank_input["data"]), "validation", self.manifest, self.spec["seed"])

    @property
    def largest_validation_share(self) -> int:
        """Number of validation samples of the replica with the largest share.

        Ranks that run one program (JAX) all evaluate as many batches as that replica.
        """
        return max(-(-len(self._validation) * count // self.step_samples) for count in self.sample_counts)

    @property
    def _validation_share(self) -> slice:
        return sampling.validation_share(len(self._validation), self.step_samples, self.sample_slice)

    @property
    def n_padding_batches(self) -> int:
        """How many validation batches fewer this rank has than the rank with the most.

        All ranks must have the same number of samples in a step.
        """
        size = min(MAX_VALIDATION_BATCH, self.sample_counts[self.replica])
        share = self._validation_share
        return math.ceil(self.largest_validation_share / size) - math.ceil((share.stop - share.start) / size)

    def validation(self) -> Iterator[Batch]:
        """Yield this rank's share of the validation split, in batches no larger than those of training."""
        split, share = self._validation, self._validation_share
        size = min(MAX_VALIDATION_BATCH, self.sample_counts[self.replica])
        for first in range(share.start, share.stop, size):
            places = slice(first, min(first + size, share.stop))
            sample_numbers = np.arange(places.start, places.stop)
            yield self._with_labels(*split.read(0, places, sample_numbers), sample_numbers, epoch=0)


def interfaces(spec: Mapping[str, Any]) -> list[str]:
    """Return the site's network interfaces, which a spec joins by commas."""
    names: list[str] = spec["interface"].split(",")
    return names


def by_first_interface(spec: Mapping[str, Any], library: str) -> str:
    """Return the name of the transport of a library that uses only the first of the site's interfaces."""
    first, *further = interfaces(spec)
    return f"{library} by {first}" if further else library


def from_environment(folder: Path) -> Context:
    """Return the context of the rank that the launcher started.

    Its identity comes from the environment, the rest from the attempt's folder.
    """
    rank_input = json.loads((folder / "rank_input.json").read_text())
    spec, rank = rank_input["spec"], int(os.environ["RINGSIDE_RANK"])
    phases = make_phases(spec.get("levels", {}), folder, rank, spec.get("steps", 0))
    phases.enter("rendezvous")
    group = Group(rank, spec["ranks"], folder, interfaces(spec)[0])
    return Context(folder, rank_input, rank, int(os.environ["RINGSIDE_LOCAL_RANK"]), group, phases)
