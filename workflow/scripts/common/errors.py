"""Report bad input: one line on stderr for each mistake, and exit status 2."""

import errno
import functools
import math
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.redaction import redact

CHECKOUT = Path(__file__).resolve().parents[3]
MAX_LINES = 20
SYSTEM_CODE = "system-error"
# Errors of file systems and of a machine's limits, which have nothing to do with a file's content or with
# what a program does.
MACHINE_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE, errno.EREMOTEIO),
    *(errno.ENOLCK, errno.ENOSYS, errno.ENFILE, errno.EMFILE, errno.ENOTCONN, errno.ESHUTDOWN),
    *(errno.ENOMEDIUM, errno.ENODEV),
}
SYSTEM_ERRORS = MACHINE_ERRORS | {
    errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR
}  # fmt: skip


def display_path(path: Path) -> str:
    """Return `path` relative to the checkout, or unchanged if it lies outside."""
    path = Path(path)
    try:
        # Unlike Path.resolve, realpath accepts loops of links.
        return str(Path(os.path.realpath(path)).relative_to(CHECKOUT))
    except ValueError:
        return str(path)


class InputError(Exception):
    """A mistake in what a person wrote.

    Its text is one line, without passwords: ``file: key: problem; expected ...; did you mean '...'?; hint``.
    Programs and tests read the fields, which have the same names as the arguments.

    Args:
        code: The kind of mistake, in kebab-case (``unknown-key``). Codes are stable, wording is not.
        problem: What is wrong, as a clause.
        file: The file, option or variable with the mistake; a Path is shown as `display_path` returns it.
        key: The dotted key in that file.
        got: The wrong value.
        expected: A description of right values, or a list of them.
        suggestion: The name that was probably meant.
        hint: What to do.
    """

    def __init__(
        self,
        code: str,
        problem: str,
        *,
        file: object = "",
        key: str = "",
        got: object = None,
        expected: str | Sequence[object] = (),
        suggestion: str = "",
        hint: str = "",
    ) -> None:
        self.code, self.problem, self.key = code, problem, key
        self.file = display_path(file) if isinstance(file, Path) else str(file)
        self.got, self.expected, self.suggestion, self.hint = got, expected, suggestion, hint
        super().__init__(_escape(redact(self._sentence())))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields, so that other processes can raise the error."""
        names = ("file", "key", "got", "expected", "suggestion", "hint")
        fields = {name: getattr(self, name) for name in names}
        return functools.partial(InputError, self.code, self.problem, **fields), ()

    def _sentence(self) -> str:
        names = self.expected if isinstance(self.expected, str) else ", ".join(map(str, self.expected))
        expected = (
            f"one of {names}" if not isinstance(self.expected, str) and len(self.expected) > 1 else names
        )
        parts = [
            ": ".join(filter(None, [self.file, self.key, self.problem])),
            f"expected {expected}" if expected else "",
            f"did you mean '{self.suggestion}'?" if self.suggestion else "",
            self.hint,
        ]
        return "; ".join(filter(None, parts))

    @property
    def lines(self) -> list[str]:
        """Lines for a terminal: one for each mistake, with its code in brackets at the end."""
        return [f"{self} [{self.code}]"]


class CodedValueError(ValueError):
    """An invalid value; the caller, which knows its file and key, raises an InputError instead.

    Args:
        code: The code of that InputError.
        problem: What is wrong, as a clause.
    """

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(code, problem)
        self.code, self.problem = code, problem

    def __str__(self) -> str:
        """Return the problem."""
        return self.problem


class InputErrors(InputError):
    """Several mistakes at once: `errors`, of which a terminal shows the first MAX_LINES."""

    def __init__(self, errors: Sequence[InputError]) -> None:
        self.errors = list(errors)
        super().__init__(errors[0].code, "; ".join(map(str, errors)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the errors, so that other processes can raise them."""
        return InputErrors, (self.errors,)

    @property
    def lines(self) -> list[str]:
        """Lines for a terminal: those of the first mistakes, and the number of further ones."""
        rest = len(self.errors) - MAX_LINES
        printed = [line for error in self.errors[:MAX_LINES] for line in error.lines]
        return [*printed, *([f"and {rest} more like these"] if rest > 0 else [])]


def check_range(option: str, value: float | None, minimum: float, maximum: float) -> None:
    """Raise InputError if an option's value is NaN or out of its range; None is accepted."""
    if value is None:
        return
    if math.isnan(value):
        raise InputError("wrong-type", f"{value} is not a number", file=option, got=value)
    if not minimum <= value <= maximum:
        is_small = value < minimum
        problem = f"{value:g} is too {'small' if is_small else 'large'}"
        expected = f"at least {minimum:g}" if is_small else f"at most {maximum:g}"
        raise InputError("out-of-range", problem, file=option, got=value, expected=expected)


def _escape(text: str) -> str:
    """Escape unprintable characters, such as a line break in a quoted name."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


@contextmanager
def system_faults(path: Path) -> Iterator[None]:
    """Turn an OSError in the block, such as a full disk, into an InputError.

    It names the file that the OSError names, or else `path`.
    """
    try:
        yield
    except OSError as error:
        raise system_error(error, path) from None


def system_error(error: OSError, path: object = "") -> InputError:
    """Return an InputError with the system's message and the file of the error, or else `path`."""
    problem = error.strerror or str(error)
    return InputError(SYSTEM_CODE, problem, file=error.filename or path, hint="correct it, then start again")


def raise_if_machine_error(error: Exception, path: object = "") -> None:
    """Raise an InputError if an error is one of MACHINE_ERRORS.

    A file that such an error makes unreadable is not broken and need not be rebuilt.
    """
    if isinstance(error, OSError) and error.errno in MACHINE_ERRORS:
        raise system_error(error, path) from None


def exit_status(main: Callable[[], None]) -> int:
    """Run a program's main function and return its exit status.

    An InputError, or an OSError of SYSTEM_ERRORS, prints its lines on stderr and returns 2. If the reader of
    standard output has gone, such as `head`, the output is discarded and the status is 0.
    """
    open_streams()
    try:
        main()
        sys.stdout.flush()
    except InputError as error:
        print_error(error)
        return 2
    except BrokenPipeError:
        if not _has_lost_reader():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout on exit.
    except OSError as error:
        if error.errno not in SYSTEM_ERRORS:
            raise
        print_error(system_error(error))
        return 2
    return 0


def print_line(line: str, to_stderr: bool = False) -> None:
    """Print a line; discard all output if the reader or the terminal is gone."""
    stream = sys.stderr if to_stderr else sys.stdout
    try:
        print(line, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_streams() -> None:
    """Open standard streams that the caller closed (``>&-``), on /dev/null.

    Otherwise the next files to be opened would get the descriptors 0 to 2, and print would fail.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def print_error(error: InputError) -> None:
    """Print the lines of an error on stderr."""
    for line in error.lines:
        print(f"ringside: {line}", file=sys.stderr)


def _has_lost_reader() -> bool:
    """Return whether the reader of standard output has gone, such as `head` after its last line."""
    watched = select.poll()
    watched.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in watched.poll(0))
