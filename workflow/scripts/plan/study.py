"""What a person writes, read and checked: the configuration, the study, and the frameworks' own descriptions."""

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import CHECKOUT, load_yaml, shown
from common.schemas import check, check_value, schema
from datasets.table import class_count, load_dataset
from environments import description as environments
from figures.declared import declared as declared_figures
from models.graph import Graph
from models.named import graph, models
from plan.fraction import Fraction, generated, of_resolution

RUNS = CHECKOUT / "workflow" / "scripts" / "runs"
FRAMEWORKS = RUNS / "frameworks"
LIBRARIES = RUNS / "libraries"
DEFAULT_RESOLUTION = 4

Levels = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """One experiment. `factors` has every factor of the schema, in its order, with a list of levels."""

    name: str
    file: Path
    title: str
    question: str
    seed: int
    replicates: int
    factors: dict[str, list[Any]]
    exclude: tuple[dict[str, list[Any]], ...]
    step_times: bool
    extra_p: bool = False
    fraction: Fraction | None = None  # with design: fractional
    authors: tuple[dict[str, str], ...] = ()
    licence: str | None = None
    figures: tuple[dict[str, Any], ...] = ()  # as they are written; figures.declared reads them

    def combinations(self) -> Iterator[Levels]:
        """The levels of every cell that the design asks for, before any is excluded."""
        if self.fraction is None:
            for levels in itertools.product(*self.factors.values()):
                yield dict(zip(self.factors, levels, strict=True))
            return
        for signs in self.fraction.signs():
            yield {name: levels[signs.get(name, 0)] for name, levels in self.factors.items()}


@dataclass(frozen=True)
class Framework:
    """One framework's description, from its framework.yaml."""

    name: str
    file: Path
    title: str
    environment: str
    libraries: tuple[str, ...]
    modules: tuple[str, ...]
    distributed: bool
    mirrored: bool
    mpi: bool
    network_sweep: bool
    exchange: dict[str, Any] | None
    adapter: bool
    base: str
    timing_scope: str
    capabilities: tuple[dict[str, list[Any]], ...]
    without: dict[str, list[str]]
    why: dict[str, str]
    notes: tuple[str, ...]

    def can(self, levels: Mapping[str, Any]) -> bool:
        """Whether a cell with these levels fits one of the capabilities."""
        return not self.capabilities or any(
            all(levels[factor] in possible for factor, possible in entry.items()) for entry in self.capabilities
        )


def factor_table() -> dict[str, dict[str, Any]]:
    """Every factor: name -> type, default, title, unit, symbol, core."""
    return schema("factors")["properties"]


def existing(folder: Path, name: str, kind: str) -> Path:
    """config/<kind>s/<name>.yaml in `folder`. InputError with the names that there are when it is absent."""
    file = folder / f"{name}.yaml"
    if not file.is_file():
        there = ", ".join(sorted(path.stem for path in folder.glob("*.yaml"))) or "none"
        raise InputError(f"config/config.yaml: {kind}: there is no {shown(file)}; {kind} must be one of {there}")
    return file


def read_config(file: Path) -> dict[str, Any]:
    """What a file of the workflow's configuration says, unchecked but for its form."""
    said = load_yaml(file) or {}
    if not isinstance(said, dict):
        raise InputError(f"{shown(file)}: holds {str(said)[:60]!r}; expected keys, such as study: NAME")
    return said


def load_config(values: Mapping[str, Any], file: Path = CHECKOUT / "config" / "config.yaml") -> dict[str, Any]:
    """Check the workflow's configuration (the file's keys, overlaid by the command line's)."""
    config = {key: _as_meant(key, value) for key, value in values.items()}
    check(config, "config", file)
    return config


def _as_meant(key: str, value: Any) -> Any:
    """Command lines have no types: Snakemake's reads a name of digits alone as a number, those of programs a number as text."""
    match schema("config")["properties"].get(key, {}).get("type"):
        case "string" if type(value) is int:
            return str(value)
        case "integer" if isinstance(value, str) and value.isdecimal():
            return int(value)
    return value


def load_study(name: str, folder: Path = CHECKOUT / "config" / "studies") -> Study:
    """Read and check config/studies/<name>.yaml. InputError in one line when it is wrong."""
    file = existing(folder, name, "study")
    raw = load_yaml(file)
    check(raw, "study", file)
    factors = _factors(raw["factors"], file)
    study = Study(
        name=name,
        file=file,
        title=" ".join(raw["title"].split()),
        question=" ".join(raw["question"].split()),
        seed=raw["seed"],
        replicates=raw["replicates"],
        factors=factors,
        exclude=tuple(
            _exclusion(entry, factors, f"exclude.{i}", file) for i, entry in enumerate(raw.get("exclude", []))
        ),
        step_times=raw.get("step_times", False),
        extra_p=raw.get("extra_p", False),
        fraction=_fraction(raw, factors, file),
        authors=tuple(raw.get("authors", [])),
        licence=raw.get("licence"),
        figures=tuple(raw.get("figures", [])),
    )
    declared_figures(study)  # whoever reads a study hears what is wrong with it
    return study


def _fraction(raw: Mapping[str, Any], factors: Mapping[str, list[Any]], file: Path) -> Fraction | None:
    """The fraction of a study with design: fractional; None with design: full."""
    if raw["design"] == "full":
        if only := [key for key in ("resolution", "generators") if key in raw]:
            raise InputError(f"{shown(file)}: {only[0]}: only with design: fractional; take it out")
        return None
    if "exclude" in raw:
        raise InputError(f"{shown(file)}: exclude: a fraction needs all of its cells; take it out, or say design: full")
    varied = [name for name, levels in factors.items() if len(levels) > 1]
    if many := [name for name in varied if len(factors[name]) > 2]:
        raise InputError(
            f"{shown(file)}: factors.{many[0]}: {len(factors[many[0]])} levels; with design: fractional every factor that "
            "varies has two"
        )
    if "generators" in raw and "resolution" in raw:
        raise InputError(f"{shown(file)}: resolution: follows from generators; take one of the two out")
    key = "generators" if "generators" in raw else "design"
    try:
        if key == "generators":
            return generated(varied, raw["generators"])
        return of_resolution(varied, raw.get("resolution", DEFAULT_RESOLUTION))
    except ValueError as error:
        advice = "" if key == "generators" else "; say design: full, or a lower resolution"
        raise InputError(f"{shown(file)}: {key}: {error}{advice}") from None


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
    """Read and check workflow/scripts/runs/frameworks/<name>/framework.yaml."""
    file = FRAMEWORKS / name / "framework.yaml"
    raw = load_yaml(file)
    check(raw, "framework", file)
    for key, known in (("base", framework_names()), ("environment", environment_names())):
        if raw[key] not in known:
            raise InputError(f"{shown(file)}: {key}: '{raw[key]}' is unknown; expected one of {', '.join(known)}")
    for i, library in enumerate(raw["libraries"]):
        if not (LIBRARIES / f"{library}.py").is_file():
            there = ", ".join(sorted(path.stem for path in LIBRARIES.glob("[a-z]*.py")))
            raise InputError(f"{shown(file)}: libraries.{i}: '{library}' is unknown; expected one of {there}")
    table = factor_table()
    capabilities = []
    for i, entry in enumerate(raw.get("capabilities", [])):
        for factor, levels in entry.items():
            where = f"capabilities.{i}.{factor}"
            if factor not in table:
                raise InputError(f"{shown(file)}: {where}: unknown factor; expected one of {', '.join(table)}")
            for level in _as_list(levels):
                check_value(level, table[factor], where, file)
        capabilities.append({factor: _as_list(levels) for factor, levels in entry.items()})
    fields = {key: raw[key] for key in ("title", "environment", "distributed", "base", "timing_scope")}
    fields |= {key: raw.get(key, False) for key in ("mirrored", "mpi")}
    fields |= {
        "network_sweep": raw.get("network_sweep", True),
        "exchange": raw.get("exchange"),
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
        **fields,
    )


def notes_of(name: str) -> tuple[str, ...]:
    """What must be said beside a framework's numbers; nothing of one that is not here any more."""
    return load_framework(name).notes if name in framework_names() else ()


@functools.cache
def model_names() -> tuple[str, ...]:
    """The models that a family of workflow/scripts/models/families/ has."""
    return tuple(sorted(models()))


@functools.cache
def model_graph(model: str, dataset: str) -> Graph:
    """A model for the images and classes of a data set. ValueError when they are too small for it."""
    entry = load_dataset(dataset)
    return graph(model, tuple(entry["shape"]), class_count(entry))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _factors(raw: Mapping[str, Any], file: Path) -> dict[str, list[Any]]:
    table = factor_table()
    lists = {name: _as_list(value) for name, value in raw.items()}
    wanted = {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name, entry in table.items() if "default" not in entry],
        "properties": {
            name: {
                "type": "array",
                "minItems": 1,
                "uniqueItems": True,
                "items": entry,
                "description": entry["description"],
            }
            for name, entry in table.items()
        },
    }
    check_value(lists, wanted, "factors", file)
    known = {"framework": framework_names(), "model": model_names()}
    for name in (*known, "dataset"):
        for i, level in enumerate(lists[name]):
            where = f"{shown(file)}: factors.{name}" + f".{i}" * isinstance(raw[name], list)
            if name == "dataset":
                load_dataset(level, where)
            elif level not in known[name]:
                raise InputError(f"{where}: '{level}' is unknown; expected one of {', '.join(known[name])}")
    return {
        name: [_plain(level, entry) for level in lists.get(name, [entry.get("default")])]
        for name, entry in table.items()
    }


def _plain(level: Any, entry: Mapping[str, Any]) -> Any:
    """1 is a number, too: give each level the one spelling of its type."""
    return float(level) if entry.get("type") == "number" else level


def _exclusion(
    entry: Mapping[str, Any], factors: Mapping[str, list[Any]], where: str, file: Path
) -> dict[str, list[Any]]:
    for name, levels in entry.items():
        if name not in factors:
            raise InputError(f"{shown(file)}: {where}.{name}: unknown factor; expected one of {', '.join(factors)}")
        for level in _as_list(levels):
            if level not in factors[name] or isinstance(level, bool):
                known = ", ".join(map(str, factors[name]))
                raise InputError(
                    f"{shown(file)}: {where}.{name}: {level!r} is no level of the study; expected one of {known}"
                )
    return {name: _as_list(levels) for name, levels in entry.items()}
