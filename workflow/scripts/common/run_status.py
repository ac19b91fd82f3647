"""Statuses of runs, in the order in which tables and messages list them."""

from enum import StrEnum


class RunStatus(StrEnum):
    """How a run ended, or why it has no result.

    `launchers.launch.run` decides between OK, OOM, FAILED and TIMEOUT. Afterwards `runs.supervise.judge` can
    turn OK into FAILED or INVALID, and an unfinished Score-P trace turns it into FAILED. `run_attempt` drops
    a failure that the machine or a killed Snakemake caused: such a run is lost and has no record. BROKEN and
    MISSING are never written to a record; its readers assign them.
    """

    OK = "ok"
    OOM = "oom"  # memory ran out: a result, not a failure
    FAILED = "failed"
    TIMEOUT = "timeout"  # the site's time limit was reached
    INVALID = "invalid"  # all epochs were trained, but the measurement does not count
    BROKEN = "broken"  # the record cannot be read, or violates its schema
    MISSING = "missing"  # there is no record

    @property
    def is_repeatable(self) -> bool:
        """Whether messages suggest `./ringside repeat`; nothing is repeated because of it.

        A run without enough memory would run out of it again.
        """
        return self not in (RunStatus.OK, RunStatus.OOM, RunStatus.MISSING)


#: Statuses of a record that exists.
RECORD_STATUSES = tuple(status for status in RunStatus if status is not RunStatus.MISSING)
#: Statuses that supervisors write.
WRITTEN_STATUSES = tuple(status for status in RECORD_STATUSES if status is not RunStatus.BROKEN)
