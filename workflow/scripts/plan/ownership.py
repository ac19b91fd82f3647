"""Whose Snakemake works in this checkout: tells the lock of a killed one from that of a living one.

Snakemake's own lock is files that a kill leaves behind. Beside them every Snakemake here holds an flock for as long as
it lives, which the system frees however it ends.
"""

import os
from pathlib import Path
from typing import NoReturn

from common.errors import InputError
from common.files import lock

_held: list[int] = []


def locks(state: Path) -> list[Path]:
    """Snakemake's lock files in `state` (.snakemake)."""
    return list((state / "locks").glob("*.lock"))


def hold(state: Path) -> bool:
    """Note for the life of this process that a Snakemake works in `state`; False when another one does."""
    if _held:
        return True
    state.mkdir(exist_ok=True)
    descriptor = os.open(state / "ringside.lock", os.O_RDWR | os.O_CREAT, 0o644)
    if not lock(descriptor):
        os.close(descriptor)
        return False
    _held.append(descriptor)
    return True


def release() -> None:
    """Undo `hold`."""
    while _held:
        os.close(_held.pop())


def claim(state: Path) -> None:
    """`hold`, or InputError: two Snakemakes in one checkout would wait for each other without a word."""
    if not hold(state):
        refuse_second()


def refuse_second() -> NoReturn:
    """InputError: there is another."""
    raise InputError(
        "already-running",
        "another Snakemake is running in this checkout",
        hint="wait until it ends, or use a second clone (to draw the runs so far: ./ringside preview)",
    )


def refuse_unwritable(results: Path) -> None:
    """InputError where nothing can be written in `results`, or where they are to be."""
    there = next(folder for folder in (results, *results.absolute().parents) if os.path.lexists(folder))
    if not os.access(there, os.W_OK, effective_ids=True):
        raise InputError(
            "not-writable",
            "you cannot write here",
            file=there,
            hint="change its permissions, or work in a clone of your own",
        )


def refuse_stale(state: Path) -> None:
    """InputError when a Snakemake that is dead has left its lock; otherwise hold `state` if nobody does."""
    if hold(state) and locks(state):
        release()
        raise InputError(
            "stale-lock",
            "left by a Snakemake that was killed",
            file=f"{state.name}/locks",
            hint="run ./ringside unlock, then start again",
        )
