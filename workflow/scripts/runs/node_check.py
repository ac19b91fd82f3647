"""Test nodes against each other before a campaign: `ringside nodecheck`, and the study's key `node_check`.

The site's launcher starts ranks/node_check.py with one rank on each node, and sites/outliers.py decides which
nodes are slow. In a campaign this is the first job, and later jobs avoid the slow nodes. On a login node of
Slurm, the check takes an allocation (salloc) of all idle nodes that the site's jobs could get.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from common.errors import InputError
from common.files import CHECKOUT, display_path, write_json
from common.options import run_program
from common.program_sources import SCRIPTS
from common.schemas import schema
from common.shell import Unanswered
from common.tables import write_table
from common.units import MIB
from declared.frameworks import load_framework
from declared.site import Site, load_site
from environments.built import read_built
from environments.record import BuiltEnvironment
from launchers import launch
from launchers.protocol import AttemptLost
from launchers.slurm import job_hosts, job_number
from plan.identity import environment_of
from plan.scheduling import allocation_options
from plan.site_resources import common_site_fields
from runs.interruptions import report_interruptions
from runs.other_measurements import NO_RESULT, read_result
from runs.rank_input import rank_input
from runs.verdict import extend_failure_reason
from sites import slurm, slurm_findings
from sites.node_job import outside
from sites.outliers import RATE_TEXT, best_meetings, judge_units, rounds_needed

PROGRAM = "ranks.node_check"
TESTS = {
    "computation": "matrix products",
    "memory": "updates of memory",
    "links": "messages between pairs of nodes",
}
LIBRARY = "pytorch-ddp"  # framework whose environment tests accelerators
TIME_LIMIT_S = 600.0
SLOW_STATUS = 3  # exit status if a node is slow; salloc uses 1 for its own errors
# Options of a block's job that salloc must not get.
_BATCH_ONLY_OPTIONS = ("--time", "--signal", "--no-requeue")


def check_spec(site: Site, nodes: int, device: str) -> dict[str, Any]:
    """Return the specification of a check for launchers and ranks: one rank on each node."""
    devices = site.devices_per_node if device == "cuda" else 0
    return {
        "run_id": "node-check",
        "nodes": nodes,
        "ranks": nodes,
        "ranks_per_node": 1,
        "replicas_per_rank": max(1, devices),
        "levels": {},
        "steps": 0,
        **common_site_fields(site),
        "device": device,
        "cores_per_rank": site.cores,
        "rounds": rounds_needed(nodes * max(1, devices) * len(TESTS)),
    }


def check_environment(site: Site) -> tuple[BuiltEnvironment, list[str], str]:
    """Return the ranks' environment, its modules, and the device to test.

    Accelerators are tested in the environment of LIBRARY. On CPUs, and until that environment is built, ranks
    run this Python.
    """
    framework = load_framework(LIBRARY)
    stamp = environment_of(site, framework)
    if site.device == "cuda" and stamp.exists():
        return read_built(stamp), list(framework.modules), "cuda"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    python = {"version": version, "abi": site.python_abi, "executable": sys.executable}
    environment: Any = {"python": python, "variables": {}, "packages": {}, "deployment": "venv"}
    return environment, ["numpy"], "cpu"


def measure_nodes(site: Site, nodes: int, folder: Path) -> dict[str, Any]:
    """Run the tests on the first nodes of this job, and return the ranks' result.

    Args:
        site: The site.
        nodes: Number of nodes.
        folder: An empty folder that all nodes can access.

    Raises:
        AttemptLost: If the tests have no result.
    """
    environment, modules, device = check_environment(site)
    spec = check_spec(site, nodes, device)
    launcher = launch.make_launcher(site, spec, setup=environment.get("setup", ()))
    framework = replace(load_framework(LIBRARY), modules=tuple(modules))
    write_json(folder / "rank_input.json", rank_input(spec, framework, environment, {}, None, launcher.hosts))
    limited = replace(site, time_limit_s=max(TIME_LIMIT_S, site.time_limit_s))
    outcome = launch.run_ranks(launcher, environment, folder.resolve(), spec, limited, program=PROGRAM)
    result = read_result(folder)
    if outcome.reason or result is None:
        reason = outcome.reason or NO_RESULT
        raise AttemptLost(extend_failure_reason(reason, folder / "log.txt"))
    names = {host.split(".")[0]: host for host in launcher.hosts}  # short name -> the scheduler's name
    for node in result["nodes"]:
        node["host"] = names.get(node["host"].split(".")[0], node["host"])
    return result


def times_by_round(result: dict[str, Any], test: str) -> list[dict[tuple[str, int | None], float]]:
    """Return the times of each round of a test, s, by host and accelerator (None for a whole node)."""
    hosts = [node["host"] for node in result["nodes"]]
    if test == "links":
        return [
            {(host, None): seconds for host, seconds in best.items()}
            for best in best_meetings(result["links"], hosts)
        ]
    rounds = zip(*(node[test] for node in result["nodes"]), strict=True)
    return [
        {
            (host, device if result["by_device"] else None): seconds
            for host, times in zip(hosts, node_times, strict=True)
            for device, seconds in enumerate(times)
        }
        for node_times in rounds
    ]


def judge_result(result: dict[str, Any], day: str) -> pd.DataFrame:
    """Return nodes.csv: a row for each test of each node, or accelerator, with its verdict.

    Args:
        result: The ranks' result.
        day: Date of the check, for reasons.
    """
    rounds = {test: times_by_round(result, test) for test in TESTS}
    n_tests = sum(len(times[0]) for times in rounds.values() if times)
    rows = []
    for test, times in rounds.items():
        for (host, device), verdict in judge_units(times, n_tests).items():
            seconds = statistics.median(row[host, device] for row in times if (host, device) in row)
            part = "" if device is None else f"accelerator {device}: "
            reason = f"{part}{TESTS[test]} took {verdict.ratio:.2f} times as long as elsewhere on {day}"
            row = [host, device, test, verdict.n_rounds, verdict.n_slow, seconds, verdict.ratio, verdict.p]
            rows.append([*row, verdict.is_slow, reason if verdict.is_slow else None])
    return pd.DataFrame(rows, columns=list(schema("nodes")["properties"]))


def report_lines(table: pd.DataFrame, result: dict[str, Any], site: Site) -> Iterator[str]:
    """Yield a line for each node or accelerator, and the keys that exclude slow nodes in the site's file."""
    rounds, n_nodes = int(table["rounds"].max()), table["host"].nunique()
    mebibytes = result["message_bytes"] / MIB
    yield f"site {site.name}: {n_nodes} nodes, {rounds} rounds of each test, messages of {mebibytes:g} MiB"
    for (host, device), rows in table.groupby(["host", "device"], dropna=False, sort=False):
        ratios = "  ".join(f"{row.test} {row.ratio:.2f}" for row in rows.itertuples())
        name = host if pd.isna(device) else f"{host} accelerator {int(device)}"
        yield f"{'SLOW' if rows['slow'].any() else 'ok':<4} {name}: {ratios}"
    yield "(time over the lower median of all nodes; 1.00 is usual)"
    if site.device == "cuda" and not result["by_device"]:
        yield f"accelerators are not tested: the environment of {LIBRARY} is not built yet"
    slow = table[table["slow"]]
    if slow.empty or site.launcher == "local":
        return
    file = display_path(site.file)
    yield f"at most {RATE_TEXT} of checks of equal nodes name any; exclude them in {file}:"
    yield "exclude_nodes:"
    for host, reasons in slow.groupby("host", sort=False)["reason"]:
        yield f"  {host}: {'; '.join(dict.fromkeys(reasons))!r}"


def idle_nodes(site: Site) -> int:
    """Return how many idle nodes the site's jobs could get now, at least as many as a run needs.

    Raises:
        InputError: If Slurm does not answer, or has no such partition.
    """
    try:
        listed = slurm.run_client("scontrol", "show", "partition", "--oneliner")
        finding, partition = slurm_findings.check_partition(slurm.parse_partitions(listed), site)
        if partition is None:
            raise InputError(finding.code, str(finding), file=display_path(site.file))
        nodes = slurm.parse_nodes(slurm.run_client(*slurm.NODES_COMMAND, f"--partition={partition}"))
    except Unanswered as unanswered:
        raise InputError("scheduler-silent", str(unanswered), file="Slurm") from None
    return max(site.nodes, sum(node.is_idle for node in slurm_findings.eligible_nodes(nodes, site)))


def _default_node_count(site: Site, job: str | None) -> int:
    """Return how many nodes to test if no number is given: all nodes of this job, or all idle nodes."""
    if job:
        return len(site.usable_hosts(job_hosts(job)))
    if site.launcher == "slurm":
        return idle_nodes(site)
    return 1 if site.launcher == "local" else site.nodes


def allocate(site: Site, nodes: int, arguments: Sequence[str]) -> int:
    """Run this program with `arguments` in an allocation of `nodes` nodes, and return its exit status.

    Raises:
        InputError: If Slurm gives no allocation, or the check fails there.
    """
    block_options = allocation_options(site, nodes)
    options = [option for option in block_options if option.split("=")[0] not in _BATCH_ONLY_OPTIONS]
    time_option = f"--time={round(TIME_LIMIT_S / 60) + 2}"
    program = [sys.executable, "-m", "runs.node_check", "--site", site.name, *arguments]
    command = ["salloc", "--quiet", "--job-name=ringside-node-check", time_option, *options, *program]
    environment = {**outside(), "PYTHONPATH": str(SCRIPTS)}
    try:
        exit_status = subprocess.run(command, cwd=CHECKOUT, env=environment, check=False).returncode
    except FileNotFoundError:
        raise InputError("not-installed", "is not installed on this machine", file="salloc") from None
    if exit_status not in (0, SLOW_STATUS):
        hint = f"./ringside doctor --site {site.name} names what to correct"
        raise InputError("command-failed", f"ended with status {exit_status}", file="node check", hint=hint)
    return exit_status


def check_nodes(site: Site, nodes: int | None = None, out: Path | None = None) -> int:
    """Test the nodes of a site against each other, print the verdicts, and return SLOW_STATUS or 0.

    Args:
        site: The site.
        nodes: Number of nodes; default: all of this job or, outside of a Slurm job, all idle ones.
        out: nodes.csv of a campaign, whose later jobs avoid the slow nodes. The result is then 0.

    Raises:
        InputError: If the site has nothing to compare, or Slurm gives no allocation.
    """
    if site.cpu_shares:
        problem = "is a list: nodes that differ by design are not compared"
        raise InputError("not-possible-here", problem, file=display_path(site.file), key="cpu_share")
    job = job_number() if site.launcher == "slurm" else None
    is_outside = site.launcher == "slurm" and job is None
    if nodes is None:
        nodes = _default_node_count(site, job)
    n_compared = nodes * (site.devices_per_node if check_environment(site)[2] == "cuda" else 1)
    if n_compared < 2 and not out:  # In a campaign, a check with nothing to compare is no error.
        problem = f"needs two nodes, or accelerators of one and the environment of {LIBRARY}"
        file, hint = display_path(site.file), "name a site of a cluster, or more nodes"
        raise InputError("not-possible-here", problem, file=file, got=nodes, hint=hint)
    if is_outside:
        return allocate(site, nodes, ["--out", str(out)] if out else [])
    started = time.time()
    parent = out.parent if out else CHECKOUT / "results"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".node-check-", dir=parent) as folder:
        result = measure_nodes(site, nodes, Path(folder))
    table = judge_result(result, f"{datetime.now(UTC):%Y-%m-%d}")
    print(*report_lines(table, result, site), f"took {time.time() - started:.0f} s", sep="\n", flush=True)
    if out:
        write_table(table, "nodes", out)
    return SLOW_STATUS if table["slow"].any() and not out else 0


def main(*, site: str, nodes: int | None = None, out: Path | None = None) -> None:
    """Test the nodes of a site against each other; without --out, the exit status is 3 if one is slow.

    Args:
        site: name of a file in config/sites/
        nodes: number of nodes; default: all of this job, or all idle ones
        out: nodes.csv of a campaign, whose later jobs avoid the slow nodes
    """
    with report_interruptions("node check", out or CHECKOUT / "results"):
        status = check_nodes(load_site(site), nodes, out)
    if status:
        sys.exit(status)


if __name__ == "__main__":
    sys.exit(run_program(main))
