"""Files written whole or not at all, YAML read strictly, and digests of content."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from common.errors import InputError

CHECKOUT = Path(__file__).resolve().parents[3]
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` when the block ends without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        yield partial
        with open(partial, "rb") as written:
            os.fsync(written.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    """A name beside `path` that no other process uses, on whichever node it is."""
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.partial")


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all."""
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def read_json(path: Path) -> Any:
    """The value in a JSON file. OSError; ValueError where it is none, or has NaN or infinity, which JSON has not."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def create_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, whole, unless there is a file: of several that do so at once, on whichever nodes, the first has its way.

    A link is made or is not (link(2)), on network file systems, too; where there are no hard links the file is created empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        write_json(partial, value)
        with contextlib.suppress(FileExistsError):
            try:
                os.link(partial, path)
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                with open(path, "x", encoding="utf-8") as file:
                    file.write(partial.read_text(encoding="utf-8"))
    finally:
        partial.unlink(missing_ok=True)


def utc(seconds: float) -> str:
    """Seconds since the epoch as UTC, ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path` (flock); when another process holds it, call `waiting` once and wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def held(path: Path) -> bool:
    """Whether a process of this machine holds a lock on the file `path`, as the kernel lists them (proc_locks(5)): no lock is taken."""
    try:
        found, listed = os.stat(path), Path("/proc/locks").read_text()
    except OSError:
        return False
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    rows = (line.split() for line in listed.splitlines() if "->" not in line)  # those wait
    places = [row[5].rsplit(":", 1) for row in rows if len(row) > 5]
    same = [where for where, inode in places if inode == str(found.st_ino)]
    # A file system without a device of its own (overlay, btrfs) tells stat(2) another number than the kernel's list has.
    return any(where == device or (where[:2] == device[:2] == "00") for where in same)


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML that refuses a key given twice instead of keeping the last."""


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            mark = key_node.start_mark
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text", mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key '{key}' stands twice", key_node.start_mark)
        seen.add(key)
    return dict(loader.construct_pairs(node, deep=True))


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _mapping)


def shown(path: Path) -> str:
    """`path` as a person would type it from the checkout."""
    path = Path(path)
    try:
        return str(Path(os.path.realpath(path)).relative_to(CHECKOUT))  # which takes loops of links, too
    except ValueError:
        return str(path)


def load_yaml(path: Path) -> Any:
    """Read one YAML file. InputError (one line) when it is absent, not YAML, or repeats a key."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{shown(path)}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{shown(path)}: cannot be read: {error}") from None
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 (it is a SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{shown(path)}{where}: not valid YAML: {problem}") from None


def digest_text(text: str) -> str:
    """SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def written(file: Path) -> list[int] | None:
    """Size in bytes and date (ns) of a file; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def source_files(folder: Path) -> list[Path]:
    """All files below `folder` that are source: no byte code, no hidden files, no editor's copies; sorted."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not path.name.startswith((".", "#"))
        and not path.name.endswith(("~", ".orig", ".rej", ".bak"))
    )


def digest_sources(paths: Iterable[Path], root: Path = CHECKOUT) -> str:
    """SHA-256 over names (relative to `root`) and contents of files and folders, independent of dates and order."""
    files = sorted({file for path in paths for file in (source_files(path) if path.is_dir() else [path])})
    lines = [f"{file.relative_to(root)} {digest_file(file)}\n" for file in files]
    return digest_text("".join(lines))
