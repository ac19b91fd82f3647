"""An environment that a site has installed itself: nothing is made, it is found, tested, and written down."""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import written
from declared.environments import WHOLE, Environment, Installed, Realization
from environments import selftest
from environments.packages import ABOUT, LIST, listed
from environments.steps import Stopwatch, isolated

PATH = (
    "import json, sys; print(json.dumps({'path': [folder for folder in sys.path if folder]}))"  # run by a site's Python
)
PROGRAM_VARIABLE = "RINGSIDE_PROGRAM"  # tells ranks where the program is that they start


def check_machine(environment: Environment, realization: Realization) -> None:
    """InputError when this machine does not have what the site says that it has installed."""
    path = Path(_installed(environment, realization).executable)
    if not path.is_file():
        raise InputError(
            f"the site's installed.{environment.name}: there is no {path}; install it, or correct the path"
        )


def record_of_whole(folder: Path) -> dict[str, Any] | None:
    """What a finished folder says of itself; None when it is not finished, or what is installed is another now."""
    try:
        record: dict[str, Any] = json.loads((folder / WHOLE).read_text(encoding="utf-8"))
        return record if unchanged(record["installed"]) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def unchanged(installed: Mapping[str, Any]) -> bool:
    """Whether what is installed is the file that was tested, with the same packages where it is a Python."""
    same: bool = written(Path(installed["executable"])) == installed["written"]
    return same and _distributions(installed["path"]) == installed["distributions"]


def realize(environment: Environment, realization: Realization, watch: Stopwatch, log: Path) -> dict[str, Any]:
    """Test what the site has installed. Returns this deployment's part of environment.json."""
    has = _installed(environment, realization)
    variables = {**environment.variables, **dict(has.variables)}
    if environment.program:
        variables[PROGRAM_VARIABLE] = has.executable
    python = sys.executable if environment.program else has.executable
    with watch.step("selftest"):
        program = [python, str(selftest.DRIVER), str(environment.selftest)]
        limit = ["--limit", f"{environment.selftest_limit_s:g}"]
        tested = selftest.run([*program, *limit], variables, environment.name, log)
    about, packages, path = (_ask(python, program, variables, environment.name) for program in (ABOUT, LIST, PATH))
    folders = [] if environment.program else _last(path, environment.name)["path"]
    return {
        "variables": variables,
        "python": {**_last(about, environment.name), "executable": python},
        "image": None,
        "installed": {
            "executable": has.executable,
            "written": written(Path(has.executable)),
            "path": folders,
            "distributions": _distributions(folders),
        },
        "prefixes": [],
        "packages": {} if environment.program else listed(packages),  # of the workflow's own Python they say nothing
        "wheels": {},
        "selftest": tested,
    }


def _distributions(folders: Iterable[str]) -> list[str]:
    """What installers leave of every package in these folders, named after it and its version."""
    return sorted(info.name for folder in folders for info in Path(folder).glob("*.*-info"))


def _installed(environment: Environment, realization: Realization) -> Installed:
    return dict(realization.installed)[environment.name]


def _last(output: str, name: str) -> dict[str, Any]:
    return selftest.answer((output.splitlines() or [""])[-1], name)


def _ask(python: str, program: str, variables: Mapping[str, str], name: str) -> str:
    """What a Python program says in the installed environment. InputError when it fails."""
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False, env=isolated(variables))
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise InputError(f"installed.{name}: {python} does not answer: {last[:300]}")
    return done.stdout
