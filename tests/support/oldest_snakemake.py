"""The oldest Snakemake that is supported, among the controller's other libraries, installed in the cache.

requirements.txt locks the newest one. Of the oldest only the package itself is installed, next to `.venv`.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from common.files import digest_text

VERSION = "9.20.0"
REQUIREMENT = (
    f"snakemake=={VERSION} --hash=sha256:e71d94e8285588686b73758ec546baa9222aa853ff42c441791ab8b837850242\n"
)


def oldest_snakemake() -> list[str]:
    """Return the command that calls the oldest Snakemake, which is installed unless the cache has it."""
    cache = Path(os.environ.get("RINGSIDE_CACHE", "~/.cache/ringside")).expanduser()
    folder = cache / "oldest" / f"snakemake-{digest_text(REQUIREMENT)[:12]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as temporary:
            lock, packages = Path(temporary, "lock.txt"), Path(temporary, "packages")
            lock.write_text(REQUIREMENT)
            install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command = [
                sys.executable,
                *install,
                "--require-hashes",
                "--requirement",
                lock,
                "--target",
                packages,
            ]
            subprocess.run(command, check=True)
            try:
                packages.rename(folder)
            except OSError:  # Another worker was faster.
                assert folder.exists()
    return ["env", f"PYTHONPATH={folder}", sys.executable, "-m", "snakemake"]
