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
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import digest_text, display_path, write_text
from common.notes import Note
from common.options import run_program
from declared.datasets import find_dataset
from declared.factors import Levels, factor_names, has_largest_batch, levels_name, matches
from declared.frameworks import Framework, load_framework
from declared.models import model_graph
from declared.site import Site, load_site
from declared.study import Study, load_study
from models.graph import Graph
from models.layout import BUCKET_BYTES, BucketBytes
from models.strategy import Strategy
from plan.batch_sizes import (
    batch_search_name,
    batch_size_file,
    missing_batch_size_note,
    nothing_fits_note,
    read_batch_sizes,
)
from plan.cell_checks import check_batch_search, checked_geometry, smallest_geometry
from plan.duplicates import refuse_duplicate
from plan.geometry import Geometry, InfeasibleCell
from plan.strategies import cell_strategy, read_bucket_bytes, strategy_file, strategy_search_name

MAX_RUN_ID_BYTES = 200  # file systems allow 255; logs and partial files append to the name
BOOKKEEPING_COLUMNS = ("run_id", "cell", "replicate", "block", "order_key", "seed")


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
        """The graph of a model of Ringside; runs of user-supplied commands have none."""
        return model_graph(self.levels["model"], self.levels["dataset"])

    @property
    def reads_data(self) -> bool:
        """Whether it reads the prepared data set; a user-supplied command may have data of its own."""
        return self.framework.command is None or self.framework.command.reads_data

    @property
    def lacks_strategy(self) -> bool:
        """Whether a search has to find its strategy before it can run."""
        return self.framework.strategies and self.strategy is None


def raise_if_imported(study: Study) -> None:
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
    raise_if_imported(study)
    runs = [
        _make_run(study, site, cell, levels, geometry, replicate)
        for cell, levels, geometry in _checked_cells(study, site)
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


def cell_geometry(study: str, levels: Levels, site: Site) -> Geometry:
    """Return the geometry of a cell of a study.

    With `batch_size: largest`, the batch is the one that the search found; before the search, it is the
    smallest one that the cell can train.

    Raises:
        InfeasibleCell: If the cell cannot be trained.
    """
    framework = load_framework(levels["framework"])
    if not has_largest_batch(levels):
        return checked_geometry(levels, framework, site)
    check_batch_search(levels, framework)
    entry = _batch_search_entry(study, site, levels)
    if entry and (size := entry["batch_size"]):
        return checked_geometry({**levels, "batch_size": size}, framework, site)
    return smallest_geometry(levels, framework, site)


def _batch_search_entry(study: str, site: Site, levels: Levels) -> Mapping[str, Any] | None:
    """Return the result of the search behind a cell (plan.batch_sizes), None before the search."""
    return read_batch_sizes(batch_size_file(study, site.name)).get(batch_search_name(levels))


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


def _checked_cells(study: Study, site: Site) -> Iterator[tuple[str, Levels, Geometry]]:
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
        yield levels_name(levels), levels, geometry
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


def _cell_error(study: Study, site: Site, levels: Levels, infeasible: InfeasibleCell) -> InputError:
    """Return the error for an infeasible cell, with a hint.

    The hint has the `exclude` entry that removes the cell if other cells remain. `got` has the offending
    levels by factor.
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
        f"cell {levels_name(levels)}: {infeasible}",
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
        nodes_and_ranks, search = (geometry.nodes, geometry.ranks_per_node), strategy_search_name(levels)
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
