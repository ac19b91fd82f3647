"""What a person writes, read and checked: the configuration, the study, and the frameworks' own descriptions."""

import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import CHECKOUT, load_yaml, shown
from common.schemas import check, check_value, schema
from environments.description import names as environment_names
from figures.declared import declared as declared_figures
from models.graph import Graph
from models.named import graph, models
from plan.fraction import Fraction, generated, of_resolution

RUNS = CHECKOUT / "workflow" / "scripts" / "runs"
FRAMEWORKS = RUNS / "frameworks"
LIBRARIES = RUNS / "libraries"
DATASETS = CHECKOUT / "workflow" / "scripts" / "datasets" / "table.yaml"
OWN_DATASETS = CHECKOUT / "config" / "datasets.yaml"
ARCHIVED = ("cifar-10-binary", "idx", "tiny-imagenet")
NAMES_CLASSES = "tiny-imagenet"  # the format whose archives name the classes
LABELS_ARE_BYTES = ("cifar-10-binary", "idx")
BUNDLED = {"shape": [8, 8, 1], "classes": 10, "samples": 1797}  # scikit-learn's digits
FRESH = "fresh"  # the format of data sets that have no images: the worker draws every batch
FRESH_NAME = "synthetic-<height>x<width>x<channels>-<classes>[-<samples>]"
FRESH_SAMPLES = 10240
DEFAULT_RESOLUTION = 4
_FRESH = re.compile(r"synthetic-([1-9]\d{0,3})x([1-9]\d{0,3})x([1-9]\d{0,2})-([1-9]\d{0,4})(?:-([1-9]\d{0,8}))?")

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
    adapter: bool
    base: str
    timing_scope: str
    capabilities: tuple[dict[str, list[Any]], ...]

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


def load_config(values: Mapping[str, Any], file: Path = CHECKOUT / "config" / "config.yaml") -> dict[str, str]:
    """Check the workflow's configuration (the file's keys, overlaid by the command line's)."""
    # Snakemake's command line reads a name of digits alone as a number.
    config = {
        key: str(value) if type(value) is int and key in ("study", "site") else value for key, value in values.items()
    }
    check(config, "config", file)
    return config


def load_study(name: str, folder: Path = CHECKOUT / "config" / "studies") -> Study:
    """Read and check config/studies/<name>.yaml. InputError in one line when it is wrong."""
    file = existing(folder, name, "study")
    raw = load_yaml(file)
    check(raw, "study", file)
    factors = _factors(raw["factors"], file)
    study = Study(
        name=name,
        file=file,
        title=raw["title"],
        question=raw["question"],
        seed=raw["seed"],
        replicates=raw["replicates"],
        factors=factors,
        exclude=tuple(
            _exclusion(entry, factors, f"exclude.{i}", file) for i, entry in enumerate(raw.get("exclude", []))
        ),
        step_times=raw.get("step_times", False),
        extra_p=raw.get("extra_p", False),
        fraction=_fraction(raw, factors, file),
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
    fields |= {"mirrored": raw.get("mirrored", False), "adapter": (file.parent / "adapter.py").is_file()}
    return Framework(
        name=name,
        file=file,
        libraries=tuple(raw["libraries"]),
        modules=tuple(raw["modules"]),
        capabilities=tuple(capabilities),
        **fields,
    )


@functools.cache
def datasets() -> dict[str, dict[str, Any]]:
    """The table of data sets, and after it a user's own, from config/datasets.yaml: name -> its entry."""
    return read_datasets(DATASETS, OWN_DATASETS)


def read_datasets(shipped: Path, own: Path) -> dict[str, dict[str, Any]]:
    """The entries of the table `shipped` and of the file `own`, which may be absent. InputError in one line for a wrong entry."""
    tables = {file: load_yaml(file) for file in (shipped, own) if file is shipped or file.is_file()}
    entries: dict[str, dict[str, Any]] = {}
    for file, table in tables.items():
        if not isinstance(table, dict):
            found = "is empty" if table is None else f"holds {str(table)[:60]!r}"
            raise InputError(f"{shown(file)}: {found}; expected names of data sets, each with its entry")
        for name, entry in table.items():
            if name in entries:
                raise InputError(f"{shown(file)}: {name}: is a data set of {shown(shipped)}; give it another name")
            if _FRESH.fullmatch(name):
                raise InputError(f"{shown(file)}: {name}: such a name is drawn, not read; give it another name")
            check_value(name, factor_table()["dataset"], name, file)
            place = file.with_name(f"{file.name} ({name})")
            check(entry, "dataset", place)
            _check_dataset(entry, place)
            if file is own:
                _check_file_names(entry, place)
            entries[name] = entry
    return entries


def _check_dataset(entry: Mapping[str, Any], file: Path) -> None:
    """InputError for the first mistake that no single key of a data set's entry shows."""
    for key, why in _mistakes(entry):
        raise InputError(f"{shown(file)}: {key}: {why}")


def _mistakes(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Key and complaint; each may assume that those before it were none."""
    archived, expected = entry["format"] in ARCHIVED, f"with format {entry['format']} expected"
    if ("files" in entry) + ("made_up" in entry) != archived:
        yield "files", f"{expected} {'either files or made_up: true' if archived else 'neither files nor made_up'}"
    if isinstance(entry["classes"], list) == (entry["format"] == NAMES_CLASSES):
        yield "classes", f"{expected} {'their number' if entry['format'] == NAMES_CLASSES else 'a list of names'}"
    names = [declared["name"] for declared in entry.get("files", [])]
    if len(set(names)) < len(names):
        yield "files", f"two are called {max(names, key=names.count)}; name each once"
    for i, declared in enumerate(entry.get("files", [])):
        if not {"md5", "sha256"} & set(declared):
            name = declared["name"]
            yield f"files.{i}", f"{name} has neither md5 nor sha256; say sha256: and what `sha256sum {name}` prints"
    classes, samples = class_count(entry), entry["train_samples"] + entry["validation_samples"]
    if entry["format"] in LABELS_ARE_BYTES and classes > 256:
        yield "classes", f"{expected} at most 256, since a label is one byte, not {classes}"
    if entry["format"] == "tiny-imagenet" and entry["shape"][2] != 3:
        yield "shape", f"{expected} 3 channels, not {entry['shape'][2]}"
    if entry["format"] == "scikit-learn":
        for key, found in {"shape": entry["shape"], "classes": classes, "samples": samples}.items():
            if found != BUNDLED[key]:
                named = "train_samples and validation_samples" if key == "samples" else key
                yield named, f"{expected} {BUNDLED[key]}, not {found}"


def _check_file_names(entry: Mapping[str, Any], file: Path) -> None:
    """The names by which a format's archives are told apart. Of the shipped table they are right (tests say so)."""
    if entry["format"] not in ARCHIVED or "made_up" in entry:
        return
    from datasets.formats import IDX  # not above: it brings NumPy, for which every start of Snakemake would wait

    names = [declared["name"] for declared in entry["files"]]
    if entry["format"] == "idx":
        wanted = [name for pair in IDX.values() for name in pair]
        if set(names) != set(wanted):
            raise InputError(
                f"{shown(file)}: files: with format idx expected the names {', '.join(wanted)}, not {', '.join(names)}; "
                "the url of each may end differently"
            )
    elif len(names) != 1:
        raise InputError(f"{shown(file)}: files: with format {entry['format']} expected one archive, not {len(names)}")


def class_count(entry: Mapping[str, Any]) -> int:
    """How many classes a data set has."""
    classes = entry["classes"]
    return classes if isinstance(classes, int) else len(classes)


@functools.cache
def table_of(dataset: str) -> Path:
    """The file that has a data set's entry: a user's own where it is not shipped."""
    return DATASETS if dataset in load_yaml(DATASETS) else OWN_DATASETS


@functools.cache
def load_dataset(name: str, where: str = "data set") -> dict[str, Any]:
    """The entry of a data set, from a table or made of its name. InputError, beginning with `where`, for an unknown one."""
    if name in datasets():
        return datasets()[name]
    if found := _FRESH.fullmatch(name):
        height, width, channels, classes, samples = map(int, found.groups(default=str(FRESH_SAMPLES)))
        if classes < 2 or samples < 10:
            raise InputError(f"{where}: '{name}': expected at least 2 classes and 10 samples")
        return _fresh([height, width, channels], classes, samples)
    raise InputError(f"{where}: '{name}' is unknown; expected one of {', '.join(datasets())} or {FRESH_NAME}")


def _fresh(shape: list[int], classes: int, samples: int) -> dict[str, Any]:
    """The entry of a data set whose batches are drawn anew at every step; its validation part is a tenth of `samples`."""
    return {
        "title": f"Noise of {shape[0]} x {shape[1]} pixels, {shape[2]} channels, a fresh batch each step",
        "format": FRESH,
        "train_samples": samples,
        "validation_samples": samples // 10,
        "shape": shape,
        "classes": [str(number) for number in range(classes)],
        "licence": "none needed",
        "citation": "drawn while training",
    }


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
