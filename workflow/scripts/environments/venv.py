"""Realize an environment as a virtual environment, whose own packages come before those of its parent."""

import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

from common.files import display_path, read_json
from common.python import python_abi
from common.shell import capture
from declared.environments import COMPLETE_FILE, Environment, Realization
from environments import selftest
from environments.packages import LIST_PACKAGES, parse_packages
from environments.record import BuiltEnvironment, RealizedEnvironment
from environments.steps import (
    Stopwatch,
    add_parents,
    compile_bytecode,
    isolated_variables,
    make_venv,
    pip_install,
    site_packages,
)
from environments.wheels import built_wheel, check_needs, install_built, install_recorded, recorded_sha256


def check_machine(environment: Environment, _realization: Realization) -> None:
    """Check that recorded wheels fit this machine's Python, and that it has the programs for builds.

    Raises:
        InputError: If something is missing.
    """
    for wheel in environment.wheels:
        recorded_sha256(wheel, environment.description, python_abi())
    for source in environment.sources:
        check_needs(source)


def read_complete_record(folder: Path) -> BuiltEnvironment | None:
    """Return the record of a complete folder; None if it is incomplete or its interpreter does not start."""
    try:
        record: BuiltEnvironment = read_json(folder / COMPLETE_FILE)
        started = subprocess.run(
            [record["python"]["executable"], "-c", ""],
            check=False,
            env=isolated_variables(),
            capture_output=True,
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return record if started.returncode == 0 else None


def realize(
    environment: Environment,
    folder: Path,
    parent: BuiltEnvironment | None,
    cache: Path,
    indexes: Mapping[str, str],
    watch: Stopwatch,
    log: Path,
) -> RealizedEnvironment:
    """Make and test the virtual environment in `folder`/venv, and return its part of environment.json."""
    venv = folder / "venv"
    parents = [Path(prefix) for prefix in (parent["prefixes"] if parent else [])]
    wheels: dict[str, dict[str, str]] = {}
    with watch.step("lock"):
        python = make_venv(venv, log)
        add_parents(venv, parents)
        pip_install(python, environment.lock, f"installing {display_path(environment.lock)}", log)
    for wheel in environment.wheels:
        with watch.step(wheel.name):
            install_recorded(wheel, environment.description, python, indexes, log)
        wheels[wheel.name] = {"sha256": recorded_sha256(wheel, environment.description, python_abi())}
    for source in environment.sources:
        with watch.step(source.name):
            path, sha256 = built_wheel(source, environment, parent, cache, log)
            install_built(path, sha256, python, log)
        wheels[source.name] = {"sha256": sha256, "key": path.parent.name}
    with watch.step("bytecode"):
        compile_bytecode(python, site_packages(venv), log)
    with watch.step("selftest"):
        program = [str(python), str(selftest.DRIVER), str(environment.selftest)]
        limit = ["--limit", f"{environment.selftest_limit_s:g}"]
        tested = selftest.run([*program, *limit], environment.variables, environment.name, log)
    output = capture([str(python), "-c", LIST_PACKAGES], env=isolated_variables(), check=True).stdout
    return {
        "variables": environment.variables,
        "python": {"version": platform.python_version(), "abi": python_abi(), "executable": str(python)},
        "image": None,
        "prefixes": [str(venv), *map(str, parents)],
        "packages": parse_packages(output),
        "wheels": wheels,
        "selftest": tested,
    }
