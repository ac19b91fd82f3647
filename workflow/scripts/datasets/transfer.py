"""Transfer one file from an http, https or file address to a partial file, which a later attempt resumes.

`SourceError` means that this address does not have the file (`WrongFileError`: it has another one),
`TransientError` that a retry may succeed.
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
RETRIED_STATUSES = (408, 425, 429)  # and all from 500 on


class SourceError(Exception):
    """The address does not have the file; the message says why."""


class WrongFileError(SourceError):
    """The address has another file than the declared one; ``key`` is the key of the entry that disagrees."""

    def __init__(self, reason: str, key: str) -> None:
        super().__init__(reason)
        self.key = key


class TransientError(Exception):
    """The transfer failed or was cut; ``pause_s`` is the pause that the server asks for."""

    def __init__(self, reason: str, pause_s: float = 0) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


@dataclass(frozen=True)
class RetryPolicy:
    """Timeouts and retries of a transfer.

    Attributes:
        connect_s: Timeout of a connection.
        read_s: Timeout of a read, and the period over which the rate is measured.
        n_attempts: Number of attempts.
        pause_s: Pause after the first attempt; it doubles after each further one.
        max_pause_s: Longest pause between attempts.
        progress_s: Time between progress messages.
        min_bytes_s: Slowest accepted rate in bytes per second.
    """

    connect_s: float = 10
    read_s: float = 60
    n_attempts: int = 5
    pause_s: float = 1
    max_pause_s: float = 60
    progress_s: float = 10
    min_bytes_s: float = 1000


def transfer(url: str, partial: Path, size: int, retry_policy: RetryPolicy, label: str) -> None:
    """Download the ``size`` bytes at ``url`` into ``partial``, resuming an earlier attempt.

    Raises:
        SourceError: If the address does not have the file, or all attempts failed.
    """
    for number in range(1, retry_policy.n_attempts + 1):
        try:
            _attempt(url, partial, size, retry_policy, label)
        except TransientError as fault:
            if number == retry_policy.n_attempts:
                raise SourceError(f"{fault} (tried {number} times)") from None
            pause = min(
                max(fault.pause_s, retry_policy.pause_s * 2 ** (number - 1)), retry_policy.max_pause_s
            )
            print_progress(f"{label}: {url}: {fault}; retrying in {pause:g} s")
            time.sleep(pause)
        else:
            return


def remove_partial(partial: Path) -> None:
    """Remove a partial file and its validator."""
    for file in (partial, _validator_file(partial)):
        file.unlink(missing_ok=True)


def _attempt(url: str, partial: Path, size: int, retry_policy: RetryPolicy, label: str) -> None:
    """Make one attempt; the partial file keeps the bytes received."""
    started = time.monotonic()
    offset = _resumable_bytes(partial, size)
    if offset == size:
        return
    print_progress(
        f"{label}: fetching {size_text(size)} from {url}" + f", from byte {offset} on" * (offset > 0)
    )
    begun = now = 0
    try:
        with _open_source(url, partial, offset, size, retry_policy) as (begun, chunks):
            now, reported_at = begun, started
            checked_at, checked_bytes = started, begun
            with open(partial, "ab" if begun else "wb", buffering=0) as file:
                for chunk in chunks:
                    now += len(chunk)
                    if now > size:
                        raise WrongFileError(f"sends more than the {size} bytes declared", "bytes")
                    file.write(chunk)
                    at = time.monotonic()
                    if at - checked_at >= retry_policy.read_s:
                        n_new = now - checked_bytes
                        if now < size and n_new < retry_policy.min_bytes_s * (at - checked_at):
                            raise TransientError(
                                f"only {_rate(n_new, checked_at)} received, after {now} of {size} bytes"
                            )
                        checked_at, checked_bytes = at, now
                    if at - reported_at >= retry_policy.progress_s:
                        reported_at = at
                        print_progress(
                            f"{label}: {size_text(now)} of {size_text(size)}, {_rate(now - begun, started)}"
                        )
                os.fsync(file.fileno())
    except SourceError:
        remove_partial(partial)
        raise
    except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError):
        raise TransientError(f"no data for {retry_policy.read_s:g} s, after {now} of {size} bytes") from None
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise TransientError(
            f"the connection broke after {now} of {size} bytes ({type(error).__name__})"
        ) from None
    if now < size:
        raise TransientError(f"ended after {now} of {size} bytes")
    print_progress(f"{label}: fetched {size_text(now - begun)}, {_rate(now - begun, started)}")


@contextmanager
def _open_source(
    url: str, partial: Path, offset: int, size: int, retry_policy: RetryPolicy
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Yield the offset at which the response begins, ``offset`` or 0, and its chunks."""
    if url.startswith("file:"):
        with _open_local(url, size) as file:
            yield 0, iter(lambda: file.read(CHUNK), b"")
        return
    with _request(url, partial, offset, retry_policy) as response:
        begun = offset if response.status_code == requests.codes.partial_content else 0
        if _file_size(response, begun) not in (None, size):
            raise WrongFileError(
                f"has {_file_size(response, begun)} bytes there, the entry says {size}", "bytes"
            )
        if begun == 0:
            remove_partial(partial)
            _store_validator(response, partial)
        # Read raw, because requests unpacks a .gz file whose server declares it as an encoding; read1 returns
        # partial chunks.
        yield begun, iter(lambda: response.raw.read1(CHUNK, decode_content=False), b"")


@contextmanager
def _open_local(url: str, size: int) -> Iterator[BinaryIO]:
    """Open the file that a file:// address names."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.netloc not in ("", "localhost"):  # RFC 8089, section 2: a file of another host
            raise SourceError(f"is a file of the host {parts.netloc}, not of this machine")
        path = Path(urllib.request.url2pathname(parts.path))
        n_bytes = path.stat().st_size
    except (OSError, ValueError) as error:
        raise SourceError(getattr(error, "strerror", None) or f"names no file: {error}") from None
    if n_bytes != size:
        raise WrongFileError(f"has {n_bytes} bytes there, the entry says {size}", "bytes")
    with open(path, "rb") as file:
        yield file


@contextmanager
def _request(url: str, partial: Path, offset: int, retry_policy: RetryPolicy) -> Iterator[requests.Response]:
    """Yield the server's successful response."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "ringside"}
    if offset:
        headers |= {
            "Range": f"bytes={offset}-",
            "If-Range": _validator_file(partial).read_text(encoding="utf-8"),
        }
    try:
        response = requests.get(
            url, headers=headers, stream=True, timeout=(retry_policy.connect_s, retry_policy.read_s)
        )
    except requests.exceptions.ConnectTimeout:
        raise TransientError(f"no connection within {retry_policy.connect_s:g} s") from None
    except (requests.exceptions.SSLError, requests.exceptions.TooManyRedirects, ValueError) as error:
        raise SourceError(_cause(error)) from None
    except requests.exceptions.ConnectionError as error:
        raise TransientError(f"no connection ({_cause(error)})") from None
    except OSError as error:  # such as a missing file of certificates
        raise SourceError(_cause(error)) from None
    with response:
        status = response.status_code
        if status == requests.codes.requested_range_not_satisfiable and offset:
            remove_partial(partial)
            raise TransientError(f"refuses to resume at byte {offset}")
        if status in RETRIED_STATUSES or status >= 500:
            raise TransientError(f"{status} {response.reason}", _retry_after(response))
        if status not in (requests.codes.ok, requests.codes.partial_content):
            raise SourceError(f"{status} {response.reason}")
        if status == requests.codes.partial_content and _range_start(response) != offset:
            remove_partial(partial)
            raise TransientError(f"answers with other bytes than those from {offset} on")
        yield response


def _resumable_bytes(partial: Path, size: int) -> int:
    """Return how many bytes of an earlier attempt can be kept, 0 without a validator of the server's file."""
    if not partial.is_file() or not _validator_file(partial).is_file() or partial.stat().st_size > size:
        return 0
    return partial.stat().st_size


def _validator_file(partial: Path) -> Path:
    return partial.with_suffix(".validator")


def _store_validator(response: requests.Response, partial: Path) -> None:
    """Store the strong ETag or the date of the server's file for If-Range (RFC 9110, section 13.1.5)."""
    tag = response.headers.get("ETag", "")
    validator = tag if tag.startswith('"') else response.headers.get("Last-Modified")
    if validator:
        write_text(_validator_file(partial), validator)


def _range_start(response: requests.Response) -> int:
    """Return the first byte of a partial response by its Content-Range, 0 without one."""
    match = re.match(r"bytes ([0-9]{1,18})-", response.headers.get("Content-Range", ""))
    return int(match[1]) if match else 0


def _file_size(response: requests.Response, begun: int) -> int | None:
    """Return the size of the file by the response's Content-Length, None without one."""
    length = response.headers.get("Content-Length", "")
    return begun + int(length) if re.fullmatch("[0-9]{1,18}", length) else None


def _retry_after(response: requests.Response) -> float:
    """Return the seconds of a Retry-After header, a number or a date; 0 without one."""
    value = response.headers.get("Retry-After", "")
    if re.fullmatch("[0-9]{1,9}", value):
        return float(value)
    with suppress(ValueError, OverflowError):
        until = email.utils.parsedate_to_datetime(value)
        until = until.replace(tzinfo=until.tzinfo or datetime.UTC)  # some servers omit the zone
        return max(0.0, (until - datetime.datetime.now(datetime.UTC)).total_seconds())
    return 0


def _cause(error: Exception) -> str:
    """Return the cause of an error without passwords and without the object names that libraries add."""
    text = redact_log(str(error.args[0] if error.args else error))
    causes = re.findall(r"\[Errno -?\d+\] ([^'\")\]]+)|\(_ssl.c", text)
    return next((cause for cause in causes if cause), text)[:120]


def _rate(fetched: int, started: float) -> str:
    return f"{size_text(fetched / max(time.monotonic() - started, 1e-3))}/s"
