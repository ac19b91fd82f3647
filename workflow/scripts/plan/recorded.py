"""What records and sweeps say of themselves, read and checked; and how each ended."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import InputError, refuse_machine_error
from common.files import read_json, shown
from common.notes import Note
from common.schemas import check, schema
from plan.identity import Planned

STATUSES = ("ok", "failed", "timeout", "invalid", "broken")  # of a record


def record_of(file: Path) -> dict[str, Any]:
    """What a record.json or a sweep.json says; that its status is broken, and why, where it cannot be read or breaks its schema."""
    try:
        said: dict[str, Any] = read_json(file)
        check(said, file.stem, file)
    except (OSError, ValueError, InputError) as error:
        refuse_machine_error(error, shown(file))
        code = error.code if isinstance(error, InputError) else "broken-file"
        return {"status": "broken", "reason": Note(code, str(error).removeprefix(f"{shown(file)}: "))}
    return said


def contradiction(record: Mapping[str, Any], wanted: Planned, site: str) -> Note | None:
    """What a whole record of a run says of itself that its place and the plan do not; None where they agree.

    `wanted`: the run under whose key it lies; `site`: the name of the site that the results belong to.
    """
    planned = {
        "run_id": wanted.run_id,
        "key": wanted.key,
        "study": wanted.study,
        "site": site,
        **wanted.digests,
        "placement": wanted.site.placement,
        "timing_scope": wanted.framework.timing_scope,
        "cores_per_rank": wanted.spec["cores_per_rank"],
    }
    for name, value in planned.items():
        if record[name] != value:
            text = f"{name} is {record[name]}, planned is {value}"
            return Note("not-as-planned", text, key=name, got=record[name], planned=value)
    if record["status"] == "ok" and (said := _spoiled(record)):
        return Note(said.code, f"status is ok, {said}", **said.facts)
    if (record["status"] == "ok") != (record["reason"] is None):
        text = f"status is {record['status']}, reason is {record['reason'] or 'null'}"
        return Note("status-without-reason", text, status=record["status"], reason=record["reason"])
    return None


def _spoiled(record: Mapping[str, Any]) -> Note | None:
    """Return what in a record is not so of a successful run."""
    measured = record["measured"]
    if not measured:
        return Note("nothing-measured", "measured is empty" if measured == {} else "measured is null")
    if measured.get("weights_finite") is False:
        return Note("weights-not-finite", "weights_finite is false")
    share, most = measured.get("foreign_cpu_share"), record["max_foreign_cpu_share"]
    if share is not None and share > most:
        return Note("foreign-cpu-time", f"foreign_cpu_share is {share}, its limit {most}", share=share, limit=most)
    return None


def record_status(record: Path) -> str:
    """The status in a record.json or a sweep.json; broken where it cannot be read or lacks a key. What else `record_of` asks for is
    asked when numbers are made of it: tens of thousands are counted while Snakemake starts."""
    try:
        said = read_json(record)
    except (OSError, ValueError):
        return "broken"
    whole = isinstance(said, dict) and all(key in said for key in schema(record.stem)["required"])
    return said["status"] if whole and said["status"] in STATUSES else "broken"
