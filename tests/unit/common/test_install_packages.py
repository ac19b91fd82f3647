"""Debian packages are installed by one call at a time, here with another program as package manager."""

import os
import subprocess
from pathlib import Path

import pytest

from common.files import CHECKOUT

INSTALL = CHECKOUT / "workflow" / "scripts" / "common" / "install-packages"
APT_GET = """#!/bin/sh
mkdir "$BUSY" || { echo "two installations at once" >&2; exit 100; }
sleep 0.2
rmdir "$BUSY"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages")
def test_installations_wait_for_each_other(tmp_path: Path) -> None:
    for name, script in (("apt-get", APT_GET), ("dpkg-query", "#!/bin/sh\nexit 1\n")):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "BUSY": str(tmp_path / "busy")}
    calls = [
        subprocess.Popen([INSTALL, "some-package"], env=variables, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [call.communicate(timeout=60)[1] for call in calls]
    assert [call.returncode for call in calls] == [0, 0], errors
