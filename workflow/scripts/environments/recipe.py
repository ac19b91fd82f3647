"""Render the recipe of an image, an Apptainer definition file, from the description of its environment.

    python -m environments.recipe    # rewrites containers/<environment>/recipe.<variant>.def

These files are for reading, and for building by hand in the checkout's folder. The workflow builds from the
same text with the site's base. If the builder binds a folder to /mnt/packages, packages come from there, or
else from the network. Every change of the text changes the digest of the image.
"""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from spython.main.parse.recipe import Recipe
from spython.main.parse.writers import SingularityWriter

from common.files import display_path, write_text
from common.options import run_program
from declared.environments import BASE, IMAGE_ABI, VARIANTS, Environment, Source, names, read
from environments import compiling, two_ranks
from environments.wheels import recorded_sha256

HOME = "/opt/ringside"  # folder of all files that Ringside adds to an image
PACKAGES = "/mnt/packages"
PYTHON = f"{IMAGE_ABI[2]}.{IMAGE_ABI[3:5]}"
VENV = f"{HOME}/venv"
SITE_PACKAGES = f"{VENV}/lib/python{PYTHON}/site-packages"
_SCRATCH = f"{HOME}/build"

_START = """\
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
mkdir -p {scratch}
"""
_PYTHON = """\
apt-get update
apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv
python3 -c 'import sys; sys.exit(sys.version_info[:2] != ({major}, {minor}))' || {{ echo "error: the base \
has no Python {version}, for which the locks are"; exit 1; }}
python3 -m venv {venv}
"""
_INSTALL = """\
from=
[ ! -d {packages} ] || from="--no-index --find-links {packages}"
install() {{
    python=$1
    shift
    "$python" -m pip install --no-input --no-cache-dir --disable-pip-version-check --root-user-action \
ignore \\
        --no-deps --require-hashes --only-binary :all: --no-compile --progress-bar off $from "$@"
}}
"""
_WHEEL = """\
echo '{name}=={version} --hash=sha256:{sha256}' > {scratch}/{name}.txt
install {venv}/bin/python --extra-index-url {index} --requirement {scratch}/{name}.txt
"""
_BROUGHT = """\
export PATH=$PATH:/usr/local/cuda/bin
command -v {program} || {{ echo "error: the base has no {program}; take one with that of the CUDA that the \
lock has"; exit 1; }}
"""
_SOURCE = """\
apt-get update
apt-get install --yes --no-install-recommends {compilers}
python3 -m venv {scratch}/tools
install {scratch}/tools/bin/python --requirement {home}/{build_lock}
echo {site_packages} > {scratch}/tools/lib/python{python}/site-packages/parents.pth
cat > {scratch}/{name}.json <<'END'
{description}
END
echo '{name}=={version} --hash=sha256:{sha256}' > {scratch}/{name}.txt
{scratch}/tools/bin/python -m pip download --no-input --disable-pip-version-check --progress-bar off $from \\
    --no-deps --require-hashes --no-build-isolation --no-binary :all: --dest {scratch} --requirement \
{scratch}/{name}.txt
{scratch}/tools/bin/python {home}/compiling.py {scratch}/{name}.json {scratch}/{name}-{version}.tar.gz \
--parent {site_packages} --out {scratch}/wheels
{venv}/bin/python -m pip install --no-input --disable-pip-version-check --root-user-action ignore --no-index \
--no-deps --no-compile {scratch}/wheels/{name}-*.whl
apt-get purge --yes --auto-remove {compilers}
"""
_SPACK = """\
. /opt/spack/share/spack/setup-env.sh
spack env create --with-view {home}/view {name}
spack --env {name} add {specs}
spack --env {name} install --fail-fast
spack gc --yes-to-all
spack clean --all
"""
_END = """\
{venv}/bin/python -m compileall -q -j 0 {venv}/lib || true  # syntax of newer Pythons
apt-get clean
rm -rf {scratch} /var/lib/apt/lists/*
"""


def copied_files(environment: Environment) -> list[Path]:
    """Return the files that the recipe copies into the image."""
    files = [environment.selftest, Path(two_ranks.__file__)]
    if environment.origin == "locks":
        files.append(environment.lock)
    if environment.sources:
        files += [environment.build_lock, Path(compiling.__file__)]
    return files


def recipe(
    environment: Environment, base: str = BASE, parent: str | None = None, digest: str | None = None
) -> str:
    """Return the definition file of an environment's image.

    Args:
        environment: The environment.
        base: docker://..., debootstrap[:MIRROR] or the path of an image.
        parent: The path of the parent's image; None: its file name after a build by hand.
        digest: The environment's digest at a site, which becomes a label; None: no label.
    """
    image_recipe = Recipe()
    image_recipe.fromHeader = "-"  # SingularityWriter supports only docker, so `_header` replaces its header.
    image_recipe.files = [[display_path(file), f"{HOME}/{file.name}"] for file in copied_files(environment)]
    image_recipe.labels = [[f"ringside.{key}", value] for key, value in _labels(environment, digest).items()]
    image_recipe.install = [
        line if line == "END" else f"    {line}" for line in _post(environment).splitlines()
    ]
    path = f"{HOME}/view/bin" if environment.spack else f"{VENV}/bin"
    image_recipe.environ = [
        f"PATH={path}:$PATH",
        *(f"{key}={shlex.quote(value)}" for key, value in environment.variables.items()),
    ]
    image_recipe.entrypoint = "exec python3"
    image_recipe.test = [
        f"    python3 {HOME}/two_ranks.py {HOME}/selftest.py --limit {environment.selftest_limit_s:g}"
    ]
    body = SingularityWriter({"": image_recipe}).convert().split("Stage: ", 1)[1].lstrip()
    if environment.spack:
        header = _header(environment.spack.base)
    elif environment.parent:
        header = _header(parent or f"{environment.parent.name}.{environment.variant}.sif")
    else:
        header = _header(base)
    return "\n".join([*header, "", *_spaced(body.splitlines())]) + "\n"


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


def _post(environment: Environment) -> str:
    words = {
        "home": HOME, "venv": VENV, "scratch": _SCRATCH, "packages": PACKAGES, "site_packages": SITE_PACKAGES,
        "python": PYTHON, "version": PYTHON, "major": PYTHON.split(".", maxsplit=1)[0],
        "minor": PYTHON.split(".")[1],
    }  # fmt: skip
    if environment.spack:
        specs = " ".join(f"'{spec}'" for spec in (environment.spack.spec, *environment.spack.further))
        return _START.format(**words) + _SPACK.format(**words, name=environment.name, specs=specs)
    parts = [_START, *([] if environment.parent else [_PYTHON]), _INSTALL]
    steps = [part.format(**words) for part in parts]
    steps.append(f"install {VENV}/bin/python --requirement {HOME}/{environment.lock.name}\n")
    for wheel in environment.wheels:
        pinned = {
            "name": wheel.name,
            "version": wheel.version,
            "sha256": recorded_sha256(wheel, environment.description, IMAGE_ABI),
            "index": environment.content["image"]["index"],
        }
        steps.append(_WHEEL.format(**{**words, **pinned}))
    for source in environment.sources:
        steps += [
            _BROUGHT.format(program=program) for program, package in source.needs.items() if package is None
        ]
        steps.append(_SOURCE.format(**{**words, **_source_words(source, environment)}))
    return "".join(steps) + _END.format(**words)


def _source_words(source: Source, environment: Environment) -> dict[str, str]:
    description = {
        "name": source.name,
        "version": source.version,
        "sha256": source.sha256,
        "flags": source.flags,
        "patches": [
            {"file": patch.file, "find": patch.find, "replace": patch.replace} for patch in source.patches
        ],
    }
    return {
        "name": source.name,
        "version": source.version,
        "sha256": source.sha256,
        "compilers": " ".join(sorted({"python3-dev", *filter(None, source.needs.values())})),
        "build_lock": environment.build_lock.name,
        "description": json.dumps(description, indent=2),
    }


def _spaced(lines: Sequence[str]) -> list[str]:
    """Return the lines with a blank line before every section except the first."""
    return [
        part
        for i, line in enumerate(lines)
        for part in (["", line] if i and line.startswith("%") else [line])
    ]


def recipe_files() -> Mapping[Path, str]:
    """Return the texts of all recipes in git, by file."""
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
    """Write the recipes of all environments."""
    for file, text in recipe_files().items():
        write_text(file, text)
        print(display_path(file))


if __name__ == "__main__":
    sys.exit(run_program(main))
