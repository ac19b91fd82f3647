"""Clear the way for Snakemake: check its folders, and remove the lock of a killed one, never that of a living one."""

import getpass
import os
import sys
import tempfile
from pathlib import Path

from common.errors import InputError
from common.options import run_program
from plan.ownership import hold, locks, release

STATE = Path(".snakemake")
PROBE_BYTES = 1 << 16


def check_cache(folder: Path) -> None:
    """InputError when Snakemake could not write to the user's cache, where it keeps its sources: it would end with a traceback."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
    except OSError as error:
        hint = "make room there, or name another folder in the variable XDG_CACHE_HOME"
        problem = f"Snakemake cannot write there: {error.strerror}"
        raise InputError("unwritable-cache", problem, file=folder, hint=hint) from None


def check_temporary_folder() -> None:
    """InputError when there is no folder for temporary files, which Snakemake and every framework need."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        problem, hint = error.strerror or str(error), "make room in one of them, or name another in the variable TMPDIR"
        raise InputError("no-temporary-folder", problem, hint=hint) from None


def check_folders() -> None:
    """InputError when a folder cannot be written to that Snakemake needs before it reads a rule."""
    check_temporary_folder()
    check_cache(user_cache() / "snakemake")
    if os.path.lexists(STATE) and not STATE.is_dir():
        hint = "remove it: Snakemake keeps its state in a folder of this name"
        raise InputError("not-a-folder", "is no folder", file=STATE, expected="a folder", hint=hint)


def name_user() -> None:
    """Give a user whom this machine does not know, as in many containers, a name, without which Snakemake ends in a traceback."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = str(os.getuid())


def user_cache() -> Path:
    """Return the folder for what programs of this user keep (XDG Base Directory Specification). InputError where there is no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        problem = "is not set, and this machine does not know the user"
        raise InputError("no-home", problem, file="HOME", expected="an absolute folder") from None


def main(*, if_stale: bool = False) -> None:
    """Remove the lock of a Snakemake that is dead. Run in the checkout.

    Args:
        if_stale: print nothing where there is no stale lock; check the folders that Snakemake writes to, too
    """
    if if_stale:
        check_folders()
    left = locks(STATE)
    if left and hold(STATE):
        for lock in left:
            lock.unlink(missing_ok=True)
        release()
        print("removed the lock of a Snakemake that was killed")
    elif left and not if_stale:
        raise InputError(
            "already-running",
            "the Snakemake that holds it is still running",
            file=f"{STATE}/locks",
            hint="end it first",
        )
    elif not if_stale:
        print("there is no lock")


if __name__ == "__main__":
    sys.exit(run_program(main))
