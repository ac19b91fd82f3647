"""Parse protocol buffers' text format without a schema, such as LBANN's input."""

import json
import re
from typing import Any

TOKEN = re.compile(r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<word>[\w.+-]+)|(?P<sign>[{}:]))')

Fields = dict[str, list[Any]]


def parsed(text: str) -> Fields:
    """Return each field's values in order; words that are neither number nor boolean stay text."""
    tokens, at = [], 0
    while text[at:].strip():
        match = TOKEN.match(text, at)
        assert match, f"not understood: {text[at : at + 40]!r}"
        tokens.append(match[0].strip())
        at = match.end()
    message, rest = _message(tokens)
    assert not rest, f"closed too often, before {rest[:5]}"
    return message


def _message(tokens: list[str]) -> tuple[Fields, list[str]]:
    fields: Fields = {}
    at = 0
    while at < len(tokens) and tokens[at] != "}":
        name, sign = tokens[at], tokens[at + 1]
        if sign == "{":
            value, rest = _message(tokens[at + 2 :])
            assert rest and rest[0] == "}", f"{name} is not closed"
            at = len(tokens) - len(rest) + 1
        else:
            assert sign == ":", f"{name} has no value"
            value, at = _value(tokens[at + 2]), at + 3
        fields.setdefault(name, []).append(value)
    return fields, tokens[at:]


def _value(token: str) -> Any:
    try:
        return json.loads(token)
    except ValueError:
        return token
