"""Say how ranks, or the program that started them, ended."""

import signal
from collections.abc import Sequence

from common.notes import Note


def first_failed_rank(exit_statuses: Sequence[int | None]) -> tuple[int, int]:
    """Return rank and exit status of the first failed process, if there is a process for each rank."""
    return next((rank, exit_status) for rank, exit_status in enumerate(exit_statuses) if exit_status)


def rank_failure_reason(rank: int, exit_status: int, host: str | None = None) -> Note:
    """Return the reason for a failed rank; `exit_status` is negative if a signal ended it."""
    name = f"rank {rank} on {host}" if host else f"rank {rank}"
    return Note(
        "rank-failed", f"{name} {describe_exit(exit_status)}", rank=rank, host=host, exit_status=exit_status
    )


def starter_failure_reason(program: str, exit_status: int) -> Note:
    """Return the reason if nothing is known except that the starter of the ranks, such as srun, failed."""
    return Note(
        "starter-failed", f"{program} {describe_exit(exit_status)}", program=program, exit_status=exit_status
    )


def describe_exit(exit_status: int) -> str:
    """Return how a process ended, such as `was killed by SIGKILL`."""
    signal_names = {number.value: number.name for number in signal.Signals}  # real-time signals have none
    return (
        f"was killed by {signal_names.get(-exit_status, f'signal {-exit_status}')}"
        if exit_status < 0
        else f"ended with status {exit_status}"
    )
