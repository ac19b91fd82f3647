"""Read and check environments (`containers/<environment>/`), and describe their form at a site."""

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
from common.keys import Keys, Maybe, Pairs, Rules, Unique, key, optional, parse
from common.normal_form import digest_source
from common.text import alternatives

CONTAINERS = CHECKOUT / "containers"
COMMANDS = CHECKOUT / "config" / "commands"  # user-supplied commands, some with an environment of their own
VARIANTS = ("cpu", "cuda")
TOOL_VARIANTS = ("cpu",)
# A copy of the stamp in the same folder, written after everything else.
COMPLETE_FILE = "whole.json"
BASE = "docker://debian:bookworm-slim"  # default base of images
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
# Debian packages by program.
Packages = dict[str, Annotated[str, Rules(pattern=r"^[a-z0-9][a-z0-9+.-]+\Z")] | None]
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
        "setting of the site with the URL of an index that has the wheel, if pip's configured sources have "
        "not"
    )
    sha256: Annotated[
        dict[Annotated[str, Rules(pattern="^cp[0-9]+t?-[a-z0-9_]+$")], Sha256], Rules(min_length=1)
    ] = key("the wheel's SHA-256 by Python ABI and platform, such as cp311-linux_x86_64")


@dataclass(frozen=True)
class Patch(Keys):
    """A change of a source distribution."""

    file: str = key("a file of the source distribution")
    find: str = key("text that occurs exactly once in the file", min_length=1)
    replace: str = key("text that replaces it")
    why: str = key("reason in one line")


@dataclass(frozen=True)
class Needs(Keys):
    """The key `needs` of a source: programs that its build calls, each with the Debian package that has it.

    null: the site's modules or the base of an image provide the program.
    """

    common: Packages = key("for all variants")
    cpu: Packages = key("for this variant", default_factory=dict)
    cuda: Packages = key("for this variant", default_factory=dict)


@dataclass(frozen=True)
class BuildFlags(Keys):
    """The key `flags` of a source."""

    common: Flags = key("for all variants")
    cpu: Flags = key("for this variant", default_factory=dict)
    cuda: Flags = key("for this variant", default_factory=dict)


@dataclass(frozen=True)
class SourceKeys(Keys):
    """An entry of the key `sources`."""

    name: Name = key("the package")
    version: Version = key("an exact version, such as 2.13.0 or 2.13.0+cpu")
    sha256: Sha256 = key("the source distribution's SHA-256")
    built_against: Names = key(
        "packages of the parent that the wheel is built against; it depends on their versions"
    )
    needs: Needs = key("programs of the machine that the build calls, by variant")
    flags: BuildFlags = key(
        "environment variables of the build, by variant; {parent} stands for the parent's site-packages"
    )
    patches: tuple[Patch, ...] = key("changes of the source, made in order", default=())


@dataclass(frozen=True)
class Specs(Keys):
    """The key `specs` of a Spack image: what Spack builds."""

    common: SpackWords = key("the package with the variants that it always has")
    cpu: SpackWords = key("its variants without accelerators")
    cuda: SpackWords = key("its variants with CUDA")


@dataclass(frozen=True)
class SpackKeys(Keys):
    """The key `spack` of an image."""

    base: str = key("an image with Spack in /opt/spack (docker://...)", pattern=r"^docker://[^ \n]+\Z")
    specs: Specs = key("the specs of Spack, by variant")
    beside: tuple[SpackWords, ...] = key("further packages, such as those that ranks import", default=())


@dataclass(frozen=True)
class ImageKeys(Keys):
    """The key `image`."""

    index: Maybe[str] = optional(
        "URL of the index that a recipe built by hand takes wheels from",
        pattern=r"^https://[A-Za-z0-9./_~%+-]+\Z",
    )
    brought: bool = key(
        "Ringside does not build it: a site provides the image, or has the environment installed",
        default=False,
    )
    spack: Maybe[SpackKeys] = optional(
        "specs that Spack builds on a base image with Spack; no lock describes the result"
    )


@dataclass(frozen=True)
class Excluded(Keys):
    """The key `lock_excludes`."""

    cpu: Names = key("for this variant", default=())
    cuda: Names = key("for this variant", default=())


@dataclass(frozen=True)
class EnvironmentKeys(Keys):
    """The keys of containers/NAME/environment.yaml; locks and a self-test are in the same folder."""

    selftest_limit_s: float = key("time limit of the self-test, seconds", gt=0)
    parent: Maybe[Name] = optional("environment that this one is layered over")
    variables: Flags = key(
        "environment variables of every program in this environment, and in environments layered over it",
        default_factory=dict,
    )
    lock_excludes: Excluded = key(
        "packages that a variant's lock omits although other packages require them", default_factory=Excluded
    )
    wheels: tuple[Wheel, ...] = key(
        "wheels that a lock cannot hold, each verified by its own SHA-256", default=()
    )
    sources: tuple[SourceKeys, ...] = key(
        "source distributions that are patched, built into wheels once, and kept", default=()
    )
    program: Maybe[str] = optional(
        "program that its ranks start, if it is not Python: its name in an image; default: the Python of the "
        "environment",
        pattern=r"^[A-Za-z0-9._-]+\Z",
    )
    supported: dict[str, Annotated[str, Rules(pattern=r"^[0-9]+(\.[0-9]+)*\Z")]] = key(
        "oldest versions of modules that ranks can use, for software that a site has installed: MODULE: "
        "VERSION",
        default_factory=dict,
    )
    dispensable: tuple[Annotated[str, Rules(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")], ...] = key(
        "modules that the oldest supported versions do not need", default=()
    )
    tool: bool = key(
        "it is for a tool of the controller: one lock (cpu), a virtual environment on the controller's "
        "machine",
        default=False,
    )
    image: ImageKeys = key("settings of its image", default_factory=ImageKeys)


@dataclass(frozen=True)
class InstalledKeys(Keys):
    """Keys by which a site or a user-supplied command describes an installed environment."""

    executable: Maybe[str] = optional(
        "absolute path, the same on all nodes, of the Python that imports the framework; for LBANN, of the "
        "program lbann (end a wrapper script with exec, so that signals reach LBANN)",
        pattern=r"^/[^\n]+\Z",
    )
    prefix: Maybe[str] = optional(
        "instead of executable: folder of a virtual or conda environment; its bin/python is the executable",
        pattern=r"^/[^\n]+\Z",
    )
    setup: tuple[Text, ...] = key(
        "shell lines that run before its ranks and its self-test, after the site's setup, such as: module "
        "load PyTorch/2.6",
        default=(),
    )
    variables: Pairs[VariableName, str] = key(
        "environment variables that it needs, such as LD_LIBRARY_PATH, or PATH with its mpirun", default=()
    )


@dataclass(frozen=True)
class Source:
    """A source distribution that is patched and built into a wheel, for one variant."""

    name: str
    version: str
    sha256: str
    built_against: tuple[str, ...]
    needs: dict[str, str | None]
    flags: dict[str, str]
    patches: tuple[Patch, ...]


@dataclass(frozen=True)
class Spack:
    """A Spack image: its base, the spec of one variant, and further packages."""

    base: str
    spec: str
    further: tuple[str, ...]


@dataclass(frozen=True)
class Installed:
    """An environment that a site has installed.

    Attributes:
        executable: Its program, or its Python.
        variables: Environment variables that it needs.
        setup: Its own setup lines.
        behind: All setup lines: those of the site, then its own.
        content: SHA-256 of what the last inspection found in it, None before the first one.
        packages: Name and version of each package that the inspection found.
    """

    executable: str
    variables: tuple[tuple[str, str], ...] = ()
    setup: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    content: str | None = None
    packages: tuple[tuple[str, str], ...] = ()

    def inspection_path(self, cache: Path, name: str) -> Path:
        """Return the file with the last inspection of this environment, which is called `name`."""
        parts = [self.executable, self.variables, self.behind]
        return cache / "installed" / f"{name}.{digest_text(json.dumps(parts))[:12]}.json"


@dataclass(frozen=True)
class Realization:
    """The form that a site needs environments in.

    Attributes:
        deployment: venv or apptainer.
        base: Base of images.
        brought: Images that the site provides, by environment.
        abi: ABI of the Python that virtual environments are for, None for the running Python.
        installed: Environments that the site has installed, by name.
    """

    deployment: str = "venv"
    base: str = BASE
    brought: tuple[tuple[str, str], ...] = ()
    abi: str | None = None
    installed: tuple[tuple[str, Installed], ...] = ()


VENV = Realization()


@dataclass(frozen=True)
class Environment:
    """One variant of one environment, as its files describe it.

    Attributes:
        origin: What it is made from: `locks`, `spack`, `site` (a site provides it) or `tool`.
        content: Its environment.yaml, unchecked, which is part of its digest.
        for_command: Whether it is only for a user-supplied command, so that no self-test exists.
    """

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
    for_command: bool = False

    @property
    def description(self) -> Path:
        """The file that describes it."""
        return self.folder / "environment.yaml"

    @property
    def lock(self) -> Path:
        """The locked packages of this variant, with hashes."""
        return self.folder / f"requirements.{self.variant}.txt"

    @property
    def build_lock(self) -> Path:
        """The locked packages that build the sources, with hashes."""
        return self.folder / "requirements.build.txt"

    @property
    def selftest(self) -> Path:
        """The program that two ranks run to test it."""
        return self.folder / "selftest.py"

    def deployment(self, realization: Realization) -> str:
        """Return the form that it has at a site: venv, apptainer or installed.

        An environment without a lock is an image unless the site has installed it; a tool is never an image.
        """
        if self.installed(realization):
            return "installed"
        return {"locks": realization.deployment, "tool": "venv"}.get(self.origin, "apptainer")

    def installed(self, realization: Realization) -> Installed | None:
        """Return the site's installation of it, None if there is none."""
        return dict(realization.installed).get(self.name)

    def available(self, realization: Realization) -> bool:
        """Return whether a site can have it: installed, brought, or built.

        An environment without a lock can only be built as an image.
        """
        if self.installed(realization) or self.brought(realization):
            return True
        if self.origin in ("locks", "tool"):  # Nothing can be layered over an installed parent.
            return not (self.parent and self.parent.installed(realization))
        return self.origin == "spack" and realization.deployment == "apptainer"

    def brought(self, realization: Realization) -> str | None:
        """Return the image that the site provides for it, a path or docker://..., or None."""
        return (
            dict(realization.brought).get(self.name) if self.deployment(realization) == "apptainer" else None
        )

    def built_over(self, realization: Realization) -> "Environment | None":
        """Return the environment to build first: the parent, unless the site has this one itself."""
        return None if self.brought(realization) or self.installed(realization) else self.parent

    def digests(self, files: Iterable[Path]) -> dict[str, str]:
        """Return the SHA-256 of files by name; for source files, the SHA-256 of their normal form.

        Raises:
            InputError: If a file is missing.
        """
        files = list(files)
        for file in files:
            if not file.is_file():
                hint = f"the environment '{self.name}' needs it"
                raise InputError("missing-file", "no such file", file=file, hint=hint)
        return {file.name: digest_source(file) for file in files}


def is_older(installed: str, oldest: str) -> bool:
    """Return whether a version is older than another.

    A development version (2.6.0a0+nv25.01) counts as the release that it precedes.
    """
    with contextlib.suppress(version.InvalidVersion):
        return version.Version(installed).release < version.Version(oldest).release
    return False


def is_address(source: str) -> bool:
    """Return whether an image comes from a registry or a bootstrap instead of a file."""
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
        problem = f"'{written.parent}' is layered over '{name}' itself"
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
        raise InputError("conflicting-keys", problem, file=file, key=extra[0], hint="remove it")
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
    """Return the installed environments that user-supplied commands describe, by name of the command.

    A file that is wrong has none here; `declared.commands.load_command` reports what is wrong.
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
    """Check that the description of an installed environment has either `executable` or `prefix`.

    Raises:
        InputError: If it has neither or both.
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
    """Return the environments with their parents, each once, parents first."""
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
