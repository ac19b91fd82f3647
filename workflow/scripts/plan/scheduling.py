"""What a job asks of the cluster's scheduler: the one place where a site's settings become options of schedulers."""

import math
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from declared.site import JOB_MARGIN_S, Site, host_names
from plan.design import Geometry
from plan.identity import cores_per_rank

BUILD_MINUTES = 120

_QOS = "--qos="


def concurrent_share(site: Site) -> int:
    """The share of the workflow's resource `machine` (100) that one run takes."""
    return 100 // site.scheduler.concurrent_runs


def run_resources(site: Site, geometry: Geometry) -> dict[str, Any]:
    """Snakemake's resources for the job of one run, in the names of its Slurm executor; none where this machine runs it."""
    if site.launcher == "local":
        return {}
    nodes = geometry.nodes
    per_node = min(geometry.ranks_per_node, geometry.ranks)
    minutes = math.ceil((site.longest_run_s + JOB_MARGIN_S) / 60)
    if site.launcher in OPTIONS:
        return {site.launcher: OPTIONS[site.launcher](site, nodes, 60 * minutes), "runtime": minutes}
    options = [f"--ntasks-per-node={per_node}", "--exclusive", *slurm_options(site, nodes)]
    return {
        **job_resources(site),
        # Without `mpi`, the executor would wrap this program, and every srun of its own, in an srun.
        "mpi": "srun" if geometry.ranks > 1 else "",
        "nodes": nodes,
        "tasks": geometry.ranks,
        # With device hybrid there is one more than the site's ranks per node.
        "cpus_per_task": min(cores_per_rank(site) * geometry.replicas_per_rank, max(1, site.cores // per_node)),
        "runtime": minutes,
        "slurm_extra": shlex.join(options),
    }


def deferred_resources(
    site: Site, geometries: Mapping[str, Geometry], wildcard: str
) -> dict[str, Callable[[Any], Any]]:
    """`run_resources` as functions of a rule's wildcards; `geometries` has one for every value of `wildcard`."""

    def asked(name: str) -> Callable[[Any], Any]:
        return lambda wildcards: run_resources(site, geometries[getattr(wildcards, wildcard)])[name]

    some = next(iter(geometries.values()), None)  # the names are the same for all
    return {name: asked(name) for name in run_resources(site, some)} if some else {}


def build_resources(site: Site) -> dict[str, Any]:
    """Snakemake's resources for a job that builds an environment or prepares data; none where this machine does."""
    if site.launcher == "local":
        return {}
    if site.launcher in OPTIONS:
        return {site.launcher: OPTIONS[site.launcher](site, 1, 60 * BUILD_MINUTES), "runtime": BUILD_MINUTES}
    return {
        **job_resources(site),
        "nodes": 1,
        "cpus_per_task": site.cores,
        "runtime": BUILD_MINUTES,
        "slurm_extra": shlex.join(slurm_options(site, 1)),
    }


def job_resources(site: Site) -> dict[str, Any]:
    """What every job of the site asks for, builds included."""
    wanted = site.scheduler
    named = {
        "slurm_partition": wanted.partition,
        "slurm_account": wanted.account,
        "constraint": wanted.constraint,
        "qos": _qos(site),
    }
    # 0: no --mem at all, instead of what Snakemake would guess from the size of the inputs.
    return {**{name: value for name, value in named.items() if value}, "mem_mb": wanted.memory_mb or 0}


def slurm_options(site: Site, nodes: int) -> list[str]:
    """Options of sbatch, for a job on so many nodes, that have no resource of their own.

    Slurm gives a job all nodes of its list, or refuses a longer list than it has nodes: it gets the first ones.
    """
    wanted = site.scheduler
    return [
        *([f"--nodelist={','.join(host_names(wanted.nodelist)[:nodes])}"] if wanted.nodelist else []),
        *([f"--exclude={wanted.exclude}"] if wanted.exclude else []),
        *([f"--gpus-per-node={site.devices_per_node}"] if site.devices_per_node else []),
        *(option for option in wanted.options if not option.startswith(_QOS)),
    ]


def allocation_options(site: Site, nodes: int) -> list[str]:
    """Options of sbatch for the allocation of a block (./ringside submit)."""
    wanted = site.scheduler
    minutes = math.ceil(wanted.block_limit_s / 60)
    # Snakemake, told to stop, lets the run under way end: tell it early enough.
    warning_s = min(math.ceil(site.longest_run_s + JOB_MARGIN_S), wanted.block_limit_s // 2)
    named = {
        "partition": wanted.partition,
        "account": wanted.account,
        "constraint": wanted.constraint,
        "qos": _qos(site),
        "mem": wanted.memory_mb,
    }
    return [
        f"--nodes={nodes}",
        f"--ntasks-per-node={site.ranks_per_node}",
        f"--cpus-per-task={cores_per_rank(site)}",
        f"--time={minutes}",
        f"--signal=B:TERM@{warning_s}",
        "--exclusive",
        "--no-requeue",
        *(f"--{name}={value}" for name, value in named.items() if value),
        *slurm_options(site, nodes),
    ]


def oarsub_options(site: Site, nodes: int, limit_s: int) -> str:
    """Options of oarsub for a job on whole nodes."""
    wanted = site.scheduler
    properties = [
        *([f"({wanted.constraint})"] if wanted.constraint else []),
        *([f"host in ({_quoted(wanted.nodelist)})"] if wanted.nodelist else []),
        *([f"host not in ({_quoted(wanted.exclude)})"] if wanted.exclude else []),
    ]
    options = [
        f"--resource=host={nodes},walltime={_clock(limit_s)}",
        *([f"--queue={wanted.partition}"] if wanted.partition else []),
        *([f"--project={wanted.account}"] if wanted.account else []),
        *([f"--property={' and '.join(properties)}"] if properties else []),
        *wanted.options,
    ]
    return shlex.join(options)


def qsub_options(site: Site, nodes: int, limit_s: int) -> str:
    """Options of PBS's qsub for a job on whole nodes: one chunk a node, of all cores that runs may use."""
    wanted = site.scheduler
    chunk = [
        f"ncpus={site.cores}",
        f"mpiprocs={site.ranks_per_node}",
        *([f"ngpus={site.devices_per_node}"] if site.devices_per_node else []),
        *([f"mem={wanted.memory_mb}mb"] if wanted.memory_mb else []),
        *([wanted.constraint] if wanted.constraint else []),
    ]
    hosts = host_names(wanted.nodelist)[:nodes] if wanted.nodelist else []
    chunks = [":".join(["1", f"host={host}", *chunk]) for host in hosts] or [":".join([str(nodes), *chunk])]
    options = [
        *("-l", f"select={'+'.join(chunks)}"),
        *("-l", "place=scatter:excl"),
        *("-l", f"walltime={_clock(limit_s)}"),
        *(["-q", wanted.partition] if wanted.partition else []),
        *(["-A", wanted.account] if wanted.account else []),
        *(word for option in wanted.options for word in option.split(" ", 1)),
    ]
    return shlex.join(options)


def flux_batch_options(site: Site, nodes: int, limit_s: int) -> str:
    """Options of flux batch for a job on whole nodes."""
    wanted = site.scheduler
    required = [
        *([f"({wanted.constraint})"] if wanted.constraint else []),
        *([f"host:{wanted.nodelist}"] if wanted.nodelist else []),
        *([f"-host:{wanted.exclude}"] if wanted.exclude else []),
    ]
    options = [
        f"--nodes={nodes}",
        "--exclusive",
        *([f"--gpus-per-node={site.devices_per_node}"] if site.devices_per_node else []),
        f"--time-limit={limit_s}s",
        *([f"--queue={wanted.partition}"] if wanted.partition else []),
        *([f"--bank={wanted.account}"] if wanted.account else []),
        *([f"--requires={' and '.join(required)}"] if required else []),
        *wanted.options,
    ]
    return shlex.join(options)


# By the launcher of a site: what a job is submitted with, of its nodes and its limit in seconds, as one line for a shell.
OPTIONS: dict[str, Callable[[Site, int, int], str]] = {
    "oar": oarsub_options,
    "pbs": qsub_options,
    "flux": flux_batch_options,
}


def _clock(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


def _qos(site: Site) -> str | None:
    """The quality of service among the site's options: Snakemake's executor takes it as a resource only."""
    return next((option.removeprefix(_QOS) for option in site.scheduler.options if option.startswith(_QOS)), None)


def _quoted(names: str) -> str:
    return ", ".join(f"'{name}'" for name in host_names(names))
