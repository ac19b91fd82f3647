"""Encode what the page embeds: JSON that cannot end a script element, and compressed blocks."""

import base64
import gzip
import json
from typing import Any

from markupsafe import Markup

_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def json_text(value: Any) -> str:
    """Return `value` as JSON in ASCII, without characters that are special in HTML.

    Raises:
        ValueError: For NaN and infinity.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character, escaped in _ESCAPED.items():
        text = text.replace(character, escaped)
    return text


def json_element(value: Any) -> Markup:
    """Return `value` for a script element of type application/json."""
    return Markup(json_text(value))  # noqa: S704 (nothing in it can end the element)


def block(content: str | bytes) -> Markup:
    """Return `content` compressed (gzip, without a date), in base64, for a script element of data."""
    raw = content if isinstance(content, bytes) else content.encode("utf-8", errors="replace")
    raw = gzip.compress(raw, compresslevel=9, mtime=0)
    return Markup(base64.b64encode(raw).decode("ascii"))  # noqa: S704 (letters, digits, + / =)
