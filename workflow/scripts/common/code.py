"""List the source files of a program: its module, all modules that it imports, and data files beside them.

They are read off the sources without running them, in milliseconds, since rules ask while Snakemake parses.
"""

import re
from functools import cache
from pathlib import Path

from common.files import CHECKOUT, display_path

SCRIPTS = CHECKOUT / "workflow" / "scripts"
DATA_SUFFIXES = (".yaml", ".jinja", ".css", ".js", ".tex", ".bib")  # files that modules of their folder read
SCHEMAS = CHECKOUT / "config" / "schemas"  # read by common.schemas
_IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([^\n]+))", re.MULTILINE)
_NAME = re.compile(r"\w+(?=(?: as \w+)?\s*(?:,|\)|#|$))", re.MULTILINE)


def code(*modules: str) -> list[str]:
    """Return the files of `modules` and of all that they import, as paths from the checkout.

    Args:
        modules: Dotted names, such as figures.draw; models.families.* for all of a package. What a module
            imports by a name computed at run time has to be named, too.

    Raises:
        ModuleNotFoundError: If there is no such module.
    """
    files: dict[Path, None] = {}
    todo: list[Path | None] = []
    for module in modules:
        package = module.removesuffix(".*")
        file = _file(package)
        if file is None:
            raise ModuleNotFoundError(f"{module}: is no module in {display_path(SCRIPTS)}")
        todo += [file] if package == module else sorted(file.parent.glob("*.py"))
    while todo:
        file = todo.pop()
        if file is not None and file not in files:
            files[file] = None
            todo += [*_imported(file), *_packages(file)]
    data_files = {file for folder in {file.parent for file in files} for file in _data_files(folder)}
    return sorted(map(display_path, {*files, *data_files}))


@cache
def _file(module: str) -> Path | None:
    """Return the file of a module or a package, or None for one of another project."""
    path = SCRIPTS.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _packages(file: Path) -> list[Path]:
    """Return the files of the packages that contain a module."""
    folders = file.relative_to(SCRIPTS).parents
    return [init for folder in folders if (init := SCRIPTS / folder / "__init__.py").is_file()]


@cache
def _imported(file: Path) -> list[Path | None]:
    """Return the files of this project's modules that a file imports anywhere."""
    files = []
    for package, names, plain in _IMPORT.findall(file.read_text(encoding="utf-8")):
        if package:
            files += [_file(package), *(_file(f"{package}.{name}") for name in _NAME.findall(names))]
        else:
            files += [_file(name.split()[0]) for name in plain.split(",") if name.split()]
    return files


@cache
def _data_files(folder: Path) -> list[Path]:
    own = [file for file in folder.iterdir() if file.suffix in DATA_SUFFIXES]
    return own + (sorted(SCHEMAS.glob("*.yaml")) if folder.name == "common" else [])
