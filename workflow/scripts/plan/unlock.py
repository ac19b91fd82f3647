"""Check the folders that Snakemake needs, and remove the lock of a killed Snakemake (`ringside unlock`)."""

import getpass
import os
import sys
import tempfile
from pathlib import Path

from common.errors import InputError
from common.files import CHECKOUT
from common.options import run_program
from plan.ownership import hold, lock_files, raise_if_unwritable, release

STATE = Path(".snakemake")
PROBE_BYTES = 1 << 16


def check_cache(folder: Path) -> None:
    """Raise InputError if the user's cache is not writable, because Snakemake would end with a traceback."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
    except OSError as error:
        hint = "make room there, or name another folder in the variable XDG_CACHE_HOME"
        problem = f"Snakemake cannot write there: {error.strerror}"
        raise InputError("unwritable-cache", problem, file=folder, hint=hint) from None


def check_folders() -> None:
    """Raise InputError if a folder that Snakemake needs before it reads rules is not writable."""
    check_cache(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "snakemake")
    if os.path.lexists(STATE) and not STATE.is_dir():
        hint = "remove it: Snakemake keeps its state in a folder of this name"
        raise InputError("not-a-folder", "is not a folder", file=STATE, expected="a folder", hint=hint)
    raise_if_unwritable(STATE)


def name_user() -> None:
    """Set LOGNAME if the user has no name, as in many containers, so that Snakemake starts."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = str(os.getuid())


def choose_profile() -> None:
    """Set the profile of this machine unless the caller named one, as an activated .venv does.

    Without a profile Snakemake refuses to start, because it does not know how many cores to use.
    """
    if Path.cwd() == CHECKOUT.resolve():
        os.environ.setdefault("SNAKEMAKE_PROFILE", str(CHECKOUT / "profiles" / "local"))


def main(*, if_stale: bool = False) -> None:
    """Remove the lock of a killed Snakemake. Run in the checkout.

    Args:
        if_stale: print nothing without a stale lock; also check the folders that Snakemake writes to
    """
    if if_stale:
        check_folders()
    left = lock_files(STATE)
    if left and hold(STATE):
        for lock in left:
            lock.unlink(missing_ok=True)
        release()
        print("removed the lock of a Snakemake that was killed")
    elif left and not if_stale:
        problem = "the Snakemake that holds it is still running"
        raise InputError("already-running", problem, file=f"{STATE}/locks", hint="end it first")
    elif not if_stale:
        print("there is no lock")


if __name__ == "__main__":
    sys.exit(run_program(main))
