"""Which of our files a program is made of: its module, all modules that this imports, and what lies beside them.

Read off the sources without running them, in milliseconds: rules ask while Snakemake parses.
"""

import re
from functools import cache
from pathlib import Path

from common.files import CHECKOUT, shown

SCRIPTS = CHECKOUT / "workflow" / "scripts"
BESIDE = (".yaml", ".jinja", ".css", ".js", ".tex", ".bib")  # files that modules of their folder read
SCHEMAS = CHECKOUT / "config" / "schemas"  # read by common.schemas
_IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([^\n]+))", re.MULTILINE)
_NAME = re.compile(r"\w+(?=(?: as \w+)?\s*(?:,|\)|#|$))", re.MULTILINE)


def code(*modules: str) -> list[str]:
    """The files of `modules` (dotted names, such as figures.draw; all of a package as models.families.*), paths from the checkout.

    What a module imports by a name that is made while it runs has to be named, too. ModuleNotFoundError where there is none.
    """
    found: dict[Path, None] = {}
    todo: list[Path | None] = []
    for module in modules:
        package = module.removesuffix(".*")
        file = _file(package)
        if file is None:
            raise ModuleNotFoundError(f"{module}: is no module in {shown(SCRIPTS)}")
        todo += [file] if package == module else sorted(file.parent.glob("*.py"))
    while todo:
        file = todo.pop()
        if file is not None and file not in found:
            found[file] = None
            todo += [*_imported(file), *_packages(file)]
    beside = {one for folder in {file.parent for file in found} for one in _beside(folder)}
    return sorted(map(shown, {*found, *beside}))


@cache
def _file(module: str) -> Path | None:
    """The file of a module or of a package; None where it is not ours."""
    path = SCRIPTS.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _packages(file: Path) -> list[Path]:
    """The files of the packages that a module lies in."""
    folders = file.relative_to(SCRIPTS).parents
    return [init for folder in folders if (init := SCRIPTS / folder / "__init__.py").is_file()]


@cache
def _imported(file: Path) -> list[Path | None]:
    """The files of our modules that a file imports, wherever in it."""
    found = []
    for package, names, plain in _IMPORT.findall(file.read_text(encoding="utf-8")):
        if package:
            found += [_file(package), *(_file(f"{package}.{name}") for name in _NAME.findall(names))]
        else:
            found += [_file(name.split()[0]) for name in plain.split(",") if name.split()]
    return found


@cache
def _beside(folder: Path) -> list[Path]:
    own = [file for file in folder.iterdir() if file.suffix in BESIDE]
    return own + (sorted(SCHEMAS.glob("*.yaml")) if folder.name == "common" else [])
