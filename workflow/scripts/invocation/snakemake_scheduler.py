"""Influence Snakemake's scheduler by what it offers to everybody: signals, threads, a plugin of our own."""

import asyncio
import dataclasses
import os
import signal
import threading
from typing import Any


def stop_scheduling() -> None:
    """Let no further job begin, as Snakemake does at SIGTERM.

    Snakemake's handler waits for a lock that the caller may hold, hence the thread. Until the handler has the
    lock, one more job may begin: a run does not train then (`runs.progress.refuse_halted`).
    """
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler):
        threading.Thread(target=handler, args=(signal.SIGTERM, None), daemon=True).start()


def end_at_signals() -> None:
    """Have SIGTERM and SIGHUP end the campaign as SIGTERM ends Snakemake: started runs finish first.

    Snakemake's handler is called in a thread, since its lock may be held where a signal arrives. A closed
    terminal takes no more output, so its streams are redirected. A SIGHUP that is ignored, as under nohup,
    stays ignored.
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
    """Cancel all timers of this process, called whenever a job begins.

    Snakemake's limit of jobs per second starts a timer for each job, and each starts the next one: after a
    hundred runs they took 7 % of a machine of two cores while the next run was measured. Snakemake starts a
    new one after the jobs that begin now, so one remains.
    """
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()


def poll_slurm_steadily() -> None:
    """Poll jobs on Slurm as often as --seconds-between-status-checks says.

    Snakemake's plugin for Slurm waits ten seconds longer after each look at which no job has ended, up to
    three minutes, in which a cluster stands idle if its runs follow each other. The plugin with this name is
    replaced by one that differs in its method `sleep`.
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
            """Wait until the next look."""
            settings: Any = self.workflow.remote_execution_settings
            await asyncio.sleep(settings.seconds_between_status_checks)

    plugins["slurm"] = dataclasses.replace(plugins["slurm"], executor=Executor)
