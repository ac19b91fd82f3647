"""Trace one run of a study for trace viewers: `ringside trace`.

The run is repeated in results/<study>/traces/, outside the campaign's records. A run that is already traced
is not repeated. Files for viewers are in results/<study>/traces/<run_id>/.
"""

import difflib
import fnmatch
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from common.errors import InputError
from common.files import display_path, read_json
from common.run_status import RunStatus
from environments import scorep
from launchers.slurm import job_number
from models.graph import BYTES
from models.messages import number_bytes
from plan.binding import check_bound, read_binding
from plan.campaign import Campaign, load_campaign, load_merged_config
from plan.design import Run, raise_if_imported
from plan.identity import PlannedRun, plan_run
from plan.scheduling import allocation_options
from plan.site_limits import unsupported_reason
from runs.attempts import attempt_path, latest_recorded_attempt, put_aside
from runs.epochs import read_epochs
from runs.interruptions import report_interruptions
from runs.phases import TABLE, damage_reason, write_intervals
from runs.session import current_session
from runs.supervise import supervise
from traces import chakra_steps, chrome, otf2_write, score_p
from traces.timeline import read

MAX_NAMED, MAX_NEAREST = 5, 3
USABLE = (RunStatus.OK, RunStatus.INVALID)  # traces of disturbed runs are useful, too


def find_run(campaign: Campaign, pattern: str) -> Run:
    """Return the run with this id, or the only run whose id matches the pattern.

    Raises:
        InputError: If no run matches, if several do, or if the run cannot be executed here.
    """
    runs = campaign.by_id
    fitting = (
        [pattern] if pattern in runs else [run_id for run_id in runs if fnmatch.fnmatchcase(run_id, pattern)]
    )
    if len(fitting) > 1:
        names = fitting[:MAX_NAMED] + ["..."] * (len(fitting) > MAX_NAMED)
        problem = f"fits {len(fitting)} runs of {campaign.study.name}"
        raise InputError(
            "ambiguous-name", problem, file=pattern, got=pattern, expected=f"one of {', '.join(names)}"
        )
    if not fitting:
        nearest = difflib.get_close_matches(pattern.replace("*", ""), runs, n=MAX_NEAREST, cutoff=0)
        problem = f"{campaign.study.name} has no such run"
        raise InputError(
            "unknown-name", problem, file=pattern, got=pattern, hint=f"the nearest are {', '.join(nearest)}"
        )
    run = runs[fitting[0]]
    if reason := campaign.not_executable_reason(run):
        raise InputError("not-possible-here", reason, file=run.run_id)
    return run


def plan_traced(campaign: Campaign, run: Run, level: str) -> PlannedRun:
    """Return the plan of a run traced at this level.

    Raises:
        InputError: If its framework or the site does not support the level.
    """
    levels = {**run.levels, "trace": level}
    if not run.framework.supports(levels):
        reason = run.framework.refusal_reasons.get("trace", "it is not among its capabilities")
        problem = f"{run.framework.name} cannot be traced at level {level}: {reason}"
        raise InputError("unsupported-level", problem, file=run.run_id, got=level)
    if unsupported := unsupported_reason(campaign.site, levels):
        raise InputError("not-possible-here", unsupported, file=run.run_id)
    return plan_run(campaign.study, campaign.site, replace(run, levels=levels))


def finished_trace(folder: Path) -> Path | None:
    """Return the attempt in `folder` that counts; None if there is none, or its phases are incomplete."""
    attempt = latest_recorded_attempt(folder)
    return attempt if attempt and is_complete(attempt) else None


def is_complete(attempt: Path) -> bool:
    """Return whether the phases of an attempt belong to its run and are complete."""
    try:
        spec, epochs = read_json(attempt / "rank_input.json")["spec"], read_epochs(attempt / "epochs.csv")
        return damage_reason(attempt, spec["ranks"], len(epochs), int(epochs[-1]["steps"])) is None
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return False


def measure(campaign: Campaign, planned: PlannedRun) -> Path:
    """Return the attempt of a traced run, and train it unless there is one with complete phases.

    Raises:
        InputError: If the run fails, or cannot start here.
    """
    results = campaign.results / "traces"
    folder = results / "runs" / planned.run_id / planned.key
    if attempt := finished_trace(folder):
        return attempt
    check_bound(results, campaign.site)
    _check_job(campaign, planned)
    _build_missing(campaign, planned)
    if latest_recorded_attempt(folder):  # its phases are damaged
        put_aside(folder / "record.json")
    with report_interruptions(planned.run_id, results):
        record = supervise(
            planned, results, current_session(), is_final=lambda record: record["status"] in USABLE
        )
    attempt = attempt_path(folder, record["attempt"])
    if record["status"] not in USABLE:
        problem = f"the traced run ended as {record['status']}: {record['reason']}"
        raise InputError("run-failed", problem, file=attempt / "log.txt", got=record["status"])
    return attempt


def _check_job(campaign: Campaign, planned: PlannedRun) -> None:
    """Raise InputError if the launcher starts ranks only in a scheduler's job, and this is none."""
    if campaign.site.launcher == "slurm" and job_number() is None:
        options = [
            option
            for option in allocation_options(campaign.site, planned.spec["nodes"])
            if "--signal" not in option
        ]
        names = ["--study", campaign.study.name, "--site", campaign.site.name]
        command = ["salloc", *options, "./ringside", "trace", planned.run_id, *names]
        raise InputError(
            "needs-job",
            "slurm starts ranks inside a job only",
            file=campaign.site.file,
            key="launcher",
            hint=f"run {shlex.join(command)}",
        )


def _build_missing(campaign: Campaign, planned: PlannedRun) -> None:
    """Build the environment and prepare the data if they are missing; exit if Snakemake fails."""
    needed = [planned.environment, *([planned.data / "prepared"] if planned.data else [])]
    missing = [str(file) for file in needed if not file.exists()]
    if missing:
        config = [f"study={campaign.study.name}", f"site={campaign.site.name}"]
        done = subprocess.run(["snakemake", *missing, "--config", *config], check=False)
        if done.returncode:
            sys.exit(done.returncode)


def export_trace(attempt: Path, folder: Path) -> list[str]:
    """Write the files of a traced attempt for viewers into `folder`, and return a line for each."""
    timeline = score_p.add_communication(read(attempt), attempt)
    write_intervals(folder / TABLE, timeline.intervals)
    use_of_file = {
        chrome.write(
            timeline, folder
        ): "open it at ui.perfetto.dev, which does not upload it, or at chrome://tracing",
        otf2_write.write(timeline, folder / "otf2"): "open it in Vampir",
        folder / TABLE: "a table for other programs: rank, epoch, step, phase, start and end in s",
    }
    if (attempt / scorep.ANCHOR).exists():
        use_of_file[attempt / scorep.ANCHOR] = (
            "as Score-P wrote it, with every call of MPI: open it in Vampir"
        )
    return [f"{display_path(file)}: {use}" for file, use in use_of_file.items()]


def trace_run(
    run_pattern: str, study: str = "", site: str = "", full: bool = False, chakra: Path | None = None
) -> None:
    """Trace one run of a study, write the trace for Perfetto and for Vampir, and print the files.

    Args:
        run_pattern: A run id, or a pattern that matches a single one.
        study: A study; default: the configured one.
        site: A site; default: the one that the study's results are bound to, else the configured one.
        full: Also record the operations that the library's profiler reports.
        chakra: Folder for Chakra execution traces of a typical step.
    """
    config = load_merged_config(study, site)
    bound = read_binding(Path("results") / config["study"])
    if bound and not site:
        config["site"] = bound["site"]
    campaign = load_campaign({**config, "records": "campaign"}, probe=True)
    raise_if_imported(campaign.study)
    run, level = find_run(campaign, run_pattern), "full" if full else "phases"
    existing = (
        finished_trace(Path(campaign.record_paths[run.run_id]).parent)
        if run.levels["trace"] in (level, "full")
        else None
    )
    attempt = existing or measure(campaign, plan_traced(campaign, run, level))
    print("\n".join(export_trace(attempt, campaign.results / "traces" / run.run_id)))
    if chakra:
        n_bytes = summed_gradient_bytes(attempt, run)
        files = chakra_steps.export(attempt, run.run_id, n_bytes, chakra)
        print(f"{display_path(files[0])}: a step of rank 0, for ASTRA-sim")


def summed_gradient_bytes(attempt: Path, run: Run) -> int:
    """Return the bytes of a run's gradients in the type in which an all-reduce sums them."""
    levels = read_json(attempt / "rank_input.json")["spec"]["levels"]
    return run.graph.gradient_bytes * number_bytes(levels).reduced // BYTES if run.graph else 0
