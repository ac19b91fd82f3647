"""What an environment is, read from `containers/<environment>/`, and its digest.

Everything here is a pure function of files in git and of the running Python's ABI, so Snakemake may call it while it
parses.
"""

import json
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import CHECKOUT, digest_file, digest_text, load_yaml, shown
from common.schemas import check

CONTAINERS = CHECKOUT / "containers"
VARIANTS = ("cpu", "cuda")
DEPLOYMENTS = ("venv",)
LAYOUT = 1  # raise it when environments must be made again although no file of theirs has changed


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
    needs: dict[str, str]
    flags: dict[str, str]
    patches: tuple[Patch, ...]


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

    def digest(self, deployment: str = "venv", abi: str | None = None) -> str:
        """SHA-256, in hex, over all that decides what the environment becomes on a Python; the running one by default."""
        if deployment not in DEPLOYMENTS:
            raise InputError(f"deployment '{deployment}' is not one of {', '.join(DEPLOYMENTS)}")
        files = [self.lock, self.selftest, *([self.build_lock] if self.sources else [])]
        for file in files:
            if not file.is_file():
                raise InputError(f"{shown(file)}: no such file; the environment '{self.name}' needs it")
        parts = {
            "layout": LAYOUT,
            "name": self.name,
            "variant": self.variant,
            "deployment": deployment,
            "abi": abi or python_abi(),
            "description": self.content,
            "files": {file.name: digest_file(file) for file in files},
            "parent": self.parent.digest(deployment, abi) if self.parent else None,
        }
        return digest_text(json.dumps(parts, sort_keys=True))


def python_abi() -> str:
    """The running Python's ABI and platform, such as cp311-linux_x86_64."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"cp{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}-{platform}"


def read(
    name: str, variant: str = "cpu", containers: Path = CONTAINERS, _children: tuple[str, ...] = ()
) -> Environment:
    """Read and check `containers/<name>/environment.yaml`, and its parent's. InputError when it is wrong."""
    if variant not in VARIANTS:
        raise InputError(f"variant '{variant}' is not one of {', '.join(VARIANTS)}")
    folder = containers / name
    file = folder / "environment.yaml"
    if not file.is_file():
        raise InputError(f"environment '{name}' is unknown; there are {', '.join(names(containers))}")
    content = load_yaml(file)
    check(content, "environment", file)
    children = (*_children, name)
    if content.get("parent") in children:
        raise InputError(f"{shown(file)}: parent: '{content['parent']}' is laid over '{name}' itself")
    parent = read(content["parent"], variant, containers, children) if "parent" in content else None
    if content.get("sources") and parent is None:
        raise InputError(
            f"{shown(file)}: sources: they are built against a parent's packages, but key 'parent' is missing"
        )
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
        selftest_limit_s=content["selftest_limit_s"],
        content=content,
    )


def names(containers: Path = CONTAINERS) -> list[str]:
    """The environments that have a description, sorted."""
    return sorted(file.parent.name for file in containers.glob("*/environment.yaml"))


def lineage(wanted: Iterable[str], containers: Path = CONTAINERS) -> list[str]:
    """The wanted environments and their parents, each once, parents first."""
    found: dict[str, None] = {}
    for name in wanted:
        chain = []
        environment: Environment | None = read(name, containers=containers)
        while environment:
            chain.append(environment.name)
            environment = environment.parent
        found.update(dict.fromkeys(reversed(chain)))
    return list(found)


def environment_digest(
    name: str,
    variant: str = "cpu",
    deployment: str = "venv",
    abi: str | None = None,
    containers: Path = CONTAINERS,
) -> str:
    """SHA-256, in hex, of an environment: a pure function of files in git and of a Python's ABI (the running one's)."""
    return read(name, variant, containers).digest(deployment, abi)


def environment_stamp(
    cache: str | Path, name: str, variant: str = "cpu", deployment: str = "venv", containers: Path = CONTAINERS
) -> Path:
    """The file that says that an environment is whole, and what is in it."""
    digest = environment_digest(name, variant, deployment, containers=containers)[:12]
    return Path(cache) / "environments" / name / digest / "environment.json"


def parent_stamps(
    cache: str | Path, name: str, variant: str = "cpu", deployment: str = "venv", containers: Path = CONTAINERS
) -> list[str]:
    """The stamp of an environment's parent, in a list that is empty where it has none."""
    parent = read(name, variant, containers).parent
    return [str(environment_stamp(cache, parent.name, variant, deployment, containers))] if parent else []


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
