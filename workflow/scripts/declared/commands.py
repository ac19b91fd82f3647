"""Read and check a user-supplied command, config/commands/NAME.yaml, which a study names as a framework.

The command trains and times itself. Placeholders in braces, such as `{local_batch}`, pass it the levels of a
cell, and its step times are read from its log.
"""

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from common.errors import InputError
from common.keys import Keys, Line, Maybe, Rules, key, load, optional, parse
from declared.configuration import NAME, check_in_checkout, unknown_name_error
from declared.environments import COMMANDS, InstalledKeys, VariableName, check_installed
from declared.factors import (
    CUSTOM,
    as_list,
    factor_names,
    factor_table,
    factors_without_effect_on,
    is_custom,
    level_type,
)
from ranks.command.placeholders import PlaceholderError, names
from training_logs.formats import FORMATS

NODE, RANK = "node", "rank"
REPLICAS, SAMPLES_PER_STEP = "ranks", "local_batch * replicas * sync_every"
EXPRESSIONS = ("replicas", "samples_per_step")  # keys that are expressions, without braces
# Placeholders that are computed from levels, each with the factors that it passes to the command.
DERIVED: dict[str, tuple[str, ...]] = {
    "local_batch": ("batch_size", "batch_scope"),
    "samples_per_step": ("batch_size", "batch_scope", "sync_every"),
    "steps_per_epoch": ("epochs",),
    "steps": ("epochs",),
    "ranks": ("devices_per_node",),
    "replicas": ("devices_per_node",),
    "replicate": (),
    "seed": (),
    "checkout": (),
    "data": ("dataset",),
}
# Placeholders whose values are known when the command starts.
AT_LAUNCH = ("master_addr", "master_port", "node_rank", "hosts", "output")
OF_RANKS = ("rank", "local_rank")  # placeholders that need once_per: rank
PLACEHOLDERS = (*DERIVED, *AT_LAUNCH, *OF_RANKS)  # all placeholders that are not factors
# Factors that study, site and supervisor set, so that a command needs no placeholder for them.
SET_BY_RINGSIDE = tuple(name for name, rules in factor_table().items() if rules.get("set_by_ringside"))

Positive = Annotated[int, Rules(ge=1)]
Word = Annotated[str, Rules(pattern=NAME)]


@dataclass(frozen=True, kw_only=True)
class CommandKeys(Keys):
    """The keys of config/commands/NAME.yaml, a command of your own that a study names as a framework."""

    title: Maybe[Line] = optional("title of the command; default: its name")
    command: str = key(
        "bash command line that trains, run in the checkout: "
        "`torchrun --nproc-per-node {devices_per_node} train.py --batch {local_batch}`. {NAME} is a "
        "placeholder: a factor, a custom factor, or one of "
        f"{', '.join(PLACEHOLDERS)}; also an expression, such as {{ranks / tp}}",
        min_length=1,
    )
    once_per: Literal["node", "rank"] = key(
        "node: it is started once on each node, like torchrun; rank: once for each device, as srun and "
        "mpirun start programs, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set",
        default=NODE,
    )
    mpi: bool = key(
        "true: with once_per rank, it is an MPI program, started by srun --mpi=pmix", default=False
    )
    environment: Annotated[str, Rules(min_length=1)] | InstalledKeys = key(
        "software that it runs in: an environment of Ringside, such as pytorch, or keys of an installed one "
        "(prefix or executable, setup, variables)"
    )
    variables: dict[VariableName, str] = key(
        "further environment variables of the command; values may have placeholders", default_factory=dict
    )
    log: Maybe[str] = optional(
        "file with its step times, below the folder {output}, such as metrics.jsonl or logs/*.log; default: "
        "its output",
        pattern=r"^[^/\n][^\n]*\Z",
    )
    log_format: Word = key("format of the log, such as torchtitan or megatron; docs/how-to/own-command.md")
    replicas: str = key(
        "copies of the model, as an expression of levels and ranks: `ranks / tp`",
        default=REPLICAS,
        min_length=1,
    )
    samples_per_step: str = key(
        "samples behind one optimizer step, as an expression of levels, ranks, replicas and local_batch",
        default=SAMPLES_PER_STEP,
        min_length=1,
    )
    warmup_steps: int = key("steps at the start of the run that do not count in its times", default=0, ge=0)
    files: tuple[str, ...] = key(
        "files that it runs or reads, relative to the checkout; their SHA-256 are part of the keys of its "
        "runs, so that an edited script is measured again",
        default=(),
    )
    supported_levels: dict[str, Any] = key(
        "levels that the command has without an argument, such as {precision: amp}: a level or a list of "
        "levels by factor. A factor with neither a placeholder nor an entry here has its default level",
        default_factory=dict,
    )
    devices: Annotated[tuple[Literal["cpu", "cuda"], ...], Rules(unique=True, min_length=1)] = key(
        "devices that it trains on", default=("cpu", "cuda")
    )
    models: dict[Word, Positive] = key(
        "further models that a study may name, with their numbers of parameters", default_factory=dict
    )
    datasets: dict[Word, Positive] = key(
        "further data sets that a study may name, with the samples of an epoch", default_factory=dict
    )
    packages: tuple[str, ...] = key(
        "packages that tables show with their versions as its library, such as [torch]", default=()
    )


@dataclass(frozen=True, kw_only=True)
class Command(CommandKeys):
    """A user-supplied command.

    Attributes:
        name: The name of its file.
        file: Its file.
        supported_levels: Lists of levels by factor.
        placeholders: The names in the command's arguments, without those in its expressions.
    """

    name: str
    file: Path
    supported_levels: dict[str, list[Any]]
    placeholders: frozenset[str]

    @functools.cached_property
    def passed_factors(self) -> frozenset[str]:
        """The factors, custom ones included, that a placeholder passes to the command."""
        passed = {factor for name in self.placeholders for factor in DERIVED.get(name, ())}
        table = factor_table()
        for name in self.placeholders - set(DERIVED) - set(AT_LAUNCH) - set(OF_RANKS):
            passed.add(name if name in table else f"{CUSTOM}{name}")
        return frozenset(passed | ({"devices_per_node"} if self.once_per == RANK else set()))

    def unsupported_factors(self, levels: Mapping[str, Any]) -> list[str]:
        """Return the factors with levels that neither a placeholder nor `supported_levels` covers."""
        return [
            name
            for name in factor_names(levels)
            if name not in SET_BY_RINGSIDE
            and name not in self.passed_factors
            and not self._has_level(name, levels[name])
        ]

    def _has_level(self, factor: str, level: Any) -> bool:
        if factor in self.supported_levels:
            return level in self.supported_levels[factor]
        if is_custom(factor):
            return True  # If it varies, plan.design refuses the duplicate cells.
        if factor in ("model", "dataset"):
            return level in (self.models if factor == "model" else self.datasets)
        default = factor_table()[factor].get("default")
        return bool(level == default)

    def irrelevant(self, levels: Mapping[str, Any]) -> list[str]:
        """Return the factors without effect on the command. Cells that differ only in them are duplicates."""
        # warmup_epochs is set by Ringside, too, but only decides which epochs count.
        with_effect = {*SET_BY_RINGSIDE}.difference(factors_without_effect_on("time")) | self.passed_factors
        return [name for name in factor_names(levels) if name not in with_effect]

    @property
    def reads_data(self) -> bool:
        """Whether it reads the prepared data set."""
        return "data" in self.placeholders

    def check_placeholders(self, custom_factors: Collection[str]) -> None:
        """Check that each placeholder is a factor or one of Ringside's placeholders.

        Args:
            custom_factors: The study's custom factors, without prefix.

        Raises:
            InputError: If one is not.
        """
        names = [*factor_table(), *DERIVED, *AT_LAUNCH, *custom_factors]
        names += OF_RANKS if self.once_per == RANK else ()
        for place in _places(self):
            for name in sorted(_names_in(self, place, self.file) - set(names)):
                if name in OF_RANKS:
                    problem = f"placeholder {{{name}}} needs once_per: rank"
                    raise InputError("unknown-name", problem, file=self.file, key=place, got=name)
                raise unknown_name_error(name, self.file, place, names)


def _places(command: CommandKeys) -> list[str]:
    """Return the keys of a command that can have placeholders."""
    return ["command", *EXPRESSIONS, "log", *(f"variables.{name}" for name in command.variables)]


def _names_in(command: CommandKeys, place: str, file: Path) -> set[str]:
    """Return the names in the placeholders of a key, such as `variables.NAME`.

    Raises:
        InputError: If a placeholder is not an expression.
    """
    section, _, name = place.partition(".")
    text = command.variables[name] if name else getattr(command, section) or ""
    try:
        return names(f"{{{text}}}" if section in EXPRESSIONS else text)
    except PlaceholderError as error:
        raise InputError("bad-pattern", str(error), file=file, key=place, got=error.placeholder) from None


@functools.cache
def command_names() -> tuple[str, ...]:
    """Return the names of all user-supplied commands."""
    return tuple(sorted(path.stem for path in COMMANDS.glob("*.yaml")))


@functools.cache
def load_command(name: str) -> Command:
    """Read and check config/commands/<name>.yaml.

    Raises:
        InputError: If it is wrong.
    """
    file = COMMANDS / f"{name}.yaml"
    parse(Word, name, file, "its name")
    written = load(CommandKeys, file)
    place: dict[str, Any] = {"file": file}
    if isinstance(written.environment, InstalledKeys):
        check_installed(written.environment, file, "environment")
    if written.mpi and written.once_per != RANK:
        raise InputError("conflicting-keys", "only with once_per: rank", key="mpi", hint="remove it", **place)
    for i, path in enumerate(written.files):
        check_in_checkout(path, file, f"files.{i}")
    for factor, levels in written.supported_levels.items():
        location = f"supported_levels.{factor}"
        if factor not in factor_table():
            raise unknown_name_error(factor, file, location, factor_table())
        for level in as_list(levels):
            parse(level_type(factor), level, file, location)
    if written.log_format not in FORMATS:
        raise unknown_name_error(written.log_format, file, "log_format", FORMATS)
    used = {key: _names_in(written, key, file) for key in _places(written)}
    passed = frozenset(name for key, in_key in used.items() if key not in EXPRESSIONS for name in in_key)
    supported = {factor: as_list(levels) for factor, levels in written.supported_levels.items()}
    fields = vars(written) | {"supported_levels": supported}
    return Command(name=name, file=file, placeholders=passed, **fields)
