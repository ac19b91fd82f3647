"""Statuses of runs and of other measurements, in the order in which tables and messages list them."""

from enum import StrEnum


class RunStatus(StrEnum):
    """How a run ended, or why it has no result.

    `launchers.launch.run_ranks` decides between OK, OOM, FAILED and TIMEOUT. `runs.verdict.judge_run`
    then turns OK into FAILED or INVALID if the measurements do not count, and discards an attempt that FAILED
    or ran out of memory (OOM) if its cause was not the training. Collective benchmarks and timings have a
    function of their own (`judge_measurement`, `judge_benchmark`). An attempt that was lost or
    stopped (`launchers.protocol`) has no record, and so no status.

    BROKEN and MISSING are in no record: readers assign them (`plan.record_checks`, `runs.missing`).

    To add a status, decide first whether supervisors write it. If they do, add it to the enumerations of
    `status` in config/schemas, those of records and of tables. If readers assign it to runs without a record,
    add it to NO_RECORD_STATUSES and only to the enumerations that have `missing`. A test compares the
    enumerations with this class, including the order.
    """

    OK = "ok"
    OOM = "oom"  # memory ran out: a result, not a failure
    FAILED = "failed"
    TIMEOUT = "timeout"  # the site's time limit was reached
    INVALID = "invalid"  # all epochs were trained, but the measurement does not count
    BROKEN = "broken"  # the record cannot be read, or violates its schema
    MISSING = "missing"  # there is no record

    @property
    def suggests_repeat(self) -> bool:
        """Whether messages suggest `./ringside repeat` for a run with this status.

        Nothing is repeated because of this property: Snakemake repeats a run if it has no record. OOM is
        left out, because the run would run out of memory again.
        """
        return self not in (RunStatus.OK, RunStatus.OOM, *NO_RECORD_STATUSES)


#: Statuses of runs without a record, which Snakemake repeats.
NO_RECORD_STATUSES = (RunStatus.MISSING,)
#: Statuses of a record that exists.
RECORD_STATUSES = tuple(status for status in RunStatus if status not in NO_RECORD_STATUSES)
#: Statuses that supervisors write.
WRITTEN_STATUSES = tuple(status for status in RECORD_STATUSES if status is not RunStatus.BROKEN)
