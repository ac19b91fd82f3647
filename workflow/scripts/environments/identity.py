"""What an environment becomes at a site: its digest, and where it lies in the site's cache.

Everything here is a pure function of files in git, of the site's choice (and what was found in that) and of the running Python's
ABI, so Snakemake may call it while it parses.
"""

import json
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import digest_text, shown
from common.python import python_abi
from declared.environments import CONTAINERS, VENV, Environment, Installed, Realization, read

NOT_MADE = ("image", "supported", "dispensable")  # keys of a description that say nothing of a virtual environment
LAYOUT = 1  # raise it when environments must be made again although no file of theirs has changed
LAYOUT_INSTALLED = 2  # the same, for what sites have installed


def digest(environment: Environment, realization: Realization = VENV) -> str:
    """SHA-256, in hex, over all that decides what the environment becomes at a site: files in git, and the site's choice."""
    if has := environment.installed(realization):
        decisive = _decides_installed(environment, has)
    elif environment.deployment(realization) == "venv":
        decisive = _decides_venv(environment, realization)
    else:
        decisive = _decides_image(environment, realization)
    common = {"layout": LAYOUT, "name": environment.name, "variant": environment.variant}
    return digest_text(json.dumps({**common, **decisive}, sort_keys=True))


def environment_digest(
    name: str, variant: str = "cpu", realization: Realization = VENV, containers: Path = CONTAINERS
) -> str:
    """SHA-256, in hex, of an environment at a site: a pure function of files in git and of the site's choice."""
    return digest(read(name, variant, containers), realization)


def stamp_of(environment: Environment, cache: str | Path, realization: Realization = VENV) -> Path:
    """The file that says that an environment is whole, and what is in it."""
    return Path(cache) / "environments" / environment.name / digest(environment, realization)[:12] / "environment.json"


def environment_stamp(
    cache: str | Path,
    name: str,
    variant: str = "cpu",
    realization: Realization = VENV,
    containers: Path = CONTAINERS,
) -> Path:
    """The stamp of the environment with this name; see stamp_of."""
    return stamp_of(read(name, variant, containers), cache, realization)


def parent_stamps(
    cache: str | Path,
    name: str,
    variant: str = "cpu",
    realization: Realization = VENV,
    containers: Path = CONTAINERS,
) -> list[str]:
    """The stamp of what an environment is built over, in a list that is empty where there is none."""
    parent = read(name, variant, containers).built_over(realization)
    return [str(stamp_of(parent, cache, realization))] if parent else []


def _decides_venv(environment: Environment, realization: Realization) -> dict[str, Any]:
    build_lock = [environment.build_lock] if environment.sources else []
    return {
        "deployment": "venv",
        "abi": realization.abi or python_abi(),
        "description": {key: value for key, value in environment.content.items() if key not in NOT_MADE},
        "files": environment.digests([environment.lock, environment.selftest, *build_lock]),
        "parent": digest(environment.parent, realization) if environment.parent else None,
    }


def _decides_installed(environment: Environment, has: Installed) -> dict[str, Any]:
    return {
        "deployment": "installed",
        "tested": LAYOUT_INSTALLED,
        **({"setup": has.setup} if has.setup else {}),
        **({"content": has.content} if has.content else {}),
        "executable": has.executable,
        "variables": {**environment.variables, **dict(has.variables)},
        "files": environment.digests([environment.selftest]),
    }


def _decides_image(environment: Environment, realization: Realization) -> dict[str, Any]:
    from environments.recipe import (  # not above: it brings spython, for which every start would wait
        copied_files,
        recipe,
    )

    parent = environment.parent
    if brought := environment.brought(realization):
        selftest = environment.digests([environment.selftest])
        return {"deployment": "apptainer", "brought": brought, "variables": environment.variables, "files": selftest}
    if environment.origin == "site":
        raise InputError(
            "not-installed",
            "nothing here builds it, and the site has it neither installed nor as an image",
            file=shown(environment.description),
            got=environment.name,
            hint=f"say installed.{environment.name} or images.brought.{environment.name} in the site's file",
        )
    if parent and parent.brought(realization):
        raise InputError(
            "not-possible-here",
            f"the site brings '{parent.name}', over which nothing can be built",
            file=shown(environment.description),
            key="parent",
            got=parent.name,
            hint=f"bring '{environment.name}', too: images.brought.{environment.name} in the site's file",
        )
    return {
        "deployment": "apptainer",
        "recipe": recipe(environment, without_mirror(realization.base)),
        "files": environment.digests(copied_files(environment)),
        "parent": digest(parent, realization) if parent else None,
    }


def without_mirror(base: str) -> str:
    """A base as far as it belongs into a digest: the same Debian comes from every mirror."""
    return "debootstrap" if base.startswith("debootstrap:") else base
