"""Return the parallelization strategy of a run, for frameworks that partition each layer separately.

`./ringside strategies` writes the results of searches to config/strategies/<study>.<site>.json. Like the
study, this file is an input of the campaign, so that the same checkout plans the same runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import display_path
from common.notes import Note
from common.units import MIB
from declared.factors import Levels, levels_name
from declared.mesh import EXPERT, RANDOM, SEARCHED, split_strategy
from declared.site import Site
from models import strategy
from models.graph import Graph
from models.layout import BUCKET_BYTES, BucketBytes
from models.soap import divide
from models.strategy import Strategy
from plan.search_files import read_search_file, search_command, search_file

# Factors that affect the step time of a strategy. Cells that differ only in other factors share a search.
STRATEGY_SEARCH_FACTORS = (
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
    """Return the file with the strategies of a study's searches at a site."""
    return search_file("strategies", study, site)


def missing_strategy_note(study: str, site: Site) -> Note:
    """Return the note on a run without a strategy, with the command that searches for it."""
    command = search_command("strategies", study, site)
    return Note("strategy-not-found-yet", f"no strategy was found yet; run {command}", command=command)


def strategy_search_name(levels: Levels) -> str:
    """Return the name of the search for a cell's strategy: its levels of STRATEGY_SEARCH_FACTORS."""
    return levels_name({name: levels[name] for name in STRATEGY_SEARCH_FACTORS})


def read_strategies(file: Path) -> Mapping[str, Any]:
    """Return the strategies in a file by name of their search, {} if there is no file.

    Raises:
        InputError: If the file is broken.
    """
    strategies: Mapping[str, Any] = _read_file(file).get("strategies", {})
    return strategies


def read_bucket_bytes(file: Path) -> BucketBytes:
    """Return the limits of gradient buckets (`models.layout.BUCKET_BYTES`) that a file's searches assumed.

    Older files do not state them: their searches assumed buckets of 1 MiB. Without a file, return the usual
    limits.
    """
    if not (content := _read_file(file)):
        return BUCKET_BYTES
    first_bytes, bucket_bytes = content.get("bucket_bytes", (MIB, MIB))
    return first_bytes, bucket_bytes


def _read_file(file: Path) -> Mapping[str, Any]:
    return read_search_file(file, "strategies", "./ringside strategies")


def cell_strategy(
    level: str, graph: Graph, batch: int, nodes_and_ranks: tuple[int, int], search: str, file: Path
) -> Strategy | None:
    """Return the strategy of a cell, None if it has to be searched first.

    Args:
        level: Level of parallelism.
        graph: The model.
        batch: Samples per step.
        nodes_and_ranks: Nodes, and ranks (devices) per node.
        search: Name of the search (`strategy_search_name`).
        file: File with the strategies of searches.

    Raises:
        InputError: If the strategy in the file does not fit the model.
    """
    nodes, n_devices = nodes_and_ranks
    space = divide(graph, batch)
    kind, seed = split_strategy(level)
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
