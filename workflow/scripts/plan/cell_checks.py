"""Check that a cell can be trained, by its framework and with its model, data set and batch size.

`checked_geometry` calls one function for each rule. The levels that a framework supports follow from its
framework.yaml (`Framework.supports`); what a site lacks is in plan.site_limits.
"""

import contextlib
import functools
import itertools

from common.files import display_path
from common.text import number_of
from declared.datasets import IMAGES, PIXEL, find_dataset, kind, load_dataset, sample_name, targets
from declared.factors import LARGEST, NODES_AND_DEVICES, Levels, factor_table, fixed_shares
from declared.frameworks import JAX_ENVIRONMENT, Framework, framework_names, load_framework
from declared.models import model_graph, trainable_model_names
from declared.site import Site
from declared.user_models import is_user_model
from models import division
from models.mesh import Mesh
from models.pipelines import INTERLEAVED, ZERO_BUBBLE, ZERO_BUBBLE_V, stages_per_rank
from plan.geometry import (
    INFEASIBLE_FOR_FRAMEWORK,
    STEP_COUNT_FACTORS,
    Geometry,
    InfeasibleCell,
    check_normalization,
    command_geometry,
    compute_geometry,
)

SHARE_SUM_TOLERANCE = 1e-6
# Multiples of the microbatches that are tried for the smallest batch of a cell.
MAX_SMALLEST_MULTIPLE = 8
MAX_SUGGESTED_FRAMEWORKS = 8
# Schedules that PyTorch runs in rounds of as many microbatches as ranks.
SCHEDULES_IN_ROUNDS = (INTERLEAVED, ZERO_BUBBLE)


def smallest_geometry(levels: Levels, framework: Framework, site: Site) -> Geometry:
    """Return the geometry of a cell with the smallest batch that it can train.

    Raises:
        InfeasibleCell: If the cell cannot be trained with any of the batches that are tried.
    """
    sizes = [levels["microbatches"] * multiple for multiple in range(1, MAX_SMALLEST_MULTIPLE + 1)]
    for size in sizes[:-1]:
        with contextlib.suppress(InfeasibleCell):
            return checked_geometry({**levels, "batch_size": size}, framework, site)
    return checked_geometry({**levels, "batch_size": sizes[-1]}, framework, site)


def check_batch_search(levels: Levels, framework: Framework) -> None:
    """Raise InfeasibleCell if the largest batch of a cell cannot be searched."""
    for applies, factor, cause, hint in (
        (levels["batch_scope"] != "local", "batch_scope", "ranks divide a total", "set batch_scope: local"),
        (levels["shares"] != "equal", "shares", "ranks have different batches", "set shares: equal"),
        (levels["device"] == "hybrid", "device", "ranks have different memories", "set device: cpu or cuda"),
        (framework.strategies, "framework", "strategies depend on the batch size", "give a number"),
        (framework.timing_scope == "master", "framework", "the framework has its own loop", "give a number"),
    ):
        if applies:
            reason = f"batch_size={LARGEST} is not searched for {factor}={levels[factor]}: {cause}"
            raise InfeasibleCell("no-largest-batch", reason, ("batch_size", factor), hint)


def checked_geometry(levels: Levels, framework: Framework, site: Site) -> Geometry:
    """Check that a cell with a number as batch size can be trained, and return its geometry.

    Raises:
        InfeasibleCell: If it cannot be trained.
    """
    _check_capabilities(levels, framework)
    _check_epochs(levels)
    if framework.command:
        return command_geometry(levels, framework, framework.command, site)
    _check_registered(levels, framework)
    _check_pixel_labels(levels)
    _check_image_factors(levels)
    geometry = compute_geometry(levels, framework, site)
    if geometry.mesh and not framework.strategies:
        _check_partition(levels, geometry.mesh, geometry.local_batch)
    _check_shares(levels, geometry)
    _check_compiler(levels, framework)
    _check_checkpointing(levels)
    return geometry


def _check_registered(levels: Levels, framework: Framework) -> None:
    """Raise InfeasibleCell if the framework does not have a cell's model or data."""
    for factor, is_known in (
        ("model", levels["model"] in trainable_model_names()),
        ("dataset", find_dataset(levels["dataset"]) is not None),
    ):
        if not is_known:
            reason = f"{framework.name} does not have the {factor} {levels[factor]}"
            raise InfeasibleCell("not-registered", reason, ("framework", factor), "only a command knows it")
    if is_user_model(levels["model"]) and not framework.user_models:
        able = [name for name in framework_names() if load_framework(name).user_models]
        reason = f"{framework.name} cannot train {levels['model']}, a PyTorch module of your own"
        raise InfeasibleCell(
            INFEASIBLE_FOR_FRAMEWORK, reason, ("framework", "model"), f"use {' or '.join(able)}"
        )


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
    factors, sharding = ["parallelism", "schedule", "model", *NODES_AND_DEVICES], levels["tensor_sharding"]
    n_stages = mesh.pipeline * stages_per_rank(levels["schedule"]) if mesh.pipeline > 1 else 1
    if error := _partition_error(levels["model"], levels["dataset"], mesh, n_stages, sharding):
        reason = f"parallelism={levels['parallelism']}: {error}"
        if mesh.tensor > 1 and sharding != division.LAYERS:
            factors += ["tensor_sharding", "dataset"]
            reason = f"parallelism={levels['parallelism']} with tensor_sharding={sharding}: {error}"
        raise InfeasibleCell("model-not-divisible", reason, factors, "use another size, or another model")
    if mesh.pipeline > 1:
        _check_microbatches(levels, mesh, local_batch)


def _check_microbatches(levels: Levels, mesh: Mesh, local_batch: int) -> None:
    """Raise InfeasibleCell if the schedule of a pipeline or the batch does not allow the microbatches."""
    schedule, microbatches = levels["schedule"], levels["microbatches"]
    # With fewer microbatches, PyTorch's Schedule1F1B raises an error, and ScheduleZBVZeroBubble adds some.
    n_min = {"1f1b": mesh.pipeline, ZERO_BUBBLE_V: 2 * mesh.pipeline - 1}.get(schedule, 1)
    schedule_factors = ("schedule", "microbatches", "parallelism")
    if microbatches < n_min:
        reason = f"schedule={schedule} needs at least {n_min} microbatches on {mesh.pipeline} ranks"
        hint = f"set microbatches to {n_min} or more, or use schedule: gpipe"
        raise InfeasibleCell("too-few-microbatches", reason, schedule_factors, hint)
    if schedule in SCHEDULES_IN_ROUNDS and microbatches % mesh.pipeline:
        reason = f"schedule={schedule} needs a multiple of {mesh.pipeline} microbatches, as many as ranks"
        hint = f"set microbatches to a multiple of {mesh.pipeline}, or use schedule: 1f1b"
        raise InfeasibleCell("microbatches-not-multiple", reason, schedule_factors, hint)
    batch_factors = ("microbatches", *STEP_COUNT_FACTORS)
    if local_batch % microbatches:
        reason = f"microbatches={microbatches} do not divide the {local_batch} samples of a batch"
        raise InfeasibleCell("not-divisible", reason, batch_factors, "use a divisor of the batch")
    graph = model_graph(levels["model"], levels["dataset"])
    check_normalization(graph, local_batch // microbatches, "microbatch", batch_factors)


def _check_capabilities(levels: Levels, framework: Framework) -> None:
    """Raise InfeasibleCell if a cell fits none of the framework's capabilities.

    The message names the unsupported levels of the closest entries of capabilities: those with the fewest.
    """
    if framework.supports(levels):
        return
    unsupported = framework.unsupported_factors(levels)
    n_fewest = min(map(len, unsupported))
    closest = dict.fromkeys(name for names in unsupported if len(names) == n_fewest for name in names)
    reasons = framework.refusal_reasons
    explanation = "".join(f": {reasons[name]}" for name in closest if name in reasons)
    combination = " with ".join(f"{name}={levels[name]}" for name in closest)
    able = [
        name
        for name in framework_names()
        if load_framework(name).has_adapter and load_framework(name).supports(levels)
    ]
    alternatives = f", or use {' or '.join(able)}" if 0 < len(able) <= MAX_SUGGESTED_FRAMEWORKS else ""
    reason = f"{framework.name} cannot train with {combination}{explanation}"
    factors = ("framework", *dict.fromkeys(itertools.chain(*unsupported)))
    hint = f"change the factors{alternatives}"
    key = "supported_levels" if framework.command else "capabilities"
    location = f"{key} in {display_path(framework.file)}"
    raise InfeasibleCell(INFEASIBLE_FOR_FRAMEWORK, reason, factors, hint, location)


def _check_epochs(levels: Levels) -> None:
    """Raise InfeasibleCell if all epochs of a cell are warm-up."""
    for name, use in (("warmup_epochs", "to time"), ("lr_warmup_epochs", "with the whole learning rate")):
        if levels[name] >= levels["epochs"]:
            reason = f"{name}={levels[name]} leaves none of {levels['epochs']} epochs {use}"
            hint = f"set {name}: {levels['epochs'] - 1}, or more epochs"
            raise InfeasibleCell("no-epoch-left", reason, ("epochs", name), hint)


def _check_pixel_labels(levels: Levels) -> None:
    """Raise InfeasibleCell if augmentation is set for images whose pixels have labels."""
    if targets(load_dataset(levels["dataset"])) == PIXEL and levels["augmentation"] != "none":
        reason = f"augmentation={levels['augmentation']} moves pixels, but not their labels"
        raise InfeasibleCell(
            "pixels-have-labels", reason, ("augmentation", "dataset"), "set augmentation: none"
        )


def _check_image_factors(levels: Levels) -> None:
    """Raise InfeasibleCell if a factor of images is set for other samples."""
    entry = load_dataset(levels["dataset"])
    if kind(entry) == IMAGES:
        return
    for factor, rules in factor_table().items():
        if rules.get("images_only") and levels[factor] != rules["default"]:
            reason = (
                f"{factor}={levels[factor]} is for images, but {levels['dataset']} has {sample_name(entry)}"
            )
            raise InfeasibleCell(
                "images-only", reason, (factor, "dataset"), f"set {factor}: {rules['default']}"
            )


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
    if levels["compiler"] != "xla" or framework.environment == JAX_ENVIRONMENT:
        return
    operators = model_graph(levels["model"], levels["dataset"]).operators
    if any(operator.kind == "lstm" for operator in operators):
        reason = f"compiler=xla: TensorFlow cannot compile the LSTMs of {levels['model']}"
        raise InfeasibleCell(
            "model-not-compilable", reason, ("framework", "model", "compiler"), "set compiler: none"
        )


def _check_shares(levels: Levels, geometry: Geometry) -> None:
    """Raise InfeasibleCell if the samples of a step cannot be divided by the cell's shares."""
    shares, ranks = levels["shares"], geometry.replicas
    samples = ranks * geometry.local_batch
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
