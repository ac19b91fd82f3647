"""Assert on code, fields, numbers and names of an InputError, not on its wording."""

import re
from collections.abc import Iterable

from common.errors import InputError


def assert_refusal(
    error: InputError, code: str, key: str = "", mentions: Iterable[object] = (), **fields: object
) -> None:
    """Assert that an error has this code, key and fields, and that its one line contains all `mentions`."""
    assert (error.code, error.key) == (code, key)
    assert {name: getattr(error, name) for name in fields} == fields
    line = str(error)
    assert line and line.isprintable()
    for mention in mentions:
        assert re.search(rf"(?<![\w.]){re.escape(str(mention))}(?!\w)", line), f"{mention} is not in {line}"
