"""Compute the ranks, the mesh and the batch sizes of a cell."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.files import display_path
from declared.commands import Command
from declared.datasets import find_dataset, load_dataset
from declared.factors import Levels, is_custom
from declared.frameworks import Framework
from declared.mesh import is_mesh, mesh_of
from declared.models import model_graph
from declared.site import Site
from models.graph import Graph
from models.mesh import Mesh
from plan.own_commands import batches, count_samples
from ranks.command.placeholders import PlaceholderError

MAX_DROPPED_SAMPLE_SHARE = 0.02
# Factors that decide how many steps an epoch has, and how many samples these leave over.
STEP_COUNT_FACTORS = ("framework", "dataset", "nodes", "devices_per_node", "batch_size", "batch_scope")
INFEASIBLE_FOR_FRAMEWORK = "unsupported-by-framework"


class InfeasibleCell(Exception):
    """A cell that cannot be trained.

    Attributes:
        code: Code of the InputError that stops the study.
        reason: What is wrong, as a clause.
        factors: The factors whose levels cause it, which an `exclude` entry has to name.
        hint: What the user can change.
    """

    def __init__(self, code: str, reason: str, factors: Sequence[str], hint: str, location: str = "") -> None:
        super().__init__(f"{reason} ({location})" if location else reason)
        self.code, self.reason, self.factors, self.hint = code, reason, factors, hint


@dataclass(frozen=True)
class Geometry:
    """Ranks and batch sizes of a cell.

    Attributes:
        replicas: Copies of the model that see different samples.
        replicas_per_rank: More than one if a rank drives all devices of its node (`Framework.mirrored`).
        local_batch: Samples in a batch of one replica.
        effective_batch: Samples behind one optimizer step, those of accumulated batches included.
        steps: Batches of a replica in an epoch.
        mesh: None for pure data parallelism.
    """

    nodes: int
    ranks: int
    ranks_per_node: int
    replicas: int
    replicas_per_rank: int
    local_batch: int
    effective_batch: int
    steps: int
    samples_per_epoch: int
    mesh: Mesh | None = None

    @property
    def devices(self) -> int:
        """Number of devices that train."""
        return self.ranks * self.replicas_per_rank


def compute_geometry(levels: Levels, framework: Framework, site: Site) -> Geometry:
    """Return ranks, replicas and batch sizes of a cell of a framework with an adapter.

    With a parallelization strategy all ranks see the same samples, as they do along a mesh's tensor axis.

    Raises:
        InfeasibleCell: If devices, mesh or batch size do not fit the site or the data set.
    """
    devices = _count_devices(levels, framework, site)
    nodes, ranks_per_node = (levels["nodes"], devices) if framework.distributed else (1, 1)
    replicas_per_rank = devices if framework.mirrored else 1
    ranks = nodes * ranks_per_node
    mesh = _build_mesh(levels, framework, ranks)
    replicas = (mesh.replicas if mesh else ranks) * replicas_per_rank
    local_batch, steps = _batches(levels, replicas)
    return Geometry(
        nodes=nodes,
        ranks=ranks,
        ranks_per_node=ranks_per_node,
        replicas=replicas,
        replicas_per_rank=replicas_per_rank,
        local_batch=local_batch,
        effective_batch=local_batch * replicas * levels["sync_every"],
        steps=steps,
        samples_per_epoch=load_dataset(levels["dataset"])["train_samples"],
        mesh=mesh,
    )


def command_geometry(levels: Levels, framework: Framework, command: Command, site: Site) -> Geometry:
    """Check a cell that a user-supplied command trains, and return its geometry.

    `ranks` are the processes that start the command.

    Raises:
        InfeasibleCell: If the command cannot train it.
    """
    devices = _count_devices(levels, framework, site)
    samples = count_samples(command, levels["dataset"])
    if command.reads_data and not find_dataset(levels["dataset"]):
        reason = f"{framework.name} reads {{data}}, but Ringside does not have {levels['dataset']}"
        raise InfeasibleCell(
            "not-registered", reason, ("framework", "dataset"), "remove {data} from its file"
        )
    if samples is None:
        reason = f"neither Ringside nor {display_path(command.file)} knows the data {levels['dataset']}"
        raise InfeasibleCell("not-registered", reason, ("framework", "dataset"), "add it to its key datasets")
    try:
        replicas, local_batch, effective_batch = batches(command, levels, devices)
    except PlaceholderError as error:
        factors = ("framework", *STEP_COUNT_FACTORS[2:], "sync_every", *filter(is_custom, levels))
        reason = f"{display_path(command.file)}: {error}"
        raise InfeasibleCell(
            "no-whole-batch", reason, factors, "change the levels, or the expression"
        ) from None
    if not trains_enough(effective_batch, samples):
        share = _dropped_share(effective_batch, samples)
        reason = f"steps of {effective_batch} samples drop {share:.1%} of {samples}"
        hint = "use another batch_size, or more samples"
        raise InfeasibleCell("drops-samples", reason, (*STEP_COUNT_FACTORS, "sync_every"), hint)
    per_rank = devices if framework.mirrored else 1
    return Geometry(
        nodes=levels["nodes"],
        ranks=levels["nodes"] * devices // per_rank,
        ranks_per_node=devices // per_rank,
        replicas=replicas,
        replicas_per_rank=per_rank,
        local_batch=local_batch,
        effective_batch=effective_batch,
        steps=samples // effective_batch * levels["sync_every"],
        samples_per_epoch=samples,
    )


def _build_mesh(levels: Levels, framework: Framework, ranks: int) -> Mesh | None:
    """Return the device mesh of a cell, or None for pure data parallelism and for LBANN's own layouts.

    Raises:
        InfeasibleCell: If the mesh does not fit the number of ranks.
    """
    level = levels["parallelism"]
    if framework.strategies:
        return Mesh(tensor=ranks) if ranks > 1 else None
    if not is_mesh(level):
        return None
    try:
        mesh = mesh_of(level, ranks)
    except ValueError as error:
        factors = ("parallelism", "nodes", "devices_per_node", "framework")
        reason = f"parallelism={level} {error}"
        raise InfeasibleCell(
            "mesh-does-not-fit", reason, factors, "change the sizes, or the number of ranks"
        ) from None
    return None if mesh.is_plain else mesh


def check_normalization(graph: Graph, samples: int, scope: str, factors: Sequence[str]) -> None:
    """Raise InfeasibleCell if batch normalization would have a single value per channel."""
    if samples < graph.fewest_samples:
        reason = (
            f"with one sample per {scope}, batch normalization of {graph.model} has one value per channel"
        )
        hint = "use a larger batch, or larger images"
        raise InfeasibleCell("too-few-samples", reason, (*factors, "model"), hint)


def _count_devices(levels: Levels, framework: Framework, site: Site) -> int:
    """Return the number of devices per node that train.

    Raises:
        InfeasibleCell: If the site or the framework does not have them.
    """
    hybrid = levels["device"] == "hybrid"
    limit = site.ranks_per_node + hybrid  # the accelerators, and one rank on the CPU
    devices: int = levels["devices_per_node"] or limit
    if devices > limit:
        reason = (
            f"devices_per_node={devices} is more than the {limit} "
            f"{'devices' if hybrid else 'ranks_per_node'} of {display_path(site.file)}"
        )
        raise InfeasibleCell("too-many-devices", reason, ("devices_per_node",), "use fewer, or another site")
    if hybrid and devices == 1:
        reason = "device=hybrid needs an accelerator and the CPU, devices_per_node=1 is one device"
        raise InfeasibleCell(
            "too-few-devices", reason, ("device", "devices_per_node"), "set devices_per_node: 2 or more"
        )
    if levels["devices_per_node"] > 1 and not (framework.distributed or framework.mirrored):
        reason = f"devices_per_node={devices}: {framework.name} trains on one device"
        raise InfeasibleCell(
            INFEASIBLE_FOR_FRAMEWORK, reason, ("framework", "devices_per_node"), "set devices_per_node: 1"
        )
    return devices


def _batches(levels: Levels, replicas: int) -> tuple[int, int]:
    """Return the local batch size and the number of batches per epoch.

    Raises:
        InfeasibleCell: If the batch size does not fit the replicas, the data set or the model.
    """
    try:
        model = model_graph(levels["model"], levels["dataset"])
    except ValueError as error:
        raise InfeasibleCell(
            "model-does-not-fit-data", str(error), ("model", "dataset"), "use another model or data set"
        ) from None
    samples, size = load_dataset(levels["dataset"])["train_samples"], levels["batch_size"]
    multiplier = replicas if levels["batch_scope"] == "local" else 1
    step_samples = size * multiplier
    local_batch, n_batches = step_samples // replicas, samples // step_samples
    problem = None
    if step_samples % replicas:
        code = "not-divisible"
        problem = f"batch_size={size} (batch_scope=global) cannot be divided by {replicas} replicas"
    elif not n_batches:
        code = "too-few-samples"
        problem = (
            f"{replicas} x {local_batch} samples a step are more than the {samples} of {levels['dataset']}"
        )
    elif not trains_enough(step_samples, samples):
        code, share = "drops-samples", f"{_dropped_share(step_samples, samples):.1%}"
        problem = (
            f"{replicas} x {local_batch} samples a step drop {share} of the {samples} training samples of "
            f"{levels['dataset']} (at most {MAX_DROPPED_SAMPLE_SHARE:.0%})"
        )
    if problem:
        hint = _suggest_batch_sizes(size, samples, multiplier, replicas)
        raise InfeasibleCell(code, problem, STEP_COUNT_FACTORS, hint)
    check_normalization(model, local_batch, "replica", STEP_COUNT_FACTORS)
    if levels["sync_every"] > n_batches:
        reason = f"sync_every={levels['sync_every']} is more than the {n_batches} batches of an epoch"
        raise InfeasibleCell(
            "too-few-batches", reason, (*STEP_COUNT_FACTORS, "sync_every"), f"use at most {n_batches}"
        )
    return local_batch, n_batches


def trains_enough(step_samples: int, samples: int) -> bool:
    """Return whether whole steps of an epoch leave over at most MAX_DROPPED_SAMPLE_SHARE of the samples."""
    return _dropped_share(step_samples, samples) <= MAX_DROPPED_SAMPLE_SHARE


def _dropped_share(step_samples: int, samples: int) -> float:
    """Return the share of samples that whole steps of an epoch leave over."""
    return samples % step_samples / samples


def _suggest_batch_sizes(size: int, samples: int, multiplier: int, replicas: int) -> str:
    """Return a hint with the nearest batch sizes below and above `size` that fit."""

    def fits(candidate: int) -> bool:
        step_samples = candidate * multiplier
        return step_samples % replicas == 0 and trains_enough(step_samples, samples)

    largest = samples // multiplier
    below = next(filter(fits, range(min(size - 1, largest), 0, -1)), None)
    above = next(filter(fits, range(size + 1, largest + 1)), None)
    sizes = " or ".join(str(candidate) for candidate in (below, above) if candidate)
    return f"the nearest batch_size that fits is {sizes}" if sizes else "use fewer replicas, or more samples"
