"""Read and check the description of each framework, framework.yaml."""

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from common.errors import InputError
from common.files import CHECKOUT, load_yaml
from common.keys import Keys, Maybe, ParsedFrom, Rules, Unique, key, load, optional, parse
from declared import environments
from declared.commands import NODE, Command, command_names, load_command
from declared.configuration import unknown_name_error
from declared.factors import as_list, factor_table, level_type
from declared.mesh import PLAIN, axes_of, is_mesh, is_strategy, split_strategy, without_sizes
from models.collectives import ALL_REDUCE

OWN_ALGORITHM: Literal["own"] = "own"  # value of `algorithm`
RANKS = CHECKOUT / "workflow" / "scripts" / "ranks"
FRAMEWORKS = RANKS / "frameworks"
LIBRARIES = RANKS / "libraries"
COMMAND_ADAPTER = RANKS / "command"
REFUSALS = Path(__file__).with_name("refusals.yaml")
JAX_ENVIRONMENT = "jax"  # The environment whose frameworks XLA always compiles.


Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"]
Axis = Literal["pipeline", "data", "sharded", "experts", "tensor"]
Text = Annotated[str, Rules(min_length=1)]
Release = Annotated[str, Rules(pattern=r"^[0-9]+(\.[0-9]+)*\Z")]


@dataclass(frozen=True)
class CommunicationKeys(Keys):
    """The key `communication`: how a library groups gradients into messages."""

    messages: Literal["ends", "buckets", "fusion", "units"] = key(
        "ends: one message of all gradients, after the backward pass; buckets: a message when tensors reach "
        "a limit; fusion: a message of the tensors that are ready when the last message has arrived, up to "
        "a limit; units: parameters of layers that reach a limit are gathered before they are used, and "
        "their gradients reduce-scattered"
    )
    limits_mib: Maybe[
        Annotated[tuple[Annotated[float, Rules(gt=0)], ...], Rules(min_length=2, max_length=2)]
    ] = optional("limits of the first message and of all others, MiB")
    extra: dict[str, Annotated[int, Rules(ge=0)]] = key(
        "number of further messages of a few bytes in each gradient all-reduce, by training loop",
        default_factory=dict,
    )


@dataclass(frozen=True, kw_only=True)
class FrameworkKeys(Keys):
    """The keys of workflow/scripts/ranks/frameworks/NAME/framework.yaml."""

    title: Text = key("title of the framework")
    environment: str = key("a folder of containers/")
    libraries: tuple[str, ...] = key(
        "modules and packages of workflow/scripts/ranks/libraries/ that the adapter imports, directly or "
        "indirectly"
    )
    modules: tuple[str, ...] = key(
        "Python modules that a rank imports first, in this order; timed as import_s"
    )
    oldest_packages: dict[str, Release] = key(
        "oldest versions of packages in software that a site has installed, if newer than those that the "
        "environment supports",
        default_factory=dict,
    )
    distributed: bool = key("false: it trains with one rank at any site")
    mirrored: bool = key("true: a rank has a replica on each of its node's devices", default=False)
    mpi: bool = key(
        "true: its ranks are an MPI program, started by srun --mpi=pmix, or by mpirun on one machine",
        default=False,
    )
    devices: Annotated[tuple[Literal["cpu", "cuda"], ...], Rules(unique=True, min_length=1)] = key(
        "devices that it trains on", default=("cpu", "cuda")
    )
    heterogeneous: bool = key(
        "true: its ranks can train on different shares of a step's samples (factor shares), and on "
        "accelerators and processors together (device hybrid)",
        default=False,
    )
    strategies: bool = key(
        "true: it partitions each layer separately, by a strategy (levels data, found, expert and random of "
        "parallelism)",
        default=False,
    )
    user_models: bool = key("true: it trains user-supplied PyTorch modules (config/models/)", default=False)
    collectives: Unique[tuple[Collective, ...]] = key(
        "collectives that its library offers, so that those which a study's runs send are benchmarked; []: "
        "none",
        default=(ALL_REDUCE,),
    )
    sends: Annotated[tuple[Collective, ...], Rules(unique=True, min_length=1)] = key(
        "collectives that its training sends; all frameworks of the study that support them are benchmarked",
        default=(ALL_REDUCE,),
    )
    communication: Maybe[CommunicationKeys] = optional(
        "how the library groups gradients into messages, for predictions "
        "(workflow/scripts/prediction/message_times.py); default: one message after the backward pass"
    )
    algorithm: Literal["same", "own"] = key(
        "own: it trains by an algorithm of its own, to other weights than the other frameworks; every "
        "comparison with them says so, and has the accuracies",
        default="same",
    )
    baseline: str = key("framework whose single-device runs are the baseline of speed-ups")
    timing_scope: Literal["ranks", "master"] = key(
        "clocks behind epoch_time_s: of all ranks, or of the master alone"
    )
    capabilities: tuple[Annotated[dict[str, Any], Rules(min_length=1)], ...] = key(
        "a cell can be trained if it fits one entry: for every factor that the entry names, the cell's "
        "level is in its list. A factor that the entry does not name has its default, or any level if it has "
        "the trait supported_unless_named or set_by_ringside, or if the framework has the flag that the "
        "trait requires_flag names (config/schemas/factors.schema.yaml)",
        default=({"parallelism": PLAIN},),
        min_length=1,
    )
    meshes: tuple[
        Annotated[
            frozenset[str],
            ParsedFrom(Annotated[tuple[Axis, ...], Rules(unique=True, min_length=1)], frozenset),
        ],
        ...,
    ] = key(
        "axes of meshes (factor parallelism) that it can combine: the axes of a cell have to be among those "
        "of one entry, and the cell has to fit one of the capabilities that name these axes without sizes, "
        "such as data-tensor, or, if none names them, one with parallelism data",
        default=(),
        min_length=1,
    )
    missing_operators: dict[str, list[str]] = key(
        "operators of models that it cannot compute (their kinds or settings, "
        "workflow/scripts/models/graph.py), by device",
        default_factory=dict,
    )
    refusal_reasons: dict[str, Text] = key(
        "why it refuses levels of a factor, by factor, if another reason holds than for other frameworks "
        "(workflow/scripts/declared/refusals.yaml); printed with a refused cell",
        default_factory=dict,
    )
    notes: tuple[Text, ...] = key("notes below every figure that shows its numbers", default=())


@dataclass(frozen=True, kw_only=True)
class Framework(FrameworkKeys):
    """A framework, or a user-supplied command as one.

    Attributes:
        capabilities: Entries that also name each factor that the file leaves at its default.
        has_adapter: Whether its adapter exists.
        command: The command, None for a framework of Ringside.
    """

    name: str
    file: Path
    has_adapter: bool
    capabilities: tuple[dict[str, list[Any]], ...]
    command: Command | None = None

    @property
    def folder(self) -> Path:
        """The folder with its adapter.py."""
        return COMMAND_ADAPTER if self.command else self.file.parent

    def supports(self, levels: Mapping[str, Any]) -> bool:
        """Return whether the framework can train a cell with these levels."""
        return not all(self.unsupported_factors(levels))

    def unsupported_factors(self, levels: Mapping[str, Any]) -> list[list[str]]:
        """Return one list per entry of `capabilities`: the factors with levels that are not in the entry.

        The list of an entry that the cell fits is empty.

        A mesh fits an entry that names its axes without sizes. If no entry does and `meshes` allows these
        axes, it fits an entry that names data. A user-supplied command counts as one entry.
        """
        if self.command:
            return [self.command.unsupported_factors(levels)]
        level = levels["parallelism"]
        accepted = {level}
        if is_strategy(level):
            accepted = {split_strategy(level)[0]}
        elif is_mesh(level):
            accepted.add(without_sizes(level))
            has_own_entry = any(not accepted.isdisjoint(entry["parallelism"]) for entry in self.capabilities)
            if not has_own_entry and any(axes_of(level) <= axes for axes in self.meshes):
                accepted.add(PLAIN)
        return [
            [
                factor
                for factor, possible in entry.items()
                if (
                    accepted.isdisjoint(possible)
                    if factor == "parallelism"
                    else levels[factor] not in possible
                )
            ]
            for entry in self.capabilities
        ]

    @property
    def restricted_factors(self) -> set[str]:
        """The factors with levels that some entry of `capabilities` refuses."""
        return {
            factor
            for entry in self.capabilities
            for factor, levels in entry.items()
            if set(levels) != set(factor_table()[factor].get("enum", ()))
        }


def library_path(name: str) -> Path:
    """Return the folder of a package of ranks/libraries/, or the file of a module."""
    package = LIBRARIES / name
    return package if package.is_dir() else package.with_suffix(".py")


@functools.cache
def framework_names() -> tuple[str, ...]:
    """Return the names of all frameworks of Ringside."""
    return tuple(sorted(path.parent.name for path in FRAMEWORKS.glob("*/framework.yaml")))


@functools.cache
def environment_names() -> tuple[str, ...]:
    """Return the environments of frameworks."""
    return tuple(environments.names())


@functools.cache
def load_framework(name: str) -> Framework:
    """Read and check workflow/scripts/ranks/frameworks/<name>/framework.yaml, or config/commands/<name>.yaml.

    Raises:
        InputError: If it is wrong.
    """
    if name in command_names():
        return _command_framework(load_command(name))
    file = FRAMEWORKS / name / "framework.yaml"
    written = load(FrameworkKeys, file)
    for location, value, choices in (
        ("baseline", written.baseline, framework_names()),
        ("environment", written.environment, environment_names()),
    ):
        if value not in choices:
            raise unknown_name_error(value, file, location, choices)
    for i, library in enumerate(written.libraries):
        if not library_path(library).exists():
            names = sorted({path.stem for path in LIBRARIES.glob("[a-z]*")})
            raise unknown_name_error(library, file, f"libraries.{i}", names)
    table = factor_table()
    for i, entry in enumerate(written.capabilities):
        for factor, levels in entry.items():
            location = f"capabilities.{i}.{factor}"
            if factor not in table:
                raise unknown_name_error(factor, file, location, table)
            for level in as_list(levels):
                parse(level_type(factor), level, file, location)
    has_adapter = (file.parent / "adapter.py").is_file()
    flags = {field for field, value in vars(written).items() if value is True}
    capabilities = tuple(_with_defaults(entry, flags) for entry in written.capabilities)
    fields = vars(written) | {"capabilities": capabilities}
    framework = Framework(name=name, file=file, has_adapter=has_adapter, **fields)
    restricted = framework.restricted_factors
    reasons = {factor: reason for factor, reason in load_yaml(REFUSALS).items() if factor in restricted}
    return replace(framework, refusal_reasons=reasons | written.refusal_reasons)


def _with_defaults(entry: Mapping[str, Any], flags: Collection[str]) -> dict[str, list[Any]]:
    """Return an entry of `capabilities` completed: a factor that it does not name is limited to its default.

    Factors without a default, and those whose traits allow all levels, are left out: they are not limited.

    Args:
        entry: The entry as the file has it.
        flags: Keys of the framework's file that are true.
    """
    return {
        factor: as_list(entry.get(factor, rules.get("default")))
        for factor, rules in factor_table().items()
        if factor in entry
        or (
            "default" in rules
            and not {"supported_unless_named", "set_by_ringside"} & rules.keys()
            and rules.get("requires_flag") not in flags
        )
    }


def _command_framework(command: Command) -> Framework:
    """Return a user-supplied command as a framework.

    Raises:
        InputError: If a framework or an environment has its name, or it names an unknown environment.
    """
    environment = command.environment if isinstance(command.environment, str) else command.name
    if command.name in (*framework_names(), *environment_names()):
        problem = f"{command.name} is a framework or an environment of Ringside"
        hint = "give the file another name"
        raise InputError("reserved-name", problem, file=command.file, got=command.name, hint=hint)
    if environment not in (*environment_names(), command.name):
        raise unknown_name_error(environment, command.file, "environment", environment_names())
    reason = "it has no such placeholder, and its key `supported_levels` does not have this level"
    return Framework(
        name=command.name,
        file=command.file,
        title=command.title or command.name,
        environment=environment,
        libraries=(),
        modules=(),
        distributed=True,
        mirrored=command.once_per == NODE,
        mpi=command.mpi,
        devices=command.devices,
        collectives=(),
        algorithm=OWN_ALGORITHM,
        baseline=command.name,
        timing_scope="master",
        refusal_reasons=dict.fromkeys(factor_table(), reason),
        notes=(
            f"{command.name} is a user-supplied command, and its times are from its log; nobody has "
            "checked that it computes what other frameworks compute.",
        ),
        has_adapter=True,
        capabilities=(),
        command=command,
    )


@functools.cache
def describe_framework(name: str) -> Framework:
    """Return the description of a framework, a command, or a framework of measurements made elsewhere.

    Of a framework of measurements made elsewhere only the name is known, and nobody has checked that it
    trains to the same weights as others.
    """
    if is_registered(name) or name in command_names():
        return load_framework(name)
    return Framework(
        name=name,
        file=Path(),
        title=name,
        environment="",
        libraries=(),
        modules=(),
        distributed=True,
        algorithm=OWN_ALGORITHM,
        timing_scope="ranks",
        baseline=name,
        has_adapter=False,
        capabilities=({"parallelism": [PLAIN]},),
    )


def is_registered(name: str) -> bool:
    """Return whether a framework is one of workflow/scripts/ranks/frameworks/."""
    return name in framework_names()


def has_own_algorithm(name: str) -> bool:
    """Return whether a registered framework trains by an algorithm of its own, to other weights."""
    return is_registered(name) and load_framework(name).algorithm == OWN_ALGORITHM


def framework_notes(name: str) -> tuple[str, ...]:
    """Return the notes below figures that show a framework's numbers."""
    return describe_framework(name).notes


def has_strategies(name: str) -> bool:
    """Return whether a framework partitions each layer by a strategy."""
    return describe_framework(name).strategies
