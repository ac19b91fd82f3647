"""Take measurements that are no runs: collective benchmarks, timings, searches for batch sizes.

A failed measurement has a record, too, and exit status 0. Another status means that the infrastructure
failed, that the program was stopped, or that its input was wrong. A record that was removed is restored from
a finished attempt that succeeded, otherwise measured again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import InputError, refuse_machine_error
from common.notes import Note
from common.schemas import check
from declared.site import Site
from declared.study import Study
from environments.built import read_built
from launchers import launch
from plan.binding import bind_results, check_bound
from plan.identity import environment_of
from plan.other_measurements import Measurement, MeasurementT
from plan.plan_files import changed_since_planned
from runs import attempts
from runs.progress import current_session
from runs.supervise import misplaced_or_disturbed_reason, report_interruptions

MeasureFunction = Callable[[Mapping[str, Any], launch.Launcher, Path], dict[str, Any]]


def reuse_or_measure(
    kind: str,
    measurement: Measurement,
    spec: Mapping[str, Any],
    out: Path,
    study: Study,
    site: Site,
    results: Path,
    measure: MeasureFunction,
) -> dict[str, Any]:
    """Publish and return the record of a measurement: that of a successful attempt, or of a new one.

    Args:
        kind: "collective_benchmark", "timing" or "batch_search", also the name of the record's schema.
        measurement: What is measured.
        spec: Its specification for the ranks.
        out: File of the published record.
        study: The study.
        site: The site.
        results: results/<study>.
        measure: Function that measures, given environment, launcher and the attempt's folder.
    """
    folder = out.parent
    with attempts.exclusive(folder, f"{kind.replace('_', ' ')} {measurement.name}"):
        attempt_folder = attempts.finished(folder)
        if attempt_folder is None or attempts.read_record(attempt_folder)["status"] != "ok":
            environment = read_built(environment_of(site, measurement.run.framework))
            bind_results(results, study.name, site)
            with attempts.new_attempt(folder) as attempt_folder:
                launcher = launch.make_launcher(site, spec, setup=environment.get("setup", ()))
                record = measure(environment, launcher, attempt_folder) | {"session": current_session()}
                attempts.finish(attempt_folder, record, kind)
        return attempts.publish(attempt_folder, out.name)


def read_measurement(file: Path, kind: str) -> dict[str, Any]:
    """Return the checked record of a measurement.

    Raises:
        InputError: If the record is broken.
    """
    try:
        record: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        refuse_machine_error(error, file)
        hint = f"remove {file.parent} and start again"
        raise InputError("broken-file", f"is broken ({error})", file=file, hint=hint) from None
    check(record, kind, file)
    return record


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return the ranks' result.json, or None if they did not finish."""
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    except FileNotFoundError:
        return None
    return result


def judge(
    outcome: launch.Outcome, result: Mapping[str, Any] | None, site: Site, hosts: Sequence[str]
) -> tuple[str, Note | None]:
    """Return status and reason of an attempt; `hosts` are the nodes on which it was started."""
    if outcome.status != "ok":
        return outcome.status, outcome.reason
    if result is None:
        return "failed", Note("no-result", "ended without a result")
    actual_hosts = list(dict.fromkeys(rank["host"] for rank in result["ranks"]))
    n_machines = len({rank["machine"] for rank in result["ranks"]})
    shares = result["other_cpu_share"], 0.0  # these ranks do not measure CPU steal
    reason = misplaced_or_disturbed_reason(actual_hosts, n_machines, hosts, shares, site)
    return ("invalid", reason) if reason else ("ok", None)


def find_by_name(kind: str, planned: Sequence[MeasurementT], name: str, study: Study) -> MeasurementT:
    """Return the planned measurement of this name.

    Raises:
        InputError: If the study does not declare it.
    """
    for measurement in planned:
        if measurement.name == name:
            return measurement
    problem = f"no longer has {kind.replace('_', ' ')} {name}"
    raise InputError(
        "changed-since-planned", problem, file=study.file.name, got=name, hint="start Snakemake again"
    )


def publish_measurement(
    title: str, key: str, expected: str, out: Path, site: Site, measure: Callable[[Path], object]
) -> None:
    """Call `measure`, which writes the record `out`, with the path of results/<study>.

    Raises:
        InputError: If the key is not the expected one.
    """
    if key != expected:
        raise changed_since_planned(title, expected)
    with report_interruptions(title, out):
        results = out.parents[3]
        check_bound(results, site)
        measure(results)
