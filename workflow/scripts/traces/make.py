"""One run of a study traced, for the tools that show traces: `ringside trace`.

It is repeated beside the campaign, in results/<study>/traces/, never among its records; a run that is traced already is not. What is
written for tools lies in results/<study>/traces/<run_id>/.
"""

import difflib
import fnmatch
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from common.errors import InputError
from common.files import read_json, shown
from environments import scorep
from launchers.slurm import current_job
from plan.binding import check_bound, read_binding
from plan.campaign import Campaign, configured, load_campaign
from plan.design import Run
from plan.identity import Planned, plan_run, unsupported_reason
from plan.scheduling import allocation_options
from runs.attempts import finished, numbered, put_aside
from runs.epochs import read_epochs
from runs.phases import TABLE, damage, write_intervals
from runs.progress import current_session
from runs.supervise import ending_well, supervise
from traces import chrome, otf2_write, score_p
from traces.timeline import read

MOST_NAMED, MOST_NEAREST = 5, 3
USABLE = ("ok", "invalid")  # what was disturbed can be looked at, too


def the_one(campaign: Campaign, wanted: str) -> Run:
    """The run that is called so, or the only one that fits it as a pattern. InputError with the nearest where there is none, or several."""
    known = campaign.by_id
    fitting = [wanted] if wanted in known else [each for each in known if fnmatch.fnmatchcase(each, wanted)]
    if len(fitting) > 1:
        named = fitting[:MOST_NAMED] + ["..."] * (len(fitting) > MOST_NAMED)
        problem = f"fits {len(fitting)} runs of {campaign.study.name}"
        raise InputError("ambiguous-name", problem, file=wanted, got=wanted, expected=f"one of {', '.join(named)}")
    if not fitting:
        close = difflib.get_close_matches(wanted.replace("*", ""), known, n=MOST_NEAREST, cutoff=0)
        problem = f"no run of {campaign.study.name} is called so"
        raise InputError("unknown-name", problem, file=wanted, got=wanted, hint=f"the nearest are {', '.join(close)}")
    run = known[fitting[0]]
    if why := campaign.unsupported_reason(run):
        raise InputError("not-possible-here", why, file=run.run_id)
    return run


def at_level(campaign: Campaign, run: Run, level: str) -> Planned:
    """A run as it is traced. InputError where its framework cannot, or the site lacks what this takes."""
    levels = {**run.levels, "trace": level}
    if not run.framework.can(levels):
        why = run.framework.why.get("trace", "it is not among its capabilities")
        problem = f"{run.framework.name} cannot be traced at level {level}: {why}"
        raise InputError("unsupported-level", problem, file=run.run_id, got=level)
    if lacking := unsupported_reason(campaign.site, levels):
        raise InputError("not-possible-here", lacking, file=run.run_id)
    return plan_run(campaign.study, campaign.site, replace(run, levels=levels))


def traced(folder: Path) -> Path | None:
    """The attempt at a run that counts, if its phases are whole; `folder` has its attempts."""
    attempt = finished(folder)
    return attempt if attempt and whole(attempt) else None


def whole(attempt: Path) -> bool:
    """Whether the phases that an attempt kept are those of its run."""
    try:
        spec, epochs = read_json(attempt / "spec.json")["spec"], read_epochs(attempt / "epochs.csv")
        return damage(attempt, spec["ranks"], len(epochs), int(epochs[-1]["steps"])) is None
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return False


def measured(campaign: Campaign, wanted: Planned) -> Path:
    """The attempt of a traced run, which is trained unless there is one, whose phases are whole. InputError where it fails, or cannot be
    started here."""
    results = campaign.results / "traces"
    folder = results / "runs" / wanted.run_id / wanted.key
    if there := traced(folder):
        return there
    check_bound(results, campaign.site)
    _check_job(campaign, wanted)
    _make(campaign, wanted)
    if finished(folder):  # what it kept is damaged
        put_aside(folder / "record.json")
    with ending_well(wanted.run_id, results):
        record = supervise(wanted, results, current_session(), usable=lambda record: record["status"] in USABLE)
    attempt = numbered(folder, record["attempt"])
    if record["status"] not in USABLE:
        problem = f"the traced run ended as {record['status']}: {record['reason']}"
        raise InputError("run-failed", problem, file=shown(attempt / "log.txt"), got=record["status"])
    return attempt


def _check_job(campaign: Campaign, wanted: Planned) -> None:
    """InputError where ranks are started in a job of a scheduler only, and this is none."""
    if campaign.site.launcher == "slurm" and current_job() is None:
        options = [each for each in allocation_options(campaign.site, wanted.spec["nodes"]) if "--signal" not in each]
        names = ["--study", campaign.study.name, "--site", campaign.site.name]
        command = ["salloc", *options, "./ringside", "trace", wanted.run_id, *names]
        raise InputError(
            "needs-job",
            "slurm starts ranks inside a job only",
            file=shown(campaign.site.file),
            key="launcher",
            hint=f"run {shlex.join(command)}",
        )


def _make(campaign: Campaign, wanted: Planned) -> None:
    """Build the environment and prepare the data, where they are not there. Ends the program where Snakemake fails."""
    lacking = [str(file) for file in (wanted.environment, wanted.data / "prepared") if not file.exists()]
    if lacking:
        config = [f"study={campaign.study.name}", f"site={campaign.site.name}"]
        done = subprocess.run(["snakemake", *lacking, "--config", *config], check=False)
        if done.returncode:
            sys.exit(done.returncode)


def export(attempt: Path, folder: Path) -> list[str]:
    """Write what tools open of a traced attempt into `folder`; a line of each file, where it is and what opens it."""
    timeline = score_p.beside(read(attempt), attempt)
    write_intervals(folder / TABLE, timeline.intervals)
    made = {
        chrome.write(timeline, folder): "open it at ui.perfetto.dev, which sends it nowhere, or at chrome://tracing",
        otf2_write.write(timeline, folder / "otf2"): "open it in Vampir",
        folder / TABLE: "a table for everything else: rank, epoch, step, phase, start and end in s",
    }
    if (attempt / scorep.ANCHOR).exists():
        made[attempt / scorep.ANCHOR] = "as Score-P wrote it, with every call of MPI: open it in Vampir"
    return [f"{shown(file)}: {what}" for file, what in made.items()]


def trace_run(wanted: str, study: str = "", site: str = "", full: bool = False) -> None:
    """Trace one run of a study, and write the trace for Perfetto and for Vampir.

    Args:
        wanted: A run id, or a pattern that fits one.
        study: A study; default: the configured one.
        site: A site; default: that at which the study's results were made, else the configured one.
        full: Also trace what the library's own profiler reports.
    """
    config = configured(study, site)
    bound = read_binding(Path("results") / config["study"])
    if bound and not site:
        config["site"] = bound["site"]
    campaign = load_campaign({**config, "records": "campaign"}, probe=True)
    run, level = the_one(campaign, wanted), "full" if full else "phases"
    there = traced(Path(campaign.records[run.run_id]).parent) if run.levels["trace"] in (level, "full") else None
    attempt = there or measured(campaign, at_level(campaign, run, level))
    print("\n".join(export(attempt, campaign.results / "traces" / run.run_id)))
