"""Write files atomically, lock them, read JSON and YAML strictly, and digest content."""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import yaml

from common.errors import CHECKOUT, InputError, display_path  # noqa: F401 (others import CHECKOUT from here)
from common.redaction import find_secrets, may_have_secret
from common.yaml_errors import LimitError, explain_yaml_error

MAX_NAME_BYTES = 255  # longest file name on all usual file systems
MAX_YAML_BYTES = 2**24
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def written_whole(path: Path, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`; rename it to `path` if the block ends without an error.

    Args:
        path: The file to write.
        durable: Whether the file must survive a power cut. Waiting for the disk takes milliseconds.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial_path(path)
    try:
        yield partial
        if durable:
            with open(partial, "rb") as written:
                os.fsync(written.fileno())
        # A file that is replaced keeps its permissions, whatever the umask.
        with contextlib.suppress(OSError):
            os.chmod(partial, stat.S_IMODE(os.stat(path).st_mode))
        os.replace(partial, path)
    except OSError as error:
        # The error of a full disk names no file; without one, the report would name the wrong place.
        if error.filename in (None, str(partial)):
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def node_name() -> str:
    """Return the name of this node, with "_" for characters that are unsafe in files and file names.

    The kernel accepts any bytes as a node's name.
    """
    name = os.uname().nodename.encode(errors="replace").decode()
    return "".join(sign if sign.isprintable() and sign != "/" else "_" for sign in name) or "unnamed"


def _partial_path(path: Path) -> Path:
    """Return a path next to `path` that no other process on any node uses, with a digest for a long name."""
    owner = f"{node_name()[:64]}.{os.getpid()}"
    name = path.name
    if len(os.fsencode(name)) > MAX_NAME_BYTES - len(owner) - len("...partial"):
        name = digest_text(os.fsencode(name).hex())
    return path.with_name(f".{name}.{owner}.partial")


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Write `text` to `path` atomically; for `durable`, see `written_whole`."""
    with written_whole(path, durable) as partial:
        partial.write_text(text, encoding="utf-8")


MAX_DIGITS = 30  # longest integer that is accepted in JSON
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not JSON, repeats a key, is nested too deeply, or has NaN, infinity, a lone
            surrogate or an integer of more than MAX_DIGITS digits.
    """
    try:
        text = require_regular(path).read_text(encoding="utf-8")
        value = json.loads(
            text,
            parse_constant=_raise_on_constant,
            parse_int=_parse_integer,
            object_pairs_hook=_raise_if_keys_repeat,
        )
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except MemoryError:
        raise ValueError("it is too large for the memory of this machine") from None
    except UnicodeEncodeError:
        raise ValueError("it has half a character (\\ud800 to \\udfff)") from None
    return value


def _parse_integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it has a number of {len(digits)} digits")
    return int(digits)


def _raise_on_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _raise_if_keys_repeat(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"key {twice!r} occurs twice")
    return mapping


def require_regular(path: Path, max_bytes: float = math.inf) -> Path:
    """Return `path` if it is a regular file; reading from a pipe, for example, might never end.

    Raises:
        OSError: If the file is missing, not regular, or larger than `max_bytes`.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    if status.st_size > max_bytes:
        raise OSError(errno.EFBIG, f"has {status.st_size:,} bytes, more than {max_bytes:,}", str(path))
    return path


def stored_file(path: Path) -> Path:
    """Return `path`, or the compressed `path`.gz if only that exists."""
    compressed = path.with_name(f"{path.name}.gz")
    return compressed if compressed.is_file() and not path.exists() else path


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically.

    Raises:
        ValueError: If it has NaN or infinity.
    """
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def create_json(path: Path, value: Any) -> None:
    """Write `value` as JSON unless the file exists; of processes on any nodes, the first one wins."""
    with contextlib.suppress(FileExistsError):
        create_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def create_text(path: Path, text: str) -> None:
    """Create the file `path` with `text`, atomically.

    Creating a hard link is atomic (link(2)), even on network file systems. On a file system without hard
    links, readers can see the file while it is still incomplete.

    Raises:
        FileExistsError: If the file exists; it is not changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial_path(path)
    try:
        write_text(partial, text)
        try:
            os.link(partial, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
    finally:
        partial.unlink(missing_ok=True)


def format_utc(seconds: float) -> str:
    """Return seconds since the epoch as UTC, ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextlib.contextmanager
def hold_lock(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path` during the block; `waiting` is called before a wait (see `acquire_lock`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        require_regular(path)
    try:
        file = open(path, "a")  # noqa: SIM115 (the with below closes it)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS) or not path.exists():
            raise
        file = open(path)  # noqa: SIM115 (the lock file of another user who shares the cache)
    with file:
        acquire_lock(file, waiting)
        yield


def acquire_lock(file: IO[Any] | int, waiting: Callable[[], None] | None = None) -> bool:
    """Lock an open file (flock(2)) until it is closed, and return whether it is locked.

    On a file system without locks, nothing is locked and the result is True.

    Args:
        file: The open file, or its descriptor.
        waiting: Called once before waiting for another process that holds the lock. If it is None and another
            process holds the lock, return False at once.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if waiting is None:
            return False
        waiting()
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def is_locked(path: Path) -> bool:
    """Return whether a process of this machine holds a lock on the file `path`, without locking it.

    The kernel lists locks in proc_locks(5).
    """
    try:
        status, listed = os.stat(path), Path("/proc/locks").read_text()
    except OSError:
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    rows = (line.split() for line in listed.splitlines() if "->" not in line)  # "->" marks waiting processes
    places = [row[5].rsplit(":", 1) for row in rows if len(row) > 5]
    locked_devices = [locked_device for locked_device, inode in places if inode == str(status.st_ino)]
    # For overlay and btrfs, which have no block device, stat(2) and /proc/locks give different device
    # numbers, both with the major number 0.
    return any(
        locked_device == device or (locked_device[:2] == device[:2] == "00")
        for locked_device in locked_devices
    )


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Load YAML with the scalar types of YAML 1.2 (section 10.3.2), and refuse repeated keys.

    1e-3 is a number and 010 is ten; yes, 1:30:00 and 2026-01-01 are text.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML declares it this way)


# Tag -> pattern of its scalars and their possible first characters; the first matching tag counts.
_PLAIN = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
for _tag, (_text, _begins) in _PLAIN.items():
    _StrictLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_text})\Z"), _begins)


def _construct_integer(loader: Any, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    base = {"0o": 8, "0x": 16}.get(text[:2])
    return int(text[2:], base) if base else int(text)


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _construct_integer)


# Control characters and surrogates, which quoted text can contain as escapes (\0). They break arguments of
# programs, terminals or UTF-8 files.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def _construct_text(loader: Any, node: yaml.ScalarNode) -> str:
    text: str = loader.construct_scalar(node)
    if unprintable := _UNPRINTABLE.search(text):
        problem = f"a text has the character {unprintable[0]!r}, which is not printable"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return text


_StrictLoader.add_constructor("tag:yaml.org,2002:str", _construct_text)


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            mark = key_node.start_mark
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text", mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"key '{key}' occurs twice", key_node.start_mark
            )
        seen.add(key)
    return dict(loader.construct_pairs(node, deep=True))


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
_StrictLoader.add_constructor(
    "tag:yaml.org,2002:seq", lambda loader, node: loader.construct_sequence(node, deep=True)
)


# Limits of a YAML file. A value counts once for each alias that repeats it.
MAX_PARSED_BYTES = 4 * 2**20
MAX_DEPTH = 40
MAX_VALUES = 200_000


def _check_yaml_limits(text: str) -> None:
    """Raise LimitError if building the values of a text would take minutes or exhaust the stack."""
    if len(text) > MAX_PARSED_BYTES:
        raise LimitError(f"it is larger than {MAX_PARSED_BYTES // 2**20} MiB")
    sizes: dict[str, int] = {}  # anchor -> number of values below it
    above: list[tuple[str | None, int]] = []  # anchors of open collections, and number of values before them
    values = 0
    for event in yaml.parse(text, Loader=_StrictLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            above.append((event.anchor, values))
            values += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = above.pop()
            sizes |= {anchor: values - before} if anchor else {}
        elif isinstance(event, yaml.AliasEvent):
            values += sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
        if len(above) > MAX_DEPTH:
            raise LimitError(f"it nests more than {MAX_DEPTH} deep")
        if values > MAX_VALUES:
            raise LimitError(f"it has more than {MAX_VALUES:,} values, counting those that aliases repeat")


def load_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        InputError: If it is missing, too large, not YAML, repeats a key, or has a password or a token.
    """
    try:
        text = require_regular(Path(path), MAX_YAML_BYTES).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("missing-file", "no such file", file=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("unreadable-file", f"cannot be read: {error}", file=path) from None
    try:
        _check_yaml_limits(text)
        content = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 (it is a SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mistake = explain_yaml_error(error, text)
        place = f"{display_path(path)}:{mistake.line}" if mistake.line else display_path(path)
        problem = f"not valid YAML: {mistake.problem}"
        raise InputError(mistake.code, problem, file=place, hint=mistake.hint) from None
    for key, secret in find_secrets(content) if may_have_secret(text) else ():
        hint = (
            "archives and records would contain it; put it into ~/.netrc, or into a file that only you can "
            "read and that setup reads"
        )
        raise InputError("secret-in-file", f"has {secret}", file=path, key=key, hint=hint)
    return content


class _Dumper(yaml.SafeDumper):
    """Write YAML that `load_yaml` reads back unchanged: text that looks like a number gets quotes."""

    yaml_implicit_resolvers = _StrictLoader.yaml_implicit_resolvers


def dump_yaml(value: Any) -> str:
    """Return a value as YAML with sorted keys."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=True, allow_unicode=True)
    return text


def dump_line(key: str, value: Any) -> str:
    """Return a key and its value as one line of YAML; a float from 1e6 on is written in millions: 125e+6."""
    if isinstance(value, float) and value >= 1e6 and float(short := f"{value / 1e6:.12g}e+6") == value:
        return f"{key}: {short}"
    flow = isinstance(value, (list, dict))

    def dumped(style: str | None) -> str:
        options: dict[str, Any] = {"default_style": style, "default_flow_style": flow, "allow_unicode": True}
        text: str = yaml.dump({key: value}, Dumper=_Dumper, width=float("inf"), **options).rstrip("\n")
        return text[1:-1] if flow else text

    text = dumped(None)
    return dumped('"') if "\n" in text else text  # Double-quoted text has escapes for line breaks.


def digest_text(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex.

    Raises:
        OSError: If it is not a regular file.
    """
    with open(require_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_signature(file: Path) -> list[int] | None:
    """Return size (bytes), mtime (ns), ctime (ns) and inode number of a file; None if it does not exist.

    After an edit, mtime can be set back, but ctime cannot.
    """
    try:
        status = file.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def has_signature(file: Path, signature: list[int]) -> bool:
    """Return whether a file still has this signature, of which older caches have only size and mtime."""
    now = file_signature(file)
    return now is not None and now[: len(signature)] == signature


def source_files(folder: Path) -> list[Path]:
    """Return all source files below `folder`, sorted, without byte code, hidden files and editor backups."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not path.name.startswith((".", "#"))
        and not path.name.endswith(("~", ".orig", ".rej", ".bak"))
    )
