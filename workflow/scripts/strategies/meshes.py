"""Plan the device mesh on which a model trains fastest with the framework pytorch-mesh.

A mesh is the alternative to a strategy for each layer (strategies.search). The space has all sizes of the
axes of models.mesh: `tensor` stays within a node, each stage of a pipeline has at least one block, and
`sharded` is 1, a node or all remaining ranks. Each mesh is combined with gradient accumulation, or with
microbatches and a schedule, and with each level of sharding, tensor_sharding and checkpointing. Meshes that
pytorch-mesh cannot train (plan.cell_checks) are excluded. A step is simulated (strategies.mesh_costs), and
the fastest mesh that fits in memory is selected for each combination of axes.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.notes import Note
from declared.factors import factor_table
from declared.frameworks import load_framework
from declared.mesh import REQUIRED_AXIS
from declared.site import load_site
from models.division import LAYERS
from models.graph import N_CATEGORIES, Graph
from models.mesh import Mesh
from models.named import CLICKS, IMAGES, PIXELS, TEXTS, models
from models.pipelines import IDLE_TURNS
from plan.cell_checks import checked_geometry
from plan.geometry import InfeasibleCell
from plan.memory import WARNED_SHARE as USABLE_SHARE
from prediction.mesh_step import BLOCKING_AXES
from strategies.mesh_costs import OVERLAP_COST, MeshEstimate, StepSimulator
from strategies.topology import NUMBER_BYTES, Topology

METHOD = "mesh"
FRAMEWORK = "pytorch-mesh"
MAX_ROWS = 5
MAX_STAGES = 16  # Most ranks of a pipeline.
N_STEPS = 8  # Steps of an epoch of a study's synthetic data.
LEARNING_RATE = 0.0003
# By the numbers that are kept for each parameter: itself, its gradient, optimizer state.
OPTIMIZERS: dict[int, dict[str, Any]] = {
    2: {"optimizer": "sgd", "momentum": 0.0},
    3: {"optimizer": "sgd", "momentum": 0.9},
    4: {"optimizer": "adam"},
}
# Factors of a mesh in its name, unless they have their default.
NAMED = ("sharding", "tensor_sharding", "schedule", "microbatches", "sync_every", "checkpointing")
STUDY_FACTORS = (
    "framework", "model", "dataset", "nodes", "devices_per_node", "batch_scope", "batch_size", "sync_every",
    "parallelism", "sharding", "tensor_sharding", "microbatches", "schedule", "checkpointing", "precision",
    "reduce_dtype", "optimizer", "momentum", "learning_rate",
)  # fmt: skip
# Times of meshes with axes that the public series lack are predicted within 12 to 35 %
# (docs/how-to/strategies.md), so smaller differences are not a reason to partition layers.
MARGIN = 0.2
NOTE = (
    "Meshes: of {meshes} settings that " + FRAMEWORK + " accepts, {fitting} need at most {share:.0%} of the "
    "memory; the table has the fastest of each combination of axes. Messages of tensor, experts and pipeline "
    "axes are waited for; those of others delay the computation that they overlap with by {overlap:.0%} of "
    "their time.{suggested}"
)
SUGGESTED = (
    " Suggested: {name}, which has the fewest axes that partition layers among those within {margin:.0%} of "
    "the fastest."
)


@dataclass(frozen=True)
class Setting:
    """A mesh, and the levels of a study's factors with it."""

    mesh: Mesh
    levels: Mapping[str, Any]
    local_batch: int

    @property
    def name(self) -> str:
        """The mesh in words, such as `sharded 8, checkpointing blocks`."""
        axes = [f"{axis} {self.mesh.sizes[axis]}" for axis in self.mesh.axes] or ["one device"]
        factors = factor_table()
        changed = [
            f"{name.replace('_', ' ')} {self.levels[name]}"
            for name in NAMED
            if self.levels[name] != factors[name]["default"]
        ]
        return ", ".join([*axes, *changed])


Planned = tuple[Setting, MeshEstimate]


def dataset_name(graph: Graph, n_samples: int) -> str:
    """Return the synthetic data set with samples that fit the input of a graph."""
    kind, classes = models()[graph.model].sample_kind, graph.operators[-1].shape[-1]
    if kind in (IMAGES, PIXELS):
        prefix, sizes = "regions-" if kind == PIXELS else "", "x".join(map(str, graph.shape))
        return f"synthetic-{prefix}{sizes}-{classes}-{n_samples}"
    if kind == CLICKS:
        return f"synthetic-clicks-{(graph.vocabulary or 0) // N_CATEGORIES}-{n_samples}"
    length = graph.shape[0] - graph.n_masked
    vocabulary = (graph.vocabulary or 0) - bool(graph.n_masked)
    if kind == TEXTS:
        return f"synthetic-text-{vocabulary}-{length}-{classes}-{n_samples}"
    return f"synthetic-tokens-{vocabulary}-{length}-{n_samples}"


def common_levels(
    graph: Graph, topology: Topology, batch: int, precision: str, numbers_of_parameter: int
) -> dict[str, Any]:
    """Return the levels that all meshes of a question share: defaults, model, data, devices, optimizer."""
    defaults = {name: entry.get("default") for name, entry in factor_table().items()}
    per_node = topology.tiers[0].units
    return {
        **defaults,
        "framework": FRAMEWORK,
        "model": graph.model,
        "dataset": dataset_name(graph, N_STEPS * batch),
        "nodes": topology.devices // per_node,
        "devices_per_node": per_node,
        "batch_scope": "global",
        "precision": precision,
        "learning_rate": LEARNING_RATE,
        **OPTIMIZERS[min(max(OPTIMIZERS), max(min(OPTIMIZERS), numbers_of_parameter))],
    }


def meshes(graph: Graph, topology: Topology) -> Iterator[Mesh]:
    """Yield the meshes of all devices, the fewest axes first."""
    n_devices, per_node = topology.devices, topology.tiers[0].units
    max_stages = min(MAX_STAGES, max(1, len(graph.blocks)))
    sizes = []
    for tensor in divisors(per_node):
        for pipeline in divisors(n_devices // tensor, max_stages):
            left = n_devices // (tensor * pipeline)
            for sharded in sorted({1, per_node // tensor, left}):
                if left % sharded == 0:
                    sizes.append(Mesh(pipeline, left // sharded, sharded, 1, tensor))
    if any(operator.kind == "experts" for operator in graph.operators):
        sizes += [Mesh(data=n_devices // experts, experts=experts) for experts in divisors(n_devices)[1:]]
    yield from sorted(sizes, key=lambda mesh: len(mesh.axes))


def divisors(number: int, maximum: int | None = None) -> list[int]:
    """Return the divisors of a number, up to a maximum."""
    return [size for size in range(1, min(number, maximum or number) + 1) if number % size == 0]


def settings(graph: Graph, topology: Topology, batch: int, common: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield all meshes with the factors that have an effect on them, whether or not they can be trained."""
    defaults = {name: common[name] for name in REQUIRED_AXIS}
    recomputation = ("none", "selective", "blocks") if graph.blocks and not graph.statistics else ("none",)
    for mesh in meshes(graph, topology):
        if batch % mesh.replicas:
            continue
        replica_batch = batch // mesh.replicas
        vocabulary = graph.is_language_model and mesh.tensor > 1
        tensor_shardings = ("layers", "vocabulary", "sequence") if vocabulary else (LAYERS,)
        if mesh.pipeline > 1:
            ways = [
                {"sync_every": 1, "microbatches": count, "schedule": schedule}
                for count in divisors(replica_batch)
                for schedule in IDLE_TURNS
                if schedule != "gpipe" or count < mesh.pipeline  # 1f1b takes as long, and holds less
            ]
        else:
            shardings = ("parameters", "gradients") if mesh.sharded > 1 else ("parameters",)
            ways = [
                {"sync_every": count, "sharding": sharding}
                for count in divisors(replica_batch)
                for sharding in shardings
            ]
        for way, tensor_sharding, checkpointing in itertools.product(ways, tensor_shardings, recomputation):
            levels = {
                **common,
                **defaults,
                **way,
                "parallelism": mesh.name if mesh.ranks > 1 else "data",
                "tensor_sharding": tensor_sharding,
                "checkpointing": checkpointing,
            }
            levels["batch_size"] = batch // levels["sync_every"]
            yield Setting(mesh, levels, replica_batch // levels["sync_every"])


class Acceptance:
    """Asks the framework whether it can train a setting; checkpointing does not change the answer."""

    def __init__(self, topology: Topology) -> None:
        per_node = topology.tiers[0].units
        site = load_site("local")
        self.site = replace(site, ranks_per_node=per_node, nodes=topology.devices // per_node)
        self.framework = load_framework(FRAMEWORK)
        self._answers: dict[tuple[object, ...], bool] = {}

    def accepts(self, setting: Setting) -> bool:
        """Return whether the framework can train a setting."""
        levels = setting.levels
        key = (setting.mesh, setting.local_batch, *(levels[name] for name in (*REQUIRED_AXIS, "sync_every")))
        if key not in self._answers:
            try:
                checked_geometry(dict(levels), self.framework, self.site)
                self._answers[key] = True
            except InfeasibleCell:
                self._answers[key] = False
        return self._answers[key]


def plan_meshes(
    graph: Graph, topology: Topology, batch: int, precision: str, numbers_of_parameter: int
) -> tuple[list[dict[str, Any]], Note]:
    """Return the fastest meshes as answers of strategies.search, and a note on all of them.

    An answer's `method` is METHOD, its `start` the name of the mesh, and its `levels` are for a study that
    trains it. The last one is plain data parallelism; if it needs too much memory, its `seconds` are None.
    """
    common = common_levels(graph, topology, batch, precision, numbers_of_parameter)
    simulator, acceptance = StepSimulator(graph, topology, NUMBER_BYTES[precision]), Acceptance(topology)
    estimates: list[Planned] = []
    for setting in settings(graph, topology, batch, common):
        if acceptance.accepts(setting):
            estimate = simulator.simulate(setting.mesh, setting.local_batch, setting.levels)
            estimates.append((setting, estimate))
    limit = USABLE_SHARE * topology.device.memory_bytes
    fitting = [pair for pair in estimates if pair[1].memory_bytes <= limit]
    selected = _select(fitting) or sorted(estimates, key=lambda pair: pair[1].memory_bytes)[:1]
    if not any(setting.mesh.is_plain for setting, _ in selected):
        plain = [pair for pair in estimates if pair[0].mesh.is_plain]
        selected += sorted(plain, key=lambda pair: (max(pair[1].memory_bytes, limit), pair[1].seconds))[:1]
    chosen = suggestion(fitting)
    note = Note(
        "meshes",
        NOTE.format(
            fitting=len(fitting),
            meshes=len(estimates),
            share=USABLE_SHARE,
            overlap=OVERLAP_COST,
            suggested=SUGGESTED.format(name=chosen[0].name, margin=MARGIN) if chosen else "",
        ).replace("%", " %"),
        fitting=len(fitting),
        meshes=len(estimates),
        suggested=chosen[0].name if chosen else None,
    )
    answers = [answer(*pair, limit) for pair in selected]
    suggested = [pair == chosen for pair in selected]
    return [
        row | {"suggested": is_suggested} for row, is_suggested in zip(answers, suggested, strict=True)
    ], note


def _select(fitting: Sequence[Planned]) -> list[Planned]:
    """Return the fastest of each kind that fits, fastest first, at most MAX_ROWS with the suggested one."""
    fastest: dict[tuple[str, ...], Planned] = {}
    for pair in sorted(fitting, key=lambda pair: pair[1].seconds):
        fastest.setdefault(pair[0].mesh.axes, pair)
    suggested, selected = suggestion(fitting), list(fastest.values())
    if suggested and suggested not in selected[:MAX_ROWS]:
        return [*selected[: MAX_ROWS - 1], suggested]
    return selected[:MAX_ROWS]


def suggestion(fitting: Sequence[Planned]) -> Planned | None:
    """Return the mesh to try first: the simplest one that is less than MARGIN slower than the fastest.

    A mesh is simpler if fewer of its axes partition layers.
    """
    fastest_s = min((estimate.seconds for _, estimate in fitting), default=0.0)
    near = [pair for pair in fitting if pair[1].seconds <= (1 + MARGIN) * fastest_s]
    return min(
        near,
        key=lambda pair: (sum(axis in BLOCKING_AXES for axis in pair[0].mesh.axes), pair[1].seconds),
        default=None,
    )


def answer(setting: Setting, estimate: MeshEstimate, limit_bytes: float) -> dict[str, Any]:
    """Return a setting as an answer of strategies.search."""
    return {
        "method": METHOD,
        "start": setting.name,
        "seconds": estimate.seconds if estimate.memory_bytes <= limit_bytes else None,
        "sent_activation_bytes": round(estimate.output_bytes),
        "gradient_bytes": round(estimate.gradient_bytes),
        "memory_bytes": round(estimate.memory_bytes),
        "weight_bytes": round(estimate.weight_bytes),
        "is_plain": setting.mesh.is_plain,
        "levels": study_levels(setting),
    }


def study_levels(setting: Setting) -> dict[str, Any]:
    """Return the levels of a setting that a study has to declare: those that are not defaults."""
    table = factor_table()
    return {
        name: setting.levels[name]
        for name in STUDY_FACTORS
        if "default" not in table[name] or setting.levels[name] != table[name]["default"]
    }


def study_text(levels: Mapping[str, Any]) -> str:
    """Return a study that trains a mesh, given by `study_levels`."""
    lines = [
        f"title: {levels['model']} on {levels.get('parallelism', 'data')}",
        "question: How long does a step take, and was it simulated correctly?",
        "seed: 1",
        "design: full",
        "replicates: 3",
        "factors:",
        *(f"  {name}: {level}" for name, level in levels.items()),
    ]
    return "\n".join(lines) + "\n"
