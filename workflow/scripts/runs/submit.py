"""Run a campaign in allocations, one for each block, one after the other: `ringside submit`.

What needs no allocation (environments, data, the design) is made first. Then every block that still lacks records gets
a Slurm job, in which Snakemake starts one srun a run, in the planned order. Jobs of one study have one name and depend on
each other (--dependency=singleton), so that blocks never overlap unless the site allows concurrent runs. A block that
was cut short goes on with the next `ringside submit`. Where replicates are chosen by precision, every block that is possible has its
job, which decides first what it has to run; it waits for all blocks before, and ends at once when there is nothing.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from common.errors import InputError
from common.files import CHECKOUT, digest_text, shown
from common.shell import check_node
from common.text import number_of
from launchers.launch import Lost
from launchers.slurm import ask
from plan import unlock
from plan.campaign import Campaign, configured, load_campaign
from plan.scheduling import allocation_options
from plan.sweeps import Sweeps
from sites.readiness import check_launch, node_paths

POLL_S = 5.0


def load(study: str = "", site: str = "") -> tuple[Campaign, list[str]]:
    """Return the campaign of a study at a site (default: the configured ones), and the arguments for Snakemake's --config."""
    campaign = load_campaign({**configured(study, site, ["slurm.yaml"]), "records": "campaign"})
    return campaign, [f"study={campaign.study.name}", f"site={campaign.site.name}"]


def check(campaign: Campaign) -> None:
    """InputError when the site is none of Slurm's, or Slurm is not here."""
    if campaign.site.launcher != "slurm":
        raise InputError(
            "not-possible-here",
            f"is {campaign.site.launcher}, ringside submit needs slurm",
            file=shown(campaign.site.file),
            key="launcher",
            got=campaign.site.launcher,
            hint="name a site of a Slurm cluster: --site NAME, or in config/slurm.yaml",
        )
    for program in ("sbatch", "squeue"):
        if not shutil.which(program):
            hint = "ringside submit runs on a cluster's login node"
            raise InputError("not-installed", "is not on this machine", file=program, hint=hint)
    check_launch(campaign, "slurm")
    if there := jobs(campaign):
        said = "; ".join(f"{number} {what}" for number, what in there.items())
        raise InputError(
            "already-running",
            f"jobs of this study wait or run already ({said})",
            got=there,
            hint=f"wait for them, or end them: scancel {' '.join(there)}",
        )


def prepare(campaign: Campaign, config: list[str], own: list[str]) -> None:
    """Make what runs need, here or in a job as the site says. `own`: the caller's arguments for Snakemake.

    Ends the program when Snakemake fails.
    """
    profile = "slurm" if campaign.site.scheduler.build_on == "job" else "local"
    targets = ["plan", "design", "environments", "datasets"]
    unlock.main(if_stale=True)
    done = subprocess.run(
        ["snakemake", *targets, *own, "--profile", f"profiles/{profile}", "--config", *config],
        cwd=CHECKOUT,
        check=False,
    )
    if done.returncode:
        sys.exit(done.returncode)


def script(campaign: Campaign, block: int, config: list[str], alone: bool, own: list[str]) -> str:
    """The batch script of a block. `alone`: no other block runs at the same time, so Snakemake locks the folder.

    `own`: the caller's arguments for Snakemake.
    """
    snakemake = [
        "snakemake",
        "sweeps",
        "runs",
        *own,
        "--profile",
        "profiles/allocation",
        "--config",
        *config,
        f"block={block}",
    ]
    path = f"{shlex.quote(str(Path(sys.executable).parent))}{os.pathsep}$PATH"
    return "\n".join(
        [
            "#!/bin/bash",
            f"{shlex.join(check_node(node_paths(campaign)))} || exit",
            f"cd {shlex.quote(str(CHECKOUT))} || exit 1",
            f'export PATH={path} PYTHONPATH=workflow/scripts SNAKEMAKE_PROFILE=""',
            'export RINGSIDE_SESSION="$(date -u +%Y%m%dT%H%M%SZ)-job$SLURM_JOB_ID"',
            *(["python -m plan.unlock --if-stale"] if alone else []),
            # exec: Slurm's early signal reaches Snakemake itself, which then lets the run under way end.
            f"exec {shlex.join(snakemake + ([] if alone else ['--nolock']))}",
            "",
        ]
    )


def job_names() -> str:
    """What the names of all jobs of this checkout begin with."""
    return f"ringside-{digest_text(str(CHECKOUT))[:6]}-"


def is_of(campaign: Campaign, name: str, comment: str) -> bool:
    """Whether a job with this name and comment is a block of the campaign, submitted from this checkout."""
    return name.startswith(job_names()) and comment.startswith(f"{campaign.study.name} ")


def jobs(campaign: Campaign) -> dict[str, str]:
    """The jobs of the campaign that wait or run: number -> block and state. Slurm is asked again when it does not answer."""
    try:
        listed = ask("squeue", "--me", "--noheader", "--format=%i|%j|%k|%T").splitlines()
    except Lost as lost:
        raise InputError(lost.reason.code, str(lost)) from None
    rows = [row for line in listed if len(row := line.split("|")) == 4]  # not jobs of others with such names
    return {number: f"{comment} {state}" for number, name, comment, state in rows if is_of(campaign, name, comment)}


def missing_sweeps(campaign: Campaign) -> bool:
    """Whether a sweep of the network has still to be made."""
    sweeps = Sweeps(campaign)
    return len(sweeps.available()) < len(sweeps.outputs)


def submit(campaign: Campaign, config: list[str], own: list[str]) -> list[str]:
    """Submit an allocation for every block with something to do; the numbers of the jobs.

    Jobs with one name never overlap (singleton); a checkout has as many names as the site allows runs at a time.
    """
    site, alone = campaign.site, campaign.site.scheduler.concurrent_runs == 1
    logs = campaign.results / "logs" / "submit"
    logs.mkdir(parents=True, exist_ok=True)
    numbers: list[str] = []
    sweeps = missing_sweeps(campaign)
    undecided = _first_undecided(campaign)
    for block in campaign.blocks:
        open_ = undecided is not None and block >= undecided
        runs = [run for run in campaign.runs if run.block == block and run.run_id in campaign.records]
        todo = [run for run in runs if not os.path.exists(campaign.records[run.run_id])]
        last = block == campaign.blocks[-1] and sweeps and not numbers
        if not open_ and not (runs and (todo or last)):
            continue
        waits = "".join(f":{number}" for number in numbers) if block > campaign.study.replicates.at_least else ""
        options = [
            f"--job-name={job_names()}{block % site.scheduler.concurrent_runs}",
            f"--comment={campaign.study.name} block {block}",
            f"--dependency=singleton{f',afterany{waits}' if waits else ''}",
            f"--output={logs}/block-{block}.%j.log",
            *allocation_options(site, max(run.geometry.nodes for run in campaign.runs)),
        ]
        done = subprocess.run(
            ["sbatch", "--parsable", *options],
            input=script(campaign, block, config, alone, own),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=environment(),
        )
        if done.returncode:
            said = (done.stderr.strip() or "failed").splitlines()[-1]
            raise InputError("scheduler-refused", f"{said} (options: {shlex.join(options)})", file="sbatch")
        numbers.append(done.stdout.strip().split(";")[0])
        what = "the runs that are decided then" if open_ else number_of(len(todo), "run")
        print(f"block {block}: job {numbers[-1]}, {what}; log: {logs}/block-{block}.{numbers[-1]}.log")
    return numbers


def _first_undecided(campaign: Campaign) -> int | None:
    """The first block whose runs are decided from those before, in its own job; None where nothing is left to decide."""
    if not campaign.open:
        return None
    return campaign.decisions[-1].block + 2 if campaign.decisions else campaign.study.replicates.at_least + 1


def environment() -> dict[str, str]:
    """What a block's job inherits: nothing that would become an option of sbatch, srun or Snakemake."""
    ours = ("SNAKEMAKE", "RINGSIDE_SESSION", "SBATCH_", "SRUN_", "SLURM_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours) or name == "SLURM_CONF"}


def wait(campaign: Campaign) -> None:
    """Return when no job of the study is left; InputError when runs or sweeps lack their record then."""
    while jobs(campaign):
        time.sleep(POLL_S)
    campaign = campaign.now()
    done = len(campaign.available())
    if done < len(campaign.records) or campaign.open or missing_sweeps(campaign):
        raise InputError(
            "incomplete-campaign",
            f"{done} of {len(campaign.records)} runs have a record"
            f"{', it is not decided which cells get more' if campaign.open else ''}"
            f"{', sweeps of the network are missing' if missing_sweeps(campaign) else ''}",
            file=campaign.results,
            got=done,
            hint=f"see {campaign.results}/logs/submit; ./ringside submit again runs the others",
        )


def submit_blocks(study: str = "", site: str = "", until_end: bool = False, keep_going: bool = False) -> None:
    """Submit an allocation for every block of a study that has runs to do.

    Args:
        study: A study; default: the configured one.
        site: A site; default: that of config/slurm.yaml.
        until_end: Return when all jobs have ended.
        keep_going: Go on after three runs that failed for the same reason.

    Raises:
        InputError: If nothing can be submitted from here, or runs are missing at the end.
    """
    own = ["--keep-going"] if keep_going else []
    os.chdir(CHECKOUT)
    campaign, config = load(study, site)
    check(campaign)
    prepare(campaign, config, own)
    submitted = submit(campaign, config, own)
    if not submitted:
        print(f"{campaign.study.name}: all {len(campaign.records)} runs have a record")
    if until_end:
        wait(campaign)
    when = "when they have ended" if submitted and not until_end else "now"
    print(f"{when}: ./ringside run {campaign.study.name} --site {campaign.site.name}")
