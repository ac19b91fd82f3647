"""Check folders, user name and profile before Snakemake starts, because it would end with a traceback.

The Python of .venv runs this file whenever it starts Snakemake (environments.controller). Afterwards it
forgets the modules that it has imported: the Snakefile can belong to another checkout, which imports its own
modules.
"""

import os
import sys


def check() -> int:
    """Check what Snakemake needs; return 0, or the exit status of a mistake whose line has been printed."""
    from common.errors import exit_status
    from plan.unlock import check_folders, choose_profile, name_user

    name_user()
    choose_profile()
    return exit_status(check_folders)


def forget(packages: set[str]) -> None:
    """Remove the modules of these packages from those that are imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


if status := check():
    os._exit(status)
forget({"common", "plan"})
