"""Return the parallelization strategy of a run, for frameworks that partition each layer separately.

Strategies that a search found at a site are in config/strategies/<study>.<site>.json, written by `./ringside
strategies`. This file is an input of the campaign like the study, so that the same checkout plans the same
runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import display_path
from common.notes import Note
from common.units import MIB
from declared.factors import Levels, levels_name
from declared.mesh import EXPERT, RANDOM, SEARCHED, kind_of
from declared.site import Site
from models import strategy
from models.graph import Graph
from models.layout import BUCKET_BYTES, BucketBytes
from models.soap import divide
from models.strategy import Strategy
from plan.search_files import read_search_file, search_command, search_file

# Factors that affect the step time of a strategy; cells that differ only in other factors share their
# strategy.
SEARCH_FACTORS = (
    "model",
    "dataset",
    "batch_size",
    "nodes",
    "devices_per_node",
    "device",
    "bandwidth",
    "optimizer",
)


def strategy_file(study: str, site: str) -> Path:
    """Return the file of the strategies that were found for a study at a site."""
    return search_file("strategies", study, site)


def missing_strategy_note(study: str, site: Site) -> Note:
    """Return the note on a run without a strategy, with the command that searches for it."""
    command = search_command("strategies", study, site)
    return Note("strategy-not-found-yet", f"no strategy was found yet; run {command}", command=command)


def search_name(levels: Levels) -> str:
    """Return the name of the search behind a cell's strategy, made of its levels of SEARCH_FACTORS."""
    return levels_name({name: levels[name] for name in SEARCH_FACTORS})


def read_strategies(file: Path) -> Mapping[str, Any]:
    """Return the strategies in a file by search name, {} if there is no file.

    Raises:
        InputError: If the file is broken.
    """
    strategies: Mapping[str, Any] = _read_file(file).get("strategies", {})
    return strategies


def read_bucket_bytes(file: Path) -> BucketBytes:
    """Return the limits of buckets of gradients (``Layout``) in the trainings of a file's study.

    Files of searches with buckets of 1 MiB do not state them. Without a file these are the usual limits.
    """
    if not (content := _read_file(file)):
        return BUCKET_BYTES
    first_bytes, bucket_bytes = content.get("bucket_bytes", (MIB, MIB))
    return first_bytes, bucket_bytes


def _read_file(file: Path) -> Mapping[str, Any]:
    return read_search_file(file, "strategies", "./ringside strategies")


def cell_strategy(
    level: str, graph: Graph, batch: int, layout: tuple[int, int], search: str, file: Path
) -> Strategy | None:
    """Return the strategy of a cell, None if it was not found yet.

    Args:
        level: Level of parallelism.
        graph: The model.
        batch: Samples per step.
        layout: Nodes, and devices per node.
        search: Name of the search (``search_name``).
        file: File of the strategies that were found.

    Raises:
        InputError: If the strategy that was found does not fit the model.
    """
    nodes, n_devices = layout
    space = divide(graph, batch)
    kind, seed = kind_of(level)
    if kind == EXPERT:
        return strategy.expert(space, nodes, n_devices)
    if kind == RANDOM:
        return strategy.random_strategy(space, nodes * n_devices, seed)
    if kind != SEARCHED:
        return strategy.data_parallel(space, nodes * n_devices)
    entry: Mapping[str, Any] | None = read_strategies(file).get(search)
    if entry is None:
        return None
    try:
        return strategy.check_strategy(strategy.from_json(entry["parts"]), space, nodes * n_devices)
    except ValueError as error:
        problem = str(error)
        hint = "run ./ringside strategies again"
        raise InputError("model-mismatch", problem, file=display_path(file), key=search, hint=hint) from None
