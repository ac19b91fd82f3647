"""Write the part of Protocol Buffers' text format that LBANN's experiments (`--prototext`) need."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]


class Word(str):
    """A value of an enumeration, written without quotes."""


def text(message: Message) -> str:
    """Return a message as text, with each field on a separate line.

    A mapping is a message; a list or tuple is a repeated field with a line or block for each element.

    Raises:
        TypeError: If a value is neither text, a number nor a boolean.
    """
    return "".join(f"{line}\n" for line in _lines(message))


def _lines(message: Message) -> Iterator[str]:
    for field, value in message.items():
        repeated = isinstance(value, Sequence) and not isinstance(value, str)
        for element in value if repeated else (value,):
            if isinstance(element, Mapping):
                yield f"{field} {{"
                yield from (f"  {line}" for line in _lines(element))
                yield "}"
            else:
                yield f"{field}: {_scalar(element)}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Word):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(float(value))  # NumPy's numbers, too
    raise TypeError(f"{value!r} cannot stand in a prototext: expected text, a number, true or false")
