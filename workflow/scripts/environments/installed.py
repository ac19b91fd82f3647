"""An environment that a site has installed itself: nothing is made, it is found, tested, and written down.

What is in it decides with which key its runs are kept. Somebody has to look, so the main Snakemake does (`look`), before it plans;
all others read what was found then (declared.site).
"""

import json
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from common.caches import follow_modes
from common.errors import InputError
from common.files import digest_file, digest_text, is_written, read_json, shown, write_json, written
from common.shell import shell_command
from declared.environments import WHOLE, Environment, Installed, Realization, older, read
from declared.site import Site
from environments import selftest
from environments.packages import ABOUT, LIST, listed
from environments.steps import Stopwatch, isolated

# Run by a site's Python, behind its setup lines; each prints a line: where its packages lie, and what `module list` would say.
PATH = "import json, sys; print(json.dumps({'path': [folder for folder in sys.path if folder]}))"
MODULES = (
    "import json, os; "
    "print(json.dumps({'modules': [name for name in os.environ.get('LOADEDMODULES', '').split(':') if name]}))"
)
ABSENT = (
    "import importlib.util, json; "
    "print(json.dumps({{'absent': [name for name in {names!r} if not importlib.util.find_spec(name)]}}))"
)
PROGRAM_VARIABLE = "RINGSIDE_PROGRAM"  # tells ranks where the program is that they start
OLDEST_PYTHON = "3.10"  # that ranks can run in
PATIENCE_S = 120
MOST = 300  # characters of a line


def look(site: Site, names: Collection[str]) -> bool:
    """See what is in those of these environments that the site has installed, as far as this machine has them. Whether anything is new.

    InputError, in one line, where one does not answer.
    """
    new = False
    for name, has in site.installed:
        if name in names and Path(has.executable).exists():
            try:
                found = find(read(name, site.variant), has)
            except InputError as error:
                key = error.key or error.file
                raise InputError(
                    error.code, error.problem, file=shown(site.file), key=key, got=error.got, hint=error.hint
                ) from None
            file = has.looked_at(site.cache, name)
            if _seen(file) != found:
                with follow_modes(site.cache):
                    write_json(file, found)
                new = True
    return new


def _seen(file: Path) -> Any:
    """Return what was found the last time; None where nobody looked, or the file is broken."""
    try:
        return read_json(file)
    except (OSError, ValueError):
        return None


def find(environment: Environment, has: Installed) -> dict[str, Any]:
    """What is installed: its Python, packages, loaded modules, which dispensable ones are absent, what tells whether it is the
    same later (`unchanged`), and `content`, the SHA-256 of what runs depend on."""
    name, python = environment.name, sys.executable if environment.program else has.executable
    lines = _answer(python, environment, has)
    modules, absent, path, about = (selftest.answer(line, name) for line in lines[:-1])
    folders = [] if environment.program else path["path"]
    packages = {} if environment.program else listed(lines[-1])  # of the workflow's own Python they say nothing
    program = digest_file(Path(has.executable)) if environment.program else None
    if older(about["version"], OLDEST_PYTHON):
        problem, hint = f"{python} is Python {about['version']}", f"ranks need {OLDEST_PYTHON} or newer"
        raise InputError("too-old", problem, key=f"installed.{name}", got=about["version"], hint=hint)
    decisive = {"python": about["version"], "packages": packages, **modules, "program": program}
    return {
        "python": {**about, "executable": python},
        "packages": packages,
        "installed": {
            "executable": has.executable,
            "written": written(Path(has.executable)),
            "path": folders,
            "distributions": _distributions(folders),
            **modules,
            **absent,
        },
        "content": digest_text(json.dumps(decisive, sort_keys=True)),
    }


def check_machine(environment: Environment, realization: Realization) -> None:
    """InputError when this machine does not have what the site says that it has installed."""
    path = Path(_installed(environment, realization).executable)
    if not path.is_file():
        raise InputError(
            "missing-file",
            f"there is no {path}",
            file="the site",
            key=f"installed.{environment.name}",
            got=str(path),
            hint="install it, or correct the path",
        )


def record_of_whole(folder: Path) -> dict[str, Any] | None:
    """What a finished folder says of itself; None when it is not finished, or what is installed is another now."""
    try:
        record: dict[str, Any] = read_json(folder / WHOLE)
        return record if unchanged(record["installed"]) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def unchanged(installed: Mapping[str, Any]) -> bool:
    """Whether what is installed is the file that was tested, with the same packages where it is a Python."""
    same = is_written(Path(installed["executable"]), installed["written"][:2])  # its inode is its owner's affair
    return same and _distributions(installed["path"]) == installed["distributions"]


def realize(environment: Environment, realization: Realization, watch: Stopwatch, log: Path) -> dict[str, Any]:
    """Test what the site has installed. Returns this deployment's part of environment.json."""
    has = _installed(environment, realization)
    found = find(environment, has)
    if has.content and found["content"] != has.content:
        key, hint = f"installed.{environment.name}", "start Snakemake again"
        raise InputError("changed-installation", "has changed since it was planned", key=key, hint=hint)
    variables = {**environment.variables, **dict(has.variables)}
    if environment.program:
        variables[PROGRAM_VARIABLE] = has.executable
    with watch.step("selftest"):
        program = [found["python"]["executable"], str(selftest.DRIVER), str(environment.selftest)]
        limit = ["--limit", f"{environment.selftest_limit_s:g}"]
        command = _behind(has, [*program, *limit])
        tested = selftest.run(command, variables, environment.name, log)
    check_version(environment, str(tested.get("framework", "")))
    return {
        "variables": variables,
        "setup": list(has.setup),
        "python": found["python"],
        "image": None,
        "installed": found["installed"],
        "prefixes": [],
        "packages": found["packages"],
        "wheels": {},
        "selftest": tested,
    }


def check_version(environment: Environment, said: str) -> None:
    """InputError when a self-test says (`torch 2.3.1`) that a library is older than what ranks can use."""
    library, _, found = said.partition(" ")
    oldest = environment.supported.get(library)
    if oldest and older(found, oldest):
        key, hint = f"installed.{environment.name}", f"ranks need {library} {oldest} or newer"
        raise InputError("too-old", f"{said} is too old", key=key, got=found, hint=hint)


def _distributions(folders: Iterable[str]) -> list[str]:
    """What installers leave of every package in these folders, named after it and its version."""
    return sorted(info.name for folder in folders for info in Path(folder).glob("*.*-info"))


def _installed(environment: Environment, realization: Realization) -> Installed:
    return dict(realization.installed)[environment.name]


def _behind(has: Installed, command: list[str]) -> list[str]:
    """The command behind all setup lines; folders of a user's own packages are not seen, as ranks do not see them."""
    return shell_command(has.behind, "", {"PYTHONNOUSERSITE": "1"}, command)


def _answer(python: str, environment: Environment, has: Installed) -> list[str]:
    """What MODULES, ABSENT, PATH, ABOUT and LIST say in the installed environment, a line each. InputError when it fails."""
    variables, name = {**environment.variables, **dict(has.variables)}, environment.name
    asked = (MODULES, ABSENT.format(names=environment.dispensable), PATH, ABOUT, LIST)
    try:
        done = subprocess.run(
            _behind(has, [python, "-c", "\n".join(asked)]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=isolated(variables),
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        problem = f"{python} does not answer within {PATIENCE_S} s"
        raise InputError("no-answer", problem, key=f"installed.{name}", got=python) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        problem = f"{python} does not answer: {last[:MOST]}"
        raise InputError("no-answer", problem, key=f"installed.{name}", got=last[:MOST])
    return [*[""] * len(asked), *done.stdout.splitlines()][-len(asked) :]
