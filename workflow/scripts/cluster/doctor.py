"""What will not work at the configured site, in about a minute: one line a check, ok, warn or FAIL.

    python -m cluster.doctor --config site=NAME

Slurm is asked for what it says of itself, then one test job asks every node. Exit status 1 when something FAILs, 2 for
bad input.
"""

import argparse
import contextlib
import fcntl
import getpass
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cluster import slurm, verdicts
from cluster.node_report import MARK
from cluster.node_verdicts import node_findings
from cluster.readiness import check_virtual
from cluster.slurm import Node, Unanswered
from cluster.verdicts import Finding, fail, ok, warn
from common.errors import InputError, exit_status
from common.files import CHECKOUT, load_yaml, shown
from declared.configuration import load_config
from declared.site import Site, load_site
from declared.study import load_study
from plan.campaign import add_config_argument, configured
from plan.machine import check_machine
from plan.scheduling import allocation_options

PROGRAMS = ("srun", "sbatch", "squeue", "scontrol", "sinfo")
PROFILE = CHECKOUT / "profiles" / "slurm" / "config.yaml"
REPORT = Path(__file__).with_name("node_report.py")
WAIT_S = 45  # for nodes
ANSWER_S = 60  # for their answers

# The nodes may not see this checkout, so the program itself is an argument: $1 interpreter, $2 program, $3 question.
_ON_A_NODE = """
if "$1" -c pass 2>/dev/null; then exec "$1" -c "$2" "$3"; fi
if command -v python3 >/dev/null; then exec python3 -c "$2" "$3"; fi
echo "python3: is not on $(hostname)" >&2
exit 1
"""
_NOT_OF_SRUN = ("--nodes", "--ntasks-per-node", "--cpus-per-task", "--time", "--signal", "--no-requeue")


def examine(site: Site, results: Path) -> Iterator[Finding]:
    """Everything that can be said of the site, worst news included; `results` is the folder that runs write to."""
    if site.launcher == "local":
        yield from _local(site, results)
    elif site.launcher == "slurm":
        try:
            yield from _slurm(site, results)
        except Unanswered as error:
            yield fail("controller", f"{error}; is slurmctld up, and is this host one of the cluster's?")
    else:
        yield warn(
            "site", f"{shown(site.file)}: launcher: {site.launcher}: the doctor knows Slurm and this machine only"
        )


def _local(site: Site, results: Path) -> Iterator[Finding]:
    yield ok("site", f"{site.name} is this machine and needs no Slurm")
    try:
        check_machine(site)
        yield ok("machine", f"has {site.cores} processors for runs, and {site.interface}")
    except InputError as error:
        yield fail("machine", str(error))
    with _probes(site, results) as question:
        if isinstance(question, Finding):
            yield question
            return
        done = subprocess.run(
            [sys.executable, str(REPORT), json.dumps(question)], capture_output=True, text=True, check=False
        )
        reports = _reports([(time.time(), f"0: {line}") for line in done.stdout.splitlines()])
        yield from node_findings(reports, site, sys.executable, _version())


def _slurm(site: Site, results: Path) -> Iterator[Finding]:
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        yield fail(
            "programs", f"{', '.join(missing)} not on this machine; call the doctor on a login node of the cluster"
        )
        return
    listing = ["sinfo", "--Node", "--noheader", f"--format={slurm.NODE_FORMAT}"]
    config = slurm.configuration(slurm.ask("scontrol", "show", "config"))
    partitions = slurm.partitions(slurm.ask("scontrol", "show", "partition", "--oneliner"))
    known = sorted({node.name for node in slurm.nodes(slurm.ask(*listing))})
    yield ok("controller", f"{config.get('ClusterName', '?')} answers, Slurm {config.get('SLURM_VERSION', '?')}")
    if site.placement == "virtual":
        try:
            check_virtual(site)
        except InputError as error:
            yield fail("virtual cluster", str(error))
    written = load_yaml(PROFILE).get(verdicts.STATUS_COMMAND)
    yield verdicts.job_status(config, written, PROFILE, shutil.which("sacct") is not None)
    yield verdicts.lost_node(config, site)
    account = _account(config, site)
    yield account
    found, partition = verdicts.partition(partitions, site)
    yield found
    if partition is None:
        yield warn("test job", "not tried: there is no partition for it")
        return
    there = slurm.nodes(slurm.ask(*listing, f"--partition={partition}"))
    possible = verdicts.eligible(there, site)
    yield verdicts.nodes(there, known, site)
    yield verdicts.processors(possible, site)
    yield from verdicts.time_limits(partitions[partition], site)
    yield verdicts.memory(config, partitions[partition], possible, site)
    if account.verdict == "FAIL":
        yield warn("test job", "not tried: there is no account for it")
        return
    yield _allocation(site)
    yield from _test_job(site, possible, results)


def _account(config: dict[str, str], site: Site) -> Finding:
    if not slurm.accounting(config):
        return verdicts.account(config, None, site)
    try:
        return verdicts.account(config, slurm.accounts(getpass.getuser()), site)
    except Unanswered as error:
        return warn("account", f"could not be checked: sacctmgr: {error}")


def _allocation(site: Site) -> Finding:
    """Whether sbatch would take the allocation of a block as it stands."""
    options = allocation_options(site, site.nodes)
    try:
        done = subprocess.run(
            ["sbatch", "--test-only", *options, "--wrap=true"],
            capture_output=True,
            text=True,
            check=False,
            env=_outside(),
            timeout=slurm.PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return warn("allocation", f"sbatch --test-only: no answer within {slurm.PATIENCE_S} s")
    if done.returncode:
        said = slurm.last_line(done.stderr).removeprefix("allocation failure: ")
        return fail("allocation", f"sbatch refuses it: {said}; asked: {' '.join(options)}; see {shown(site.file)}")
    return ok("allocation", "sbatch would take a block's job")


def _test_job(site: Site, possible: Sequence[Node], results: Path) -> Iterator[Finding]:
    usable = [node for node in possible if node.usable]
    if not usable:
        yield warn("test job", "not tried: there is no node for it")
        return
    wanted = min(site.nodes, len(usable), max(1, sum(node.idle for node in usable)))
    cores = min(site.cores, *(node.processors for node in usable))
    with _probes(site, results) as question:
        if isinstance(question, Finding):
            yield question
            return
        lines, said, status = _srun(site, wanted, cores, question)
        if "nrecognized option" in said or "nvalid option" in said:  # sbatch has options that srun does not know
            lines, said, status = _srun(site, wanted, cores, question, own_options=False)
    reports = _reports(lines)
    count = f"{wanted} of the {site.nodes} nodes of a run" if wanted < site.nodes else f"{wanted} nodes"
    if not reports and "busy" in said:
        yield warn(
            "test job", f"no {count} free within {WAIT_S} s, so the nodes were not checked; run make doctor again"
        )
        return
    if len(reports) < wanted:
        there = f"{len(reports)} of {wanted} nodes answered; " if reports else ""
        yield fail("test job", f"{there}srun: {slurm.last_line(said) or f'status {status}'}")
    elif wanted < site.nodes:
        yield warn("test job", f"looked at {count}, the others are busy or cannot be had: {_names(reports)}")
    else:
        yield ok("test job", f"ran on {_names(reports)}")
    if reports:
        yield from node_findings(reports, site, sys.executable, _version())


def _names(reports: Sequence[dict[str, Any]]) -> str:
    return slurm.hosts(sorted(report["host"] for report in reports))


def _srun(
    site: Site, nodes: int, cores: int, question: dict[str, Any], own_options: bool = True
) -> tuple[list[tuple[float, str]], str, int]:
    """Ask the nodes: the lines that they said with the time when each came, srun's own words, its exit status."""
    dropped = () if own_options else site.scheduler.options
    options = [
        option
        for option in allocation_options(site, nodes)
        if option.split("=")[0] not in _NOT_OF_SRUN and option not in dropped
    ]
    command = [
        "srun",
        "--job-name=ringside-doctor",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cores}",
        "--time=2",
        f"--immediate={WAIT_S}",
        "--label",
        "--input=none",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        *options,
        *("sh", "-c", _ON_A_NODE, "doctor", sys.executable, REPORT.read_text(), json.dumps(question)),
    ]
    lines: list[tuple[float, str]] = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=_outside()
        )
        alarm = threading.Timer(WAIT_S + ANSWER_S, process.terminate)
        alarm.start()
        try:
            lines.extend((time.time(), line) for line in process.stdout or ())
            status = process.wait()
        finally:
            alarm.cancel()
            if process.poll() is None:
                process.terminate()
        errors.seek(0)
        return lines, errors.read(), status


def _reports(lines: Sequence[tuple[float, str]]) -> list[dict[str, Any]]:
    """The nodes' reports among the lines of `srun --label`, each with `clock_apart_s`.

    A line that comes is as old as the network is slow, milliseconds: what the node's clock is apart by is its time minus
    the time of arrival. A long line may come in pieces, each with its label.
    """
    texts: dict[str, str] = {}
    arrived: dict[str, float] = {}
    for at, line in lines:
        label, _, text = line.rstrip("\n").partition(": ")
        if label in texts or text.startswith(MARK):
            texts[label] = texts.get(label, "") + text
            arrived[label] = at
    reports = []
    for label, text in texts.items():
        with contextlib.suppress(ValueError):
            report = json.JSONDecoder().raw_decode(text.removeprefix(MARK))[0]
            reports.append({**report, "clock_apart_s": report["clock"] - arrived[label]})
    return sorted(reports, key=lambda report: report["host"])


@contextlib.contextmanager
def _probes(site: Site, results: Path) -> Iterator[dict[str, Any] | Finding]:
    """What nodes are asked, with folders that are there for them to find; a finding where they cannot be made here."""
    with contextlib.ExitStack() as stack:
        folders = {}
        for name, parent in (("results", results), ("cache", site.cache)):
            try:
                parent.mkdir(parents=True, exist_ok=True)
                folders[name] = stack.enter_context(tempfile.TemporaryDirectory(prefix=".doctor-", dir=parent))
            except OSError as error:
                yield fail(name, f"{parent}: cannot be written on this host: {error.strerror}")
                return
        lock = Path(folders["results"], "lock")
        held = stack.enter_context(open(lock, "w"))
        with contextlib.suppress(OSError):  # a file system without locks: the nodes will say so
            fcntl.flock(held, fcntl.LOCK_EX)
        yield {
            "checkout": str(CHECKOUT),
            "lock": str(lock),
            "scratch": str(site.scratch) if site.scratch else None,
            "setup": list(site.setup),
            "device": site.device,
            "binds": [bind.partition(":")[0] for bind in site.binds],
            **folders,
        }


def _outside() -> dict[str, str]:
    """The environment without the job that the doctor may have been called in: its own job is another."""
    inside = "SLURM_JOB_ID" in os.environ
    kept = ("SLURM_CONF",)
    return {name: value for name, value in os.environ.items() if not inside or name in kept or "SLURM_" not in name}


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def main(argv: list[str] | None = None) -> None:
    """Say what will not work at the configured site."""
    parser = argparse.ArgumentParser(prog="make doctor", description=main.__doc__)
    add_config_argument(parser)
    options = parser.parse_args(argv)
    config = load_config(configured(options.config, "slurm.yaml"))
    site, study = load_site(config["site"]), load_study(config["study"])
    results = CHECKOUT / "results" / study.name
    print(f"site {site.name} ({shown(site.file)})")
    failures = 0
    for finding in examine(site, results if results.exists() else CHECKOUT / "results"):
        print(finding, flush=True)
        failures += finding.verdict == "FAIL"
    if failures:
        print(f"{failures} FAIL: runs will not work at {site.name} until this is fixed")
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(exit_status(main))
