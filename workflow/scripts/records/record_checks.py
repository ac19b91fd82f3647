"""Read and check records of runs and of other measurements.

`load_record` checks a record against its schema, and `find_contradiction` against the plan of its run.
Neither raises an error for a broken record: its status is BROKEN. `plan.record_status` reads only the status.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import InputError, raise_if_machine_error
from common.files import display_path, read_json
from common.notes import Note
from common.run_status import RunStatus
from common.schemas import check
from plan.identity import PlannedRun


def load_record(file: Path) -> dict[str, Any]:
    """Return a record of a run or another measurement, or only status and reason if it is BROKEN.

    A record is broken if it cannot be read, or if it violates the schema with the name of the file.
    """
    try:
        record: dict[str, Any] = read_json(file)
        check(record, file.stem, file)
    except (OSError, ValueError, InputError) as error:
        raise_if_machine_error(error, display_path(file))
        code = error.code if isinstance(error, InputError) else "broken-file"
        return {
            "status": RunStatus.BROKEN,
            "reason": Note(code, str(error).removeprefix(f"{display_path(file)}: ")),
        }
    return record


def find_contradiction(record: Mapping[str, Any], run: PlannedRun, site: str) -> Note | None:
    """Return the first field of a complete record that contradicts the plan or the record's path, or None.

    Args:
        record: The record.
        run: The run that has the record's key.
        site: Name of the site that the results belong to.
    """
    expected = {
        "run_id": run.run_id,
        "key": run.key,
        "study": run.study,
        "site": site,
        **run.digests,
        "placement": run.site.placement,
        "timing_scope": run.framework.timing_scope,
        "cores_per_rank": run.spec["cores_per_rank"],
    }
    for name, value in expected.items():
        if record[name] != value:
            text = f"{name} is {record[name]}, planned is {value}"
            return Note("not-as-planned", text, key=name, got=record[name], planned=value)
    if record["status"] == RunStatus.OK and (reason := _contradiction_of_ok(record)):
        return Note(reason.code, f"status is ok, {reason}", **reason.facts)
    if (record["status"] == RunStatus.OK) != (record["reason"] is None):
        text = f"status is {record['status']}, reason is {record['reason'] or 'null'}"
        return Note("status-without-reason", text, status=record["status"], reason=record["reason"])
    return None


def _contradiction_of_ok(record: Mapping[str, Any]) -> Note | None:
    """Return what in a record contradicts its status ok, or None.

    Repeats those checks of `runs.verdict.check_measurements` that need only the record.
    """
    measured = record["measured"]
    if not measured:
        return Note("nothing-measured", "measured is empty" if measured == {} else "measured is null")
    if measured.get("weights_finite") is False:
        return Note("weights-not-finite", "weights_finite is false")
    share, limit = measured.get("other_cpu_share"), record["max_other_cpu_share"]
    if share is not None and share > limit:
        return Note(
            "other-cpu-time", f"other_cpu_share is {share}, its limit {limit}", share=share, limit=limit
        )
    return None
