"""Report names that are too long, or are function words such as ``told``, which cannot be searched for.

``pyproject.toml`` has the words, the maximum length and the folders to check (``[tool.ringside.names]``).
Annotated class attributes may have the names in ``file_keys``, which are keys of users' files. The exit status
is 1 if a file defines such a name.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


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
        words: Function words that must not be names, in any case and with any outer underscores.
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


def find_long_names(file: Path, max_length: int) -> list[tuple[str, int]]:
    """Return the names that a Python file defines with more than `max_length` characters, with their lines."""
    tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    return [(name, line) for name, line in defined_names(tree) if len(name) > max_length]


def main() -> int:
    """Check the folders that the settings list; return the exit status."""
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ringside"][
        "names"
    ]
    words, file_keys = frozenset(settings["function_words"]), frozenset(settings["file_keys"])
    for folder in settings["folders"]:
        if not list((CHECKOUT / folder).rglob("*.py")):
            print(f"pyproject.toml: tool.ringside.names: {folder} has no Python file")
            return 1
    files = [file for folder in settings["folders"] for file in sorted((CHECKOUT / folder).rglob("*.py"))]
    max_length = settings["max_length"]
    faults = [
        *(
            f"{file.relative_to(CHECKOUT)}:{line}: {name} is a function word; name the thing or the action"
            for file in files
            for name, line in find_function_words(file, words, file_keys)
        ),
        *(
            f"{file.relative_to(CHECKOUT)}:{line}: {name} has {len(name)} characters; use at most {max_length}"
            for file in files
            for name, line in find_long_names(file, max_length)
        ),
    ]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
