"""Statuses of runs are those of the schemas of records and of runs.csv."""

from common.run_status import WRITTEN_STATUSES, RunStatus
from common.schemas import schema


def test_records_have_the_statuses_that_supervisors_write() -> None:
    assert set(schema("record")["properties"]["status"]["enum"]) == set(WRITTEN_STATUSES)


def test_runs_csv_has_every_status_of_a_readable_record() -> None:
    assert set(schema("runs")["properties"]["status"]["enum"]) == set(RunStatus) - {RunStatus.BROKEN}


def test_run_without_enough_memory_is_not_repeatable() -> None:
    repeatable = [status for status in RunStatus if status.is_repeatable]
    assert repeatable == ["failed", "timeout", "invalid", "broken"]
