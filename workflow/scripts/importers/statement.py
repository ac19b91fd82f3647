"""Resolve what a person states once for all measurements, in options or in a file such as import.yaml."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import load_yaml
from common.keys import Keys, Line, key, parse
from common.text import alternatives
from common.units import GBIT_BYTES
from declared.factors import CustomName, factor_table, level_type
from declared.imported import AcceptedFinding, ImportedFile, ModelSize, Reading, Statement, parse_level
from importers.files import FORMATS, field_names, mapping_of
from importers.log_runs import STEP_COLUMNS
from importers.values import VALUES, to_name, to_precision

NUMBERS = ("bandwidth", "inside_bandwidth", "parameters", "gradient_bytes")  # options with positive numbers
# Factors that follow from values of each run -> how to state these values.
RUN_FACTORS = {
    "nodes": "--nodes N",
    "devices_per_node": "--devices-per-node N",
    "parallelism": "name its columns, such as --column tensor_parallel=COLUMN",
    "microbatches": "--level sync_every=N, with --column pipeline_parallel=COLUMN",
}


@dataclass(frozen=True)
class Options:
    """Options of ``./ringside import``; None, "" or () if they are not given."""

    source: str | None = None
    licence: str | None = None
    url: str | None = None
    device: str | None = None
    nodes: int | None = None
    devices_per_node: int | None = None
    bandwidth: float | None = None
    inside_bandwidth: float | None = None
    framework: str | None = None
    model: str | None = None
    precision: str | None = None
    parameters: float | None = None
    gradient_bytes: float | None = None
    samples_per_epoch: int | None = None
    format: str | None = None
    column: Sequence[str] = ()
    unit: str | None = None
    rows: Sequence[str] = ()
    factor: Sequence[str] = ()
    level: Sequence[str] = ()
    names: str | None = None
    time: str | None = None
    warmup_steps: int | None = None
    accept: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class StatementFile(Keys):
    """A file for ``--statement``. It has the keys of import.yaml, of which only `stated` is required."""

    stated: Statement = key("what is stated once for all measurements")
    reading: Reading = key("how files are read", default_factory=Reading)
    files: tuple[ImportedFile, ...] = key(
        "the files of an earlier import, whose contents are compared", default=()
    )
    accepted: tuple[AcceptedFinding, ...] = key("findings of an earlier import that are accepted", default=())
    ringside: str = key("version of Ringside that wrote the file", default="")


@dataclass(frozen=True)
class ResolvedStatement:
    """The result of merging options and file.

    Attributes:
        statement: What is stated for all measurements.
        reading: How files are read.
        accepted: Codes of findings that do not stop the import.
        earlier: Files of an earlier import, whose contents are compared.
    """

    statement: Statement
    reading: Reading
    accepted: frozenset[str]
    earlier: tuple[ImportedFile, ...] = ()


def resolve_statement(options: Options, file: Path | None) -> ResolvedStatement:
    """Return what options and a file state; options take precedence.

    Raises:
        InputError: If one of them is wrong, or neither states source and licence.
    """
    written = parse(StatementFile, load_yaml(file), file) if file else None
    before = written.stated if written else None
    stated: dict[str, Any] = vars(before) if before else {"levels": {}, "models": {}}
    plain = ("source", "licence", "url", "device", "nodes", "devices_per_node", "samples_per_epoch")
    options_given = {name: getattr(options, name) for name in plain if getattr(options, name) is not None}
    for option, name in (
        ("bandwidth", "bandwidth_bytes_s"),
        ("inside_bandwidth", "inside_bandwidth_bytes_s"),
    ):
        if (rate := getattr(options, option)) is not None:
            options_given[name] = rate * GBIT_BYTES
    for name in ("source", "licence"):
        if not (options_given.get(name) or stated.get(name)):
            hint = "figures and reports show it; for your own measurements: --source own --licence none"
            raise InputError("missing-argument", "is missing", file=f"--{name}", hint=hint)
    check_options(options)
    levels = {**stated["levels"], **_stated_levels(options)}
    if file:
        check_levels(stated["levels"], file, "stated.levels.")
    check_levels(levels, Path("--level"))
    models = {**stated["models"], **_stated_size(options, levels)}
    statement = Statement(**{**stated, **options_given, "levels": levels, "models": models})
    reading = _reading(options, written.reading if written else Reading())
    for name in reading.factors:
        parse(CustomName, name, Path("--factor"))
    for name in field_names(reading.names or ""):
        if name not in VALUES:
            parse(CustomName, name, Path("--names"))
    accepted = {*options.accept, *(entry.code for entry in (written.accepted if written else ()))}
    return ResolvedStatement(statement, reading, frozenset(accepted), written.files if written else ())


def _check_name(name: str, names: Collection[str], noun: str, option: str) -> None:
    if name not in names:
        problem = f"there is no {noun} '{name}'"
        raise InputError("unknown-name", problem, file=option, got=name, **alternatives(name, names))


def check_options(options: Options) -> None:
    """Raise InputError if a text option is not one line, or a number option is not above 0."""
    for name in ("source", "licence", "url", "device", *NUMBERS):
        if (value := getattr(options, name)) is None or value == "":
            continue
        flag = f"--{name.replace('_', '-')}"
        if name not in NUMBERS:
            parse(Line, value, Path(flag))
        elif not 0 < value < math.inf:
            raise InputError(
                "out-of-range", "is not allowed", file=flag, got=value, expected="a number above 0"
            )


def check_levels(levels: Mapping[str, Any], file: Path, above: str = "") -> None:
    """Check stated levels, which all runs share.

    Args:
        levels: Level by factor.
        file: The file or option that states them, for errors.
        above: The key of the levels in the file, with a final dot.

    Raises:
        InputError: If a factor is unknown, a level is not one of its factor, or each run has its own level.
    """
    for name, level in levels.items():
        place: dict[str, Any] = {"file": file, "key": f"{above}{name}", "got": name}
        if name not in factor_table():
            problem = f"there is no factor '{name}'"
            raise InputError("unknown-name", problem, **place, **alternatives(name, factor_table()))
        if name in RUN_FACTORS:
            raise InputError("conflicting-keys", "is not stated as a level", **place, hint=RUN_FACTORS[name])
        parse(int if name == "batch_size" else level_type(name), level, file, f"{above}{name}")
        if name == "batch_size" and level < 1:
            raise InputError("out-of-range", "is too small", **{**place, "got": level}, expected="1 or more")


def _stated_levels(options: Options) -> dict[str, Any]:
    """Return the levels that options state."""
    levels: dict[str, Any] = {}
    for name, text in mapping_of(options.level, "--level").items():
        levels[name] = parse_level(factor_table().get(name, {}), text)
    for name, convert in (("framework", to_name), ("model", to_name), ("precision", to_precision)):
        if (text := getattr(options, name)) is not None:
            try:
                levels[name] = convert(text)
            except ValueError as error:
                raise InputError(
                    "bad-value", "is not a level", file=f"--{name}", got=text, expected=str(error)
                ) from None
    return levels


def _stated_size(options: Options, levels: dict[str, Any]) -> dict[str, ModelSize]:
    if options.parameters is None and options.gradient_bytes is None:
        return {}
    if "model" not in levels:
        flag = "--parameters" if options.parameters is not None else "--gradient-bytes"
        raise InputError("missing-argument", "is about a model", file=flag, hint="name it: --model MODEL")
    return {
        str(levels["model"]): ModelSize(parameters=options.parameters, gradient_bytes=options.gradient_bytes)
    }


def _reading(options: Options, before: Reading) -> Reading:
    """Return how files are read; options override a file's statement."""
    columns = mapping_of(options.column, "--column")
    for name in columns.keys() - STEP_COLUMNS.keys():
        _check_name(name, VALUES, "value", "--column")
    changes: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("format", "unit", "names", "time", "warmup_steps")
        if getattr(options, name) is not None
    }
    if (format_name := changes.get("format", before.format)) is not None:
        _check_name(format_name, FORMATS, "format", "--format")
    return replace(
        before,
        **changes,
        columns={**before.columns, **columns},
        rows={**before.rows, **mapping_of(options.rows, "--rows")},
        factors={**before.factors, **mapping_of(options.factor, "--factor")},
    )
