"""One sweep from launch to sweep.json: `python -m network.measure`, called once for every collective, framework and number of nodes.

A sweep that fails is data, not a crash: whatever becomes of the ranks, sweep.json is written and the exit status is 0.
Another status means that the infrastructure was lost, or that this program was stopped or asked for something impossible.
A sweep.json that is removed is made again: from a finished attempt that succeeded, otherwise by a new attempt.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import InputError, exit_status
from common.files import utc, write_json
from common.schemas import check
from declared.site import Site, load_site
from declared.study import Study, load_study
from environments.made import read_made
from models.collectives import COLLECTIVES
from plan.binding import bind, check_bound
from plan.design import design
from plan.identity import environment_of
from plan.sweeps import Sweep, code_digest, environment_digest, key, output, planned, spec
from runs import attempts, launch, transport
from runs.progress import current_session
from runs.supervise import ending_well, failure, job, spoiled

PROGRAM = "network.sweep"


def measure(study: Study, site: Site, sweep: Sweep, results: Path) -> dict[str, Any]:
    """Make and return the content of the sweep's sweep.json in `results` (results/<study>)."""
    out = output(results, site, sweep)

    def prepare() -> tuple[dict[str, Any], launch.Launcher]:
        environment = read_made(environment_of(site, sweep.run))
        ranks = launch.launcher(site, spec(site, sweep), setup=environment.get("setup", ()))
        bind(results, study.name, site)
        return environment, ranks

    def attempt(prepared: tuple[dict[str, Any], launch.Launcher], folder: Path) -> dict[str, Any]:
        return {**attempt_sweep(study, site, sweep, *prepared, folder), "session": current_session()}

    return attempts.settle(
        out, f"sweep {sweep.name}", "sweep", prepare, attempt, usable=lambda record: record["status"] == "ok"
    )


def read(file: Path) -> dict[str, Any]:
    """A sweep.json, checked. InputError in one line where it is broken."""
    try:
        record: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: is broken ({error}); remove {file.parent} and start again") from None
    check(record, "sweep", file)
    return record


def attempt_sweep(
    study: Study, site: Site, sweep: Sweep, environment: Mapping[str, Any], ranks: launch.Launcher, folder: Path
) -> dict[str, Any]:
    """Sweep once, in the attempt's `folder`; what became of it."""
    sweep_spec = spec(site, sweep)
    told = job(sweep_spec, sweep.run.framework, environment, model={}, data=Path(), hosts=ranks.hosts)
    write_json(folder / "spec.json", told)
    launched_at = time.time()
    outcome = launch.run(ranks, environment, folder.resolve(), sweep_spec, site, program=PROGRAM)
    result = _result(folder)
    described = transport.described(result["transport"], sweep_spec, folder) if result else None
    status, reason = judge(outcome, result, described, sweep_spec, site, ranks.hosts)
    if status == "failed":
        reason = failure(reason or "", folder / "log.txt")
    return {
        "study": study.name,
        "site": site.name,
        "collective": sweep.collective,
        "framework": sweep.framework,
        "nodes": sweep.nodes,
        "ranks": sweep.geometry.ranks,
        "key": folder.parent.name,
        "status": status,
        "reason": reason,
        "job": ranks.job,
        "started_at": utc(launched_at),
        "ended_at": utc(time.time()),
        "wall_s": outcome.wall_s,
        "environment_digest": environment_digest(site, sweep),
        "code_digest": code_digest(sweep.framework),
        "placement": site.placement,
        "interface": site.interface,
        "bandwidth_bytes_s": sweep_spec["bandwidth_bytes_s"],
        "transport": described,
        "hosts": list(dict.fromkeys(rank["host"] for rank in result["ranks"])) if result else [],
        "devices": [rank["device"] for rank in result["ranks"]] if result else [],
        "sent_bytes": _most_sent(result) if result else None,
        "foreign_cpu_share": result["foreign_cpu_share"] if result else None,
        "library_version": result["library_version"] if result else None,
        "sizes": result["sizes"] if result else [],
    }


def judge(
    outcome: launch.Outcome,
    result: Mapping[str, Any] | None,
    described: str | None,
    sweep_spec: Mapping[str, Any],
    site: Site,
    hosts: Sequence[str],
) -> tuple[str, str | None]:
    """Status and reason of an attempt. `result` is what the ranks left, `hosts` the nodes that it was started on."""
    if outcome.status != "ok":
        return outcome.status, outcome.reason
    if result is None or described is None:
        return "failed", "ended without a result"
    found = list(dict.fromkeys(rank["host"] for rank in result["ranks"]))
    machines = len({rank["machine"] for rank in result["ranks"]})
    shares = result["foreign_cpu_share"], 0.0  # ranks of a sweep tell nothing of a hypervisor
    if said := spoiled(found, machines, hosts, shares, site):
        return "invalid", said
    # The transport's objections are those of a run with one epoch in which all messages of the sweep were exchanged.
    row = {"epoch": 1, "exchanges": 1, "sent_bytes": _most_sent(result)}
    leaves = COLLECTIVES[sweep_spec["collective"]].leaves(sweep_spec["nodes"], sweep_spec["ranks_per_node"])
    if said := transport.objection(described, sweep_spec, site, [row], leaves * result["message_bytes"]):
        return "invalid", f"network: {said.replace('in epoch 1, the gradients', 'in the sweep, the messages')}"
    return "ok", None


def _result(folder: Path) -> dict[str, Any] | None:
    """What the ranks left; None where they did not come to an end."""
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    except FileNotFoundError:
        return None
    return result


def _most_sent(result: Mapping[str, Any]) -> int | None:
    sent = [rank["sent_bytes"] for rank in result["ranks"]]
    return None if None in sent else max(sent)


def find(study: Study, site: Site, name: str) -> Sweep:
    """The sweep of this name. InputError where the study has none."""
    for sweep in planned(design(study, site), site):
        if sweep.name == name:
            return sweep
    raise InputError(f"{study.file.name}: has no sweep {name} any more; start Snakemake again")


def main(argv: list[str] | None = None) -> None:
    """Sweep a collective over message sizes by one framework on some nodes, and write sweep.json."""
    parser = argparse.ArgumentParser(prog="network.measure", description=main.__doc__)
    parser.add_argument("--study", required=True, help="name of a file in config/studies/")
    parser.add_argument("--site", required=True, help="name of a file in config/sites/")
    parser.add_argument("--sweep", required=True, help="a sweep of the study, such as pytorch-ddp.n2")
    parser.add_argument("--key", required=True, help="the key that the caller expects the sweep to have")
    parser.add_argument("--out", required=True, type=Path, help="sweep.json, in the folder of the key")
    options = parser.parse_args(argv)
    study, site = load_study(options.study), load_site(options.site)
    sweep = find(study, site, options.sweep)
    if key(site, sweep) != options.key:
        raise InputError(
            f"sweep {sweep.name}: files have changed since it was planned (key {options.key}); start Snakemake again"
        )
    with ending_well(f"sweep {sweep.name}", options.out):
        results = options.out.parents[3]
        check_bound(results, site)
        measure(study, site, sweep, results)


if __name__ == "__main__":
    sys.exit(exit_status(main))
