"""Which strategy a run trains by, where its framework divides each layer by itself.

Those that a search found at a site lie in config/strategies/<study>.<site>.json, written by `./ringside strategies`: an input of the
campaign as the study is, so that the same checkout plans the same runs.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import InputError, refuse_machine_error
from common.files import CHECKOUT, read_json, shown
from common.notes import Note
from common.schemas import check
from declared.factors import Levels, factor_table
from declared.mesh import EXPERT, FOUND, RANDOM, kind_of
from declared.site import Site
from models import strategy
from models.graph import Graph
from models.soap import divide
from models.strategy import Strategy

# What decides about the time of a step of a strategy: cells that differ in nothing else train by the same one.
ASKED = ("model", "dataset", "batch_size", "nodes", "devices_per_node", "device", "bandwidth", "optimizer")


def file_of(study: str, site: str) -> Path:
    """Where the strategies of a study lie that were found at a site."""
    return CHECKOUT / "config" / "strategies" / f"{study}.{site}.json"


def to_find(study: str, site: Site) -> Note:
    """Why a run cannot be made whose strategy was not found yet, with the command that finds those of its study at its site."""
    way = "" if site.launcher == "local" else f" --profile {site.launcher}"
    command = f"./ringside strategies {study} --site {site.name}{way}"
    return Note("strategy-not-found-yet", f"no strategy was found yet; call {command}", command=command)


def question(levels: Levels) -> str:
    """The name of what a search is asked for a cell: the levels in ASKED, as a cell's name has them."""
    return ".".join(
        f"{entry.get('symbol', '')}{levels[name]}" if entry.get("core") else f"{name}={levels[name]}"
        for name, entry in factor_table().items()
        if name in ASKED and (entry.get("core") or levels[name] != entry["default"])
    )


def found(file: Path) -> dict[str, Any]:
    """What a file of strategies says, by question; nothing where there is no file. InputError in one line where it is broken."""
    try:
        stamp = file.stat().st_mtime_ns
    except FileNotFoundError:
        return {}
    return _read(file, stamp)


@functools.cache
def _read(file: Path, stamp: int) -> dict[str, Any]:
    try:
        told = read_json(file)
    except (OSError, ValueError) as error:
        refuse_machine_error(error, shown(file))
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            "broken-file", f"is broken ({reason})", file=shown(file), hint="remove it, and call ./ringside strategies"
        ) from None
    check(told, "strategies", file)
    strategies: dict[str, Any] = told["strategies"]
    return strategies


def strategy_of(
    level: str, graph: Graph, batch: int, layout: tuple[int, int], asked: str, file: Path
) -> Strategy | None:
    """The strategy of a cell with this level of parallelism, on nodes x devices of each (`layout`). None where it was not found yet.
    InputError where what was found is not for this model."""
    nodes, inside = layout
    space = divide(graph, batch)
    kind, seed = kind_of(level)
    if kind == EXPERT:
        return strategy.expert(space, nodes, inside)
    if kind == RANDOM:
        return strategy.random_strategy(space, nodes * inside, seed)
    if kind != FOUND:
        return strategy.data_parallel(space, nodes * inside)
    entry: Mapping[str, Any] | None = found(file).get(asked)
    if entry is None:
        return None
    try:
        return strategy.check_strategy(strategy.from_json(entry["parts"]), space, nodes * inside)
    except ValueError as error:
        raise InputError(
            "model-mismatch", str(error), file=shown(file), key=asked, hint="call ./ringside strategies again"
        ) from None
