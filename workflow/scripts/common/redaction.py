"""Find passwords and tokens in text, and hide them before text is printed or stored.

Secrets are: the user's part of a URL (``https://NAME:PASSWORD@host``); a URL parameter with a revealing name
(``?token=...``, ``&X-Amz-Signature=...``); the value of a variable with a revealing name (``HF_TOKEN=...``);
the header ``Authorization``; and text in the form of well-known tokens. In logs, the secrets of this
process's environment, such as passwords of proxies, are hidden wherever they appear. Standard library only.
"""

import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HIDDEN = "***"
MIN_SECRET_LENGTH = 4  # Shorter passwords are not searched for: that would hide ordinary words.
MIN_TOKEN_LENGTH = 16  # A user's part of a URL without a password is a token; a shorter one can be a name.

# The user's part ends at the last @ before a slash. A password can have slashes, unless its colon begins a
# port.
_USER = re.compile(
    r"""(?P<scheme>[a-zA-Z][\w+.-]{0,15}://)"""
    r"""(?P<user>[^\s/?#"'<>]{1,500}|[^\s/?#@:"'<>]{0,100}:(?!\d+/)[^\s@"'<>]{1,400})@"""
)
_TELLING = (
    r"(?:token|secret|passw(?:or)?d|signature|credentials?|api[_-]?key|access[_-]?key|private[_-]?key|oauth)"
)
_PARAMETER = re.compile(
    rf"(?P<name>[?&;](?:[\w.-]{{0,40}}{_TELLING}[\w.-]{{0,40}}|auth|sig|key|pass|pwd)=)"
    r"(?P<value>[^\s&#\"'<>;]+)",
    re.I,
)
_NAME = (
    r"(?:[A-Z0-9]{1,30}_){0,9}"
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_?KEY|SECRET_?KEY|PRIVATE_?KEY)"
)
_VARIABLE = re.compile(rf"(?<![\w$])(?P<name>{_NAME}=)(?P<value>\"[^\"]+\"|'[^']+'|[^\s\"';&|]+)")
_KEY = re.compile(rf"(?<!\w){_NAME}[\"']?\s{{0,9}}:")
_HEADER = re.compile(r"(?P<name>\bauthorization[\"']?\s*[:=]\s*[\"']?(?:\w+\s+)?)(?P<value>[^\s\"']+)", re.I)
_TOKEN = re.compile(r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|pypi-|xox[abp]-)[\w-]{16,}")
_ANY_USER = re.compile(r"://(.*)@")  # in a variable's value, which need not be a valid URL
_REFERENCE = ("$", "<", "{", "`", "*")  # beginnings of values that only refer to a secret


def redact(text: str) -> str:
    """Return `text` with each secret in it replaced by HIDDEN."""
    text = _USER.sub(rf"\g<scheme>{HIDDEN}@", text)
    for pattern in (_PARAMETER, _VARIABLE, _HEADER):
        text = pattern.sub(rf"\g<name>{HIDDEN}", text)
    return _TOKEN.sub(HIDDEN, text)


def redact_log(text: str) -> str:
    """Return a program's output with each secret replaced by HIDDEN, including `environment_secrets`."""
    for secret in environment_secrets():
        text = text.replace(secret, HIDDEN)
    return redact(text)


def redact_file(file: Path, start: int = 0) -> None:
    """Replace the secrets in a log in place, from byte `start` on."""
    with open(file, "r+b") as log:
        log.seek(start)
        content = log.read()
        redacted = redact_log(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if redacted != content:
            log.seek(start)
            log.write(redacted)
            log.truncate()


def find_secret(text: str) -> str:
    """Return a description of the secret in a text, without the secret itself; "" if there is none.

    References such as ``$TOKEN`` are not secrets, nor are short names without a password before an @.
    """
    if match := _USER.search(text):
        name, colon, password = match["user"].partition(":")
        if _is_literal(password or name) and (colon or len(name) >= MIN_TOKEN_LENGTH):
            return "a password in an address"
    if (match := _PARAMETER.search(text)) and "://" in text and _is_literal(match["value"]):
        return f"the secret {match['name'][1:-1]} in an address"
    if (match := _VARIABLE.search(text)) and _is_literal(match["value"].strip("\"'")):
        return f"the value of {match['name'][:-1]}"
    return "a token" if _TOKEN.search(text) else ""


def find_secrets(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the dotted key and a description (see `find_secret`) of each secret in the content of a file.

    Args:
        value: The content, or a part of it.
        keys: The keys that lead to this part.
    """
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if is_secret_name(str(key)) and isinstance(entry, (str, int)) and _is_literal(str(entry) or "$"):
                yield ".".join((*keys, str(key))), f"the value of {key}"
            else:
                yield from find_secrets(entry, (*keys, str(key)))
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from find_secrets(entry, (*keys, str(number)))
    elif isinstance(value, str) and (secret := find_secret(value)):
        yield ".".join(keys), secret


def may_have_secret(text: str) -> bool:
    """Return whether a file's text can have secrets; a quick check that can be True without one."""
    return redact(text) != text or bool(_KEY.search(text))


def is_secret_name(name: str) -> bool:
    """Return whether a variable with this name holds a secret: HF_TOKEN does, HF_TOKEN_FILE does not."""
    return bool(re.fullmatch(_NAME, name))


def environment_secrets() -> list[str]:
    """Return the secrets of this process's environment, longest first.

    These are passwords in URLs of proxies and package indexes, and values of variables with revealing names.
    """
    secrets = set()
    for name, value in os.environ.items():
        if is_secret_name(name):
            secrets.add(value)
        if match := _ANY_USER.search(value):
            password = match[1].partition(":")[2]
            secrets |= {password, urllib.parse.unquote(password)}
    return sorted((secret for secret in secrets if len(secret) >= MIN_SECRET_LENGTH), key=len, reverse=True)


def _is_literal(value: str) -> bool:
    return not value.startswith(_REFERENCE)
