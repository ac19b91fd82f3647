"""One way to refuse bad input: a single clear line and exit status 2."""

import sys
from collections.abc import Callable


class InputError(Exception):
    """Something that a person wrote is wrong. The message is one line: file, key, what was expected, what to do."""


def exit_status(main: Callable[[], None]) -> int:
    """Run a program's main; 0 when it returns, 2 with one line on stderr when its input is wrong."""
    try:
        main()
    except InputError as error:
        print(f"ringside: {error}", file=sys.stderr)
        return 2
    return 0
