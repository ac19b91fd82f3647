"""Make the locks: for each `requirements.*.in` exact versions, with the SHA-256 of every file that may be installed.

Locks are valid for Python 3.11 and newer. A package keeps its version while it fits, unless --upgrade is given.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from common.errors import InputError
from common.files import CHECKOUT, shown, write_text
from common.options import run_program
from declared.environments import TOOL_VARIANTS, VARIANTS, Environment, lineage, locked, read, tools

PYTHON = "3.11"  # the oldest that Snakemake 9 runs on
PINNED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", re.MULTILINE)


def pins(lock: str) -> dict[str, set[str]]:
    """The versions of each package that a lock's text has; several where they differ between Pythons."""
    found: dict[str, set[str]] = {}
    for name, version in PINNED.findall(lock):
        found.setdefault(name, set()).add(version)
    return found


def check_lock(text: str, file: Path, variant: str | None = None) -> None:
    """InputError when a lock names a host, has a package without a hash, or holds the wrong build of a framework.

    `text` is the whole of what a variant installs: a child's lock with its parent's.
    """
    if "://" in text:
        hint = "a lock must hold for every registry and mirror"
        raise InputError("host-in-lock", "names a host", file=shown(file), hint=hint)
    for entry in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE):
        if PINNED.match(entry) and "--hash=sha256:" not in entry:
            package = entry.split()[0]
            raise InputError("missing-hash", f"{package} has no hash", file=shown(file), got=package)
    local = sorted(f"{name}=={version}" for name, found in pins(text).items() for version in found if "+" in version)
    if local:
        hint = "locks hold what registries have"
        raise InputError("local-build", f"{local[0]} is a local build", file=shown(file), got=local[0], hint=hint)
    has_cuda = any(name.startswith("nvidia-") for name in pins(text))
    if variant == "cuda" and not has_cuda:
        problem = "has no nvidia-* package, so its framework is not the CUDA build"
        raise InputError("wrong-build", problem, file=shown(file), got="cpu")
    if variant == "cpu" and has_cuda:
        problem = "has nvidia-* packages, so its framework is not the CPU build"
        raise InputError("wrong-build", problem, file=shown(file), got="cuda")


def resolve(source: Path, lock: Path, upgrade: bool, over: Sequence[Path] = (), excludes: Sequence[str] = ()) -> str:
    """The text of the lock for `source`, laid over other locks: their versions hold, their packages are left out.

    The resolver sees the default registry alone, and no configuration: a wheel on this machine must not stand for it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        draft, excluded = Path(scratch) / "lock.txt", Path(scratch) / "excludes.txt"
        if lock.is_file():
            shutil.copy(lock, draft)
        write_text(excluded, "".join(f"{name}\n" for name in excludes))
        below = sorted({name for file in over for name in pins(file.read_text(encoding="utf-8"))})
        command = [sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--system-certs", "--quiet"]
        command += ["--universal", "--python-version", PYTHON, "--generate-hashes", "--no-annotate", "--no-header"]
        command += ["--no-emit-index-url", "--excludes", str(excluded), "--output-file", str(draft)]
        command += ["--upgrade"] if upgrade else []
        command += [part for file in over for part in ("--constraints", str(file))]
        command += [part for name in below for part in ("--no-emit-package", name)]
        env = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
        done = subprocess.run(
            [*command, str(source)], check=False, env=env, capture_output=True, text=True, errors="replace"
        )
        if done.returncode != 0:
            reason = " ".join(done.stderr.split())
            raise InputError("command-failed", f"no lock can be made: {reason[:600]}", file=shown(source))
        pinned = "".join(f"{line}\n" for line in draft.read_text(encoding="utf-8").splitlines() if line[:1] != "#")
    return f"# Made from {source.name} by `make lock`. Do not edit.\n{pinned}"


def lock_environment(environment: Environment, upgrade: bool) -> list[Path]:
    """Make the lock of an environment's variant, and of what builds its sources. Returns the files."""
    over = [environment.parent.lock] if environment.parent else []
    text = resolve(environment.lock.with_suffix(".in"), environment.lock, upgrade, over, environment.lock_excludes)
    whole = "".join([*(file.read_text(encoding="utf-8") for file in over), text])
    check_lock(whole, environment.lock, environment.variant)
    write_text(environment.lock, text)
    if not environment.sources:
        return [environment.lock]
    text = resolve(environment.build_lock.with_suffix(".in"), environment.build_lock, upgrade)
    check_lock(text, environment.build_lock)
    write_text(environment.build_lock, text)
    return [environment.lock, environment.build_lock]


def lock_controller(upgrade: bool) -> Path:
    """Make the controller's lock, `requirements.txt`."""
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
        environment: only these; default: all, and the controller's
        variant: only these variants; default: both
        upgrade: take the newest versions that fit
    """
    if not environment:
        print(shown(lock_controller(upgrade)))
    for name in lineage(environment or [*locked(), *tools()]):
        there = TOOL_VARIANTS if name in tools() else VARIANTS
        for each in [one for one in there if one in variant]:
            for file in lock_environment(read(name, each), upgrade):
                print(shown(file), flush=True)


if __name__ == "__main__":
    sys.exit(run_program(main))
