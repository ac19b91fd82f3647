"""TeX as Debian has it, for tests that compile a paper."""

import os
import shutil
import subprocess

import pytest

from cluster.virtual import INSTALL
from report.pdf import PACKAGES


@pytest.fixture(scope="session")
def tex() -> None:
    """pdfLaTeX, installed where it can be."""
    if shutil.which("pdflatex") and shutil.which("bibtex"):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run([INSTALL, *PACKAGES], check=True)
    else:
        pytest.skip(f"needs {' and '.join(PACKAGES)}, or root on a Debian to install them")
