"""An environment as a virtual environment: its own packages, its parent's after them, and the interpreter that runs them."""

import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.files import read_json, shown
from common.python import python_abi
from declared.environments import WHOLE, Environment, Realization
from environments import selftest
from environments.packages import LIST, listed
from environments.steps import (
    Stopwatch,
    compile_bytecode,
    isolated,
    make_venv,
    overlay,
    pip_install,
    site_packages,
)
from environments.wheels import built_wheel, check_needs, install_built, install_recorded, recorded_sha256


def check_machine(environment: Environment, realization: Realization) -> None:
    """InputError when this machine cannot build the environment: no recorded wheel for its Python, no compiler."""
    for wheel in environment.wheels:
        recorded_sha256(wheel, environment.description, python_abi())
    for source in environment.sources:
        check_needs(source)


def record_of_whole(folder: Path) -> dict[str, Any] | None:
    """What a finished folder says of itself; None when it is not finished, or its interpreter is gone."""
    try:
        record: dict[str, Any] = read_json(folder / WHOLE)
        started = subprocess.run(
            [record["python"]["executable"], "-c", ""], check=False, env=isolated(), capture_output=True
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return record if started.returncode == 0 else None


def realize(
    environment: Environment,
    folder: Path,
    parent: Mapping[str, Any] | None,
    cache: Path,
    indexes: Mapping[str, str],
    watch: Stopwatch,
    log: Path,
) -> dict[str, Any]:
    """Make the virtual environment in `folder`/venv and test it. Returns this deployment's part of environment.json."""
    venv = folder / "venv"
    parents = [Path(prefix) for prefix in (parent["prefixes"] if parent else [])]
    wheels: dict[str, dict[str, str]] = {}
    with watch.step("lock"):
        python = make_venv(venv, log)
        overlay(venv, parents)
        pip_install(python, environment.lock, f"installing {shown(environment.lock)}", log)
    for wheel in environment.wheels:
        with watch.step(wheel.name):
            install_recorded(wheel, environment.description, python, indexes, log)
        wheels[wheel.name] = {"sha256": recorded_sha256(wheel, environment.description, python_abi())}
    for source in environment.sources:
        with watch.step(source.name):
            path, sha256 = built_wheel(source, environment, parent or {}, cache, log)
            install_built(path, sha256, python, log)
        wheels[source.name] = {"sha256": sha256, "key": path.parent.name}
    with watch.step("bytecode"):
        compile_bytecode(python, site_packages(venv), log)
    with watch.step("selftest"):
        program = [str(python), str(selftest.DRIVER), str(environment.selftest)]
        limit = ["--limit", f"{environment.selftest_limit_s:g}"]
        tested = selftest.run([*program, *limit], environment.variables, environment.name, log)
    said = subprocess.run(
        [str(python), "-c", LIST], env=isolated(), capture_output=True, text=True, errors="replace", check=True
    ).stdout
    return {
        "python": {"version": platform.python_version(), "abi": python_abi(), "executable": str(python)},
        "image": None,
        "prefixes": [str(venv), *map(str, parents)],
        "packages": listed(said),
        "wheels": wheels,
        "selftest": tested,
    }
