"""Compute the digest of an environment at a site, and its place in the site's cache.

Everything here is a pure function of files in git, of the site's choice (with what was inspected there) and
of the running Python's ABI, so Snakemake may call it while it parses.
"""

import json
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import digest_text
from common.python import python_abi
from declared.environments import CONTAINERS, VENV, Environment, Installed, Realization, read

# Keys of a description that have no effect on a virtual environment.
IMAGE_ONLY_KEYS = ("image", "supported", "dispensable")
LAYOUT = 1  # raise it to rebuild environments none of whose files has changed
LAYOUT_INSTALLED = 2  # the same for installations of sites


def digest(environment: Environment, realization: Realization = VENV) -> str:
    """Return the SHA-256, in hex, of files in git and the site's choices that determine an environment."""
    if installation := environment.installed(realization):
        decisive = _decides_installed(environment, installation)
    elif environment.deployment(realization) == "venv":
        decisive = _decides_venv(environment, realization)
    else:
        decisive = _decides_image(environment, realization)
    common = {"layout": LAYOUT, "name": environment.name, "variant": environment.variant}
    return digest_text(json.dumps({**common, **decisive}, sort_keys=True))


def environment_digest(
    name: str, variant: str = "cpu", realization: Realization = VENV, containers: Path = CONTAINERS
) -> str:
    """Return the digest of the environment with this name; see `digest`."""
    return digest(read(name, variant, containers), realization)


def stamp_of(environment: Environment, cache: str | Path, realization: Realization = VENV) -> Path:
    """Return the path of an environment's environment.json, which exists once the environment is complete."""
    return (
        Path(cache)
        / "environments"
        / environment.name
        / digest(environment, realization)[:12]
        / "environment.json"
    )


def environment_stamp(
    cache: str | Path,
    name: str,
    variant: str = "cpu",
    realization: Realization = VENV,
    containers: Path = CONTAINERS,
) -> Path:
    """Return the stamp of the environment with this name; see `stamp_of`."""
    return stamp_of(read(name, variant, containers), cache, realization)


def parent_stamps(
    cache: str | Path,
    name: str,
    variant: str = "cpu",
    realization: Realization = VENV,
    containers: Path = CONTAINERS,
) -> list[str]:
    """Return the stamp of an environment's parent, in a list that is empty if it has none."""
    parent = read(name, variant, containers).built_over(realization)
    return [str(stamp_of(parent, cache, realization))] if parent else []


def _decides_venv(environment: Environment, realization: Realization) -> dict[str, Any]:
    build_lock = [environment.build_lock] if environment.sources else []
    return {
        "deployment": "venv",
        "abi": realization.abi or python_abi(),
        "description": {
            key: value for key, value in environment.content.items() if key not in IMAGE_ONLY_KEYS
        },
        "files": environment.digests([environment.lock, environment.selftest, *build_lock]),
        "parent": digest(environment.parent, realization) if environment.parent else None,
    }


def _decides_installed(environment: Environment, installation: Installed) -> dict[str, Any]:
    return {
        "deployment": "installed",
        "tested": LAYOUT_INSTALLED,
        **({"setup": installation.setup} if installation.setup else {}),
        **({"content": installation.content} if installation.content else {}),
        "executable": installation.executable,
        "variables": {**environment.variables, **dict(installation.variables)},
        "files": environment.digests([] if environment.for_command else [environment.selftest]),
    }


def _decides_image(environment: Environment, realization: Realization) -> dict[str, Any]:
    from environments.recipe import (  # imported here: spython would slow every start
        copied_files,
        recipe,
    )

    parent = environment.parent
    if brought := environment.brought(realization):
        selftest = environment.digests([environment.selftest])
        return {
            "deployment": "apptainer",
            "brought": brought,
            "variables": environment.variables,
            "files": selftest,
        }
    if environment.origin == "site":
        problem = "nothing here builds it, and the site has it neither installed nor as an image"
        hint = f"say installed.{environment.name} or images.brought.{environment.name} in the site's file"
        raise InputError("not-installed", problem, file=environment.description, hint=hint)
    if parent and parent.brought(realization):
        problem = f"the site brings '{parent.name}', over which nothing can be built"
        hint = f"bring '{environment.name}', too: images.brought.{environment.name} in the site's file"
        raise InputError("not-possible-here", problem, file=environment.description, key="parent", hint=hint)
    return {
        "deployment": "apptainer",
        "recipe": recipe(environment, without_mirror(realization.base)),
        "files": environment.digests(copied_files(environment)),
        "parent": digest(parent, realization) if parent else None,
    }


def without_mirror(base: str) -> str:
    """Return an image's base without the address of a mirror: every mirror has the same Debian."""
    return "debootstrap" if base.startswith("debootstrap:") else base
