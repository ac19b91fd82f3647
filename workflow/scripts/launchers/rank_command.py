"""Compose the command of a rank, in an image or with installed software, and list the paths that it needs."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.program_sources import SCRIPTS
from declared.site import Site
from environments import container
from environments.container import Bind
from environments.record import BuiltEnvironment
from launchers.variables import rank_variables

WORKER = "ranks.worker"


def rank_command(
    environment: BuiltEnvironment,
    launch_folder: Path,
    spec: Mapping[str, Any],
    site: Site,
    program: str,
    reads: Sequence[Path],
) -> tuple[list[str], dict[str, str]]:
    """Return the command of every rank and its variables; the arguments are those of `run_ranks`."""
    command = [environment["python"]["executable"], "-m", program, str(launch_folder)]
    variables = {**rank_variables(site, spec), **environment["variables"]}
    if image := environment.get("image"):
        command = in_image(image["path"], command, variables, site, [SCRIPTS, *reads], launch_folder)
    elif runs_installed_python(environment):
        # Its PYTHONPATH comes from the site's setup lines, which run before the ranks read their variables.
        command = modules_first(command)
        variables = {**rank_variables(site, spec, pythonpath=False), **environment["variables"]}
    return command, variables


def runs_installed_python(environment: BuiltEnvironment) -> bool:
    """Return whether ranks run in a Python that the site has installed.

    A site can also install a program, such as LBANN. Ranks start it from a Python that Ringside has built.
    """
    installed = environment.get("installed")
    return bool(installed and installed["executable"] == environment["python"]["executable"])


def required_paths(
    environment: BuiltEnvironment, site: Site, launch_folder: Path, reads: Sequence[Path]
) -> list[str]:
    """Return the paths that every node must be able to access.

    Installed software is left out, since the site's setup lines can make it available on the node.
    """
    if site.launcher == "local":
        return []
    image = environment.get("image")
    software = image["path"] if image else environment["python"]["executable"]
    paths = [SCRIPTS, launch_folder, *reads, *([] if environment.get("installed") else [software])]
    return [str(path) for path in paths]


def in_image(
    image: str,
    command: Sequence[str],
    variable_names: Iterable[str],
    site: Site,
    reads: Sequence[Path],
    writes: Path,
) -> list[str]:
    """Return the command that runs `command` inside an image.

    Args:
        image: Path of the image.
        command: The command.
        variable_names: Names of the variables that are passed into the image.
        site: The site. Its scratch folder and `binds` are writable inside.
        reads: Folders that the command can read.
        writes: Folder that the command can write.
    """
    command = modules_first(command)
    variable_names = [name for name in variable_names if name != "PYTHONPATH"]
    binds = [Bind(str(path)) for path in reads] + [Bind(str(writes), writable=True)]
    if site.scratch:
        binds.append(Bind(str(site.scratch), writable=True))
    for bind in site.binds:
        source, _, inside = bind.partition(":")
        binds.append(Bind(source, writable=True, inside=inside or None))
    options = [f"--{site.images.gpu}"] if site.device == "cuda" else []
    return container.command_in_image(image, command, binds, variable_names, options)


def modules_first(command: Sequence[str]) -> list[str]:
    """Return `command` with our modules in front of its PYTHONPATH.

    The rest of PYTHONPATH is kept, since a site's Python can need it for its packages.
    """
    prepend = 'export PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}"; shift; exec "$@"'
    return ["sh", "-c", prepend, "ringside", str(SCRIPTS), *command]
