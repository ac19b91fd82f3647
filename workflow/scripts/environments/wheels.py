"""Install wheels that locks cannot contain: recorded wheels, and wheels built from patched sources.

A recorded wheel is installed by the SHA-256 in the environment's description. A built wheel is cached in
`<cache>/wheels/<key>/`, next to `wheel.json` with its SHA-256. That folder is created atomically.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from common.caches import check_trusted
from common.errors import InputError
from common.files import digest_file, digest_text, display_path, read_json, write_json, write_text
from common.python import python_abi
from common.shell import capture
from declared.environments import Environment, Source, Wheel
from environments import bundled, compiling
from environments.record import BuiltEnvironment
from environments.steps import (
    Stopwatch,
    add_parents,
    build_lock,
    make_venv,
    pip_install,
    print_progress,
    run_logged,
    run_pip,
    site_packages,
)


def recorded_sha256(wheel: Wheel, file: Path, abi: str) -> str:
    """Return the recorded SHA-256 of a wheel for an ABI.

    Raises:
        InputError: If none is recorded.
    """
    if abi in wheel.sha256:
        return wheel.sha256[abi]
    recorded_abis = ", ".join(wheel.sha256)
    major_minor = next(iter(wheel.sha256)).removeprefix("cp").split("-")[0]
    python_version = f"{major_minor[0]}.{major_minor[1:]}"
    problem = f"no SHA-256 of {wheel.name} {wheel.version} is recorded for {abi} (only {recorded_abis})"
    hint = (
        f"use Python {python_version} (make PYTHON=python{python_version}) or record the wheel's SHA-256 "
        "there"
    )
    raise InputError("missing-hash", problem, file=file, hint=hint)


def install_recorded(wheel: Wheel, file: Path, python: Path, indexes: Mapping[str, str], log: Path) -> None:
    """Install a wheel by its recorded SHA-256, from pip's configured sources or from the site's index."""

    def install(requirements: Path, task: str, *options: str) -> None:
        pip_install(python, requirements, task, log, *options)

    try_sources(wheel, recorded_sha256(wheel, file, python_abi()), "installing", indexes, log, install)


def try_sources(
    wheel: Wheel, sha256: str, verb: str, indexes: Mapping[str, str], log: Path, action: Callable[..., None]
) -> None:
    """Call `action(requirements, task, *options)` with pip's sources; if it fails, with the site's index.

    Args:
        wheel: The wheel.
        sha256: The SHA-256 that the requirements ask for.
        verb: What the action does, for messages, such as "installing".
        indexes: Addresses of wheel indexes by the name of the site's setting.
        log: The log with pip's output, for messages.
        action: Calls pip.

    Raises:
        InputError: If neither has the wheel.
    """
    task = f"{verb} {wheel.name} {wheel.version}"
    with tempfile.TemporaryDirectory() as scratch:
        requirements = Path(scratch) / "requirements.txt"
        write_text(requirements, f"{wheel.name}=={wheel.version} --hash=sha256:{sha256}\n")
        try:
            action(requirements, task)
        except InputError as first:
            if bundled.has_bundle():  # Then pip has no other source.
                raise
            index = indexes.get(wheel.index)
            if not index:
                problem = (
                    "pip's configured sources do not have it with the recorded SHA-256, "
                    f"and the site's setting '{wheel.index}' is empty"
                )
                hint = f"the full output is in {log}"
                raise InputError("no-index", problem, file=task, hint=hint) from first
            print_progress(f"{task}: not in pip's configured sources; trying {index}")
            action(requirements, f"{task} from {index}", "--index-url", index)


def install_built(path: Path, sha256: str, python: Path, log: Path) -> None:
    """Install a cached wheel, whose SHA-256 pip checks."""
    with tempfile.TemporaryDirectory() as scratch:
        requirements = Path(scratch) / "requirements.txt"
        name = path.name.split("-")[0]
        write_text(requirements, f"{name} @ {path.resolve().as_uri()} --hash=sha256:{sha256}\n")
        pip_install(python, requirements, f"installing {path.name}", log, "--no-index")


def check_needs(source: Source) -> None:
    """Check that this machine has the programs that the build of a source calls.

    Raises:
        InputError: If a program is missing. It names the packages to install.
    """
    missing = {program: package for program, package in source.needs.items() if shutil.which(program) is None}
    if missing:
        packages = " ".join(sorted({package for package in missing.values() if package}))
        ways = [f"on Debian: apt-get install {packages}"] if packages else []
        if None in missing.values():
            ways.append("in the version that the locks have: load a module in the site's setup")
        problem = f"{source.name} {source.version} cannot be built: no {', '.join(missing)} on this machine"
        raise InputError("not-installed", problem, hint=f"install it, {'; '.join(ways)}")


def program_version(program: str) -> str:
    """Return the line of a program's `--version` that has the version."""
    done = capture([program, "--version"], check=True)
    return next((line for line in done.stdout.splitlines() if re.search(r"\d+\.\d+", line)), done.stdout)


def wheel_parts(source: Source, environment: Environment, packages: Mapping[str, str]) -> dict[str, Any]:
    """Return everything that determines a built wheel; its digest is the wheel's key.

    Raises:
        InputError: If the parent has none of the packages that the wheel is built against.
    """
    built_against = {name: packages[name] for name in source.built_against if name in packages}
    if not built_against:
        problem = f"the parent has none of {', '.join(source.built_against)}"
        raise InputError(
            "missing-package", problem, file=environment.description, key="sources.built_against"
        )
    programs = {program: program_version(program) for program in source.needs}
    return {**_portable_parts(source, environment), "built_against": built_against, "programs": programs}


def _portable_parts(source: Source, environment: Environment) -> dict[str, Any]:
    """Return the parts of `wheel_parts` that depend neither on this machine nor on the parent."""
    return {
        "abi": python_abi(),
        "name": source.name,
        "version": source.version,
        "sdist_sha256": source.sha256,
        "flags": source.flags,
        "patches": [[patch.file, patch.find, patch.replace] for patch in source.patches],
        "build_lock_sha256": digest_file(environment.build_lock),
    }


def wheel_key(parts: Mapping[str, Any]) -> str:
    """Return the first 12 hex digits of the SHA-256 of `wheel_parts`."""
    return digest_text(json.dumps(parts, sort_keys=True))[:12]


def read_cached_wheel(folder: Path) -> tuple[Path, str] | None:
    """Return a wheel in <cache>/wheels/<key> and its SHA-256; None if there is none.

    Raises:
        InputError: If wheel.json is broken, the file is not the one that was built, or another user could
            have written it.
    """
    record_file = folder / "wheel.json"
    if not record_file.is_file():
        return None
    check_trusted(record_file, folder.parents[1])
    hint = f"remove {folder} and build again"
    try:
        record = read_json(record_file)
        wheel, sha256 = folder / Path(record["file"]).name, str(record["sha256"])
    except (OSError, ValueError, TypeError, KeyError):
        raise InputError("broken-file", "is broken", file=record_file, hint=hint) from None
    if not wheel.is_file() or digest_file(wheel) != sha256:
        problem = "not the file whose SHA-256 wheel.json records"
        raise InputError("checksum-mismatch", problem, file=wheel, hint=hint)
    return wheel, sha256


def cached_wheels(source: Source, environment: Environment, cache: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each cached wheel of `source`, built with any compiler and parent, and its wheel.json."""
    parts = _portable_parts(source, environment)
    for file in sorted((cache / "wheels").glob("*/wheel.json")):
        if (cached := read_cached_wheel(file.parent)) and parts.items() <= read_json(file).items():
            yield cached[0], file


def built_wheel(
    source: Source, environment: Environment, parent: BuiltEnvironment | None, cache: Path, log: Path
) -> tuple[Path, str]:
    """Return the wheel of `source` and its SHA-256, from the cache or after building it.

    Args:
        source: The source distribution and its patches.
        environment: The environment that needs it.
        parent: The parent's environment.json, with packages to build against and their folders.
        cache: The site's cache.
        log: The file for the output of the build.
    """
    check_needs(source)
    parts = wheel_parts(source, environment, parent["packages"] if parent else {})
    key = wheel_key(parts)
    folder = cache / "wheels" / key
    name = f"{source.name} {source.version} for {', '.join(parts['built_against'])}"
    with build_lock(folder.with_name(f".{key}.lock"), name):
        built = read_cached_wheel(folder)
        if built is None:
            print_progress(f"building {name}, which takes minutes; log: {log}")
            shutil.rmtree(folder, ignore_errors=True)
            staging = folder.with_name(f".{key}.partial")
            shutil.rmtree(staging, ignore_errors=True)
            prefixes = [Path(prefix) for prefix in (parent["prefixes"] if parent else [])]
            seconds = _build(source, environment, prefixes, staging, log)
            (wheel,) = staging.glob("*.whl")
            built = folder / wheel.name, digest_file(wheel)
            write_json(
                staging / "wheel.json", {"file": wheel.name, "sha256": built[1], **parts, "seconds": seconds}
            )
            staging.rename(folder)
    return built


def _build(
    source: Source, environment: Environment, parents: list[Path], staging: Path, log: Path
) -> dict[str, float]:
    """Build the wheel into `staging` and return the seconds of each step."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory(prefix="ringside-") as scratch:
        with watch.step("tools"):
            tools = Path(scratch) / "tools"
            python = make_venv(tools, log)
            pip_install(
                python, environment.build_lock, f"installing {display_path(environment.build_lock)}", log
            )
            add_parents(tools, parents)
        with watch.step("source"):
            archive = sdist(source, python, Path(scratch), log)
            patches = [vars(patch) for patch in source.patches]  # compiling.py knows no classes of ours.
            try:
                tree = compiling.patched_tree(archive, patches, Path(scratch) / "tree")
            except ValueError as error:
                raise InputError("patch-does-not-fit", str(error), file=environment.description) from None
        with watch.step("compile"):
            command: list[str | Path] = [python, *compiling.COMMAND, staging]
            env = compiling.build_variables(source.flags, tools / "bin", site_packages(parents[0]))
            run_logged(command, f"building {source.name} {source.version}", log, env, tree)
    return watch.seconds


def sdist(source: Source, python: Path, scratch: Path, log: Path) -> Path:
    """Fetch the source distribution into `scratch`, and return it; pip checks its SHA-256.

    `python` has the locked build tools, with which pip reads the metadata.
    """
    requirements = scratch / "source.txt"
    write_text(requirements, f"{source.name}=={source.version} --hash=sha256:{source.sha256}\n")
    download = ["download", "--no-deps", "--require-hashes", "--no-build-isolation", "--no-binary", ":all:"]
    folder = scratch / "sdist"
    run_pip(
        python, [*download, "-d", folder, "-r", requirements], f"fetching {source.name} {source.version}", log
    )
    return next(folder.iterdir())
