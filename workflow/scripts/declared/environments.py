"""Read and check environments (`containers/<environment>/`) and how a site wants them."""

import contextlib
import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging import version

from common.errors import InputError
from common.files import CHECKOUT, digest_text, load_yaml
from common.normal_form import digest_source
from common.text import alternatives
from common.written import Keys, Maybe, Pairs, Rules, Unique, key, optional, parse

CONTAINERS = CHECKOUT / "containers"
COMMANDS = (
    CHECKOUT / "config" / "commands"
)  # commands of the user's own, some with an environment of their own
VARIANTS = ("cpu", "cuda")
TOOL_VARIANTS = ("cpu",)
# Forms of the software that locks describe; what a site has installed itself is "installed".
DEPLOYMENTS = ("venv", "apptainer")
# A copy of the stamp beside it, written once everything else is in place.
COMPLETE_FILE = "whole.json"
BASE = "docker://debian:bookworm-slim"  # what images are built on, unless the site has another
IMAGE_ABI = "cp311-linux_x86_64"


Name = Annotated[
    str,
    Rules(
        "small letters, digits and single dashes, such as horovod-pytorch", pattern="^[a-z0-9]+(-[a-z0-9]+)*$"
    ),
]
Names = Unique[tuple[Name, ...]]
Flags = dict[Annotated[str, Rules(pattern="^[A-Z][A-Z0-9_]*$")], str]  # environment variables
Sha256 = Annotated[str, Rules("a SHA-256 in 64 hex digits", pattern="^[0-9a-f]{64}$")]
Version = Annotated[
    str,
    Rules(
        "an exact version, such as 2.13.0 or 2.13.0+cpu",
        pattern=r"^[0-9]+(\.[0-9]+)*([a-z]+[0-9]+)?(\+[a-z0-9.]+)?$",
    ),
]
Packages = dict[str, Annotated[str, Rules(pattern=r"^[a-z0-9][a-z0-9+.-]+\Z")] | None]  # by program
SpackWords = Annotated[str, Rules(pattern=r"^[^'\n]+\Z")]
Variant = Literal["cpu", "cuda"]
Text = Annotated[str, Rules(min_length=1)]
VariableName = Annotated[str, Rules(pattern=r"^[A-Z][A-Z0-9_]*\Z")]


@dataclass(frozen=True)
class Wheel(Keys):
    """A wheel that a lock cannot hold."""

    name: Name = key("the package")
    version: Version = key("an exact version, such as 2.13.0 or 2.13.0+cpu")
    variants: Annotated[tuple[Variant, ...], Rules(unique=True, min_length=1)] = key(
        "the variants that have this wheel"
    )
    index: Literal["torch_index"] = key(
        "the site's setting that names an index which has the wheel, if what pip is configured for has not"
    )
    sha256: Annotated[
        dict[Annotated[str, Rules(pattern="^cp[0-9]+t?-[a-z0-9_]+$")], Sha256], Rules(min_length=1)
    ] = key("the wheel's SHA-256 by Python ABI and platform, such as cp311-linux_x86_64")


@dataclass(frozen=True)
class Patch(Keys):
    """A change of a source."""

    file: str = key("a file of the source distribution")
    find: str = key("text that stands exactly once in the file", min_length=1)
    replace: str = key("the text to put in its place")
    why: str = key("the reason in one line")


@dataclass(frozen=True)
class Needs(Keys):
    """The key `needs` of a source: programs, each with the Debian package that has it.

    null: the site's modules or an image's base bring the program.
    """

    common: Packages = key("of all variants")
    cpu: Packages = key("of this variant", default_factory=dict)
    cuda: Packages = key("of this variant", default_factory=dict)


@dataclass(frozen=True)
class BuildFlags(Keys):
    """The key `flags` of a source."""

    common: Flags = key("of all variants")
    cpu: Flags = key("of this variant", default_factory=dict)
    cuda: Flags = key("of this variant", default_factory=dict)


@dataclass(frozen=True)
class SourceKeys(Keys):
    """An entry of the key `sources`."""

    name: Name = key("the package")
    version: Version = key("an exact version, such as 2.13.0 or 2.13.0+cpu")
    sha256: Sha256 = key("the source distribution's SHA-256")
    built_against: Names = key("packages of the parent whose versions the built wheel depends on")
    needs: Needs = key("programs of the machine that the build calls, by variant")
    flags: BuildFlags = key(
        "environment variables of the build, by variant; {parent} stands for the parent's site-packages"
    )
    patches: tuple[Patch, ...] = key("changes of the source, made in order", default=())


@dataclass(frozen=True)
class Specs(Keys):
    """The key `specs` of what Spack builds."""

    common: SpackWords = key("the package with the variants that it always has")
    cpu: SpackWords = key("its variants without accelerators")
    cuda: SpackWords = key("its variants with CUDA")


@dataclass(frozen=True)
class SpackKeys(Keys):
    """The key `spack` of an image."""

    base: str = key("an image with Spack in /opt/spack (docker://...)", pattern=r"^docker://[^ \n]+\Z")
    specs: Specs = key("the specs of Spack, by variant")
    beside: tuple[SpackWords, ...] = key("further packages, such as what ranks import", default=())


@dataclass(frozen=True)
class ImageKeys(Keys):
    """The key `image`."""

    index: Maybe[str] = optional(
        "where a recipe that is built by hand finds the wheels (a URL)",
        pattern=r"^https://[A-Za-z0-9./_~%+-]+\Z",
    )
    brought: bool = key("nothing here builds it: a site brings the image, or has it installed", default=False)
    spack: Maybe[SpackKeys] = optional(
        "what Spack builds, in its own words, on a base that has Spack; no lock describes it"
    )


@dataclass(frozen=True)
class Excluded(Keys):
    """The key `lock_excludes`."""

    cpu: Names = key("of this variant", default=())
    cuda: Names = key("of this variant", default=())


@dataclass(frozen=True)
class EnvironmentKeys(Keys):
    """The keys of containers/NAME/environment.yaml, which has locks and a self-test beside it."""

    selftest_limit_s: float = key("the time after which the self-test has failed, in seconds", gt=0)
    parent: Maybe[Name] = optional("the environment over which this one is laid")
    variables: Flags = key(
        "environment variables that every program in this environment must see; a child has its parent's, "
        "too",
        default_factory=dict,
    )
    lock_excludes: Excluded = key(
        "packages that are left out of a variant's lock although something asks for them",
        default_factory=Excluded,
    )
    wheels: tuple[Wheel, ...] = key(
        "wheels that the lock cannot hold, each installed by its own recorded SHA-256", default=()
    )
    sources: tuple[SourceKeys, ...] = key(
        "source distributions that are changed, built into wheels once, and kept", default=()
    )
    program: Maybe[str] = optional(
        "the program that its ranks start, where that is no Python: its name in an image; absent: ranks run "
        "in its own Python",
        pattern=r"^[A-Za-z0-9._-]+\Z",
    )
    supported: dict[str, Annotated[str, Rules(pattern=r"^[0-9]+(\.[0-9]+)*\Z")]] = key(
        "the oldest versions that ranks can use, where a site has installed them: MODULE: VERSION",
        default_factory=dict,
    )
    dispensable: tuple[Annotated[str, Rules(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")], ...] = key(
        "modules that the oldest of these do without", default=()
    )
    tool: bool = key(
        "it trains nothing: one lock (cpu), a virtual environment of the controller's machine at every site",
        default=False,
    )
    image: ImageKeys = key("what only its image needs", default_factory=ImageKeys)


@dataclass(frozen=True)
class InstalledKeys(Keys):
    """How a site, or a command of the user's own, describes an installed environment."""

    executable: Maybe[str] = optional(
        "absolute path, the same on all nodes, of the Python that imports the framework; for LBANN, of the "
        "program lbann (end a wrapper script with exec, so that signals reach LBANN)",
        pattern=r"^/[^\n]+\Z",
    )
    prefix: Maybe[str] = optional(
        "in place of executable: the folder of a virtual environment or of a conda environment, whose "
        "bin/python it is",
        pattern=r"^/[^\n]+\Z",
    )
    setup: tuple[Text, ...] = key(
        "shell lines that its ranks and its self-test run first, after the site's own, such as: module load "
        "PyTorch/2.6",
        default=(),
    )
    variables: Pairs[VariableName, str] = key(
        "environment variables that it needs, such as LD_LIBRARY_PATH, or PATH with the mpirun of its MPI",
        default=(),
    )


@dataclass(frozen=True)
class Source:
    """A source distribution that is changed and built into a wheel, as one variant needs it."""

    name: str
    version: str
    sha256: str
    built_against: tuple[str, ...]
    needs: dict[str, str | None]
    flags: dict[str, str]
    patches: tuple[Patch, ...]


@dataclass(frozen=True)
class Spack:
    """What Spack builds into an image: a base with Spack, the spec of one variant, and further packages."""

    base: str
    spec: str
    further: tuple[str, ...]


@dataclass(frozen=True)
class Installed:
    """An environment that a site has installed itself.

    Attributes:
        executable: Its program, or the Python that has it.
        variables: The environment variables that it needs.
        setup: The setup lines that it needs.
        behind: All setup lines, the site's first.
        content: SHA-256 of what an inspection found in it, None before the first one.
        packages: Name and version of each package that the inspection found.
    """

    executable: str
    variables: tuple[tuple[str, str], ...] = ()
    setup: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    content: str | None = None
    packages: tuple[tuple[str, str], ...] = ()

    def inspection_path(self, cache: Path, name: str) -> Path:
        """Return the file with the result of the inspection of this environment, named `name`."""
        parts = [self.executable, self.variables, self.behind]
        return cache / "installed" / f"{name}.{digest_text(json.dumps(parts))[:12]}.json"


@dataclass(frozen=True)
class Realization:
    """How a site wants its environments.

    Attributes:
        deployment: venv or apptainer.
        base: The base of images.
        brought: The images that the site provides, by environment.
        abi: The Python that virtual environments are for, None for the running one.
        installed: What the site has installed itself, by environment.
    """

    deployment: str = "venv"
    base: str = BASE
    brought: tuple[tuple[str, str], ...] = ()
    abi: str | None = None
    installed: tuple[tuple[str, Installed], ...] = ()


VENV = Realization()


@dataclass(frozen=True)
class Environment:
    """One variant of one environment, as its files describe it."""

    name: str
    variant: str
    folder: Path
    origin: str
    parent: "Environment | None" = None
    variables: dict[str, str] = field(default_factory=dict)
    lock_excludes: tuple[str, ...] = ()
    wheels: tuple[Wheel, ...] = ()
    sources: tuple[Source, ...] = ()
    spack: Spack | None = None
    program: str | None = None
    supported: dict[str, str] = field(default_factory=dict)
    dispensable: tuple[str, ...] = ()
    selftest_limit_s: float = 0.0
    content: dict[str, Any] = field(repr=False, default_factory=dict)
    for_command: bool = False  # nothing tests it, and what ranks start in it is a command of the user's own

    @property
    def description(self) -> Path:
        """Return the file that describes it."""
        return self.folder / "environment.yaml"

    @property
    def lock(self) -> Path:
        """Return the locked packages of this variant, with hashes."""
        return self.folder / f"requirements.{self.variant}.txt"

    @property
    def build_lock(self) -> Path:
        """Return the locked packages that build the sources, with hashes."""
        return self.folder / "requirements.build.txt"

    @property
    def selftest(self) -> Path:
        """Return the program that two ranks run to test it."""
        return self.folder / "selftest.py"

    def deployment(self, realization: Realization) -> str:
        """Return venv, apptainer or installed.

        An environment without a lock is an image unless the site has installed it; a tool is never an image.
        """
        if self.installed(realization):
            return "installed"
        return {"locks": realization.deployment, "tool": "venv"}.get(self.origin, "apptainer")

    def installed(self, realization: Realization) -> Installed | None:
        """Return what the site has installed of it, or None."""
        return dict(realization.installed).get(self.name)

    def available(self, realization: Realization) -> bool:
        """Return whether the site can have it: installed, brought, or built here.

        An environment without a lock can only be built as an image.
        """
        if self.installed(realization) or self.brought(realization):
            return True
        if self.origin in ("locks", "tool"):  # nothing can be laid over what the site has
            return not (self.parent and self.parent.installed(realization))
        return self.origin == "spack" and realization.deployment == "apptainer"

    def brought(self, realization: Realization) -> str | None:
        """Return the image that the site provides for it, a path or docker://..., or None."""
        return (
            dict(realization.brought).get(self.name) if self.deployment(realization) == "apptainer" else None
        )

    def built_over(self, realization: Realization) -> "Environment | None":
        """Return the environment that has to exist first: the parent, unless the site has this one."""
        return None if self.brought(realization) or self.installed(realization) else self.parent

    def digests(self, files: Iterable[Path]) -> dict[str, str]:
        """Return the SHA-256 of files by name, for programs that of their normal form.

        Raises:
            InputError: If a file is missing.
        """
        files = list(files)
        for file in files:
            if not file.is_file():
                hint = f"the environment '{self.name}' needs it"
                raise InputError("missing-file", "no such file", file=file, hint=hint)
        return {file.name: digest_source(file) for file in files}


def older(installed: str, oldest: str) -> bool:
    """Return whether a version is older than another.

    A development version (2.6.0a0+nv25.01) counts as the release that it precedes.
    """
    with contextlib.suppress(version.InvalidVersion):
        return version.Version(installed).release < version.Version(oldest).release
    return False


def is_address(source: str) -> bool:
    """Return whether an image comes from a registry or a bootstrap, not from a file."""
    return "://" in source or source == "debootstrap"


def read(
    name: str, variant: str = "cpu", containers: Path = CONTAINERS, _children: tuple[str, ...] = ()
) -> Environment:
    """Read and check `containers/<name>/environment.yaml`, and its parent's.

    Raises:
        InputError: If it is wrong.
    """
    if variant not in VARIANTS:
        raise InputError(
            "not-one-of", f"'{variant}' is unknown", file="variant", got=variant, expected=VARIANTS
        )
    folder = containers / name
    file = folder / "environment.yaml"
    if not file.is_file() and name in command_environments():
        return Environment(name, variant, COMMANDS, origin="site", for_command=True)
    if not file.is_file():
        choices = alternatives(name, _described(containers))
        raise InputError("unknown-name", f"'{name}' is unknown", file="environment", got=name, **choices)
    content = load_yaml(file)
    written = parse(EnvironmentKeys, content, file)
    children = (*_children, name)
    if written.parent in children:
        problem = f"'{written.parent}' is laid over '{name}' itself"
        raise InputError("circular-parents", problem, file=file, key="parent", got=written.parent)
    parent = read(written.parent, variant, containers, children) if written.parent else None
    if written.sources and parent is None:
        problem = "they are built against a parent's packages, but key 'parent' is missing"
        raise InputError("missing-key", problem, file=file, key="sources")
    image = written.image
    origin = "site" if image.brought else "spack" if image.spack else "locks"
    if written.tool:
        origin = "tool"
        if variant not in TOOL_VARIANTS or "image" in content:
            problem = f"it has one lock, {TOOL_VARIANTS[0]}, and no image"
            raise InputError("conflicting-keys", problem, file=file, key="tool")
    elif origin != "locks" and (
        extra := sorted({"parent", "wheels", "sources", "lock_excludes"} & set(content))
    ):
        problem = "has no meaning for an image that no lock describes"
        raise InputError("conflicting-keys", problem, file=file, key=extra[0], hint="take it out")
    return Environment(
        name=name,
        variant=variant,
        folder=folder,
        parent=parent,
        variables={**(parent.variables if parent else {}), **written.variables},
        lock_excludes=getattr(written.lock_excludes, variant),
        wheels=tuple(wheel for wheel in written.wheels if variant in wheel.variants),
        sources=tuple(_source(entry, variant) for entry in written.sources),
        origin=origin,
        spack=_spack(image.spack, variant) if image.spack else None,
        program=written.program,
        supported=written.supported,
        dispensable=written.dispensable,
        selftest_limit_s=written.selftest_limit_s,
        content=content,
    )


@functools.cache
def command_environments() -> dict[str, InstalledKeys]:
    """Return the environments that commands of the user's own have for themselves, by the command's name.

    A file that cannot be read has none here; `declared.commands.load_command` says what is wrong.
    """
    environments: dict[str, InstalledKeys] = {}
    for file in sorted(COMMANDS.glob("*.yaml")):
        with contextlib.suppress(InputError):
            content = load_yaml(file)
            if isinstance(content, dict) and isinstance(content.get("environment"), dict):
                keys = parse(InstalledKeys, content["environment"], file, "environment")
                check_installed(keys, file, "environment")
                environments[file.stem] = keys
    return environments


def check_installed(keys: InstalledKeys, file: Path, place: str) -> None:
    """Check that the description of an installation names one place.

    Raises:
        InputError: If it names none, or two.
    """
    if bool(keys.executable) == bool(keys.prefix):
        has_both = bool(keys.prefix)
        raise InputError(
            "conflicting-keys" if has_both else "missing-key",
            "has both executable and prefix" if has_both else "has no executable",
            file=file,
            key=place,
            expected="one: executable: /path/to/python, or prefix: /path/to/environment",
        )


def _described(containers: Path) -> list[str]:
    return sorted(file.parent.name for file in containers.glob("*/environment.yaml"))


def names(containers: Path = CONTAINERS) -> list[str]:
    """Return the environments of frameworks, sorted."""
    return [name for name in _described(containers) if read(name, containers=containers).origin != "tool"]


def locked(containers: Path = CONTAINERS) -> list[str]:
    """Return the environments of frameworks that have locks, sorted: these can be virtual environments."""
    return [name for name in names(containers) if read(name, containers=containers).origin == "locks"]


def tools(containers: Path = CONTAINERS) -> list[str]:
    """Return the environments of tools, sorted."""
    return [name for name in _described(containers) if read(name, containers=containers).origin == "tool"]


def lineage(
    environments: Iterable[str], containers: Path = CONTAINERS, realization: Realization = VENV
) -> list[str]:
    """Return the environments and the parents over which they are built, each once, parents first."""
    ordered: dict[str, None] = {}
    for name in environments:
        chain = []
        environment: Environment | None = read(name, containers=containers)
        while environment:
            chain.append(environment.name)
            environment = environment.built_over(realization)
        ordered.update(dict.fromkeys(reversed(chain)))
    return list(ordered)


def _source(written: SourceKeys, variant: str) -> Source:
    return Source(
        name=written.name,
        version=written.version,
        sha256=written.sha256,
        built_against=written.built_against,
        needs={**written.needs.common, **getattr(written.needs, variant)},
        flags={**written.flags.common, **getattr(written.flags, variant)},
        patches=written.patches,
    )


def _spack(written: SpackKeys, variant: str) -> Spack:
    return Spack(written.base, f"{written.specs.common} {getattr(written.specs, variant)}", written.beside)
