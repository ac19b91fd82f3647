"""The design: every run of a study at a site, before anything runs. A pure function of study and site.

Blocks are replicates (randomized complete blocks): a block holds every cell once, in an order that a hash decides, so
that adding a level or a replicate moves no other run (Jain 1991, ch. 16; Hoefler & Belli, SC'15, rule 9).
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
from common.files import digest_text, shown, write_text
from common.options import run_program
from declared.datasets import IMAGES, kind, load_dataset
from declared.factors import Levels, factor_table, fixed_shares, matches
from declared.frameworks import Framework, framework_names, load_framework
from declared.mesh import PLAIN, is_mesh, mesh_of
from declared.models import model_graph
from declared.site import Site, load_site
from declared.study import Study, load_study
from models import division
from models.graph import Graph
from models.mesh import Mesh
from models.strategy import Strategy
from plan.strategies import file_of, question, strategy_of

MAX_RUN_ID_BYTES = 200  # a file system takes 255; logs and partial files add to it
LARGEST_DROPPED_SHARE = 0.02
LARGEST_MISSUM = 1e-6  # of shares, which have to add up to 1
MOST_NAMED = 4  # frameworks that can what another one cannot
SHARING = ("framework", "dataset", "nodes", "devices_per_node", "batch_size", "batch_scope")  # what decides about steps
UNSUPPORTED = "unsupported-by-framework"
BOOKKEEPING = ("run_id", "cell", "replicate", "block", "order_key", "seed")


class InfeasibleCell(Exception):
    """Report that a cell cannot be trained.

    Args:
        code: What kind of reason this is, as an InputError has it.
        reason: Why the cell cannot be trained, as a clause.
        factors: The factors whose levels decide about it.
        hint: What to change.
        place: The file that says so.
    """

    def __init__(self, code: str, reason: str, factors: Sequence[str], hint: str, place: str = "") -> None:
        super().__init__(f"{reason} ({place})" if place else reason)
        self.code, self.reason, self.factors, self.hint = code, reason, factors, hint


@dataclass(frozen=True)
class Idle:
    """A factor that means nothing in some cells: `in_cell` says in which, by their levels and their mesh, the factor `where` decides."""

    factor: str
    where: str
    why: str
    in_cell: Callable[[Levels, Mesh], bool]


IDLE = (
    Idle("momentum", "optimizer", "adam has no momentum", lambda levels, _: bool(levels["optimizer"] == "adam")),
    Idle("bandwidth", "nodes", "one node exchanges nothing", lambda levels, _: bool(levels["nodes"] == 1)),
    Idle("microbatches", "parallelism", "it has no pipeline", lambda _, mesh: mesh.pipeline == 1),
    Idle("schedule", "parallelism", "it has no pipeline", lambda _, mesh: mesh.pipeline == 1),
    Idle("sharding", "parallelism", "it has no axis sharded", lambda _, mesh: mesh.sharded == 1),
)


OF_IMAGES = (  # factors of images alone, their level where there are none, and what the others do
    ("augmentation", "none", "changes images"),
    ("memory_format", "default", "lays out the channels of images"),
)


@dataclass(frozen=True)
class Geometry:
    """How a cell is laid out: processes, copies of the model that see samples of their own, and these. `mesh`: None where ranks
    divide samples alone."""

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
        """Those that train."""
        return self.ranks * self.replicas_per_rank


@dataclass(frozen=True)
class Run:
    """One row of the design: one cell x replicate, with what its levels name."""

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
    graph: Graph
    strategy: Strategy | None = None  # by which its ranks divide each layer by itself, where they do

    @property
    def unfound(self) -> bool:
        """Whether its strategy has to be found before it can run, whatever the site has."""
        return self.framework.strategies and self.strategy is None


def design(study: Study, site: Site) -> list[Run]:
    """All runs in planned order. InputError in one line for a cell that cannot be, and for a study without cells."""
    runs = [
        _run(study, site, cell, levels, geometry, replicate)
        for cell, levels, geometry in _cells(study, site)
        for replicate in range(1, study.replicates.at_most + 1)
    ]
    if not runs:
        raise InputError(
            "no-cells",
            "removes every cell",
            file=shown(study.file),
            key="exclude",
            expected="at least one cell to be left",
        )
    check_names(runs, study.file)
    return sorted(runs, key=lambda run: (run.order_key, run.run_id))


def check_names(runs: Iterable[Run], study: Path) -> None:
    """InputError where the name of a run is too long for its folder. `study`: the file that declares the runs."""
    for run in runs:
        if (n_bytes := len(run.run_id.encode())) > MAX_RUN_ID_BYTES:
            raise InputError(
                "name-too-long",
                f"the run {run.run_id} has a name of {n_bytes} bytes, and is a folder",
                file=shown(study),
                key="factors",
                got=run.run_id,
                expected=f"at most {MAX_RUN_ID_BYTES} bytes",
                hint="shorten names of your own, or leave factors at their defaults",
            )


def cell_name(levels: Levels) -> str:
    """The cell's name, made of levels: core factors always, others only where they differ from their default."""
    return ".".join(  # a name is the name of a folder, too
        f"{entry.get('symbol', '')}{levels[name]}" if entry.get("core") else f"{name}={levels[name]}".replace("/", "_")
        for name, entry in factor_table().items()
        if entry.get("core") or levels[name] != entry["default"]
    )


def geometry(levels: Levels, framework: Framework, site: Site) -> Geometry:
    """Ranks, replicas and batches of a cell. InfeasibleCell where it cannot be trained. Where each layer is divided by itself, all ranks see
    the same samples, as along the axis tensor of a mesh."""
    _check_capabilities(levels, framework)
    _check_epochs(levels)
    _check_of_images(levels)
    devices = _devices(levels, framework, site)
    nodes, ranks_per_node = (levels["nodes"], devices) if framework.distributed else (1, 1)
    replicas_per_rank = devices if framework.mirrored else 1
    ranks = nodes * ranks_per_node
    mesh = _mesh(levels, framework, ranks)
    replicas = (mesh.replicas if mesh else ranks) * replicas_per_rank
    local_batch, steps = _batches(levels, replicas)
    if mesh and not framework.strategies:
        _check_division(levels, mesh, local_batch)
    _check_shares(levels, framework, replicas, local_batch)
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


def _mesh(levels: Levels, framework: Framework, ranks: int) -> Mesh | None:
    """The mesh of a cell; None where its ranks divide samples alone, or as LBANN does."""
    level = levels["parallelism"]
    if framework.strategies:
        return Mesh(tensor=ranks) if ranks > 1 else None
    if not is_mesh(level):
        return None
    try:
        mesh = mesh_of(level, ranks)
    except ValueError as error:
        factors = ("parallelism", "nodes", "devices_per_node", "framework")
        raise InfeasibleCell(
            "mesh-does-not-fit", f"parallelism={level} {error}", factors, "change the sizes, or the number of ranks"
        ) from None
    return None if mesh.is_plain else mesh


def _check_division(levels: Levels, mesh: Mesh, local_batch: int) -> None:
    """Whether the mesh can divide the model and its batches."""
    graph, microbatches = model_graph(levels["model"], levels["dataset"]), levels["microbatches"]
    try:
        if mesh.pipeline > 1:
            division.stages(graph, mesh.pipeline, mesh.tensor)
        elif mesh.tensor > 1:
            division.tensor_parts(graph, mesh.tensor)
    except ValueError as error:
        factors = ("parallelism", "model", "nodes", "devices_per_node")
        reason = f"parallelism={levels['parallelism']}: {error}"
        raise InfeasibleCell("model-not-divisible", reason, factors, "use another size, or another model") from None
    if mesh.pipeline == 1:
        return
    if levels["schedule"] == "1f1b" and microbatches < mesh.pipeline:
        reason = f"schedule=1f1b wants a microbatch for each of {mesh.pipeline} stages, microbatches={microbatches}"
        raise InfeasibleCell(
            "too-few-microbatches",
            reason,
            ("schedule", "microbatches", "parallelism"),
            f"say microbatches: {mesh.pipeline} or more, or schedule: gpipe",
        )
    if local_batch % microbatches:
        reason = f"microbatches={microbatches} do not divide the {local_batch} samples of a batch"
        raise InfeasibleCell("not-divisible", reason, ("microbatches", *SHARING), "use a divisor of the batch")
    if local_batch // microbatches < graph.fewest_samples:
        reason = f"with one sample per microbatch, batch normalization of {levels['model']} has one value per channel (its image is one pixel there)"
        raise InfeasibleCell(
            "too-few-samples", reason, ("microbatches", *SHARING, "model"), "use fewer microbatches, or larger images"
        )


def _check_capabilities(levels: Levels, framework: Framework) -> None:
    each = framework.missed(levels)
    if all(each):
        missed = list(dict.fromkeys(itertools.chain(*each)))
        least = min(map(len, each))
        closest = dict.fromkeys(name for names in each if len(names) == least for name in names)
        because = "".join(f": {framework.why[name]}" for name in closest if name in framework.why)
        told = " with ".join(f"{name}={levels[name]}" for name in closest)
        place = f"capabilities in {shown(framework.file)}"
        able = [name for name in framework_names() if load_framework(name).adapter and load_framework(name).can(levels)]
        instead = f", or take {' or '.join(able)}" if 0 < len(able) <= MOST_NAMED else ""
        reason, hint = f"{framework.name} cannot do {told}{because}", f"change the factors{instead}"
        raise InfeasibleCell(UNSUPPORTED, reason, ("framework", *missed), hint, place)


def _check_epochs(levels: Levels) -> None:
    for name, use in (("warmup_epochs", "to time"), ("lr_warmup_epochs", "with the whole learning rate")):
        if levels[name] >= levels["epochs"]:
            reason = f"{name}={levels[name]} leaves none of {levels['epochs']} epochs {use}"
            raise InfeasibleCell(
                "no-epoch-left", reason, ("epochs", name), f"say {name}: {levels['epochs'] - 1}, or more epochs"
            )


def _check_of_images(levels: Levels) -> None:
    """Whether factors that only mean something for images have their defaults where samples are tokens."""
    if kind(load_dataset(levels["dataset"])) == IMAGES:
        return
    for name, neutral, what in OF_IMAGES:
        if levels[name] != neutral:
            reason = f"{name}={levels[name]} {what}, {levels['dataset']} has sequences of tokens"
            raise InfeasibleCell("images-only", reason, (name, "dataset"), f"say {name}: {neutral}")


def _devices(levels: Levels, framework: Framework, site: Site) -> int:
    """The devices of a node that train."""
    hybrid = levels["device"] == "hybrid"
    most = site.ranks_per_node + hybrid  # the accelerators, and the processors
    devices: int = levels["devices_per_node"] or most
    if devices > most:
        reason = f"devices_per_node={devices} is more than the {most} {'devices' if hybrid else 'ranks_per_node'} of {shown(site.file)}"
        raise InfeasibleCell("too-many-devices", reason, ("devices_per_node",), "use fewer, or another site")
    if hybrid and devices == 1:
        reason = "device=hybrid is an accelerator and the processors, devices_per_node=1 is one of them"
        raise InfeasibleCell(
            "too-few-devices", reason, ("device", "devices_per_node"), "say devices_per_node: 2 or more"
        )
    if levels["devices_per_node"] > 1 and not (framework.distributed or framework.mirrored):
        reason = f"devices_per_node={devices}: {framework.name} trains on one device"
        raise InfeasibleCell(UNSUPPORTED, reason, ("framework", "devices_per_node"), "say devices_per_node: 1")
    return devices


def _batches(levels: Levels, replicas: int) -> tuple[int, int]:
    """Samples in a batch of one replica, and batches of each replica in an epoch."""
    try:
        model = model_graph(levels["model"], levels["dataset"])
    except ValueError as error:
        raise InfeasibleCell(
            "model-does-not-fit-data", str(error), ("model", "dataset"), "use another model or data set"
        ) from None
    samples, size = load_dataset(levels["dataset"])["train_samples"], levels["batch_size"]
    together = replicas if levels["batch_scope"] == "local" else 1  # how often a batch of that size is in a step
    step = size * together
    if step % replicas:
        reason = f"batch_size={size} (batch_scope=global) cannot be divided by {replicas} replicas"
        raise InfeasibleCell("not-divisible", reason, SHARING, _next_sizes(size, samples, together, replicas))
    local_batch, steps = step // replicas, samples // step
    if local_batch < model.fewest_samples:
        reason = f"with one sample per replica, batch normalization of {levels['model']} has one value per channel (its image is one pixel there)"
        raise InfeasibleCell(
            "too-few-samples", reason, (*SHARING, "model"), "use a larger batch_size, or larger images"
        )
    if _dropped(step, samples) > LARGEST_DROPPED_SHARE:
        reason = f"{replicas} x {local_batch} samples a step " + (
            f"drop {_dropped(step, samples):.1%} of the {samples} training samples of {levels['dataset']} "
            f"(at most {LARGEST_DROPPED_SHARE:.0%})"
            if steps
            else f"are more than the {samples} training samples of {levels['dataset']}"
        )
        raise InfeasibleCell(
            "drops-samples" if steps else "too-few-samples",
            reason,
            SHARING,
            _next_sizes(size, samples, together, replicas),
        )
    if levels["sync_every"] > steps:
        reason = f"sync_every={levels['sync_every']} is more than the {steps} batches of an epoch"
        raise InfeasibleCell("too-few-batches", reason, (*SHARING, "sync_every"), f"use {steps} at most")
    return local_batch, steps


def _check_shares(levels: Levels, framework: Framework, ranks: int, local_batch: int) -> None:
    """Whether a step's samples can be divided among the ranks as the cell says."""
    shares, block = levels["shares"], ranks * local_batch
    if shares != "equal" and not framework.unlike:
        reason = f"shares={shares}: {framework.name} gives every rank as many samples"
        raise InfeasibleCell(UNSUPPORTED, reason, ("framework", "shares"), "say shares: equal")
    if not (fixed := fixed_shares(shares)):
        return
    if abs(sum(fixed) - 1) > LARGEST_MISSUM:
        reason = f"shares={shares} add up to {sum(fixed):.6g}, not to 1"
        raise InfeasibleCell("wrong-sum", reason, ("shares",), "correct them")
    if len(fixed) != ranks:
        reason = f"shares={shares} are {len(fixed)} numbers, the cell has {ranks} rank{'s' * (ranks > 1)}"
        raise InfeasibleCell(
            "wrong-count", reason, ("shares", "nodes", "devices_per_node"), "give one number for each rank"
        )
    fewest = model_graph(levels["model"], levels["dataset"]).fewest_samples
    if min(fixed) * block < fewest:
        reason = f"shares={shares} leave a rank fewer than {fewest} of the {block} samples of a step"
        raise InfeasibleCell(
            "too-few-samples", reason, ("shares", *SHARING), "use a larger batch_size, or larger shares"
        )


def _dropped(step: int, samples: int) -> float:
    """The share of the samples that steps of `step` leave over."""
    return samples % step / samples


def _next_sizes(size: int, samples: int, together: int, replicas: int) -> str:
    """The batch sizes nearest to `size` that fit, in words: below and above, as far as there are such."""

    def fits(other: int) -> bool:
        return other * together % replicas == 0 and _dropped(other * together, samples) <= LARGEST_DROPPED_SHARE

    largest = samples // together
    below = next(filter(fits, range(min(size - 1, largest), 0, -1)), None)
    above = next(filter(fits, range(size + 1, largest + 1)), None)
    found = " or ".join(str(other) for other in (below, above) if other)
    return f"the next batch_size that fits is {found}" if found else "use fewer replicas, or more samples"


def to_csv(runs: list[Run]) -> str:
    """The design as the text of design.csv."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    factors = list(factor_table())
    writer.writerow([*BOOKKEEPING, *factors])
    for run in runs:
        fixed = (run.run_id, run.cell, run.replicate, run.block, f"{run.order_key:.9f}", run.seed)
        writer.writerow([*fixed, *(run.levels[name] for name in factors)])
    return text.getvalue()


def _cells(study: Study, site: Site) -> Iterator[tuple[str, Levels, Geometry]]:
    too_many = [nodes for nodes in study.factors["nodes"] if nodes > site.nodes]
    if too_many:
        raise InputError(
            "out-of-range",
            f"{too_many[0]} is more than the {site.nodes} nodes of {shown(site.file)}",
            file=shown(study.file),
            key="factors.nodes",
            got=too_many[0],
            hint="take fewer, or another site",
        )
    used = [False] * len(study.exclude)
    trained: dict[tuple[Any, ...], Levels] = {}
    for levels in study.combinations():
        hits = [i for i, entry in enumerate(study.exclude) if matches(levels, entry)]
        for i in hits:
            used[i] = True
        if hits:
            continue
        name = cell_name(levels)
        try:
            made = geometry(levels, load_framework(levels["framework"]), site)
            if (other := trained.setdefault(effective(levels, made), levels)) is not levels:
                raise _double(levels, other)
            yield name, levels, made
        except InfeasibleCell as infeasible:
            raise _cell_error(study, site, levels, infeasible) from None
    if not all(used):
        i = used.index(False)
        raise InputError(
            "unused-exclude",
            "matches no cell",
            file=shown(study.file),
            key=f"exclude.{i}",
            got=study.exclude[i],
            hint="correct it or take it out",
        )


def effective(levels: Levels, made: Geometry) -> tuple[Any, ...]:
    """The levels as far as they have an effect: of two cells that have the same, one trains what the other does."""
    mesh, level = made.mesh or Mesh(), levels["parallelism"]
    told = levels
    if load_framework(levels["framework"]).strategies:
        told = {**levels, "parallelism": level if made.ranks > 1 else PLAIN}
    elif is_mesh(level):
        told = {**levels, "parallelism": mesh.name}
    idle = {each.factor for each in IDLE if each.in_cell(levels, mesh)}
    return tuple(None if name in idle else level for name, level in told.items())


def _double(levels: Levels, other: Levels) -> InfeasibleCell:
    """Why there is no cell with these levels beside the `other` one, which trains the same."""
    reason = f"trains exactly as {cell_name(other)} does: "
    for idle in IDLE:
        if levels[idle.factor] != other[idle.factor]:
            factors = (idle.where, idle.factor)
            return InfeasibleCell("duplicate", reason + idle.why, factors, f"hold {idle.factor}")
    reason += f"parallelism={levels['parallelism']} and {other['parallelism']} are the same on these ranks"
    return InfeasibleCell("duplicate", reason, ("parallelism", "nodes", "devices_per_node"), "take one of them")


def _cell_error(study: Study, site: Site, levels: Levels, infeasible: InfeasibleCell) -> InputError:
    """Return what a person reads: why a cell cannot be, what helps, and what to exclude where other cells would be left.

    `got` are the levels that decide about it, by factor.
    """
    varied = [name for name, possible in study.factors.items() if name in infeasible.factors and len(possible) > 1]
    hint = infeasible.hint
    if study.fraction:
        hint += " (a fraction needs all of its cells)"
    elif varied and _others_remain(study, site, {name: [levels[name]] for name in varied}):
        line = ", ".join(f"{name}: {levels[name]}" for name in varied)
        hint += f", or add to exclude: - {{{line}}}"
    return InputError(
        infeasible.code,
        f"cell {cell_name(levels)}: {infeasible}",
        file=shown(study.file),
        key="factors",
        got={name: levels[name] for name in infeasible.factors},
        hint=hint,
    )


def _others_remain(study: Study, site: Site, entry: Mapping[str, list[Any]]) -> bool:
    """Whether there is a cell that can be when the study excludes `entry`, too."""
    for levels in study.combinations():
        if not any(matches(levels, excluded) for excluded in (entry, *study.exclude)):
            with contextlib.suppress(InfeasibleCell):
                geometry(levels, load_framework(levels["framework"]), site)
                return True
    return False


@functools.cache
def _seed(study_seed: int, replicate: int) -> int:
    return int(digest_text(f"{study_seed}/{replicate}")[:8], 16) >> 1


def _run(study: Study, site: Site, cell: str, levels: Levels, geometry: Geometry, replicate: int) -> Run:
    run_id, framework = f"{cell}.r{replicate}", load_framework(levels["framework"])
    graph = model_graph(levels["model"], levels["dataset"])
    layout, strategy = (geometry.nodes, geometry.ranks_per_node), None
    if framework.strategies:
        asked, file = question(levels), file_of(study.name, site.name)
        strategy = strategy_of(levels["parallelism"], graph, geometry.local_batch, layout, asked, file)
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
        dataset=load_dataset(levels["dataset"]),
        graph=graph,
        strategy=strategy,
    )


def main(*, study: str, site: str, out: Path) -> None:
    """Write design.csv.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        out: design.csv
    """
    write_text(out, to_csv(design(load_study(study), load_site(site))))


if __name__ == "__main__":
    sys.exit(run_program(main))
