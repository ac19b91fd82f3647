"""What an environment is, and what a site wants of it, read from `containers/<environment>/` and checked."""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from common.errors import InputError
from common.files import CHECKOUT, digest_text, load_yaml, shown
from common.normal_form import digest_source
from common.schemas import check
from common.text import alternatives

CONTAINERS = CHECKOUT / "containers"
VARIANTS = ("cpu", "cuda")
TOOL_VARIANTS = ("cpu",)
DEPLOYMENTS = ("venv", "apptainer")  # how a site wants what locks describe; what it has installed itself is "installed"
WHOLE = "whole.json"  # beside a stamp, which it is a copy of: there once all else is
BASE = "docker://debian:bookworm-slim"  # what images are built on, unless the site has another
IMAGE_ABI = "cp311-linux_x86_64"


@dataclass(frozen=True)
class Wheel:
    """A wheel that a lock cannot hold. `sha256` maps an ABI tag to the file's SHA-256."""

    name: str
    version: str
    index: str
    sha256: dict[str, str]


@dataclass(frozen=True)
class Patch:
    """In `file` of a source, `find` (which stands there once) becomes `replace`."""

    file: str
    find: str
    replace: str
    why: str


@dataclass(frozen=True)
class Source:
    """A source distribution that is changed and built into a wheel of our own, as one variant needs it."""

    name: str
    version: str
    sha256: str
    built_against: tuple[str, ...]
    needs: dict[str, str | None]
    flags: dict[str, str]
    patches: tuple[Patch, ...]


@dataclass(frozen=True)
class Spack:
    """What Spack builds into an image, in Spack's own words: a base that has Spack, the spec of one variant, further packages."""

    base: str
    spec: str
    beside: tuple[str, ...]


@dataclass(frozen=True)
class Installed:
    """What a site has installed itself: its program, or the Python that has it; the variables and the setup lines that it needs.

    `behind`: all setup lines, the site's first. What was found in it: `content`, its SHA-256, and `packages`, name and version of
    each; None and nothing where nobody has looked.
    """

    executable: str
    variables: tuple[tuple[str, str], ...] = ()
    setup: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    content: str | None = None
    packages: tuple[tuple[str, str], ...] = ()

    def looked_at(self, cache: Path, name: str) -> Path:
        """The file that says what was found in it, where it is the environment `name`."""
        asked = [self.executable, self.variables, self.behind]
        return cache / "installed" / f"{name}.{digest_text(json.dumps(asked))[:12]}.json"


@dataclass(frozen=True)
class Realization:
    """How a site wants its environments: the deployment; the base of images; by environment, the images that it brings and
    what it has installed.

    `abi` is the Python that virtual environments are for; None is the running one.
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
    parent: "Environment | None"
    variables: dict[str, str]
    lock_excludes: tuple[str, ...]
    wheels: tuple[Wheel, ...]
    sources: tuple[Source, ...]
    origin: str
    spack: Spack | None
    program: str | None
    supported: dict[str, str]
    dispensable: tuple[str, ...]
    selftest_limit_s: float
    content: dict[str, Any] = field(repr=False)

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
        """venv, apptainer or installed: what no lock describes is an image where the site has not installed it; a tool is none."""
        if self.installed(realization):
            return "installed"
        return {"locks": realization.deployment, "tool": "venv"}.get(self.origin, "apptainer")

    def installed(self, realization: Realization) -> Installed | None:
        """What the site has installed of it, if it has."""
        return dict(realization.installed).get(self.name)

    def available(self, realization: Realization) -> bool:
        """Whether the site can have it: installed, brought, or made here. What no lock describes is made as an image alone."""
        if self.installed(realization) or self.brought(realization):
            return True
        if self.origin in ("locks", "tool"):  # nothing can be laid over what the site has
            return not (self.parent and self.parent.installed(realization))
        return self.origin == "spack" and realization.deployment == "apptainer"

    def brought(self, realization: Realization) -> str | None:
        """The image that the site brings for this environment, if it does: a path or docker://..."""
        return dict(realization.brought).get(self.name) if self.deployment(realization) == "apptainer" else None

    def built_over(self, realization: Realization) -> "Environment | None":
        """The environment that has to be there first: the parent, unless the site has this one."""
        return None if self.brought(realization) or self.installed(realization) else self.parent

    def digests(self, files: Iterable[Path]) -> dict[str, str]:
        """Return the SHA-256 of its files by name, of programs that of what they do. InputError when one is missing."""
        files = list(files)
        for file in files:
            if not file.is_file():
                hint = f"the environment '{self.name}' needs it"
                raise InputError("missing-file", "no such file", file=shown(file), hint=hint)
        return {file.name: digest_source(file) for file in files}


def older(found: str, oldest: str) -> bool:
    """Whether a version is older than another; one that is being worked on (2.6.0a0+nv25.01) counts as what it becomes."""
    with contextlib.suppress(InvalidVersion):
        return Version(found).release < Version(oldest).release
    return False


def is_address(source: str) -> bool:
    """Whether an image comes from a registry or a bootstrap (docker://..., debootstrap), not from a file."""
    return "://" in source or source == "debootstrap"


def read(
    name: str, variant: str = "cpu", containers: Path = CONTAINERS, _children: tuple[str, ...] = ()
) -> Environment:
    """Read and check `containers/<name>/environment.yaml`, and its parent's. InputError when it is wrong."""
    if variant not in VARIANTS:
        raise InputError("not-one-of", f"'{variant}' is unknown", file="variant", got=variant, expected=VARIANTS)
    folder = containers / name
    file = folder / "environment.yaml"
    if not file.is_file():
        known = alternatives(name, _described(containers))
        raise InputError("unknown-name", f"'{name}' is unknown", file="environment", got=name, **known)
    content = load_yaml(file)
    check(content, "environment", file)
    children = (*_children, name)
    if content.get("parent") in children:
        problem = f"'{content['parent']}' is laid over '{name}' itself"
        raise InputError("circular-parents", problem, file=shown(file), key="parent", got=content["parent"])
    parent = read(content["parent"], variant, containers, children) if "parent" in content else None
    if content.get("sources") and parent is None:
        problem = "they are built against a parent's packages, but key 'parent' is missing"
        raise InputError("missing-key", problem, file=shown(file), key="sources")
    image = content.get("image", {})
    origin = "site" if image.get("brought") else "spack" if "spack" in image else "locks"
    if content.get("tool"):
        origin = "tool"
        if variant not in TOOL_VARIANTS or image:
            problem = f"it has one lock, {TOOL_VARIANTS[0]}, and no image"
            raise InputError("conflicting-keys", problem, file=shown(file), key="tool")
    elif origin != "locks" and (extra := sorted({"parent", "wheels", "sources", "lock_excludes"} & set(content))):
        problem = "has no meaning for an image that no lock describes"
        raise InputError("conflicting-keys", problem, file=shown(file), key=extra[0], hint="take it out")
    wheels = [_wheel(entry) for entry in content.get("wheels", []) if variant in entry["variants"]]
    sources = [_source(entry, variant) for entry in content.get("sources", [])]
    return Environment(
        name=name,
        variant=variant,
        folder=folder,
        parent=parent,
        variables={**(parent.variables if parent else {}), **content.get("variables", {})},
        lock_excludes=tuple(content.get("lock_excludes", {}).get(variant, [])),
        wheels=tuple(wheels),
        sources=tuple(sources),
        origin=origin,
        spack=_spack(image["spack"], variant) if origin == "spack" else None,
        program=content.get("program"),
        supported=content.get("supported", {}),
        dispensable=tuple(content.get("dispensable", [])),
        selftest_limit_s=content["selftest_limit_s"],
        content=content,
    )


def _described(containers: Path) -> list[str]:
    return sorted(file.parent.name for file in containers.glob("*/environment.yaml"))


def names(containers: Path = CONTAINERS) -> list[str]:
    """The environments of frameworks, sorted."""
    return [name for name in _described(containers) if read(name, containers=containers).origin != "tool"]


def locked(containers: Path = CONTAINERS) -> list[str]:
    """The environments of frameworks that locks describe, sorted: those that can be virtual environments."""
    return [name for name in names(containers) if read(name, containers=containers).origin == "locks"]


def tools(containers: Path = CONTAINERS) -> list[str]:
    """The environments of tools, sorted."""
    return [name for name in _described(containers) if read(name, containers=containers).origin == "tool"]


def lineage(wanted: Iterable[str], containers: Path = CONTAINERS, realization: Realization = VENV) -> list[str]:
    """The wanted environments and the parents over which they are built, each once, parents first."""
    found: dict[str, None] = {}
    for name in wanted:
        chain = []
        environment: Environment | None = read(name, containers=containers)
        while environment:
            chain.append(environment.name)
            environment = environment.built_over(realization)
        found.update(dict.fromkeys(reversed(chain)))
    return list(found)


def _wheel(entry: dict[str, Any]) -> Wheel:
    return Wheel(entry["name"], entry["version"], entry["index"], entry["sha256"])


def _source(entry: dict[str, Any], variant: str) -> Source:
    needs, flags = entry["needs"], entry["flags"]
    return Source(
        name=entry["name"],
        version=entry["version"],
        sha256=entry["sha256"],
        built_against=tuple(entry["built_against"]),
        needs={**needs["common"], **needs.get(variant, {})},
        flags={**flags["common"], **flags.get(variant, {})},
        patches=tuple(Patch(**patch) for patch in entry.get("patches", [])),
    )


def _spack(entry: dict[str, Any], variant: str) -> Spack:
    spec = f"{entry['specs']['common']} {entry['specs'][variant]}"
    return Spack(entry["base"], spec, tuple(entry.get("beside", [])))
