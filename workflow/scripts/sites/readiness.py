"""Check, before any work, that runs can start and that their environments and data can be built."""

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import CHECKOUT, display_path
from common.shell import SEEN_BY
from datasets.fetch import site_store
from declared.datasets import load_dataset
from declared.environments import Environment, is_address, read, tools
from declared.site import Site
from declared.virtual import as_settings
from environments import bundled, container
from environments.build import check_machine as check_machine_for
from environments.identity import digest
from plan.binding import machine_id
from plan.campaign import Campaign
from plan.memory import raise_if_oversized
from sites import virtual
from sites.node_findings import node_findings
from sites.node_job import Unwritable, ask_here, probes


def check_launch(campaign: Campaign, executor: str, runs: bool = True) -> None:
    """Check that Snakemake's `executor` can start the campaign's jobs at its site.

    Args:
        campaign: The campaign.
        executor: Name of Snakemake's executor.
        runs: Whether the jobs include runs, and not only timings and collective benchmarks.

    Raises:
        InputError: If it cannot start them.
    """
    if runs:
        raise_if_oversized(campaign)
    site = campaign.site
    launcher, file = site.launcher, display_path(site.file)
    executors_by_launcher = {
        "local": (("local",), None, "snakemake --profile local"),
        "slurm": (("slurm", "local"), "SLURM_JOB_ID", "snakemake --profile slurm, or ./ringside submit"),
        "oar": (("cluster-generic", "local"), "OAR_JOB_ID", "snakemake --profile oar"),
        "pbs": (("cluster-generic", "local"), "PBS_JOBID", "snakemake --profile pbs"),
        "flux": (("cluster-generic", "local"), "FLUX_URI", "snakemake --profile flux"),
    }
    executors, job, way = executors_by_launcher[launcher]
    alternative = "; for figures of the available records add --config records=available"
    if not runs and launcher != "local":  # ./ringside submit needs runs
        way, alternative = f"--profile {launcher}", ""
    if launcher != "local" and shlex.quote(str(CHECKOUT)) != str(CHECKOUT):
        expected = "letters, digits and @%+=:,./-_"
        hint = f"move the checkout to one of {expected}"
        raise InputError(
            "bad-pattern", "such a path breaks the scheduler's scripts", file=CHECKOUT, hint=hint
        )
    if executor not in executors:
        problem = f"{launcher} and Snakemake's executor {executor} do not go together"
        raise InputError(
            "conflicting-keys", problem, file=file, key="launcher", got=launcher, hint=f"use {way}"
        )
    if job and executor == "local" and job not in os.environ:
        problem, hint = f"{launcher} needs a cluster job", f"use {way}{alternative}"
        raise InputError("outside-of-job", problem, file=file, key="launcher", got=launcher, hint=hint)
    if campaign.images and launcher == "local" and not site.setup:
        container.check_machine(campaign.images[0])
    if site.placement == "virtual":
        check_virtual(site)
    if launcher == "local":
        check_here(campaign)


def check_here(campaign: Campaign) -> None:
    """Raise InputError if the doctor FAILs on this machine, since every run would fail for that reason."""
    site = campaign.site
    unneeded = [] if campaign.images else ["apptainer", "binds"]
    if not shutil.which("nvidia-smi"):
        unneeded.append("devices")  # without it, not all GPUs can be counted
    try:
        with probes(site, campaign.results) as question:
            reports = ask_here({**question, "disturbed": False})
    except Unwritable as error:
        raise InputError("not-writable", str(error), key=error.subject) from None
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for finding in node_findings(reports, site, sys.executable, version):
        if finding.verdict == "FAIL" and finding.subject not in unneeded:
            raise InputError(finding.code, finding.text, key=finding.subject)


def node_paths(campaign: Campaign) -> list[str]:
    """Return the paths that every node must be able to access: interpreter, checkout, results, cache.

    A node can have a different folder at the path of the cache. The path of the cache is therefore that of a
    mark which this machine writes into it.
    """
    cache = campaign.site.cache
    mark = cache / f"{SEEN_BY}{machine_id() or 'nodes'}"
    with contextlib.suppress(OSError):  # nothing can be written to a read-only cache
        cache.mkdir(parents=True, exist_ok=True)
        mark.touch()
    results = (CHECKOUT / campaign.results).absolute()
    paths = [Path(sys.executable), CHECKOUT / "Snakefile", results, mark if mark.exists() else cache]
    return [str(path) for path in paths if path.exists()]


def check_builds(site: Site, environments: Iterable[str]) -> None:
    """Raise InputError if an environment has to be built here, but this machine cannot build it.

    Nothing is checked if the site has setup lines, which can provide what is missing.
    """
    if site.scheduler.build_on == "login" and not site.setup:
        for name in environments:
            check_machine_for(read(name, site.variant), site.realization)


def check_bundle(site: Site, environments: Iterable[str], datasets: Iterable[str]) -> None:
    """Check that the unpacked bundles, if any, contain everything for these environments and data sets.

    Files that the site brings itself (images.brought, datasets.folder) need no bundle.

    Raises:
        InputError: If something is missing.
    """
    if not bundled.has_bundle():
        return
    for name in environments:
        if missing := _not_bundled(read(name, "cpu" if name in tools() else site.variant), site):
            raise bundled.missing_error(missing)
    downloads = site_store(site)
    for dataset in datasets if downloads.folder is None else []:
        for file in load_dataset(dataset).get("files", []):
            if not (downloads.downloads / dataset / file["name"]).is_file():
                raise bundled.missing_error(f"{file['name']} of the data set {dataset}")


def _not_bundled(environment: Environment, site: Site) -> str | None:
    """Return a part of an environment that is missing in the bundles on this machine, or None."""
    if environment.deployment(site.realization) == "apptainer":
        brought = environment.brought(site.realization)
        is_local_file = brought and not is_address(brought)
        image = is_local_file or bundled.find_image(environment.name, digest(environment, site.realization))
        return None if image else f"image of the environment {environment.name} as it is now"
    if environment.deployment(site.realization) == "installed":
        return None
    for lock in [environment.lock, *([environment.build_lock] if environment.sources else [])]:
        if not bundled.has_lock(display_path(lock), lock):
            return f"wheels of {display_path(lock)} as it is now"
    wheels = {
        f"{wheel.name} {wheel.version}": wheel.sha256.get(site.python_abi, "") for wheel in environment.wheels
    }
    sources = {f"{source.name} {source.version}": source.sha256 for source in environment.sources}
    missing = [name for name, sha256 in (wheels | sources).items() if not bundled.has_file(sha256)]
    return f"{missing[0]}, which {display_path(environment.description)} names" if missing else None


def check_virtual(site: Site) -> None:
    """Raise InputError if the running virtual cluster is not the one that the site describes."""
    running = virtual.running_cluster()
    if running is None:
        hint = f"start it: {virtual.command_for(site)}"
        problem = "the virtual cluster is not running"
        raise InputError("not-running", problem, file=site.file, key="placement", hint=hint)
    shares = [running.share_of(node) for node in range(1, min(site.nodes, running.nodes) + 1)]
    common_share, node_shares = as_settings([share for share in shares if share])
    comparisons: dict[str, tuple[Any, Any]] = {
        "launcher": (site.launcher, running.scheduler),
        "nodes": (site.nodes, running.nodes),
        "bandwidth_bytes_s": (site.bandwidth_bytes_s, running.bandwidth_bytes_s),
        "cpu_share": (list(site.cpu_shares) or site.cpu_share, list(node_shares) or common_share),
        "devices_per_node": (site.devices_per_node, running.gpus_per_node),
    }
    for key, (value, actual) in comparisons.items():
        is_enough = key in ("nodes", "devices_per_node") and actual > value
        if actual != value and not is_enough:
            problem = f"is {value}, but {actual} in the running virtual cluster"
            hint = f"./ringside cluster down, then {virtual.command_for(site)}"
            raise InputError("other-cluster", problem, file=site.file, key=key, hint=hint)
