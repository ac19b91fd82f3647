"""Read and check a command of the user's own, config/commands/NAME.yaml, which a study names as a framework.

The command trains and times itself. A study gives it its levels by placeholders in braces, such as
`{local_batch}`, and reads its step times from its log.
"""

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from common.errors import InputError
from common.written import Keys, Line, Maybe, Rules, key, load, optional, parse
from declared.configuration import NAME, check_in_checkout, unknown_name_error
from declared.environments import COMMANDS, InstalledKeys, VariableName, check_installed
from declared.factors import CUSTOM, as_list, factor_names, factor_table, is_custom, level_type
from ranks.command.placeholders import PlaceholderError, names
from training_logs.formats import FORMATS

NODE, RANK = "node", "rank"
REPLICAS, SAMPLES_PER_STEP = "ranks", "local_batch * replicas * sync_every"
EXPRESSIONS = ("replicas", "samples_per_step")  # keys that are expressions, without braces
# Placeholders that are computed from levels, with the factors that each of them carries to the command.
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
OF_RANKS = ("rank", "local_rank")  # with once_per: rank
PLACEHOLDERS = (*DERIVED, *AT_LAUNCH, *OF_RANKS)  # besides the factors
# Factors that a cell may have at any level, because they are those of the study and of the site.
ANY_LEVEL = ("framework", "nodes", "device", "bandwidth", "warmup_epochs")

Positive = Annotated[int, Rules(ge=1)]
Word = Annotated[str, Rules(pattern=NAME)]


@dataclass(frozen=True, kw_only=True)
class CommandKeys(Keys):
    """The keys of config/commands/NAME.yaml, a command of your own that a study names as a framework."""

    title: Maybe[Line] = optional("the command in words; default: its name")
    command: str = key(
        "command line that trains, for bash, run in the checkout: "
        "`torchrun --nproc-per-node {devices_per_node} train.py --batch {local_batch}`. {NAME} is a "
        "placeholder: a factor, a factor of the study's own, or one of "
        f"{', '.join(PLACEHOLDERS)}; also an expression, as {{ranks / tp}}",
        min_length=1,
    )
    once_per: Literal["node", "rank"] = key(
        "node: it is started once on each node, as torchrun is; rank: once for each device, as srun and "
        "mpirun start programs, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set",
        default=NODE,
    )
    mpi: bool = key("true: with once_per rank, it is a program of MPI: srun --mpi=pmix", default=False)
    environment: Annotated[str, Rules(min_length=1)] | InstalledKeys = key(
        "software in which it runs: an environment of Ringside, such as pytorch, or keys of one that is "
        "installed (prefix or executable, setup, variables)"
    )
    variables: dict[VariableName, str] = key(
        "further environment variables of the command, whose values may have placeholders",
        default_factory=dict,
    )
    log: Maybe[str] = optional(
        "file with its step times, below the folder {output}, such as metrics.jsonl or logs/*.log; default: "
        "what it prints",
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
    warmup_steps: int = key("first steps of the run that count in no time", default=0, ge=0)
    files: tuple[str, ...] = key(
        "files that it runs or reads, relative to the checkout: their SHA-256 are part of the keys of its "
        "runs, so that an edited script is measured again",
        default=(),
    )
    does: dict[str, Any] = key(
        "levels of factors that the command has without an argument, such as {precision: amp}: a level or a "
        "list for each; a factor without placeholder that is not named here has its default level",
        default_factory=dict,
    )
    devices: Annotated[tuple[Literal["cpu", "cuda"], ...], Rules(unique=True, min_length=1)] = key(
        "what it trains on", default=("cpu", "cuda")
    )
    models: dict[Word, Positive] = key(
        "models that Ringside does not know, which a study may name, with their numbers of parameters",
        default_factory=dict,
    )
    datasets: dict[Word, Positive] = key(
        "data that Ringside does not know, which a study may name, with the samples of an epoch",
        default_factory=dict,
    )
    packages: tuple[str, ...] = key(
        "packages whose versions tables show as its library, such as [torch]", default=()
    )


@dataclass(frozen=True, kw_only=True)
class Command(CommandKeys):
    """A command of the user's own.

    Attributes:
        name: The name of its file.
        file: Its file.
        does: Lists of levels by factor.
        placeholders: The names in the command's arguments, without those in its expressions.
    """

    name: str
    file: Path
    does: dict[str, list[Any]]
    placeholders: frozenset[str]

    @functools.cached_property
    def carried(self) -> frozenset[str]:
        """The factors that a placeholder carries to the command, with those of the user's own."""
        carried = {factor for name in self.placeholders for factor in DERIVED.get(name, ())}
        table = factor_table()
        for name in self.placeholders - set(DERIVED) - set(AT_LAUNCH) - set(OF_RANKS):
            carried.add(name if name in table else f"{CUSTOM}{name}")
        return frozenset(carried | ({"devices_per_node"} if self.once_per == RANK else set()))

    def unmet(self, levels: Mapping[str, Any]) -> list[str]:
        """Return the factors whose level the command neither gets as an argument nor has by itself."""
        return [
            name
            for name in factor_names(levels)
            if name not in ANY_LEVEL and name not in self.carried and not self._has_level(name, levels[name])
        ]

    def _has_level(self, factor: str, level: Any) -> bool:
        if factor in self.does:
            return level in self.does[factor]
        if is_custom(factor):
            return True  # a duplicate where it varies (plan.design)
        if factor in ("model", "dataset"):
            return level in (self.models if factor == "model" else self.datasets)
        default = factor_table()[factor].get("default")
        return bool(level == default)

    def irrelevant(self, levels: Mapping[str, Any]) -> list[str]:
        """Return the factors without effect on the command: cells that differ only in them train the same."""
        with_effect = {"framework", "nodes", "device", "bandwidth", *self.carried}
        return [name for name in factor_names(levels) if name not in with_effect]

    @property
    def reads_data(self) -> bool:
        """Whether it reads the prepared data set."""
        return "data" in self.placeholders

    def check_placeholders(self, own_factors: Collection[str]) -> None:
        """Check that each name in a placeholder is known.

        Args:
            own_factors: The study's own factors, without prefix.

        Raises:
            InputError: If one is not.
        """
        names = [*factor_table(), *DERIVED, *AT_LAUNCH, *own_factors]
        names += OF_RANKS if self.once_per == RANK else ()
        for place in _places(self):
            for name in sorted(_names_in(self, place, self.file) - set(names)):
                if name in OF_RANKS:
                    problem = f"placeholder {{{name}}} needs once_per: rank"
                    raise InputError("unknown-name", problem, file=self.file, key=place, got=name)
                raise unknown_name_error(name, self.file, place, names)


def _places(command: CommandKeys) -> list[str]:
    """Return the keys of a command that have placeholders."""
    return ["command", *EXPRESSIONS, "log", *(f"variables.{name}" for name in command.variables)]


def _names_in(command: CommandKeys, place: str, file: Path) -> set[str]:
    """Return the names in the placeholders of a key, such as `variables.NAME`.

    Raises:
        InputError: If a placeholder is no expression.
    """
    section, _, name = place.partition(".")
    text = command.variables[name] if name else getattr(command, section) or ""
    try:
        return names(f"{{{text}}}" if section in EXPRESSIONS else text)
    except PlaceholderError as error:
        raise InputError("bad-pattern", str(error), file=file, key=place, got=error.placeholder) from None


@functools.cache
def command_names() -> tuple[str, ...]:
    """Return the names of all commands of the user's own."""
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
        raise InputError(
            "conflicting-keys", "only with once_per: rank", key="mpi", hint="take it out", **place
        )
    for i, path in enumerate(written.files):
        check_in_checkout(path, file, f"files.{i}")
    for factor, levels in written.does.items():
        if factor not in factor_table():
            raise unknown_name_error(factor, file, f"does.{factor}", factor_table())
        for level in as_list(levels):
            parse(level_type(factor), level, file, f"does.{factor}")
    if written.log_format not in FORMATS:
        raise unknown_name_error(written.log_format, file, "log_format", FORMATS)
    used = {key: _names_in(written, key, file) for key in _places(written)}
    carried = frozenset(name for key, names_of in used.items() if key not in EXPRESSIONS for name in names_of)
    does = {factor: as_list(levels) for factor, levels in written.does.items()}
    return Command(name=name, file=file, placeholders=carried, **vars(written) | {"does": does})
