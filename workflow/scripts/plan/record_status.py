"""Read the status in a record and nothing else, for the plan, which depends on the records that exist."""

from pathlib import Path

from common.files import read_json
from common.run_status import RECORD_STATUSES, RunStatus
from common.schemas import schema


def record_status(file: Path) -> str:
    """Return the status in a record, BROKEN if it cannot be read or keys are missing.

    The checks of `records.record_checks` would be too slow for the tens of thousands of records that are read
    when Snakemake starts.
    """
    try:
        content = read_json(file)
    except (OSError, ValueError):
        return RunStatus.BROKEN
    is_complete = isinstance(content, dict) and all(key in content for key in schema(file.stem)["required"])
    return content["status"] if is_complete and content["status"] in RECORD_STATUSES else RunStatus.BROKEN
