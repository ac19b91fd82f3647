"""The contract between launchers and `launch.run_ranks`: a launcher's methods, and how an attempt can end."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from common.notes import Note
from common.run_status import RunStatus
from common.shell import Program

GRACE_S = 10.0  # After the first failure, the other ranks have this long to log their errors.


@dataclass(frozen=True)
class Outcome:
    """How the ranks ended.

    Attributes:
        status: OK, OOM, FAILED or TIMEOUT.
        reason: Why the status is not OK; None if it is.
        wall_s: Seconds from launch to the end of the last rank.
    """

    status: RunStatus
    reason: Note | None
    wall_s: float


class AttemptLost(Exception):
    """The attempt is lost: the infrastructure failed, not the training program.

    Whoever raises it, the attempt gets no record. Snakemake therefore runs the rule again: at once if its
    profile has `retries`, otherwise the next time it is called. Any other end of the ranks, such as a failure
    or a timeout, is a result of the run and has a record. The only other attempts without a record are those
    whose supervisor was stopped (`runs.interruptions`), failed itself, or was killed.
    """

    def __init__(self, reason: Note) -> None:
        super().__init__(reason)
        self.reason = reason


class Launcher(Protocol):
    """Start the ranks of one run at one site.

    Attributes:
        hosts: Names of the run's nodes, in the order of ranks.
        job: The scheduler's job as the record has it: `number`, `submitted_at` and `started_at`, both in UTC
            or None. None if the site has no scheduler.
    """

    hosts: list[str]
    job: dict[str, Any] | None

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """Start all ranks with their output in `log`.

        Returns:
            The processes to watch: one for each rank, or a single one such as srun.

        Raises:
            AttemptLost: If the scheduler does not start the ranks.
        """

    def raise_if_lost(self, log: Path) -> None:
        """Raise AttemptLost if a node or the job is gone, or if the scheduler started no rank.

        `run_ranks` calls it if ranks failed or reached the time limit, before it asks `explain`.
        """

    def explain(self, exit_statuses: Sequence[int | None], log: Path) -> Note:
        """Return why ranks failed: the first failed rank, or the scheduler's report that memory ran out.

        Such a report has the code `oom_evidence.OOM_CODE`.

        Args:
            exit_statuses: Exit statuses of the processes of `start`; None for one that still runs.
            log: The log of the ranks.

        Raises:
            AttemptLost: If the scheduler does not answer.
        """

    def kill_ranks(self) -> None:
        """Kill every rank on every node, even if its local process has ended, and wait for the processes.

        Raises:
            AttemptLost: If a process does not end, or a node cannot be reached.
        """
