"""Statuses of runs are those of the schemas of records and tables."""

import pytest

from common.run_status import RECORD_STATUSES, RunStatus
from common.schemas import schema

RECORDS = ("record", "collective_benchmark", "timing")
TABLES = ("runs", "network", "costs", "messages")
LAUNCHED = (RunStatus.OK, RunStatus.OOM, RunStatus.FAILED, RunStatus.TIMEOUT)


@pytest.mark.parametrize("name", RECORDS)
def test_records_have_the_statuses_that_supervisors_write(name: str) -> None:
    written = [status for status in RECORD_STATUSES if status is not RunStatus.BROKEN]
    assert schema(name)["properties"]["status"]["enum"] == written


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_every_status_of_a_readable_record(name: str) -> None:
    statuses = [status for status in RunStatus if status is not RunStatus.BROKEN]
    assert schema(name)["properties"]["status"]["enum"] == statuses


def test_batch_searches_have_the_statuses_of_a_launch() -> None:
    properties = schema("batch_search")["properties"]
    assert properties["status"]["enum"] == list(LAUNCHED)
    outcomes = properties["trials"]["items"]["properties"]["outcome"]["enum"]
    assert outcomes == ["fits", *LAUNCHED[1:]]


def test_messages_do_not_suggest_to_repeat_a_run_out_of_memory() -> None:
    suggested = [status for status in RunStatus if status.suggests_repeat]
    assert suggested == ["failed", "timeout", "invalid", "broken"]
