"""Refuse cells that are the same training as another cell of the design.

IRRELEVANT_FACTORS lists the factors that have no effect in some cells, and in which.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.files import display_path
from declared.factors import CUSTOM, Levels, is_custom, levels_name
from declared.frameworks import JAX_ENVIRONMENT, load_framework
from declared.mesh import PLAIN, is_mesh
from declared.models import model_graph
from declared.user_models import is_user_model
from models.mesh import Mesh
from models.precision import COMPUTES_IN_BFLOAT16
from plan.geometry import Geometry, InfeasibleCell


class DuplicateCell(InfeasibleCell):
    """A cell that is the same training as another; `explanation` says why, without the other cell's name."""

    def __init__(self, original: str, explanation: str, factors: Sequence[str], hint: str) -> None:
        super().__init__("duplicate", f"is the same training as {original}: {explanation}", factors, hint)
        self.explanation = explanation


@dataclass(frozen=True)
class IrrelevantFactors:
    """Factors that have no effect in some cells, such as momentum with Adam.

    Cells that differ only in irrelevant factors are the same training, so the design refuses the duplicate.

    Attributes:
        factors: The factors.
        decided_by: The factors whose levels decide that these have no effect.
        explanation: Why they have none, as a clause.
        applies_to: Returns whether they have none in a cell with these levels and this mesh.
    """

    factors: tuple[str, ...]
    decided_by: tuple[str, ...]
    explanation: str
    applies_to: Callable[[Levels, Mesh], object]


# Packages of ranks.libraries; TensorFlow, LBANN and Tarantella compute attention by two matrix products.
LIBRARIES_WITH_FUSED_ATTENTION = frozenset({"pytorch", "jax"})


def _is_jax(levels: Levels, _mesh: Mesh) -> bool:
    return load_framework(levels["framework"]).environment == JAX_ENVIRONMENT


def _lacks_fused_attention(levels: Levels, _mesh: Mesh) -> bool:
    return LIBRARIES_WITH_FUSED_ATTENTION.isdisjoint(load_framework(levels["framework"]).libraries)


def _lacks_attention(levels: Levels, _mesh: Mesh) -> bool:
    """Return whether a model of Ringside has no attention; a user-supplied module can have some."""
    return (
        not is_user_model(levels["model"]) and not model_graph(levels["model"], levels["dataset"]).head_sizes
    )


IRRELEVANT_FACTORS = (
    IrrelevantFactors(
        ("momentum",), ("optimizer",), "Adam has no momentum", lambda levels, _: levels["optimizer"] != "sgd"
    ),
    IrrelevantFactors(
        ("adam_beta1", "adam_beta2", "adam_epsilon"),
        ("optimizer",),
        "only Adam has it",
        lambda levels, _: levels["optimizer"] == "sgd",
    ),
    IrrelevantFactors(
        ("decayed_weights",),
        ("weight_decay",),
        "there is no weight decay",
        lambda levels, _: levels["weight_decay"] == 0,
    ),
    IrrelevantFactors(
        ("lr_final_share",),
        ("lr_schedule",),
        "only a cosine ends with it",
        lambda levels, _: levels["lr_schedule"] != "cosine",
    ),
    IrrelevantFactors(
        ("lr_step_epochs", "lr_step_factor"),
        ("lr_schedule",),
        "the learning rate has no steps",
        lambda levels, _: levels["lr_schedule"] != "step",
    ),
    IrrelevantFactors(
        ("reduce_dtype",),
        ("framework",),
        "it trains on one device",
        lambda levels, _: not load_framework(levels["framework"]).distributed,
    ),
    IrrelevantFactors(
        ("reduce_dtype",),
        ("parallelism",),
        "no ranks sum gradients",
        lambda _, mesh: mesh.replicas == 1 < mesh.ranks,
    ),
    IrrelevantFactors(("compiler",), ("framework",), "XLA compiles every step of JAX", _is_jax),
    IrrelevantFactors(
        ("attention",), ("framework",), "its library has no fused attention", _lacks_fused_attention
    ),
    IrrelevantFactors(
        ("attention",),
        ("framework", "precision"),
        "JAX has fused attention for bfloat16 only",
        lambda levels, mesh: _is_jax(levels, mesh) and levels["precision"] not in COMPUTES_IN_BFLOAT16,
    ),
    IrrelevantFactors(("attention",), ("model",), "the model has no attention", _lacks_attention),
    IrrelevantFactors(
        ("bandwidth",), ("nodes",), "a single node sends nothing", lambda levels, _: levels["nodes"] == 1
    ),
    IrrelevantFactors(
        ("microbatches", "schedule"),
        ("parallelism",),
        "the mesh has no pipeline axis",
        lambda _, mesh: mesh.pipeline == 1,
    ),
    IrrelevantFactors(
        ("sharding",),
        ("parallelism",),
        "a pipeline gathers parameters once for all microbatches",
        lambda _, mesh: mesh.pipeline > 1,
    ),
    IrrelevantFactors(
        ("sharding",), ("parallelism",), "the mesh has no sharded axis", lambda _, mesh: mesh.sharded == 1
    ),
    IrrelevantFactors(
        ("tensor_sharding",),
        ("parallelism",),
        "the mesh has no tensor axis",
        lambda levels, mesh: mesh.tensor == 1 or not is_mesh(levels["parallelism"]),
    ),
)


def refuse_duplicate(levels: Levels, geometry: Geometry, originals: dict[tuple[object, ...], Levels]) -> None:
    """Raise DuplicateCell if a cell is the same training as one of `originals`; otherwise add it to them.

    `originals` has the levels of the cells so far, by their effective levels.
    """
    effective = effective_levels(levels, geometry)
    if effective in originals:
        raise _duplicate_cell(levels, originals[effective], geometry.mesh or Mesh())
    originals[effective] = levels


def effective_levels(levels: Levels, geometry: Geometry) -> tuple[object, ...]:
    """Return the levels of a cell, None for irrelevant factors. Equal results mean the same training.

    Levels of `parallelism` that give the same mesh on these ranks, such as data and data2 on two ranks, are
    equal.
    """
    framework, mesh = load_framework(levels["framework"]), geometry.mesh or Mesh()
    parallelism = levels["parallelism"]
    if framework.command:
        irrelevant = set(framework.command.irrelevant(levels))
    else:
        entries = [entry for entry in IRRELEVANT_FACTORS if entry.applies_to(levels, mesh)]
        irrelevant = {factor for entry in entries for factor in entry.factors}
        irrelevant.update(filter(is_custom, levels))
    if framework.strategies and geometry.ranks == 1:
        parallelism = PLAIN  # Every strategy places all layers on the only rank.
    elif not framework.strategies and is_mesh(parallelism):
        parallelism = mesh.name
    effective = {**levels, "parallelism": parallelism}
    return tuple(None if name in irrelevant else level for name, level in effective.items())


def _duplicate_cell(levels: Levels, original: Levels, mesh: Mesh) -> DuplicateCell:
    """Return the error for a cell that is the same training as the `original` one."""
    name, framework = levels_name(original), load_framework(levels["framework"])
    if framework.command:
        factor = next(factor for factor in levels if levels[factor] != original[factor])
        placeholder = factor.removeprefix(CUSTOM)
        explanation = f"the command {framework.name} has no placeholder {{{placeholder}}}"
        hint = f"add it to {display_path(framework.file)}, or fix {factor} at one level"
        return DuplicateCell(name, explanation, ("framework", factor), hint)
    for entry in IRRELEVANT_FACTORS:
        differing = [factor for factor in entry.factors if levels[factor] != original[factor]]
        if differing and entry.applies_to(levels, mesh):
            factors = (*entry.decided_by, differing[0])
            return DuplicateCell(name, entry.explanation, factors, f"fix {differing[0]} at one level")
    for factor in filter(is_custom, levels):
        if levels[factor] != original[factor]:
            explanation = f"{levels['framework']} has no factor {factor.removeprefix(CUSTOM)}"
            return DuplicateCell(name, explanation, ("framework", factor), f"fix {factor} at one level")
    explanation = (
        f"parallelism={levels['parallelism']} and {original['parallelism']} are the same on these ranks"
    )
    return DuplicateCell(name, explanation, ("parallelism", "nodes", "devices_per_node"), "use one of them")
