"""Build one environment as a virtual environment in the site's cache, test it, and say what is in it.

The folder `<cache>/environments/<name>/<digest>/` is whole when it has `environment.json`, which is written last.
A folder without it is started over, unless everything but that file is there.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import InputError, exit_status
from common.files import shown, write_json
from common.shell import shell_command
from environments import selftest
from environments.description import CONTAINERS, VARIANTS, Environment, environment_stamp, python_abi, read
from environments.steps import (
    Stopwatch,
    building,
    compile_bytecode,
    isolated,
    make_venv,
    overlay,
    pip_install,
    say,
    site_packages,
)
from environments.wheels import built_wheel, check_needs, install_built, install_recorded, recorded_sha256

SET_UP = "RINGSIDE_SET_UP"
LIST_PACKAGES = (
    "import importlib.metadata as m, json; "
    "print(json.dumps([[d.metadata['Name'], d.version] for d in m.distributions()]))"
)


def build(environment: Environment, cache: Path, indexes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Make `environment` and its parents in `cache` unless they are there. Returns what its environment.json says.

    `indexes` maps names of the site's settings (torch_index) to addresses of wheel indexes.
    """
    stamp = environment_stamp(cache, environment.name, environment.variant, containers=environment.folder.parent)
    if stamp.is_file():
        return json.loads(stamp.read_text(encoding="utf-8"))
    check_machine(environment)
    parent = build(environment.parent, cache, indexes) if environment.parent else None
    folder = stamp.parent
    with building(folder.with_name(f".{folder.name}.lock"), f"the environment {environment.name}"):
        if not stamp.is_file():
            whole = folder / "venv" / "whole.json"
            record = _record_of_whole(whole)
            if record is None:
                shutil.rmtree(folder, ignore_errors=True)
                record = _realize(environment, folder, parent, cache, indexes or {})
                write_json(whole, record)
            write_json(stamp, record)
    return json.loads(stamp.read_text(encoding="utf-8"))


def check_machine(environment: Environment) -> None:
    """InputError when this machine cannot build the environment: no recorded wheel for its Python, no compiler."""
    for wheel in environment.wheels:
        recorded_sha256(wheel, environment.description, python_abi())
    for source in environment.sources:
        check_needs(source)


def _record_of_whole(whole: Path) -> dict[str, Any] | None:
    """What a finished folder says of itself; None when it is not finished, or its interpreter is gone."""
    if not whole.is_file():
        return None
    record = json.loads(whole.read_text(encoding="utf-8"))
    try:
        started = subprocess.run(
            [record["python"]["executable"], "-c", ""], check=False, env=isolated(), capture_output=True
        )
    except OSError:
        return None
    return record if started.returncode == 0 else None


def _realize(
    environment: Environment,
    folder: Path,
    parent: dict[str, Any] | None,
    cache: Path,
    indexes: Mapping[str, str],
) -> dict[str, Any]:
    log = folder / "build.log"
    say(f"building the environment {environment.name} ({environment.variant}); log: {log}")
    watch = Stopwatch()
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
        tested = selftest.run(python, environment.selftest, environment.variables, environment.selftest_limit_s, log)
    record = {
        "name": environment.name,
        "variant": environment.variant,
        "deployment": "venv",
        "digest": environment.digest(),
        "parent": {"name": parent["name"], "digest": parent["digest"]} if parent else None,
        "python": {"version": platform.python_version(), "abi": python_abi(), "executable": str(python)},
        "prefixes": [str(venv), *map(str, parents)],
        "variables": environment.variables,
        "packages": installed_packages(python),
        "wheels": wheels,
        "selftest": tested,
        "seconds": watch.seconds,
    }
    say(f"the environment {environment.name} is ready after {sum(watch.seconds.values()):.0f} s")
    return record


def installed_packages(python: Path) -> dict[str, str]:
    """Name and version of every package that `python` sees; of two with one name, the one that it imports."""
    done = subprocess.run(
        [str(python), "-c", LIST_PACKAGES], env=isolated(), capture_output=True, text=True, check=True
    )
    found = {re.sub("[-_.]+", "-", name).lower(): version for name, version in reversed(json.loads(done.stdout))}
    return dict(sorted(found.items()))


def behind_setup(site: str) -> None:
    """Start this program again behind the site's setup lines, in a login shell, unless it runs behind them already."""
    from plan.site import load_site  # which in turn needs this stage's descriptions

    setup = load_site(site).setup
    if setup and SET_UP not in os.environ:
        told = {SET_UP: "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        command = shell_command(setup, "", told, [sys.executable, "-m", "environments.build", *sys.argv[1:]])
        os.execvp(command[0], command)  # noqa: S606


def main(argv: Sequence[str] | None = None) -> None:
    """Build the environment that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m environments.build", description=__doc__)
    parser.add_argument("--environment", required=True, help="a folder of containers/")
    parser.add_argument("--variant", choices=VARIANTS, default="cpu")
    parser.add_argument("--cache", type=Path, required=True, help="the site's cache")
    parser.add_argument(
        "--torch-index", default="", help="wheel index for what pip is not configured for (site setting)"
    )
    parser.add_argument("--containers", type=Path, default=CONTAINERS, help="where the descriptions are")
    parser.add_argument("--out", type=Path, required=True, help="the environment.json to be made")
    parser.add_argument("--site", help="name of a file in config/sites/, whose setup lines come first")
    options = parser.parse_args(argv)
    if options.site:
        behind_setup(options.site)
    cache = options.cache.resolve()
    environment = read(options.environment, options.variant, options.containers)
    stamp = environment_stamp(cache, environment.name, environment.variant, containers=options.containers)
    if options.out.resolve() != stamp:
        raise InputError(f"--out is {options.out}, but by its files the environment is {stamp}; plan again")
    build(environment, cache, {"torch_index": options.torch_index})


if __name__ == "__main__":
    sys.exit(exit_status(main))
