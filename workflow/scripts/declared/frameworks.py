"""Read and check the description of each framework, framework.yaml."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from common.errors import InputError
from common.files import CHECKOUT
from common.written import Keys, Maybe, Rules, Unique, Written, key, load, optional, parse
from declared import environments
from declared.commands import NODE, Command, command_names, load_command
from declared.configuration import unknown_name_error
from declared.factors import as_list, factor_table, level_type
from declared.mesh import PLAIN, axes_of, is_mesh, is_strategy, kind_of, without_sizes
from models.collectives import ALL_REDUCE

OWN: Literal["own"] = "own"  # an algorithm
RANKS = CHECKOUT / "workflow" / "scripts" / "ranks"
FRAMEWORKS = RANKS / "frameworks"
LIBRARIES = RANKS / "libraries"
COMMAND_ADAPTER = RANKS / "command"


Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"]
Axis = Literal["pipeline", "data", "sharded", "experts", "tensor"]
Text = Annotated[str, Rules(min_length=1)]
Release = Annotated[str, Rules(pattern=r"^[0-9]+(\.[0-9]+)*\Z")]


@dataclass(frozen=True)
class CommunicationKeys(Keys):
    """The key `communication`: how a library makes messages of gradients."""

    messages: Literal["ends", "buckets", "fusion", "units"] = key(
        "ends: all gradients in one, after the backward pass; buckets: of the first tensors that reach a "
        "limit; fusion: of what is ready when the last has arrived, up to a limit; units: parameters of "
        "layers that reach a limit are gathered before they are used, their gradients reduced to shares"
    )
    limits_mib: Maybe[
        Annotated[tuple[Annotated[float, Rules(gt=0)], ...], Rules(min_length=2, max_length=2)]
    ] = optional("of the first message and of all others, MiB")
    extra: dict[str, Annotated[int, Rules(ge=0)]] = key(
        "messages of a few bytes beside the gradients in each all-reduce, by training loop",
        default_factory=dict,
    )


@dataclass(frozen=True, kw_only=True)
class FrameworkKeys(Keys):
    """The keys of workflow/scripts/ranks/frameworks/NAME/framework.yaml."""

    title: Text = key("the framework in words")
    environment: str = key("a folder of containers/")
    libraries: tuple[str, ...] = key(
        "modules of workflow/scripts/ranks/libraries/ that the adapter uses, and that these use"
    )
    modules: tuple[str, ...] = key("what a rank imports, in this order; timed as import_s")
    needs: dict[str, Release] = key(
        "packages that a site's own software must have for it, with their oldest version, where that is "
        "newer than what the environment supports",
        default_factory=dict,
    )
    distributed: bool = key("false: one rank whatever the site")
    mirrored: bool = key("true: a rank has a replica on each of its node's devices", default=False)
    mpi: bool = key(
        "true: what its ranks start is a program of MPI: srun --mpi=pmix, mpirun on one machine",
        default=False,
    )
    devices: Annotated[tuple[Literal["cpu", "cuda"], ...], Rules(unique=True, min_length=1)] = key(
        "what it trains on", default=("cpu", "cuda")
    )
    heterogeneous: bool = key(
        "true: its ranks may have different shares of a step's samples (factor shares), and may be "
        "accelerators and processors together (device hybrid)",
        default=False,
    )
    strategies: bool = key(
        "true: it divides each layer by itself, as a strategy says (levels data, found, expert and random "
        "of parallelism)",
        default=False,
    )
    own_modules: bool = key(
        "true: it trains PyTorch modules of the user's own (config/models/)", default=False
    )
    collectives: Unique[tuple[Collective, ...]] = key(
        "what its library can be asked for alone, so that it is benchmarked where a study's "
        "strategies send it; []: nothing",
        default=(ALL_REDUCE,),
    )
    sends: Annotated[tuple[Collective, ...], Rules(unique=True, min_length=1)] = key(
        "what its training sends between ranks; every framework of the study that can is benchmarked for it",
        default=(ALL_REDUCE,),
    )
    communication: Maybe[CommunicationKeys] = optional(
        "how the library makes messages of gradients, for predictions "
        "(workflow/scripts/prediction/message_times.py); without it: one message after the backward pass"
    )
    algorithm: Literal["same", "own"] = key(
        "own: it does not train to the same weights as the others, but by an algorithm of its own; all that "
        "shows it beside others says so, with accuracies",
        default="same",
    )
    baseline: str = key("single-device baseline, which speed-ups are relative to")
    timing_scope: Literal["ranks", "master"] = key("whose clocks make epoch_time_s")
    capabilities: tuple[Annotated[dict[str, Any], Rules(min_length=1)], ...] = key(
        "a cell is possible when it fits one entry: for every factor that the entry names, the cell's level "
        "is in its list",
        default=(),
        min_length=1,
    )
    meshes: tuple[
        Annotated[
            frozenset[str], Written(Annotated[tuple[Axis, ...], Rules(unique=True, min_length=1)], frozenset)
        ],
        ...,
    ] = key(
        "the axes of meshes (factor parallelism) that it can combine: a cell is possible where its axes are "
        "among those of one entry, and it fits one of the capabilities that name these axes without sizes, "
        "as data-tensor; or, where none does, one with parallelism data",
        default=(),
        min_length=1,
    )
    without: dict[str, list[str]] = key(
        "operators of models that it cannot compute (their kinds or settings, "
        "workflow/scripts/models/graph.py), by device",
        default_factory=dict,
    )
    why: dict[str, Text] = key(
        "reasons that are printed with a refused cell, by factor", default_factory=dict
    )
    notes: tuple[Text, ...] = key("notes that every figure of its numbers has", default=())


@dataclass(frozen=True, kw_only=True)
class Framework(FrameworkKeys):
    """One framework; ``adapter`` says whether its adapter exists."""

    name: str
    file: Path
    adapter: bool
    capabilities: tuple[dict[str, list[Any]], ...]
    command: Command | None = None  # of the user's own

    @property
    def folder(self) -> Path:
        """The folder with its adapter.py."""
        return COMMAND_ADAPTER if self.command else self.file.parent

    def can(self, levels: Mapping[str, Any]) -> bool:
        """Return whether a cell with these levels fits one of the capabilities."""
        return not all(self.missed(levels))

    def missed(self, levels: Mapping[str, Any]) -> list[list[str]]:
        """Return, for each of the capabilities, the factors whose levels violate it; [] where the cell fits.

        A mesh of ``meshes`` fits where an entry names its axes without sizes; if none does, where an entry
        names data. A command of the user's own has no entry; it lacks what its arguments do not set.
        """
        if self.command:
            return [self.command.unmet(levels)]
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
        if not (LIBRARIES / f"{library}.py").is_file():
            modules = sorted(path.stem for path in LIBRARIES.glob("[a-z]*.py"))
            raise unknown_name_error(library, file, f"libraries.{i}", modules)
    table = factor_table()
    for i, entry in enumerate(written.capabilities):
        for factor, levels in entry.items():
            location = f"capabilities.{i}.{factor}"
            if factor not in table:
                raise unknown_name_error(factor, file, location, table)
            for level in as_list(levels):
                parse(level_type(factor), level, file, location)
    capabilities = tuple(
        {factor: as_list(levels) for factor, levels in entry.items()} for entry in written.capabilities
    )
    adapter = (file.parent / "adapter.py").is_file()
    return Framework(name=name, file=file, adapter=adapter, **vars(written) | {"capabilities": capabilities})


def _command_framework(command: Command) -> Framework:
    """Return a command of the user's own as a framework.

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
    not_told = "it has no such placeholder, and its key `does` does not name this level"
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
        algorithm=OWN,
        baseline=command.name,
        timing_scope="master",
        why=dict.fromkeys(factor_table(), not_told),
        notes=(
            f"{command.name} is a command of the user's own, and its log has the times; nobody has checked "
            "that it computes what others compute.",
        ),
        adapter=True,
        capabilities=(),
        command=command,
    )


@functools.cache
def describe_framework(name: str) -> Framework:
    """Return the description of a framework, of an unregistered one what is known of it.

    A framework is unregistered if it has no folder below workflow/scripts/ranks/frameworks/: one of
    measurements that were made elsewhere, or a command of the user's own, which config/commands/ describes.
    Nothing is known of its library and its messages, and nobody has checked that it trains to the same
    weights as others.
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
        algorithm="own",
        timing_scope="ranks",
        baseline=name,
        adapter=False,
        capabilities=(),
    )


def is_registered(name: str) -> bool:
    """Return whether a framework is one of workflow/scripts/ranks/frameworks/."""
    return name in framework_names()


def trains_alone(name: str) -> bool:
    """Return whether a registered framework trains by its own algorithm, to other weights."""
    return is_registered(name) and load_framework(name).algorithm == OWN


def notes_of(name: str) -> tuple[str, ...]:
    """Return the notes on a framework's numbers, none for an unregistered framework."""
    return describe_framework(name).notes


def has_strategies(name: str) -> bool:
    """Return whether a framework partitions each layer by a strategy; False for an unregistered one."""
    return describe_framework(name).strategies
