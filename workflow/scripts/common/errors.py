"""One way to refuse bad input: a single clear line and exit status 2."""

import errno
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MOST_LINES = 20
OF_THE_SYSTEM = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ESTALE,
)  # no fault of ours


class InputError(Exception):
    """Something that a person wrote is wrong. The message is one line: file, key, what was expected, what to do.

    What cannot be printed in a line, such as a line's end in a name that is told, is escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in message))


class InputErrors(InputError):
    """Several things are wrong: `lines`, one each, of many the first."""

    def __init__(self, lines: Sequence[str]) -> None:
        more = len(lines) - MOST_LINES
        self.lines = [*lines[:MOST_LINES], *([f"and {more} more like these"] if more > 0 else [])]
        super().__init__("; ".join(self.lines))


@contextmanager
def system_faults(where: Path) -> Iterator[None]:
    """What the system refuses (a full disk, a folder of others) as an InputError; `where` it did, if it does not say."""
    try:
        yield
    except OSError as error:
        told = f"{error.filename or where}: {error.strerror or error}"
        raise InputError(f"{told}; correct it, then start again") from None


def exit_status(main: Callable[[], None]) -> int:
    """Run a program's main; 0 when it returns or nobody reads on, 2 with one line on stderr when its input is wrong."""
    try:
        main()
        sys.stdout.flush()
    except InputErrors as several:
        for line in several.lines:
            print(f"ringside: {line}", file=sys.stderr)
        return 2
    except InputError as error:
        print(f"ringside: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        if not _unread():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is written on the way out
    except OSError as error:
        if error.errno not in OF_THE_SYSTEM:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"ringside: {where}{error.strerror}; correct it, then start again", file=sys.stderr)
        return 2
    return 0


def _unread() -> bool:
    """Whether who read the output has gone, as `head` does once it has its lines."""
    watched = select.poll()
    watched.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in watched.poll(0))
