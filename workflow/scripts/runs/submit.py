"""Run a campaign in Slurm allocations, one per block, one after the other: `ringside submit`.

Environments, data and the design are built first, without an allocation. Then every block with missing
records gets a Slurm job. In it, Snakemake starts one supervisor after the other, in planned order, and each
supervisor starts one srun for its ranks and others for reference benchmarks and idle power. Jobs of one study
have the same name and depend on each other (--dependency=singleton), so that blocks never overlap unless the
site allows concurrent runs. The next `ringside submit` resumes an interrupted block. With an interval target
every possible block gets a job. It waits for all earlier blocks, decides which runs it needs, and ends at
once if there are none.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from common.errors import InputError
from common.files import CHECKOUT, digest_text, display_path
from common.shell import Unanswered, check_node, query_with_retries
from common.text import number_of
from plan import unlock
from plan.campaign import Campaign, load_campaign, load_merged_config
from plan.collective_benchmarks import CollectiveBenchmarks
from plan.design import raise_if_imported
from plan.scheduling import allocation_options
from sites import slurm
from sites.readiness import check_launch, node_paths

POLL_S = 5.0


def load_slurm_campaign(study: str = "", site: str = "") -> tuple[Campaign, list[str]]:
    """Return the campaign of a study at a site (default: configured) and Snakemake's --config arguments."""
    campaign = load_campaign({**load_merged_config(study, site, ["slurm.yaml"]), "records": "campaign"})
    return campaign, [f"study={campaign.study.name}", f"site={campaign.site.name}"]


def raise_if_unsubmittable(campaign: Campaign) -> None:
    """Raise InputError if the site or this machine has no Slurm, or if the campaign already has jobs."""
    raise_if_imported(campaign.study)
    if campaign.site.launcher != "slurm":
        raise InputError(
            "not-possible-here",
            f"is {campaign.site.launcher}, ringside submit needs slurm",
            file=display_path(campaign.site.file),
            key="launcher",
            got=campaign.site.launcher,
            hint="name a site of a Slurm cluster: --site NAME, or in config/slurm.yaml",
        )
    for program in ("sbatch", "squeue"):
        if not shutil.which(program):
            hint = "ringside submit runs on a cluster's login node"
            raise InputError("not-installed", "is not installed on this machine", file=program, hint=hint)
    check_launch(campaign, "slurm")
    if active := campaign_jobs(campaign):
        states = "; ".join(f"{number} {state}" for number, state in active.items())
        raise InputError(
            "already-running",
            f"jobs of this study are already pending or running ({states})",
            got=active,
            hint=f"wait for them, or end them: scancel {' '.join(active)}",
        )


def build_inputs(campaign: Campaign, config: list[str], options: list[str]) -> None:
    """Build environments and data of the runs, here or in a job (`build_on`); exit if Snakemake fails.

    Args:
        campaign: The campaign.
        config: Arguments for Snakemake's --config.
        options: The caller's arguments for Snakemake.
    """
    profile = "slurm" if campaign.site.scheduler.build_on == "job" else "local"
    targets = ["plan", "design", "environments", "datasets", *(["node_check"] if campaign.node_check else [])]
    unlock.main(if_stale=True)
    result = subprocess.run(
        ["snakemake", *targets, *options, "--profile", f"profiles/{profile}", "--config", *config],
        cwd=CHECKOUT,
        check=False,
    )
    if result.returncode:
        sys.exit(result.returncode)


def batch_script(
    campaign: Campaign, block: int, config: list[str], runs_alone: bool, options: list[str]
) -> str:
    """Return the batch script of a block.

    Args:
        campaign: The campaign.
        block: The block.
        config: Arguments for Snakemake's --config.
        runs_alone: Whether no other block runs at the same time, so that Snakemake can lock the folder.
        options: The caller's arguments for Snakemake.
    """
    snakemake = [
        "snakemake",
        "collective_benchmarks",
        "runs",
        *options,
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
            *(["python -m plan.unlock --if-stale"] if runs_alone else []),
            # exec, because Slurm's early signal has to reach Snakemake, which then waits for the current run
            # to end.
            f"exec {shlex.join(snakemake + ([] if runs_alone else ['--nolock']))}",
            "",
        ]
    )


def job_name_prefix() -> str:
    """Return the prefix of the names of all jobs of this checkout."""
    return f"ringside-{digest_text(str(CHECKOUT))[:6]}-"


def is_campaign_job(campaign: Campaign, name: str, comment: str) -> bool:
    """Return whether a job with this name and comment is a block of this checkout's campaign."""
    return name.startswith(job_name_prefix()) and comment.startswith(f"{campaign.study.name} ")


def campaign_jobs(campaign: Campaign) -> dict[str, str]:
    """Return the pending and running jobs of the campaign: number -> block and state."""
    try:
        listed = query_with_retries(
            lambda: slurm.run_client("squeue", "--me", "--noheader", "--format=%i|%j|%k|%T")
        ).splitlines()
    except Unanswered as unanswered:
        problem = str(unanswered).removeprefix("squeue: ")
        raise InputError("scheduler-silent", problem, file="squeue") from None
    # Names of other jobs can contain |.
    rows = [row for line in listed if len(row := line.split("|")) == 4]
    return {
        number: f"{comment} {state}"
        for number, name, comment, state in rows
        if is_campaign_job(campaign, name, comment)
    }


def has_missing_benchmarks(campaign: Campaign) -> bool:
    """Return whether a collective benchmark has no record yet."""
    benchmarks = CollectiveBenchmarks(campaign)
    return len(benchmarks.existing_record_paths()) < len(benchmarks.record_paths)


def submit(campaign: Campaign, config: list[str], options: list[str]) -> list[str]:
    """Submit an allocation for every block with something to do; return the numbers of the jobs."""
    runs_alone = campaign.site.scheduler.concurrent_runs == 1
    _logs(campaign).mkdir(parents=True, exist_ok=True)
    numbers: list[str] = []
    undecided = _first_undecided(campaign)
    for block in campaign.blocks:
        is_undecided = undecided is not None and block >= undecided
        runs = [run for run in campaign.runs if run.block == block and run.run_id in campaign.record_paths]
        n_missing = sum(not os.path.exists(campaign.record_paths[run.run_id]) for run in runs)
        # Without another job, the last block's job executes the missing benchmarks.
        runs_benchmarks = block == campaign.blocks[-1] and not numbers and has_missing_benchmarks(campaign)
        if not is_undecided and not (runs and (n_missing or runs_benchmarks)):
            continue
        # A block beyond the fixed ones decides about its runs from the results of all earlier blocks.
        earlier = numbers if block > campaign.study.replicates.at_least else []
        number = _submit_block(
            campaign, block, batch_script(campaign, block, config, runs_alone, options), earlier
        )
        content = "runs decided at its start" if is_undecided else number_of(n_missing, "run")
        print(f"block {block}: job {number}, {content}; log: {_logs(campaign)}/block-{block}.{number}.log")
        numbers.append(number)
    return numbers


def _submit_block(campaign: Campaign, block: int, script: str, earlier: list[str]) -> str:
    """Submit the job of a block, which waits for the jobs `earlier`, and return its number.

    Jobs of the same name never overlap (singleton). A checkout uses one name for each concurrent run that the
    site allows.

    Raises:
        InputError: If Slurm refuses the job.
    """
    site = campaign.site
    waits = f",afterany{''.join(f':{number}' for number in earlier)}" if earlier else ""
    sbatch_options = [
        f"--job-name={job_name_prefix()}{block % site.scheduler.concurrent_runs}",
        f"--comment={campaign.study.name} block {block}",
        f"--dependency=singleton{waits}",
        f"--output={_logs(campaign)}/block-{block}.%j.log",
        *allocation_options(site, max(run.geometry.nodes for run in campaign.runs)),
    ]
    result = subprocess.run(
        ["sbatch", "--parsable", *sbatch_options],
        input=script,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=job_environment(),
    )
    if result.returncode:
        message = (result.stderr.strip() or "failed").splitlines()[-1].removeprefix("sbatch: ")
        raise InputError(
            "scheduler-refused",
            f"{message} (options: {shlex.join(sbatch_options)})",
            file="sbatch",
            hint=f"./ringside doctor --site {site.name} names the key to correct",
        )
    return result.stdout.strip().split(";")[0]


def _logs(campaign: Campaign) -> Path:
    """Return the folder of the logs of blocks."""
    return campaign.results / "logs" / "submit"


def _first_undecided(campaign: Campaign) -> int | None:
    """Return the first block that decides about its runs in its own job, None if all runs are decided."""
    if not campaign.can_grow:
        return None
    # The decision after a block is about the runs of the next one.
    return campaign.decisions[-1].block + 2 if campaign.decisions else campaign.study.replicates.at_least + 1


def job_environment() -> dict[str, str]:
    """Return the environment of a block's job, without options of sbatch, srun and Snakemake."""
    removed = ("SNAKEMAKE", "RINGSIDE_SESSION", "SBATCH_", "SRUN_", "SLURM_")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(removed) or name == "SLURM_CONF"
    }


def wait_for_jobs(campaign: Campaign) -> None:
    """Wait until no job of the study is left.

    Raises:
        InputError: If runs or collective benchmarks then have no record.
    """
    while campaign_jobs(campaign):
        time.sleep(POLL_S)
    campaign = campaign.with_current_decisions()
    done = len(campaign.existing_record_paths())
    if done < len(campaign.record_paths) or campaign.can_grow or has_missing_benchmarks(campaign):
        raise InputError(
            "incomplete-campaign",
            f"{done} of {len(campaign.record_paths)} runs have a record"
            f"{', more replicates are not decided yet' if campaign.can_grow else ''}"
            f"{', collective benchmarks are missing' if has_missing_benchmarks(campaign) else ''}",
            file=campaign.results,
            got=done,
            hint=f"see {campaign.results}/logs/submit; run ./ringside submit again for the others",
        )


def submit_blocks(study: str = "", site: str = "", until_end: bool = False, keep_going: bool = False) -> None:
    """Submit an allocation for every block of a study that has runs to do.

    Args:
        study: A study; default: the configured one.
        site: A site; default: that of config/slurm.yaml.
        until_end: Return when all jobs have ended.
        keep_going: Continue after three runs in a row that fail for the same reason.

    Raises:
        InputError: If nothing can be submitted from here, or runs are missing at the end.
    """
    options = ["--keep-going"] if keep_going else []
    os.chdir(CHECKOUT)
    campaign, config = load_slurm_campaign(study, site)
    raise_if_unsubmittable(campaign)
    build_inputs(campaign, config, options)
    if campaign.node_check:
        campaign, _ = load_slurm_campaign(study, site)  # without the nodes that are slow
    submitted = submit(campaign, config, options)
    if not submitted:
        print(f"{campaign.study.name}: all {len(campaign.record_paths)} runs have a record")
    if until_end:
        wait_for_jobs(campaign)
    moment = "when they have ended" if submitted and not until_end else "now"
    print(f"{moment}: ./ringside run {campaign.study.name} --site {campaign.site.name}")
