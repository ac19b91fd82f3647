"""Compute the digest of an environment at a site, and its path in the site's cache.

Both depend only on files in git, the site's choices, the inspected content of its installations, and the
running Python's ABI, so Snakemake can compute them while it parses.
"""

import json
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import digest_text
from common.python import python_abi
from declared.environments import CONTAINERS, VENV, Environment, Installed, Realization, read

# Keys of a description that have no effect on a virtual environment.
IGNORED_KEYS = ("image", "supported", "dispensable")
LAYOUT = 1  # Raise it to rebuild environments although their files have not changed.
LAYOUT_INSTALLED = 2  # Raise it to test sites' installations again.


def digest(environment: Environment, realization: Realization = VENV) -> str:
    """Return the SHA-256, in hex, of everything that determines an environment at a site."""
    if installation := environment.installed(realization):
        parts = _installation_parts(environment, installation)
    elif environment.deployment(realization) == "venv":
        parts = _venv_parts(environment, realization)
    else:
        parts = _image_parts(environment, realization)
    common = {"layout": LAYOUT, "name": environment.name, "variant": environment.variant}
    return digest_text(json.dumps({**common, **parts}, sort_keys=True))


def environment_digest(
    name: str, variant: str = "cpu", realization: Realization = VENV, containers: Path = CONTAINERS
) -> str:
    """Return the digest of the environment with this name; see `digest`."""
    return digest(read(name, variant, containers), realization)


def stamp_path(environment: Environment, cache: str | Path, realization: Realization = VENV) -> Path:
    """Return the path of environment.json, which exists if the environment is complete."""
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
    """Return the stamp of the environment with this name; see `stamp_path`."""
    return stamp_path(read(name, variant, containers), cache, realization)


def parent_stamps(
    cache: str | Path,
    name: str,
    variant: str = "cpu",
    realization: Realization = VENV,
    containers: Path = CONTAINERS,
) -> list[str]:
    """Return the stamp of an environment's parent, as a list; [] if it has no parent."""
    parent = read(name, variant, containers).built_over(realization)
    return [str(stamp_path(parent, cache, realization))] if parent else []


def _venv_parts(environment: Environment, realization: Realization) -> dict[str, Any]:
    build_lock = [environment.build_lock] if environment.sources else []
    return {
        "deployment": "venv",
        "abi": realization.abi or python_abi(),
        "description": {key: value for key, value in environment.content.items() if key not in IGNORED_KEYS},
        "files": environment.digests([environment.lock, environment.selftest, *build_lock]),
        "parent": digest(environment.parent, realization) if environment.parent else None,
    }


def _installation_parts(environment: Environment, installation: Installed) -> dict[str, Any]:
    return {
        "deployment": "installed",
        "tested": LAYOUT_INSTALLED,
        **({"setup": installation.setup} if installation.setup else {}),
        **({"content": installation.content} if installation.content else {}),
        "executable": installation.executable,
        "variables": {**environment.variables, **dict(installation.variables)},
        "files": environment.digests([] if environment.for_command else [environment.selftest]),
    }


def _image_parts(environment: Environment, realization: Realization) -> dict[str, Any]:
    from environments.recipe import copied_files, recipe  # Importing spython would slow every start.

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
        problem = "Ringside cannot build it, and the site has neither an installation nor an image of it"
        hint = f"set installed.{environment.name} or images.brought.{environment.name} in the site's file"
        raise InputError("not-installed", problem, file=environment.description, hint=hint)
    if parent and parent.brought(realization):
        problem = f"the site provides the image of '{parent.name}', on which nothing can be built"
        hint = f"provide '{environment.name}', too: images.brought.{environment.name} in the site's file"
        raise InputError("not-possible-here", problem, file=environment.description, key="parent", hint=hint)
    return {
        "deployment": "apptainer",
        "recipe": recipe(environment, without_mirror(realization.base)),
        "files": environment.digests(copied_files(environment)),
        "parent": digest(parent, realization) if parent else None,
    }


def without_mirror(base: str) -> str:
    """Return an image's base without the address of a mirror: all mirrors have the same Debian."""
    return "debootstrap" if base.startswith("debootstrap:") else base
