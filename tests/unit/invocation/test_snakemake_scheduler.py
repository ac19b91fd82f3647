"""Snakemake's scheduler is influenced by signals, threads and a plugin."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

from invocation.snakemake_scheduler import cancel_timers, stop_scheduling

POLL = """
import asyncio, time
from types import SimpleNamespace
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry
from invocation.snakemake_scheduler import poll_slurm_steadily

before = ExecutorPluginRegistry().get_plugin("slurm")
poll_slurm_steadily()
plugin = ExecutorPluginRegistry().get_plugin("slurm")
assert issubclass(plugin.executor, before.executor) and plugin.common_settings == before.common_settings
executor = object.__new__(plugin.executor)
settings = SimpleNamespace(seconds_between_status_checks=0.05)
executor.workflow = SimpleNamespace(remote_execution_settings=settings)
executor.next_seconds_between_status_checks = 180  # as the plugin does after many looks
began = time.monotonic()
asyncio.run(executor.sleep())
print(time.monotonic() - began)
"""


def test_stopping_waits_for_no_lock() -> None:
    lock, handled = threading.Lock(), threading.Event()

    def handle(*_: object) -> None:
        with lock:
            handled.set()

    before = signal.signal(signal.SIGTERM, handle)
    try:
        with lock:
            stop_scheduling()
            assert not handled.wait(0.05)
        assert handled.wait(10)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_timers_are_cancelled() -> None:
    timer = threading.Timer(60, lambda: None)
    timer.start()
    cancel_timers()
    timer.join(10)
    assert not timer.is_alive()


def test_jobs_on_slurm_are_looked_at_steadily() -> None:
    scripts = str(Path(sys.modules["invocation"].__file__ or "").parents[1])
    done = subprocess.run(
        [sys.executable, "-c", POLL], env={"PYTHONPATH": scripts}, capture_output=True, text=True, check=True
    )
    assert 0.05 <= float(done.stdout) < 5
