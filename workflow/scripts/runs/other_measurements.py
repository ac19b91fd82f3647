"""Take measurements that are not runs: collective benchmarks, timings, searches for batch sizes.

Exit statuses are the same as in `runs.supervise`: a measurement that fails has a record, and the exit status
is 0. If only the final record was deleted, a failed measurement is taken again. A failed run is not: the
record of its latest attempt is copied.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from common.errors import InputError, raise_if_machine_error
from common.files import format_utc
from common.notes import Note
from common.run_status import RunStatus
from common.schemas import check
from declared.site import Site, load_site
from declared.study import Study, load_study
from environments.built import read_built
from environments.record import BuiltEnvironment
from launchers import launch
from launchers.protocol import Launcher, Outcome
from plan.binding import bind_results, check_bound
from plan.design import Run, plan_design
from plan.identity import environment_of
from plan.node_check import without_slow_nodes
from plan.other_measurements import MeasurementT
from plan.plan_files import changed_since_planned
from runs import attempts
from runs.interruptions import report_interruptions
from runs.session import current_session
from runs.verdict import Verdict, extend_failure_reason, misplaced_or_disturbed_reason

NO_RESULT = Note("no-result", "ended without a result")


@dataclass(frozen=True)
class MeasurementKind(Generic[MeasurementT]):
    """How measurements of one kind are planned and taken.

    Attributes:
        name: "collective_benchmark", "timing" or "batch_search", also the name of the record's schema.
        list_measurements: Returns the measurements of a design that a site can execute.
        measure: Measures once in the folder of an attempt, and returns the fields that only records of this
            kind have.
    """

    name: str
    list_measurements: Callable[[Iterable[Run], Site], Sequence[MeasurementT]]
    measure: Callable[[Site, MeasurementT, BuiltEnvironment, Launcher, Path], dict[str, Any]]

    def title(self, name: str) -> str:
        """Return the name of a measurement in messages, such as `timing pytorch-ddp`."""
        return f"{self.name.replace('_', ' ')} {name}"

    def execute_planned(self, study_name: str, site_name: str, name: str, key: str, out: Path) -> None:
        """Write the final record of a planned measurement, after executing it unless a record can be reused.

        Exits with a message if the measurement ends without a record.

        Args:
            study_name: Name of the study.
            site_name: Name of the site.
            name: Name of the measurement.
            key: The key that Snakemake expects.
            out: The final record.

        Raises:
            InputError: If the study does not declare the measurement, or its key has changed.
        """
        results = out.parents[3]
        study, site = load_study(study_name), without_slow_nodes(load_site(site_name), results)
        measurement = self.find(study, site, name)
        if measurement.key(site) != key:
            raise changed_since_planned(self.title(name), key)
        with report_interruptions(self.title(name), out):
            check_bound(results, site)
            self.reuse_or_measure(study, site, measurement, results)

    def find(self, study: Study, site: Site, name: str) -> MeasurementT:
        """Return the planned measurement of this name.

        Raises:
            InputError: If the study does not declare it.
        """
        for measurement in self.list_measurements(plan_design(study, site), site):
            if measurement.name == name:
                return measurement
        problem = f"no longer has {self.title(name)}"
        raise InputError(
            "changed-since-planned", problem, file=study.file.name, got=name, hint="start Snakemake again"
        )

    def reuse_or_measure(
        self, study: Study, site: Site, measurement: MeasurementT, results: Path
    ) -> dict[str, Any]:
        """Return the final record of a measurement, after a new attempt unless the latest one succeeded.

        `results` is the folder results/<study>.
        """
        final_record_path = measurement.final_record_path(results, site)
        measurement_folder = final_record_path.parent
        with attempts.lock_run_and_machine(measurement_folder, self.title(measurement.name)):
            attempt_folder = attempts.latest_recorded_attempt(measurement_folder)
            if (
                attempt_folder is None
                or attempts.read_attempt_record(attempt_folder)["status"] != RunStatus.OK
            ):
                environment = read_built(environment_of(site, measurement.run.framework))
                bind_results(results, study.name, site)
                with attempts.new_attempt(measurement_folder) as attempt_folder:
                    setup = environment.get("setup", ())
                    launcher = launch.make_launcher(site, measurement.spec(site), setup=setup)
                    started_at = time.time()
                    result = self.measure(site, measurement, environment, launcher, attempt_folder)
                    record = {
                        "study": study.name,
                        "site": site.name,
                        "framework": measurement.run.framework.name,
                        "key": measurement_folder.name,
                        "job": launcher.job,
                        "session": current_session(),
                        "placement": site.placement,
                        "started_at": format_utc(started_at),
                        "ended_at": format_utc(time.time()),
                        **result,
                    }
                    attempts.write_record(attempt_folder, record, self.name)
            return attempts.copy_final_record(attempt_folder, final_record_path.name)

    def read(self, file: Path) -> dict[str, Any]:
        """Return the checked record of a measurement.

        Raises:
            InputError: If the record cannot be read, or violates its schema.
        """
        try:
            record: dict[str, Any] = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise_if_machine_error(error, file)
            hint = f"remove {file.parent} and start again"
            raise InputError("broken-file", f"is broken ({error})", file=file, hint=hint) from None
        check(record, self.name, file)
        return record


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return the ranks' result.json, or None if they did not finish."""
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    except FileNotFoundError:
        return None
    return result


def judge_measurement(
    outcome: Outcome, result: Mapping[str, Any] | None, site: Site, hosts: Sequence[str], log: Path
) -> Verdict:
    """Decide the status of a collective benchmark or a timing; `hosts` are the nodes on which it was started.

    Raises:
        AttemptLost: If it failed because of an error of the machine, such as a full disk.
    """
    if outcome.status == RunStatus.FAILED and outcome.reason:
        return Verdict(RunStatus.FAILED, extend_failure_reason(outcome.reason, log))
    if outcome.status != RunStatus.OK:
        return Verdict(outcome.status, outcome.reason)
    if result is None:
        return Verdict(RunStatus.FAILED, extend_failure_reason(NO_RESULT, log))
    actual_hosts = list(dict.fromkeys(rank["host"] for rank in result["ranks"]))
    n_machines = len({rank["machine"] for rank in result["ranks"]})
    shares = result["other_cpu_share"], 0.0  # these ranks do not measure CPU steal
    reason = misplaced_or_disturbed_reason(actual_hosts, n_machines, hosts, shares, site)
    return Verdict(RunStatus.INVALID, reason) if reason else Verdict(RunStatus.OK)
