"""Recognize that memory ran out, by the types of exceptions and the messages of libraries.

A rank that runs out of memory writes a report into the attempt's folder. The launcher derives the status
`oom` from it (launchers/oom_evidence.py). It searches logs for the same messages, since some programs end
without an exception. Messages of schedulers are known to their launchers. This module imports no library.
"""

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

REPORT_FILES = "out-of-memory-*.json"  # one for each rank that ran out of memory
MAX_ERROR_LENGTH = 300
MAX_CHAIN = 20  # exceptions that led to one another
DEVICE, HOST = "device", "host"  # whose memory ran out: that of the accelerator, or that of the node

# A line that means that training ends, in an exception or in a log.
_TEXTS = re.compile(
    "|".join(
        (
            # PyTorch: the caching allocator; CUDA's and HIP's own calls; the allocator of the CPU
            r"\b(?:CUDA|HIP|XPU|MPS) out of memory",
            r"\b(?:CUDA|HIP) error:? \(?out of memory",
            r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
            # handles and workspaces of cuBLAS, cuDNN, cuSOLVER, cuSPARSE, cuFFT, and of AMD's libraries
            r"\b\w+_STATUS_ALLOC_FAILED\b",
            r"\bCUDNN_STATUS_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED\b",
            r"\bCUFFT_ALLOC_FAILED\b|\bmiopenStatusAllocFailed\b",
            # names of CUDA's and HIP's errors
            r"\bCUDA_ERROR_OUT_OF_MEMORY\b|\bcudaErrorMemoryAllocation\b",
            r"\bhipErrorOutOfMemory\b|\bhipErrorMemoryAllocation\b",
            r"\bHSA_STATUS_ERROR_OUT_OF_RESOURCES\b",
            # NCCL and RCCL
            r"\b(?:Cuda|HIP) failure (?:\d+ )?'out of memory'",
            r"\bFailed to (?:CUDA|HIP) (?:host )?(?:calloc|malloc)",
            # Horovod, LBANN and Hydrogen
            r"\b(?:cuda|hip)(?:Malloc|HostAlloc)\w*\W.{0,80}out of memory",
            r"\b(?:CUDA|cuda|HIP|hip|GPU)\b.{0,80}[(:'\" ]out of memory",
            r"\bstd::bad_alloc\b",
            # TensorFlow and XLA; RESOURCE_EXHAUSTED alone can be a message that is too long, or a full disk
            r"\bOOM when allocating\b",
            r"\b(?:RESOURCE_EXHAUSTED|ResourceExhaustedError)\b.*(?:[Oo]ut of memory|OOM\b|[Aa]llocat)",
            r"\bDst tensor is not initialized\b",
            # Python and NumPy
            r"^(?:\w+\.)*\w*MemoryError(?::|\s*$)",
            r"\bOSError: \[Errno 12\]",
        )
    )
)
# Lines of glog and absl below FATAL: the library can have continued, with a slower algorithm for example.
_NOT_FATAL = re.compile(r"^[IWE]\d{4} |^(?:\S+ \S+ )?[IWE] (?:external|tensorflow|tsl|xla|third_party)/")
_MEMORY_WORDS = re.compile(r"out of memory|\bOOM\b|allocat", re.IGNORECASE)
_HOST_WORDS = re.compile(
    r"DefaultCPUAllocator|HOST_ALLOCATION|HostAlloc|CUDA host|pinned|bad_alloc|(?<!Of)MemoryError|Errno 12"
    r"|on \S*device:CPU"
)
_DEVICE_WORDS = re.compile(
    r"CUDA|Cuda|cuda|HIP|hip|NCCL|nccl|GPU|XPU|MPS|HSA_|CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|miopen"
    r"|device ordinal|Dst tensor"
)
_SIZE = r"([\d.]+) ?((?:[KMGTPE]i?)?B|bytes?)"
_REQUEST = re.compile(rf"(?:[Aa]llocat\w+|alloc(?: async)?|malloc(?: async)?) (?:of size )?{_SIZE}\b")
_REQUEST_BYTES = re.compile(r"request for [\d.]+ ?\w+ \((\d+)B\)")
_REQUEST_SHAPE = re.compile(r"tensor with shape ?\[([\d,]*)\] and type (\w+)")
_FREE = re.compile(rf"of which {_SIZE} is free|[;(] ?{_SIZE} free\b")
_TOTAL = re.compile(rf"total capacity of {_SIZE}|[;(] ?{_SIZE} total capacity")
_DEVICE_NUMBER = re.compile(r"\bGPU[ _:](\d+)|device ordinal (\d+)")
_UNITS = {"B": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_TYPE_BYTES = {"bool": 1, "half": 2, "bfloat16": 2, "float": 4, "double": 8, "complex64": 8, "complex128": 16}


@dataclass(frozen=True)
class OutOfMemory:
    """A failed allocation, as the library reports it; sizes in bytes, None if not reported.

    Attributes:
        error: The line that reports it.
        place: Whose memory ran out, DEVICE or HOST.
        device: Number of the accelerator among those that the rank sees.
        asked_bytes: Size of the failed allocation.
        free_bytes: Free memory at that moment.
        total_bytes: Total memory of the device.
    """

    error: str
    place: str | None = None
    device: int | None = None
    asked_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None


def describe_error(error: BaseException) -> OutOfMemory | None:
    """Return the failed allocation that an exception or one of its causes reports, None if none does."""
    for link in _chain(error):
        text = ": ".join(filter(None, (type(link).__name__, str(link))))
        names = {kind.__name__ for kind in type(link).__mro__}
        if "OutOfMemoryError" in names or ("ResourceExhaustedError" in names and _MEMORY_WORDS.search(text)):
            line = next(filter(_MEMORY_WORDS.search, text.splitlines()), text)
            return _read_numbers(line, _place(text))
        if report := describe_text(text):
            return report
    return None


def describe_text(text: str) -> OutOfMemory | None:
    """Return the first failed allocation that a line of an error or a log reports, None if none does."""
    for line in text.splitlines():
        if _TEXTS.search(line) and not _NOT_FATAL.match(line):
            return _read_numbers(line, _place(line))
    return None


def write_report(error: BaseException, folder: Path, host: str) -> None:
    """Write `folder`/out-of-memory-<rank>.json if this rank fails because memory ran out, which is `error`.

    A report that cannot be written is left out, because the log has the error, too.
    """
    with contextlib.suppress(MemoryError, OSError):
        if report := describe_error(error):
            rank = int(os.environ.get("RINGSIDE_RANK", "0"))
            partial = folder / f".out-of-memory-{rank}"
            content = {**asdict(report), "rank": rank, "host": host, "at": time.time()}
            partial.write_text(json.dumps(content))
            os.replace(partial, folder / REPORT_FILES.replace("*", str(rank)))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, as a traceback lists them."""
    link: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _place(text: str) -> str | None:
    """Return whose memory the text is about, DEVICE or HOST; None if it does not say."""
    return HOST if _HOST_WORDS.search(text) else DEVICE if _DEVICE_WORDS.search(text) else None


def _read_numbers(text: str, place: str | None) -> OutOfMemory:
    number = _DEVICE_NUMBER.search(text) if place != HOST else None
    return OutOfMemory(
        error=" ".join(text.split())[:MAX_ERROR_LENGTH],
        place=place,
        device=int(number[1] or number[2]) if number else None,
        asked_bytes=_asked_bytes(text),
        free_bytes=_bytes(_FREE.search(text)),
        total_bytes=_bytes(_TOTAL.search(text)),
    )


def _asked_bytes(text: str) -> int | None:
    if match := _REQUEST_BYTES.search(text):
        return int(match[1])
    if shape := _REQUEST_SHAPE.search(text):
        sizes = [int(size) for size in shape[1].split(",") if size]
        bits = re.search(r"\d+$", shape[2])  # the bits of int8 or uint64
        item_bytes = _TYPE_BYTES.get(shape[2]) or (int(bits[0]) // 8 if bits else None)
        return item_bytes and math.prod(sizes) * item_bytes
    return _bytes(_REQUEST.search(text))


def _bytes(match: re.Match[str] | None) -> int | None:
    """Return the size in bytes that a match has in its first two groups that matched, a number and a unit.

    Units are powers of 1024.
    """
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    return int(float(number) * 1024 ** _UNITS.get(unit[0], 0))
