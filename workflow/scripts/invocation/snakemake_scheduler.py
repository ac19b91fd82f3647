"""Influence Snakemake's scheduler from outside: through signals, threads and a plugin."""

import asyncio
import dataclasses
import os
import signal
import threading
from typing import Any


def stop_scheduling() -> None:
    """Start no further job, like Snakemake after a SIGTERM.

    Snakemake's handler runs in a thread, because it waits for a lock that the caller can hold. Until the
    handler has the lock, one more job can begin; a run then refuses to train
    (`runs.session.raise_if_halted`).
    """
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler):
        threading.Thread(target=handler, args=(signal.SIGTERM, None), daemon=True).start()


def end_at_signals() -> None:
    """Make SIGTERM and SIGHUP end the campaign after the started runs, like SIGTERM in Snakemake.

    Snakemake's handler runs in a thread, because the interrupted code can hold its lock. After a SIGHUP,
    streams of the closed terminal are redirected to /dev/null. An ignored SIGHUP, such as under nohup, stays
    ignored.
    """
    handler = signal.getsignal(signal.SIGTERM)
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def end(signum: int, _frame: object) -> None:
        if signum == signal.SIGHUP:
            for stream in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        if callable(handler):
            threading.Thread(target=handler, args=(signum, None)).start()

    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, end)


def cancel_timers() -> None:
    """Cancel all timers of this process; called whenever a job begins.

    Snakemake's limit of jobs per second starts a timer for each job, and every timer restarts itself. After a
    hundred runs, timers used 7 % of a two-core machine during measurements. Snakemake starts a new timer
    after each job that begins, so one remains.
    """
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()


def poll_slurm_steadily() -> None:
    """Poll jobs on Slurm at the constant interval of --seconds-between-status-checks.

    Snakemake's plugin for Slurm waits ten seconds longer after each poll without an ended job, up to three
    minutes. A cluster that runs one job after the other would be idle during that time. The registered plugin
    is replaced by one with another method `sleep`.
    """
    from snakemake_interface_executor_plugins.registry import (  # type: ignore[import-untyped]
        ExecutorPluginRegistry,
    )

    plugins = ExecutorPluginRegistry().plugins
    if "slurm" not in plugins:
        return

    class Executor(plugins["slurm"].executor):  # type: ignore[misc]
        """The executor of the plugin, with constant intervals."""

        async def sleep(self) -> None:
            """Wait until the next poll."""
            settings: Any = self.workflow.remote_execution_settings
            await asyncio.sleep(settings.seconds_between_status_checks)

    plugins["slurm"] = dataclasses.replace(plugins["slurm"], executor=Executor)
