"""Remove the lock that a killed Snakemake left behind; never that of a living one."""

import argparse
import sys
from pathlib import Path

from common.errors import InputError, exit_status
from plan.ownership import hold, locks, release

STATE = Path(".snakemake")


def main(argv: list[str] | None = None) -> None:
    """Remove the lock of a Snakemake that is dead. Run in the checkout."""
    parser = argparse.ArgumentParser(prog="make unlock", description=main.__doc__)
    parser.add_argument("--if-stale", action="store_true", help="say nothing where there is no stale lock")
    options = parser.parse_args(argv)
    left = locks(STATE)
    if left and hold(STATE):
        for lock in left:
            lock.unlink(missing_ok=True)
        release()
        print("removed the lock of a Snakemake that was killed")
    elif left and not options.if_stale:
        raise InputError(
            "already-running",
            "the Snakemake that holds it is still running",
            file=f"{STATE}/locks",
            hint="end it first",
        )
    elif not options.if_stale:
        print("there is no lock")


if __name__ == "__main__":
    sys.exit(exit_status(main))
