"""Search the largest batch that fits for the cells that share one search, by trial runs of a few steps.

Every trial starts new processes, the same way as a run. Its folder `attempt-<k>/b<batch size>/` has
rank_input.json, log.txt and, if the trial has ended, trial.json. A search that was stopped resumes with the
trials of earlier attempts. The record is batch_search.json (`runs.other_measurements`).
"""

import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import print_line
from common.files import read_json, write_json
from common.notes import Note
from common.options import run_program
from common.run_status import RunStatus
from declared.site import Site
from environments.record import BuiltEnvironment
from launchers import launch
from launchers.protocol import Launcher
from plan.identity import data_folder, digests
from plan.largest import BatchSearch, planned_searches
from plan.memory import is_estimable, memory_estimate_input
from plan.site_resources import device_kind_of
from ranks.worker.context import MAX_VALIDATION_BATCH
from ranks.worker.node import memory_bytes
from runs import attempts, other_measurements
from runs.bisection import find_largest
from runs.memory_estimates import estimate
from runs.rank_input import rank_input
from runs.verdict import extend_failure_reason

TRIAL = "trial.json"
ESTIMATED_SIZE = 64  # memory is estimated for this size or less, and for a quarter of it
FITS = "fits"  # outcome of a trial whose status is OK; every other outcome is a RunStatus
# What limits the batch size, by the outcome of the smallest batch that does not fit.
LIMITS = {RunStatus.OOM: "memory", RunStatus.TIMEOUT: "time limit", RunStatus.FAILED: "failure"}


@dataclass
class Trials:
    """The trials of one search.

    Attributes:
        folder: The attempt's folder.
        done: Results of trials, in the order in which the search needed them.
    """

    site: Site
    search: BatchSearch
    environment: BuiltEnvironment
    folder: Path
    done: list[dict[str, Any]] = field(default_factory=list)

    def fits(self, batch_size: int) -> bool:
        """Return whether the cell trains with this batch size, by an earlier attempt or a new trial.

        A size that fails twice for another reason than memory does not fit either: some libraries do not
        report that memory ran out, and some cannot index tensors that are too large.
        """
        trial = self._earlier_trial(batch_size) or self._try(batch_size)
        self.done.append(trial)
        print_line(f"{self.search.name}: {describe_trial(trial)}")
        return bool(trial["outcome"] == FITS)

    @property
    def smallest_unfit(self) -> dict[str, Any] | None:
        """The trial of the smallest batch that did not fit; None if all fitted."""
        unfit = [trial for trial in self.done if trial["outcome"] != FITS]
        return min(unfit, key=lambda trial: trial["batch_size"], default=None)

    def _earlier_trial(self, batch_size: int) -> dict[str, Any] | None:
        """Return the trial of an earlier attempt under the same memory limit, or None.

        A trial that reached the time limit does not count, since the limit can have been raised since then.
        """
        limit_bytes = memory_limit_bytes(self.site, self.search)
        for attempt_folder in attempts.list_attempts(self.folder.parent):
            file = attempt_folder / f"b{batch_size}" / TRIAL
            if file.exists() and not attempts.is_put_aside(attempt_folder):
                trial: dict[str, Any] = read_json(file)
                if trial["outcome"] in (FITS, RunStatus.OOM) and trial["memory_limit_bytes"] == limit_bytes:
                    return trial
        return None

    def _try(self, batch_size: int) -> dict[str, Any]:
        """Train with one batch size, again if that fails; write and return the result of the last trial."""
        trial_folder = self.folder / f"b{batch_size}"
        trial = self._train(batch_size, trial_folder)
        if trial["outcome"] == RunStatus.FAILED:
            trial_folder = self.folder / f"b{batch_size}-again"
            trial = self._train(batch_size, trial_folder)
        trial["memory_limit_bytes"] = memory_limit_bytes(self.site, self.search)
        write_json(trial_folder / TRIAL, trial)
        return trial

    def _train(self, batch_size: int, trial_folder: Path) -> dict[str, Any]:
        """Train with one batch size in new processes, and return the result."""
        site, search = self.site, self.search
        spec = search.trial_spec(site, batch_size)
        setup = self.environment.get("setup", ())
        launcher = launch.make_launcher(site, spec, search.run.framework.mpi, setup)
        source, data = data_folder(site, spec["levels"]["dataset"]), trial_folder.resolve() / "data"
        write_trial_data(source, data, spec["replicas"] * min(batch_size, MAX_VALIDATION_BATCH))
        model = search.run.graph.to_json()
        write_json(
            trial_folder / "rank_input.json",
            rank_input(spec, search.run.framework, self.environment, model, data, launcher.hosts),
        )
        outcome = launch.run_ranks(
            launcher, self.environment, trial_folder.resolve(), spec, site, reads=[source, data]
        )
        result = other_measurements.read_result(trial_folder)
        status, reason = outcome.status, outcome.reason
        if status == RunStatus.OK and result is None:
            status, reason = RunStatus.FAILED, other_measurements.NO_RESULT
        if status == RunStatus.FAILED and reason:
            reason = extend_failure_reason(reason, trial_folder / "log.txt")
        ranks = result["ranks"] if result else []
        device_peaks = [peak for rank in ranks if (peak := rank["device_memory_peak_bytes"]) is not None]
        return {
            "batch_size": batch_size,
            "outcome": FITS if status == RunStatus.OK else status,
            "reason": reason,
            "wall_s": outcome.wall_s,
            "memory_peak_bytes": max((rank["memory_peak_bytes"] for rank in ranks), default=None),
            "device_memory_peak_bytes": max(device_peaks, default=None),
        }


def memory_limit_bytes(site: Site, search: BatchSearch) -> int | None:
    """Return the memory that a rank of a trial may use on this node; None without a limit."""
    share = search.memory_share(site)
    return int(share * memory_bytes()) if share else None


def write_trial_data(source: Path, folder: Path, n_validation: int) -> None:
    """Write the data set of a trial: the training samples of `source`, and its first validation samples.

    Validation of a large data set would take longer than the steps of a trial, and needs no more memory.
    """
    manifest = read_json(source / "manifest.json")
    if manifest.get("fresh"):  # The samples are drawn at run time, as many as the manifest states.
        manifest["validation_samples"] = min(manifest["validation_samples"], n_validation)
    else:
        (folder / "validation").mkdir(parents=True)
        (folder / "train").symlink_to(source / "train")
        for file in (source / "validation").glob("*.npy"):
            np.save(folder / "validation" / file.name, np.load(file, mmap_mode="r")[:n_validation])
    write_json(folder / "manifest.json", manifest)


def estimate_size(site: Site, search: BatchSearch, environment: BuiltEnvironment) -> int | None:
    """Estimate the largest batch size that fits from the memory of two sizes; None if that is impossible."""
    run, sizes = search.run, search.candidates(site)
    limit = memory_limit_bytes(site, search) or site.memory.device_bytes
    large = sizes[max(bisect_right(sizes, ESTIMATED_SIZE) - 1, 0)]
    small = sizes[bisect_left(sizes, large / 4)]
    if not limit or small == large or not is_estimable(run.framework):
        return None
    inputs = [
        memory_estimate_input(run.framework, run.graph, search.trial_spec(site, size))
        for size in (small, large)
    ]
    kind = device_kind_of(site, run.levels)
    needed = [sum(entry.by_category(kind).values()) for entry in estimate(site, environment, inputs)]
    if 0 in needed or len(needed) < 2 or needed[0] >= needed[1]:
        return None
    sample_bytes = (needed[1] - needed[0]) / (large - small)
    return max(1, int(small + (limit - needed[0]) / sample_bytes))


def describe_trial(trial: Mapping[str, Any]) -> str:
    """Return the result of a trial in one line."""
    words = {
        FITS: "fits",
        RunStatus.OOM: "does not fit in memory",
        RunStatus.TIMEOUT: "reaches the time limit",
        RunStatus.FAILED: f"fails: {trial['reason']}",
    }
    return f"batch size {trial['batch_size']} {words[trial['outcome']]} ({trial['wall_s']:.1f} s)"


def measure_search(
    site: Site, search: BatchSearch, environment: BuiltEnvironment, _launcher: Launcher, attempt_folder: Path
) -> dict[str, Any]:
    """Search in the attempt's folder, and return the fields that only records of searches have."""
    trials, started_at = Trials(site, search, environment, attempt_folder), time.time()
    if estimated := estimate_size(site, search, environment):
        print_line(f"{search.name}: batch size {estimated} is estimated to fit")
    result = find_largest(search.candidates(site), trials.fits, estimated)
    unfit, status, reason = trials.smallest_unfit, RunStatus.OK, None
    if unfit and result.chosen is None:
        status, reason = unfit["outcome"], unfit["reason"]
        if status == RunStatus.OOM:
            reason = Note("no-batch-fits", "not even the smallest batch fits")
    return {
        "name": search.name,
        "status": status,
        "reason": reason,
        "wall_s": time.time() - started_at,
        **digests(site, search.run.levels),
        "batch_size": result.chosen,
        "largest_fit": result.largest,
        "limit": LIMITS[unfit["outcome"]] if unfit else "data set",
        "trials": trials.done,
    }


KIND = other_measurements.MeasurementKind("batch_search", planned_searches, measure_search)


def main(*, study: str, site: str, search: str, key: str, out: Path) -> None:
    """Search the largest batch that fits, and write batch_search.json.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        search: a search of the study, such as pytorch-ddp.small-cnn.digits.blargest.n2.s1
        key: the key that the caller expects
        out: batch_search.json, in the folder of the key
    """
    KIND.execute_planned(study, site, search, key, out)


if __name__ == "__main__":
    sys.exit(run_program(main))
