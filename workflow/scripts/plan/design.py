"""Plan the runs of a study at a site.

The design is a randomized complete block design: every block contains each cell once, in an order given by a
hash of the cell, the replicate and the study's seed. Adding a level or a replicate therefore never reorders
existing runs (Jain 1991, ch. 16; Hoefler & Belli, SC'15, rule 9).

Planning is a pure function of the study and the site: nothing is run, built or downloaded.
"""

import contextlib
import csv
import functools
import io
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import digest_text, display_path, write_text
from common.notes import Note
from common.options import run_program
from common.text import number_of
from declared.commands import Command
from declared.datasets import IMAGES, PIXEL, find_dataset, kind, load_dataset, sample_name, targets
from declared.factors import (
    CUSTOM,
    LARGEST,
    NODES_AND_DEVICES,
    Levels,
    factor_names,
    fixed_shares,
    has_largest_batch,
    is_custom,
    levels_name,
    matches,
)
from declared.frameworks import Framework, framework_names, load_framework
from declared.mesh import PLAIN, is_mesh, mesh_of
from declared.models import model_graph, trainable_model_names
from declared.own_models import is_own_model
from declared.site import Site, load_site
from declared.study import Study, load_study
from models import division
from models.graph import Graph
from models.layout import BUCKET_BYTES, BucketBytes
from models.mesh import Mesh
from models.pipelines import INTERLEAVED, ZERO_BUBBLE, ZERO_BUBBLE_V, stages_per_rank
from models.precision import COMPUTES_IN_BFLOAT16
from models.strategy import Strategy
from plan.batch_sizes import batch_size_file, missing_batch_size_note, nothing_fits_note, read_batch_sizes
from plan.batch_sizes import search_name as batch_search_name
from plan.own_commands import batches, count_samples
from plan.strategies import cell_strategy, read_bucket_bytes, search_name, strategy_file
from ranks.command.placeholders import PlaceholderError

MAX_RUN_ID_BYTES = 200  # file systems allow 255; logs and partial files append to the name
MAX_DROPPED_SAMPLE_SHARE = 0.02
SHARE_SUM_TOLERANCE = 1e-6
# Multiples of the microbatches that are tried for the smallest batch of a cell.
MAX_SMALLEST_MULTIPLE = 8
MAX_SUGGESTED_FRAMEWORKS = 8
# Factors that decide how many steps an epoch has, and how many samples these leave over.
STEP_COUNT_FACTORS = ("framework", "dataset", "nodes", "devices_per_node", "batch_size", "batch_scope")
INFEASIBLE_FOR_FRAMEWORK = "unsupported-by-framework"
BOOKKEEPING_COLUMNS = ("run_id", "cell", "replicate", "block", "order_key", "seed")


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


class DuplicateCell(InfeasibleCell):
    """A cell that is the same training as another; `explanation` says why, without the other cell's name."""

    def __init__(self, original: str, explanation: str, factors: Sequence[str], hint: str) -> None:
        super().__init__("duplicate", f"is the same training as {original}: {explanation}", factors, hint)
        self.explanation = explanation


@dataclass(frozen=True)
class IrrelevantFactor:
    """A factor that has no effect in some cells, such as momentum with Adam.

    Cells that differ only in irrelevant factors are the same training, so the design refuses the duplicate.

    Attributes:
        factor: The factor.
        decided_by: The factors whose levels decide that it has no effect.
        explanation: Why it has none, as a clause.
        applies_to: Whether it has none in a cell with these levels and this mesh.
    """

    factor: str
    decided_by: tuple[str, ...]
    explanation: str
    applies_to: Callable[[Levels, Mesh], object]


JAX = "jax"  # the environment whose frameworks XLA compiles in any case
# Modules of ranks.libraries; TensorFlow, LBANN and Tarantella compute attention by two matrix products.
LIBRARIES_WITH_FUSED_ATTENTION = frozenset({"pytorch", "jax_training"})


def _is_jax(levels: Levels, _mesh: Mesh) -> bool:
    return load_framework(levels["framework"]).environment == JAX


def _lacks_fused_attention(levels: Levels, _mesh: Mesh) -> bool:
    return LIBRARIES_WITH_FUSED_ATTENTION.isdisjoint(load_framework(levels["framework"]).libraries)


def _lacks_attention(levels: Levels, _mesh: Mesh) -> bool:
    """Return whether a model of Ringside has no attention; a user-supplied module can have some."""
    return (
        not is_own_model(levels["model"]) and not model_graph(levels["model"], levels["dataset"]).head_sizes
    )


IRRELEVANT_FACTORS = tuple(
    IrrelevantFactor(factor, decided_by, explanation, applies_to)
    for factors, decided_by, explanation, applies_to in (
        (["momentum"], ("optimizer",), "Adam has no momentum",
         lambda levels, _: levels["optimizer"] != "sgd"),
        (["adam_beta1", "adam_beta2", "adam_epsilon"], ("optimizer",), "only Adam has it",
         lambda levels, _: levels["optimizer"] == "sgd"),
        (["decayed_weights"], ("weight_decay",), "there is no weight decay",
         lambda levels, _: levels["weight_decay"] == 0),
        (["lr_final_share"], ("lr_schedule",), "only a cosine ends with it",
         lambda levels, _: levels["lr_schedule"] != "cosine"),
        (["lr_step_epochs", "lr_step_factor"], ("lr_schedule",), "the learning rate has no steps",
         lambda levels, _: levels["lr_schedule"] != "step"),
        (["reduce_dtype"], ("framework",), "it trains on one device",
         lambda levels, _: not load_framework(levels["framework"]).distributed),
        (["reduce_dtype"], ("parallelism",), "no ranks sum gradients",
         lambda _, mesh: mesh.replicas == 1 < mesh.ranks),
        (["compiler"], ("framework",), "XLA compiles every step of JAX", _is_jax),
        (["attention"], ("framework",), "its library has no fused attention",
         _lacks_fused_attention),
        (["attention"], ("framework", "precision"), "JAX has fused attention for bfloat16 only",
         lambda levels, mesh: _is_jax(levels, mesh) and levels["precision"] not in COMPUTES_IN_BFLOAT16),
        (["attention"], ("model",), "the model has no attention", _lacks_attention),
        (["bandwidth"], ("nodes",), "a single node sends nothing", lambda levels, _: levels["nodes"] == 1),
        (["microbatches", "schedule"], ("parallelism",), "the mesh has no pipeline axis",
         lambda _, mesh: mesh.pipeline == 1),
        (["sharding"], ("parallelism",), "a pipeline gathers parameters once for all microbatches",
         lambda _, mesh: mesh.pipeline > 1),
        (["sharding"], ("parallelism",), "the mesh has no sharded axis", lambda _, mesh: mesh.sharded == 1),
        (["tensor_sharding"], ("parallelism",), "the mesh has no tensor axis",
         lambda levels, mesh: mesh.tensor == 1 or not is_mesh(levels["parallelism"])),
    )
    for factor in factors
)  # fmt: skip


@dataclass(frozen=True)
class ImageFactor:
    """A factor that only images allow.

    Attributes:
        name: The factor.
        neutral_level: Its level for other data.
        effect: What its other levels do, as the predicate of a sentence.
    """

    name: str
    neutral_level: str
    effect: str


IMAGE_FACTORS = (
    ImageFactor("augmentation", "none", "changes images"),
    ImageFactor("memory_format", "default", "lays out the channels of images"),
)


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


@dataclass(frozen=True)
class Run:
    """One row of the design: a replicate of a cell, with the objects that its levels name."""

    run_id: str
    cell: str
    replicate: int
    block: int
    order_key: float
    seed: int
    levels: Levels
    geometry: Geometry
    framework: Framework
    dataset: Mapping[str, Any]
    strategy: Strategy | None = None  # how each layer is partitioned, for frameworks with strategies
    bucket_bytes: BucketBytes = BUCKET_BYTES  # limits of their buckets of gradients
    missing_batch_size: Note | None = None  # why no largest batch size is known (plan.batch_sizes)

    @property
    def graph(self) -> Graph:
        """The graph of the model, which Ringside knows."""
        return model_graph(self.levels["model"], self.levels["dataset"])

    @property
    def reads_data(self) -> bool:
        """Whether it reads the prepared data set; a user-supplied command may have data of its own."""
        return self.framework.command is None or self.framework.command.reads_data

    @property
    def lacks_strategy(self) -> bool:
        """Whether a search has to find its strategy before it can run."""
        return self.framework.strategies and self.strategy is None


def refuse_imported(study: Study) -> None:
    """Raise InputError if a study's runs were measured elsewhere, so that none is planned and run here."""
    if study.imported:
        raise InputError(
            "measured-elsewhere",
            f"the runs of {study.name} were measured elsewhere, so none is planned, run or repeated here",
            file=display_path(study.file),
            key="imported",
            got=str(study.imported.folder),
            hint=f"draw them: ./ringside run {study.name}",
        )


def plan_design(study: Study, site: Site) -> list[Run]:
    """Return all runs of a study in the order in which they are to be measured.

    Raises:
        InputError: If a cell cannot be trained, if `exclude` leaves no cell, or if the runs were measured
            elsewhere.
    """
    refuse_imported(study)
    runs = [
        _make_run(study, site, cell, levels, geometry, replicate)
        for cell, levels, geometry in _feasible_cells(study, site)
        for replicate in range(1, study.replicates.at_most + 1)
    ]
    if not runs:
        problem = "removes every cell"
        expected = "at least one cell"
        raise InputError("no-cells", problem, file=display_path(study.file), key="exclude", expected=expected)
    check_names(runs, study.file)
    return sorted(runs, key=lambda run: (run.order_key, run.run_id))


def unregistered_data(samples: int) -> dict[str, Any]:
    """Return the entry of a data set that only a user-supplied command knows."""
    return {"title": "known to the command alone", "train_samples": samples, "validation_samples": 0}


def check_names(runs: Iterable[Run], study: Path) -> None:
    """Raise InputError if the name of a run is too long for its folder.

    `study` is the file that declares the runs.
    """
    for run in runs:
        if (n_bytes := len(run.run_id.encode())) > MAX_RUN_ID_BYTES:
            raise InputError(
                "name-too-long",
                f"the name of run {run.run_id}, also a folder, has {n_bytes} bytes",
                file=display_path(study),
                key="factors",
                got=run.run_id,
                expected=f"at most {MAX_RUN_ID_BYTES} bytes",
                hint="shorten names of your own, or leave factors at their defaults",
            )


def cell_name(levels: Levels) -> str:
    """Return the name of a cell, which is also a directory name."""
    return levels_name(levels)


def cell_geometry(study: str, levels: Levels, site: Site) -> Geometry:
    """Return the geometry of a cell of a study.

    With `batch_size: largest`, the batch is the one that the search found; before the search, it is the
    smallest one that the cell can train.

    Raises:
        InfeasibleCell: If the cell cannot be trained.
    """
    framework = load_framework(levels["framework"])
    if not has_largest_batch(levels):
        return check_cell(levels, framework, site)
    _check_search(levels, framework)
    entry = _batch_search_entry(study, site, levels)
    if entry and (size := entry["batch_size"]):
        return check_cell({**levels, "batch_size": size}, framework, site)
    return smallest_geometry(levels, framework, site)


def _batch_search_entry(study: str, site: Site, levels: Levels) -> Mapping[str, Any] | None:
    """Return the result of the search behind a cell (plan.batch_sizes), None before the search."""
    return read_batch_sizes(batch_size_file(study, site.name)).get(batch_search_name(levels))


def smallest_geometry(levels: Levels, framework: Framework, site: Site) -> Geometry:
    """Return the geometry of a cell with the smallest batch that it can train.

    Raises:
        InfeasibleCell: If the cell cannot be trained with any of the batches that are tried.
    """
    sizes = [levels["microbatches"] * multiple for multiple in range(1, MAX_SMALLEST_MULTIPLE + 1)]
    for size in sizes[:-1]:
        with contextlib.suppress(InfeasibleCell):
            return check_cell({**levels, "batch_size": size}, framework, site)
    return check_cell({**levels, "batch_size": sizes[-1]}, framework, site)


def _check_search(levels: Levels, framework: Framework) -> None:
    """Raise InfeasibleCell if the largest batch of a cell cannot be searched."""
    for applies, factor, cause, hint in (
        (levels["batch_scope"] != "local", "batch_scope", "ranks divide a total", "set batch_scope: local"),
        (levels["shares"] != "equal", "shares", "ranks divide a total", "set shares: equal"),
        (levels["device"] == "hybrid", "device", "ranks have different memories", "set device: cpu or cuda"),
        (framework.strategies, "framework", "strategies depend on the batch size", "give a number"),
        (framework.timing_scope == "master", "framework", "the framework has its own loop", "give a number"),
    ):
        if applies:
            reason = f"batch_size={LARGEST} is not searched for {factor}={levels[factor]}: {cause}"
            raise InfeasibleCell("no-largest-batch", reason, ("batch_size", factor), hint)


def check_cell(levels: Levels, framework: Framework, site: Site) -> Geometry:
    """Check that a cell, whose batch size is a number, can be trained, and return its geometry.

    Raises:
        InfeasibleCell: If it cannot be trained.
    """
    _check_capabilities(levels, framework)
    _check_epochs(levels)
    if framework.command:
        return _command_geometry(levels, framework, framework.command, site)
    _check_registered(levels, framework)
    _check_image_factors(levels)
    geometry = compute_geometry(levels, framework, site)
    if geometry.mesh and not framework.strategies:
        _check_partition(levels, geometry.mesh, geometry.local_batch)
    _check_shares(levels, framework, geometry)
    _check_compiler(levels, framework)
    _check_checkpointing(levels)
    return geometry


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


def _command_geometry(levels: Levels, framework: Framework, command: Command, site: Site) -> Geometry:
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
        replicas, local_batch, step = batches(command, levels, devices)
    except PlaceholderError as error:
        factors = ("framework", *STEP_COUNT_FACTORS[2:], "sync_every", *filter(is_custom, levels))
        reason = f"{display_path(command.file)}: {error}"
        raise InfeasibleCell(
            "no-whole-batch", reason, factors, "change the levels, or the expression"
        ) from None
    if not trains_enough(step, samples):
        reason = f"steps of {step} samples drop {_dropped_share(step, samples):.1%} of {samples}"
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
        effective_batch=step,
        steps=samples // step * levels["sync_every"],
        samples_per_epoch=samples,
    )


def _check_registered(levels: Levels, framework: Framework) -> None:
    """Raise InfeasibleCell if the framework does not have a cell's model or data."""
    for factor, is_known in (
        ("model", levels["model"] in trainable_model_names()),
        ("dataset", find_dataset(levels["dataset"]) is not None),
    ):
        if not is_known:
            reason = f"{framework.name} does not have the {factor} {levels[factor]}"
            raise InfeasibleCell("not-registered", reason, ("framework", factor), "only a command knows it")
    if is_own_model(levels["model"]) and not framework.own_modules:
        able = [name for name in framework_names() if load_framework(name).own_modules]
        reason = f"{framework.name} cannot train {levels['model']}, a PyTorch module of your own"
        raise InfeasibleCell(
            INFEASIBLE_FOR_FRAMEWORK, reason, ("framework", "model"), f"use {' or '.join(able)}"
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


@functools.cache
def _partition_error(model: str, dataset: str, mesh: Mesh, n_stages: int, sharding: str) -> str:
    """Return why a mesh cannot partition a model, "" if it can."""
    graph = model_graph(model, dataset)
    try:
        if n_stages > 1:
            division.stages(graph, n_stages, mesh.tensor, sharding)
        elif mesh.tensor > 1:
            division.tensor_parts(graph, mesh.tensor, sharding)
        if mesh.experts > 1:
            division.check_experts(graph, mesh.experts)
    except ValueError as error:
        return str(error)
    return ""


def _check_partition(levels: Levels, mesh: Mesh, local_batch: int) -> None:
    """Raise InfeasibleCell if the mesh cannot partition the model or its batches."""
    graph, microbatches = model_graph(levels["model"], levels["dataset"]), levels["microbatches"]
    factors, sharding = ["parallelism", "schedule", "model", *NODES_AND_DEVICES], levels["tensor_sharding"]
    n_stages = mesh.pipeline * stages_per_rank(levels["schedule"]) if mesh.pipeline > 1 else 1
    if error := _partition_error(levels["model"], levels["dataset"], mesh, n_stages, sharding):
        reason = f"parallelism={levels['parallelism']}: {error}"
        if mesh.tensor > 1 and sharding != division.LAYERS:
            factors += ["tensor_sharding", "dataset"]
            reason = f"parallelism={levels['parallelism']} with tensor_sharding={sharding}: {error}"
        raise InfeasibleCell("model-not-divisible", reason, factors, "use another size, or another model")
    if mesh.pipeline == 1:
        return
    fewest = {"1f1b": mesh.pipeline, ZERO_BUBBLE_V: 2 * mesh.pipeline - 1}.get(levels["schedule"], 1)
    schedule, of_schedule = levels["schedule"], ("schedule", "microbatches", "parallelism")
    if microbatches < fewest:
        reason = f"schedule={schedule} needs at least {fewest} microbatches on {mesh.pipeline} ranks"
        hint = f"set microbatches to {fewest} or more, or use schedule: gpipe"
        raise InfeasibleCell("too-few-microbatches", reason, of_schedule, hint)
    if schedule in (INTERLEAVED, ZERO_BUBBLE) and microbatches % mesh.pipeline:
        reason = f"schedule={schedule} needs a multiple of {mesh.pipeline} microbatches, as many as ranks"
        hint = f"set microbatches to a multiple of {mesh.pipeline}, or use schedule: 1f1b"
        raise InfeasibleCell("microbatches-not-multiple", reason, of_schedule, hint)
    of_batch = ("microbatches", *STEP_COUNT_FACTORS)
    if local_batch % microbatches:
        reason = f"microbatches={microbatches} do not divide the {local_batch} samples of a batch"
        raise InfeasibleCell("not-divisible", reason, of_batch, "use a divisor of the batch")
    _check_normalization(graph, local_batch // microbatches, "microbatch", of_batch)


def _check_normalization(graph: Graph, samples: int, scope: str, factors: Sequence[str]) -> None:
    """Raise InfeasibleCell if batch normalization would have a single value per channel."""
    if samples < graph.fewest_samples:
        reason = (
            f"with one sample per {scope}, batch normalization of {graph.model} has one value per channel"
        )
        hint = "use a larger batch, or larger images"
        raise InfeasibleCell("too-few-samples", reason, (*factors, "model"), hint)


def _check_capabilities(levels: Levels, framework: Framework) -> None:
    """Raise InfeasibleCell if a cell fits none of the framework's capabilities.

    The message has the levels that violate the closest capabilities, those with the fewest violations.
    """
    violations = framework.violations(levels)
    if not all(violations):
        return
    n_fewest = min(map(len, violations))
    closest = dict.fromkeys(name for names in violations if len(names) == n_fewest for name in names)
    explanation = "".join(f": {framework.why[name]}" for name in closest if name in framework.why)
    combination = " with ".join(f"{name}={levels[name]}" for name in closest)
    location = f"{'does' if framework.command else 'capabilities'} in {display_path(framework.file)}"
    able = [
        name
        for name in framework_names()
        if load_framework(name).adapter and load_framework(name).can(levels)
    ]
    alternatives = f", or use {' or '.join(able)}" if 0 < len(able) <= MAX_SUGGESTED_FRAMEWORKS else ""
    reason = f"{framework.name} cannot train with {combination}{explanation}"
    factors = ("framework", *dict.fromkeys(itertools.chain(*violations)))
    hint = f"change the factors{alternatives}"
    raise InfeasibleCell(INFEASIBLE_FOR_FRAMEWORK, reason, factors, hint, location)


def _check_epochs(levels: Levels) -> None:
    """Raise InfeasibleCell if all epochs of a cell are warm-up."""
    for name, use in (("warmup_epochs", "to time"), ("lr_warmup_epochs", "with the whole learning rate")):
        if levels[name] >= levels["epochs"]:
            reason = f"{name}={levels[name]} leaves none of {levels['epochs']} epochs {use}"
            hint = f"set {name}: {levels['epochs'] - 1}, or more epochs"
            raise InfeasibleCell("no-epoch-left", reason, ("epochs", name), hint)


def _check_image_factors(levels: Levels) -> None:
    """Raise InfeasibleCell if a factor of images is set for tokens, or augmentation for labels of pixels."""
    entry = load_dataset(levels["dataset"])
    if targets(entry) == PIXEL and levels["augmentation"] != "none":
        reason = f"augmentation={levels['augmentation']} moves pixels, but not their labels"
        raise InfeasibleCell(
            "pixels-have-labels", reason, ("augmentation", "dataset"), "set augmentation: none"
        )
    if kind(entry) == IMAGES:
        return
    for factor in IMAGE_FACTORS:
        if (level := levels[factor.name]) != factor.neutral_level:
            reason = (
                f"{factor.name}={level} {factor.effect}, but {levels['dataset']} has {sample_name(entry)}"
            )
            hint = f"set {factor.name}: {factor.neutral_level}"
            raise InfeasibleCell("images-only", reason, (factor.name, "dataset"), hint)


def _check_checkpointing(levels: Levels) -> None:
    """Raise InfeasibleCell if the backward pass cannot recompute the model's blocks."""
    if levels["checkpointing"] == "none":
        return
    graph, reason = model_graph(levels["model"], levels["dataset"]), ""
    if not graph.blocks:
        reason = f"checkpointing={levels['checkpointing']}: {levels['model']} has no blocks"
    elif graph.statistics:
        reason = f"{levels['model']} would move its running statistics twice a step"
    if reason:
        raise InfeasibleCell(
            "not-recomputable", reason, ("model", "checkpointing"), "set checkpointing: none"
        )


def _check_compiler(levels: Levels, framework: Framework) -> None:
    """Raise InfeasibleCell if XLA cannot compile the model's forward and backward pass.

    TensorFlow's LSTM keeps its states in a list, which two compiled functions cannot hand over.
    """
    if levels["compiler"] != "xla" or framework.environment == JAX:
        return
    operators = model_graph(levels["model"], levels["dataset"]).operators
    if any(operator.kind == "lstm" for operator in operators):
        reason = f"compiler=xla: TensorFlow cannot compile the LSTMs of {levels['model']}"
        raise InfeasibleCell(
            "model-not-compilable", reason, ("framework", "model", "compiler"), "set compiler: none"
        )


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
    step = size * multiplier
    local_batch, steps = step // replicas, samples // step
    problem = None
    if step % replicas:
        code = "not-divisible"
        problem = f"batch_size={size} (batch_scope=global) cannot be divided by {replicas} replicas"
    elif not steps:
        code = "too-few-samples"
        problem = (
            f"{replicas} x {local_batch} samples a step are more than the {samples} of {levels['dataset']}"
        )
    elif not trains_enough(step, samples):
        code, share = "drops-samples", f"{_dropped_share(step, samples):.1%}"
        problem = (
            f"{replicas} x {local_batch} samples a step drop {share} of the {samples} training samples of "
            f"{levels['dataset']} (at most {MAX_DROPPED_SAMPLE_SHARE:.0%})"
        )
    if problem:
        hint = _suggest_batch_sizes(size, samples, multiplier, replicas)
        raise InfeasibleCell(code, problem, STEP_COUNT_FACTORS, hint)
    _check_normalization(model, local_batch, "replica", STEP_COUNT_FACTORS)
    if levels["sync_every"] > steps:
        reason = f"sync_every={levels['sync_every']} is more than the {steps} batches of an epoch"
        raise InfeasibleCell(
            "too-few-batches", reason, (*STEP_COUNT_FACTORS, "sync_every"), f"use at most {steps}"
        )
    return local_batch, steps


def _check_shares(levels: Levels, framework: Framework, geometry: Geometry) -> None:
    """Raise InfeasibleCell if the samples of a step cannot be divided by the cell's shares."""
    shares, ranks = levels["shares"], geometry.replicas
    samples = ranks * geometry.local_batch
    if shares != "equal" and not framework.heterogeneous:
        reason = f"shares={shares}: {framework.name} gives all ranks the same number of samples"
        raise InfeasibleCell(INFEASIBLE_FOR_FRAMEWORK, reason, ("framework", "shares"), "set shares: equal")
    if not (fixed := fixed_shares(shares)):
        return
    if abs(sum(fixed) - 1) > SHARE_SUM_TOLERANCE:
        reason = f"shares={shares} add up to {sum(fixed):.6g}, not to 1"
        raise InfeasibleCell("wrong-sum", reason, ("shares",), "correct them")
    if len(fixed) != ranks:
        reason = f"shares={shares} are {len(fixed)} numbers, the cell has {number_of(ranks, 'rank')}"
        raise InfeasibleCell(
            "wrong-count", reason, ("shares", "nodes", "devices_per_node"), "give one number for each rank"
        )
    fewest = model_graph(levels["model"], levels["dataset"]).fewest_samples
    if min(fixed) * samples < fewest:
        reason = f"shares={shares} leave a rank fewer than {fewest} of the {samples} samples of a step"
        hint = "use a larger batch_size, or larger shares"
        raise InfeasibleCell("too-few-samples", reason, ("shares", *STEP_COUNT_FACTORS), hint)


def trains_enough(step: int, samples: int) -> bool:
    """Return whether steps of `step` samples leave over at most MAX_DROPPED_SAMPLE_SHARE of the samples."""
    return _dropped_share(step, samples) <= MAX_DROPPED_SAMPLE_SHARE


def _dropped_share(step: int, samples: int) -> float:
    """Return the share of samples left over by steps of `step` samples."""
    return samples % step / samples


def _suggest_batch_sizes(size: int, samples: int, multiplier: int, replicas: int) -> str:
    """Return a hint with the nearest batch sizes below and above `size` that fit."""

    def fits(candidate: int) -> bool:
        step = candidate * multiplier
        return step % replicas == 0 and trains_enough(step, samples)

    largest = samples // multiplier
    below = next(filter(fits, range(min(size - 1, largest), 0, -1)), None)
    above = next(filter(fits, range(size + 1, largest + 1)), None)
    sizes = " or ".join(str(candidate) for candidate in (below, above) if candidate)
    return f"the nearest batch_size that fits is {sizes}" if sizes else "use fewer replicas, or more samples"


def to_csv(runs: list[Run]) -> str:
    """Return the text of design.csv."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    factors = factor_names(runs[0].levels if runs else ())
    writer.writerow([*BOOKKEEPING_COLUMNS, *factors])
    for run in runs:
        fixed = (run.run_id, run.cell, run.replicate, run.block, f"{run.order_key:.9f}", run.seed)
        writer.writerow([*fixed, *(run.levels[name] for name in factors)])
    return text.getvalue()


def _feasible_cells(study: Study, site: Site) -> Iterator[tuple[str, Levels, Geometry]]:
    """Yield name, levels and geometry of every cell that is not excluded.

    Raises:
        InputError: If the site has too few nodes, a cell cannot be trained or duplicates another,
            or an `exclude` entry matches no cell.
    """
    _check_node_counts(study, site)
    is_used = [False] * len(study.exclude)
    originals: dict[tuple[object, ...], Levels] = {}
    for levels in study.combinations():
        hits = [i for i, entry in enumerate(study.exclude) if matches(levels, entry)]
        for i in hits:
            is_used[i] = True
        if hits:
            continue
        try:
            geometry = cell_geometry(study.name, levels, site)
            refuse_duplicate(levels, geometry, originals)
        except InfeasibleCell as infeasible:
            raise _cell_error(study, site, levels, infeasible) from None
        yield cell_name(levels), levels, geometry
    if not all(is_used):
        i = is_used.index(False)
        place: dict[str, Any] = {
            "file": display_path(study.file),
            "key": f"exclude.{i}",
            "got": study.exclude[i],
        }
        raise InputError("unused-exclude", "matches no cell", hint="correct or remove it", **place)


def _check_node_counts(study: Study, site: Site) -> None:
    """Raise InputError if a level of `nodes` is more than the site has."""
    for nodes in study.factors["nodes"]:
        if nodes > site.nodes:
            problem = f"{nodes} is more than the {site.nodes} nodes of {display_path(site.file)}"
            place: dict[str, Any] = {"file": display_path(study.file), "key": "factors.nodes", "got": nodes}
            raise InputError("out-of-range", problem, hint="use fewer, or another site", **place)


def refuse_duplicate(levels: Levels, geometry: Geometry, originals: dict[tuple[object, ...], Levels]) -> None:
    """Raise DuplicateCell if a cell is the same training as one of `originals`; otherwise add it to them.

    `originals` has the levels of the cells so far, by their effective levels.
    """
    effective = effective_levels(levels, geometry)
    if effective in originals:
        raise _duplicate_cell(levels, originals[effective], geometry.mesh or Mesh())
    originals[effective] = levels


def effective_levels(levels: Levels, geometry: Geometry) -> tuple[object, ...]:
    """Return the levels of a cell, None for irrelevant factors; equal ones mean the same training.

    Levels of `parallelism` that give the same mesh on these ranks, such as data and data2 on two ranks, are
    equal.
    """
    framework, mesh = load_framework(levels["framework"]), geometry.mesh or Mesh()
    parallelism = levels["parallelism"]
    if framework.command:
        irrelevant = set(framework.command.irrelevant(levels))
    else:
        irrelevant = {entry.factor for entry in IRRELEVANT_FACTORS if entry.applies_to(levels, mesh)}
        irrelevant.update(filter(is_custom, levels))
    if framework.strategies and geometry.ranks == 1:
        parallelism = PLAIN  # Every strategy places all layers on the only rank.
    elif not framework.strategies and is_mesh(parallelism):
        parallelism = mesh.name
    effective = {**levels, "parallelism": parallelism}
    return tuple(None if name in irrelevant else level for name, level in effective.items())


def _duplicate_cell(levels: Levels, original: Levels, mesh: Mesh) -> DuplicateCell:
    """Return the error for a cell that is the same training as the `original` one."""
    name, framework = cell_name(original), load_framework(levels["framework"])
    if framework.command:
        factor = next(factor for factor in levels if levels[factor] != original[factor])
        placeholder = factor.removeprefix(CUSTOM)
        explanation = f"the command {framework.name} has no placeholder {{{placeholder}}}"
        hint = f"add it to {display_path(framework.file)}, or fix {factor} at one level"
        return DuplicateCell(name, explanation, ("framework", factor), hint)
    for entry in IRRELEVANT_FACTORS:
        if levels[entry.factor] != original[entry.factor] and entry.applies_to(levels, mesh):
            factors = (*entry.decided_by, entry.factor)
            return DuplicateCell(name, entry.explanation, factors, f"fix {entry.factor} at one level")
    for factor in filter(is_custom, levels):
        if levels[factor] != original[factor]:
            explanation = f"{levels['framework']} has no factor {factor.removeprefix(CUSTOM)}"
            return DuplicateCell(name, explanation, ("framework", factor), f"fix {factor} at one level")
    explanation = (
        f"parallelism={levels['parallelism']} and {original['parallelism']} are the same on these ranks"
    )
    return DuplicateCell(name, explanation, ("parallelism", "nodes", "devices_per_node"), "use one of them")


def _cell_error(study: Study, site: Site, levels: Levels, infeasible: InfeasibleCell) -> InputError:
    """Return the error for an infeasible cell, with a hint.

    The hint has the `exclude` entry that removes the cell if other cells remain. `got` has the levels that
    cause it by factor.
    """
    varied = [
        name for name, possible in study.factors.items() if name in infeasible.factors and len(possible) > 1
    ]
    hint = infeasible.hint
    if study.fraction:
        hint += " (a fraction needs all of its cells)"
    elif varied and _leaves_a_cell(study, site, {name: [levels[name]] for name in varied}):
        line = ", ".join(f"{name}: {levels[name]}" for name in varied)
        hint += f", or add to exclude: - {{{line}}}"
    return InputError(
        infeasible.code,
        f"cell {cell_name(levels)}: {infeasible}",
        file=display_path(study.file),
        key="factors",
        got={name: levels[name] for name in infeasible.factors},
        hint=hint,
    )


def _leaves_a_cell(study: Study, site: Site, entry: Mapping[str, list[Any]]) -> bool:
    """Return whether a feasible cell remains if the study excludes `entry`, too."""
    for levels in study.combinations():
        if not any(matches(levels, excluded) for excluded in (entry, *study.exclude)):
            with contextlib.suppress(InfeasibleCell):
                cell_geometry(study.name, levels, site)
                return True
    return False


@functools.cache
def _seed(study_seed: int, replicate: int) -> int:
    return int(digest_text(f"{study_seed}/{replicate}")[:8], 16) >> 1


def _make_run(study: Study, site: Site, cell: str, levels: Levels, geometry: Geometry, replicate: int) -> Run:
    """Return one replicate of a cell; its block and its place in the block follow from the study's seed."""
    run_id, framework = f"{cell}.r{replicate}", load_framework(levels["framework"])
    strategy, bucket_bytes = None, BUCKET_BYTES
    if framework.strategies:
        graph, file = model_graph(levels["model"], levels["dataset"]), strategy_file(study.name, site.name)
        nodes_and_ranks, search = (geometry.nodes, geometry.ranks_per_node), search_name(levels)
        strategy = cell_strategy(
            levels["parallelism"], graph, geometry.local_batch, nodes_and_ranks, search, file
        )
        bucket_bytes = read_bucket_bytes(file)
    fraction = int(digest_text(f"{study.seed}/{run_id}")[:8], 16) / 2**32
    return Run(
        run_id=run_id,
        cell=cell,
        replicate=replicate,
        block=replicate,
        order_key=round(replicate + fraction, 9),
        seed=_seed(study.seed, replicate),
        levels=levels,
        geometry=geometry,
        framework=framework,
        dataset=find_dataset(levels["dataset"]) or unregistered_data(geometry.samples_per_epoch),
        strategy=strategy,
        bucket_bytes=bucket_bytes,
        missing_batch_size=_missing_batch_size(study, site, levels),
    )


def _missing_batch_size(study: Study, site: Site, levels: Levels) -> Note | None:
    """Return why no batch size is known for a cell with `batch_size: largest`, None for other cells."""
    if not has_largest_batch(levels):
        return None
    entry = _batch_search_entry(study.name, site, levels)
    if entry is None:
        return missing_batch_size_note(study.name, site)
    return nothing_fits_note() if entry["batch_size"] is None else None


def main(*, study: str, site: str, out: Path) -> None:
    """Write design.csv.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        out: design.csv
    """
    write_text(out, to_csv(plan_design(load_study(study), load_site(site))))


if __name__ == "__main__":
    sys.exit(run_program(main))
