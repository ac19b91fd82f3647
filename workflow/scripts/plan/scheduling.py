"""Translate a site and a run's geometry into resources and options of batch jobs."""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from declared.site import JOB_MARGIN_S, Site, host_names
from plan.geometry import Geometry
from plan.node_check import without_slow_nodes
from plan.site_resources import cores_per_rank

BUILD_MINUTES = 120
NODE_CHECK_MINUTES = 15

_QOS = "--qos="


def concurrent_share(site: Site) -> int:
    """Return the share, in percent, of the workflow's resource `machine` that a run takes.

    It limits the runs at the same time to the site's `concurrent_runs`.
    """
    return 100 // site.scheduler.concurrent_runs


def run_resources(site: Site, geometry: Geometry) -> dict[str, Any]:
    """Return Snakemake's resources of a run's job, named as in its Slurm executor; {} on a local site."""
    if site.launcher == "local":
        return {}
    nodes = geometry.nodes
    per_node = min(geometry.ranks_per_node, geometry.ranks)
    minutes = math.ceil((site.longest_run_s + JOB_MARGIN_S) / 60)
    if site.launcher in JOB_OPTIONS:
        return _scripted_job(site, nodes, minutes)
    options = [f"--ntasks-per-node={per_node}", "--exclusive", *slurm_options(site, nodes)]
    return {
        **job_resources(site),
        # slurm-jobstep runs a job's command under srun unless the job has the resource `mpi`, whatever its
        # value; our supervisor calls srun itself. The executor that submits refuses a value other than "" if
        # there is one task.
        "mpi": "srun" if geometry.ranks > 1 else "",
        "nodes": nodes,
        "tasks": geometry.ranks,
        # device: hybrid adds one rank to the site's ranks per node.
        "cpus_per_task": min(
            cores_per_rank(site) * geometry.replicas_per_rank, max(1, site.cores // per_node)
        ),
        "runtime": minutes,
        "slurm_extra": shlex.join(options),
    }


def deferred_resources(
    site: Site, results: Path, geometries: Mapping[str, Geometry], wildcard: str
) -> dict[str, Callable[[Any], Any]]:
    """Return `run_resources` as functions of a rule's wildcards.

    Snakemake calls them right before it submits a job, so that the job excludes nodes that the node check has
    found slow by then.

    Args:
        site: The site.
        results: Folder with the table of the node check.
        geometries: A geometry for each value of the wildcard.
        wildcard: Name of the wildcard.
    """

    def resource(name: str) -> Callable[[Any], Any]:
        return lambda wildcards: run_resources(
            without_slow_nodes(site, results), geometries[getattr(wildcards, wildcard)]
        )[name]

    example = next(iter(geometries.values()), None)  # the names of resources are the same for all
    return {name: resource(name) for name in run_resources(site, example)} if example else {}


def node_check_resources(site: Site) -> dict[str, Any]:
    """Return Snakemake's resources of the node check, {} if it requests its own allocation (Slurm)."""
    return _scripted_job(site, site.nodes, NODE_CHECK_MINUTES) if site.launcher in JOB_OPTIONS else {}


def _scripted_job(site: Site, nodes: int, minutes: int) -> dict[str, Any]:
    """Return the resources of a job that a script in profiles/ submits."""
    return {site.launcher: JOB_OPTIONS[site.launcher](site, nodes, 60 * minutes), "runtime": minutes}


def build_resources(site: Site) -> dict[str, Any]:
    """Return Snakemake's resources of a job that builds or prepares data, {} on a local site."""
    if site.launcher == "local":
        return {}
    if site.launcher in JOB_OPTIONS:
        return _scripted_job(site, 1, BUILD_MINUTES)
    return {
        **job_resources(site),
        "nodes": 1,
        "cpus_per_task": site.cores,
        "runtime": BUILD_MINUTES,
        "slurm_extra": shlex.join(slurm_options(site, 1)),
    }


def job_resources(site: Site) -> dict[str, Any]:
    """Return the resources that all jobs of a site on Slurm have, including builds."""
    scheduler = site.scheduler
    named = {
        "slurm_partition": scheduler.partition,
        "slurm_account": scheduler.account,
        "constraint": scheduler.constraint,
        "qos": _qos(site),
    }
    # 0 omits --mem, which Snakemake would otherwise guess from the size of the inputs.
    return {**{name: value for name, value in named.items() if value}, "mem_mb": scheduler.memory_mb or 0}


def slurm_options(site: Site, nodes: int) -> list[str]:
    """Return the options of sbatch that have no resource in Snakemake, for a job on `nodes` nodes.

    The node list is cut to `nodes` names, because Slurm allocates all nodes of a list, or refuses a longer
    one.
    """
    scheduler = site.scheduler
    return [
        *([f"--nodelist={','.join(_listed(site)[:nodes])}"] if scheduler.nodelist else []),
        *([f"--exclude={site.excluded}"] if site.excluded else []),
        *([f"--gpus-per-node={site.devices_per_node}"] if site.devices_per_node else []),
        *(option for option in scheduler.options if not option.startswith(_QOS)),
    ]


def allocation_options(site: Site, nodes: int) -> list[str]:
    """Return the options of sbatch for the allocation of a block (./ringside submit)."""
    scheduler = site.scheduler
    minutes = math.ceil(scheduler.block_limit_s / 60)
    # Snakemake finishes the current run after SIGTERM, so the signal has to come early enough.
    warning_s = min(math.ceil(site.longest_run_s + JOB_MARGIN_S), scheduler.block_limit_s // 2)
    named = {
        "partition": scheduler.partition,
        "account": scheduler.account,
        "constraint": scheduler.constraint,
        "qos": _qos(site),
        "mem": scheduler.memory_mb,
    }
    return [
        f"--nodes={nodes}",
        f"--ntasks-per-node={site.ranks_per_node}",
        f"--cpus-per-task={cores_per_rank(site)}",
        f"--time={minutes}",
        f"--signal=B:TERM@{warning_s}",
        "--exclusive",
        # Slurm would restart a lost job at the same time as Snakemake, or the user, submits it again.
        "--no-requeue",
        *(f"--{name}={value}" for name, value in named.items() if value),
        *slurm_options(site, nodes),
    ]


def oarsub_options(site: Site, nodes: int, limit_s: int) -> str:
    """Return the options of oarsub for a job on whole nodes."""
    scheduler = site.scheduler
    properties = [
        *([f"({scheduler.constraint})"] if scheduler.constraint else []),
        *([f"host in ({_quoted(_listed(site))})"] if scheduler.nodelist else []),
        *([f"host not in ({_quoted(host_names(site.excluded))})"] if site.excluded else []),
    ]
    options = [
        f"--resource=host={nodes},walltime={_clock(limit_s)}",
        *([f"--queue={scheduler.partition}"] if scheduler.partition else []),
        *([f"--project={scheduler.account}"] if scheduler.account else []),
        *([f"--property={' and '.join(properties)}"] if properties else []),
        *scheduler.options,
    ]
    return shlex.join(options)


def qsub_options(site: Site, nodes: int, limit_s: int) -> str:
    """Return the options of PBS's qsub for a job on whole nodes: one chunk per node with all usable cores."""
    scheduler = site.scheduler
    chunk = [
        f"ncpus={site.cores}",
        f"mpiprocs={site.ranks_per_node}",
        *([f"ngpus={site.devices_per_node}"] if site.devices_per_node else []),
        *([f"mem={scheduler.memory_mb}mb"] if scheduler.memory_mb else []),
        *([scheduler.constraint] if scheduler.constraint else []),
    ]
    hosts = _listed(site)[:nodes]
    chunks = [":".join(["1", f"host={host}", *chunk]) for host in hosts] or [":".join([str(nodes), *chunk])]
    options = [
        *("-l", f"select={'+'.join(chunks)}"),
        *("-l", "place=scatter:excl"),
        *("-l", f"walltime={_clock(limit_s)}"),
        *(["-q", scheduler.partition] if scheduler.partition else []),
        *(["-A", scheduler.account] if scheduler.account else []),
        *(word for option in scheduler.options for word in option.split(" ", 1)),
    ]
    return shlex.join(options)


def flux_batch_options(site: Site, nodes: int, limit_s: int) -> str:
    """Return the options of flux batch for a job on whole nodes."""
    scheduler = site.scheduler
    required = [
        *([f"({scheduler.constraint})"] if scheduler.constraint else []),
        *([f"host:{scheduler.nodelist}"] if scheduler.nodelist else []),
        *([f"-host:{site.excluded}"] if site.excluded else []),
    ]
    options = [
        f"--nodes={nodes}",
        "--exclusive",
        *([f"--gpus-per-node={site.devices_per_node}"] if site.devices_per_node else []),
        f"--time-limit={limit_s}s",
        *([f"--queue={scheduler.partition}"] if scheduler.partition else []),
        *([f"--bank={scheduler.account}"] if scheduler.account else []),
        *([f"--requires={' and '.join(required)}"] if required else []),
        *scheduler.options,
    ]
    return shlex.join(options)


# By launcher whose profile submits by a script in profiles/: a function that returns the shell-quoted options
# of a job from its site, number of nodes and time limit in seconds.
JOB_OPTIONS: dict[str, Callable[[Site, int, int], str]] = {
    "oar": oarsub_options,
    "pbs": qsub_options,
    "flux": flux_batch_options,
}


def _clock(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


def _qos(site: Site) -> str | None:
    """Return the site's quality of service, which Snakemake's Slurm executor accepts only as a resource."""
    return next(
        (option.removeprefix(_QOS) for option in site.scheduler.options if option.startswith(_QOS)), None
    )


def _listed(site: Site) -> list[str]:
    """Return the nodes of scheduler.nodelist that are not excluded."""
    return site.usable_hosts(host_names(site.scheduler.nodelist or ""))


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
