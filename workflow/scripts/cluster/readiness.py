"""Whether runs can be started, and what they need be built, the way that was asked for: said before anything is."""

import os
import shlex
from collections.abc import Iterable
from typing import Any

from cluster import virtual
from common.errors import InputError
from common.files import CHECKOUT, shown
from declared.environments import read
from declared.site import Site
from environments import container
from environments.build import check_machine as check_machine_for
from plan.campaign import Campaign


def check_launch(campaign: Campaign, executor: str) -> None:
    """InputError when runs would be started, by Snakemake's `executor`, in a way that the site does not know."""
    site = campaign.site
    launcher, file = site.launcher, shown(site.file)
    ways = {
        "local": (("local",), None, "snakemake --profile local"),
        "slurm": (("slurm", "local"), "SLURM_JOB_ID", "snakemake --profile slurm, or make submit"),
        "oar": (("cluster-generic", "local"), "OAR_JOB_ID", "snakemake --profile oar"),
    }
    executors, job, way = ways[launcher]
    if launcher != "local" and shlex.quote(str(CHECKOUT)) != str(CHECKOUT):
        expected = "letters, digits and @%+=:,./-_"
        raise InputError(
            f"{CHECKOUT}: such a path breaks the scheduler's scripts; move the checkout to one of {expected}"
        )
    if executor not in executors:
        raise InputError(
            f"{file}: launcher: {launcher} and Snakemake's executor {executor} do not go together; use {way}"
        )
    if job and executor == "local" and job not in os.environ:
        raise InputError(
            f"{file}: launcher: {launcher} needs a job of the cluster's; use {way}; for figures of what is there add "
            "--config records=available"
        )
    if campaign.images and launcher == "local" and not site.setup:
        container.check_machine(campaign.images[0])
    if site.placement == "virtual":
        check_virtual(site)


def check_builds(site: Site, environments: Iterable[str]) -> None:
    """InputError when one of `environments` is to be built here and cannot be. What setup lines bring is not known yet."""
    if site.scheduler.build_on == "login" and not site.setup:
        for name in environments:
            check_machine_for(read(name, site.variant), site.realization)


def check_virtual(site: Site) -> None:
    """InputError when the virtual cluster that is up on this machine is not the one that the site describes."""
    there = virtual.running()
    if there is None:
        raise InputError(
            f"{shown(site.file)}: placement: the virtual cluster is not up; start it: {virtual.command_for(site)}"
        )
    wanted: dict[str, tuple[Any, Any]] = {
        "launcher": (site.launcher, there.scheduler),
        "nodes": (site.nodes, there.nodes),
        "bandwidth_bytes_s": (site.bandwidth_bytes_s, there.bandwidth_bytes_s),
        "cpu_share": (site.cpu_share, there.cpu_share),
    }
    for key, (value, found) in wanted.items():
        if found != value and not (key == "nodes" and found > site.nodes):
            raise InputError(
                f"{shown(site.file)}: {key}: is {value}, of the virtual cluster that is up {found}; "
                f"make cluster-down, then {virtual.command_for(site)}"
            )
