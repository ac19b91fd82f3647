"""Build one environment in the site's cache, as a virtual environment or as an image, or find it installed; test it, and say what is in it.

The folder `<cache>/environments/<name>/<digest>/` is whole when it has `environment.json`, which is written last.
A folder without it is started over, unless everything but that file is there.
"""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.caches import check_cache, follow_modes
from common.errors import InputError, system_faults
from common.files import write_json
from common.options import run_program
from common.shell import shell_command
from declared.environments import VENV, WHOLE, Environment, Realization, read, tools
from declared.site import load_site
from environments import image, installed, seal, venv
from environments.identity import digest, stamp_of
from environments.made import read_made
from environments.steps import Stopwatch, building, say

WAYS = {"venv": venv, "apptainer": image, "installed": installed}
LOG = "build.log"
SET_UP = "RINGSIDE_SET_UP"


def build(
    environment: Environment,
    cache: Path,
    indexes: Mapping[str, str] | None = None,
    realization: Realization = VENV,
) -> dict[str, Any]:
    """Make `environment`, and what it is built over, in `cache` unless they are there. Returns what its environment.json says.

    `indexes` maps names of the site's settings (torch_index) to addresses of wheel indexes.
    """
    stamp = stamp_of(environment, cache, realization)
    check_cache(cache)
    if stamp.is_file():
        return read_made(stamp)
    check_machine(environment, realization)
    below = environment.built_over(realization)
    parent = build(below, cache, indexes, realization) if below else None
    folder = stamp.parent
    with (
        follow_modes(cache),
        building(folder.with_name(f".{folder.name}.lock"), f"the environment {environment.name}"),
    ):
        if not stamp.is_file():
            record = WAYS[environment.deployment(realization)].record_of_whole(folder)
            if record is None:
                _clear(folder)
                record = _realize(environment, folder, parent, cache, indexes or {}, realization)
                if record["deployment"] == "venv":
                    seal.write_seal(folder)
                write_json(folder / WHOLE, record)
            write_json(stamp, record)
    return read_made(stamp)


def _clear(folder: Path) -> None:
    """Make the folder, empty but for the log of earlier builds; what calls it whole goes first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WHOLE).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOG:
            path.unlink()


def check_machine(environment: Environment, realization: Realization) -> None:
    """InputError when this machine lacks what making the environment needs: a compiler, a hash for its Python, Apptainer."""
    WAYS[environment.deployment(realization)].check_machine(environment, realization)


def _realize(
    environment: Environment,
    folder: Path,
    parent: dict[str, Any] | None,
    cache: Path,
    indexes: Mapping[str, str],
    realization: Realization,
) -> dict[str, Any]:
    """Make what the environment is at this site, and return all that its environment.json says."""
    log = folder / LOG
    deployment = environment.deployment(realization)
    doing = "testing what is installed as" if deployment == "installed" else "building"
    say(f"{doing} the environment {environment.name} ({environment.variant}, {deployment}); log: {log}")
    watch = Stopwatch()
    if deployment == "venv":
        made = venv.realize(environment, folder, parent, cache, indexes, watch, log)
    elif deployment == "apptainer":
        made = image.realize(environment, folder, parent, realization, indexes, watch, log)
    else:
        made = installed.realize(environment, realization, watch, log)
    say(f"the environment {environment.name} is ready after {sum(watch.seconds.values()):.0f} s")
    return {
        "name": environment.name,
        "variant": environment.variant,
        "deployment": deployment,
        "digest": digest(environment, realization),
        "parent": {"name": parent["name"], "digest": parent["digest"]} if parent else None,
        "variables": environment.variables,
        **made,
        "seconds": watch.seconds,
    }


def restart_behind_setup(setup: Sequence[str]) -> None:
    """Start this program again behind the site's setup lines, in a login shell, unless it runs behind them already."""
    if setup and SET_UP not in os.environ:
        variables = {SET_UP: "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        command = shell_command(setup, "", variables, [sys.executable, "-m", "environments.build", *sys.argv[1:]])
        os.execvp(command[0], command)  # noqa: S606


def main(*, environment: str, site: str, out: Path) -> None:
    """Build an environment as its site wants it.

    Args:
        environment: a folder of containers/
        site: name of a file in config/sites/
        out: the environment.json to be made
    """
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    described = load_site(site)
    if environment in tools():  # Tools run where Snakemake runs, whatever the site's ranks use.
        declared, realization = read(environment), VENV
    else:
        restart_behind_setup(described.setup)
        declared, realization = read(environment, described.variant), described.realization
    cache = described.cache.resolve()
    stamp = stamp_of(declared, cache, realization)
    if out.resolve() != stamp:
        problem = f"is {out}, but by its files the environment is {stamp}"
        raise InputError("outdated-plan", problem, file="--out", got=str(out), hint="plan again")
    with system_faults(stamp):
        build(declared, cache, {"torch_index": described.torch_index or ""}, realization)


if __name__ == "__main__":
    sys.exit(run_program(main))
