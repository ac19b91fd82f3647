"""Make the locks: the exact versions for each `requirements.*.in`, with the SHA-256 of every file.

Locks are valid for Python 3.11 and newer. A package keeps its version while that fits, unless --upgrade is
given.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from common.errors import InputError
from common.files import CHECKOUT, display_path, write_text
from common.options import run_program
from common.shell import capture
from declared.environments import TOOL_VARIANTS, VARIANTS, Environment, lineage, locked, read, tools

OLDEST_PYTHON = "3.11"  # the oldest Python that Snakemake 9 supports
PINNED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", re.MULTILINE)


def pinned_versions(lock: str) -> dict[str, set[str]]:
    """Return the versions of each package in a lock's text: several if they differ between Pythons."""
    versions: dict[str, set[str]] = {}
    for name, version in PINNED.findall(lock):
        versions.setdefault(name, set()).add(version)
    return versions


def check_lock(text: str, file: Path, variant: str | None = None) -> None:
    """Check that a lock names no host, has all hashes, and has the right build of a framework.

    Args:
        text: The text of the lock, with that of its parent's.
        file: The lock, for errors.
        variant: cpu or cuda; None skips the check of the build.

    Raises:
        InputError: If a check fails.
    """
    if "://" in text:
        hint = "a lock must be valid for every registry and mirror"
        raise InputError("host-in-lock", "names a host", file=file, hint=hint)
    for entry in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE):
        if PINNED.match(entry) and "--hash=sha256:" not in entry:
            package = entry.split()[0]
            raise InputError("missing-hash", f"{package} has no hash", file=file, got=package)
    local = sorted(
        f"{name}=={version}"
        for name, versions in pinned_versions(text).items()
        for version in versions
        if "+" in version
    )
    if local:
        hint = "lock versions that registries have"
        raise InputError("local-build", f"{local[0]} is a local build", file=file, got=local[0], hint=hint)
    has_cuda = any(name.startswith("nvidia-") for name in pinned_versions(text))
    if variant == "cuda" and not has_cuda:
        problem = "has no nvidia-* package, so its framework is not the CUDA build"
        raise InputError("wrong-build", problem, file=file, got="cpu")
    if variant == "cpu" and has_cuda:
        problem = "has nvidia-* packages, so its framework is not the CPU build"
        raise InputError("wrong-build", problem, file=file, got="cuda")


def resolve(
    source: Path, lock: Path, upgrade: bool, parents: Sequence[Path] = (), excludes: Sequence[str] = ()
) -> str:
    """Return the text of the lock for `source`.

    The resolver ignores this machine's configuration and uses only the default registry, so that no local
    wheel gets into a lock.

    Args:
        source: The .in file.
        lock: The current lock, whose versions stay if they fit.
        upgrade: Whether to use the newest versions that fit.
        parents: Locks of parents, whose versions are constraints and whose packages are left out.
        excludes: Packages to leave out.

    Raises:
        InputError: If no versions fit together.
    """
    with tempfile.TemporaryDirectory() as scratch:
        draft, excluded = Path(scratch) / "lock.txt", Path(scratch) / "excludes.txt"
        if lock.is_file():
            shutil.copy(lock, draft)
        write_text(excluded, "".join(f"{name}\n" for name in excludes))
        inherited = sorted(
            {name for file in parents for name in pinned_versions(file.read_text(encoding="utf-8"))}
        )
        command = [sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--system-certs", "--quiet"]
        command += [
            "--universal",
            "--python-version",
            OLDEST_PYTHON,
            "--generate-hashes",
            "--no-annotate",
            "--no-header",
        ]
        command += ["--no-emit-index-url", "--excludes", str(excluded), "--output-file", str(draft)]
        command += ["--upgrade"] if upgrade else []
        command += [part for file in parents for part in ("--constraints", str(file))]
        command += [part for name in inherited for part in ("--no-emit-package", name)]
        env = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
        done = capture([*command, str(source)], env=env)
        if done.returncode != 0:
            reason = " ".join(done.stderr.split())
            raise InputError("command-failed", f"cannot be locked: {reason[:600]}", file=source)
        pinned = "".join(
            f"{line}\n" for line in draft.read_text(encoding="utf-8").splitlines() if line[:1] != "#"
        )
    return f"# Made from {source.name} by `make lock`. Do not edit.\n{pinned}"


def lock_environment(environment: Environment, upgrade: bool) -> list[Path]:
    """Write the lock of an environment's variant and the lock of its build tools; return their paths."""
    parents = [environment.parent.lock] if environment.parent else []
    text = resolve(
        environment.lock.with_suffix(".in"), environment.lock, upgrade, parents, environment.lock_excludes
    )
    complete_text = "".join([*(file.read_text(encoding="utf-8") for file in parents), text])
    check_lock(complete_text, environment.lock, environment.variant)
    write_text(environment.lock, text)
    if not environment.sources:
        return [environment.lock]
    text = resolve(environment.build_lock.with_suffix(".in"), environment.build_lock, upgrade)
    check_lock(text, environment.build_lock)
    write_text(environment.build_lock, text)
    return [environment.lock, environment.build_lock]


def lock_controller(upgrade: bool) -> Path:
    """Write the controller's lock, `requirements.txt`, and return its path."""
    lock = CHECKOUT / "requirements.txt"
    text = resolve(CHECKOUT / "requirements.in", lock, upgrade)
    check_lock(text, lock)
    write_text(lock, text)
    return lock


def main(
    *,
    environment: Sequence[str] = (),
    variant: Sequence[Literal["cpu", "cuda"]] = ("cpu", "cuda"),
    upgrade: bool = False,
) -> None:
    """Make the locks of environments.

    Args:
        environment: only these environments; default: all, and the controller
        variant: only these variants; default: both
        upgrade: use the newest versions that fit
    """
    if not environment:
        print(display_path(lock_controller(upgrade)))
    for name in lineage(environment or [*locked(), *tools()]):
        variants = TOOL_VARIANTS if name in tools() else VARIANTS
        for chosen in [candidate for candidate in variants if candidate in variant]:
            for file in lock_environment(read(name, chosen), upgrade):
                print(display_path(file), flush=True)


if __name__ == "__main__":
    sys.exit(run_program(main))
