"""Whether runs can be started, and what they need be built, the way that was asked for: said before anything is."""

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import CHECKOUT, shown
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
from sites import virtual
from sites.node_job import Unwritable, ask_here, probes
from sites.node_verdicts import node_findings


def check_launch(campaign: Campaign, executor: str, runs: bool = True) -> None:
    """InputError when runs, or else timings and sweeps alone, would be started by Snakemake's `executor` in a way that the site does
    not know."""
    site = campaign.site
    launcher, file = site.launcher, shown(site.file)
    ways = {
        "local": (("local",), None, "snakemake --profile local"),
        "slurm": (("slurm", "local"), "SLURM_JOB_ID", "snakemake --profile slurm, or ./ringside submit"),
        "oar": (("cluster-generic", "local"), "OAR_JOB_ID", "snakemake --profile oar"),
        "pbs": (("cluster-generic", "local"), "PBS_JOBID", "snakemake --profile pbs"),
        "flux": (("cluster-generic", "local"), "FLUX_URI", "snakemake --profile flux"),
    }
    executors, job, way = ways[launcher]
    instead = "; for figures of what is there add --config records=available"
    if not runs and launcher != "local":  # which ./ringside submit does not make alone
        way, instead = f"--profile {launcher}", ""
    if launcher != "local" and shlex.quote(str(CHECKOUT)) != str(CHECKOUT):
        expected = "letters, digits and @%+=:,./-_"
        hint = f"move the checkout to one of {expected}"
        raise InputError("bad-pattern", "such a path breaks the scheduler's scripts", file=CHECKOUT, hint=hint)
    if executor not in executors:
        problem = f"{launcher} and Snakemake's executor {executor} do not go together"
        raise InputError("conflicting-keys", problem, file=file, key="launcher", got=launcher, hint=f"use {way}")
    if job and executor == "local" and job not in os.environ:
        problem, hint = f"{launcher} needs a job of the cluster's", f"use {way}{instead}"
        raise InputError("outside-of-job", problem, file=file, key="launcher", got=launcher, hint=hint)
    if campaign.images and launcher == "local" and not site.setup:
        container.check_machine(campaign.images[0])
    if site.placement == "virtual":
        check_virtual(site)
    if launcher == "local":
        check_here(campaign)


def check_here(campaign: Campaign) -> None:
    """InputError when the doctor would say of this machine that the campaign's runs will not work: each would fail for the same reason."""
    site = campaign.site
    unneeded = [] if campaign.images else ["apptainer", "binds"]
    if not shutil.which("nvidia-smi"):
        unneeded.append("devices")  # of another maker, which nobody can count by it
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
    """Return what every node of the campaign's jobs has to see: interpreter, checkout, results and cache.

    A node may have a folder of its own where the cache is: it has another one if it lacks the mark that this machine makes there.
    """
    cache = campaign.site.cache
    mark = cache / f"{SEEN_BY}{machine_id() or 'nodes'}"
    with contextlib.suppress(OSError):  # a cache that is only read has none
        cache.mkdir(parents=True, exist_ok=True)
        mark.touch()
    results = (CHECKOUT / campaign.results).absolute()
    paths = [Path(sys.executable), CHECKOUT / "Snakefile", results, mark if mark.exists() else cache]
    return [str(path) for path in paths if path.exists()]


def check_builds(site: Site, environments: Iterable[str]) -> None:
    """InputError when one of `environments` is to be built here and cannot be. What setup lines bring is not known yet."""
    if site.scheduler.build_on == "login" and not site.setup:
        for name in environments:
            check_machine_for(read(name, site.variant), site.realization)


def check_bundle(site: Site, environments: Iterable[str], datasets: Iterable[str]) -> None:
    """InputError when a bundle was unpacked on this machine, and none has what is to be built (`environments`) or prepared.

    What lies in a file of the site's own (images.brought, datasets.folder) is in no bundle.
    """
    if not bundled.has_bundle():
        return
    for name in environments:
        if lacks := _not_bundled(read(name, "cpu" if name in tools() else site.variant), site):
            raise bundled.missing_error(lacks)
    downloads = site_store(site)
    for dataset in datasets if downloads.folder is None else []:
        for file in load_dataset(dataset).get("files", []):
            if not (downloads.downloads / dataset / file["name"]).is_file():
                raise bundled.missing_error(f"{file['name']} of the data set {dataset}")


def _not_bundled(environment: Environment, site: Site) -> str | None:
    """What of an environment no bundle on this machine has; None where nothing is missing."""
    if environment.deployment(site.realization) == "apptainer":
        brought = environment.brought(site.realization)
        own = brought and not is_address(brought)
        there = own or bundled.find_image(environment.name, digest(environment, site.realization))
        return None if there else f"image of the environment {environment.name} as it is now"
    if environment.deployment(site.realization) == "installed":
        return None
    for lock in [environment.lock, *([environment.build_lock] if environment.sources else [])]:
        if not bundled.has_lock(shown(lock), lock):
            return f"wheels of {shown(lock)} as it is now"
    wheels = {f"{wheel.name} {wheel.version}": wheel.sha256.get(site.python_abi, "") for wheel in environment.wheels}
    sources = {f"{source.name} {source.version}": source.sha256 for source in environment.sources}
    missing = [what for what, sha256 in (wheels | sources).items() if not bundled.has_file(sha256)]
    return f"{missing[0]}, which {shown(environment.description)} names" if missing else None


def check_virtual(site: Site) -> None:
    """InputError when the virtual cluster that is up on this machine is not the one that the site describes."""
    there = virtual.running()
    if there is None:
        hint = f"start it: {virtual.command_for(site)}"
        raise InputError(
            "not-running", "the virtual cluster is not up", file=shown(site.file), key="placement", hint=hint
        )
    shares = [there.share_of(node) for node in range(1, min(site.nodes, there.nodes) + 1)]
    alike, unlike = as_settings([share for share in shares if share])
    wanted: dict[str, tuple[Any, Any]] = {
        "launcher": (site.launcher, there.scheduler),
        "nodes": (site.nodes, there.nodes),
        "bandwidth_bytes_s": (site.bandwidth_bytes_s, there.bandwidth_bytes_s),
        "cpu_share": (
            list(site.cpu_shares) or site.cpu_share,
            list(unlike) or alike,
        ),
    }
    for key, (value, found) in wanted.items():
        if found != value and not (key == "nodes" and found > site.nodes):
            raise InputError(
                "other-cluster",
                f"is {value}, of the virtual cluster that is up {found}",
                file=shown(site.file),
                key=key,
                got=value,
                hint=f"./ringside cluster down, then {virtual.command_for(site)}",
            )
