"""Install the Debian packages that tests need."""

import os
import shutil
import subprocess
from collections.abc import Iterable

import pytest

from virtual_cluster.control import INSTALL


def require_programs(programs: Iterable[str], packages: Iterable[str]) -> None:
    """Install Debian packages unless the programs exist; skip the test where that is impossible.

    Args:
        programs: Names of programs on PATH.
        packages: Names of the packages that have them.
    """
    if not all(map(shutil.which, programs)):
        install_packages(packages)


def install_packages(packages: Iterable[str]) -> None:
    """Install Debian packages; skip the test where that is impossible."""
    if os.geteuid() or not shutil.which("apt-get"):
        pytest.skip(f"needs {' and '.join(packages)}, or root on a Debian to install them")
    subprocess.run([INSTALL, *packages], check=True)
