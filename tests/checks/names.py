"""Report identifiers that are function words, such as ``told`` or ``found``: they cannot be searched for.

``pyproject.toml`` holds the words and the packages that are free of them (``[tool.ringside.names]``). A
package is its folder in ``workflow/scripts`` and in ``tests/unit``. Annotated class attributes may have the
names in ``file_keys``, which are keys of files that people write. Exit status 1 if one of these packages
defines such a name; ``--count`` prints how many names each package still defines.
"""

import argparse
import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
ROOTS = ("workflow/scripts", "tests/unit")


def defined_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every name that a module defines, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno


def class_attributes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every annotated attribute of a class, with its line."""
    for owner in ast.walk(tree):
        for node in owner.body if isinstance(owner, ast.ClassDef) else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, node.lineno


def find_function_words(
    file: Path, words: frozenset[str], file_keys: frozenset[str] = frozenset()
) -> list[tuple[str, int]]:
    """Return the names in a Python file, each with its line, that are function words.

    Args:
        file: The file.
        words: Function words, which names may not be apart from case and underscores.
        file_keys: Names that annotated class attributes may have.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    allowed = {(name, line) for name, line in class_attributes(tree) if name in file_keys}
    return sorted(
        (
            (name, line)
            for name, line in defined_names(tree)
            if name.strip("_").lower() in words and (name, line) not in allowed
        ),
        key=lambda place: place[1],
    )


def package_files(package: str) -> list[Path]:
    """Return the Python files of a package and of its unit tests."""
    return [file for root in ROOTS for file in sorted((CHECKOUT / root / package).rglob("*.py"))]


def main(argv: Sequence[str] | None = None) -> int:
    """Check the packages that the settings list, or count the names of all packages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", action="store_true", help="count the names of every package instead")
    options = parser.parse_args(argv)
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ringside"][
        "names"
    ]
    words, file_keys = frozenset(settings["function_words"]), frozenset(settings["file_keys"])
    if options.count:
        packages = sorted(
            {folder.name for root in ROOTS for folder in (CHECKOUT / root).iterdir() if folder.is_dir()}
        )
        counts = Counter(
            {
                name: sum(len(find_function_words(file, words, file_keys)) for file in package_files(name))
                for name in packages
            }
        )
        for package, count in counts.most_common():
            print(f"{count:6d} {package}")
        print(f"{counts.total():6d} in all")
        return 0
    missing = [package for package in settings["packages"] if not package_files(package)]
    for package in missing:
        print(f"pyproject.toml: tool.ringside.names: there is no package {package!r}")
    faults = [
        f"{file.relative_to(CHECKOUT)}:{line}: {name} is a function word; name the thing or the action"
        for package in settings["packages"]
        for file in package_files(package)
        for name, line in find_function_words(file, words, file_keys)
    ]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults or missing else 0


if __name__ == "__main__":
    sys.exit(main())
