"""One file from one address to a partial file, which a later try goes on with: http, https and file addresses.

Two kinds of faults: `Elsewhere` (this address will not have it; `Another`: it has another file) and `Again` (it may, if asked once more).
"""

import datetime
import email.utils
import os
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import requests
import urllib3

from common.files import write_text
from common.redaction import redact_log
from common.text import size as size_text
from environments.steps import print_progress

CHUNK = 1 << 17
WORTH_ANOTHER_TRY = (408, 425, 429)  # and everything from 500 on


class Elsewhere(Exception):
    """This address does not have the file; the message says why."""


class Another(Elsewhere):
    """This address has another file than the one declared. `key`: what of the declaration it breaks."""

    def __init__(self, why: str, key: str) -> None:
        super().__init__(why)
        self.key = key


class Again(Exception):
    """The file did not come, or not to its end. `pause_s`: how long the server asks to be left alone."""

    def __init__(self, why: str, pause_s: float = 0) -> None:
        super().__init__(why)
        self.pause_s = pause_s


@dataclass(frozen=True)
class Patience:
    """How long is waited, in seconds, how often is tried, and how slow a server may be: bytes a second over `read_s`."""

    connect_s: float = 10
    read_s: float = 60
    tries: int = 5
    pause_s: float = 1
    longest_pause_s: float = 60
    progress_s: float = 10
    least_bytes_s: float = 1000


def transfer(url: str, partial: Path, size: int, patience: Patience, what: str) -> None:
    """Bring the `size` bytes at `url` into `partial`, from where an earlier try ended. Elsewhere when that cannot be."""
    for number in range(1, patience.tries + 1):
        try:
            _once(url, partial, size, patience, what)
        except Again as fault:
            if number == patience.tries:
                raise Elsewhere(f"{fault} (tried {number} times)") from None
            pause = min(max(fault.pause_s, patience.pause_s * 2 ** (number - 1)), patience.longest_pause_s)
            print_progress(f"{what}: {url}: {fault}; trying again in {pause:g} s")
            time.sleep(pause)
        else:
            return


def forget(partial: Path) -> None:
    """Remove a partial file and what is known of it."""
    for file in (partial, _validator_file(partial)):
        file.unlink(missing_ok=True)


def _once(url: str, partial: Path, size: int, patience: Patience, what: str) -> None:
    """One try. The partial file keeps what came."""
    started = time.monotonic()
    have = _resumable(partial, size)
    if have == size:
        return
    print_progress(f"{what}: fetching {size_text(size)} from {url}" + f", from byte {have} on" * (have > 0))
    begun = now = 0
    try:
        with _opened(url, partial, have, size, patience) as (begun, chunks):
            now, told = begun, started
            looked, had = started, begun
            with open(partial, "ab" if begun else "wb", buffering=0) as file:
                for chunk in chunks:
                    now += len(chunk)
                    if now > size:
                        raise Another(f"sends more than the {size} bytes declared", "bytes")
                    file.write(chunk)
                    at = time.monotonic()
                    if at - looked >= patience.read_s:
                        if now < size and now - had < patience.least_bytes_s * (at - looked):
                            raise Again(f"only {_rate(now - had, looked)} came, after {now} of {size} bytes")
                        looked, had = at, now
                    if at - told >= patience.progress_s:
                        told = at
                        print_progress(f"{what}: {size_text(now)} of {size_text(size)}, {_rate(now - begun, started)}")
                os.fsync(file.fileno())
    except Elsewhere:
        forget(partial)
        raise
    except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError):
        raise Again(f"nothing came for {patience.read_s:g} s, after {now} of {size} bytes") from None
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise Again(f"the connection broke after {now} of {size} bytes ({type(error).__name__})") from None
    if now < size:
        raise Again(f"ended after {now} of {size} bytes")
    print_progress(f"{what}: fetched {size_text(now - begun)}, {_rate(now - begun, started)}")


@contextmanager
def _opened(url: str, partial: Path, have: int, size: int, patience: Patience) -> Iterator[tuple[int, Iterator[bytes]]]:
    """The byte that the answer begins with, `have` or 0, and its content. Elsewhere or Again when it is none."""
    if url.startswith("file:"):
        with _local(url, size) as file:
            yield 0, iter(lambda: file.read(CHUNK), b"")
        return
    with _answer(url, partial, have, patience) as response:
        begun = have if response.status_code == requests.codes.partial_content else 0
        if _whole_size(response, begun) not in (None, size):
            raise Another(f"has {_whole_size(response, begun)} bytes there, the entry says {size}", "bytes")
        if begun == 0:
            forget(partial)
            _keep_validator(response, partial)
        # Raw: a server that calls a .gz file an encoding would otherwise have it unpacked. What is there, however little.
        yield begun, iter(lambda: response.raw.read1(CHUNK, decode_content=False), b"")


@contextmanager
def _local(url: str, size: int) -> Iterator[BinaryIO]:
    """The file that a file:// address names."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.netloc not in ("", "localhost"):  # RFC 8089, section 2: a file of another host
            raise Elsewhere(f"is a file of the host {parts.netloc}, not of this machine")
        path = Path(urllib.request.url2pathname(parts.path))
        found = path.stat().st_size
    except (OSError, ValueError) as error:
        raise Elsewhere(getattr(error, "strerror", None) or f"names no file: {error}") from None
    if found != size:
        raise Another(f"has {found} bytes there, the entry says {size}", "bytes")
    with open(path, "rb") as file:
        yield file


@contextmanager
def _answer(url: str, partial: Path, have: int, patience: Patience) -> Iterator[requests.Response]:
    """The server's answer, which has what was asked for."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "ringside"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": _validator_file(partial).read_text(encoding="utf-8")}
    try:
        response = requests.get(url, headers=headers, stream=True, timeout=(patience.connect_s, patience.read_s))
    except requests.exceptions.ConnectTimeout:
        raise Again(f"no connection within {patience.connect_s:g} s") from None
    except (requests.exceptions.SSLError, requests.exceptions.TooManyRedirects, ValueError) as error:
        raise Elsewhere(_brief(error)) from None
    except requests.exceptions.ConnectionError as error:
        raise Again(f"no connection ({_brief(error)})") from None
    except OSError as error:  # such as a file of certificates that is not there
        raise Elsewhere(_brief(error)) from None
    with response:
        status = response.status_code
        if status == requests.codes.requested_range_not_satisfiable and have:
            forget(partial)
            raise Again(f"refuses to go on from byte {have}")
        if status in WORTH_ANOTHER_TRY or status >= 500:
            raise Again(f"{status} {response.reason}", _retry_after(response))
        if status not in (requests.codes.ok, requests.codes.partial_content):
            raise Elsewhere(f"{status} {response.reason}")
        if status == requests.codes.partial_content and _range_start(response) != have:
            forget(partial)
            raise Again(f"answers with other bytes than those from {have} on")
        yield response


def _resumable(partial: Path, size: int) -> int:
    """How many bytes an earlier try left that can be gone on with: a server must be able to say that its file is the same."""
    if not partial.is_file() or not _validator_file(partial).is_file() or partial.stat().st_size > size:
        return 0
    return partial.stat().st_size


def _validator_file(partial: Path) -> Path:
    return partial.with_suffix(".validator")


def _keep_validator(response: requests.Response, partial: Path) -> None:
    """Keep the strong ETag or the date of the server's file, for If-Range (RFC 9110, section 13.1.5)."""
    tag = response.headers.get("ETag", "")
    validator = tag if tag.startswith('"') else response.headers.get("Last-Modified")
    if validator:
        write_text(_validator_file(partial), validator)


def _range_start(response: requests.Response) -> int:
    """The first byte that a partial answer says it has; 0 where it does not say."""
    found = re.match(r"bytes ([0-9]{1,18})-", response.headers.get("Content-Range", ""))
    return int(found[1]) if found else 0


def _whole_size(response: requests.Response, begun: int) -> int | None:
    """The size of the whole file, as far as the answer says."""
    length = response.headers.get("Content-Length", "")
    return begun + int(length) if re.fullmatch("[0-9]{1,18}", length) else None


def _retry_after(response: requests.Response) -> float:
    """Seconds that the server asks to wait, as a number or as a date; 0 where it does not ask."""
    said = response.headers.get("Retry-After", "")
    if re.fullmatch("[0-9]{1,9}", said):
        return float(said)
    with suppress(ValueError, OverflowError):
        until = email.utils.parsedate_to_datetime(said)
        until = until.replace(tzinfo=until.tzinfo or datetime.UTC)  # some servers leave out that it is GMT
        return max(0.0, (until - datetime.datetime.now(datetime.UTC)).total_seconds())
    return 0


def _brief(error: Exception) -> str:
    """The cause of a fault, without passwords and the names of the libraries' objects around it."""
    text = redact_log(str(error.args[0] if error.args else error))
    causes = re.findall(r"\[Errno -?\d+\] ([^'\")\]]+)|\(_ssl.c", text)
    return next((cause for cause in causes if cause), text)[:120]


def _rate(fetched: int, started: float) -> str:
    return f"{size_text(fetched / max(time.monotonic() - started, 1e-3))}/s"
