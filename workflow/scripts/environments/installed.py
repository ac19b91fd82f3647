"""Realize an environment as an installation of the site: inspect it, test it, and record its content.

The content is part of runs' keys. The main Snakemake inspects installations before it plans
(`inspect_site`); all other processes read the result (declared.site).
"""

import json
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from common.caches import follow_modes
from common.errors import InputError
from common.files import digest_file, digest_text, file_signature, has_signature, read_json, write_json
from common.shell import capture, shell_command
from declared.environments import COMPLETE_FILE, Environment, Installed, Realization, is_older, read
from declared.site import Site
from environments import selftest
from environments.packages import DESCRIBE_PYTHON, LIST_PACKAGES, parse_packages
from environments.record import BuiltEnvironment, InstalledRecord, RealizedEnvironment
from environments.steps import Stopwatch, isolated_variables

# A site's Python runs these programs after the setup lines. Each prints one line of JSON: folders of
# packages, loaded environment modules, or missing Python modules.
PATH = "import json, sys; print(json.dumps({'path': [folder for folder in sys.path if folder]}))"
MODULES = (
    "import json, os; print(json.dumps({'modules': [name for name in os.environ.get('LOADEDMODULES', "
    "'').split(':') if name]}))"
)
ABSENT = (
    "import importlib.util, json; "
    "print(json.dumps({{'absent': [name for name in {names!r} if not importlib.util.find_spec(name)]}}))"
)
PROGRAM_VARIABLE = "RINGSIDE_PROGRAM"  # environment variable with the path of the program that ranks start
OLDEST_PYTHON = "3.10"  # the oldest Python that can run ranks
TIMEOUT_S = 120
MAX_LINE_CHARACTERS = 300


def inspect_site(site: Site, names: Collection[str]) -> bool:
    """Inspect a site's installations, write what changed, and return whether any has changed.

    Args:
        site: The site.
        names: Environments to inspect; installations that this machine does not have are skipped.

    Raises:
        InputError: If an installation's Python fails, does not answer in time, or is too old.
    """
    new = False
    for name, installation in site.installed:
        if name in names and Path(installation.executable).exists():
            try:
                contents = inspect_installation(read(name, site.variant), installation)
            except InputError as error:
                key = error.key or error.file
                problem = error.problem
                raise InputError(error.code, problem, file=site.file, key=key, hint=error.hint) from None
            file = installation.inspection_path(site.cache, name)
            if _read_last_inspection(file) != contents:
                with follow_modes(site.cache):
                    write_json(file, contents)
                new = True
    return new


def _read_last_inspection(file: Path) -> Any:
    """Return the result of the last inspection; None if its file is missing or broken."""
    try:
        return read_json(file)
    except (OSError, ValueError):
        return None


def inspect_installation(environment: Environment, installation: Installed) -> dict[str, Any]:
    """Return Python, packages, environment modules and missing optional modules of an installation.

    Returns:
        Parts of environment.json: `python`, `packages`, `installed` (see `is_unchanged`), and `content`,
        the SHA-256 of everything in the installation that affects runs.

    Raises:
        InputError: If its Python fails, does not answer in time, or is too old.
    """
    name, python = environment.name, sys.executable if environment.program else installation.executable
    lines = _run_inspection(python, environment, installation)
    modules, absent, path, about_python = (selftest.parse_answer(line, name) for line in lines[:-1])
    # The workflow's own Python tests an installed program, which does not use that Python's packages.
    folders = [] if environment.program else path["path"]
    packages = {} if environment.program else parse_packages(lines[-1])
    program = digest_file(Path(installation.executable)) if environment.program else None
    if is_older(about_python["version"], OLDEST_PYTHON) and not environment.for_command:
        problem, hint = (
            f"{python} is Python {about_python['version']}",
            f"ranks need {OLDEST_PYTHON} or newer",
        )
        raise InputError("too-old", problem, key=f"installed.{name}", got=about_python["version"], hint=hint)
    decisive = {"python": about_python["version"], "packages": packages, **modules, "program": program}
    return {
        # A rank in the workflow's own Python starts a user's command.
        "python": {**about_python, "executable": sys.executable if environment.for_command else python},
        "packages": packages,
        "installed": {
            "executable": installation.executable,
            "written": file_signature(Path(installation.executable)),
            "path": folders,
            "distributions": _distributions(folders),
            **modules,
            **absent,
        },
        "content": digest_text(json.dumps(decisive, sort_keys=True)),
    }


def check_machine(environment: Environment, realization: Realization) -> None:
    """Check that this machine has the program that the site's file names.

    Raises:
        InputError: If the program is missing.
    """
    path = Path(_declared_installation(environment, realization).executable)
    if not path.is_file():
        problem = f"{path} does not exist"
        hint = "install it, or correct the path"
        raise InputError(
            "missing-file", problem, file="the site", key=f"installed.{environment.name}", hint=hint
        )


def read_complete_record(folder: Path) -> BuiltEnvironment | None:
    """Return the record of a complete folder; None if it is incomplete or the installation has changed."""
    try:
        record: BuiltEnvironment = read_json(folder / COMPLETE_FILE)
        return record if is_unchanged(record["installed"]) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def is_unchanged(installed: InstalledRecord) -> bool:
    """Return whether an installation has the tested executable and, for a Python, the same packages."""
    # Only size and mtime are compared: copying the same installation changes ctime and inode.
    is_same_file = has_signature(Path(installed["executable"]), installed["written"][:2])
    return is_same_file and _distributions(installed["path"]) == installed["distributions"]


def realize(
    environment: Environment, realization: Realization, watch: Stopwatch, log: Path
) -> RealizedEnvironment:
    """Test the site's installation, and return its part of environment.json.

    Raises:
        InputError: If it has changed since planning, fails its test, or its framework is too old.
    """
    installation = _declared_installation(environment, realization)
    contents = inspect_installation(environment, installation)
    if installation.content and contents["content"] != installation.content:
        key, hint = f"installed.{environment.name}", "start Snakemake again"
        raise InputError("changed-installation", "has changed since it was planned", key=key, hint=hint)
    variables = {**environment.variables, **dict(installation.variables)}
    if environment.program:
        variables[PROGRAM_VARIABLE] = installation.executable
    tested: dict[str, Any] = {}
    if not environment.for_command:
        with watch.step("selftest"):
            program = [contents["python"]["executable"], str(selftest.DRIVER), str(environment.selftest)]
            limit = ["--limit", f"{environment.selftest_limit_s:g}"]
            command = _command_after_setup(installation, [*program, *limit])
            tested = selftest.run(command, variables, environment.name, log)
        check_version(environment, str(tested.get("framework", "")))
    return {
        "variables": variables,
        "setup": list(installation.setup),
        "python": contents["python"],
        "image": None,
        "installed": contents["installed"],
        "prefixes": [],
        "packages": contents["packages"],
        "wheels": {},
        "selftest": tested,
    }


def check_version(environment: Environment, framework: str) -> None:
    """Check that the version of an installed framework is supported.

    Args:
        environment: The environment, with its oldest supported versions.
        framework: Name and version from the self-test, such as `torch 2.3.1`.

    Raises:
        InputError: If it is too old.
    """
    library, _, version = framework.partition(" ")
    oldest = environment.supported.get(library)
    if oldest and is_older(version, oldest):
        key, hint = f"installed.{environment.name}", f"ranks need {library} {oldest} or newer"
        raise InputError("too-old", f"{framework} is too old", key=key, got=version, hint=hint)


def _distributions(folders: Iterable[str]) -> list[str]:
    """Return the names of the packages' metadata folders, which contain name and version."""
    return sorted(info.name for folder in folders for info in Path(folder).glob("*.*-info"))


def _declared_installation(environment: Environment, realization: Realization) -> Installed:
    return dict(realization.installed)[environment.name]


def _command_after_setup(installation: Installed, command: list[str]) -> list[str]:
    """Return the command line that runs `command` after all setup lines, without the user's packages."""
    return shell_command(installation.behind, {"PYTHONNOUSERSITE": "1"}, command)


def _run_inspection(python: str, environment: Environment, installation: Installed) -> list[str]:
    """Return the lines that MODULES, ABSENT, PATH, DESCRIBE_PYTHON and LIST_PACKAGES print, in this order.

    Raises:
        InputError: If the Python fails or does not answer in time.
    """
    variables, name = {**environment.variables, **dict(installation.variables)}, environment.name
    programs = (MODULES, ABSENT.format(names=environment.dispensable), PATH, DESCRIBE_PYTHON, LIST_PACKAGES)
    try:
        done = capture(
            _command_after_setup(installation, [python, "-c", "\n".join(programs)]),
            env=isolated_variables(variables),
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        problem = f"{python} does not answer within {TIMEOUT_S} s"
        raise InputError("no-answer", problem, key=f"installed.{name}", got=python) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        problem = f"{python} fails: {last[:MAX_LINE_CHARACTERS]}"
        raise InputError("no-answer", problem, key=f"installed.{name}", got=last[:MAX_LINE_CHARACTERS])
    # Setup lines can print, too, so the last lines count; missing ones become "".
    return [*[""] * len(programs), *done.stdout.splitlines()][-len(programs) :]
