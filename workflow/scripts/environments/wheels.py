"""Install wheels that no lock can hold: recorded ones by their SHA-256, and ones built from patched sources.

A built wheel is cached in `<cache>/wheels/<key>/` next to `wheel.json`, which has its SHA-256. The folder
appears whole or not at all.
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
    build_lock,
    call,
    make_venv,
    overlay,
    pip,
    pip_install,
    print_progress,
    site_packages,
)


def recorded_sha256(wheel: Wheel, file: Path, abi: str) -> str:
    """Return the SHA-256 that is recorded for a wheel and an ABI.

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
    """Install a wheel by its recorded SHA-256: from pip's configured sources, else from the site's index."""

    def install(requirements: Path, task: str, *options: str) -> None:
        pip_install(python, requirements, task, log, *options)

    from_index(wheel, recorded_sha256(wheel, file, python_abi()), "installing", indexes, log, install)


def from_index(
    wheel: Wheel, sha256: str, doing: str, indexes: Mapping[str, str], log: Path, run_pip: Callable[..., None]
) -> None:
    """Call `run_pip(requirements, task, *options)` with pip's configured sources, else with the site's index.

    Raises:
        InputError: If neither has the wheel.
    """
    task = f"{doing} {wheel.name} {wheel.version}"
    with tempfile.TemporaryDirectory() as scratch:
        requirements = Path(scratch) / "requirements.txt"
        write_text(requirements, f"{wheel.name}=={wheel.version} --hash=sha256:{sha256}\n")
        try:
            run_pip(requirements, task)
        except InputError as first:
            if bundled.has_bundle():  # pip has no other source then
                raise
            index = indexes.get(wheel.index)
            if not index:
                problem = (
                    "nothing that pip is configured for has it with the recorded SHA-256, "
                    f"and the site's setting '{wheel.index}' is empty"
                )
                hint = f"the full output is in {log}"
                raise InputError("no-index", problem, file=task, hint=hint) from first
            print_progress(f"{task}: pip's configured sources have none; trying {index}")
            run_pip(requirements, f"{task} from {index}", "--index-url", index)


def install_built(path: Path, sha256: str, python: Path, log: Path) -> None:
    """Install a cached wheel, bound to its SHA-256."""
    with tempfile.TemporaryDirectory() as scratch:
        requirements = Path(scratch) / "requirements.txt"
        name = path.name.split("-")[0]
        write_text(requirements, f"{name} @ {path.resolve().as_uri()} --hash=sha256:{sha256}\n")
        pip_install(python, requirements, f"installing {path.name}", log, "--no-index")


def check_needs(source: Source) -> None:
    """Check that this machine has the programs that the build of a source calls.

    Raises:
        InputError: If one is missing; it names the packages that have them.
    """
    missing = {program: package for program, package in source.needs.items() if shutil.which(program) is None}
    if missing:
        packages = " ".join(sorted({package for package in missing.values() if package}))
        ways = [f"on Debian: apt-get install {packages}"] if packages else []
        if None in missing.values():
            ways.append("of the version that the locks have, by a module in the site's setup")
        problem = f"{source.name} {source.version} cannot be built: no {', '.join(missing)} on this machine"
        raise InputError("not-installed", problem, hint=f"install it, {'; '.join(ways)}")


def program_version(program: str) -> str:
    """Return the line with the version from a program's `--version`."""
    done = capture([program, "--version"], check=True)
    return next((line for line in done.stdout.splitlines() if re.search(r"\d+\.\d+", line)), done.stdout)


def wheel_parts(source: Source, environment: Environment, packages: Mapping[str, str]) -> dict[str, Any]:
    """Return all that determines a built wheel; the digest of it is the wheel's key."""
    against = {name: packages[name] for name in source.built_against if name in packages}
    if not against:
        problem = f"the parent has none of {', '.join(source.built_against)}"
        raise InputError(
            "missing-package", problem, file=environment.description, key="sources.built_against"
        )
    programs = {program: program_version(program) for program in source.needs}
    return {**_own_parts(source, environment), "built_against": against, "programs": programs}


def _own_parts(source: Source, environment: Environment) -> dict[str, Any]:
    """Return what determines a built wheel on any machine."""
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
        InputError: If the file is not the one that was built, or another user could have written it.
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
    """Yield each cached wheel of `source`, with its wheel.json, of any compiler and parent."""
    parts = _own_parts(source, environment)
    for file in sorted((cache / "wheels").glob("*/wheel.json")):
        if (cached := read_cached_wheel(file.parent)) and parts.items() <= read_json(file).items():
            yield cached[0], file


def built_wheel(
    source: Source, environment: Environment, parent: BuiltEnvironment | None, cache: Path, log: Path
) -> tuple[Path, str]:
    """Return the wheel of `source` and its SHA-256, from the cache or built now.

    Args:
        source: The source distribution and its patches.
        environment: The environment that needs it.
        parent: The parent's environment.json, if it has one: packages to build against, and their folders.
        cache: The site's cache.
        log: Where the output of the build goes.
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
            overlay(tools, parents)
        with watch.step("source"):
            archive = sdist(source, python, Path(scratch), log)
            patches = [vars(patch) for patch in source.patches]
            try:
                tree = compiling.patched_tree(archive, patches, Path(scratch) / "tree")
            except ValueError as error:
                raise InputError("patch-does-not-fit", str(error), file=environment.description) from None
        with watch.step("compile"):
            command: list[str | Path] = [python, *compiling.COMMAND, staging]
            env = compiling.build_variables(source.flags, tools / "bin", site_packages(parents[0]))
            call(command, f"building {source.name} {source.version}", log, env, tree)
    return watch.seconds


def sdist(source: Source, python: Path, scratch: Path, log: Path) -> Path:
    """Fetch the source distribution, bound to its SHA-256.

    Pip reads its metadata with the locked tools alone.
    """
    requirements = scratch / "source.txt"
    write_text(requirements, f"{source.name}=={source.version} --hash=sha256:{source.sha256}\n")
    download = ["download", "--no-deps", "--require-hashes", "--no-build-isolation", "--no-binary", ":all:"]
    folder = scratch / "sdist"
    pip(
        python, [*download, "-d", folder, "-r", requirements], f"fetching {source.name} {source.version}", log
    )
    return next(folder.iterdir())
