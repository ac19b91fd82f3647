"""List the source files of a program: its module, all modules that it imports, and data files next to them.

Imports are found in the text of the modules, which are not executed. This takes milliseconds, because rules
call it while Snakemake parses them.
"""

import re
from functools import cache
from pathlib import Path

from common.files import CHECKOUT, display_path

SCRIPTS = CHECKOUT / "workflow" / "scripts"
# Suffixes of the files in a module's folder that modules there read.
DATA_SUFFIXES = (".yaml", ".jinja", ".css", ".js", ".tex", ".bib")
SCHEMAS = CHECKOUT / "config" / "schemas"  # read by common.schemas
_IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([^\n]+))", re.MULTILINE)
_NAME = re.compile(r"\w+(?=(?: as \w+)?\s*(?:,|\)|#|$))", re.MULTILINE)


def program_sources(*modules: str) -> list[str]:
    """Return the files of `modules`, of all modules that they import, and the data files next to them.

    Args:
        modules: Dotted names, such as figures.draw, or models.families.* for all modules of a package. Name
            modules that are imported under a name computed at run time, too.

    Returns:
        Paths relative to the checkout, sorted.

    Raises:
        ModuleNotFoundError: If a module does not exist.
    """
    files: dict[Path, None] = {}
    todo: list[Path | None] = []
    for module in modules:
        package = module.removesuffix(".*")
        file = _file(package)
        if file is None:
            raise ModuleNotFoundError(f"{module}: no such module in {display_path(SCRIPTS)}")
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
    """Return the files of this project's modules that a file imports, at its top or in functions.

    None stands for a module of another project.
    """
    files = []
    for package, names, plain in _IMPORT.findall(file.read_text(encoding="utf-8")):
        if package:
            files += [_file(package), *(_file(f"{package}.{name}") for name in _NAME.findall(names))]
        else:
            files += [_file(name.split()[0]) for name in plain.split(",") if name.split()]
    return files


@cache
def _data_files(folder: Path) -> list[Path]:
    data_files = [file for file in folder.iterdir() if file.suffix in DATA_SUFFIXES]
    return data_files + (sorted(SCHEMAS.glob("*.yaml")) if folder.name == "common" else [])
