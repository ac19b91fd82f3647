"""One timing from launch to timing.json: `python -m strategies.measure`, called once for every model and once for messages.

A timing that fails is data, as a sweep that does (network.measure): whatever becomes of the ranks, timing.json is written and the exit
status is 0. One that is removed is made again: from a finished attempt that succeeded, otherwise by a new attempt.
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
from plan.binding import bind, check_bound
from plan.design import design
from plan.identity import environment_of
from plan.timings import PARTS, PROGRAMS, Timing, code_digest, environment_digest, key, output, planned, spec
from runs import attempts, launch, transport
from runs.progress import current_session
from runs.supervise import ending_well, failure, job, spoiled

EMPTY: dict[str, Any] = {"parts": [], "layers": [], "updates": [], "empty_update": [], "messages": []}


def measure(study: Study, site: Site, timing: Timing, results: Path) -> dict[str, Any]:
    """Make and return the content of the timing's timing.json in `results` (results/<study>)."""

    def prepare() -> tuple[dict[str, Any], launch.Launcher]:
        environment = read_made(environment_of(site, timing.run))
        ranks = launch.launcher(site, spec(site, timing), setup=environment.get("setup", ()))
        bind(results, study.name, site)
        return environment, ranks

    def attempt(prepared: tuple[dict[str, Any], launch.Launcher], folder: Path) -> dict[str, Any]:
        return {**attempt_timing(study, site, timing, *prepared, folder), "session": current_session()}

    out, what = output(results, site, timing), f"timing {timing.name}"
    return attempts.settle(out, what, "timing", prepare, attempt, usable=lambda record: record["status"] == "ok")


def read(file: Path) -> dict[str, Any]:
    """A timing.json, checked. InputError in one line where it is broken."""
    try:
        record: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: is broken ({error}); remove {file.parent} and start again") from None
    check(record, "timing", file)
    return record


def attempt_timing(
    study: Study, site: Site, timing: Timing, environment: Mapping[str, Any], ranks: launch.Launcher, folder: Path
) -> dict[str, Any]:
    """Time once, in the attempt's `folder`; what became of it."""
    told = spec(site, timing)
    model = timing.run.graph.to_json() if timing.kind == PARTS else {}
    write_json(folder / "spec.json", job(told, timing.run.framework, environment, model, Path(), ranks.hosts))
    launched_at = time.time()
    program = f"strategies.{PROGRAMS[timing.kind]}"
    outcome = launch.run(ranks, environment, folder.resolve(), told, site, program=program)
    result = _result(folder)
    status, reason = judge(outcome, result, site, ranks.hosts)
    if status == "failed":
        reason = failure(reason or "", folder / "log.txt")
    found = result or {}
    return {
        "study": study.name,
        "site": site.name,
        "name": timing.name,
        "kind": timing.kind,
        "framework": timing.framework,
        "key": folder.parent.name,
        "status": status,
        "reason": reason,
        "job": ranks.job,
        "started_at": utc(launched_at),
        "ended_at": utc(time.time()),
        "wall_s": outcome.wall_s,
        "environment_digest": environment_digest(site, timing),
        "code_digest": code_digest(timing.framework, timing.kind),
        "placement": site.placement,
        "hosts": list(dict.fromkeys(rank["host"] for rank in found.get("ranks", []))),
        "devices": [rank["device"] for rank in found.get("ranks", [])],
        "transport": transport.described(found["transport"], told, folder) if "transport" in found else None,
        **{name: found.get(name) for name in ("node_memory_bytes", "resident_bytes", "foreign_cpu_share", "library_version")},
        **{name: found.get(name, nothing) for name, nothing in EMPTY.items()},
    }  # fmt: skip


def judge(
    outcome: launch.Outcome, result: Mapping[str, Any] | None, site: Site, hosts: Sequence[str]
) -> tuple[str, str | None]:
    """Status and reason of an attempt. `result` is what the ranks left, `hosts` the nodes that it was started on."""
    if outcome.status != "ok":
        return outcome.status, outcome.reason
    if result is None:
        return "failed", "ended without a result"
    found = list(dict.fromkeys(rank["host"] for rank in result["ranks"]))
    machines = len({rank["machine"] for rank in result["ranks"]})
    said = spoiled(found, machines, hosts, (result["foreign_cpu_share"], 0.0), site)
    return ("invalid", said) if said else ("ok", None)


def _result(folder: Path) -> dict[str, Any] | None:
    """What the ranks left; None where they did not come to an end."""
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    except FileNotFoundError:
        return None
    return result


def find(study: Study, site: Site, name: str) -> Timing:
    """The timing of this name. InputError where the study has none."""
    for timing in planned(design(study, site), site):
        if timing.name == name:
            return timing
    raise InputError(f"{study.file.name}: has no timing {name} any more; start Snakemake again")


def main(argv: list[str] | None = None) -> None:
    """Time the parts of a model's layers, or messages, and write timing.json."""
    parser = argparse.ArgumentParser(prog="strategies.measure", description=main.__doc__)
    parser.add_argument("--study", required=True, help="name of a file in config/studies/")
    parser.add_argument("--site", required=True, help="name of a file in config/sites/")
    parser.add_argument("--timing", required=True, help="a timing of the study, such as pytorch-strategy.messages")
    parser.add_argument("--key", required=True, help="the key that the caller expects the timing to have")
    parser.add_argument("--out", required=True, type=Path, help="timing.json, in the folder of the key")
    options = parser.parse_args(argv)
    study, site = load_study(options.study), load_site(options.site)
    timing = find(study, site, options.timing)
    if key(site, timing) != options.key:
        raise InputError(
            f"timing {timing.name}: files have changed since it was planned (key {options.key}); start Snakemake again"
        )
    with ending_well(f"timing {timing.name}", options.out):
        results = options.out.parents[3]
        check_bound(results, site)
        measure(study, site, timing, results)


if __name__ == "__main__":
    sys.exit(exit_status(main))
