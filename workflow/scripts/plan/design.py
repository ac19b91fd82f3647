"""The design: every run of a study at a site, before anything runs. A pure function of study and site.

Blocks are replicates (randomized complete blocks): a block holds every cell once, in an order that a hash decides, so
that adding a level or a replicate moves no other run (Jain 1991, ch. 16; Hoefler & Belli, SC'15, rule 9).
"""

import argparse
import csv
import functools
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError, exit_status
from common.files import digest_text, shown, write_text
from plan.site import Site, load_site
from plan.study import Framework, Levels, Study, factor_table, load_dataset, load_framework, load_study, model_graph

LARGEST_DROPPED_SHARE = 0.02
BOOKKEEPING = ("run_id", "cell", "replicate", "block", "order_key", "seed")


@dataclass(frozen=True)
class Geometry:
    """How a cell is laid out: processes, copies of the model, and samples."""

    nodes: int
    ranks: int
    ranks_per_node: int
    replicas: int
    replicas_per_rank: int
    local_batch: int
    effective_batch: int
    steps: int
    samples_per_epoch: int


@dataclass(frozen=True)
class Run:
    """One row of the design: one cell x replicate."""

    run_id: str
    cell: str
    replicate: int
    block: int
    order_key: float
    seed: int
    levels: Levels
    geometry: Geometry


def design(study: Study, site: Site) -> list[Run]:
    """All runs in planned order. InputError in one line for a cell that cannot be, and for a study without cells."""
    runs = [
        _run(study, cell, levels, geometry, replicate)
        for cell, levels, geometry in _cells(study, site)
        for replicate in range(1, study.replicates + 1)
    ]
    if not runs:
        raise InputError(f"{shown(study.file)}: exclude: removes every cell; expected at least one cell to be left")
    return sorted(runs, key=lambda run: (run.order_key, run.run_id))


def cell_name(levels: Levels) -> str:
    """The cell's name, made of levels: core factors always, others only where they differ from their default."""
    return ".".join(
        f"{entry.get('symbol', '')}{levels[name]}" if entry.get("core") else f"{name}={levels[name]}"
        for name, entry in factor_table().items()
        if entry.get("core") or levels[name] != entry["default"]
    )


def geometry(levels: Levels, framework: Framework, site: Site) -> Geometry:
    """Ranks, replicas and batches of a cell. ValueError where it cannot be trained."""
    if levels["warmup_epochs"] >= levels["epochs"]:
        raise ValueError(f"warmup_epochs={levels['warmup_epochs']} leaves none of {levels['epochs']} epochs to time")
    devices = levels["devices_per_node"] or site.ranks_per_node
    if devices > site.ranks_per_node:
        raise ValueError(
            f"devices_per_node={devices} is more than the {site.ranks_per_node} ranks_per_node of {shown(site.file)}"
        )
    if levels["devices_per_node"] > 1 and not (framework.distributed or framework.mirrored):
        raise ValueError(f"devices_per_node={devices}: {framework.name} trains on one device")
    ranks_per_node = devices if framework.distributed else 1
    ranks = levels["nodes"] * ranks_per_node if framework.distributed else 1
    replicas_per_rank = devices if framework.mirrored else 1
    replicas = ranks * replicas_per_rank
    local_batch, rest = (
        (levels["batch_size"], 0) if levels["batch_scope"] == "local" else divmod(levels["batch_size"], replicas)
    )
    if rest or not local_batch:
        raise ValueError(
            f"batch_size={levels['batch_size']} (batch_scope=global) does not divide by {replicas} replicas"
        )
    model_graph(levels["model"], levels["dataset"])
    samples = load_dataset(levels["dataset"])["train_samples"]
    steps = samples // (local_batch * replicas)
    dropped = 1 - steps * local_batch * replicas / samples
    if dropped > LARGEST_DROPPED_SHARE:
        raise ValueError(
            f"{replicas} x {local_batch} samples a step drop {dropped:.1%} of the {samples} training samples of "
            f"{levels['dataset']} (at most {LARGEST_DROPPED_SHARE:.0%})"
        )
    if levels["sync_every"] > steps:
        raise ValueError(f"sync_every={levels['sync_every']} is more than the {steps} batches of an epoch")
    effective_batch = local_batch * replicas * levels["sync_every"]
    nodes = levels["nodes"] if framework.distributed else 1
    return Geometry(
        nodes=nodes,
        ranks=ranks,
        ranks_per_node=ranks_per_node,
        replicas=replicas,
        replicas_per_rank=replicas_per_rank,
        local_batch=local_batch,
        effective_batch=effective_batch,
        steps=steps,
        samples_per_epoch=samples,
    )


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
            f"{shown(study.file)}: factors.nodes: {too_many[0]} is more than the {site.nodes} nodes of {shown(site.file)}; "
            "take fewer, or another site"
        )
    used = [False] * len(study.exclude)
    for levels in study.combinations():
        hits = [i for i, entry in enumerate(study.exclude) if all(levels[name] in entry[name] for name in entry)]
        for i in hits:
            used[i] = True
        if hits:
            continue
        framework = load_framework(levels["framework"])
        if not framework.can(levels):
            raise InputError(
                _refusal(study, levels, f"{framework.name} cannot do it (capabilities in {shown(framework.file)})")
            )
        try:
            yield cell_name(levels), levels, geometry(levels, framework, site)
        except ValueError as error:
            raise InputError(_refusal(study, levels, str(error))) from None
    if not all(used):
        i = used.index(False)
        raise InputError(f"{shown(study.file)}: exclude.{i}: matches no cell; correct it or take it out")


def _refusal(study: Study, levels: Levels, why: str) -> str:
    varied = [name for name, possible in study.factors.items() if len(possible) > 1] or ["framework"]
    line = ", ".join(f"{name}: {levels[name]}" for name in varied)
    advice = f", or add to exclude: - {{{line}}}" if study.fraction is None else " (a fraction needs all of its cells)"
    return f"{shown(study.file)}: factors: cell {cell_name(levels)}: {why}; change the factors{advice}"


@functools.cache
def _seed(study_seed: int, replicate: int) -> int:
    return int(digest_text(f"{study_seed}/{replicate}")[:8], 16) >> 1


def _run(study: Study, cell: str, levels: Levels, geometry: Geometry, replicate: int) -> Run:
    run_id = f"{cell}.r{replicate}"
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
    )


def main(argv: list[str] | None = None) -> None:
    """Write design.csv."""
    parser = argparse.ArgumentParser(prog="plan.design", description=main.__doc__)
    parser.add_argument("--study", required=True, help="name of a file in config/studies/")
    parser.add_argument("--site", required=True, help="name of a file in config/sites/")
    parser.add_argument("--out", required=True, type=Path, help="design.csv")
    options = parser.parse_args(argv)
    write_text(options.out, to_csv(design(load_study(options.study), load_site(options.site))))


if __name__ == "__main__":
    sys.exit(exit_status(main))
