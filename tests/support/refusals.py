"""What a refusal states, without the words in which it does: its code, its fields, and the numbers and names
in its one line.
"""

import re
from collections.abc import Iterable

from common.errors import InputError


def assert_refusal(
    error: InputError, code: str, key: str = "", mentions: Iterable[object] = (), **fields: object
) -> None:
    """Assert that an error has this code, this key and these fields, and that its line `mentions` these
    numbers and names.
    """
    assert (error.code, error.key) == (code, key)
    assert {name: getattr(error, name) for name in fields} == fields
    line = str(error)
    assert line and line.isprintable()
    for mention in mentions:
        assert re.search(rf"(?<![\w.]){re.escape(str(mention))}(?!\w)", line), f"{mention} is not in {line}"
