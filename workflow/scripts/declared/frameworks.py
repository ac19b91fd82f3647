"""What each framework says of itself, in its framework.yaml, read and checked."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import CHECKOUT, load_yaml, shown
from common.schemas import check, check_value
from common.text import alternatives
from declared import environments
from declared.factors import as_list, factor_table
from declared.mesh import PLAIN, axes_of, is_mesh, is_strategy, kind_of, without_sizes
from models.collectives import ALL_REDUCE

OWN = "own"  # an algorithm
RANKS = CHECKOUT / "workflow" / "scripts" / "ranks"
FRAMEWORKS = RANKS / "frameworks"
LIBRARIES = RANKS / "libraries"


@dataclass(frozen=True)
class Framework:
    """One framework's description, from its framework.yaml."""

    name: str
    file: Path
    title: str
    environment: str
    libraries: tuple[str, ...]
    modules: tuple[str, ...]
    needs: dict[str, str]
    distributed: bool
    mirrored: bool
    mpi: bool
    unlike: bool
    strategies: bool
    devices: tuple[str, ...]
    collectives: tuple[str, ...]
    sends: tuple[str, ...]
    exchange: dict[str, Any] | None
    algorithm: str
    adapter: bool
    base: str
    timing_scope: str
    capabilities: tuple[dict[str, list[Any]], ...]
    meshes: tuple[frozenset[str], ...]
    without: dict[str, list[str]]
    why: dict[str, str]
    notes: tuple[str, ...]

    def can(self, levels: Mapping[str, Any]) -> bool:
        """Whether a cell with these levels fits one of the capabilities."""
        return not all(self.missed(levels))

    def missed(self, levels: Mapping[str, Any]) -> list[list[str]]:
        """For each of the capabilities the factors whose levels keep a cell from it; none where it fits. A mesh that the framework can divide ranks
        into (`meshes`) fits where an entry names its axes, without sizes; where none names them, where data does."""
        level = levels["parallelism"]
        named = {level}
        if is_strategy(level):
            named = {kind_of(level)[0]}
        elif is_mesh(level):
            named.add(without_sizes(level))
            by_name = any(not named.isdisjoint(entry.get("parallelism", ())) for entry in self.capabilities)
            if not by_name and any(axes_of(level) <= axes for axes in self.meshes):
                named.add(PLAIN)
        return [
            [
                factor
                for factor, possible in entry.items()
                if (named.isdisjoint(possible) if factor == "parallelism" else levels[factor] not in possible)
            ]
            for entry in self.capabilities or ({"parallelism": [PLAIN]},)
        ]


@functools.cache
def framework_names() -> tuple[str, ...]:
    """The frameworks that have a folder with a framework.yaml."""
    return tuple(sorted(path.parent.name for path in FRAMEWORKS.glob("*/framework.yaml")))


@functools.cache
def environment_names() -> tuple[str, ...]:
    """The environments of frameworks."""
    return tuple(environments.names())


@functools.cache
def load_framework(name: str) -> Framework:
    """Read and check workflow/scripts/ranks/frameworks/<name>/framework.yaml."""
    file = FRAMEWORKS / name / "framework.yaml"
    raw = load_yaml(file)
    check(raw, "framework", file)
    for key, known in (("base", framework_names()), ("environment", environment_names())):
        if raw[key] not in known:
            raise _unknown(raw[key], file, key, known)
    for i, library in enumerate(raw["libraries"]):
        if not (LIBRARIES / f"{library}.py").is_file():
            there = sorted(path.stem for path in LIBRARIES.glob("[a-z]*.py"))
            raise _unknown(library, file, f"libraries.{i}", there)
    table = factor_table()
    capabilities = []
    for i, entry in enumerate(raw.get("capabilities", [])):
        for factor, levels in entry.items():
            where = f"capabilities.{i}.{factor}"
            if factor not in table:
                raise InputError(
                    "unknown-name", "unknown factor", file=shown(file), key=where, got=factor, expected=list(table)
                )
            for level in as_list(levels):
                check_value(level, table[factor], where, file)
        capabilities.append({factor: as_list(levels) for factor, levels in entry.items()})
    fields = {key: raw[key] for key in ("title", "environment", "distributed", "base", "timing_scope")}
    fields |= {key: raw.get(key, False) for key in ("mirrored", "mpi", "unlike", "strategies")}
    fields |= {
        "collectives": tuple(raw.get("collectives", [ALL_REDUCE])),
        "devices": tuple(raw.get("devices", ["cpu", "cuda"])),
        "sends": tuple(raw.get("sends", [ALL_REDUCE])),
        "exchange": raw.get("exchange"),
        "algorithm": raw.get("algorithm", "same"),
        "needs": raw.get("needs", {}),
        "without": raw.get("without", {}),
        "why": raw.get("why", {}),
        "notes": tuple(raw.get("notes", [])),
    }
    fields |= {"adapter": (file.parent / "adapter.py").is_file()}
    return Framework(
        name=name,
        file=file,
        libraries=tuple(raw["libraries"]),
        modules=tuple(raw["modules"]),
        capabilities=tuple(capabilities),
        meshes=tuple(frozenset(axes) for axes in raw.get("meshes", [])),
        **fields,
    )


def _unknown(name: str, file: Path, key: str, known: Iterable[str]) -> InputError:
    return InputError(
        "unknown-name", f"'{name}' is unknown", file=shown(file), key=key, got=name, **alternatives(name, known)
    )


def trains_alone(name: str) -> bool:
    """Whether a framework has an algorithm of its own, so that its weights are not those of others; not one that is not here any more."""
    return name in framework_names() and load_framework(name).algorithm == OWN


def notes_of(name: str) -> tuple[str, ...]:
    """What must be said beside a framework's numbers; nothing of one that is not here any more."""
    return load_framework(name).notes if name in framework_names() else ()


def has_strategies(name: str) -> bool:
    """Whether a framework divides each layer by itself, whatever the level of parallelism; not one that is not here any more."""
    return name in framework_names() and load_framework(name).strategies
