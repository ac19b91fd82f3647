"""Distinguish the lock of a killed Snakemake from that of a running one.

Snakemake's own lock consists of files that stay after a kill. Ringside also holds an flock while Snakemake
runs, which the system releases however the process ends.
"""

import os
from pathlib import Path
from typing import NoReturn

from common.errors import InputError
from common.files import acquire_lock

_descriptors: list[int] = []


def lock_files(state: Path) -> list[Path]:
    """Return Snakemake's lock files in `state` (.snakemake)."""
    return list((state / "locks").glob("*.lock"))


def hold(state: Path) -> bool:
    """Lock `state` for the life of this process; return False if another Snakemake has locked it."""
    if _descriptors:
        return True
    state.mkdir(exist_ok=True)
    descriptor = os.open(state / "ringside.lock", os.O_RDWR | os.O_CREAT, 0o644)
    if not acquire_lock(descriptor):
        os.close(descriptor)
        return False
    _descriptors.append(descriptor)
    return True


def release() -> None:
    """Release the lock of `hold`."""
    while _descriptors:
        os.close(_descriptors.pop())


def claim(state: Path) -> None:
    """Hold `state`, or raise InputError, because a second Snakemake would wait without a message."""
    if not hold(state):
        refuse_second()


def refuse_second() -> NoReturn:
    """Raise the InputError for a second Snakemake."""
    raise InputError(
        "already-running",
        "another Snakemake is running in this checkout",
        hint="wait until it ends (./ringside status shows how long), draw the runs so far (./ringside "
        "preview), "
        "or use a second clone",
    )


def raise_if_unwritable(results: Path) -> None:
    """Raise InputError if `results` cannot be written or created."""
    existing = next(folder for folder in (results, *results.absolute().parents) if os.path.lexists(folder))
    if not os.access(existing, os.W_OK, effective_ids=True):
        problem = "you cannot write here"
        hint = "change its permissions, or work in a clone of your own"
        raise InputError("not-writable", problem, file=existing, hint=hint)


def refuse_stale(state: Path) -> None:
    """Raise InputError if a killed Snakemake left its lock; otherwise hold `state` if it is free."""
    if hold(state) and lock_files(state):
        release()
        problem = "left by a Snakemake that was killed"
        hint = "run ./ringside unlock, then rerun the command"
        raise InputError("stale-lock", problem, file=f"{state.name}/locks", hint=hint)
