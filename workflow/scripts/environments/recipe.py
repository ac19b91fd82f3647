"""Render the recipe of an image, an Apptainer definition file, from the description of its environment.

    python -m environments.recipe    # rewrites containers/<environment>/recipe.<variant>.def

Those files are for reading, and for building by hand in the checkout's folder. The workflow builds from the
same text with the site's base. Packages come from the folder /mnt/packages if the builder binds one there,
else from the network.
"""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from common.files import display_path, write_text
from common.options import run_program
from common.templates import render
from declared.environments import BASE, IMAGE_ABI, VARIANTS, Environment, Source, names, read
from environments import compiling, two_ranks
from environments.wheels import recorded_sha256

HOME = "/opt/ringside"  # of all that is ours in an image
PACKAGES = "/mnt/packages"
PYTHON = f"{IMAGE_ABI[2]}.{IMAGE_ABI[3:5]}"
VENV = f"{HOME}/venv"
SITE_PACKAGES = f"{VENV}/lib/python{PYTHON}/site-packages"
SCRATCH = f"{HOME}/build"


def copied_files(environment: Environment) -> list[Path]:
    """Return the files that the recipe copies into the image."""
    own = [environment.selftest, Path(two_ranks.__file__)]
    if environment.origin == "locks":
        own.append(environment.lock)
    if environment.sources:
        own += [environment.build_lock, Path(compiling.__file__)]
    return own


def recipe(
    environment: Environment, base: str = BASE, parent: str | None = None, digest: str | None = None
) -> str:
    """Return the definition file of an environment's image.

    Args:
        environment: The environment.
        base: docker://..., debootstrap[:MIRROR] or the path of an image.
        parent: The path of the parent's image, for an environment that has a parent.
        digest: The environment's digest at a site, which becomes a label.
    """
    origin = base
    if environment.spack:
        origin = environment.spack.base
    elif environment.parent:
        origin = parent or f"{environment.parent.name}.{environment.variant}.sif"
    return render(
        Path(__file__).with_name("recipe.def.jinja"),
        environment=environment,
        header="\n".join(_header(origin)),
        files=[f"{display_path(file)} {HOME}/{file.name}" for file in copied_files(environment)],
        labels=_labels(environment, digest),
        specs=(environment.spack.spec, *environment.spack.further) if environment.spack else (),
        wheels=[
            (wheel, recorded_sha256(wheel, environment.description, IMAGE_ABI))
            for wheel in environment.wheels
        ],
        sources=[(source, *_source_words(source)) for source in environment.sources],
        variables=[f"{key}={shlex.quote(value)}" for key, value in environment.variables.items()],
        home=HOME,
        venv=VENV,
        scratch=SCRATCH,
        packages=PACKAGES,
        site_packages=SITE_PACKAGES,
        python=PYTHON,
    )


def _header(base: str) -> list[str]:
    if base.split(":", maxsplit=1)[0] == "debootstrap":
        mirror = base.partition(":")[2]
        return [
            "Bootstrap: debootstrap",
            "OSVersion: bookworm",
            *([f"MirrorURL: {mirror}"] if mirror else []),
        ]
    agent, address, source = base.partition("://")
    return (
        [f"Bootstrap: {agent}", f"From: {source}"] if address else ["Bootstrap: localimage", f"From: {base}"]
    )


def _labels(environment: Environment, digest: str | None) -> dict[str, str]:
    labels = {"environment": environment.name, "variant": environment.variant}
    labels |= {wheel.name: wheel.version for wheel in environment.wheels}
    labels |= {source.name: source.version for source in environment.sources}
    if environment.origin == "locks":
        labels["lock"] = environment.digests([environment.lock])[environment.lock.name]
    return labels | ({"digest": digest} if digest else {})


def _source_words(source: Source) -> tuple[str, str]:
    """Return the packages that compile a source, and its description for environments.compiling."""
    description = {
        "name": source.name,
        "version": source.version,
        "sha256": source.sha256,
        "flags": source.flags,
        "patches": [
            {"file": patch.file, "find": patch.find, "replace": patch.replace} for patch in source.patches
        ],
    }
    compilers = sorted({"python3-dev", *filter(None, source.needs.values())})
    return " ".join(compilers), json.dumps(description, indent=2)


def recipe_files() -> Mapping[Path, str]:
    """Return the text of every recipe in git, by file."""
    environments = [read(name, variant) for name in names() for variant in VARIANTS]
    return {
        environment.folder
        / f"recipe.{environment.variant}.def": "# Made from environment.yaml by `make recipes`. Do not edit. "
        "By hand, in the checkout's folder: apptainer build "
        f"--fakeroot {environment.name}.{environment.variant}.sif "
        f"{display_path(environment.folder)}/recipe.{environment.variant}.def\n" + recipe(environment)
        for environment in environments
        if environment.origin != "site"
    }


def main() -> None:
    """Write the recipes of all environments again."""
    for file, text in recipe_files().items():
        write_text(file, text)
        print(display_path(file))


if __name__ == "__main__":
    sys.exit(run_program(main))
