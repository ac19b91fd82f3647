"""GPI-2's ports are fixed, so the second of two jobs on one machine waits for the first."""

import os
import subprocess
import sys
from types import ModuleType

import pytest

from declared.frameworks import load_framework

ADAPTER = load_framework("tarantella").file.with_name("adapter.py")
NAME = f"\0ringside-test-{os.getpid()}"


@pytest.fixture
def adapter() -> ModuleType:
    module = ModuleType("adapter")
    exec(compile(ADAPTER.read_text(), str(ADAPTER), "exec"), module.__dict__)  # noqa: S102 (as a rank loads it)
    return module


def test_the_second_job_waits_until_the_first_has_ended(adapter: ModuleType) -> None:
    second_job = f"import runpy; found = runpy.run_path({str(ADAPTER)!r}); held = found['lock_ports']({NAME!r}); print('has them')"
    lock = adapter.lock_ports(NAME)
    second = subprocess.Popen([sys.executable, "-c", second_job], stdout=subprocess.PIPE, text=True)
    assert second.stdout is not None
    assert "waiting for another job on this machine that uses GPI-2" in second.stdout.readline()
    assert second.poll() is None
    lock.close()
    assert second.communicate()[0] == "has them\n"
    adapter.lock_ports(NAME).close()  # freed by the end of a process, too
