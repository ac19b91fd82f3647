"""Arguments that verbs share: studies and sites, checked against config/ and completed by the shell."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import InputError
from common.files import CHECKOUT
from common.text import alternatives

STUDIES, SITES = CHECKOUT / "config" / "studies", CHECKOUT / "config" / "sites"
PROFILES = ("local", "slurm", "allocation", "oar", "pbs", "flux")


def names_in(folder: Path) -> list[str]:
    """Return the names of the YAML files in a folder."""
    return sorted(file.stem for file in folder.glob("*.yaml") if file.is_file())


def complete(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a function that completes typed text to the names that begin with it."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def _check(folder: Path, argument: str) -> Callable[[str], str]:
    """Return a function that returns a name unchanged, and raises InputError if the folder lacks its file."""

    def check(name: str) -> str:
        if name and name not in (names := names_in(folder)):
            problem = f"config/{folder.name}/{name}.yaml does not exist"
            raise InputError("unknown-name", problem, file=argument, got=name, **alternatives(name, names))
        return name

    return check


check_study, check_site = _check(STUDIES, "STUDY"), _check(SITES, "--site")
_STUDY: dict[str, Any] = {
    "metavar": "STUDY",
    "help": "A study of config/studies/; default: the one in config/config.yaml.",
    "envvar": "RINGSIDE_STUDY",
    "show_envvar": False,
    "show_default": False,
    "callback": check_study,
    "autocompletion": complete(lambda: names_in(STUDIES)),
}
Study = Annotated[str, typer.Argument(**_STUDY)]
StudyOption = Annotated[str, typer.Option("--study", **_STUDY)]
Site = Annotated[
    str,
    typer.Option(
        "--site",
        "-s",
        metavar="SITE",
        help="A site of config/sites/; default: the configured one.",
        envvar="RINGSIDE_SITE",
        show_envvar=False,
        show_default=False,
        callback=check_site,
        autocompletion=complete(lambda: names_in(SITES)),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
KeepGoing = Annotated[
    bool, typer.Option("--keep-going", help="Continue after several runs failed for the same reason.")
]
