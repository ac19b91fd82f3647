"""Judge Slurm's configuration for `sites.doctor`: one function per check.

All functions are pure except `check_shared_folder`, which reads the mounts of this machine.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.errors import InputError
from common.files import display_path
from declared.site import Site, host_names
from plan.scheduling import BUILD_MINUTES, JOB_MARGIN_S
from sites import slurm
from sites.findings import Finding, fail, ok, warn
from sites.slurm import Node, join_hosts

MIN_JOB_AGE_S = 60  # squeue has to list an ended job until Snakemake asks for it
MIN_MB_PER_RANK = 4096
IN_MEMORY = ("tmpfs", "ramfs")  # file systems that no other machine can access
MAX_STATES_LENGTH = 500  # length of a list of unusable nodes; a longer list is left out
STATUS_COMMAND = "slurm-status-command"


def check_shared_folder(subject: str, folder: Path, mounts: Path = Path("/proc/self/mounts")) -> Finding:
    """Check that a folder is not in this machine's memory, where no other machine can access it."""
    lines = [line.split()[1:3] for line in mounts.read_text(errors="replace").splitlines()]
    path = Path(os.path.realpath(folder))
    kind, longest = "unknown", 0
    for at, mounted_kind in lines:
        # The innermost mount counts; of two mounts on one folder, the later one.
        if path.is_relative_to(at.replace("\\040", " ")) and len(at) >= longest:
            kind, longest = mounted_kind, len(at)
    if kind in IN_MEMORY:
        text = (
            f"{folder} lies in this machine's memory ({kind}), which no other machine can access; move it "
            "to a file system that all nodes share"
        )
        return warn(subject, "in-memory", text)
    return ok(subject, f"{folder} lies on {kind}")


def check_job_status(
    config: Mapping[str, str], status_command: str | None, profile: Path, has_sacct: bool
) -> Finding:
    """Check how `snakemake --profile slurm` learns that a job has ended.

    Args:
        config: Slurm's configuration.
        status_command: The profile's slurm-status-command, None if it is absent.
        profile: The profile's file.
        has_sacct: Whether this machine has sacct.
    """
    subject, accounts = "status of jobs", slurm.has_accounting(config)
    used = status_command or ("sacct" if has_sacct else "squeue")
    setting = (
        f"{display_path(profile)}: {STATUS_COMMAND}: {used}{'' if status_command else ', since it is absent'}"
    )
    age_s = slurm.parse_time_s(config.get("MinJobAge", "")) or 0.0
    if used == "sacct" and not accounts:
        text = f"{setting}, but this cluster keeps no accounts; set {STATUS_COMMAND}: squeue"
        return fail(subject, "no-accounts", text)
    if used == "sacct" and not has_sacct:
        text = f"{setting}, but sacct is not on this machine; set {STATUS_COMMAND}: squeue"
        return fail(subject, "not-installed", text)
    if used == "squeue" and age_s < MIN_JOB_AGE_S:
        hint = (
            f"set {STATUS_COMMAND}: sacct"
            if accounts and has_sacct
            else f"use ./ringside submit, or ask the administrators for MinJobAge={MIN_JOB_AGE_S} or more"
        )
        text = f"{setting}, but Slurm forgets a job {age_s:g} s after its end (MinJobAge); {hint}"
        return fail(subject, "forgets-jobs", text)
    return ok(subject, setting)


def check_partition(partitions: Mapping[str, Mapping[str, str]], site: Site) -> tuple[Finding, str | None]:
    """Check the partition of jobs; return the finding and the partition's name, None if it cannot be used."""
    requested, account = site.scheduler.partition or "", site.scheduler.account
    try:
        row = slurm.choose_partition(partitions, requested, display_path(site.file), "scheduler.partition")
    except InputError as error:
        return fail("partition", error.code, str(error)), None
    name, allowed = row["PartitionName"], row.get("AllowAccounts", "ALL")
    if account and allowed != "ALL" and account not in allowed.split(","):
        file = display_path(site.file)
        text = f"{file}: scheduler.account: '{account}' may not use {name}; expected {allowed}"
        return fail("partition", "account-not-allowed", text), None
    return ok("partition", name + ("" if requested else ", the default")), name


def check_nodes(partition_nodes: Sequence[Node], all_nodes: Sequence[str], site: Site) -> Finding:
    """Check whether the partition has enough nodes for a run.

    `all_nodes` are the names of all nodes of the cluster.
    """
    file = display_path(site.file)
    for key, names in (("nodelist", site.scheduler.nodelist), ("exclude", site.scheduler.exclude)):
        unknown = [name for name in host_names(names or "") if name not in all_nodes]
        if unknown:
            text = (
                f"{file}: scheduler.{key}: {join_hosts(unknown)} unknown to Slurm; "
                f"it has {join_hosts(all_nodes)}"
            )
            return fail("nodes", "unknown-name", text)
    candidates = eligible_nodes(partition_nodes, site)
    usable = [node for node in candidates if node.is_usable]
    unusable = [node for node in candidates if not node.is_usable]
    states = "; ".join(f"{node.name} is {node.state}{_reason(node)}" for node in unusable)
    idle = sum(node.is_idle for node in usable)
    gpus = f" with {site.devices_per_node} GPUs or more" if site.devices_per_node else ""
    if len(usable) < site.nodes:
        advice = (
            f"wait for them, or lower nodes in {file}"
            if unusable
            else f"lower nodes in {file}, or name another partition"
        )
        text = (
            f"{file}: nodes: is {site.nodes}, but {len(usable)} are "
            f"usable{gpus}{f' ({states})' if unusable else ''}; {advice}"
        )
        return fail("nodes", "too-few-nodes", text)
    summary = f"{len(usable)} are usable{gpus}, {idle} idle; a run may have {site.nodes}"
    if unusable and len(states) < MAX_STATES_LENGTH:
        return warn("nodes", "nodes-unusable", f"{summary}; {states}")
    return ok("nodes", summary)


def eligible_nodes(partition_nodes: Sequence[Node], site: Site) -> list[Node]:
    """Return the nodes that the site's jobs can get: those of `_selected_nodes` with enough GPUs."""
    return [
        node
        for node in _selected_nodes(partition_nodes, site)
        if slurm.parse_gpus(node.gres)[0] >= site.devices_per_node
    ]


def _selected_nodes(partition_nodes: Sequence[Node], site: Site) -> list[Node]:
    """Return the nodes that the site selects by name and feature.

    A constraint is evaluated only if it joins features by &.
    """
    scheduler = site.scheduler
    included, excluded = host_names(scheduler.nodelist or ""), host_names(site.excluded)
    plain = re.fullmatch(r"[\w.:-]+(&[\w.:-]+)*", scheduler.constraint or "")
    features = set(plain[0].split("&")) if plain else set()
    return [
        node
        for node in partition_nodes
        if (not included or node.name in included)
        and node.name not in excluded
        and features <= set(node.features)
    ]


def _reason(node: Node) -> str:
    return "" if node.reason in ("", "none", "Not responding") else f" ({node.reason})"


def check_gpus(partition_nodes: Sequence[Node], site: Site) -> Finding:
    """Check whether Slurm has nodes with as many GPUs as jobs request."""
    requested = site.devices_per_node
    gpus = {node.name: slurm.parse_gpus(node.gres) for node in _selected_nodes(partition_nodes, site)}
    if eligible := eligible_nodes(partition_nodes, site):
        types = dict.fromkeys(kind for node in eligible for kind in gpus[node.name][1])
        words = f" ({', '.join(types)})" if types else ""
        text = f"{requested} or more{words} on {len(eligible)} nodes; a job asks for {requested} on each"
        return ok("GPUs in Slurm", text)
    largest = max((count for count, _ in gpus.values()), default=0)
    expected = f"at most {largest}" if largest else "a partition with GPUs"
    text = (
        f"{display_path(site.file)}: devices_per_node: is {requested}, but no node has more than {largest} "
        f"(sinfo --format=%G); expected {expected}"
    )
    return fail("GPUs in Slurm", "too-few-devices", text)


def check_processors(candidates: Sequence[Node], site: Site) -> Finding:
    """Check whether nodes have as many CPUs as the site declares."""
    least = min(candidates, key=lambda node: node.processors, default=None)
    if least is not None and least.processors < site.cores:
        return fail(
            "processors",
            "too-few-processors",
            f"{display_path(site.file)}: cores: is {site.cores}, but {least.name} has {least.processors} "
            f"(sinfo --format=%c); expected at most {least.processors}",
        )
    return ok("processors", f"{least.processors if least else '?'} or more on a node, cores is {site.cores}")


def check_time_limits(row: Mapping[str, str], site: Site) -> list[Finding]:
    """Check the time limits of jobs against the partition's MaxTime."""
    file, most_s = display_path(site.file), slurm.parse_time_s(row.get("MaxTime", ""))
    margin_s = JOB_MARGIN_S + site.wait_for_quiet
    run_s = 60.0 * math.ceil((site.longest_run_s + JOB_MARGIN_S) / 60)
    block_s = float(site.scheduler.block_limit_s)
    findings = []
    # Kind of job, key of the site that sets its time, the time, and the margin that is added to the key's
    # value.
    for job_kind, key, asked_s, further_s in (
        ("run", "time_limit_s", run_s, margin_s),
        ("block", "scheduler.block_limit_s", block_s, 0),
        ("build", "scheduler.build_on", BUILD_MINUTES * 60.0 * (site.scheduler.build_on == "job"), 0),
    ):
        if most_s is not None and asked_s > most_s:
            expected_s = math.floor(most_s / 60) * 60 - further_s
            expected = "expected login" if job_kind == "build" else f"expected at most {expected_s:g}"
            text = (
                f"{file}: {key}: a {job_kind}'s job asks for {asked_s:g} s, but {row['PartitionName']} gives "
                f"{most_s:g} s (MaxTime) and would let it wait forever; {expected}"
            )
            findings.append(fail(f"time of a {job_kind}", "time-limit", text))
    max_time = "no limit" if most_s is None else f"{most_s:g} s"
    text = f"a run's job asks for {run_s:g} s, a block's for {block_s:g} s; MaxTime {max_time}"
    return findings or [ok("time", text)]


def check_lost_node_timeout(config: Mapping[str, str], site: Site) -> Finding:
    """Report whether Slurm gives up a silent node before the time limit of a run.

    If so, Slurm ends the job, and the run is repeated. Otherwise the run reaches its time limit before Slurm
    notices that the node is gone, and is recorded as timeout.
    """
    timeout_s = slurm.parse_time_s(config.get("SlurmdTimeout", "0")) or None
    repeated = timeout_s is not None and timeout_s <= site.time_limit_s
    if timeout_s is None:
        text = "Slurm never gives up a lost node (SlurmdTimeout 0): its run is recorded as timeout"
    elif repeated:
        text = f"Slurm gives up a lost node after {timeout_s:g} s (SlurmdTimeout), and its run is repeated"
    else:
        text = (
            f"time_limit_s {site.time_limit_s:g} s ends a run before SlurmdTimeout ({timeout_s:g} s): a run "
            "on a lost node may be recorded as timeout instead of repeated"
        )
    return ok("lost node", text)


def check_memory(
    config: Mapping[str, str], row: Mapping[str, str], candidates: Sequence[Node], site: Site
) -> Finding:
    """Check whether a job gets the memory that it needs."""
    key, requested_mb = f"{display_path(site.file)}: scheduler.memory_mb", site.scheduler.memory_mb
    node_mb = min((node.memory_mb for node in candidates), default=0)
    max_mb = (
        slurm.parse_number(row.get("MaxMemPerNode", ""))
        or slurm.parse_number(config.get("MaxMemPerNode", ""))
        or node_mb
    )
    if requested_mb is not None and requested_mb > max_mb:
        text = f"{key}: is {requested_mb}, but a node gives {max_mb}; expected at most {max_mb}"
        return fail("memory", "too-little-memory", text)
    if requested_mb is not None or not slurm.rations_memory(config):
        return ok("memory", f"{requested_mb} MB a node" if requested_mb else "is not limited by Slurm")
    per_node, per_cpu = (
        slurm.parse_number(row.get(name, "")) or slurm.parse_number(config.get(name, ""))
        for name in ("DefMemPerNode", "DefMemPerCPU")
    )
    default_mb = per_node or (per_cpu * site.cores if per_cpu else None)
    if default_mb is not None and default_mb < MIN_MB_PER_RANK * site.ranks_per_node:
        return warn(
            "memory",
            "memory-not-asked",
            f"{key}: is absent, and Slurm gives {default_mb} MB a node then; {site.ranks_per_node} ranks "
            f"may need more; set it (a node has {node_mb})",
        )
    return ok("memory", f"{default_mb} MB a node by default" if default_mb else "all of a node by default")


def check_account(config: Mapping[str, str], mine: Sequence[str] | None, site: Site) -> Finding:
    """Check whether jobs are charged to an account of the user.

    `mine` has the accounts of the user, None if the cluster keeps no accounts.
    """
    key, requested = f"{display_path(site.file)}: scheduler.account", site.scheduler.account
    if mine is None:
        prefix = f"'{requested}' is not checked: " if requested else ""
        return ok("account", f"{prefix}this cluster keeps no accounts")
    enforced = "associations" in config.get("AccountingStorageEnforce", "").lower()
    verdict = fail if enforced else warn
    if requested is not None and requested not in mine:
        text = f"{key}: '{requested}' is not one of yours; expected one of {', '.join(mine) or 'none'}"
        return verdict("account", "unknown-name", text)
    if requested is None and not mine:
        text = "you have none here, and jobs need one; ask the administrators"
        return verdict("account", "no-account", text)
    return ok("account", requested or f"your default among {', '.join(mine)}")
