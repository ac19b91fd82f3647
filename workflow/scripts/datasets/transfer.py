"""Transfer one file from an http, https or file address to a partial file, which a later attempt resumes.

`SourceError` means that the address does not have the file (`WrongFileError`: it has another file), and
`TransientError` that a retry can succeed. The caller checks the SHA-256 of the complete file.
"""

import os
import re
import shutil
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import requests
import urllib3

from common.redaction import redact_log
from common.text import format_bytes
from environments.steps import print_progress

CHUNK = 1 << 17
RETRIED_STATUSES = (408, 425, 429)  # HTTP statuses below 500 that are retried, like all from 500 on


class SourceError(Exception):
    """The address does not have the file; the message says why."""


class WrongFileError(SourceError):
    """The address has another file than the declared one; ``key`` is the contradicting key of the entry."""

    def __init__(self, reason: str, key: str) -> None:
        super().__init__(reason)
        self.key = key


class TransientError(Exception):
    """The transfer failed or was interrupted; a retry can succeed."""


@dataclass(frozen=True)
class RetryPolicy:
    """Timeouts and retries of a transfer.

    Attributes:
        connect_s: Timeout of connecting.
        read_s: Timeout of each read.
        n_attempts: Largest number of attempts.
        pause_s: Pause after the first attempt; it doubles after each further one.
        progress_s: Interval of progress lines.
    """

    connect_s: float = 10
    read_s: float = 60
    n_attempts: int = 5
    pause_s: float = 1
    progress_s: float = 10


def transfer(url: str, partial: Path, size: int, retry_policy: RetryPolicy, label: str) -> None:
    """Transfer the ``size`` bytes at ``url`` to ``partial``, resuming an earlier attempt.

    ``label`` begins the lines of progress.

    Raises:
        SourceError: If the address does not have the file, or all attempts failed.
    """
    if url.startswith("file:"):
        _copy(url, partial, size)
        return
    for number in range(1, retry_policy.n_attempts + 1):
        try:
            _download(url, partial, size, retry_policy, label)
        except TransientError as fault:
            if number == retry_policy.n_attempts:
                raise SourceError(f"{fault} (tried {number} times)") from None
            pause = retry_policy.pause_s * 2 ** (number - 1)
            print_progress(f"{label}: {url}: {fault}; retrying in {pause:g} s")
            time.sleep(pause)
        else:
            return


def _copy(url: str, partial: Path, size: int) -> None:
    """Copy the file that a file:// address names."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.netloc not in ("", "localhost"):  # RFC 8089, section 2: a file of another host
            raise SourceError(f"is a file on the host {parts.netloc}, not on this machine")
        path = Path(urllib.request.url2pathname(parts.path))
        n_bytes = path.stat().st_size
    except (OSError, ValueError) as error:
        raise SourceError(getattr(error, "strerror", None) or f"names no file: {error}") from None
    _check_size(n_bytes, size)
    shutil.copyfile(path, partial)


def _download(url: str, partial: Path, size: int, retry_policy: RetryPolicy, label: str) -> None:
    """Make one attempt; ``partial`` keeps the received bytes."""
    offset = partial.stat().st_size if partial.exists() else 0
    if offset == size:
        return
    resumed = f", from byte {offset} on" if offset else ""
    print_progress(f"{label}: fetching {format_bytes(size)} from {url}{resumed}")
    try:
        with _open(url, offset, retry_policy) as response:
            _store(response, partial, offset, size, retry_policy.progress_s, label)
    except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError):
        raise TransientError(f"no data for {retry_policy.read_s:g} s") from None
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise TransientError(f"the connection failed ({_cause(error)})") from None


def _open(url: str, offset: int, retry_policy: RetryPolicy) -> requests.Response:
    """Request the bytes of a file from an offset on."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "ringside"}
    headers |= {"Range": f"bytes={offset}-"} if offset else {}
    timeouts = retry_policy.connect_s, retry_policy.read_s
    try:
        return requests.get(url, headers=headers, stream=True, timeout=timeouts)
    except (requests.exceptions.SSLError, requests.exceptions.TooManyRedirects, ValueError) as error:
        raise SourceError(_cause(error)) from None
    except requests.RequestException:  # Although it is an OSError, the caller can retry it.
        raise
    except OSError as error:  # Certificates can be missing, for example.
        raise SourceError(_cause(error)) from None


def _store(
    response: requests.Response, partial: Path, offset: int, size: int, progress_s: float, label: str
) -> None:
    """Append a response to the partial file, or replace the file if the server ignores the range."""
    status, length = response.status_code, response.headers.get("Content-Length", "")
    if status in RETRIED_STATUSES or status >= 500:
        raise TransientError(f"{status} {response.reason}")
    is_resumed = status == requests.codes.partial_content
    starts_at_offset = response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")
    if status == requests.codes.requested_range_not_satisfiable or (is_resumed and not starts_at_offset):
        partial.unlink(missing_ok=True)
        raise TransientError(f"refuses to resume at byte {offset}")
    if status not in (requests.codes.ok, requests.codes.partial_content):
        raise SourceError(f"{status} {response.reason}")
    first = offset if is_resumed else 0
    if length.isdecimal():
        _check_size(first + int(length), size)
    n_bytes, started = first, time.monotonic()
    reported_at = started
    with open(partial, "ab" if first else "wb", buffering=0) as file:
        # The raw stream is read, because requests would unpack a .gz file that the server declares as an
        # encoding. Unlike read, read1 returns the bytes of an interrupted transfer.
        while chunk := response.raw.read1(CHUNK, decode_content=False):
            n_bytes += len(chunk)
            if n_bytes > size:
                raise WrongFileError(f"sends more than the {size} bytes declared", "bytes")
            file.write(chunk)
            if time.monotonic() - reported_at >= progress_s:
                reported_at = time.monotonic()
                rate = format_bytes((n_bytes - first) / (reported_at - started))
                print_progress(f"{label}: {format_bytes(n_bytes)} of {format_bytes(size)}, {rate}/s")
        os.fsync(file.fileno())
    if n_bytes < size:
        raise TransientError(f"ended after {n_bytes} of {size} bytes")
    print_progress(f"{label}: fetched {format_bytes(n_bytes - first)}")


def _check_size(n_bytes: int, size: int) -> None:
    if n_bytes != size:
        raise WrongFileError(f"has {n_bytes} bytes; the entry says {size}", "bytes")


def _cause(error: Exception) -> str:
    """Return the cause of an error, without secrets and without the objects' names that libraries add."""
    text = redact_log(str(error.args[0] if error.args else error))
    causes = re.findall(r"\[Errno -?\d+\] ([^'\")\]]+)|\(_ssl.c", text)
    return next((cause for cause in causes if cause), text)[:120]
