"""Passwords and tokens in text: found, so that no file of a checkout keeps them, and hidden before text is printed or stored.

A secret is the user's part of an address (``https://NAME:PASSWORD@host``), the value of a telling parameter of it (``?token=...``,
``&X-Amz-Signature=...``), the value of a variable with a telling name (``HF_TOKEN=...``), a header ``Authorization``, or a text in
the form of a well-known kind of token. Where log lines are kept, the passwords of this process's own proxies and package indexes
are hidden in whatever form they appear. Standard library only.
"""

import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HIDDEN = "***"
MIN_SECRET_LENGTH = 4  # of a password that is looked for by itself: shorter ones would blot out words
MIN_TOKEN_LENGTH = 16  # of the user's part of an address without a password, which may be a name

# The user's part: up to the last @ before a slash; behind a colon that begins no port also a password with slashes.
_USER = re.compile(
    r"""(?P<scheme>[a-zA-Z][\w+.-]{0,15}://)(?P<user>[^\s/?#"'<>]{1,500}|[^\s/?#@:"'<>]{0,100}:(?!\d+/)[^\s@"'<>]{1,400})@"""
)
_TELLING = (
    r"(?:token|secret|passw(?:or)?d|signature|credentials?|api[_-]?key|access[_-]?key|private[_-]?key|oauth)"
)
_PARAMETER = re.compile(
    rf"(?P<name>[?&;](?:[\w.-]{{0,40}}{_TELLING}[\w.-]{{0,40}}|auth|sig|key|pass|pwd)=)(?P<value>[^\s&#\"'<>;]+)",
    re.I,
)
_NAME = r"(?:[A-Z0-9]{1,30}_){0,9}(?:TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_?KEY|SECRET_?KEY|PRIVATE_?KEY)"
_VARIABLE = re.compile(rf"(?<![\w$])(?P<name>{_NAME}=)(?P<value>\"[^\"]+\"|'[^']+'|[^\s\"';&|]+)")
_KEY = re.compile(rf"(?<!\w){_NAME}[\"']?\s{{0,9}}:")
_HEADER = re.compile(r"(?P<name>\bauthorization[\"']?\s*[:=]\s*[\"']?(?:\w+\s+)?)(?P<value>[^\s\"']+)", re.I)
_TOKEN = re.compile(r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|pypi-|xox[abp]-)[\w-]{16,}")
_ANY_USER = re.compile(r"://(.*)@")  # of a variable's value, which may be written badly
_REFERENCE = ("$", "<", "{", "`", "*")  # how a value begins that only says where the secret is


def redact(text: str) -> str:
    """Return `text` with each secret in it replaced by HIDDEN."""
    text = _USER.sub(rf"\g<scheme>{HIDDEN}@", text)
    for pattern in (_PARAMETER, _VARIABLE, _HEADER):
        text = pattern.sub(rf"\g<name>{HIDDEN}", text)
    return _TOKEN.sub(HIDDEN, text)


def redact_log(text: str) -> str:
    """Return text that a program wrote with each secret in it, and each password of this process's environment, replaced by HIDDEN."""
    for secret in environment_secrets():
        text = text.replace(secret, HIDDEN)
    return redact(text)


def redact_file(file: Path, start: int = 0) -> None:
    """Redact a log from byte `start` on, where it holds a secret."""
    with open(file, "r+b") as log:
        log.seek(start)
        content = log.read()
        redacted = redact_log(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if redacted != content:
            log.seek(start)
            log.write(redacted)
            log.truncate()


def find_secret(text: str) -> str:
    """Return what in a text of a file is a secret, in words without the secret itself; "" where there is none.

    What only says where a secret is, such as ``$TOKEN``, is none, nor is a short name without a password before an @.
    """
    if found := _USER.search(text):
        name, colon, password = found["user"].partition(":")
        if _is_literal(password or name) and (colon or len(name) >= MIN_TOKEN_LENGTH):
            return "a password in an address"
    if (found := _PARAMETER.search(text)) and "://" in text and _is_literal(found["value"]):
        return f"the secret {found['name'][1:-1]} in an address"
    if (found := _VARIABLE.search(text)) and _is_literal(found["value"].strip("\"'")):
        return f"the value of {found['name'][:-1]}"
    return "a token" if _TOKEN.search(text) else ""


def find_secrets(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the dotted key of each text with a secret in what a file holds, and what it is; see `find_secret`."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            if is_secret_name(str(key)) and isinstance(one, (str, int)) and _is_literal(str(one) or "$"):
                yield ".".join((*keys, str(key))), f"the value of {key}"
            else:
                yield from find_secrets(one, (*keys, str(key)))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from find_secrets(one, (*keys, str(number)))
    elif isinstance(value, str) and (what := find_secret(value)):
        yield ".".join(keys), what


def may_have_secret(text: str) -> bool:
    """Return whether a file's text has to be read for secrets: quick, and too careful."""
    return redact(text) != text or bool(_KEY.search(text))


def is_secret_name(name: str) -> bool:
    """Return whether a variable with this name holds a secret, such as HF_TOKEN; not HF_TOKEN_FILE, which says where one is."""
    return bool(re.fullmatch(_NAME, name))


def environment_secrets() -> list[str]:
    """Return the secret values in this process's environment, the longest first.

    These are the passwords for proxies and package indexes, and the values of variables with telling names.
    """
    secrets = set()
    for name, value in os.environ.items():
        if is_secret_name(name):
            secrets.add(value)
        if found := _ANY_USER.search(value):
            password = found[1].partition(":")[2]
            secrets |= {password, urllib.parse.unquote(password)}
    return sorted((one for one in secrets if len(one) >= MIN_SECRET_LENGTH), key=len, reverse=True)


def _is_literal(value: str) -> bool:
    return not value.startswith(_REFERENCE)
