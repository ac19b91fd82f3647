"""Build one environment in the site's cache, test it, and record its content.

An environment is a virtual environment, an image, or an installation of the site. The folder
`<cache>/environments/<name>/<digest>/` is complete if it has `environment.json`, which is written last. An
incomplete folder is built again. Snakemake can remove that file from a complete folder, so a copy of it
(COMPLETE_FILE) shows that nothing else is missing.
"""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.caches import check_cache, follow_modes
from common.errors import InputError, system_faults
from common.files import write_json
from common.options import run_program
from common.shell import shell_command
from declared.environments import COMPLETE_FILE, VENV, Environment, Realization, read, tools
from declared.site import Site, load_site
from environments import image, installed, seal, venv
from environments.built import read_built
from environments.identity import digest, stamp_path
from environments.record import BuiltEnvironment
from environments.steps import Stopwatch, build_lock, print_progress

DEPLOYMENTS = {"venv": venv, "apptainer": image, "installed": installed}
LOG = "build.log"
SETUP_DONE = "RINGSIDE_SET_UP"


def build_tool(name: str, site: Site) -> str:
    """Build the environment of one of Ringside's tools in a site's cache, and return its Python."""
    environment = build(read(name), site.cache.resolve(), {"torch_index": site.torch_index or ""})
    return str(environment["python"]["executable"])


def build(
    environment: Environment,
    cache: Path,
    indexes: Mapping[str, str] | None = None,
    realization: Realization = VENV,
) -> BuiltEnvironment:
    """Return the content of environment.json, after building the environment and its parent if needed.

    Args:
        environment: The environment.
        cache: The site's cache.
        indexes: Addresses of wheel indexes by the name of the site's setting, such as torch_index.
        realization: How the site realizes environments.

    Raises:
        InputError: If this machine cannot build it, or a step of the build fails.
    """
    stamp = stamp_path(environment, cache, realization)
    check_cache(cache)
    if stamp.is_file():
        return read_built(stamp)
    check_machine(environment, realization)
    parent_environment = environment.built_over(realization)
    parent = build(parent_environment, cache, indexes, realization) if parent_environment else None
    folder = stamp.parent
    with (
        follow_modes(cache),
        build_lock(folder.with_name(f".{folder.name}.lock"), f"the environment {environment.name}"),
    ):
        if not stamp.is_file():
            record = DEPLOYMENTS[environment.deployment(realization)].read_complete_record(folder)
            if record is None:
                _clear(folder)
                record = _realize(environment, folder, parent, cache, indexes or {}, realization)
                if record["deployment"] == "venv":
                    seal.write_seal(folder)
                write_json(folder / COMPLETE_FILE, record)
            write_json(stamp, record)
    return read_built(stamp)


def _clear(folder: Path) -> None:
    """Create or empty the folder, except for the log of earlier builds; the completion mark goes first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / COMPLETE_FILE).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOG:
            path.unlink()


def check_machine(environment: Environment, realization: Realization) -> None:
    """Check that this machine can build the environment; see `check_machine` of its deployment.

    Raises:
        InputError: If something is missing.
    """
    DEPLOYMENTS[environment.deployment(realization)].check_machine(environment, realization)


def _realize(
    environment: Environment,
    folder: Path,
    parent: BuiltEnvironment | None,
    cache: Path,
    indexes: Mapping[str, str],
    realization: Realization,
) -> BuiltEnvironment:
    """Build or find the environment as the site deploys it; return the content of environment.json."""
    log = folder / LOG
    deployment = environment.deployment(realization)
    task = "testing the installation of" if deployment == "installed" else "building"
    print_progress(
        f"{task} the environment {environment.name} ({environment.variant}, {deployment}); log: {log}"
    )
    watch = Stopwatch()
    if deployment == "venv":
        outcome = venv.realize(environment, folder, parent, cache, indexes, watch, log)
    elif deployment == "apptainer":
        outcome = image.realize(environment, folder, parent, realization, indexes, watch, log)
    else:
        outcome = installed.realize(environment, realization, watch, log)
    print_progress(f"the environment {environment.name} is ready after {sum(watch.seconds.values()):.0f} s")
    return {
        "name": environment.name,
        "variant": environment.variant,
        "deployment": deployment,
        "digest": digest(environment, realization),
        "parent": {"name": parent["name"], "digest": parent["digest"]} if parent else None,
        **outcome,
        "seconds": watch.seconds,
    }


def restart_after_setup(setup: Sequence[str]) -> None:
    """Restart this program in a login shell after the site's setup lines, once."""
    if setup and SETUP_DONE not in os.environ:
        variables = {SETUP_DONE: "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        command = shell_command(setup, variables, [sys.executable, "-m", "environments.build", *sys.argv[1:]])
        os.execvp(command[0], command)  # noqa: S606


def main(*, environment: str, site: str, out: Path) -> None:
    """Build an environment the way its site deploys it.

    Args:
        environment: a folder of containers/
        site: name of a file in config/sites/
        out: path of the environment.json, as planned
    """
    signal.signal(signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum))
    described = load_site(site)
    if environment in tools():  # Tools run where Snakemake runs, whatever the site's ranks use.
        declared, realization = read(environment), VENV
    else:
        restart_after_setup(described.setup)
        declared, realization = read(environment, described.variant), described.realization
    cache = described.cache.resolve()
    stamp = stamp_path(declared, cache, realization)
    if out.resolve() != stamp:
        problem = f"is {out}, but the environment's files have changed since planning: {stamp}"
        raise InputError("outdated-plan", problem, file="--out", got=str(out), hint="plan again")
    with system_faults(stamp):
        build(declared, cache, {"torch_index": described.torch_index or ""}, realization)


if __name__ == "__main__":
    sys.exit(run_program(main))
