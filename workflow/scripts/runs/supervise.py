"""One run from launch to record: `python -m runs.supervise`, called once for every run of the design.

A training that fails is a row, not a crash: whatever becomes of the ranks, a record is written and the exit status is 0.
Another status means that this program itself was stopped or was asked for something impossible.
"""

import argparse
import csv
import json
import math
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.errors import InputError, exit_status
from common.files import write_json
from common.schemas import check
from environments.description import environment_stamp
from plan.design import Run, design
from plan.identity import cores_per_rank, data_files, data_folder, digests, model_description, run_key, spec, variant
from plan.study import Framework, Site, Study, load_framework, load_site, load_study
from runs import attempts, launch
from runs.progress import Session, current_session


def supervise(study: Study, site: Site, run: Run, key: str, results: Path, session: str) -> dict[str, Any]:
    """Make, publish and return the record of a run; an attempt that is finished already is published as it is."""
    folder = results / "runs" / run.run_id / key

    def waiting(holder: str) -> None:
        print(f"waiting for the machine: {holder or 'another run'}", flush=True)

    with attempts.machine_lock(f"process {os.getpid()} trains {run.run_id}", waiting):
        done = attempts.finished(folder)
        if done is None:
            environment = read_environment(site, run)
            check_data(data_folder(site, run.levels["dataset"]))
            number, done = attempts.start(folder)
            record = attempt_run(study, site, run, environment, number, done, session)
            check(record, "record", done / "record.json")
            write_json(done / "record.json", record)
        attempts.publish(done)
        return json.loads((done / "record.json").read_text())


def read_environment(site: Site, run: Run) -> dict[str, Any]:
    """The content of environment.json. InputError when it, or the interpreter that it names, is broken or gone."""
    name = load_framework(run.levels["framework"]).environment
    stamp = environment_stamp(site.cache, name, variant(site), site.deployment)
    try:
        environment: dict[str, Any] = json.loads(stamp.read_text())
        usable = Path(environment["python"]["executable"]).exists()
    except (OSError, ValueError, TypeError, KeyError):
        usable = False
    if not usable:
        raise InputError(f"{stamp}: is broken, or its interpreter is gone; remove {stamp.parent} and start again")
    return environment


def check_data(folder: Path) -> None:
    """InputError when a file of a prepared data set is gone: no run can help that."""
    if gone := [path for path in data_files(folder) if not path.is_file()]:
        raise InputError(f"{gone[0]}: is gone; remove {folder} and start again")


def attempt_run(
    study: Study, site: Site, run: Run, environment: dict[str, Any], number: int, folder: Path, session: str
) -> dict[str, Any]:
    """Train once, in the attempt's `folder` (runs/<run_id>/<key>/attempt-<k>), and return the record."""
    framework = load_framework(run.levels["framework"])
    run_spec = spec(study, site, run)
    data = data_folder(site, run.levels["dataset"])
    write_json(folder / "spec.json", launch.job(run_spec, framework, model_description(run), data))
    launched_at = time.time()
    outcome = launch.local(environment, folder.resolve(), run_spec, site.time_limit_s)
    measured = measurement(folder, launched_at)
    status, reason = judge(outcome, measured, folder, run_spec, site)
    return {
        "run_id": run.run_id,
        "key": folder.parent.name,
        "study": study.name,
        "site": site.name,
        "session": session,
        "attempt": number,
        "status": status,
        "reason": reason,
        "started_at": _utc(launched_at),
        "ended_at": _utc(time.time()),
        **digests(site, run),
        "placement": site.placement,
        "timing_scope": framework.timing_scope,
        "cores_per_rank": cores_per_rank(site),
        "oversubscribed": oversubscribed(site, framework, run),
        "wall_s": outcome.wall_s,
        "packages": environment["packages"],
        "measured": measured,
    }


def oversubscribed(site: Site, framework: Framework, run: Run) -> bool:
    """Whether a machine has more threads of ranks than cores."""
    ranks_on_a_machine = (
        run.geometry.ranks if site.placement == "emulated" else min(run.geometry.ranks, site.ranks_per_node)
    )
    return ranks_on_a_machine * cores_per_rank(site) > site.cores


def measurement(folder: Path, launched_at: float) -> dict[str, Any] | None:
    """What the ranks measured about themselves; None where they did not come to an end."""
    try:
        result = json.loads((folder / "result.json").read_text())
    except FileNotFoundError:
        return None
    ranks = result["ranks"]
    device_memory = [rank["device_memory_peak_bytes"] for rank in ranks if rank["device_memory_peak_bytes"] is not None]
    first_steps = [rank["first_step_s"] for rank in ranks if rank["first_step_s"] is not None]
    return {
        "hosts": list(dict.fromkeys(rank["host"] for rank in ranks)),
        "devices": [rank["device"] for rank in ranks],
        "transport": result["transport"],
        "startup_s": max(0.0, result["ready_at"] - launched_at),
        "import_s": max(rank["import_s"] for rank in ranks),
        "first_step_s": max(first_steps, default=None),
        "memory_peak_bytes": max(rank["memory_peak_bytes"] for rank in ranks),
        "device_memory_peak_bytes": max(device_memory, default=None),
        "energy_j": None,
        "foreign_cpu_share": result["foreign_cpu_share"],
        "steal_share": result["steal_share"],
        "python_version": result["python_version"],
        "library_version": result["library_version"],
    }


def judge(
    outcome: launch.Outcome, measured: dict[str, Any] | None, folder: Path, run_spec: dict[str, Any], site: Site
) -> tuple[str, str | None]:
    """Status and reason of an attempt."""
    if outcome.status != "ok":
        return outcome.status, with_last_line(
            outcome.reason or "", folder / "log.txt"
        ) if outcome.status == "failed" else outcome.reason
    epochs = list(csv.DictReader((folder / "epochs.csv").open())) if (folder / "epochs.csv").exists() else []
    if measured is None or len(epochs) != run_spec["levels"]["epochs"]:
        return "failed", f"ended after {len(epochs)} of {run_spec['levels']['epochs']} epochs"
    for row in epochs:
        if not all(math.isfinite(float(row[loss])) for loss in ("train_loss", "validation_loss")):
            return "invalid", f"the loss is not finite in epoch {row['epoch']}"
    if measured["foreign_cpu_share"] > site.max_foreign_cpu_share:
        share = f"{measured['foreign_cpu_share']:.0%} of the processor time went to others"
        return "invalid", f"disturbed: {share} (more than {site.max_foreign_cpu_share:.0%})"
    return "ok", None


def with_last_line(reason: str, log: Path) -> str:
    """`reason`, and the last line of the log that names an error; that others noticed the loss of a rank is no cause."""
    lines = (
        [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    )
    errors = [line for line in lines if "Error" in line or "error:" in line]
    telling = [line for line in errors if "a rank is gone" not in line] or errors
    last = (telling or lines or [""])[-1]
    return f"{reason}: {last[:300]}" if last else reason


def epoch_time_s(folder: Path) -> float | None:
    """Mean over the epochs of an attempt that are not warm-up, for the progress line."""
    if not (folder / "epochs.csv").exists():
        return None
    rows = csv.DictReader((folder / "epochs.csv").open())
    times = [float(row["epoch_time_s"]) for row in rows if row["warm_up"] == "false"]
    return sum(times) / len(times) if times else None


def find(runs: list[Run], run_id: str, study: Study) -> Run:
    """The run with this id."""
    for run in runs:
        if run.run_id == run_id:
            return run
    raise InputError(f"{study.file.name}: run {run_id} is not in the design any more; start Snakemake again")


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _stop(signum: int, frame: Any) -> None:
    raise launch.Stopped(signal.Signals(signum).name)


def main(argv: list[str] | None = None) -> None:
    """Train one run of the design and publish its record."""
    parser = argparse.ArgumentParser(prog="runs.supervise", description=main.__doc__)
    parser.add_argument("--study", required=True, help="name of a file in config/studies/")
    parser.add_argument("--site", required=True, help="name of a file in config/sites/")
    parser.add_argument("--run-id", required=True, help="a run of the design")
    parser.add_argument("--key", required=True, help="the key that the caller expects the run to have")
    parser.add_argument("--results", required=True, type=Path, help="results/<study>")
    options = parser.parse_args(argv)
    study, site = load_study(options.study), load_site(options.site)
    runs = design(study, site)
    run = find(runs, options.run_id, study)
    if run_key(study, site, run) != options.key:
        raise InputError(
            f"{run.run_id}: files have changed since it was planned (key {options.key}); start Snakemake again"
        )
    published = {
        other.run_id: options.results / "runs" / other.run_id / run_key(study, site, other) / "record.json"
        for other in runs
        if site.has(other.levels["framework"])
    }
    session = Session(options.results, current_session(), published)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, _stop)
    try:
        record = supervise(study, site, run, options.key, options.results, session.name)
    except launch.Stopped as stopped:
        print(f"{run.run_id}: stopped by {stopped}; it starts anew next time", file=sys.stderr)
        sys.exit(130)
    session.add(run.run_id, record["status"])
    epoch_s = epoch_time_s(published[run.run_id].with_name(f"attempt-{record['attempt']}"))
    what = record["reason"] or f"{epoch_s:.3f} s/epoch, run {record['wall_s']:.1f} s"
    print(session.line(run.run_id, record["status"], what), flush=True)


if __name__ == "__main__":
    sys.exit(exit_status(main))
