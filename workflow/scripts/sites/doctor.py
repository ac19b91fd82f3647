"""Check in about a minute whether runs will work at a site: `./ringside doctor`.

The doctor prints one line per check: ok, warn or FAIL. It queries Slurm, then checks nodes with one test job
on as many idle nodes as a run can have. The exit status is 1 if a check FAILs, 2 for bad input.
"""

import getpass
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import CHECKOUT, display_path, load_yaml
from common.shell import Unanswered, capture
from declared.configuration import load_config
from declared.site import Site, load_site
from declared.study import load_study
from plan.campaign import load_merged_config
from plan.machine import check_machine
from plan.scheduling import allocation_options
from sites import disturbance, slurm, slurm_findings
from sites.findings import Finding, fail, ok, warn
from sites.node_findings import node_findings
from sites.node_job import WAIT_S, Unwritable, ask_here, ask_nodes, outside, probes
from sites.readiness import check_virtual
from sites.slurm import Node

PROGRAMS = ("srun", "sbatch", "squeue", "scontrol", "sinfo")
PROFILE = CHECKOUT / "profiles" / "slurm" / "config.yaml"


def examine(site: Site, results: Path, unseen: str = "") -> Iterator[Finding]:
    """Yield all findings about a site; the arguments are those of `print_findings`."""
    if site.launcher == "local":
        yield from _local(site, results)
        return
    for subject, folder in (
        ("checkout's place", CHECKOUT),
        ("python's place", Path(sys.executable)),
        ("cache's place", site.cache),
    ):
        yield slurm_findings.check_shared_folder(subject, folder)
    if site.launcher == "slurm":
        try:
            yield from _slurm(site, results, unseen)
        except Unanswered as error:
            text = f"{error}; is slurmctld up, and does this host belong to the cluster?"
            yield fail("controller", "scheduler-silent", text)
    else:
        text = (
            f"{display_path(site.file)}: launcher: {site.launcher}: the doctor checks nodes of Slurm only; "
            "each job checks its own node"
        )
        yield warn("site", "not-checked", text)


def _local(site: Site, results: Path) -> Iterator[Finding]:
    """Yield the findings about a site that is this machine."""
    yield ok("site", f"{site.name} is this machine and needs no Slurm")
    try:
        check_machine(site)
        yield ok("machine", f"has {site.cores} processors for runs, and {site.interface}")
    except InputError as error:
        yield fail("machine", error.code, str(error))
    try:
        with probes(site, results) as question:
            reports = ask_here(question)
    except Unwritable as error:
        yield fail(error.subject, "not-writable", str(error))
        return
    yield from node_findings(reports, site, sys.executable, _version())
    yield disturbance.node_finding(reports, site, results / "runs.csv")


def _slurm(site: Site, results: Path, unseen: str) -> Iterator[Finding]:
    """Yield the findings about a Slurm cluster, from its configuration to a test job."""
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        text = f"{', '.join(missing)} not on this machine; run the doctor on a login node of the cluster"
        yield fail("programs", "not-installed", text)
        return
    config = slurm.parse_configuration(slurm.run_client("scontrol", "show", "config"))
    partitions = slurm.parse_partitions(slurm.run_client("scontrol", "show", "partition", "--oneliner"))
    all_nodes = sorted({node.name for node in slurm.parse_nodes(slurm.run_client(*slurm.NODES_COMMAND))})
    yield ok(
        "controller", f"{config.get('ClusterName', '?')} answers, Slurm {config.get('SLURM_VERSION', '?')}"
    )
    if site.placement == "virtual":
        try:
            check_virtual(site)
        except InputError as error:
            yield fail("virtual cluster", error.code, str(error))
    status_command = load_yaml(PROFILE).get(slurm_findings.STATUS_COMMAND)
    yield slurm_findings.check_job_status(config, status_command, PROFILE, shutil.which("sacct") is not None)
    yield slurm_findings.check_lost_node_timeout(config, site)
    account = _account(config, site)
    yield account
    finding, partition = slurm_findings.check_partition(partitions, site)
    yield finding
    if partition is None:
        yield warn("test job", "not-tried", "not tried: there is no partition for it")
        return
    partition_nodes = slurm.parse_nodes(slurm.run_client(*slurm.NODES_COMMAND, f"--partition={partition}"))
    if site.devices_per_node:
        gpus = slurm_findings.check_gpus(partition_nodes, site)
        yield gpus
        if gpus.verdict == "FAIL":
            yield warn("test job", "not-tried", "not tried: there is no node for it")
            return
    possible = slurm_findings.eligible_nodes(partition_nodes, site)
    yield slurm_findings.check_nodes(partition_nodes, all_nodes, site)
    yield slurm_findings.check_processors(possible, site)
    yield from slurm_findings.check_time_limits(partitions[partition], site)
    yield slurm_findings.check_memory(config, partitions[partition], possible, site)
    if account.verdict == "FAIL":
        yield warn("test job", "not-tried", "not tried: there is no account for it")
        return
    yield _allocation(site)
    if unseen:
        yield warn("test job", "not-tried", f"not tried again: {unseen}")
        return
    yield from _test_job(site, possible, results)


def _account(config: dict[str, str], site: Site) -> Finding:
    if not slurm.has_accounting(config):
        return slurm_findings.check_account(config, None, site)
    try:
        return slurm_findings.check_account(config, slurm.user_accounts(getpass.getuser()), site)
    except Unanswered as error:
        return warn("account", "scheduler-silent", f"could not be checked: sacctmgr: {error}")


def _allocation(site: Site) -> Finding:
    """Check whether sbatch would accept the allocation of a block."""
    options = allocation_options(site, site.nodes)
    try:
        result = capture(
            ["sbatch", "--test-only", *options, "--wrap=true"], env=outside(), timeout=slurm.CLIENT_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        text = f"sbatch --test-only: no answer within {slurm.CLIENT_TIMEOUT_S} s"
        return warn("allocation", "scheduler-silent", text)
    if result.returncode:
        message = slurm.last_line(result.stderr).removeprefix("allocation failure: ")
        text = f"sbatch refuses it: {message}; options: {' '.join(options)}; see {display_path(site.file)}"
        return fail("allocation", "scheduler-refused", text)
    return ok("allocation", "sbatch would accept a block's job")


def _test_job(site: Site, possible: Sequence[Node], results: Path) -> Iterator[Finding]:
    """Yield the findings of a test job on the idle nodes among `possible`, at most as many as a run has."""
    usable = [node for node in possible if node.is_usable]
    if not usable:
        yield warn("test job", "not-tried", "not tried: there is no node for it")
        return
    n_nodes = min(site.nodes, len(usable), max(1, sum(node.is_idle for node in usable)))
    cores = min(site.cores, *(node.processors for node in usable))
    try:
        with probes(site, results) as question:
            reports, message, status = ask_nodes(site, n_nodes, cores, question)
    except Unwritable as error:
        yield fail(error.subject, "not-writable", str(error))
        return
    count = f"{n_nodes} of the {site.nodes} nodes of a run" if n_nodes < site.nodes else f"{n_nodes} nodes"
    if not reports and "busy" in message:
        text = (
            f"no {count} free within {WAIT_S} s, so the nodes were not checked; run ./ringside doctor again"
        )
        yield warn("test job", "nodes-busy", text)
        return
    if len(reports) < n_nodes:
        answered = f"{len(reports)} of {n_nodes} nodes answered; " if reports else ""
        text = f"{answered}srun: {slurm.last_line(message) or f'status {status}'}"
        yield fail("test job", "nodes-silent", text)
    elif n_nodes < site.nodes:
        text = f"checked {count}, the others are busy or down: {_names(reports)}"
        yield warn("test job", "some-nodes-only", text)
    else:
        yield ok("test job", f"ran on {_names(reports)}")
    if reports:
        yield from node_findings(reports, site, sys.executable, _version())
        yield disturbance.node_finding(reports, site, results / "runs.csv")


def _names(reports: Sequence[dict[str, Any]]) -> str:
    return slurm.join_hosts(sorted(report["host"] for report in reports))


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def print_findings(site: Site, results: Path, unseen: str = "") -> int:
    """Print all findings about a site, and return the doctor's exit status.

    Args:
        site: The site.
        results: Folder to which runs write; it need not exist.
        unseen: Why a node did not answer just now; then no test job is started.
    """
    print(f"site {site.name} ({display_path(site.file)})")
    failures = 0
    for finding in examine(site, results if results.exists() else CHECKOUT / "results", unseen):
        print(finding, flush=True)
        failures += finding.verdict == "FAIL"
    if failures:
        print(f"{failures} FAIL: runs will not work at {site.name} until this is fixed")
    return 1 if failures else 0


def check_site(study: str = "", site: str = "") -> int:
    """Print whether runs will work at a site, and return the doctor's exit status.

    Args:
        study: The study whose folder of results is checked; default: the configured one.
        site: A site; default: that of config/slurm.yaml.
    """
    config = load_config(load_merged_config(study, site, ["slurm.yaml"]))
    return print_findings(load_site(config.site), CHECKOUT / "results" / load_study(config.study).name)
