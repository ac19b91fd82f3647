"""Check what Snakemake needs before it ends in a traceback: the folders that it writes to, and a name of the user.

The Python of .venv imports this module whenever it starts (ringside.pth). It does nothing for other programs.
"""

import os
import sys


def is_snakemake(command: list[str]) -> bool:
    """Return whether a command line of Python, such as sys.orig_argv, starts Snakemake."""
    return any(os.path.basename(part) == "snakemake" for part in command[1:3])


if is_snakemake(sys.orig_argv):
    from common.errors import exit_status
    from plan.unlock import check_folders, name_user

    name_user()
    if status := exit_status(check_folders):
        os._exit(status)
