"""Statuses of runs and of other measurements, in the order in which tables and messages list them."""

from enum import StrEnum


class RunStatus(StrEnum):
    """How a run ended, or why it has no result.

    `launchers.launch.run_ranks` decides among OK, OOM, FAILED and TIMEOUT. `runs.verdict.judge_run` then
    turns OK into FAILED or INVALID if the measurements do not count. Collective benchmarks and timings have
    functions of their own (`judge_benchmark`, `judge_measurement`). An attempt that was lost or stopped has
    no record, and so no status.

    BROKEN and MISSING are in no record: readers assign them (`records.record_checks`, `records.missing`).

    To add a status, follow docs/architecture.md, "Who repeats a run".
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


#: Statuses of runs without a record. Snakemake executes those that the site can execute.
NO_RECORD_STATUSES = (RunStatus.MISSING,)
#: Statuses of a record that exists.
RECORD_STATUSES = tuple(status for status in RunStatus if status not in NO_RECORD_STATUSES)
