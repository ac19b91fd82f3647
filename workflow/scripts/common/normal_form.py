"""Digest the normal form of source files, so that comments and docstrings do not change digests.

The normal form of a Python module is its syntax tree without the parts that have no effect at run time:
comments, formatting, docstrings, `pass`, annotations that nothing reads, imports that only such annotations
use, and blocks for type checkers. It is the same text on Python 3.11 to 3.14. The normal form of a YAML file
is its value. Any other file, and a file that cannot be parsed, is digested unchanged.

Names, messages and the order of imports are part of the normal form: changing them changes the digest.
"""

import ast
import atexit
import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from common.caches import find_untrusted
from common.files import CHECKOUT, digest_text, source_files, write_text

VERSION = 1  # part of the cache's keys; raise it when the normal form changes
CACHE_FILE = "normal_forms.json"  # in the user's cache: SHA-256 of content -> SHA-256 of its normal form
MAX_CACHED_DIGESTS = 20_000
# Decorators that do not read annotations. A function with any other decorator keeps its annotations.
PLAIN_DECORATORS = {
    *("abstractmethod", "cache", "cached_property", "classmethod", "contextmanager", "lru_cache"),
    *("override", "property", "setter", "staticmethod", "wraps"),
}
FIELD_CLASSES = {"NamedTuple", "TypedDict"}  # bases that make a field of an annotated name of any type
PLAIN_BASES = {"Generic", "Protocol", "object"}
FIELD_MARKERS = ("ClassVar", "InitVar", "KW_ONLY")  # types that dataclasses read
TYPING_MODULES = {"__future__", "collections.abc", "numpy.typing", "types", "typing", "typing_extensions"}
IGNORED_FIELDS = {"ctx", "kind", "type_comment", "type_ignores"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def normal_form(source: str) -> str:
    """Return the normal form of a Python module.

    Raises:
        SyntaxError: If `source` is not valid Python.
    """
    tree = _Stripped().visit(ast.parse(source))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return _text(_WithoutUnusedTypes(used).visit(tree))


def digest_source(file: Path, ignored_keys: Sequence[str] = ()) -> str:
    """Return the SHA-256, in hex, of a file's normal form.

    Args:
        file: The file.
        ignored_keys: Top-level keys of YAML files to leave out, because only people read them.
    """
    content = file.read_bytes()
    if file.suffix == ".py":
        return _digest_cache().digest(content, "python", normal_form)
    if file.suffix == ".yaml":
        return _digest_cache().digest(
            content,
            f"yaml without {','.join(ignored_keys)}",
            functools.partial(_yaml_form, ignored_keys=ignored_keys),
        )
    return _sha256(content)


def digest_sources(paths: Iterable[Path], root: Path = CHECKOUT, ignored_keys: Sequence[str] = ()) -> str:
    """Return the SHA-256 over names and normal forms of files and of all source files in folders.

    Args:
        paths: Files and folders.
        root: The folder to which names are relative.
        ignored_keys: As in `digest_source`.
    """
    files = sorted({file for path in paths for file in (source_files(path) if path.is_dir() else [path])})
    digest = digest_text(
        "".join(f"{file.relative_to(root)} {digest_source(file, ignored_keys)}\n" for file in files)
    )
    _digest_cache().write()
    return digest


def _yaml_form(source: str, ignored_keys: Sequence[str]) -> str:
    """Return the value of a YAML file, without the keys `ignored_keys`, as JSON in the order of its keys.

    Raises:
        ValueError: If `source` is not YAML.
    """
    try:
        value = yaml.load(source, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    if isinstance(value, dict):
        value = {key: entry for key, entry in value.items() if key not in ignored_keys}
    return json.dumps(value, default=repr)


class _Stripped(ast.NodeTransformer):
    """Remove docstrings, `pass`, annotations without effect, and blocks for type checkers."""

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        body = [
            _without_type(statement, node) if isinstance(statement, ast.AnnAssign) else [statement]
            for statement in node.body
        ]
        node.body = [statement for group in body for statement in group]
        return self._without_docstring(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Keep the annotation of a class's field; replace any other annotated name by its assignment."""
        if getattr(node, "is_field", False):
            return self.generic_visit(node)
        return [self.generic_visit(assignment) for assignment in _assignments(node)]

    def visit_If(self, node: ast.If) -> Any:
        if _last_name(node.test) == "TYPE_CHECKING":
            return [stripped for statement in node.orelse if (stripped := self.visit(statement)) is not None]
        return self.generic_visit(node)

    def visit_Pass(self, _node: ast.Pass) -> None:
        return None

    def _function(self, node: Function) -> ast.AST:
        if all(_last_name(decorator) in PLAIN_DECORATORS for decorator in node.decorator_list):
            node.returns = None
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
        return self._without_docstring(node)

    def _without_docstring(self, node: ast.Module | ast.ClassDef | Function) -> ast.AST:
        if ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        return self.generic_visit(node)


class _WithoutUnusedTypes(ast.NodeTransformer):
    """Remove imports from typing modules of names that are not in `used`."""

    def __init__(self, used: set[str]) -> None:
        self._used = used

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        if node.module in TYPING_MODULES and not node.level:
            node.names = [alias for alias in node.names if (alias.asname or alias.name) in self._used]
        return node if node.names else None

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        node.names = [
            alias
            for alias in node.names
            if alias.name not in TYPING_MODULES
            or (alias.asname or alias.name.partition(".")[0]) in self._used
        ]
        return node if node.names else None


def _without_type(node: ast.AnnAssign, owner: ast.ClassDef) -> list[ast.stmt]:
    """Return an annotated name of a class with the effective part of its annotation.

    A plain class ignores annotations. Dataclasses, NamedTuple and TypedDict make fields of annotated names,
    but read only FIELD_MARKERS of their types. Decorators and bases of other projects could read all of it.
    """
    decorators = {_last_name(decorator) for decorator in owner.decorator_list}
    bases = {_last_name(base) for base in owner.bases}
    if not decorators and bases <= PLAIN_BASES:
        return list(_assignments(node))
    node.is_field = True  # type: ignore[attr-defined]
    marked = any(marker in ast.unparse(node.annotation) for marker in FIELD_MARKERS)
    if not marked and decorators <= {"dataclass"} and bases <= FIELD_CLASSES | PLAIN_BASES:
        node.annotation = ast.Name("field")
    return [node]


def _assignments(node: ast.AnnAssign) -> list[ast.Assign]:
    """Return an annotated name as an assignment, or [] if it has no value."""
    return [ast.Assign([node.target], node.value)] if node.value else []


def _last_name(node: ast.expr) -> str:
    """Return the last name of an expression, such as `wraps` of `functools.wraps(function)`, or ""."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: Any) -> str:
    """Return a syntax tree as text that is the same on all supported Pythons, unlike that of `ast.dump`."""
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in node._fields if name not in IGNORED_FIELDS)
        fields_text = ",".join(
            f"{name}={_text(value)}" for name, value in fields if value is not None and value != []
        )
        return f"{type(node).__name__}({fields_text})"
    if isinstance(node, list):
        return f"[{','.join(map(_text, node))}]"
    return ascii(node)


class _DigestCache:
    """Cache digests of normal forms by digests of content, because parsing all modules takes seconds."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._digests = self._read()
        self._new: dict[str, str] = {}

    def digest(self, content: bytes, kind: str, form: Callable[[str], str]) -> str:
        """Return the SHA-256 of the normal form of `content`, or of `content` itself if `form` fails.

        Args:
            content: The bytes of a file.
            kind: Identifies `form` in the cache's keys.
            form: Returns the normal form of a text.
        """
        key = _sha256(f"{VERSION} {kind}: ".encode() + content)
        if key not in self._digests:
            try:
                form_digest = digest_text(form(content.decode("utf-8")))
            except (ValueError, SyntaxError, RecursionError):
                return _sha256(content)
            self._digests[key] = self._new[key] = form_digest
        return self._digests[key]

    def write(self) -> None:
        """Add new digests to the file, which other processes can have changed; create no folder for it."""
        if self._new and self._file.parent.is_dir():
            digests = {**self._read(), **self._new}
            self._new = {}
            with contextlib.suppress(OSError):
                write_text(self._file, json.dumps(dict(list(digests.items())[-MAX_CACHED_DIGESTS:])))

    def _read(self) -> dict[str, str]:
        if find_untrusted(self._file, self._file.parent):
            return {}
        try:
            digests = json.loads(self._file.read_text(encoding="utf-8"))
            return {key: value for key, value in digests.items() if re.fullmatch("[0-9a-f]{64}", value)}
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            return {}


@functools.cache
def _digest_cache() -> _DigestCache:
    # Unlike Path.expanduser, os.path.expanduser does not fail without a home folder.
    folder = Path(os.path.expanduser(os.environ.get("RINGSIDE_CACHE") or "~/.cache/ringside"))
    cache = _DigestCache(folder / CACHE_FILE)
    atexit.register(cache.write)
    return cache


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
